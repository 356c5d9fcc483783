"""Comparing runs: the numbers against SciPy on what scores.csv has, what is refused, what is said, in each form."""

import csv
import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import run_folders
from markdown_it import MarkdownIt
from run_folders import CONFIG, USAGE
from scipy import stats as scipy_stats

from sextant.evals import compare as module
from sextant.evals.scoring.comparison import compare
from sextant.tools.errors import DataError, RunIncomplete, UnknownName, UsageError
from sextant.tools.platform.result_table import ResultTable, render_terminal


@pytest.fixture
def command(command_of):
    """`sextant compare ARGUMENTS`, in this process."""
    return command_of(module)


@pytest.fixture
def made(tmp_path):
    """A scored run folder: `columns` are metric -> values in the order of the queries; None is an empty cell.

    `fates` are, query by query, those of its relevant documents; without it, the run is one of an older version.
    """

    def make(name, columns, config=None, fates=None, **scores):
        path = run_folders.make(tmp_path / name, columns, config, **scores)
        ids = [f"q{number}" for number in range(len(next(iter(columns.values()))))]
        if fates is not None:
            lines = [attribution(*pair) for pair in zip(ids, fates, strict=True)]
            (path / "attribution.jsonl").write_text(
                "".join(f"{json.dumps(line)}\n" for line in lines)
            )
        return path

    return make


def attribution(query_id, fates) -> dict:
    """A line of attribution.jsonl: document d0, d1 ... with these fates at 10; what is found has the first place."""
    relevant = [
        {"unit": f"d{number}", "doc_id": f"d{number}", "grade": 1.0}
        | {"place": int(fate == "found"), "lost_as": "ranked_low" if fate == "found" else fate}
        for number, fate in enumerate(fates)
    ]
    return {
        "query_id": query_id,
        "text": "?",
        "grades": {one["unit"]: 1.0 for one in relevant},
        "relevant": relevant,
    }


def column(path, metric) -> list[float]:
    with (path / "scores.csv").open(newline="") as file:
        return [float(row[metric]) for row in csv.DictReader(file)]


def test_a_limit_is_the_only_difference_that_is_told_of_two_runs(run, command, tmp_path):
    # The module that applies limits is a part of the code of one run, and no edit of the other's.
    base = ("--program", "multihop", "--task", "congress", "--limit", 3, "--json")
    assert run(*base).code == 0
    assert run(*base, "-P", "max_searches=1").code == 0
    folders = sorted((tmp_path / "runs/obliq-congress").glob("multihop-*"))
    [told] = command(*folders, "--json").json["differences"]
    assert [key.partition(".")[0] for key in told["keys"]] == ["limits"]


def test_two_runs_compare_as_scipy_compares_their_tables(run, command, tmp_path):
    folders = []
    for program in ("retrieve", "multihop"):
        assert run("--program", program, "--task", "congress", "--limit", 12, "--json").code == 0
        folders += list((tmp_path / "runs/obliq-congress").glob(f"{program}-*"))
    result = command(*folders, "--json").json
    assert (
        result["task"] == "obliq/congress" and result["split"] == "test" and result["forced"] == []
    )
    assert result["baseline"] == str(folders[0]) and result["runs"] == [str(folders[1])]
    assert [row["metric"] for row in result["comparisons"]][:2] == ["nDCG@10", "nDCG@50"]
    [deep] = [row for row in result["comparisons"] if row["metric"] == "R@1000"]  # of 288 documents
    assert deep["p"] is deep["p_holm"] is None and deep["losses"] > 0 and deep["difference"] < 0
    assert (
        "not tested, as a ranking may have all of the corpus of 288 documents: R@1000"
        in result["notes"]
    )
    tested, ps = [row for row in result["comparisons"] if row is not deep], []
    for row in tested:
        before, after = (np.array(column(folder, row["metric"])) for folder in folders)
        assert (row["baseline_mean"], row["mean"]) == pytest.approx((before.mean(), after.mean()))
        difference = (after - before).round(14)
        assert (row["wins"], row["losses"]) == ((difference > 0).sum(), (difference < 0).sum())
        moved = difference[difference != 0]
        ps.append(1.0)
        if len(moved) > 1:  # a query that did not move has no sign, and SciPy takes no single one
            theirs = scipy_stats.permutation_test(
                (moved,), np.sum, permutation_type="samples", n_resamples=np.inf
            )
            ps[-1] = theirs.pvalue
        assert row["p"] == pytest.approx(ps[-1], abs=1e-9)
    headline, *others = tested
    assert headline["family"] == "nDCG@10" and headline["p_holm"] == headline["p"]
    moved_rows = [row for row in others if row["wins"] + row["losses"]]
    ps = np.array([row["p"] for row in moved_rows])
    order = np.argsort(ps, kind="stable")
    by_hand = np.minimum(1, np.maximum.accumulate(ps[order] * np.arange(len(ps), 0, -1)))
    assert [moved_rows[place]["p_holm"] for place in order] == pytest.approx(by_hand.tolist())
    assert all(row["p_holm"] == 1.0 for row in others if row not in moved_rows)
    printed = command(*folders)
    assert (
        printed.code == 0
        and "mini: bundled" in printed.out
        and "offline, no language model" in printed.out
    )
    assert "program multihop (was retrieve)" in printed.out
    count = "1 test" if len(ps) == 1 else f"{len(ps)} tests"
    expected = f"Holm: adjusted for 1 test of nDCG@10, and for {count} of other metrics"
    assert expected in printed.out


