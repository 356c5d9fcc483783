"""Text for a terminal: paragraphs, lists of names and tables, fitted to its width.

Lines and cells break between words. In a file or a pipe, which have no width, paragraphs and tables
stay whole; $COLUMNS gives them one.
"""

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

from sextant.tools.platform.cli import WIDTH, line_width, spell_in, strip_control_characters
from sextant.tools.platform.wrapping import wrap

# The width of a table in a file or a pipe.
UNBOUNDED = 100_000
# Characters of a word that a table which is too wide keeps whole.
LONGEST_WORD = 30
# Characters of a line on which a name of a list stands before its text.
TERM_WIDTH = 24


class Cell(str):
    """The text of a cell, with the value that it shows, if that is known, and whether it is bold.

    `form` has the places of the measured `figures`, as in str.format: a paper may want other digits,
    or percent.
    """

    __slots__ = ("bold", "figures", "form", "value")
    value: Any
    bold: bool
    form: str
    figures: Sequence[Any]

    def __new__(
        cls,
        text: str,
        value: Any = None,
        *,
        bold: bool = False,
        figures: Sequence[Any] = (),
    ) -> Self:
        """Return a text with a value; a text without one is its own value. With `figures` the text is their form."""
        cell = super().__new__(cls, text.format(*figures) if figures else text)
        cell.value = value
        cell.bold = bold
        cell.form = text
        cell.figures = figures
        return cell


def figure_cell(value: float | None, form: str = "{:.4f}", unknown: str = "-") -> Cell:
    """Return a cell with a measured figure; None is written as `unknown`."""
    return Cell(unknown) if value is None else Cell(form, value, figures=[value])


def figure_cells(
    row: Mapping[str, Any], columns: Iterable[tuple[str, str, str]], unknown: str = "-"
) -> dict[str, Cell]:
    """Return the measured figures of a row by their heads; a column is a head, a key and a form."""
    return {head: figure_cell(row.get(key), form, unknown) for head, key, form in columns}


def value_cell(value: object, text: str = "") -> Cell:
    """Return a cell with its value, written as `text`; a value that is not known is NaN in a data frame."""
    return Cell(text or str(value), math.nan if value is None else value)


def first_sentence(text: str | None) -> str:
    """Return the first sentence of a docstring, in one line."""
    first_paragraph, _, _ = (text or "").partition("\n\n")
    line = " ".join(first_paragraph.split())
    sentence, ended, _ = line.partition(". ")
    return f"{sentence}." if ended else line


def definitions(items: Iterable[tuple[str, str]], width: int | None = None) -> str:
    """Return names with their texts, a name a line; the text stands below a long name.

    An item without a name goes on with the text of the one before.
    """
    width = width or line_width(sys.stdout) or WIDTH
    rows = [tuple(map(strip_control_characters, item)) for item in items]
    longest = max((len(name) for name, _ in rows if len(name) <= TERM_WIDTH), default=0)
    margin = " " * (longest + 4)
    lines = list[str]()
    for name, text in rows:
        first = f"  {name:<{longest}}  " if name else margin
        if len(first) > len(margin):
            lines.append(f"  {name}")
            first = margin
        lines.append(wrap(text, width, first=first, further=margin))
    return "\n".join(lines)


def draw(
    heads: Sequence[str], rows: Sequence[Sequence[str]], names: Sequence[int], width: int | None
) -> str:
    """Return a table as rich draws it, in the colours of stdout, of at most `width` characters a line.

    The columns in `names` are on the left. Text of the data is never markup. A table whose words alone
    are wider than that is as wide as its words.
    """
    import rich.box  # not for --help
    from rich.console import Console  # as above
    from rich.table import Table  # as above

    # Nothing is written, so that rich meets no closed pipe; without a width a table is as wide as it is.
    console = Console(highlight=False, soft_wrap=True, width=width or UNBOUNDED)
    # "ascii" because signs that stdout lacks are spelled in the end.
    box = rich.box.Box(str(rich.box.SIMPLE_HEAD), ascii=True)
    table = Table(box=box, pad_edge=False)
    for index, (head, *cells) in enumerate(zip(heads, *rows, strict=True)):
        table.add_column(
            _styled(head, console.encoding),
            justify="left" if index in names else "right",
            min_width=_longest_word([head, *cells]),
            overflow="fold",
        )
    for row in rows:
        table.add_row(*(_styled(cell, console.encoding) for cell in row))
    with console.capture() as printed:
        console.print(table)
    return "".join(f"{line.rstrip()}\n" for line in printed.get().splitlines())


def _longest_word(cells: Iterable[str]) -> int:
    from rich.cells import cell_len  # not for --help

    # A word that is longer than that is an id or a path, and may be broken.
    words = [word for cell in cells for word in strip_control_characters(cell).split()]
    return min(max(map(cell_len, words), default=0), LONGEST_WORD)


def _styled(text: str, encoding: str) -> Any:
    from rich.text import Text  # not for --help

    is_bold = isinstance(text, Cell) and text.bold
    return Text(spell_in(encoding, strip_control_characters(text)), style="bold" if is_bold else "")
