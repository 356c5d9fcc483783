"""The Embedder interface, and the vectors of a whole corpus on disk: resumable, each distinct text
embedded once.

Embedders are in neural/ (dense, api); the vectors are searched exactly, by ann or by chroma.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from sextant.tools.corpus import Corpus, digest_text, indexed_text
from sextant.tools.errors import DataError
from sextant.tools.platform import files
from sextant.tools.platform.cli import Progress
from sextant.tools.records import Usage, usage_from_json, usage_json
from sextant.tools.retrievers.base import Ranker, Retriever, Searches
from sextant.tools.retrievers.index_store import (
    IndexKey,
    create_memmap,
    drop_page_cache,
    open_index,
)

Vectors = NDArray[np.float32]  # shape (texts, dimension)
# Takes the number of texts that are done.
Report: TypeAlias = Callable[[int], None]
MappedVectors: TypeAlias = np.memmap[Any, np.dtype[np.float32]]  # the same, in a file

# Raised when the files of the index, or the text that is embedded of a document, change their
# meaning
FORMAT = 1
# A block is held in memory, and lost when the process is killed: about two minutes of MiniLM on a
# CPU.
_BLOCK_TEXTS = 2048
_BLOCK_CHARACTERS = 1 << 23
_PAID_CHARACTERS = 1 << 18  # where losing them costs money: a block is a request, or two


class Embedder(Protocol):
    """Makes vectors of texts; their inner product is the score. Threads share it. See Paid for one that costs money."""

    # Its canonical expression with all that shapes a vector, e.g.
    # "dense:all-MiniLM-L6-v2(weights=1a2b3c4d)"
    name: str
    # As of a Retriever.
    sends: ClassVar[bool] = False
    loads_weights: ClassVar[bool] = False
    needs_lens: ClassVar[bool] = False

    @property
    def dimension(self) -> int:
        """Numbers in a vector."""

    def key(self) -> IndexKey:
        """Return all that shapes the vector of a document.

        These are weights, formats, precision, versions of libraries, and the code here.
        """

    def documents(self, texts: Sequence[str], report: Report = lambda _: None) -> Vectors:
        """Return the vectors of documents, in order, all finite; without tokens, the zero vector.

        If they take long and cost nothing, `report` is called with the number of texts in each
        batch that is made.
        """

    def queries(self, searches: Searches) -> Vectors:
        """Return the vectors of the texts, in order, with instructions if the model takes any.

        The vector of a query is the same to the last bit in any batch.
        """

    def left_out(self, text: str, instruction: str = "") -> int:
        """Return the number of tokens at the end of a query that the model cuts off."""


# The start of a block in the order of texts, and the documents that have its texts.
Block: TypeAlias = tuple[int, list[str]]
# Yields the start and the vectors of blocks, in any order, in place of this process; see
# ray_embedding.py.
MakeBlocks: TypeAlias = Callable[[Embedder, Corpus, Iterable[Block]], Iterator[tuple[int, Vectors]]]
ELSEWHERE: ContextVar[MakeBlocks | None] = ContextVar("elsewhere", default=None)


@runtime_checkable
class BilledEmbedder(Protocol):
    """The further methods of an embedder whose calls cost money."""

    batch: int  # maximum of texts in a request

    def take_usage(self) -> Usage:
        """Return the usage of `documents` since the last call."""

    def resume(self, spent: Usage) -> None:
        """Count the expenses of an earlier process for an unfinished index."""


class VectorRetrieverBase(Retriever):
    """Ranks documents by the inner products of their vectors with the query's."""

    def __init__(self, corpus: Corpus, embedder: Embedder) -> None:
        self._embedder = embedder
        self._ranker = Ranker(corpus.doc_ids)

    def left_out(self, text: str, instruction: str = "") -> int:
        """Return the number of tokens at the end of `text` that the embedder's model cuts off."""
        return self._embedder.left_out(text, instruction)


