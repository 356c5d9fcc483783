"""Text for a terminal: paragraphs, lists of names and tables, fitted to its width.

Lines break between words. A table that is too wide first wraps its columns of words; then it is
drawn in parts, each with the first column. In a file or a pipe, which have no width, paragraphs and
tables stay whole; $COLUMNS gives them one.
"""

import io
import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Self

from sextant.tools.platform.cli import WIDTH, line_width, spell_in, strip_control_characters
from sextant.tools.platform.wrapping import wrap

# Characters between the columns of a table, the widest that fits first.
GAPS = (3, 2, 1)
# Characters of a word that a column of words keeps whole in a table that is too wide.
LONGEST_WORD = 30
# Characters of a line on which a name of a list stands before its text.
TERM_WIDTH = 24
# Characters of a column of words that is worth reading.
NARROW = 12


class Cell(str):
    """The text of a cell, with the value that it shows, if that is known, and whether it is bold.

    `source` says on a page where the value is from. `form` has the places of the measured `figures`,
    as in str.format: a paper may want other digits, or percent.
    """

    __slots__ = ("bold", "figures", "form", "source", "value")
    value: Any
    bold: bool
    source: str
    form: str
    figures: Sequence[Any]

    def __new__(
        cls,
        text: str,
        value: Any = None,
        *,
        bold: bool = False,
        source: str = "",
        figures: Sequence[Any] = (),
    ) -> Self:
        """Return a text with a value; a text without one is its own value. With `figures` the text is their form."""
        cell = super().__new__(cls, text.format(*figures) if figures else text)
        cell.value = value
        cell.bold = bold
        cell.source = source
        cell.form = text
        cell.figures = figures
        return cell


def figure_cell(value: float | None, form: str = "{:.4f}", unknown: str = "-") -> Cell:
    """Return a cell with a measured figure; None is written as `unknown`."""
    return Cell(unknown) if value is None else Cell(form, value, figures=[value])


def value_cell(value: object, text: str = "") -> Cell:
    """Return a cell with its value, written as `text`; a value that is not known is NaN in a data frame."""
    return Cell(text or str(value), math.nan if value is None else value)


class Head(str):
    """The head of a column, of which a page shows the end, `below`, in a line of its own."""

    __slots__ = ("below", "label")
    label: str
    below: str

    def __new__(cls, label: str, below: str = "") -> Self:
        """Return both in one line."""
        head = super().__new__(cls, f"{label} {below}".strip())
        head.label = label
        head.below = below
        return head


