"""Gates of continuous integration: `sextant compare BASE NEW --fail-if "nDCG@10 < -0.02"`.

A gate bounds the mean difference of a metric from the baseline. Each run that is compared has to
pass each gate. A sure gate (`--fail-if-sure`) fails only if the whole interval of the difference is
beyond the threshold: for `<` it looks at the upper end, for `>` at the lower end.
"""

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass

from sextant.evals.scoring.metrics import canonicalize_metric
from sextant.tools.errors import UnknownName, UsageError
from sextant.tools.records import JsonMapping, JsonObject

_FORM = re.compile(r"(.+?)\s*([<>])\s*([-+]?(?=\.?\d)\d{0,9}\.?\d{0,30}(?:[eE]-?\d\d?)?)")
_ENDS = {"<": "high", ">": "low"}
_WORDS = {"difference": "difference", "high": "upper end", "low": "lower end"}


@dataclass(frozen=True)
class Gate:
    """An expression such as "nDCG@10 < -0.02"; a difference for which it is true fails."""

    metric: str
    sign: str  # < or >
    threshold: float
    sure: bool

    def check(self, row: JsonMapping) -> JsonObject:
        """Return whether a row of a comparison passes, with what decides; equal is not beyond."""
        from sextant.evals.scoring.statistics import TIE  # NumPy: not for --help

        if not row["queries"]:
            raise UsageError(
                f"gate of {self.metric}: no query has a value in both the baseline and {row['run']}"
            )
        by = _ENDS[self.sign] if self.sure else "difference"
        beyond = 0.0 if row[by] is None else row[by] - self.threshold
        failed = beyond <= -TIE if self.sign == "<" else beyond >= TIE
        return {
            **{key: row[key] for key in ("run", "metric", "difference", "low", "high")},
            "by": by,
            "sign": self.sign,
            "threshold": self.threshold,
            "passed": not failed,
        }


def read_gate(text: str, *, sure: bool = False) -> Gate:
    """Read an expression such as "nDCG@10 < -0.02". An argument type."""
    match = _FORM.fullmatch(text.strip())
    if not match:
        raise argparse.ArgumentTypeError(
            f"{text!r:.200} is no gate; write METRIC < NUMBER, e.g. 'nDCG@10 < -0.02'"
        )
    return Gate(canonicalize_metric(match[1]), match[2], float(match[3]), sure)


def check_gates(gates: Sequence[Gate], comparisons: Sequence[JsonMapping]) -> list[JsonObject]:
    """Return a row for each gate and each run of the rows of a comparison.

    UnknownName for a metric that is not compared, UsageError for a metric without a value in both
    runs: a gate that measured nothing must not pass.
    """
    metrics = {row["metric"] for row in comparisons}
    for gate in gates:
        if gate.metric not in metrics:
            raise UnknownName("metric of this comparison", gate.metric, metrics)
    return [
        gate.check(row) for gate in gates for row in comparisons if row["metric"] == gate.metric
    ]


def describe_gate(row: JsonMapping) -> str:
    """Return a checked gate as a line: metric, difference, interval, threshold, passed or failed."""
    interval = "no interval as too few queries differ"
    if row["low"] is not None:
        interval = f"interval {row['low']:z.4f} to {row['high']:z.4f}"
    return (
        f"{row['run']}: gate {row['metric']} {'passed' if row['passed'] else 'failed'}: difference "
        f"{row['difference']:+z.4f}, {interval}; it fails if the {_WORDS[row['by']]} is "
        f"{row['sign']} {row['threshold']:g}"
    )