def open_vectors(embedder: Embedder, corpus: Corpus, home: Path | None) -> MappedVectors:
    """Return the vectors of all documents, shape (documents, dimension), in corpus order.

    They are memory-mapped and read-only. They are made if they are not under `home`. A build that
    was killed goes on with the blocks that are not complete. DataError unless the embedder gives a
    finite vector for each text; earlier blocks are kept.
    """

    def load(folder: Path) -> MappedVectors:
        return open_memmap(folder / "vectors.npy", "r")

    return open_index(
        home,
        vectors_key(embedder, corpus),
        build=partial(_embed_all, embedder, corpus),
        load=load,
    )


def vectors_key(embedder: Embedder, corpus: Corpus) -> dict[str, object]:
    """Return all that determines the vectors of a corpus, and so every index made of them."""
    return {
        **embedder.key(),
        "kind": "vectors",
        "format": FORMAT,
        "corpus": corpus.fingerprint,
    }


class EmbeddingPlan(NamedTuple):
    """The order in which the distinct texts of a corpus are embedded, a function of the corpus alone.

    The longest go first: the memory peaks at once, and the estimate of the time left is never too short.
    """

    # The position in the corpus of the first document of each text, shape (texts,).
    rows: NDArray[np.int64]
    # The number of the text that each document has, shape (documents,).
    text_of: NDArray[np.int64]
    # The starts of the blocks of texts, and the end of the last, shape (blocks + 1,).
    blocks: NDArray[np.int64]


def plan_embedding(corpus: Corpus, most: int, characters: int = _BLOCK_CHARACTERS) -> EmbeddingPlan:
    """Return the order of a corpus, in blocks of at most `most` texts and `characters`.

    A single longer text is a block.
    """
    lengths = np.empty(len(corpus), dtype=np.int64)
    # 16 bytes a document in place of its text.
    digests = np.empty((len(corpus), 2), dtype=np.uint64)
    for row, text in enumerate(corpus.texts()):
        lengths[row] = len(text)
        digests[row] = np.frombuffer(digest_text(text), np.uint64)
    _, rows, text_of = np.unique(
        digests,
        axis=0,
        return_index=True,
        return_inverse=True,
    )
    longest_first = np.argsort(-lengths[rows], kind="stable")
    position_of_text = np.argsort(longest_first)
    ordered_rows = rows[longest_first]
    blocks = chunk_by_size(lengths[ordered_rows].tolist(), characters, most)
    boundaries = [0, *(block.stop for block in blocks)]
    return EmbeddingPlan(
        rows=ordered_rows,
        text_of=position_of_text[text_of.ravel()],
        blocks=np.array(boundaries),
    )


def chunk_by_size(sizes: Sequence[int], most: int, items: int = 1 << 30) -> Iterator[slice]:
    """Yield runs of at most `items` items, whose sizes add up to at most `most`.

    An item that is larger is alone.
    """
    first = 0
    total = 0
    for position, size in enumerate(sizes):
        if position > first and (position - first == items or total + size > most):
            yield slice(first, position)
            first = position
            total = 0
        total += size
    if sizes:
        yield slice(first, len(sizes))


