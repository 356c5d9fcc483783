"""Tables of data sets (JSON, JSON Lines, cells, Parquet, Arrow) as rows, and checks of their cells.

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
from typing import Any, NamedTuple

from environments.readers.raw_files import (
    check_data,
    find_ending,
    is_packed,
    max_unpacked_bytes,
    read_lines,
    unpack_limit_error,
)
from tools.errors import DataError
from tools.number_format import plural
from tools.records import JsonObject

LARGEST_GRADE = 10_000  # trec_eval counts gains in 32 bits
LONGEST_ID = 500  # characters; a longer one is a text that slipped into the wrong column
# Characters of a file of JSON that is not one object a line, which is held in memory.
LARGEST_JSON = 512 << 20
EXACT = 1 << 53  # from here on not every whole number has a float of its own
PACKED = (".parquet", ".arrow")
ONE_A_LINE = "; write one object a line"
QUOTED = "quoted"  # the key of counts for cells that csv has put quotation marks around

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
_OPEN_CELL = re.compile(r'"[^"]*(?:""[^"]*)*\Z')  # a further line may close it
_MARKS = re.compile('"+')
_MOST_LINES = 1000  # in one cell
_SEPARATOR_LINE = re.compile(r'\s*"?sep=(.)"?\s*', re.I)
_JSON_START = re.compile(r"[\s,]*(?=[^\s,])")  # commas between objects are no reason to refuse them


def find_file(folder: Path, name: str) -> Path:
    """Return `folder/name`, or the same file gzipped. DataError when neither is there."""
    if path := find_optional_file(folder, name):
        return path
    raise DataError(f"{folder / name} is missing (nor is there a {name}.gz)")


def find_optional_file(folder: Path, name: str) -> Path | None:
    """Return `folder/name`, or the same file gzipped; None when neither is there."""
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def check_parts(paths: list[Path]) -> list[Path]:
    """Return the files `parts`. DataError if one of a numbered series is missing."""
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
    """Return the separator of the cells of a CSV file: by Excel's line `sep=;`, or else
    by its first line.
    """
    first = next(read_lines(path), (0, ""))[1]
    if separator_line := _SEPARATOR_LINE.fullmatch(first):
        return separator_line[1]
    return max(",;\t|", key=first.count)  # the comma, where there is none of them


def _split_lines(
    path: Path, columns: int, separator: str | None, counts: Counter[str]
) -> Iterator[tuple[int, list[str]]]:
    if separator is None:
        return _split_blanks(path, counts)
    if separator == "\t":
        return _split_tabs(path, columns, counts)
    return _split_quoted(path, separator)


def read_cells(
    path: Path,
    columns: int = 0,
    separator: str | None = "\t",
    form: str = "",
    counts: Counter[str] | None = None,
) -> Iterator[tuple[str, list[str]]]:
    """Yield (place, cells) of each line of a table of `many` columns (0: as many as its first line
    has).

    A `separator` of None is any run of blanks. Cells may be quoted as csv does it; in tables that
    no comma or semicolon separates, only those are taken for quoted that are so from end to end,
    and `counts` says how many. Empty cells behind the last column are left out; `form` ends the
    DataError's message for a line of other columns.
    """
    counts = Counter() if counts is None else counts
    name = str(path)
    for number, row in _split_lines(path, columns, separator, counts):
        if number == 1 and _SEPARATOR_LINE.fullmatch((separator or " ").join(row)):
            continue
        if len(row) > columns:
            row = _trim(row, columns)
        if not row:
            continue
        columns = columns or len(row)
        if len(row) != columns:
            raise DataError(
                f"{path}, line {number}: {plural(len(row), 'column')} where {columns} are expected{form}"
            )
        yield f"{name}, line {number}", row


def read_headed(
    path: Path,
    columns: Collection[str],
    separator: str | None = "\t",
    counts: Counter[str] | None = None,
) -> Rows:
    """Yield (place, cells by the names in the first line) of each further line of a table.

    Capitals, blanks and hyphens in the names of `columns` don't matter. DataError for one of them
    that is there twice.
    """
    rows = read_cells(
        path,
        separator=separator,
        counts=counts,
    )
    first, names = next(rows, (str(path), []))
    names = [match_column(name, columns) or name for name in names]
    if twice := next((name for name in names if name in columns and names.count(name) > 1), None):
        raise DataError(f"{first}: the column {twice!r} is there twice")
    for location, cells in rows:
        yield location, dict(zip(names, cells, strict=True))


def match_column(name: str, columns: Collection[str]) -> str:
    """Return which of `columns` a file calls `name`, whatever its capitals, blanks and
    hyphens are; "" for none.
    """
    for spelling in (name, name.strip(), name.strip().lower()):
        if spelling in columns:
            return spelling
    return next((column for column in columns if _normalise(column) == _normalise(name)), "")


def _normalise(column: str) -> str:
    return re.sub(r"[\s_-]+", "_", column.strip().lower())


class _Cells(NamedTuple):
    """The cells of a line that tabs separate."""

    cells: list[str]
    quoted: int  # cells that csv has put quotation marks around, which are not in `cells`
    is_open: bool  # a cell begins with a quotation mark, and none closes it
    can_close: bool = False  # a further line may close one of those cells
    ends_quoted: bool = False  # the last cell is among the quoted ones
    settled: int = 0  # cells at the beginning that no further line can change
    # Of the marks from each cell on that begins with one and is not quoted.
    parities: frozenset[int] = frozenset()

    def stays_open(
        self,
        line: str,
        tabs: int,
        columns: int,
    ) -> "_Cells | None":
        """Return the state after these cells and a further line, if it leaves them open; None:
        split them again.

        `tabs` is how many there are with that line. Most lines of a long cell need no second look
        at those before.
        """
        has_tab = "\t" in line
        if has_tab and (not self.can_close or tabs + 1 == columns):
            return None
        if self.can_close:
            is_doubled = all(len(marks) % 2 == 0 for marks in _MARKS.findall(line))
            return self if is_doubled else None
        if self.ends_quoted:
            return None
        odd = line.count('"') % 2
        parities = frozenset(parity ^ odd for parity in self.parities)
        return self._replace(parities=parities) if 1 in parities else None


def split_tabs(text: str, columns: int = 0) -> _Cells:
    """Split a line at its tabs, into `many` cells (0: it is not known), and take csv's quotation
    marks off them.

    A text may begin with a quotation mark of its own: then it doesn't end with one, or has single
    marks inside. A tab between two marks separates cells if only so the line has `many`.
    """
    plain = text.split("\t")
    if '"' not in text:
        return _Cells(plain, 0, is_open=False)
    cells = []
    quoted = start = 0
    open_cell: int | None = None
    parities = set()
    marks_left = text.count('"')  # from `start` on
    match: re.Match[str] | None = None
    while start <= len(text):
        match = _QUOTED_CELL.match(text, start)
        if match:
            end = match.end()
            cells.append(match[1].replace('""', '"'))
            quoted += 1
        else:
            tab = text.find("\t", start)
            end = len(text) if tab < 0 else tab
            cells.append(text[start:end])
            if text.startswith('"', start):
                parities.add(marks_left % 2)
                if open_cell is None and _OPEN_CELL.match(text, start):
                    open_cell = len(cells) - 1
        marks_left -= text.count('"', start, end)
        start = end + 1
    if len(cells) != columns == len(plain):
        unquoted = [_unquote(cell) for cell in plain]
        quoted = sum(before != after for before, after in zip(plain, unquoted, strict=True))
        return _Cells(unquoted, quoted, is_open=False)
    return _Cells(
        cells,
        quoted,
        is_open=1 in parities,
        can_close=open_cell is not None,
        ends_quoted=match is not None,
        settled=len(cells) - 1 if open_cell is None else open_cell,
        parities=frozenset(parities),
    )


def _trim(cells: list[str], columns: int) -> list[str]:
    """Return the cells without empty cells at the end, but at least `columns` if there are that
    many.
    """
    last = len(cells)
    while last > columns and not cells[last - 1].strip():
        last -= 1
    return cells[:last]


def _unquote(cell: str) -> str:
    match = _QUOTED_CELL.fullmatch(cell)
    return match[1].replace('""', '"') if match else cell


class _Line(NamedTuple):
    number: int
    text: str


def _split_tabs(path: Path, columns: int, counts: Counter[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, cells) of each row; a quoted cell may go on in lines that are no
    rows by themselves.
    """
    pending = list[_Line]()  # a line with an open cell, and those that may continue it
    row = _Cells([], 0, is_open=False)  # of the pending lines
    tabs = 0  # in the pending lines
    for number, line in read_lines(path, whole=True):
        text = line.rstrip("\r\n")
        if columns and not pending and '"' not in text:  # as most lines are
            if text.strip():
                yield number, text.split("\t")
            continue
        tabs_here = text.count("\t")
        # A row by itself, so the quotation mark is part of the text before.
        if pending and tabs_here + 1 == columns:
            yield from _split_each(pending, columns, counts)
            pending = []
        if not pending:
            row = split_tabs(text, columns)
            if columns and row.is_open and row.settled < columns:
                pending = [_Line(number, text)]
                tabs = tabs_here
            elif text.strip():
                counts[QUOTED] += row.quoted
                columns = columns or len(_trim(row.cells, 0))
                yield number, row.cells
            continue
        pending.append(_Line(number, text))
        tabs += tabs_here
        still_open = row.stays_open(text, tabs, columns) if len(pending) < _MOST_LINES else None
        row = still_open or split_tabs("\n".join(each.text for each in pending), columns)
        if row.is_open and row.settled < columns and len(pending) < _MOST_LINES:
            continue
        if len(row.cells) == columns:
            counts[QUOTED] += row.quoted
            yield number, row.cells
        else:
            yield from _split_each(pending, columns, counts)
        pending = []
    yield from _split_each(pending, columns, counts)


