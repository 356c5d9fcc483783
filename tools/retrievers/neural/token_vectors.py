"""The vectors of the tokens of texts, on disk in eight bits a number, and MaxSim over them. Knows no model.

A text's vectors are added when they are first asked for, and found by its digest ever after: whoever ranks pools of a
large corpus has only those documents encoded, and each of them once. Two files grow together: `vectors`, and `records`,
which says of every text where its vectors are. A record counts once it is whole, and a text whose bytes are not as they
were written is encoded again: a writer can be killed at any time.

Eight bits are enough: with the 384 numbers of all-MiniLM-L6-v2, MaxSim over 12,000 pairs of a question and a passage of
hearings was off by 0.02% on average and 0.19% at most, in either direction, and of the best 100 documents 99.95 stayed.
"""

import logging
import mmap
import os
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import NamedTuple

import numpy as np
from filelock import unlock_descriptor
from numpy.typing import NDArray

from tools import disk
from tools.errors import RunIncomplete

Vectors = NDArray[np.float32]  # shape (tokens, dimension)

_RECORD = struct.Struct("<16sQIII")  # digest, offset in bytes, tokens, dimension, checksum of the bytes
_BLOCK_TOKENS = 4096  # of documents that are compared at a time; their products with a few queries stay in the cache
_QUERY_TOKENS = 512  # of queries that are compared at a time
_EXACT = 1 << 24  # up to here, float32 has every whole number

_LOG = logging.getLogger("sextant")


class _Place(NamedTuple):
    offset: int
    tokens: int
    dimension: int
    checksum: int

    @property
    def bytes(self) -> int:
        """For each token a scale of four bytes, then all their numbers."""
        return self.tokens * (4 + self.dimension)


class TokenVectors:
    """Texts' token vectors in one folder, by the 16-byte digests of the texts. Threads and processes share it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # Held open: a temporary folder's files stay readable after it is gone.
        self._vectors = os.open(folder / "vectors", os.O_RDWR | os.O_CREAT, 0o666)
        self._records = os.open(folder / "records", os.O_RDWR | os.O_CREAT, 0o666)
        self._mapped: mmap.mmap | bytes = b""
        self._places = dict[bytes, _Place]()
        self._read = 0  # bytes of the records that are in `_places`
        self._sound = set[bytes]()  # texts whose checksum was compared
        self._writing = Lock()

    def hold(self, digests: Sequence[bytes], encode: Callable[[list[int]], Iterable[tuple[int, Vectors]]]) -> None:
        """Have the vectors of all these texts. `encode` gets the positions of those that are not there yet, each
        text once, and gives each one's vectors, in any order; what it has given is kept even when it raises.

        RunIncomplete when they cannot be written, as on a full disk.
        """
        if self._sound.issuperset(digests):
            return
        with self._writing, self._alone():
            self._read_records()
            missing = {digest: position for position, digest in enumerate(digests) if not self._is_sound(digest)}
            if not missing:
                return
            try:
                for position, vectors in encode(sorted(missing.values())):
                    self._add(digests[position], vectors)
            except OSError as error:
                raise RunIncomplete(
                    f"token vectors cannot be written to {self._folder}: {error.strerror}; "
                    "make room, and the same command goes on"
                ) from error
            finally:
                self._map()

    def maxsim(self, queries: Sequence[Vectors], digests: Sequence[bytes]) -> NDArray[np.float32]:
        """The sum over a query's tokens of the largest inner product with a token of the text.

        The score of Khattab and Zaharia (ColBERT, SIGIR 2020). Shape (queries, texts); the texts are held. A text or
        query of no tokens scores 0. A score is the same to the last bit whatever is compared with it: vectors
        are whole numbers here, their products are exact, and only then are they scaled and summed in a fixed order.
        """
        scores = np.zeros((len(queries), len(digests)), dtype=np.float32)
        mapped, places = self._mapped, [self._places[digest] for digest in digests]
        for some in _runs([len(query) for query in queries], _QUERY_TOKENS):
            tokens, scales = (np.concatenate(each) for each in zip(*(_round(queries[n]) for n in some), strict=True))
            ends = np.cumsum([0, *(len(queries[n]) for n in some)])
            for texts in _runs([place.tokens for place in places], _BLOCK_TOKENS):
                block = [_unpack(mapped, places[n]) for n in texts]
                products = np.concatenate([numbers for numbers, _ in block], dtype=np.float32) @ tokens.T
                products *= np.concatenate([text_scales for _, text_scales in block])[:, None]
                starts = np.cumsum([0, *(places[n].tokens for n in texts[:-1])])
                best = np.maximum.reduceat(products, starts, axis=0)  # shape (texts, tokens of the queries)
                best *= scales
                for n, start, end in zip(some, ends, ends[1:], strict=False):
                    # One after the other: a plain sum would group them by the shape of the block.
                    scores[n, texts] = np.add.accumulate(best[:, start:end], axis=1)[:, -1]
        return scores

    def _is_sound(self, digest: bytes) -> bool:
        """Whether the vectors of a text are there, with the bytes that were written."""
        place = self._places.get(digest)
        if place is None:
            return False
        if digest not in self._sound:
            end = place.offset + place.bytes
            if end > len(self._mapped):
                self._map()
            if zlib.crc32(memoryview(self._mapped)[place.offset : end]) != place.checksum:
                _LOG.info(f"{self._folder / 'vectors'} is damaged; a text is encoded again")
                return False
            self._sound.add(digest)
        return True

    def _add(self, digest: bytes, vectors: Vectors) -> None:
        scales = np.abs(vectors).max(axis=1, initial=0.0) / np.float32(127)
        numbers = np.rint(vectors / np.where(scales > 0, scales, 1)[:, None]).astype(np.int8)
        written = scales.astype("<f4").tobytes() + numbers.tobytes()
        offset = os.fstat(self._vectors).st_size
        tokens, dimension = vectors.shape
        place = _Place(offset + -offset % 4, tokens, dimension, zlib.crc32(written))
        _write(self._vectors, written, place.offset)
        _write(self._records, _RECORD.pack(digest, *place), self._read)
        self._read += _RECORD.size
        self._places[digest] = place
        self._sound.add(digest)

    def _map(self) -> None:
        """Map all that is in the file now; arrays over an older map keep it."""
        size = os.fstat(self._vectors).st_size
        if size > len(self._mapped):
            self._mapped = mmap.mmap(self._vectors, size, access=mmap.ACCESS_READ)

    def _read_records(self) -> None:
        """Take in what others have added. What follows the last whole record is written over by the next one."""
        size = os.fstat(self._records).st_size
        while size - self._read >= _RECORD.size:
            whole = min(size - self._read, 1 << 20) // _RECORD.size * _RECORD.size
            content = os.pread(self._records, whole, self._read)
            for digest, *place in _RECORD.iter_unpack(content):
                self._places[digest] = _Place(*place)
            self._read += whole

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the lock among processes; it goes with the process, however that ends."""
        if not disk.lock(self._records):
            _LOG.info(f"another process is encoding into {self._folder.name}; waiting for it")
            disk.lock(self._records, wait=True)
        try:
            yield
        finally:
            unlock_descriptor(self._records)


