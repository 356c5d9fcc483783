"""Tables of data sets (JSON Lines, a JSON array, cells, Parquet) as rows, and checks of their cells.

Every error is a DataError that names the file and the line or row. raw_files.py has the bytes and the
lines.
"""

import csv
import json
import math
import operator
import re
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from numbers import Real
from pathlib import Path
from typing import Any

from sextant.environments.readers.raw_files import (
    check_data,
    find_ending,
    is_packed,
    max_unpacked_bytes,
    read_lines,
    unpack_limit_error,
)
from sextant.tools.errors import DataError
from sextant.tools.platform.number_format import plural
from sextant.tools.records import JsonObject

LARGEST_GRADE = 10_000  # trec_eval counts gains in 32 bits
LONGEST_ID = 500  # characters; a longer one is a text that slipped into the wrong column
# Bytes of a file of one JSON array, which is held in memory.
LARGEST_JSON = 512 << 20
EXACT = 1 << 53  # from here on not every whole number has a float of its own
PARQUET = ".parquet"
ONE_A_LINE = "; write one object a line"

Rows = Iterator[tuple[str, JsonObject]]  # of a table: (place for messages, cells by column)

# A lone surrogate is half a character, as a cut-off emoji leaves it in JSON; no provider takes a
# text with one.
_HALF = re.compile("[\ud800-\udfff]")
# Line ends of every kind, and half characters: they would break run files, and no file could hold
# them.
_UNFIT = re.compile("[\n\v\f\r\x1c-\x1e\x85\u2028\u2029\ud800-\udfff]")
# Python's own float() also reads "1_0" and digits of other scripts, which in a data file are
# damage.
_NUMBER = re.compile(r"\s*[+-]?(\d+(?:\.\d*)?|\.\d+)(e[+-]?\d+)?\s*", re.ASCII | re.IGNORECASE)
_USUAL_GRADES = {str(grade): float(grade) for grade in range(-10, 101)}  # need no pattern
_QUOTED_CELL = re.compile(r'"([^"]*(?:""[^"]*)*)"(?=\t|\Z)')
_CELL = re.compile(rf"(?:(?<=\t)|\A)(?:{_QUOTED_CELL.pattern}|[^\t]*)")
_MOST_LINES = 1000  # in one cell


def find_file(folder: Path, name: str) -> Path:
    """Return `folder/name`, or the same file gzipped. DataError when neither is there."""
    if path := find_optional_file(folder, name):
        return path
    raise DataError(f"{folder / name} is missing (nor is there a {name}.gz)")


def find_optional_file(folder: Path, name: str) -> Path | None:
    """Return `folder/name`, or the same file gzipped; None when neither is there."""
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def check_parts(paths: list[Path]) -> list[Path]:
    """Return the files `paths`. DataError if one of a numbered series is missing."""
    for path in paths:
        if match := re.search(r"-(\d+)-of-(\d+)\.", path.name):
            stem = path.name[: match.start()]
            present = sum(
                other_path.parent == path.parent and other_path.name.startswith(f"{stem}-")
                for other_path in paths
            )
            if present != int(match[2]):
                raise DataError(
                    f"{path.parent} holds {present} of the {plural(int(match[2]), 'part')} of {stem}; fetch it "
                    f"again"
                )
    numbered = [path for path in paths if re.fullmatch(r"\d{4,9}\.\w+(\.gz)?", path.name)]
    for number, path in enumerate(numbered):
        if int(path.name.partition(".")[0]) != number:
            raise DataError(
                f"{path.parent} has no part {number:04}, but later ones; fetch it again"
            )
    return paths


def find_separator(path: Path) -> str:
    """Return the separator of the cells of a CSV file, by its first line."""
    first = next(read_lines(path), (0, ""))[1]
    return max(",;\t|", key=first.count)  # the comma, where there is none of them


