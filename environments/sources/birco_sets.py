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

from environments.sources import tables
from tools.errors import DataError

_PLAIN_PICKLE = str(Path(__file__).with_name("plain_pickle.py"))


@dataclass(frozen=True, slots=True)
class BircoSet:
    """One split: the pool of a query is what its judgements name."""

    queries: Mapping[str, str]
    documents: Mapping[str, str]
    qrels: Mapping[str, Mapping[str, float]]


def read(folder: Path, split: str) -> BircoSet:
    """Read the split ("test" or "dev") of the task in `folder`. DataError for one missing, damaged or hostile."""
    for ending, load in ((".pickle", _unpickle), (".pkl", _unpickle), (".json", tables.read_json)):
        path = folder / f"{split}_set{ending}"
        if path.is_file():
            return _check(load(path), path)
    raise DataError(f"{folder} holds no {split}_set.pickle (nor a {split}_set.json)")


def _unpickle(path: Path) -> Any:
    """Read an object in a process of its own: a hostile pickle can bring Python down."""
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


def _check(content: Any, path: Path) -> BircoSet:
    if not isinstance(content, dict) or not all(isinstance(content.get(k), dict) for k in ("query", "corpus", "qrel")):
        raise DataError(f'{path} is not an object of "query", "corpus" and "qrel"')
    documents, queries = (
        {
            tables.check_id(key, f"{path}, {name}"): tables.check_text(text, f"{path}, {name} {key!r}")
            for key, text in content[name].items()
        }
        for name in ("corpus", "query")
    )
    if not queries:
        raise DataError(f"{path} has no queries in it")
    if not any(character.isalnum() for text in documents.values() for character in text):
        raise DataError(f"{path} has no words in it; nothing can be searched")
    qrels: dict[str, dict[str, float]] = {}
    for query_id, pool in content["qrel"].items():
        where = f"{path}, qrel of {tables.brief(query_id)}"
        if query_id not in queries:
            raise DataError(f"{where}: there is no such query")
        if not isinstance(pool, dict) or not pool:
            raise DataError(f"{where}: {'the pool is empty' if pool == {} else 'not an object of labels'}")
        qrels[query_id] = {
            tables.check_id(key, where): tables.check_grade(label, f"{where}, document {key!r}")
            for key, label in pool.items()
        }
    if unjudged := queries.keys() - qrels.keys():
        raise DataError(f"{path}: query {min(unjudged)!r} has no pool in qrel")
    return BircoSet(queries, documents, qrels)
