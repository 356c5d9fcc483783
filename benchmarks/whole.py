"""How long whole commands take: `python -m benchmarks.whole --data FOLDER`.

`sextant run --program retrieve` is held against a script of the packages that most people
would take (bm25s_script.py), both from the files to nDCG@10, as processes in turns. Rows are ratios
of medians, by the clock and by CPU time. The other commands are held against a number of seconds.
Without `--data`, passages are made (data.py), as many as `--documents` and `--queries` say.
"""

import argparse
import gzip
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks import data
from benchmarks.rows import Row
from sextant.tools.errors import SextantError, UsageError
from sextant.tools.platform import files
from sextant.tools.platform.cli import (
    CommandParser,
    positive,
    print_stderr,
    print_stdout,
    run_and_leave,
)
from sextant.tools.platform.installation import explain_missing

SCRIPT = Path(__file__).with_name("bm25s_script.py")
PEER = "bm25s, PyStemmer and pytrec_eval"
PEER_MODULES = ("bm25s", "Stemmer", "pytrec_eval")
LARGE = 100_000  # documents from which on the bounds of the large corpus hold
RETRIEVE = ("sextant.evals.run", "--program", "retrieve", "--task", "congress", "--split", "all")


class Cost(NamedTuple):
    """What a process took, in seconds."""

    wall: float
    cpu: float


class Bounds(NamedTuple):
    """What the ratios of the run are held to."""

    warm: float
    fresh: float


def parser() -> CommandParser:
    """The command line."""
    made = CommandParser(
        prog="python -m benchmarks.whole", description="Time whole commands beside a script."
    )
    made.add_argument("--data", type=Path, metavar="DIR", help="a folder in OBLIQ-Bench's layout")
    made.add_argument("--documents", type=positive, default=213_650, metavar="N", help="to make")
    made.add_argument("--queries", type=positive, default=5_000, metavar="N", help="to make")
    made.add_argument(
        "--rounds", type=positive, default=5, metavar="N", help="of which medians are"
    )
    made.add_argument("--seed", type=int, default=0, metavar="N", help="of what is made")
    made.add_argument("--json", action="store_true", help="print one JSON object a row")
    return made


def command(arguments: argparse.Namespace) -> int:
    """Measure and print; exit code 7 when a bound is not kept."""
    for module in PEER_MODULES:
        if find_spec(module) is None:
            raise UsageError(f"{SCRIPT.name} needs {explain_missing(module, 'benchmarks')}")
    with files.temporary_folder() as place:
        folder = arguments.data
        documents = 0
        if folder is None:
            folder = place / "data"
            documents = arguments.documents
            write_data(folder, documents, arguments.queries, arguments.seed)
        rows = list[Row]()
        for row in measure(folder.absolute(), place, documents, arguments.rounds):
            print_stdout(json.dumps(row.json()) + "\n" if arguments.json else row.text())
            rows.append(row)
    missed = [row for row in rows if not row.holds]
    if missed:
        print_stderr(f"{len(missed)} of {len(rows)} figures miss their bound")
    return 7 if missed else 0


def measure(
    folder: Path,
    place: Path,
    documents: int,
    rounds: int,
) -> Iterator[Row]:
    """Yield the rows of a data folder; `place` is for what the commands write."""
    bounds = Bounds(warm=0.5, fresh=1.0) if documents >= LARGE else Bounds(warm=0.6, fresh=1.2)
    ours = (*RETRIEVE, "--data", str(folder))
    script = (str(SCRIPT), str(folder))
    costs: dict[str, list[Cost]] = {"script": [], "warm": [], "fresh": []}
    timed(place / "first", *ours)  # compiles what is compiled once on a machine
    for _ in range(rounds):
        costs["script"].append(timed(place, *script))
        shutil.rmtree(place / "home", ignore_errors=True)
        costs["fresh"].append(timed(place / "fresh", *ours))
        costs["warm"].append(timed(place / "warm", *ours))
    for name, bound in bounds._asdict().items():
        yield from compare(f"sextant run, {name}", costs[name], PEER, costs["script"], bound)
    [run] = (place / "warm" / "runs").glob("*/*/")
    trec = str(run / "run.trec")
    named = ("--data", str(folder), "--name", "imported")
    at_rest: list[tuple[str, ...]] = [
        ("sextant.evals.score", str(run)),
        ("sextant.evals.import_run", trec, *RETRIEVE[3:], *named),
    ]
    for words in at_rest:
        yield held(words[0], [timed(place / "rest", *words) for _ in range(rounds)], 2.0)
    [imported] = (place / "rest" / "runs").glob("*/*/")
    against = ("sextant.evals.compare", str(run), str(imported))
    yield held(against[0], [timed(place / "rest", *against) for _ in range(rounds)], 2.0)
    start: dict[str, tuple[str, ...]] = {
        "sextant run --help": ("sextant.evals.run", "--help"),
        "a miniature": RETRIEVE,
    }
    for name, words in start.items():
        bound = 0.2 if "help" in name else 0.8
        yield held(name, [timed(place / "start", *words) for _ in range(rounds + 1)][1:], bound)