@pytest.mark.parametrize(
    ("metric", "config", "scores", "note"),
    [
        (
            "R@20",
            {},
            {"documents": 20},
            "not tested, as a ranking may have all of the corpus of 20 documents: R@20",
        ),
        (
            "P@30",
            {},
            {"documents": 20},
            "not tested, as a ranking may have all of the corpus of 20 documents: P@30",
        ),
        (
            "R",
            {},
            {"documents": 20},
            "not tested, as a ranking may have all of the corpus of 20 documents: R",
        ),
        (
            "R@9",
            {},
            {"documents": 20, "candidates": 8},
            "not tested, as a ranking may have all of the candidate pool of 8 documents: R@9",
        ),
        (
            "R@9",
            {"pool": {"kind": "oracle", "size": 5, "of": ["bm25"]}},
            {"documents": 20},
            "not tested, as a ranking may have all of the pool of 5 documents: R@9",
        ),
        ("R@19", {}, {"documents": 20}, ""),
        ("R@20", {"depth": 10}, {"documents": 20}, ""),  # 10 of 20 documents are a choice
        ("nDCG@20", {}, {"documents": 20}, ""),  # the order of all documents is a choice
        ("R@20", {}, {}, ""),  # scored by an earlier version
    ],
)
def test_a_metric_that_counts_all_documents_is_not_tested(
    made, command, metric, config, scores, note
):
    columns = [{"RR@5": [0.1] * 8, metric: [value] * 8} for value in (0.5, 1.0)]
    a = made("a", columns[0], config, **scores)
    b = made("b", columns[1], config | {"program": "retrieve"}, **scores)
    result = compare([a, b])
    first, row = result["comparisons"]
    assert first["p_holm"] == 1.0 and (row["difference"], row["wins"]) == (0.5, 8)
    assert [line for line in result["notes"] if "not tested" in line] == [note] * bool(note)
    printed = next(line for line in command(a, b).out.splitlines() if f" {metric}  " in line)
    if note:
        assert row["p"] is row["p_holm"] is None and printed.endswith("not tested")
        assert "  -  " in printed and command(a, b, "--metric", metric).code == 0
    else:
        assert (row["p"], row["p_holm"], row["family"]) == (2 / 2**8, 2 / 2**8, "other metrics")


def test_identical_runs_do_not_differ_and_it_says_so(made, command):
    a, b = made("a", {"nDCG@10": [0.1, 0.5]}), made("b", {"nDCG@10": [0.1, 0.5]})
    for other in (b, a):
        result = compare([a, other])
        assert [(row["difference"], row["p"], row["ties"]) for row in result["comparisons"]] == [
            (0.0, 1.0, 2)
        ]
        assert result["moved"] == []
        printed = command(a, other).out
        assert "   the same\n" in printed and "the same configuration" in printed


