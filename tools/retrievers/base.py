"""The Retriever interface, and the Ranker, which turns scores into a ranking.

The table of retrievers is in __init__.py, the reading of expressions such as fusion(...) in expressions.py.
"""

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sextant.tools.corpus import StoredIds
from sextant.tools.errors import DataError
from sextant.tools.platform.number_format import plural
from sextant.tools.records import Hit, Hits
from sextant.tools.text import is_blank

Ids = Collection[str]  # of documents
_LEAST_GROUPS = 1_000  # of scores, of which NumPy takes the best of each: rows of fewer take longer


class Search(NamedTuple):
    """A search of a batch."""

    text: str
    # What is searched for, in words; reaches models that were trained with one, and no others
    instruction: str = ""
    excluded: Ids = frozenset()  # documents that must not come back
    among: Ids | None = None  # the only documents that may; None is the whole corpus


Searches = Sequence[Search]
Options = Mapping[str, Any]  # of an expression, by name, with those that it leaves out


class Retriever(ABC):
    """Ranks a fixed corpus for a text. Immutable once built, so threads share it.

    After `(corpus, home)` the constructor takes a model or other retrievers by position, and options by keyword.
    """

    name: str  # with every parameter that changes a ranking, e.g. "bm25(k1=0.9,b=0.4)"
    parts: tuple["Retriever", ...] = ()  # those that it is made of
    # The documents that there are, if its class is a user's own: its answers are checked then
    known: Collection[str] | None = None
    # Of itself, not of its parts:
    needs_pool: ClassVar[bool] = False  # is only for tasks that rank candidate pools
    gives_pool: ClassVar[bool] = False  # its first part finds the pool that the others rank
    sends: ClassVar[bool] = False  # sends texts to an API
    loads_weights: ClassVar[bool] = False  # loads a model's weights
    ties_by_id: ClassVar[bool] = (
        True  # of equal documents the one with the smaller doc_id goes first
    )
    mapped: ClassVar[bool] = (
        False  # has only mapped files and little else, so that each process may open its own
    )
    needs_lens: ClassVar[bool] = (
        False  # has documents and queries annotated, by the attribute that it is given
    )

    @classmethod  # noqa: B027  # most kinds need nothing
    def require(
        cls,
        model: str,
        part_count: int,
        options: Options,
    ) -> None:
        """Refuse a retriever that cannot be built, e.g. for want of a model.

        It has all `options` and `part_count` parts.
        """

    def search(
        self,
        text: str,
        k: int,
        *,
        instruction: str = "",
        excluded: Ids = (),
        among: Ids | None = None,
    ) -> Hits:
        """Return the `k` best documents, best first; fewer when there are fewer. A blank text finds
        nothing.

        Documents in `excluded`, or outside `among` if that is given, are left out before the
        cut.
        """
        return self.search_many([Search(text, instruction, excluded, among)], k)[0]

    def search_many(self, searches: Searches, k: int) -> list[Hits]:
        """Return the hits of every search, in order, equal to the last digit to those of
        `search` for it alone.
        """
        wordy = [search for search in searches if k > 0 and not is_blank(search.text)]
        results = self._search_many(wordy, k) if wordy else []
        if self.known is not None and wordy:
            try:
                results = _check_results(results, wordy, k, self.known)
            except ValueError as error:
                raise DataError(f"retriever {self.name} {error}; {_ANSWER}") from None
        answers = map(Hits.of, results)
        return [
            Hits([], []) if k <= 0 or is_blank(search.text) else next(answers)
            for search in searches
        ]

    @abstractmethod
    def _search_many(self, searches: Searches, k: int) -> Sequence[Sequence[Hit]]:
        """Return the hits of searches whose texts are not blank; `k` is at least 1."""

    def left_out(self, text: str, instruction: str = "") -> int:
        """Return how many tokens at the end of `text` its model, or a part's, cuts off; 0
        if there is no limit.
        """
        return max((part.left_out(text, instruction) for part in self.parts), default=0)


_ANSWER = (
    "_search_many returns a list for each search, of at most k different Hit(doc_id, score) from the "
    "corpus, without excluded ones, the highest score first"
)


