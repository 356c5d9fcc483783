"""A collection that was read, and corpora that are kept once read.

Large corpora are stored under the home, in the form of tools/corpus.py, and open at once. A stored
corpus is named by the content of its source files and by the code that read them. Small corpora are
read again every time.
"""

import hashlib
import inspect
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from sextant.environments.base import Qrels
from sextant.environments.readers import raw_files
from sextant.environments.readers.table_files import CHOICE
from sextant.tools.corpus import FORMAT, Corpus, open_or_store
from sextant.tools.errors import DataError
from sextant.tools.platform import files as disk
from sextant.tools.platform.interrupts import check_interrupts
from sextant.tools.records import Document
from sextant.tools.text import is_blank

# Characters of documents from which on a corpus is stored: about a quarter of a second of reading
LARGE = 8_000_000
# Nanoseconds after which another change of a file has another time, on every file system
_SETTLED = 2_000_000_000
_DIGESTS = ".digests.json"  # beside the stored corpora

# The document's place, for messages ("FILE, line 7"), and the document.
Placed = tuple[str, Document]
Reader = Callable[[], Iterator[Placed]]


class Collection(NamedTuple):
    """A collection, read whole."""

    documents: Corpus
    queries: Mapping[str, str]  # query_id -> text, of those with judgements, in the files' order
    qrels: Qrels
    pooled: Qrels | None = None
    excluded: Mapping[str, frozenset[str]] = {}  # query_id -> doc_ids not to be shown
    splits: Mapping[str, tuple[str, ...]] = {}  # "dev" and "test", where both are judged
    unjudged: frozenset[str] = frozenset()  # queries without a judgement, which are not asked
    instructions: Mapping[str, str] = {}  # query_id -> what is relevant to it
    pools: Mapping[str, frozenset[str]] = {}  # query_id -> doc_ids, which alone it ranks
    said: tuple[str, ...] = ()  # what was recognised, counted and dropped, a sentence each
    warnings: tuple[str, ...] = ()  # what is probably wrong, a sentence each


class Tally:
    """What was counted when documents were read, which a stored corpus keeps."""

    def __init__(self) -> None:
        self.counts = Counter[str]()  # of odd documents
        self.columns = Counter[str]()  # rows that have something in a column
        self.used = dict[str, None]()  # the columns that are taken


def open_corpus(
    home: Path,
    files: Sequence[Path],
    read: Reader,
    tally: Tally | None = None,
    how_read: str = "",
) -> Corpus:
    """Open the corpus of the documents that `read()` yields from `files`, in that order; `how_read`
    is what else that depends on.

    A document may come again as it was, and is left out; `tally` says how many did, and how many
    have no text. DataError when an id comes with two texts, or when there is no word in all of them.
    """
    tally = tally or Tally()
    # A folder holds the corpus of the files' newest state alone. Each version of this program has
    # its own folder, so that two of them don't undo each other's work.
    sources = {inspect.getfile(read), *map(str, Path(__file__).parent.glob("*.py"))}
    code = [how_read, *(disk.sha256(Path(source)) for source in sorted(sources))]
    folder = home / "corpora" / _digest([*code, *(str(path.resolve()) for path in files)])
    if not folder.is_dir():
        documents = []
        size = 0
        for document in _check_documents(read, files, tally.counts):
            documents.append(document)
            # Text is counted, because files may be compressed.
            if (size := size + len(document.title) + len(document.text)) >= LARGE:
                break
        else:
            return Corpus(documents)
    contents = hash_files(folder / _DIGESTS, files)
    stored_folder = folder / _digest({"format": FORMAT, "code": code, "files": contents})
    # The tally of a corpus that is stored.
    noted = stored_folder.with_name(f".{stored_folder.name}.json")

    def check_and_note() -> Iterator[Document]:
        yield from _check_documents(read, files, tally.counts)
        with suppress(OSError):  # a home that cannot be written: they are read again next time
            disk.replace(noted, json.dumps(vars(tally)), disk.SHARED)

    corpus = open_or_store(stored_folder, check_and_note)
    if not tally.columns:  # it was stored before
        with suppress(OSError, ValueError):
            for name, saved in json.loads(noted.read_bytes()).items():
                getattr(tally, name).update(saved)
    return corpus


def hash_files(digests: Path, files: Sequence[Path]) -> list[str]:
    """Return the SHA-256 of each file.

    The file `digests` has those of files with unchanged inode, size and times.
    """
    digest_of = {}
    with suppress(OSError, ValueError, TypeError):
        digest_of = dict(json.loads(digests.read_bytes()))
    hashes = []
    settled = {}
    for path in files:
        s = path.stat()
        name = f"{s.st_dev} {s.st_ino} {s.st_size} {s.st_mtime_ns} {s.st_ctime_ns}"
        hashes.append(digest_of.get(name) or disk.sha256(path))
        # A younger file may still change within the same tick of the clock.
        if time.time_ns() - s.st_ctime_ns > _SETTLED:
            settled[name] = hashes[-1]
    if settled != digest_of:
        with suppress(OSError):  # a home that cannot be written: they are read again next time
            digests.parent.mkdir(parents=True, exist_ok=True)
            disk.replace(digests, json.dumps(settled), disk.SHARED)
    return hashes


def _digest(key: object) -> str:
    content = json.dumps(key).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def _check_documents(
    read: Reader, files: Sequence[Path], counts: Counter[str]
) -> Iterator[Document]:
    hashes = dict[str, int]()  # of each document, by its id
    has_words = False
    budget = raw_files.max_unpacked_bytes(*files)
    counts.clear()  # of an earlier attempt
    for location, document in read():
        check_interrupts()
        digest = hash(document)
        before = hashes.get(document.doc_id)
        if before == digest:
            counts["documents that are there again, counted once"] += 1
            continue
        if before is not None:
            raise DataError(
                f"{location}: the id {document.doc_id!r} was there before with another text; {CHOICE}"
            )
        hashes[document.doc_id] = digest
        text = document.title + document.text
        if (budget := budget - len(text)) < 0:
            raise raw_files.unpack_limit_error(location)
        has_words = has_words or any(map(str.isalnum, text))
        counts["documents without a text"] += is_blank(text)
        yield document
    if not has_words:
        raise DataError(f"{files[0]} has no words in it; nothing can be searched")
