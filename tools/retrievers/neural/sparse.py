"""Learned sparse retrieval: a model gives a text a weight for every term of its vocabulary, most of them zero.

SPLADE (Formal et al., SIGIR 2021; max pooling and this form: "SPLADE v2", arXiv 2109.10086): term j of a text weighs

    max over the text's tokens i of ln(1 + max(0, logit of j at i))

with the logits of a language model's head, and the score is the inner product of query and document. What
sentence-transformers saved as a SparseEncoder is loaded as it is; a masked language model gets this pooling, as the
first SPLADE models were published; and so does a decoder whose row of models.toml says that its tokens attend to both
sides (Lion, Zeng et al. 2025), whose logits are first divided by the fourth root of the model's width, as its authors'
code does. Weights are kept in an inverted index, and all documents are scored, exactly.
"""

import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tools.console.progress import Progress
from tools.corpus import Corpus, indexed_text
from tools.errors import DataError
from tools.records import Hit
from tools.retriever import Ranker, Retriever, Search
from tools.retrievers.lexical.postings import Postings, finish, in_threads
from tools.retrievers.neural.encoding import quiet, with_adapter
from tools.retrievers.neural.library_models import LibraryModel, architectures, key, kind_of, loading, options
from tools.retrievers.neural.models import Row, base_of, document_text, folder_of, pinned, query_text, require_model
from tools.retrievers.spec import spell
from tools.retrievers.store import open_index
from tools.retrievers.vectors.embedding import order_of

_BLOCK_TEXTS = 1024  # what is held in memory, and what is lost when the process is killed
_BATCH_TOKENS = 1024  # that the model takes at a time: their logits are 125 MB with BERT's vocabulary

_LOADING = Lock()  # two threads that want the same model load it once


class Sparse(Retriever):
    """The documents whose learned term weights have the largest inner product with the query's; 0 is no hit."""

    loads_weights = True

    def __init__(
        self, corpus: Corpus, home: Path | None, model: str, *, like: str = "", weights: str = "", run_code: str = ""
    ) -> None:
        self._row = require_model(model, "sparse", like, run_code)
        self._folder = folder_of(model)
        self._form = _form(self._folder, self._row)
        self._weights = pinned(self._row, self._folder, weights)
        given = {"like": like, "weights": self._weights, "run_code": run_code}
        self.name = spell("splade", model, (), {name: value for name, value in given.items() if value})
        ranker = Ranker(corpus.doc_ids)
        self._postings, self._terms = open_index(
            home,
            self._key(corpus),
            build=lambda folder: self._build(corpus, folder),
            load=lambda folder: (Postings(folder, ranker), np.load(folder / "terms.npy")),
        )

    @classmethod
    def require(cls, model: str, parts: int, options: Mapping[str, Any]) -> None:
        """Refuse a model that cannot be run here."""
        _form(folder_of(model), require_model(model, "sparse", options["like"], options["run_code"]))

    def left_out(self, text: str, instruction: str = "") -> int:
        """How many tokens at the end of a query are more than the model takes."""
        return self._model.left_out(query_text(self._row, Search(text, instruction)))

    def _search_many(self, searches: Sequence[Search], k: int) -> list[list[Hit]]:
        queries = [_NOTHING] * len(searches)
        for place, made in self._model.encode([query_text(self._row, search) for search in searches], "query"):
            if not np.isfinite(made.weights).all():
                raise DataError(f"{self.name} gave NaN or infinity for the query {searches[place].text[:80]!r}")
            queries[place] = made

        def ranked(place: int) -> list[Hit]:
            (terms, amounts), search = queries[place], searches[place]
            _, rows, known = np.intersect1d(self._terms, terms, assume_unique=True, return_indices=True)
            return self._postings.search(rows, k, amounts=amounts[known], excluded=search.excluded, among=search.among)

        return in_threads(ranked, range(len(searches)))

    @cached_property
    def _model(self) -> "_SparseModel":
        with _LOADING:
            return _loaded(self._folder, self._row, self._weights, self._form)

    def _key(self, corpus: Corpus) -> Mapping[str, object]:
        return {
            **key("splade", self.name, self._row, "sparse", lexical="postings", vectors="embedding"),
            "corpus": corpus.fingerprint,
        }

    def _build(self, corpus: Corpus, folder: Path) -> None:
        """Encode each distinct text once, block by block, then sort all weights by term."""
        order = order_of(corpus, _BLOCK_TEXTS)
        rows = order.rows[order.starts[:-1]]  # the first document of each text
        blocks = [rows[first:last] for first, last in pairwise(order.blocks.tolist())]
        files = [folder / f"block-{number}.npz" for number in range(len(blocks))]
        found = [_read(file, len(block)) for file, block in zip(files, blocks, strict=True)]  # of an interrupted build
        done = sum(len(block) for block, encoded in zip(blocks, found, strict=True) if encoded)
        progress = Progress(self.name, len(rows), "texts", done=done)
        for number, block in enumerate(blocks):
            if found[number] is None:
                encoded = self._encoded([corpus.doc_ids[row] for row in block], corpus)
                _write(files[number], encoded)
                found[number] = encoded
                progress.add(len(block))
        _save_by_term([block for block in found if block], order.text_of_row(), folder)
        for file in files:
            file.unlink()

    def _encoded(self, doc_ids: Sequence[str], corpus: Corpus) -> "_Block":
        texts = [document_text(self._row, indexed_text(corpus[doc_id])) for doc_id in doc_ids]
        made = [_NOTHING] * len(texts)
        for place, weighed in self._model.encode(texts, "document"):
            if not np.isfinite(weighed.weights).all():
                raise DataError(
                    f"{self.name} gave NaN or infinity for the document {doc_ids[place]!r}; "
                    "the blocks of documents before it are kept"
                )
            made[place] = weighed
        counts = np.array([len(each.terms) for each in made])
        terms, weights = (np.concatenate(each) for each in zip(*made, strict=True))
        return _Block(counts, terms, weights)


