"""Checks of a model's answer: each refuses unusable outputs, and states its condition in JSON Schema.

Refusals, cut answers and copies of the prompt are found in faults.py.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import Any, Literal

from sextant.tools import session
from sextant.tools.models.answers.ids import Ids

Kind = Literal[
    "unparsable",
    "wrong type",
    "unknown ids",
    "unknown tool",
    "empty",
    "cut off",
    "prompt copied",
    "refused",
]
Outputs = Mapping[str, Any]
Constraints = dict[str, dict[str, Any]]  # the name of a field -> keywords of JSON Schema
AnswerTest = Callable[[Outputs], None]
"""Raises InvalidAnswer for outputs that cannot be used."""


class InvalidAnswer(Exception):
    """The reason for which an answer cannot be used as it is."""

    def __init__(
        self, kind: Kind, reason: str, *, tolerable: bool = False, report: str = ""
    ) -> None:
        """Make a fault; the model is shown its `reason`.

        A `tolerable` answer is used if the second answer is no better. `report` is a text for
        people, if the reason is written for the model alone.
        """
        super().__init__(reason)
        self.kind = kind
        self.reason = reason
        self.tolerable = tolerable
        self.report = report or f"{kind}: {reason}"


class UnusableAnswer(Exception):
    """No answer of a model to a call could be used, nor that to the repair if there was one."""

    def __init__(self, fault: InvalidAnswer) -> None:
        super().__init__(fault.report)
        self.kind = fault.kind
        if fault.kind == "refused":
            self.user_line = ""  # no line of a program makes a model refuse (tools/plugins.py)


@dataclass(frozen=True, slots=True)
class AnswerCheck:
    """A test of an answer, with the same condition in words that a JSON schema can state."""

    test: AnswerTest
    # Keywords of JSON Schema by field, for servers that bound answers by a schema.
    schema: Constraints = dataclass_field(default_factory=dict)
    # Fields with ids of documents -> the ids that were shown.
    ids: Mapping[str, Ids] = dataclass_field(default_factory=dict)

    def __call__(self, outputs: Outputs) -> None:
        """Raise InvalidAnswer for outputs that cannot be used."""
        self.test(outputs)


def run_checks(outputs: Outputs, checks: Iterable[AnswerCheck]) -> None:
    """Raise the first InvalidAnswer that a check raises."""
    for check in checks:
        check(outputs)


def find_ids(outputs: dict[str, Any], checks: Iterable[AnswerCheck]) -> None:
    """Replace ids as the model wrote them by the ids that were shown, in the fields that `checks` name."""
    for check in checks:
        for name, shown in check.ids.items():
            value = outputs.get(name)
            if not isinstance(value, list) or all(_id_of(item) in shown.among for item in value):
                continue
            if hasattr(value[0], "id"):
                outputs[name] = _read_rows(value, shown)
            else:
                outputs[name] = shown.read(value)


def _id_of(item: Any) -> Any:
    return getattr(item, "id", item)


def _read_rows(rows: list[Any], shown: Ids) -> list[Any]:
    return [row.model_copy(update={"id": shown.find(row.id) or row.id}) for row in rows]


def schema_constraints(checks: Iterable[AnswerCheck]) -> Constraints:
    """Return the conditions of all checks by field, in keywords of JSON Schema."""
    constraints = Constraints()
    for check in checks:
        for name, keywords in check.schema.items():
            constraints[name] = constraints.get(name, {}) | keywords
    return constraints


def require_known_ids(
    field: str,
    among: Collection[str],
    *,
    needed: bool = False,
) -> AnswerCheck:
    """Check that the ids in the list `field` are ids of documents in `among`, and with `needed`, that there are any.

    An answer with known and unknown ids is tolerable: its user drops the unknown ids, which
    Session.select counts.
    """

    def check_ids(outputs: Outputs) -> None:
        doc_ids = [str(_id_of(item)) for item in outputs[field]]
        unknown = [doc_id for doc_id in doc_ids if doc_id not in among]
        if unknown:
            _blame_documents(unknown)
            reason = (
                f"{field} names {unknown[0]!r}, the id of none of the passages shown; use ids as "
                f"they are given"
            )
            raise InvalidAnswer("unknown ids", reason, tolerable=len(unknown) < len(doc_ids))
        if needed and not doc_ids:
            raise InvalidAnswer("empty", f"{field} is empty; it has to name passages")

    counts = {"minItems": int(needed), "maxItems": len(among)}
    schema: Constraints = {field: {"enum": sorted(among), **counts}}
    return AnswerCheck(check_ids, schema, {field: Ids(among)})


def _blame_documents(unknown: list[str]) -> None:
    if payer := session.current():
        for doc_id in unknown:
            payer.blame(doc_id, "named an id that it gives")


def require_known_row_ids(
    field: str,
    among: Collection[str],
    *,
    needed: bool = False,
) -> AnswerCheck:
    """Check the ids of the rows in `field` in the way of `require_known_ids`."""
    check = require_known_ids(field, among, needed=needed)
    counts = {"minItems": int(needed), "maxItems": len(among)}
    schema: Constraints = {"id": {"enum": sorted(among)}, field: counts}
    return AnswerCheck(check.test, schema, check.ids)


def filled(*fields: str) -> AnswerCheck:
    """Check that no text or list in `fields` is empty. A list of blank texts counts as empty."""

    def check_not_empty(outputs: Outputs) -> None:
        for name in fields:
            value = outputs[name]
            items = [value] if isinstance(value, str) else value
            if not any(str(item).strip() for item in items):
                raise InvalidAnswer("empty", f"{name} is empty; it is needed")

    return AnswerCheck(check_not_empty, {name: {"minItems": 1, "minLength": 1} for name in fields})


def state_most_items(field: str, most: int) -> AnswerCheck:
    """State that the list `field` has at most `most` items, to servers that bound answers by a schema.

    A longer list is as usable: without the bound, a small model can repeat its items up to the limit of the answer.
    """
    return AnswerCheck(accept_any, {field: {"maxItems": most}})


def accept_any(outputs: Outputs) -> None:
    """Accept all outputs."""


def require_in_range(
    field: str,
    low: float,
    high: float,
) -> AnswerCheck:
    """Check that the number `field` is from `low` to `high`."""

    def check_range(outputs: Outputs) -> None:
        if not low <= outputs[field] <= high:
            raise InvalidAnswer(
                "wrong type",
                f"{field} is {outputs[field]}; it is a number from {low:g} to {high:g}",
            )

    return AnswerCheck(check_range, {field: {"minimum": low, "maximum": high}})
