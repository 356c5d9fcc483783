"""MTEB and Sextant, each in the other: an encoder of MTEB's as a retriever here, a program of ours as a model there.

    sextant run --task congress --program multihop --retriever examples/mteb/models.py:Mteb:MODEL
    python examples/mteb/models.py NanoNQRetrieval

The second evaluates one search by BM25 on a task of MTEB's, by default one of its tiny ones for tests. Both want `mteb`
in the environment. Left out: models of MTEB's that are no encoders, and how much of a long text an encoder cuts off.
"""

import sys
from functools import cached_property
from pathlib import Path
from threading import Lock

import mteb
import numpy as np
from datasets import Dataset
from mteb._create_dataloaders import create_dataloader
from mteb.abstasks.task_metadata import TaskMetadata
from mteb.mocks.mock_tasks.retrieval import MockRetrievalTask
from mteb.models.model_meta import ModelMeta
from mteb.types import PromptType

from sextant.evals.running.request import find_program
from sextant.tools import retrievers
from sextant.tools.corpus import Corpus
from sextant.tools.records import Document, Query
from sextant.tools.retrievers.neural.model_table import versions
from sextant.tools.retrievers.vectors.embedder import Embedder
from sextant.tools.retrievers.vectors.exact_search import VectorRetriever
from sextant.tools.session import Toolbox
from sextant.tools.text import encodable


class MtebEmbedder(Embedder):
    """Vectors by a model of MTEB's, asked as for one of its retrieval tasks."""

    loads_weights = True

    def __init__(self, model):
        self._model, self._lock = mteb.get_model(model), Lock()
        about = self._model.mteb_model_meta
        self._cosine = about.similarity_fn_name in (None, "cosine")
        self.name = f"mteb:{model}(revision={about.revision})"

    @cached_property
    def dimension(self):
        return self._encode(["a"], PromptType.document).shape[1]

    def key(self):
        return {
            "kind": "vectors",
            "name": self.name,
            "versions": versions("mteb", "sentence-transformers", "torch"),
        }

    def documents(self, texts, done=lambda _: None):
        return self._encode(texts, PromptType.document)

    def queries(self, searches):
        one_by_one = [
            self._encode([one.text], PromptType.query, one.instruction) for one in searches
        ]
        return np.concatenate(one_by_one)  # the same to the last bit in any batch

    def left_out(self, text, instruction=""):
        return 0

    def _encode(self, texts, kind, instruction=""):
        about = {
            "name": "Sextant",
            "description": "a task",
            "type": "Retrieval",
            "main_score": "ndcg_at_10",
        }
        prompt = {"query": instruction} if instruction else None
        task = TaskMetadata(
            dataset={"path": "-", "revision": "-"}, eval_langs=["eng-Latn"], prompt=prompt, **about
        )
        rows = Dataset.from_list(
            [{"id": str(place), "text": text} for place, text in enumerate(encodable(texts))]
        )
        where = {"task_metadata": task, "prompt_type": kind}
        how = {**where, "hf_split": "test", "hf_subset": "default", "show_progress_bar": False}
        with self._lock:
            made = self._model.encode(create_dataloader(rows, **where), **how)
        vectors = np.asarray(made, dtype=np.float32)
        return (
            vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
            if self._cosine
            else vectors
        )


class Mteb(VectorRetriever):
    """The documents whose vectors are nearest to the query's, by an encoder of MTEB's."""

    loads_weights = True

    def __init__(self, corpus, home=None, model="mteb/baseline-random-encoder"):
        embedder = MtebEmbedder(model)
        super().__init__(corpus, home, embedder, f"{Path(__file__).name}:Mteb:{model}")


class Searcher:
    """A program of ours as a search model of MTEB's; what it asks a model goes to that of dspy.configure(lm=...)."""

    def __init__(self, program, retriever="bm25", **parameters):
        self._make, self._retriever, self._parameters = find_program(program), retriever, parameters
        name = f"sextant/{program}-{''.join(one if one.isalnum() else '-' for one in retriever)}"
        self.mteb_model_meta = ModelMeta.create_empty({"name": name, "revision": "1"})

    def index(self, corpus, **task):
        self._corpus = Corpus(
            Document(row["id"], row["text"], row.get("title") or "") for row in corpus
        )
        self._engine = retrievers.build(self._retriever, self._corpus)

    def search(self, queries, *, top_k, top_ranked=None, **task):
        found = {}
        for row in queries:
            pool = frozenset(top_ranked[row["id"]]) if top_ranked else None
            query = Query(row["id"], row["text"], row.get("instruction") or "", candidates=pool)
            program = self._make(
                Toolbox(self._corpus, self._engine), depth=top_k, **self._parameters
            )
            ranking = program(query=query).ranking
            found[query.query_id] = {
                doc_id: 1 / rank for rank, doc_id in enumerate(ranking, start=1)
            }
        return found


if __name__ == "__main__":
    task = mteb.get_task(sys.argv[1]) if sys.argv[1:] else MockRetrievalTask()
    scored = mteb.evaluate(Searcher("retrieve"), task, cache=None)
    sys.stdout.write(f"{scored[0].task_name}: {scored[0].get_score()}\n")