class _Weighed(NamedTuple):
    """A text's terms that weigh anything, ascending, and what each weighs: both of shape (terms,)."""

    terms: NDArray[np.int32]
    weights: NDArray[np.float32]


_NOTHING = _Weighed(np.zeros(0, np.int32), np.zeros(0, np.float32))


class _Block(NamedTuple):
    """Some texts, one after the other."""

    counts: NDArray[np.int64]  # terms of each text, shape (texts,)
    terms: NDArray[np.int32]
    weights: NDArray[np.float32]


def _save_by_term(blocks: Sequence[_Block], text_of_row: NDArray[np.int64], folder: Path) -> None:
    """Write the inverted index into `folder`, as Postings reads it: by term, then by position in the corpus.

    Its terms are those that some document has; `terms.npy` says which of the model's they are, ascending.
    """
    counts, terms, weights = (np.concatenate(each) for each in zip(*blocks, strict=True))
    if not len(terms):
        raise DataError("the model gives no term of any document a weight; nothing can be searched")
    starts = np.cumsum(counts) - counts
    lengths = counts[text_of_row]
    # Of every document, in order, where its text's postings are: a text that several have is there several times.
    within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    places = np.repeat(starts[text_of_row], lengths) + within
    documents = np.repeat(np.arange(len(text_of_row), dtype=np.int32), lengths)
    by_term = np.argsort(terms[places], kind="stable")
    used, first = np.unique(terms[places][by_term], return_index=True)
    np.save(folder / "terms.npy", used)
    np.save(folder / "indptr.npy", np.append(first, len(places)).astype(np.int64))
    np.save(folder / "documents.npy", documents[by_term])
    np.save(folder / "weights.npy", weights[places][by_term])
    finish(folder, len(text_of_row))


def _write(file: Path, block: _Block) -> None:
    """In one step, so that a block is there whole or not at all."""
    beside = file.with_suffix(".part")
    with beside.open("wb") as opened:
        np.savez(opened, **block._asdict())
        opened.flush()
        os.fsync(opened.fileno())
    beside.replace(file)


def _read(file: Path, texts: int) -> _Block | None:
    """A block that an earlier build left; None when there is none that is whole."""
    try:
        with np.load(file) as left:
            block = _Block(*(left[name] for name in _Block._fields))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    return block if len(block.counts) == texts else None


