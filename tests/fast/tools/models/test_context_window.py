"""Prompts that would not fit are foreseen by counting tokens; what is left out is in the trace."""

import json
import re
from pathlib import Path

import dspy
import pytest
from conftest import on_congress

from sextant.agents import AGENTS
from sextant.agents.verifier import Verifier
from sextant.evals.running.request import find_retrievers, parse_parameters
from sextant.evals.scoring.comparison import compare
from sextant.programs import PROGRAMS
from sextant.programs.multihop import MultiHop
from sextant.programs.passage_reading import with_search_history
from sextant.tools.corpus import Corpus
from sextant.tools.models import language_model, offline_engine
from sextant.tools.models.language_model import LanguageModel
from sextant.tools.models.prompting import Adapter, passage_batches, show_passages
from sextant.tools.models.run_resources import RunResources
from sextant.tools.models.tokens import _encoding, count_tokens
from sextant.tools.plugins import load_object
from sextant.tools.records import Document, Query
from sextant.tools.retrievers.lexical.bm25 import BM25
from sextant.tools.session import Toolbox

QUERY = Query("q1", "ferries in fog")


@pytest.fixture
def toolbox():
    corpus = Corpus(
        Document(f"d{n:02}", f"ferries {n} " + "in the fog of the harbour " * 40) for n in range(20)
    )
    return Toolbox(corpus, BM25(corpus))