def compare(
    name: str,
    ours: list[Cost],
    peer: str,
    theirs: list[Cost],
    bound: float,
) -> Iterator[Row]:
    """Yield the rows of a command and its peer, by the clock and by CPU time."""
    for kind in Cost._fields:
        figures = [median(getattr(cost, kind) for cost in costs) for costs in (ours, theirs)]
        yield Row(f"{name}, {kind}", "s", figures[0], peer, figures[1], bound)


def held(name: str, costs: list[Cost], seconds: float) -> Row:
    """Return the row of a command that is held to a number of seconds."""
    cpu = median(cost.cpu for cost in costs)
    wall = median(cost.wall for cost in costs)
    return Row(name, "s", wall, "its bound", seconds, 1.0, note=f"{cpu:.2f} s of CPU")


def timed(place: Path, *words: str) -> Cost:
    """Run a module, or a script that ends with .py, in a process; runs are new."""
    place.mkdir(parents=True, exist_ok=True)
    runs = place / "runs"
    environment = os.environ | {"SEXTANT_HOME": str(_home(place)), "SEXTANT_RUNS": str(runs)}
    # Else each process would compile the sources of all that it imports.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    program = [words[0]] if words[0].endswith(".py") else ["-m", words[0]]
    options = (
        ["--runs", str(runs)]
        if words[0] in ("sextant.evals.run", "sextant.evals.import_run")
        else []
    )
    if options:
        shutil.rmtree(runs, ignore_errors=True)
    if "--help" in words:
        options = []
    started = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, *program, *words[1:], *options],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    assert process.stderr
    said = process.stderr.read().decode()
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SextantError(f"{' '.join(words)} failed: {said[-400:]}")
    return Cost(time.monotonic() - started, used.ru_utime + used.ru_stime)


def _home(place: Path) -> Path:
    """Return the folder of indexes: of its own for a first run, else one for all."""
    return place / "home" if place.name == "first" else place.parent / "home"


def write_data(
    folder: Path,
    documents: int,
    queries: int,
    seed: int,
) -> None:
    """Write recombined documents and queries in OBLIQ-Bench's layout, a relevant document for each."""
    congress = folder / "tip-of-tongue" / "congress"
    for name in ("corpus", "queries+qrels"):
        (congress / name).mkdir(parents=True)
    made = data.corpus(documents, folder / "stored", seed=seed)
    with gzip.open(congress / "corpus" / "corpus.jsonl.gz", "wt", compresslevel=1) as file:
        for document in made.stream():
            file.write(json.dumps({"_id": document.doc_id, "text": document.text}) + "\n")
    judged = ["query-id\tcorpus-id\tscore\n"]
    with (congress / "queries+qrels" / "queries.jsonl").open("w") as file:
        for number, text in enumerate(data.queries(queries, data.LONG_QUERY, seed=seed)):
            file.write(json.dumps({"_id": f"q{number}", "text": text}) + "\n")
            judged.append(f"q{number}\t{made.doc_ids[number * documents // queries]}\t1\n")
    (congress / "queries+qrels" / "qrels.tsv").write_text("".join(judged))


if __name__ == "__main__":
    run_and_leave(parser(), command)
