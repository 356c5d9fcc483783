"""Rows of a table joined into documents, with headings from their columns, as CRUMB makes whole
statutes of the paragraphs that HousingQA has (section 3.1).

    [corpus]
    join = "state"          # a document of all rows of a state, with the state as its title
    headings = ["path"]     # whose headings these are, from the top
    heading_mark = " > "    # what stands between the headings of a column

`cut.by = "sections"` then makes a document of each part that shares its first three headings.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, takewhile
from typing import NamedTuple

from sextant.environments.readers import files as tables
from sextant.tools.errors import DataError
from sextant.tools.records import JsonMapping, JsonObject

# Of Markdown
DEEPEST = 6

Row = tuple[str, JsonObject]


class JoinColumns(NamedTuple):
    """The columns of the rows."""

    id: str  # of what is made of them
    join: str
    text: str
    title: str
    headings: Sequence[str]
    # Between headings in a column; "" if a column has one.
    mark: str


def join_rows(rows: Iterable[Row], columns: JoinColumns) -> Iterator[Row]:
    """Yield a row for each value of the column `join`: its id and title, and its rows' texts under
    headings.

    DataError if the rows of a value are not together.
    """

    def read_value(row: Row) -> str:
        return tables.read_id(tables.pick_column(*row, columns.join), row[0])

    ended = set()
    for value, rows_of_value in groupby(rows, read_value):
        lines: list[str] = []
        above: list[str] = []
        location = ""
        for location, row in rows_of_value:
            path = _read_path(location, row, columns)
            same = len(
                [*takewhile(lambda pair: pair[0] == pair[1], zip(above, path, strict=False))]
            )
            for level, heading in enumerate(path[same:], start=same + 1):
                lines.append(f"{'#' * min(level, DEEPEST)} {heading}")
            lines.append(_read_text(location, row, columns.text))
            above = path
        if value in ended:
            raise DataError(
                f"{location}: rows of {columns.join} = {value!r} were there before; sort the "
                f"file by that column"
            )
        ended.add(value)
        joined = {columns.id: value, columns.title: value, columns.text: "\n\n".join(lines)}
        yield location, joined


def _read_text(location: str, row: JsonMapping, column: str) -> str:
    return tables.check_text(row.get(column), location, column, optional=True).strip()


def _read_path(location: str, row: JsonMapping, columns: JoinColumns) -> list[str]:
    """Return the headings above a row's text, from the top; a heading is a line."""
    path = []
    for column in columns.headings:
        cell = _read_text(location, row, column)
        path += cell.split(columns.mark) if columns.mark else [cell]
    return [" ".join(heading.split()) for heading in path if heading.strip()]
