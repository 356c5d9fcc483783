"""Keys of providers: from the environment and .env into requests, and out of every text that is shown or written."""

import os
from collections.abc import Callable, Mapping
from io import StringIO
from pathlib import Path
from typing import Any

from dotenv import load_dotenv

from tools import files
from tools.errors import UsageError

# Letters from which on a key is taken out of answers, too: "token" for a local server is a word
SECRET = 16


def read_keys(folder: Path = Path()) -> None:
    """Take keys that the environment lacks from `.env` in `folder`; UsageErrors show no line, which may be a key."""
    file = folder / ".env"
    try:
        if not file.is_file():
            return  # some call the folder of their environment so
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
    """Return the key that the environment has under this name; "" for none."""
    return os.environ.get(variable, "").strip()


_IN_HEADERS = set[
    str
]()  # variables of the environment whose values are secrets, whatever their names are


def header_values(headers: Mapping[str, str]) -> dict[str, str]:
    """Return headers with the values of the variables that they name, which are secrets from now on."""
    _IN_HEADERS.update(headers.values())
    return {name.lower(): get_secret(variable) for name, variable in headers.items()}


def redact(text: str, least: int = 8) -> str:
    """Return `text` without the values of secrets in the environment that have `least` letters; shorter are words."""
    for value in secret_values(least):
        text = text.replace(value, "***")
    return text


def redact_nested(value: Any, hide: Callable[[str], str]) -> Any:
    """Return a value made of mappings and lists with `hide` applied to every text in it."""
    if isinstance(value, Mapping):
        return {name: redact_nested(one, hide) for name, one in value.items()}
    if isinstance(value, list):
        return [redact_nested(one, hide) for one in value]
    return hide(value) if isinstance(value, str) else value


def secret_values(least: int = 8) -> list[str]:
    """Return the values of secrets in the environment that have `least` letters."""
    named = [
        (name.endswith(("_KEY", "_TOKEN", "_SECRET")) or name in _IN_HEADERS, name)
        for name in os.environ
    ]
    return [
        os.environ[name]
        for is_secret, name in named
        if is_secret and len(os.environ[name]) >= least
    ]
