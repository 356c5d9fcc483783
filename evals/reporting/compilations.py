"""Gain and cost of optimizers: a row for each compilation (learnt.json) next to the runs of a
report.

What `sextant compile` prints of a compilation is in optimizers/result_report.py.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean

from sextant.tools.errors import DataError
from sextant.tools.platform import files
from sextant.tools.platform.result_table import Cell, ResultTable, figure_cell, tabulate
from sextant.tools.records import JsonMapping, JsonObject

NOTES = [
    "gain and p are on validation, p times the candidates chosen from; the gain leans upwards, as "
    "every maximum does; interval: 95 %",
    "gain on test, and on tasks that were not compiled on: of compilations with --held-out; a "
    "mean over (n) tasks",
]


def compilations_table(paths: Iterable[Path]) -> ResultTable:
    """Return the results of the compilations in these folders and below them, a row for each."""
    found = {file for path in paths for file in path.rglob("compiled/*/*/learnt.json")}
    rows = []
    for file in sorted(found):
        try:
            rows.append(_make_row(files.loads(file.read_bytes()), file))
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise DataError(
                f"{file} is damaged ({error}); give the command of the compilation again"
            ) from None
    return tabulate("Optimizers", rows, stem="optimizers", notes=NOTES)


def _make_row(record: JsonMapping, file: Path) -> JsonObject:
    gain = record["gain"]
    after = record["after"]
    held_out = record.get("held_out") or {}
    tested = held_out.get("tasks") or held_out.get("comparisons", [])[-1:]
    validation = [record["before"]["mean"], after["mean"], after["queries"]]
    return {
        "optimizer": f"{record['program']}, {record['optimizer']}, {record['lm']}",
        "tasks": record["task"],
        "validation": Cell("{:.4f} to {:.4f} ({})", figures=validation),
        "gain": figure_cell(gain["difference"], "{:+.4f}"),
        "interval": Cell(
            "" if gain["low"] is None else f"{gain['low']:+.4f} to {gain['high']:+.4f}"
        ),
        "p": figure_cell(gain["p_corrected"], "{:.3g}", "unknown"),
        "gain on test": _mean_change(tested, compiled_on=True),
        "on other tasks": _mean_change(tested, compiled_on=False),
        "candidates": gain["candidates"],
        "calls": record["usage"]["calls"],
        "list price": figure_cell(record["usage"]["list_usd"], "${:.4f}", "unknown"),
        "folder": files.hide_folders(file.parent.as_posix()),
    }


def _mean_change(tested: Sequence[JsonMapping], *, compiled_on: bool) -> Cell:
    changes = []
    for comparison in tested:
        if comparison.get("compiled_on", True) is compiled_on:
            changes.append(comparison["difference"])
    return Cell("{:+.4f} ({})", figures=[fmean(changes), len(changes)]) if changes else Cell("")