def _split_each(
    lines: Sequence[_Line], columns: int, counts: Counter[str]
) -> Iterator[tuple[int, list[str]]]:
    for number, text in lines:
        if text.strip():
            row = split_tabs(text, columns)
            counts[QUOTED] += row.quoted
            yield number, row.cells


def _split_blanks(path: Path, counts: Counter[str]) -> Iterator[tuple[int, list[str]]]:
    for number, text in read_lines(path):
        cells = text.split()
        if '"' not in text:  # as most lines are
            yield number, cells
            continue
        # csv quotes a cell without marks inside only if it quotes all; else they are part of an id.
        quotes_all = text.lstrip().startswith('"')
        unquoted = [_unquote(cell) if quotes_all or '""' in cell[1:-1] else cell for cell in cells]
        counts[QUOTED] += sum(
            before != after for before, after in zip(cells, unquoted, strict=True)
        )
        yield number, unquoted


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
    """Yield (place, object) of each JSON object of a file: one a line, over several lines
    each, or in an array.
    """
    first = next(read_lines(path), (0, "{}"))[1]
    try:
        one_a_line = isinstance(_DECODER.decode(first), dict)
    except DataError:  # an object, with a key twice
        one_a_line = True
    except (ValueError, RecursionError):
        one_a_line = False
    return read_objects(path, remedy=ONE_A_LINE) if one_a_line else _read_spread_objects(path)