def _check_results(results: Any, searches: Searches, k: int, known: Collection[str]) -> list[Hits]:
    """Return the answers of a user's retriever as hits of Python's own types.

    ValueError tells the first that are none.
    """
    if not isinstance(results, Iterable):
        raise ValueError(f"answered {_describe(results)}")
    lists = list(results)
    if len(lists) != len(searches):
        raise ValueError(f"answered {len(lists)} of {plural(len(searches), 'search', 'searches')}")
    return [
        _check_hits(hits, search, k, known) for hits, search in zip(lists, searches, strict=True)
    ]


def _check_hits(hits: Any, search: Search, k: int, known: Collection[str]) -> Hits:
    if not isinstance(hits, Iterable):
        raise ValueError(f"answered a search with {_describe(hits)}")
    checked = dict[str, float]()
    last = math.inf
    for hit in hits:
        if not (isinstance(hit, tuple) and len(hit) == len(Hit._fields)):
            raise ValueError(f"gave {_describe(hit)} as a hit")
        doc_id, score = hit
        if not isinstance(doc_id, str) or doc_id not in known:
            raise ValueError(f"gave the id {_describe(doc_id)}, which no document has")
        if doc_id in checked:
            raise ValueError(f"gave {_describe(doc_id)} twice")
        if doc_id in search.excluded or (search.among is not None and doc_id not in search.among):
            raise ValueError(f"gave {_describe(doc_id)}, which was not to come back")
        try:
            number = math.nan if isinstance(score, str) else float(score)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            raise ValueError(f"gave the score {_describe(score)}")
        if number > last:
            raise ValueError(f"gave the score {number:g} after {last:g}")
        last = number
        checked[str(doc_id)] = number
    if len(checked) > k:
        raise ValueError(f"gave {plural(len(checked), 'hit')} where k is {k}")
    return Hits(list(checked), list(checked.values()))


def _describe(value: Any) -> str:
    if isinstance(value, str):
        return f"{str(value)!r:.60}"  # NumPy's texts, too
    if isinstance(value, int | float | None):
        return repr(value)
    return f"a {type(value).__name__}"


class NullRetriever(Retriever):
    """Finds nothing: for a session that searches nothing."""

    name = "nothing"

    def _search_many(self, searches: Searches, k: int) -> list[Hits]:
        return [Hits([], []) for _ in searches]


class PoolRetriever(Retriever):
    """Ranks a pool to its end: what its retriever does not find, e.g. for want of a common word, comes last.

    That part is in the order of a hash. Scores are 1 / rank, since others would give away the ranks in the corpus.
    """

    def __init__(self, retriever: Retriever) -> None:
        self.name = retriever.name
        self.parts = (retriever,)

    def _search_many(self, searches: Searches, k: int) -> list[Hits]:
        found = self.parts[0].search_many(searches, k)
        return [_fill(search, hits, k) for search, hits in zip(searches, found, strict=True)]


def _fill(search: Search, hits: Hits, k: int) -> Hits:
    unfound = set(search.among or ()).difference(hits.doc_ids, search.excluded)
    doc_ids = [*hits.doc_ids, *sorted(unfound, key=_draw_lot)][:k]
    return Hits(doc_ids, [1 / rank for rank in range(1, len(doc_ids) + 1)])


def _draw_lot(doc_id: str) -> bytes:
    return hashlib.blake2b(doc_id.encode("utf-8", "surrogatepass")).digest()


def top_k(scores: Mapping[str, float], k: int) -> Hits:
    """Return the `k` best of a few candidates, best first; ties are in the order of the doc_ids."""
    doc_ids = sorted(scores, key=lambda doc_id: (-scores[doc_id], doc_id))[:k]
    return Hits(doc_ids, [scores[doc_id] for doc_id in doc_ids])


