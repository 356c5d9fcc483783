"""A corpus on disk: opened in a fraction of a second with a million documents, which are read one at a time.

`fields.bin` has id, title, text and parent of every document, one after another, and `ends.npy` where each of them
ends; `ids.bin` and `id_ends.npy` have the ids again, close together, and `order.npy` the rows in the order of the
ids, which are searched by bisection. These small files are memory-mapped. The texts are read with pread instead:
pages of a map that were touched would count as this process's memory until the system wants them back.

`sums.npy` has a CRC-32 of every document, compared when it is read; `meta.json` has one of each small file, compared
on opening. What is damaged is made again.
"""

import json
import logging
import mmap
import os
import shutil
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np

from tools import disk
from tools.corpus import Corpus, Fingerprint, encode_document
from tools.errors import DataError
from tools.records import Document

_LOG = logging.getLogger("sextant")

FORMAT = 2  # raised when the files below change their meaning
_FIELDS = 4
_APART = 64  # ids between two signposts, which are held in memory: a million documents have 16,000
# Documents in memory are about so many bytes of the file, because what a search has found is read to be shown in the
# next moment, and searches of one run find much the same. At least what 32 searches at once have found stays.
_KEPT_BYTES = 32_000_000
_KEPT = (1024, 32_768)  # documents, at least and at most


class StoredCorpus(Corpus):
    """A corpus that `store` wrote to `folder`. Threads may share it. ValueError or OSError when it cannot be read."""

    def __init__(self, folder: Path) -> None:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        if meta["format"] != FORMAT:
            raise ValueError(f"{folder} was written in another format")
        for name, crc in meta["crc32"].items():
            if zlib.crc32((folder / name).read_bytes()) != crc:
                raise ValueError(f"{folder / name} is damaged")
        self._folder = folder
        self._count = int(meta["documents"])
        self.fingerprint = str(meta["fingerprint"])
        self._ends = _numbers(folder / "ends.npy")
        self._id_ends = _numbers(folder / "id_ends.npy")
        self._order = _numbers(folder / "order.npy")
        self._sums = _numbers(folder / "sums.npy")
        self._file = (folder / "fields.bin").open("rb")
        with (folder / "ids.bin").open("rb") as ids:
            self._ids = mmap.mmap(ids.fileno(), 0, access=mmap.ACCESS_READ) if self._count else b""
        if len(self._ends) != _FIELDS * self._count + 1 or os.fstat(self._file.fileno()).st_size != self._ends[-1]:
            raise ValueError(f"{folder} is not whole")
        kept = _KEPT_BYTES * self._count // max(1, self._ends[-1])
        self._read = lru_cache(maxsize=min(max(kept, _KEPT[0]), _KEPT[1]))(
            lambda doc_id: self._document(self._row(doc_id))
        )

    def __getitem__(self, doc_id: str) -> Document:
        return self._read(doc_id)

    def __contains__(self, doc_id: object) -> bool:
        try:
            self._row(doc_id)  # type: ignore[arg-type]
        except (KeyError, AttributeError):
            return False
        return True

    def __iter__(self) -> Iterator[str]:
        start = 0
        for end in self._id_ends[1:].tolist():
            yield self._ids[start:end].decode("utf-8", "surrogatepass")
            start = end

    def __len__(self) -> int:
        return self._count

    def stream(self) -> Iterator[Document]:
        """Every document, in corpus order."""
        for row in range(self._count):
            yield self._document(row)

    def _row(self, doc_id: str) -> int:
        wanted = doc_id.encode("utf-8", "surrogatepass")
        near = max(0, bisect_right(self._signposts, wanted) - 1) * _APART
        place = bisect_left(self._order, wanted, near, min(near + _APART, self._count), key=self._id)
        if place < self._count and self._id(row := self._order[place]) == wanted:
            return int(row)
        raise KeyError(doc_id)

    def _id(self, row: int) -> bytes:
        return self._ids[self._id_ends[row] : self._id_ends[row + 1]]

    @cached_property
    def _signposts(self) -> list[bytes]:
        """Some of the ids in their order, so that only the last steps of a bisection read from the map."""
        return [self._id(row) for row in self._order[::_APART]]

    def _document(self, row: int) -> Document:
        start, id_end, title_end, text_end, end = self._ends[_FIELDS * row : _FIELDS * row + _FIELDS + 1]
        data = os.pread(self._file.fileno(), end - start, start)
        if zlib.crc32(data) != self._sums[row]:
            with suppress(OSError):
                (self._folder / "meta.json").unlink(missing_ok=True)  # so that the next opening makes it again
            raise DataError(
                f"{self._file.name} has been damaged since it was made; "
                "the same command makes it again, or else remove its folder"
            )
        id_end, title_end, text_end = id_end - start, title_end - start, text_end - start
        return Document(
            data[:id_end].decode("utf-8", "surrogatepass"),
            data[title_end:text_end].decode("utf-8", "surrogatepass"),
            data[id_end:title_end].decode("utf-8", "surrogatepass"),
            data[text_end:].decode("utf-8", "surrogatepass"),
        )


