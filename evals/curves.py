"""Which run is better for the same budget: `python -m evals.curves RUN [RUN ...]`. Nothing is run.

A metric, averaged over all queries, after each search, model call, thousand tokens and cent, from stored traces alone:
what a query had come to before the first step that its budget does not pay for (evals/measuring/anytime.py has the
rule). A query that has ended keeps its value, so a curve ends at the run's score. Bands are 95 % bootstrap intervals
over queries, as in `evals.measuring.stats.bootstrap_mean`. Left out: budgets of time, which say more about the machine;
paired differences at a budget (evals/compare.py has those of the ends).
"""

import argparse
import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evals.folder import check_output
from evals.measuring.scored import Run, folders, read, same_contract
from tools import disk
from tools.console.command import Parser, put_out, run_and_leave
from tools.errors import UnknownName, UsageError

if TYPE_CHECKING:
    import numpy as np
    from rich.table import Table

    from evals.measuring.anytime import Course

Result = dict[str, Any]  # what `curves` returns and --json prints
AXES = (
    "searches",
    "calls",
    "tokens",
    "usd",
)  # those of evals.measuring.anytime, named here because NumPy is behind that
WORDS = {"searches": "searches", "calls": "model calls", "tokens": "tokens", "usd": "dollars at list price"}
UNIT = {"searches": 1, "calls": 1, "tokens": 1000, "usd": 0.01}
COLUMNS = 8  # budgets in a table, beside the end
DIGITS = 4  # of means, as in the table of a run
FRONT = 12  # points of the front that are printed


@dataclass(frozen=True, slots=True)
class _Curve:
    """One run on one axis."""

    run: Run
    label: str
    courses: "list[Course]"  # of the queries for which the metric is defined, in the order of the run

    @property
    def largest(self) -> float:
        return max(one.costs[-1] for one in self.courses)


def curves(paths: Sequence[Path], metric: str = "", axes: Sequence[str] = AXES) -> Result:
    """The runs in `paths` and below them, on each axis; the headline metric of the first where none is named.

    UsageError for runs that were not asked the same, or where there is nothing to show.
    """
    runs = [read(path) for path in folders(paths)]
    same_contract(runs)
    metric = _metric(runs[0], metric)
    refused = {axis: {run.name: why for run in runs if (why := _unknown(run, axis))} for axis in axes}
    labels = _labels(runs)
    made: dict[str, list[_Curve]] = {axis: [] for axis in axes}
    for run, label in zip(runs, labels, strict=True):
        found, bare = _courses(run, metric, [axis for axis in axes if run.name not in refused[axis]])
        for axis, courses in found.items():
            if bare:
                refused[axis][run.name] = f"{bare} of {len(run.query_ids)} queries have a ranking and no trajectory"
            elif courses:
                made[axis].append(_Curve(run, label, courses))
    shown = {axis: _axis(axis, found) for axis, found in made.items() if any(one.largest for one in found)}
    if not shown:
        raise UsageError(_nothing(axes, metric, refused, made))
    return {
        "task": runs[0].config["task"],
        "data": runs[0].scores["data"],
        "split": runs[0].config["split"],
        "judgements": runs[0].scores["judgements"],
        "metric": metric,
        "queries": len(runs[0].query_ids),
        "runs": [
            {"run": run.name, "label": label} | {key: run.scores[key] for key in ("program", "retriever", "lm")}
            for run, label in zip(runs, labels, strict=True)
        ],
        "axes": shown,
        "refused": [
            {"run": name, "axis": axis, "why": why} for axis, found in refused.items() for name, why in found.items()
        ],
        "unused": [axis for axis in axes if made[axis] and axis not in shown],
    }


def _courses(run: Run, metric: str, axes: Sequence[str]) -> "tuple[dict[str, list[Course]], int]":
    """What each query of a run had come to at each cost, by axis, and how many have a ranking and no trajectory."""
    from evals.measuring.anytime import course

    found: dict[str, list[Course]] = {axis: [] for axis in axes}
    bare = 0
    for query_id in run.query_ids if axes else ():
        outcome = run.outcomes[query_id]
        bare += bool(outcome["ranking"]) and not outcome["trace"]["steps"]
        for axis, one in (course(outcome, run.judged[query_id], metric, axes, run.config["depth"]) or {}).items():
            found[axis].append(one)
    return found, bare


