"""How a program asks its model: a predictor, its inputs, and what makes an answer usable.

    read = ask(self.read_passages, known_ids("selected", unread), **about, passages=passages)

An answer that cannot be used is asked for once more, with what was wrong with it; that happens in the adapter
(tools/models/prompting/adapter.py), inside one call of the predictor, so that DSPy's own trace has the answer that was
used. A second one raises UnusableAnswer, which is a fault of the system. Every one is counted by kind in the session's
trace.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal

import dspy

from tools import session

Kind = Literal["unparsable", "wrong type", "unknown ids", "unknown tool", "empty", "cut off", "refused"]
Outputs = Mapping[str, Any]


class Fault(Exception):
    """Why one answer cannot be used as it is."""

    def __init__(self, kind: Kind, reason: str, *, tolerable: bool = False) -> None:
        """`reason` is told to the model. A `tolerable` answer is used when the second one is no better."""
        super().__init__(reason)
        self.kind: Kind = kind
        self.reason = reason
        self.tolerable = tolerable


class UnusableAnswer(Exception):
    """A model gave two answers in a row that could not be used."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(f"{fault.kind}: {fault.reason}")
        self.kind = fault.kind


Check = Callable[[Outputs], None]
"""Raises a Fault for outputs that cannot be used."""

_CHECKS: ContextVar[tuple[Check, ...]] = ContextVar("checks", default=())


def ask(predictor: dspy.Module, *checks: Check, **inputs: Any) -> Any:
    """The prediction for `inputs`, which passes all `checks`."""
    with checking(*checks):
        return predictor(**inputs)


@contextmanager
def checking(*checks: Check) -> Iterator[None]:
    """Answers that are given inside have to pass `checks`."""
    token = _CHECKS.set(checks)
    try:
        yield
    finally:
        _CHECKS.reset(token)


def check(outputs: Outputs) -> None:
    """Raise the first Fault that a check of this context finds."""
    for one in _CHECKS.get():
        one(outputs)


def known_ids(field: str, among: Collection[str], *, needed: bool = False) -> Check:
    """The ids in the list `field` are of documents in `among`; with `needed`, there is one at least.

    An answer with some unknown ids among known ones is tolerable: who uses it drops them (Session.select counts them).
    """

    def known(outputs: Outputs) -> None:
        named = [str(doc_id) for doc_id in outputs[field]]
        strange = [doc_id for doc_id in named if doc_id not in among]
        if strange:
            if payer := session.current():
                for doc_id in strange:
                    payer.blame(doc_id, "named an id that it gives")
            raise Fault(
                "unknown ids",
                f"{field} names {strange[0]!r}, the id of none of the passages shown; use ids as they are given",
                tolerable=len(strange) < len(named),
            )
        if needed and not named:
            raise Fault("empty", f"{field} is empty; it has to name passages")

    return known


def filled(*fields: str) -> Check:
    """None of the text or list `fields` is empty; a list of blank texts is."""

    def not_empty(outputs: Outputs) -> None:
        for field in fields:
            value = outputs[field]
            if not any(str(one).strip() for one in ([value] if isinstance(value, str) else value)):
                raise Fault("empty", f"{field} is empty; it is needed")

    return not_empty


def within(field: str, low: float, high: float) -> Check:
    """The number `field` is from `low` to `high`."""

    def in_range(outputs: Outputs) -> None:
        if not low <= outputs[field] <= high:
            raise Fault("wrong type", f"{field} is {outputs[field]}; it is a number from {low:g} to {high:g}")

    return in_range
