"""Which run is better, and by how much: `python -m evals.compare RUN RUN [RUN ...]`. Nothing is run.

The first run is the baseline. Each other one is compared with it query by query, in every metric (evals/stats.py has
the tests, docs/comparing.md their reasons). Run folders are all that is read: no corpus, no model, no network. Runs
that were not asked the same are refused, because their difference would not be that of the systems.

Left out: repeated runs of one system, and where a lost document was lost.
"""

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evals import folder as run_folder
from evals.scored import CONTRACT, USED, Run, read
from tools.command import Parser, put_out, run_command
from tools.errors import UnknownName, UsageError

if TYPE_CHECKING:
    from rich.table import Table

Result = dict[str, Any]  # what `compare` returns and --json prints
MOVED = 5  # queries shown that moved most, up and down each
LEAST = 6  # differences with which p can be below .05 at all: 2 of 2^6 assignments of signs
DIGITS = 4  # of means, as in the table of a run


def compare(paths: Sequence[Path], metrics: Sequence[str] = (), *, force: bool = False) -> Result:
    """Compare the first run folder with each of the others; `metrics` are all that both have when none is named.

    UsageError for runs that were not asked the same, unless `force`; DataError or RunIncomplete for one without scores.
    """
    if len(paths) < 2:
        raise UsageError("one run has nothing to be compared with; name two or more run folders")
    if twice := [path for path in paths[1:] if paths[1:].count(path) > 1]:
        raise UsageError(f"{twice[0]} is named twice; name each run once")
    runs = [read(path) for path in paths]
    baseline, others = runs[0], runs[1:]
    forced, notes = _forced(baseline, others, force=force)
    chosen = [_chosen(baseline, run, metrics) for run in others]
    comparisons = [_compared(baseline, run, name) for run, names in zip(others, chosen, strict=True) for name in names]
    _adjust(comparisons)
    scores = baseline.scores
    return {
        "baseline": baseline.name,
        "runs": [run.name for run in others],
        "task": baseline.config["task"],
        "data": scores["data"],
        "split": baseline.config["split"],
        "judgements": scores["judgements"],
        "metric": chosen[0][0],  # the headline, where it is among them: it is the first in a run's table
        "forced": forced,
        "notes": notes + _notes(comparisons),
        "systems": [_system(run) for run in runs],
        "differences": [{"run": run.name, "keys": _differences(baseline, run)} for run in others],
        "comparisons": comparisons,
        "cost": [_cost(run) for run in runs],
        "moved": [row for run, names in zip(others, chosen, strict=True) for row in _moved(baseline, run, names[0])],
    }


def _forced(baseline: Run, others: list[Run], *, force: bool) -> tuple[list[str], list[str]]:
    """(what differs of the contracts, what to say of it). UsageError when something does, and `force` is not given."""
    forced, notes = list[str](), list[str]()
    for run in others:
        differing = [key for key, value in baseline.contract.items() if run.contract[key] != value]
        values = [f"{key} ({_short(baseline.contract[key])}, {_short(run.contract[key])})" for key in differing]
        shared = len(set(baseline.query_ids) & set(run.query_ids))
        many = len(baseline.query_ids), len(run.query_ids)
        if many != (shared, shared):
            differing.append("queries")
            values.append(f"queries ({many[0]}, {many[1]}, {shared} in common)")
        what = f"{baseline.name} and {run.name} were not asked the same: {', '.join(values)}"
        if not shared:
            raise UsageError(f"{what}; without a common query there is nothing to pair")
        if differing and not force:
            raise UsageError(f"{what}; compare runs that agree in these, or give --force")
        forced += [key for key in differing if key not in forced]
        notes += [f"forced: {what}"] if differing else []
    return forced, notes


def _chosen(baseline: Run, run: Run, metrics: Sequence[str]) -> list[str]:
    """The metrics to compare, in the order of the run's table. UsageError where there are none."""
    common = [name for name in baseline.columns if name in run.columns]
    for name in metrics:
        if name not in common:
            raise UnknownName("metric of both runs", name, common)
    if not common:
        raise UsageError(f"{baseline.name} and {run.name} have no metric in common")
    return [name for name in common if not metrics or name in metrics]


