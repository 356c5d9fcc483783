"""MultiConIR's CSV files: one row a record, in the folders Task1, Task2_&_3 and Task4 of the release's datasets/.

Task1/<Domain>_Task1.csv has Query1..Query10, Positive, HN1..HN10 and HN_1..HN_10; Task2_&_3/<Domain>_Task2_&_3.csv has
Query10, Natural_Query10, Positive and HN1..HN10; Task4/<Domain>_512.csv and _1024.csv have Query10, Positive and
HN1..HN10. Domains are spelt "Books", "Legal Document" and so on.
"""

import csv
import sys
from collections.abc import Sequence
from pathlib import Path

from environments.sources import tables
from tools.errors import DataError

Row = dict[str, str]

TENS = tuple(range(1, 11))
HARD = tuple(f"HN{n}" for n in TENS)
COLUMNS = {
    "Task1": (*(f"Query{n}" for n in TENS), "Positive", *HARD, *(f"HN_{n}" for n in TENS)),
    "Task2_&_3": ("Query10", "Natural_Query10", "Positive", *HARD),
    "512": ("Query10", "Positive", *HARD),
    "1024": ("Query10", "Positive", *HARD),
}


def read(folder: Path, domain: str, file: str) -> list[Row]:
    """Read the rows of `file` (a key of COLUMNS) of `domain` ("Legal Document"). DataError names row and column."""
    inside = "Task4" if file in ("512", "1024") else file
    name = f"{inside}/{domain}_{file}.csv"
    path = next((path for path in (folder / "datasets" / name, folder / name) if path.is_file()), None)
    if path is None:
        raise DataError(f"{folder} holds no datasets/{name}; a data folder has the release's layout")
    csv.field_size_limit(sys.maxsize)  # the module's own limit is 128 KiB a cell
    rows: list[Row] = []
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            reader = csv.DictReader(lines, strict=True)
            _check_header(reader.fieldnames or (), COLUMNS[file], path)
            for number, row in enumerate(reader, start=1):
                where = f"{path}, row {number}"
                if None in row:
                    raise DataError(f"{where} has more cells than there are columns")
                if empty := [column for column in COLUMNS[file] if not (row[column] or "").strip()]:
                    raise DataError(f"{where}: column {empty[0]!r} is empty")
                rows.append({column: tables.check_text(row[column], where, column) for column in COLUMNS[file]})
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: byte {error.object[error.start]:#04x} after row {len(rows)} is not UTF-8") from None
    except csv.Error as error:
        raise DataError(f"{path} breaks off after row {len(rows)} ({error}); fetch it again") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
    if not rows:
        raise DataError(f"{path} has no rows in it")
    return rows


def _check_header(there: Sequence[str], columns: Sequence[str], path: Path) -> None:
    has = ", ".join(map(tables.brief, there)) or "nothing"
    if missing := [name for name in columns if name not in there]:
        raise DataError(f"{path} has no column {missing[0]!r}; it has {has:.300}")
    if twice := [name for name in columns if there.count(name) > 1]:
        raise DataError(f"{path} has the column {twice[0]!r} twice")
