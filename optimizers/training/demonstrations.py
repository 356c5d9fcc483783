"""What a demonstration keeps of a predictor's traced call: a few passages, cut short."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import dspy

from environments.base import Environment
from programs.compiled import plain
from tools.corpus import Corpus
from tools.models.prompting import defuse
from tools.records import Query
from tools.retriever import Retriever

SHOWN = 6  # entries that a demonstration keeps of a list; of passages those that the answer names first
CUT = 400  # characters of each text in such a list


def trim(step: Any) -> tuple[Any, dict[str, Any], dspy.Prediction]:
    """Return a predictor's traced call as plain data: long lists and texts of what it was shown are cut."""
    predictor, inputs, outputs = step
    answer = plain(outputs)
    named, shown = set(_texts(answer)), {name: plain(value) for name, value in inputs.items()}
    # What is a text by itself, such as the description, stays whole.
    shown = {name: value if isinstance(value, str) else _cut(value, named) for name, value in shown.items()}
    # DSPy draws among demonstrations by a digest of their pickle, in which it matters whether two equal texts are one
    # object: a parser's cache would decide. Read anew, none are.
    shown, answer = json.loads(json.dumps([shown, answer]))
    return predictor, shown, dspy.Prediction(**answer)


def _cut(value: Any, named: set[str]) -> Any:
    """Cut long lists and texts of `value`: left are the passages that are named, else the latest of a list."""
    if isinstance(value, str):
        return value[:CUT]
    if isinstance(value, Mapping):
        return {key: _cut(one, named) for key, one in value.items()}
    if not isinstance(value, list):
        return value
    if all(isinstance(one, Mapping) and {"id", "text"} <= one.keys() for one in value):
        chosen = sorted(value, key=lambda one: one["id"] not in named)[:SHOWN]  # stable: else as they were shown
        return [_cut(one, named) for one in value if one in chosen]
    return [_cut(one, named) for one in value[-SHOWN:]]


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for one in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(one)


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