def _numbers(path: Path) -> memoryview:
    """A memory-mapped array, from which single numbers are read ten times as fast as numpy does."""
    return memoryview(np.load(path, mmap_mode="r"))


def store(documents: Iterable[Document], folder: Path) -> None:
    """Write `documents` to the new folder `folder`, one at a time. DataError when an id comes twice."""
    folder.mkdir(parents=True, exist_ok=True)
    ends, id_ends, sums, seen = array("q", [0]), array("q", [0]), array("I"), dict[bytes, int]()
    fingerprint = Fingerprint()
    with (folder / "fields.bin").open("wb") as fields, (folder / "ids.bin").open("wb") as ids:
        for row, document in enumerate(documents):
            parts = encode_document(document)
            if seen.setdefault(parts[0], row) != row:
                raise DataError(f"two documents have the id {document.doc_id!r}")
            fingerprint.add(*parts)
            fields.write(whole := b"".join(parts))
            sums.append(zlib.crc32(whole))
            for part in parts:
                ends.append(ends[-1] + len(part))
            ids.write(parts[0])
            id_ends.append(id_ends[-1] + len(parts[0]))
    np.save(folder / "ends.npy", np.array(ends, dtype=np.int64))
    np.save(folder / "id_ends.npy", np.array(id_ends, dtype=np.int64))
    np.save(folder / "order.npy", np.array([seen[key] for key in sorted(seen)], dtype=np.int64))
    np.save(folder / "sums.npy", np.array(sums, dtype=np.uint32))
    crc = {path.name: zlib.crc32(path.read_bytes()) for path in sorted(folder.iterdir()) if path.name != "fields.bin"}
    meta = {"format": FORMAT, "documents": len(seen), "fingerprint": str(fingerprint), "crc32": crc}
    (folder / "meta.json").write_text(json.dumps(meta) + "\n", encoding="utf-8")


def open_or_store(place: Path, documents: Callable[[], Iterable[Document]]) -> Corpus:
    """The corpus kept in `place`; where there is none yet, `documents()` are written there first.

    `place` is alone in its folder: what else is there is outdated, and is removed when a new one is made.
    A folder is complete or absent: it is written beside its place and moved there. Where it cannot be
    written, for want of room or permission, the documents are read once more and held in memory.
    """
    with suppress(OSError, ValueError, KeyError, EOFError, TypeError, AttributeError):
        return StoredCorpus(place)
    _LOG.info(f"reading the documents, and keeping them in {place}; this is done once")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with disk.drafting(place, disk.SHARED, folder=True) as beside:
            store(documents(), beside)
            shutil.rmtree(place, ignore_errors=True)  # a damaged one, or that of another process, no worse than ours
            beside.rename(place)
        for outdated in place.parent.glob("[!.]*"):
            if outdated != place:  # who has it open keeps it: an open file outlives its name
                shutil.rmtree(outdated, ignore_errors=True)
        return StoredCorpus(place)
    except OSError as error:
        _LOG.info(f"{place} cannot be written ({error.strerror}); the documents are held in memory")
        return Corpus(documents())