def _read_spread_objects(path: Path) -> Rows:
    """Yield (place, object) of each JSON object of a file that is not one object a line; it
    is held in memory.
    """
    lines = []
    size = 0
    for _, line in read_lines(path, whole=True):
        lines.append(line)
        if (size := size + len(line)) > LARGEST_JSON:
            raise DataError(f"{path}: its first line is no whole JSON object{ONE_A_LINE}")
    text = "".join(lines)
    at = 0
    number = 1
    while start := _JSON_START.match(text, at):
        number += text.count("\n", at, start.end())
        location = f"{path}, line {number}"
        try:
            value, at = _DECODER.raw_decode(text, start.end())
        except ValueError as error:
            if isinstance(error, json.JSONDecodeError):
                location = f"{path}, line {error.lineno}"
                error = ValueError(f"column {error.colno}: {error.msg}")
            raise DataError(f"{location}: not whole JSON ({error}){ONE_A_LINE}") from None
        except DataError as error:
            raise DataError(f"{location}: {error}") from None
        except RecursionError:
            raise DataError(f"{location}: the JSON is nested too deeply") from None
        number += text.count("\n", start.end(), at)
        entries = value if isinstance(value, list) else [value]
        for position, entry in enumerate(entries, start=1):
            if isinstance(value, list):
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
            _read_packed(path, columns) if find_ending(path) in PACKED else read_records(path)
        )