def test_only_queries_with_the_metric_in_both_runs_are_paired(made):
    a = made("a", {"R@10": [None, 0.5, 0.25, 0.0]})
    b = made("b", {"R@10": [1.0, 1.0, None, 0.5]})
    [row] = compare([a, b])["comparisons"]
    assert (row["queries"], row["baseline_mean"], row["mean"], row["wins"]) == (2, 0.25, 0.75, 2)
    repeats = [
        made(name, {"R@10": [0.3, value, 0, 0]}, {"program": "x"})
        for name, value in (("x", 0.2), ("y", None))
    ]
    [row] = compare([a, *repeats])["comparisons"]  # no guess for a repeat that lacks a query
    assert (row["queries"], row["mean"]) == (2, 0)
    usage = USAGE | {"paid_usd": None, "list_usd": None}
    c = made("c", {"R@10": [None] * 4}, {"program": "x"}, usage=usage, failed=2)
    result = compare([a, c])
    assert (
        result["comparisons"][0]["p"] is result["comparisons"][0]["mean"] is None
    )  # nothing is tested
    assert result["cost"][0]["list_usd_per_query"] == pytest.approx(0.015)
    assert (result["cost"][1]["list_usd_per_query"], result["cost"][1]["failed"]) == (None, 2)


def test_a_metric_that_a_run_lacks_is_computed_as_scoring_computes_it(
    run, command, command_of, tmp_path, monkeypatch
):
    from sextant.evals import report, score

    task = ("--task", "multiconir/legal_document:complexity", "--limit", 5, "--json")
    paths = [
        Path(run("--program", "retrieve", "--retriever", name, *task).json["run"])
        for name in ("bm25", "bm25s")
    ]
    asked = [word for name in ("AP@7", "nDCG", "Judged@3", "Win(2)") for word in ("--metric", name)]
    found = command(*paths, *asked, "--json").json["comparisons"]
    reported = command_of(report)(*paths, *asked, "--out", tmp_path / "report", "--json")
    tables = [name for name in reported.json["files"] if name.endswith(".csv")]
    assert any(",AP@7," in (tmp_path / "report" / name).read_text() for name in tables)
    scored = command_of(score)(paths[1], *asked, "--json").json["metrics"]
    assert [row["metric"] for row in found] == ["Win(2)", "AP@7", "nDCG", "Judged@3"]
    assert [row["mean"] for row in found] == pytest.approx(
        [scored[row["metric"]]["mean"] for row in found]
    )
    assert command(*paths, "--metric", "Flip").code == 2
    monkeypatch.setattr("sextant.evals.scoring.comparison.load_environment", no_data)
    assert command(*paths, "--metric", "RR@3").code == 0  # the grades are in the folder
    refused = command(*paths, "--metric", "Judged@5")
    assert (
        refused.code == 3
        and refused.err.count("\n") == 1
        and "its data is not here any more" in refused.err
    )


def no_data(*_):
    raise DataError("no folder")


def test_metrics_can_be_chosen_and_a_misspelt_one_is_named(made, command):
    a, b = (made(name, {"nDCG@10": [0.1], "R@10": [0.5]}) for name in "ab")
    assert [row["metric"] for row in compare([a, b], ["R@10"])["comparisons"]] == ["R@10"]
    assert compare([a, b], ["R@10"])["metric"] == "R@10" and compare([a, b])["metric"] == "nDCG@10"
    with pytest.raises(UnknownName, match="metrics are nDCG"):
        compare([a, b], ["nDGC@10"])
    assert command(a, b, "--metric", "nDGC@10").code == 2


@pytest.mark.parametrize(
    ("changed", "key", "value"),
    [
        ({"task": "obliq/math"}, "task", "obliq/math"),
        (
            {"data_fingerprint": "fff"},
            "data_fingerprint",
            "fff; of texts, queries, judgements, exclusions and pools",
        ),
        ({"split": "dev"}, "split", "dev"),
        ({"asked": {"limit": 3, "query_ids": []}}, "asked", '"limit": 3'),
        ({"instruction": "none"}, "instruction", "none"),
        ({"max_p": True}, "max_p", "true"),
        ({"depth": 50}, "depth", "50"),
        ({"pool": {"kind": "oracle", "size": 300, "of": ["bm25"]}}, "pool", "oracle"),
    ],
)
def test_runs_that_were_not_asked_the_same_are_refused_unless_forced(
    made, command, changed, key, value
):
    a, b = made("a", {"nDCG@10": [0.1, 0.2]}), made("b", {"nDCG@10": [0.2, 0.2]}, changed)
    refused = command(a, b)
    assert refused.code == 2 and refused.out == "" and len(refused.err.splitlines()) == 1
    assert f"{key} (" in refused.err and value in refused.err and "--force" in refused.err
    assert compare([a, b], force=True)["forced"] == [key]
    for form in ("", "--markdown", "--latex"):
        printed = command(a, b, "--force", *filter(None, [form])).out.replace("\\_", "_")
        assert f", forced although {key} differ" in printed  # in the table's title
        names = (a.name, b.name) if form == "--latex" else (a, b)
        said = "forced: {} and {} were not asked the same: ".format(*names)
        assert f"{said}{key} (" in printed.replace("\\", "")


