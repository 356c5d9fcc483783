"""Embeddings from a provider's API, or from any server that speaks OpenAI's embeddings protocol.

`api:openai/text-embedding-3-large` asks the provider, `api:MODEL@http://host:port/v1` a server.
Keys are read from the environment, and are in no name, index or message. Left out: batch jobs (half
the price, a day's wait), parallel calls.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sextant.tools import session
from sextant.tools.corpus import Corpus
from sextant.tools.errors import (
    BudgetReached,
    DataError,
    ProviderRefused,
    RunIncomplete,
    UsageError,
    require_at_least,
)
from sextant.tools.models.embeddings import EmbeddingRefused, Embeddings, place
from sextant.tools.models.prices import Price, price
from sextant.tools.models.run_resources import RunResources
from sextant.tools.platform.number_format import abbreviate
from sextant.tools.records import Usage
from sextant.tools.retrievers.base import Options, Searches
from sextant.tools.retrievers.index_store import IndexKey
from sextant.tools.retrievers.neural.model_table import ModelRow, find_row, name_model
from sextant.tools.retrievers.vectors.embedder import (
    Embedder,
    Report,
    Vectors,
    chunk_by_size,
    require_finite,
)
from sextant.tools.retrievers.vectors.exact_search import Precision, VectorRetriever
from sextant.tools.text import encodable, is_blank

# In one request OpenAI takes 2,048 texts, whose vectors may be more than the 32 MB of an answer,
# and 300,000 tokens, of at least one byte each; Gemini 100 texts. A server that takes fewer
# refuses, and gets half as many the next time.
_MOST_TEXTS = {"openai": 1024}
_MOST_TEXTS_ELSEWHERE = 100
_MOST_BYTES = 300_000

# Raised when what is sent for a document changes; no digest of this file, because vectors are paid
# for
_FORMAT = 1
_KEPT_QUERIES = 4096  # vectors of queries in memory; 12 kB each at 3,072 numbers


class _Embedded(NamedTuple):
    vector: Vectors  # shape (dimension,)
    left_out: int = 0  # about how many tokens of the text are not in it


class ApiEmbedder(Embedder):
    """Vectors from an API. Threads share it.

    A provider need not give the same bits twice: documents' vectors are kept as they came, and a query is sent once.
    """

    sends = True

    def __init__(
        self,
        model: str,
        *,
        dimensions: int = 0,
        like: str = "",
        resources: RunResources | None = None,
    ) -> None:
        """`dimensions` asks for shorter vectors (0: the model's own); `like` takes the row of
        another model.

        UsageError when `model` names no provider and no server.
        """
        require_at_least(0, "api", dimensions=dimensions)
        self.name = name_model(
            "api",
            model,
            dimensions=dimensions,
            like=like,
        )
        self._row = _row(model, like)
        resources = resources or RunResources()
        self._api = Embeddings(
            model,
            resources,
            dimensions=dimensions,
            cost=list_price(model, like, resources.prices),
        )
        self._options = {"dimensions": dimensions} if dimensions else {}
        # Maximum of texts in a request.
        self.batch = _MOST_TEXTS.get(self._api.provider, _MOST_TEXTS_ELSEWHERE)
        self._used = Usage()
        self._queries: dict[str, _Embedded] = {}
        self._lock = threading.Lock()

    @property
    def dimension(self) -> int:
        """Numbers in a vector, for which a first vector is asked for."""
        if not self._api.dimension:
            with _resumable():
                self._embed(["dimension"], kept=False)
        return self._api.dimension

    def key(self) -> IndexKey:
        """Return all that shapes a document's vector, as far as a client knows."""
        row = self._row
        api = self._api
        return {
            "kind": "api",
            "model": api.model,
            "url": api.url,
            **self._options,
            "max_tokens": row.max_document_tokens,
            "normalize": row.normalize,
            "document": row.document,
            "format": _FORMAT,
        }

    def documents(self, texts: Sequence[str], report: Report = lambda _: None) -> Vectors:
        """Return the vectors of documents, in order; a blank document is not sent, and gets the
        zero vector.

        RunIncomplete when the API stops answering, ProviderRefused when it never will, DataError
        for a text that it refuses or an answer without a vector per text.
        """
        vectors = np.zeros((len(texts), self.dimension), dtype=np.float32)
        rows = [row for row, text in enumerate(texts) if not is_blank(text)]
        inputs = [self._row.document_text(texts[row]) for row in rows]
        with _resumable(f"what {self.name} has embedded is kept, and "):
            for row, embedded in zip(rows, self._embed(inputs, kept=False), strict=True):
                self._require_direction(embedded.vector, texts[row])
                vectors[row] = embedded.vector
        return vectors

    def _require_direction(self, vector: NDArray[np.float32], text: str) -> None:
        """Raise DataError for a vector of zeros, by which nothing can be ranked; some servers give it for any text."""
        if not is_blank(text) and not vector.any():
            raise DataError(f"{self.name} gave a vector of zeros for {abbreviate(text)!r}")

    def queries(self, searches: Searches) -> Vectors:
        """Return the vectors of the texts, in order; the open session pays. A repeated text is
        free.

        ValueError for a text that the API refuses, which is its writer's fault; else as for
        `documents`.
        """
        texts = [self._row.query_text(search.text, search.instruction) for search in searches]
        with self._lock:
            remembered = {text: self._queries[text] for text in texts if text in self._queries}
        new = [text for text in dict.fromkeys(texts) if text not in remembered]
        for text, embedded in zip(new, self._embed(new, kept=True), strict=True):
            require_finite(embedded.vector, self.name, f"the query {abbreviate(text)!r}")
            self._require_direction(embedded.vector, text)
            with self._lock:  # of several answers, the first
                remembered[text] = self._queries.setdefault(text, embedded)
                while len(self._queries) > _KEPT_QUERIES:
                    del self._queries[next(iter(self._queries))]  # the oldest
        return np.stack([remembered[text].vector for text in texts])

    def left_out(self, text: str, instruction: str = "") -> int:
        """Return about how many tokens of a query were cut off for the API; 0 for a query that was
        not searched for.
        """
        with self._lock:
            embedded = self._queries.get(self._row.query_text(text, instruction))
        return embedded.left_out if embedded else 0

    def take_usage(self) -> Usage:
        """Return the usage of documents since the last call."""
        with self._lock:
            usage = self._used
            self._used = Usage()
        return usage

    def resume(self, spent: Usage) -> None:
        """Count the expenses of an earlier process for the same vectors."""
        self._api.resources.resume(self._api.name, spent)

    def _embed(self, texts: Sequence[str], *, kept: bool) -> list[_Embedded]:
        """Embed texts that are not blank, in order and batches; the vectors of queries are
        `kept` in the ledger.
        """
        embedded = list[_Embedded]()
        lengths = [len(text.encode("utf-8", "replace")) for text in texts]
        while len(embedded) < len(texts):  # a batch may teach how many texts the next one has
            first = len(embedded)
            batch = next(chunk_by_size(lengths[first:], _MOST_BYTES, self.batch))
            embedded += self._embed_batch(texts[first : first + batch.stop], kept)
        return embedded

    def _embed_batch(self, texts: Sequence[str], kept: bool) -> list[_Embedded]:
        """Embed the texts of a request; refused texts in smaller batches, and a text that is too
        long without its end.
        """
        try:
            return [_Embedded(vector) for vector in self._request(texts, kept)]
        except EmbeddingRefused as refusal:
            if len(texts) == 1:
                return [self._shortened(texts[0], refusal, kept)]
        middle = len(texts) // 2
        embedded = self._embed_batch(texts[:middle], kept) + self._embed(texts[middle:], kept=kept)
        # No text was too long, so they were too many.
        if not any(embedding.left_out for embedding in embedded):
            self.batch = min(self.batch, len(texts) - middle)
        return embedded

    def _shortened(
        self,
        text: str,
        refusal: EmbeddingRefused,
        kept: bool,
    ) -> _Embedded:
        # Tokens cannot be counted here, so a refused text is sent again and again, each time
        # without its last tenth, until it is accepted. Between 90 and 100 per cent of what the
        # model takes is kept.
        name = self._api.name
        full_length = len(text)
        longest = self._row.max_document_tokens
        # A character may be a token.
        while refusal.about == "length" and longest and len(text) > longest:
            text = text[: len(text) * 9 // 10]
            try:
                [vector] = self._request([text], kept)
            except EmbeddingRefused as again:
                refusal = again
                continue
            return _Embedded(vector, max(1, round(longest * (full_length - len(text)) / len(text))))
        if refusal.about != "unknown":
            hint = (
                ""
                if longest or refusal.about == "content"
                else "; (like=MODEL) says how long a text may be"
            )
            raise EmbeddingRefused(
                f"{name} refuses the text {abbreviate(text)!r}: {refusal}{hint}", refusal.about
            ) from None
        if not self._api.client.answered:  # so it is not the text
            raise ProviderRefused(
                f"{name} refuses: {refusal}; check the name and the options", source=name
            ) from None
        raise RunIncomplete(
            f"{name} does not answer for the text {abbreviate(text)!r}: {refusal}"
        ) from None

    def _request(self, texts: Sequence[str], kept: bool) -> Vectors:
        """Return the vectors of a request, shape (texts, dimension), and book it on the session or
        the index.
        """
        vectors, usage = self._api.embed(encodable(texts), kept=kept)
        if not kept:
            with self._lock:
                self._used += usage
        elif payer := session.current():
            payer.charge(usage)
        stacked: Vectors = np.stack(vectors)
        if not self._row.normalize:
            return stacked
        lengths = np.linalg.norm(
            stacked.astype(np.float64),
            axis=1,
            keepdims=True,
        )
        return (stacked / np.where(lengths == 0, 1, lengths)).astype(np.float32)


@contextmanager
def _resumable(kept: str = "") -> Iterator[None]:
    """Say in errors that the same command goes on, and which results are `kept`."""
    try:
        yield
    except EmbeddingRefused as refusal:
        raise DataError(str(refusal)) from refusal
    except RunIncomplete as outage:
        raise outage.saying(f"{outage}; {kept}the same command goes on") from outage
    except BudgetReached as reached:
        budget = " with a larger budget" if reached.larger else ""
        raise reached.saying(f"{reached}; {kept}the same command{budget} goes on") from None


class ApiRetriever(VectorRetriever):
    """Exact search in the vectors of an API."""

    sends = True

    def __init__(
        self,
        corpus: Corpus,
        home: Path | None,
        model: str,
        *,
        dimensions: int = 0,
        like: str = "",
        search: Precision = "float32",
        resources: RunResources | None = None,
    ) -> None:
        embedder = ApiEmbedder(
            model,
            dimensions=dimensions,
            like=like,
            resources=resources,
        )
        super().__init__(corpus, home, embedder, embedder.name, search)

    @classmethod
    def require(
        cls,
        model: str,
        part_count: int,
        options: Options,
    ) -> None:
        """Refuse a model without a provider. Nothing is sent."""
        ApiEmbedder(
            model,
            dimensions=options["dimensions"],
            like=options["like"],
        )


def _row(spec: str, like: str) -> ModelRow:
    """Return a model's row: a provider's is in the table by its whole name; a server may have
    any model of vectors.
    """
    provider, model, _ = place(spec)
    if provider:
        return find_row(spec, "api", like)
    try:
        return find_row(model, "api", like)
    except UsageError:
        return find_row(model, "dense", like)


def list_price(spec: str, like: str = "", file: Path | None = None) -> Price | None:
    """Return the price of `api:SPEC` from the user's own `file`, else from the table, which
    has no servers.
    """
    if own_price := price(spec, file):
        return own_price
    usd = _row(spec, like).price / 1e6 if place(spec)[0] else 0.0
    return (
        Price(
            input=usd,
            cached_input=usd,
            output=0.0,
            source="tools/retrievers/models.toml",
        )
        if usd
        else None
    )
