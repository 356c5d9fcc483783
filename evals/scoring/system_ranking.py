"""Several systems by several metrics: the best of each metric, and the systems that do not differ
from it.

Each other system is tested against the best of a metric over the queries that all have, as
evals/scoring/comparison.py tests pairs: by the headline metric, a family of tests, and by all other
metrics, another. The best was chosen by the same queries, so a p says how sure its lead is, and is
no test that was planned.
"""

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

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
    # family of tests -> a metric's row, the place of a system, and its differences from the best
    families = dict[str, list[tuple[JsonObject, int, list[np.ndarray]]]]()
    for metric in metrics:
        aligned = align_columns(*(system[metric] for system in systems)).values()
        columns = list(zip(*aligned, strict=True))
        row: JsonObject = {"metric": metric, "queries": len(aligned)}
        row |= {
            "means": [None] * len(systems),
            "leader": None,
            "tests": 0,
            "family": "",
        }
        row |= {key: [None] * len(systems) for key in ("p", "p_holm", "differs")}
        rows.append(row)
        if not columns:
            continue
        means = row["means"] = [sum(column) / len(column) for column in columns]
        leader = row["leader"] = means.index(
            max(
                means,
                key=partial(orient, metric),
            )
        )
        if metric in untested:
            continue
        family = families.setdefault(headline if metric == headline else OTHERS, [])
        for place, column in enumerate(columns):
            if place != leader:
                family.append((row, place, [subtract_columns(columns[leader], column)]))
    for name, contrasts in families.items():
        results = run_tests([differences for _, _, differences in contrasts])
        for (row, place, _), result in zip(contrasts, results, strict=True):
            row["p"][place] = result.p
            row["p_holm"][place] = result.p_holm
            row["differs"][place] = result.p_holm < ALPHA
            row |= {"tests": result.tests, "family": name}
    return rows
