"""Several retrievers as one: their rankings of the same search are merged into one ranking.

Two methods. Reciprocal rank fusion (Cormack, Clarke & Buettcher, SIGIR 2009) looks at ranks alone, so it needs no
common scale of scores. The weighted sum of scores brings each list to the range 0 to 1 first. Weights are given, and
not learned.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from tools.corpus import Corpus
from tools.errors import UsageError
from tools.records import Hit
from tools.retriever import Retriever, Search, best
from tools.retrievers import Value, spell

CONSTANT = 60  # k in the paper's formula, which found it near the best on all of its collections


class Fusion(Retriever):
    """The documents that several retrievers put high, by the weighted sum of what each one's list gives them.

    Every part is searched to `depth` hits, or to the number asked for where that is larger, with the exclusions and the
    pool of the search; a document outside a part's list gets nothing from that part. With `method="rrf"` a list gives
    1 / (constant + rank), ranks counted from 1. With `method="scores"` it gives the score, moved and scaled so that the
    best of the list has 1 and the last 0 (all have 1 when all scores are equal). `weights` has one number of at least 0
    for each part; empty, all are 1. UsageError for other values.
    """

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
        self.require("", len(retrievers), {"weights": weights, "constant": constant, "depth": depth})
        self._weights = tuple(map(float, weights)) or (1.0,) * len(retrievers)
        self._retrievers = retrievers
        self._constant = constant if method == "rrf" else None
        self._depth = depth
        options: dict[str, Value] = {"method": method, "depth": depth, "weights": self._weights}
        if method == "rrf":
            options["constant"] = constant
        self.name = spell("fusion", parts=[retriever.name for retriever in retrievers], options=options)

    @classmethod
    def require(cls, model: str, parts: int, options: Mapping[str, Any]) -> None:
        """Refuse options that are out of range."""
        check_options("fusion", parts, options)

    @classmethod
    def pool_needed(cls, parts: Sequence[bool]) -> bool:
        """Whether one of the parts is only for candidate pools."""
        return any(parts)

    def left_out(self, text: str, instruction: str = "") -> int:
        """The largest number of tokens that a part leaves out."""
        return max(retriever.left_out(text, instruction) for retriever in self._retrievers)

    def _search_many(self, searches: Sequence[Search], k: int) -> list[list[Hit]]:
        lists = [retriever.search_many(searches, max(k, self._depth)) for retriever in self._retrievers]
        return [self._fused(hits, k) for hits in zip(*lists, strict=True)]

    def _fused(self, lists: Iterable[list[Hit]], k: int) -> list[Hit]:
        scores = dict[str, float]()
        # Sums are made in the order of the parts, so that they are the same to the last bit wherever they are made.
        for weight, hits in zip(self._weights, lists, strict=True):
            given = _scaled(hits) if self._constant is None else _reciprocal(hits, self._constant)
            for hit, value in zip(hits, given, strict=True):
                scores[hit.doc_id] = scores.get(hit.doc_id, 0.0) + weight * value
        return best(scores, k)


def check_options(kind: str, parts: int, options: Mapping[str, Any]) -> None:
    """UsageError, which names the `kind`, for a constant, a depth or weights with which `parts` cannot be fused."""
    if options["constant"] < 0:
        raise UsageError(f"{kind}: constant is {options['constant']}; it is at least 0 (60 is usual)")
    if options["depth"] < 1:
        raise UsageError(f"{kind}: depth is {options['depth']}; it is at least 1")
    weights = options["weights"]
    if weights and len(weights) != parts:
        raise UsageError(f"{kind}: weights has {len(weights)} numbers for {parts} retrievers; give one for each")
    if weights and not (all(math.isfinite(weight) and weight >= 0 for weight in weights) and any(weights)):
        written = ",".join(map(str, weights))
        raise UsageError(f"{kind}: weights is [{written}]; each is at least 0, and one at least is larger than 0")


def _reciprocal(hits: Sequence[Hit], constant: int) -> list[float]:
    return [1 / (constant + rank) for rank in range(1, len(hits) + 1)]


def _scaled(hits: Sequence[Hit]) -> list[float]:
    if not hits:
        return []
    highest, lowest = hits[0].score, hits[-1].score
    return [(hit.score - lowest) / (highest - lowest) if highest > lowest else 1.0 for hit in hits]
