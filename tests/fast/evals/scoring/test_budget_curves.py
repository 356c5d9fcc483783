"""Equal budgets: the rule against rankings made by hand and by brute force, the curves against scores.csv."""

import csv
import json
import math
from fractions import Fraction

import numpy as np
import pytest
from conftest import lines
from hypothesis import given, settings
from hypothesis import strategies as st
from run_folders import make, run_in

from sextant.evals import curves as module
from sextant.evals.reporting.comparison_tables import curves_csv
from sextant.evals.reporting.plots import curves_svg
from sextant.evals.scoring import scored_run
from sextant.evals.scoring.anytime_ranking import AnytimeRanking
from sextant.evals.scoring.budget_curves import AXES, curves, judge_positions, query_trajectory
from sextant.evals.scoring.metrics import apply_metric, judge_units
from sextant.tools.errors import DataError, UnknownName, UsageError


@pytest.fixture
def command(command_of):
    """`sextant curves ARGUMENTS`, in this process."""
    return command_of(module)


def step(tool, doc_ids="", hop=1, **rest):
    """A step as it is on disk; documents are letters."""
    return {
        "tool": tool,
        "argument": "",
        "doc_ids": list(doc_ids),
        "hop": hop,
        "started": 0,
        "seconds": 0,
        **rest,
    }


def used(calls=0, tokens=0, usd=0.0):
    rest = {"repairs": 0, "output_tokens": 0, "paid_usd": 0.0}
    return {"calls": calls, "input_tokens": tokens, "list_usd": usd, **rest}


FOUND = (
    [step("search", "a"), step("stop")],
    "a",
    "a",
    used(),
    None,
)  # a query whose document the first search brings


@pytest.fixture
def scripted(tmp_path):
    """A scored run folder of outcomes: `queries` has (steps, ranking, gold, usage, error) for each query."""

    def made(name, queries, config=None, metric="nDCG@10", list_usd=0.0):
        outcomes, attributed, values = [], [], []
        for number, (steps, ranking, gold, usage, error) in enumerate(queries):
            query_id, grades = f"q{number}", dict.fromkeys(gold, 1.0)
            relevant = [
                {"unit": one, "grade": 1.0, "place": 0, "lost_as": "unknown"} for one in gold
            ]
            trace = {"steps": steps, "notes": [], "invented_ids": 0}
            about = {
                "query_id": query_id,
                "ranking": list(ranking),
                "trace": trace,
                "usage": usage,
                "error": error,
            }
            outcomes.append(json.dumps(about))
            attributed.append(
                json.dumps({"query_id": query_id, "grades": grades, "relevant": relevant})
            )
            values.append(apply_metric(metric, judge_units(list(ranking), grades, gold)))
        path = make(
            tmp_path / name, {metric: values}, config, usage=used() | {"list_usd": list_usd}
        )
        lines(path / "outcomes.jsonl", outcomes)
        lines(path / "attribution.jsonl", attributed)
        return path

    return made


@pytest.fixture(scope="module")
def miniature(tmp_path_factory):
    """Folders of runs on the miniature of congress, and on passages that are judged by parent, by program."""
    place = tmp_path_factory.mktemp("runs")
    for program in ("retrieve", "planner"):
        run_in(place, "--program", program, "--task", "congress", "--limit", 4)
    run_in(
        place,
        "--program",
        "multihop",
        "--task",
        "crumb/clinical_trial",
        "-P",
        "rerank=5",
        "--limit",
        4,
    )
    return place / "runs"


def test_a_scripted_trace_is_ranked_as_by_hand_after_every_step():
    script = [
        (step("search", "abcd"), "abcd"),  # the retriever's order
        (step("search", "da"), "adbc"),  # a has ranks 1 and 2, d has 4 and 1
        (
            step("judge", "abd", shown=[1, 1, 1], lengths=[2, 2, 2]),
            "adbc",
        ),  # to be shown decides nothing
        (step("select", "bd"), "bdac"),  # selected ones first, in the order of their selection
        (step("drop", "a"), "bdca"),  # a dropped one last
        (step("search", "ea", 2), "bdeca"),  # what is dropped stays last, whatever it gains
        (step("select", "e", 2), "bdeca"),
        (step("note", hop=2), "bdeca"),
        (
            step("select", "c", 1),
            "bcdea",
        ),  # a parallel reading of hop 1: its first beside the other's first
        (step("drop", "b", 2), "cdeab"),  # and was dropped with less than a has
        (step("rank", "be", 2), "becda"),  # a ranking stands above all decisions before it
        (step("drop", "e", 3), "bcdae"),  # but not above those after it
        (
            step("rank", "da", 3),
            "dacbe",
        ),  # of rankings, the last; b is no longer dropped, and never selected again
        (step("rank", "", 3), "dacbe"),
        (step("search", "f", 3), "dacfbe"),
        (step("select", "f", 3), "dacfbe"),  # of other documents: the ranking stands
        (
            step("select", "a", 3),
            "cdfabe",
        ),  # of its documents: the selections stand, and it is over
        (step("stop"), "cdfabe"),
    ]
    sofar = AnytimeRanking({}, "abcdef")
    for one, expected in script:
        sofar.add(one)
        assert "".join(sofar.ranking(10)) == expected, one
        assert sofar.places(10) == {doc_id: place for place, doc_id in enumerate(expected, start=1)}
    assert "".join(sofar.ranking(2)) == "cd" and sofar.places(2) == {"c": 1, "d": 2}