def test_what_is_compared_is_no_contract(made, command):
    program = {"digest": "12ab34cd", "optimizer": "gepa"}
    changed = {
        "parameters": {"hops": 2},
        "compiled": program,
        "lm": {"name": "openai/x", "model": "openai/x"},
    }
    a, b = made("a", {"nDCG@10": [0.1]}), made("b", {"nDCG@10": [0.1]}, changed, lm="openai/x")
    keys = compare([a, b])["differences"][0]["keys"]
    assert keys["compiled"] == [None, program] and keys["parameters.hops"] == [4, 2]
    printed = command(a, b).out
    assert (
        "compiled gepa 12ab34cd (was none), parameters.hops 2 (was 4), lm.model openai/x (was offline/1)"
        in printed
    )


def test_runs_with_other_metrics_are_compared_in_those_that_both_have(made, command):
    a = made("a", {"nDCG@10": [0.1, 0.2], "R@5": [0.0, 1.0]})
    b = made("b", {"R@5": [1.0, 1.0], "R@20": [1.0, 1.0]}, {"split": "dev"})
    c = made("c", {"P@10": [1.0, 1.0]})
    d = made("d", {"R@5": [1.0, 1.0], "R@20": [1.0, 1.0]}, {"lm": {"name": "x"}})
    shared = compare([a, d])
    assert [row["metric"] for row in shared["comparisons"]] == ["R@5"] and shared["forced"] == []
    left_out = "left out, as not all runs have them: nDCG@10, R@20"
    assert [note for note in shared["notes"] if "left out" in note] == [left_out]
    assert left_out in command(a, d).out
    assert not any("left out" in note for note in compare([a, d], ["R@5"])["notes"])
    result = compare([a, b], force=True)
    assert result["forced"] == ["split"]
    assert (
        [row["metric"] for row in result["comparisons"]]
        == ["R@5"]
        == [row["metric"] for row in result["moved"]]
    )
    with pytest.raises(UsageError, match="no metric in common"):
        compare([a, c], force=True)


def test_a_run_without_scores_is_told_how_to_get_them(run, tmp_path, made):
    answered = run("--program", "retrieve", "--task", "congress", "--json").json["run"]
    path = tmp_path / "runs/obliq-congress" / answered.rpartition("/")[2]
    (path / "scores.json").unlink()
    other = made("a", {"nDCG@10": [0.1]})
    with pytest.raises(DataError, match=rf"sextant score {path}"):
        compare([other, path])
    outcomes = (path / "outcomes.jsonl").read_text().splitlines(keepends=True)
    (path / "outcomes.jsonl").write_text("".join(outcomes[:-2]))
    with pytest.raises(RunIncomplete, match="2 of 24 queries of"):
        compare([path, other])
    (path / "outcomes.jsonl").write_text("")
    with pytest.raises(RunIncomplete, match="24 of 24 queries"):
        compare([path, other])


def test_one_run_is_not_enough_and_none_is_named_twice(made, command):
    a, b = made("a", {"nDCG@10": [0.1]}), made("b", {"nDCG@10": [0.1]})
    assert command(a).code == 2
    with pytest.raises(UsageError, match="two or more"):
        compare([a])
    with pytest.raises(UsageError, match="named twice"):
        compare([a, b, b])


FOUND, NEVER, LOW, DROPPED = "found", "never_surfaced", "ranked_low", "not_selected"


