"""A corpus on disk: opened in milliseconds whatever its size, read one document at a time.

`fields.bin` has id, title, text and parent of every document, one after another, and `ends.npy` where each of them
ends; `ids.bin` and `id_ends.npy` have the ids again, close together, and `order.npy` the rows in the order of the ids,
which are searched by bisection. These small files are memory-mapped. The texts are read with pread instead: pages of a
map that were touched would count as this process's memory until the system wants them back.
"""

import json
import mmap
import os
import shutil
import uuid
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path

import numpy as np

from tools.corpus import Corpus, Fingerprint, encoded
from tools.errors import DataError
from tools.records import Document

FORMAT = 1  # raised when the files below change their meaning
_FIELDS = 4


class StoredCorpus(Corpus):
    """A corpus that `store` wrote to `folder`. Threads may share it. ValueError or OSError when it cannot be read."""

    def __init__(self, folder: Path) -> None:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        if meta["format"] != FORMAT:
            raise ValueError(f"{folder} was written in another format")
        self._count = int(meta["documents"])
        self.fingerprint = str(meta["fingerprint"])
        self._ends = np.load(folder / "ends.npy", mmap_mode="r")
        self._id_ends = np.load(folder / "id_ends.npy", mmap_mode="r")
        self._order = np.load(folder / "order.npy", mmap_mode="r")
        self._file = (folder / "fields.bin").open("rb")
        with (folder / "ids.bin").open("rb") as ids:
            self._ids = mmap.mmap(ids.fileno(), 0, access=mmap.ACCESS_READ) if self._count else b""
        if len(self._ends) != _FIELDS * self._count + 1 or os.fstat(self._file.fileno()).st_size != self._ends[-1]:
            raise ValueError(f"{folder} is not whole")

    def __getitem__(self, doc_id: str) -> Document:
        return self._document(self._row(doc_id))

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

    @cached_property
    def doc_ids(self) -> tuple[str, ...]:
        """All ids, in corpus order."""
        return tuple(self)

    def stream(self) -> Iterator[Document]:
        """Every document, in corpus order."""
        for row in range(self._count):
            yield self._document(row)

    def _row(self, doc_id: str) -> int:
        wanted = doc_id.encode("utf-8", "surrogatepass")
        low, high = 0, self._count
        while low < high:
            middle = (low + high) // 2
            row = int(self._order[middle])
            found = self._ids[self._id_ends[row] : self._id_ends[row + 1]]
            if found == wanted:
                return row
            if found < wanted:
                low = middle + 1
            else:
                high = middle
        raise KeyError(doc_id)

    def _document(self, row: int) -> Document:
        start, *ends = self._ends[_FIELDS * row : _FIELDS * row + _FIELDS + 1].tolist()
        data = os.pread(self._file.fileno(), ends[-1] - start, start)
        if len(data) != ends[-1] - start:
            raise DataError(f"{self._file.name} has been cut short; remove its folder, and it is made again")
        begins = [start, *ends[:-1]]
        doc_id, title, text, parent = (
            data[begin - start : end - start].decode("utf-8", "surrogatepass")
            for begin, end in zip(begins, ends, strict=True)
        )
        return Document(doc_id, text, title, parent)


def store(documents: Iterable[Document], folder: Path) -> None:
    """Write `documents` to the new folder `folder`, one at a time. DataError when an id comes twice."""
    folder.mkdir(parents=True)
    ends, id_ends, seen = array("q", [0]), array("q", [0]), dict[bytes, int]()
    fingerprint = Fingerprint()
    with (folder / "fields.bin").open("wb") as fields, (folder / "ids.bin").open("wb") as ids:
        for row, document in enumerate(documents):
            parts = encoded(document)
            if seen.setdefault(parts[0], row) != row:
                raise DataError(f"two documents have the id {document.doc_id!r}")
            fingerprint.add(*parts)
            for part in parts:
                fields.write(part)
                ends.append(ends[-1] + len(part))
            ids.write(parts[0])
            id_ends.append(id_ends[-1] + len(parts[0]))
    np.save(folder / "ends.npy", np.array(ends, dtype=np.int64))
    np.save(folder / "id_ends.npy", np.array(id_ends, dtype=np.int64))
    np.save(folder / "order.npy", np.array([seen[key] for key in sorted(seen)], dtype=np.int64))
    meta = {"format": FORMAT, "documents": len(seen), "fingerprint": str(fingerprint)}
    (folder / "meta.json").write_text(json.dumps(meta) + "\n", encoding="utf-8")


def open_or_store(place: Path, documents: Callable[[], Iterable[Document]]) -> Corpus:
    """The corpus kept in `place`; where there is none yet, `documents()` are written there first.

    A folder is complete or absent: it is written beside its place and moved there. Where it cannot be
    written, for want of room or permission, the documents are read once more and held in memory.
    """
    with suppress(OSError, ValueError, KeyError, EOFError):
        return StoredCorpus(place)
    beside = place.with_name(f".{place.name}-{uuid.uuid4().hex}")
    try:
        store(documents(), beside)
        shutil.rmtree(place, ignore_errors=True)  # a damaged one, or that of another process, no worse than ours
        beside.rename(place)
        return StoredCorpus(place)
    except OSError:
        return Corpus(documents())
    finally:
        shutil.rmtree(beside, ignore_errors=True)
