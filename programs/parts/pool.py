"""What the programs that rank a pool share: the pool, the order of what a model named, and the order of scores.

BIRCO (section 4.1) breaks the ties of a model's scores by an embedding model, E5-Large-v2; the parameter `ties` of a
program is the retriever that does so here.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, pairwise

from tools.errors import LimitReached
from tools.records import Hit, Query, Submission
from tools.session import Session

# A score is compared to four decimals, and places among equal ones are told apart below those.
_DECIMALS = 4
_PLACE = 1e-9  # with fewer than 50,000 documents, the places do not reach the fourth decimal
_NOTHING = float("-inf")  # the score of what a search did not return


def find_candidates(session: Session, query: Query, most: int) -> list[Hit]:
    """The documents to be ranked, best first by the run's retriever; this search is hop 1.

    All of the query's candidates where it has any; those that the search does not return follow by id, without a score.
    Else the first `most` documents that the search returns.
    """
    session.hop = 1
    own = (query.candidates or frozenset()) - query.excluded
    found = session.search(query.text, most if query.candidates is None else len(own))
    hits = [Hit(snippet.doc_id, snippet.score) for snippet in found]
    return hits + [Hit(doc_id, _NOTHING) for doc_id in sorted(own - {hit.doc_id for hit in hits})]


def complete(named: Iterable[str], shown: Sequence[str]) -> list[str]:
    """The ids `shown` in the order in which a model `named` them; those that it left out follow as they were shown."""
    known = set(shown)
    return list(dict.fromkeys([*(doc_id for doc_id in named if doc_id in known), *shown]))


def order_by_score(scores: Mapping[str, float], ties: Mapping[str, float]) -> list[Hit]:
    """Documents by `scores`, best first, equal ones by `ties`, those equal there too in the order in which they came.

    The scores that come back say the same as the order: of two documents that `ties` told apart, the later has less, by
    a billionth a place. So two are equal only where nothing has told them apart, such as copies of one text, and a
    protocol that counts ties as losses (MultiConIR's) counts those.
    """
    rounded = {doc_id: round(score, _DECIMALS) for doc_id, score in scores.items()}
    order = sorted(rounded, key=lambda doc_id: (-rounded[doc_id], -ties.get(doc_id, _NOTHING)))
    ranked: list[Hit] = []
    for score, group in groupby(order, key=rounded.__getitem__):
        tied, place = list(group), 0
        ranked.append(Hit(tied[0], score))
        for one, other in pairwise(tied):
            place += ties.get(one, _NOTHING) != ties.get(other, _NOTHING)
            ranked.append(Hit(other, score - place * _PLACE))
    return ranked


def hand_in(
    session: Session, query: Query, pool: Sequence[Hit], scores: Mapping[str, float], ties: str, depth: int
) -> Submission:
    """End the session with the documents of `pool` by `scores`, and equal ones by the retriever `ties`.

    That retriever searches only where scores are equal. With none named, or no search left, the pool's order decides.
    """
    tie_scores = {hit.doc_id: hit.score for hit in pool}
    if ties and len({round(score, _DECIMALS) for score in scores.values()}) < len(scores):
        try:
            found = session.search(query.text, len(pool), retriever=ties, among=list(tie_scores))
            tie_scores = {snippet.doc_id: snippet.score for snippet in found}
        except LimitReached:
            pass  # the pool's own order is an order too
    ranked = order_by_score({hit.doc_id: scores[hit.doc_id] for hit in pool}, tie_scores)
    session.rank([hit.doc_id for hit in ranked])
    kept = ranked[:depth]
    return session.submit([hit.doc_id for hit in kept], scores=[hit.score for hit in kept])
