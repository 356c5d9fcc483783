"""BIRCO's files: one object {"query": {id: text}, "corpus": {id: text}, "qrel": {id: {id: label}}} a split.

The release has it as a pickle, which environments/sources/plain_pickle.py reads without running anything. The same
object as JSON is read, too; the miniature has that form, because it can be reviewed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from environments.sources import checks, jsonl, plain_pickle
from tools.errors import DataError


@dataclass(frozen=True, slots=True)
class BircoSet:
    """One split: the pool of a query is what its judgements name."""

    queries: Mapping[str, str]
    documents: Mapping[str, str]
    qrels: Mapping[str, Mapping[str, float]]


def read(folder: Path, split: str) -> BircoSet:
    """The split ("test" or "dev") of the task in `folder`. DataError for anything missing, damaged or hostile."""
    for ending, load in ((".pickle", plain_pickle.read), (".pkl", plain_pickle.read), (".json", jsonl.whole)):
        path = folder / f"{split}_set{ending}"
        if path.is_file():
            return _checked(load(path), path)
    raise DataError(f"{folder} holds no {split}_set.pickle (nor a {split}_set.json)")


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
    read: dict[int, dict[str, float]] = {}  # by identity: a pickle can name one pool a thousand times
    for query_id, pool in _keyed(content["qrel"], f"{path}, qrel").items():
        where = f"{path}, qrel of {query_id!r}"
        if query_id not in queries:
            raise DataError(f"{where}: there is no such query")
        if not isinstance(pool, dict):
            raise DataError(f"{where} is not an object of labels")
        if id(pool) not in read:
            read[id(pool)] = _labels(pool, where)
        qrels[query_id] = read[id(pool)]
    if unjudged := queries.keys() - qrels.keys():
        raise DataError(f"{path}: query {min(unjudged)!r} has no pool in qrel")
    return BircoSet(queries, documents, qrels)


def _texts(table: Mapping[Any, Any], where: str) -> dict[str, str]:
    return {key: checks.text(value, f"{where} {key!r}") for key, value in _keyed(table, where).items()}


def _labels(pool: Mapping[Any, Any], where: str) -> dict[str, float]:
    if not pool:
        raise DataError(f"{where}: the pool is empty")
    return {key: checks.grade(label, f"{where}, document {key!r}") for key, label in _keyed(pool, where).items()}


def _keyed(table: Mapping[Any, Any], where: str) -> dict[str, Any]:
    keyed: dict[str, Any] = {}
    for key, value in table.items():
        # A number in a pickle is an id like any other; JSON has texts only.
        plain = isinstance(key, int) and not isinstance(key, bool) and abs(key) < 10**20
        identifier = checks.identifier(str(key) if plain else key, where)
        if identifier in keyed:
            raise DataError(f"{where}: the id {identifier!r} is there twice, as a number and as a text")
        keyed[identifier] = value
    return keyed