def read_cells(
    path: Path,
    columns: int = 0,
    separator: str | None = "\t",
    form: str = "",
) -> Iterator[tuple[str, list[str]]]:
    """Yield (place, cells) of each line of a table of `columns` (0: as many as its first line has).

    A `separator` of None is any run of blanks. Cells may be quoted as csv does it; between tabs,
    only those are taken for quoted that are so from end to end. Empty cells behind the last column
    are left out; `form` ends the DataError's message for a line of other columns.
    """
    rows: Iterator[tuple[int, list[str]]]
    if separator is None:
        rows = ((number, text.split()) for number, text in read_lines(path))
    elif separator == "\t":
        rows = _split_tabs(path, columns)
    else:
        rows = _split_quoted(path, separator)
    for number, row in rows:
        while len(row) > columns and not row[-1].strip():
            row.pop()
        columns = columns or len(row)
        if len(row) != columns:
            raise DataError(
                f"{path}, line {number}: {plural(len(row), 'column')} where {columns} are expected{form}"
            )
        yield f"{path}, line {number}", row


def read_headed(
    path: Path,
    columns: Collection[str],
    separator: str | None = "\t",
) -> Rows:
    """Yield (place, cells by the names in the first line) of each further line of a table.

    Capitals, blanks and hyphens in the names of `columns` don't matter. DataError for a name that
    is there twice.
    """
    rows = read_cells(path, separator=separator)
    first, header = next(rows, (str(path), []))
    known = {normalise_column(column): column for column in columns}
    names = [known.get(normalise_column(name), name) for name in header]
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise DataError(f"{first}: the column {twice[0]!r} is there twice")
    for location, cells in rows:
        yield location, dict(zip(names, cells, strict=True))


def normalise_column(name: str) -> str:
    """Return a column's name without the differences that do not matter: capitals, blanks and
    hyphens.
    """
    return re.sub(r"[\s_-]+", "_", name.strip().lower())


def has_content(value: Any) -> bool:
    """Return whether something stands in a cell."""
    if isinstance(value, str):
        return bool(value.strip())
    return value is not None and value == value and value not in ([], {})


def split_tabs(text: str, columns: int = 0) -> list[str]:
    """Split a line at its tabs, into `columns` (0: it is not known), and take csv's quotation marks
    off the cells.

    A text may begin with a quotation mark of its own: then it doesn't end with one, or has single
    marks inside. A tab between two marks separates cells if only so the line has `columns`.
    """
    plain = text.split("\t")
    if '"' not in text:
        return plain
    cells = [match[0] for match in _CELL.finditer(text)]
    if len(cells) != columns == len(plain):
        cells = plain
    return [_unquote(cell) for cell in cells]


def _unquote(cell: str) -> str:
    match = _QUOTED_CELL.fullmatch(cell)
    return match[1].replace('""', '"') if match else cell


