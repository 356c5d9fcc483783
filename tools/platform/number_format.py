"""Numbers in words: durations, plurals, and values of a configuration."""

import json
from typing import Any


def duration(seconds: float) -> str:
    """Write a duration in its two largest units: "2 h 5 min", "8 min 34 s" or "34 s"."""
    minutes, seconds = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


def plural(
    count: int,
    singular: str,
    plural_form: str = "",
) -> str:
    """Write a number of things: "1 run", "2 runs", "3 queries"."""
    if count == 1:
        return f"{count:,} {singular}"
    return f"{count:,} {plural_form or singular + 's'}"


def count_of(amount: int, singular: str) -> str:
    """Write a number of things that may be none: "no calls", "1 call", "2 calls"."""
    return plural(amount, singular) if amount else f"no {singular}s"


def queries(count: int) -> str:
    """Write a number of queries."""
    return plural(count, "query", "queries")


def some_queries(part: int, count: int, singular_verb: str = "is", plural_verb: str = "are") -> str:
    """Write how many of the queries, with a verb: "1 of 24 queries is", "3 of 24 queries are"."""
    # "0 of 1 query is", "0 of 24 queries are"
    subject = part or count
    return f"{part:,} of {queries(count)} {choose_verb(subject, singular_verb, plural_verb)}"


def choose_verb(count: int, singular_verb: str = "is", plural_verb: str = "are") -> str:
    """Return the form of a verb that agrees with a number of things."""
    return singular_verb if count == 1 else plural_verb


def count_failed(
    failed: int,
    answers: int,
    repeats: int = 1,
    repeat: str = "seed",
) -> str:
    """Write how many answers failed: "3 of 12".

    If `repeats` runs had the same queries: "9 of 36 answers (12 queries, 3 seeds)", in which
    `repeat` is the noun for the runs.
    """
    if repeats == 1:
        return f"{failed:,} of {answers:,}"
    return (
        f"{failed:,} of {plural(answers, 'answer')} ({queries(answers // repeats)}, "
        f"{plural(repeats, repeat)})"
    )


def number(
    value: float | None,
    form: str = "{:.4f}",
    unknown: str = "unknown",
) -> str:
    """Write a number of a table in `form`, as in str.format; None is written as `unknown`."""
    return unknown if value is None else form.format(value)


def abbreviate(value: Any, max_chars: int = 60) -> str:
    """Write a value of a configuration in at most `max_chars` characters."""
    if isinstance(value, dict) and "digest" in value:
        value = f"{value.get('optimizer', '')} {value['digest']}".strip()
    if isinstance(value, str):
        text = value
    elif value is None:
        text = "none"
    else:
        text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= max_chars else f"{text[: max_chars - 4]} ..."
