"""`sextant compile --program multihop --task congress --optimizer gepa`: prompts,
compiled on dev.

The options are the fields of optimizers/request.py; optimizers/compile_program.py compiles.
"""

import argparse
import sys
import time
from functools import partial

from sextant.optimizers.request import CompileRequest
from sextant.tools.platform import cli_options
from sextant.tools.platform.cli import CommandParser, add_json_option, print_stderr, run_and_leave
from sextant.tools.platform.waiting import announced


def parser() -> CommandParser:
    """The command line."""
    about_command = "Compile a program on the dev split: its prompts, or its parameters."
    command_line = CommandParser(prog="sextant compile", description=about_command)
    cli_options.add_options(command_line, CompileRequest)
    command_line.lists |= {"--task", "--held-out"}
    add_json_option(command_line)
    return command_line


def command(arguments: argparse.Namespace) -> int:
    """Compile, or go on compiling; print the result."""
    started = time.monotonic()
    if arguments.optimizer == "list":
        with announced("loading libraries"):
            from sextant.optimizers.result_report import show_table  # imports DSPy

        show_table(as_json=arguments.json)
        return 0
    request = cli_options.from_options(CompileRequest, vars(arguments))
    request.check_names()
    with announced("loading libraries"):
        from sextant.optimizers.compile_program import compile_program  # DSPy, which takes seconds
        from sextant.optimizers.result_report import print_result  # as above

    # The terminal as it is now: DSPy's bars are kept away from it while it works.
    tell = (lambda line: None) if arguments.json else partial(print_stderr, to=sys.stderr)
    learnt, problem = compile_program(request, tell)
    print_result(learnt | {"seconds": round(time.monotonic() - started, 2)}, as_json=arguments.json)
    if problem:
        raise problem
    return 0


if __name__ == "__main__":
    run_and_leave(parser(), command)