def test_the_change_of_each_fate_is_the_one_by_hand_and_they_sum_to_nothing(made, command):
    before = [[NEVER], [NEVER, FOUND], [LOW, LOW], [], [FOUND, DROPPED, NEVER, NEVER]]
    after = [[FOUND], [FOUND, LOW], [LOW, FOUND], [], [FOUND, FOUND, NEVER, NEVER]]
    a = made("a", {"nDCG@10": [0.1] * 5}, fates=before)
    b = made("b", {"nDCG@10": [0.2] * 5}, {"program": "retrieve"}, fates=after)
    [losses] = compare([a, b])["losses"]
    assert (losses["run"], losses["cutoff"], losses["queries"]) == (
        str(b),
        10,
        4,
    )  # one query has no relevant document
    changes = {row["fate"]: row for row in losses["changes"]}
    assert list(changes) == [FOUND, NEVER, DROPPED, LOW]
    shares = {
        fate: (row["baseline"], row["share"], row["difference"]) for fate, row in changes.items()
    }
    assert shares[FOUND] == pytest.approx((0.75 / 4, 2.5 / 4, 1.75 / 4))
    assert shares[NEVER] == pytest.approx((2 / 4, 0.5 / 4, -1.5 / 4))
    assert shares[DROPPED] == pytest.approx((0.25 / 4, 0, -0.25 / 4))
    assert shares[LOW] == pytest.approx((1 / 4, 1 / 4, 0))
    assert sum(row["difference"] for row in changes.values()) == pytest.approx(0, abs=1e-12)
    flows = [(row["from"], row["to"], row["documents"], row["examples"]) for row in losses["flows"]]
    assert flows == [
        (NEVER, FOUND, 2, ["q0", "q1"]),
        (FOUND, LOW, 1, ["q1"]),
        (DROPPED, FOUND, 1, ["q4"]),
        (LOW, FOUND, 1, ["q2"]),
    ]
    assert losses["same"] == 4 and all(isinstance(row["documents"], int) for row in losses["flows"])
    printed = [line.split() for line in command(a, b).out.splitlines()]
    assert [
        "run",
        "1",
        "2",
        "never",
        "surfaced",
        "found",
        "in",
        "the",
        "first",
        "10",
        "2",
        "q0,",
        "q1",
    ] in printed


def test_a_run_of_an_older_version_has_no_losses_and_is_compared_in_all_else(made, command):
    fates = [[FOUND], [NEVER]]
    a, b = (
        made("a", {"nDCG@10": [0.1, 0.2]}, fates=fates),
        made("b", {"nDCG@10": [0.3, 0.2]}, {"program": "old"}),
    )
    c = made("c", {"nDCG@10": [0.3, 0.2]}, {"program": "new"}, fates=fates)
    result = compare([a, b, c])
    assert len(result["comparisons"]) == 2 and [row["run"] for row in result["losses"]] == [str(c)]
    assert any(f"sextant score {b}" in note for note in result["notes"])
    assert len(compare([b, a, c])["comparisons"]) == 2 and compare([b, a, c])["losses"] == []
    (a / "attribution.jsonl").write_text("{\n")
    printed = command(a, c)
    assert (
        printed.code == 0
        and "no losses compared" in printed.out
        and "line 1 is damaged" in printed.out
    )


def test_runs_that_differ_in_their_seed_are_one_system_and_its_queries_count_once(made, command):
    generator = np.random.default_rng(6)
    values = generator.random((5, 30)).round(3)
    config = [
        {"lm": CONFIG["lm"] | {"seed": seed}, "program": program}
        for program, seed in (
            ("retrieve", 1),
            ("retrieve", None),
            ("multihop", 1),
            ("multihop", 2),
            ("multihop", 2),
        )
    ]
    fates = [[[FOUND if number == 4 else NEVER]] * 30 for number in range(5)]
    many = [
        made(f"r{n}", {"nDCG@10": values[n].tolist()}, config[n], fates=fates[n]) for n in range(5)
    ]
    result = compare([many[0], many[2], many[1], many[3], many[4]])
    assert (result["baseline"], result["runs"]) == (str(many[0]), [str(many[2])])
    assert [one["repeats"] for one in result["systems"]] == [
        [*map(str, many[:2])],
        [*map(str, many[2:])],
    ]
    before, after = values[:2].mean(axis=0), values[2:].mean(axis=0)
    [row] = result["comparisons"]
    assert row["queries"] == 30 and (row["baseline_mean"], row["mean"]) == pytest.approx(
        (before.mean(), after.mean())
    )
    apart = (after - before,)
    theirs = scipy_stats.permutation_test(
        apart, np.mean, permutation_type="samples", n_resamples=9999, rng=1
    )
    assert row["p"] == pytest.approx(theirs.pvalue, abs=4 * math.sqrt(theirs.pvalue / 9999))
    interval = scipy_stats.bootstrap(apart, np.mean, n_resamples=10_000, method="percentile", rng=1)
    assert (row["low"], row["high"]) == pytest.approx(tuple(interval.confidence_interval), abs=0.03)
    spreads = [values[:2].mean(axis=1).std(ddof=1), values[2:].mean(axis=1).std(ddof=1)]
    assert [one["spread"]["nDCG@10"] for one in result["systems"]] == pytest.approx(spreads)
    assert [one["fate"] for one in result["losses"][0]["changes"]] == [FOUND, NEVER]
    assert result["losses"][0]["flows"][0]["documents"] == pytest.approx(
        10
    )  # found in one run of three
    assert result["differences"][0]["keys"] == {
        "program": ["retrieve", "multihop"]
    }  # the seed is no difference
    assert [one["queries"] for one in result["cost"]] == [60, 90]
    printed = command(*many).out
    assert "repeat: " in printed and "between repeats" in printed and f"{spreads[1]:.4f}" in printed


