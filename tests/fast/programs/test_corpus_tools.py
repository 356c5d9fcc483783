"""Tools over a corpus and memories of an agent: what they show, what they keep back, and the fates that follow."""

import json
import random
from fractions import Fraction

import pytest

from sextant.agents.memory import MEMORIES
from sextant.agents.react import React
from sextant.environments.base import Judgements
from sextant.evals.run_schemas import Fate
from sextant.evals.running.runner import answer_query
from sextant.evals.scoring.attribution import LossCounts, attribute
from sextant.evals.serving.episode import EpisodeFactory, describe
from sextant.programs import FILES, TOOLS
from sextant.programs.corpus_tools import list_tools
from sextant.tools.corpus import Corpus
from sextant.tools.errors import UnknownName, UsageError
from sextant.tools.models import language_model
from sextant.tools.models.tokens import count_tokens
from sextant.tools.records import Document, Query
from sextant.tools.retrievers.lexical.bm25 import BM25
from sextant.tools.session import Limits, Toolbox

NAMES = [name for name in TOOLS if name != FILES]  # which is for processes alone
EVERY = ",".join(NAMES)
WORDS = ["ferry", "dam", "bridge", "nurse", "pension", "orchard", "radio", "copper"]
DRAW = random.Random(7)
CORPUS = Corpus(
    Document(
        f"d{n}",
        "\n".join(" ".join(DRAW.choices(WORDS, k=6)) for _ in range(DRAW.randint(0, 6))),
        f"title {n}",
    )
    for n in range(40)
)
INDEX = BM25(CORPUS)
EXCLUDED = frozenset(f"d{n}" for n in range(0, 40, 5))
POOL = frozenset(f"d{n}" for n in range(25))
ASKED = Query("q", "a nurse on the ferry", "what is asked", EXCLUDED, POOL)
UNKNOWN = "no-such-id"


def random_arguments(draw, tool):
    words = " ".join(draw.choices(WORDS, k=draw.randint(1, 3)))
    number = draw.choice([-1, 0, 1, 2, 5, 12, 30, 10**6])
    doc_id = draw.choice([*(f"d{n}" for n in range(42)), UNKNOWN])
    return {
        "search": {"query": words, "k": draw.choice([1, 3, 10])},
        "more": {"search": words if draw.random() < 0.3 else "ferry", "from": number},
        "read": {"doc_id": doc_id, "from": number, "chars": draw.choice([0, 1, 7, 10**6])},
        "grep": {
            "pattern": draw.choice([words, f"{words}|dam", ".", "(", "(?i)FERRY", r"^\w+ dam", ""]),
            "k": draw.choice([1, 3, 100]),
        },
        "phrase": {"text": words, "k": draw.choice([1, 3, 100])},
        "count": {"words": words.split()},
        "note": {"text": words},
        "notes": {},
        "select": {"doc_ids": [doc_id]},
    }[tool]


@pytest.mark.parametrize("tool", [*NAMES, "notes", "select"])
def test_no_call_brings_an_excluded_document_or_one_outside_of_the_pool(tool):
    draw = random.Random(tool)
    world = EpisodeFactory(Toolbox(CORPUS, INDEX), None, 20, named_tools=EVERY)
    allowed = POOL - EXCLUDED
    for _ in range(8):
        episode = _open(world)
        episode.act("search", {"query": "ferry", "k": 2})
        for _ in range(20):
            seen = episode.act(tool, random_arguments(draw, tool)).text
            shown = {row["doc_id"] for row in _rows(json.loads(seen))}
            assert shown <= allowed, seen
        for step in episode.desk.session.trace.steps:
            assert set(step.doc_ids) <= allowed


def _open(world):
    from sextant.evals.serving.episode import Episode

    return Episode(world, ASKED)


def _rows(result):
    rows = result.get("lines", [result]) if isinstance(result, dict) else result
    return [row for row in rows if "doc_id" in row]