class Grid(NamedTuple):
    """Heads and rows of a table; the columns in `names` hold words, the others numbers."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    names: Sequence[int]

    def columns(self) -> list[list[str]]:
        """Return the cells of each column, its head first."""
        return [list(column) for column in zip(self.heads, *self.rows, strict=True)]

    def select(self, columns: Sequence[int]) -> "Grid":
        """Return the table with some of its columns."""
        rows = list[list[str]]()
        for row in self.rows:
            rows.append([row[column] for column in columns])
        names = list[int]()
        for place, column in enumerate(columns):
            if column in self.names:
                names.append(place)
        heads = [self.heads[column] for column in columns]
        return Grid(heads, rows, names)


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
    rows = list(items)
    longest = max((len(name) for name, _ in rows if len(name) <= TERM_WIDTH), default=0)
    lines = list[str]()
    for row in rows:
        name, text = map(strip_control_characters, row)
        margin = " " * (longest + 4)
        first = f"  {name:<{longest}}  " if name else margin
        if len(first) > len(margin):
            lines.append(f"  {name}")
            first = margin
        lines.append(wrap(text, width, first=first, further=margin))
    return "\n".join(lines)


def draw(grid: Grid, width: int | None) -> str:
    """Return a table as text of at most `width` characters a line, in as many parts as that takes."""
    if width is None:
        natural = FittedWidths(_natural_widths(grid), GAPS[0])
        return _draw_part(grid, natural)
    parts = list[str]()
    for part in [grid] if _fit_widths(grid, width) else _split(grid, width):
        widths = _fit_widths(part, width)
        if widths is None:
            widths = FittedWidths(_natural_widths(part), GAPS[-1])
        parts.append(_draw_part(part, widths))
    return "".join(parts)


class FittedWidths(NamedTuple):
    """The characters of each column of a table, and between two of them."""

    columns: list[int]
    gap: int

    @property
    def total(self) -> int:
        """Return the characters of a line, with one at each end."""
        gaps = len(self.columns) - 1
        return sum(self.columns) + self.gap * gaps + 2


def _split(grid: Grid, width: int) -> list[Grid]:
    """Return parts that fit, each with the columns of words at the beginning, at most two, and as many others as there
    is room for.
    """
    keys = [0, 1] if 1 in grid.names else [0]
    parts = list[Grid]()
    chosen = keys
    for column in range(len(keys), len(grid.heads)):
        if chosen != keys and not _fit_widths(grid.select([*chosen, column]), width):
            parts.append(grid.select(chosen))
            chosen = keys
        chosen = [*chosen, column]
    parts.append(grid.select(chosen))
    return parts


def _fit_widths(grid: Grid, width: int) -> FittedWidths | None:
    """Return widths with which a table fits; None if there are none.

    Heads and columns of words give way, the widest first, but never to less than their longest word.
    """
    natural = _natural_widths(grid)
    for gap in GAPS:
        fitted = FittedWidths(natural, gap)
        if fitted.total <= width:
            return fitted
    least = _least_widths(grid)
    if FittedWidths(least, GAPS[-1]).total <= width:
        return _shrink(fitted, least, width)
    return None


def _shrink(fitted: FittedWidths, least: Sequence[int], width: int) -> FittedWidths:
    """Return widths of a table that has just `width`; the widest column gives way first."""
    widths = list(fitted.columns)
    excess = fitted.total - width
    for _ in range(excess):
        shrinking = list[int]()
        for index, size in enumerate(widths):
            if size > least[index]:
                shrinking.append(index)
        widest = max(shrinking, key=widths.__getitem__)
        widths[widest] -= 1
    return FittedWidths(widths, fitted.gap)


def _natural_widths(grid: Grid) -> list[int]:
    return [max(map(_cell_width, column)) for column in grid.columns()]


def _least_widths(grid: Grid) -> list[int]:
    """Return the widths of columns whose heads, and whose cells if they are words, are wrapped."""
    least = list[int]()
    for index, (head, *cells) in enumerate(grid.columns()):
        widest = max(map(_cell_width, cells), default=0)
        if index in grid.names and (head or index == 0):
            # A word that is longer than that is an id or a path, and may be broken.
            longest = min(_longest_word(cells), LONGEST_WORD)
            widest = max(longest, min(widest, NARROW))
        least.append(max(widest, _longest_word([head])))
    return least


def _longest_word(cells: Iterable[str]) -> int:
    words = list[str]()
    for cell in cells:
        words += cell.split()
    return max(map(_cell_width, words), default=0)


def _cell_width(text: str) -> int:
    from rich.cells import cell_len  # not for --help

    return cell_len(strip_control_characters(text))


def _draw_part(grid: Grid, widths: FittedWidths) -> str:
    """Return a table as rich draws it, in the colours of stdout. Text of the data is never markup."""
    import rich.box  # not for --help
    from rich.console import Console  # as above
    from rich.table import Table  # as above

    real = Console()
    paddings: dict[int, Any] = {3: (0, 1), 2: (0, 1, 0, 0), 1: (0, 0)}
    padding = paddings[widths.gap]
    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False, padding=padding)
    for index, head in enumerate(grid.heads):
        side: Any = "left" if index in grid.names else "right"
        table.add_column(
            _styled(head, real.encoding),
            justify=side,
            width=widths.columns[index],
            overflow="fold",
        )
    for row in grid.rows:
        cells = [_styled(cell, real.encoding) for cell in row]
        table.add_row(*cells)
    # Rich writes into a text, so that it meets no closed pipe.
    text = io.StringIO()
    as_real: Any = {
        "force_terminal": real.is_terminal,
        "color_system": real.color_system,
    }
    console = Console(
        file=text,
        highlight=False,
        soft_wrap=True,
        width=widths.total,
        **as_real,
    )
    console.print(table)
    lines = text.getvalue().splitlines()
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _styled(text: str, encoding: str) -> Any:
    from rich.text import Text  # not for --help

    is_bold = isinstance(text, Cell) and text.bold
    shown = spell_in(encoding, strip_control_characters(text))
    return Text(shown, style="bold" if is_bold else "")
