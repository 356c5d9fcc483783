"""Numbers, counts and values in words, the same wherever they are printed."""

import json
from typing import Any


def plural(count: int, one: str, more: str = "") -> str:
    """A number of things: "1 run", "2 runs", "3 queries"."""
    return f"{count:,} {one if count == 1 else more or one + 's'}"


def queries(count: int) -> str:
    """A number of queries."""
    return plural(count, "query", "queries")


def number(value: float | None, form: str = "{:.4f}", unknown: str = "unknown") -> str:
    """A number in a table, in the `form` that str.format takes."""
    return unknown if value is None else form.format(value)


def brief(value: Any, most: int = 60) -> str:
    """A value of a configuration in a line."""
    if isinstance(value, dict) and "digest" in value:
        value = f"{value.get('optimizer', '')} {value['digest']}".strip()
    text = value if isinstance(value, str) else "none" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= most else f"{text[: most - 4]} ..."
