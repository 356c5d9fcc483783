"""What the engine without a model answers to a program without rules: by the names and types of fields.

A field that asks for documents gets ids that the call shows; an agent's next call is a search, and then its end; other
texts are the heaviest words of the query. So any program runs from end to end without a model.
"""

import re
import types
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import partial
from inspect import isclass
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

import dspy
import pydantic

from programs.desk import DESK
from tools.models import offline
from tools.text import TermStatistics

_DOCUMENTS = re.compile(r"answer|doc|ids?$|passage|rank|relevant|select")  # in the name of a field


class _Seen(NamedTuple):
    everything: str  # that the call has as its inputs
    words: str  # of the query
    ids: Sequence[str]  # of documents in it


class Guesses(dict[str, Any]):
    """Rules for all fields there can be."""

    def __contains__(self, name: object) -> bool:
        return True

    def __bool__(self) -> bool:
        return True

    def __missing__(self, name: str) -> Callable[..., Any]:
        return partial(_guess, name)


def _guess(name: str, inputs: Mapping[str, Any], statistics: TermStatistics) -> Any:
    call: Any = offline.present()
    texts = {name: str(one) for name, one in inputs.items()}
    asked = [texts[name] for name in ("description", "query", "question") if name in texts] or list(texts.values())
    everything = "\n".join(texts.values())
    desk = DESK.get()
    ids = [doc_id for doc_id in (desk.best_rank if desk else ()) if doc_id in everything]
    seen = _Seen(everything, offline.rewrite({"description": asked[0] if asked else ""}, statistics), ids)
    return _fill(call.signature.output_fields[name].annotation, name, seen)


def _fill(kind: Any, name: str, seen: _Seen) -> Any:
    inside, origin = get_args(kind), get_origin(kind)
    search = {"query": seen.words}
    if kind is dspy.ToolCalls:
        found = seen.ids or "search" not in seen.everything
        return dspy.ToolCalls.from_dict_list([] if found else [{"name": "search", "args": search}])
    if name == "next_tool_name":  # of dspy.ReAct
        return "search" if "search" in inside and not seen.ids else "finish"
    if name == "next_tool_args":
        return {} if seen.ids else search
    if origin is Literal:
        return inside[0]
    if origin in (Union, types.UnionType):
        return _fill(inside[0], name, seen)
    if (origin or kind) in (list, tuple, set, frozenset):
        if inside and inside[0] is not str:
            return [_fill(inside[0], name, seen)]
        return list(seen.ids) if _DOCUMENTS.search(name) else [seen.words]
    if isclass(kind) and issubclass(kind, pydantic.BaseModel):
        return {key: _fill(field.annotation, key, seen) for key, field in kind.model_fields.items()}
    if isclass(kind) and issubclass(kind, Enum):
        return next(iter(kind)).value
    plain = {bool: True, int: 1, float: 1.0}
    if kind in plain or (origin or kind) is dict:
        return plain.get(kind, {})
    return ", ".join(seen.ids) if seen.ids and _DOCUMENTS.search(name) else seen.words
