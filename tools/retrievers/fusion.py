"""Several retrievers as one: their rankings merged, or the one's order of what the other has
found.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from tools.corpus import Corpus
from tools.errors import UsageError, require_at_least
from tools.records import Hit
from tools.retriever import Retriever, Search, top_k
from tools.retrievers import Value, format_expression

CONSTANT = (
    60  # k in the formula of Cormack et al., who found it near the best on all of their collections
)


class Fusion(Retriever):
    """The documents that several retrievers put high, by the weighted sum of what each one's list gives them.

    Every part is searched to `depth` hits, or to `k` where that is larger; a document outside a part's list gets none
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
        constant: int = CONSTANT,
        depth: int = 1000,
        weights: tuple[float, ...] = (),
    ) -> None:
        self.require(
            "", len(retrievers), {"weights": weights, "constant": constant, "depth": depth}
        )
        self._weights = tuple(map(float, weights)) or (1.0,) * len(retrievers)
        self.parts = retrievers
        self._depth = depth
        self._constant = constant if method == "rrf" else None
        options: dict[str, Value] = {"method": method, "depth": depth, "weights": self._weights}
        if method == "rrf":
            options["constant"] = constant
        self.name = format_expression(
            "fusion", parts=[retriever.name for retriever in retrievers], options=options
        )

    @classmethod
    def require(cls, model: str, parts: int, options: Mapping[str, Any]) -> None:
        """Refuse options that are out of range."""
        check_options("fusion", parts, options)

    def _search_many(self, searches: Sequence[Search], k: int) -> list[list[Hit]]:
        lists = [retriever.search_many(searches, max(k, self._depth)) for retriever in self.parts]
        return [self._fuse(hits, k) for hits in zip(*lists, strict=True)]

    def _fuse(self, lists: Iterable[list[Hit]], k: int) -> list[Hit]:
        scores = dict[str, float]()
        # In the order of the parts, so that sums are the same to the last bit.
        for weight, hits in zip(self._weights, lists, strict=True):
            highest, lowest = (hits[0].score, hits[-1].score) if hits else (0.0, 0.0)
            for rank, hit in enumerate(hits, start=1):
                if self._constant is not None:
                    value = 1 / (self._constant + rank)
                else:
                    value = (hit.score - lowest) / (highest - lowest) if highest > lowest else 1.0
                scores[hit.doc_id] = scores.get(hit.doc_id, 0.0) + weight * value
        return top_k(scores, k)


def check_options(kind: str, parts: int, options: Mapping[str, Any]) -> None:
    """UsageError, which names the `kind`, for a constant, a depth or weights with which
    `parts` cannot be fused.
    """
    require_at_least(0, kind, constant=options["constant"])
    require_at_least(1, kind, depth=options["depth"])
    weights = options["weights"]
    if weights and len(weights) != parts:
        raise UsageError(
            f"{kind}: weights has {len(weights)} numbers for {parts} retrievers; give one for each"
        )
    if weights and not (
        all(math.isfinite(weight) and weight >= 0 for weight in weights) and any(weights)
    ):
        written = ",".join(map(str, weights))
        raise UsageError(
            f"{kind}: weights is [{written}]; each is at least 0, and one at least is larger than 0"
        )


class Rerank(Retriever):
    """The best `depth` documents of `first` in the order of `second`, then the rest in the order of `first`.

    The first is searched to `depth` hits, or to `k` where that is larger. The documents that the second ranks have its
    scores. Those that it does not rank, such as texts without a word of the search, and the first's beyond `depth`
    follow, their scores going down by exactly 1 a place; where the second ranks nothing at all, all have the first's.
    """

    gives_pool = mapped = True

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
            "rerank", parts=[first.name, second.name], options={"depth": depth}
        )

    @classmethod
    def require(cls, model: str, parts: int, options: Mapping[str, Any]) -> None:
        """Refuse a depth at which nothing would be reranked."""
        require_at_least(1, "rerank", depth=options["depth"])

    def _search_many(self, searches: Sequence[Search], k: int) -> list[list[Hit]]:
        first, second = self.parts
        found = first.search_many(searches, max(k, self._depth))
        pools = [frozenset(hit.doc_id for hit in hits[: self._depth]) for hits in found]
        # Exclusions hold already, the pools being made of what the first gave back.
        narrow = [
            search._replace(excluded=(), among=pool)
            for search, pool in zip(searches, pools, strict=True)
        ]
        ranked = second.search_many(narrow, self._depth)
        return [_follow(head, tail)[:k] for head, tail in zip(ranked, found, strict=True)]


def _follow(head: list[Hit], hits: list[Hit]) -> list[Hit]:
    if not head:
        return hits
    ranked = {hit.doc_id for hit in head}
    rest = [hit.doc_id for hit in hits if hit.doc_id not in ranked]
    return head + [
        Hit(doc_id, head[-1].score - place) for place, doc_id in enumerate(rest, start=1)
    ]
