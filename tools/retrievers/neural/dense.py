"""A vector per text, from a local model folder of sentence-transformers, or of transformers with a
row in models.toml.

Vectors are kept and searched in vectors/; the model itself is in encoder.py.
"""

import re
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from sextant.tools.corpus import Corpus
from sextant.tools.retrievers.base import Options, Searches
from sextant.tools.retrievers.index_store import IndexKey
from sextant.tools.retrievers.neural.model_table import (
    BUNDLED,
    LocalModelMixin,
    index_key,
    name_model,
    open_model,
    require_model,
)
from sextant.tools.retrievers.vectors.embedder import Embedder, Report, Vectors
from sextant.tools.retrievers.vectors.exact_search import Precision, VectorRetriever

if TYPE_CHECKING:
    from sextant.tools.retrievers.neural.encoder import Encoder

_WORD = re.compile("[A-Za-z0-9]")  # has tokens in every vocabulary

_VECTOR_MODULES = (
    "sextant.tools.retrievers.neural.dense",
    "sextant.tools.retrievers.neural.quantized",
)  # their code decides the content of an index


class Dense(VectorRetriever):
    """Exact search in the vectors of a model: all are compared, in float32 or first in 8 bits."""

    loads_weights = True

    def __init__(
        self,
        corpus: Corpus,
        home: Path | None = None,
        model: str = BUNDLED,
        *,
        encoder: Literal["float32", "int8"] = "float32",
        search: Precision = "float32",
        like: str = "",
        weights: str = "",
        max_tokens: int = 0,
        run_code: str = "",
    ) -> None:
        embedder = SentenceEmbedder(
            model,
            home=home,
            encoder=encoder,
            like=like,
            weights=weights,
            max_tokens=max_tokens,
            run_code=run_code,
        )
        super().__init__(corpus, home, embedder, embedder.name, search)

    @classmethod
    def require(
        cls,
        model: str,
        part_count: int,
        options: Options,
    ) -> None:
        """Refuse a model that cannot be run here."""
        require_model(model, "dense", options["like"], options["run_code"])


class SentenceEmbedder(LocalModelMixin, Embedder):
    """An Embedder by a local model, which is loaded for the first text.

    `like` takes another model's row. `weights` pins the digest of the model's files. Queries and documents are cut at
    `max_tokens`, in place of the row's lengths. `run_code` allows code of the model's own, see require_model.
    `encoder="int8"` computes with 8-bit weights, kept in `home`, see quantized.py.
    """

    def __init__(
        self,
        model: str = BUNDLED,
        *,
        home: Path | None = None,
        encoder: Literal["float32", "int8"] = "float32",
        like: str = "",
        weights: str = "",
        max_tokens: int = 0,
        run_code: str = "",
    ) -> None:
        row = require_model(model, "dense", like, run_code)
        if max_tokens:
            row = row._replace(max_query_tokens=max_tokens, max_document_tokens=max_tokens)
        self._found = open_model(row, model, weights)
        self._precision = encoder
        self._home = home
        options: Any = {
            "like": like,
            "weights": self._found.weights,
            "max_tokens": max_tokens,
            "run_code": run_code,
        }
        self.name = name_model(
            "dense",
            model,
            encoder="" if encoder == "float32" else encoder,
            **options,
        )
        self._again = partial(
            SentenceEmbedder,
            model,
            home=home,
            encoder=encoder,
            **options,
        )

    def __reduce__(self) -> tuple[Any, ...]:  # another machine loads its own copy, of equal weights
        return self._again, ()

    @cached_property
    def _encoder(self) -> "Encoder":
        from sextant.tools.retrievers.neural.encoder import load_dense  # imports torch: seconds

        return load_dense(self._found, self._precision, self._home)

    @property
    def dimension(self) -> int:
        """Numbers in a vector."""
        return self._encoder.dimension

    def key(self) -> IndexKey:
        """Return all that shapes a document's vector."""
        in_8_bits = ("onnx", "onnxruntime") if self._precision == "int8" else ()
        return index_key("vectors", self.name, self._found.row, _VECTOR_MODULES, in_8_bits)

    def documents(self, texts: Sequence[str], report: Report = lambda _: None) -> Vectors:
        """Return the vectors of documents, shape (texts, dimension); a text of no tokens gets
        the zero vector.
        """
        return self._vectors(texts, "document", self._found.row.document_text, report)

    def queries(self, searches: Searches) -> Vectors:
        """Return the vectors of searches, shape (searches, dimension), the same to the last
        bit in any batch.
        """
        vectors = np.empty((len(searches), self.dimension), dtype=np.float32)
        for position, search in enumerate(searches):
            vectors[position] = self._vectors(
                [search.text],
                "query",
                partial(self._found.row.query_text, instruction=search.instruction),
            )
        return vectors

    def _vectors(
        self,
        texts: Sequence[str],
        task: str,
        read: Callable[[str], str],
        report: Report = lambda _: None,
    ) -> Vectors:
        before, _, _ = read("\0").partition("\0")  # what stands before any text
        prompt = before.rstrip(" ")  # a blank at its end belongs to the word after it
        vectors = np.zeros((len(texts), self.dimension), dtype=np.float32)
        filled = [
            position
            for position, text in enumerate(texts)
            if _WORD.search(text) or self._encoder.has_tokens(text)
        ]
        for places, vectors_of_batch in self._encoder.encode(
            [read(texts[n])[len(prompt) :] for n in filled], task, prompt
        ):
            vectors[[filled[position] for position in places]] = vectors_of_batch
            report(len(places))
        return vectors
