"""What all agents have in common: their outside is a program's, and threads change nothing."""

import json
import random
import re
import signal
import subprocess
import threading
import time
from dataclasses import replace

import dspy
import pytest
from conftest import ROOT
from openai_server import given, ids

import environments
from agents import AGENTS
from agents.graph import Lines
from programs import PROGRAMS
from tools.errors import UsageError
from tools.models import lm
from tools.models.offline import engine
from tools.records import Query, total
from tools.retrievers import build
from tools.retrievers.lexical.bm25 import BM25
from tools.session import Toolbox
from tools.table import pick

QUERY = Query("q1", "I remember something about an octopus, and copper in blue blood.", "animals")
GRAPHS = ("notes", "planner", "verifier")  # react counts its own steps, and has tests of its own
POINTWISE = ("score", "reason", "subtask")


class Unsteady:
    """A retriever that takes a different time for each search, so that threads overtake one another."""

    def __init__(self, index):
        self._index = index

    def __getattr__(self, name):
        return getattr(self._index, name)

    def search(self, *arguments, **options):
        time.sleep(random.random() / 200)
        return self._index.search(*arguments, **options)


@pytest.fixture(scope="module")
def mini():
    return environments.load("congress", "mini", "dev")


def world(documents, *, unsteady=False, **options):
    """(toolbox, offline model); bm25 and dense, which the verifier names, are two ways of counting words here."""
    index, stemmed = BM25(documents), build("bm25(analyzer=english)", documents)
    engines = [Unsteady(one) if unsteady else one for one in (index, stemmed)]
    toolbox = Toolbox(documents, engines[0], others={"bm25": engines[0], "dense": engines[1]}, **options)
    return toolbox, lm.connect("offline", statistics=index.statistics)


def agent(name, toolbox, **parameters):
    return pick("agent", name, AGENTS)(toolbox, **parameters)


def timeless(submission):
    return [replace(step, started=0.0, seconds=0.0) for step in submission.trace.steps]


def selected(submission):
    return [doc_id for step in submission.trace.steps if step.tool == "select" for doc_id in step.doc_ids]


@pytest.mark.parametrize("name", AGENTS)
def test_an_agent_hands_in_a_ranking_without_repeats_within_its_depth(name, corpus):
    toolbox, model = world(corpus)
    with model.active():
        submission = agent(name, toolbox, depth=2)(query=QUERY)
    assert len(submission.ranking) == len(set(submission.ranking)) == 2
    assert submission.trace.steps[-1].tool == "stop"


@pytest.mark.parametrize("name", AGENTS)
def test_an_excluded_document_is_in_no_ranking_and_in_no_step(name, corpus):
    toolbox, model = world(corpus)
    query = replace(QUERY, excluded=frozenset({"d1"}))
    with model.active():
        submission = agent(name, toolbox)(query=query)
    seen = set(submission.ranking).union(*(step.doc_ids for step in submission.trace.steps))
    assert seen and not seen & query.excluded


@pytest.mark.parametrize("name", AGENTS)
def test_what_is_ranked_is_what_the_steps_surfaced_and_every_call_is_in_one_of_them(name, mini):
    toolbox, model = world(mini.documents)
    with model.active():
        for query in mini.queries[:3]:
            submission = agent(name, toolbox)(query=query)
            steps = submission.trace.steps
            surfaced = {doc_id for step in steps if step.tool == "search" for doc_id in step.doc_ids}
            assert set(submission.ranking) == surfaced and len(submission.ranking) == len(surfaced)
            assert submission.usage == total(step.usage for step in steps)
            assert submission.usage.calls > 2
            assert [step.argument for step in steps if step.tool == "note"] == submission.trace.notes
            hops = [step.hop for step in steps]
            assert hops[0] == 1 and hops == sorted(hops)
            assert all(step.seconds >= 0 and step.started >= 0 for step in steps)


