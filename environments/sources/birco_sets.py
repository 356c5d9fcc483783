"""BIRCO's files: one object {"query": {id: text}, "corpus": {id: text}, "qrel": {id: {id: label}}} a split.

The release has it as a pickle, which environments/sources/plain_pickle.py makes into JSON without running anything in
it. The same object as JSON is read, too; the miniature has that form, because it can be reviewed.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from environments.sources import checks, tables
from tools.errors import DataError

_PLAIN_PICKLE = str(Path(__file__).with_name("plain_pickle.py"))


@dataclass(frozen=True, slots=True)
class BircoSet:
    """One split: the pool of a query is what its judgements name."""

    queries: Mapping[str, str]
    documents: Mapping[str, str]
    qrels: Mapping[str, Mapping[str, float]]


def read(folder: Path, split: str) -> BircoSet:
    """The split ("test" or "dev") of the task in `folder`. DataError for anything missing, damaged or hostile."""
    for ending, load in ((".pickle", _unpickled), (".pkl", _unpickled), (".json", tables.read_json)):
        path = folder / f"{split}_set{ending}"
        if path.is_file():
            return _checked(load(path), path)
    raise DataError(f"{folder} holds no {split}_set.pickle (nor a {split}_set.json)")


def _unpickled(path: Path) -> Any:
    """The object in `path`, read in a process of its own: a hostile pickle can bring Python down."""
    try:
        with path.open("rb") as file:
            done = subprocess.run([sys.executable, "-I", _PLAIN_PICKLE], stdin=file, capture_output=True)
        said = json.loads(done.stdout)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
    except ValueError:  # it died, or gave up
        raise DataError(f"{path} is damaged and cannot be unpickled; fetch it again") from None
    if "refused" in said:
        raise DataError(f"{path} is refused: {said['refused']}")
    return said["content"]


def _checked(content: Any, path: Path) -> BircoSet:
    if not isinstance(content, dict) or not all(isinstance(content.get(k), dict) for k in ("query", "corpus", "qrel")):
        raise DataError(f'{path} is not an object of "query", "corpus" and "qrel"')
    documents = _texts(content["corpus"], f"{path}, corpus")
    queries = _texts(content["query"], f"{path}, query")
    if not queries:
        raise DataError(f"{path} has no queries in it")
    if not any(character.isalnum() for text in documents.values() for character in text):
        raise DataError(f"{path} has no words in it; nothing can be searched")
    qrels: dict[str, dict[str, float]] = {}
    for query_id, pool in _keyed(content["qrel"], f"{path}, qrel").items():
        where = f"{path}, qrel of {query_id!r}"
        if query_id not in queries:
            raise DataError(f"{where}: there is no such query")
        if not isinstance(pool, dict):
            raise DataError(f"{where} is not an object of labels")
        qrels[query_id] = _labels(pool, where)
    if unjudged := queries.keys() - qrels.keys():
        raise DataError(f"{path}: query {min(unjudged)!r} has no pool in qrel")
    return BircoSet(queries, documents, qrels)


def _texts(table: Mapping[Any, Any], where: str) -> dict[str, str]:
    return {key: checks.check_text(value, f"{where} {key!r}") for key, value in _keyed(table, where).items()}


def _labels(pool: Mapping[Any, Any], where: str) -> dict[str, float]:
    if not pool:
        raise DataError(f"{where}: the pool is empty")
    return {key: checks.check_grade(label, f"{where}, document {key!r}") for key, label in _keyed(pool, where).items()}


def _keyed(table: Mapping[Any, Any], where: str) -> dict[str, Any]:
    return {checks.check_id(key, where): value for key, value in table.items()}
