"""One vector a text, from a transformer that runs here: any model folder of sentence-transformers, or of transformers
with a row in models.toml.

Where vectors are kept and searched is in vectors/, and the model itself in dense_model.py.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from tools.corpus import Corpus
from tools.retriever import Search
from tools.retrievers.neural.models import BUNDLED, name_model, open_model, require_model
from tools.retrievers.store import code
from tools.retrievers.vectors.embedding import Vectors
from tools.retrievers.vectors.exact_search import Precision, VectorRetriever

if TYPE_CHECKING:
    from tools.retrievers.neural.dense_model import SentenceModel

Encoder = Literal["float32", "int8"]


class Dense(VectorRetriever):
    """The documents whose vectors are nearest to the query's: all of them compared, in float32 or first in 8 bits."""

    loads_weights = True

    def __init__(
        self,
        corpus: Corpus,
        home: Path | None = None,
        model: str = BUNDLED,
        *,
        encoder: Encoder = "float32",
        search: Precision = "float32",
        like: str = "",
        weights: str = "",
        run_code: str = "",
    ) -> None:
        embedder = SentenceEmbedder(model, home=home, encoder=encoder, like=like, weights=weights, run_code=run_code)
        super().__init__(corpus, home, embedder, embedder.name, search)

    @classmethod
    def require(cls, model: str, parts: int, options: Mapping[str, Any]) -> None:
        """Refuse a model that cannot be run here."""
        require_model(model, "dense", options["like"], options["run_code"])


class SentenceEmbedder:
    """Texts to the vectors of one model; an Embedder. The model is loaded when the first text comes.

    `like` takes another model's row, for a folder whose name says nothing. `weights` pins the digest of the model's
    files; `run_code` allows code of the model's own, see require_model. With `encoder="int8"` the transformer computes
    with 8-bit weights, see quantized.py, and is kept in `home`.
    """

    sends: ClassVar[bool] = False
    loads_weights: ClassVar[bool] = True
    needs_lens: ClassVar[bool] = False

    def __init__(
        self,
        model: str = BUNDLED,
        *,
        home: Path | None = None,
        encoder: Encoder = "float32",
        like: str = "",
        weights: str = "",
        run_code: str = "",
    ) -> None:
        self._model = open_model(require_model(model, "dense", like, run_code), model, weights)
        self._encoder = encoder
        self._home = home
        options = {"encoder": "" if encoder == "float32" else encoder, "like": like, "weights": self._model.weights}
        self.name = name_model("dense", model, **options, run_code=run_code)

    @cached_property
    def _sentences(self) -> "SentenceModel":
        from tools.retrievers.neural.dense_model import load  # imports torch: seconds

        return load(self._model, self._encoder, self._home)

    @property
    def dimension(self) -> int:
        """Numbers in a vector."""
        return self._sentences.dimension

    def key(self) -> Mapping[str, object]:
        """All that shapes a document's vector."""
        libraries = ["torch", "transformers", "tokenizers", "sentence-transformers"]
        if self._encoder == "int8":
            libraries += ["onnx", "onnxruntime"]
        return {
            "model": self._model.row.name,
            "weights": self._model.weights,
            "run_code": self._model.row.run_code,
            "encoder": self._encoder,
            "versions": {name: version(name) for name in libraries},
            "code": code("tools/text", neural="dense_model transformer models quantized"),
            **self._sentences.settings(),
        }

    def documents(self, texts: Sequence[str]) -> Vectors:
        """The vectors of documents, shape (texts, dimension); a text of no tokens gets the zero vector."""
        return self._sentences.documents(texts)

    def queries(self, searches: Sequence[Search]) -> Vectors:
        """The vectors of searches, shape (searches, dimension); each is the same, to the last bit, in any batch."""
        return self._sentences.queries(searches)

    def left_out(self, text: str, instruction: str = "") -> int:
        """How many tokens at the end of a query are more than the model takes."""
        return self._sentences.left_out(text, instruction)
