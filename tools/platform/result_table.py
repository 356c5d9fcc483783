"""A table of results, and its forms: terminal, Markdown, LaTeX, HTML, CSV, a data frame of pandas.

Ids, paths and names come from data: in each form they are text, without markup, control characters
or further columns. tools/platform/terminal.py fits a table to the width of a terminal.
"""

import csv
import io
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, NamedTuple, TextIO

from sextant.tools.errors import UsageError
from sextant.tools.platform.cli import (
    CommandParser,
    line_width,
    print_stdout,
    spell_in,
    strip_control_characters,
)
from sextant.tools.platform.files import expand_user_path
from sextant.tools.platform.installation import importing_extra
from sextant.tools.platform.terminal import Cell as Cell
from sextant.tools.platform.terminal import definitions, draw
from sextant.tools.platform.terminal import figure_cell as figure_cell
from sextant.tools.platform.terminal import figure_cells as figure_cells
from sextant.tools.platform.terminal import value_cell as value_cell
from sextant.tools.platform.wrapping import command_lines, paragraph


@dataclass(frozen=True, slots=True)
class ResultTable:
    """A table. The columns in `names` hold words, the others numbers."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    names: Sequence[int] = (0,)
    # Sentences that a reader needs if the table stands alone, without their full stops.
    notes: Sequence[str] = ()
    # The beginning of the names of its files.
    stem: str = ""
    # Heads and rows of its CSV, if that says more than the table.
    csv_rows: Sequence[Iterable[object]] = ()

    def __str__(self) -> str:
        return self.to_terminal()

    def __repr__(self) -> str:
        return self.to_terminal().rstrip("\n")

    def _repr_html_(self) -> str:
        return self.to_html()

    def to_terminal(self, width: int | None = None) -> str:
        """Return the table as text of at most `width` characters a line; None is the terminal's."""
        return render_terminal([self], width)

    def to_markdown(self) -> str:
        """Return the table as GitHub's Markdown."""
        return to_markdown([self])

    def to_latex(self) -> str:
        """Return the table as a float with booktabs' rules."""
        return to_latex([self], LatexStyle())

    def to_csv(self) -> str:
        """Return heads and rows as CSV, with values in place of their texts where they are known."""
        return to_csv(self.csv_rows or [self.heads, *self._values()])

    def to_html(self) -> str:
        """Return the table as HTML, as a notebook shows it."""
        lines = [f"<caption>{_in_html(self.title)}</caption>"] if self.title else []
        heads, *rows = _write_cells(self, _in_html, "<b>", "</b>")
        lines.append(f"<thead><tr><th>{'</th><th>'.join(heads)}</th></tr></thead><tbody>")
        for row in rows:
            cells = ""
            for column, text in enumerate(row):
                side = "left" if column in self.names else "right"
                cells += f'<td style="text-align: {side}">{text}</td>'
            lines.append(f"<tr>{cells}</tr>")
        return "\n".join(["<table>", *lines, "</tbody></table>"])

    def to_pandas(self) -> Any:
        """Return a DataFrame of pandas, with values where they are known. ImportError without pandas."""
        return to_data_frame(self._values(), self.heads)

    def _values(self) -> Iterable[list[Any]]:
        for row in self.rows:
            yield [_value(text) for text in row]


def to_data_frame(rows: Iterable[Any], columns: Sequence[str] | None = None) -> Any:
    """Return rows as a DataFrame of pandas. ImportError without pandas."""
    with importing_extra("notebook", "to_pandas()"):
        import pandas  # an extra

    return pandas.DataFrame(list(rows), columns=columns)


def tabulate(
    title: str,
    rows: Sequence[Mapping[str, object]],
    *,
    stem: str = "",
    notes: Sequence[str] = (),
    in_file: int = 0,
) -> ResultTable:
    """Return a table of rows with the same keys, which are its heads; without rows it has no columns.

    Its CSV has all columns; those without a value and the last `in_file` are in it only. Columns with
    a plain text are those of words.
    """
    heads = list(rows[0]) if rows else []
    shown = [
        head
        for head in heads[: len(heads) - in_file]
        if any(row[head] not in ("", None) for row in rows)
    ]
    names = [
        place
        for place, head in enumerate(shown)
        if any(type(row[head]) is str and row[head] for row in rows)
    ]
    return ResultTable(
        title,
        shown,
        [[_text(row[head]) for head in shown] for row in rows],
        names,
        notes,
        stem,
        csv_rows=[heads, *(map(_value, row.values()) for row in rows)],
    )


def _text(cell: object) -> str:
    if isinstance(cell, str):
        return cell
    return "" if cell is None else f"{cell:,}" if isinstance(cell, int) else str(cell)


class DefinitionList(NamedTuple):
    """Names with their texts, a name a line."""

    items: Sequence[tuple[str, str]]


class CommandLine(NamedTuple):
    """A command that a reader may copy, after its purpose or after blanks."""

    lead: str
    command: str


TextBlock = str | ResultTable
TerminalBlock = TextBlock | DefinitionList | CommandLine


