"""A report as files: index.html, report.md, a CSV file for each table, an SVG file for each plot.

The page holds everything in itself, runs no script, and its policy of contents allows none; plots
are images in it, so nothing in them is part of the page. Text of runs is data: escaped in HTML and
Markdown, without control characters. The same runs make the same bytes.
"""

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from sextant.evals import web_page
from sextant.evals.formats.export_run import fill_folder
from sextant.evals.reporting.plots import Plot
from sextant.evals.run_descriptions import printable
from sextant.tools.errors import UsageError
from sextant.tools.platform import files as disk
from sextant.tools.platform.result_table import ResultTable, in_markdown, markdown_rows

GENERATOR = "sextant report"
_TEMPLATES = Path(__file__).parent / "templates"


@dataclass(slots=True)
class ReportSection:
    """A part of the report under a heading."""

    stem: str
    title: str
    items: Sequence[ResultTable | Plot]
    notes: list[str] = field(default_factory=list)
    # Lines that are folded below the notes: of the runs, as how programs differ from the papers'.
    folded: list[str] = field(default_factory=list)


@dataclass
class Report:
    """Everything in it, before it is written."""

    summary: str
    warnings: list[str]
    sections: list[ReportSection]
    runs: int = 0
    # Run folder -> the reason why it is not in the report.
    left_out: dict[str, str] = field(default_factory=dict)
    title: str = "Sextant report"
    # Whether it says what bold means in its tables, and where intervals are.
    legend: bool = True

    @property
    def plots(self) -> list[Plot]:
        """All its plots."""
        return [item for item in self._items if isinstance(item, Plot)]

    @property
    def tables(self) -> list[ResultTable]:
        """All its tables."""
        return [item for item in self._items if isinstance(item, ResultTable)]

    @property
    def _items(self) -> list[ResultTable | Plot]:
        return [item for section in self.sections for item in section.items]


def check(out: Path) -> None:
    """UsageError for a folder that has something in it which is no report: nothing of the
    user's is overwritten.
    """
    page = out / "index.html"
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out} is a file; --out is a folder")
    is_report = page.is_file() and GENERATOR in page.read_text("utf-8", "replace")
    if out.is_dir() and any(out.iterdir()) and not is_report:
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
    program = web_page.join_scripts([(web_page.PAGE / "theme.js").read_text(encoding="utf-8")])
    head = web_page.plain_shell(str(escape(printable(report.title))), meta, style, program)
    around = {"head": Markup(head), "program": Markup(program)}
    files: dict[str, str | bytes] = {
        "index.html": _render("report.html", report, escape=True, **around),
        "report.md": re.sub(r"\n{3,}", "\n\n", _render("report.md", report, escape=False)).strip()
        + "\n",
        **{f"tables/{table.stem}.csv": table.to_csv() for table in report.tables},
        **{f"plots/{plot.stem}.svg": plot.svg for plot in report.plots},
        **(extra_files or {}),
    }
    with fill_folder(out, force=True) as folder:
        for name, text in files.items():
            disk.mkdir_private((folder / name).parent)
            (folder / name).write_bytes(
                text if isinstance(text, bytes) else text.encode("utf-8", "backslashreplace")
            )
    for old in (*out.glob("tables/*.*"), *out.glob("plots/*.*")):
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
    environment.filters["md"] = lambda text: _write_entities(in_markdown(printable(text)))
    # Markup, whose line breaks `finalize` leaves in it
    environment.filters["rows"] = lambda table: Markup(_write_entities(markdown_rows(table)))
    return environment.get_template(name).render(vars(report) | values, generator=GENERATOR)


def _write_entities(markdown: str) -> str:
    """Return Markdown in which no reader of HTML sees a tag."""
    return markdown.replace("\\&", "&amp;").replace("\\<", "&lt;")