def _embed_all(embedder: Embedder, corpus: Corpus, folder: Path) -> None:
    paid = embedder if isinstance(embedder, BilledEmbedder) else None
    order = (
        plan_embedding(corpus, paid.batch, _PAID_CHARACTERS)
        if paid
        else plan_embedding(corpus, _BLOCK_TEXTS)
    )
    shape = (len(corpus), embedder.dimension)
    rows_done, later_blocks, usage = _done_before(folder, shape)
    if paid:
        paid.resume(usage)
    file = folder / "vectors.npy"
    resumes = bool(rows_done or later_blocks)
    vectors = open_memmap(file, "r+") if resumes else create_memmap(file, shape, np.float32)
    before = rows_done + _texts_in(later_blocks)
    progress = Progress(embedder.name, len(order.rows), "texts", done=before)
    spans = pairwise([rows_done, *order.blocks[order.blocks > rows_done].tolist()])
    lasts = {first: last for first, last in spans if first not in later_blocks}
    blocks = (
        (first, [corpus.doc_ids[row] for row in order.rows[first:last]])
        for first, last in lasts.items()
    )
    if not paid and (make_elsewhere := ELSEWHERE.get()):
        made = make_elsewhere(embedder, corpus, blocks)
    else:
        made = (
            (first, make_block(embedder, corpus, doc_ids, progress.add))
            for first, doc_ids in blocks
        )

    def keep() -> None:
        nonlocal usage
        if paid:
            usage += paid.take_usage()
        record = {
            "shape": shape,
            "texts": rows_done,
            "beyond": later_blocks,
            "usage": usage_json(usage),
        }
        files.replace(folder / "embedded.json", json.dumps(record) + "\n", files.SHARED)

    try:
        for first, block_vectors in made:
            last = lasts[first]
            checked = _check(
                block_vectors,
                embedder.name,
                shape[1],
                [f"the document {corpus.doc_ids[row]!r}" for row in order.rows[first:last]],
                "the vectors that were made before",
            )
            documents = np.flatnonzero((first <= order.text_of) & (order.text_of < last))
            vectors[documents] = checked[order.text_of[documents] - first]
            vectors.flush()
            drop_page_cache(vectors)
            later_blocks[first] = last
            while rows_done in later_blocks:
                rows_done = later_blocks.pop(rows_done)
            keep()
            progress.add(rows_done + _texts_in(later_blocks) - progress.done)
    finally:
        # A block that failed may have been paid for.
        keep()


def _texts_in(blocks: Mapping[int, int]) -> int:
    return sum(last - first for first, last in blocks.items())


def make_block(
    embedder: Embedder,
    corpus: Corpus,
    doc_ids: Iterable[str],
    report: Report = lambda _: None,
) -> Vectors:
    """Return the vectors of some documents, in order. `report` is as in `Embedder.documents`."""
    return embedder.documents([indexed_text(corpus[doc_id]) for doc_id in doc_ids], report)


def embed_queries(embedder: Embedder, searches: Searches, dimension: int) -> Vectors:
    """Return the vectors of searches, shape (searches, dimension).

    DataError for other shapes, NaN and infinity.
    """
    owners = [f"the query {search.text[:80]!r}" for search in searches]
    return _check(embedder.queries(searches), embedder.name, dimension, owners)


def _check(
    embedded: Vectors,
    name: str,
    dimension: int,
    owners: Sequence[str],
    results: str = "",
) -> Vectors:
    vectors = np.ascontiguousarray(embedded, dtype=np.float32)
    expected = (len(owners), dimension)
    if vectors.shape != expected:
        raise DataError(
            f"{name} gave vectors of shape {vectors.shape} where {expected} is expected"
        )
    for vector, owner in zip(vectors, owners, strict=True):
        require_finite(vector, name, owner, results)
    return vectors


def require_finite(
    numbers: NDArray[Any],
    name: str,
    owner: str,
    results: str = "",
) -> None:
    """Raise DataError for NaN and infinity.

    The message names the `owner` of the numbers, and the `results` of a build that are kept.
    """
    if not np.isfinite(numbers).all():
        consequence = f"; {results} are kept" if results else ""
        raise DataError(f"{name} gave NaN or infinity for {owner}{consequence}")


def _done_before(folder: Path, shape: tuple[int, int]) -> tuple[int, dict[int, int], Usage]:
    """Return (texts done by an earlier build, start of each later block that is done -> end, usage).

    They are 0, empty and no usage if the files in `folder` do not fit.
    """
    try:
        record = json.loads((folder / "embedded.json").read_text(encoding="utf-8"))
        vectors = np.load(folder / "vectors.npy", mmap_mode="r")
        if tuple(record["shape"]) == vectors.shape == shape and vectors.dtype == np.float32:
            beyond = {int(first): last for first, last in record.get("beyond", {}).items()}
            return int(record["texts"]), beyond, usage_from_json(record["usage"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass  # nothing was left, or it is torn
    return 0, {}, Usage()
