"""Grading of documents by a query: what a build found itself, graded again, and what retrievers
bring beside it.

OBLIQ-Bench, appendix D: after queries are written, only pairs with the highest grade stay; then the
first documents of several systems are judged, beside known ones to be as strict by.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

from environments.base import Qrels
from evals.build.human_review import Item
from evals.build.pipeline import BuildPipeline, overlapping_slices
from evals.build.types import StageInput
from evals.judging.llm_judge import EXAMPLES
from evals.running.model_stage import digest
from programs.llm_tasks.relevance_judge import HIGHEST, RULES
from tools.records import Query

SHOWN = 3  # relevant documents, and others, that people see beside a query
# stage -> the sheet on which people grade the same
SHEETS = {"rejudge": "gold", "unique": "gold", "aspects": "gold", "judge": "pooled"}
Grades = dict[str, dict[str, float]]  # query_id -> doc_id -> grade


@dataclass(frozen=True)
class GradingSettings:
    """How documents are graded by a query."""

    rule: Annotated[str, "what the grades 2, 1 and 0 mean; empty: by the lens"] = ""
    near: Annotated[
        int, "documents outside of a group that are graded with it: those described most like it"
    ] = 10
    batch: Annotated[
        int, "documents in a call of grading what the build found; pooled ones go by twice as many"
    ] = 10
    keep: Annotated[int, "the grade from which a document is relevant"] = HIGHEST
    passes: Annotated[
        int,
        "readings that have to agree before a document leaves or joins a group; 0: none is read",
    ] = 3


@dataclass(frozen=True)
class PoolingSettings:
    """Judging what several retrievers bring, beside what the build found itself."""

    retrievers: Annotated[
        list[str], "whose first documents are judged; without any there are no pooled judgements"
    ] = field(default_factory=list)
    k: Annotated[int, "documents of each"] = 10


class GradingRequest(NamedTuple):
    """What is graded: the texts that a model is shown of documents, by query."""

    query: Query
    candidates: Sequence[str]
    examples: Sequence[str] = ()  # texts of relevant documents
    members: Collection[str] = ()  # candidates that the query's group is made of


def grade(
    build: BuildPipeline,
    stage: str,
    lens: str,
    asked: Sequence[GradingRequest],
    batch: int,
    most: int,
) -> Grades:
    """Return the grades of the candidates of each query; those that no usable answer names are left out.

    A member of a group is to be relevant, and any other document is not. What a reading says against that counts if
    each further one says so, too: the documents concerned are graded again, in other company.
    """
    judge: GradingSettings = build.recipe.judge
    unread = {one.query.query_id: () if judge.passes else one.members for one in asked}
    found: Grades = {
        query_id: dict.fromkeys(members, float(HIGHEST)) for query_id, members in unread.items()
    }
    rule = judge.rule or RULES.get(lens, RULES[""])
    left = [(one, list(one.candidates)) for one in asked]
    for turn in range(judge.passes):
        again = dict[str, list[str]]()
        for unit, answer in build.ask(
            stage, _make_units(build, rule, left, turn, batch), most=judge.passes * most
        ):
            grades = found[unit.key[0]]
            one = unit.key[1]
            for doc_id, row in answer.get("verdicts", {}).items():
                grades[doc_id] = float(row["grade"])
                if (row["grade"] < judge.keep) == (doc_id in one.members):
                    again.setdefault(unit.key[0], []).append(doc_id)
        left = [(one, again[one.query.query_id]) for one in asked if one.query.query_id in again]
    said = {
        (one, doc_id): f"{of:.0f}" for one, grades in found.items() for doc_id, of in grades.items()
    }
    texts = {one.query.query_id: one.query.text for one in asked}
    build.review(
        SHEETS[stage],
        said,
        lambda pair: Item([("query", texts[pair[0]]), ("document", build.text(pair[1]))]),
    )
    for (query_id, doc_id), of in said.items():
        found[query_id][doc_id] = float(of)
    return found


def _make_units(
    build: BuildPipeline,
    rule: str,
    left: Sequence[tuple[GradingRequest, Sequence[str]]],
    turn: int,
    batch: int,
) -> Iterator[StageInput]:
    for one, candidates in left:
        query = one.query
        told = {
            "objective": query.objective,
            "description": query.text,
            "grades": rule,
            "examples": list(one.examples),
        }
        for some in overlapping_slices(
            sorted(candidates, key=lambda doc_id: digest(str(turn), query.query_id, doc_id)), batch
        ):
            yield StageInput((query.query_id, one), told, build.passages(some))


def regrade(build: BuildPipeline, lens: str, asked: Sequence[GradingRequest]) -> Grades:
    """Return the grades of what the build found, for the queries that keep enough relevant documents."""
    judge = build.recipe.judge
    limits = build.recipe.limits
    kept = Grades()
    most = build.most_queries * -(-(limits.max_positives + judge.near) // judge.batch)
    graded = grade(build, "rejudge", lens, asked, judge.batch, most)
    for one in asked:
        query_id = one.query.query_id
        grades = graded.get(one.query.query_id, {})
        if (
            sum(of >= judge.keep for of in grades.values()) < limits.min_positives
            and not build.ahead
        ):
            build.drop("rejudge", query_id, "too few documents are relevant", one.query.text)
        else:
            kept[query_id] = {
                doc_id: float(of >= judge.keep) for doc_id, of in sorted(grades.items())
            }
    _review_queries(build, {one.query.query_id: one.query for one in asked}, kept)
    build.count("rejudge", len(asked), len(kept))
    build.demand(kept)
    return kept


def _review_queries(build: BuildPipeline, queries: Mapping[str, Query], kept: Grades) -> None:
    """Offer each query with some of what is relevant and of what is not; drop those that people find fault with."""
    shown = dict[str, list[str]]()
    said = dict[str, list[str]]()
    for query_id, grades in kept.items():
        said[query_id] = [one for one, of in grades.items() if of][:SHOWN]
        shown[query_id] = said[query_id] + [one for one, of in grades.items() if not of][:SHOWN]
    build.review(
        "queries",
        said,
        lambda query_id: build.choice("query", queries[query_id].text, shown[query_id]),
    )
    for query_id in [
        one for one, found in said.items() if not {"unasked", "leak"}.isdisjoint(found)
    ]:
        build.drop("rejudge", query_id, "people find fault with it", ", ".join(said[query_id]))
        del kept[query_id]


def pool(
    build: BuildPipeline, lens: str, queries: Sequence[Query], gold: Qrels
) -> dict[str, Grades]:
    """Return judgements `pooled`: gold with grades of what the pool's retrievers bring; none without retrievers."""
    judge = build.recipe.judge
    wanted = build.recipe.pool
    if not wanted.retrievers:
        return {}
    engines = list(map(build.retriever, wanted.retrievers))
    asked = list[GradingRequest]()
    for query in queries:
        known = gold[query.query_id]
        found = [
            hit.doc_id
            for of in engines
            for hit in of.search(query.text, wanted.k, excluded=query.excluded)
        ]
        best = sorted(
            (one for one in known if known[one] > 0), key=lambda one: digest(query.query_id, one)
        )
        left = [
            fromkey
            for fromkey in dict.fromkeys(found)
            if fromkey not in known and fromkey not in build.source.twins
        ]
        asked.append(GradingRequest(query, left, [build.text(one) for one in best[:EXAMPLES]]))
    batch = 2 * judge.batch
    most = build.most_queries * -(-wanted.k * len(wanted.retrievers) // batch)
    graded = grade(build, "judge", lens, asked, batch, most)
    build.count("judge", sum(len(one.candidates) for one in asked), sum(map(len, graded.values())))
    pooled = Grades()
    for query_id, grades in graded.items():
        brought_in = {doc_id: float(of >= judge.keep) for doc_id, of in sorted(grades.items())}
        pooled[query_id] = brought_in | dict(gold[query_id])
    return {"pooled": pooled}
