"""Floor, union and ceiling of a run: which are taken, what stays out, and the share of the gap against SciPy."""

from pathlib import Path

import numpy as np
import pytest
from run_folders import make, pooled, retrieve
from scipy import stats as scipy_stats

from sextant.evals.scoring import reference_runs, scored_run
from sextant.evals.scoring.reference_runs import read_reference_bounds, references_per_program
from sextant.evals.scoring.statistics import share_closed


@pytest.fixture
def runs(tmp_path):
    """Folders of one task side by side: a name, values of nDCG@10, and what the configuration has otherwise."""

    def add(name, values=(0.2, 0.4), config=None, **scores):
        return make(tmp_path / "runs" / name, {"nDCG@10": list(values)}, config, **scores)

    return add


def found(path):
    """The runs beside one that bound it, as --json has them: those that there are, by kind."""
    return {
        kind: one for kind, one in read_reference_bounds(path).items() if kind != "metric" and one
    }


def name(path, kind):
    return Path(found(path)[kind]["run"]).name


def lines(path):
    """The bounds of a run, each in a line."""
    bounds = reference_runs.list_bounds(read_reference_bounds(path))
    return [f"{label} {one['mean']:.4f} ({one['what']})" for label, one in bounds]


def test_a_program_stands_between_its_retriever_and_the_oracle_pool(runs):
    own = runs("own", [0.2, 0.4])
    runs("floor", [0.1, 0.1], retrieve())
    runs("union", [0.3, 0.4], pooled("union", 300))
    runs("ceiling", [0.6, 0.8], pooled("oracle", 300))
    assert lines(own) == [
        "floor 0.1000 (retrieve over bm25(k1=0.9,b=0.4))",
        "lower bound 0.3500 (tournament over bm25(k1=0.9,b=0.4), offline, union pool of 300 by bm25(k1=0.9,b=0.4))",
        "ceiling 0.7000 (tournament over bm25(k1=0.9,b=0.4), offline, oracle pool of 300 by bm25(k1=0.9,b=0.4))",
    ]
    assert read_reference_bounds(own)["metric"] == "nDCG@10"


def test_the_nearest_ceiling_is_taken_first_by_program_then_by_model_then_by_size(runs):
    own = runs("own")
    strong = {"name": "openai/strong"}
    runs("a", config=pooled("oracle", 300, lm=strong))
    assert lines(own) == [
        "ceiling 0.3000 (tournament over bm25(k1=0.9,b=0.4), openai/strong, oracle pool of 300 by bm25(k1=0.9,b=0.4))"
    ]
    runs("b", config=pooled("oracle", 50))
    assert name(own, "ceiling") == "b"
    runs("c", config=pooled("oracle", 100))
    assert name(own, "ceiling") == "c"
    runs("d", config=pooled("oracle", 20, program="multihop", lm=strong))
    assert name(own, "ceiling") == "d"
    runs("e", config=pooled("oracle", 20, program="multihop", parameters={"hops": 9}))
    assert (
        found(own)["ceiling"]["what"]
        == "multihop over bm25(k1=0.9,b=0.4), hops=9, offline, oracle pool of 20 by bm25(k1=0.9,b=0.4)"
    )
    runs("f", config=pooled("oracle", 20, program="multihop", parameters={"hops": 4}))
    assert (
        found(own)["ceiling"]["what"]
        == "multihop over bm25(k1=0.9,b=0.4), offline, oracle pool of 20 by bm25(k1=0.9,b=0.4)"
    )


ELSE = {"task": "obliq/writing", "split": "dev", "instruction": "none", "depth": 10, "max_p": True}
ELSE |= {"asked": {"limit": 5, "query_ids": []}, "data_fingerprint": "f" * 16}


@pytest.mark.parametrize("key", ELSE)
def test_a_run_that_was_asked_something_else_is_no_bound(runs, key):
    own, otherwise = runs("own"), {key: ELSE[key]}
    runs("floor", config=retrieve(**otherwise))
    runs("ceiling", config=pooled("oracle", 300, **otherwise))
    assert lines(own) == []


def test_the_strongest_bare_retriever_stands_beside_a_program_as_well_as_its_own(runs):
    own, strong = runs("own"), {"name": "bm25(k1=1.5,b=0.75)", "with": "bm25(k1=1.5,b=0.75)"}
    runs("floor", [0.1, 0.2], retrieve())
    runs("weak", [0.0, 0.1], retrieve(retriever={"name": "rank_bm25", "with": "rank_bm25"}))
    runs("pool", [0.9, 0.9], pooled("oracle", 300, program="retrieve"))
    assert lines(own) == ["floor 0.1500 (retrieve over bm25(k1=0.9,b=0.4))"]
    runs("strong", [0.5, 0.2], retrieve(retriever=strong))
    assert lines(own)[1:] == ["best bare retriever 0.3500 (retrieve over bm25(k1=1.5,b=0.75))"]