def test_the_seed_of_a_programs_shuffle_makes_repeats_and_any_other_difference_does_not(made):
    def config(**changed):
        return CONFIG | {"parameters": {"hops": 4, "seed": 0}} | changed

    a = made("a", {"nDCG@10": [0.1, 0.2]}, config())
    elsewhere = CONFIG["provenance"] | {"git_revision": "other"}
    b = made(
        "b",
        {"nDCG@10": [0.1, 0.3]},
        config(parameters={"hops": 4, "seed": 1}, provenance=elsewhere),
    )
    others = [
        made("code", {"nDCG@10": [0.1, 0.2]}, config(code="other")),
        made("hops", {"nDCG@10": [0.1, 0.2]}, config(parameters={"hops": 2, "seed": 0})),
        made("model", {"nDCG@10": [0.1, 0.2]}, config(lm={"name": "x/y", "model": "x/y"})),
        made(
            "compiled",
            {"nDCG@10": [0.1, 0.2]},
            config(compiled={"digest": "12ab34cd", "optimizer": "gepa"}),
        ),
    ]
    assert [len(one["repeats"]) for one in compare([a, *others, b])["systems"]] == [2, 1, 1, 1, 1]


def test_repeats_of_one_system_alone_are_compared_one_by_one_and_it_says_so(made, command):
    runs = [made(name, {"nDCG@10": [0.1, 0.5 + place / 10]}) for place, name in enumerate("abc")]
    result = compare(runs)
    assert result["runs"] == [str(run) for run in runs[1:]] and len(result["comparisons"]) == 2
    assert [one["spread"] for one in result["systems"]] == [None] * 3
    said = result["notes"][-1]
    assert (
        "one configuration repeated" in said and "(0.0500 in nDCG@10, standard deviation)" in said
    )
    assert "one configuration repeated" in command(*runs).out
    copied = shutil.copytree(runs[0], runs[0].parent / "copy")
    assert "one configuration repeated" in compare([runs[0], copied])["notes"][-1]


HOSTILE = r"a|b\|c \ & % $x$ # _ { } ~ ^ *d* `e` [f](g) <script> -- \end{tabular} \\ @g"


@pytest.fixture
def hostile(made):
    """Two runs with a query of that name."""
    paths = [
        made(name, {"nDCG@10": values}, {"program": program}, fates=[[fate]] * 2)
        for name, values, program, fate in (
            ("a", [0.1, 0.2], "retrieve", NEVER),
            ("b", [0.9, 0.2], HOSTILE, FOUND),
        )
    ]
    for path in paths:
        for file in ("scores.csv", "attribution.jsonl"):
            text = (path / file).read_text()
            name = HOSTILE if file == "scores.csv" else json.dumps(HOSTILE)[1:-1]
            (path / file).write_text(text.replace("q0", name))
    return paths


def test_the_terminal_shows_names_as_they_are():
    name = f"[bold]x[/] :warning: {HOSTILE} [y]\\"
    assert (
        render_terminal([name, ResultTable(name, [name, "mean"], [[name, "1"]])]).count(name) == 4
    )


