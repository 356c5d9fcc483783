"""Late interaction: every token keeps its vector, and each token of a query looks for its best
match (MaxSim).

Documents are encoded when they are first ranked, so `rerank(bm25,late,depth=200)` encodes only the
pools. Without a pool all documents are compared; there is no approximate index (PLAID), because no
library of one runs next to ours.

Token vectors have eight bits a number. With all-MiniLM-L6-v2 (384 numbers), MaxSim over 12,000
pairs of a question and a passage of hearings was off by 0.02% on average and 0.19% at most, and of
the best 100 documents 99.95 stayed.
"""

import logging
import mmap
import os
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from filelock import unlock_descriptor
from numpy.typing import NDArray

from sextant.tools.corpus import Corpus, digest_text, indexed_text
from sextant.tools.errors import DataError, RunIncomplete, UsageError
from sextant.tools.platform import files
from sextant.tools.platform.cli import Progress
from sextant.tools.platform.number_format import plural
from sextant.tools.records import Hits
from sextant.tools.retrievers.base import Options, Ranker, Retriever, Searches
from sextant.tools.retrievers.index_store import open_index
from sextant.tools.retrievers.neural import model_table
from sextant.tools.retrievers.vectors.embedder import chunk_by_size, require_finite

if TYPE_CHECKING:
    from sextant.tools.retrievers.neural.encoder import Encoder

Vectors = NDArray[np.float32]  # of the tokens of a text, shape (tokens, dimension)

_BLOCK_TEXTS = 2048  # that are tokenized together, so that many have equal lengths
_SEARCHES = 64  # whose scores for a whole corpus are held at a time
# Digest, offset in bytes, tokens, dimension, checksum of the bytes.
_RECORD = struct.Struct("<16sQIII")
# Of documents that are compared at a time; their products with a few queries stay in the cache
_BLOCK_TOKENS = 4096
_QUERY_TOKENS = 512  # of queries that are compared at a time
_EXACT = 1 << 24  # up to here, float32 has every whole number

_LOG = logging.getLogger("sextant")


class _StoredVectors(NamedTuple):
    offset: int
    tokens: int
    dimension: int
    checksum: int

    @property
    def bytes(self) -> int:  # length: for each token a scale of four bytes, then all their numbers
        return self.tokens * (4 + self.dimension)


