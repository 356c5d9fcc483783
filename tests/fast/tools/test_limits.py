"""What one query may use: `-P max_calls`, `max_searches`, `max_tokens`, for every program and agent alike."""

import contextvars
import json
from collections import defaultdict
from pathlib import Path

import pytest

from sextant import environments
from sextant.agents import AGENTS
from sextant.environments.base import Judgements
from sextant.evals import run_folder
from sextant.evals.run_schemas import Fate
from sextant.evals.running import request
from sextant.evals.running.request import (
    LIMITS,
    apply_hints,
    find_retrievers,
    list_parameters,
    parse_parameters,
)
from sextant.evals.running.runner import answer_query
from sextant.evals.scoring.attribution import attribute, fate_at
from sextant.programs import PROGRAMS
from sextant.tools.corpus import Corpus
from sextant.tools.errors import LimitReached, UsageError
from sextant.tools.models import language_model
from sextant.tools.plugins import load_object
from sextant.tools.records import SURFACING, Document, Query, Usage
from sextant.tools.retrievers import build
from sextant.tools.session import Limits, Toolbox

SYSTEMS = PROGRAMS | AGENTS
CONGRESS = ("--task", "congress", "--data", "mini", "--limit", "2")


@pytest.fixture(scope="module")
def congress():
    environment = environments.load("congress", "mini", "test")
    return environment, build("bm25", environment.documents)


def outcome_of(congress, name, limits=(), query=0):
    """What a program hands in for a query of the miniature, without a model, under `limits` as -P has them."""
    environment, index = congress
    constructor = load_object("program", name, SYSTEMS)
    limits = dict(limits)
    small = {"pool": 20} if "pool" in list_parameters(constructor) else {}
    values = apply_hints(parse_parameters(name, constructor, limits | small), (), environment.hints)
    others = dict.fromkeys(find_retrievers(values), index)
    bounds = Limits(
        **{LIMITS[name]: most for name, most in request.query_limits(limits).items()},
        depth=environment.depth,
    )
    system = constructor(
        Toolbox(environment.documents, index, others=others, limits=bounds), **values
    )
    model = language_model.connect("offline", statistics=index.statistics)
    with model.active():
        return contextvars.copy_context().run(
            answer_query, system, environment.queries[query], environment.documents
        )


def used(outcome):
    searches = sum(
        step["tool"] == "search" and not step.get("refused") for step in outcome["trace"]["steps"]
    )
    return {"max_calls": outcome["usage"]["calls"], "max_searches": searches}


def handed_in_by_then(outcome):
    """The rule of docs/decisions/comparing.md: last order, kept, the rest by reciprocal ranks, dropped."""
    order, kept, dropped, points, surfaced = [], {}, set(), defaultdict(float), []
    for step in outcome["trace"]["steps"]:
        if step.get("refused"):
            continue
        if step["tool"] in SURFACING:
            for rank, doc_id in enumerate(step["doc_ids"], start=step.get("first", 0) + 1):
                points[doc_id] += 2**40 // (60 + rank)
                surfaced += [doc_id] if doc_id not in surfaced else []
        elif step["tool"] == "select":
            order = [] if set(order) & set(step["doc_ids"]) else order
            for place, doc_id in enumerate(step["doc_ids"]):
                dropped.discard(doc_id)
                kept.setdefault(doc_id, (step["hop"], place, len(kept)))
        elif step["tool"] == "drop":
            dropped |= set(step["doc_ids"])
            kept = {doc_id: key for doc_id, key in kept.items() if doc_id not in dropped}
        elif step["tool"] == "rank":
            order = step["doc_ids"]
            dropped -= set(order)
    best = [doc_id for doc_id in order if doc_id not in dropped] + sorted(
        kept, key=kept.__getitem__
    )
    rest = sorted(surfaced, key=lambda doc_id: (doc_id in dropped, -points[doc_id]))
    return list(dict.fromkeys(best + rest))


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_query_ends_at_its_limit_with_what_it_has_found(congress, name):
    whole = used(outcome_of(congress, name))
    for limit, most in (("max_calls", 3), ("max_searches", 1)):
        outcome = outcome_of(congress, name, {limit: most})
        assert outcome["error"] is None and used(outcome)[limit] == min(most, whole[limit]), (
            limit,
            most,
        )
        last = outcome["trace"]["steps"][-1]
        assert last["tool"] == "stop"
        assert (last["argument"] == "budget") == (whole[limit] > most), (limit, most, last)
        surfaced = {
            doc
            for step in outcome["trace"]["steps"]
            if step["tool"] in SURFACING
            for doc in step["doc_ids"]
        }
        assert set(outcome["ranking"]) <= surfaced and (
            outcome["ranking"] or name == "closed_book" or not surfaced
        )
        if limit == "max_searches" and name in AGENTS:
            assert set(outcome["ranking"]) == surfaced
        if limit == "max_calls" and whole[limit] > most:
            assert outcome["ranking"] == handed_in_by_then(outcome)[:1000]


