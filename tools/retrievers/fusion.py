"""Several retrievers combined: their rankings merged, or the hits of one in the order of another."""

import math
import operator
from collections.abc import Iterable, Sequence
from functools import partial, reduce
from itertools import repeat
from pathlib import Path
from typing import Literal

from sextant.tools.corpus import Corpus
from sextant.tools.errors import UsageError, require_at_least
from sextant.tools.records import Hits
from sextant.tools.retrievers.base import Options, Retriever, Searches, top_k
from sextant.tools.retrievers.expressions import Value, format_expression

# k in the formula of Cormack, Clarke and Buettcher (SIGIR 2009), who found it near the best on all
# of their collections.
RRF_CONSTANT = 60


def reciprocal_ranks(
    depth: int, constant: int = RRF_CONSTANT, *, numerator: float = 1.0
) -> list[float]:
    """Return numerator / (constant + rank) for the ranks from 1 to `depth`."""
    return [numerator / (constant + rank) for rank in range(1, depth + 1)]


def reciprocal_rank_fusion(
    rankings: Iterable[Sequence[str]], weights: Iterable[float] | None = None, *, exact: bool = True
) -> dict[str, float]:
    """Return document -> sum of weight / (60 + rank) over several rankings, in order of appearance.

    `weights` has a number for each ranking; with None all are 1. If `exact`, sums do not depend on
    the order of the rankings, so equal ranks in another order are a tie. Otherwise numbers are
    added from the first ranking to the last.
    """
    terms: dict[str, list[float]] = {}
    pairs = zip(rankings, repeat(1.0)) if weights is None else zip(rankings, weights, strict=True)
    for doc_ids, weight in pairs:
        gains = reciprocal_ranks(len(doc_ids), numerator=weight)
        for doc_id, gain in zip(doc_ids, gains, strict=True):
            terms.setdefault(doc_id, []).append(gain)
    add_up = math.fsum if exact else partial(reduce, operator.add)
    return {doc_id: add_up(gains) for doc_id, gains in terms.items()}


class Fusion(Retriever):
    """Fuses the rankings of several retrievers by a weighted sum over their lists.

    Every part is searched to `depth` hits, or to `k` if that is larger. A document outside a part's list gets none
    of its weight. `method="rrf"` is reciprocal rank fusion (Cormack, Clarke & Buettcher, SIGIR 2009): a list gives
    1 / (constant + rank), ranks counted from 1. With `method="scores"` it gives the score, scaled so that the best of
    the list has 1 and the last 0 (all 1 when all are equal). `weights` has a number for each part; empty, all are 1.
    """

    mapped = True

    def __init__(
        self,
        corpus: Corpus,
        home: Path | None,
        *retrievers: Retriever,
        method: Literal["rrf", "scores"] = "rrf",
        constant: int = RRF_CONSTANT,
        depth: int = 1000,
        weights: tuple[float, ...] = (),
    ) -> None:
        self.require(
            "",
            len(retrievers),
            {
                "weights": weights,
                "constant": constant,
                "depth": depth,
            },
        )
        self._weights = tuple(map(float, weights)) or (1.0,) * len(retrievers)
        self.parts = retrievers
        self._depth = depth
        self._constant = constant if method == "rrf" else None
        options: dict[str, Value] = {
            "method": method,
            "depth": depth,
            "weights": self._weights,
        }
        if method == "rrf":
            options["constant"] = constant
        self.name = format_expression(
            "fusion",
            parts=[retriever.name for retriever in retrievers],
            options=options,
        )

    @classmethod
    def require(
        cls,
        model: str,
        part_count: int,
        options: Options,
    ) -> None:
        """Refuse options that are out of range."""
        check_options("fusion", part_count, options)

    def _search_many(self, searches: Searches, k: int) -> list[Hits]:
        lists = [retriever.search_many(searches, max(k, self._depth)) for retriever in self.parts]
        return [self._fuse(hits, k) for hits in zip(*lists, strict=True)]

    def _fuse(self, lists: Iterable[Hits], k: int) -> Hits:
        scores = dict[str, float]()
        # In the order of the parts, so that sums are the same to the last bit.
        for weight, hits in zip(self._weights, lists, strict=True):
            if self._constant is None:
                gains = _scale_scores(hits.scores)
            else:
                gains = reciprocal_ranks(len(hits), self._constant)
            for doc_id, gain in zip(hits.doc_ids, gains, strict=True):
                scores[doc_id] = scores.get(doc_id, 0.0) + weight * gain
        return top_k(scores, k)


def _scale_scores(scores: Sequence[float]) -> list[float]:
    """Return the scores on a scale from 1 for the first to 0 for the last; all 1 if all are equal."""
    if not scores or scores[0] <= scores[-1]:
        return [1.0] * len(scores)
    return [(score - scores[-1]) / (scores[0] - scores[-1]) for score in scores]


def check_options(retriever_type: str, part_count: int, options: Options) -> None:
    """Raise UsageError for a constant, a depth or weights with which `parts` cannot be fused."""
    require_at_least(0, retriever_type, constant=options["constant"])
    require_at_least(1, retriever_type, depth=options["depth"])
    weights = options["weights"]
    in_range = all(math.isfinite(weight) and weight >= 0 for weight in weights)
    if weights and not (len(weights) == part_count and in_range and any(weights)):
        raise UsageError(
            f"{retriever_type}: weights is [{','.join(map(str, weights))}]; give {part_count} numbers "
            "of at least 0, of which one at least is larger"
        )


class Rerank(Retriever):
    """The best `depth` documents of `first`, reordered by `second`, then the rest.

    The first is searched to `depth` hits, or to `k` if that is larger. The documents that the second ranks have its
    scores. Documents that it does not rank, such as texts without a word of the search, and hits of the first beyond
    `depth` follow; their scores go down by exactly 1 a place. If the second ranks nothing, all have the first's scores.
    """

    gives_pool = True
    mapped = True

    def __init__(
        self,
        corpus: Corpus,
        home: Path | None,
        first: Retriever,
        second: Retriever,
        *,
        depth: int = 100,
    ) -> None:
        self.parts = (first, second)
        self._depth = depth
        self.name = format_expression(
            "rerank",
            parts=[first.name, second.name],
            options={"depth": depth},
        )

    @classmethod
    def require(
        cls,
        model: str,
        part_count: int,
        options: Options,
    ) -> None:
        """Refuse a depth at which nothing would be reranked."""
        require_at_least(1, "rerank", depth=options["depth"])

    def _search_many(self, searches: Searches, k: int) -> list[Hits]:
        first, second = self.parts
        first_hits = first.search_many(searches, max(k, self._depth))
        pooled_searches = []
        for search, hits in zip(searches, first_hits, strict=True):
            # Exclusions hold already, because pools are made of hits of the first.
            pooled_searches.append(
                search._replace(excluded=(), among=frozenset(hits.doc_ids[: self._depth]))
            )
        reranked = second.search_many(pooled_searches, self._depth)
        return [
            _append_unranked(head, hits)[:k]
            for head, hits in zip(reranked, first_hits, strict=True)
        ]


def _append_unranked(head: Hits, hits: Hits) -> Hits:
    if not head:
        return hits
    ranked = set(head.doc_ids)
    unranked = [doc_id for doc_id in hits.doc_ids if doc_id not in ranked]
    scores = [head.scores[-1] - step for step in range(1, len(unranked) + 1)]
    return Hits(head.doc_ids + unranked, head.scores + scores)
