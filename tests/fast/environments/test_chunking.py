"""CRUMB's chunking against Figure 2 of its paper and its own rules."""

from hypothesis import given, settings
from hypothesis import strategies as st

from sextant.environments.chunking import bert_tokens, chunks

# Of the shape of the paper's Figure 2, in our words: two sections, one with a subsection of two paragraphs.
PAGE = """# Harbour Notes
## Tides
The first paragraph on tides says when the water comes and goes, and it runs over more than one sentence. This is one.
### Spring tides
A paragraph on spring tides, long enough that it makes a chunk together with its headings and leaves no room for more.

Another paragraph on spring tides goes on with examples of the same and stops here.
## Winds
The first paragraph on winds begins another subject.
"""


def test_a_page_of_figure_2s_shape_is_cut_as_figure_2_cuts_it():
    made = chunks(PAGE, bert_tokens(), limit=45)
    assert made == [
        "# Harbour Notes\n## Tides\nThe first paragraph on tides says when the water comes and goes, and it runs over "
        "more than one sentence. This is one.",
        "# Harbour Notes\n## Tides\n### Spring tides\nA paragraph on spring tides, long enough that it makes a chunk "
        "together with its headings and leaves no room for more.",
        "# Harbour Notes\n## Tides\n### Spring tides\nAnother paragraph on spring tides goes on with examples of the "
        "same and stops here.\n## Winds\nThe first paragraph on winds begins another subject.",
    ]


def test_with_room_enough_a_page_is_one_chunk_and_says_each_heading_once():
    [chunk] = chunks(PAGE, bert_tokens())
    headings = ["# Harbour Notes", "## Tides", "### Spring tides", "## Winds"]
    assert [line for line in chunk.splitlines() if line.startswith("#")] == headings


def test_a_block_that_is_too_long_is_a_chunk_of_its_own_and_whole():
    long = " ".join(f"word{n}" for n in range(900))
    made = chunks(f"# T\n\nshort\n\n{long}\n\nend", bert_tokens())
    assert made == ["# T\nshort", f"# T\n{long}", "# T\nend"]


def test_a_heading_without_content_is_kept_and_code_is_no_heading():
    made = chunks(
        "# T\n## Empty\n## Full\ntext\n```\n# a comment\n\n## another\n```\n## Last",
        len,
        limit=10_000,
    )
    assert made == ["# T\n## Empty\n## Full\ntext\n```\n# a comment\n\n## another\n```\n## Last"]


LINES = st.sampled_from(
    ["# A", "## B", "### C", "#### D", "one two", "three", "- four", "", "", "five " * 12]
)


@given(st.lists(LINES, max_size=30), st.integers(5, 80))
@settings(max_examples=100)
def test_content_comes_once_in_order_and_a_chunk_over_the_limit_is_a_single_block(lines, limit):
    def count(text):
        return len(text.split())

    markdown = "\n".join(lines)
    made = chunks(markdown, count, limit)
    content = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    assert [
        line.strip() for chunk in made for line in chunk.splitlines() if not line.startswith("#")
    ] == content
    for heading in {line for line in lines if line.startswith("#")}:
        assert any(heading in chunk.splitlines() for chunk in made)
    for chunk in made:
        body = [line.strip() for line in chunk.splitlines() if not line.startswith("#")]
        if (
            count(chunk) > limit
        ):  # one block: between two of its lines the page has neither heading nor blank line
            assert "\n".join(body) in "\n".join(line.strip() for line in lines)


def test_tokens_are_berts():
    # BERT's word pieces (Devlin et al. 2019): un ##aff ##able, lower-cased, without [CLS] and [SEP].
    assert bert_tokens()("unaffable, Unaffable!") == 8
