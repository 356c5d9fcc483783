"""Keys of providers: read them from the environment and .env, and remove them from texts.

Keys go into requests, and never into a text that is shown or written.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from io import StringIO
from pathlib import Path
from typing import Any

from dotenv import load_dotenv

from sextant.tools.errors import UsageError
from sextant.tools.platform import files

# Letters of a key that is removed from answers, too; a shorter key, as "token" for a local server,
# may be a word.
SECRET = 16
_SHORTEST = 8  # letters of a key that is removed from messages
_SECRET_NAMES = ("_KEY", "_TOKEN", "_SECRET")  # endings of names of variables with secrets


def read_keys(folder: Path = Path()) -> None:
    """Take keys that the environment lacks from `.env` in `folder`.

    UsageErrors show no line of the file, because it may be a key.
    """
    file = folder / ".env"
    try:
        if not file.is_file():
            return  # it may be a folder: a virtual environment of that name
        text = files.read_input(file).decode("utf-8")
    except OSError as error:
        raise UsageError(
            f"{file} cannot be read: {(error.strerror or str(error)).lower()}"
        ) from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{file} is not UTF-8 in line {line}; save it as UTF-8") from None
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise UsageError(f"{file} has a NUL in line {line}; write text, as in SEXTANT_API_KEY=...")
    try:
        load_dotenv(stream=StringIO(text), override=False)
    except ValueError:  # e.g. a name with a = in it
        raise UsageError(
            f"{file} has a line that no environment takes; write NAME=value in each"
        ) from None


def get_secret(variable: str) -> str:
    """Return the key in this variable of the environment; "" if there is none."""
    return os.environ.get(variable, "").strip()


# Variables of the environment with values of headers: they are secrets, whatever their names are.
_IN_HEADERS = set[str]()


def header_values(headers: Mapping[str, str]) -> dict[str, str]:
    """Return headers with the values of the variables that they name. From now on these count as secrets."""
    _IN_HEADERS.update(headers.values())
    return {name.lower(): get_secret(variable) for name, variable in headers.items()}


def redact(text: str, least: int = _SHORTEST) -> str:
    """Return `text` without the secrets in the environment that have at least `least` letters."""
    for value in secret_values(least):
        text = text.replace(value, "***")
    return text


def redact_nested(value: Any, hide: Callable[[str], str]) -> Any:
    """Return a value made of mappings and lists with `hide` applied to every text in it."""
    if isinstance(value, Mapping):
        return {name: redact_nested(content, hide) for name, content in value.items()}
    if isinstance(value, list):
        return [redact_nested(item, hide) for item in value]
    return hide(value) if isinstance(value, str) else value


def secret_values(least: int = _SHORTEST) -> list[str]:
    """Return the values of secrets in the environment that have at least `least` letters."""
    return [value for name, value in os.environ.items() if is_secret(name) and len(value) >= least]


def is_secret(name: str) -> bool:
    """Return whether the value of a variable of the environment is a secret, by its name."""
    return name.endswith(_SECRET_NAMES) or name in _IN_HEADERS


def hash_variables(names: Iterable[str]) -> dict[str, str]:
    """Return the SHA-256 of each variable's value, by "$NAME"; of a secret "", so that another key does not
    make another run, and the configuration has no digest of a key.
    """
    return {
        f"${name}": "" if is_secret(name) else hashlib.sha256(get_secret(name).encode()).hexdigest()
        for name in names
    }
