"""`--pool oracle:300`: candidate pools as a condition of a run, built before any program sees a
query.

After OBLIQ-Bench, sections 3 and 5, which measure how well a system ranks when it need not find.
`union:K` has the first K documents of several retrievers together: a lower bound on the best
possible system. `oracle:K` is the paper's pool with every relevant document: a union, and the
relevant documents that it lacks. In `hidden:K` these stand among neighbours, so that their ranks do
not give them away. Both are upper bounds on these retrievers with this system behind them. Searches
in a pool give ranks and no scores (`PoolRetriever`; docs/decisions/pools.md). Only this and scoring
read judgements.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice, zip_longest
from random import Random

from sextant.environments.base import Environment
from sextant.tools import plugins
from sextant.tools.errors import NotApplicable, UsageError
from sextant.tools.platform.number_format import plural
from sextant.tools.pool_kinds import HIDDEN, KINDS, MISSING, ORACLE, PUT_IN, WITH_RELEVANT
from sextant.tools.records import Hits, JsonObject, Query
from sextant.tools.retrievers import canonicalize
from sextant.tools.retrievers.base import Retriever, Search
from sextant.tools.retrievers.expressions import RetrieverSpec, parse

# Hits of searches that are held at a time: a hidden pool needs the rank of every document
HELD = 2_000_000


@dataclass(frozen=True, slots=True)
class Pool:
    """The pool of `--pool`, parsed."""

    kind: str  # one of KINDS
    size: int  # documents of each query's pool; relevant documents come on top in an oracle pool
    parts: tuple[RetrieverSpec, ...]  # the retrievers whose first documents make the union

    def __str__(self) -> str:
        return f"{self.kind}:{self.size}({','.join(map(str, self.parts))})"

    def config(self, names: Sequence[str], environment: Environment) -> JsonObject:
        """Return the pool as a run's configuration has it; `names` are the complete names of
        its parts.
        """
        config = {
            "kind": self.kind,
            "size": self.size,
            "of": list(names),
        }
        if self.kind == ORACLE:
            config[PUT_IN] = MISSING
        if self.kind in WITH_RELEVANT:
            config["gold"] = hashlib.sha256(
                json.dumps(
                    {
                        query.query_id: sorted(_relevant(environment, query))
                        for query in environment.queries
                    }
                ).encode()
            ).hexdigest()[:16]
        return config

    def check_room(self, environment: Environment) -> None:
        """Raise NotApplicable if a query has more relevant documents than a hidden pool has places."""
        if self.kind != HIDDEN:
            return
        counts = {
            query.query_id: len(_relevant(environment, query)) for query in environment.queries
        }
        query_id, count = max(counts.items(), key=lambda row: row[1])
        if count > self.size:
            raise NotApplicable(
                f"{self} has no room for the {plural(count, 'relevant document')} of query "
                f"{query_id!r}; use hidden:{4 * count}, so that they are a quarter of it"
            )

    def add_to(self, environment: Environment, retrievers: Sequence[Retriever]) -> Environment:
        """Return `environment` with a pool for every query; `retrievers` are those of the parts."""
        self.check_room(environment)
        depth = self.size
        # If parents are judged, the best passage of a missing parent can be anywhere.
        if self.kind == HIDDEN or (self.kind == ORACLE and _find_unit(environment)):
            depth = len(environment.documents)
        queries = environment.queries
        at_once = max(1, HELD // depth)
        pooled_queries = []
        for start in range(0, len(queries), at_once):
            batch = queries[start : start + at_once]
            searches = [Search(query.text, query.objective, query.excluded) for query in batch]
            lists = []
            for retriever in retrievers:
                with plugins.naming_failures(f"retriever {retriever.name} failed"):
                    lists.append(retriever.search_many(searches, depth))
            for query, *hits in zip(batch, *lists, strict=True):
                order = round_robin(hits)
                chosen = order[: self.size]
                if self.kind == ORACLE:
                    chosen = _add_missing(order, environment, query, self.size)
                elif self.kind == HIDDEN:
                    chosen = _hide_relevant(order, environment, query, self.size)
                pooled_queries.append(replace(query, candidates=frozenset(chosen)))
        return replace(environment, queries=tuple(pooled_queries))


def round_robin(results: Sequence[Hits]) -> list[str]:
    """Return the documents of several searches rank by rank, each once."""
    doc_ids = dict[str, None]()
    for ids_of_rank in zip_longest(*(hits.doc_ids for hits in results)):
        for doc_id in ids_of_rank:
            if doc_id is not None:
                doc_ids.setdefault(doc_id)
    return list(doc_ids)


def read(text: str, retriever: RetrieverSpec) -> Pool:
    """Return the pool that `text` describes, such as "oracle:300" or "oracle:300(bm25,dense)".

    The retrievers of a text without them are the run's own `retriever`, or its parts if it is a
    fusion. UsageError for another form.
    """
    spec = parse(text)
    size = int(spec.subject) if spec.subject.isdecimal() and len(spec.subject) < 10 else 0
    if spec.kind not in KINDS or size < 1 or spec.options:
        raise UsageError(
            f"--pool {text!r} is no pool; "
            "write oracle:SIZE, hidden:SIZE or union:SIZE, or with retrievers: oracle:300(bm25,dense)"
        )
    default_parts = retriever.parts if retriever.kind == "fusion" else (retriever,)
    parts = tuple(canonicalize(str(part)) for part in spec.parts)
    return Pool(spec.kind, size, parts or default_parts)


def _find_unit(environment: Environment) -> Callable[[str], str] | None:
    """Return what maps a document to what is judged in its place; None if documents are judged."""
    judgements = environment.judgements[environment.headline]
    return judgements.unit_of if judgements.judged_by_unit else None


def _draw_lots(environment: Environment, query: Query) -> Random:
    return Random(f"{environment.fingerprint}:{query.query_id}")


def _list_unranked(
    environment: Environment, query: Query, order: Sequence[str], lots: Random
) -> list[str]:
    """Return the documents that are not in `order`, by lot.

    A retriever may leave out documents that share no word with the query.
    """
    unranked = sorted(set(environment.documents.doc_ids) - set(order) - query.excluded)
    return lots.sample(unranked, len(unranked))


def _add_missing(
    order: list[str],
    environment: Environment,
    query: Query,
    size: int,
) -> list[str]:
    """Return the first `size` documents of `order`, and every relevant document that is not among them.

    If parents are judged, it is the best passage of each relevant parent that has none among them.
    """
    pool = order[:size]
    unit_of = _find_unit(environment)
    missing = set(_relevant(environment, query)).difference(map(unit_of or str, pool))
    if unit_of is None:
        return pool + sorted(missing)
    if not missing:
        return pool
    for doc_id in order[size:] + _list_unranked(
        environment, query, order, _draw_lots(environment, query)
    ):
        if unit_of(doc_id) in missing:
            missing.remove(unit_of(doc_id))
            pool.append(doc_id)
    return pool


def _hide_relevant(
    order: list[str],
    environment: Environment,
    query: Query,
    size: int,
) -> list[str]:
    """Return `size` documents of `order`, all relevant ones among them.

    If parents are judged, the best passage of each relevant parent counts as relevant. Half of the
    documents are the first in `order`, fewer if more than a quarter would be relevant. The other
    places are shared among the relevant documents further down: each brings its neighbours, and its
    place among them is drawn by lot. A query that lacks no relevant document gets the neighbours of
    a document that is drawn by lot.
    """
    lots = _draw_lots(environment, query)
    unit_of = _find_unit(environment) or str
    relevant = set(_relevant(environment, query))
    if not relevant <= {unit_of(doc_id) for doc_id in order}:
        order += _list_unranked(environment, query, order, lots)
    head_size = max(0, min(size // 2, size - 2 * len(relevant)))
    head = order[:head_size]
    # Documents after the head, and which of them are the best of a relevant unit.
    candidates = []
    relevant_positions = []
    units_before = relevant.intersection(map(unit_of, head))
    for doc_id in order[head_size:]:
        unit = unit_of(doc_id)
        if unit not in relevant:
            candidates.append(doc_id)
        elif unit not in units_before:
            units_before.add(unit)
            relevant_positions.append(len(candidates))
            candidates.append(doc_id)
    if not relevant_positions:
        relevant_positions = [int(len(candidates) ** lots.random()) - 1]
    block_size = (size - head_size) // len(relevant_positions)
    last_start = max(0, len(candidates) - block_size)
    in_blocks = dict[int, None]()
    for position in relevant_positions:
        start = min(max(0, position - lots.randrange(block_size)), last_start)
        in_blocks |= dict.fromkeys(range(start, start + block_size))
    outside = (number for number in range(len(candidates)) if number not in in_blocks)
    filling = islice(outside, size - head_size - len(in_blocks))
    return head + [
        candidates[number] for number in [*in_blocks, *filling] if number < len(candidates)
    ]


def _relevant(environment: Environment, query: Query) -> list[str]:
    """Return every document that a metric counts, so that the pool has the ceiling of each."""
    return list(
        environment.judgements[environment.headline]
        ._replace(binary=None, relevant_from=0.0)
        .relevant(query.query_id)
    )
