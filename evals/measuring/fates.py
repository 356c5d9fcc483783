"""What became of the relevant documents of one system that another treats otherwise: why a recall differs.

Every relevant document has a fate in each run (attribution.py). The change of a fate's share of recall is paired by
query, like a metric, and the changes of all fates sum to 0: what is found more was lost less. Flows say which documents
these are: so many went from "never surfaced" to "found". Only attribution.jsonl is read. There is no test, because a
fate that is looked at after the fact is no hypothesis; the interval says how sure its change is.
"""

from collections import Counter
from typing import Any

import numpy as np

from evals.measuring.attribution import WORDS, Fate, choose_cutoffs, fate_at
from evals.measuring.repeats import System
from evals.measuring.scored import Run
from evals.measuring.stats import bootstrap_means
from tools.errors import DataError

# query_id -> relevant unit -> its fate; queries without a relevant unit are left out.
Fates = dict[str, dict[str, Fate]]
EXAMPLES = 3  # queries named of a flow
_ORDER = {fate: place for place, fate in enumerate(WORDS)}


def compare_fates(baseline: System, system: System) -> dict[str, Any] | None:
    """The changes of fates and the flows, at the cutoff of the baseline's headline metric; None without a document.

    DataError for a run whose folder does not say what became of its documents. With repeats, shares are means over
    them, and documents that flow are a mean over all pairs of a run of the one and a run of the other.
    """
    k = choose_cutoffs(baseline.first.metric, baseline.first.columns)[0]
    before, after = ([_read_fates(run, k) for run in one.runs] for one in (baseline, system))
    queries = [query_id for query_id in before[0] if all(query_id in fates for fates in (*before, *after))]
    if not queries:
        return None
    return {
        "run": system.name,
        "cutoff": k,
        "queries": len(queries),
        "changes": _changes(_shares(before, queries), _shares(after, queries)),
        **_flows(before, after, queries),
    }


def _read_fates(run: Run, k: int) -> Fates:
    """Of each query; what else a line says is left where it is, because there may be a million documents."""
    made: Fates = {}
    try:
        for query_id in run.query_ids:
            if relevant := run.judged[query_id]["relevant"]:
                made[query_id] = {one["unit"]: fate_at(one, k) for one in relevant}
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{run.path / 'attribution.jsonl'} is damaged or of another version ({error}); "
            f"python -m evals.score {run.path} scores it again"
        ) from None
    return made


def _shares(repeats: list[Fates], queries: list[str]) -> np.ndarray:
    """A row a query, a column a fate: its share of the query's relevant units, averaged over the repeats."""
    shares = np.zeros((len(queries), len(_ORDER)))
    for fates in repeats:
        for row, query_id in zip(shares, queries, strict=True):
            units = fates[query_id]
            for fate in units.values():
                row[_ORDER[fate]] += 1 / len(units)
    return shares / len(repeats)


def _changes(before: np.ndarray, after: np.ndarray) -> list[dict[str, Any]]:
    """A row a fate that a document had in either."""
    intervals = bootstrap_means(after - before)
    return [
        {"fate": fate.value, "baseline": float(before[:, place].mean()), "share": float(after[:, place].mean())}
        | {"difference": intervals[place].mean, "low": intervals[place].low, "high": intervals[place].high}
        for fate, place in _ORDER.items()
        if before[:, place].any() or after[:, place].any()
    ]


def _flows(before: list[Fates], after: list[Fates], queries: list[str]) -> dict[str, Any]:
    """How many documents went from one fate to another, most first, with their queries, and how many kept theirs."""
    counted: Counter[tuple[Fate, Fate]] = Counter()
    where: dict[tuple[Fate, Fate], dict[str, None]] = {}
    for query_id in queries:
        for one in before:
            for other in after:
                for unit in one[query_id].keys() & other[query_id].keys():  # all, unless other judgements were forced
                    moved = one[query_id][unit], other[query_id][unit]
                    counted[moved] += 1
                    where.setdefault(moved, {})[query_id] = None
    pairs = len(before) * len(after)
    order = sorted(counted, key=lambda pair: (-counted[pair], _ORDER[pair[0]], _ORDER[pair[1]]))
    return {
        "same": _whole(sum(count for (start, end), count in counted.items() if start is end), pairs),
        "flows": [
            {"from": pair[0].value, "to": pair[1].value, "documents": _whole(counted[pair], pairs)}
            | {"queries": len(where[pair]), "examples": list(where[pair])[:EXAMPLES]}
            for pair in order
            if pair[0] is not pair[1]
        ],
    }


def _whole(count: int, pairs: int) -> float:
    """A mean over pairs of runs; a whole number of documents where there is one pair."""
    return count if pairs == 1 else count / pairs
