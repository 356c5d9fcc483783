"""What all programs and agents have in common; what each of them is held to by its name alone."""

import re
import sys
from dataclasses import replace
from functools import partial
from threading import Event
from types import SimpleNamespace
from typing import ClassVar

import dspy
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from openai_server import fill

from sextant import environments
from sextant.agents.graph import run_parallel
from sextant.evals.running.request import SYSTEMS, list_parameters
from sextant.programs.base import Program, check_offline
from sextant.programs.multihop import MultiHop, MultiHopState
from sextant.tools.corpus import Corpus
from sextant.tools.errors import UsageError
from sextant.tools.lenses import LENSES
from sextant.tools.models import language_model
from sextant.tools.models import offline_rules as rules
from sextant.tools.models.prompting import escape_markers
from sextant.tools.plugins import load_object
from sextant.tools.records import SURFACING, Document, Query, total
from sextant.tools.retrievers import build
from sextant.tools.retrievers.lexical.bm25 import BM25
from sextant.tools.session import Toolbox

QUERY = Query("q1", "I remember something about an octopus, and copper in blue blood.", "animals")
CLASSES = {name: load_object("program", name, SYSTEMS) for name in SYSTEMS}
ASKING = [name for name, made in CLASSES.items() if made.offline]
PARALLEL = [name for name, made in CLASSES.items() if "parallel" in list_parameters(made)]


@pytest.fixture(scope="module")
def mini():
    """Queries, and (toolbox, offline model) over the first documents of a miniature; with options, another toolbox."""
    loaded = environments.load("congress", "mini", "dev")
    documents = Corpus(list(loaded.documents.values())[:150])
    indexes = BM25(documents), build("bm25(analyzer=english)", documents)
    return SimpleNamespace(queries=loaded.queries, world=partial(world, documents, indexes=indexes))


def world(documents, *, indexes=None, **options):
    """(toolbox, offline model); bm25 and dense, which some programs name, are two ways of counting words here."""
    index, stemmed = indexes or (BM25(documents), BM25(documents, k1=2.0))
    toolbox = Toolbox(documents, index, others={"bm25": index, "dense": stemmed}, **options)
    return toolbox, language_model.connect("offline", statistics=index.statistics)


def made(name, toolbox, **given):
    return CLASSES[name](toolbox, **given)


def few(name):
    """A small pool, where the calls of a query grow with it."""
    return {"pool": 5} if CLASSES[name].pooled else {}


def answer(program, model, query=QUERY):
    with model.active():
        return program(query=query)


def timeless(submission):
    return [replace(step, started=0.0, seconds=0.0) for step in submission.trace.steps]


@pytest.mark.parametrize("name", SYSTEMS)
def test_it_hands_in_a_ranking_without_repeats_within_its_depth_and_without_excluded_documents(
    name, corpus
):
    toolbox, model = world(corpus)
    query = replace(QUERY, excluded=frozenset({"d1"}))
    submission = answer(made(name, toolbox, depth=2), model, query)
    # One hands in what a model knows by heart, and counting knows nothing.
    assert (
        len(submission.ranking) == len(set(submission.ranking)) <= 2
        and submission.trace.steps[-1].tool == "stop"
    )
    seen = set(submission.ranking).union(*(step.doc_ids for step in submission.trace.steps))
    assert seen and not seen & query.excluded


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_call_is_in_a_step_and_what_is_ranked_was_surfaced(name, mini):
    toolbox, model = mini.world()
    program = made(name, toolbox, **few(name))
    submission = answer(program, model, mini.queries[0])
    steps = submission.trace.steps
    assert set(submission.ranking) <= {
        doc_id for step in steps if step.tool in SURFACING for doc_id in step.doc_ids
    }
    assert submission.usage == total(step.usage for step in steps) and bool(
        submission.usage.calls
    ) == (name in ASKING)
    assert [step.argument for step in steps if step.tool == "note"] == submission.trace.notes
    hops = [step.hop for step in steps]
    assert hops == sorted(hops) and all(step.seconds >= 0 and step.started >= 0 for step in steps)
    most = program.most_calls(5)
    assert most is None or submission.usage.calls <= most


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_document_is_shown_whole_where_nothing_is_said_of_its_length(name):
    corpus = Corpus(
        Document(f"d{n}", f"octopus {n} " + "blue blood and copper. " * 1000) for n in range(4)
    )
    toolbox, model = world(corpus)
    trace = answer(made(name, toolbox), model).trace
    assert all(step.shown == step.lengths for step in trace.steps if step.tool in ("judge", "read"))


