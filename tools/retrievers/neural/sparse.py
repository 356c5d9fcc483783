"""Learned sparse retrieval: a model gives a text a weight for every term of its vocabulary, most of them zero.

SPLADE (Formal et al., SIGIR 2021; max pooling and this form: "SPLADE v2", arXiv 2109.10086): term j of a text weighs

    max over the text's tokens i of ln(1 + max(0, logit of j at i))

with the logits of a language model's head, and the score is the inner product of query and document. Weights are kept
in an inverted index, and all documents are scored, exactly. The model is in sparse_model.py.
"""

import zipfile
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tools import disk
from tools.console import Progress
from tools.corpus import Corpus, indexed_text
from tools.errors import DataError
from tools.records import Hit
from tools.retriever import Ranker, Retriever, Search
from tools.retrievers.kernels import Postings, complete_lists, run_in_threads
from tools.retrievers.neural.models import (
    Row,
    find_folder,
    name_model,
    open_model,
    read_architectures,
    read_class,
    require_model,
)
from tools.retrievers.store import open_index
from tools.retrievers.vectors.embedding import order_of, require_finite

if TYPE_CHECKING:
    from tools.retrievers.neural.sparse_model import SparseModel

_BLOCK_TEXTS = 1024  # what is held in memory, and what is lost when the process is killed


class Sparse(Retriever):
    """The documents whose learned term weights have the largest inner product with the query's; 0 is no hit."""

    loads_weights = True

    def __init__(
        self, corpus: Corpus, home: Path | None, model: str, *, like: str = "", weights: str = "", run_code: str = ""
    ) -> None:
        from tools.retrievers.neural.library_encoder import key  # imports torch: seconds

        self._found = open_model(require_model(model, "sparse", like, run_code), model, weights)
        self.name = name_model("splade", model, like=like, weights=self._found.weights, run_code=run_code)
        ranker = Ranker(corpus.doc_ids)
        self._postings, self._terms = open_index(
            home,
            {
                **key("splade", self.name, self._found.row, "sparse sparse_model ../kernels", vectors="embedding"),
                "corpus": corpus.fingerprint,
            },
            build=lambda folder: self._build(corpus, folder),
            load=lambda folder: (Postings(folder, ranker), np.load(folder / "terms.npy")),
        )

    @classmethod
    def require(cls, model: str, parts: int, options: Mapping[str, Any]) -> None:
        """Refuse a model that cannot be run here."""
        form_of(find_folder(model), require_model(model, "sparse", options["like"], options["run_code"]))

    def left_out(self, text: str, instruction: str = "") -> int:
        """How many tokens at the end of a query are more than the model takes."""
        return self._model.left_out(self._found.row.query_text(text, instruction))

    def _search_many(self, searches: Sequence[Search], k: int) -> list[list[Hit]]:
        texts = [self._found.row.query_text(search.text, search.instruction) for search in searches]
        queries = self._model.encode(texts, "query")
        for search, query in zip(searches, queries, strict=True):
            require_finite(query.weights, self.name, f"the query {search.text[:80]!r}")

        def ranked(place: int) -> list[Hit]:
            (terms, amounts), search = queries[place], searches[place]
            _, rows, known = np.intersect1d(self._terms, terms, assume_unique=True, return_indices=True)
            return self._postings.search(rows, k, amounts=amounts[known], excluded=search.excluded, among=search.among)

        return run_in_threads(ranked, range(len(searches)))

    @cached_property
    def _model(self) -> "SparseModel":
        from tools.retrievers.neural.sparse_model import load  # imports torch: seconds

        return load(self._found, form_of(self._found.folder, self._found.row))

    def _build(self, corpus: Corpus, folder: Path) -> None:
        """Encode each distinct text once, block by block, then sort all weights by term."""
        order = order_of(corpus, _BLOCK_TEXTS)
        rows = order.rows[order.starts[:-1]]  # the first document of each text
        files = {folder / f"block-{first}.npz": rows[first:last] for first, last in pairwise(order.blocks.tolist())}
        done = sum(len(block) for file, block in files.items() if file.is_file())  # of an interrupted build
        progress = Progress(self.name, len(rows), "texts", done=done)
        blocks = list[_Block]()
        for file, block in files.items():
            encoded = _read(file, len(block))
            if encoded is None:
                encoded = self._encode([corpus.doc_ids[row] for row in block], corpus)
                with disk.drafting(file, disk.SHARED) as draft, draft.open("wb") as opened:
                    np.savez(opened, **encoded._asdict())
                    draft.replace(file)
                progress.add(len(block))
            blocks.append(encoded)
        _save_by_term(blocks, order.text_of_row(), folder)
        for file in files:
            file.unlink()

    def _encode(self, doc_ids: Sequence[str], corpus: Corpus) -> "_Block":
        made = self._model.encode(
            [self._found.row.document_text(indexed_text(corpus[one])) for one in doc_ids], "document"
        )
        for doc_id, weighed in zip(doc_ids, made, strict=True):
            require_finite(weighed.weights, self.name, f"the document {doc_id!r}", "the blocks of documents before it")
        counts = np.array([len(each.terms) for each in made])
        terms, weights = (np.concatenate(each) for each in zip(*made, strict=True))
        return _Block(counts, terms, weights)


class _Block(NamedTuple):
    """Some texts, one after the other."""

    counts: NDArray[np.int64]  # terms of each text, shape (texts,)
    terms: NDArray[np.int32]  # of one text ascending
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
    complete_lists(folder, len(text_of_row))


def _read(file: Path, texts: int) -> _Block | None:
    """A block that an earlier build left; None when there is none that is whole."""
    try:
        with np.load(file) as left:
            block = _Block(*(left[name] for name in _Block._fields))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    return block if len(block.counts) == texts else None


def form_of(folder: Path, row: Row) -> str:
    """Name the kind of model in a folder: "saved" (by SparseEncoder), "masked" or "causal" (with its head).

    DataError for anything else, of which sentence-transformers would make a sparse encoder with random weights.
    """
    if (folder / "modules.json").is_file():
        if (kind := read_class(folder)) == "SparseEncoder":
            return "saved"
        raise DataError(f"the model folder {folder} is a {kind}, not a SparseEncoder; use another kind of retriever")
    if row.bidirectional:
        return "causal"
    names = read_architectures(folder)
    if any(name.endswith("ForMaskedLM") for name in names):
        return "masked"
    raise DataError(
        f"the model folder {folder} ({', '.join(names) or 'no architecture named'}) is no sparse encoder: "
        "it has no modules.json of a SparseEncoder, and no head of a masked language model"
    )
