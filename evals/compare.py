"""Which run is better, by how much, and why: `python -m evals.compare RUN RUN [RUN ...]`. Nothing is run.

The first run is the baseline. Each other one is compared with it query by query, in every metric
(evals/measuring/stats.py has the tests, docs/decisions/comparing.md their reasons), and in what became of relevant
documents (evals/measuring/differences.py). Runs of one configuration are repeats of one system
(evals/measuring/repeats.py). Run folders are all that is read: no corpus, no model, no network. Runs that were not
asked the same are refused, because their difference would not be that of the systems.

Left out: clusters of queries, and what a whole run has in common.
"""

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evals import folder as run_folder
from evals.measuring.repeats import SEEDS, System, spread, systems
from evals.measuring.scored import CONTRACT, Run, cut, differing, read
from tools.console.command import Parser, put_out, run_and_leave
from tools.errors import DataError, UnknownName, UsageError

Result = dict[str, Any]  # what `compare` returns and --json prints
MOVED = 5  # queries shown that moved most, up and down each
LEAST = 6  # differences with which p can be below .05 at all: 2 of 2^6 assignments of signs


def compare(paths: Sequence[Path], metrics: Sequence[str] = (), *, force: bool = False) -> Result:
    """Compare the system of the first run folder with each of the others; `metrics` are all of both if none is named.

    UsageError for runs that were not asked the same, unless `force`; DataError or RunIncomplete for one without scores.
    """
    if len(paths) < 2:
        raise UsageError("one run has nothing to be compared with; name two or more run folders")
    runs = [read(path) for path in paths]
    baseline, *others = grouped = _systems(runs, paths)
    forced, notes = _forced(runs[0], runs[1:], metrics, force=force)
    chosen = [_chosen(baseline, system, metrics) for system in others]
    pairs = list(zip(others, chosen, strict=True))
    comparisons = [_compared(baseline, system, name) for system, names in pairs for name in names]
    _adjust(comparisons)
    losses, untold = _losses(baseline, others)
    first = runs[0]
    return {
        "baseline": baseline.name,
        "runs": [system.name for system in others],
        "task": first.config["task"],
        "data": first.scores["data"],
        "split": first.config["split"],
        "judgements": first.scores["judgements"],
        "metric": chosen[0][0],  # the headline, where it is among them: it is the first in a run's table
        "forced": forced,
        "notes": notes
        + _notes(comparisons)
        + untold
        + _repeated(grouped, runs, chosen[0][0])
        + [f"{run.name}: {line}" for run in runs for line in cut(run.scores)],
        "systems": [
            _system(system, chosen[0] if place == 0 else chosen[place - 1]) for place, system in enumerate(grouped)
        ],
        "differences": [{"run": system.name, "keys": _differences(baseline, system)} for system in others],
        "comparisons": comparisons,
        "losses": losses,
        "cost": [_cost(system) for system in grouped],
        "moved": [row for system, names in pairs for row in _moved(baseline, system, names[0])],
    }


def _systems(runs: list[Run], paths: Sequence[Path]) -> list[System]:
    """The systems to compare, the baseline first: repeats together, or each run alone if all are repeats of one."""
    grouped = systems(runs)
    # A run may be compared with itself, but it is not two repeats, nor two of the others.
    once = list(paths if len(grouped) > 1 else paths[1:])
    places = [path.resolve() for path in once]
    if twice := [path for number, path in enumerate(once) if places[number] in places[:number]]:
        raise UsageError(f"{twice[0]} is named twice; name each run once")
    return grouped if len(grouped) > 1 else [System((run,)) for run in runs]


def _forced(baseline: Run, others: list[Run], metrics: Sequence[str], *, force: bool) -> tuple[list[str], list[str]]:
    """(what differs of the contracts, what to say of it). UsageError when something does, and `force` is not given."""
    forced, notes = list[str](), list[str]()
    for run in others:
        differ = _differing(baseline, run, metrics)
        shared = len(set(baseline.query_ids) & set(run.query_ids))
        values = ", ".join(f"{key} ({value})" for key, value in differ.items())
        what = f"{baseline.name} and {run.name} were not asked the same: {values}"
        if not shared:
            raise UsageError(f"{what}; without a common query there is nothing to pair")
        if differ and not force:
            raise UsageError(f"{what}; compare runs that agree in these, or give --force")
        forced += [key for key in differ if key not in forced]
        notes += [f"forced: {what}"] if differ else []
    return forced, notes


