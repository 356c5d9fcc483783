"""Demonstrations: what one keeps of a predictor's traced call, and what judgements alone make one
of.

A search that is worth the most says what the wanted document says, so the label of every field that
is searched with is the beginning of a relevant document; the label of a selection or an order is
the relevant documents, put among what a plain search returns. Fields about which judgements say
nothing (notes, thoughts, plans) have no label, and DSPy shows such a demonstration with the field
left open.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import dspy

from environments.base import Environment
from programs.compiled import to_json_values
from tools.models.passages import escape_markers
from tools.records import Query
from tools.retrievers.base import Retriever

SHOWN = (
    6  # entries that a demonstration keeps of a list; of passages those that the answer names first
)
CUT = 400  # characters of each text in such a list


def trim_traced_call(step: Any) -> tuple[Any, dict[str, Any], dspy.Prediction]:
    """Return a predictor's traced call as plain data: long lists and texts of what it was shown are cut."""
    predictor, inputs, outputs = step
    answer = to_json_values(outputs)
    named = set(texts_in(answer))
    shown = {name: to_json_values(value) for name, value in inputs.items()}
    # What is a text by itself, such as the description, stays whole.
    shown = {
        name: value if isinstance(value, str) else _cut(value, named)
        for name, value in shown.items()
    }
    # DSPy draws among demonstrations by a digest of their pickle, in which it matters whether two
    # equal texts are one object: a parser's cache would decide. Read anew, none are.
    shown, answer = json.loads(json.dumps([shown, answer]))
    return predictor, shown, dspy.Prediction(**answer)


def _cut(
    value: Any, named: set[str]
) -> Any:  # left are the passages that are named, else the latest of a list
    if isinstance(value, str):
        return value[:CUT]
    if isinstance(value, Mapping):
        return {key: _cut(entry, named) for key, entry in value.items()}
    if not isinstance(value, list):
        return value
    if all(isinstance(entry, Mapping) and {"id", "text"} <= entry.keys() for entry in value):
        chosen = sorted(value, key=lambda passage: passage["id"] not in named)[
            :SHOWN
        ]  # stable: else as they were shown
        return [_cut(passage, named) for passage in value if passage in chosen]
    return [_cut(entry, named) for entry in value[-SHOWN:]]


def texts_in(value: Any) -> Iterator[str]:
    """Yield every text in plain data, at any depth; no keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for nested in value.values() if isinstance(value, Mapping) else value:
            yield from texts_in(nested)


def to_example(query: Query, **labels: Any) -> dspy.Example:
    """Return a query as DSPy's example."""
    inputs = {"query_id": query.query_id, "objective": query.objective, "description": query.text}
    return dspy.Example(**inputs, **labels).with_inputs(*inputs)


def label_example(query: Query, environment: Environment, retriever: Retriever) -> dspy.Example:
    """Make an example of a query, with a label for every field that has one."""
    gold = relevant_documents([query], environment)[query.query_id]
    hits = retriever.search(
        query.text,
        SHOWN,
        instruction=query.objective,
        excluded=query.excluded,
        among=query.candidates,
    )
    first = gold[: SHOWN // 2]
    negatives = [hit.doc_id for hit in hits if hit.doc_id not in gold][: SHOWN - len(first)]
    shown = sorted(first + negatives)  # by id: no place gives one away
    text = {doc_id: escape_markers(environment.documents[doc_id].text[:CUT]) for doc_id in shown}
    beginning = text[first[0]] if first else ""
    labels = {
        **{name: list[str]() for name in ("notes", "earlier_searches", "learned")},
        **dict.fromkeys(("search", "rewritten", "document", "answer"), beginning),
        **{name: [beginning] for name in ("searches", "guesses")},
        "passages": [{"id": doc_id, "text": text[doc_id]} for doc_id in shown],
        "selected": first,
        "ranked": first + [doc_id for doc_id in shown if doc_id not in first],
    }
    return to_example(query, **labels)


def relevant_documents(queries: Sequence[Query], environment: Environment) -> dict[str, list[str]]:
    """Return query_id -> the documents relevant by the headline judgements, the highest grades first.

    Where judgements are of units (the parents of passages), a unit's documents are, in the order of the corpus.
    """
    judgements = environment.judgements[environment.headline]
    documents = environment.documents
    grades = {query.query_id: judgements.relevant(query.query_id) for query in queries}
    good = {
        query_id: sorted(grade_by_unit, key=lambda unit: (-grade_by_unit[unit], unit))
        for query_id, grade_by_unit in grades.items()
    }
    if judgements.unit_of is None or not judgements.judged_by_unit:
        return {
            query_id: [id_ for id_ in ids if id_ in documents] for query_id, ids in good.items()
        }
    documents_of_unit: dict[str, list[str]] = {
        unit: [] for units in good.values() for unit in units
    }
    for doc_id in documents:
        if (unit := judgements.unit_of(doc_id)) in documents_of_unit:
            documents_of_unit[unit].append(doc_id)
    return {
        query_id: [doc_id for unit in units for doc_id in documents_of_unit[unit]]
        for query_id, units in good.items()
    }
