"""Late interaction: every token keeps its vector, and each token of a query looks for its best match (MaxSim).

sentence-transformers loads the models and makes the vectors: the markers of queries and documents, their lengths, the
expansion of queries and the tokens that are skipped are what the model's folder says. A plain bi-encoder is taken as it
is, with the vectors of its tokens: it was not trained for this. Documents are encoded when they are first ranked, so
`rerank(bm25,late,depth=200)` encodes no more than the pools; without a pool all documents are compared, one by one.
There is no approximate index (PLAID): no library of one runs beside ours.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from tools import disk
from tools.console.progress import Progress
from tools.corpus import Corpus, digest_of, indexed_text
from tools.errors import DataError, UsageError
from tools.records import Hit
from tools.retriever import Ranker, Retriever, Search
from tools.retrievers.neural.encoding import quiet
from tools.retrievers.neural.library_models import LibraryModel, architectures, key, kind_of, loading, options
from tools.retrievers.neural.models import BUNDLED, Row, document_text, folder_of, pinned, query_text, require_model
from tools.retrievers.neural.token_vectors import TokenVectors, Vectors
from tools.retrievers.spec import spell
from tools.retrievers.store import open_index

_BLOCK_TEXTS = 2048  # that are tokenized together, so that many have equal lengths
_BATCH_TOKENS = 4096  # that the model takes at a time
_SEARCHES = 64  # whose scores for a whole corpus are held at a time

_LOADING = Lock()  # two threads that want the same model load it once
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
        folder = folder_of(model)
        self._trained = _is_trained(folder)
        self._row = _row(model, like, run_code)
        self._weights = pinned(self._row, folder, weights)
        self._folder = folder
        given = {"like": like, "weights": self._weights, "run_code": run_code}
        self.name = spell("late", model, (), {name: value for name, value in given.items() if value})
        self._corpus = corpus
        self._ranker = Ranker(corpus.doc_ids)
        self._digests = dict[int, bytes]()  # of the texts that were asked for, by position in the corpus
        self._tokens = open_index(
            home,
            # Without the corpus: a text has the same vectors in every one.
            key("late", self.name, self._row, "late_interaction token_vectors"),
            build=_build,
            load=_load,
        )

    @classmethod
    def require(cls, model: str, parts: int, options: Mapping[str, Any]) -> None:
        """Refuse a model that has no vectors of tokens, or is not here."""
        _row(model, options["like"], options["run_code"])

    def left_out(self, text: str, instruction: str = "") -> int:
        """How many tokens at the end of a query are more than the model takes."""
        return self._model.left_out(query_text(self._row, Search(text, instruction)))

    @cached_property
    def _model(self) -> "_TokenModel":
        with _LOADING:
            return _loaded(self._folder, self._row, self._weights, self._trained)

    def _search_many(self, searches: Sequence[Search], k: int) -> list[list[Hit]]:
        queries = self._queries(searches)
        found: list[list[Hit]] = [[] for _ in searches]
        pools = {place: self._pool(search) for place, search in enumerate(searches) if search.among is not None}
        self._hold(sorted(set().union(*pools.values())))
        for place, rows in pools.items():
            scores = self._maxsim([queries[place]], rows)[0]
            found[place] = self._ranker.hits(np.array(rows, dtype=np.int64), scores, k)
        whole = [place for place in range(len(searches)) if place not in pools]
        for first in range(0, len(whole), _SEARCHES):
            some = whole[first : first + _SEARCHES]
            rows = list(range(len(self._corpus)))
            self._hold(rows)
            for place, scores in zip(some, self._maxsim([queries[place] for place in some], rows), strict=True):
                found[place] = self._ranker.top(scores, k, excluded=searches[place].excluded)
        return found

    def _pool(self, search: Search) -> list[int]:
        """The positions of the documents that a search with a pool may find."""
        rows = self._ranker.rows(search.among or ())
        return sorted(set(rows).difference(self._ranker.rows(search.excluded)))

    def _maxsim(self, queries: Sequence[Vectors], rows: Sequence[int]) -> Any:
        return self._tokens.maxsim(queries, [self._digests[row] for row in rows])

    def _queries(self, searches: Sequence[Search]) -> list[Vectors]:
        vectors: list[Vectors] = [np.zeros((0, 1), np.float32)] * len(searches)
        texts = [query_text(self._row, search) for search in searches]
        for place, made in chain.from_iterable(self._model.encode(texts, "query")):
            if not np.isfinite(made).all():
                raise DataError(f"{self.name} gave NaN or infinity for the query {searches[place].text[:80]!r}")
            vectors[place] = made
        return vectors

    def _hold(self, rows: Sequence[int]) -> None:
        """Have the token vectors of the documents at these positions."""
        for row in rows:
            if row not in self._digests:
                text = indexed_text(self._corpus[self._corpus.doc_ids[row]])
                self._digests[row] = digest_of(text)
        self._tokens.hold([self._digests[row] for row in rows], lambda missing: self._encoded(missing, rows))

    def _encoded(self, missing: Sequence[int], rows: Sequence[int]) -> Iterator[tuple[int, Vectors]]:
        """The vectors of the documents at `rows[position]`, for every position in `missing`; a block at a time."""
        doc_ids = {position: self._corpus.doc_ids[rows[position]] for position in missing}
        lengths = {position: len(indexed_text(self._corpus[doc_id])) for position, doc_id in doc_ids.items()}
        order = sorted(missing, key=lambda position: (-lengths[position], position))
        self._say_size(len(order), sum(lengths.values()))
        progress = Progress(self.name, len(order), "texts")
        for first in range(0, len(order), _BLOCK_TEXTS):
            block = order[first : first + _BLOCK_TEXTS]
            texts = [document_text(self._row, indexed_text(self._corpus[doc_ids[position]])) for position in block]
            for batch in self._model.encode(texts, "document"):
                for place, vectors in batch:
                    if not np.isfinite(vectors).all():
                        raise DataError(
                            f"{self.name} gave NaN or infinity for the document {doc_ids[block[place]]!r}; "
                            "the vectors that were made before are kept"
                        )
                    yield block[place], vectors
                progress.add(len(batch))

    def _say_size(self, texts: int, characters: int) -> None:
        """Before long work, what it is and what it will take on disk."""
        if texts < _BLOCK_TEXTS:
            return
        how = "" if self._trained else ", with a model that was not trained for it"
        size = characters / 4 * (self._model.dimension + 4) / 1e9  # four characters a token, as in English
        _LOG.info(f"{self.name}: {texts:,} texts are encoded for MaxSim{how}; they take at most about {size:.1f} GB")


def _build(folder: Path) -> None:
    """Nothing: an index of token vectors is complete when it is empty, and grows with what is asked for."""


def _load(folder: Path) -> TokenVectors:
    try:
        return TokenVectors(folder)
    except OSError as error:  # a home that others keep
        _LOG.info(f"{folder} cannot be written ({error.strerror}); token vectors are not kept")
        with disk.temporary_folder() as temporary:
            return TokenVectors(temporary)


def _row(model: str, like: str, run_code: str) -> Row:
    """The row of a model, with what of it sentence-transformers does not do by itself."""
    trained = _is_trained(folder_of(model))
    row = require_model(model, "late" if trained else "dense", like, run_code)
    if row.bidirectional or row.base:
        raise UsageError(f"{row.name} is more than its folder says; late takes ColBERT-style models and plain encoders")
    # A trained model's marks are in its folder, and sentence-transformers puts them in.
    return replace(row, query="{query}", query_plain="", document="{text}") if trained else row


def _is_trained(folder: Path) -> bool:
    """Whether a model folder has what late interaction was trained with; DataError for a model of another kind.

    Of any other, sentence-transformers makes a model with a new random projection at every load.
    """
    if any(name == "HF_ColBERT" or name.endswith("ForRetrieval") for name in architectures(folder)):
        return True
    kind = kind_of(folder)
    if kind not in ("SentenceTransformer", "MultiVectorEncoder", "ColBERT"):  # the last is PyLate's
        raise DataError(f"the model folder {folder} is a {kind}, which has no vectors of tokens; use another kind")
    return kind != "SentenceTransformer"


class _TokenModel:
    """A loaded model: texts to one vector a token. Threads share it."""

    def __init__(self, folder: Path, row: Row, trained: bool) -> None:
        quiet()
        with loading(folder, row):
            self._library = LibraryModel((_load_trained if trained else _load_plain)(folder, options(row)), row)
        self.left_out = self._library.left_out
        self.dimension = int(self._library.model.get_embedding_dimension())  # numbers in a token's vector

    def encode(self, texts: Sequence[str], task: str) -> Iterator[list[tuple[int, Vectors]]]:
        """Batch by batch, texts' positions and vectors, shape (tokens, dimension): the same bits in any batch."""
        for places, made in self._library.encode(texts, task, _BATCH_TOKENS):
            yield list(zip(places, (vectors.float().cpu().numpy() for vectors in made), strict=True))


def _load_trained(folder: Path, how: Mapping[str, Any]) -> Any:
    from sentence_transformers import MultiVectorEncoder

    return MultiVectorEncoder(str(folder), **how)


def _load_plain(folder: Path, how: Mapping[str, Any]) -> Any:
    """The token vectors of a plain encoder, through its own projection if it has one, each made as long as 1.

    MultiVectorEncoder by itself would append a projection to 128 dimensions, with new random numbers at every load.
    """
    from sentence_transformers import MultiVectorEncoder, SentenceTransformer
    from sentence_transformers.base.modules import Dense, Normalize, Transformer
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

    kept = [module for module in SentenceTransformer(str(folder), **how) if isinstance(module, Transformer | Dense)]
    for module in kept[1:]:
        module.module_input_name = module.module_output_name = "token_embeddings"
    modules = [*kept, MultiVectorMask(), Normalize(module_input_name="token_embeddings")]
    return MultiVectorEncoder(modules=modules, device=how["device"])


@lru_cache(maxsize=2)
def _loaded(folder: Path, row: Row, weights: str, trained: bool) -> _TokenModel:
    return _TokenModel(folder, row, trained)
