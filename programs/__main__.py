"""`python -m programs show multihop`: the prompts of a program as a file to edit (programs/prompts.py)."""

import argparse
import json

import environments
from evals.running.configuration import trial
from evals.running.request import apply_hints, find_program, parse_parameters
from programs.prompts import describe, write_toml
from tools.console import Parser, put_out, run_and_leave
from tools.errors import UsageError
from tools.options import pair


def parser() -> Parser:
    """Return the command line."""
    made = Parser(prog="python -m programs", description="The prompts of a program or an agent.")
    show = made.add_subparsers(dest="verb", required=True, metavar="show").add_parser(
        "show", help="print them as TOML, to edit: evals.run --prompts FILE takes them up"
    )
    show.add_argument("program", metavar="NAME", help="as evals.run takes it")
    show.add_argument("-P", dest="parameters", action="append", default=[], type=pair, metavar="NAME=VALUE")
    show.add_argument("--task", metavar="TASK", help="with what the program is given by that task, e.g. its lens")
    show.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    return made


def command(arguments: argparse.Namespace) -> int:
    """Print the prompts."""
    name, given = arguments.program, dict(arguments.parameters)
    constructor = find_program(name)
    values = parse_parameters(name, constructor, given)
    if arguments.task:
        values = apply_hints(values, given, environments.load(arguments.task).hints)
    program = trial(constructor, values)
    if not describe(program):
        raise UsageError(f"{name} has no predictor of DSPy's, and so no prompt that could be set from outside")
    put_out(json.dumps(describe(program)) + "\n" if arguments.json else write_toml(name, program))
    return 0


if __name__ == "__main__":
    run_and_leave(parser(), command)
