"""What optimizers gained and what they cost: a row for each compilation (learnt.json) beside the runs of a report."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from evals.showing.report.page import Words
from tools import disk
from tools.console import number
from tools.errors import DataError

NAMES = ["optimizer", "tasks", "validation", "gain", "95 % interval", "p", "gain on test", "on other tasks"]
NOTES = (
    "gain and p are on validation, p times the candidates chosen from; the gain leans upwards, as every maximum does",
    "gain on test, and on tasks that were not compiled on: of compilations with --held-out; a mean over (n) tasks",
)


def compilations_table(paths: Iterable[Path]) -> Words | None:
    """Return what the compilations in these folders and below them came to; None where there are none."""
    files = sorted({file for path in paths for file in path.rglob("compiled/*/*/learnt.json")})
    if not files:
        return None
    more = ["candidates", "calls", "list price", "folder"]
    rows = [_row(file) for file in files]
    return Words("optimizers", "Optimizers", [*NAMES, *more], rows, {1}, {11}, notes=[*NOTES])


def _row(file: Path) -> list[str]:
    try:
        found = disk.loads(file.read_bytes())
        gain, held_out = found["gain"], found.get("held_out") or {}
        system = f"{found['program']}, {found['optimizer']}, {found['lm']}"
        means = f"{found['before']['mean']:.4f} to {found['after']['mean']:.4f} ({found['after']['queries']})"
        interval = "" if gain["low"] is None else f"{gain['low']:+.4f} to {gain['high']:+.4f}"
        tested = held_out.get("tasks") or held_out.get("comparisons", [])[-1:]
        test = [_mean(tested, compiled_on=one) for one in (True, False)]
        p, price = number(gain["p_corrected"], "{:.3g}"), number(found["usage"]["list_usd"], "${:.4f}", "unknown")
        used = [str(gain["candidates"]), str(found["usage"]["calls"]), price, file.parent.as_posix()]
        return [system, found["task"], means, f"{gain['difference']:+.4f}", interval, p, *test, *used]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise DataError(f"{file} is damaged ({error}); give the command of the compilation again") from None


def _mean(rows: Sequence[Mapping[str, Any]], *, compiled_on: bool) -> str:
    changes = [row["difference"] for row in rows if row.get("compiled_on", True) is compiled_on]
    return f"{fmean(changes):+.4f} ({len(changes)})" if changes else ""
