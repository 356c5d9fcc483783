"""How long compiling takes over cached answers: `python -m benchmarks.compiling --data FOLDER`.

`sextant compile` is held against DSPy's own run of the same teleprompter on the same
queries (dspy_compile_script.py). The model is a local server (answering.py). A first run of each
fills its cache; the runs that count find every answer there, and are processes in turns. Rows are
ratios of medians, by the clock and by CPU time. Left out: the time of a model.
"""

import argparse
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from benchmarks.calls import serving
from benchmarks.rows import Row
from benchmarks.whole import Cost, compare, timed
from sextant.tools.platform import files
from sextant.tools.platform.cli import (
    CommandParser,
    positive,
    print_stderr,
    print_stdout,
    run_and_leave,
)

TELEPROMPTERS = ("bootstrap", "mipro", "gepa")
BOUND = 1.2  # of DSPy's own run


def parser() -> CommandParser:
    """The command line."""
    command_line = CommandParser(
        prog="python -m benchmarks.compiling", description="Time compiling beside DSPy alone."
    )
    command_line.add_argument(
        "--data", default="mini", metavar="FOLDER", help="mini, full or a folder"
    )
    command_line.add_argument("--queries", type=positive, default=40, metavar="N", help="of dev")
    command_line.add_argument(
        "--optimizer",
        nargs="+",
        choices=TELEPROMPTERS,
        default=TELEPROMPTERS,
        help="default: all",
    )
    command_line.add_argument(
        "--rounds", type=positive, default=5, metavar="N", help="of which medians are"
    )
    command_line.add_argument("--json", action="store_true", help="print one JSON object a row")
    return command_line


def command(arguments: argparse.Namespace) -> int:
    """Measure and print; exit code 7 if a bound is not kept."""
    missed = 0
    count = 0
    with files.temporary_folder() as folder, serving(0.0) as port:
        # Without bytecode on disk, every process would compile all that it imports.
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")
        for optimizer in arguments.optimizer:
            for row in measure(optimizer, arguments, folder, port):
                print_stdout(json.dumps(row.json()) + "\n" if arguments.json else row.text())
                count += 1
                missed += not row.holds
    if missed:
        print_stderr(f"{missed} of {count} figures miss their bound")
    return 7 if missed else 0


def measure(
    optimizer: str, arguments: argparse.Namespace, folder: Path, port: int
) -> Iterator[Row]:
    """Yield the rows of a teleprompter; `folder` is for what the processes write."""
    url = f"http://127.0.0.1:{port}/v1"
    queries = str(arguments.queries)
    ours = [
        *("sextant.optimizers.compile", "--program", "multihop", "--task", "congress"),
        *("--data", arguments.data, "--optimizer", optimizer),
        *("--lm", f"tiny@{url}", "--limit", queries),
    ]
    cache = str(folder / "cache")
    script = ["benchmarks.dspy_compile_script", optimizer, arguments.data, queries, url, cache]
    costs: dict[str, list[Cost]] = {"ours": [], "script": []}
    for number in range(arguments.rounds + 1):
        # The answers beside it are kept.
        shutil.rmtree(folder / "ours" / "runs" / "compiled", ignore_errors=True)
        pair = {
            "ours": timed(folder / "ours", *ours),
            "script": timed(folder / "script", *script),
        }
        if number:
            for name, cost in pair.items():
                costs[name].append(cost)
    name = f"sextant compile --optimizer {optimizer}"
    yield from compare(name, costs["ours"], "DSPy alone", costs["script"], BOUND)


if __name__ == "__main__":
    run_and_leave(parser(), command)