def _pairs(baseline: Run, run: Run, metric: str) -> dict[str, tuple[float, float]]:
    """Query -> its values in both runs, for the queries in which the metric is defined in both."""
    both = (
        (query_id, value, run.columns[metric].get(query_id)) for query_id, value in baseline.columns[metric].items()
    )
    return {query_id: (before, after) for query_id, before, after in both if before is not None and after is not None}


def _compared(baseline: Run, run: Run, metric: str) -> Result:
    """One row of the comparison; everything is None where no query has the metric in both."""
    from evals.stats import Paired, paired

    row: Result = {"run": run.name, "metric": metric, "baseline_mean": None, "mean": None}
    pairs = list(_pairs(baseline, run, metric).values())
    if not pairs:
        return row | dict.fromkeys(Paired._fields) | {"p_holm": None, "wins": 0, "ties": 0, "losses": 0, "queries": 0}
    before, after = ([pair[side] for pair in pairs] for side in (0, 1))
    means = {"baseline_mean": math.fsum(before) / len(pairs), "mean": math.fsum(after) / len(pairs)}
    return row | means | paired(before, after)._asdict() | {"p_holm": None}


def _adjust(comparisons: list[Result]) -> None:
    """Fill in p_holm: over all metrics of all runs that are compared here."""
    from evals.stats import holm

    tested = [row for row in comparisons if row["p"] is not None]
    for row, p in zip(tested, holm([row["p"] for row in tested]), strict=True):
        row["p_holm"] = p


def _notes(comparisons: list[Result]) -> list[str]:
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
    return notes


def _system(run: Run) -> Result:
    """What answered."""
    named = {key: run.scores[key] for key in ("program", "retriever", "lm")}
    return {"run": run.name, **named, "compiled": run.scores.get("compiled")}


def _differences(baseline: Run, run: Run) -> dict[str, list[Any]]:
    """What is compared: key -> both values, for what differs in the configurations and is not of the contract."""
    before, after = _flat(baseline.config), _flat(run.config)
    keys = [*before, *(key for key in after if key not in before)]
    changed = [key for key in keys if _identity(before.get(key)) != _identity(after.get(key))]
    if before["program"] != after["program"]:  # then what only one of them has is no choice between the two
        changed = [key for key in changed if not key.startswith("parameters.") or (key in before and key in after)]
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


def _short(value: Any, most: int = 60) -> str:
    """A value of a configuration in a line."""
    if isinstance(value, dict) and "digest" in value:
        value = f"{value.get('optimizer', '')} {value['digest']}".strip()
    text = value if isinstance(value, str) else "none" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= most else f"{text[: most - 4]} ..."


def _cost(run: Run) -> Result:
    """What a query of the run cost on average; a price that is not known stays None."""
    usage, queries = run.scores["usage"], run.scores["queries"]
    per_query = {f"{key}_per_query": None if usage[key] is None else usage[key] / queries for key in USED}
    return {"run": run.name, "queries": queries, "failed": run.scores["failed"], **per_query}


def _moved(baseline: Run, run: Run, metric: str) -> list[Result]:
    """The queries that moved most: those that gained, most first, then those that lost, most first."""
    from evals.stats import TIE

    rows: list[Result] = [
        {"run": run.name, "metric": metric, "query_id": query_id, "baseline": before, "value": after}
        | {"difference": after - before}
        for query_id, (before, after) in _pairs(baseline, run, metric).items()
        if abs(after - before) >= TIE
    ]
    rows.sort(key=lambda row: (-abs(row["difference"]), row["query_id"]))
    gained, lost = ([row for row in rows if (row["difference"] > 0) is up] for up in (True, False))
    return gained[:MOVED] + lost[:MOVED]


def show(result: Result, *, as_json: bool = False) -> None:
    """Print a comparison on stdout."""
    if as_json:
        put_out(json.dumps(result) + "\n")
        return
    from evals.terminal import printed, system_line, task_line

    labels = ["baseline", *(f"run {number}" for number in range(1, len(result["runs"]) + 1))]
    parts: list[str | Table] = [task_line(result)]
    for label, system in zip(labels, result["systems"], strict=True):
        parts += [f"{label}: {system['run']}", f"    {system_line(system)}"]
    for label, run, differences in zip(labels[1:], result["runs"], result["differences"], strict=True):
        rows = [row for row in result["comparisons"] if row["run"] == run]
        moved = [row for row in result["moved"] if row["run"] == run]
        parts += ["", f"{label} against baseline: {_what(differences['keys'])}", _comparison_table(rows)]
        if moved:
            parts += [f"queries that moved most in {moved[0]['metric']}", _moved_table(moved)]
    parts += ["a query cost on average", _cost_table(result["cost"], labels)]
    put_out(printed([*parts, *_footings(result)]))