def _value(cell: Any) -> Any:
    return cell.value if isinstance(cell, Cell) and cell.value is not None else cell


def _in_html(text: str) -> str:
    return escape(strip_control_characters(text))


def render_terminal(blocks: Iterable[TerminalBlock], width: int | None = None) -> str:
    """Return lines and tables as they are printed on stdout; `width` None is that of the terminal."""
    width = width or line_width(sys.stdout)
    text = "".join(f"{_draw_block(block, width)}\n" for block in blocks)
    # A table has an empty line above and below it: two tables need one between them.
    text = re.sub(r"\n{3,}", "\n\n", text)
    return spell_in(getattr(sys.stdout, "encoding", None) or "utf-8", text)


def _draw_block(block: TerminalBlock, width: int | None) -> str:
    match block:
        case CommandLine(lead, command):
            command = strip_control_characters(command)
            return "\n".join(command_lines(strip_control_characters(lead), command, width))
        case DefinitionList(items):
            return definitions(items, width)
        case ResultTable(title=title):
            text = f"{paragraph(strip_control_characters(title), width)}\n" if title else ""
            return text + draw(block.heads, block.rows, block.names, width)
        case _:
            return paragraph(strip_control_characters(block), width)


def show(blocks: Iterable[TerminalBlock], kept: str = "") -> None:
    """Print lines and tables on stdout; `kept` says where else they are, as in print_stdout."""
    print_stdout(render_terminal(blocks), kept)


def html_of(blocks: Iterable[TextBlock]) -> str:
    """Return lines and tables as HTML, as a notebook shows them."""
    return "\n".join(
        block.to_html() if isinstance(block, ResultTable) else f"<div>{_in_html(block)}</div>"
        for block in blocks
        if block
    )


def to_markdown(content: Sequence[TextBlock]) -> str:
    """Return lines and tables as Markdown; the notes of tables are left out, because the lines say
    the same.
    """
    blocks = []
    for block in content:
        if isinstance(block, ResultTable):
            blocks += [f"**{in_markdown(block.title)}**"] if block.title else []
            blocks.append(markdown_rows(block))
        else:
            blocks.append(in_markdown(block))
    return "\n\n".join(filter(None, blocks)) + "\n"


def markdown_rows(table: ResultTable) -> str:
    """Return heads and rows as Markdown."""
    rule = [":---" if index in table.names else "---:" for index in range(len(table.heads))]
    heads, *rows = _write_cells(table, in_markdown, "**", "**")
    return "\n".join(f"| {' | '.join(row)} |" for row in (heads, rule, *rows))


def in_markdown(text: str) -> str:
    """Return text that GitHub shows as it is: signs with a meaning there have a backslash, also
    the bar between cells.
    """
    text = re.sub(r"([\\`*_\[\]<>#|~&$])", r"\\\1", strip_control_characters(text))
    # So has the sign that begins a list, or the point after its number.
    return re.sub(r"^(\s*)(\d*)([-+]|(?<=\d)[.)])(\s)", r"\1\2\\\3\4", text).strip()


class LatexStyle(NamedTuple):
    """What a paper chooses of its tables; the fields are the options of `add_latex_options`."""

    # The name of the only table, "" for all.
    only: str = ""
    # In place of its title and notes.
    caption: str = ""
    # Digits after the point of measured figures, "0" to "6"; "" leaves them.
    digits: str = ""
    # Whether measured figures are multiplied by 100.
    percent: bool = False


def add_latex_options(command_line: CommandParser, form: Any) -> None:
    """Add --latex to a group of forms, and the options that go with it."""
    form.add_argument(
        "--latex", action="store_true", help="print the tables for a paper, with booktabs"
    )
    add = command_line.add_argument_group("with --latex").add_argument
    add("--only", default="", metavar="NAME", help="one table: NAME of its label tab:NAME")
    add("--caption", default="", metavar="TEXT", help="its caption, in place of title and notes")
    decimals = "decimals of metrics, 0 to 6"
    add("--digits", default="", choices=list("0123456"), metavar="N", help=decimals)
    add("--percent", action="store_true", help="metrics in percent, without the sign")


def read_latex_style(options: Mapping[str, Any]) -> LatexStyle:
    """Return the choices of `add_latex_options`. UsageError for a choice without --latex."""
    style = LatexStyle(*(options[name] for name in LatexStyle._fields))
    if style != LatexStyle() and not options["latex"]:
        raise UsageError("--only, --caption, --digits and --percent go with --latex")
    return style


