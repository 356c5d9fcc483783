"""Compare runs with a baseline, query by query.

Each other system is compared with the first in every metric (stats.py has the tests, docs/decisions/comparing.md their
reasons), and in what became of relevant documents (fates.py). Runs of one configuration are repeats of one system
(repeats.py). Run folders are all that is read. Runs that were not asked the same are refused, because their difference
would not be that of the systems.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evals import folder as run_folder
from evals.measuring.fates import compare_fates
from evals.measuring.missing_metrics import check_names, fill_metrics
from evals.measuring.repeats import SEEDS, System, cost_per_query, group_repeats, measure_spread
from evals.measuring.scored import CONTRACT, Run, describe_cuts, differences, pair, read
from evals.measuring.stats import TIE, Paired, holm, paired
from tools.errors import DataError, UnknownName, UsageError

Result = dict[str, Any]  # what `compare` returns and --json prints
MOVED = 5  # queries shown that moved most, up and down each
LEAST = 6  # differences with which p can be below .05 at all: 2 of 2^6 assignments of signs


def compare(paths: Sequence[Path], metrics: Sequence[str] = (), *, force: bool = False) -> Result:
    """Compare the system of the first run folder with each of the others; `metrics` are all of both if none is named.

    A metric that a run's scores lack is computed from its outcomes. UnknownName for a metric that is none, UsageError
    for runs that were not asked the same, unless `force`; DataError or RunIncomplete for one without scores.
    """
    if len(paths) < 2:
        raise UsageError("one run has nothing to be compared with; name two or more run folders")
    check_names(metrics)
    runs = [read(path) for path in paths]
    runs, problems = fill_metrics(runs, metrics)
    if problems:
        raise problems[0]
    baseline, *others = grouped = _group(runs, paths)
    forced, notes = _check_contracts(runs[0], runs[1:], metrics, force=force)
    chosen = [_choose_metrics(baseline, system, metrics) for system in others]
    pairs = list(zip(others, chosen, strict=True))
    comparisons = [_compare_metric(baseline, system, name) for system, names in pairs for name in names]
    _adjust(comparisons)
    losses, untold = _compare_losses(baseline, others)
    first, headline = runs[0], chosen[0][0]  # the headline, where it is among them: it is the first in a run's table
    return {
        "baseline": baseline.name,
        "runs": [system.name for system in others],
        "task": first.config["task"],
        "data": first.scores["data"],
        "split": first.config["split"],
        "judgements": first.scores["judgements"],
        "metric": headline,
        "forced": forced,
        "notes": [
            *notes,
            *_note_rows(comparisons),
            *untold,
            *_note_repeats(grouped, runs, headline),
            *(f"{run.name}: {line}" for run in runs for line in describe_cuts(run.scores)),
        ],
        "systems": [_describe(system, names) for system, names in zip(grouped, [chosen[0], *chosen], strict=True)],
        "differences": [{"run": system.name, "keys": _changed_keys(baseline, system)} for system in others],
        "comparisons": comparisons,
        "losses": losses,
        "cost": [cost_per_query(system) for system in grouped],
        "moved": [row for system, names in pairs for row in _find_moved(baseline, system, names[0])],
    }


def is_lower_better(metric: str) -> bool:
    """Whether less of a metric is better: only of Flip, the share of comparisons that come out otherwise."""
    return metric.partition(" ")[0] == "Flip"


def _group(runs: list[Run], paths: Sequence[Path]) -> list[System]:
    """The systems to compare, the baseline first: repeats together, or each run alone if all are repeats of one."""
    grouped = group_repeats(runs)
    # A run may be compared with itself, but it is not two repeats, nor two of the others.
    once = list(paths if len(grouped) > 1 else paths[1:])
    places = [path.resolve() for path in once]
    if twice := [path for number, path in enumerate(once) if places[number] in places[:number]]:
        raise UsageError(f"{twice[0]} is named twice; name each run once")
    return grouped if len(grouped) > 1 else [System((run,)) for run in runs]


def _check_contracts(
    baseline: Run, others: list[Run], metrics: Sequence[str], *, force: bool
) -> tuple[list[str], list[str]]:
    """(what differs of the contracts, what to say of it). UsageError when something does, and `force` is not given."""
    forced, notes = list[str](), list[str]()
    for run in others:
        differ = differences(baseline, run)
        if "data_fingerprint" in differ:
            differ["data_fingerprint"] += "; of texts, queries, judgements, exclusions and pools"
        if not metrics and baseline.columns.keys() != run.columns.keys():
            only = [
                ", ".join(name for name in one.columns if name not in other.columns) or "none"
                for one, other in ((baseline, run), (run, baseline))
            ]
            differ["cutoffs"] = f"only the first has {only[0]}, only the second {only[1]}; --metric chooses"
        values = ", ".join(f"{key} ({value})" for key, value in differ.items())
        what = f"{baseline.name} and {run.name} were not asked the same: {values}"
        if not set(baseline.query_ids) & set(run.query_ids):
            raise UsageError(f"{what}; without a common query there is nothing to pair")
        if differ and not force:
            raise UsageError(f"{what}; compare runs that agree in these, or give --force")
        forced += [key for key in differ if key not in forced]
        notes += [f"forced: {what}"] if differ else []
    return forced, notes


def _choose_metrics(baseline: System, system: System, metrics: Sequence[str]) -> list[str]:
    """The metrics to compare, in the order of the run's table. UsageError where there are none."""
    common = [name for name in baseline.metrics if name in system.metrics]
    if strange := [name for name in metrics if name not in common]:
        raise UnknownName("metric of both runs", strange[0], common)
    if not common:
        raise UsageError(f"{baseline.name} and {system.name} have no metric in common")
    return [name for name in common if not metrics or name in metrics]


