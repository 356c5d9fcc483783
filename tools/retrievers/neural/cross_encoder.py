"""Cross-encoders: a transformer reads a search and a document together and scores them.

Two families, told apart by the model's row in models.toml. A model with a head for a number reads a
pair of texts (BERT, XLM-RoBERTa, and Llama with an adapter, as RankLLaMA), and the number is the
score. A language model reads a prompt made of both texts, and the score is that of the token that
means "relevant": the log-probability against the token that means "irrelevant" (monoT5, FollowIR),
or the logit alone (bge-reranker-v2-gemma).

Every document is read, so this is for candidate pools, or the second part of `rerank`. Nothing is
kept on disk. Left out: prompts with examples, several documents in a prompt, and answers of several
tokens.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from math import isfinite
from pathlib import Path

from sextant.tools.corpus import Corpus, indexed_text
from sextant.tools.errors import DataError
from sextant.tools.platform.cli import Progress
from sextant.tools.records import Hits
from sextant.tools.retrievers.base import Options, Retriever, Search, Searches, top_k
from sextant.tools.retrievers.neural.model_table import (
    LocalModelMixin,
    name_model,
    open_model,
    require_model,
)

_REMEMBERED = 1 << 18  # scores that are kept in memory, at about 200 bytes each


class CrossEncoder(LocalModelMixin, Retriever):
    """A model's scores of each document of a pool together with the search's text.

    If the two are longer than the model takes, or than `max_tokens`, the document is cut at its end; the query only
    beyond three quarters of that length, as FlagEmbedding does, and `left_out` counts what it loses. A prompt's own
    words are never cut. `like` takes another model's row; `weights` pins the digest of the model's files.
    """

    needs_pool = True

    def __init__(
        self,
        corpus: Corpus,
        home: Path | None,
        model: str,
        *,
        like: str = "",
        weights: str = "",
        max_tokens: int = 0,
        run_code: str = "",
    ) -> None:
        from sextant.tools.retrievers.neural.cross_encoder_model import (  # imports torch: seconds
            PairScorer,
            load,
            workers,
        )

        self._found = open_model(require_model(model, "cross", like, run_code), model, weights)
        self.name = name_model(
            "cross",
            model,
            like=like,
            weights=self._found.weights,
            max_tokens=max_tokens,
            run_code=run_code,
        )
        self._corpus = corpus
        self._row = self._found.row
        self._workers = workers
        # Loaded here and not with the first search, so that a model that cannot rank stops a run
        # before it starts.
        self._encoder: PairScorer = PairScorer(*load(self._found), self._row, max_tokens)
        # Of a query as the model reads it, and a doc_id.
        self._scores = dict[tuple[str, str], float]()

    @classmethod
    def require(
        cls,
        model: str,
        part_count: int,
        options: Options,
    ) -> None:
        """Refuse a model that cannot be run here."""
        require_model(model, "cross", options["like"], options["run_code"])

    def _search_many(self, searches: Searches, k: int) -> list[Hits]:
        pools = [self._pool(search) for search in searches]
        progress = Progress("cross", sum(map(len, pools)), "pairs")
        if len(self._scores) > _REMEMBERED:
            self._scores.clear()
        rankings = []
        with self._workers() as workers:
            for search, pool in zip(searches, pools, strict=True):
                query = self._row.query_text(search.text, search.instruction)
                rankings.append(top_k(self._scored(query, pool, workers, progress), k))
        return rankings

    def _pool(self, search: Search) -> list[str]:
        pool = self._corpus if search.among is None else search.among
        return [
            doc_id for doc_id in pool if doc_id in self._corpus and doc_id not in search.excluded
        ]

    def _scored(
        self,
        query: str,
        pool: Sequence[str],
        workers: ThreadPoolExecutor,
        progress: Progress,
    ) -> dict[str, float]:
        scores = {
            doc_id: known
            for doc_id in pool
            if (known := self._scores.get((query, doc_id))) is not None
        }
        new = [doc_id for doc_id in pool if doc_id not in scores]
        progress.add(len(scores))
        for doc_id, score in zip(
            new, workers.map(lambda doc_id: self._score(query, doc_id), new), strict=True
        ):
            self._scores[query, doc_id] = scores[doc_id] = score
            progress.add()
        return scores

    def _score(self, query: str, doc_id: str) -> float:
        score = self._encoder.score(
            query, self._row.document_text(indexed_text(self._corpus[doc_id]))
        )
        if not isfinite(score):
            raise DataError(
                f"{self.name} scores document {doc_id!r} with {score}; its weights may be damaged"
            )
        return score
