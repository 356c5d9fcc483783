"""Several systems by several metrics: the best of each metric, and the systems that do not differ
from it.

Each other system is tested against the best of a metric over the queries that all have, as
evals/scoring/comparison.py tests pairs; p is corrected over all these tests (Holm). The best was
chosen by the same queries, so a p says how sure its lead is, and is no test that was planned.
"""

from collections.abc import Mapping, Sequence
from functools import partial

from evals.scoring.metrics import orient
from evals.scoring.scored_run import Column, align_columns
from evals.scoring.statistics import ALPHA, holm, sign_flip, subtract_columns
from tools.records import JsonMapping, JsonObject

# metric -> query id -> value of a system.
SystemValues = Mapping[str, Column]


def rank_systems(
    systems: Sequence[SystemValues],
    metrics: Sequence[str],
    untested: Sequence[str] = (),
) -> list[JsonObject]:
    """Return a row for each metric: means, the best systems, and those that do not differ from it.

    Lists are in the order of `systems`; `p` and `p_holm` are None for the best system, and where
    nothing is tested, as in metrics of `untested`.
    """
    rows = []
    for metric in metrics:
        columns = [system[metric] for system in systems]
        values = list(align_columns(*columns).values())
        rows.append(_rank(metric, values, len(systems)))
    tests = len(metrics) * (len(systems) - 1)
    tested = []
    ps = []
    for row in rows:
        if row["metric"] in untested or not row["queries"]:
            continue
        for place in range(len(systems)):
            if place == row["leader"]:
                continue
            p = _test(row, place, tests)
            row["p"][place] = p
            ps.append(p)
            tested.append((row, place))
    for (row, place), p_holm in zip(tested, holm(ps), strict=True):
        row["p_holm"][place] = p_holm
        row["differs"][place] = p_holm < ALPHA
    for row in rows:
        del row["values"]
    return rows


def _rank(metric: str, values: Sequence[Sequence[float]], systems: int) -> JsonObject:
    row: JsonObject = {
        "metric": metric,
        "queries": len(values),
        "means": [None] * systems,
        "leader": None,
        "p": [None] * systems,
        "p_holm": [None] * systems,
        "differs": [None] * systems,
        "values": values,
    }
    if not values:
        return row
    means = []
    for column in zip(*values, strict=True):
        means.append(sum(column) / len(column))
    best = max(means, key=partial(orient, metric))
    row["means"] = means
    row["leader"] = means.index(best)
    return row


def _test(row: JsonMapping, place: int, tests: int) -> float:
    leader = row["leader"]
    before = [values[leader] for values in row["values"]]
    after = [values[place] for values in row["values"]]
    return sign_flip(subtract_columns(before, after), tests=tests)