def by_brute_force(steps) -> list[str]:
    """The rule once more, from all steps at once and in fractions."""
    last = max(
        (number for number, one in enumerate(steps) if one["tool"] == "rank" and one["doc_ids"]),
        default=-1,
    )
    head = list(dict.fromkeys(steps[last]["doc_ids"])) if last >= 0 else []
    after = {d for one in steps[last + 1 :] if one["tool"] == "select" for d in one["doc_ids"]}
    head = [] if after & {*head} else head
    gained, order, decided, chosen = {}, [], {}, {}
    for number, one in enumerate(steps):
        once = list(dict.fromkeys(one["doc_ids"]))
        order += [
            d
            for d in once
            if d not in order and one["tool"] in ("search", "select", "drop", "rank")
        ]
        for rank, doc_id in enumerate(once, start=1):
            if one["tool"] == "search":
                gained[doc_id] = gained.get(doc_id, 0) + Fraction(1, 60 + rank)
            if one["tool"] in ("select", "drop"):
                decided[doc_id] = (one["tool"], number)
                if one["tool"] == "drop":
                    chosen.pop(doc_id, None)
                else:
                    chosen.setdefault(doc_id, (one["hop"], rank, number))
            if one["tool"] == "rank" and decided.get(doc_id, ("",))[0] == "drop":
                decided.pop(doc_id)
    dropped = {doc_id for doc_id, (tool, _) in decided.items() if tool == "drop"}

    def key(doc_id):
        if doc_id in head and doc_id not in dropped:
            return (0, head.index(doc_id))
        if doc_id in chosen:
            return (1, chosen[doc_id])
        return (2 + (doc_id in dropped), -gained.get(doc_id, 0), order.index(doc_id))

    return sorted(order, key=key)


def find_places(ranking, units, wanted):
    once = dict.fromkeys(units.get(doc_id, doc_id) for doc_id in ranking)
    return {unit: place for place, unit in enumerate(once, start=1) if unit in wanted}


STEPS = st.lists(
    st.builds(
        lambda tool, ids, hop: step(tool, ids, hop),
        st.sampled_from(["search", "search", "select", "drop", "rank", "judge"]),
        st.lists(st.sampled_from("abcdefghijkl"), max_size=8, unique=True),
        st.integers(1, 3),
    ),
    max_size=12,
)


@settings(max_examples=60)
@given(
    STEPS,
    st.sampled_from([{}, {one: one.upper() for one in "abcd"}, dict.fromkeys("abcgh", "X")]),
    st.data(),
)
def test_taking_steps_one_by_one_comes_to_what_all_of_them_at_once_come_to(steps, units, data):
    wanted = data.draw(st.sets(st.sampled_from("ABXefgij")))
    depth = data.draw(st.integers(1, 12))
    sofar = AnytimeRanking(units, wanted)
    for number, one in enumerate(steps, start=1):
        sofar.add(one)
        expected = by_brute_force(steps[:number])
        assert sofar.ranking(depth) == expected[:depth]
        assert sofar.places(depth) == find_places(expected[:depth], units, wanted)


@given(
    st.lists(st.sampled_from("abcdefgh"), unique=True),
    st.dictionaries(st.sampled_from("abcxyz"), st.just(2.0)),
)
def test_places_alone_are_enough_for_every_metric(ranking, grades):
    relevant = {unit for unit in grades if unit != "x"}
    found = find_places(ranking, {}, {*grades})
    few = judge_positions(found, grades, relevant)
    for name in ("nDCG@3", "nDCG", "R@2", "P@5", "RR", "RR@2"):
        assert apply_metric(name, few) == apply_metric(name, judge_units(ranking, grades, relevant))