def kth_score_lower_bound(scores: NDArray[Any], k: int) -> float:
    """Return a score that at least `k` documents reach and not many more, or -inf; `scores`
    has shape (documents,).
    """
    groups = max(4 * k, _LEAST_GROUPS)
    if 2 * groups <= len(scores):
        # The k-th best of the best of each group. A group's documents are far apart, because
        # neighbours are alike.
        scores = scores[: len(scores) // groups * groups].reshape(-1, groups).max(axis=0)
    if k >= len(scores):
        return -np.inf
    # np.partition takes a millisecond for 16,000 scores of which most are equal, such as 0.
    least = scores.min()
    # Half of the time of scores[scores > least], where a third of them is larger.
    larger = scores.compress(scores > least)
    if len(larger) < k:
        return float(least)
    larger.partition(len(larger) - k)
    return float(larger[len(larger) - k])


class Ranker:
    """Turns scores into hits for a corpus. Cut, order and ties are decided here for every
    retriever.

    Of equal scores the smaller `tie_order` goes first, shape (documents,), by default the order of the doc_ids.
    """

    def __init__(
        self, doc_ids: Sequence[str], tie_order: NDArray[np.integer] | None = None
    ) -> None:
        self._stored = doc_ids if isinstance(doc_ids, StoredIds) else None
        self._doc_ids = np.array(() if self._stored else doc_ids, dtype=object)
        self._size = len(doc_ids)
        if tie_order is None and self._stored:
            tie_order = np.asarray(self._stored.places)
        elif tie_order is None:
            tie_order = np.empty(len(doc_ids), dtype=np.int64)
            tie_order[sorted(range(len(doc_ids)), key=doc_ids.__getitem__)] = np.arange(
                len(doc_ids)
            )
        self.tie_order = tie_order

    @cached_property
    def _row(self) -> dict[str, int]:  # where ids are held; most searches name none
        return {doc_id: row for row, doc_id in enumerate(self._doc_ids.tolist())}

    def __len__(self) -> int:
        return self._size

    def top(
        self,
        scores: NDArray[Any],
        k: int,
        *,
        excluded: Ids = (),
        among: Ids | None = None,
        above: float = -np.inf,
    ) -> Hits:
        """Return at most `k` hits with a score over `above`, best first; `scores` has shape
        (documents,).
        """
        if k < 1:
            return Hits([], [])
        if (allowed := self.allowed(excluded, among)) is not None:
            scores = np.where(allowed, scores, -np.inf)
        floor = kth_score_lower_bound(scores, k)
        rows = np.flatnonzero(scores >= floor if floor > above else scores > above)
        return self.hits(rows, scores[rows], k)

    def hits(
        self,
        rows: NDArray[np.integer],
        scores: NDArray[Any],
        k: int,
    ) -> Hits:
        """Return the best `k` of some documents, best first; `rows` and `scores` have shape
        (candidates,).
        """
        if 0 < 2 * k < len(rows):  # fewer are sorted as fast
            is_candidate = scores >= kth_score_lower_bound(scores, k)
            rows = rows[is_candidate]
            scores = scores[is_candidate]
        # Half the time of np.lexsort: by score, and then numbers that are by score and tie order.
        order = np.argsort(-scores)
        falling = scores[order]
        ranks = np.zeros(len(order), np.int64)  # equal ones of equal scores
        np.cumsum(falling[1:] != falling[:-1], out=ranks[1:])
        order = order[np.argsort(ranks * len(self) + self.tie_order[rows[order]])][:k]
        best = rows[order]
        ids = self._stored.of_rows(best.tolist()) if self._stored else self._doc_ids[best].tolist()
        return Hits(ids, scores[order].tolist())

    def allowed(self, excluded: Ids = (), among: Ids | None = None) -> NDArray[np.bool_] | None:
        """Return which documents may be found, shape (documents,); None when all may."""
        if among is None and not excluded:
            return None
        allowed = np.full(len(self), among is None)
        allowed[self.rows(among or ())] = True
        allowed[self.rows(excluded)] = False
        return allowed

    def rows(self, doc_ids: Ids) -> list[int]:
        """Return the positions of the `doc_ids` that the corpus has."""
        if self._stored:
            return [self._stored.row(doc_id) for doc_id in doc_ids if doc_id in self._stored]
        return [self._row[doc_id] for doc_id in doc_ids if doc_id in self._row]
