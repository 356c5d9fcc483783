"""What the papers print for the columns of a table, and why it is not there where it is not.

Published rows are there only beside runs over whole splits of the full release, for the same split and judgements.
"""

from collections.abc import Sequence

from evals import published
from evals.showing.report.cells import Cell, Column, Row, Table
from evals.showing.report.groups import PAPERS, Group

DECIMALS = {"multiconir": 4}  # as the papers print them; the others have 3
MEAN = "*"  # a task that is the mean of all of a suite's, as in evals.published


def mean_task(group: Group) -> str:
    """The name of the mean over a suite's tasks in evals.published."""
    return f"{group.suite}/{MEAN}" + (f":{group.variant}" if group.variant else "")


def published_rows(group: Group, columns: Sequence[Column]) -> list[Row]:
    """The papers' rows for these columns, by system; several of one where the paper's tables contradict each other."""
    found: dict[str, dict[str, dict[int, published.Figure]]] = {}
    for place, column in enumerate(columns):
        for figure in figures_for(group, column):
            found.setdefault(figure.system, {}).setdefault(figure.table, {}).setdefault(place, figure)
    return [
        _published_row(group, system, row, len(columns))
        for system in sorted(found)
        for row in _together(list(found[system].values()))
    ]


def _together(rows: list[dict[int, published.Figure]]) -> list[list[dict[int, published.Figure]]]:
    """Rows of several tables in as few as hold them: what continues or repeats a row goes with it."""
    kept: list[list[dict[int, published.Figure]]] = []
    for row in sorted(rows, key=len, reverse=True):
        for members in kept:
            if all(row[place].value == one[place].value for one in members for place in row.keys() & one.keys()):
                members.append(row)
                break
        else:
            kept.append([row])
    return kept


def figures_for(group: Group, column: Column) -> list[published.Figure]:
    """What the paper prints for a column, whatever the system; nothing for runs that it may not stand beside."""
    if not group.whole or not column.figure_task:
        return []
    return [
        figure
        for figure in published.figures()
        if (figure.task, figure.metric, figure.split) == (column.figure_task, column.metric, group.split)
        and figure.judgements in ("", column.judgements)
    ]


def is_bound(figure: published.Figure) -> bool:
    """Whether a published figure is no system's: the maximum, or a ranking of pools with gold in them."""
    return "bound, not a" in figure.note


def _published_row(group: Group, system: str, rows: list[dict[int, published.Figure]], many: int) -> Row:
    paper, decimals = PAPERS.get(group.suite, group.suite), DECIMALS.get(group.suite, 3)
    figures = [figure for row in rows for figure in row.values()]
    numbers = sorted({int(figure.table.split()[-1]) for figure in figures})
    cells: list[Cell | None] = [None] * many
    for place, figure in ((place, figure) for row in rows for place, figure in row.items()):
        source = f"{paper}, {figure.table}, row {figure.row}"
        text = f"{figure.value:.{decimals}f}"
        cells[place] = cells[place] or Cell(figure.value, text, source, error=figure.error, note=figure.note)
    where = f"Table{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
    label = f"{system} ({paper}, {where})"
    return Row("published", label, cells, None, ranked=not any(map(is_bound, figures)))


def why_no_published(group: Group, made: Sequence[Table]) -> str:
    """Why a group has no published row; empty where it has some."""
    if any(table.of_kind("published") for table in made):
        return ""
    if group.data == "mini":
        task = group.tasks[0]
        return (
            "No published figures: these are the bundled miniatures, which are invented. They stand beside runs over "
            f"the full release: python -m environments fetch {task}, then python -m evals.run --data full"
        )
    if group.data != "full":
        return "No published figures: the data is a folder's, not the pinned release that evals.run --data full reads"
    if group.asked:
        return "No published figures: only a part of the queries was asked"
    splits = {
        figure.split
        for figure in published.figures()
        for task in group.tasks
        if figure.task in (task, mean_task(group))
    }
    if splits and group.split not in splits:
        return f"No published figures: the paper's are for --split {' and '.join(sorted(splits))}"
    return "No published figures: the paper has none for this variant and these metrics"