def _split_tabs(path: Path, columns: int) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, cells) of each row; a quoted cell may go on in lines that are no
    rows by themselves.
    """
    held = list[str]()  # a line, and those that may continue its last cell
    is_open = False
    first = 0
    for number, line in read_lines(path, whole=True):
        text = line.rstrip("\r\n")
        columns = columns or len(text.rstrip("\t").split("\t"))
        is_row = text.count("\t") + 1 == columns
        if not is_open or is_row or len(held) == _MOST_LINES:
            yield from _split_held(held, first, columns)
            held = []
            first = number
            is_open = False
        held.append(text)
        is_open ^= text.count('"') % 2 == 1
    yield from _split_held(held, first, columns)


def _split_held(lines: Sequence[str], first: int, columns: int) -> Iterator[tuple[int, list[str]]]:
    together = split_tabs("\n".join(lines), columns)
    is_one = len(lines) > 1 and lines[-1].endswith('"') and len(together) == columns
    if is_one and not together[-1].startswith('"'):
        yield first, together
        return
    for number, text in enumerate(lines, start=first):
        if text.strip():
            yield number, split_tabs(text, columns)


def _split_quoted(path: Path, separator: str) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(sys.maxsize)  # the module's own limit is 128 KiB a cell
    rows = csv.reader(
        (line for _, line in read_lines(path, whole=True)), delimiter=separator, strict=True
    )
    try:
        yield from ((rows.line_num, row) for row in rows if any(map(str.strip, row)))
    except csv.Error as error:
        raise DataError(
            f"{path}, line {rows.line_num}: {error}; is a quotation mark missing or too many?"
        ) from None


def read_objects(path: Path, *required: str, remedy: str = "") -> Rows:
    """Yield (place, object) of each line; every field in `required` is there and is a string.

    `remedy` ends the message for a line that is no object.
    """
    for number, text in read_lines(path):
        location = f"{path}, line {number}"
        if not isinstance(row := _parse(text, location, remedy), dict):
            raise DataError(f"{location}: not a JSON object{remedy}")
        for name in required:
            if not isinstance(row.get(name), str):
                raise DataError(f"{location}: field {name!r} is missing or not a string")
        yield location, row


def read_records(path: Path) -> Rows:
    """Yield (place, object) of each JSON object of a file: one a line, or in one array."""
    first = next(read_lines(path), (0, "{"))[1]
    if first.lstrip().startswith("{"):
        yield from read_objects(path, remedy=ONE_A_LINE)
        return
    if path.stat().st_size > LARGEST_JSON:
        raise DataError(f"{path} is too large for one JSON array{ONE_A_LINE}")
    entries = read_json(path)
    for position, entry in enumerate(entries if isinstance(entries, list) else [entries], start=1):
        location = f"{path}, entry {position}"
        if not isinstance(entry, dict):
            raise DataError(
                f"{location}: {abbreviate(entry)} where a JSON object is expected{ONE_A_LINE}"
            )
        yield location, entry


def read_json(path: Path) -> Any:
    """Return the value in a file of one JSON value."""
    return _parse("\n".join(text for _, text in read_lines(path)), str(path))


def _parse(text: str, location: str, remedy: str = "") -> Any:
    try:
        return _DECODER.decode(text)
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if error.lineno > 1 else ""
        raise DataError(
            f"{location}: not whole JSON ({line}column {error.colno}: {error.msg}){remedy}"
        ) from None
    except DataError as error:
        raise DataError(f"{location}: {error}") from None
    except (RecursionError, ValueError):
        raise DataError(
            f"{location}: the JSON is nested too deeply, or has too long a number"
        ) from None


def _object(pairs: list[tuple[str, Any]]) -> JsonObject:
    content = dict(pairs)
    if len(content) < len(pairs):  # of which Python's reader keeps the last without a word
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise DataError(f"the key {twice[:60]!r} is there twice")
    return content


_DECODER = json.JSONDecoder(object_pairs_hook=_object)


def read_rows(paths: Sequence[Path], columns: Sequence[str] | None = None) -> Rows:
    """Yield (place, row) of each row of the files, in order; of Parquet, read only `columns`,
    if given.
    """
    for path in paths:
        yield from (
            _read_parquet(path, columns) if find_ending(path) == PARQUET else read_records(path)
        )


def _read_parquet(path: Path, columns: Sequence[str] | None) -> Rows:
    if not check_data(path).startswith(b"PAR1") and is_packed(path):
        raise DataError(f"{path} is packed; unpack it (Parquet is packed in itself)")
    import pyarrow.parquet  # here, because most data is JSON Lines

    number = 0
    try:
        with pyarrow.parquet.ParquetFile(path, page_checksum_verification=True) as file:
            groups = range(file.metadata.num_row_groups)
            size = sum(file.metadata.row_group(n).total_byte_size for n in groups)
            if size > max_unpacked_bytes(path):
                raise unpack_limit_error(str(path))
            for batch in file.iter_batches(batch_size=1024, columns=columns):
                for row in batch.to_pylist():
                    number += 1
                    yield f"{path}, row {number}", row
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        reason = "".join(
            character if character.isprintable() else "?"
            for character in str(error).partition("\n")[0]
        )
        raise DataError(
            f"{path} cannot be read as Parquet after row {number} ({reason:.200}); fetch it again"
        ) from None


def pick_column(location: str, row: JsonObject, *names: str) -> Any:
    """Return the value of the first of `names` that the row has.

    DataError when it has none of them.
    """
    for name in names:
        if name in row:
            return row[name]
    available = ", ".join(map(abbreviate, row)) or "none"
    raise DataError(f"{location}: none of the columns {', '.join(names)}; it has {available:.300}")


def abbreviate(value: Any) -> str:
    """Describe any `value` for a message, briefly and on a line."""
    if isinstance(value, str):
        return f"{value[:60]!r:.60}"
    if isinstance(value, int) and abs(value) > 10**20:  # Python refuses to write out the longest
        return "a huge number"
    # A container can be nested without end, or hold itself.
    return (
        repr(value)
        if value is None or isinstance(value, (int, float))
        else f"a {type(value).__name__}"
    )


def read_id(value: Any, location: str) -> str:
    """Return an id as a text: JSON and frames also have whole numbers, frames with gaps as
    floats.
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        raise DataError(f"{location}: the id is missing")
    number = (
        int(value)
        if isinstance(value, float) and value.is_integer() and abs(value) < EXACT
        else value
    )
    if not isinstance(value, str | bool | bytes):
        with suppress(TypeError):  # numpy's integers are none of Python's
            value = str(operator.index(number))
    if not isinstance(value, str):
        raise DataError(f"{location}: the id {abbreviate(value)} is not a string or a whole number")
    return check_id(value, location)