def test_what_a_budget_buys_ends_before_the_first_step_that_it_does_not_pay_for():
    steps = [
        step("search", "xa", usage=used(1, 300, 0.004)),
        step("select", "a", usage=used(2, 1200, 0.01)),
        step("search", "b", hop=2, refused="no more"),
        step("search", "bx", hop=2),
        step("stop", usage=used(1, 100)),
    ]
    outcome = {
        "ranking": list("ab"),
        "trace": {"steps": steps},
        "usage": used(5, 2000, 0.02),
        "error": None,
    }
    row = {"grades": {"a": 1.0, "b": 1.0}, "relevant": [{"unit": "a"}, {"unit": "b"}]}
    made = query_trajectory(outcome, row, "R@1", AXES, 1000)
    assert [list(zip(*made["searches"], strict=True))] == [[(0, 0), (1, 0.5), (2, 0.5)]]
    assert list(zip(*made["calls"], strict=True)) == [(0, 0), (1, 0), (3, 0.5), (4, 0.5), (5, 0.5)]
    assert list(made["tokens"].costs) == [0, 300, 1500, 1600, 2000]
    assert list(made["usd"].costs) == [0, 0.004, 0.014, 0.02]
    recall = query_trajectory(outcome, row, "R@10", AXES, 1000)
    assert list(recall["searches"].values) == [0, 0.5, 1.0] and list(recall["usd"].values) == [
        0,
        0.5,
        1.0,
        1.0,
    ]
    assert list(query_trajectory(outcome, row, "surfaced", ["calls"], 1000)["calls"].values) == [
        0,
        0.5,
        1.0,
        1.0,
        1.0,
    ]
    assert query_trajectory(outcome, {"grades": {}, "relevant": []}, "R@10", AXES, 1000) == {}


def test_a_query_that_has_ended_keeps_its_value_and_a_failed_one_ends_with_nothing(scripted):
    long = (
        [step("search", "xa"), step("search", "a"), step("search", "z"), step("stop")],
        "za",
        "a",
        used(),
        None,
    )
    failed = (
        [step("search", "a"), step("search", "b"), step("stop")],
        "",
        "a",
        used(),
        "ValueError: no",
    )
    result = curves([scripted("run", [FOUND, long, failed])], axes=["searches"])
    found = result["axes"]["searches"]
    [row] = found["curves"]
    second = 1 / math.log2(3)
    assert found["budgets"] == [1, 2, 3]
    assert row["mean"] == pytest.approx([(1 + second + 1) / 3, 2 / 3, (1 + second) / 3])
    assert row["spent"] == pytest.approx([1, 5 / 3, 2]) and row["ended"] == pytest.approx(
        [1 / 3, 2 / 3, 1]
    )
    assert (row["end"], row["cost"], row["largest"]) == pytest.approx(((1 + second) / 3, 2, 3))
    assert [(point["budget"], point["runs"]) for point in found["front"]] == [
        (1, ["multihop over bm25"])
    ]


def test_every_curve_ends_at_the_mean_of_scores_csv(miniature):
    for path in scored_run.find_folders([miniature]):
        run = scored_run.read_scored_run(path)
        for metric in [name for name in run.columns if "[" not in name][
            ::3
        ]:  # of the judgements that lead
            result = curves([path], metric)
            exact = math.fsum(run.columns[metric].values()) / len(run.query_ids)
            for found in result["axes"].values():
                [row] = found["curves"]
                assert row["mean"][-1] == row["end"] == exact
                bounds = [run.scores["metrics"][metric][side] for side in ("low", "high")]
                assert [row["low"][-1], row["high"][-1]] == pytest.approx(bounds)
                assert row["ended"][-1] == 1.0 and row["spent"][-1] == pytest.approx(row["cost"])


def test_the_front_is_what_no_point_and_no_run_is_better_and_cheaper_than(scripted):
    generator = np.random.default_rng(3)
    paths = []
    for name in "abcd":
        queries = []
        for _ in range(5):
            orders = [
                generator.permutation(list("wxyzg")).tolist()
                for _ in range(generator.integers(2, 7))
            ]
            steps = [step("search", order) for order in orders[1:]]
            queries.append(([*steps, step("stop")], orders[0], "g", used(), None))
        paths.append(scripted(name, queries))
    found = curves(paths)["axes"]["searches"]
    points = [
        (b, m)
        for row in found["curves"]
        for b, m in zip(found["budgets"], row["mean"], strict=True)
    ]
    best = {
        (b, m)
        for b, m in points
        if not any((c <= b and n >= m and (c, n) != (b, m)) for c, n in points)
    }
    assert {(point["budget"], point["value"]) for point in found["front"]} == best
    ends = {row["label"]: (row["cost"], row["end"]) for row in found["curves"]}
    for row in found["curves"]:
        mine = ends[row["label"]]
        beaten = any(
            cost <= mine[0] and end >= mine[1] and (cost, end) != mine
            for cost, end in ends.values()
        )
        assert row["front"] is not beaten


