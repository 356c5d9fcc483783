"""How searchers behave: `sextant behaviour RUN [RUN ...]`, from traces alone. Nothing is run.

evals/scoring/behaviour.py counts; docs/guide/compare.md says what the figures mean. Only with
--name-failures is a model asked (evals/running/loss_causes.py).
"""

import argparse
import json
from pathlib import Path

from sextant.evals.running.request import SETTLED, SharedRequest
from sextant.tools.errors import UsageError
from sextant.tools.platform import cli_options
from sextant.tools.platform.callable_module import make_callable
from sextant.tools.platform.cli import CommandParser, positive, print_stdout, run_and_leave
from sextant.tools.platform.waiting import announced


def parser() -> CommandParser:
    """Return the command line."""
    command_line = CommandParser(
        prog="sextant behaviour",
        description="Say what searchers do, and where documents are lost.",
    )
    add = command_line.add_argument
    add(
        "paths",
        type=Path,
        nargs="+",
        metavar="RUN",
        help="scored runs, or folders that have some in them",
    )
    add(
        "--name-failures",
        type=positive,
        metavar="N",
        help="have the model of --lm name why N of each run's lost documents were lost",
    )
    add("--dry-run", action="store_true", help="say what naming will take; nothing is sent")
    add("--json", action="store_true", help="print one JSON object, with the steps of each figure")
    cli_options.add_options(
        command_line, SharedRequest, without=("program", "task", "parameters", *SETTLED)
    )
    return command_line


def command(arguments: argparse.Namespace) -> int:
    """Count, have failures named if that is asked for, and print."""
    if arguments.dry_run and not arguments.name_failures:
        raise UsageError("--dry-run says what --name-failures N takes; nothing else is sent")
    from sextant.evals.scoring.scored_run import find_folders  # pydantic: not for --help

    find_folders(arguments.paths)  # before what follows is imported
    from sextant.evals.scoring import behaviour  # NumPy and rich: not for --help
    from sextant.tools.platform.result_table import render_terminal  # as above

    with announced("counting the steps of searchers"):
        result = behaviour.compare_behaviour(arguments.paths)
    text = render_terminal(behaviour.lay_out_behaviour(result))
    if arguments.name_failures:
        from sextant.evals.running import loss_causes  # DSPy

        named = loss_causes.label_loss_causes(
            arguments.paths,
            cli_options.from_options(
                SharedRequest,
                vars(arguments)
                | {
                    "program": "sextant.programs.llm_tasks.loss_explainer:Explainer",
                    "task": result["task"],
                },
            ),
            arguments.name_failures,
            dry_run=arguments.dry_run,
        )
        result = result | named
        text = text + loss_causes.render_loss_causes(named)
    print_stdout(json.dumps(result) + "\n" if arguments.json else text)
    return 0


make_callable(__name__, "sextant.evals.python_interface:behaviour")

if __name__ == "__main__":
    run_and_leave(parser(), command)
