"""What calls cost by the table and by the user's own file, and what they used by the blocks that providers send."""

import pytest
from bad_server import ABSURD_USAGE

from sextant.tools.errors import UsageError
from sextant.tools.models.prices import price, window
from sextant.tools.models.provider_response import MOST_TOKENS, THINKING, TokenCounts, read_report

TINY = "tiny@http://127.0.0.1:8000/v1"


@pytest.fixture
def prices_file(tmp_path, monkeypatch):
    """Writes a prices file and names it in the environment."""

    def write(text):
        path = tmp_path / "mine.toml"
        path.write_text(text)
        monkeypatch.setenv("SEXTANT_PRICES", str(path))
        return path

    return write


def test_a_published_price_comes_out_as_published():
    # OpenAI's price list: gpt-4o-mini, $0.15 in, $0.075 cached, $0.60 out per million tokens
    assert price("openai/gpt-4o-mini").of(2_000_000, 1_000_000, 1_000_000) == pytest.approx(
        0.15 + 0.075 + 0.60
    )
    assert str(price("openai/gpt-4o-mini")).startswith(
        "$0.15 in, $0.075 cached, $0.6 out per million tokens (litellm "
    )
    assert price("openai/gpt-4o-mini").provenance["as_of"] is None, "the table claims no date"


@pytest.mark.parametrize(
    "spec",
    [
        "openai/no-such-model",
        "gpt-4o",  # of no provider
        "ollama/gpt-4o",  # of another one
        TINY,
        "gpt-4o@http://127.0.0.1:8000/v1",  # a server of one's own may call its model so
        "openai/gpt-4o@http://127.0.0.1:8000/v1",
        "openai/text-embedding-3-small",  # writes no text
        "openai/gpt-4o-search-preview",  # a fee for every search
        "openai/o3-deep-research",
        "perplexity/sonar-pro",
        "azure_ai/model-router",  # the router's fee without the model's
        "gemini/gemini-exp-1206",  # 0 in the table, on somebody else's machines
    ],
)
def test_what_is_not_known_is_none_and_not_nothing(spec):
    assert price(spec) is None


def test_a_server_of_ones_own_costs_nothing():
    assert price("ollama/llama3").of(1000, 0, 1000) == 0.0
    assert price("ollama/llama3").free and not price("openai/gpt-5.4").free


def test_a_price_of_the_users_is_before_the_tables(prices_file):
    prices_file(
        'as_of = 2026-11-01\n["openai/gpt-5.2"]\ninput = 1\noutput = 10\ncached_input = 0.5\n'
    )
    mine = price("openai/gpt-5.2")
    assert mine.of(1_000_000, 400_000, 100_000) == pytest.approx(0.6 + 0.2 + 1.0)
    assert mine.provenance == {
        "source": "mine.toml", "as_of": "2026-11-01", "input": 1.0, "cached_input": 0.5, "output": 10.0
    }  # fmt: skip
    assert str(mine) == "$1 in, $0.5 cached, $10 out per million tokens (mine.toml of 2026-11-01)"
    assert price("openai/gpt-4o").source.startswith("litellm")
    assert window("openai/gpt-5.2") == 272_000  # of which the file says nothing


def test_a_server_of_the_users_may_have_a_price_or_cost_nothing(prices_file):
    prices_file(
        f'["{TINY}/"]\ninput = 0\noutput = 0\nwindow = 4096\n["dear@*"]\ninput = 1e6\noutput = 1e6\n'
    )
    assert price(TINY).of(1000, 0, 1000) == 0.0 and window(TINY) == 4096
    assert price("dear@http://127.0.0.1:8000/v1").of(1, 0, 1) == 2.0
    assert price("other@http://127.0.0.1:8000/v1") is None


def test_of_several_sections_the_most_exact_holds(prices_file):
    sections = {"openai/*": 1, "openai/gpt-5*": 2, "openai/gpt-5.2": 3, "*": 4}
    prices_file(
        "".join(
            f'["{name}"]\ninput = {dollars}\noutput = 9\n' for name, dollars in sections.items()
        )
    )
    asked = ["openai/o3", "openai/gpt-5-mini", "openai/gpt-5.2", "openai/gpt-5.2-pro", "x/y"]
    assert [price(spec).of(1_000_000, 0, 0) for spec in asked] == [1, 2, 3, 2, 4]