def test_an_unknown_price_takes_only_that_run_off_that_axis(scripted, command):
    priced = (
        [step("search", "a", usage=used(1, 50, 0.02)), step("stop")],
        "a",
        "a",
        used(1, 50, 0.02),
        None,
    )
    unpriced = (
        [step("search", "a", usage=used(1, 50, None)), step("stop")],
        "a",
        "a",
        used(1, 50, None),
        None,
    )
    a, b = (
        scripted("a", [priced, priced], list_usd=0.04),
        scripted("b", [unpriced, unpriced], list_usd=None),
    )
    result = curves([a, b])
    assert [len(result["axes"][axis]["curves"]) for axis in AXES] == [2, 2, 2, 1]
    assert result["refused"] == [
        {"run": str(b), "axis": "usd", "why": "the price of its model is not known"}
    ]
    printed = command(a, b)
    assert (
        printed.code == 0 and f"{b} has no curve by dollars at list price: the price" in printed.out
    )
    alone = command(b, "--by", "usd")
    assert (
        alone.code == 2
        and len(alone.err.splitlines()) == 1
        and "the price of its model is not known" in alone.err
    )


def test_what_has_no_value_before_the_end_or_is_no_metric_is_named(scripted, command):
    path = scripted("run", [FOUND])
    with pytest.raises(UnknownName, match=r"nDGC@10.*nDCG"):
        curves([path], "nDGC@10")
    with pytest.raises(UsageError, match=r"sextant score .* --qrels pooled"):
        curves([path], "nDCG@10 [pooled]")
    for wrong in ("Win(3)", "Flip"):
        with pytest.raises(
            UsageError, match=r"counted over comparisons.*nDCG@10 or surfaced or shown"
        ):
            curves([path], wrong)
    offline = command(path, "--by", "tokens")
    assert offline.code == 2 and "no run used any tokens" in offline.err
    nowhere = command(path, "--svg", path / "no folder/plot.svg")
    assert nowhere.code == 2 and nowhere.out == "" and "plot.svg cannot be written" in nowhere.err
    (path / "attribution.jsonl").unlink()  # as in a run that an earlier version scored
    with pytest.raises(DataError, match=r"sextant score"):
        curves([path])


def test_the_table_the_plot_and_the_csv_say_the_same(miniature, command, tmp_path, monkeypatch):
    monkeypatch.setattr("environments.load", lambda *_, **__: pytest.fail("the corpus was read"))
    paths = sorted((miniature / "obliq-congress").iterdir())
    svg, table = tmp_path / "plot.svg", tmp_path / "points.csv"
    result = command(*paths, "--svg", svg, "--csv", table, "--json").json
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    found = result["axes"]["searches"]
    for row in found["curves"]:
        kept = [
            float(one["mean"])
            for one in rows
            if one["run"] == row["run"] and one["axis"] == "searches"
        ]
        assert kept == row["mean"]
    front = {
        float(one["budget"]) for one in rows if one["axis"] == "searches" and one["front"] == "1"
    }
    assert front == {point["budget"] for point in found["front"]}
    assert curves_svg(result) == svg.read_text() and curves_csv(result) == table.read_text()
    assert (
        all(row["label"] in svg.read_text() for row in found["curves"])
        and "searches a query, at most" in svg.read_text()
    )
    printed = command(*paths).out
    assert "at its end" in printed and "mini: bundled" in printed
    for row in found["curves"]:
        [line] = [line for line in printed.splitlines() if line.startswith(f" {row['label']} ")][:1]
        assert f"{row['end']:.4f}" in line


def test_a_table_or_plot_does_not_take_the_place_of_a_file_of_a_run(scripted, command):
    path = scripted("a", [([step("search", "ab")], "ab", "a", used(1), None)])
    before = (path / "scores.csv").read_bytes()
    for option in ("--csv", "--svg"):
        result = command(path, option, path / "scores.csv")
        assert result.code == 2 and "is a file of the run" in result.err
    assert (path / "scores.csv").read_bytes() == before
