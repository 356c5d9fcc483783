"""OBLIQ-Bench's layout, and corpora that are kept once read.

OBLIQ-Bench: corpus/corpus.jsonl and queries+qrels/queries.jsonl with rows {"_id", "text"}, and
queries+qrels/qrels.tsv with a header line (`query-id corpus-id score`, with hyphens or
underscores). Some tasks have pooled judgements next to gold judgements (qrels_pool.tsv), some a list
of documents that must not be shown (per_query_excluded_ids.json).

Large corpora are stored under the home, in the form of tools/corpus.py, and open at once. A stored
corpus is named by the content of its source files and by the code that read them. Small corpora are
read again every time.
"""

import hashlib
import inspect
import json
import time
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from sextant.environments.base import Grades, Qrels
from sextant.environments.readers import document_ids, raw_files
from sextant.environments.readers import files as tables
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


class Contradiction(DataError):
    """An id that comes with two texts; the message lacks advice."""

    def __init__(
        self,
        message: str,
        again: str,
        before: str,
    ) -> None:
        super().__init__(message)
        # The files that have the two texts.
        self.files = (
            again.rpartition(", ")[0],
            before.rpartition(", ")[0],
        )


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
        self.used = Counter[str]()  # the same, of the columns that are taken

    def save(self, path: Path) -> None:
        """Write the counts to a file; nothing if the home cannot be written."""
        with suppress(OSError):  # they are read and counted again next time
            disk.replace(path, json.dumps(vars(self)), disk.SHARED)

    def load(self, path: Path) -> None:
        """Take the counts from a file; nothing if there is none."""
        with suppress(OSError, ValueError):
            for name, saved in json.loads(path.read_bytes()).items():
                getattr(self, name).update(saved)


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
    have no text. DataError when an id comes with two texts, or when there is no word in all of
    them.
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
    stored_folder = folder / _digest(
        {
            "format": FORMAT,
            "code": code,
            "files": hash_files(folder / _DIGESTS, files),
        }
    )
    # The counts of a corpus that is stored.
    noted = stored_folder.with_name(f".{stored_folder.name}.json")

    def check_and_note() -> Iterator[Document]:
        yield from _check_documents(read, files, tally.counts)
        tally.save(noted)

    corpus = open_or_store(stored_folder, check_and_note)
    if not tally.columns:  # it was stored before
        tally.load(noted)
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
    return hashlib.blake2b(
        json.dumps(key).encode("utf-8", "surrogatepass"), digest_size=8
    ).hexdigest()


def _check_documents(
    read: Reader, files: Sequence[Path], counts: Counter[str]
) -> Iterator[Document]:
    doc_ids = set()
    has_words = False
    budget = raw_files.max_unpacked_bytes(*files)
    # Id -> locations of its repetitions, with the hashes of their documents.
    repeats = dict[str, list[tuple[str, int]]]()
    counts.clear()  # of an earlier attempt
    for location, document in read():
        check_interrupts()
        if document.doc_id in doc_ids:
            repeats.setdefault(document.doc_id, []).append((location, hash(document)))
            counts["documents that are there again, counted once"] += 1
            continue
        doc_ids.add(document.doc_id)
        if (budget := budget - len(document.title) - len(document.text)) < 0:
            raise raw_files.unpack_limit_error(location)
        has_words = has_words or any(map(str.isalnum, document.title + document.text))
        counts["documents without a text"] += is_blank(document.title + document.text)
        yield document
    if not has_words:
        raise DataError(f"{files[0]} has no words in it; nothing can be searched")
    for location, document in read() if repeats else ():
        # This is the first document of the id.
        for repeat_location, digest in repeats.pop(document.doc_id, ()):
            if digest != hash(document):
                message = (
                    f"{repeat_location}: the id {document.doc_id!r} was there before with another text, in "
                    f"{location}"
                )
                raise Contradiction(message, repeat_location, location)


