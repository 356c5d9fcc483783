"""The forms of what is kept of model calls and of compilations, as tools/forms.py checks them."""

from collections.abc import Sequence
from typing import Annotated, Any, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from tools import forms
from tools.forms import Amount, Count, Key, UsageForm


class Output(TypedDict, total=False):
    """An answer with what came beside it, as DSPy has it, or as a turn of an agent."""

    text: str | None
    content: str | None


Version = Annotated[str, Field(pattern=r"^[\w.+-]{1,60}$")]
Outputs = Annotated[list[str | Output | None], Field(min_length=1)]


class CassetteLine(TypedDict):
    """A line of a cassette, after the first."""

    key: Key
    outputs: Outputs
    usage: UsageForm
    finish: str
    seconds: Amount
    reasoning: NotRequired[str]


class Cells(TypedDict, total=False):
    """Cells of a row in answers.sqlite3."""

    key: str
    run: str
    query_id: str
    model: str
    at: Annotated[float, Field(ge=0, le=2**37, allow_inf_nan=False)]  # the year 6325: dates end with 9999
    seconds: Amount
    fault: str
    usage: UsageForm
    outputs: Outputs
    finish: str
    request: str | None
    reasoning: str | None
    first: Amount | None


def cells(columns: Sequence[str], row: Sequence[Any]) -> dict[str, Any]:
    """Return a row by its columns, with its JSON read. ValueError for other than was written there."""
    named = dict(zip(columns, row, strict=True))
    for column in named.keys() & {"usage", "outputs"}:
        named[column] = forms.read(Any, named[column])
    forms.check(Cells, named)
    return named


class Versions(TypedDict):
    """The part of a compiled program that is read first."""

    versions: NotRequired[dict[str, Version | Count]]
