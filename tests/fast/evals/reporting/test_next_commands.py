"""After a run, two commands say what to do next, as they are typed."""

import json
import shlex

from sextant.evals.compare import parser as compare_parser
from sextant.evals.gather import parser as gather_parser
from sextant.evals.reporting.next_commands import render_next
from sextant.evals.run import parser as run_parser
from sextant.evals.running.request import Request
from sextant.evals.view import parser as view_parser

PARSERS = {
    "run": run_parser,
    "compare": compare_parser,
    "gather": gather_parser,
    "view": view_parser,
}


def read_commands(err):
    """The commands that stand after "next:", by their purposes."""
    lines = err.partition("next:\n")[2].splitlines()
    return dict(line.strip().split(": ", 1) for line in lines)


def parse(command):
    sextant, name, *words = shlex.split(command)
    assert sextant == "sextant"
    return PARSERS[name]().parse_args(words)


def test_a_first_run_is_followed_by_a_look_and_the_floor(run):
    ended = run("--program", "multihop", "--task", "congress", "--limit", "2")
    commands = read_commands(ended.err)
    assert list(commands) == ["look at it", "run the floor"]
    [folder] = parse(commands["look at it"]).runs
    assert f"run: {folder}" in ended.out
    floor = parse(commands["run the floor"])
    assert (floor.program, floor.task, floor.limit) == ("retrieve", "congress", 2)


def test_a_run_beside_its_floor_is_followed_by_the_comparison_with_it(run):
    words = ("--task", "congress", "--limit", "2")
    floor = run("--program", "retrieve", *words)
    assert "try a program" in read_commands(floor.err)
    ended = run("--program", "multihop", *words)
    compared = parse(read_commands(ended.err)["compare with the floor"])
    assert f"run: {compared.baseline}" in floor.out
    assert f"run: {compared.runs[0]}" in ended.out


def test_the_commands_after_a_run_over_pools_keep_the_pool(run):
    words = ("--task", "congress", "--limit", "2", "--pool", "union:20", "--metric", "P@5")
    run("--program", "retrieve", "--task", "congress", "--limit", "2")
    ended = run("--program", "multihop", *words, "-P", "hops=2")
    commands = read_commands(ended.err)
    # A run over pools is not compared with a floor that searched without one.
    assert list(commands) == ["look at it", "run the floor"]
    floor = parse(commands["run the floor"])
    assert (floor.program, floor.pool, floor.metrics) == ("retrieve", "union:20", ["P@5"])
    assert not floor.parameters


def test_a_shard_is_followed_by_the_command_that_joins_the_shards(run):
    ended = run("--program", "rewrite", "--task", "congress", "--limit", "2", "--shard", "1/2")
    [(_, command)] = read_commands(ended.err).items()
    gathered = parse(command)
    assert f"run: {gathered.run}" in ended.out and "shard-1-of-2" in str(gathered.run)


def test_a_command_that_is_wider_than_the_terminal_stands_whole_in_a_line_of_its_own(run):
    ended = run("--program", "retrieve", "--task", "congress", "--limit", "2", "--json")
    scores = json.loads(ended.out)
    request = Request(program="retrieve", task="congress", limit=2)
    whole = render_next(scores, request)
    for width in (40, 80):
        lines = render_next(scores, request, width)
        assert all(len(line) <= width or line.startswith("    sextant") for line in lines)
        assert "\n".join(lines).split() == "\n".join(whole).split()


def test_json_is_followed_by_nothing(run):
    ended = run("--program", "retrieve", "--task", "congress", "--limit", "2", "--json")
    assert "next:" not in ended.err
