"""Lines and tables in three forms: printed in the terminal, as GitHub's Markdown, and as LaTeX with booktabs.

Ids, paths and names come from data. In each form they are text and nothing else: no markup, no control character, no
column more. The terminal has colours where it takes them; rich itself honours NO_COLOR.
"""

import io
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import rich.box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tools.console import clean

WIDTH = 80  # characters that a table has to fit into, where its cells are short


class Best(str):
    """A cell that is the better of a row: bold."""

    __slots__ = ()


@dataclass(frozen=True)
class Grid:
    """A table: its title, its head, its rows. The columns in `names` hold words, the others numbers."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    names: Sequence[int] = (0,)
    note: str = ""  # what a reader has to know of it where it stands alone


Part = str | Grid | Table


def printed(parts: Iterable[Part]) -> str:
    """Lines and tables as they are printed on stdout; control characters and markup in lines are made harmless."""
    text = io.StringIO()
    # Rich looks at the real stdout for width and colours, but writes into the text, so that it meets no closed pipe.
    # A file or pipe has no width; rich takes 80 then, and would fold the cells of a wide table.
    real = Console()
    console = Console(
        file=text,
        highlight=False,
        soft_wrap=True,
        width=real.width if real.is_terminal else max(real.width, 200),
        force_terminal=real.is_terminal,
        color_system=real.color_system,  # type: ignore[arg-type]
    )
    for part in parts:
        if isinstance(part, Grid) and part.title:
            console.print(plain(part.title))
        console.print(plain(part) if isinstance(part, str) else _draw(part) if isinstance(part, Grid) else part)
    return text.getvalue()


def plain(text: str) -> str:
    """Text of the data in a cell: no markup, no control characters."""
    return escape(clean(text))


def empty(*heads: str, words: int = 1, dense: bool = False) -> Table:
    """A table without rows; the first columns hold `words`, the others numbers."""
    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False, padding=(0, 0 if dense else 1), collapse_padding=False)
    for place, head in enumerate(heads):
        table.add_column(head, justify="left" if place < words else "right")
    return table


def _draw(grid: Grid) -> Table:
    widths = [max(map(len, column)) for column in zip(grid.heads, *grid.rows, strict=True)]
    table = empty(*map(plain, grid.heads), dense=sum(widths) + 3 * len(widths) > WIDTH)
    for place, column in enumerate(table.columns):
        column.justify, column.no_wrap = "left" if place in grid.names else "right", not grid.heads[place]
    for row in grid.rows:
        table.add_row(*(_embolden(cell, plain(cell), "[bold]", "[/]") for cell in row))
    return table


def to_markdown(parts: Sequence[str | Grid]) -> str:
    """Lines and tables; the notes of tables are left out, because the lines say the same."""
    blocks = [""]
    for part in parts:
        if isinstance(part, str):
            text = in_markdown(part)
            together = blocks[-1] and text and not blocks[-1].endswith("|")
            blocks[-1:] = [f"{blocks[-1]}\\\n{text}"] if together else [blocks[-1], text]
            continue
        rule = [":---" if place in part.names else "---:" for place in range(len(part.heads))]
        rows = [[in_markdown(cell) for cell in part.heads], rule]
        rows += [[_embolden(cell, in_markdown(cell), "**", "**") for cell in row] for row in part.rows]
        blocks += [f"**{in_markdown(part.title)}**", "\n".join(f"| {' | '.join(row)} |" for row in rows)]
    return "\n\n".join(filter(None, blocks)) + "\n"


def in_markdown(text: str) -> str:
    """Text that GitHub shows as it is: what has a meaning there has a backslash, also the bar between cells."""
    text = re.sub(r"([\\`*_\[\]<>#|~&$])", r"\\\1", clean(text))
    # The begin of a list is made text: its sign, or the point after its number, has a backslash.
    return re.sub(r"^(\s*)(\d*)([-+]|(?<=\d)[.)])(\s)", r"\1\2\\\3\4", text).strip()


def to_latex(parts: Sequence[str | Grid]) -> str:
    """Floats with captions and booktabs' rules; lines are comments, because a paper says it in its own words."""
    blocks = ["% \\usepackage{booktabs}"]
    for part in parts:
        if isinstance(part, str):
            blocks += [f"% {clean(part)}".rstrip()] if part else []
        else:
            blocks.append(_float(part))
    return "\n".join(blocks) + "\n"


_FLOAT = r"""\begin{table}
\centering
\caption{%s}
\begin{tabular}{%s}
\toprule
%s \\
\midrule
%s
\bottomrule
\end{tabular}
\end{table}"""


def _float(grid: Grid) -> str:
    def cell(text: str, place: int) -> str:
        return _embolden(text, _in_latex(text, number=place not in grid.names), "\\textbf{", "}")

    caption = ". ".join(_in_latex(text) for text in (grid.title, grid.note) if text)
    columns = "".join("l" if place in grid.names else "r" for place in range(len(grid.heads)))
    heads = " & ".join(map(_in_latex, grid.heads))
    rows = [" & ".join(cell(text, place) for place, text in enumerate(row)) for row in grid.rows]
    return _FLOAT % (caption, columns, heads, "\n".join(f"{row} \\\\" for row in rows))


_LATEX = {
    "\\": "\\textbackslash{}",
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "<": "\\textless{}",
    ">": "\\textgreater{}",
    "|": "\\textbar{}",
    "`": "\\textasciigrave{}",
    "[": "{[}",  # after the end of a row it would be a length
    "]": "{]}",
    "*": "{*}",  # and so would this
    "\N{REPLACEMENT CHARACTER}": "?",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}


def _in_latex(text: str, *, number: bool = False) -> str:
    """Text that LaTeX sets as it is; in a number, signs are those of mathematics."""
    escaped = "".join(_LATEX.get(sign, sign) for sign in clean(text))
    if number:
        return re.sub(r"(?<!\w)([-+])(?=[\d.])", r"$\1$", escaped).replace("\\textless{}", "$<$")
    return re.sub(r"-(?=-)", "-{}", escaped)  # two in a row would become a dash


def _embolden(cell: str, text: str, start: str, end: str) -> str:
    return f"{start}{text}{end}" if isinstance(cell, Best) else text


FORMS: dict[str, Callable[[Sequence[str | Grid]], str]] = {
    "terminal": printed,
    "markdown": to_markdown,
    "latex": to_latex,
}
