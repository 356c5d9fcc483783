"""Which run is better, and by how much: `python -m evals.compare RUN RUN [RUN ...]`. Nothing is run.

The first run is the baseline. Each other one is compared with it query by query, in every metric (evals/stats.py has
the tests, docs/comparing.md their reasons). Run folders are all that is read: no corpus, no model, no network. Runs
that were not asked the same are refused, because their difference would not be that of the systems.

Left out: repeated runs of one system, and where a lost document was lost.
"""

import argparse
import csv
import io
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evals import folder as run_folder
from tools.command import Parser, put_out, run_command
from tools.errors import DataError, RunIncomplete, SextantError, UnknownName, UsageError

if TYPE_CHECKING:
    from rich.table import Table

Result = dict[str, Any]  # what `compare` returns and --json prints
Column = dict[str, float | None]  # query_id -> value of one metric, None where it is undefined

# What two runs must share for their difference to be that of the systems; beside these, the judgements that lead.
CONTRACT = ("task", "data_fingerprint", "split", "asked", "instruction", "max_p", "depth", "pool")
MOVED = 5  # queries shown that moved most, up and down each
LEAST = 6  # differences with which p can be below .05 at all: 2 of 2^6 assignments of signs
DRAWS = 20_000_000  # of queries for an interval: over 2,000 queries it is of fewer than 10,000 resamples, and quick
DIGITS = 4  # of means, as in the table of a run


@dataclass(frozen=True, slots=True)
class Run:
    """A run folder that has been scored."""

    name: str  # its path as given
    config: run_folder.Config
    scores: dict[str, Any]  # scores.json
    columns: dict[str, Column]  # scores.csv: metric -> its values; the task's headline metric is the first
    query_ids: list[str]

    @property
    def contract(self) -> dict[str, Any]:
        """What was asked of it, and how that was judged."""
        return {key: self.config.get(key) for key in CONTRACT} | {"judgements": self.scores["judgements"]}


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


def read(path: Path) -> Run:
    """The run in `path` with its scores. DataError where there are none, RunIncomplete when it owes queries."""
    config = run_folder.read_config(path)
    try:
        scores = json.loads((path / "scores.json").read_text(encoding="utf-8"))
        _check(scores)
        columns, query_ids = _columns((path / "scores.csv").read_bytes().decode())
        if len(query_ids) != scores["queries"] or list(columns) != list(scores["metrics"]):
            raise ValueError("scores.csv is not of scores.json")
    except FileNotFoundError:
        raise _unscored(path, config) from None
    except (ValueError, TypeError, csv.Error, RecursionError) as error:
        raise DataError(
            f"the scores in {path} are damaged ({error}); python -m evals.score {path} makes them again"
        ) from None
    return Run(str(path), config, scores, columns, query_ids)


def _unscored(path: Path, config: run_folder.Config) -> SextantError:
    """Why a run without scores cannot be compared. Which queries it owes is known only where its data is at hand."""
    from evals.score import environment_of

    outcomes = run_folder.read_outcomes(path)
    try:
        asked = [query.query_id for query in environment_of(config).queries]
    except SextantError:
        asked = []
    owed = [query_id for query_id in asked if query_id not in outcomes]
    if owed or not outcomes:
        many = f"{len(owed)} of {len(asked)}" if owed else "all"
        return RunIncomplete(f"{path} owes {many} queries; give its command again to resume it, then compare")
    return DataError(f"{path} is not scored; python -m evals.score {path} does that, then compare")


_SCORES = {"data": str, "judgements": str, "program": str, "retriever": str, "lm": str, "queries": int, "failed": int}
_USAGE = ("calls", "input_tokens", "output_tokens", "paid_usd", "list_usd")


def _check(scores: Any) -> None:
    """ValueError for what is no scores.json with a metric in it."""
    if not isinstance(scores, dict) or not isinstance(scores.get("metrics"), dict) or not scores["metrics"]:
        raise ValueError("there are no metrics")
    if wrong := [key for key, kind in _SCORES.items() if not isinstance(scores.get(key), kind)]:
        raise ValueError(f"{wrong[0]!r} is missing or of the wrong kind")
    usage = scores.get("usage")
    if not isinstance(usage, dict) or not all(isinstance(usage.get(k), int | float | None) for k in _USAGE):
        raise ValueError("'usage' is missing or of the wrong kind")


def _columns(text: str) -> tuple[dict[str, Column], list[str]]:
    """(values per metric and query, the queries) of a scores.csv; ValueError for what is none."""
    csv.field_size_limit(2**31 - 1)  # the last column has error messages, of any length
    head, *rows = list(csv.reader(io.StringIO(text, newline=""))) or [[]]
    if head[:1] != ["query_id"] or head[-1:] != ["error"] or any(len(row) != len(head) for row in rows):
        raise ValueError("scores.csv is no table of query_id, metrics and error")
    query_ids = [row[0] for row in rows]
    if not rows or len(set(query_ids)) < len(rows):
        raise ValueError("scores.csv has no queries, or one of them twice")
    columns = {name: {row[0]: _number(row[place]) for row in rows} for place, name in enumerate(head[1:-1], start=1)}
    return columns, query_ids


def _number(cell: str) -> float | None:
    value = float(cell) if cell else None
    if value is not None and not math.isfinite(value):
        raise ValueError(f"{cell!r} is no value of a metric")
    return value


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
    resamples = max(2_000, min(10_000, DRAWS // len(pairs)))
    return row | means | paired(before, after, resamples=resamples)._asdict() | {"p_holm": None}


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
    per_query = {f"{key}_per_query": None if usage[key] is None else usage[key] / queries for key in _USAGE}
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
