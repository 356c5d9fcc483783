"""`--pool oracle:300`: candidate pools as a condition of a run, built before any program sees a query.

OBLIQ-Bench (section 3) measures how well a system ranks when it need not find: the pool of a query is the union of
what several retrievers put first. `union:K` is that alone: what is reached over it is a lower bound on the best
possible system. `oracle:K` has every relevant document that the union lacks put in as well: an upper bound on these
retrievers with this system behind them. A pool is a set, so its order tells nothing: programs shuffle it themselves,
seeded. This is the one place outside of scoring that reads judgements.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any, Literal

from tools.errors import UsageError
from tools.retrievers import check
from tools.retrievers.spec import Spec, parse

if TYPE_CHECKING:
    from environments.base import Environment
    from tools.retrievers.base import Retriever

KINDS = ("oracle", "union")


@dataclass(frozen=True, slots=True)
class Pool:
    """What `--pool` asks for."""

    kind: Literal["oracle", "union"]
    size: int  # documents of the union; missing gold documents come on top
    parts: tuple[Spec, ...]  # the retrievers whose first documents make the union

    def config(self, names: Sequence[str]) -> dict[str, Any]:
        """What a run's configuration says of it; `names` are the complete names of its parts."""
        return {"kind": self.kind, "size": self.size, "of": list(names)}

    def __str__(self) -> str:
        return f"{self.kind}:{self.size}({','.join(map(str, self.parts))})"


def read(text: str, retriever: Spec) -> Pool:
    """The pool that `text` describes: "oracle:300", or "oracle:300(bm25,dense)" to name the retrievers.

    Without names they are the run's own `retriever`, or the parts of it where it is a fusion. UsageError otherwise.
    """
    form = "write oracle:SIZE or union:SIZE, or with retrievers: oracle:300(bm25,dense)"
    spec = parse(text)
    size = int(spec.subject) if spec.subject.isdecimal() else 0
    if spec.kind not in KINDS or size < 1 or spec.options:
        raise UsageError(f"--pool {text!r} is no pool; {form}")
    own = retriever.parts if retriever.kind == "fusion" else (retriever,)
    parts = tuple(check(str(part)) for part in spec.parts) or own
    return Pool("oracle" if spec.kind == "oracle" else "union", size, parts)


def pooled(environment: "Environment", pool: Pool, retrievers: "Sequence[Retriever]") -> "Environment":
    """`environment` with a pool for every query; `retrievers` are those of the pool's parts."""
    from tools.retrievers.base import Search

    queries = environment.queries
    searches = [Search(query.text, query.objective, query.excluded) for query in queries]
    lists = [retriever.search_many(searches, pool.size) for retriever in retrievers]
    unions = [_union([[hit.doc_id for hit in hits] for hits in found], pool.size) for found in zip(*lists, strict=True)]
    if pool.kind == "oracle":
        gold = _gold(environment, retrievers[0])
        unions = [union | extra for union, extra in zip(unions, gold, strict=True)]
    made = [
        dataclasses.replace(query, candidates=frozenset(union) - query.excluded)
        for query, union in zip(queries, unions, strict=True)
    ]
    return dataclasses.replace(environment, queries=tuple(made))


def _union(rankings: Iterable[Sequence[str]], size: int) -> set[str]:
    """The first `size` documents when the rankings are gone through together, rank by rank."""
    in_turn = (doc_id for rank in zip_longest(*rankings) for doc_id in rank if doc_id is not None)
    return set(list(dict.fromkeys(in_turn))[:size])


def _gold(environment: "Environment", retriever: "Retriever") -> list[set[str]]:
    """The relevant documents of every query. Where parents are judged, the best passage of each (MaxP)."""
    relevant = [
        {doc_id for doc_id, grade in environment.qrels.get(query.query_id, {}).items() if grade > 0}
        for query in environment.queries
    ]
    judgements = environment.judgements[environment.headline]
    if judgements.unit_of is None or not judgements.judged_by_unit:
        return relevant
    wanted, passages = set(chain.from_iterable(relevant)), dict[str, list[str]]()
    for doc_id in environment.documents.doc_ids:
        if (unit := judgements.unit_of(doc_id)) in wanted:
            passages.setdefault(unit, []).append(doc_id)
    return [
        {_best(retriever, query.text, query.objective, passages[unit]) for unit in units if unit in passages}
        for query, units in zip(environment.queries, relevant, strict=True)
    ]


def _best(retriever: "Retriever", text: str, objective: str, passages: list[str]) -> str:
    hits = retriever.search(text, 1, instruction=objective, among=passages)
    return hits[0].doc_id if hits else min(passages)
