"""A paper's figure, drawn from the cells that `sextant reproduce` made, with the paper's values next to ours.

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

from sextant.evals.reporting.plots import Panel, Point, Series, draw_panels, pdf, svg
from sextant.evals.studies.reproduced_table import TableCell

SIDES = ("published", "ours")


def draw_figure(
    stem: str, title: str, cells: Sequence[TableCell], drawn: Mapping[str, str]
) -> dict[str, str | bytes]:
    """Return a figure as SVG and PDF, by the names of their files; none without anything to draw.

    `drawn` is that of the section.
    """
    panels = make_panels(cells, drawn) if drawn else []
    if not panels:
        return {}
    figure = draw_panels(panels)
    return {
        f"{stem}.svg": svg(figure, title),
        f"{stem}.pdf": pdf(figure, title),
    }


def make_panels(cells: Sequence[TableCell], drawn: Mapping[str, str]) -> list[Panel]:
    """Return the panels of a figure: the paper's values and ours, each if there are any."""
    if drawn["kind"] == "gaps":
        return [_gaps_panel(cells, drawn["x"])]
    change = drawn.get("change")
    panels: dict[str, Panel] = {}
    for side in SIDES:
        values = {(cell.system, cell.task, cell.metric): getattr(cell, side) for cell in cells}
        for (system, task, metric), value in values.items():
            base, _, variant = system.partition(" | ")
            names = {
                "base": base,
                "variant": variant or "as it is",
                "metric": metric,
                "task": task.partition("/")[2].replace("*", "mean"),
            }
            if change:
                before = values.get((base, task, metric))
                value = (
                    value - before if variant == change and None not in (value, before) else None
                )
            if value is not None:
                title = ", ".join(filter(None, [side, names.get(drawn.get("panels", ""), "")]))
                panel = panels.setdefault(
                    title, Panel("", drawn.get("value", ""), [], title=title, zero=bool(change))
                )
                _add_point(
                    panel, drawn["kind"], names[drawn["rows"]], names[drawn["columns"]], value
                )
    return list(panels.values())


def _add_point(panel: Panel, kind: str, row: str, column: str, value: float) -> None:
    """Add the value of a row in a column; the columns of pools are their sizes."""
    places = {name: place for place, name in panel.ticks.items()}
    place = places.get(column, float(len(places)))
    if kind == "pools":
        place = float(column)
        panel.x = "documents in the pool"
        panel.scale = {"value": "log"}
    panel.ticks[place] = column
    for line in panel.series:
        if line.label == row:
            break
    else:
        line = Series(row, [], len(panel.series), "points" if kind == "points" else "line")
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
        by_task: dict[str, dict[str, float]] = {}
        for cell in cells:
            if (value := getattr(cell, side)) is not None:
                by_task.setdefault(cell.task, {})[cell.system] = value
        points = []
        for task, values in by_task.items():
            rivals = [value for system, value in values.items() if not system.startswith(ceiling)]
            if ceiling in values and rivals:
                label = task.partition("/")[2]
                points.append(Point(values[ceiling], max(rivals), label=label))
        if points:
            panel.series.append(Series(side, points, number))
    return panel
