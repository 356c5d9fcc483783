"""Demonstrations: the part of a predictor's traced call that is kept, and demonstrations made of
judgements alone.

The best search text says what the wanted document says, so the label of every field that is searched
with is the beginning of a relevant document. The label of a selection or an order is the relevant
documents, put among the results of a plain search. Fields about which judgements say nothing (notes,
thoughts, plans) have no label, and DSPy shows such a demonstration with the field left open.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import dspy

from sextant.environments.base import Environment
from sextant.programs.compiled import to_json_values
from sextant.tools.models.prompting import escape_markers
from sextant.tools.records import Query
from sextant.tools.retrievers.base import Retriever

# Entries that a demonstration keeps of a list; of passages first those that the answer names.
SHOWN = 6
CUT = 400  # characters of each text in such a list


def trim_traced_call(step: Any) -> tuple[Any, dict[str, Any], dspy.Prediction]:
    """Return a predictor's traced call as plain data, with its long lists and texts cut.

    Texts by themselves, such as the description, stay whole.
    """
    predictor, inputs, outputs = step
    answer = to_json_values(outputs)
    named = set(texts_in(answer))
    shown = {
        name: value if isinstance(value, str) else _cut(value, named)
        for name, value in to_json_values(inputs).items()
    }
    # DSPy draws among demonstrations by a digest of their pickle, in which it matters whether two
    # equal texts are one object: a parser's cache would decide. After this line no two are.
    shown, answer = json.loads(json.dumps([shown, answer]))
    return predictor, shown, dspy.Prediction(**answer)


def _cut(value: Any, named: set[str]) -> Any:
    """Cut texts, and lists to the passages that are `named`, or else to their latest entries."""
    if isinstance(value, str):
        return value[:CUT]
    if isinstance(value, Mapping):
        return {key: _cut(entry, named) for key, entry in value.items()}
    if not isinstance(value, list):
        return value
    entries = value[-SHOWN:]
    if all(isinstance(entry, Mapping) and {"id", "text"} <= entry.keys() for entry in value):
        # The sort is stable: passages of equal rank stay as they were shown.
        by_naming = sorted(value, key=lambda passage: passage["id"] not in named)
        chosen = by_naming[:SHOWN]
        entries = [passage for passage in value if passage in chosen]
    return [_cut(entry, named) for entry in entries]


def texts_in(value: Any) -> Iterator[str]:
    """Yield every text in plain data, at any depth; no keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for nested in value.values() if isinstance(value, Mapping) else value:
            yield from texts_in(nested)


def to_example(query: Query, **labels: Any) -> dspy.Example:
    """Return a query as DSPy's example."""
    inputs = {
        "query_id": query.query_id,
        "objective": query.objective,
        "description": query.text,
    }
    return dspy.Example(**inputs, **labels).with_inputs(*inputs)


def label_example(query: Query, environment: Environment, retriever: Retriever) -> dspy.Example:
    """Make an example of a query, with a label for every field that judgements decide."""
    gold = relevant_documents([query], environment)[query.query_id]
    hits = retriever.search(
        query.text,
        SHOWN,
        instruction=query.objective,
        excluded=query.excluded,
        among=query.candidates,
    )
    first = gold[: SHOWN // 2]
    negatives = [doc_id for doc_id in hits.doc_ids if doc_id not in gold]
    # Sorted by id, so that no position gives a relevant document away.
    shown = sorted(first + negatives[: SHOWN - len(first)])
    texts = {doc_id: escape_markers(environment.documents[doc_id].text[:CUT]) for doc_id in shown}
    search_text = texts[first[0]] if first else ""
    return to_example(
        query,
        **{key: [] for key in ("notes", "earlier_searches", "learned")},
        **dict.fromkeys(("search", "rewritten", "document", "answer"), search_text),
        **{key: [search_text] for key in ("searches", "guesses")},
        passages=[{"id": doc_id, "text": text} for doc_id, text in texts.items()],
        selected=first,
        ranked=first + [doc_id for doc_id in shown if doc_id not in first],
    )


def relevant_documents(queries: Sequence[Query], environment: Environment) -> dict[str, list[str]]:
    """Return query_id -> the documents relevant by the headline judgements, the highest grades first.

    If judgements are of units (the parents of passages), these are a unit's documents, in the order of the corpus.
    """
    judgements = environment.judgements[environment.headline]
    grades_of = {query.query_id: judgements.relevant(query.query_id) for query in queries}
    documents_of = environment.list_documents(chain(*grades_of.values()))
    return {
        # Equal grades by id.
        query_id: [
            doc_id
            for unit in sorted(grades, key=lambda unit: (-grades[unit], unit))
            for doc_id in documents_of.get(unit, ())
        ]
        for query_id, grades in grades_of.items()
    }