def test_markdown_shows_names_as_they_are_in_the_same_tables(hostile, command):
    printed = command(*hostile, "--markdown")
    tokens = MarkdownIt("commonmark").enable("table").parse(printed.out)
    cells = [
        tokens[place + 1]
        for place, token in enumerate(tokens)
        if token.type in ("th_open", "td_open")
    ]
    texts = ["".join(child.content for child in cell.children) for cell in cells]
    assert HOSTILE in texts and f"{HOSTILE}, q1" in texts
    assert "script" in printed.out and not [token for token in tokens if token.type == "html_block"]
    kinds = {child.type for token in tokens if token.type == "inline" for child in token.children}
    assert kinds <= {
        "text",
        "text_special",
        "strong_open",
        "strong_close",
        "hardbreak",
    }  # no link, code, HTML
    heads = [place for place, token in enumerate(tokens) if token.type == "thead_open"]
    assert len(heads) == 5  # metrics, fates, flows, queries, cost
    bold = {
        text
        for text, cell in zip(texts, cells, strict=True)
        if "strong_open" in [c.type for c in cell.children]
    }
    assert {"0.5500"} <= bold and "0.1500" in texts


def test_latex_has_every_name_escaped_and_every_row_as_wide_as_its_head(hostile, command):
    printed = command(*hostile, "--latex").out
    assert printed.startswith("% \\usepackage{booktabs}\n") and printed.count("\\begin{table}") == 5
    lines = [line for line in printed.splitlines() if not line.startswith("%")]
    tabular = "\n".join(lines)
    assert "\\textbf{0.5500}" in tabular and "$+$0.4000" in tabular
    escaped = (
        r"a\textbar{}b\textbackslash{}\textbar{}c \textbackslash{} \& \% \$x\$ \# \_ \{ \} \textasciitilde{} "
        r"\textasciicircum{} {*}d{*} \textasciigrave{}e\textasciigrave{} {[}f{]}(g) \textless{}script\textgreater{} "
        r"-{}- \textbackslash{}end\{tabular\} \textbackslash{}\textbackslash{} @g"
    )
    assert f"run 1 & {escaped} & 0.1000 & 0.9000 & $+$0.8000 \\\\" in lines
    wide = 0
    for line in lines:
        if line.startswith("\\begin{tabular}"):
            wide = len(line.split("{")[2].rstrip("}"))
        elif line.endswith(" \\\\"):
            assert line.replace("\\&", "").count("&") == wide - 1
    bare = tabular.replace("\\{", "").replace("\\}", "")
    assert bare.count("{") == bare.count("}")


def test_latex_has_no_path_a_label_for_each_table_and_each_note_once(made, command):
    names = ("a", "b", "c")
    runs = [made(name, {"nDCG@10": [0.1 * place, 0.2]}) for place, name in enumerate(names)]
    everything = command(*runs, "--pairs", "--latex").out
    assert str(runs[0].parent) not in everything and " (baseline): a\n" in everything
    labels = re.findall(r"\\label\{tab:(.*?)\}", everything)
    assert len(set(labels)) == everything.count("\\begin{table}")
    assert {"overview", "findings", "moved", "cost"} <= set(labels)
    for note in ("p: two-sided sign-flip", "w t l: queries won", "the best by a metric"):
        assert everything.count(note) == 1


def test_a_paper_chooses_a_table_its_caption_its_digits_and_percent(made, command):
    values = {"a": [0.1, 0.2], "b": [0.9, 0.12999]}
    runs = [made(name, {"nDCG@10": column}) for name, column in values.items()]
    only = ("--latex", "--only", "findings")
    printed = command(*runs, *only, "--caption", "Ours & theirs", "--percent", "--digits", 1).out
    assert printed.count("\\begin{table}") == 1 and "\\label{tab:findings}" in printed
    assert "\\caption{Ours \\& theirs}\n" in printed and "% metrics in percent\n" in printed
    assert "nDCG@10 & 15.0 & \\textbf{51.5} & $+$36.5 & " in printed
    assert "& 1.000 & 1.000 & 1/0/1 &" in printed, "p is no percentage"
    assert "& 15.00 & \\textbf{51.50} & $+$36.50 &" in command(*runs, *only, "--percent").out
    # .514995 is rounded once: its text, 0.5150, would give 0.52
    assert "& 0.15 & \\textbf{0.51} & $+$0.36 &" in command(*runs, *only, "--digits", 2).out


