"""A corpus: documents by id, in a fixed order, with a fingerprint for the indexes made of it.

`Corpus` holds its documents in memory. `StoredCorpus` reads them from disk singly, for
releases of a million passages. Its folder has

    fields.bin              id, title, text and parent of every document, in a row
    ends.bin                the end of each field of fields.bin
    sums.bin                a CRC-32 of every document, compared when it is read
    ids.bin, id_ends.bin    the ids again, close together, and their ends
    order.bin               row numbers in the order of the ids, which are searched by bisection
    places.bin              the place of every row in that order
    meta.json               size, time and CRC-32 of every other file but fields.bin, compared when the folder is opened

The small files are memory-mapped. Texts are read with pread: touched pages of a map count as this
process's memory.
"""

import hashlib
import json
import logging
import mmap
import os
import shutil
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, KeysView, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, lru_cache
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Literal, Self

from sextant.tools.errors import DataError
from sextant.tools.platform import files as disk
from sextant.tools.records import Document, JsonObject

_LOG = logging.getLogger("sextant")

FORMAT = 4  # raised when the files above change their meaning
_HELD = 1 << 18  # documents; a stored corpus of more does not hold their ids in memory
# Of documents, in memory: a hit is shown next, and searches of a run find much the same
_CACHED_BYTES = 32_000_000
_LEAST_CACHED = 1024  # documents
_MOST_CACHED = 32_768  # documents
_CACHED_ROWS = 1 << 16  # row numbers by id
_BLOCK = 4096  # ids that are read at once


class Corpus(Mapping[str, Document]):
    """doc_id -> Document, in the order given. Immutable; positions are the retrievers' row numbers."""

    def __init__(self, documents: Iterable[Document]) -> None:
        self._documents: dict[str, Document] = {}
        for document in documents:
            if self._documents.setdefault(document.doc_id, document) is not document:
                raise DataError(f"two documents have the id {document.doc_id!r}")

    def __getitem__(self, doc_id: str) -> Document:
        return self._documents[doc_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._documents)

    def keys(self) -> KeysView[str]:
        """Return the ids, as a set."""
        return self._documents.keys()

    def __len__(self) -> int:
        return len(self._documents)

    @cached_property
    def doc_ids(self) -> Sequence[str]:
        """All document ids, in corpus order."""
        return tuple(self)

    @cached_property
    def places(self) -> Sequence[int]:
        """Each row's rank in the order of the ids."""
        return _list_places(sorted(range(len(self)), key=self.doc_ids.__getitem__))

    def stream(self, rows: Sequence[int] | None = None) -> Iterator[Document]:
        """Yield every document, in corpus order, or the documents in some rows."""
        documents = self._documents.values()
        yield from documents if rows is None else map(list(documents).__getitem__, rows)

    def texts(self, rows: Sequence[int] | None = None) -> Iterator[str]:
        """Yield the text that retrievers index of each document, in corpus order, or of some rows."""
        yield from map(indexed_text, self.stream(rows))

    def repeats(self) -> dict[str, str]:
        """Map each duplicate document to the first document with the same title and text."""
        first = dict[bytes, str]()
        repeats = {}
        for document in self.stream():
            digest = digest_text(f"{document.title}\0{document.text}")
            if (original := first.setdefault(digest, document.doc_id)) != document.doc_id:
                repeats[document.doc_id] = original
        return repeats

    @cached_property
    def fingerprint(self) -> str:
        """A digest of sixteen hex digits over every id, title, text and parent, in order."""
        digest = hashlib.blake2b(digest_size=8)
        for document in self.stream():
            digest.update(_with_lengths(_encode(document)))
        return digest.hexdigest()

    def slice(self, start: int, stop: int) -> "Corpus":
        """Return the documents in the rows from `start` to before `stop`, as a corpus that
        another process may have.
        """
        piece = Corpus(islice(self.stream(), start, stop))
        piece.fingerprint = _name_slice(self.fingerprint, start, stop)
        return piece