def _differing(baseline: Run, run: Run, metrics: Sequence[str]) -> dict[str, str]:
    """What two runs do not share of what has to be the same -> both values, in words."""
    found = differing(baseline, run)
    if "data_fingerprint" in found:
        found["data_fingerprint"] += "; of texts, queries, judgements, exclusions and pools"
    both = baseline.columns.keys() & run.columns.keys()
    if not metrics and len(both) < len(baseline.columns.keys() | run.columns.keys()):
        only = [", ".join(name for name in one.columns if name not in both) or "none" for one in (baseline, run)]
        found["cutoffs"] = f"only the first has {only[0]}, only the second {only[1]}; --metric chooses"
    return found


def _chosen(baseline: System, system: System, metrics: Sequence[str]) -> list[str]:
    """The metrics to compare, in the order of the run's table. UsageError where there are none."""
    common = [name for name in baseline.metrics if name in system.metrics]
    for name in metrics:
        if name not in common:
            raise UnknownName("metric of both runs", name, common)
    if not common:
        raise UsageError(f"{baseline.name} and {system.name} have no metric in common")
    return [name for name in common if not metrics or name in metrics]


def _pairs(baseline: System, system: System, metric: str) -> dict[str, tuple[float, float]]:
    """Query -> its values in both systems, for the queries in which the metric is defined in both."""
    after = system.values(metric)
    return {
        query_id: (value, after[query_id]) for query_id, value in baseline.values(metric).items() if query_id in after
    }


def _compared(baseline: System, system: System, metric: str) -> Result:
    """One row of the comparison; everything is None where no query has the metric in both."""
    from evals.measuring.stats import Paired, paired

    row: Result = {"run": system.name, "metric": metric, "baseline_mean": None, "mean": None}
    pairs = list(_pairs(baseline, system, metric).values())
    if not pairs:
        return row | dict.fromkeys(Paired._fields) | {"p_holm": None, "wins": 0, "ties": 0, "losses": 0, "queries": 0}
    before, after = ([pair[side] for pair in pairs] for side in (0, 1))
    means = {"baseline_mean": math.fsum(before) / len(pairs), "mean": math.fsum(after) / len(pairs)}
    return row | means | paired(before, after)._asdict() | {"p_holm": None}


def _adjust(comparisons: list[Result]) -> None:
    """Fill in p_holm: over all metrics of all systems that are compared here."""
    from evals.measuring.stats import holm

    tested = [row for row in comparisons if row["p"] is not None]
    for row, p in zip(tested, holm([row["p"] for row in tested]), strict=True):
        row["p_holm"] = p


def _losses(baseline: System, others: list[System]) -> tuple[list[Result], list[str]]:
    """(what became of relevant documents, a row a system; what to say where a run does not tell)."""
    from evals.measuring.differences import compared

    rows, notes = list[Result](), list[str]()
    for system in others:
        try:
            row = compared(baseline, system)
        except DataError as problem:
            notes.append(f"no losses compared: {problem}")
        else:
            rows += [row] if row else []
    return rows, list(dict.fromkeys(notes))


def _notes(comparisons: list[Result]) -> list[str]:
    """What to know of the rows."""
    from evals.showing.compare_tables import is_lower_better

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


def _repeated(grouped: list[System], runs: list[Run], metric: str) -> list[str]:
    """What to know of repeats."""
    if len(systems(runs)) == 1 and len({run.path.resolve() for run in runs}) > 1:
        deviation = spread(runs, metric, _in_all(runs, metric))
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


def _in_all(runs: list[Run], metric: str) -> list[str]:
    """The queries in which every run has the metric."""
    return [
        query_id
        for query_id in runs[0].query_ids
        if all(run.columns.get(metric, {}).get(query_id) is not None for run in runs)
    ]


def _system(system: System, metrics: list[str]) -> Result:
    """What answered, in which runs, and how far apart these are in each metric; spread is None for one run."""
    named = {key: system.first.scores[key] for key in ("program", "retriever", "lm")}
    spreads = {name: system.spread(name) for name in metrics} if len(system.runs) > 1 else None
    repeats = [run.name for run in system.runs]
    return {
        "run": system.name,
        **named,
        "compiled": system.first.scores.get("compiled"),
        "repeats": repeats,
        "spread": spreads,
    }