def _metric(run: Run, name: str) -> str:
    """The metric that is asked for. UsageError for one that no ranking alone has, UnknownName for no metric."""
    from evals.measuring.anytime import SEEN
    from evals.measuring.metrics import RANKING, Judged, is_pairwise, ranking_metric

    chosen = name or run.metric
    if chosen in SEEN:
        return chosen
    if other := chosen.partition(" [")[2].rstrip("]"):
        raise UsageError(
            f"{chosen} is by judgements that do not lead; python -m evals.score {run.path} --qrels {other} lets them"
        )
    if is_pairwise(chosen):
        others = [one for one in run.columns if not is_pairwise(one) and "[" not in one]
        raise UsageError(
            f"{chosen} is counted over comparisons, and has no value before the end; "
            f"give --metric {' or '.join([*others[:3], *SEEN])}"
        )
    try:
        ranking_metric(chosen, Judged((), (), (), 0))
    except UnknownName:
        raise UnknownName("metric of a ranking", chosen, [*RANKING, *SEEN]) from None
    return chosen


def _unknown(run: Run, axis: str) -> str:
    """Why a run cannot be shown on an axis; "" when it can."""
    if axis != "searches" and not run.usage_known:
        return "it was imported without what its model calls used"
    if axis == "usd" and run.scores["usage"]["list_usd"] is None:
        return "the price of its model is not known"
    return ""


def _labels(runs: Sequence[Run]) -> list[str]:
    """What a run is called in tables and plots: its folder's name, or its whole path where two have one name."""
    names = [run.path.resolve().name for run in runs]
    return [name if names.count(name) == 1 else run.name for name, run in zip(names, runs, strict=True)]


def _nothing(
    axes: Sequence[str], metric: str, refused: dict[str, dict[str, str]], made: dict[str, list[_Curve]]
) -> str:
    """Why there is no curve on any axis."""
    for axis in axes:
        for name, why in refused[axis].items():
            return f"{name} has no curve by {WORDS[axis]}: {why}; choose another --by, or other runs"
        if made[axis]:
            return f"no run used any {WORDS[axis]}, so there is nothing to tell apart; choose another --by"
    return f"{metric} is defined for none of the queries; choose another --metric"


def _axis(axis: str, found: Sequence[_Curve]) -> Result:
    """All runs on one axis."""
    budgets = _budgets(axis, max(one.largest for one in found))
    rows = [_row(one, budgets) for one in found]
    best = [max(row["mean"][place] for row in rows) for place in range(len(budgets))]
    front = list[Result]()
    for place, (budget, value) in enumerate(zip(budgets, best, strict=True)):
        if not front or value > front[-1]["value"]:
            names = [row["label"] for row in rows if row["mean"][place] == value]
            front.append({"budget": budget, "value": value, "runs": names})
    for row in rows:
        row["front"] = not any(_dominates(other, row) for other in rows)
    return {"words": WORDS[axis], "budgets": budgets, "curves": rows, "front": front}


def _budgets(axis: str, largest: float) -> list[float]:
    """The budgets of an axis: multiples of its unit with two digits and powers of two of them, up to the largest cost.

    Where the largest is below ten units, the unit is a tenth, so that a cheap run has a curve as well.
    """
    unit: float = UNIT[axis]
    while axis in ("tokens", "usd") and largest < 10 * unit and unit > 1e-6:
        unit /= 10
    end = math.ceil(round(largest / unit, 6))
    steps = {number * 10**power for power in range(len(str(end))) for number in range(1, 100)}
    steps |= {2**power for power in range(end.bit_length())}
    wanted = sorted({step for step in steps if step < end} | {end} | ({0} if axis != "searches" else set()))
    budgets = [round(step * unit, 9) for step in wanted]
    return budgets if axis == "usd" else [round(budget) for budget in budgets]


def _row(curve: _Curve, budgets: list[float]) -> Result:
    """One run's curve at each budget."""
    import numpy as np

    values, spent = np.empty((len(curve.courses), len(budgets))), np.empty((len(curve.courses), len(budgets)))
    for number, one in enumerate(curve.courses):
        costs = np.asarray(one.costs)
        places = costs.searchsorted(budgets, side="right") - 1
        values[number], spent[number] = np.asarray(one.values)[places], costs[places]
    ends = np.array([one.costs[-1] for one in curve.courses])
    low, high = bands(values)
    return {
        "run": curve.run.name,
        "label": curve.label,
        "queries": len(curve.courses),
        "mean": _means(values),
        "low": low,
        "high": high,
        "spent": _means(spent),
        "ended": [float((ends <= budget).mean()) for budget in budgets],
        "end": _means(values[:, -1:])[0],
        "cost": math.fsum(ends) / len(ends),
        "largest": float(ends.max()),
    }


