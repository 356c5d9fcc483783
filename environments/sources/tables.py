"""Files of data sets: JSON, JSON Lines, tab-separated and Parquet, plain or gzipped, whose errors name the place."""

import gzip
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from io import BufferedIOBase
from pathlib import Path
from typing import Any

from environments.sources import checks
from tools.errors import DataError

LONGEST = 64 << 20  # bytes in a line; a file that has lost its line ends must not fill the memory
UNPACKED = 100  # times its own size that a compressed file may hold, and LONGEST more; text comes to 3 to 10 times


def find_file(folder: Path, name: str) -> Path:
    """`folder/name`, or the same file gzipped; DataError when neither is there."""
    if found := seek_file(folder, name):
        return found
    raise DataError(f"{folder / name} is missing (nor is there a {name}.gz)")


def seek_file(folder: Path, name: str) -> Path | None:
    """Return `folder/name`, or the same file gzipped; None when neither is there."""
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, text without its line end) of each line that is not blank."""
    number = 0
    try:
        left = most_unpacked(path)
        with _opened(path) as file:
            while raw := file.readline(LONGEST + 1):
                number += 1
                if (left := left - len(raw)) < 0:
                    raise unpacks_too_far(f"{path}, line {number}")
                if len(raw) > LONGEST:
                    raise DataError(f"{path}, line {number}: longer than {LONGEST >> 20} MiB, so no line of this data")
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


def read_cells(
    path: Path, many: int = 0, separator: str | None = "\t", form: str = ""
) -> Iterator[tuple[str, list[str]]]:
    """Yield (where it stands, cells) of each line of a table, which has `many` columns, or as many as its first line.

    Cells are separated by blanks where `separator` is None; `form` ends the message of DataError for another number.
    """
    for number, text in read_lines(path):
        row = text.split(separator)
        many = many or len(row)
        if len(row) != many:
            raise DataError(f"{path}, line {number}: {len(row)} columns where {many} are expected{form}")
        yield f"{path}, line {number}", row


def most_unpacked(*paths: Path) -> int:
    """How many bytes files may hold in all once they are unpacked; a plain file never holds more."""
    return LONGEST + UNPACKED * sum(path.stat().st_size for path in paths)


def unpacks_too_far(where: str) -> DataError:
    """Return the error for a file that unpacks to more than that, such as one made to fill a disk."""
    return DataError(f"{where}: it unpacks to more than {UNPACKED} times its size, so it is none of this data")


def read_objects(path: Path, *required: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, object) of each line; every field in `required` is there and is a string."""
    for number, text in read_lines(path):
        try:
            row = _DECODER.decode(text)
        except json.JSONDecodeError as error:
            raise DataError(
                f"{path}, line {number}: not a whole JSON object (column {error.colno}: {error.msg})"
            ) from None
        except _KeyTwice as error:
            raise DataError(f"{path}, line {number}: {error}") from None
        except (RecursionError, ValueError):
            raise DataError(f"{path}, line {number}: the JSON is nested too deeply, or has too long a number") from None
        if not isinstance(row, dict):
            raise DataError(f"{path}, line {number}: not a JSON object")
        for name in required:
            if not isinstance(row.get(name), str):
                raise DataError(f"{path}, line {number}: field {name!r} is missing or not a string")
        yield number, row


