"""Grading of documents by a query: the build's own finds, graded again, and further documents of
retrievers.

OBLIQ-Bench, appendix D: after queries are written, only pairs with the highest grade stay; then the
first documents of several systems are judged, next to known documents to be as strict by. Pools are
compared in pool_comparison.py, and people review grades in human_review.py.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

from sextant.environments.base import Grades, Qrels
from sextant.evals.running.model_stage import digest
from sextant.programs.llm_tasks.relevance_judge import HIGHEST, RULES
from sextant.tools.records import Query
from sextant_construction.human_review import Item
from sextant_construction.llm_judge import EXAMPLES
from sextant_construction.pipeline import BuildPipeline, overlapping_slices
from sextant_construction.types import StageInput

SHOWN = 3  # relevant documents, and others, that people see beside a query
# stage -> the sheet on which people grade the same
SHEETS = {
    "rejudge": "gold",
    "unique": "gold",
    "aspects": "gold",
    "judge": "pooled",
}


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
    """Judging the hits of several retrievers, in addition to the build's own documents."""

    retrievers: Annotated[
        list[str], "whose first documents are judged; without any there are no pooled judgements"
    ] = field(default_factory=list)
    k: Annotated[int, "documents of each"] = 10


class GradingRequest(NamedTuple):
    """The documents to be graded by a query."""

    query: Query
    candidates: Sequence[str]
    examples: Sequence[str] = ()  # texts of relevant documents
    members: Collection[str] = ()  # candidates that the query's group is made of


def grade(
    build: BuildPipeline,
    stage: str,
    lens: str,
    requests: Sequence[GradingRequest],
    batch: int,
    most: int,
) -> Grades:
    """Return the grades of the candidates of each query; those that no usable answer names are left out.

    A member of a group is to be relevant, and any other document is not. A reading that says otherwise counts if
    each further reading says so, too: the documents concerned are graded again, in other company.
    """
    judge: GradingSettings = build.recipe.judge
    unread = {
        request.query.query_id: () if judge.passes else request.members for request in requests
    }
    graded: Grades = {
        query_id: dict.fromkeys(members, float(HIGHEST)) for query_id, members in unread.items()
    }
    rule = judge.rule or RULES.get(lens, RULES[""])
    pending = [(request, list(request.candidates)) for request in requests]
    for turn in range(judge.passes):
        doubtful = dict[str, list[str]]()
        for unit, answer in build.ask(
            stage, _make_units(build, rule, pending, turn, batch), most=judge.passes * most
        ):
            grades = graded[unit.key[0]]
            request = unit.key[1]
            for doc_id, row in answer.get("verdicts", {}).items():
                grades[doc_id] = float(row["grade"])
                if (row["grade"] < judge.keep) == (doc_id in request.members):
                    doubtful.setdefault(unit.key[0], []).append(doc_id)
        pending = [
            (request, doubtful[request.query.query_id])
            for request in requests
            if request.query.query_id in doubtful
        ]
    values = {
        (query_id, doc_id): f"{value:.0f}"
        for query_id, grades in graded.items()
        for doc_id, value in grades.items()
    }
    texts = {request.query.query_id: request.query.text for request in requests}
    build.review(
        SHEETS[stage],
        values,
        lambda pair: Item([("query", texts[pair[0]]), ("document", build.text(pair[1]))]),
    )
    for (query_id, doc_id), text in values.items():
        graded[query_id][doc_id] = float(text)
    return graded


def _make_units(
    build: BuildPipeline,
    rule: str,
    pending: Sequence[tuple[GradingRequest, Sequence[str]]],
    turn: int,
    batch: int,
) -> Iterator[StageInput]:
    for request, candidates in pending:
        query = request.query
        inputs = {
            "objective": query.objective,
            "description": query.text,
            "grades": rule,
            "examples": list(request.examples),
        }
        for doc_ids in overlapping_slices(
            sorted(candidates, key=lambda doc_id: digest(str(turn), query.query_id, doc_id)), batch
        ):
            yield StageInput((query.query_id, request), inputs, build.passages(doc_ids))


