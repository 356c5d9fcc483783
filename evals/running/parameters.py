"""`-P name=value`: what a program's constructor lets the command line set, checked before anything is loaded.

Beside those there are limits of each query, which every program and agent has: `LIMITS`. They are the session's.
"""

import difflib
import inspect
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from tools import disk, retrievers
from tools.disk import InputFile
from tools.errors import DataError, UnknownName, UsageError
from tools.limits import Limits
from tools.retrievers.spec import Expression, Expressions

# What one query may use -> the name of that in tools.session.Limits.
LIMITS = {"max_calls": "calls", "max_searches": "searches", "max_tokens": "tokens"}

_BOOLEANS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def parse(
    program: str, constructor: Any, given: Mapping[str, Any], kept: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return every parameter of the program: as it is `given`, or in `kept`, or with its default.

    Parameters are the constructor's keyword-only arguments except `depth`, which is --k; `kept` are those of a compiled
    program. UnknownName for another name, UsageError for a value that is not of the annotated type. `LIMITS` are passed
    over, but where there are any, lines of work that could be `parallel` go one after another: which of them a limit
    ends must not depend on their threads.
    """
    known = list_declared(constructor)
    values = {name: _checked(parameter.default, parameter.annotation) for name, parameter in known.items()}
    for name, value in (kept or {}).items():
        if name not in known or not isinstance(value, _stored(known[name].annotation)):
            raise UsageError(f"the compiled program has {name}={value!r}, which {program} does not take; compile again")
        values[name] = _checked(known[name].annotation(value), known[name].annotation)
    limited = limits(given)
    for name, text in given.items():
        if name in limited:
            continue
        if name not in known:
            near = LIMITS if known else difflib.get_close_matches(name, LIMITS)
            raise UnknownName(f"parameter of {program}", name, [*known, *near])
        values[name] = _value(name, str(text), known[name].annotation)
        if name == "parallel" and limited and values[name] > 1:
            raise UsageError(f"-P {name}={text} does not go with -P {next(iter(limited))}: leave it out")
    if limited and "parallel" in values:
        values["parallel"] = 1
    return values


def limits(given: Mapping[str, Any]) -> dict[str, int]:
    """Return those of `LIMITS` that are `given`, in their order there. UsageError for one that is no number from 1."""
    found = {name: _value(name, str(given[name]), int) for name in LIMITS if name in given}
    for name, most in found.items():
        if most < 1:
            raise UsageError(f"-P '{name}={most}': a limit is at least 1")
    return found


def session_limits(limited: Mapping[str, int], depth: int) -> Limits:
    """Return `limited` as a session's limits; `depth` is documents in a ranking."""
    return Limits(**{LIMITS[name]: most for name, most in limited.items()}, depth=depth)


def list_declared(constructor: Any) -> dict[str, inspect.Parameter]:
    """Return what `-P` may set, by name."""
    told = constructor if hasattr(constructor, "__signature__") else constructor.__init__
    return {
        name: parameter
        for name, parameter in inspect.signature(told).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY and name != "depth"
    }


def _stored(wanted: Any) -> type | tuple[type, ...]:
    """Return the types that JSON gives back for a parameter of type `wanted`."""
    return (int, float) if wanted is float else str if issubclass(wanted, str) else wanted


def apply_hints(values: Mapping[str, Any], fixed: Collection[str], hints: Mapping[str, str]) -> dict[str, Any]:
    """Return `values` with the task's hints, for parameters that the program has and that are not `fixed`."""
    return {name: value if name in fixed else hints.get(name, value) for name, value in values.items()}


def find_retrievers(values: Mapping[str, Any]) -> list[str]:
    """Return the retrievers that the values name, each once, as canonical expressions."""
    named: list[str] = []
    for value in values.values():
        if isinstance(value, Expressions):
            named += value.each()
        elif isinstance(value, Expression) and value:
            named.append(value)
    return list(dict.fromkeys(named))


def digests(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the SHA-256 of every file that the values name, by the parameter. DataError for one that is not there."""
    found = {}
    for name, value in values.items():
        if isinstance(value, InputFile) and value:
            try:
                found[name] = disk.sha256(Path(value))
            except OSError as error:
                raise DataError(f"-P {name}={value} cannot be read: {error.strerror}") from None
    return found


def _value(name: str, text: str, wanted: type) -> Any:
    try:
        return _BOOLEANS[text.lower()] if wanted is bool else _checked(wanted(text), wanted)
    except (ValueError, KeyError):
        kind = {int: "a whole number", float: "a number", bool: "true or false"}[wanted]
        raise UsageError(f"-P '{name}={text}': the value has to be {kind}") from None


def _checked(value: Any, wanted: type) -> Any:
    """Return `value`; of a retriever its canonical expression, after the checks that need no data."""
    if wanted is Expression and value:
        return Expression(_canonical(value))
    if wanted is Expressions:
        return Expressions(",".join(_canonical(text) for text in Expressions(value).each()))
    return value


def _canonical(text: str) -> str:
    spec = retrievers.check(text)
    retrievers.require(spec)
    return str(spec)
