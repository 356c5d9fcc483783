"""The result of a user's own program as a list of document ids, and names in its inputs and outputs.

The program itself is in custom.py, a graph in custom_langgraph.py.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sized
from itertools import islice
from numbers import Integral, Real
from typing import Any

import dspy
import pydantic

from sextant.programs.search_tools import PassageText
from sextant.tools import plugins
from sextant.tools.records import Hits, JsonObject

# Names of a parameter or field for the text of a query.
QUERY = (
    "query",
    "question",
    "description",
)
# Names of a field that has the ranking.
ANSWERS = (
    "doc_ids",
    "ranking",
    "documents",
    "document_ids",
    "ids",
)
# Names of a document's id in an object or a mapping.
_ID_NAMES = (
    "doc_id",
    "docid",
    "docno",
    "document_id",
    "id",
    "_id",
)
_MOST = 100_000  # documents of an iterator, which may never end
_EXPECTED = "a list of document ids is expected"


def extract_doc_ids(returned: Any) -> list[str]:
    """Return the ids in the value `returned`, in order. TypeError, as the end of a sentence, if it has none."""
    documents = _find_documents(returned)
    if isinstance(documents, set | frozenset):
        raise TypeError(
            f"returned a {type(documents).__name__}, which has no order; return a list, best first"
        )
    if isinstance(documents, str | bytes | Mapping) or not isinstance(documents, Iterable):
        raise TypeError(f"returned {describe(documents)}; {_EXPECTED}")
    if not isinstance(documents, Sized):
        documents = collect(documents)
    return [_read_id(document) for document in documents]


def collect(documents: Iterable[Any]) -> list[Any]:
    """Return what an iterator yields. TypeError if it may never end."""
    collected = list(islice(documents, _MOST + 1))
    if len(collected) > _MOST:
        raise TypeError(f"yields more than {_MOST:,} documents, or never ends; {_EXPECTED}")
    return collected


def describe(value: Any) -> str:
    """Return a value's type and the beginning of its text."""
    if value is None:
        return "None"
    type_name = type(value).__name__
    if isinstance(value, Mapping):
        return f"{type_name} with keys {', '.join(map(str, value)) or 'none'}"
    return f"{type_name} {plugins.show(value)[:40]!r}"


def _find_documents(returned: Any) -> Any:
    """Return the part of a program's result that has the documents."""
    if isinstance(returned, dspy.Prediction):
        return _pick_field(dict(returned.items()), "predicted")
    if fields := read_fields(returned):
        return _pick_field(fields, f"returned {type(returned).__name__} with fields")
    if hasattr(returned, "columns"):
        return _pick_column(returned)
    if isinstance(returned, Mapping):
        for name in ANSWERS:
            if name in returned:
                return returned[name]
        scores = {doc_id: _unwrap(score) for doc_id, score in returned.items()}
        if scores and all(isinstance(score, Real) for score in scores.values()):
            return _order_by_score(scores)
    return returned


def read_fields(record: Any) -> JsonObject:
    """Return the fields of a dataclass, a named tuple or a model of pydantic's by name; none of another value."""
    if isinstance(record, tuple) and hasattr(record, "_asdict"):
        return dict(record._asdict())
    names: Iterable[str] = ()
    if dataclasses.is_dataclass(record):
        names = [field.name for field in dataclasses.fields(record)]
    elif isinstance(record, pydantic.BaseModel):
        names = type(record).model_fields
    return {name: getattr(record, name) for name in names}


def _pick_column(frame: Any) -> Any:
    """Return the column of a frame of pandas or polars that has the ids."""
    for name in (*ANSWERS, *_ID_NAMES):
        if name in frame.columns:
            return frame[name]
    raise TypeError(
        f"returned a frame with columns {', '.join(map(str, frame.columns))}; name one doc_id"
    )


def _order_by_score(scores: Mapping[Any, Any]) -> list[Any]:
    for doc_id, score in scores.items():
        # nan alone differs from itself.
        if score != score:
            shown = plugins.show(doc_id)[:40]
            raise TypeError(f"returned nan as the score of {shown!r}, which gives no order")
    return sorted(scores, key=lambda doc_id: -scores[doc_id])


def _pick_field(outputs: JsonObject, described: str) -> Any:
    """Return the documents of a prediction: a field by its name, or the only list, or the only field.

    An error begins with `described`.
    """
    outputs = dict(outputs)
    for name in ("trajectory", "reasoning"):
        outputs.pop(name, None)
    named = [outputs[name] for name in ANSWERS if name in outputs]
    lists = [value for value in outputs.values() if isinstance(value, list | tuple | Hits)]
    fields = named[:1] or lists or list(outputs.values())
    if len(fields) != 1:
        names_of_fields = ", ".join(outputs) or "nothing"
        raise TypeError(f"{described} {names_of_fields}; a field doc_ids is expected")
    documents = fields[0]
    return _split_text(documents) if isinstance(documents, str) else documents


def _split_text(text: str) -> list[str]:
    """Return the ids of a list in words."""
    text = text.strip(" []\n")
    lines = text.split("\n") if "\n" in text else re.split(r"[,;\s]+", text)
    ids = []
    for line in lines:
        without_bullet = re.sub(r"^(?:[-*]|\d+[.)])\s+", "", line.strip())
        if doc_id := without_bullet.strip("\"'`, "):
            ids.append(doc_id)
    return ids


def _read_id(document: Any) -> str:
    """Return the id of a document: an id, an object or a mapping with an id, or a pair of an id and a score."""
    if isinstance(document, PassageText):
        return document.doc_id
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
    """Return the id in a field of an object or a mapping, or in its metadata; else the value."""
    for holder in (value, getattr(value, "metadata", None)):  # as LangChain's documents have it
        for name in _ID_NAMES:
            doc_id = getattr(holder, name, None)
            if isinstance(holder, Mapping):
                doc_id = holder.get(name)
            doc_id = _unwrap(doc_id)
            if isinstance(doc_id, str | Integral):
                return doc_id
    return value


def _unwrap(value: Any) -> Any:
    """Return the number in a scalar of NumPy's, PyTorch's or another library's arrays; other values as they are."""
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        return value.item()
    return value
