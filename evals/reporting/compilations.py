"""Gain and cost of optimizers: a row for each compilation (learnt.json) next to the runs of a
report.

What `sextant compile` prints of a compilation is in optimizers/result_report.py.
"""

from collections.abc import Iterable
from pathlib import Path
from statistics import fmean

from sextant.evals.reporting.report_page import report_table
from sextant.tools.errors import DataError
from sextant.tools.platform import files
from sextant.tools.platform.number_format import number
from sextant.tools.platform.result_table import ResultTable

NAMES = [
    "optimizer",
    "tasks",
    "validation",
    "gain",
    "95 % interval",
    "p",
    "gain on test",
    "on other tasks",
]
CSV_NAMES = ["candidates", "calls", "list price", "folder"]
NOTES = [
    "gain and p are on validation, p times the candidates chosen from; the gain leans upwards, as "
    "every maximum does",
    "gain on test, and on tasks that were not compiled on: of compilations with --held-out; a "
    "mean over (n) tasks",
]


def compilations_table(paths: Iterable[Path]) -> ResultTable | None:
    """Return the results of the compilations in these folders and below them; None if there are
    none.
    """
    rows = [
        _row(file)
        for file in sorted(
            {file for path in paths for file in path.rglob("compiled/*/*/learnt.json")}
        )
    ]
    return (
        report_table(
            "optimizers",
            "Optimizers",
            NAMES + CSV_NAMES,
            rows,
            words=(1,),
            long=(11,),
            notes=NOTES,
        )
        if rows
        else None
    )


def _row(file: Path) -> list[str]:
    try:
        record = files.loads(file.read_bytes())
        gain = record["gain"]
        held_out = record.get("held_out") or {}
        means = (
            f"{record['before']['mean']:.4f} to {record['after']['mean']:.4f} "
            f"({record['after']['queries']})"
        )
        interval = "" if gain["low"] is None else f"{gain['low']:+.4f} to {gain['high']:+.4f}"
        row = [
            f"{record['program']}, {record['optimizer']}, {record['lm']}",
            record["task"],
            means,
        ]
        row += [
            f"{gain['difference']:+.4f}",
            interval,
            number(gain["p_corrected"], "{:.3g}"),
        ]
        tested = held_out.get("tasks") or held_out.get("comparisons", [])[-1:]
        for compiled_on in (True, False):
            changes = [
                comparison["difference"]
                for comparison in tested
                if comparison.get("compiled_on", True) is compiled_on
            ]
            row.append(f"{fmean(changes):+.4f} ({len(changes)})" if changes else "")
        price = number(record["usage"]["list_usd"], "${:.4f}", "unknown")
        return [
            *row,
            str(gain["candidates"]),
            str(record["usage"]["calls"]),
            price,
            files.hide_folders(file.parent.as_posix()),
        ]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise DataError(
            f"{file} is damaged ({error}); give the command of the compilation again"
        ) from None
