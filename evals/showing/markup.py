"""Lines and tables in three forms: printed in the terminal, as GitHub's Markdown, and as LaTeX with booktabs.

Ids, paths and names come from data. In each form they are text and nothing else: no markup, no control character, no
column more. Left out: numbers aligned at their point (siunitx), because a mean and an interval share no form.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tools.console.command import clean

if TYPE_CHECKING:
    from rich.table import Table


class Best(str):
    """A cell that is the better of a row: bold."""

    __slots__ = ()


@dataclass(frozen=True)
class Grid:
    """A table: what it is of, its head, its rows. The columns in `names` hold words, the others numbers."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    names: Sequence[int] = (0,)
    note: str = ""  # what a reader has to know of it where it stands alone


Part = str | Grid


def terminal(parts: Sequence[Part]) -> str:
    """As it is printed; a table fits 80 columns where its cells are short."""
    from evals.showing.terminal import printed

    drawn = list["str | Table"]()
    for part in parts:
        drawn += [part] if isinstance(part, str) else [part.title, _drawn(part)]
    return printed(drawn)


def _drawn(grid: Grid) -> "Table":
    import rich.box
    from rich.table import Table

    from evals.showing.terminal import plain

    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False, padding=0, collapse_padding=False)
    for place, head in enumerate(grid.heads):
        table.add_column(head, justify="left" if place in grid.names else "right")
    for row in grid.rows:
        cells = [plain(cell) for cell in row]
        table.add_row(
            *(f"[bold]{text}[/]" if isinstance(cell, Best) else text for cell, text in zip(row, cells, strict=True))
        )
    return table


def markdown(parts: Sequence[Part]) -> str:
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
        rows += [[_bold(cell, in_markdown(cell), "**", "**") for cell in row] for row in part.rows]
        blocks.append(f"**{in_markdown(part.title)}**")
        blocks.append("\n".join(f"| {' | '.join(row)} |" for row in rows))
    return "\n\n".join(filter(None, blocks)) + "\n"


def in_markdown(text: str) -> str:
    """Text that GitHub shows as it is: what has a meaning there has a backslash, also the bar between cells."""
    text = re.sub(r"([\\`*_\[\]<>#|~&$])", r"\\\1", clean(text))
    return re.sub(r"^(\s*)([-+]|\d+[.)])(\s)", _no_list, text).strip()


def _no_list(found: re.Match[str]) -> str:
    """The begin of a list, made text: its sign, or the point after its number, has a backslash."""
    return f"{found[1]}{found[2][:-1]}\\{found[2][-1]}{found[3]}"


def latex(parts: Sequence[Part]) -> str:
    """Floats with captions and booktabs' rules; lines are comments, because a paper says it in its own words."""
    blocks = ["% \\usepackage{booktabs}"]
    for part in parts:
        if isinstance(part, str):
            blocks += [f"% {clean(part)}".rstrip()] if part else []
        else:
            blocks.append(_float(part))
    return "\n".join(blocks) + "\n"


def _float(grid: Grid) -> str:
    columns = "".join("l" if place in grid.names else "r" for place in range(len(grid.heads)))
    rows = [
        [
            _bold(cell, _in_latex(cell, number=place not in grid.names), "\\textbf{", "}")
            for place, cell in enumerate(row)
        ]
        for row in grid.rows
    ]
    caption = ". ".join(_in_latex(text) for text in (grid.title, grid.note) if text)
    return "\n".join(
        (
            "\\begin{table}",
            "\\centering",
            f"\\caption{{{caption}}}",
            f"\\begin{{tabular}}{{{columns}}}",
            "\\toprule",
            f"{' & '.join(_in_latex(head) for head in grid.heads)} \\\\",
            "\\midrule",
            *(f"{' & '.join(row)} \\\\" for row in rows),
            "\\bottomrule",
            "\\end{tabular}",
            "\\end{table}",
        )
    )


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


def _bold(cell: str, text: str, start: str, end: str) -> str:
    return f"{start}{text}{end}" if isinstance(cell, Best) else text


FORMS: dict[str, Callable[[Sequence[Part]], str]] = {"terminal": terminal, "markdown": markdown, "latex": latex}
