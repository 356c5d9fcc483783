"""Grading of documents by a query: what a build found itself, graded again, and what retrievers bring beside it.

OBLIQ-Bench, appendix D: after queries are written, only pairs with the highest grade stay; then the first documents of
several systems are judged, beside known ones to be as strict by.
"""

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

from evals.building.engine import Build, slices
from evals.building.review import Item
from evals.building.units import Unit
from evals.measuring.judging import EXAMPLES
from programs.judging import HIGHEST, RULES
from tools.errors import DataError
from tools.records import Query

# stage -> the sheet on which people grade the same
SHOWN = 3  # relevant documents, and others, that people see beside a query
SHEETS = {"rejudge": "gold", "unique": "gold", "aspects": "gold", "judge": "pooled"}
Grades = dict[str, dict[str, float]]  # query_id -> doc_id -> grade


@dataclass(frozen=True)
class Judge:
    """How documents are graded by a query."""

    rule: Annotated[str, "what the grades 2, 1 and 0 mean; empty: by the lens"] = ""
    near: Annotated[int, "documents outside of a group that are graded with it: those described most like it"] = 10
    batch: Annotated[int, "documents in a call of grading what the build found; pooled ones go by twice as many"] = 10
    keep: Annotated[int, "the grade from which a document is relevant"] = HIGHEST
    passes: Annotated[int, "readings that have to agree before a document leaves or joins a group; 0: none is read"] = 3


@dataclass(frozen=True)
class Pool:
    """Judging what several retrievers bring, beside what the build found itself."""

    retrievers: Annotated[list[str], "whose first documents are judged; without any there are no pooled judgements"] = (
        field(default_factory=list)
    )
    k: Annotated[int, "documents of each"] = 10


class Asked(NamedTuple):
    """What is graded: the texts that a model is shown of documents, by query."""

    query: Query
    candidates: Sequence[str]
    examples: Sequence[str] = ()  # texts of relevant documents
    members: Collection[str] = ()  # candidates that the query's group is made of


def grade(build: Build, stage: str, judge: Judge, lens: str, asked: Sequence[Asked], batch: int, most: int) -> Grades:
    """Return the grades of the candidates of each query; those that no usable answer names are left out.

    A member of a group is to be relevant, and any other document is not. What a reading says against that counts if
    each further one says so, too: the documents concerned are graded again, in other company.
    """
    unread = {one.query.query_id: () if judge.passes else one.members for one in asked}
    found: Grades = {query_id: dict.fromkeys(members, float(HIGHEST)) for query_id, members in unread.items()}
    rule, left = judge.rule or RULES.get(lens, RULES[""]), [(one, list(one.candidates)) for one in asked]
    for turn in range(judge.passes):
        again = dict[str, list[str]]()
        for unit, answer in build.ask(stage, _make_units(build, rule, left, turn, batch), most=judge.passes * most):
            grades, one = found[unit.key[0]], unit.key[1]
            for doc_id, row in (answer or {}).get("verdicts", {}).items():
                grades[doc_id] = float(row["grade"])
                if (row["grade"] < judge.keep) == (doc_id in one.members):
                    again.setdefault(unit.key[0], []).append(doc_id)
        left = [(one, again[one.query.query_id]) for one in asked if one.query.query_id in again]
    said = {(one, doc_id): f"{of:.0f}" for one, grades in found.items() for doc_id, of in grades.items()}
    texts = {one.query.query_id: one.query.text for one in asked}
    build.review(SHEETS[stage], said, lambda pair: Item([("query", texts[pair[0]]), ("document", build.text(pair[1]))]))
    for (query_id, doc_id), of in said.items():
        found[query_id][doc_id] = float(of)
    return found


