"""Files of data sets (JSON, JSON Lines, cells, Parquet, Arrow; plain, gzip, bzip2, zstd) and checks of their cells.

Every error is a DataError that names the file and the line or row.
"""

import bz2
import csv
import gzip
import io
import json
import re
import sys
import zlib
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from typing import Any

from tools.errors import DataError

LONGEST = 64 << 20  # bytes in a line; a file that has lost its line ends must not fill the memory
UNPACKED = 100  # times its own size that a compressed file may hold, plus LONGEST; text comes to 3 to 10 times
LARGEST_GRADE = 10_000  # trec_eval counts gains in 32 bits
LONGEST_ID = 500  # characters; a longer one is a text that slipped into the wrong column

Rows = Iterator[tuple[str, dict[str, Any]]]  # of a table: (place for messages, cells by column)

# A lone surrogate is half a character, as a cut-off emoji leaves it in JSON; no provider takes a text with one.
_HALF = re.compile("[\ud800-\udfff]")
# Line ends of every kind, and half characters: they would break run files, and no file could hold them.
_UNFIT = re.compile("[\n\v\f\r\x1c-\x1e\x85\u2028\u2029\ud800-\udfff]")
# Python's own float() also reads "1_0" and digits of other scripts, which in a data file are damage.
_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*", re.ASCII | re.IGNORECASE)


def find_file(folder: Path, name: str) -> Path:
    """Return `folder/name`, or the same file gzipped. DataError when neither is there."""
    if found := seek_file(folder, name):
        return found
    raise DataError(f"{folder / name} is missing (nor is there a {name}.gz)")


def seek_file(folder: Path, name: str) -> Path | None:
    """Return `folder/name`, or the same file gzipped; None when neither is there."""
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def check_parts(parts: list[Path]) -> list[Path]:
    """Return the files `parts`. DataError where one of a numbered series is missing."""
    for path in parts:
        if of := re.search(r"-(\d+)-of-(\d+)\.", path.name):
            stem = path.name[: of.start()]
            there = sum(other.parent == path.parent and other.name.startswith(f"{stem}-") for other in parts)
            if there != int(of[2]):
                raise DataError(f"{path.parent} holds {there} of the {int(of[2])} parts of {stem}; fetch it again")
    numbers = [int(path.name.partition(".")[0]) for path in parts if re.fullmatch(r"\d{4,9}\.\w+(\.gz)?", path.name)]
    if numbers and (gap := next((n for n, number in enumerate(numbers) if n != number), None)) is not None:
        raise DataError(f"{parts[0].parent} has no part {gap:04}, but later ones; fetch it again")
    return parts


def most_unpacked(*paths: Path) -> int:
    """Return how many bytes the files may have in all once unpacked; plain files never have more."""
    return LONGEST + UNPACKED * sum(path.stat().st_size for path in paths)


def unpacks_too_far(where: str) -> DataError:
    """Return the error for a file that unpacks to more, such as one made to fill a disk."""
    return DataError(f"{where}: it unpacks to more than {UNPACKED} times its size, so it is none of this data")


def open_unpacked(path: Path) -> io.BufferedIOBase:
    """Open a file for reading its bytes, unpacked where its name ends in .gz, .bz2 or .zst."""
    if path.suffix == ".zst":
        # Unlike the package zstandard, this reads every frame of a file, and says when one is torn.
        return io.BufferedReader(_pyarrow().input_stream(str(path), compression="zstd"))
    if path.suffix == ".bz2":
        return bz2.open(path, "rb")
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")


