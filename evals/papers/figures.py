"""A paper's figure, drawn from the cells that `evals.reproduce` made, and those cells as CSV.

The section of a figure has `drawn`, a table of

    kind                    lines, bars, squares, pools (evals/reporting/plots.py); points, which are in `found`;
                            or gaps:
                            a point for each task, at the best value of its systems, and at that of the system `x`
    rows, columns, panels   what tells these apart: base, variant, task or metric; panels may be left out. The system
                            "Snowflake | Query-to-Doc" has the base Snowflake and the variant Query-to-Doc
    change                  a variant: what is drawn is its value less that of the system without a variant
    value                   what the axis of values says

A value that is printed by several judgements is drawn by the last of them: pooled ones, in
OBLIQ-Bench.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from evals.reporting.plots import Table, draw_points, draw_table, pdf, svg
from evals.text_tables import to_csv
from tools import files as disk

SIDES = ("published", "ours")


def save_figure(found: Mapping[str, Any], drawn: Mapping[str, str], folder: Path) -> list[Path]:
    """Write the cells of a table, or a figure's points, as CSV, and a figure as SVG and PDF;
    return the files.
    """
    stem = folder / found["name"].replace("/", "-")
    title = f"{found['name']}: {found['title']}"
    cells = found.get("points") or found["cells"]
    table = to_csv([cells[0], *(cell.values() for cell in cells)])
    files: dict[Path, str | bytes] = {stem.with_suffix(".csv"): table}
    figure = None
    if "points" in found:
        figure = draw_points(cells)
    elif drawn.get("kind") == "gaps":
        axes = f"nDCG@10 of {drawn['x']}", "nDCG@10 of the best of the others"
        figure = draw_points(gap_points(cells, drawn["x"]), axes)
    elif drawn and (panels := arrange_panels(cells, drawn)):
        figure = draw_table(drawn["kind"], panels, drawn.get("value", ""))
    if figure:
        files |= {
            stem.with_suffix(".svg"): svg(figure, title),
            stem.with_suffix(".pdf"): pdf(figure, title),
        }
    folder.mkdir(parents=True, exist_ok=True)
    for path, content in files.items():
        disk.replace(path, content)
    return list(files)


def arrange_panels(
    cells: Sequence[Mapping[str, Any]], drawn: Mapping[str, str]
) -> dict[str, Table]:
    """Return the panels of a figure: what the paper prints, and ours, each where there are
    values.
    """
    panels: dict[str, dict[str, dict[str, float | None]]] = {}
    for side in SIDES:
        values = {(cell["system"], cell["task"], cell["metric"]): cell[side] for cell in cells}
        for (system, task, metric), value in values.items():
            base, _, variant = system.partition(" | ")
            at = {"base": base, "variant": variant or "as it is", "metric": metric}
            at["task"] = task.partition("/")[2].replace("*", "mean")
            if "change" in drawn:
                before = values.get((base, task, metric))
                known = variant == drawn["change"] and None not in (value, before)
                value = value - before if known else None
            if value is not None:
                panel = ", ".join(filter(None, [side, at.get(drawn.get("panels", ""))]))
                row = panels.setdefault(panel, {}).setdefault(at[drawn["rows"]], {})
                row[at[drawn["columns"]]] = value
    return dict(panels)


def gap_points(cells: Sequence[Mapping[str, Any]], ceiling: str) -> list[dict[str, Any]]:
    """Return a point for each task: x is the value of the system `ceiling`, y the best of those of
    other names.

    A name that begins with that of `ceiling` is a variant of it, and left out.
    """
    points = []
    for side, task in product(SIDES, dict.fromkeys(cell["task"] for cell in cells)):
        known = [cell for cell in cells if cell["task"] == task and cell[side] is not None]
        values = {cell["system"]: cell[side] for cell in known}
        others = [value for system, value in values.items() if not system.startswith(ceiling)]
        if ceiling in values and others:
            points.append(
                {"id": task.partition("/")[2], "kind": side, "x": values[ceiling], "y": max(others)}
            )
    return points
