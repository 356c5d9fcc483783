"""One vector a text, from a transformer that runs here: any model folder of sentence-transformers, or of transformers
with a row in models.toml.

The libraries load the weights; which tokens go in, and what is made of their hidden states, is done here, so that it is
exactly what the row says. Texts are batched by equal length, see in_equal_lengths. Where vectors are kept and searched
is in embedding.py and vectors.py.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from importlib.metadata import version
from pathlib import Path
from threading import Lock
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tools.corpus import Corpus
from tools.errors import DataError
from tools.retriever import Search
from tools.retrievers.neural.encoding import TokenIds, Transformer, cores, in_equal_lengths, threads
from tools.retrievers.neural.models import (
    BUNDLED,
    Row,
    document_prefix,
    document_text,
    folder_of,
    pinned,
    query_prefix,
    query_text,
    require_model,
    settings,
)
from tools.retrievers.spec import spell
from tools.retrievers.store import code
from tools.retrievers.vectors.embedding import Vectors
from tools.retrievers.vectors.vectors import Precision, VectorRetriever

Encoder = Literal["float32", "int8"]

_LOADING = Lock()  # two threads that want the same model load it once


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
    files; `run_code` allows code of the model's own, see models.allowed. With `encoder="int8"` the transformer computes
    with 8-bit weights, see quantized.py, and is kept in `home`.
    """

    sends, loads_weights, needs_lens = False, True, False

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
        self._row = require_model(model, "dense", like, run_code)
        self._folder = folder_of(model)
        self._weights = pinned(self._row, self._folder, weights)
        self._encoder = encoder
        self._home = home
        given = {"encoder": (encoder, "float32"), "like": (like, ""), "weights": (self._weights, "")}
        given["run_code"] = (run_code, "")
        options = {name: value for name, (value, default) in given.items() if value != default}
        self.name = spell("dense", model, (), options)

    @cached_property
    def _sentences(self) -> "_SentenceModel":
        with _LOADING:
            return _loaded(self._folder, self._row, self._weights, self._encoder, self._home)

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
            "model": self._row.name,
            "weights": self._weights,
            "run_code": self._row.run_code,
            "encoder": self._encoder,
            "versions": {name: version(name) for name in libraries},
            "code": code(neural="dense encoding models quantized"),
            **self._sentences.settings(),
        }

    def documents(self, texts: Sequence[str]) -> Vectors:
        """The vectors of documents, shape (texts, dimension); a text of no tokens gets the zero vector."""
        model, row = self._sentences, self._row
        return model.vectors(texts, partial(document_text, row), document_prefix(row), model.documents)

    def queries(self, searches: Sequence[Search]) -> Vectors:
        """The vectors of searches, shape (searches, dimension); each is the same, to the last bit, in any batch."""
        model, row = self._sentences, self._row
        vectors = np.empty((len(searches), model.dimension), dtype=np.float32)
        places = defaultdict[str, list[int]](list)
        for place, search in enumerate(searches):
            places[search.instruction].append(place)
        for instruction, some in places.items():
            texts = [searches[place].text for place in some]
            before = query_prefix(row, instruction)
            vectors[some] = model.vectors(texts, partial(_query_text, row, instruction), before, model.queries)
        return vectors

    def left_out(self, text: str, instruction: str = "") -> int:
        """How many tokens at the end of a query are more than the model takes."""
        return self._sentences.queries.ids.left_out(_query_text(self._row, instruction, text))