def test_what_the_program_or_a_bare_retriever_is_above_is_no_ceiling(runs):
    own = runs("own", [0.2, 0.4])
    runs("low", [0.2, 0.3], pooled("oracle", 300, program="multihop", parameters={"hops": 4}))
    runs("enough", [0.3, 0.5], pooled("oracle", 50))
    assert name(own, "ceiling") == "enough"
    runs("floor", [0.5, 0.4], retrieve())
    assert "ceiling" not in found(own)


def test_where_less_is_better_the_best_retriever_has_least_and_a_ceiling_is_below(tmp_path):
    def add(name, value, config=None):
        return make(tmp_path / "runs" / name, {"Flip": [value, value]}, config)

    own = add("own", 0.3)
    strong = {"name": "bm25(k1=1.5,b=0.75)", "with": "bm25(k1=1.5,b=0.75)"}
    add("floor", 0.5, retrieve())
    add("strong", 0.4, retrieve(retriever=strong))
    add("worse", 0.6, pooled("oracle", 300))
    assert name(own, "best") == "strong" and "ceiling" not in found(own)
    add("better", 0.1, pooled("oracle", 50))
    assert name(own, "ceiling") == "better"


def test_a_bound_of_another_system_is_named_in_full_and_no_distance_to_it_is_told(
    runs, tmp_path, command_of
):
    from sextant.evals import report

    (
        runs("own", [0.2, 0.4]),
        runs("floor", [0.1, 0.2], retrieve()),
        runs("up", [0.6, 0.9], pooled("oracle", 9)),
    )
    [gap] = references_per_program(scored_run.find_scored_runs([tmp_path / "runs"])[0])
    assert "ceiling" in gap.bounds and gap.compare()[1:] == (None, None)
    assert gap.is_own("floor") and not gap.is_own("ceiling")
    assert command_of(report)(tmp_path / "runs", "--out", tmp_path / "report").code == 0
    table = (tmp_path / "report" / "report.md").read_text()
    assert (
        "| ceiling 0.7500: tournament over bm25(k1=0.9,b=0.4), offline, oracle pool of 9 by bm25(k1=0.9,b=0.4) |"
        in table
    )


def test_a_bound_is_no_bound_of_itself(runs):
    floor, ceiling = runs("floor", config=retrieve()), runs("ceiling", config=pooled("oracle", 300))
    runs("other", config=pooled("oracle", 100)), runs("twin", config=retrieve())
    assert "floor" not in found(floor) and "ceiling" in found(floor)
    assert "ceiling" not in found(ceiling) and "floor" in found(ceiling)


def test_what_cannot_be_read_is_passed_over_and_a_run_without_scores_has_no_bounds(runs, tmp_path):
    own = runs("own")
    runs("a", config=retrieve())
    (runs("b", config=retrieve()) / "scores.json").write_text("[]")
    (runs("c", config=retrieve()) / "scores.json").unlink()
    (runs("d", config=retrieve()) / "config.json").write_text("{")
    (tmp_path / "runs" / "e").mkdir()
    (tmp_path / "runs" / "notes.txt").write_text("")
    assert name(own, "floor") == "a"
    assert found(tmp_path / "runs" / "c") == found(tmp_path / "nowhere") == {}


def test_the_table_of_gaps_is_paired_by_query(runs, tmp_path):
    generator = np.random.default_rng(1)
    floor, own, ceiling = (
        generator.uniform(0, 0.2, 40),
        generator.uniform(0.2, 0.5, 40),
        generator.uniform(0.6, 1, 40),
    )
    runs("own", own.tolist())
    runs("floor", floor.tolist(), retrieve())
    runs("up", ceiling.tolist(), pooled("oracle", 9, program="multihop", parameters={"hops": 4}))
    [gap] = references_per_program(scored_run.find_scored_runs([tmp_path / "runs"])[0])
    assert gap.run.path.name == "own" and gap.metric == "nDCG@10"
    gained, missing, closed = gap.compare()
    assert gained.difference == pytest.approx((own - floor).mean())
    assert missing.difference == pytest.approx((ceiling - own).mean())
    assert missing.wins == 40 and "union" not in gap.bounds
    expected = scipy_stats.bootstrap(
        (floor, own, ceiling),
        lambda low, mid, high, axis=-1: (
            (mid.mean(axis) - low.mean(axis)) / (high.mean(axis) - low.mean(axis))
        ),
        paired=True,
        method="percentile",
        rng=np.random.default_rng(2),
    ).confidence_interval
    assert closed.mean == pytest.approx(
        (own.mean() - floor.mean()) / (ceiling.mean() - floor.mean())
    )
    assert (closed.low, closed.high) == pytest.approx(tuple(expected), abs=0.006)


def test_no_share_is_told_of_a_ceiling_that_is_not_above_the_floor_and_no_interval_of_one_that_hardly_is():
    assert share_closed([0.5, 0.5], [0.6, 0.6], [0.5, 0.5]) is None
    assert share_closed([], [], []) is None
    unclear = share_closed([0.0, 1.0, 0.0], [0.1, 0.9, 0.2], [1.0, 0.0, 0.3])
    assert unclear.mean == pytest.approx((0.4 - 1 / 3) / (1.3 / 3 - 1 / 3)) and unclear.low is None
    assert share_closed([0.0], [0.5], [1.0]) == (0.5, None, None)