def test_thinking_and_what_is_cached_cost_like_the_rest_unless_the_file_says_otherwise(prices_file):
    prices_file(
        '["a/b"]\ninput = 2\noutput = 10\n["a/c"]\ninput = 2\noutput = 10\nreasoning = 20\ncache_write = 4\n'
    )
    call = (1_000_000, 500_000, 1_000_000, 400_000, 100_000)
    assert price("a/b").of(*call) == pytest.approx(2 + 10)
    assert price("a/c").of(*call) == pytest.approx(
        0.4 * 2 + 0.1 * 4 + 0.5 * 2 + 0.6 * 10 + 0.4 * 20
    )


def test_the_file_is_the_named_one_else_that_of_the_environment_else_that_at_home(
    tmp_path, prices_file, monkeypatch
):
    def write(path, dollars):
        path.parent.mkdir(exist_ok=True)
        path.write_text(f'["a/b"]\ninput = {dollars}\noutput = 0\n')
        return path

    write(tmp_path / "home" / "prices.toml", 1)  # $SEXTANT_HOME of the tests
    assert price("a/b").input == 1e-6
    prices_file('["a/b"]\ninput = 2\noutput = 0\n')
    assert price("a/b").input == 2e-6
    assert price("a/b", write(tmp_path / "named.toml", 3)).input == 3e-6
    monkeypatch.setenv("SEXTANT_PRICES", "/dev/null")
    assert price("a/b") is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[openai/gpt-5.2]\ninput = 1\noutput = 1\n", "in quotes"),
        ('["gpt-5.2"]\ninput = 1\noutput = 1\n', "names no model"),
        ('["a/b"]\ninput = 1\n', "a/b.output is missing"),
        ('["a/b"]\ninput = -1\noutput = 1\n', "a/b.input should be greater"),
        ('["a/b"]\ninput = true\noutput = 1\n', "a/b.input should be a valid number"),
        ('["a/b"]\ninput = nan\noutput = 1\n', "a/b.input should be a finite number"),
        ('["a/b"]\ninput = 0.00000175\noutput = 1\n', "not per token"),
        ('["a/b"]\ninput = 1\noutput = 1\nwindow = 0\n', "a/b.window should be greater"),
        (
            '["a/b"]\ninput = 1\noutput = 1\nas_of = "yesterday"\n',
            "a/b.as_of should be a date like 2026-11-01",
        ),
        ("as_of = 2026\n", "as_of should be a date"),
        ('["a/b"]\ninptu = 1\noutput = 1\n', "a/b.input is missing"),
        ("currency = 'EUR'\n", "currency Extra inputs are not permitted"),
        ("\N{LATIN SMALL LETTER E WITH ACUTE}", "is not TOML"),
        # numbers that no float holds, or that Python does not print, and values in values in values
        (f'["a/b"]\ninput = 1{"0" * 400}\noutput = 1\n', "a/b.input should be a valid number"),
        (f'["a/b"]\ninput = 0x{"f" * 5000}\noutput = 1\n', "a/b.input should be a valid number"),
        (f"a = {'[' * 3000}{']' * 3000}\n", "brackets are nested too deep"),
        (f"as_of{'.a' * 2000} = 1\n", "names no model"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_in_one_line(text, said, prices_file):
    path = prices_file(text)
    with pytest.raises(UsageError) as refused:
        price("openai/gpt-5.2")
    assert (
        said in str(refused.value)
        and str(path) in str(refused.value)
        and "\n" not in str(refused.value)
    )


def test_a_named_file_that_is_not_there_or_is_no_text_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"no such file.*--prices"):
        price("openai/gpt-5.2", tmp_path / "nowhere.toml")
    with pytest.raises(UsageError, match="is a directory"):
        price("openai/gpt-5.2", tmp_path)
    (tmp_path / "latin.toml").write_bytes(b'["a/b\xe9"]\n')
    with pytest.raises(UsageError, match="is not TOML"):
        price("openai/gpt-5.2", tmp_path / "latin.toml")


