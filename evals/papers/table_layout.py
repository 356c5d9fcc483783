"""A reproduced table for the terminal, as a page, and as Markdown, CSV and LaTeX.

Each form says under the table what stands in for a part of a system, and how the programs, pools
and prompts of its rows differ from the paper's. The cells are made in tables.py.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from sextant.evals.formats.import_run import slugify
from sextant.evals.papers.tables import MINIATURES, ROUNDING, count_equal
from sextant.evals.reporting import report_page
from sextant.evals.reporting.report_page import Report, ReportSection, report_table
from sextant.tools.platform import files as disk
from sextant.tools.platform.number_format import plural
from sextant.tools.platform.result_table import ResultTable, TextBlock
from sextant.tools.records import JsonMapping

HEADS = [
    "system",
    "metric",
    "published",
    "ours",
    "difference",
    "",
]
# Texts of a cell that stand below the table, under a number.
_REMARKS = ("remark", "note", "deviations")

Cell = JsonMapping


def lay_out(result: JsonMapping) -> list[TextBlock]:
    """Return the title, a table for each task, the remarks, and how many cells are made."""
    numbers = dict[str, int]()
    tables = [
        _lay_out_task(
            result,
            task,
            numbers,
        )
        for task in _list_tasks(result)
    ]
    blocks: list[TextBlock] = [f"{result['name']}: {result['title']}"]
    blocks += result["notes"]
    blocks += tables
    blocks += _list_remarks(result["cells"], numbers)
    return [*blocks, *_count(result)]


def _list_tasks(result: JsonMapping) -> list[str]:
    return list(dict.fromkeys(cell["task"] for cell in result["cells"]))


def _cells_of(result: JsonMapping, task: str) -> list[Cell]:
    return [cell for cell in result["cells"] if cell["task"] == task]


def _lay_out_task(
    result: JsonMapping,
    task: str,
    numbers: dict[str, int],
) -> ResultTable:
    """Return the table of a task; remarks that `numbers` lacks get their number there."""
    cells = _cells_of(result, task)
    rows = []
    previous = ""
    for cell in cells:
        name = "" if cell["system"] == previous else cell["system"]
        previous = cell["system"]
        rows.append(
            [
                name,
                *_cell_texts(cell, numbers),
            ]
        )
    below = [
        *result["notes"],
        *_list_remarks(
            cells,
            numbers,
        ),
    ]
    return ResultTable(
        task,
        HEADS,
        rows,
        names=(0, 1, 5),
        notes=below,
        stem=slugify(f"{result['name']}-{task}".replace("*", "mean")),
    )


def _cell_texts(cell: Cell, numbers: dict[str, int]) -> list[str]:
    """Return metric, values, and the numbers of the remarks of a cell."""
    metric = cell["metric"]
    if cell["judgements"]:
        metric += f" [{cell['judgements']}]"
    marks = []
    for key in _REMARKS:
        text = cell[key]
        if text:
            number = numbers.setdefault(
                text,
                len(numbers) + 1,
            )
            marks.append(f"({number})")
    return [
        metric,
        _number(cell["published"]),
        f"{_number(cell['ours'])} {cell['mark']}".rstrip(),
        _number(cell["difference"], sign="+"),
        " ".join(marks),
    ]


def _number(value: float | str | None, sign: str = "") -> str:
    if not isinstance(value, int | float):
        return value or "-"
    if abs(value) >= 1000:
        return f"{value:{sign},.0f}"
    if not sign and 0 < abs(value) < ROUNDING:
        # For example p of a regression.
        return f"{value:.1e}"
    # "z" writes a difference that is rounded to nothing as +0.000.
    return f"{value:{sign}z.3f}"


def _list_remarks(
    cells: Sequence[Cell],
    numbers: Mapping[str, int],
) -> list[str]:
    """Return the remarks of some cells, each once, by their numbers."""
    used = set[str]()
    for cell in cells:
        used.update(cell[key] for key in _REMARKS)
    remarks = []
    for text, number in numbers.items():
        if text in used:
            remarks.append(f"({number}) {text}")
    return remarks


def _count(result: JsonMapping) -> list[str]:
    cells = result["cells"]
    made = sum(cell["ours"] is not None for cell in cells)
    lines = [f"{plural(len(cells), 'cell')}, {made} of them made"]
    compared, equal = count_equal(cells)
    if compared and MINIATURES not in result["notes"]:
        lines.append(
            f"{equal} of {compared} values of ours are the paper's, to three decimals; each other "
            f"has its difference above"
        )
    if files := result.get("files"):
        lines.append(f"written: {Path(files[0]).parent} (index.html, report.md, tables/)")
    return lines


def save_page(result: JsonMapping, folder: Path) -> list[Path]:
    """Write the table as index.html, report.md, and as CSV and LaTeX in tables/; return the files."""
    numbers = dict[str, int]()
    page_tables = []
    latex = {}
    for task in _list_tasks(result):
        table = _lay_out_task(result, task, numbers)
        page_tables.append(_to_page_table(table, _cells_of(result, task), numbers))
        latex[f"tables/{table.stem}.tex"] = table.to_latex()
    sections = [
        ReportSection(
            table.stem,
            table.title,
            [table],
        )
        for table in page_tables
    ]
    report = Report(
        "; ".join(_count(result)),
        result["notes"],
        sections,
        runs=0,
        left_out={},
        title=f"{result['name']}: {result['title']}",
        legend=False,
    )
    disk.mkdir_private(folder)
    return report_page.write(report, folder, latex)


def _to_page_table(
    table: ResultTable, cells: Sequence[Cell], numbers: Mapping[str, int]
) -> ResultTable:
    """Return a table of the page; its CSV file has the texts of the remarks in each row."""
    rows = []
    for cell, texts in zip(cells, table.rows, strict=True):
        remarks = [str(cell[key]) for key in _REMARKS]
        rows.append(
            [
                str(cell["system"]),
                *texts[1:],
                *remarks,
            ]
        )
    return report_table(
        table.stem,
        table.title,
        [*HEADS[:-1], "remarks"],
        rows,
        words=(1, 5),
        csv_heads=_REMARKS,
        notes=_list_remarks(cells, numbers),
    )
