"""Lines and tables in three forms: printed in the terminal, as GitHub's Markdown, and as LaTeX with
booktabs.

Ids, paths and names come from data: in each form they are text, without markup, control characters
or further columns. The terminal has colours if it takes them; rich honours NO_COLOR. A run's scores
are printed from here.
"""

import csv
import io
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import rich.box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from programs import SCHEMES
from tools.cli import is_terminal, spell_in, strip_control_characters

# Characters that a table has to fit into, if its cells are short.
WIDTH = 80


class BoldCell(str):
    """A cell that is the better of a row: bold."""

    __slots__ = ()


class TextTable(NamedTuple):
    """A table. The columns in `names` hold words, the others numbers."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    names: Sequence[int] = (0,)
    # Words that a reader needs if the table stands alone.
    note: str = ""


TextBlock = str | TextTable


def render_terminal(blocks: Iterable[TextBlock]) -> str:
    """Return lines and tables as they are printed on stdout. Text of the data is never markup."""
    text = io.StringIO()
    # Rich writes into the text, so that it meets no closed pipe, with the width and colours of the
    # real stdout. A file or pipe has no width; rich takes 80 then, and would fold the cells of a
    # wide table.
    real = Console()
    width = (real.width or WIDTH) if is_terminal(sys.stdout) else max(real.width, 200)
    as_real: Any = {
        "width": width,
        "force_terminal": real.is_terminal,
        "color_system": real.color_system,
    }
    console = Console(file=text, highlight=False, soft_wrap=True, **as_real)
    for block in blocks:
        if isinstance(block, TextTable) and block.title:
            console.print(_plain(block.title, real.encoding))
        console.print(
            _plain(block, real.encoding) if isinstance(block, str) else _draw(block, real.encoding)
        )
    return text.getvalue()


def _plain(text: str, encoding: str) -> Text:
    return Text(
        spell_in(encoding, strip_control_characters(text)),
        style="bold" if isinstance(text, BoldCell) else "",
    )


def _draw(grid: TextTable, encoding: str) -> Table:
    widths = [max(map(len, column)) for column in zip(grid.heads, *grid.rows, strict=True)]
    padding = (
        0,
        0 if sum(widths) + 3 * len(widths) > WIDTH else 1,
    )
    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False, padding=padding, collapse_padding=False)
    for index, head in enumerate(grid.heads):
        side: Any = "left" if index in grid.names else "right"
        # On a narrow terminal a number goes on in the next line; rich would cut it.
        table.add_column(
            _plain(head, encoding),
            justify=side,
            no_wrap=not head,
            overflow="fold",
        )
    for row in grid.rows:
        table.add_row(*(_plain(cell, encoding) for cell in row))
    return table


def to_markdown(content: Sequence[TextBlock]) -> str:
    """Return lines and tables as Markdown; the notes of tables are left out, because the lines say
    the same.
    """
    blocks = [""]
    for block in content:
        if isinstance(block, TextTable):
            blocks += [
                f"**{in_markdown(block.title)}**",
                _markdown_rows(block),
            ]
            continue
        text = in_markdown(block)
        if blocks[-1] and text and not blocks[-1].endswith("|"):
            blocks[-1] += f"\\\n{text}"
        else:
            blocks.append(text)
    return "\n\n".join(filter(None, blocks)) + "\n"


def _markdown_rows(table: TextTable) -> str:
    rule = [":---" if index in table.names else "---:" for index in range(len(table.heads))]
    rows = [[in_markdown(head) for head in table.heads], rule]
    for row in table.rows:
        rows.append([_embolden(cell, in_markdown(cell), "**", "**") for cell in row])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def in_markdown(text: str) -> str:
    """Return text that GitHub shows as it is: signs with a meaning there have a backslash, also
    the bar between cells.
    """
    text = re.sub(r"([\\`*_\[\]<>#|~&$])", r"\\\1", strip_control_characters(text))
    # So has the sign that begins a list, or the point after its number.
    return re.sub(r"^(\s*)(\d*)([-+]|(?<=\d)[.)])(\s)", r"\1\2\\\3\4", text).strip()


def to_latex(content: Sequence[TextBlock]) -> str:
    """Return floats with captions and booktabs' rules; lines are comments, because a paper
    has its own words.
    """
    blocks = [
        _float(block)
        if isinstance(block, TextTable)
        else f"% {strip_control_characters(block)}".rstrip()
        for block in content
        if block
    ]
    return "\n".join(["% \\usepackage{booktabs}", *blocks]) + "\n"


def _float(grid: TextTable) -> str:
    def cell(text: str, column: int) -> str:
        return _embolden(text, _in_latex(text, number=column not in grid.names), "\\textbf{", "}")

    caption = ". ".join(_in_latex(text) for text in (grid.title, grid.note) if text)
    columns = "".join("l" if column in grid.names else "r" for column in range(len(grid.heads)))
    rows = [" & ".join(cell(text, column) for column, text in enumerate(row)) for row in grid.rows]
    head = f"{' & '.join(map(_in_latex, grid.heads))} \\\\"
    begin = f"\\begin{{table}}\n\\centering\n\\caption{{{caption}}}\n\\begin{{tabular}}{{{columns}}}\n\\toprule"
    end = "\\bottomrule\n\\end{tabular}\n\\end{table}"
    return "\n".join(
        [
            begin,
            head,
            "\\midrule",
            *(f"{row} \\\\" for row in rows),
            end,
        ]
    )


_NAMED = {
    "\\": "backslash",
    "~": "asciitilde",
    "^": "asciicircum",
    "<": "less",
    ">": "greater",
    "|": "bar",
}
_LATEX = str.maketrans(
    {sign: f"\\text{name}{{}}" for sign, name in (_NAMED | {"`": "asciigrave"}).items()}
    | {sign: f"{{{sign}}}" for sign in "[]*"}  # after the end of a row they would be an argument
    | {sign: f"\\{sign}" for sign in "&%$#_{}"}
    | {"\N{REPLACEMENT CHARACTER}": "?"}
)


def _in_latex(text: str, *, number: bool = False) -> str:
    escaped = strip_control_characters(text).translate(_LATEX)
    if number:
        return re.sub(r"(?<!\w)([-+])(?=[\d.])", r"$\1$", escaped).replace("\\textless{}", "$<$")
    # Two in a row would become a dash.
    return re.sub(r"-(?=-)", "-{}", escaped)


def _embolden(cell: str, text: str, start: str, end: str) -> str:
    return f"{start}{text}{end}" if isinstance(cell, BoldCell) else text


def to_csv(rows: Iterable[Iterable[object]]) -> str:
    """Return rows as CSV."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


