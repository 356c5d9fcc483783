"""The rankings that BIRCO's release ships of its authors' systems:
evaluation/ranks/TASK/SYSTEM.pickle.

A file has a list of documents for each query, best first: {query id: [document id, ...]}. Only its
name says which system made it. A file of no system of Table 7 becomes a run with the file's name.
"""

import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from sextant import environments
from sextant.environments.birco import TASKS, unpickle
from sextant.evals.formats.import_run import import_run, say_of, slugify
from sextant.evals.papers.sections import find
from sextant.evals.scoring.score_run import trec_lines
from sextant.tools.errors import DataError, UsageError
from sextant.tools.platform import files as disk

# The systems that are no prompted language model, as files are named -> as Table 7 names them.
_OTHER_SYSTEMS = {
    "ance": "ANCE FirstP",
    "bm25": "BM25",
    "e5": "E5-L-v2",
    "monot5": "MonoT5",
    "promptagator": "Promptagator",
    "rankllama": "RankLLaMA",
    "roberta": "RoBERTa-L",
    "simcse": "SIMCSE",
    "simlm": "SimLM",
    "specter": "SPECTER-v2",
    "specterv2": "SPECTER-v2",
    "splade++": "SPLADE++",
    "spladev2": "SPLADE-v2",
    "tart": "TART",
}
# How a prompted language model ranks; "rrankgpt" is a misprint of the release's.
_METHOD = re.compile(r"\b(r?rankgpt|score|reason|subtask)\b")


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
                written,
                environment,
                runs=runs,
                name=slugify(find_system(file.stem) or file.stem),
                encoded=True,
            )
        except (
            DataError,
            UsageError,
        ) as error:  # in the words of a TREC file, which the user has not written
            raise DataError(say_of(file, str(error), Path(folder))) from None


def find_system(stem: str) -> str:
    """Return the system of BIRCO's Table 7 that a ranking's file name stands for; "" if it is none.

    The release has names like `llama_7b_test_score_O` (a method, a model, and `O` if the model is told
    the objective), `Tart_O` and `splade++_rank`.
    """
    words = stem.lower().replace("-", "_").split("_")
    objective = "+O" if "o" in words else ""
    methods = _METHOD.findall(" ".join(words))
    model = _find_model(words)
    if len(methods) == 1 and model:
        method = "Rank" if methods[0].endswith("rankgpt") else methods[0].capitalize()
        name = f"{method}{objective} {model}"
    else:
        others = [_OTHER_SYSTEMS[word] for word in words if word in _OTHER_SYSTEMS]
        name = f"{others[0]}{objective}" if len(others) == 1 else ""
    return name if name in {row["name"] for row in find("birco/table7").systems} else ""


def _find_model(words: Sequence[str]) -> str:
    """Return the language model that the words of a file name stand for, as Table 7 names it."""
    if "gpt4" in words or ("gpt" in words and "4" in words):
        return "GPT4"
    if "stripedhyena" in words:
        return "StripedHyena"
    llama = re.search(r"\bllama2? ?(7b|13b|70b)\b", " ".join(words))
    return f"Llama2-{llama[1]}" if llama else ""