def test_counts_are_those_of_the_pool_without_what_is_excluded():
    session = Toolbox(CORPUS, INDEX).open(ASKED)
    counts = session.count(["ferry", "nurse"])
    texts = [set(CORPUS[doc_id].text.split()) for doc_id in POOL - EXCLUDED]
    assert counts.documents == {
        word: sum(word in text for text in texts) for word in ("ferry", "nurse")
    }
    assert counts.together == sum({"ferry", "nurse"} <= text for text in texts)


class Wanderer(React):
    """Calls any of its tools at random, and selects and finishes at random."""

    seed: int = 0

    def take_turn(self, query, desk, turns, memory):
        draw = random.Random(f"{self.seed} {len(turns)}")
        room = draw.randint(0, 6)
        memory.view(turns, lambda view: len(view.turns) - view.compacted <= room)
        names = [*(tool.name for tool in desk.offered_tools if tool.name != "finish"), "search"]
        calls = []
        for name in draw.choices(names, k=draw.randint(1, 3)):
            arguments = random_arguments(draw, name)
            arguments.pop("k", None) if name == "search" else None
            calls.append({"name": name, "args": arguments})
        return {
            "thought": "",
            "calls": calls,
            "results": [],
            "finish": "stop",
            "parts": {},
            "in_text": False,
        }


@pytest.mark.parametrize("memory", [name for name in MEMORIES if name != "summary"])
def test_fates_sum_to_the_recall_whatever_tools_and_memory_an_agent_has(memory):
    model = language_model.connect("offline", statistics=INDEX.statistics)
    losses = LossCounts([3, 10])
    toolbox = Toolbox(CORPUS, INDEX, limits=Limits(grep=4, more=3))
    for seed in range(60):
        draw = random.Random(seed)
        named = ",".join(draw.sample(NAMES, draw.randint(1, len(NAMES))))
        program = Wanderer(toolbox, tools=named, memory=memory, steps=5, seed=seed)
        with model.active():
            outcome = json.loads(json.dumps(answer_query(program, ASKED, CORPUS)))
        gold = dict.fromkeys(draw.sample(sorted(POOL - EXCLUDED), 5), 1.0)
        losses.add(attribute("q", outcome, outcome["ranking"], Judgements({"q": gold})))
    for k in (3, 10):
        assert sum(losses.shares(k).values()) == Fraction(1)
    assert losses.shares(3)[Fate.FORGOTTEN] > 0 or memory == "truncate"


def test_a_document_that_left_the_prompt_is_forgotten_unless_it_was_selected_or_shown_again():
    def fate(agent):
        toolbox = Toolbox(CORPUS, INDEX)

        def answer(*, query):
            desk = _desk(toolbox.open(query))
            agent(desk)
            return desk.session.submit([])

        outcome = json.loads(json.dumps(answer_query(answer, Query("q", "ferry"), CORPUS)))
        judged = Judgements({"q": {first: 1.0}})
        (relevant,) = attribute("q", outcome, [], judged)
        return relevant["lost_as"]

    first = INDEX.search("ferry", 1).doc_ids[0]

    def forgets(desk):
        desk.session.hop = 1
        desk.search("ferry")
        desk.session.hop = 2
        desk.search("orchard radio")
        desk.forget(1)
        desk.forget(2)

    def selects(desk):
        desk.session.hop = 1
        desk.search("ferry")
        desk.select([first])
        desk.forget(1)

    def sees_again(desk):
        forgets(desk)
        desk.session.hop = 3
        desk.search("ferry")

    assert fate(forgets) == "forgotten"
    assert fate(selects) == "ranked_low"
    assert fate(sees_again) != "forgotten"


def _desk(session):
    from sextant.programs.search_tools import SearchTools

    return SearchTools(session)


