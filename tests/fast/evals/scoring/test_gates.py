"""`sextant compare --fail-if`: what passes, what fails, what is refused, and what is said of it."""

import pytest
import run_folders

from sextant.evals import compare as module

BEFORE = {"nDCG@10": [0.5] * 12, "R@100": [0.5] * 12}
AFTER = {"nDCG@10": [0.4] * 12, "R@100": [0.7, *[0.45] * 7, *[0.5] * 4]}


@pytest.fixture
def compared(tmp_path, command_of):
    """`sextant compare BASE NEW ARGUMENTS`, in this process."""
    folders = (
        run_folders.make(tmp_path / "base", BEFORE),
        run_folders.make(tmp_path / "new", AFTER, {"parameters": {"hops": 5}}),
    )
    command = command_of(module)
    return lambda *words: command(*folders, *words)


@pytest.mark.parametrize(
    ("option", "gate", "code"),
    [
        ("--fail-if", "nDCG@10 < -0.02", 1),
        ("--fail-if", "nDCG@10<-.2", 0),
        ("--fail-if", "nDCG@10 < -0.1", 0),  # equal is not below
        ("--fail-if", "nDCG@10 > -1e-1", 0),
        ("--fail-if", "nDCG@10 > -0.2", 1),
        ("--fail-if", "mrr@10 < 0", 2),
        ("--fail-if-sure", "nDCG@10 < -0.02", 1),
        ("--fail-if", "R@100 < -0.001", 1),
        ("--fail-if-sure", "R@100 < -0.001", 0),  # the interval reaches above it
        ("--fail-if-sure", "R@100 > -0.001", 0),
    ],
)
def test_a_gate_decides_the_exit_code(compared, option, gate, code):
    given = compared(option, gate)
    assert given.code == code, given.err


def test_a_gate_is_told_in_a_line_and_as_data(compared):
    gates = ("--fail-if", "nDCG@10 < -0.02", "--fail-if-sure", "R@100 < -0.001")
    given = compared(*gates)
    first, second = [line for line in given.out.splitlines() if ": gate " in line]
    assert "(run 1): gate nDCG@10 failed: difference -0.1000, interval -0.1000 to " in first
    assert first.endswith("; it fails if the difference is < -0.02")
    assert "(run 1): gate R@100 passed: difference -0.0125, interval -" in second
    assert second.endswith("; it fails if the upper end is < -0.001")
    assert given.err.splitlines()[-1] == "error: 1 gate failed: nDCG@10"
    result = compared(*gates, "--json")
    assert result.code == 1
    rows = result.json["gates"]
    assert [(row["metric"], row["by"], row["passed"]) for row in rows] == [
        ("nDCG@10", "difference", False),
        ("R@100", "high", True),
    ]
    tested = {row["metric"]: row for row in result.json["comparisons"]}
    assert all(row["high"] == tested[row["metric"]]["high"] for row in rows)
    assert "gate nDCG@10 failed" in compared(*gates, "--markdown").out


def test_without_an_interval_nothing_is_sure(tmp_path, command_of):
    base = run_folders.make(tmp_path / "base", {"nDCG@10": [1.0, 1.0]})
    new = run_folders.make(tmp_path / "new", {"nDCG@10": [0.0, 0.0]}, run_folders.retrieve())
    command = command_of(module)
    sure = command(base, new, "--fail-if-sure", "nDCG@10 < -0.5")
    assert sure.code == 0 and "no interval as too few queries differ" in sure.out
    assert command(base, new, "--fail-if", "nDCG@10 < -0.5").code == 1


def test_each_run_has_to_pass(tmp_path, command_of):
    folders = [
        run_folders.make(tmp_path / name, {"nDCG@10": [value] * 8}, {"parameters": {"hops": hops}})
        for hops, (name, value) in enumerate({"base": 0.5, "good": 0.6, "bad": 0.1}.items())
    ]
    given = command_of(module)(*folders, "--fail-if", "nDCG@10 < 0")
    assert given.code == 1 and "1 gate failed: nDCG@10" in given.err
    lines = [line for line in given.out.splitlines() if ": gate nDCG@10 " in line]
    assert ["(run 1): gate nDCG@10 passed" in lines[0], "(run 2): gate nDCG@10 failed" in lines[1]]


@pytest.mark.parametrize(
    "gate", ["nDCG@10", "< 3", "x < y", "nDCG@10 < nan", "nDCG@10 < 1.2.3", ""]
)
def test_what_is_no_gate_is_refused_in_a_line(compared, gate):
    given = compared("--fail-if", gate)
    assert given.code == 2 and not given.out
    [line] = given.err.splitlines()
    assert "is no gate; write METRIC < NUMBER" in line


def test_an_unknown_metric_is_answered_with_the_nearest_names(compared):
    given = compared("--fail-if", "nDCG@100 < 0")
    assert given.code == 2 and not given.out
    said = "no metric of this comparison is called 'nDCG@100'; did you mean 'R@100' or 'nDCG@10'?"
    assert given.err == f"error: {said}\n"


def test_a_gate_that_measured_nothing_does_not_pass(tmp_path, command_of):
    columns = {"nDCG@10": [0.5, 0.5], "R@10": [None, None]}
    base = run_folders.make(tmp_path / "base", columns)
    new = run_folders.make(tmp_path / "new", columns, run_folders.retrieve())
    given = command_of(module)(base, new, "--fail-if", "R@10 < 0")
    assert given.code == 2 and "no query has a value in both" in given.err
