"""A paper's figure, drawn from the cells that `sextant reproduce` made, and the cells as CSV.

The section of a figure has `drawn`, a table of

    kind                    lines or points, for each row along the columns; pools: lines along columns that are
                            sizes; or gaps: a point for each task, at the best value of its systems, and at that
                            of the system `x`
    rows, columns, panels   the sort of each: base, variant, task or metric; panels may be left out. The system
                            "Snowflake | Query-to-Doc" has the base Snowflake and the variant Query-to-Doc
    change                  a variant: its value is drawn less the value of the system without a variant
    value                   the label of the axis of values

A value that is printed by several judgements is drawn by the last of them: the pooled judgements,
in OBLIQ-Bench.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from sextant.evals.reporting.plots import (
    Panel,
    Point,
    Series,
    draw_panels,
    pdf,
    svg,
)
from sextant.evals.studies.reproduced_table import TableCell
from sextant.tools.platform import files as disk
from sextant.tools.platform.result_table import to_csv

SIDES = ("published", "ours")


def save_figure(
    name: str,
    title: str,
    cells: Sequence[TableCell],
    settings: Mapping[str, str],
    folder: Path,
) -> list[Path]:
    """Write the cells of a table as CSV, and a figure as SVG and PDF.

    Returns the files. `settings` is `drawn` of the section.
    """
    stem = folder / name.replace("/", "-")
    contents: dict[Path, str | bytes] = {}
    contents[stem.with_suffix(".csv")] = to_csv([TableCell._fields, *cells])
    if panels := make_panels(cells, settings):
        figure = draw_panels(panels)
        contents[stem.with_suffix(".svg")] = svg(figure, f"{name}: {title}")
        contents[stem.with_suffix(".pdf")] = pdf(figure, f"{name}: {title}")
    folder.mkdir(parents=True, exist_ok=True)
    for path, content in contents.items():
        disk.replace(path, content)
    return list(contents)


def make_panels(cells: Sequence[TableCell], settings: Mapping[str, str]) -> list[Panel]:
    """Return the panels of a figure: the paper's values and ours, each if there are any."""
    if not settings:
        return []
    if settings["kind"] == "gaps":
        return [_gaps_panel(cells, settings["x"])]
    is_change = "change" in settings
    panels: dict[str, Panel] = {}
    for side in SIDES:
        values = {cell[:3]: getattr(cell, side) for cell in cells}
        for (system, task, metric), value in values.items():
            base, _, variant = system.partition(" | ")
            labels = {
                "base": base,
                "variant": variant or "as it is",
                "metric": metric,
                "task": task.partition("/")[2].replace("*", "mean"),
            }
            if is_change:
                before = values.get((base, task, metric))
                is_changed = labels["variant"] == settings["change"]
                value = value - before if is_changed and None not in (value, before) else None
            if value is not None:
                title = ", ".join(filter(None, [side, labels.get(settings.get("panels", ""), "")]))
                panel = Panel("", settings.get("value", ""), [], title=title, zero=is_change)
                if settings["kind"] == "pools":
                    panel.x = "documents in the pool"
                    panel.scale = {"value": "log"}
                panel = panels.setdefault(title, panel)
                column = labels[settings["columns"]]
                _add_point(
                    panel,
                    settings["kind"],
                    labels[settings["rows"]],
                    column,
                    value,
                )
    return list(panels.values())


def _add_point(panel: Panel, kind: str, row: str, column: str, value: float) -> None:
    """Add the value of a row in a column; the columns of pools are their sizes."""
    places = {name: place for place, name in panel.ticks.items()}
    place = places.get(column, float(column) if kind == "pools" else float(len(places)))
    panel.ticks[place] = column
    line = next((series for series in panel.series if series.label == row), None)
    if line is None:
        line = Series(
            row,
            [],
            len(panel.series),
            "points" if kind == "points" else "line",
        )
        panel.series.append(line)
    line.points.append(Point(place, value))
    line.points.sort()


def _gaps_panel(cells: Sequence[TableCell], ceiling: str) -> Panel:
    """Return a point for each task, of the paper and of ours: x is the value of the system `ceiling`,
    y the best value of systems of other names.

    A name that begins with `ceiling` is a variant of it, and left out.
    """
    panel = Panel(f"nDCG@10 of {ceiling}", "nDCG@10 of the best of the others", [], diagonal=True)
    for number, side in enumerate(SIDES):
        points = []
        for task in dict.fromkeys(cell.task for cell in cells):
            values = {cell.system: getattr(cell, side) for cell in cells if cell.task == task}
            values = {system: value for system, value in values.items() if value is not None}
            rivals = [value for system, value in values.items() if not system.startswith(ceiling)]
            if ceiling in values and rivals:
                points.append(
                    Point(
                        values[ceiling],
                        max(rivals),
                        label=task.partition("/")[2],
                    )
                )
        if points:
            panel.series.append(Series(side, points, number))
    return panel
