"""A release's corpus, opened at once: large ones are kept under the home in the form of tools/stored_corpus.py.

What is kept is named by the files that it was read from (path, size, time of change) and by the code that read it, so
that another file or another reader never meets it. Small corpora are read again every time.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

from tools.corpus import Corpus
from tools.errors import DataError
from tools.records import Document
from tools.stored_corpus import FORMAT, open_or_store

LARGE = 8_000_000  # bytes of files from which on a corpus is kept: about a quarter of a second of reading


# Where a document stands, for messages ("FILE, line 7"), and the document.
Placed = tuple[str, Document]


def corpus(home: Path, files: Sequence[Path], read: Callable[[], Iterator[Placed]]) -> Corpus:
    """The documents that `read()` yields from `files`, in that order.

    DataError when an id comes twice, or when there is no word in all of them.
    """
    states = [path.stat() for path in files]
    if sum(state.st_size for state in states) < LARGE:
        return Corpus(_checked(read(), files[0]))
    key = {
        "format": FORMAT,
        "code": _code(),
        "files": [
            [str(path.resolve()), state.st_size, state.st_mtime_ns] for path, state in zip(files, states, strict=True)
        ],
    }
    # What was made of an earlier state of the same files is in the same folder, and goes when a new one is made.
    # Another version of this program has a folder of its own, so that two of them don't undo each other's.
    place = home / "corpora" / _digest([_code(), *(str(path.resolve()) for path in files)]) / _digest(key)
    return open_or_store(place, lambda: _checked(read(), files[0]))


def _digest(key: object) -> str:
    return hashlib.blake2b(json.dumps(key).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _checked(placed: Iterator[Placed], file: Path) -> Iterator[Document]:
    seen = set[str]()
    has_words = False
    for where, document in placed:
        if document.doc_id in seen:
            raise DataError(f"{where}: the id {document.doc_id!r} was there before")
        seen.add(document.doc_id)
        has_words = has_words or any(character.isalnum() for character in document.text)
        yield document
    if not has_words:
        raise DataError(f"{file} has no words in it; nothing can be searched")


@cache
def _code() -> str:
    """A digest over the readers: an edited one reads again."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.blake2b(b"\0".join(path.read_bytes() for path in sources), digest_size=8).hexdigest()
