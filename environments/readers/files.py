"""Tables of data sets (JSON Lines, CSV and TSV with a header, Parquet) as rows, and checks of cells.

Every error is a DataError that names the file and the line or row. raw_files.py has the bytes and the
lines, trec_tags.py TREC's forms. Left out: tables without a header, and JSON in one piece.
"""

import csv
import json
import re
import reprlib
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from sextant.environments.readers.raw_files import (
    check_data,
    find_ending,
    read_lines,
)
from sextant.tools.errors import DataError
from sextant.tools.platform.number_format import plural
from sextant.tools.records import JsonObject

LARGEST_GRADE = 10_000  # trec_eval counts gains in 32 bits
LONGEST_ID = 500  # characters; a longer one is a text that slipped into the wrong column
EXACT = 1 << 53  # from here on not every whole number has a float of its own
PARQUET = ".parquet"
FORMS = (
    "read are JSON Lines (an object a line), CSV and TSV with a first line that names the columns, "
    "Parquet, and TREC's tags and judgements in four columns (query, iteration, document, grade)"
)

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
# For messages: a value may be long, or nested without end.
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 60
# A file that is one of several: 0003.parquet, test-00000-of-00002.parquet.
_PART = re.compile(r"(?:(.*?)(\d{4,9})-of-(\d+)|(\d{4,9}))\.\w+(?:\.gz)?")


def find_file(path: Path) -> Path | None:
    """Return the file, or the same gzipped; None if neither is there."""
    return next((file for file in (path, Path(f"{path}.gz")) if file.is_file()), None)


def check_parts(paths: list[Path]) -> list[Path]:
    """Return the files `paths`. DataError if one of a numbered series is missing."""
    series = dict[tuple[Path, int], set[int]]()
    for path in paths:
        if match := _PART.fullmatch(path.name):
            stem, part, count, number = match.groups()
            numbers = series.setdefault((path.parent / (stem or ""), int(count or 0)), set())
            numbers.add(int(part or number))
    for (stem, count), numbers in series.items():
        for number in range(count or max(numbers)):
            if number not in numbers:
                raise DataError(f"{stem}* lacks part {number:04}; fetch it again")
    return paths


def read_table(path: Path) -> Rows:
    """Yield (place, row) of each row of a file in any form but TREC's."""
    if find_ending(path) == PARQUET:
        return _read_parquet(path)
    first = next(read_lines(path), (0, "{"))[1]
    return read_objects(path) if first.lstrip().startswith(("{", "[")) else read_headed(path)


def read_headed(path: Path) -> Rows:
    """Yield (place, cells by the names in the first line) of each further line of a CSV or TSV file.

    The separator is the tab, if the first line has one, else whichever of , ; | it has most of.
    Cells may be quoted as csv does it; between tabs, no cell goes on in another line. Empty cells
    behind the last column are left out.
    """
    first = next(read_lines(path), (0, ""))[1]
    separator = "\t" if "\t" in first else max(",;|", key=first.count)
    csv.field_size_limit(sys.maxsize)  # the module's own limit is 128 KiB a cell
    lines = (line for _, line in read_lines(path, whole=True))
    rows = csv.reader(lines, delimiter=separator, strict=True)
    names = list[str]()
    number = 0
    try:
        for cells in rows:
            if separator == "\t" and rows.line_num > number + 1:
                raise csv.Error("a cell goes on in another line")
            number = rows.line_num
            while len(cells) > len(names) and not cells[-1].strip():
                cells.pop()
            if not any(map(str.strip, cells)):
                continue
            if not names:
                names = cells
                _check_unique(names, f"{path}: the column")
            elif len(cells) == len(names):
                yield f"{path}, line {number}", dict(zip(names, cells, strict=True))
            else:
                raise DataError(
                    f"{path}, line {number}: {plural(len(cells), 'column')} where the first line "
                    f"names {len(names)}; {FORMS}"
                )
    except csv.Error as error:
        raise DataError(
            f"{path}, line {number + 1}: {error}; is a quotation mark missing or too many?"
        ) from None


def _check_unique(names: Sequence[str], subject: str) -> None:
    name, count = Counter(names).most_common(1)[0]
    if count > 1:
        raise DataError(f"{subject} {name[:60]!r} is there twice; {FORMS}")


def read_objects(path: Path) -> Rows:
    """Yield (place, object) of each line."""
    for number, text in read_lines(path):
        location = f"{path}, line {number}"
        row = _parse(text, location, "; write one object a line")
        if not isinstance(row, dict):
            raise DataError(f"{location}: not a JSON object; write one object a line")
        yield location, row


def read_json(path: Path) -> Any:
    """Return the value in a file of one JSON value."""
    return _parse("\n".join(text for _, text in read_lines(path)), str(path))


def _parse(text: str, location: str, remedy: str = "") -> Any:
    try:
        return _DECODER.decode(text)
    except (RecursionError, ValueError) as error:
        raise DataError(f"{location}: not whole JSON ({error}){remedy}") from None
    except DataError as error:
        raise DataError(f"{location}: {error}") from None


def _object(pairs: list[tuple[str, Any]]) -> JsonObject:
    content = dict(pairs)
    if len(content) < len(pairs):  # of which Python's reader keeps the last without a word
        _check_unique([key for key, _ in pairs], "the key")
    return content


_DECODER = json.JSONDecoder(object_pairs_hook=_object)


def _read_parquet(path: Path) -> Rows:
    check_data(path)
    import pyarrow.parquet  # here, because most data is JSON Lines

    number = 0
    try:
        with pyarrow.parquet.ParquetFile(path, page_checksum_verification=True) as file:
            batches = file.iter_batches(batch_size=1024)
            rows = chain.from_iterable(batch.to_pylist() for batch in batches)
            for number, row in enumerate(rows, start=1):
                yield f"{path}, row {number}", row
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        reason = ascii(str(error).partition("\n")[0])
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


def abbreviate(value: object) -> str:
    """Describe any `value` for a message, briefly and on a line."""
    return _SHORT.repr(value).replace("\n", " ")


def read_id(value: Any, location: str) -> str:
    """Return an id as a text; blanks and slashes are allowed in it. JSON and frames also have whole
    numbers, frames with gaps as floats.
    """
    if isinstance(value, float) and value.is_integer() and abs(value) < EXACT:
        value = int(value)
    if isinstance(value, Integral) and not isinstance(value, bool):  # numpy's as well
        value = str(int(value))
    if (
        not isinstance(value, str)
        or not value.strip()
        or len(value) > LONGEST_ID
        or _UNFIT.search(value)
    ):
        raise DataError(
            f"{location}: the id {abbreviate(value)} is no text or whole number of 1 to {LONGEST_ID} "
            f"characters, or has a character that no id may have"
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
    if isinstance(value, str):
        return _HALF.sub("\N{REPLACEMENT CHARACTER}", value)
    if optional and (value is None or value != value):
        return ""
    raise DataError(f"{location}: field {name!r} is missing or not a string: {abbreviate(value)}")


def check_grade(value: Any, location: str) -> float:
    """Return `value`, a number or one in a cell of a table, as a grade."""
    number = value
    if isinstance(value, str):
        number = float(value) if _NUMBER.fullmatch(value) else None
    is_number = isinstance(number, Real) and not isinstance(number, bool)  # numpy's as well
    if is_number and abs(number) <= LARGEST_GRADE:
        return float(number)
    raise DataError(
        f"{location}: the score {abbreviate(value)} is not a number up to {LARGEST_GRADE}"
    )