def _compare_metric(baseline: System, system: System, metric: str) -> Result:
    """One row of the comparison; everything is None where no query has the metric in both."""
    row: Result = {"run": system.name, "metric": metric, "baseline_mean": None, "mean": None}
    pairs = pair(baseline.values(metric), system.values(metric))
    if not pairs:
        return row | dict.fromkeys(Paired._fields) | {"p_holm": None, "wins": 0, "ties": 0, "losses": 0, "queries": 0}
    before, after = zip(*pairs.values(), strict=True)
    means = {"baseline_mean": math.fsum(before) / len(pairs), "mean": math.fsum(after) / len(pairs)}
    return row | means | paired(before, after)._asdict() | {"p_holm": None}


def _adjust(comparisons: list[Result]) -> None:
    """Fill in p_holm: over all metrics of all systems that are compared here."""
    tested = [row for row in comparisons if row["p"] is not None]
    for row, p in zip(tested, holm([row["p"] for row in tested]), strict=True):
        row["p_holm"] = p


def _compare_losses(baseline: System, others: list[System]) -> tuple[list[Result], list[str]]:
    """(what became of relevant documents, a row a system; what to say where a run does not tell)."""
    rows, notes = list[Result](), list[str]()
    for system in others:
        try:
            row = compare_fates(baseline, system)
        except DataError as problem:
            notes.append(f"no losses compared: {problem}")
        else:
            rows += [row] if row else []
    return rows, list(dict.fromkeys(notes))


def _note_rows(comparisons: list[Result]) -> list[str]:
    """What to know of the rows."""
    notes = []
    for name in dict.fromkeys(row["run"] for row in comparisons):
        rows = [row for row in comparisons if row["run"] == name and row["queries"]]
        moved = {row["metric"]: row["wins"] + row["losses"] for row in rows}
        if rows and not any(moved.values()):
            notes.append(f"{name} has the baseline's value for every query: no difference")
        elif few := [metric for metric, count in moved.items() if 0 < count < LEAST]:
            notes.append(f"{name}: fewer than {LEAST} queries differ in {', '.join(few)}, so p cannot be below .05")
    if any(row["metric"] == "Triplets" for row in comparisons):
        notes.append("Triplets: each query counts once here, and as often as it has triplets in a run's own table")
    if lower := [row["metric"] for row in comparisons if is_lower_better(row["metric"])]:
        notes.append(f"{lower[0]}: lower is better, so a query that is won here is one with more of it")
    return notes


