"""Grading of documents by a query: the build's own finds, graded again, and further documents of
retrievers.

OBLIQ-Bench, appendix D: after queries are written, only pairs with the highest grade stay; then the
first documents of several systems are judged, next to known documents to be as strict by. Pools are
compared in pool_comparison.py, and people review grades in human_review.py.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
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
        Sequence[str],
        "whose first documents are judged; without any there are no pooled judgements",
    ] = ()
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
    rule = judge.rule or RULES.get(lens, RULES[""])
    request_of = {request.query.query_id: request for request in requests}
    graded: Grades = {query_id: {} for query_id in request_of}
    pending = {query_id: request.candidates for query_id, request in request_of.items()}
    if not judge.passes:
        for query_id, request in request_of.items():
            graded[query_id] = dict.fromkeys(request.members, float(HIGHEST))

    def make_units(turn: int) -> Iterator[StageInput]:
        for query_id, candidates in pending.items():
            request = request_of[query_id]
            inputs = {
                "objective": request.query.objective,
                "description": request.query.text,
                "grades": rule,
                "examples": list(request.examples),
            }
            ordered = sorted(
                candidates,
                key=partial(
                    digest,
                    str(turn),
                    query_id,
                ),
            )
            for doc_ids in overlapping_slices(ordered, batch):
                yield StageInput(query_id, inputs, build.passages(doc_ids))

    for turn in range(judge.passes):
        doubtful = defaultdict(list)
        for unit, answer in build.ask(
            stage,
            make_units(turn),
            most=judge.passes * most,
        ):
            for doc_id, row in answer.get("verdicts", {}).items():
                graded[unit.key][doc_id] = float(row["grade"])
                if (row["grade"] < judge.keep) == (doc_id in request_of[unit.key].members):
                    doubtful[unit.key].append(doc_id)
        pending = {query_id: doubtful[query_id] for query_id in request_of if query_id in doubtful}
    values = {
        (query_id, doc_id): f"{value:.0f}"
        for query_id, grades in graded.items()
        for doc_id, value in grades.items()
    }
    build.review(
        SHEETS[stage],
        values,
        lambda pair: Item(
            [("query", request_of[pair[0]].query.text), ("document", build.text(pair[1]))]
        ),
    )
    for (query_id, doc_id), text in values.items():
        graded[query_id][doc_id] = float(text)
    return graded


def regrade(build: BuildPipeline, lens: str, requests: Sequence[GradingRequest]) -> Grades:
    """Return the grades of the build's finds, for the queries that keep enough relevant documents.

    Queries that people find fault with are dropped.
    """
    judge = build.recipe.judge
    limits = build.recipe.limits
    most = build.most_queries * -(-(limits.max_positives + judge.near) // judge.batch)
    graded = grade(build, "rejudge", lens, requests, judge.batch, most)
    texts = {request.query.query_id: request.query.text for request in requests}
    gold: Grades = {}
    relevant = {}
    shown = {}
    for query_id, text in texts.items():
        grades = {
            doc_id: float(value >= judge.keep) for doc_id, value in sorted(graded[query_id].items())
        }
        if sum(grades.values()) < limits.min_positives and not build.ahead:
            build.drop("rejudge", query_id, "too few documents are relevant", text)
            continue
        gold[query_id] = grades
        relevant[query_id] = [doc_id for doc_id, value in grades.items() if value][:SHOWN]
        others = [doc_id for doc_id, value in grades.items() if not value][:SHOWN]
        shown[query_id] = relevant[query_id] + others
    build.review(
        "queries",
        relevant,
        lambda query_id: build.choice("query", texts[query_id], shown[query_id]),
    )
    for query_id, answers in relevant.items():
        if not {"unasked", "leak"}.isdisjoint(answers):
            build.drop("rejudge", query_id, "people find fault with it", ", ".join(answers))
            del gold[query_id]
    build.count("rejudge", len(requests), len(gold))
    build.demand(gold)
    return gold


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
        grades = gold[query.query_id]
        relevant = (doc_id for doc_id, grade in grades.items() if grade > 0)
        best = sorted(relevant, key=partial(digest, query.query_id))[:EXAMPLES]
        found = chain.from_iterable(
            retriever.search(query.text, wanted.k, excluded=query.excluded).doc_ids
            for retriever in searchers
        )
        new_ids = [
            doc_id
            for doc_id in dict.fromkeys(found)
            if doc_id not in grades and doc_id not in build.source.twins
        ]
        requests.append(
            GradingRequest(
                query,
                new_ids,
                list(map(build.text, best)),
            )
        )
    batch = 2 * judge.batch
    most = build.most_queries * -(-wanted.k * len(wanted.retrievers) // batch)
    graded = grade(build, "judge", lens, requests, batch, most)
    build.count(
        "judge",
        sum(len(request.candidates) for request in requests),
        sum(map(len, graded.values())),
    )
    pooled = {}
    for query_id, grades in graded.items():
        new_grades = {
            doc_id: float(value >= judge.keep) for doc_id, value in sorted(grades.items())
        }
        pooled[query_id] = new_grades | dict(gold[query_id])
    return {"pooled": pooled}