def _means(values: "np.ndarray[Any, Any]") -> list[float]:
    return [math.fsum(column) / len(column) for column in values.T.tolist()]


def bands(values: "np.ndarray[Any, Any]") -> tuple[list[float | None], list[float | None]]:
    """The 95 % percentile bootstrap interval of each column's mean; `values` has shape (queries, budgets).

    The queries that are drawn are those of `stats.bootstrap_mean`, the same for all columns, so that what comes back
    for one column is its interval. None with fewer than two queries.
    """
    import numpy as np

    from evals.measuring.stats import bootstrap_means

    columns = values.shape[1]
    # Columns in which nothing changes are one.
    kept = [0, *(place for place in range(1, columns) if (values[:, place] != values[:, place - 1]).any())]
    intervals = bootstrap_means(np.ascontiguousarray(values[:, kept]))
    of = (np.searchsorted(kept, np.arange(columns), side="right") - 1).tolist()
    return [intervals[place].low for place in of], [intervals[place].high for place in of]


def _dominates(one: Result, other: Result) -> bool:
    """Whether a run is at its end no worse and no dearer than another, and either better or cheaper."""
    better, cheaper = float(one["end"] - other["end"]), float(other["cost"] - one["cost"])
    return better >= 0 and cheaper >= 0 and (better > 0 or cheaper > 0)


def show(result: Result) -> None:
    """Print the tables."""
    from evals.showing.terminal import printed, queries, system_line, task_line

    parts: list[str | Table] = [task_line(result)]
    for run in result["runs"]:
        parts += [f"{run['label']}: {system_line(run)}"]
    for axis, found in result["axes"].items():
        head = f"{result['metric']} by {found['words']} a query, mean of {queries(found['curves'][0]['queries'])}"
        parts += ["", head, _table(axis, found), *_front(axis, found)]
    parts += ["", "a query that has ended keeps its value; * no run does better with so much"]
    parts += [f"{one['run']} has no curve by {WORDS[one['axis']]}: {one['why']}" for one in result["refused"]]
    parts += [f"no run used any {WORDS[axis]}" for axis in result["unused"]]
    put_out(printed(parts))


def _table(axis: str, found: Result) -> "Table":
    """Each run at a few budgets and at its end."""
    from evals.showing.terminal import empty, plain

    columns = _columns(found["budgets"])
    best = {point["budget"]: point["value"] for point in found["front"]}
    heads = [_amount(axis, found["budgets"][place]) for place in columns]
    table = empty(found["words"], *heads, "at its end", "after")
    for row in found["curves"]:
        cells = []
        for place in columns:
            most = max(value for budget, value in best.items() if budget <= found["budgets"][place])
            cells.append(f"{row['mean'][place]:.{DIGITS}f}" + ("*" if row["mean"][place] >= most else " "))
        end = f"{row['end']:.{DIGITS}f}" + ("*" if row["front"] else " ")
        table.add_row(plain(row["label"]), *cells, end, _amount(axis, row["cost"], mean=True))
    return table


def _columns(budgets: list[float]) -> list[int]:
    """The places of the budgets in a table: 0, and 1, 2, 4, 8 ... units, or 1, 4, 16 ... where those are too many."""
    unit = next(budget for budget in budgets if budget)
    wanted = [place for place, budget in enumerate(budgets) if budget and math.log2(round(budget / unit)).is_integer()]
    while len(wanted) > COLUMNS:
        wanted = wanted[::2]
    return ([] if budgets[0] else [0]) + wanted


def _front(axis: str, found: Result) -> list[str]:
    """The points that no other point of any run is better and cheaper than, in words."""
    points = [
        f"{_amount(axis, point['budget'])}: {point['value']:.{DIGITS}f} {_named(point['runs'])}"
        for point in found["front"]
        if point["value"] or len(found["front"]) == 1
    ]
    more = f"; and {len(points) - FRONT} more, in --csv and --json" if len(points) > FRONT else ""
    return [f"Pareto front: {'; '.join(points[:FRONT])}{more}"]


def _named(labels: Sequence[str]) -> str:
    others = len(labels) - 1
    return labels[0] + (f" and {others} {'other' if others == 1 else 'others'}" if others else "")


def _amount(axis: str, amount: float, *, mean: bool = False) -> str:
    if axis == "usd":
        return f"${amount:.6f}".rstrip("0").rstrip(".") if amount < 0.1 else f"${amount:,.2f}"
    return f"{amount:,.1f}" if mean and amount < 1000 else f"{amount:,.0f}"