def _note_repeats(grouped: list[System], runs: list[Run], metric: str) -> list[str]:
    """What to know of repeats."""
    if len(group_repeats(runs)) == 1 and len({run.path.resolve() for run in runs}) > 1:
        deviation = measure_spread(runs, metric, pair(*(run.columns.get(metric, {}) for run in runs)))
        by = f" ({deviation:.4f} in {metric}, standard deviation)" if deviation is not None else ""
        return [
            f"all of these are one configuration repeated, so they differ by chance{by}; "
            "name another system's runs beside them"
        ]
    if any(len(system.runs) > 1 for system in grouped):
        return [
            "repeats: a query counts once, by its mean over them; the interval is of queries with all their repeats"
        ]
    return []


def _describe(system: System, metrics: list[str]) -> Result:
    """What answered, in which runs, and how far apart these are in each metric; spread is None for one run."""
    return {
        "run": system.name,
        **{key: system.first.scores[key] for key in ("program", "retriever", "lm")},
        "compiled": system.first.scores.get("compiled"),
        "repeats": [run.name for run in system.runs],
        "spread": {name: system.spread(name) for name in metrics} if len(system.runs) > 1 else None,
    }


def _changed_keys(baseline: System, system: System) -> dict[str, list[Any]]:
    """What is compared: key -> both values, for what differs in the configurations and is not of the contract."""
    before, after = _flatten(baseline.first.config), _flatten(system.first.config)
    keys = [*before, *(key for key in after if key not in before)]
    changed = [key for key in keys if _identity(before.get(key)) != _identity(after.get(key))]
    if before["program"] != after["program"]:  # then what only one of them has is no choice between the two
        changed = [key for key in changed if not key.startswith("parameters.") or (key in before and key in after)]
    if {"program", "retriever.name", "lm.name"} & set(changed):  # then other sources and libraries are used, too
        changed = [key for key in changed if key.partition(".")[0] not in ("code", "versions")]
    if len(baseline.runs) > 1 or len(system.runs) > 1:  # then a seed is what repeats differ in, not the systems
        changed = [key for key in changed if key not in {f"{part}.seed" for part in SEEDS}]
    return {key: [before.get(key), after.get(key)] for key in changed}


# What a reader wants to know first; the rest follows by name.
_FIRST = ("program", "compiled", "parameters", "retriever", "lm")


def _flatten(config: run_folder.Config) -> dict[str, Any]:
    """The configuration without contract and provenance, keys in keys as "lm.name"; a compiled program is one value."""
    flat = dict[str, Any]()
    for key in sorted(config, key=lambda key: (_FIRST.index(key) if key in _FIRST else len(_FIRST), key)):
        value = config[key]
        if key in CONTRACT or key == run_folder.PROVENANCE:
            continue
        nested = isinstance(value, dict) and key != "compiled"
        flat |= {f"{key}.{name}": value[name] for name in sorted(value)} if nested else {key: value}
    return flat


def _identity(value: Any) -> Any:
    """What makes it that value: of a compiled program its digest, wherever its file lies."""
    return value["digest"] if isinstance(value, dict) and "digest" in value else value


def _find_moved(baseline: System, system: System, metric: str) -> list[Result]:
    """The queries that moved most: those that gained, most first, then those that lost, most first."""
    rows: list[Result] = [
        {"run": system.name, "metric": metric, "query_id": query_id, "baseline": before, "value": after}
        | {"difference": after - before}
        for query_id, (before, after) in pair(baseline.values(metric), system.values(metric)).items()
        if abs(after - before) >= TIE
    ]
    rows.sort(key=lambda row: (-abs(row["difference"]), row["query_id"]))
    gained, lost = ([row for row in rows if (row["difference"] > 0) is up] for up in (True, False))
    return gained[:MOVED] + lost[:MOVED]
