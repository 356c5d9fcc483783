"""What a ranking may name: the one check that submissions, imported runs and scores have in common.

A ranking is held against the query that was asked, not against the one that a program says it has answered. Scores and
their order are left to who has them.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tools.records import Document, Query


class BadRanking(ValueError):
    """A ranking that its query cannot have; `doc_id` is the document that is wrong in it."""

    def __init__(self, doc_id: str, why: str) -> None:
        super().__init__(f"document {doc_id!r} {why}")
        self.doc_id = doc_id


def check_ranking(
    ranking: Sequence[str], query: "Query", documents: "Mapping[str, Document]", known: set[str] | None = None
) -> None:
    """Raise BadRanking for a document that is there twice, not in the corpus, or not to be found for the query.

    `known` are documents that were looked up before, and gets those that are: a corpus may be on disk.
    """
    if len(set(ranking)) < len(ranking):
        twice = next(doc_id for doc_id, count in Counter(ranking).items() if count > 1)
        raise BadRanking(twice, f"is there twice for query {query.query_id!r}")
    check_documents(ranking, query, documents, known)


def check_documents(
    doc_ids: Sequence[str], query: "Query", documents: "Mapping[str, Document]", known: set[str] | None = None
) -> None:
    """Raise BadRanking as `check_ranking`, for documents that may be named more than once."""
    for doc_id in set(doc_ids).difference(known or ()):
        if doc_id not in documents:
            raise BadRanking(doc_id, "is not in the corpus")
        if known is not None:
            known.add(doc_id)
    if not query.excluded.isdisjoint(doc_ids):
        hidden = next(doc_id for doc_id in doc_ids if doc_id in query.excluded)
        raise BadRanking(hidden, f"is excluded for query {query.query_id!r}, so no system may find it")
    if query.candidates is not None and not query.candidates.issuperset(doc_ids):
        outside = next(doc_id for doc_id in doc_ids if doc_id not in query.candidates)
        raise BadRanking(outside, f"is not in the pool of query {query.query_id!r}")