def read_obliq(folder: Path, home: Path) -> Collection:
    """Read the task in `folder`. DataError for anything missing or damaged."""
    inside = folder / "queries+qrels"
    corpus_file = tables.find_file(folder / "corpus", "corpus.jsonl")

    def read_documents() -> Iterator[Placed]:
        for location, row in tables.read_objects(corpus_file, "_id", "text"):
            yield (
                location,
                Document(
                    tables.check_id(row["_id"], location), tables.check_text(row["text"], location)
                ),
            )

    documents = open_corpus(home, [corpus_file], read_documents)
    queries_file, qrels_file = (
        tables.find_file(inside, name) for name in ("queries.jsonl", "qrels.tsv")
    )
    queries = {}
    for location, row in tables.read_objects(queries_file, "_id", "text"):
        if (query_id := tables.check_id(row["_id"], location)) in queries:
            raise DataError(f"{location}: the id {query_id!r} was there before")
        queries[query_id] = tables.check_text(row["text"], location)
    if not queries:
        raise DataError(f"{queries_file} has no queries in it")
    gold = _read_qrels(qrels_file, queries)
    pool, masks = (
        tables.find_optional_file(inside, name)
        for name in ("qrels_pool.tsv", "per_query_excluded_ids.json")
    )
    # `environments.validate_environment` sees the headline judgements alone, so the documents of pooled ones are
    # checked here.
    pooled = _read_qrels(pool, queries, documents) if pool else None
    excluded = (
        read_id_lists(masks, queries, "a search would show what it must not") if masks else {}
    )
    if strangers := excluded.keys() - queries.keys():
        raise DataError(
            f"{masks} has an entry for the query {min(strangers)!r}, which queries.jsonl has not"
        )
    return Collection(documents, queries, gold, pooled, excluded)


def read_id_lists(
    path: Path,
    queries: Mapping[str, str],
    lest: str,
    read_id: Callable[[Any, str], str] = tables.check_id,
) -> dict[str, frozenset[str]]:
    """Read an object of lists of document ids.

    DataError if one of `queries` has none, `lest` something happens.
    """
    lists = tables.read_json(path)
    if not isinstance(lists, dict):
        raise DataError(f"{path} is not an object of lists of ids, one a query; fetch it again")
    listed = {}
    for query_id, doc_ids in lists.items():
        location = f"{path}, query {tables.abbreviate(query_id)}"
        if not isinstance(doc_ids, list):
            raise DataError(
                f"{location}: {tables.abbreviate(doc_ids)} where a list of ids is expected; fetch it again"
            )
        listed[query_id] = frozenset(read_id(doc_id, location) for doc_id in doc_ids)
    if unlisted := queries.keys() - listed.keys():
        alike = document_ids.suggest(min(unlisted), listed)
        raise DataError(f"{path} has no entry for query {min(unlisted)!r}; {lest}{alike}")
    return listed


QUERY = ("query-id", "query_id", "qid")
DOCUMENT = ("corpus-id", "corpus_id", "doc_id", "docid", "document_id")
SCORE = ("score", "relevance", "label")


def _read_qrels(path: Path, queries: Container[str], documents: Container[str] = ()) -> Grades:
    qrels: Grades = {}
    for location, row in tables.read_headed(path, (*QUERY, *DOCUMENT, *SCORE)):
        query_id, doc_id, score = (
            tables.pick_column(location, row, *names) for names in (QUERY, DOCUMENT, SCORE)
        )
        grades = qrels.setdefault(tables.check_id(query_id, location), {})
        if tables.check_id(doc_id, location) in grades:
            raise DataError(f"{location}: {query_id!r} and {doc_id!r} are judged twice")
        grades[doc_id] = tables.check_grade(score, location)
        if query_id not in queries:
            raise DataError(f"{location}: the query {query_id!r} is not in queries.jsonl")
        if documents and doc_id not in documents:
            raise DataError(f"{location}: the document {doc_id!r} is not in the corpus")
    if not qrels:
        raise DataError(f"{path} has no judgements in it")
    return qrels
