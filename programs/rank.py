"""A window that slides up the retriever's order: RankGPT (Sun et al. 2023), which is BIRCO's Rank (section 4.1).

The last `window` documents are ordered by a model in one call, then those that begin `step` places further up, and so
on to the top, once. Rank+O is the run with the objective, Rank that with `--instruction none`. The last window begins
at the top, whatever the size of the pool.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar

import dspy

from programs import reading
from programs.base import Program
from tools.errors import UsageError, at_least
from tools.records import Query, Submission


def slide(
    doc_ids: Sequence[str], rank_window: Callable[[list[str]], Sequence[str]], window: int, step: int
) -> list[str]:
    """Return `doc_ids` after one pass of the window from the end to the beginning; always a permutation of them.

    For n > window, `rank_window` is called ceil((n - window) / step) + 1 times, for fewer documents once; for a window
    of one document never. What it leaves out follows in the order shown, what it invents or repeats is ignored.
    """
    order = list(doc_ids)
    for end in range(len(order), 0, -step):
        first = max(0, end - window)
        shown = order[first:end]
        order[first:end] = reading.complete(rank_window(list(shown)), shown) if len(shown) > 1 else shown
        if first == 0:
            break
    return order


class Rank(Program):
    """BIRCO's Rank: a window slides up the retriever's order of a pool, and a model orders what is in it."""

    offline: ClassVar = reading.RANK_OFFLINE
    pooled: ClassVar[bool] = True

    pool: int = 100  # documents of the first search, where a query has no candidates
    window: int = 20  # documents that are ordered in one call
    step: int = 10  # how much further up the next window begins
    read_chars: int = 0  # characters of each document, 0 all

    def __post_init__(self) -> None:
        at_least(1, "rank", pool=self.pool, step=self.step)
        at_least(0, "rank", read_chars=self.read_chars)
        at_least(2, "rank", window=self.window)
        if self.step > self.window:
            raise UsageError(
                f"rank needs a step of at most window={self.window}, not {self.step}: it would pass documents over"
            )
        self.rank_candidates = dspy.Predict(reading.RankCandidates)

    def forward(self, query: Query) -> Submission:
        """Return the pool after one pass; the pass is hop 2."""
        session = self.toolbox.open(query)
        pool = [hit.doc_id for hit in reading.find_candidates(session, query, self.pool)]
        session.hop = 2
        rank = partial(reading.rank, session, self.rank_candidates, query, read_chars=self.read_chars)
        order = slide(pool, rank, self.window, self.step)
        session.rank(order)
        return session.submit(order[: self.depth])
