"""The benchmarks run, and compare what they say they compare; their figures are for a quiet machine."""

import json
from statistics import fmean

import pytest

from benchmarks import anytime, calls, data, scale


def test_recombined_corpora_and_queries_depend_on_the_seed_alone(tmp_path):
    first, again = (
        list(data.corpus(20, tmp_path / name, seed=1).texts()) for name in ("first", "again")
    )
    other = list(data.corpus(20, tmp_path / "other", seed=2).texts())
    assert first == again
    assert first != other
    assert 0.5 < sum(map(len, first)) / 20 / data.LENGTH < 2
    queries = data.queries(5, data.SHORT_QUERY)
    assert queries == data.queries(5, data.SHORT_QUERY)
    assert all(0 < len(query) <= data.SHORT_QUERY for query in queries)


def test_the_rule_of_equal_budgets_stands_beside_what_was_handed_in(run, tmp_path):
    means = {}
    for program in ("retrieve", "decompose"):
        made = run("--program", program, "--task", "congress", "--split", "all", "--json").json
        means[program] = made["metrics"]["nDCG@10"]["mean"]
    # A part is left out.
    assert (
        run("--program", "retrieve", "--task", "congress", "--split", "all", "--limit", 2).code == 0
    )
    compared = anytime.by_program([tmp_path / "runs"])
    assert compared.keys() == means.keys()
    for program, rows in compared.items():
        assert len(rows) == 36 and fmean(row.theirs for row in rows) == pytest.approx(
            means[program]
        )
    assert all(
        row.same and row.ours == row.theirs for row in compared["retrieve"]
    )  # one search: nothing to guess
    assert not all(
        row.same for row in compared["decompose"]
    )  # whose sub-queries have weights that no step says


def test_calls_of_a_run_are_counted_beside_as_many_of_a_bare_client(capsys):
    asked = ["--in-flight", "4", "--queries", "6", "--latency", "0.01"]
    assert calls.command(calls.parser().parse_args(asked)) == 0
    table = capsys.readouterr().out.splitlines()
    ours, theirs = (line.split("|") for line in table if line.startswith(("| multihop", "| aio")))
    assert int(ours[2]) == int(theirs[2]) >= 6 * 5  # four searches, and one reading at least
    assert calls.command(calls.parser().parse_args(["--profile", "--queries", "80"])) == 0
    table = capsys.readouterr().out
    assert "| DSPy |" in table and "| prompts and answers |" in table


def test_figures_of_scale_are_measured_at_a_small_size(capsys):
    asked = ["words", "--documents", "3000", "--json"]
    assert scale.command(scale.parser().parse_args(asked)) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    nothing = [row["figure"] for row in rows if not row["measured"] > 0]
    assert all("1 % of documents" in figure for figure in nothing), (
        nothing
    )  # 30 of them may take less than is measured
    assert sum("1 % of documents" in row["figure"] for row in rows) == 2
    assert [row["measured"] for row in rows if "exact formula" in row["figure"]] == [5]
    assert sum("bm25s" in row["note"] for row in rows) == 3
