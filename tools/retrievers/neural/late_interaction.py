"""Late interaction: every token keeps its vector, and each token of a query looks for its best match (MaxSim).

Documents are encoded when they are first ranked, so `rerank(bm25,late,depth=200)` encodes no more than the pools.
Without a pool all documents are compared, one by one: there is no approximate index (PLAID), for no library of one runs
beside ours. The model is in encoder.py.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tools import disk
from tools.console import Progress
from tools.corpus import Corpus, digest_text, indexed_text
from tools.errors import DataError, UsageError
from tools.records import Hit
from tools.retriever import Ranker, Retriever, Search
from tools.retrievers.neural.models import (
    BUNDLED,
    Row,
    find_folder,
    index_key,
    name_model,
    open_model,
    read_architectures,
    read_class,
    require_model,
)
from tools.retrievers.neural.token_vectors import TokenVectors, Vectors
from tools.retrievers.store import open_index
from tools.retrievers.vectors.embedding import require_finite

if TYPE_CHECKING:
    from tools.retrievers.neural.encoder import Encoder

_BLOCK_TEXTS = 2048  # that are tokenized together, so that many have equal lengths
_SEARCHES = 64  # whose scores for a whole corpus are held at a time

_LOG = logging.getLogger("sextant")


class LateInteraction(Retriever):
    """The sum, over the query's tokens, of the best match among the document's; a plain encoder is used untrained.

    Khattab and Zaharia, ColBERT (SIGIR 2020). Inner products of token vectors, those of documents rounded to 8 bits.
    """

    loads_weights = True

    def __init__(
        self,
        corpus: Corpus,
        home: Path | None = None,
        model: str = BUNDLED,
        *,
        like: str = "",
        weights: str = "",
        run_code: str = "",
    ) -> None:
        self._found = open_model(_row(model, like, run_code), model, weights)
        self._row = self._found.row
        self.name = name_model("late", model, like=like, weights=self._found.weights, run_code=run_code)
        self._corpus = corpus
        self._ranker = Ranker(corpus.doc_ids)
        self._digests = dict[int, bytes]()  # of the texts that were asked for, by position in the corpus
        self._tokens = open_index(
            home,
            # Without the corpus: a text has the same vectors in every one.
            index_key("late", self.name, self._row, "late_interaction token_vectors"),
            build=lambda folder: None,  # it is complete when it is empty, and grows with what is asked for
            load=_load,
        )

    @classmethod
    def require(cls, model: str, parts: int, options: Mapping[str, Any]) -> None:
        """Refuse a model that has no vectors of tokens, or is not here."""
        _row(model, options["like"], options["run_code"])

    def left_out(self, text: str, instruction: str = "") -> int:
        """How many tokens at the end of a query are more than the model takes."""
        return self._encoder.left_out(self._row.query_text(text, instruction))

    @cached_property
    def _encoder(self) -> "Encoder":
        from tools.retrievers.neural.encoder import load_tokens  # imports torch: seconds

        return load_tokens(self._found, is_trained(self._found.folder))

    def _search_many(self, searches: Sequence[Search], k: int) -> list[list[Hit]]:
        queries = self._encode_queries(searches)
        hits: list[list[Hit]] = [[] for _ in searches]
        pools = {place: self._pool(search) for place, search in enumerate(searches) if search.among is not None}
        self._hold(sorted(set().union(*pools.values())))
        for place, rows in pools.items():
            scores = self._tokens.maxsim([queries[place]], [self._digests[row] for row in rows])[0]
            hits[place] = self._ranker.hits(np.array(rows, dtype=np.int64), scores, k)
        whole = [place for place in range(len(searches)) if place not in pools]
        for first in range(0, len(whole), _SEARCHES):
            some = whole[first : first + _SEARCHES]
            self._hold(range(len(self._corpus)))
            digests = [self._digests[row] for row in range(len(self._corpus))]
            scored = self._tokens.maxsim([queries[place] for place in some], digests)
            for place, scores in zip(some, scored, strict=True):
                hits[place] = self._ranker.top(scores, k, excluded=searches[place].excluded)
        return hits

    def _pool(self, search: Search) -> list[int]:
        """The positions of the documents that a search with a pool may find."""
        rows = self._ranker.rows(search.among or ())
        return sorted(set(rows).difference(self._ranker.rows(search.excluded)))

    def _encode_queries(self, searches: Sequence[Search]) -> list[Vectors]:
        texts = [self._row.query_text(search.text, search.instruction) for search in searches]
        queries = [vectors.float().cpu().numpy() for _, [vectors] in self._encoder.encode(texts, "query")]
        for search, vectors in zip(searches, queries, strict=True):
            require_finite(vectors, self.name, f"the query {search.text[:80]!r}")
        return queries

    def _text(self, row: int) -> str:
        return indexed_text(self._corpus[self._corpus.doc_ids[row]])

    def _hold(self, rows: Sequence[int]) -> None:
        """Have the token vectors of the documents at these positions."""
        for row in rows:
            if row not in self._digests:
                self._digests[row] = digest_text(self._text(row))
        self._tokens.hold([self._digests[row] for row in rows], lambda missing: self._encode(missing, rows))

    def _encode(self, missing: Sequence[int], rows: Sequence[int]) -> Iterator[tuple[int, Vectors]]:
        """The vectors of the documents at `rows[position]`, for every position in `missing`; a block at a time."""
        lengths = {position: len(self._text(rows[position])) for position in missing}
        order = sorted(missing, key=lambda position: (-lengths[position], position))
        if len(order) >= _BLOCK_TEXTS:  # long work says beforehand what it is and what it will take on disk
            how = "" if is_trained(self._found.folder) else ", with a model that was not trained for it"
            tokens = sum(lengths.values()) / 4  # as in English
            size = tokens * (self._encoder.dimension + 4) / 1e9
            _LOG.info(f"{self.name}: {len(order):,} texts are encoded for MaxSim{how}; they take about {size:.1f} GB")
        progress = Progress(self.name, len(order), "texts")
        for first in range(0, len(order), _BLOCK_TEXTS):
            block = order[first : first + _BLOCK_TEXTS]
            texts = [self._row.document_text(self._text(rows[position])) for position in block]
            for places, made in self._encoder.encode(texts, "document"):
                for position, vectors in zip((block[place] for place in places), made, strict=True):
                    numbers = vectors.float().cpu().numpy()
                    whose = f"the document {self._corpus.doc_ids[rows[position]]!r}"
                    require_finite(numbers, self.name, whose, "the vectors that were made before")
                    yield position, numbers
                progress.add(len(places))


def _load(folder: Path) -> TokenVectors:
    try:
        return TokenVectors(folder)
    except OSError as error:  # a home that others keep
        _LOG.info(f"{folder} cannot be written ({error.strerror}); token vectors are not kept")
        with disk.temporary_folder() as temporary:
            return TokenVectors(temporary)


def _row(model: str, like: str, run_code: str) -> Row:
    """The row of a model, with what of it sentence-transformers does not do by itself."""
    trained = is_trained(find_folder(model))
    row = require_model(model, "late" if trained else "dense", like, run_code)
    if row.bidirectional or row.base:
        raise UsageError(f"{row.name} is more than its folder says; late takes ColBERT-style models and plain encoders")
    # A trained model's marks are in its folder, and sentence-transformers puts them in.
    return replace(row, query="{query}", query_plain="", document="{text}") if trained else row


def is_trained(folder: Path) -> bool:
    """Whether a model folder has what late interaction was trained with; DataError for a model of another kind.

    Of any other, sentence-transformers makes a model with a new random projection at every load.
    """
    if any(name == "HF_ColBERT" or name.endswith("ForRetrieval") for name in read_architectures(folder)):
        return True
    kind = read_class(folder)
    if kind not in ("SentenceTransformer", "MultiVectorEncoder", "ColBERT"):  # the last is PyLate's
        raise DataError(f"the model folder {folder} is a {kind}, which has no vectors of tokens; use another kind")
    return kind != "SentenceTransformer"
