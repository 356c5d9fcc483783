"""Checks of a model's answer: each refuses outputs that cannot be used, and states its condition in JSON Schema."""

from collections.abc import Callable, Collection, Mapping
from contextvars import ContextVar
from typing import Any, Literal

from tools import session
from tools.models.values import Ids

Kind = Literal[
    "unparsable", "wrong type", "unknown ids", "unknown tool", "empty", "cut off", "refused"
]


Outputs = Mapping[str, Any]


class InvalidAnswer(Exception):
    """Why one answer cannot be used as it is."""

    def __init__(
        self, kind: Kind, reason: str, *, tolerable: bool = False, report: str = ""
    ) -> None:
        """The model is shown the `reason`. A `tolerable` answer is used when the second one is no better.

        `report` is for people, where the reason is written for the model alone.
        """
        super().__init__(reason)
        self.kind = kind
        self.reason = reason
        self.tolerable = tolerable
        self.report = report or f"{kind}: {reason}"


class UnusableAnswer(Exception):
    """A model gave two answers in a row that could not be used."""

    def __init__(self, fault: InvalidAnswer) -> None:
        super().__init__(fault.report)
        self.kind = fault.kind
        if fault.kind == "refused":
            self.user_line = ""  # no line of a program makes a model refuse (tools/plugins.py)


AnswerCheck = Callable[[Outputs], None]
"""Raises a Fault for outputs that cannot be used."""


CHECKS: ContextVar[tuple[AnswerCheck, ...]] = ContextVar("checks", default=())


def run_checks(outputs: Outputs) -> None:
    """Raise the first Fault that a check of this context finds."""
    for one in CHECKS.get():
        one(outputs)


def find_ids(outputs: dict[str, Any]) -> None:
    """Put the ids that were shown into the place of what a model made of them, for the checks of this context."""
    for one in CHECKS.get():
        for name, ids in getattr(one, "ids", {}).items():
            value = outputs.get(name)
            if isinstance(value, list) and not all(_id_of(item) in ids.among for item in value):
                outputs[name] = (
                    _read_rows(value, ids) if hasattr(value[0], "id") else ids.read(value)
                )


def _id_of(item: Any) -> Any:
    return getattr(item, "id", item)


def _read_rows(rows: list[Any], ids: Ids) -> list[Any]:
    return [row.model_copy(update={"id": ids.find(row.id) or row.id}) for row in rows]


def schema_constraints() -> dict[str, dict[str, Any]]:
    """Return what the checks of this context ask of each field, in words of JSON Schema."""
    asks = dict[str, dict[str, Any]]()
    for one in CHECKS.get():
        for name, words in getattr(one, "asks", {}).items():
            asks[name] = asks.get(name, {}) | words  # of several checks of one field
    return asks


def require_known_ids(field: str, among: Collection[str], *, needed: bool = False) -> AnswerCheck:
    """Check that the ids in the list `field` are of documents in `among`; with `needed`, that there is at least one.

    An answer with known ids beside unknown ones is tolerable: its user drops these (Session.select counts them).
    """

    def known(outputs: Outputs) -> None:
        named = [str(getattr(one, "id", one)) for one in outputs[field]]
        unknown = [doc_id for doc_id in named if doc_id not in among]
        if unknown:
            if payer := session.current():
                for doc_id in unknown:
                    payer.blame(doc_id, "named an id that it gives")
            reason = (
                f"{field} names {unknown[0]!r}, the id of none of the passages shown; use ids as "
                f"they are given"
            )
            raise InvalidAnswer("unknown ids", reason, tolerable=len(unknown) < len(named))
        if needed and not named:
            raise InvalidAnswer("empty", f"{field} is empty; it has to name passages")

    vars(known)["asks"] = {field: {"enum": sorted(among), "minItems": int(needed)}}
    vars(known)["ids"] = {field: Ids(among)}
    return known


def require_known_row_ids(field: str, among: Collection[str]) -> AnswerCheck:
    """Check the ids of the rows in `field` as `require_known_ids` does ids."""
    known = require_known_ids(field, among)
    vars(known)["asks"] = {"id": {"enum": sorted(among)}}
    return known


def filled(*fields: str) -> AnswerCheck:
    """Check that none of the text or list `fields` is empty; a list of blank texts is."""

    def not_empty(outputs: Outputs) -> None:
        for field in fields:
            value = outputs[field]
            if not any(str(one).strip() for one in ([value] if isinstance(value, str) else value)):
                raise InvalidAnswer("empty", f"{field} is empty; it is needed")

    vars(not_empty)["asks"] = {field: {"minItems": 1, "minLength": 1} for field in fields}
    return not_empty


def require_in_range(field: str, low: float, high: float) -> AnswerCheck:
    """Check that the number `field` is from `low` to `high`."""

    def in_range(outputs: Outputs) -> None:
        if not low <= outputs[field] <= high:
            raise InvalidAnswer(
                "wrong type",
                f"{field} is {outputs[field]}; it is a number from {low:g} to {high:g}",
            )

    vars(in_range)["asks"] = {field: {"minimum": low, "maximum": high}}
    return in_range
