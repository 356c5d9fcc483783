"""Gates of continuous integration: `sextant compare BASE NEW --fail-if "nDCG@10 < -0.02"`.

A gate bounds the mean difference of a metric from the baseline. Each run that is compared has to
pass each gate. A sure gate (`--fail-if-sure`) fails only if the whole interval of the difference is
beyond the threshold: for `<` it looks at the upper end, for `>` at the lower end.
"""

import argparse
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from sextant.evals.scoring.metrics import canonicalize_metric
from sextant.tools.errors import UnknownName, UsageError
from sextant.tools.records import JsonMapping, JsonObject

_FORM = re.compile(r"(.+?)\s*([<>])\s*([-+]?[\d.]+(?:e[-+]?\d+)?)\s*", re.IGNORECASE)


@dataclass(frozen=True)
class Gate:
    """An expression such as "nDCG@10 < -0.02"; a difference for which it is true fails."""

    metric: str
    sign: str  # < or >
    threshold: float
    sure: bool = False

    def __str__(self) -> str:
        return f"{self.metric} {self.sign} {self.threshold:g}"

    def is_beyond(self, value: float | None) -> bool:
        """Return whether a value is beyond the threshold; equal is not beyond, and None neither."""
        from sextant.evals.scoring.statistics import TIE  # NumPy: not for --help

        if value is None:
            return False
        beyond = self.threshold - value if self.sign == "<" else value - self.threshold
        return beyond >= TIE


def read_gate(text: str) -> Gate:
    """Read an expression such as "nDCG@10 < -0.02". An argument type."""
    try:
        match = _FORM.fullmatch(text.strip())
        metric, sign, number = match.groups() if match else ("", "", "")
        threshold = float(number)
    except ValueError:
        threshold = math.nan
    if not math.isfinite(threshold):
        raise argparse.ArgumentTypeError(
            f"{text!r:.200} is no gate; write METRIC < NUMBER, e.g. 'nDCG@10 < -0.02'"
        )
    return Gate(canonicalize_metric(metric), sign, threshold)


def read_sure_gate(text: str) -> Gate:
    """Read a gate that looks at the interval. An argument type."""
    gate = read_gate(text)
    return Gate(gate.metric, gate.sign, gate.threshold, sure=True)


def check_gates(gates: Sequence[Gate], comparisons: Sequence[JsonMapping]) -> list[JsonObject]:
    """Return a row for each gate and each run of the rows of a comparison.

    UnknownName for a metric that is not compared, UsageError for a metric without a value in both
    runs: a gate that measured nothing must not pass.
    """
    metrics = dict.fromkeys(row["metric"] for row in comparisons)
    rows = []
    for gate in gates:
        if gate.metric not in metrics:
            raise UnknownName("metric of this comparison", gate.metric, metrics)
        for row in comparisons:
            if row["metric"] == gate.metric:
                rows.append(_check(gate, row))
    return rows


def _check(gate: Gate, row: JsonMapping) -> JsonObject:
    if not row["queries"]:
        raise UsageError(f"gate {gate}: no query has a value in both the baseline and {row['run']}")
    end = {"<": "high", ">": "low"}[gate.sign]
    return {
        "run": row["run"],
        "metric": gate.metric,
        "sign": gate.sign,
        "threshold": gate.threshold,
        "by": end if gate.sure else "difference",
        **{key: row[key] for key in ("difference", "low", "high")},
        "passed": not gate.is_beyond(row[end] if gate.sure else row["difference"]),
    }


def describe_gate(row: JsonMapping) -> str:
    """Return a checked gate as a line: metric, difference, interval, threshold, passed or failed."""
    interval = "no interval, too few queries differ"
    if row["low"] is not None:
        interval = f"interval {row['low']:z.4f} to {row['high']:z.4f}"
    end = {"high": "the upper end of the interval ", "low": "the lower end of the interval "}
    side = {"<": "below", ">": "above"}[row["sign"]]
    verdict = "passed" if row["passed"] else "failed"
    return (
        f"gate {row['metric']} {verdict}: difference {row['difference']:+z.4f}, {interval}, "
        f"threshold {row['threshold']:g} (fails with {end.get(row['by'], 'a difference ')}{side} it)"
    )