class TokenVectors:
    """The vectors of the tokens of texts in a folder, by the 16-byte digests of the texts, and
    MaxSim over them.

    Vectors are added on first use. Two files grow together: `vectors`, and `records` with each text's place in it. As a
    writer may be killed, only whole records count, and a text whose checksum is wrong is encoded again. Threads and
    processes share it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # Held open: a temporary folder's files stay readable after it is gone.
        self._vectors = os.open(folder / "vectors", os.O_RDWR | os.O_CREAT, 0o666)
        self._records = os.open(folder / "records", os.O_RDWR | os.O_CREAT, 0o666)
        self._mapped: mmap.mmap | bytes = b""
        self._places = dict[bytes, _StoredVectors]()
        self._read = 0  # bytes of the records that are in `_places`
        self._sound = set[bytes]()  # texts whose checksum was compared
        self._writing = Lock()

    def hold(
        self, digests: Sequence[bytes], encode: Callable[[list[int]], Iterable[tuple[int, Vectors]]]
    ) -> None:
        """Add the missing vectors of these texts. RunIncomplete when they cannot be written, as on
        a full disk.

        `encode` gets the positions of missing texts, each text once, and yields positions and
        vectors in any order; vectors that it has yielded are kept even if it raises.
        """
        if self._sound.issuperset(digests):
            return
        with self._writing, self._alone():
            self._read_records()
            missing = {
                digest: position
                for position, digest in enumerate(digests)
                if not self._is_sound(digest)
            }
            if not missing:
                return
            try:
                for position, vectors in encode(sorted(missing.values())):
                    self._add(digests[position], vectors)
            except OSError as error:
                raise RunIncomplete(
                    f"token vectors cannot be written to {self._folder}: "
                    f"{error.strerror or error}; make room, and the same command goes on"
                ) from error
            finally:
                self._map()

    def maxsim(self, queries: Sequence[Vectors], digests: Sequence[bytes]) -> NDArray[np.float32]:
        """Return each query's sum, over its tokens, of the largest inner product with a token of
        the text.

        The score of Khattab and Zaharia (ColBERT, SIGIR 2020). Shape (queries, texts); the texts
        are held. A text or query of no tokens scores 0. A score is the same to the last bit in any
        batch: vectors are whole numbers here, their products are exact, and only then scaled and
        summed in a fixed order.
        """
        scores = np.zeros((len(queries), len(digests)), dtype=np.float32)
        mapped = self._mapped
        places = [self._places[digest] for digest in digests]
        wordy = [n for n, query in enumerate(queries) if len(query)]
        filled = [n for n, entry in enumerate(places) if entry.tokens]
        for batch in (
            wordy[run] for run in chunk_by_size([len(queries[n]) for n in wordy], _QUERY_TOKENS)
        ):
            tokens, scales = (
                np.concatenate(each)
                for each in zip(*(_round(queries[n]) for n in batch), strict=True)
            )
            ends = np.cumsum([0, *(len(queries[n]) for n in batch)])
            for texts in (
                filled[run]
                for run in chunk_by_size([places[n].tokens for n in filled], _BLOCK_TOKENS)
            ):
                block = [_unpack(mapped, places[n]) for n in texts]
                products = (
                    np.concatenate([numbers for numbers, _ in block], dtype=np.float32) @ tokens.T
                )
                products *= np.concatenate([text_scales for _, text_scales in block])[:, None]
                starts = np.cumsum([0, *(places[n].tokens for n in texts[:-1])])
                # Shape (texts, tokens of the queries).
                best = np.maximum.reduceat(products, starts, axis=0)
                best *= scales
                for n, start, end in zip(batch, ends, ends[1:], strict=False):
                    # One after the other: a plain sum would group them by the shape of the block.
                    scores[n, texts] = np.add.accumulate(best[:, start:end], axis=1)[:, -1]
        return scores

    def _is_sound(self, digest: bytes) -> bool:
        """Return whether the vectors of a text are there, with the bytes that were written."""
        if (entry := self._places.get(digest)) is None:
            return False
        if digest not in self._sound:
            end = entry.offset + entry.bytes
            if end > len(self._mapped):
                self._map()
            if zlib.crc32(memoryview(self._mapped)[entry.offset : end]) != entry.checksum:
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
        entry = _StoredVectors(offset + -offset % 4, tokens, dimension, zlib.crc32(written))
        _write(self._vectors, written, entry.offset)
        _write(self._records, _RECORD.pack(digest, *entry), self._read)
        self._read += _RECORD.size
        self._places[digest] = entry
        self._sound.add(digest)

    def _map(self) -> None:  # map the file as it is now; arrays over an older map keep that alive
        size = os.fstat(self._vectors).st_size
        if size > len(self._mapped):
            self._mapped = mmap.mmap(self._vectors, size, access=mmap.ACCESS_READ)

    def _read_records(self) -> None:
        """Read the records that others have added.

        The next record overwrites the bytes after the last whole record.
        """
        size = os.fstat(self._records).st_size
        while size - self._read >= _RECORD.size:
            complete = min(size - self._read, 1 << 20) // _RECORD.size * _RECORD.size
            content = os.pread(self._records, complete, self._read)
            for digest, *fields in _RECORD.iter_unpack(content):
                self._places[digest] = _StoredVectors(*fields)
            self._read += complete

    @contextmanager
    def _alone(self) -> Iterator[None]:  # hold the lock among processes; it ends with the process
        if not files.lock(self._records):
            _LOG.info(f"another process is encoding into {self._folder.name}; waiting for it")
            files.lock(self._records, wait=True)
        try:
            yield
        finally:
            unlock_descriptor(self._records)


def _round(vectors: Vectors) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    # Returns one query's vectors as whole numbers, and the scale of each. A text's numbers are at
    # most 127, so its vectors are at most 127 sqrt(dimension) long. With query vectors no longer
    # than 2^24 over that, every product and partial sum is a whole number below 2^24 (Cauchy and
    # Schwarz), which float32 has exactly, in any order of summation. Rounding adds at most
    # sqrt(dimension) / 2.
    root = float(np.sqrt(vectors.shape[1]))
    longest = np.float32(_EXACT / (127 * root) - root / 2 - 1)
    scales = np.sqrt(np.square(vectors).sum(axis=1)) / longest
    return np.rint(vectors / np.where(scales > 0, scales, 1)[:, None]), scales


def _unpack(
    mapped: "mmap.mmap | bytes", entry: _StoredVectors
) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Return a text's numbers, shape (tokens, dimension), and their scales."""
    scales = np.frombuffer(mapped, "<f4", entry.tokens, entry.offset)
    return np.frombuffer(
        mapped, np.int8, entry.tokens * entry.dimension, entry.offset + scales.nbytes
    ).reshape(entry.tokens, entry.dimension), scales