def check_id(value: Any, location: str) -> str:
    """Return `value` if it is an id; blanks and slashes are allowed in it."""
    if not isinstance(value, str):
        raise DataError(f"{location}: the id {abbreviate(value)} is not a string")
    if not value.strip() or _UNFIT.search(value):
        raise DataError(
            f"{location}: the id {abbreviate(value)} is empty or has a character that no id may have"
        )
    if len(value) > LONGEST_ID:
        raise DataError(
            f"{location}: the id that begins {value[:40]!r} is longer than {LONGEST_ID} characters"
        )
    return value


def check_text(
    value: Any,
    location: str,
    name: str = "text",
    *,
    optional: bool = False,
) -> str:
    """Return `value` if it is a text, with lone surrogates replaced; "" for None if it is
    `optional`.

    NaN stands for None, as frames write it.
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        if optional:
            return ""
        raise DataError(f"{location}: field {name!r} is missing or not a string")
    if not isinstance(value, str):
        raise DataError(
            f"{location}: field {name!r} is missing or not a string: it is {_describe_type(value)}"
        )
    return _HALF.sub("\N{REPLACEMENT CHARACTER}", value)


def _describe_type(value: Any) -> str:
    if isinstance(value, int | float):
        return "a number"
    return {"dict": "an object", "list": "a list"}.get(
        type(value).__name__, f"of type {type(value).__name__}"
    )


def check_grade(value: Any, location: str) -> float:
    """Return `value`, a number or one in a cell of a table, as a grade."""
    if isinstance(value, str) and value in _USUAL_GRADES:
        return _USUAL_GRADES[value]
    number = float(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else value
    is_number = isinstance(number, float) or (
        isinstance(number, Real) and not isinstance(number, bool)  # numpy's numbers as well
    )
    if is_number:
        try:
            grade = float(number)
        except OverflowError:  # of a whole number that no float can hold
            grade = math.inf
        if abs(grade) <= LARGEST_GRADE:
            return grade
    shown = repr(value[:20]) if isinstance(value, str) else abbreviate(value)
    raise DataError(f"{location}: the score {shown} is not a number up to {LARGEST_GRADE}")
