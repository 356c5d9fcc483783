"""Several systems by several metrics: the best of each metric, and the systems that do not differ
from it.

Each other system is tested against the best of a metric over the queries that all have, as
evals/scoring/comparison.py tests pairs: by the headline metric, a family of tests, and by all other
metrics, another. The best was chosen by the same queries, so a p says how sure its lead is, and is
no test that was planned.
"""

from collections.abc import Mapping, Sequence
from functools import partial

from sextant.evals.scoring.metrics import orient
from sextant.evals.scoring.scored_run import Column, align_columns
from sextant.evals.scoring.statistics import ALPHA, OTHERS, run_tests, subtract_columns
from sextant.tools.records import JsonObject

# metric -> query id -> value of a system.
SystemValues = Mapping[str, Column]


def rank_systems(
    systems: Sequence[SystemValues],
    metrics: Sequence[str],
    untested: Sequence[str] = (),
    headline: str = "",
) -> list[JsonObject]:
    """Return a row for each metric: means, the best systems, and those that do not differ from it.

    Lists are in the order of `systems`; `p` and `p_holm` are None for the best system, and where
    nothing is tested, as in metrics of `untested`.
    """
    rows = []
    for metric in metrics:
        columns = [system[metric] for system in systems]
        rows.append(_rank(metric, list(align_columns(*columns).values()), len(systems)))
    tested = [row for row in rows if row["metric"] not in untested and row["queries"]]
    for is_headline, family in ((True, headline), (False, OTHERS)):
        _test([row for row in tested if (row["metric"] == headline) is is_headline], family)
    for row in rows:
        del row["values"]
    return rows


def _rank(metric: str, values: Sequence[Sequence[float]], systems: int) -> JsonObject:
    row: JsonObject = {
        "metric": metric,
        "queries": len(values),
        "means": [None] * systems,
        "leader": None,
        "tests": 0,
        "family": "",
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


def _test(rows: Sequence[JsonObject], family: str) -> None:
    """Add to the rows of a family of tests how each system differs from the best."""
    places = []
    contrasts = []
    for row in rows:
        columns = list(zip(*row["values"], strict=True))
        before = columns[row["leader"]]
        for place, after in enumerate(columns):
            if place != row["leader"]:
                places.append((row, place))
                contrasts.append([subtract_columns(before, after)])
    for (row, place), result in zip(places, run_tests(contrasts), strict=True):
        row["p"][place] = result.p
        row["p_holm"][place] = result.p_holm
        row["differs"][place] = result.p_holm < ALPHA
        row["tests"] = result.tests
        row["family"] = family