def _write(descriptor: int, content: bytes, offset: int) -> None:
    while content:
        written = os.pwrite(descriptor, content, offset)
        content = content[written:]
        offset = offset + written


class LateInteraction(model_table.LocalModelMixin, Retriever):
    """The sum, over the query's tokens, of the best match among the document's; a plain encoder is used untrained.

    Khattab and Zaharia, ColBERT (SIGIR 2020). Inner products of token vectors, those of documents rounded to 8 bits.
    """

    def __init__(
        self,
        corpus: Corpus,
        home: Path | None = None,
        model: str = model_table.BUNDLED,
        *,
        like: str = "",
        weights: str = "",
        run_code: str = "",
    ) -> None:
        self._found = model_table.open_model(_row(model, like, run_code), model, weights)
        self._row = self._found.row
        self.name = model_table.name_model(
            "late",
            model,
            like=like,
            weights=self._found.weights,
            run_code=run_code,
        )
        self._corpus = corpus
        self._ranker = Ranker(corpus.doc_ids)
        # Position in the corpus -> digest of a text that was asked for.
        self._digests = dict[int, bytes]()
        # Without the corpus: a text has the same vectors in every one. It grows with what is asked
        # for.
        self._tokens = open_index(
            home,
            model_table.index_key("late", self.name, self._row, [__name__]),
            build=lambda folder: None,
            load=_load,
        )

    @classmethod
    def require(
        cls,
        model: str,
        part_count: int,
        options: Options,
    ) -> None:
        """Refuse a model that has no vectors of tokens, or is not here."""
        _row(model, options["like"], options["run_code"])

    @cached_property
    def _encoder(self) -> "Encoder":
        from sextant.tools.retrievers.neural.encoder import load_tokens  # imports torch: seconds

        return load_tokens(self._found, is_trained(self._found.folder))

    def _search_many(self, searches: Searches, k: int) -> list[Hits]:
        texts = [self._row.query_text(search.text, search.instruction) for search in searches]
        queries = [
            vectors.float().cpu().numpy() for _, [vectors] in self._encoder.encode(texts, "query")
        ]
        for search, vectors in zip(searches, queries, strict=True):
            require_finite(vectors, self.name, f"the query {search.text[:80]!r}")
        hits = [Hits([], []) for _ in searches]
        pools = {
            position: sorted(self._ranker.rows(set(search.among).difference(search.excluded)))
            for position, search in enumerate(searches)
            if search.among is not None
        }
        self._hold(sorted(set().union(*pools.values())))
        for position, rows in pools.items():
            scores = self._tokens.maxsim([queries[position]], [self._digests[row] for row in rows])[
                0
            ]
            hits[position] = self._ranker.hits(np.array(rows, dtype=np.int64), scores, k)
        unrestricted = [position for position in range(len(searches)) if position not in pools]
        for first in range(0, len(unrestricted), _SEARCHES):
            batch = unrestricted[first : first + _SEARCHES]
            self._hold(range(len(self._corpus)))
            scored = self._tokens.maxsim(
                [queries[position] for position in batch],
                [self._digests[row] for row in range(len(self._corpus))],
            )
            for position, scores in zip(batch, scored, strict=True):
                hits[position] = self._ranker.top(scores, k, excluded=searches[position].excluded)
        return hits

    def _text(self, row: int) -> str:
        return indexed_text(self._corpus[self._corpus.doc_ids[row]])

    def _hold(self, rows: Sequence[int]) -> None:
        self._digests |= {
            row: digest_text(self._text(row)) for row in rows if row not in self._digests
        }
        self._tokens.hold(
            [self._digests[row] for row in rows], lambda missing: self._encode(missing, rows)
        )

    def _encode(self, missing: Sequence[int], rows: Sequence[int]) -> Iterator[tuple[int, Vectors]]:
        """Yield (position, vectors of the document at `rows[position]`) for all `missing`
        positions, block by block.
        """
        lengths = {position: len(self._text(rows[position])) for position in missing}
        order = sorted(missing, key=lambda position: (-lengths[position], position))
        # Long work says beforehand what it is and what it will take on disk.
        if len(order) >= _BLOCK_TEXTS:
            settings = (
                ""
                if is_trained(self._found.folder)
                else ", with a model that was not trained for it"
            )
            tokens = sum(lengths.values()) / 4  # as in English
            size = tokens * (self._encoder.dimension + 4) / 1e9
            _LOG.info(
                f"{self.name}: {plural(len(order), 'text')} to encode for MaxSim{settings}, into about "
                f"{size:.1f} GB"
            )
        progress = Progress(self.name, len(order), "texts")
        for first in range(0, len(order), _BLOCK_TEXTS):
            block = order[first : first + _BLOCK_TEXTS]
            texts = [self._row.document_text(self._text(rows[position])) for position in block]
            for places, encoded in self._encoder.encode(texts, "document"):
                for position, vectors in zip(
                    (block[index] for index in places), encoded, strict=True
                ):
                    numbers = vectors.float().cpu().numpy()
                    require_finite(
                        numbers,
                        self.name,
                        f"the document {self._corpus.doc_ids[rows[position]]!r}",
                        "the vectors that were made before",
                    )
                    yield position, numbers
                progress.add(len(places))


