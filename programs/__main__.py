"""`sextant prompts show multihop`: the prompts of a program as a file to edit
(programs/prompts.py).

`sextant prompts draw planner`: the graph of an agent, as Mermaid draws it.
"""

import argparse
import json
from typing import Any

from sextant.evals.running.request import find_program, parse_parameters, resolve_program
from sextant.tools.errors import UsageError
from sextant.tools.platform.cli import CommandParser, add_json_option, print_stdout, run_and_leave
from sextant.tools.platform.cli_options import parse_name_value
from sextant.tools.platform.waiting import announced


def parser() -> CommandParser:
    """Return the command line."""
    command_line = CommandParser(
        prog="sextant prompts", description="The prompts of a program, to edit, or its graph."
    )
    verbs = command_line.add_subparsers(
        dest="verb",
        required=True,
        metavar="show | draw",
    )
    for name, about_verb in (
        ("show", "print the prompts of a program, to edit for sextant run --prompts FILE"),
        ("draw", "print the LangGraph graph of an agent, as Mermaid"),
    ):
        verb = verbs.add_parser(
            name,
            help=about_verb,
            description=about_verb,
        )
        verb.add_argument(
            "program",
            metavar="NAME",
            help="as sextant run takes it",
        )
        verb.add_argument(
            "-P",
            dest="parameters",
            action="append",
            default=[],
            type=parse_name_value,
            metavar="NAME=VALUE",
        )
        add_json_option(verb)
    return command_line


def command(arguments: argparse.Namespace) -> int:
    """Print the prompts, or the graph."""
    resolve_program(arguments.program)  # before what follows is imported
    with announced(f"loading {arguments.program}"):
        from sextant.evals.running.resolve import try_construct  # DSPy: not for --help
        from sextant.programs.prompts import describe, write_toml  # as above

        constructor = find_program(arguments.program)
        program = try_construct(
            constructor,
            parse_parameters(arguments.program, constructor, dict(arguments.parameters)),
        )
    if arguments.verb == "draw":
        graph: Any = getattr(program, "graph", getattr(program, "inner", None))
        if not hasattr(graph, "get_graph"):
            raise UsageError(f"{arguments.program} is no LangGraph graph, and has none in `graph`")
        drawn = graph.get_graph().draw_mermaid()
        print_stdout(json.dumps({"mermaid": drawn}) + "\n" if arguments.json else drawn)
        return 0
    if not (prompts := describe(program)):
        raise UsageError(
            f"{arguments.program} has no predictor of DSPy's, so no prompt that a file could set"
        )
    print_stdout(json.dumps(prompts) + "\n" if arguments.json else write_toml(program))
    return 0


if __name__ == "__main__":
    run_and_leave(parser(), command)