def _form(folder: Path, row: Row) -> str:
    """What the folder holds: "saved" (by SparseEncoder), "masked" or "causal" (a language model with its head).

    DataError for anything else, of which sentence-transformers would make a sparse encoder with random weights.
    """
    if (folder / "modules.json").is_file():
        if (kind := kind_of(folder)) == "SparseEncoder":
            return "saved"
        raise DataError(f"the model folder {folder} is a {kind}, not a SparseEncoder; use another kind of retriever")
    if row.bidirectional:
        return "causal"
    names = architectures(folder)
    if any(name.endswith("ForMaskedLM") for name in names):
        return "masked"
    raise DataError(
        f"the model folder {folder} ({', '.join(names) or 'no architecture named'}) is no sparse encoder: "
        "it has no modules.json of a SparseEncoder, and no head of a masked language model"
    )


class _SparseModel:
    """A loaded model: texts to the weights of terms. Threads share it."""

    def __init__(self, folder: Path, row: Row, form: str) -> None:
        quiet()
        with loading(folder, row):
            model = _load_saved(folder, row) if form == "saved" else _load_language_model(folder, row, form)
        model.prompts = {}  # the folder's own are in the row's formats (models.py), and go in once
        self._library = LibraryModel(model, row)
        self.left_out = self._library.left_out

    def encode(self, texts: Sequence[str], task: str) -> Iterator[tuple[int, _Weighed]]:
        """Each text's position and weights; the same to the last bit in any batch."""
        for places, made in self._library.encode(texts, task, _BATCH_TOKENS, convert_to_sparse_tensor=False):
            for place, vector in zip(places, made.float().cpu().numpy(), strict=True):
                terms = np.flatnonzero(vector)
                yield place, _Weighed(terms.astype(np.int32), vector[terms])


def _load_saved(folder: Path, row: Row) -> Any:
    from sentence_transformers import SparseEncoder

    return SparseEncoder(str(folder), **options(row))


def _load_language_model(folder: Path, row: Row, form: str) -> Any:
    """A language model with its head, and SPLADE's pooling over the logits of all tokens."""
    from sentence_transformers import SparseEncoder
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sparse_encoder.modules import SpladePooling

    how = options(row)
    where, dtype = how.pop("device"), how.pop("model_kwargs")
    base = base_of(folder, row)
    _need_whole_head(base or folder, form, how)
    model = Transformer(
        str(base or folder),
        transformer_task="fill-mask" if form == "masked" else "text-generation",
        model_kwargs={**how, **dtype},
        processor_kwargs=how,
        config_kwargs={**how, "is_causal": False} if form == "causal" else how,
        modality_config={"text": {"method": "forward", "method_output_name": "logits"}},  # and no chat template
        module_output_name="token_embeddings",
        processing_kwargs={"text": {"logits_to_keep": 0}} if form == "causal" else {},  # 0 is all
    )
    if base:
        model.model = with_adapter(model.model, folder)
    modules = [model, SpladePooling("max")]
    if form == "causal":
        for module in model.modules():  # what holds where there is no mask, as in a batch without padding
            if hasattr(module, "is_causal"):
                module.is_causal = False
        model.tokenizer.padding_side = "left"  # which sentence-transformers asks of decoders; nothing is padded here
        modules.insert(1, _divided_by(float(model.model.config.hidden_size) ** 0.25))
    return SparseEncoder(modules=modules, device=where)


def _divided_by(number: float) -> Any:
    """A module between a language model and the pooling that divides the logits."""
    import torch

    class Divided(torch.nn.Module):
        def forward(self, features: dict[str, Any]) -> dict[str, Any]:
            return {**features, "token_embeddings": features["token_embeddings"] / number}

    return Divided()


def _need_whole_head(folder: Path, form: str, how: Mapping[str, Any]) -> None:
    """DataError when weights that the model needs are not in its files: transformers would make random ones."""
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

    kind: Any = AutoModelForMaskedLM if form == "masked" else AutoModelForCausalLM
    # On the device "meta", names are compared and no weights are read.
    _, report = kind.from_pretrained(folder, device_map="meta", output_loading_info=True, **how)
    if missing := sorted(report["missing_keys"]):
        raise DataError(f"the weights in {folder} lack {missing[0]} and {len(missing) - 1} more; is it another model?")


@lru_cache(maxsize=2)
def _loaded(folder: Path, row: Row, weights: str, form: str) -> _SparseModel:
    return _SparseModel(folder, row, form)
