"""How likely relevant documents are found at all: `sextant reach TASK | RUN`. No model is asked.

For a task, by searches for words of its queries; for a run, also for words that its searcher wrote or
was shown, with its documents that never surfaced told apart (evals/running/reach.py).
"""

import argparse
from pathlib import Path

from sextant.tools.platform.cli import (
    CommandParser,
    add_json_option,
    positive,
    print_result,
    run_and_leave,
)
from sextant.tools.platform.waiting import announced
from sextant.tools.retrievers import check_kinds


def parser() -> CommandParser:
    """Return the command line."""
    command_line = CommandParser(
        prog="sextant reach",
        description="Say how likely relevant documents are found by searches from given words.",
    )
    add = command_line.add_argument
    add("target", metavar="TASK|RUN", help="a task, or the folder of a scored run")
    add(
        "--retriever",
        default="",
        metavar="SPEC",
        help="bm25 where none is named, or the run's own",
    )
    add(
        "--data",
        metavar="DATA",
        help="mini, full or a folder, for a task; full where it is fetched",
    )
    add("--split", default="test", metavar="SPLIT", help="dev, test or all, for a task")
    add("--limit", type=positive, metavar="N", help="the first N queries of a task")
    add("--seed", type=int, default=0, metavar="N", help="of drawn searches and random documents")
    add_json_option(command_line)
    return command_line


def command(arguments: argparse.Namespace) -> int:
    """Measure, and print."""
    if arguments.retriever:
        check_kinds(arguments.retriever)
    with announced("loading libraries"):
        from sextant.evals.reporting.reach_tables import render_reach  # rich: not for --help
        from sextant.evals.running import reach  # NumPy and retrievers: not for --help

    path = Path(arguments.target)
    with announced(f"measuring the reach of {arguments.target}"):
        if path.is_dir():
            result = reach.measure_run(path, arguments.retriever, arguments.seed)
        else:
            result = reach.measure_task(
                arguments.target,
                arguments.data,
                arguments.split,
                arguments.retriever or "bm25",
                limit=arguments.limit,
                seed=arguments.seed,
            )
    print_result(result, render_reach, as_json=arguments.json)
    return 0


if __name__ == "__main__":
    run_and_leave(parser(), command)