def to_latex(content: Iterable[TerminalBlock], style: LatexStyle) -> str:
    """Return floats with captions, labels and booktabs' rules; lines are comments, because a paper
    has its own words.

    A note of several tables is in the caption of the first. UsageError for no table of that name, or
    a caption of several.
    """
    tables = [block for block in content if isinstance(block, ResultTable)]
    chosen = [table for table in tables if style.only in ("", table.stem)]
    if (style.only or style.caption) and len(chosen) != 1:
        names = ", ".join(table.stem for table in tables)
        raise UsageError(f"--only takes the name of one table: {names}")
    notes = {note for table in tables for note in table.notes}
    lines = [block for block in content if isinstance(block, str) and block not in notes]
    said = list[str]()
    floats = []
    for table in chosen:
        unit = ["metrics in percent"] * style.percent
        new = [note for note in (*table.notes, *unit) if note not in said]
        said += new
        words = list(filter(None, [table.title, *new]))
        if style.caption:
            lines += words
            words = [style.caption]
        floats.append(_float(table, ". ".join(words), style))
    comments = [f"% {_leave_out_folders(line)}".rstrip() for line in lines if line]
    return "\n".join(["% \\usepackage{booktabs}", *comments, *floats]) + "\n"


def _float(table: ResultTable, caption: str, style: LatexStyle) -> str:
    columns = ["l" if column in table.names else "r" for column in range(len(table.heads))]
    label = f"\n\\label{{tab:{table.stem}}}" if table.stem else ""
    cells = _write_cells(table, lambda cell: _in_latex(_restyle(cell, style)), "\\textbf{", "}")
    heads, *rows = (f"{' & '.join(row)} \\\\\n" for row in cells)
    return (
        f"\\begin{{table}}\n\\centering\n\\caption{{{_in_latex(caption)}}}{label}\n"
        f"\\begin{{tabular}}{{{''.join(columns)}}}\n\\toprule\n"
        f"{heads}\\midrule\n{''.join(rows)}\\bottomrule\n\\end{{tabular}}\n\\end{{table}}"
    )


def _restyle(cell: str, style: LatexStyle) -> str:
    """Return a cell with its figures as a paper wants them, rounded from their values."""
    if not isinstance(cell, Cell) or not cell.figures:
        return cell

    def restyle_place(place: re.Match[str]) -> str:
        digits = style.digits or int(place[1]) - 2 * style.percent
        return f".{digits}{'%' if style.percent else 'f'}"

    return re.sub(r"\.(\d)f", restyle_place, cell.form).format(*cell.figures).replace("%", "")


_NAMED = {
    "`": "asciigrave",
    "\\": "backslash",
    "~": "asciitilde",
    "^": "asciicircum",
    "<": "less",
    ">": "greater",
    "|": "bar",
}
_LATEX = str.maketrans(
    {sign: f"\\text{name}{{}}" for sign, name in _NAMED.items()}
    | {sign: f"{{{sign}}}" for sign in "[]*"}  # after the end of a row they would be an argument
    | {sign: f"\\{sign}" for sign in "&%$#_{}"}
    | {"\N{REPLACEMENT CHARACTER}": "?"}
)


def _leave_out_folders(text: str) -> str:
    """Return text without control characters, and each path of this machine without its folder."""

    def drop_folder(folder: re.Match[str]) -> str:
        exists = os.access(expand_user_path(folder[0]), os.F_OK)
        return "" if exists else folder[0]

    return re.sub(r"(?<![\w./~-])~?/(?:[^\s/]+/)+", drop_folder, strip_control_characters(text))


def _in_latex(text: str) -> str:
    escaped = _leave_out_folders(text).translate(_LATEX)
    if re.match(r"[-+<]?[\d.]+( |$)", text):
        return re.sub(r"(?<!\w)([-+])(?=[\d.])", r"$\1$", escaped).replace("\\textless{}", "$<$")
    # Two in a row would become a dash.
    return re.sub(r"-(?=-)", "-{}", escaped)


def _write_cells(
    table: ResultTable, write: Callable[[str], str], start: str, end: str
) -> list[list[str]]:
    """Return heads and rows, each text as `write` has it, bold ones between `start` and `end`."""
    rows = [list(map(write, table.heads))]
    for row in table.rows:
        cells = []
        for cell in row:
            is_bold = isinstance(cell, Cell) and cell.bold
            cells.append(f"{start}{write(cell)}{end}" if is_bold else write(cell))
        rows.append(cells)
    return rows


# What a spreadsheet takes for a formula (CWE-1236), but for numbers, a number with its interval in
# brackets, and a sign alone.
_FORMULA = re.compile(r"[=+\-@].")
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?%?( \(-?\d+(\.\d+)?%? to -?\d+(\.\d+)?%?\))?")


def to_csv(rows: Iterable[Iterable[object]]) -> str:
    """Return rows as CSV; a text that a spreadsheet would take for a formula gets an apostrophe before it."""
    text = io.StringIO(newline="")
    write_csv(text, (map(_defuse, row) for row in rows))
    return text.getvalue()


def write_csv(file: TextIO, rows: Iterable[Iterable[object]]) -> None:
    """Write rows as CSV, each text as it is."""
    csv.writer(file, lineterminator="\n").writerows(rows)


def _defuse(cell: object) -> object:
    if not isinstance(cell, str):
        return cell
    text = strip_control_characters(cell)
    is_formula = _FORMULA.match(text) and not _NUMBER.fullmatch(text)
    return f"'{text}" if is_formula else text