CHAT = {"prompt_tokens": 1000, "completion_tokens": 200, "total_tokens": 1200}
RESPONSES = {"input_tokens": 1000, "output_tokens": 200, "total_tokens": 1200}
CACHED, THOUGHT = {"cached_tokens": 512, "audio_tokens": 0}, {"reasoning_tokens": 128}
ANTHROPICS = {
    "cache_read_input_tokens": 700,
    "cache_creation_input_tokens": 250,
}  # counted beside the input
THOUGHT_AGAIN = {"completion_tokens_details": {"reasoning_tokens": 204}}  # with its marks
BLOCKS = [
    (CHAT, (1000, 0, 200, 0)),
    ({"prompt_tokens": 1000.0, "completion_tokens": 200.0, "total_tokens": 1200.0}, (1000, 0, 200, 0)),
    (CHAT | {"prompt_tokens_details": None, "completion_tokens_details": []}, (1000, 0, 200, 0)),
    (CHAT | {"prompt_tokens_details": CACHED, "completion_tokens_details": THOUGHT}, (1000, 512, 200, 128)),
    (RESPONSES | {"input_tokens_details": CACHED, "output_tokens_details": THOUGHT}, (1000, 512, 200, 128)),
    # Anthropic's own, and the same as DSPy and LiteLLM hand it on
    ({"input_tokens": 50, "cache_creation": {"ephemeral_5m_input_tokens": 250}, "output_tokens": 200} | ANTHROPICS,
     (1000, 700, 200, 0, 250)),
    (CHAT | {"prompt_tokens_details": {"cached_tokens": 700, "cache_creation_tokens": 250}} | ANTHROPICS,
     (1000, 700, 200, 0, 250)),
    (CHAT | {"prompt_cache_hit_tokens": 640, "prompt_cache_miss_tokens": 360}, (1000, 640, 200, 0)),  # DeepSeek
    # xAI: 10120 + 1499 + 2809 = 14428, thinking is not part of completion_tokens
    ({"prompt_tokens": 10120, "completion_tokens": 1499, "total_tokens": 14428, "prompt_tokens_details": CACHED,
      "completion_tokens_details": {"reasoning_tokens": 2809}}, (10120, 512, 1499 + 2809, 2809)),
    # Gemini's OpenAI-compatible endpoint: thinking shows in the total alone
    ({"prompt_tokens": 21, "completion_tokens": 0, "total_tokens": 81}, (21, 0, 60, 0)),
    ({"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14 + THINKING}, (9, 0, 5 + THINKING, 0)),
    # a server that counts thinking again
    (CHAT | THOUGHT_AGAIN, (1000, 0, 200, 200)),
    (CHAT | {"total_tokens": 1204} | THOUGHT_AGAIN, (1000, 0, 204, 204)),
    ({"prompt_tokens": 5, "completion_tokens": 0}, (5, 0, 0, 0)),
]  # fmt: skip


@pytest.mark.parametrize(("block", "metered"), BLOCKS)
def test_a_usage_block_is_read_as_its_provider_means_it(block, metered):
    assert read_report(block) == TokenCounts(*metered)


@pytest.mark.parametrize(
    "block",
    [
        *ABSURD_USAGE,
        {"prompt_tokens": 10},
        {"completion_tokens": 10},
        {"total_tokens": 10},
        {"prompt_tokens": 10, "output_tokens": 10},
        {"prompt_tokens": 0, "completion_tokens": 10, "total_tokens": 10},
        {"prompt_tokens": MOST_TOKENS + 1, "completion_tokens": 1},
        {**CHAT, "total_tokens": -1},
        # a total of more than this call: beside its parts there is more than any thinking, or than the thinking told
        {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 9_000_000},
        {"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 15 + THINKING},
        {**CHAT, "total_tokens": 1300, "completion_tokens_details": {"reasoning_tokens": 20}},
        {**CHAT, "prompt_tokens_details": {"cached_tokens": 1001}},
        {**CHAT, "prompt_tokens_details": {"cached_tokens": 600, "cache_creation_tokens": 600}},
        {**CHAT, "prompt_tokens_details": {"cached_tokens": -1}},
        {**CHAT, "prompt_tokens_details": {"cached_tokens": 1.5}},
        {**CHAT, "prompt_tokens_details": "none"},
        {**CHAT, "completion_tokens_details": {"reasoning_tokens": 300}},
        {**RESPONSES, "input_tokens_details": {"cached_tokens": True}},
        {**RESPONSES, "output_tokens_details": [1]},
    ],
)
def test_a_usage_block_that_is_missing_or_cannot_be_true_is_not_believed(block):
    assert read_report(block) is None
