"""What a retriever is, and the one place where scores become a ranking."""

from collections.abc import Collection, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tools.records import Hit


class Retriever(Protocol):
    """Ranks a fixed corpus for one text. Immutable once built, so threads share it."""

    name: str  # with every parameter that changes a ranking, e.g. "bm25(k1=0.9,b=0.4)"
    needs_pool: bool  # whether it is only for tasks that rank candidate pools

    def search(
        self,
        text: str,
        k: int,
        *,
        excluded: Collection[str] = (),
        among: Collection[str] | None = None,
    ) -> list[Hit]:
        """The `k` best documents, best first; fewer when there are fewer.

        Documents in `excluded`, or outside `among` where that is given, are left out before the cut.
        """
        ...


class Ranker:
    """Turns scores into hits for one corpus: cut, order and ties are decided here for every retriever.

    `tie_order` has one integer a document, shape (documents,), all different: of two equal scores the
    smaller one goes first. It defaults to the order of the doc_ids. Order and cut never depend on sort
    stability, batch size or the machine.
    """

    def __init__(self, doc_ids: Sequence[str], tie_order: NDArray[np.int64] | None = None) -> None:
        self._doc_ids = np.array(doc_ids, dtype=object)
        self._row = {doc_id: row for row, doc_id in enumerate(doc_ids)}
        if tie_order is None:
            tie_order = np.empty(len(doc_ids), dtype=np.int64)
            tie_order[sorted(range(len(doc_ids)), key=doc_ids.__getitem__)] = np.arange(len(doc_ids))
        self._tie_order = tie_order

    def top(
        self,
        scores: NDArray[Any],
        k: int,
        *,
        excluded: Collection[str] = (),
        among: Collection[str] | None = None,
        above: float = -np.inf,
    ) -> list[Hit]:
        """At most `k` hits with a score over `above`, best first; `scores` has shape (documents,)."""
        if among is not None or excluded:
            allowed = np.full(len(scores), among is None)
            allowed[self._rows(among or ())] = True
            allowed[self._rows(excluded)] = False
            scores = np.where(allowed, scores, -np.inf)
        if k < 1:
            return []
        kth_best = np.partition(scores, len(scores) - k)[len(scores) - k] if k < len(scores) else -np.inf
        if kth_best > above:
            better, tied = np.flatnonzero(scores > kth_best), np.flatnonzero(scores == kth_best)
            # Only as many of those tied at the cut as there is room for; there can be thousands.
            room = k - len(better)
            first = np.argpartition(self._tie_order[tied], room - 1)[:room]
            rows = np.concatenate((better, tied[first]))
        else:  # fewer than k documents qualify
            rows = np.flatnonzero(scores > above)
        rows = rows[np.lexsort((self._tie_order[rows], -scores[rows]))]
        found = zip(self._doc_ids[rows].tolist(), scores[rows].tolist(), strict=True)
        return list(map(Hit._make, found))

    def _rows(self, doc_ids: Collection[str]) -> list[int]:
        return [self._row[doc_id] for doc_id in doc_ids if doc_id in self._row]