def test_lines_that_work_side_by_side_end_alike_every_time(congress):
    def told(outcome):
        return outcome["ranking"], [
            (step["tool"], step["argument"]) for step in outcome["trace"]["steps"]
        ]

    for name, most in (("planner", 4), ("verifier", 7)):
        runs = [told(outcome_of(congress, name, {"max_calls": most})) for _ in range(3)]
        assert runs.count(runs[0]) == 3


def test_no_request_goes_beyond_the_limit_and_the_run_says_what_it_was(run, server):
    result = run(
        "--program", "multihop", *CONGRESS, "--lm", server.spec, "-P", "max_calls=3", "--json"
    )
    assert result.code == 0 and result.json["failed"] == 0 and result.json["usage"]["calls"] == 6
    assert len(server.requests) == 6
    path = Path(result.json["run"])
    assert run_folder.read_config(path)["limits"] == {"max_calls": 3}
    for outcome in run_folder.read_outcomes(path).values():
        assert (
            outcome["usage"]["calls"] == 3 and outcome["trace"]["steps"][-1]["argument"] == "budget"
        )
    plain = run("--program", "multihop", *CONGRESS, "--lm", server.spec, "--json")
    assert plain.json["run"] != result.json["run"], (
        "limits determine the numbers, so they have a folder of their own"
    )


def test_no_call_begins_once_so_many_tokens_are_used(run, server):
    most = 4000
    result = run(
        "--program",
        "multihop",
        *CONGRESS,
        "--lm",
        server.spec,
        "-P",
        f"max_tokens={most}",
        "--json",
    )
    assert result.code == 0
    for outcome in run_folder.read_outcomes(Path(result.json["run"])).values():
        calls = [
            step["usage"]
            for step in outcome["trace"]["steps"]
            if step.get("usage", {}).get("calls")
        ]
        tokens = [one["input_tokens"] + one["output_tokens"] for one in calls]
        assert sum(tokens[:-1]) < most <= sum(tokens), (
            "the last call may go over, and none begins after it"
        )
        assert outcome["trace"]["steps"][-1]["argument"] == "budget"


def test_a_limit_of_tokens_needs_a_provider_that_reports_them(corpus):
    session = Toolbox(corpus, build("bm25", corpus), limits=Limits(tokens=100)).open(
        Query("q", "blood")
    )
    session.allow_call()
    session.charge(Usage(calls=1, unmetered=1))
    with pytest.raises(UsageError, match="max_tokens cannot be kept"):
        session.allow_call()


def test_what_a_call_would_have_shown_is_lost_to_the_limit_and_was_not_shown():
    documents = Corpus(Document(f"d{n}", f"ferry {n}") for n in range(4))
    toolbox = Toolbox(documents, build("bm25", documents), limits=Limits(calls=1))

    def system(*, query):
        session = toolbox.open(query)
        session.search("ferry", 4)
        for shown in (["d0", "d1"], ["d2"]):
            session.judge(shown)
            session.allow_call()
            session.charge(Usage(calls=1))
            session.select(shown[:1], among=shown)
        raise AssertionError("the second call is refused")

    outcome = contextvars.copy_context().run(answer_query, system, Query("q", "ferry"), documents)
    assert outcome["error"] is None and outcome["ranking"] == ["d0", "d2", "d3", "d1"]
    judged = [step["shown"] for step in outcome["trace"]["steps"] if step["tool"] == "judge"]
    assert judged == [[7, 7], [0]]
    found = attribute(
        "q", outcome, outcome["ranking"][:1], Judgements({"q": dict.fromkeys(documents, 1.0)})
    )
    assert [fate_at(one, 1) for one in found] == [
        Fate.FOUND,
        Fate.NOT_SELECTED,
        Fate.LIMIT,
        Fate.LIMIT,
    ]


def test_a_session_that_is_over_takes_no_further_step_and_goes_on_counting_from_a_snapshot(corpus):
    toolbox = Toolbox(corpus, build("bm25", corpus), limits=Limits(calls=2))
    first = toolbox.open(Query("q", "blood"))
    first.allow_call()
    first.charge(Usage(calls=1))
    session = toolbox.open(Query("q", "blood"), json.loads(json.dumps(first.snapshot())))
    session.allow_call()
    for refused in (
        session.allow_call,
        session.allow_call,
        lambda: session.search("blood"),
        lambda: session.note("x"),
    ):
        with pytest.raises(LimitReached, match="the limit of 2 model calls"):
            refused()
    assert [step.tool for step in session.submit([], why="budget").trace.steps] == ["stop"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"max_calls": 0}, "at least 1"),
        ({"max_tokens": "many"}, "whole number"),
        ({"max_call": 3}, "did you mean 'max_calls'"),
        ({"max_calls": 3, "parallel": 4}, "does not go with -P max_calls"),
    ],
)
def test_a_limit_that_cannot_be_kept_is_refused(given, says):
    with pytest.raises(UsageError, match=says):
        parse_parameters("planner", load_object("program", "planner", SYSTEMS), given)


def test_no_program_has_a_parameter_of_that_name():
    for name in SYSTEMS:
        declared = list_parameters(load_object("program", name, SYSTEMS))
        assert declared.keys().isdisjoint(LIMITS)
        assert (
            not parse_parameters(
                name, load_object("program", name, SYSTEMS), {"max_calls": 2}
            ).keys()
            & LIMITS
        )
