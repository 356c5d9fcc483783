"""Solutions beside the texts of problems: what OBLIQ-Bench's oracle "Tournament+Soln" shows its model (appendix D.3.6).

The public release has no solutions, so a file of the user's own brings them: a JSON object a line, {"_id", "solution"},
where _id is that of a query or of a document.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.errors import DataError
from tools.models.prompting import Passage, defuse, fit_length
from tools.session import Session


def read(path: str) -> dict[str, str]:
    """The solutions in the file `path`, by id; none for "". DataError for a file that is not as it should be."""
    if not path:
        return {}
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"solutions {path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    found: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        row = _row(line)
        if not (isinstance(row.get("_id"), str) and isinstance(row.get("solution"), str)):
            raise DataError(f'solutions {path}, line {number}: not of the form {{"_id": "...", "solution": "..."}}')
        if found.setdefault(row["_id"], row["solution"]) != row["solution"]:
            raise DataError(f"solutions {path}, line {number}: {row['_id']!r} had another solution before")
    return found


def _row(line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return row if isinstance(row, dict) else {}


def append_solution(text: str, solution: str | None, chars: int) -> str:
    """`text` with the first `chars` characters of its solution under a heading; itself where it has none."""
    return f"{text}\n\nSolution:\n{defuse(solution[:chars])}" if solution and chars else text


def add_solutions(passages: Sequence[Passage], solutions: Mapping[str, str], chars: int) -> list[Passage]:
    """Each of the passages with its solution, by id."""
    return [Passage(id=one.id, text=append_solution(one.text, solutions.get(one.id), chars)) for one in passages]


def fit_solutions(session: Session, chars: int, fit: Callable[[int], bool]) -> int:
    """How many characters of each solution fit: `chars`, or fewer, down to none."""
    most = fit_length(chars, fit)
    if most < chars:
        session.shorten(f"solutions: cut to {most} characters each, instead of {chars}")
    return most
