"""Rows of a table joined into documents, with headings from their columns, as CRUMB makes whole
statutes of the paragraphs that HousingQA has (section 3.1).

    [corpus]
    join = "state"          # a document of all rows of a state, with the state as its title
    headings = ["path"]     # whose headings these are, from the top
    heading_mark = " > "    # what stands between the headings of a column

`cut.by = "sections"` then makes a document of each part that shares its first three headings.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from sextant.environments.readers import files as tables
from sextant.tools.errors import DataError
from sextant.tools.records import JsonMapping, JsonObject

# Of Markdown
DEEPEST = 6

Row = tuple[str, JsonObject]


class JoinColumns(NamedTuple):
    """The columns of the rows."""

    join: str
    text: str
    title: str
    headings: Sequence[str]
    # Between headings in a column; "" if a column has one.
    mark: str


def join_rows(
    rows: Iterable[Row],
    columns: JoinColumns,
    id_column: str,
) -> Iterator[Row]:
    """Yield a row for each value of the column `join`: its id and title, and its rows' texts under
    headings.

    DataError if the rows of a value are not together.
    """

    def read_value(row: Row) -> str:
        return tables.read_id(tables.pick_column(*row, columns.join), row[0])

    ended = set()
    for value, rows_of_value in groupby(rows, read_value):
        lines: list[str] = []
        above: Sequence[str] = ()
        first_location = ""
        for location, row in rows_of_value:
            if value in ended:
                raise DataError(
                    f"{location}: rows of {columns.join} = {value!r} were there before; sort the "
                    f"file by that column"
                )
            first_location = first_location or location
            path = _read_path(location, row, columns)
            lines += _new_headings(above, path)
            lines.append(_read_text(location, row, columns.text))
            above = path
        ended.add(value)
        yield (
            first_location,
            {
                id_column: value,
                columns.title: value,
                columns.text: "\n\n".join(lines),
            },
        )


def _read_text(
    location: str,
    row: JsonMapping,
    column: str,
) -> str:
    text = tables.check_text(
        row.get(column),
        location,
        column,
        optional=True,
    )
    return text.strip()


def _read_path(
    location: str,
    row: JsonMapping,
    columns: JoinColumns,
) -> list[str]:
    """Return the headings above a row's text, from the top."""
    path = []
    for column in columns.headings:
        cell = _read_text(location, row, column)
        parts = cell.split(columns.mark) if columns.mark else [cell]
        # A heading is a line.
        path += [" ".join(part.split()) for part in parts]
    return [heading for heading in path if heading]


def _new_headings(above: Sequence[str], path: Sequence[str]) -> list[str]:
    """Return the headings of a path from the first on that differs from the path before."""
    same = 0
    while above[same : same + 1] == path[same : same + 1] != []:
        same += 1
    return [
        f"{'#' * min(level, DEEPEST)} {heading}"
        for level, heading in enumerate(path[same:], start=same + 1)
    ]
