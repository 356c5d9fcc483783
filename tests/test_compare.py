"""Comparing runs: the numbers against SciPy on what scores.csv has, what is refused, what is said."""

import csv
import json
import subprocess
import sys
import time

import numpy as np
import pytest
from conftest import Result
from scipy import stats as scipy_stats

from evals import compare as module
from evals.compare import compare
from tools.command import run_command
from tools.errors import DataError, RunIncomplete, UnknownName, UsageError


@pytest.fixture
def command(capsys):
    """`python -m evals.compare ARGUMENTS`, in this process."""

    def given(*arguments: object) -> Result:
        capsys.readouterr()
        code = run_command(module.parser(), module.command, [str(argument) for argument in arguments])
        return Result(code, *capsys.readouterr())

    return given


CONFIG = {
    "task": "obliq/congress",
    "data": "mini",
    "data_fingerprint": "0123456789abcdef",
    "split": "test",
    "asked": {"limit": None, "query_ids": []},
    "instruction": "task",
    "depth": 1000,
    "max_p": False,
    "pool": None,
    "program": "multihop",
    "parameters": {"hops": 4},
    "compiled": None,
    "retriever": {"name": "bm25", "with": "bm25(k1=0.9,b=0.4)"},
    "lm": {"name": "offline", "model": "offline/1"},
    "provenance": {"data": "mini", "folder": None, "judgements": "gold"},
}
USAGE = {"calls": 12, "repairs": 0, "input_tokens": 600, "output_tokens": 30, "paid_usd": 0.0, "list_usd": 0.06}


@pytest.fixture
def made(tmp_path):
    """A scored run folder: `columns` are metric -> values in the order of the queries; None is an empty cell."""

    def make(name, columns, config=None, **scores):
        path = tmp_path / name
        path.mkdir()
        many = len(next(iter(columns.values())))
        ids = [f"q{number}" for number in range(many)]
        (path / "config.json").write_text(json.dumps(CONFIG | (config or {})))
        table = [["query_id", *columns, "error"]]
        for place, query_id in enumerate(ids):
            cells = [column[place] for column in columns.values()]
            table.append([query_id, *("" if cell is None else repr(cell) for cell in cells), ""])
        with (path / "scores.csv").open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(table)
        known = {"data": "mini", "judgements": "gold", "program": "multihop", "retriever": "bm25", "lm": "offline"}
        rest = {"queries": many, "failed": 0, "usage": USAGE, "metrics": {name: {} for name in columns}}
        (path / "scores.json").write_text(json.dumps(known | rest | scores))
        (path / "outcomes.jsonl").write_text("")
        return path

    return make


def column(path, metric) -> list[float]:
    with (path / "scores.csv").open(newline="") as file:
        return [float(row[metric]) for row in csv.DictReader(file)]


def test_two_runs_compare_as_scipy_compares_their_tables(run, command, tmp_path):
    folders = []
    for program in ("retrieve", "multihop"):
        assert run("--program", program, "--task", "congress", "--json").code == 0
        folders += list((tmp_path / "runs/obliq-congress").glob(f"{program}-*"))
    result = command(*folders, "--json").json
    assert result["task"] == "obliq/congress" and result["split"] == "test" and result["forced"] == []
    assert result["baseline"] == str(folders[0]) and result["runs"] == [str(folders[1])]
    assert [row["metric"] for row in result["comparisons"]][:2] == ["nDCG@10", "nDCG@50"]
    ps = []
    for row in result["comparisons"]:
        before, after = (np.array(column(folder, row["metric"])) for folder in folders)
        assert (row["baseline_mean"], row["mean"]) == pytest.approx((before.mean(), after.mean()))
        difference = (after - before).round(14)
        assert (row["wins"], row["losses"]) == ((difference > 0).sum(), (difference < 0).sum())
        moved = difference[difference != 0]
        ps.append(1.0)
        if len(moved):  # a query that did not move has no sign; SciPy would spend its assignments on it
            theirs = scipy_stats.permutation_test((moved,), np.sum, permutation_type="samples", n_resamples=np.inf)
            ps[-1] = theirs.pvalue
        assert row["p"] == pytest.approx(ps[-1], abs=1e-9)
    order = np.argsort(ps, kind="stable")
    by_hand = np.minimum(1, np.maximum.accumulate(np.array(ps)[order] * np.arange(len(ps), 0, -1)))
    assert [result["comparisons"][place]["p_holm"] for place in order] == pytest.approx(by_hand.tolist())
    printed = command(*folders)
    assert printed.code == 0 and "mini: bundled" in printed.out and "offline, no language model" in printed.out
    assert "program multihop (was retrieve)" in printed.out
    assert "Holm: adjusted for all 7 comparisons" in printed.out


