"""A user's own texts about queries and documents: JSON Lines, such as {"_id": "q1", "solution": "..."}."""

from pathlib import Path

from sextant.tools.errors import DataError
from sextant.tools.platform.files import read_input, read_object

_LARGEST = 1 << 30  # bytes of the file


def read_texts(path: str, name: str) -> dict[str, str]:
    """Return the texts called `name` in the file `path`, by id.

    DataError for a file that is not as it should be.
    """
    file = f"{name}s {path}"
    try:
        lines = read_input(Path(path), _LARGEST).decode("utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        problem = getattr(error, "strerror", None) or error
        raise DataError(f"{file} cannot be read: {problem}") from None
    texts: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        place = f"{file}, line {number}"
        row = read_object(line) or {}
        text_id = row.get("_id")
        text = row.get(name)
        if not isinstance(text_id, str) or not isinstance(text, str):
            raise DataError(f'{place}: not of the form {{"_id": "...", "{name}": "..."}}')
        earlier = texts.setdefault(text_id, text)
        if earlier != text:
            raise DataError(f"{place}: {text_id!r} had another {name} before")
    return texts
