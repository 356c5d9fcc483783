"""One retriever finds, another one orders what it found.

The second is any retriever: a cross-encoder, late interaction, a dense model, BM25. All that it is asked is
to rank a given set of documents, which every retriever can.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.corpus import Corpus
from tools.errors import UsageError
from tools.records import Hit
from tools.retriever import Retriever, Search
from tools.retrievers import spell


class Rerank(Retriever):
    """The best `depth` documents of `first` in the order of `second`, then the rest in the order of `first`.

    The first is searched to `depth` hits, or to the number asked for where that is larger. Documents that the second
    does not rank (a lexical one leaves out those that share no word with the search) follow the ranked ones, and the
    first's beyond `depth` follow those. The ranked ones have the second's scores. The followers' scores go down by
    exactly 1 a place from the last of these, so that scores keep the order and say nothing more; where the second
    ranks nothing at all, all have the first's. UsageError for a depth below 1.
    """

    def __init__(
        self, corpus: Corpus, home: Path | None, first: Retriever, second: Retriever, *, depth: int = 100
    ) -> None:
        self.require("", 2, {"depth": depth})
        self._first, self._second, self._depth = first, second, depth
        self.name = spell("rerank", parts=[first.name, second.name], options={"depth": depth})

    @classmethod
    def require(cls, model: str, parts: int, options: Mapping[str, Any]) -> None:
        """Refuse a depth at which nothing would be reranked."""
        if options["depth"] < 1:
            raise UsageError(f"rerank: depth is {options['depth']}; it is at least 1")

    @classmethod
    def pool_needed(cls, parts: Sequence[bool]) -> bool:
        """Whether the first is only for candidate pools; the second gets its pool from the first."""
        return parts[0]

    def left_out(self, text: str, instruction: str = "") -> int:
        """The larger of the two numbers of tokens that are left out."""
        return max(part.left_out(text, instruction) for part in (self._first, self._second))

    def _search_many(self, searches: Sequence[Search], k: int) -> list[list[Hit]]:
        found = self._first.search_many(searches, max(k, self._depth))
        pools = [frozenset(hit.doc_id for hit in hits[: self._depth]) for hits in found]
        # Exclusions hold already, the pools being made of what the first gave back.
        again = [
            search._replace(excluded=frozenset(), among=pool) for search, pool in zip(searches, pools, strict=True)
        ]
        ranked = self._second.search_many(again, self._depth)
        return [_followed(head, tail)[:k] for head, tail in zip(ranked, found, strict=True)]


def _followed(head: list[Hit], hits: list[Hit]) -> list[Hit]:
    """`head`, then those of `hits` that are not in it, with scores that go on falling."""
    if not head:
        return hits
    ranked = {hit.doc_id for hit in head}
    rest = [hit.doc_id for hit in hits if hit.doc_id not in ranked]
    return head + [Hit(doc_id, head[-1].score - place) for place, doc_id in enumerate(rest, start=1)]