FORMS: dict[str, Callable[[Sequence[TextBlock]], str]] = {
    "terminal": render_terminal,
    "markdown": to_markdown,
    "latex": to_latex,
}


def model_name(name: str, program: str = "") -> str:
    """Return a model's name as it is shown; agents outside have a model of their own."""
    if program.partition(":")[0] in SCHEMES:
        return "the agent's own"
    return "offline, no language model" if name == "offline" else name


def describe_task(scores: dict[str, Any]) -> str:
    """Return the task, split and judgements of a run, and whether its data is invented."""
    text = f"{scores['task']}  {scores['split']} split"
    if scores.get("judgements", "gold") != "gold":
        text += f", {scores['judgements']} judgements"
    data = scores["data"]
    if data == "mini":
        data = "mini: bundled, invented; not comparable with published figures"
    return f"{text}  ({data})"


def describe_system(scores: dict[str, Any]) -> str:
    """Return the program, retriever and model of a run."""
    model = model_name(scores["lm"], scores["program"])
    system = f"{scores['program']} over {scores['retriever']}, model: {model}"
    if compiled := scores.get("compiled"):
        system += f", compiled by {compiled['optimizer']} ({compiled['digest']})"
        if "edited" in compiled:
            file = strip_control_characters(compiled["file"])
            system += f", prompts: {file} (edited: {compiled['edited']})"
    return system
