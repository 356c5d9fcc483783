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
from tools.records import Document
from tools.stored_corpus import FORMAT, open_or_store

LARGE = 8_000_000  # bytes of files from which on a corpus is kept: about a quarter of a second of reading


def corpus(home: Path, files: Sequence[Path], read: Callable[[], Iterator[Document]]) -> Corpus:
    """The documents that `read()` yields from `files`, in that order."""
    states = [path.stat() for path in files]
    if sum(state.st_size for state in states) < LARGE:
        return Corpus(read())
    key = {
        "format": FORMAT,
        "code": _code(),
        "files": [
            [str(path.resolve()), state.st_size, state.st_mtime_ns] for path, state in zip(files, states, strict=True)
        ],
    }
    digest = hashlib.blake2b(json.dumps(key).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return open_or_store(home / "corpora" / digest, read)


@cache
def _code() -> str:
    """A digest over the readers: an edited one reads again."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.blake2b(b"\0".join(path.read_bytes() for path in sources), digest_size=8).hexdigest()