def _make_units(
    build: Build, rule: str, left: Sequence[tuple[Asked, Sequence[str]]], turn: int, batch: int
) -> Iterator[Unit]:
    for one, candidates in left:
        query = one.query
        told = {"objective": query.objective, "description": query.text, "grades": rule, "examples": list(one.examples)}
        for some in slices(sorted(candidates, key=lambda doc_id: _order(turn, query.query_id, doc_id)), batch):
            yield Unit((query.query_id, one), told, [(doc_id, build.text(doc_id)) for doc_id in some])


def _order(*parts: object) -> bytes:
    return hashlib.sha256(":".join(map(str, parts)).encode("utf-8", "surrogatepass")).digest()


def regrade(build: Build, judge: Judge, lens: str, asked: Sequence[Asked]) -> Grades:
    """Return the grades of what the build found, for the queries that keep enough relevant documents."""
    limits, kept = build.recipe.limits, Grades()
    largest = -(-(limits.max_positives + judge.near) // judge.batch)
    most = build.most_queries * largest
    graded = grade(build, "rejudge", judge, lens, asked, judge.batch, most)
    for one in asked:
        query_id, grades = one.query.query_id, graded.get(one.query.query_id, {})
        if sum(of >= judge.keep for of in grades.values()) < limits.min_positives and not build.ahead:
            build.drop("rejudge", query_id, "too few documents are relevant", one.query.text)
        else:
            kept[query_id] = {doc_id: float(of >= judge.keep) for doc_id, of in sorted(grades.items())}
    _review_queries(build, {one.query.query_id: one.query for one in asked}, kept)
    build.count("rejudge", len(asked), len(kept))
    if not kept:
        raise DataError(f"no query is left after {build.describe()}; dropped.jsonl says why")
    return kept


def _review_queries(build: Build, queries: Mapping[str, Query], kept: Grades) -> None:
    """Offer each query with some of what is relevant and of what is not; drop those that people find fault with."""
    shown, said = dict[str, list[str]](), dict[str, list[str]]()
    for query_id, grades in kept.items():
        said[query_id] = [one for one, of in grades.items() if of][:SHOWN]
        shown[query_id] = said[query_id] + [one for one, of in grades.items() if not of][:SHOWN]

    def show(query_id: str) -> Item:
        parts = [(one, build.text(one)) for one in shown[query_id]]
        return Item([("query", queries[query_id].text), *parts], values=shown[query_id])

    build.review("queries", said, show)
    for query_id in [one for one, found in said.items() if not {"unasked", "leak"}.isdisjoint(found)]:
        build.drop("rejudge", query_id, "people find fault with it", ", ".join(said[query_id]))
        del kept[query_id]


def pool(
    build: Build,
    judge: Judge,
    wanted: Pool,
    lens: str,
    queries: Sequence[Query],
    gold: Mapping[str, Mapping[str, float]],
) -> Grades:
    """Return the gold judgements with grades of what the pool's retrievers bring; nothing without retrievers."""
    if not wanted.retrievers:
        return {}
    brought: dict[str, dict[str, None]] = {query.query_id: {} for query in queries}
    for spec in wanted.retrievers:
        for query in queries:
            hits = build.retriever(spec).search(query.text, wanted.k, excluded=query.excluded)
            brought[query.query_id] |= {hit.doc_id: None for hit in hits if hit.doc_id not in build.source.twins}
    asked = []
    for query in queries:
        known = gold[query.query_id]
        best = sorted((one for one in known if known[one] > 0), key=lambda one: _order(query.query_id, one))
        left = [one for one in brought[query.query_id] if one not in known]
        asked.append(Asked(query, left, [build.text(one) for one in best[:EXAMPLES]]))
    batch = 2 * judge.batch
    most = build.most_queries * -(-wanted.k * len(wanted.retrievers) // batch)
    graded = grade(build, "judge", judge, lens, asked, batch, most)
    build.count("judge", sum(len(one.candidates) for one in asked), sum(map(len, graded.values())))
    return {
        one.query_id: {doc_id: float(of >= judge.keep) for doc_id, of in sorted(graded.get(one.query_id, {}).items())}
        | dict(gold[one.query_id])
        for one in queries
    }