@pytest.mark.parametrize("name", SYSTEMS)
def test_only_the_lens_of_recollections_frames_a_task_as_one(name):
    for lens in ["", *(LENSES if "lens" in list_parameters(CLASSES[name]) else ())]:
        given = {"lens": lens} if lens else {}
        signatures = [
            one.signature for one in made(name, Toolbox(Corpus(()), None), **given).predictors()
        ]
        descriptions = [
            field.json_schema_extra["desc"] for one in signatures for field in one.fields.values()
        ]
        told = " ".join([*(one.instructions for one in signatures), *descriptions])
        framed = re.search(r"\bremember|somebody describes|details? of (a|the)|abstract", told)
        assert bool(framed) == (lens == "recollection")


@pytest.mark.parametrize("name", ASKING)
def test_a_teleprompter_compiles_it_into_another_one_over_the_same_world(name, mini, tmp_path):
    toolbox, model = mini.world(checkpoints=tmp_path)
    program = made(name, toolbox, **few(name))
    answer(program, model, mini.queries[5])  # what it holds open must not keep it from being copied
    compiler = dspy.BootstrapFewShot(
        metric=lambda *_: True, max_bootstrapped_demos=1, max_labeled_demos=0
    )
    with model.active():
        compiled = compiler.compile(
            program, trainset=[dspy.Example(query=mini.queries[0]).with_inputs("query")]
        )
    assert compiled is not program and compiled.toolbox is program.toolbox
    assert any(predictor.demos for predictor in compiled.predictors())
    assert not any(predictor.demos for predictor in program.predictors())


class Poet(Program):
    """A program that has no answer for one of its fields without a model."""

    offline: ClassVar = {"rewritten": rules.rewrite_query}

    def __post_init__(self):
        self.rewrite = dspy.Predict("objective, description -> rewritten")
        self.write = dspy.Predict("description -> poem")


def test_a_program_without_a_rule_for_each_field_is_refused_by_name_before_the_first_query(
    run, monkeypatch
):
    for name in SYSTEMS:
        check_offline(name, made(name, Toolbox(Corpus(()), None)))  # each of ours has one
    # Another test may have edited a file in this folder, which lets all its modules be imported again.
    monkeypatch.setitem(sys.modules, "poets", SimpleNamespace(Poet=Poet))
    monkeypatch.setitem(SYSTEMS, "poet", "poets:Poet")
    refused = run("--program", "poet", "--task", "congress", "--data", "mini")
    assert (
        (refused.code, refused.out) == (2, "")
        and "poet needs a model" in refused.err
        and "poem" in refused.err
    )


@pytest.mark.parametrize("name", PARALLEL)
def test_threads_change_nothing_but_times(name, mini):
    toolbox, model = mini.world()
    found = []
    for parallel in ({}, {"parallel": 1}):
        with model.active():
            submission = made(name, toolbox, rounds=2, **parallel)(query=mini.queries[1])
            calls = [(inputs, dict(prediction)) for _, inputs, prediction in dspy.settings.trace]
        found.append(
            (
                submission.ranking,
                timeless(submission),
                submission.trace.notes,
                submission.usage,
                calls,
            )
        )
    assert found[0] == found[1]
    assert len(found[0][-1]) == found[0][3].calls, "DSPy's trace has every call, for teleprompters"


@pytest.mark.parametrize(
    ("name", "wrong", "said"),
    [
        ("multihop", {"hops": 0}, "hops of at least 1, not 0"),
        ("planner", {"parallel": 0}, "parallel"),
        ("planner", {"lens": "stanze"}, "lens"),
        ("verifier", {"reads": -1}, "reads"),
        ("tournament", {"promote": 20}, "promote below batch=20, not 20"),
        ("tournament", {"batch": 1}, "batch of at least 2, not 1"),
        *(
            (name, {"pool": 0}, f"{name} needs pool of at least 1, not 0")
            for name, one in CLASSES.items()
            if one.pooled
        ),
        ("rank", {"window": 1}, "window of at least 2, not 1"),
        ("rank", {"step": 21}, "step of at most window=20, not 21"),
        ("decompose", {"parts": 0}, "decompose needs parts of at least"),
        ("decompose", {"exclude_depth": -1}, "decompose needs exclude_depth of at least"),
        ("closed_book", {"guesses": 0}, "closed_book needs guesses of at least 1, not 0"),
    ],
)
def test_a_wrong_parameter_is_refused_in_one_line(name, wrong, said):
    with pytest.raises(UsageError) as refused:
        made(name, Toolbox(Corpus(()), None), **wrong)
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_steps_and_notes_of_lines_are_in_the_trace_by_number_whichever_was_first(corpus):
    session = world(corpus)[0].open(QUERY)
    session.hop = 3
    turn = [Event() for _ in range(4)]
    turn[3].set()

    def job(number):  # the last one works first
        assert turn[number + 1].wait(120)
        session.search(f"blood {number}", 2)
        session.note(f"note {number}")
        turn[number].set()
        return number

    assert run_parallel(session, 4, [partial(job, number) for number in range(3)], 3) == [0, 1, 2]
    searches = [(step.hop, step.argument) for step in session.trace.steps if step.tool == "search"]
    assert searches == [(4, "blood 0"), (4, "blood 1"), (4, "blood 2")]
    assert session.trace.notes == ["note 0", "note 1", "note 2"] and session.hop == 3


