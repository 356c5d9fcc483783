"""What the engine without a model answers to a program without rules: by the names and types of fields.

A field that asks for documents gets ids that the call shows; an agent's next call is a search, and then its end; other
texts are the heaviest words of the query. So any program runs from end to end without a model.
"""

import re
import types
from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from inspect import isclass
from typing import Any, Literal, Union, get_args, get_origin

import dspy
import pydantic

from programs.desk import DESK
from tools.models import offline
from tools.text import TermStatistics

_DOCUMENTS = re.compile(r"answer|doc|ids?$|passage|rank|relevant|select")  # in the name of a field


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
    kind = call.signature.output_fields[name].annotation
    texts = {key: str(one) for key, one in inputs.items()}
    asked = [texts[key] for key in ("description", "query", "question") if key in texts] or [*texts.values(), ""]
    shown, desk = "\n".join(texts.values()), DESK.get()
    ids = [doc_id for doc_id in (desk.best_rank if desk else ()) if doc_id in shown]
    words = offline.rewrite({"description": asked[0]}, statistics)
    if name == "next_tool_name":  # of dspy.ReAct
        return "search" if "search" in get_args(kind) and not ids else "finish"
    if name == "next_tool_args":
        return {} if ids else {"query": words}
    if kind is dspy.ToolCalls:
        calls = [] if ids or "search" not in shown else [{"name": "search", "args": {"query": words}}]
        return dspy.ToolCalls.from_dict_list(calls)
    return _fill(kind, name, ids, words)


def _fill(kind: Any, name: str, ids: list[str], words: str) -> Any:
    """Return a value of the type `kind`."""
    inside, origin = get_args(kind), get_origin(kind) or kind
    if origin is Literal:
        return inside[0]
    if origin in (Union, types.UnionType):
        return _fill(inside[0], name, ids, words)
    if origin in (list, tuple, set, frozenset):
        if inside and inside[0] is not str:
            return [_fill(inside[0], name, ids, words)]
        return ids if _DOCUMENTS.search(name) else [words]
    if isclass(kind) and issubclass(kind, pydantic.BaseModel):
        return {key: _fill(field.annotation, key, ids, words) for key, field in kind.model_fields.items()}
    if isclass(kind) and issubclass(kind, Enum):
        return next(iter(kind)).value
    if origin in (bool, int, float, dict):
        return {bool: True, int: 1, float: 1.0, dict: {}}[origin]
    if ids and _DOCUMENTS.search(name):
        return ids[0] if name.endswith("id") else ", ".join(ids)
    return words
