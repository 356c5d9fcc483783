"""Demonstrations out of judgements alone: what a perfect answer of a predictor would be for a training query.

A search that is worth the most says what the wanted document says, so the label of every field that is searched with is
the beginning of a relevant document; the label of a selection or an order is the relevant documents, put among what a
plain search returns. Fields about which judgements say nothing (notes, thoughts, plans) have no label, and DSPy shows
such a demonstration with the field left open.
"""

from collections.abc import Sequence
from typing import Any

import dspy

from environments.base import Environment
from optimizers.training.demonstrations import CUT, SHOWN
from tools.corpus import Corpus
from tools.models.prompting.passage import defuse
from tools.records import Query
from tools.retriever import Retriever


def label_examples(queries: Sequence[Query], environment: Environment, retriever: Retriever) -> list[dspy.Example]:
    """Make one example a query: what Study.examples has, and a label for every field that has one."""
    wanted = relevant(queries, environment)
    return [
        dspy.Example(
            query_id=query.query_id, **_fields(query, wanted[query.query_id], environment.documents, retriever)
        ).with_inputs("query_id", "objective", "description")
        for query in queries
    ]


def _fields(query: Query, wanted: list[str], documents: Corpus, retriever: Retriever) -> dict[str, Any]:
    hits = retriever.search(
        query.text, SHOWN, instruction=query.objective, excluded=query.excluded, among=query.candidates
    )
    shown = _mixed(wanted, [hit.doc_id for hit in hits])
    text = {doc_id: defuse(documents[doc_id].text[:CUT]) for doc_id in shown}
    beginning = text[wanted[0]] if wanted else ""
    kept = [doc_id for doc_id in wanted if doc_id in text]
    return {
        "objective": query.objective,
        "description": query.text,
        **{name: list[str]() for name in ("notes", "earlier_searches", "learned")},
        **dict.fromkeys(("search", "rewritten", "document", "answer"), beginning),
        **{name: [beginning] for name in ("searches", "guesses")},
        "passages": [{"id": doc_id, "text": text[doc_id]} for doc_id in shown],
        "selected": kept,
        "ranked": kept + [doc_id for doc_id in shown if doc_id not in kept],
    }


def _mixed(wanted: list[str], found: list[str]) -> list[str]:
    """The first wanted documents and others that a search finds, in the order of their ids: no place gives one away."""
    first = wanted[: SHOWN // 2]
    return sorted(first + [doc_id for doc_id in found if doc_id not in wanted][: SHOWN - len(first)])


def relevant(queries: Sequence[Query], environment: Environment) -> dict[str, list[str]]:
    """Return query_id -> the documents relevant by the headline judgements, the highest grades first.

    Where judgements are of units (the parents of passages), a unit's documents are, in the order of the corpus.
    """
    judgements = environment.judgements[environment.headline]
    good = {}
    for query in queries:
        grades = judgements.relevant(query.query_id)
        good[query.query_id] = sorted(grades, key=lambda one: (-grades[one], one))
    if judgements.unit_of is None or not judgements.judged_by_unit:
        return good
    parts: dict[str, list[str]] = {unit: [] for units in good.values() for unit in units}
    for doc_id in environment.documents:
        if (unit := judgements.unit_of(doc_id)) in parts:
            parts[unit].append(doc_id)
    return {query_id: [doc_id for unit in units for doc_id in parts[unit]] for query_id, units in good.items()}