def test_identical_runs_do_not_differ_and_it_says_so(made, command):
    a, b = made("a", {"nDCG@10": [0.1, 0.5]}), made("b", {"nDCG@10": [0.1, 0.5]})
    for other in (b, a):
        result = compare([a, other])
        assert [(row["difference"], row["p"], row["ties"]) for row in result["comparisons"]] == [(0.0, 1.0, 2)]
        assert result["moved"] == [] and "no difference" in result["notes"][0]
        printed = command(a, other).out
        assert "no difference" in printed and "the same configuration" in printed


def test_only_queries_with_the_metric_in_both_runs_are_paired(made):
    a = made("a", {"R@10": [None, 0.5, 0.25, 0.0]})
    b = made("b", {"R@10": [1.0, 1.0, None, 0.5]})
    [row] = compare([a, b])["comparisons"]
    assert (row["queries"], row["baseline_mean"], row["mean"], row["wins"]) == (2, 0.25, 0.75, 2)


def test_a_metric_that_no_query_has_is_undefined_and_corrects_nothing(made, command):
    columns = {"nDCG@10": [0.1] * 8, "R@10": [None] * 8}
    a, b = made("a", columns), made("b", columns | {"nDCG@10": [0.2] * 8})
    first, second = compare([a, b])["comparisons"]
    assert first["p"] == first["p_holm"] == 2 / 2**8
    assert second["queries"] == 0 and second["p"] is second["p_holm"] is second["mean"] is None
    assert "undefined" in command(a, b).out


def test_holm_is_over_all_metrics_of_all_runs(made):
    generator = np.random.default_rng(1)
    a = made("a", {"nDCG@10": [0.0] * 10, "R@10": [0.0] * 10})
    others = [made(name, {m: generator.random(10).tolist() for m in ("nDCG@10", "R@10")}) for name in "bcd"]
    result = compare([a, *others])
    assert len(result["comparisons"]) == 6
    assert {row["p"] for row in result["comparisons"]} == {2 / 2**10}
    assert {row["p_holm"] for row in result["comparisons"]} == {6 * 2 / 2**10}
    assert {row["p_holm"] for row in compare([a, *others], ["R@10"])["comparisons"]} == {3 * 2 / 2**10}


def test_metrics_can_be_chosen_and_a_misspelt_one_is_named(made, command):
    a, b = (made(name, {"nDCG@10": [0.1], "R@10": [0.5]}) for name in "ab")
    assert [row["metric"] for row in compare([a, b], ["R@10"])["comparisons"]] == ["R@10"]
    assert compare([a, b], ["R@10"])["metric"] == "R@10" and compare([a, b])["metric"] == "nDCG@10"
    with pytest.raises(UnknownName, match=r"nDCG@10"):
        compare([a, b], ["nDGC@10"])
    assert command(a, b, "--metric", "nDGC@10").code == 2


@pytest.mark.parametrize(
    ("changed", "key", "value"),
    [
        ({"task": "obliq/math"}, "task", "obliq/math"),
        ({"data_fingerprint": "fff"}, "data_fingerprint", "fff"),
        ({"split": "dev"}, "split", "dev"),
        ({"asked": {"limit": 3, "query_ids": []}}, "asked", '"limit": 3'),
        ({"instruction": "none"}, "instruction", "none"),
        ({"max_p": True}, "max_p", "true"),
        ({"depth": 50}, "depth", "50"),
        ({"pool": {"kind": "oracle", "size": 300, "of": ["bm25"]}}, "pool", "oracle"),
    ],
)
def test_runs_that_were_not_asked_the_same_are_refused_unless_forced(made, command, changed, key, value):
    a, b = made("a", {"nDCG@10": [0.1, 0.2]}), made("b", {"nDCG@10": [0.2, 0.2]}, changed)
    refused = command(a, b)
    assert refused.code == 2 and refused.out == "" and len(refused.err.splitlines()) == 1
    assert f"{key} (" in refused.err and value in refused.err and "--force" in refused.err
    assert compare([a, b], force=True)["forced"] == [key]
    printed = command(a, b, "--force").out
    assert f"forced: {a} and {b} were not asked the same: {key} (" in printed


