"""A loaded model that makes one vector of a text.

The libraries load the weights; which tokens go in, and what is made of their hidden states, is done here, so that it is
exactly what the model's row says. Texts are batched by equal length, see batch_equal_lengths.
"""

import json
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers.sentence_transformer import modules

from tools.errors import DataError
from tools.retriever import Search
from tools.retrievers.neural.models import LocalModel, Row, read_settings
from tools.retrievers.neural.transformer import TokenIds, Transformer, batch_equal_lengths, cores, keep_loaded, threads
from tools.retrievers.vectors.embedding import Vectors


class _Reader(NamedTuple):
    """The way from texts to vectors, for queries or for documents."""

    transformer: Any
    ids: TokenIds
    batch_tokens: int
    threads: int


class SentenceModel:
    """Texts to vectors, from a model's transformer for queries and that for documents. Threads share it."""

    def __init__(self, folder: Path, row: Row, for_queries: Any, for_documents: Any) -> None:
        self._row = row
        self._modules = _modules(folder, row, for_documents.width)
        tokenizer, positions = for_documents.tokenizer, for_documents.positions
        ends_with_eos = tokenizer("a").input_ids[-1] == tokenizer.eos_token_id
        self._eos = tokenizer.eos_token_id if row.eos and not ends_with_eos else None
        own = read_settings(folder / "sentence_bert_config.json")

        def ids(most: int) -> TokenIds:
            most = min(most or own.get("max_seq_length") or positions, positions)
            return TokenIds(tokenizer, most, self._eos, lower=bool(own.get("do_lower_case")))

        # Queries go one by one, with one thread: that has the same bits for every model and library.
        self._queries = _Reader(for_queries, ids(row.max_query_tokens), 1, 1)
        self._documents = _Reader(for_documents, ids(row.max_document_tokens), for_documents.batch_tokens, cores())

    @cached_property
    def dimension(self) -> int:
        """Numbers in a vector."""
        return int(self._pooled(self._documents, np.array([[0, 1]]), 0).shape[1])

    def settings(self) -> dict[str, object]:
        """Return what shapes a document's vector beside the weights and the code."""
        row = self._row
        return {
            "format": row.document,
            "tokens": self._documents.ids.most,
            "eos": self._eos,
            "bidirectional": row.bidirectional,
            "task": row.task_document,
            "precision": self._documents.transformer.dtype,
            "modules": [f"{type(module).__name__} {module.get_config_dict()}" for module in self._modules],
        }

    def documents(self, texts: Sequence[str]) -> Vectors:
        """The vectors of documents, shape (texts, dimension); a text of no tokens gets the zero vector."""
        return self._vectors(texts, self._row.document_text, self._row.document_prefix(), self._documents)

    def queries(self, searches: Sequence[Search]) -> Vectors:
        """The vectors of searches, shape (searches, dimension)."""
        vectors = np.empty((len(searches), self.dimension), dtype=np.float32)
        for place, search in enumerate(searches):
            form = partial(self._row.query_text, instruction=search.instruction)
            before = self._row.query_prefix(search.instruction)
            vectors[place] = self._vectors([search.text], form, before, self._queries)[0]
        return vectors

    def left_out(self, text: str, instruction: str) -> int:
        """How many tokens at the end of a query are cut off."""
        return self._queries.ids.left_out(self._row.query_text(text, instruction))

    def _vectors(self, texts: Sequence[str], form: Callable[[str], str], before: str, reader: _Reader) -> Vectors:
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
            for batch in batch_equal_lengths(lengths, reader.batch_tokens):
                if lengths[batch[0]]:
                    vectors[batch] = self._pooled(reader, np.array([ids[place] for place in batch]), skipped)
        return vectors

    def _pooled(self, reader: _Reader, ids: NDArray[np.int64], skipped: int) -> Vectors:
        """The vectors of texts of equal length: ids of shape (texts, tokens); a mean may skip the first tokens."""
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


@keep_loaded
def load(model: LocalModel, encoder: str, home: Path | None) -> SentenceModel:
    """The model, ready to compute. One with 8-bit weights is kept in `home`."""
    folder, row = model.folder, model.row
    made: Any
    if encoder == "int8":
        from tools.retrievers.neural.quantized import QuantizedTransformer  # needs an extra: onnx

        made = QuantizedTransformer(model, home)
    else:
        made = Transformer(folder, row, task=row.task_document)
    same = row.task_query == row.task_document
    return SentenceModel(folder, row, made if same else Transformer(folder, row, task=row.task_query), made)


def _modules(folder: Path, row: Row, width: int) -> list[Any]:
    """Load the modules after the transformer: the folder's own, or the row's pooling."""
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
