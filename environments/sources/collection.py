"""Collections, which readers return: documents, queries and judgements, before a task makes an environment of them.

Large corpora are stored under the home, in the form of tools/stored_corpus.py, and open at once. What is stored is
named by the content of the files that it was read from and by the code that read it, so that another content or
another reader never meets it. Small corpora are read again every time.
"""

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from environments.base import Qrels
from environments.sources import tables
from tools import disk
from tools.console import interrupts
from tools.corpus import Corpus
from tools.errors import DataError
from tools.records import Document
from tools.stored_corpus import FORMAT, open_or_store

LARGE = 8_000_000  # characters of documents from which on a corpus is kept: about a quarter of a second of reading
_SETTLED = 2_000_000_000  # nanoseconds after which another change of a file has another time, on every file system
_DIGESTS = ".digests.json"  # beside what is corpus_store

# Where a document stands, for messages ("FILE, line 7"), and the document.
Placed = tuple[str, Document]


@dataclass(frozen=True, slots=True)
class Collection:
    """One collection, read whole."""

    documents: Corpus
    queries: Mapping[str, str]  # query_id -> text
    gold: Qrels
    pooled: Qrels | None = None
    excluded: Mapping[str, frozenset[str]] = field(default_factory=dict)  # query_id -> doc_ids not to be shown


def keep_judged(queries: Mapping[str, str], qrels: Qrels, judged_in: Path, asked_in: str) -> dict[str, str]:
    """The queries that are judged: files often have those of other splits, too. DataError for an unknown one."""
    if not qrels:
        raise DataError(f"{judged_in} has no judgements in it")
    if strangers := qrels.keys() - queries.keys():
        raise DataError(f"{judged_in} judges the query {min(strangers)!r}, which {asked_in} has not")
    return {query_id: text for query_id, text in queries.items() if query_id in qrels}


def open_corpus(home: Path, files: Sequence[Path], read: Callable[[], Iterator[Placed]]) -> Corpus:
    """Open the corpus of the documents that `read()` yields from `files`, in that order.

    DataError when an id comes twice, or when there is no word in all of them.
    """
    # What was made of an earlier state of the same files is in the same folder, and goes when a new one is made.
    # Another version of this program has a folder of its own, so that two of them don't undo each other's.
    folder = home / "corpora" / _digest([_code(), *(str(path.resolve()) for path in files)])
    if not folder.is_dir() and (small := _read_if_small(_checked(read(), files))) is not None:
        return small
    place = folder / _digest({"format": FORMAT, "code": _code(), "files": _contents(folder / _DIGESTS, files)})
    return open_or_store(place, lambda: _checked(read(), files))


def forget(home: Path) -> None:
    """Forget the digests of files, so that they are read again whatever their times say."""
    for path in (home / "corpora").glob(f"*/{_DIGESTS}"):
        path.unlink(missing_ok=True)


def _read_if_small(documents: Iterator[Document]) -> Corpus | None:
    """The documents in memory; None where they are LARGE. They are counted because their files may be compressed."""
    held, size = list[Document](), 0
    for document in documents:
        held.append(document)
        if (size := size + len(document.title) + len(document.text)) >= LARGE:
            return None
    return Corpus(held)


def _contents(digests: Path, files: Sequence[Path]) -> list[str]:
    """The SHA-256 of each file. `digests` has those of files whose inode, size and times are as they were then."""
    known: dict[str, str] = {}
    with suppress(OSError, ValueError, TypeError):
        known = dict(json.loads(digests.read_bytes()))
    states = [path.stat() for path in files]
    names = [f"{s.st_dev} {s.st_ino} {s.st_size} {s.st_mtime_ns} {s.st_ctime_ns}" for s in states]
    found = [known.get(name) or disk.sha256(path) for name, path in zip(names, files, strict=True)]
    settled = {
        name: digest
        for name, digest, state in zip(names, found, states, strict=True)
        if time.time_ns() - state.st_ctime_ns > _SETTLED  # else it may yet change within the same tick of the clock
    }
    if settled != known:
        with suppress(OSError):  # a home that cannot be written: they are read again next time
            digests.parent.mkdir(parents=True, exist_ok=True)
            disk.replace(digests, json.dumps(settled), disk.SHARED)
    return found


def _digest(key: object) -> str:
    return hashlib.blake2b(json.dumps(key).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _checked(placed: Iterator[Placed], files: Sequence[Path]) -> Iterator[Document]:
    seen = set[str]()
    has_words = False
    left = tables.most_unpacked(*files)
    for where, document in placed:
        interrupts.check()
        if document.doc_id in seen:
            raise DataError(f"{where}: the id {document.doc_id!r} was there before")
        seen.add(document.doc_id)
        if (left := left - len(document.title) - len(document.text)) < 0:
            raise tables.unpacks_too_far(where)
        has_words = has_words or any(character.isalnum() for character in document.text)
        yield document
    if not has_words:
        raise DataError(f"{files[0]} has no words in it; nothing can be searched")


@cache
def _code() -> str:
    """A digest over the readers: an edited one reads again."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.blake2b(b"\0".join(path.read_bytes() for path in sources), digest_size=8).hexdigest()