@pytest.mark.parametrize("name", GRAPHS)
def test_threads_change_nothing_but_times(name, mini):
    toolbox, model = world(mini.documents, unsteady=True)
    made = []
    for parallel in ({}, {}, {} if name == "notes" else {"parallel": 1}):
        with model.active():
            submission = agent(name, toolbox, **parallel)(query=mini.queries[1])
            calls = [(inputs, dict(prediction)) for _, inputs, prediction in dspy.settings.trace]
        made.append((submission.ranking, timeless(submission), submission.trace.notes, submission.usage, calls))
    assert made[0] == made[1] == made[2]
    assert len(made[0][-1]) == made[0][3].calls, "DSPy's trace has every call, for teleprompters"


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("limit", [2, 3, 4, 5, 7, 9])
def test_an_agent_out_of_steps_hands_in_what_it_selected_then_the_rest(name, limit, mini):
    toolbox, model = world(mini.documents)
    short, whole = agent(name, toolbox), agent(name, toolbox)
    short.limit = limit
    with model.active():
        submission = short(query=mini.queries[0])
        enough = whole(query=mini.queries[0])
    surfaced = {doc_id for step in submission.trace.steps if step.tool == "search" for doc_id in step.doc_ids}
    assert set(submission.ranking) == surfaced
    kept = selected(submission)
    assert set(submission.ranking[: len(kept)]) == set(kept)
    assert len(timeless(submission)) <= len(timeless(enough))
    if len(timeless(submission)) < len(timeless(enough)):
        assert submission.trace.steps[-1].argument == "steps"


@pytest.mark.parametrize("name", GRAPHS)
def test_the_steps_are_just_enough_for_all_rounds(name, mini):
    toolbox, model = world(mini.documents)
    made = agent(name, toolbox)
    with model.active():
        expected = made(query=mini.queries[0])
        made.limit += 10
        alike = made(query=mini.queries[0])
    assert expected.ranking == alike.ranking and timeless(expected) == timeless(alike)


@pytest.mark.parametrize("name", AGENTS)
def test_offline_has_a_rule_for_every_field_that_an_agent_asks_for(name, corpus):
    predictors = agent(name, world(corpus)[0]).named_predictors()
    assert predictors
    for _, predictor in predictors:
        assert predictor.signature.output_fields.keys() <= engine.RULES.keys()


@pytest.mark.parametrize("name", AGENTS)
def test_a_teleprompter_compiles_an_agent_into_another_one_over_the_same_world(name, mini, tmp_path):
    toolbox, model = world(mini.documents, checkpoints=tmp_path)
    made = agent(name, toolbox)
    with model.active():
        made(query=mini.queries[5])  # what an agent holds open must not keep it from being copied
    compiler = dspy.BootstrapFewShot(metric=lambda *_: True, max_bootstrapped_demos=2, max_labeled_demos=0)
    with model.active():
        examples = [dspy.Example(query=query).with_inputs("query") for query in mini.queries[:2]]
        compiled = compiler.compile(made, trainset=examples)
    assert compiled is not made and compiled.toolbox is made.toolbox
    assert any(predictor.demos for predictor in compiled.predictors())
    assert not any(predictor.demos for predictor in made.predictors())