def _pyarrow() -> Any:
    import pyarrow.parquet  # here, because most data is JSON Lines

    return pyarrow


def _read_packed(path: Path, columns: Sequence[str] | None) -> Rows:
    if not check_data(path).startswith((b"PAR1", b"ARROW1", b"\xff\xff\xff\xff")) and is_packed(
        path
    ):
        raise DataError(f"{path} is packed; unpack it (Parquet and Arrow are packed in themselves)")
    pyarrow = _pyarrow()
    number = 0
    try:
        for batch in map(_use_json_types, _read_batches(path, columns)):
            for row in batch.to_pylist():
                number += 1
                yield f"{path}, row {number}", row
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        reason = "".join(
            character if character.isprintable() else "?"
            for character in str(error).partition("\n")[0]
        )
        form = find_ending(path)[1:].capitalize()
        raise DataError(
            f"{path} cannot be read as {form} after row {number} ({reason:.200}); fetch it again"
        ) from None


def _use_json_types(batch: Any) -> Any:
    """Return a batch of rows with texts and numbers in the columns that mean them by another type.

    Impala and older versions of Spark write texts as bytes, databases whole numbers as decimals,
    and DuckDB ids as UUID.
    """
    pyarrow = _pyarrow()
    types = pyarrow.types
    for position, field in enumerate(batch.schema):
        wanted = []
        if any(test(field.type) for test in (types.is_binary, types.is_large_binary)):
            wanted = [pyarrow.string()]
        elif types.is_decimal(field.type):
            wanted = [pyarrow.int64(), pyarrow.float64()]
        for json_type in wanted:
            with suppress(pyarrow.ArrowInvalid):  # bytes that are no UTF-8, numbers that don't fit
                column = batch.column(position).cast(json_type)
                batch = batch.set_column(position, field.name, column)
                break
    return batch


def _read_batches(path: Path, columns: Sequence[str] | None) -> Iterator[Any]:
    pyarrow = _pyarrow()
    if find_ending(path) == ".arrow":
        with pyarrow.memory_map(str(path)) as mapped:
            # Feather and `pyarrow.ipc.new_file` write another form than `datasets` does.
            is_file = mapped.read(6) == b"ARROW1"
            mapped.seek(0)
            opened = pyarrow.ipc.open_file(mapped) if is_file else pyarrow.ipc.open_stream(mapped)
            for batch in (
                map(opened.get_batch, range(opened.num_record_batches)) if is_file else opened
            ):
                batch.validate(full=True)  # damaged offsets lead outside of it
                yield from (batch.slice(start, 1024) for start in range(0, len(batch), 1024))
        return
    with pyarrow.parquet.ParquetFile(path, page_checksum_verification=True) as file:
        groups = range(file.metadata.num_row_groups)
        if sum(file.metadata.row_group(n).total_byte_size for n in groups) > max_unpacked_bytes(
            path
        ):
            raise unpack_limit_error(str(path))
        # Parts of the series that are there.
        yield from file.iter_batches(batch_size=1024, columns=columns)


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
