"""How fast dense retrievers are compared with the best libraries: `python -m benchmarks.retrieval`.

Every row is a ratio of two things measured in turns in one run, because a time alone says little on
a shared machine. The bound is the project's goal at the size of OBLIQ-Bench's Congress (213,650
passages of 2,545 characters). The corpus is made by recombining sentences of the bundled miniatures
or of a folder in OBLIQ-Bench's layout, and the vectors lie around those of real sentences. So
nothing is downloaded, but the queries are not real.
"""

import argparse
import json
from importlib import import_module
from pathlib import Path

from benchmarks.rows import Row
from sextant.tools.errors import UnknownName
from sextant.tools.platform.cli import (
    CommandParser,
    positive,
    print_stderr,
    print_stdout,
    run_and_leave,
)

CONGRESS = 213_650  # passages

# To add one: a module with measure(documents, source, seed), which gives rows, named here.
PARTS = ("vectors", "encoding")


def parser() -> CommandParser:
    """The command line."""
    made = CommandParser(
        prog="python -m benchmarks.retrieval",
        description="Time the retrievers beside the best libraries.",
    )
    made.add_argument(
        "parts",
        nargs="*",
        metavar="PART",
        help=f"of {', '.join(PARTS)}; all of them where none is given",
    )
    made.add_argument(
        "--documents", type=positive, default=CONGRESS, metavar="N", help="size of the corpus"
    )
    made.add_argument(
        "--data", type=Path, metavar="DIR", help="a folder of passages to recombine; the miniatures"
    )
    made.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of the corpus and the vectors"
    )
    made.add_argument(
        "--json", action="store_true", help="print one JSON object a row and nothing else"
    )
    return made


def command(arguments: argparse.Namespace) -> int:
    """Measure and print; exit code 7 when a bound is not kept."""
    for part in arguments.parts:
        if part not in PARTS:
            raise UnknownName("benchmark", part, PARTS)
    rows = list[Row]()
    for part in arguments.parts or PARTS:
        print_stderr(f"measuring {part} at {arguments.documents:,} documents")
        measured = import_module(f"benchmarks.{part}").measure(
            arguments.documents, arguments.data, arguments.seed
        )
        for row in measured:
            print_stdout(
                json.dumps({"part": part, **row.json()}) + "\n" if arguments.json else row.text()
            )
            rows.append(row)
    missed = [row for row in rows if not row.holds]
    if missed:
        print_stderr(f"{len(missed)} of {len(rows)} figures miss their bound")
    return 7 if missed else 0


if __name__ == "__main__":
    run_and_leave(parser(), command)
