"""What became of each relevant document: scripted agents whose every fate is known, and random traces whose sum is."""

import json
import random
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sextant.environments.base import Judgements
from sextant.evals.run_schemas import Fate
from sextant.evals.running.runner import answer_query
from sextant.evals.scoring.attribution import LossCounts, attribute, fate_at
from sextant.evals.scoring.metrics import apply_metric, collapse_to_units, judge_ranking
from sextant.tools.corpus import Corpus
from sextant.tools.errors import LimitReached
from sextant.tools.records import Document, Query
from sextant.tools.retrievers.lexical.bm25 import BM25
from sextant.tools.session import Limits, Toolbox

# Each document can be called by a word of its own, "w3" for d3; it is 40 characters long at least.
CORPUS = Corpus(
    Document(f"d{n}", f"w{n} and then a good deal more than that. " * 2) for n in range(1, 13)
)
K = 3
UNLIMITED = Limits()


def called(*numbers: int) -> str:
    return " ".join(f"w{n}" for n in numbers)


def outcome_of(agent, limits=UNLIMITED):
    """What is recorded of an agent that is given a session for a query about nothing in particular."""
    toolbox = Toolbox(CORPUS, BM25(CORPUS), limits=limits)
    result = answer_query(
        lambda *, query: agent(toolbox.open(query)), Query("q", "what is asked"), CORPUS
    )
    return json.loads(json.dumps(result))


def fates(outcome, gold, k=K, **judgements):
    judged = Judgements({"q": dict.fromkeys(gold, 1.0)}, **judgements)
    units = collapse_to_units(outcome["ranking"], judged)
    return {one["unit"]: fate_at(one, k) for one in attribute("q", outcome, units, judged)}


def selects(session):
    """Its documents: 1 to 3 are found, 4 is kept and ranked low, 5 passed over, 6 seen in part, 7 not looked at."""
    session.hop = 1
    session.search(called(1, 2, 3, 4), 4)
    session.search(called(5, 6, 7), 3)
    session.judge(["d1", "d2", "d3", "d4", "d5"])
    session.judge(["d6"], 10)
    kept = session.select(["d1", "d2", "d3", "d4"], among=["d1", "d2", "d3", "d4", "d5", "d6"])
    return session.submit([*kept, "d5", "d6", "d7"])


def test_every_document_of_a_scripted_agent_has_the_fate_that_the_script_gives_it():
    assert fates(outcome_of(selects), ["d2", "d4", "d5", "d6", "d7", "d8"]) == {
        "d2": Fate.FOUND,
        "d4": Fate.RANKED_LOW,
        "d5": Fate.NOT_SELECTED,  # shown whole; its tail place in the ranking is no choice
        "d6": Fate.SHOWN_IN_PART,
        "d7": Fate.NOT_SHOWN,
        "d8": Fate.NEVER_SURFACED,
    }


def test_what_a_refused_search_or_reading_would_have_brought_is_lost_to_the_limit():
    def agent(session):
        session.search(called(1, 2, 3), 3)
        session.read("d1")
        for refused in (lambda: session.search(called(4), 1), lambda: session.read("d2")):
            with pytest.raises(LimitReached):
                refused()
        return session.submit(["d1"])

    outcome = outcome_of(agent, Limits(searches=1, reads=1))
    assert fates(outcome, ["d1", "d2", "d3", "d4"]) == {
        "d1": Fate.FOUND,
        "d2": Fate.LIMIT,  # its reading was refused
        "d3": Fate.LIMIT,  # nobody tried to read it, but the session ended because of its limit
        "d4": Fate.LIMIT,  # further searches were refused
    }


@pytest.mark.parametrize(
    ("why", "lost"), [("budget", True), ("time", True), ("steps", False), ("done", False)]
)
def test_a_session_that_a_limit_cut_off_lost_what_it_had_not_looked_at(why, lost):
    def agent(session):
        session.search(called(1, 2, 3, 4), 4)
        session.judge(["d1", "d3"])
        session.select(["d1"], among=["d1", "d3"])
        return session.submit(["d1"], why=why)

    told = fates(outcome_of(agent), ["d2", "d3", "d9"])
    assert told["d3"] == Fate.NOT_SELECTED  # it was seen: no limit has to do with that
    assert told["d2"] == (Fate.LIMIT if lost else Fate.NOT_SHOWN)
    assert told["d9"] == (Fate.LIMIT if lost else Fate.NEVER_SURFACED)


def test_where_nothing_is_ever_shown_or_selected_the_ranking_is_what_lost_a_document():
    def retrieves(session):
        return session.submit([hit.doc_id for hit in session.search(called(1, 2, 3, 4, 5), 5)])

    def ranks(session):
        found = [hit.doc_id for hit in session.search(called(1, 2, 3, 4, 5), 5)]
        session.judge(found[:4])
        session.rank(found[:4])
        return session.submit(found)

    order = outcome_of(retrieves)["ranking"]
    assert fates(outcome_of(retrieves), [order[0], order[4], "d9"]) == {
        order[0]: Fate.FOUND,
        order[4]: Fate.RANKED_LOW,
        "d9": Fate.NEVER_SURFACED,
    }
    told = fates(outcome_of(ranks), [order[3], order[4]])
    assert told == {
        order[3]: Fate.RANKED_LOW,
        order[4]: Fate.NOT_SHOWN,
    }  # the last one was shown to nobody


