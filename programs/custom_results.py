"""What a user's own program returned, as a list of document ids, and names in its inputs and
outputs.
"""

import re
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import Any

import dspy

from tools import plugins

QUERY = ("query", "question", "description")  # names under which the text of a query is asked for
ANSWERS = (
    "doc_ids",
    "ranking",
    "documents",
    "document_ids",
    "ids",
)  # names under which a ranking is handed in
_ID_NAMES = (
    "doc_id",
    "docid",
    "docno",
    "document_id",
    "id",
    "_id",
)  # of a document's id in an object or a mapping
_EXPECTED = "a list of document ids is expected"


def extract_doc_ids(returned: Any) -> list[str]:
    """Return the ids in what a program returned, in their order. TypeError, as the end of a sentence, for none."""
    documents = _find_documents(returned)
    if isinstance(documents, set | frozenset):
        raise TypeError(
            f"returned a {type(documents).__name__}, which has no order; return a list, best first"
        )
    if isinstance(documents, str | bytes | Mapping) or not isinstance(documents, Iterable):
        raise TypeError(f"returned {describe(documents)}; {_EXPECTED}")
    return [_read_id(document) for document in documents]


def describe(value: Any) -> str:
    """Return a value's type and the beginning of its text."""
    if value is None:
        return "None"
    type_name = type(value).__name__
    if isinstance(value, Mapping):
        return f"{type_name} with keys {', '.join(map(str, value)) or 'none'}"
    return f"{type_name} {plugins.show(value)[:40]!r}"


def _find_documents(returned: Any) -> Any:
    """Return the part of what a program returned that has the documents."""
    if isinstance(returned, dspy.Prediction):
        return _pick_field(dict(returned.items()))
    if hasattr(returned, "columns"):  # a frame of pandas or polars
        column = next((name for name in (*ANSWERS, *_ID_NAMES) if name in returned.columns), None)
        if column is None:
            raise TypeError(
                f"returned a frame with columns {', '.join(map(str, returned.columns))}; name one "
                f"doc_id"
            )
        return returned[column]
    if isinstance(returned, Mapping):
        fields = [returned[name] for name in ANSWERS if name in returned]
        if fields:
            return fields[0]
        scores = {doc_id: _unwrap(score) for doc_id, score in returned.items()}
        if scores and all(isinstance(score, Real) for score in scores.values()):
            unordered = next((doc_id for doc_id, score in scores.items() if score != score), None)
            if unordered is not None:
                raise TypeError(
                    f"returned nan as the score of {plugins.show(unordered)[:40]!r}, which gives no "
                    f"order"
                )
            return sorted(scores, key=lambda doc_id: -scores[doc_id])
    return returned


def _pick_field(outputs: dict[str, Any]) -> Any:
    """Return the documents of a prediction: by the name of the field, or else the only list, or the only field."""
    outputs = {
        name: value for name, value in outputs.items() if name not in ("trajectory", "reasoning")
    }
    fields = [outputs[name] for name in ANSWERS if name in outputs][:1]
    fields = fields or [value for value in outputs.values() if isinstance(value, list | tuple)]
    fields = fields or list(outputs.values())
    if len(fields) != 1:
        raise TypeError(f"predicted {', '.join(outputs) or 'nothing'}; a field doc_ids is expected")
    return _split_text(fields[0]) if isinstance(fields[0], str) else fields[0]


def _split_text(text: str) -> list[str]:
    """Return the ids of a list in words."""
    text = text.strip(" []\n")
    lines = text.split("\n") if "\n" in text else re.split(r"[,;\s]+", text)
    ids = [re.sub(r"^(?:[-*]|\d+[.)])\s+", "", line.strip()).strip("\"'`, ") for line in lines]
    return [doc_id for doc_id in ids if doc_id]


def _read_id(document: Any) -> str:
    """Return the id of one document: an id, an object or a mapping that has one, or a pair of an id and a score."""
    value = _unwrap(document)
    if isinstance(value, list | tuple) and not hasattr(value, "doc_id"):
        if len(value) != 2 or not isinstance(_unwrap(value[1]), Real):
            raise TypeError(
                f"returned a list with {describe(document)}; {_EXPECTED}, or of pairs of an id "
                f"and a score"
            )
        value = _unwrap(value[0])
    if isinstance(value, bytes):  # of an array of NumPy's
        value = value.decode("utf-8", "replace")
    if isinstance(value, float) and value.is_integer():  # as frames write whole numbers
        value = int(value)
    if not isinstance(value, str | Integral):
        value = _find_id(value)
    if isinstance(value, bool) or not isinstance(value, str | Integral):
        raise TypeError(f"returned a list with {describe(document)}; {_EXPECTED}")
    return str(value) if isinstance(value, str) else str(int(value))


def _find_id(value: Any) -> Any:
    """Return the id that an object or a mapping has under one of its names, or in its metadata; else the value."""
    for holder in (value, getattr(value, "metadata", None)):  # as LangChain's documents have it
        for name in _ID_NAMES:
            doc_id = (
                holder.get(name) if isinstance(holder, Mapping) else getattr(holder, name, None)
            )
            doc_id = _unwrap(doc_id)
            if isinstance(doc_id, str | Integral):
                return doc_id
    return value


def _unwrap(value: Any) -> Any:
    """Return the number in a scalar of NumPy's, PyTorch's or another library's arrays; other values as they are."""
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        return value.item()
    return value