def _round(vectors: Vectors) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """One query's vectors as whole numbers, and the scale of each.

    A text's numbers are at most 127, so they are no longer than 127 sqrt(dimension) together. With query vectors no
    longer than 2^24 over that, every product and every sum of some of them is a whole number below 2^24 (Cauchy and
    Schwarz): float32 has it exactly, whatever the order of summation. Rounding adds at most sqrt(dimension) / 2.
    """
    root = float(np.sqrt(vectors.shape[1]))
    longest = np.float32(_EXACT / (127 * root) - root / 2 - 1)
    scales = np.sqrt(np.square(vectors).sum(axis=1)) / longest
    return np.rint(vectors / np.where(scales > 0, scales, 1)[:, None]), scales


def _unpack(mapped: "mmap.mmap | bytes", place: _Place) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """A text's numbers, shape (tokens, dimension), and their scales."""
    scales = np.frombuffer(mapped, "<f4", place.tokens, place.offset)
    flat = np.frombuffer(mapped, np.int8, place.tokens * place.dimension, place.offset + scales.nbytes)
    return flat.reshape(place.tokens, place.dimension), scales


def _runs(lengths: Sequence[int], most: int) -> Iterator[list[int]]:
    """Positions whose lengths add up to at most `most`, at least one each; those of length 0 are left out."""
    run, total = list[int](), 0
    for position, length in enumerate(lengths):
        if run and total + length > most:
            yield run
            run, total = [], 0
        if length:
            run.append(position)
            total += length
    if run:
        yield run


def _write(descriptor: int, content: bytes, offset: int) -> None:
    """Write all of `content` at `offset`. OSError when it does not fit."""
    while content:
        written = os.pwrite(descriptor, content, offset)
        content, offset = content[written:], offset + written
