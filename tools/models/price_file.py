"""A user's own prices, for models that no table knows, or that cost somebody less or nothing: a TOML file.

    as_of = 2026-11-01                  # when the prices were looked up; a model may have a date of its own

    ["openai/gpt-5.2"]                  # as --lm names it, in quotes; or how it begins, and a *
    input = 1.75                        # US dollars per million tokens
    output = 14.00
    cached_input = 0.175                # input that the provider had cached; without it, like any input

    ["tiny@http://127.0.0.1:8000/v1"]
    input = 0                           # a server of one's own may cost nothing
    output = 0
    window = 32768                      # how many tokens it takes

It is the file that --prices or $SEXTANT_PRICES names, else prices.toml in $SEXTANT_HOME. What it says of a model
replaces all that the table says of it. Left out: prices that depend on the prompt's length, on the hour, or on the
service tier, and currencies other than the US dollar.
"""

import os
import reprlib
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from tools.errors import UnknownName, UsageError
from tools.home import expanded, home

_PRICES = ("input", "output", "cached_input", "cache_write", "reasoning")
_KEYS = (*_PRICES, "as_of", "window")

# Nobody charges so little for a million tokens; who writes less means dollars per token, and a budget would not hold.
_LEAST = 1e-4

_LARGEST_WINDOW = 1_000_000_000  # tokens; more is a slip, and as an endless integer could not be printed


@dataclass(frozen=True, slots=True)
class Entry:
    """The prices of one model, in US dollars per million tokens, and its window."""

    input: float
    output: float
    cached_input: float
    cache_write: float | None
    reasoning: float | None
    window: int | None
    as_of: str  # a date, 2026-11-01
    source: str  # the file's name, without its folder: it goes into what others read


def entry(spec: str, file: str | Path | None = None) -> Entry | None:
    """Return the entry of the model `spec` in the user's file, or None; `file` is the value of --prices.

    The model's own section is before those of beginnings, the longest of these first. UsageError for a bad file.
    """
    path = _place(file)
    if path is None:
        return None
    try:
        status = path.stat()
        sections = _read(path, status.st_mtime_ns, status.st_size)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(
            f"the prices in {path} cannot be read: {reason}; correct --prices or $SEXTANT_PRICES"
        ) from error
    spec = spec.rstrip("/")
    beginnings = [name for name in sections if name.endswith("*") and spec.startswith(name[:-1])]
    return sections.get(spec) or (sections[max(beginnings, key=len)] if beginnings else None)


def _place(file: str | Path | None) -> Path | None:
    named = str(file) if file is not None else os.environ.get("SEXTANT_PRICES")
    if named:
        return expanded(named)
    usual = home() / "prices.toml"
    return usual if usual.is_file() else None


@lru_cache(maxsize=8)
def _read(path: Path, changed_ns: int, size: int) -> Mapping[str, Entry]:
    """The sections of one state of a file, by the name of the model."""
    usual = 'a section is ["openai/gpt-5.2"], its name in quotes, with input = 1.75'
    try:
        document = tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except RecursionError:
        raise UsageError(f"{path} has brackets in brackets without end; {usual}") from None
    except ValueError as error:
        raise UsageError(f"{path} is not TOML: {error}; {usual}") from error
    dated = _date(document.pop("as_of", None), path, "as_of")
    dated = dated or datetime.fromtimestamp(changed_ns / 1e9, UTC).date().isoformat()
    return {name.rstrip("/"): _entry(path, name, section, dated) for name, section in document.items()}


def _entry(path: Path, name: str, section: Any, dated: str) -> Entry:
    if not isinstance(section, dict):
        raise UsageError(f"{path} has {name} = {_shown(section)} outside of a section; only as_of may be there")
    if not (name.endswith("*") or "/" in name):
        raise UsageError(
            f"{path} has a section {name!r}, which names no model; "
            'write ["provider/model"], ["MODEL@http://host:port/v1"] or ["provider/begin*"], with the quotes'
        )
    for key in section:
        if key not in _KEYS:
            raise UnknownName(f"key of {name!r} in {path}", key, _KEYS)
    prices = {key: _price(section.get(key), path, name, key) for key in _PRICES}
    ingoing, outgoing, cached = prices["input"], prices["output"], prices["cached_input"]
    if ingoing is None or outgoing is None:
        missing = "input" if ingoing is None else "output"
        raise UsageError(f"{path}: {name!r} has no {missing}; write its US dollars per million tokens, 0 if it is free")
    return Entry(
        input=ingoing,
        output=outgoing,
        cached_input=ingoing if cached is None else cached,
        cache_write=prices["cache_write"],
        reasoning=prices["reasoning"],
        window=_window(section.get("window"), path, name),
        as_of=_date(section.get("as_of"), path, f"as_of of {name!r}") or dated,
        source=path.name,
    )


def _price(value: Any, path: Path, name: str, key: str) -> float | None:
    if value is None:
        return None
    said = f"{path}: {key} of {name!r} is {_shown(value)}; write US dollars per million tokens"
    # Not math.isfinite(), which fails for an integer that no float can hold. nan is in no range.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= sys.float_info.max:
        raise UsageError(f"{said}, 0 or more")
    if 0 < value < _LEAST:
        raise UsageError(f"{said}, not per token")
    return float(value)


def _window(value: Any, path: Path, name: str) -> int | None:
    if value is None or (type(value) is int and 0 < value <= _LARGEST_WINDOW):
        return value
    raise UsageError(
        f"{path}: window of {name!r} is {_shown(value)}; write a number of tokens, 1 to {_LARGEST_WINDOW:,}"
    )


def _date(value: Any, path: Path, what: str) -> str | None:
    if value is None:
        return None
    try:
        day = date.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        day = None
    if not isinstance(day, date):
        raise UsageError(f"{path}: {what} is {_shown(value)}; write a date like 2026-11-01")
    return day.isoformat()[:10]  # of a time, its day


def _shown(value: Any) -> str:
    """A value for a message: its beginning and its end where it is long."""
    try:
        return reprlib.repr(value)  # unlike repr(), for tables in tables without end, too
    except ValueError:
        return "an endless number"  # Python prints no integer of more than 4,300 digits