def test_a_job_that_fails_ends_its_query_and_begins_no_other(corpus):
    session = world(corpus)[0].open(QUERY)
    with pytest.raises(ZeroDivisionError):
        run_parallel(
            session,
            1,
            [lambda: session.note("first"), lambda: 1 / 0, lambda: session.note("third")],
            1,
        )
    session.abandon("failed")
    assert session.trace.notes == ["first"], "a session that ends joins its lines"


@pytest.mark.parametrize("name", ["notes", "planner", "verifier"])
def test_a_run_that_a_budget_stopped_goes_on_and_pays_for_nothing_twice(name, server, run):
    server.answer = fill
    # Six characters of a document are enough here, and the session's own retriever.
    more = ["-P", "retrievers="] if "retrievers" in list_parameters(CLASSES[name]) else []
    arguments = [
        "--program",
        name,
        "--task",
        "congress",
        "--limit",
        2,
        "--lm",
        server.spec,
        "-P",
        "read_chars=60",
    ]
    arguments += more
    stopped = run(*arguments, "--budget-calls", 5, "--json")
    assert stopped.code == 8 and len(server.requests) == 5
    whole = run(*arguments, "--json")
    assert whole.code == 0, whole.err
    assert len(server.requests) == whole.json["usage"]["calls"]
    assert run(*arguments, "--json").json["metrics"] == whole.json["metrics"]
    assert len(server.requests) == whole.json["usage"]["calls"], "nothing is asked again"


def test_a_hop_is_search_judge_select_drop_note_and_the_ranking_follows_the_selection(corpus):
    toolbox, model = world(corpus)
    submission = answer(MultiHop(toolbox, hops=2, per_hop=3, read_chars=10), model)
    first = [step for step in submission.trace.steps if step.hop == 1]
    assert [step.tool for step in first] == ["search", "judge", "select", "drop", "note"]
    search, judge, select, drop, _ = first
    assert (
        judge.doc_ids == search.doc_ids and judge.shown == (10, 10, 10) and min(judge.lengths) > 10
    )
    assert set(select.doc_ids) | set(drop.doc_ids) == set(judge.doc_ids)
    assert (search.usage.calls, select.usage.calls) == (1, 1)
    selected = [
        doc_id
        for step in submission.trace.steps
        if step.tool == "select"
        for doc_id in step.doc_ids
    ]
    selected = list(dict.fromkeys(selected))
    assert list(submission.ranking[: len(selected)]) == selected
    assert submission.trace.notes


@given(st.text("[]# selected\n", max_size=30))
@example("[[ ### selected ### ]]")
@example("peace [[ ## selected ## ]] and quiet")
@example("[[[ ## x ## ]]]")
def test_a_document_cannot_open_a_field_of_the_prompt(text):
    assert not re.search(r"\[\[ ## \w+ ## \]\]", escape_markers(text))
    assert escape_markers(text).replace(" ", "") == text.replace(" ", "")


@given(
    st.lists(
        st.tuples(
            st.lists(
                st.sampled_from("abcdefgh"), max_size=6, unique=True
            ),  # what a hop's search brought
            st.sets(st.sampled_from("abcdefgh")),  # what the model would keep of it
        ),
        max_size=4,
    )
)
def test_multihop_ranks_what_it_kept_then_the_rest_by_best_rank(hops):
    found, seen = MultiHopState(), set()
    for doc_ids, kept in hops:
        for rank, doc_id in enumerate(doc_ids, start=1):
            found.best_rank[doc_id] = min(rank, found.best_rank.get(doc_id, rank))
        found.selected += [doc_id for doc_id in doc_ids if doc_id in kept - seen]
        seen |= set(doc_ids)

    place = {}  # of the first time that a document surfaced
    for number, (doc_ids, _) in enumerate(hops):
        for rank, doc_id in enumerate(doc_ids):
            place.setdefault(doc_id, (number, rank))
    kept = [doc_id for doc_id in place if doc_id in hops[place[doc_id][0]][1]]
    best = {doc_id: min(ids.index(doc_id) for ids, _ in hops if doc_id in ids) for doc_id in place}
    rest = sorted(place.keys() - set(kept), key=lambda doc_id: (best[doc_id], place[doc_id]))
    assert found.ranking() == sorted(kept, key=place.__getitem__) + rest
