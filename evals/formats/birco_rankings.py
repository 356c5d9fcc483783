"""The rankings that BIRCO's release ships of its authors' systems:
evaluation/ranks/TASK/SYSTEM.pickle.

A file has a list of documents for each query, best first: {query id: [document id, ...]}. Which
system a file is of says its name alone; `find_system` takes the words in it for the words of a row
of the paper, in any order.
"""

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import environments
from environments.birco import TASKS, unpickle
from evals.formats.import_run import import_run, say_of, slugify
from evals.published.sections import find
from evals.scoring.score_run import trec_lines
from tools import files as disk
from tools.errors import DataError, UsageError

_WORDS = r"rankllama(?!2)|rank|score|reason|subtask|gpt|llama|lm|hyena|sh|70b|13b|7b|monot5|tart|e5|simcse|specter|"
_WORDS += r"splade|\+\+|pp|roberta|promptagator|(?<![a-z])o(?![a-z])"
_ALIASES = {"lm": "llama", "sh": "hyena", "pp": "++"}


def import_ranks(
    folder: Path, data: str | None, runs: Path
) -> Iterator[tuple[Path, Path | DataError]]:
    """Make a run of every ranking below `folder`; yield (its file, the run or why there is
    none).
    """
    tasks = {task.folder: name for name, task in TASKS.items()}
    files = [
        file
        for file in sorted(disk.walk(folder))
        if file.suffix == ".pickle" and file.parent.name in tasks
    ]
    if not files:
        raise DataError(
            f"{folder} has no TASK/SYSTEM.pickle, as BIRCO's evaluation/ranks has, of "
            f"{', '.join(tasks)}"
        )
    for file in files:
        try:
            yield (
                file,
                _import(file, f"birco/{tasks[file.parent.name]}", data, runs),
            )
        except DataError as problem:
            yield file, problem


def _import(file: Path, task: str, data: str | None, runs: Path) -> Path:
    environment = environments.load(task, data)
    ranks = unpickle(file)
    if not isinstance(ranks, dict) or not all(isinstance(rank, list) for rank in ranks.values()):
        raise DataError(f"{file} is not of lists of documents by query")
    if missing := [query.query_id for query in environment.queries if query.query_id not in ranks]:
        raise DataError(
            f"{file} is of other queries than {task}: it lacks {len(missing)}, e.g. {missing[0]!r}"
        )
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "ranks.trec"
        written.write_text(
            "".join(
                trec_lines(query_id, [*map(str, ranking)], "birco")
                for query_id, ranking in ranks.items()
            )
        )
        try:
            return import_run(
                written, environment, runs=runs, name=slugify(find_system(file.stem)), encoded=True
            )
        except (
            DataError,
            UsageError,
        ) as error:  # in the words of a TREC file, which the user has not written
            raise DataError(say_of(file, str(error), Path(folder))) from None


def find_system(stem: str) -> str:
    """Return the system of Table 7 with the words of a file's name, as birco.toml calls it;
    the stem if no system has them.
    """
    words = _words(stem)
    named = {
        name: row["name"]
        for row in find("birco/table7").systems
        for name in (row["name"], *row.get("also", ()))
    }
    return next((system for name, system in named.items() if words and _words(name) == words), stem)


def _words(name: str) -> set[str]:
    text = re.sub(
        r"(rank|score|reason|subtask|tart)\+?o(?=[^a-z]|gpt|llama|striped|$)",
        r"\1 o ",
        name.lower(),
    )
    words = {_ALIASES.get(word, word) for word in re.findall(_WORDS, text)}
    if words & {"gpt", "llama", "hyena"} and "rank" not in words:
        # Every system that scores is told the objective.
        words.add("o")
    return words - {"7b"} if "hyena" in words else words
