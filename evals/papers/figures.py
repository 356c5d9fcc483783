"""A paper's figure, drawn from the cells that `sextant reproduce` made, and the cells as CSV.

The section of a figure has `drawn`, a table of

    kind                    lines, bars, squares, pools (evals/reporting/plots.py); or gaps:
                            a point for each task, at the best value of its systems, and at that of the system `x`
    rows, columns, panels   the sort of each: base, variant, task or metric; panels may be left out. The system
                            "Snowflake | Query-to-Doc" has the base Snowflake and the variant Query-to-Doc
    change                  a variant: its value is drawn less the value of the system without a variant
    value                   the label of the axis of values

A value that is printed by several judgements is drawn by the last of them: the pooled judgements,
in OBLIQ-Bench.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

from matplotlib.figure import Figure

from sextant.evals.reporting.plots import Table, draw_points, draw_table, pdf, svg
from sextant.tools.platform import files as disk
from sextant.tools.platform.result_table import to_csv
from sextant.tools.records import JsonMapping, JsonObject

SIDES = ("published", "ours")

_Key = tuple[str, str, str]


def save_figure(
    result: JsonMapping,
    settings: Mapping[str, str],
    folder: Path,
) -> list[Path]:
    """Write the cells of a table as CSV, and a figure as SVG and PDF.

    Returns the files. `settings` is `drawn` of the section.
    """
    stem = folder / result["name"].replace("/", "-")
    title = f"{result['name']}: {result['title']}"
    rows = result["cells"]
    table = to_csv(
        [
            rows[0],
            *(row.values() for row in rows),
        ]
    )
    contents: dict[Path, str | bytes] = {stem.with_suffix(".csv"): table}
    figure = _draw(result, settings)
    if figure:
        contents[stem.with_suffix(".svg")] = svg(figure, title)
        contents[stem.with_suffix(".pdf")] = pdf(figure, title)
    folder.mkdir(parents=True, exist_ok=True)
    for path, content in contents.items():
        disk.replace(path, content)
    return list(contents)


def _draw(
    result: JsonMapping,
    settings: Mapping[str, str],
) -> Figure | None:
    cells = result["cells"]
    if settings.get("kind") == "gaps":
        axes = f"nDCG@10 of {settings['x']}", "nDCG@10 of the best of the others"
        return draw_points(gap_points(cells, settings["x"]), axes)
    panels = arrange_panels(cells, settings) if settings else {}
    if not panels:
        return None
    return draw_table(settings["kind"], panels, settings.get("value", ""))


def arrange_panels(cells: Sequence[JsonMapping], settings: Mapping[str, str]) -> dict[str, Table]:
    """Return the panels of a figure: the paper's values and ours, each if there are any."""
    panels: dict[str, dict[str, dict[str, float | None]]] = {}
    for side in SIDES:
        values = {}
        for cell in cells:
            values[cell["system"], cell["task"], cell["metric"]] = cell[side]
        for key in values:
            value = _value_to_draw(values, key, settings)
            if value is None:
                continue
            labels = _labels(key)
            panel_label = labels.get(settings.get("panels", ""))
            panel = panels.setdefault(
                f"{side}, {panel_label}" if panel_label else side,
                {},
            )
            row = panel.setdefault(labels[settings["rows"]], {})
            row[labels[settings["columns"]]] = value
    return dict(panels)


def _value_to_draw(
    values: Mapping[_Key, float | None], key: _Key, settings: Mapping[str, str]
) -> float | None:
    value = values[key]
    if "change" not in settings:
        return value
    system, task, metric = key
    base, _, variant = system.partition(" | ")
    before = values.get((base, task, metric))
    if variant != settings["change"] or value is None or before is None:
        return None
    return value - before


def _labels(key: _Key) -> dict[str, str]:
    system, task, metric = key
    base, _, variant = system.partition(" | ")
    return {
        "base": base,
        "variant": variant or "as it is",
        "metric": metric,
        "task": task.partition("/")[2].replace("*", "mean"),
    }


def gap_points(
    cells: Sequence[JsonMapping],
    ceiling: str,
) -> list[JsonObject]:
    """Return a point for each task: x is the value of the system `ceiling`, y the best value of
    systems of other names.

    A name that begins with `ceiling` is a variant of it, and left out.
    """
    points = []
    tasks = dict.fromkeys(cell["task"] for cell in cells)
    for side, task in product(SIDES, tasks):
        values = {}
        for cell in cells:
            if cell["task"] == task and cell[side] is not None:
                values[cell["system"]] = cell[side]
        rivals = [value for system, value in values.items() if not system.startswith(ceiling)]
        if ceiling in values and rivals:
            name = task.partition("/")[2]
            points.append(
                {
                    "id": name,
                    "kind": side,
                    "x": values[ceiling],
                    "y": max(rivals),
                }
            )
    return points