def _load(folder: Path) -> TokenVectors:
    try:
        return TokenVectors(folder)
    except OSError as error:  # a home that others keep
        _LOG.info(
            f"{folder} cannot be written ({error.strerror or error}); token vectors are not kept"
        )
        with files.temporary_folder() as temporary:
            return TokenVectors(temporary)


def _row(model: str, like: str, run_code: str) -> model_table.ModelRow:
    """Return the row of a model, without the steps that sentence-transformers does by itself."""
    trained = is_trained(model_table.find_folder(model))
    row = model_table.require_model(model, "late" if trained else "dense", like, run_code)
    if row.bidirectional or row.base:
        raise UsageError(
            f"{row.name} is more than its folder says; late takes ColBERT-style models and plain "
            f"encoders"
        )
    # A trained model's marks are in its folder, and sentence-transformers puts them in.
    return (
        row._replace(
            query="{query}",
            query_plain="",
            document="{text}",
        )
        if trained
        else row
    )


def is_trained(folder: Path) -> bool:
    """Return whether a model folder was trained for late interaction. DataError for a model of
    another kind.

    From such a folder, sentence-transformers would make a model with a new random projection at
    every load.
    """
    if any(
        name == "HF_ColBERT" or name.endswith("ForRetrieval")
        for name in model_table.read_architectures(folder)
    ):
        return True
    class_name = model_table.read_class(folder)
    # The last is of PyLate.
    if class_name not in (
        "SentenceTransformer",
        "MultiVectorEncoder",
        "ColBERT",
    ):
        raise DataError(
            f"the model folder {folder} is a {class_name}, which has no vectors of tokens; use another "
            f"kind"
        )
    return class_name != "SentenceTransformer"