def test_other_judgements_are_another_contract(made):
    a, b = made("a", {"nDCG@10": [0.1]}), made("b", {"nDCG@10": [0.1]}, judgements="pooled")
    with pytest.raises(UsageError, match=r"judgements \(gold, pooled\)"):
        compare([a, b])
    assert compare([a, b], force=True)["forced"] == ["judgements"]


def test_what_is_compared_is_no_contract(made, command):
    program = {"digest": "12ab34cd", "optimizer": "gepa"}
    changed = {"parameters": {"hops": 2}, "compiled": program, "lm": {"name": "openai/x", "model": "openai/x"}}
    a, b = made("a", {"nDCG@10": [0.1]}), made("b", {"nDCG@10": [0.1]}, changed, lm="openai/x")
    keys = compare([a, b])["differences"][0]["keys"]
    assert keys["compiled"] == [None, program] and keys["parameters.hops"] == [4, 2]
    printed = command(a, b).out
    assert "compiled gepa 12ab34cd (was none), parameters.hops 2 (was 4), lm.model openai/x (was offline/1)" in printed


def test_queries_that_only_one_run_has_are_refused_unless_forced(made):
    a, b = made("a", {"nDCG@10": [0.1, 0.2, 0.3]}), made("b", {"nDCG@10": [0.2, 0.3]})
    with pytest.raises(UsageError, match=r"queries \(3, 2, 2 in common\)"):
        compare([a, b])
    result = compare([a, b], force=True)
    assert result["forced"] == ["queries"] and result["comparisons"][0]["queries"] == 2
    assert "2 in common" in result["notes"][0]


def test_runs_without_a_common_query_cannot_be_forced(made):
    a, b = made("a", {"nDCG@10": [0.1]}), made("b", {"nDCG@10": [0.1]})
    table = b / "scores.csv"
    table.write_text(table.read_text().replace("q0", "other"))
    with pytest.raises(UsageError, match="without a common query"):
        compare([a, b], force=True)


def test_runs_with_other_metrics_are_compared_in_those_that_both_have(made):
    a = made("a", {"nDCG@10": [0.1, 0.2], "R@5": [0.0, 1.0]})
    b = made("b", {"R@5": [1.0, 1.0], "R@20": [1.0, 1.0]}, {"split": "dev"})
    c = made("c", {"P@10": [1.0, 1.0]})
    result = compare([a, b], force=True)
    assert [row["metric"] for row in result["comparisons"]] == ["R@5"] == [row["metric"] for row in result["moved"]]
    with pytest.raises(UsageError, match="no metric in common"):
        compare([a, c], force=True)


def test_the_queries_that_moved_most_come_with_both_values(made):
    generator = np.random.default_rng(3)
    before, after = generator.random(40).tolist(), generator.random(40).tolist()
    a, b = made("a", {"nDCG@10": before, "R@10": before}), made("b", {"nDCG@10": after, "R@10": after})
    moved = compare([a, b])["moved"]
    order = sorted(range(40), key=lambda place: after[place] - before[place])
    assert [row["query_id"] for row in moved] == [f"q{n}" for n in [*order[:-6:-1], *order[:5]]]
    for row in moved:
        place = int(row["query_id"][1:])
        assert (row["metric"], row["baseline"], row["value"]) == ("nDCG@10", before[place], after[place])


def test_cost_is_per_query_and_an_unknown_price_stays_unknown(made, command):
    a = made("a", {"nDCG@10": [0.1, 0.2, 0.3]})
    b = made("b", {"nDCG@10": [0.1, 0.2, 0.4]}, usage=USAGE | {"paid_usd": None, "list_usd": None}, failed=2)
    first, second = compare([a, b])["cost"]
    assert (first["calls_per_query"], first["input_tokens_per_query"]) == (4, 200)
    assert (first["paid_usd_per_query"], first["list_usd_per_query"]) == (0, pytest.approx(0.02))
    assert second["list_usd_per_query"] is None and second["failed"] == 2
    printed = command(a, b).out
    assert "unknown" in printed and "2 of 3" in printed


def test_few_differences_are_said_to_decide_nothing(made):
    a, b = made("a", {"nDCG@10": [0.0] * 24}), made("b", {"nDCG@10": [0.0] * 19 + [1.0] * 5})
    result = compare([a, b])
    assert result["comparisons"][0]["p"] > 0.05
    assert "fewer than 6 queries differ in nDCG@10" in result["notes"][0]