def test_the_passage_that_came_furthest_speaks_for_its_document():
    def agent(session):
        session.search(
            called(1, 2, 3, 4), 4
        )  # d1 and d2 are passages of one document, d3 and d4 of another
        session.judge(["d2", "d3"])
        session.select(["d3"], among=["d2", "d3"])
        return session.submit(["d3", "d4"])

    parent = {"d1": "A", "d2": "A", "d3": "B", "d4": "B"}
    outcome = outcome_of(agent)
    assert fates(outcome, ["A", "B"], unit_of=parent.get) == {
        "A": Fate.NOT_SELECTED,
        "B": Fate.FOUND,
    }
    # The same where judgements name passages: the highest grade of a document is its grade.
    told = fates(outcome, ["d1", "d4"], unit_of=parent.get, judged_by_unit=False)
    assert told == {"A": Fate.NOT_SELECTED, "B": Fate.FOUND}


def random_outcome(seed: int):
    """A trace in which anything may have happened to any of twelve documents, sensible or not."""
    draw = random.Random(seed)
    names = [f"d{n}" for n in range(1, 13)]
    steps = []
    for _ in range(draw.randrange(8)):
        tool = draw.choice(["search", "read", "judge", "select", "drop", "rank", "note"])
        chosen = draw.sample(names, draw.randrange(1, 6))
        step = {
            "tool": tool,
            "argument": draw.choice(names),
            "doc_ids": chosen,
            "hop": draw.randrange(4),
        }
        if tool in ("read", "judge"):
            step |= {"shown": [draw.randrange(50) for _ in chosen], "lengths": [50] * len(chosen)}
        if draw.random() < 0.1:
            step |= {"doc_ids": [], "refused": "no", "shown": [], "lengths": []}
        steps.append(step)
    if steps:
        steps.append(
            {
                "tool": "stop",
                "argument": draw.choice(["done", "budget", "time", "steps"]),
                "doc_ids": [],
            }
        )
    error = "E: x" if draw.random() < 0.1 else None
    ranking = [] if error else draw.sample(names, draw.randrange(12))
    gold = {
        name: draw.choice([0.0, 0.5, 1.0, 3.0]) for name in draw.sample(names, draw.randrange(1, 8))
    }
    return {"query_id": "q", "ranking": ranking, "trace": {"steps": steps}, "error": error}, gold


@given(
    st.lists(st.integers(0, 10**9), min_size=1, max_size=6), st.sampled_from([0.0, 0.5, 1.0, 2.0])
)
def test_fates_sum_to_the_missing_recall_whatever_happened(seeds, level):
    losses, recalls = LossCounts([1, 5, 1000]), {1: [], 5: [], 1000: []}
    for seed in seeds:
        outcome, gold = random_outcome(seed)
        judged = Judgements({"q": gold}, relevant_from=level)
        relevant = attribute("q", outcome, outcome["ranking"], judged)
        losses.add(relevant)
        counted = [name for name, grade in gold.items() if grade and grade >= level]
        assert [one["unit"] for one in relevant] == sorted(
            counted, key=lambda name: (-gold[name], name)
        )
        for k, values in recalls.items():
            if counted:
                values.append(
                    Fraction(len(set(outcome["ranking"][:k]) & set(counted)), len(counted))
                )
            # One query's fates sum to what it misses, as the metric has it.
            lost = sum(fate_at(one, k) is not Fate.FOUND for one in relevant)
            metric = apply_metric(f"R@{k}", judge_ranking(outcome["ranking"], judged, "q"))
            assert (
                metric is None
                if not counted
                else 1 - Fraction(lost, len(relevant)) == pytest.approx(metric)
            )
    for k, values in recalls.items():
        shares = losses.shares(k)
        if values:
            mean = sum(values) / len(values)
            assert shares[Fate.FOUND] == mean and sum(shares.values()) == 1  # exactly


@pytest.mark.parametrize(
    ("program", "task"), [("tournament", "crumb/clinical_trial"), ("rank", "relic")]
)
def test_a_runs_losses_are_what_its_recall_misses(run, program, task):
    scores = run("--program", program, "--task", task, "--limit", 3, "--json").json
    losses = scores["losses"]
    recalls = {
        name[2:]: value for name, value in scores["metrics"].items() if name.startswith("R@")
    }
    assert len(recalls) >= 2
    for k, value in recalls.items():
        if "[" not in k:
            shares = losses["at"][k]
            assert shares["found"] == pytest.approx(value["mean"], abs=1e-12)
            assert sum(shares.values()) == pytest.approx(1, abs=1e-12)
    with (Path(scores["run"]) / "attribution.jsonl").open() as file:
        lines = [json.loads(line) for line in file]
    assert len(lines) == scores["queries"]
    assert sum(losses["documents"].values()) == sum(len(line["relevant"]) for line in lines)


def test_an_agent_outside_that_ends_by_itself_without_a_search_lost_nothing_to_a_limit(run):
    scores = run("--program", "command:true", "--task", "congress", "--limit", 1, "--json").json
    documents = scores["losses"]["documents"]
    assert documents["never_surfaced"] == sum(documents.values()) > 0


def test_a_waterfall_is_printed_under_the_scores(run):
    printed = run("--program", "multihop", "--task", "congress", "--limit", 8).out
    [head] = [line for line in printed.splitlines() if "what became of relevant documents" in line]
    assert "share, mean over queries" in head, "they do not divide the documents beside them"
    for words in ("found in the first 10", "never surfaced"):
        assert words in printed
    assert "lost to an error" not in printed  # a fate that no document had is left out