def regrade(build: BuildPipeline, lens: str, requests: Sequence[GradingRequest]) -> Grades:
    """Return the grades of the build's finds, for the queries that keep enough relevant documents."""
    judge = build.recipe.judge
    limits = build.recipe.limits
    gold = Grades()
    most = build.most_queries * -(-(limits.max_positives + judge.near) // judge.batch)
    graded = grade(
        build,
        "rejudge",
        lens,
        requests,
        judge.batch,
        most,
    )
    for request in requests:
        query_id = request.query.query_id
        grades = graded.get(request.query.query_id, {})
        if (
            sum(value >= judge.keep for value in grades.values()) < limits.min_positives
            and not build.ahead
        ):
            build.drop("rejudge", query_id, "too few documents are relevant", request.query.text)
        else:
            gold[query_id] = {
                doc_id: float(value >= judge.keep) for doc_id, value in sorted(grades.items())
            }
    _review_queries(build, {request.query.query_id: request.query for request in requests}, gold)
    build.count("rejudge", len(requests), len(gold))
    build.demand(gold)
    return gold


def _review_queries(
    build: BuildPipeline,
    queries: Mapping[str, Query],
    gold: Grades,
) -> None:
    """Offer each query with relevant and other documents; drop queries that people find fault with."""
    shown = {}
    relevant = {}
    for query_id, grades in gold.items():
        relevant[query_id] = [doc_id for doc_id, value in grades.items() if value][:SHOWN]
        shown[query_id] = (
            relevant[query_id] + [doc_id for doc_id, value in grades.items() if not value][:SHOWN]
        )
    build.review(
        "queries",
        relevant,
        lambda query_id: build.choice("query", queries[query_id].text, shown[query_id]),
    )
    for query_id in [
        query_id
        for query_id, answers in relevant.items()
        if not {"unasked", "leak"}.isdisjoint(answers)
    ]:
        build.drop("rejudge", query_id, "people find fault with it", ", ".join(relevant[query_id]))
        del gold[query_id]


def pool(
    build: BuildPipeline, lens: str, queries: Sequence[Query], gold: Qrels
) -> dict[str, Grades]:
    """Return judgements `pooled`: gold with grades of the retrievers' documents; none without retrievers."""
    judge = build.recipe.judge
    wanted = build.recipe.pool
    if not wanted.retrievers:
        return {}
    searchers = list(map(build.retriever, wanted.retrievers))
    requests = []
    for query in queries:
        grades_so_far = gold[query.query_id]
        found_ids = [
            hit.doc_id
            for retriever in searchers
            for hit in retriever.search(query.text, wanted.k, excluded=query.excluded)
        ]
        best = sorted(
            (doc_id for doc_id in grades_so_far if grades_so_far[doc_id] > 0),
            key=lambda doc_id: digest(query.query_id, doc_id),
        )
        new_ids = [
            doc_id
            for doc_id in dict.fromkeys(found_ids)
            if doc_id not in grades_so_far and doc_id not in build.source.twins
        ]
        requests.append(
            GradingRequest(query, new_ids, [build.text(doc_id) for doc_id in best[:EXAMPLES]])
        )
    batch = 2 * judge.batch
    most = build.most_queries * -(-wanted.k * len(wanted.retrievers) // batch)
    graded = grade(
        build,
        "judge",
        lens,
        requests,
        batch,
        most,
    )
    build.count(
        "judge",
        sum(len(request.candidates) for request in requests),
        sum(map(len, graded.values())),
    )
    pooled = Grades()
    for query_id, grades in graded.items():
        brought_in = {
            doc_id: float(value >= judge.keep) for doc_id, value in sorted(grades.items())
        }
        pooled[query_id] = brought_in | dict(gold[query_id])
    return {"pooled": pooled}
