"""The gain and the cost of optimizers: a row for each comparison of a compilation (learnt.json) next to
the runs of a report.

The output of `sextant compile` is in optimizers/result_report.py.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from sextant.evals.reporting.findings import interval_cell, judge, p_cell
from sextant.tools.errors import DataError
from sextant.tools.platform import files
from sextant.tools.platform.result_table import ResultTable, figure_cell, tabulate
from sextant.tools.records import JsonMapping, JsonObject

NOTES = [
    "dev: the validation queries, by which the program was chosen from so many others, so its change "
    "leans upwards; p is multiplied by their number",
    "interval: 95 %, of the change; cost: of the whole compilation",
]


def compilations_table(paths: Iterable[Path]) -> ResultTable:
    """Return the comparisons of the compilations in these folders and below them."""
    found = {file for path in paths for file in path.rglob("compiled/*/*/learnt.json")}
    rows: list[JsonObject] = []
    for file in sorted(found):
        try:
            rows += _list_rows(files.loads(file.read_bytes()), file)
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise DataError(
                f"{file} is damaged ({error}); give the command of the compilation again"
            ) from None
    return tabulate("Optimizers", rows, stem="optimizers", notes=NOTES)


def _list_rows(record: JsonMapping, file: Path) -> Iterator[JsonObject]:
    """Yield a row for each task and split; one without figures if the program is kept as it was."""
    untested = {"task": record["task"], "split": "dev", "comparisons": [{}]}
    compared = [*record.get("on_validation", [untested]), *record.get("held_out", ())]
    untried = "kept as it was" if record["kept"] == "before" else "not tested"
    for comparison in compared:
        row = comparison["comparisons"][-1]
        is_other = comparison["task"] not in record["task"].split(",") and row
        yield {
            "optimizer": f"{record['program']}, {record['optimizer']}, {record['lm']}",
            "task": comparison["task"] + (", not compiled on" if is_other else ""),
            "split": comparison["split"],
            "metric": row.get("metric", ""),
            "before": figure_cell(row.get("baseline_mean"), unknown=""),
            "compiled": figure_cell(row.get("mean"), unknown=""),
            "change": figure_cell(row.get("difference"), "{:+z.4f}", ""),
            "interval": interval_cell(row) if row else "",
            "p": p_cell(row["p_holm"]) if row else "",
            "verdict": judge(row) if row else untried,
            "others": record["candidates"],
            "calls": record["usage"]["calls"],
            "list price": figure_cell(record["usage"]["list_usd"], "${:.4f}", "unknown"),
            "folder": files.hide_folders(file.parent.as_posix()),
        }
