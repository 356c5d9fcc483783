"""`-P name=value`: what a program's constructor lets the command line set, checked before anything is loaded."""

import inspect
from collections.abc import Sequence
from typing import Any

from tools.errors import UnknownName, UsageError

_BOOLEANS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def parse(program: str, constructor: type, pairs: Sequence[str]) -> dict[str, Any]:
    """Every parameter of the program with its value: the default, or the one in `pairs`.

    Parameters are the constructor's keyword-only arguments except `depth`, which is --k. UnknownName for
    another name, UsageError for a value that is not of the annotated type.
    """
    known = {
        name: parameter
        for name, parameter in inspect.signature(constructor.__init__).parameters.items()  # type: ignore[misc]
        if parameter.kind is parameter.KEYWORD_ONLY and name != "depth"
    }
    values = {name: parameter.default for name, parameter in known.items()}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise UsageError(f"-P {pair!r} has no value; write -P name=value")
        if name not in known:
            raise UnknownName(f"parameter of {program}", name, known)
        values[name] = _value(pair, text, known[name].annotation)
    return values


def _value(pair: str, text: str, wanted: type) -> Any:
    try:
        return _BOOLEANS[text.lower()] if wanted is bool else wanted(text)
    except (ValueError, KeyError):
        kind = {int: "a whole number", float: "a number", bool: "true or false"}[wanted]
        raise UsageError(f"-P {pair!r}: the value has to be {kind}") from None