def read_lines(path: Path, *, whole: bool = False) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, text without its line end) of each line that is not blank; `whole`: all, with it."""
    number = 0
    try:
        left = most_unpacked(path)
        with open_unpacked(path) as file:
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
                if whole or text.strip():
                    yield number, text if whole else text.strip("\r\n")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: the gzip file breaks off after line {number} ({error})") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None


def read_cells(
    path: Path, many: int = 0, separator: str | None = "\t", form: str = ""
) -> Iterator[tuple[str, list[str]]]:
    """Yield (place, cells) of each line of a table of `many` columns (0: as many as its first line has).

    A `separator` of None is any run of blanks, and cells that a comma or semicolon separates may be quoted; `form` ends
    the DataError's message for a line of other columns.
    """
    lines = ((number, text.split(separator)) for number, text in read_lines(path))
    for number, row in lines if separator not in (",", ";") else _split_quoted(path, separator):
        many = many or len(row)
        if len(row) != many:
            raise DataError(f"{path}, line {number}: {len(row)} columns where {many} are expected{form}")
        yield f"{path}, line {number}", row


def read_headed(path: Path, columns: Container[str], separator: str | None = "\t") -> Rows:
    """Yield (place, cells by the names in the first line) of each further line of a table.

    Capitals in the names of `columns` don't matter. DataError for one of them that is there twice.
    """
    rows = read_cells(path, separator=separator)
    first, names = next(rows, (str(path), []))
    names = [low if (low := name.strip().lower()) in columns and name not in columns else name for name in names]
    if twice := next((name for name in names if name in columns and names.count(name) > 1), None):
        raise DataError(f"{first}: the column {twice!r} is there twice")
    yield from ((where, dict(zip(names, cells, strict=True))) for where, cells in rows)


def _split_quoted(path: Path, separator: str) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(sys.maxsize)  # the module's own limit is 128 KiB a cell
    rows = csv.reader((line for _, line in read_lines(path, whole=True)), delimiter=separator, strict=True)
    try:
        yield from ((rows.line_num, row) for row in rows if row)
    except csv.Error as error:
        raise DataError(f"{path}, line {rows.line_num}: {error}; is a quotation mark missing or too many?") from None


def read_objects(path: Path, *required: str) -> Rows:
    """Yield (place, object) of each line; every field in `required` is there and is a string."""
    for number, text in read_lines(path):
        where = f"{path}, line {number}"
        if not isinstance(row := _parse(text, where), dict):
            raise DataError(f"{where}: not a JSON object")
        for name in required:
            if not isinstance(row.get(name), str):
                raise DataError(f"{where}: field {name!r} is missing or not a string")
        yield where, row


def read_json(path: Path) -> Any:
    """Return the value in a file of one JSON value."""
    return _parse("\n".join(text for _, text in read_lines(path)), str(path))


def _parse(text: str, where: str) -> Any:
    try:
        return _DECODER.decode(text)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, " if error.lineno > 1 else ""
        raise DataError(f"{where}: not whole JSON ({place}column {error.colno}: {error.msg})") from None
    except DataError as error:
        raise DataError(f"{where}: {error}") from None
    except (RecursionError, ValueError):
        raise DataError(f"{where}: the JSON is nested too deeply, or has too long a number") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):  # of which Python's reader keeps the last without a word
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise DataError(f"the key {twice[:60]!r} is there twice")
    return content


_DECODER = json.JSONDecoder(object_pairs_hook=_object)


def read_rows(paths: Sequence[Path], columns: Sequence[str] | None = None) -> Rows:
    """Yield (place, row) of each row of the files, in order; of Parquet, read only `columns`, if given."""
    for path in paths:
        yield from _read_packed(path, columns) if path.suffix in (".parquet", ".arrow") else read_objects(path)


def _pyarrow() -> Any:
    import pyarrow.parquet  # here, because most data is JSON Lines

    return pyarrow


def _read_packed(path: Path, columns: Sequence[str] | None) -> Rows:
    pyarrow, number = _pyarrow(), 0
    try:
        for batch in _read_batches(path, columns):
            for row in batch.to_pylist():
                number += 1
                yield f"{path}, row {number}", row
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        reason = "".join(character if character.isprintable() else "?" for character in str(error).partition("\n")[0])
        form = path.suffix[1:].capitalize()
        raise DataError(f"{path} cannot be read as {form} after row {number} ({reason:.200}); fetch it again") from None


def _read_batches(path: Path, columns: Sequence[str] | None) -> Iterator[Any]:
    pyarrow = _pyarrow()
    if path.suffix == ".arrow":
        with pyarrow.memory_map(str(path)) as mapped, pyarrow.ipc.open_stream(mapped) as batches:
            for batch in batches:
                batch.validate(full=True)  # damaged offsets lead outside of it
                yield from (batch.slice(start, 1024) for start in range(0, len(batch), 1024))
        return
    with pyarrow.parquet.ParquetFile(path, page_checksum_verification=True) as file:
        groups = range(file.metadata.num_row_groups)
        if sum(file.metadata.row_group(n).total_byte_size for n in groups) > most_unpacked(path):
            raise unpacks_too_far(str(path))
        yield from file.iter_batches(batch_size=1024, columns=columns)  # those of them that there are


def pick_column(where: str, row: dict[str, Any], *names: str) -> Any:
    """Return the value of the first of `names` that the row has. DataError when it has none of them."""
    for name in names:
        if name in row:
            return row[name]
    has = ", ".join(map(brief, row)) or "none"
    raise DataError(f"{where}: none of the columns {', '.join(names)}; it has {has:.300}")


def brief(value: Any) -> str:
    """Describe any `value` for a message, briefly and on one line."""
    if isinstance(value, str):
        return f"{value[:60]!r:.60}"
    if isinstance(value, int) and abs(value) > 10**20:  # Python refuses to write out the longest
        return "a huge number"
    # A container can be nested without end, or hold itself.
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


def check_text(value: Any, where: str, name: str = "text", *, optional: bool = False) -> str:
    """Return `value` if it is a text, with lone surrogates replaced; "" for None if it is `optional`."""
    if optional and value is None:
        return ""
    if not isinstance(value, str):
        raise DataError(f"{where}: field {name!r} is missing or not a string")
    return _HALF.sub("\N{REPLACEMENT CHARACTER}", value)


def check_grade(value: Any, where: str) -> float:
    """Return `value`, a number or one in a cell of a table, as a grade."""
    number = float(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else value
    if isinstance(number, (int, float)) and not isinstance(number, bool) and abs(number) <= LARGEST_GRADE:
        return float(number)
    shown = repr(value[:20]) if isinstance(value, str) else brief(value)
    raise DataError(f"{where}: the score {shown} is not a number up to {LARGEST_GRADE}")
