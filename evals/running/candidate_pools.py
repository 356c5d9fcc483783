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
        config: dict[str, Any] = {
            "kind": self.kind,
            "size": self.size,
            "of": list(names),
        }
        if self.kind == "oracle":
            gold = json.dumps(
                {
                    query.query_id: sorted(_relevant(environment, query))
                    for query in environment.queries
                }
            )
            config["gold"] = hashlib.sha256(gold.encode()).hexdigest()[:16]
        return config

    def check_room(self, environment: Environment) -> None:
        """Raise NotApplicable if a query has more relevant documents than its pool has places."""
        counts = {}
        for query in environment.queries:
            counts[query.query_id] = len(_relevant(environment, query))
        query_id = max(counts, key=counts.__getitem__)
        if self.kind == "oracle" and counts[query_id] > self.size:
            problem = (
                f"{self} has no room for the {counts[query_id]} relevant documents of query "
                f"{query_id!r}"
            )
            raise NotApplicable(
                f"{problem}; use oracle:{4 * counts[query_id]}, so that they are a quarter of it"
            )

    def add_to(self, environment: Environment, retrievers: Sequence[Retriever]) -> Environment:
        """Return `environment` with a pool for every query; `retrievers` are those of the parts."""
        self.check_room(environment)
        depth = len(environment.documents) if self.kind == "oracle" else self.size
        queries = environment.queries
        at_once = max(1, HELD // depth)
        pooled_queries = list[Query]()
        for start in range(0, len(queries), at_once):
            batch = queries[start : start + at_once]
            searches = [Search(query.text, query.objective, query.excluded) for query in batch]
            lists = [retriever.search_many(searches, depth) for retriever in retrievers]
            for query, *hits in zip(batch, *lists, strict=True):
                order = round_robin(hits)
                if self.kind == "oracle":
                    order = _put_in_relevant(order, environment, query, self.size)
                pooled_queries.append(replace(query, candidates=frozenset(order[: self.size])))
        return replace(environment, queries=tuple(pooled_queries))


def round_robin(results: Sequence[Sequence[Hit]]) -> list[str]:
    """Return the documents of several searches rank by rank, each once."""
    doc_ids = dict[str, None]()
    for hits_of_rank in zip_longest(*results):
        for hit in hits_of_rank:
            if hit is not None:
                doc_ids.setdefault(hit.doc_id)
    return list(doc_ids)


def read(text: str, retriever: RetrieverSpec) -> Pool:
    """Return the pool that `text` describes, such as "oracle:300" or "oracle:300(bm25,dense)".

    The retrievers of a text without them are the run's own `retriever`, or its parts if it is a
    fusion. UsageError for another form.
    """
    spec = parse(text)
    size = int(spec.subject) if spec.subject.isdecimal() and len(spec.subject) < 10 else 0
    if spec.kind not in ("oracle", "union") or size < 1 or spec.options:
        form = "write oracle:SIZE or union:SIZE, or with retrievers: oracle:300(bm25,dense)"
        raise UsageError(f"--pool {text!r} is no pool; {form}")
    default_parts = retriever.parts if retriever.kind == "fusion" else (retriever,)
    parts = tuple(canonicalize(str(part)) for part in spec.parts)
    return Pool(spec.kind, size, parts or default_parts)


def _put_in_relevant(
    order: list[str],
    environment: Environment,
    query: Query,
    size: int,
) -> list[str]:
    """Return `size` documents, all relevant ones among them.

    If parents are judged, the best passage of each relevant parent counts as relevant. Half of the
    documents are the first in `order`, fewer if more than a quarter would be relevant. The other
    places are shared among the relevant documents further down: each brings its neighbours, and its
    place among them is drawn by lot. A query that lacks no relevant document gets the neighbours of
    a document that is drawn by lot.
    """
    judgements = environment.judgements[environment.headline]
    lots = Random(f"{environment.fingerprint}:{query.query_id}")
    unit_of = judgements.unit_of if judgements.unit_of and judgements.judged_by_unit else str
    relevant = set(_relevant(environment, query))
    if not relevant <= {unit_of(doc_id) for doc_id in order}:
        # A retriever may leave out documents that share no word with the query.
        unranked = sorted(set(environment.documents.doc_ids) - set(order) - query.excluded)
        order += lots.sample(unranked, len(unranked))
    head_size = max(0, min(size // 2, size - 2 * len(relevant)))
    head = order[:head_size]
    # Documents after the head, and which of them are the best of a relevant unit.
    candidates = list[str]()
    relevant_positions = list[int]()
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
    chosen = [*in_blocks, *filling]
    return head + [candidates[number] for number in chosen if number < len(candidates)]


def _relevant(environment: Environment, query: Query) -> list[str]:
    grades = environment.qrels.get(query.query_id, {})
    return [judged for judged, grade in grades.items() if grade > 0]
