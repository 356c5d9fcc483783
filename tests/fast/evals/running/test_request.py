"""The request as a value: what it refuses, how a command line makes it, and what Python does with it."""

import subprocess
import sys
from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest

from sextant.evals import Request, evaluate
from sextant.evals.running.evaluate import run_request as run_request
from sextant.optimizers.request import CompileRequest
from sextant.tools.errors import UsageError
from sextant.tools.platform import cli_options
from sextant.tools.platform.cli import CommandParser

OTHERS = {  # a field -> a value that is not its default, where that cannot be guessed
    "program": "command:agent",  # which alone takes --env
    "env": ("TOKEN", "HOST"),
    "task": "congress",
    "parameters": {"hops": "2", "per_hop": "3"},
    "options": {"k": "2"},
    "ranges": {"hops": "1..2"},
    "columns": {"id": "pid"},
    "instruction": "Find all of it.",
    "api": "responses",
    "reasoning_effort": "low",
    "again": "failed",
    "workers": 2,
    "top_p": "0.5",
    "stop": ("a", "b"),
    "structured": "on",
    "stream": "off",
    "extra_body": {"top_k": 20},
    "headers": {"x-team": "TEAM"},
    "budget": "heavy",
    "lm": "openai/gpt",
    "query_ids": ("a", "b"),
    "metrics": ("AP@100", "P@5"),
    "shard": "3/16",
    "of": (Path("a.json"), Path("b.json")),
}
OF_TYPE = {"int": 3, "float": 1.5, "Path": Path("somewhere"), "str": "other", "bool": True}


def other(field):
    if field.name in OTHERS:
        return OTHERS[field.name]
    kind = field.type.__args__[0] if hasattr(field.type, "__args__") else field.type
    return next(value for name, value in OF_TYPE.items() if name in str(kind))


@pytest.mark.parametrize("kind", [Request, CompileRequest])
def test_the_command_line_that_a_request_makes_makes_that_request(kind):
    request = kind(**{"optimizer": "tune"} if kind is CompileRequest else {}, **filled(kind))
    parser = CommandParser()
    cli_options.add_options(parser, kind)
    words = cli_options.to_command_line(request)
    assert cli_options.from_options(kind, vars(parser.parse_args(words))) == request
    least = cli_options.make_request(
        kind,
        {
            name: getattr(request, name)
            for name in ("program", "task", "optimizer")
            if hasattr(request, name)
        },
    )
    assert len(cli_options.to_command_line(least)) == 2 * (2 + (kind is CompileRequest)), (
        "defaults are left out"
    )


def filled(kind):
    return {field.name: other(field) for field in fields(kind) if field.name != "optimizer"}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"limit": 0}, "--limit 0: '0' is not a whole number of at least 1"),
        ({"time_limit": "soon"}, "not a time above 0"),
        ({"api": "telnet"}, "one of chat, responses"),
        ({"seed": "x"}, "--seed"),
        ({"limt": 3}, "did you mean 'limit'"),
        ({"task": None}, "--task is missing; sextant tasks list"),
    ],
)
def test_a_wrong_request_is_a_usage_error_that_names_the_option(given, says):
    with pytest.raises(UsageError, match=says):
        evaluate(**{"program": "multihop", "task": "congress"} | given)


def test_a_request_is_frozen_and_reads_times_as_the_command_line_does():
    request = Request(
        program="retrieve", task="congress", time_limit="30m", runs="somewhere", query_ids=["a"]
    )
    assert (request.time_limit, request.runs, request.query_ids) == (
        1800.0,
        Path("somewhere"),
        ("a",),
    )
    with pytest.raises(FrozenInstanceError):
        request.task = "other"


def test_evaluate_gives_what_the_command_prints_and_prints_nothing(run, tmp_path, capsys):
    printed = run(
        "--program", "multihop", "--task", "congress", "--split", "dev", "-P", "hops=2", "--json"
    ).json
    given = {"split": "dev", "parameters": {"hops": 2}, "runs": tmp_path / "runs"}
    result = evaluate(program="multihop", task="congress", **given)
    assert capsys.readouterr() == ("", "")
    assert result.json() | {"seconds": 0} == printed | {"seconds": 0}
    assert result.metrics["nDCG@10"]._asdict() == printed["metrics"]["nDCG@10"]
    assert (result.failed, result.pending, str(result.folder)) == (0, 0, printed["run"])
    assert result.usage.calls == printed["usage"]["calls"] > 0


def test_queries_that_a_budget_leaves_pending_are_an_error_or_a_result_with_the_problem(tmp_path):
    given = {
        "program": "multihop",
        "task": "congress",
        "budget_calls": 10,
        "runs": tmp_path / "runs",
    }
    result = run_request(Request(**given))
    assert (
        result.pending > 0
        and result.metrics == {}
        and "with a larger budget" in str(result.problem)
    )
    with pytest.raises(type(result.problem)):
        evaluate(**given)


SNIPPET = """
from sextant.evals import evaluate
result = evaluate(program="multihop", task="congress", split="dev")
print(result.metrics["nDCG@10"].mean, result.folder)

from sextant import environments
from sextant.tools import retrievers
from sextant.tools.session import Toolbox
task = environments.load("congress")
toolbox = Toolbox(task.documents, retrievers.build("bm25", task.documents))
session = toolbox.open(task.queries[0])
for hit in session.search("a letter read aloud", 5): print(hit.doc_id)
"""


def test_the_lines_of_python_work_in_a_clean_process(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", SNIPPET], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert len(done.stdout.splitlines()) == 6