def as_csv(result: Result) -> str:
    """A line for each run, axis and budget."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    columns = ("mean", "low", "high", "spent", "ended")
    writer.writerow(["run", "axis", "metric", "budget", *columns, "queries", "front"])
    for axis, found in result["axes"].items():
        best = {point["budget"]: point["value"] for point in found["front"]}
        for row in found["curves"]:
            for place, budget in enumerate(found["budgets"]):
                on_front = best.get(budget) == row["mean"][place]
                cells = ["" if row[name][place] is None else repr(row[name][place]) for name in columns]
                writer.writerow([row["run"], axis, result["metric"], budget, *cells, row["queries"], int(on_front)])
    return text.getvalue()


def as_svg(result: Result) -> str:
    """A panel for each axis, one under the other: all runs with their bands, and the front."""
    from evals.showing.plots import MUTED, figure, style, svg

    axes = result["axes"]
    made = figure((7.0, 1.0 + 3.0 * len(axes)))
    numbers = {run["label"]: number for number, run in enumerate(result["runs"])}
    panels = made.subplots(len(axes), 1, squeeze=False)[:, 0]
    for panel, (axis, found) in zip(panels, axes.items(), strict=True):
        budgets = found["budgets"]
        for row in found["curves"]:
            until = next(place for place, share in enumerate(row["ended"]) if share == 1.0) + 1
            mean, at, look = row["mean"][:until], budgets[:until], style(numbers[row["label"]])
            panel.step(at, mean, where="post", color=look["color"], label=_tex(row["label"]))
            panel.plot(at[-1:], mean[-1:], linestyle="", **look)
            if None not in row["low"]:
                panel.fill_between(
                    at, row["low"][:until], row["high"][:until], step="post", color=look["color"], alpha=0.12, lw=0
                )
        front = [point["budget"] for point in found["front"]], [point["value"] for point in found["front"]]
        ends = [*front[0], budgets[-1]], [*front[1], front[1][-1]]
        panel.step(*ends, where="post", color=MUTED, linestyle=(0, (1, 1.5)), lw=2.5, zorder=1, label="Pareto front")
        first = next(budget for budget in budgets if budget)
        if budgets[-1] > 50 * first:
            panel.set_xscale("symlog", linthresh=first)
        elif axis != "usd":
            panel.locator_params(axis="x", integer=True)  # nobody makes half a call
        panel.set_xlabel(f"{found['words']} a query, at most")
        panel.set_ylabel(_tex(result["metric"]))
        panel.set_ylim(bottom=0)
    handles = dict[str, Any]()
    for panel in panels:
        handles |= {label: handle for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)}
    made.legend(handles.values(), handles.keys(), loc="outside lower center", fontsize="small", ncols=2)
    return svg(made, f"{result['metric']} of {result['task']} for equal budgets")


def _tex(text: str) -> str:
    """Text as it is: matplotlib sets what is between two dollar signs as a formula."""
    from tools.console.command import clean

    return clean(text).replace("$", r"\$")


def parser() -> Parser:
    """The command line."""
    made = Parser(prog="python -m evals.curves", description="A metric after each search, call, token and cent.")
    add = made.add_argument
    add("runs", type=Path, nargs="+", metavar="RUN", help="run folders, or folders with run folders in them")
    add(
        "--metric",
        default="",
        metavar="NAME",
        help="the task's headline where none is named; also surfaced and shown: recall of what came back so far, "
        "and of what a model was shown",
    )
    add("--by", default="all", choices=[*AXES, "all"], metavar="WHAT", help=f"{', '.join(AXES)} or all")
    add("--svg", type=Path, metavar="FILE", help="write a plot, one panel for each axis")
    add("--csv", type=Path, metavar="FILE", help="write every point")
    add("--json", action="store_true", help="print one JSON object and nothing else")
    return made


def command(arguments: argparse.Namespace) -> int:
    """Compute, write what is to be written, print."""
    for path in filter(None, (arguments.csv, arguments.svg)):
        check_output(path)
    result = curves(arguments.runs, arguments.metric, AXES if arguments.by == "all" else [arguments.by])
    for path, made in ((arguments.csv, as_csv), (arguments.svg, as_svg)):
        try:
            if path:
                disk.replace(path, made(result))
        except OSError as error:
            raise UsageError(f"{path} cannot be written: {error.strerror}; name another file") from None
    if arguments.json:
        put_out(json.dumps(result) + "\n")
    else:
        show(result)
    return 0


if __name__ == "__main__":
    run_and_leave(parser(), command)
