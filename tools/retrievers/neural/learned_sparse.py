"""Learned sparse retrieval: a model gives a text a weight for every term of its vocabulary, most of
them zero.

SPLADE (Formal et al., SIGIR 2021; max pooling and this form: "SPLADE v2", arXiv 2109.10086): term j
of a text weighs

    max over the text's tokens i of ln(1 + max(0, logit of j at i))

with the logits of a language model's head, and the score is the inner product of query and
document. Weights are kept in an inverted index, and all documents are scored exactly. The model is
in encoder.py.
"""

import zipfile
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from sextant.tools.corpus import Corpus, indexed_text
from sextant.tools.errors import DataError
from sextant.tools.platform import files as disk
from sextant.tools.platform.cli import Progress
from sextant.tools.records import Hits
from sextant.tools.retrievers.base import Options, Ranker, Retriever, Searches
from sextant.tools.retrievers.index_store import open_index
from sextant.tools.retrievers.lexical.numba_kernels import (
    Postings,
    run_in_threads,
)
from sextant.tools.retrievers.neural import model_table
from sextant.tools.retrievers.vectors.embedder import Report, plan_embedding, require_finite

if TYPE_CHECKING:
    from sextant.tools.retrievers.neural.encoder import Encoder

Weights = Any  # scipy's matrix of shape (texts, terms of the model)

_BLOCK_TEXTS = 1024  # held in memory, and lost when the process is killed

_INDEX_MODULES = (
    "sextant.tools.retrievers.neural.learned_sparse",
    "sextant.tools.retrievers.lexical.numba_kernels",
    "sextant.tools.retrievers.vectors.embedder",
)  # their code decides the content of an index


class LearnedSparse(model_table.LocalModelMixin, Retriever):
    """The largest inner products of learned term weights; 0 is no hit."""

    def __init__(
        self,
        corpus: Corpus,
        home: Path | None,
        model: str,
        *,
        like: str = "",
        weights: str = "",
        run_code: str = "",
    ) -> None:
        self._found = model_table.open_model(
            model_table.require_model(model, "sparse", like, run_code), model, weights
        )
        self.name = model_table.name_model(
            "splade",
            model,
            like=like,
            weights=self._found.weights,
            run_code=run_code,
        )
        ranker = Ranker(corpus.doc_ids)
        key = model_table.index_key("splade", self.name, self._found.row, _INDEX_MODULES)
        self._postings, self._terms = open_index(
            home,
            {**key, "corpus": corpus.fingerprint},
            build=lambda folder: self._build(corpus, folder),
            load=lambda folder: (Postings(folder, ranker), np.load(folder / "terms.npy")),
        )

    @classmethod
    def require(
        cls,
        model: str,
        part_count: int,
        options: Options,
    ) -> None:
        """Refuse a model that cannot be run here."""
        sparse_model_type(
            model_table.find_folder(model),
            model_table.require_model(model, "sparse", options["like"], options["run_code"]),
        )

    def _search_many(self, searches: Searches, k: int) -> list[Hits]:
        weights = self._weigh(
            [self._found.row.query_text(search.text, search.instruction) for search in searches],
            "query",
        )

        def ranked(position: int) -> Hits:
            search = searches[position]
            query = weights[[position]]
            require_finite(query.data, self.name, f"the query {search.text[:80]!r}")
            _, rows, columns = np.intersect1d(
                self._terms,
                query.indices,
                assume_unique=True,
                return_indices=True,
            )
            return self._postings.search(
                rows,
                k,
                amounts=query.data[columns],
                excluded=search.excluded,
                among=search.among,
            )

        return run_in_threads(ranked, range(len(searches)))

    @cached_property
    def _encoder(self) -> "Encoder":
        from sextant.tools.retrievers.neural.encoder import load_sparse  # imports torch: seconds

        return load_sparse(self._found, sparse_model_type(self._found.folder, self._found.row))

    def _build(self, corpus: Corpus, folder: Path) -> None:
        """Encode each distinct text once, block by block, then sort all weights by term."""
        order = plan_embedding(corpus, _BLOCK_TEXTS)
        bounds = pairwise(order.blocks.tolist())
        files = {folder / f"block-{first}.npz": order.rows[first:last] for first, last in bounds}
        finished = sum(
            len(block) for file, block in files.items() if file.is_file()
        )  # of an interrupted build
        progress = Progress(self.name, len(order.rows), "texts", done=finished)
        blocks = []
        for file, block in files.items():
            weights = _read(file, len(block))
            if weights is None:
                weights = self._weigh_documents(
                    [corpus.doc_ids[row] for row in block], corpus, progress.add
                )
                with disk.temporary_sibling(file, disk.SHARED) as draft, draft.open("wb") as opened:
                    sparse.save_npz(opened, weights)
                    draft.replace(file)
            blocks.append(weights)
        _save_by_term(sparse.vstack(blocks, format="csr")[order.text_of], folder)
        for file in files:
            file.unlink()

    def _weigh_documents(
        self,
        doc_ids: Sequence[str],
        corpus: Corpus,
        report: Report,
    ) -> Weights:
        weights = self._weigh(
            [self._found.row.document_text(indexed_text(corpus[doc_id])) for doc_id in doc_ids],
            "document",
            report,
        )
        for doc_id, (first, last) in zip(doc_ids, pairwise(weights.indptr.tolist()), strict=True):
            require_finite(
                weights.data[first:last],
                self.name,
                f"the document {doc_id!r}",
                "the blocks of documents before it",
            )
        return weights

    def _weigh(
        self,
        texts: Sequence[str],
        task: str,
        report: Report = lambda _: None,
    ) -> Weights:
        """Return the weights of each text's terms; the same to the last bit in any batch."""
        places = []
        blocks = []
        for positions, weights in self._encoder.encode(texts, task, convert_to_sparse_tensor=False):
            places += positions
            blocks.append(sparse.csr_array(weights.float().cpu().numpy()))
            report(len(positions))
        return sparse.vstack(blocks, format="csr")[np.argsort(places)]