def test_a_run_without_scores_is_told_how_to_get_them(run, tmp_path, made):
    answered = run("--program", "retrieve", "--task", "congress", "--json").json["run"]
    path = tmp_path / "runs/obliq-congress" / answered.rpartition("/")[2]
    (path / "scores.json").unlink()
    other = made("a", {"nDCG@10": [0.1]})
    with pytest.raises(DataError, match=rf"python -m evals.score {path}"):
        compare([other, path])
    outcomes = (path / "outcomes.jsonl").read_text().splitlines(keepends=True)
    (path / "outcomes.jsonl").write_text("".join(outcomes[:-2]))
    with pytest.raises(RunIncomplete, match="owes 2 of 24 queries"):
        compare([path, other])
    (path / "outcomes.jsonl").write_text("")
    with pytest.raises(RunIncomplete, match="owes 24 of 24"):
        compare([path, other])


def test_a_folder_that_is_no_run_is_named(made, command, tmp_path):
    a = made("a", {"nDCG@10": [0.1]})
    for missing in (tmp_path / "nowhere", tmp_path):
        result = command(a, missing)
        assert result.code == 3 and str(missing) in result.err and result.out == ""


def test_one_run_is_not_enough_and_none_is_named_twice(made, command):
    a, b = made("a", {"nDCG@10": [0.1]}), made("b", {"nDCG@10": [0.1]})
    assert command(a).code == 2
    with pytest.raises(UsageError, match="two or more"):
        compare([a])
    with pytest.raises(UsageError, match="named twice"):
        compare([a, b, b])


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("scores.json", "{"),
        ("scores.json", "[]"),
        ("scores.json", '{"metrics": {"nDCG@10": {}}}'),
        ("scores.csv", ""),
        ("scores.csv", "query_id,nDCG@10,error\nq0,0.5\n"),
        ("scores.csv", "query_id,nDCG@10,error\nq0,nan,\n"),
        ("scores.csv", "query_id,nDCG@10,error\nq0,half,\n"),
        ("scores.csv", "query_id,nDCG@10,error\nq0,0.5,\nq0,0.5,\n"),
        ("scores.csv", "query_id,nDCG@10,error\nq0,0.5,\nq1,0.5,\n"),
        ("scores.csv", "query_id,R@10,error\nq0,0.5,\n"),
        ("scores.csv", "query_id,nDCG@10,error\nq0,\x00,\n"),
        ("config.json", "{}"),
    ],
)
def test_damaged_files_are_named_in_a_line(made, command, name, content):
    a, b = made("a", {"nDCG@10": [0.1]}), made("b", {"nDCG@10": [0.1]})
    (b / name).write_text(content)
    result = command(a, b)
    assert result.code == 3 and len(result.err.splitlines()) == 1 and str(b) in result.err


def test_ids_and_names_from_data_cannot_steer_the_terminal(made, command):
    a, b = made("a", {"nDCG@10": [0.1, 0.2]}), made("b", {"nDCG@10": [0.2, 0.2]})
    for path in (a, b):
        table = path / "scores.csv"
        table.write_text(table.read_text().replace("q0", "[red]\x1b[31m"))
    printed = command(a, b).out
    assert "\x1b" not in printed and "[red]\N{REPLACEMENT CHARACTER}" in printed


def test_ten_thousand_queries_take_seconds(made):
    generator = np.random.default_rng(2)
    folders = [made(name, {m: generator.random(10_000).tolist() for m in ("nDCG@10", "R@10")}) for name in "ab"]
    started = time.process_time()
    assert len(compare(folders)["comparisons"]) == 2
    assert time.process_time() - started < 4  # 1 s on a machine with nothing else to do


def test_help_comes_at_once_and_the_module_is_a_command(made, tmp_path):
    shell = [sys.executable, "-m", "evals.compare"]
    started = time.monotonic()
    helped = subprocess.run([*shell, "--help"], capture_output=True, text=True, check=True)
    assert "--metric" in helped.stdout and time.monotonic() - started < 2  # 0.2 s on a machine with nothing else to do
    a, b = made("a", {"nDCG@10": [0.1]}), made("b", {"nDCG@10": [0.2]})
    done = subprocess.run([*shell, a, b, "--json"], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == compare([a, b])