def room(window):
    """Tokens that a prompt may have: nine tenths of the window, less the answer's 4,096 or third."""
    most = int(window * 0.9)
    return most - min(4096, most // 3)


def prompts_fit(server, window):
    sizes = [
        sum(count_tokens(str(m["content"])) for m in request["messages"])
        for request in server.requests
    ]
    return all(size <= window for size in sizes)


def test_tokens_are_counted_without_a_download_and_markers_in_a_text_are_text(
    monkeypatch, tmp_path
):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    _encoding.cache_clear()
    monkeypatch.setattr("tiktoken.registry.ENCODINGS", {})
    counts = [
        count_tokens(text)
        for text in ("The octopus has three hearts.", "naïve 東京", "<|endoftext|>")
    ]
    assert counts == [7, 4, 7], "as tiktoken's o200k_base has them"
    assert not list(tmp_path.iterdir())


def test_a_reading_that_does_not_fit_is_split_and_the_trace_says_so(toolbox):
    session = toolbox.open(QUERY)
    doc_ids = [snippet.doc_id for snippet in session.search(QUERY.text, 7)]
    groups = list(passage_batches(session, doc_ids, 400, lambda passages: len(passages) <= 3))
    assert [[passage.id for passage in group] for group in groups] == [
        doc_ids[:3],
        doc_ids[3:6],
        doc_ids[6:],
    ]
    judged = [step.doc_ids for step in session.trace.steps if step.tool == "judge"]
    assert judged == [tuple(doc_ids[:3]), tuple(doc_ids[3:6]), tuple(doc_ids[6:])]
    said = [step.argument for step in session.trace.steps if step.tool == "shorten"]
    assert said == [f"passages: 3 of {n} in one reading, the others in the next" for n in (7, 4)]


def test_a_batch_that_has_to_be_seen_together_is_cut_and_the_trace_has_what_was_shown(toolbox):
    session = toolbox.open(QUERY)
    doc_ids = [snippet.doc_id for snippet in session.search(QUERY.text, 4)]
    passages = show_passages(
        session, doc_ids, 800, lambda passages: sum(len(p.text) for p in passages) <= 1000
    )
    assert [len(passage.text) for passage in passages] == [250] * 4
    shorten, judge = session.trace.steps[1:]
    assert shorten.argument == "passages: 4 are cut to 250 characters each, instead of 800"
    assert judge.shown == (250,) * 4 and min(judge.lengths) > 800


def wordy(*, observed=""):
    """A model that searches for something else each time, and selects nothing, in many words."""
    numbers = iter(range(100))

    def answer(prompt):
        if "## hop ##" in prompt:
            return {"search": f"ferries {next(numbers)}"}
        return {"selected": "[]", "observations": observed}

    return answer


@pytest.mark.parametrize("window", [2200, 3700])
def test_no_prompt_of_a_program_is_larger_than_the_window_and_every_document_is_read(
    window, toolbox, server
):
    server.answer = wordy(observed="fog over the water, once more " * 120)
    with language_model.connect(
        server.spec, settings=language_model.ModelSettings(context=window)
    ).active():
        submission = MultiHop(toolbox, hops=3, per_hop=10)(query=QUERY)
    assert prompts_fit(server, room(window))
    judged = [
        doc_id for step in submission.trace.steps if step.tool == "judge" for doc_id in step.doc_ids
    ]
    surfaced = {
        doc_id
        for step in submission.trace.steps
        if step.tool == "search"
        for doc_id in step.doc_ids
    }
    assert set(judged) == surfaced
    said_why = [step.argument for step in submission.trace.steps if step.tool == "shorten"]
    assert any("passages" in why for why in said_why)


def test_the_oldest_searches_are_left_out_of_a_prompt_that_has_no_room_for_them(toolbox, server):
    session = toolbox.open(QUERY)
    searches = [f"ferries {number} {'fog over the water ' * 120}" for number in range(4)]
    about = {"objective": QUERY.objective, "description": QUERY.text, "most": 1}
    with language_model.connect(
        server.spec, settings=language_model.ModelSettings(context=2925)
    ).active():
        reformulate = Verifier(toolbox, retrievers="").reformulate
        inputs = with_search_history(session, reformulate, searches, "learned", [], **about)
    assert inputs["earlier_searches"] == searches[2:]
    said_why = [step.argument for step in session.trace.steps if step.tool == "shorten"]
    assert said_why == ["earlier searches: the 2 oldest of 4 are left out"]


class Measuring(offline_engine.OfflineEngine):
    """The engine without a model, which counts the tokens of its prompts."""

    def __init__(self, statistics):
        super().__init__(statistics)
        self.sizes = []

    def complete(self, request):
        texts = [request.system or "", *(message.text or "" for message in request.messages)]
        self.sizes.append(sum(count_tokens(str(text)) for text in texts))
        return super().complete(request)


SYSTEMS = PROGRAMS | AGENTS
TOGETHER = ("multihop", "rank", "tournament", "notes", "planner", "react", "verifier")
ALONE = (
    "score",
    "reason",
    "subtask",
)  # one document a prompt: a long description leaves little room for it


@pytest.mark.parametrize(
    ("name", "repeats"), [*((name, 1) for name in TOGETHER), *((name, 100) for name in ALONE)]
)
def test_every_program_that_shows_documents_leaves_the_model_room_to_answer(name, repeats, toolbox):
    window = 3700 if name in TOGETHER else 2400
    documents, retrievers, *_ = toolbox._world
    engine = Measuring(retrievers[""].statistics)
    constructor = load_object("program", name, SYSTEMS)
    values = parse_parameters(name, constructor, {})
    others = dict.fromkeys(find_retrievers(values), retrievers[""])
    system = constructor(Toolbox(documents, retrievers[""], others=others), **values)
    with dspy.context(
        lm=LanguageModel("x/1", RunResources(), window=window, engine=engine),
        adapter=Adapter(),
        trace=[],
    ):
        trace = system(query=Query("q1", "ferries in the fog, at dusk. " * repeats)).trace
    assert engine.sizes and max(engine.sizes) <= room(window)
    assert any(step.tool == "shorten" for step in trace.steps), "else this would say nothing"


def test_a_run_says_how_many_prompts_were_shortened(run):
    arguments = (*on_congress("multihop", 1), "--context", 3700)
    result = run(*arguments, "--json")
    assert result.code == 0 and result.json["shortened"] > 0
    whole = run(*arguments[:-2], "--json")
    assert whole.json["shortened"] == 0 and whole.json["run"] != result.json["run"]
    assert "prompts shortened to fit the model" in run(*arguments).out


def test_what_was_cut_on_its_way_into_prompts_is_a_line_under_every_table_that_has_the_run(
    run, tmp_path
):
    from sextant.evals.report import command, parser

    arguments = on_congress("multihop", 2)
    whole, cut = run(*arguments), run(*arguments, "-P", "read_chars=600")
    places = [Path(re.findall(r"^run: (.*)", result.out, re.M)[0]) for result in (whole, cut)]
    assert "into a prompt" not in whole.out
    lengths = {
        (outcome["query_id"], doc_id): length
        for outcome in map(json.loads, (places[1] / "outcomes.jsonl").read_text().splitlines())
        for step in outcome["trace"]["steps"]
        if step["tool"] == "judge"
        for doc_id, length in zip(step["doc_ids"], step["lengths"], strict=True)
    }.values()
    left_out = [max(0, length - 600) for length in lengths]
    line = (
        f"{sum(map(bool, left_out)):,} of {len(lengths):,} documents were cut on the way into a prompt "
        f"(multihop, obliq/congress): {100 * sum(left_out) / sum(lengths):.1f} % of the characters"
    )
    assert line in cut.out
    assert f"{places[1]}: {line}" in compare(places)["notes"]
    command(parser().parse_args([str(tmp_path / "runs"), "--out", str(tmp_path / "report")]))
    assert line in (tmp_path / "report" / "report.md").read_text()


def test_a_prompt_that_cannot_fit_is_not_sent_and_is_a_fault_of_the_system(run, server):
    arguments = (
        "--task",
        "congress",
        "--limit",
        1,
        "--lm",
        server.spec,
        "--context",
        300,
        "--json",
    )
    for program in ("rewrite", "multihop", "decompose", "react"):
        result = run("--program", program, *arguments)
        assert (
            result.code == 7 and result.json["failed"] == 1 and result.json["usage"]["calls"] == 0
        )
        [outcome] = map(
            json.loads, (Path(result.json["run"]) / "outcomes.jsonl").read_text().splitlines()
        )
        assert (
            outcome["error"].startswith("PromptTooLong: the ")
            and "larger than what the model takes" in outcome["error"]
        )
    assert not server.requests


def test_a_long_answer_that_cannot_be_used_is_left_out_where_it_is_asked_for_again(server, toolbox):
    server.answer_in_turn({"raw": "no fields, but many words " * 400}, {"rewritten": "ferry"})
    with language_model.connect(
        server.spec, settings=language_model.ModelSettings(context=640)
    ).active():
        trace = load_object("program", "rewrite", PROGRAMS)(toolbox)(query=QUERY).trace
    assert trace.unusable == {"unparsable": 1}
    assert (
        trace.steps[0].argument
        == "an answer that could not be used is left out where it is asked for again"
    )
    assert "many words" not in str(server.requests[1]["messages"])
