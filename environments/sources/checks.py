"""Checks of ids, texts and grades that all readers share."""

import math
import re
from typing import Any

from tools.errors import DataError

LARGEST_GRADE = 10_000  # trec_eval counts gains in 32 bits
LONGEST_ID = 500  # characters; a longer one is a text that slipped into the wrong column

# A lone surrogate is half a character, as a cut-off emoji leaves it in JSON; no provider takes a text with one.
_HALF = re.compile("[\ud800-\udfff]")
# Control characters, line ends of every kind, and half characters: they would break run files and terminals.
_UNFIT = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
# Python's own float() also reads "1_0" and digits of other scripts, which in a data file are damage.
_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*", re.ASCII | re.IGNORECASE)


def brief(value: Any) -> str:
    """Describe `value` in a message: briefly, on one line, and quickly whatever it is."""
    if isinstance(value, str):
        return f"{value[:60]!r:.60}"
    if isinstance(value, int) and abs(value) > 10**20:  # Python refuses to write out the longest
        return "a huge number"
    # What a container holds can be nested without end, or hold itself.
    return repr(value) if value is None or isinstance(value, (int, float)) else f"a {type(value).__name__}"


def check_id(value: Any, where: str) -> str:
    """Return `value` if it is an id; blanks and slashes are allowed in it."""
    if not isinstance(value, str):
        raise DataError(f"{where}: the id {brief(value)} is not a string")
    if not value.strip() or _UNFIT.search(value):
        raise DataError(f"{where}: the id {brief(value)} is empty or has a character that no id may have")
    if len(value) > LONGEST_ID:
        raise DataError(f"{where}: the id that begins {value[:40]!r} is longer than {LONGEST_ID} characters")
    return value


def check_text(value: Any, where: str, name: str = "text") -> str:
    """Return `value` if it is a text, with lone surrogates replaced."""
    if not isinstance(value, str):
        raise DataError(f"{where}: field {name!r} is missing or not a string")
    return _HALF.sub("\N{REPLACEMENT CHARACTER}", value)


def check_optional_text(value: Any, where: str, name: str) -> str:
    """Return `value` if it is a text; an empty one for None."""
    return "" if value is None else check_text(value, where, name)


def check_grade(value: Any, where: str) -> float:
    """Return `value`, a number or one in a cell of a table, as a grade."""
    try:
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            raise ValueError
        if isinstance(value, str) and not _NUMBER.fullmatch(value):
            raise ValueError
        number = float(value)
        if not math.isfinite(number) or abs(number) > LARGEST_GRADE:
            raise ValueError
    except (ValueError, OverflowError):
        told = repr(value[:20]) if isinstance(value, str) else brief(value)
        raise DataError(f"{where}: the score {told} is not a number up to {LARGEST_GRADE}") from None
    return number


def add_query(queries: dict[str, str], query_id: Any, content: Any, where: str) -> None:
    """Add one query to `queries`; an id can come once."""
    if (name := check_id(query_id, where)) in queries:
        raise DataError(f"{where}: the id {name!r} was there before")
    queries[name] = check_text(content, where)


def add_judgement(qrels: dict[str, dict[str, float]], query_id: Any, doc_id: Any, score: Any, where: str) -> None:
    """Add one judgement to `qrels`; a pair can be judged once."""
    check_id(query_id, where)
    check_id(doc_id, where)
    if doc_id in qrels.setdefault(query_id, {}):
        raise DataError(f"{where}: {query_id!r} and {doc_id!r} are judged twice")
    qrels[query_id][doc_id] = check_grade(score, where)