@pytest.mark.parametrize(
    ("name", "wrong", "said"),
    [
        ("planner", {"rounds": 0}, "rounds"),
        ("planner", {"parallel": 0}, "parallel"),
        ("planner", {"lens": "stanze"}, "lens"),
        ("verifier", {"batch": 0}, "batch"),
        ("verifier", {"reads": -1}, "reads"),
        ("notes", {"hops": 0}, "hops"),
        ("tournament", {"promote": 20}, "promote below batch=20, not 20"),
        ("tournament", {"batch": 1}, "batch of at least 2, not 1"),
        ("tournament", {"promote": 0}, "promote of at least 1, not 0"),
        ("tournament", {"read_chars": -1}, "read_chars of at least 0, not -1"),
        ("tournament", {"lens": "prof"}, "proof"),
        *((name, {"pool": 0}, "pool of at least 1, not 0") for name in ("tournament", "rank", *POINTWISE)),
        ("rank", {"window": 1}, "window of at least 2, not 1"),
        ("rank", {"step": 0}, "step of at least 1, not 0"),
        ("rank", {"step": 21}, "step of at most window=20, not 21"),
        ("decompose", {"parts": 0}, "decompose needs parts of at least"),
        ("decompose", {"per_search": 0}, "decompose needs per_search of at least"),
        ("decompose", {"exclude_depth": -1}, "decompose needs exclude_depth of at least"),
        ("closed_book", {"guesses": 0}, "closed_book needs guesses of at least 1, not 0"),
        ("closed_book", {"lookup": 0}, "closed_book needs lookup of at least 1, not 0"),
        ("rewrite", {"lens": "stanse"}, "stance"),
    ],
)
def test_a_wrong_parameter_is_refused_in_one_line(name, wrong, said, corpus):
    with pytest.raises(UsageError) as refused:
        pick("program", name, PROGRAMS | AGENTS)(world(corpus)[0], **wrong)
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_steps_and_notes_of_lines_are_in_the_trace_by_number_whichever_was_first(corpus):
    session = world(corpus)[0].open(QUERY)
    lines = Lines(session)
    session.hop = 3
    for number in (2, 0, 1):
        with lines.line(number, 4):
            session.search(f"blood {number}", 2)
            session.note(f"note {number}")
    assert session.trace.steps == [] and session.trace.notes == []
    lines.join()
    assert [(step.hop, step.argument) for step in session.trace.steps if step.tool == "search"] == [
        (4, "blood 0"),
        (4, "blood 1"),
        (4, "blood 2"),
    ]
    assert session.trace.notes == ["note 0", "note 1", "note 2"] and session.hop == 3
    with lines.line(0, 5):
        session.note("late")
    assert session.submit([]).trace.notes[-1] == "late", "a session that ends joins its lines"


@pytest.mark.parametrize("name", GRAPHS)
def test_a_run_that_a_budget_stopped_goes_on_and_pays_for_nothing_twice(name, server, run):
    server.answer = fields
    # Six characters of a document are enough here, and the session's own retriever.
    more = ["-P", "retrievers="] if name == "verifier" else []
    limited = ("--program", name, "--task", "congress", "--limit", 2)
    arguments = [*limited, "--lm", server.spec, "-P", "read_chars=60", *more]
    stopped = run(*arguments, "--budget-calls", 5, "--json")
    assert stopped.code == 8 and len(server.requests) == 5
    whole = run(*arguments, "--json")
    assert whole.code == 0, whole.err
    assert len(server.requests) == whole.json["usage"]["calls"]
    assert run(*arguments, "--json").json["metrics"] == whole.json["metrics"]
    assert len(server.requests) == whole.json["usage"]["calls"], "nothing is asked again"


def test_an_interrupt_does_not_wait_for_calls_in_flight(server, shell, tmp_path):
    reached, never = threading.Event(), threading.Event()  # the second is never set

    def stuck(prompt):
        if len(server.requests) > 2:  # the readings of the first round, side by side
            reached.set()
            never.wait(60)
        return fields(prompt)

    server.answer = stuck
    arguments = ["--program", "planner", "--task", "congress", "--limit", "1", "--lm", server.spec]
    process = subprocess.Popen([*shell, *arguments, "--runs", tmp_path], cwd=ROOT, stderr=subprocess.PIPE)
    assert reached.wait(60)
    process.send_signal(signal.SIGINT)
    try:
        assert process.wait(20) == 130
    finally:
        process.kill()
        process.stderr.close()


def fields(prompt):
    """What every signature of the agents asks for, from the words of the description."""
    words = re.findall(r"[a-z]{5,}", given(prompt, "description").lower())
    made = prompt.count("earlier_searches") + len(re.findall(r'"[a-z ]+"', prompt))
    texts = [" ".join(words[made % 7 + n :: 5]) for n in range(3)]
    shown = ids(prompt)[:2]
    plan = json.dumps([{"question": text, "search": text} for text in texts])
    return {
        "search": texts[0],
        "searches": json.dumps(texts),
        "plan": plan,
        "missing": "the rest",
        "further": plan,
        "selected": json.dumps(shown),
        "observations": texts[1],
        "judgements": json.dumps([{"id": one, "grade": 2, "evidence": "so it says"} for one in shown]),
        "common": texts[2],
    }
