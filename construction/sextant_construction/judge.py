"""Have a model judge the documents of new systems: `sextant judge --task twitter --runs RUN RUN
--lm MODEL`.

construction/sextant_construction/llm_judge.py pools the runs, asks about a sample of the release's own judgements
first, then about unjudged documents, and scores the runs by gold, pooled and the new
judgements.
"""

import argparse
from pathlib import Path

from sextant.evals.running.request import SETTLED, SharedRequest
from sextant.tools.platform import cli_options
from sextant.tools.platform.cli import (
    CommandParser,
    add_json_option,
    positive,
    print_result,
    run_and_leave,
)
from sextant.tools.platform.waiting import announced


def parser() -> CommandParser:
    """Return the command line."""
    command_line = CommandParser(
        prog="sextant judge",
        description="Have a model judge what runs bring and nobody has judged.",
    )
    add = command_line.add_argument
    add(
        "--runs",
        type=Path,
        nargs="+",
        required=True,
        metavar="RUN",
        dest="paths",
        help="scored runs of the task",
    )
    add(
        "--depth",
        type=positive,
        default=10,
        metavar="K",
        help="pool the first K documents of each run",
    )
    add(
        "--name",
        default="",
        metavar="NAME",
        help="what the judgements are called; the model's name",
    )
    add(
        "--sample",
        type=positive,
        default=50,
        metavar="N",
        help="judged documents on which agreement is measured",
    )
    add(
        "--compiled",
        type=Path,
        metavar="FILE",
        help="prompts of the judge, from sextant compile --program "
        "sextant.programs.llm_tasks.relevance_judge:Judge",
    )
    add("--dry-run", action="store_true", help="say what it will take; nothing is sent")
    add_json_option(command_line)
    cli_options.add_options(command_line, SharedRequest, without=("program", *SETTLED))
    return command_line


def command(arguments: argparse.Namespace) -> int:
    """Judge, score, print; exit code 7 when documents are left unjudged."""
    from sextant.evals.scoring.scored_run import find_folders  # pydantic: not for --help

    request = cli_options.from_options(
        SharedRequest,
        vars(arguments) | {"program": "sextant.programs.llm_tasks.relevance_judge:Judge"},
    )
    request.check_names()
    find_folders(arguments.paths)  # before what follows is imported
    with announced("loading libraries"):
        from sextant_construction import llm_judge  # DSPy and SciPy: not for --help

    named = {
        key: vars(arguments)[key] for key in ("name", "depth", "sample", "compiled", "dry_run")
    }
    result = llm_judge.judge_runs(request, arguments.paths, **named)
    print_result(result, llm_judge.render_judgements, as_json=arguments.json)
    return 7 if result.get("left") else 0


if __name__ == "__main__":
    run_and_leave(parser(), command)