def read_json(path: Path) -> Any:
    """Read a file of one JSON value."""
    try:
        most = most_unpacked(path)
        with _opened(path) as file:
            content = file.read(most + 1)
        if len(content) > most:
            raise unpacks_too_far(str(path))
        return json.loads(content, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        raise DataError(
            f"{path}, line {error.lineno}: not whole JSON (column {error.colno}: {error.msg}); fetch it again"
        ) from None
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        raise DataError(f"{path} is not whole JSON ({reason}); fetch it again") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: the gzip file breaks off ({error})") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None


class _KeyTwice(ValueError):
    """An object has a key twice, of which JSON readers keep the last and say nothing."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    read = dict(pairs)
    if len(read) < len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise _KeyTwice(f"the key {twice[:60]!r} is there twice")
    return read


_DECODER = json.JSONDecoder(object_pairs_hook=_object)


def _opened(path: Path) -> BufferedIOBase:
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")


def find(folder: Path, *stems: str) -> list[Path]:
    """The files of the first of `stems` that is there: `stem.jsonl`, `.gz`, `.parquet`, or parts in `stem/`.

    DataError that lists what was looked for when none is, and for parts of which one is missing.
    """
    if found := seek(folder, *stems):
        return _of_test(found)
    raise DataError(
        f"{folder} holds no {' or '.join(f'{stem}.jsonl' for stem in stems)} (nor the same as .gz or .parquet)"
    )


def seek(folder: Path, *stems: str) -> list[Path]:
    """Return the files of the first of `stems` that is there, complete or not; none when there is none."""
    for stem in stems:
        for ending in (".jsonl", ".gz", ".parquet"):
            path = folder / f"{stem}{ending}"
            if path.is_file():
                return [path]
        for ending in (".parquet", ".jsonl", ".gz"):
            if parts := sorted((folder / stem).glob(f"*{ending}")):
                return parts
    return []


def _of_test(parts: list[Path]) -> list[Path]:
    """All of `parts`, or those of the test split where that is told apart; DataError when one of a row is missing."""
    chosen = [path for path in parts if re.match(r"test\b", path.name)] or parts
    for path in chosen:
        if of := re.search(r"-(\d+)-of-(\d+)\.", path.name):
            stem = path.name[: of.start()]
            there = sum(other.name.startswith(f"{stem}-") for other in chosen)
            if there != int(of[2]):
                raise DataError(f"{path.parent} holds {there} of the {int(of[2])} parts of {stem}; fetch it again")
    numbers = [int(path.name.partition(".")[0]) for path in chosen if re.fullmatch(r"\d{4,9}\.\w+(\.gz)?", path.name)]
    if numbers and (gap := next((n for n, number in enumerate(numbers) if n != number), None)) is not None:
        raise DataError(f"{chosen[0].parent} has no part {gap:04}, but later ones; fetch it again")
    return chosen


def read_rows(paths: Sequence[Path], columns: Sequence[str] | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (where it stands, row) of each row of the files, in order; `columns` are all that a caller needs."""
    for path in paths:
        if path.suffix == ".parquet":
            yield from _parquet(path, columns)
        else:
            for number, row in read_objects(path):
                yield f"{path}, line {number}", row


def _parquet(path: Path, columns: Sequence[str] | None) -> Iterator[tuple[str, dict[str, Any]]]:
    import pyarrow  # here, because most data is JSON Lines
    import pyarrow.parquet  # as above

    number = 0
    try:
        with pyarrow.parquet.ParquetFile(path, page_checksum_verification=True) as file:
            groups = range(file.metadata.num_row_groups)
            if sum(file.metadata.row_group(n).total_byte_size for n in groups) > most_unpacked(path):
                raise unpacks_too_far(str(path))
            there = set(file.schema_arrow.names)
            wanted = None if columns is None else [name for name in columns if name in there]
            for batch in file.iter_batches(batch_size=1024, columns=wanted):
                for row in batch.to_pylist():
                    number += 1
                    yield f"{path}, row {number}", row
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        reason = "".join(character if character.isprintable() else "?" for character in str(error).partition("\n")[0])
        raise DataError(
            f"{path} cannot be read as Parquet after row {number} ({reason:.200}); fetch it again"
        ) from None


def pick_column(where: str, row: dict[str, Any], *names: str) -> Any:
    """The value of the first of `names` that the row has; DataError lists the row's columns when it has none."""
    for name in names:
        if name in row:
            return row[name]
    has = ", ".join(checks.brief(name) for name in row) or "none"
    raise DataError(f"{where}: none of the columns {', '.join(names)}; it has {has:.300}")
