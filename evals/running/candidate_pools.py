"""`--pool oracle:300`: candidate pools as a condition of a run, built before any program sees a
query.

After OBLIQ-Bench, section 3, which measures how well a system ranks when it need not find.
`union:K` has the first K documents of several retrievers together: a lower bound on the best
possible system. `oracle:K` has every relevant document as well: an upper bound on these retrievers
with this system behind them. Searches in a pool give ranks and no scores (`RanksOnly`), and
relevant documents that were put in stand among neighbours, so that their ranks do not give them
away (docs/decisions/pools.md). Only this and scoring read judgements.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice, zip_longest
from random import Random
from typing import Any

from environments.base import Environment
from tools.errors import NotApplicable, UsageError
from tools.records import Hit, Query
from tools.retrievers import canonicalize
from tools.retrievers.base import Retriever, Search
from tools.retrievers.expressions import RetrieverSpec, parse

# Hits of searches that are held at a time: an oracle needs the rank of every document
HELD = 2_000_000


@dataclass(frozen=True, slots=True)
class Pool:
    """The pool of `--pool`, parsed."""

    kind: str  # oracle or union
    size: int  # documents of each query's pool
    parts: tuple[RetrieverSpec, ...]  # the retrievers whose first documents make the union

    def __str__(self) -> str:
        return f"{self.kind}:{self.size}({','.join(map(str, self.parts))})"

    def config(self, names: Sequence[str], environment: Environment) -> dict[str, Any]:
        """Return the pool as a run's configuration has it; `names` are the complete names of
        its parts.
        """
        known: dict[str, Any] = {"kind": self.kind, "size": self.size, "of": list(names)}
        if self.kind == "oracle":
            gold = json.dumps(
                {
                    query.query_id: sorted(_relevant(environment, query))
                    for query in environment.queries
                }
            )
            known["gold"] = hashlib.sha256(gold.encode()).hexdigest()[:16]
        return known

    def check_room(self, environment: Environment) -> None:
        """Raise NotApplicable where a query has more relevant documents than its pool has
        places.
        """
        counts = {
            query.query_id: len(_relevant(environment, query)) for query in environment.queries
        }
        query_id = max(counts, key=counts.__getitem__)
        if self.kind == "oracle" and counts[query_id] > self.size:
            why = (
                f"{self} has no room for the {counts[query_id]} relevant documents of query "
                f"{query_id!r}"
            )
            raise NotApplicable(
                f"{why}; use oracle:{4 * counts[query_id]}, so that they are a quarter of it"
            )

    def add_to(self, environment: Environment, retrievers: Sequence[Retriever]) -> Environment:
        """Return `environment` with a pool for every query; `retrievers` are those of the parts."""
        self.check_room(environment)
        depth = len(environment.documents) if self.kind == "oracle" else self.size
        queries = environment.queries
        at_once = max(1, HELD // depth)
        made = list[Query]()
        for some in (queries[first : first + at_once] for first in range(0, len(queries), at_once)):
            searches = [Search(query.text, query.objective, query.excluded) for query in some]
            lists = [retriever.search_many(searches, depth) for retriever in retrievers]
            for query, *found in zip(some, *lists, strict=True):
                order = round_robin(found)
                if self.kind == "oracle":
                    order = _put_in_relevant(order, environment, query, self.size)
                made.append(replace(query, candidates=frozenset(order[: self.size])))
        return replace(environment, queries=tuple(made))


def round_robin(found: Sequence[Sequence[Hit]]) -> list[str]:
    """Return the documents of several searches rank by rank, each once."""
    ranks = zip_longest(*([hit.doc_id for hit in hits] for hits in found))
    return list(dict.fromkeys(doc_id for rank in ranks for doc_id in rank if doc_id is not None))


def read(text: str, retriever: RetrieverSpec) -> Pool:
    """Return the pool that `text` describes: "oracle:300", or "oracle:300(bm25,dense)" to name the
    retrievers.

    By default they are the run's own `retriever`, or its parts where it is a fusion. UsageError for
    another form.
    """
    spec = parse(text)
    size = int(spec.subject) if spec.subject.isdecimal() and len(spec.subject) < 10 else 0
    if spec.kind not in ("oracle", "union") or size < 1 or spec.options:
        form = "write oracle:SIZE or union:SIZE, or with retrievers: oracle:300(bm25,dense)"
        raise UsageError(f"--pool {text!r} is no pool; {form}")
    own = retriever.parts if retriever.kind == "fusion" else (retriever,)
    return Pool(spec.kind, size, tuple(canonicalize(str(part)) for part in spec.parts) or own)


def _put_in_relevant(
    order: list[str], environment: Environment, query: Query, size: int
) -> list[str]:
    """Return `size` documents, all relevant ones among them; where parents are judged, the best
    passage of each.

    Half are the first in `order`, fewer where more than a quarter would be relevant. The other
    places are shared among the relevant documents further down: each brings its neighbours, among
    which its place is drawn by lot. A query that lacks none gets the neighbours of a document that
    is drawn by lot.
    """
    judgements = environment.judgements[environment.headline]
    lots = Random(f"{environment.fingerprint}:{query.query_id}")
    unit_of = judgements.unit_of if judgements.unit_of and judgements.judged_by_unit else str
    relevant = set(_relevant(environment, query))
    if not relevant <= {
        unit_of(doc_id) for doc_id in order
    }:  # a retriever may leave out what shares no word
        unranked = sorted(set(environment.documents.doc_ids) - set(order) - query.excluded)
        order += lots.sample(unranked, len(unranked))
    head = max(0, min(size // 2, size - 2 * len(relevant)))
    met = relevant.intersection(map(unit_of, order[:head]))
    rest = list[str]()
    places = list[int]()
    for doc_id in order[head:]:
        if (unit := unit_of(doc_id)) not in relevant:
            rest.append(doc_id)
        elif unit not in met:
            met.add(unit)
            places.append(len(rest))
            rest.append(doc_id)
    places = places or [int(len(rest) ** lots.random()) - 1]
    each = (size - head) // len(places)
    starts = [
        min(max(0, place - lots.randrange(each)), max(0, len(rest) - each)) for place in places
    ]
    blocks = dict.fromkeys(number for start in starts for number in range(start, start + each))
    others = (number for number in range(len(rest)) if number not in blocks)
    chosen = [*blocks, *islice(others, size - head - len(blocks))]
    return order[:head] + [rest[number] for number in chosen if number < len(rest)]


def _relevant(environment: Environment, query: Query) -> list[str]:
    return [
        judged for judged, grade in environment.qrels.get(query.query_id, {}).items() if grade > 0
    ]