def _what(differences: dict[str, list[Any]]) -> str:
    if not differences:
        return "the same configuration"
    return ", ".join(f"{key} {_short(after)} (was {_short(before)})" for key, (before, after) in differences.items())


def _footings(result: Result) -> list[str]:
    tested = sum(row["p"] is not None for row in result["comparisons"])
    return [
        f"p: two-sided sign-flip permutation test over queries; Holm: adjusted for all {tested} comparisons here",
        "w/t/l: queries won, tied, lost; shows: the smallest change that so many queries show at 80 % power",
        *result["notes"],
    ]


def _table(*heads: str) -> "Table":
    """An empty table: the first column has names, the others numbers."""
    import rich.box
    from rich.table import Table

    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False, padding=0)  # fits 80 columns
    for head in heads:
        table.add_column(head, justify="left" if head in ("", "metric", "query") else "right")
    return table


def _comparison_table(rows: list[Result]) -> "Table":
    table = _table("metric", "baseline", "run", "change", "95 % interval", "p", "Holm", "w/t/l", "shows")
    most = max(row["queries"] for row in rows)
    for row in rows:
        name = row["metric"] if row["queries"] == most else f"{row['metric']} ({row['queries']})"
        if not row["queries"]:
            table.add_row(_plain(row["metric"]), "undefined")
            continue
        interval = (
            "too few"
            if row["low"] is None or row["queries"] < 2
            else f"{_rounded(row['low'], 3)} to {_rounded(row['high'], 3)}"
        )
        table.add_row(
            _plain(name),
            *(f"{row[key]:.{DIGITS}f}" for key in ("baseline_mean", "mean")),
            _rounded(row["difference"], DIGITS, "+"),
            interval,
            *(_p(row[key]) for key in ("p", "p_holm")),
            f"{row['wins']}/{row['ties']}/{row['losses']}",
            "-" if row["detectable"] is None else f"{row['detectable']:.3f}",
        )
    return table


def _rounded(value: float, digits: int, sign: str = "-") -> str:
    """A number with so many digits, and no minus before a zero."""
    return f"{round(value, digits) + 0.0:{sign}.{digits}f}"


def _p(value: float) -> str:
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def _moved_table(rows: list[Result]) -> "Table":
    table = _table("query", "baseline", "run", "change")
    for row in rows:
        cells = f"{row['baseline']:.{DIGITS}f}", f"{row['value']:.{DIGITS}f}", _rounded(row["difference"], DIGITS, "+")
        table.add_row(_plain(row["query_id"]), *cells)
    return table


def _cost_table(rows: list[Result], labels: list[str]) -> "Table":
    table = _table("", "calls", "tokens in", "tokens out", "paid", "list price", "failed queries")
    for label, row in zip(labels, rows, strict=True):
        counts = [f"{row[f'{key}_per_query']:,.1f}" for key in ("calls", "input_tokens", "output_tokens")]
        prices = [_price(row[f"{key}_per_query"]) for key in ("paid_usd", "list_usd")]
        table.add_row(label, *counts, *prices, f"{row['failed']} of {row['queries']}")
    return table


def _price(value: float | None) -> str:
    return "unknown" if value is None else f"${value:.5f}"


def _plain(text: str) -> str:
    """Text of the data in a cell: no markup, no control characters."""
    from rich.markup import escape

    from tools.command import clean

    return escape(clean(text))


def parser() -> Parser:
    """The command line."""
    made = Parser(prog="python -m evals.compare", description="Compare runs with a baseline, paired by query.")
    made.add_argument("baseline", type=Path, metavar="RUN", help="the run folder that the others are compared with")
    made.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="run folders")
    made.add_argument("--metric", action="append", default=[], metavar="NAME", help="only this metric; repeatable")
    made.add_argument(
        "--force", action="store_true", help="compare runs that were not asked the same; the output says so"
    )
    made.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    return made


def command(arguments: argparse.Namespace) -> int:
    """Compare and print."""
    result = compare([arguments.baseline, *arguments.runs], arguments.metric, force=arguments.force)
    show(result, as_json=arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(run_command(parser(), command))