def _save_by_term(weights: Weights, folder: Path) -> None:
    # As Postings reads it. It has the terms of any document; `terms.npy` are their numbers in the
    # model, ascending.
    by_term = weights.tocsc()
    used_terms: NDArray[np.int64] = np.flatnonzero(np.diff(by_term.indptr))
    if not len(used_terms):
        raise DataError("the model gives no term of any document a weight; nothing can be searched")
    np.save(folder / "terms.npy", used_terms)
    np.save(
        folder / "indptr.npy",
        np.append(by_term.indptr[used_terms], by_term.indptr[-1]).astype(np.int64),
    )
    np.save(folder / "documents.npy", by_term.indices.astype(np.int32))
    np.save(folder / "weights.npy", by_term.data)


def _read(file: Path, texts: int) -> Weights | None:
    try:
        weights = sparse.load_npz(file)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    return weights if weights.shape[0] == texts else None


def sparse_model_type(folder: Path, row: model_table.ModelRow) -> str:
    """Name the kind of model in a folder: "saved" (by SparseEncoder), "masked" or "causal" (with
    its head).

    DataError for anything else, of which sentence-transformers would make a sparse encoder with
    random weights.
    """
    if (folder / "modules.json").is_file():
        if (class_name := model_table.read_class(folder)) == "SparseEncoder":
            return "saved"
        raise DataError(
            f"the model folder {folder} is a {class_name}, not a SparseEncoder; use another kind of "
            f"retriever"
        )
    if row.bidirectional:
        return "causal"
    names = model_table.read_architectures(folder)
    if any(name.endswith("ForMaskedLM") for name in names):
        return "masked"
    raise DataError(
        f"the model folder {folder} ({', '.join(names) or 'no architecture named'}) is no sparse "
        "encoder: it has no modules.json of a SparseEncoder, and no head of a masked language "
        "model"
    )