def test_an_interval_is_in_percent_and_rounded_as_the_mean_is(made, command):
    values = {"a": [0.0] * 30, "b": [0.25] * 20 + [0.75] * 10}
    runs = [made(name, {"nDCG@10": column}) for name, column in values.items()]
    [row] = compare(runs)["comparisons"]
    printed = command(*runs, "--latex", "--only", "findings", "--percent", "--digits", 3).out
    assert f"& {100 * row['low']:.3f} to {100 * row['high']:.3f} &" in printed
    assert f"& {100 * row['detectable']:.3f} & better \\\\" in printed


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--latex --only nothing", "findings, cost"),
        ("--latex --caption x", "findings, cost"),
        ("--percent", "go with --latex"),
        ("--markdown --only cost", "go with --latex"),
        ("--latex --digits 12", "no value of --digits"),
    ],
)
def test_a_choice_that_is_no_table_or_not_of_latex_is_refused(words, said, made, command):
    runs = [made(name, {"nDCG@10": [0.1, 0.2]}) for name in ("a", "b")]
    refused = command(*runs, *words.split())
    assert (refused.code, refused.out) == (2, "") and len(refused.err.splitlines()) == 1
    assert said in refused.err


def test_of_a_metric_of_which_less_is_better_the_lower_mean_is_bold(made, command):
    a, b = (
        made(name, {"Win": [value] * 2, "Flip": [value] * 2})
        for name, value in (("a", 0.25), ("b", 0.5))
    )
    rows = [
        line
        for line in command(a, b, "--markdown").out.splitlines()
        if line.startswith(("| run 1 | Win", "| run 1 | Flip"))
    ]
    assert [row.count("**0.5000**") for row in rows] == [1, 0] and "**0.2500**" in rows[1]
    assert any(note.startswith("Flip: lower is better") for note in compare([a, b])["notes"])


@pytest.mark.parametrize(
    ("shift", "said"), [(0.25, "better"), (-0.25, "worse"), (0.0, "no difference shown")]
)
def test_each_row_ends_with_whether_the_runs_differ(made, command, shift, said):
    before = [0.3 + 0.02 * number for number in range(20)]
    moved = [value + shift + (0.05 if number % 2 else -0.05) for number, value in enumerate(before)]
    one = made("one", {"nDCG@10": before})
    other = made("other", {"nDCG@10": moved}, {"program": "retrieve"})
    printed = command(one, other).out.splitlines()
    [row] = [line for line in printed if " nDCG@10 " in line]
    assert row.endswith(f"   {said}") and f"{shift:+.4f}" in row
    assert row.split("   ")[-2].strip() == "0.034"


def test_systems_are_named_by_the_setting_in_which_runs_of_a_program_differ(made, command):
    values = {"nDCG@10": [0.1 * number for number in range(8)]}
    first = made("first", values)
    for name, config, setting in (
        ("hops", {"parameters": {"hops": 2}}, " over bm25, hops=2"),
        ("retriever", {"retriever": {"name": "dense"}}, " over dense"),
        ("model", {"lm": {"name": "openai/x", "seed": 1}}, " over bm25, openai/x"),
        (
            "compiled",
            {"compiled": {"optimizer": "gepa", "digest": "0a1b"}},
            " over bm25, compiled with gepa",
        ),
    ):
        other = made(name, values, config)
        assert f"\nmultihop{setting} (run 1): {other}" in command(first, other).out


def test_three_systems_begin_with_one_table_and_pairs_follow_where_they_are_asked_for(
    made, command
):
    low = [0.1 + 0.01 * number for number in range(12)]
    high = [value + 0.3 + (0.05 if number % 2 else -0.05) for number, value in enumerate(low)]
    near = [value + (0.2 if number % 2 else -0.2) for number, value in enumerate(high)]
    paths = [
        made("low", {"nDCG@10": low}),
        made("high", {"nDCG@10": high}, {"parameters": {"hops": 2}}),
        made("near", {"nDCG@10": near}, {"parameters": {"hops": 3}}),
    ]
    printed = command(*paths).out
    rows = re.findall(r"^ (multihop over bm25, hops=\d) +(\d\.\d+) ?([*=]?)$", printed, re.M)
    assert [(name, mark) for name, _, mark in rows] == [
        ("multihop over bm25, hops=4", ""),
        ("multihop over bm25, hops=2", "*"),
        ("multihop over bm25, hops=3", "="),
    ]
    assert "queries that moved most in" not in printed and "--pairs prints" in printed
    assert re.search(r"^ multihop over bm25, hops=2 \(run 1\) .* better$", printed, re.M)
    in_pairs = command(*paths, "--pairs").out
    assert in_pairs.index("multihop over bm25, hops=2") < in_pairs.index("\nagainst baseline")
    assert "queries that moved most in" in in_pairs and "--pairs prints" not in in_pairs
    assert re.search(r"\*\*0\.\d{4} \\\*\*\*", command(*paths, "--markdown").out)
