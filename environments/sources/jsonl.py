"""JSON Lines and tab-separated files, plain or gzipped, with errors that name file and line."""

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools.errors import DataError


def find(folder: Path, name: str) -> Path:
    """`folder/name`, or the same file gzipped; DataError when neither is there."""
    for candidate in (folder / name, folder / f"{name}.gz"):
        if candidate.is_file():
            return candidate
    raise DataError(f"{folder / name} is missing (nor is there a {name}.gz)")


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """(line number from 1, text without its line end) of each line that is not blank."""
    number = 0
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            for number, raw in enumerate(file, start=1):
                try:
                    text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    raise DataError(f"{path}, line {number}: byte {raw[error.start]:#04x} is not UTF-8") from None
                if text.strip():
                    yield number, text.strip("\r\n")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: the gzip file breaks off after line {number} ({error})") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None


def rows(path: Path, *required: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of each line; every field in `required` is there and is a string."""
    for number, text in lines(path):
        try:
            row = json.loads(text)
        except json.JSONDecodeError as error:
            raise DataError(
                f"{path}, line {number}: not a whole JSON object (column {error.colno}: {error.msg})"
            ) from None
        except (RecursionError, ValueError):
            raise DataError(f"{path}, line {number}: the JSON is nested too deeply, or has too long a number") from None
        if not isinstance(row, dict):
            raise DataError(f"{path}, line {number}: not a JSON object")
        for name in required:
            if not isinstance(row.get(name), str):
                raise DataError(f"{path}, line {number}: field {name!r} is missing or not a string")
        yield number, row