def _differences(baseline: System, system: System) -> dict[str, list[Any]]:
    """What is compared: key -> both values, for what differs in the configurations and is not of the contract."""
    before, after = _flat(baseline.first.config), _flat(system.first.config)
    keys = [*before, *(key for key in after if key not in before)]
    changed = [key for key in keys if _identity(before.get(key)) != _identity(after.get(key))]
    if before["program"] != after["program"]:  # then what only one of them has is no choice between the two
        changed = [key for key in changed if not key.startswith("parameters.") or (key in before and key in after)]
    if len(baseline.runs) > 1 or len(system.runs) > 1:  # then a seed is what repeats differ in, not the systems
        changed = [key for key in changed if key not in {f"{part}.seed" for part in SEEDS}]
    return {key: [before.get(key), after.get(key)] for key in changed}


# What a reader wants to know first; the rest follows by name.
_FIRST = ("program", "compiled", "parameters", "retriever", "lm")


def _flat(config: run_folder.Config) -> dict[str, Any]:
    """The configuration without contract and provenance, keys in keys as "lm.name"; a compiled program is one value."""
    flat = dict[str, Any]()
    for key in sorted(config, key=lambda key: (_FIRST.index(key) if key in _FIRST else len(_FIRST), key)):
        value = config[key]
        if key in CONTRACT or key == run_folder.PROVENANCE:
            continue
        inner = {f"{key}.{name}": value[name] for name in sorted(value)} if isinstance(value, dict) else {}
        flat |= inner if isinstance(value, dict) and key != "compiled" else {key: value}
    return flat


def _identity(value: Any) -> Any:
    """What makes it that value: of a compiled program its digest, wherever its file lies."""
    return value["digest"] if isinstance(value, dict) and "digest" in value else value


def _cost(system: System) -> Result:
    """What a query of a run cost on average; what is not known stays None."""
    queries = sum(run.scores["queries"] for run in system.runs)
    failed = sum(run.scores["failed"] for run in system.runs)
    per_query = {f"{key}_per_query": None if used is None else used / queries for key, used in system.used.items()}
    return {"run": system.name, "queries": queries, "failed": failed, **per_query}


def _moved(baseline: System, system: System, metric: str) -> list[Result]:
    """The queries that moved most: those that gained, most first, then those that lost, most first."""
    from evals.measuring.stats import TIE

    rows: list[Result] = [
        {"run": system.name, "metric": metric, "query_id": query_id, "baseline": before, "value": after}
        | {"difference": after - before}
        for query_id, (before, after) in _pairs(baseline, system, metric).items()
        if abs(after - before) >= TIE
    ]
    rows.sort(key=lambda row: (-abs(row["difference"]), row["query_id"]))
    gained, lost = ([row for row in rows if (row["difference"] > 0) is up] for up in (True, False))
    return gained[:MOVED] + lost[:MOVED]


def show(result: Result, form: str = "terminal") -> None:
    """Print a comparison on stdout: for the terminal, as json, as markdown or as latex."""
    if form == "json":
        put_out(json.dumps(result) + "\n")
        return
    from evals.showing.compare_tables import parts
    from evals.showing.markup import FORMS

    put_out(FORMS[form](parts(result)))


def parser() -> Parser:
    """The command line."""
    made = Parser(prog="python -m evals.compare", description="Compare runs with a baseline, paired by query.")
    made.add_argument("baseline", type=Path, metavar="RUN", help="the run folder that the others are compared with")
    made.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="run folders; repeats may be among them")
    made.add_argument("--metric", action="append", default=[], metavar="NAME", help="only this metric; repeatable")
    made.add_argument(
        "--force", action="store_true", help="compare runs that were not asked the same; the tables say so"
    )
    form = made.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    form.add_argument("--markdown", action="store_true", help="print the tables for GitHub and the like")
    form.add_argument("--latex", action="store_true", help="print the tables for a paper, with booktabs")
    return made


def command(arguments: argparse.Namespace) -> int:
    """Compare and print."""
    result = compare([arguments.baseline, *arguments.runs], arguments.metric, force=arguments.force)
    form = next((name for name in ("json", "markdown", "latex") if getattr(arguments, name)), "terminal")
    show(result, form)
    return 0


if __name__ == "__main__":
    run_and_leave(parser(), command)
