"""The main job as a user meets it: what it prints, what it leaves behind, and what survives."""

import csv
import io
import json
import re
import shutil
import signal
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import pytest
import pytrec_eval

from sextant import environments
from sextant.evals import run as command_line
from sextant.evals import run_folder, score
from sextant.tools.errors import DataError, RunConflict
from sextant.tools.platform import interrupts
from sextant.tools.platform.cli import CommandParser, run_command
from sextant.tools.records import Query, Submission, Trace

ROOT = Path(__file__).parents[4]
MULTIHOP = ("--program", "multihop", "--task", "congress", "--split", "dev")
RETRIEVE = ("--program", "retrieve", "--task", "congress", "--split", "dev")


class Finished(NamedTuple):
    path: Path
    out: str
    err: str


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A run of MULTIHOP, as a person sees it; its folder is not to be changed."""
    place, out, err = tmp_path_factory.mktemp("shared"), io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setenv("SEXTANT_HOME", str(place / "home"))
        words = [*MULTIHOP, "--data", "mini", "--runs", str(place / "runs")]
        assert run_command(command_line.parser(), command_line.command, words) == 0
    [path] = (place / "runs").glob("*/*")
    return Finished(path, out.getvalue(), err.getvalue())


@pytest.fixture
def finished(shared, tmp_path):
    """A copy of that run, where `run(*MULTIHOP)` finds it."""
    path = tmp_path / "runs" / shared.path.parent.name / shared.path.name
    shutil.copytree(shared.path, path)
    return path


def test_a_run_prints_its_table_and_leaves_its_folder(shared):
    words = (
        "obliq/congress",
        "mini",
        "multihop over bm25",
        "no language model",
        "nDCG@10",
        "R@1000",
        "12 queries",
    )
    for expected in words:
        assert expected in shared.out
    assert (
        "12/12 queries" in shared.err
        and "nDCG@10" in shared.err
        and f"run: {shared.path}\n" in shared.out
    )
    files = {"config.json", "outcomes.jsonl", "run.trec", "scores.json", "scores.csv"}
    assert {file.name for file in shared.path.iterdir()} >= files
    assert shared.path.parent.name == "obliq-congress" and shared.path.name.startswith(
        "multihop-offline-"
    )


def test_the_same_command_again_runs_nothing_and_json_is_one_object_and_nothing_else(run, finished):
    before = (finished / "outcomes.jsonl").read_bytes()
    result, again = run(*MULTIHOP, "--json"), run(*MULTIHOP, "--json")
    assert (
        result.err == ""
        and result.out.count("\n") == 1
        and (finished / "outcomes.jsonl").read_bytes() == before
    )
    assert result.json | {"seconds": 0} == again.json | {"seconds": 0} and result.json[
        "run"
    ] == str(finished)
    assert (result.json["task"], result.json["data"], result.json["split"]) == (
        "obliq/congress",
        "mini",
        "dev",
    )
    assert (result.json["queries"], result.json["failed"], result.json["owed"]) == (12, 0, 0)
    assert result.json["usage"]["calls"] > 0 and result.json["usage"]["paid_usd"] == 0
    for value in result.json["metrics"].values():
        assert 0 <= value["low"] <= value["mean"] <= value["high"] <= 1


def test_the_scores_are_what_pytrec_eval_makes_of_the_run_file(shared):
    with (shared.path / "run.trec").open() as file:
        ranked = pytrec_eval.parse_run(file)
    graded = environments.load("congress", "mini", "dev").qrels
    qrels = {
        q: {doc_id: int(grade) for doc_id, grade in grades.items()} for q, grades in graded.items()
    }
    values = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut.10,50", "recall.10,100"}).evaluate(
        ranked
    )
    metrics = json.loads((shared.path / "scores.json").read_bytes())["metrics"]
    theirs = {
        "nDCG@10": "ndcg_cut_10",
        "nDCG@50": "ndcg_cut_50",
        "R@10": "recall_10",
        "R@100": "recall_100",
    }
    for name, measure in theirs.items():
        mean = sum(value[measure] for value in values.values()) / len(qrels)
        assert metrics[name]["mean"] == pytest.approx(mean, abs=1e-9)
    with (shared.path / "scores.csv").open() as file:
        for row in csv.DictReader(file):
            assert float(row["nDCG@10"]) == pytest.approx(
                values[row["query_id"]]["ndcg_cut_10"], abs=1e-9
            )


def test_another_configuration_gets_another_folder(run):
    others = [(), ("-P", "hops=1"), ("--k", 5), ("--retriever", "rank_bm25")]
    assert len({run(*MULTIHOP, "--limit", 1, *more, "--json").json["run"] for more in others}) == 4


def test_a_parameter_reaches_the_program(run):
    path = Path(
        run(*MULTIHOP, "-P", "hops=2", "-P", "per_hop=3", "--limit", 2, "--json").json["run"]
    )
    config = run_folder.read_config(path)
    own = {"hops": 2, "per_hop": 3, "read_chars": 0, "rerank": 0}
    assert config["parameters"] == own | {"lens": "recollection"}, "the lens is the task's own"
    for outcome in run_folder.read_outcomes(path).values():
        searches = [step for step in outcome["trace"]["steps"] if step["tool"] == "search"]
        assert [len(step["doc_ids"]) for step in searches] == [3, 3]


def test_scoring_again_needs_the_run_folder_alone_and_gives_the_same(finished, capsys):
    before = (finished / "scores.json").read_bytes()
    (finished / "scores.json").unlink()
    assert run_command(score.parser(), score.command, [str(finished), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"] == json.loads(before)["metrics"]
    assert (finished / "scores.json").read_bytes() == before


def test_a_run_on_a_folder_is_scored_again_from_anywhere_even_after_the_folder_moved(
    run, folder, tmp_path, monkeypatch
):
    arguments = (
        "--program",
        "retrieve",
        "--task",
        "congress",
        "--split",
        "all",
        "--json",
        "--runs",
        tmp_path / "runs",
    )
    monkeypatch.chdir(folder.parent)
    first = run(*arguments, "--data", folder.name).json
    monkeypatch.chdir("/")
    assert run_command(score.parser(), score.command, [first["run"]]) == 0
    folder.rename(tmp_path / "moved")
    assert run_command(score.parser(), score.command, [first["run"]]) == 3
    assert run(*arguments, "--data", tmp_path / "moved").json["run"] == first["run"], (
        "the data is the same"
    )
    assert run_command(score.parser(), score.command, [first["run"]]) == 0


WRITING = ("--program", "retrieve", "--task", "writing", "--split", "all", "--json", "--pool")
KNOWN = frozenset(environments.load("writing", "mini", "all").documents)
HANDED_IN = {  # what is wrong with a submission -> its documents for a query, and how it is otherwise
    "not a Submission": (None, {}),
    "is there twice": (lambda query: [min(query.candidates)] * 2, {}),
    "is not in the corpus": (lambda query: ["d1"], {}),
    "is excluded for query": (lambda query: query.excluded, {}),
    "is not in the pool of query": (lambda query: KNOWN - query.excluded, {}),
    "the trace is of query 'other'": (lambda query: [], {"trace": Trace("other")}),
    "answer should be a valid string": (lambda query: [], {"answer": object()}),
}


@pytest.mark.parametrize("why", HANDED_IN)
def test_what_cannot_be_scored_or_written_or_is_not_of_its_query_is_a_fault_of_the_system(
    why, run, monkeypatch
):
    def forward(self, query):
        return named and Submission(tuple(named(query)), **{"trace": Trace(query.query_id), **more})

    named, more = HANDED_IN[why]
    monkeypatch.setattr("sextant.programs.retrieve.Retrieve.forward", forward)
    result = run(*WRITING, "union:5", "--limit", 2)
    assert result.code == 7 and (result.json["failed"], result.json["owed"]) == (2, 0)
    outcomes = run_folder.read_outcomes(Path(result.json["run"])).values()
    assert all(why in outcome["error"] for outcome in outcomes)


def test_a_program_that_makes_a_query_of_its_own_keeps_the_mask_and_the_pool_of_the_one_asked(
    run, monkeypatch
):
    from sextant.programs.retrieve import Retrieve

    honest, forward = run(*WRITING, "union:20", "--limit", 3, "--k", 50).json, Retrieve.forward
    monkeypatch.setattr(
        Retrieve, "forward", lambda self, query: forward(self, Query(query.query_id, query.text))
    )
    result = run(*WRITING, "union:20", "--limit", 3).json
    assert result["failed"] == 0 and result["metrics"]["R@100"] == honest["metrics"]["R@100"]
    masked = {
        query.query_id: query.excluded
        for query in environments.load("writing", "mini", "all").queries
    }
    for query_id, outcome in run_folder.read_outcomes(Path(result["run"])).items():
        assert len(outcome["ranking"]) == 20 and masked[query_id].isdisjoint(outcome["ranking"])
    monkeypatch.setattr(
        Retrieve, "forward", lambda self, query: forward(self, Query("another", query.text))
    )
    assert run(*WRITING, "union:20", "--k", 60, "--limit", 2).json["failed"] == 2, (
        "whose mask would it have?"
    )


def test_a_limit_asks_the_first_queries_and_an_id_asks_that_one_once(run):
    assert run(*RETRIEVE, "--limit", 2, "--json").json["queries"] == 2
    some = environments.load("congress", "mini", "dev").queries[3].query_id
    one = run(*RETRIEVE, "--query-id", some, "--query-id", some, "--json").json
    assert one["queries"] == 1
    assert one["metrics"]["nDCG@10"]["low"] is None, "one query has no interval"


def test_a_pattern_runs_each_of_its_tasks_on_one_budget_and_none_that_fails_stops_the_others(
    run, tmp_path
):
    words = ("--program", "retrieve", "--data", "mini", "--limit", 2)
    suite = [task for task in environments.tasks() if task.startswith("obliq/")]
    several = run(*words, "--task", "obliq/*", "--json")
    assert several.code == 0 and [one["task"] for one in several.json["runs"]] == suite
    assert len({one["run"] for one in several.json["runs"]}) == len(suite)
    alone = run(*words, "--task", suite[0], "--json").json
    assert alone | {"seconds": 0} == several.json["runs"][0] | {"seconds": 0}, (
        "the same run as by itself"
    )
    ahead = run(*words, "--task", "obliq/*", "--dry-run", "--json").json["runs"]
    assert [one["answered"] for one in ahead] == [2] * len(suite)

    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "corpus.jsonl").write_text("no JSON")
    (broken / "queries.jsonl").write_text("no JSON")
    tables = run(
        "--program", "retrieve", "--limit", 2, "--task", f"{broken},congress,obliq/congress,math"
    )
    assert (
        tables.code == 3
        and tables.out.count("nDCG@10") >= 2
        and "1 of 3 tasks did not finish" in tables.err
    )
    shared = run(
        "--program",
        "multihop",
        "--limit",
        2,
        "--task",
        "congress,math",
        "--budget-calls",
        3,
        "--json",
    )
    assert shared.code == 8 and all("error" in one for one in shared.json["runs"])
    assert sum(one["usage"]["calls"] for one in shared.json["runs"]) <= 3
    unknown = run(*words, "--task", "congress,obliqq/*")
    assert (
        unknown.code == 2
        and unknown.err.count("\n") == 1
        and "obliqq/*" in unknown.err
        and not unknown.out
    )


WRONG = {
    "a misspelt task": (("--program", "retrieve", "--task", "congres"), 2, "did you mean 'congress'"),
    "a misspelt program": (("--program", "multihopp", "--task", "congress"), 2, "did you mean 'multihop'"),
    "a misspelt retriever": ((*RETRIEVE, "--retriever", "bm52"), 2, "did you mean 'bm25'"),
    "a misspelt parameter": ((*MULTIHOP, "-P", "hop=3"), 2, "called 'hop'; did you mean 'hops'"),
    "a misspelt option": ((*RETRIEVE, "--limt", "3"), 2, "--limt"),
    "a parameter in words": ((*MULTIHOP, "-P", "hops=many"), 2, "has to be a whole number"),
    "a parameter below its range": ((*MULTIHOP, "-P", "hops=0"), 2, "hops of at least 1"),
    "limit 0": ((*RETRIEVE, "--limit", "0"), 2, "'0' is not a whole number of at least 1"),
    "a budget of nothing": ((*RETRIEVE, "--budget-usd", "0"), 2, "not an amount above 0"),
    "no program": (("--task", "congress"), 2, "--program"),
    "no task": (("--program", "retrieve"), 2, "--task is missing"),
    "an empty pool": ((*RETRIEVE, "--pool", ""), 2, "has nothing where"),
    "an unknown query": ((*RETRIEVE, "--query-id", "MINI-q99"), 2, "'MINI-q99'"),
    "data that is not there": ((*RETRIEVE, "--data", "full"), 3, "use --data mini"),
    "a folder that is not there": ((*RETRIEVE, "--data", "nowhere"), 3, "'nowhere' is not a folder"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_bad_input_gets_one_line_that_helps_and_its_exit_code(case, run):
    arguments, code, message = WRONG[case]
    result = run(*arguments)
    assert (result.code, result.out) == (code, "")
    assert result.err.startswith("error: ") and result.err.count("\n") == 1
    assert message in result.err


def test_a_run_folder_of_another_configuration_is_refused_with_the_keys(run, finished):
    config = json.loads((finished / "config.json").read_text())
    (finished / "config.json").write_text(json.dumps(config | {"depth": 7, "split": "test"}))
    result = run(*MULTIHOP)
    assert result.code == 2 and "another depth, split" in result.err


def test_a_folder_is_one_process_own(run, finished):
    with run_folder.claim(finished, run_folder.read_config(finished)):
        result = run(*MULTIHOP)
    assert result.code == 2 and "another process is running" in result.err
    with pytest.raises(RunConflict), run_folder.claim(finished, {"task": "x", "provenance": {}}):
        pass


@pytest.mark.parametrize("error", [DataError("cannot be loaded"), OSError(5, "?")])
def test_an_error_that_comes_of_an_interrupt_is_an_interrupt(error, monkeypatch, capsys):
    def broken(arguments):
        interrupts.handle_signal(signal.SIGINT, None)
        raise error

    monkeypatch.setattr(interrupts, "_signals", [])
    assert run_command(CommandParser(), broken, []) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_a_torn_last_line_is_a_pending_query_and_a_damaged_one_is_named(run, finished):
    path, metrics = (
        finished / "outcomes.jsonl",
        json.loads((finished / "scores.json").read_bytes())["metrics"],
    )
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]) + lines[-1][:100])
    assert run(*MULTIHOP, "--json").json["metrics"] == metrics
    assert len(path.read_bytes().splitlines()) == 12
    path.write_bytes(b'{"query_id": \n' + b"".join(lines))
    result = run(*MULTIHOP)
    assert result.code == 3 and "outcomes.jsonl, line 1 is damaged" in result.err


def test_scoring_an_unfinished_run_is_refused(finished, capsys):
    outcomes = finished / "outcomes.jsonl"
    outcomes.write_bytes(b"".join(outcomes.read_bytes().splitlines(keepends=True)[:5]))
    assert run_command(score.parser(), score.command, [str(finished)]) == 7
    assert "7 of 12 queries" in capsys.readouterr().err


def test_scoring_against_changed_data_is_refused(run, folder, capsys):
    path = run(
        "--program", "retrieve", "--task", "congress", "--data", folder, "--split", "all", "--json"
    ).json["run"]
    corpus = folder / "tip-of-tongue/congress/corpus/corpus.jsonl"
    corpus.write_text(corpus.read_text().replace("ferry", "boat"))
    assert run_command(score.parser(), score.command, [path]) == 3
    assert "is not what the run was made with" in capsys.readouterr().err


def test_a_crash_of_the_program_is_an_outcome_with_its_trace(run, monkeypatch):
    from sextant.tools.session import Session

    def broken(self, text):
        raise ZeroDivisionError("oh no\x1b[31m")

    monkeypatch.setattr(Session, "note", broken)
    stopped = run(*MULTIHOP)
    # Outcomes that are ready together are looked at together, so it may be a few more than five.
    assert stopped.code == 7
    ended = re.search(r"(\d+) of \1 queries ended alike: ZeroDivisionError: oh no", stopped.err)
    assert ended and int(ended[1]) >= 5
    result = run(*MULTIHOP)
    assert result.code == 7 and "failed: 12 queries, first MINI-q" in result.out
    assert (
        "(test_run.py, line " in result.out and "\x1b" not in stopped.err + result.out + result.err
    )
    [path] = [
        Path(line.removeprefix("run: "))
        for line in result.out.splitlines()
        if line.startswith("run: ")
    ]
    for outcome in run_folder.read_outcomes(path).values():
        assert (
            outcome["error"].startswith("ZeroDivisionError: oh no")
            and "Traceback" in outcome["traceback"]
        )
        assert [step["tool"] for step in outcome["trace"]["steps"]][-3:] == [
            "select",
            "drop",
            "stop",
        ]
        assert outcome["usage"]["calls"] == 2


def test_a_server_that_answers_wrongly_in_mid_run_leaves_what_was_answered_and_says_how_to_go_on(
    run, server
):
    retriever, asked = f"api:{server.spec}", len(environments.load("congress", "mini").documents)
    embed, texts = server.embed, []

    def narrower(batch):
        texts.extend(batch)
        return embed(batch)[:, : 24 if len(texts) < asked + 5 else 23]

    server.embed = narrower
    result = run(*RETRIEVE, "--retriever", retriever, "--json", "--max-concurrent", 1)
    assert result.code == 3 and 0 < result.json["owed"] < 12
    assert "the same command goes on" in result.err and result.err.count("\n") == 1
    server.embed = embed
    again = run(*RETRIEVE, "--retriever", retriever, "--json")
    assert again.code == 0 and again.json["owed"] == 0


def test_what_a_program_refuses_is_said_before_an_index_is_built(run, tmp_path):
    arguments = ("--program", "reason", "--task", "congress", "-P", "read_chars=-5")
    assert "read_chars of at least 0" in run(*arguments).err
    assert (
        "promote below batch"
        in run("--program", "tournament", "--task", "congress", "-P", "promote=20").err
    )
    place = tmp_path / "a file"
    place.write_text("")
    refused = run("--program", "retrieve", "--task", "congress", "--runs", place)
    assert refused.code == 2 and "choose --runs" in refused.err and refused.err.count("\n") == 1
    assert not (tmp_path / "home" / "indexes").exists()