class _SentenceModel:
    """A loaded model: formatted texts to vectors."""

    def __init__(self, folder: Path, row: Row, for_queries: Any, for_documents: Any) -> None:
        self._row = row
        self._modules = _modules(folder, row, for_documents.width)
        tokenizer, positions = for_documents.tokenizer, for_documents.positions
        self._eos = tokenizer.eos_token_id if row.eos and not _ends_with_eos(tokenizer) else None
        own = settings(folder / "sentence_bert_config.json")

        def ids(most: int) -> TokenIds:
            most = min(most or own.get("max_seq_length") or positions, positions)
            return TokenIds(tokenizer, most, self._eos, lower=bool(own.get("do_lower_case")))

        # Queries go one by one, with one thread: that has the same bits for every model and library.
        self.queries = _Reader(for_queries, ids(row.max_query_tokens), batch_tokens=1, threads=1)
        batch_tokens = for_documents.batch_tokens
        self.documents = _Reader(
            for_documents, ids(row.max_document_tokens), batch_tokens=batch_tokens, threads=cores()
        )

    @cached_property
    def dimension(self) -> int:
        """Numbers in a vector."""
        return int(self._pooled(self.documents, np.array([[0, 1]]), 0).shape[1])

    def settings(self) -> dict[str, object]:
        """What shapes a document's vector beside the weights and the code."""
        row = self._row
        modules = [f"{type(module).__name__} {module.get_config_dict()}" for module in self._modules]
        return {
            "format": row.document,
            "tokens": self.documents.ids.most,
            "eos": self._eos,
            "bidirectional": row.bidirectional,
            "task": row.task_document,
            "precision": self.documents.transformer.dtype,
            "modules": modules,
        }

    def vectors(self, texts: Sequence[str], form: Callable[[str], str], before: str, reader: "_Reader") -> Vectors:
        """The vectors of `texts` as `form` gives them to the model; `before` is what stands before them there."""
        ids = reader.ids.of([form(text) for text in texts])
        lengths = [len(row) for row in ids]
        shortest = len(reader.ids.of([form("")])[0])
        for place, text in enumerate(texts):
            if lengths[place] <= shortest and reader.ids.empty(text):
                lengths[place] = 0
        vectors = np.zeros((len(texts), self.dimension), dtype=np.float32)
        skipped = reader.ids.before(before)
        with threads(reader.threads):
            for batch in in_equal_lengths(lengths, reader.batch_tokens):
                if lengths[batch[0]]:
                    vectors[batch] = self._pooled(reader, np.array([ids[place] for place in batch]), skipped)
        return vectors

    def _pooled(self, reader: "_Reader", ids: NDArray[np.int64], skipped: int) -> Vectors:
        """The vectors of texts of equal length: ids of shape (texts, tokens); a mean may skip the first tokens."""
        import torch

        with torch.inference_mode():
            hidden = reader.transformer.hidden(ids).float()
            if self._row.pooling == "mean of unit tokens":
                hidden = torch.nn.functional.normalize(hidden, dim=-1)
            features: dict[str, Any] = {
                "token_embeddings": hidden,
                "attention_mask": torch.ones(hidden.shape[:2], dtype=torch.int64, device=hidden.device),
                "prompt_length": min(skipped, ids.shape[1] - 1),
            }
            for module in self._modules:
                features = module(features)
            vectors: Vectors = features["sentence_embedding"].cpu().numpy()
        return vectors


@dataclass(slots=True)
class _Reader:
    """What queries, or documents, go through."""

    transformer: Any
    ids: TokenIds
    batch_tokens: int
    threads: int


@lru_cache(maxsize=2)  # a model may fill the memory
def _loaded(folder: Path, row: Row, weights: str, encoder: Encoder, home: Path | None) -> _SentenceModel:
    made: Any
    if encoder == "int8":
        from tools.retrievers.neural.quantized import QuantizedTransformer

        made = QuantizedTransformer(folder, row, weights, home)
    else:
        made = Transformer(folder, row, task=row.task_document)
    same = row.task_query == row.task_document
    return _SentenceModel(folder, row, made if same else Transformer(folder, row, task=row.task_query), made)


def _query_text(row: Row, instruction: str, text: str) -> str:
    return query_text(row, Search(text, instruction))


def _modules(folder: Path, row: Row, width: int) -> list[Any]:
    """What follows the transformer: the folder's own modules, or the row's pooling."""
    from sentence_transformers.sentence_transformer import modules

    made: list[Any] = []
    listed = folder / "modules.json"
    for entry in json.loads(listed.read_text(encoding="utf-8"))[1:] if listed.is_file() else ():
        kind = getattr(modules, entry["type"].rpartition(".")[2], None)
        if kind is None:
            raise DataError(
                f"{folder} has a module {entry['type']} of its own, which is not run; so its vectors would be wrong"
            )
        empty = not (folder / entry["path"]).is_dir()  # Normalize, which has no files
        made.append(kind() if empty else kind.load(str(folder / entry["path"])))
    if not made:
        mode = {"cls": "cls", "last": "lasttoken"}.get(row.pooling, "mean")
        made.append(modules.Pooling(width, mode, include_prompt=not row.pool_text_only))
    if row.normalize and not isinstance(made[-1], modules.Normalize):
        made.append(modules.Normalize())
    return [module.eval() for module in made]


def _ends_with_eos(tokenizer: Any) -> bool:
    return bool(tokenizer("a").input_ids[-1] == tokenizer.eos_token_id)
