"""A report as files: index.html, report.md, a CSV file for each table, an SVG file for each plot.

The page holds everything in itself, runs no script, and its policy of contents allows none; plots
are images in it, so nothing in them is part of the page. Text of runs is data: escaped in HTML and
Markdown, without control characters, and in CSV a cell that a spreadsheet would take for a formula
gets an apostrophe before it. The same runs make the same bytes.
"""

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from evals import web_page
from evals.formats.export_run import fill_folder
from evals.reporting.report_plots import Plot
from evals.reporting.report_tables import HEADS, FigureTable, ResultCell, ResultColumn
from evals.reporting.run_groups import short_task_name
from evals.run_descriptions import printable
from tools import files as disk
from tools import result_table as tables
from tools.errors import UsageError

GENERATOR = "sextant evals.report"
_TEMPLATES = Path(__file__).parent / "templates"


@dataclass(slots=True)
class CsvTable:
    """A table of texts and formatted numbers; cells beyond the names are in its CSV file only."""

    stem: str
    title: str
    names: list[str]
    rows: list[list[str]]
    # Columns of short words, in addition to the first.
    words: set[int] = field(default_factory=set)
    # Columns of text that may need several lines.
    long: set[int] = field(default_factory=set)
    # Names of the columns that only the CSV file has.
    more: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class ReportSection:
    """A part of the report under a heading."""

    stem: str
    title: str
    items: Sequence[FigureTable | CsvTable | Plot]
    notes: list[str] = field(default_factory=list)


@dataclass
class Report:
    """Everything in it, before it is written."""

    summary: str
    warnings: list[str]
    sections: list[ReportSection]
    runs: int
    # Run folder -> the reason why it is not in the report.
    left_out: dict[str, str]
    title: str = "Sextant report"
    # Whether it says what bold and tooltips of its tables mean.
    legend: bool = True

    @property
    def plots(self) -> list[Plot]:
        """All its plots."""
        return [
            item for section in self.sections for item in section.items if isinstance(item, Plot)
        ]

    @property
    def tables(self) -> list[FigureTable | CsvTable]:
        """All its tables."""
        return [
            item
            for section in self.sections
            for item in section.items
            if not isinstance(item, Plot)
        ]


def check(out: Path) -> None:
    """UsageError for a folder that has something in it which is no report: nothing of the
    user's is overwritten.
    """
    page = out / "index.html"
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out} is a file; --out is a folder")
    if (
        out.is_dir()
        and any(out.iterdir())
        and not (page.is_file() and GENERATOR in page.read_text("utf-8", "replace"))
    ):
        raise UsageError(f"{out} is not empty and holds no earlier report; choose another --out")


def write(
    report: Report, out: Path, extra_files: Mapping[str, str | bytes] | None = None
) -> list[Path]:
    """Write the report and `extra_files` into a folder, in place of an earlier report; return the
    files, index.html first.
    """
    style = (web_page.PAGE / "page.css").read_text(encoding="utf-8")
    meta = f'<meta name="generator" content="{GENERATOR}">\n'
    meta += '<meta name="referrer" content="no-referrer">\n'
    head = web_page.quiet_shell(str(escape(printable(report.title))), meta, style)
    files: dict[str, str | bytes] = {
        "index.html": _render("report.html", report, escape=True, head=Markup(head)),
        "report.md": re.sub(r"\n{3,}", "\n\n", _render("report.md", report, escape=False)).strip()
        + "\n",
        **{f"tables/{table.stem}.csv": to_csv(table) for table in report.tables},
        **{f"plots/{plot.stem}.svg": plot.light for plot in report.plots},
        **(extra_files or {}),
    }
    with fill_folder(out, force=True) as folder:
        for name, text in files.items():
            disk.mkdir_private((folder / name).parent)
            (folder / name).write_bytes(
                text if isinstance(text, bytes) else text.encode("utf-8", "backslashreplace")
            )
    for old in (
        *out.glob("tables/*.*"),
        *out.glob("plots/*.*"),
    ):
        if old.relative_to(out).as_posix() not in files:
            # It is of an earlier report: a reader would take it for a part of this one.
            old.unlink()
    return [out / name for name in files]


def _render(name: str, report: Report, *, escape: bool, **values: Any) -> str:
    blanks: Any = dict.fromkeys(("trim_blocks", "lstrip_blocks", "keep_trailing_newline"), True)
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES), autoescape=escape, undefined=StrictUndefined, **blanks
    )
    environment.finalize = lambda value: (
        printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value
    )
    environment.filters["image"] = lambda svg: (
        f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"
    )
    environment.filters["md"] = _to_markdown
    return environment.get_template(name).render(
        vars(report) | values, heads=HEADS, generator=GENERATOR
    )


def _to_markdown(text: object) -> str:
    return tables.in_markdown(printable(text)).replace("\\&", "&amp;").replace("\\<", "&lt;")


_HEAD = [
    "kind",
    "system",
    "task",
    "judgements",
    "metric",
    "value",
    "low",
    "high",
    "error",
    "queries",
    "failed",
    "best",
]
_HEAD += ["source", "note", "resampled_mean", "resampled_error", "answers"]


def to_csv(table: FigureTable | CsvTable) -> str:
    """Return a table as CSV, with all that is known of its figures."""
    if isinstance(table, CsvTable):
        rows: list[Sequence[object]] = [
            [*table.names, *table.more],
            *table.rows,
        ]
    else:
        rows = [_HEAD]
        for row in table.rows:
            for column, cell in zip(table.columns, row.cells, strict=True):
                if cell is not None:
                    rows.append(
                        [
                            row.kind,
                            row.label,
                            *_column_cells(column),
                            *_figures(cell),
                        ]
                    )
    return tables.to_csv([_defuse(cell) for cell in row] for row in rows)


def _column_cells(column: ResultColumn) -> list[str]:
    task = column.tasks[0]
    if len(column.tasks) > 1:
        task = f"mean of {', '.join(map(short_task_name, column.tasks))}"
    return [task, column.judgements, column.metric]


def _figures(cell: ResultCell) -> list[object]:
    resampled_mean, resampled_error = cell.resampled or (None, None)
    return [
        cell.value,
        cell.low,
        cell.high,
        cell.error,
        cell.queries,
        cell.failed,
        "yes" if cell.best else "",
        cell.source,
        cell.note,
        resampled_mean,
        resampled_error,
        cell.answers,
    ]


# A number, and one with its interval as the table of gaps has it; nothing that could be reckoned
# with.
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?%?( \(-?\d+(\.\d+)?%? to -?\d+(\.\d+)?%?\))?")


def _defuse(cell: object) -> object:  # what no spreadsheet takes for a formula (CWE-1236)
    if cell is None or isinstance(cell, int | float):
        return "" if cell is None else repr(cell)
    text = printable(cell)
    return (
        f"'{text}"
        if text.startswith(
            (
                "=",
                "+",
                "-",
                "@",
                "\t",
                "\r",
            )
        )
        and not _NUMBER.fullmatch(text)
        else text
    )