def _name_slice(
    fingerprint: str,
    start: int,
    stop: int,
) -> str:
    """Return the fingerprint of a slice, without reading its documents."""
    return hashlib.blake2b(f"{fingerprint} {start} {stop}".encode(), digest_size=8).hexdigest()


def indexed_text(document: Document) -> str:
    """Return the text that retrievers index of a document: its title, then its text."""
    return f"{document.title} {document.text}" if document.title else document.text


def _encode(document: Document) -> tuple[bytes, ...]:
    """Return the fields of a document as bytes, in the order in which they are stored and
    hashed.
    """
    fields = (document.doc_id, document.title, document.text, document.parent)
    return tuple(field.encode("utf-8", "surrogatepass") for field in fields)


def digest_text(text: str) -> bytes:
    """Return a digest of a text, 16 bytes."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _with_lengths(fields: Iterable[bytes]) -> bytes:
    """Join fields so that ("ab", "c") and ("a", "bc") differ."""
    return b"".join(len(field).to_bytes(8, "little") + field for field in fields)


class StoredCorpus(Corpus):
    """A corpus that `store` wrote to `folder`, or a slice of its rows; threads may share it.

    ValueError or OSError when it cannot be read.
    """

    def __init__(
        self,
        folder: Path,
        start: int = 0,
        stop: int | None = None,
    ) -> None:
        meta = _read_meta(folder)
        documents = int(meta["documents"])
        self._folder = folder
        self._start = start
        self._stop = stop
        if stop is None:
            self._count = documents - start
            self.fingerprint = str(meta["fingerprint"])
        else:
            self._count = stop - start
            self.fingerprint = _name_slice(meta["fingerprint"], start, stop)
        self._ends = _map(folder / "ends.bin", "q")
        self._id_ends = _map(folder / "id_ends.bin", "q")
        self._order = _map(folder / "order.bin", "q")
        self._sums = _map(folder / "sums.bin", "I")
        rows = slice(start, start + self._count)
        self.places = _map(folder / "places.bin", "I")[rows]
        self._ids = _map(folder / "ids.bin", "B")
        self._file = (folder / "fields.bin").open("rb")
        total_bytes = os.fstat(self._file.fileno()).st_size
        if len(self._ends) != 4 * documents + 1 or total_bytes != self._ends[-1]:
            raise ValueError(f"{folder} is not whole")
        self._find_row = lru_cache(maxsize=_CACHED_ROWS)(self._bisect_row)
        self._read = lru_cache(maxsize=_cache_size(documents, total_bytes))(self._read_document)

    def __getitem__(self, doc_id: str) -> Document:
        return self._read(doc_id)

    def __contains__(self, doc_id: object) -> bool:
        if not isinstance(doc_id, str):
            return False
        if self._rows is not None:
            return doc_id in self._rows
        with suppress(KeyError):
            return self._find_row(doc_id) >= 0
        return False

    def keys(self) -> KeysView[str]:
        """Return the ids, as a set."""
        return KeysView(self) if self._rows is None else self._rows.keys()

    def __iter__(self) -> Iterator[str]:
        last = self._start + self._count
        # Blocks take a third of the time that single ids take.
        for row in range(self._start, last, _BLOCK):
            ends = self._id_ends[row : min(row + _BLOCK, last) + 1].tolist()
            first = ends[0]
            ids = self._ids[first : ends[-1]].tobytes()
            for start, end in pairwise(ends):
                yield ids[start - first : end - first].decode("utf-8", "surrogatepass")

    def __len__(self) -> int:
        return self._count

    @cached_property
    def doc_ids(self) -> Sequence[str]:
        """All document ids, in corpus order; ids of a large corpus are read on access."""
        return tuple(self) if self._count <= _HELD else StoredIds(self)

    def stream(self, rows: Sequence[int] | None = None) -> Iterator[Document]:
        """Yield every document, in corpus order, or those in some rows."""
        yield from map(self._document, range(self._count) if rows is None else rows)

    def slice(self, start: int, stop: int) -> "StoredCorpus":
        """Return some of the rows; nothing is read."""
        return StoredCorpus(self._folder, self._start + start, self._start + stop)

    # Another process gets the folder, not the texts.
    def __reduce__(self) -> tuple[type[Self], tuple[Path, int, int | None]]:
        return type(self), (self._folder.absolute(), self._start, self._stop)

    @cached_property
    def _rows(self) -> dict[str, int] | None:
        """The row of each id; None for a corpus whose ids are not held."""
        if self._count > _HELD:
            return None
        return dict(zip(self.doc_ids, range(self._count), strict=True))

    def row(self, doc_id: str) -> int:
        """Return the row of an id. KeyError if there is none."""
        return self._find_row(doc_id) if self._rows is None else self._rows[doc_id]

    def _bisect_row(self, doc_id: str) -> int:
        key = doc_id.encode("utf-8", "surrogatepass")
        position = bisect_left(self._order, key, key=self._id)
        if position < len(self._order):
            stored_row = self._order[position]
            row = stored_row - self._start
            if 0 <= row < self._count and self._id(stored_row) == key:
                return row
        raise KeyError(doc_id)

    def id_of(self, row: int) -> str:
        """Return the id of the document in a row."""
        return self._id(self._start + row).decode("utf-8", "surrogatepass")

    def ids_of(self, rows: Sequence[int]) -> list[str]:
        """Return the ids of the documents in some rows."""
        ids = self._ids
        ends = self._id_ends
        numbers = [self._start + row for row in rows]
        return [
            str(ids[ends[number] : ends[number + 1]], "utf-8", "surrogatepass")
            for number in numbers
        ]

    def _id(self, row: int) -> bytes:
        return self._ids[self._id_ends[row] : self._id_ends[row + 1]].tobytes()

    def _read_document(self, doc_id: str) -> Document:
        return self._document(self.row(doc_id))

    def _document(self, row: int) -> Document:
        row += self._start
        ends = self._ends[4 * row : 4 * row + 5].tolist()
        data = os.pread(self._file.fileno(), ends[4] - ends[0], ends[0])
        if zlib.crc32(data) != self._sums[row]:
            # Without meta.json, the next opening makes the corpus again.
            with suppress(OSError):
                (self._folder / "meta.json").unlink(missing_ok=True)
            raise DataError(
                f"{self._file.name} has been damaged since it was made; the same command makes it "
                "again, or else remove its folder"
            )
        fields = (data[start - ends[0] : end - ends[0]] for start, end in pairwise(ends))
        doc_id, title, text, parent = (field.decode("utf-8", "surrogatepass") for field in fields)
        return Document(doc_id, text, title, parent)


def _read_meta(folder: Path) -> JsonObject:
    """Read the meta.json of a stored corpus, and compare its files with it. ValueError if they differ."""
    path = folder / "meta.json"
    meta: JsonObject = json.loads(path.read_text(encoding="utf-8"))
    if meta["format"] != FORMAT:
        raise ValueError(f"{folder} was written in another format")
    fingerprints = disk.check_fingerprints(folder, meta["files"])
    if fingerprints != meta["files"]:
        text = json.dumps(meta | {"files": fingerprints}) + "\n"
        with suppress(OSError):  # the folder may be read-only
            disk.replace(path, text, disk.SHARED)
    return meta


def _cache_size(documents: int, total_bytes: int) -> int:
    """Return the number of documents that fit _CACHED_BYTES by their mean length, within its bounds."""
    return min(max(_CACHED_BYTES * documents // max(1, total_bytes), _LEAST_CACHED), _MOST_CACHED)


class StoredIds(Sequence[str]):
    """The ids of a stored corpus, in corpus order."""

    def __init__(self, corpus: StoredCorpus) -> None:
        # the place of each row in the order of the ids
        self.row = corpus.row
        self.of_rows = corpus.ids_of
        self.places = corpus.places
        self._corpus = corpus

    def __len__(self) -> int:
        return len(self._corpus)

    def __getitem__(self, row: Any) -> Any:  # an id, or those of a slice
        rows = range(len(self))[row]
        if isinstance(rows, int):
            return self._corpus.id_of(rows)
        return self._corpus.ids_of(rows)

    def __contains__(self, doc_id: object) -> bool:
        return doc_id in self._corpus


def _map(path: Path, type_code: Literal["q", "I", "B"]) -> "memoryview[int]":
    """Memory-map a file of numbers, of a kind of the module `array`."""
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:  # an empty file cannot be mapped
            return memoryview(b"").cast(type_code)
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)).cast(type_code)


def store(documents: Iterable[Document], folder: Path) -> None:
    """Write `documents` to the new folder `folder`, each by itself.

    DataError if an id comes twice.
    """
    folder.mkdir(parents=True, exist_ok=True)
    ends = array("q", [0])
    id_ends = array("q", [0])
    rows = dict[bytes, int]()
    sums = array("I")
    digest = hashlib.blake2b(digest_size=8)
    with (folder / "fields.bin").open("wb") as fields, (folder / "ids.bin").open("wb") as ids:
        for row, document in enumerate(documents):
            encoded = _encode(document)
            if rows.setdefault(encoded[0], row) != row:
                raise DataError(f"two documents have the id {document.doc_id!r}")
            digest.update(_with_lengths(encoded))
            record = b"".join(encoded)
            fields.write(record)
            sums.append(zlib.crc32(record))
            for value in encoded:
                ends.append(ends[-1] + len(value))
            ids.write(encoded[0])
            id_ends.append(id_ends[-1] + len(encoded[0]))
    order = array("q", (rows[key] for key in sorted(rows)))
    numbers = {
        "ends": ends,
        "id_ends": id_ends,
        "order": order,
        "places": _list_places(order),
        "sums": sums,
    }
    for name, column in numbers.items():
        (folder / f"{name}.bin").write_bytes(column)
    files = {}
    for path in sorted(folder.iterdir()):
        if path.name != "fields.bin":
            files[path.name] = disk.fingerprint(path)
    (folder / "meta.json").write_text(
        json.dumps(
            {
                "format": FORMAT,
                "documents": len(rows),
                "fingerprint": digest.hexdigest(),
                "files": files,
            }
        )
        + "\n",
        encoding="utf-8",
    )


def _list_places(order: Sequence[int]) -> "array[int]":
    """Return the place of every row; `order` has the rows by place."""
    places = array("I", bytes(4 * len(order)))
    for place, row in enumerate(order):
        places[row] = place
    return places


def open_or_store(folder: Path, documents: Callable[[], Iterable[Document]]) -> Corpus:
    """Open the corpus kept in `place`; if there is none yet, write `documents()` there first.

    Everything else in the parent of `place` is outdated, and is removed when a corpus is written.
    If it cannot be written, for lack of room or permission, the documents are held in memory.
    """
    with suppress(
        OSError,
        ValueError,
        KeyError,
        EOFError,
        TypeError,
        AttributeError,
    ):
        return StoredCorpus(folder)
    _LOG.info(f"reading the documents, and keeping them in {folder}; this is done once")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with disk.temporary_sibling(folder, disk.SHARED, folder=True) as sibling:
            store(documents(), sibling)
            shutil.rmtree(
                folder, ignore_errors=True
            )  # a damaged one, or that of another process, no worse than ours
            sibling.rename(folder)
        for outdated in folder.parent.glob("[!.]*"):
            if outdated != folder:  # a process that has it open keeps it
                shutil.rmtree(outdated, ignore_errors=True)
        return StoredCorpus(folder)
    except OSError as error:
        _LOG.info(
            f"{folder} cannot be written ({error.strerror or error}); the documents are held in "
            f"memory"
        )
        return Corpus(documents())