def test_windows_of_a_text_add_up_to_what_was_shown_of_it():
    text = "0123456789" * 10
    corpus = Corpus([Document("d", text)])
    toolbox = Toolbox(corpus, BM25(corpus))
    world = EpisodeFactory(toolbox, None, 10, named_tools="grep,read")

    def outcome(*windows):
        def answer(*, query):
            session = toolbox.open(query)
            session.scan("grep", "0123", 1, shown=False)
            for first, chars in windows:
                session.read("d", chars, first=first)
            session.select([], among=["d"])
            return session.submit(["d"])

        return json.loads(json.dumps(answer_query(answer, Query("q", "q"), corpus)))

    def chars(*windows):
        (relevant,) = attribute("q", outcome(*windows), [], Judgements({"q": {"d": 1.0}}))
        return relevant["chars"], relevant["lost_as"]

    assert chars((0, 10)) == (10, "shown_in_part")
    assert chars((0, 10), (5, 10), (90, 10)) == (25, "shown_in_part")
    assert chars((50, 50), (0, 50)) == (100, "not_selected")
    schema = describe(world.tools["read"])["parameters"]["properties"]
    assert list(schema) == ["doc_id", "from", "chars"]


def test_an_agent_has_the_tools_that_are_named_and_a_file_of_ones_own_adds_others(tmp_path):
    (tmp_path / "mine.py").write_text(
        "def backwards(desk, query: str) -> str:\n"
        '    """Search for the words of a query from right to left.\n\n'
        '    Args:\n        query: The words.\n    """\n'
        "    return desk.search(' '.join(reversed(query.split())))\n"
    )
    named = f"more,{tmp_path / 'mine.py'}:backwards"
    assert [tool.__name__ for tool in list_tools(named)] == ["more", "backwards", "select"]
    world = EpisodeFactory(Toolbox(CORPUS, INDEX), None, 10, named_tools=named)
    episode = _open(world)
    assert json.loads(episode.act("backwards", {"query": "dam ferry"}).text)
    assert json.loads(episode.act("more", {"search": "ferry dam"}).text)[0]["rank"] == 11
    assert episode.act("search", {"query": "ferry"}).refused
    for mine in ("search", "submit"):
        (tmp_path / "other.py").write_text(
            f"def {mine}(desk, query: str) -> str:\n    return 'of my own'\n"
        )
        reference = f"{tmp_path / 'other.py'}:{mine}"
        with pytest.raises(UsageError, match=f"two tools are called '{mine}'"):
            list_tools(f"{reference},search,read" if mine == "search" else reference)
        if mine == "search":
            world = EpisodeFactory(Toolbox(CORPUS, INDEX), None, 10, named_tools=reference)
            assert _open(world).act("search", {"query": "ferry"}).text == "of my own"
    with pytest.raises(UnknownName, match="grep"):
        list_tools("search,grpe")
    with pytest.raises(UnknownName, match="oldest"):
        React(Toolbox(CORPUS, INDEX), memory="oldes")
    with pytest.raises(UsageError):
        React(Toolbox(CORPUS, INDEX), window=-1)


@pytest.mark.parametrize("memory", MEMORIES)
def test_a_memory_keeps_a_conversation_to_its_window(memory, server):
    toolbox = Toolbox(CORPUS, INDEX)
    texts = iter(WORDS)
    server.answer = lambda prompt: (
        {"summary": "nurses were found"}
        if "## summary ##" in prompt
        else {"tool_calls": [("search", {"query": next(texts)})]}
    )
    window = 6000  # tokens, of which an answer may have 4,096
    with language_model.connect(server.spec).active():
        submission = React(toolbox, memory=memory, window=window, steps=6)(
            query=Query("q", "a nurse on the ferry")
        )
    turns = [request for request in server.requests if "tools" in request]
    assert len(turns) == 6
    for request in turns:
        sent = json.dumps([request["messages"], request["tools"]])
        assert count_tokens(sent) <= 0.9 * window - 4096
    if memory == "summary":
        assert "nurses were found" in json.dumps(turns[-1])
        most = React(toolbox, memory=memory, steps=6).most_calls(0)
        assert 6 < submission.usage.calls <= most
    steps = [step.tool for step in submission.trace.steps]
    assert "forget" in steps
