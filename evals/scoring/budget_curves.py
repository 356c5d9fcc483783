"""A metric for equal budgets: averaged over all queries, after each search, model call, thousand
tokens and cent.

From stored traces alone: the ranking before the first step that a budget does not pay for
(traces.py). A query that has ended keeps its value, so a curve ends at the run's score. Left out:
budgets of time, which depend on the machine.
"""

import math
from array import array
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np

from sextant.environments.judged_ranking import JudgedRanking
from sextant.evals.scoring.anytime_ranking import AnytimeRanking
from sextant.evals.scoring.attribution import Row
from sextant.evals.scoring.metrics import (
    apply_metric,
    canonicalize_metric,
    check_metric,
    is_pairwise,
    judge_units,
    metric_from_attribution,
)
from sextant.evals.scoring.scored_run import (
    ABOUT,
    NAMED,
    ScoredRun,
    find_folders,
    read_scored_run,
    require_same_contract,
)
from sextant.evals.scoring.statistics import estimate_mean
from sextant.evals.scoring.system_names import name_systems
from sextant.tools.errors import UnknownName, UsageError
from sextant.tools.platform.number_format import some_queries
from sextant.tools.records import SURFACING, JsonObject

Result = JsonObject  # what `curves` returns and --json prints
SEEN = (
    "surfaced",
    "shown",
)  # metrics beside those of rankings: recall of what came back, of what a model was shown
AXES = {
    "searches": "searches",
    "calls": "model calls",
    "tokens": "tokens",
    "usd": "dollars at list price",
}
UNITS = {"searches": 1, "calls": 1, "tokens": 1000, "usd": 0.01}  # of the budgets in a table


class MetricTrajectory(NamedTuple):
    """A query's value at each cost, in time; the last is its end."""

    costs: "array[float]"
    values: "array[float]"  # from that cost on

    def pay(self, cost: float, value: float) -> None:
        """Add a cost, up to which there was `value`; the value from it on comes with the next."""
        self.values[-1] = value
        self.costs.append(
            round(self.costs[-1] + cost, 9)
        )  # so that ten cents are a tenth of a dollar
        self.values.append(value)


def curves(paths: Sequence[Path], metric: str = "", axes: Sequence[str] = tuple(AXES)) -> Result:
    """Return the runs in `paths` and below on each axis, by the first run's headline metric if none
    is named.
    """
    if strange := [axis for axis in axes if axis not in AXES]:
        raise UnknownName("budget", strange[0], AXES)
    runs = [read_scored_run(path) for path in find_folders(paths)]
    require_same_contract(runs)
    metric = _choose_metric(runs[0], metric)
    labels = {run.name: name for run, name in zip(runs, name_systems(runs), strict=True)}
    refused = list[Result]()
    # axis -> run -> courses of the queries for which the metric is defined, in the order of the run
    drawn: dict[str, dict[str, list[MetricTrajectory]]] = {axis: {} for axis in axes}
    for run in runs:
        reasons = _refuse(run, axes)
        refused += [
            {
                "run": run.name,
                "axis": axis,
                "why": why,
            }
            for axis, why in reasons.items()
        ]
        allowed = [axis for axis in axes if axis not in reasons]
        for query_id in run.query_ids if allowed else ():
            outcome = run.outcomes[query_id]
            courses = query_trajectory(
                outcome, run.judged[query_id], metric, allowed, run.config["depth"]
            )
            for axis, course in courses.items():
                drawn[axis].setdefault(run.name, []).append(course)
    shown = {}
    for axis, courses_by_run in drawn.items():
        if described := _describe_axis(axis, courses_by_run, labels):
            shown[axis] = described
    unused = [axis for axis in axes if drawn[axis] and axis not in shown]
    if not shown:
        reasons_given = [f"{row['run']}, {AXES[row['axis']]}: {row['why']}" for row in refused]
        reasons_given += [f"no run used any {AXES[axis]}" for axis in unused]
        why = "; ".join(reasons_given) or f"{metric} is defined for none of the queries"
        raise UsageError(
            f"there is no curve: {why}; choose another --by or --metric, or other runs"
        )
    return {
        **{key: (runs[0].config | runs[0].scores)[key] for key in ABOUT},
        "metric": metric,
        "queries": len(runs[0].query_ids),
        "runs": [
            {
                "run": run.name,
                "label": labels[run.name],
                **{key: run.scores[key] for key in NAMED},
            }
            for run in runs
        ],
        "axes": shown,
        "refused": refused,
        "unused": unused,
    }


def _choose_metric(run: ScoredRun, name: str) -> str:
    chosen = canonicalize_metric(name) if name else run.metric
    if chosen in SEEN:
        return chosen
    if judgements := chosen.partition(" [")[2].rstrip("]"):
        mend = f"sextant score {run.path} --qrels {judgements} lets them"
        raise UsageError(f"{chosen} is by judgements that do not lead; {mend}")
    # A name in a run's own files imports no code.
    check_metric(chosen, custom=bool(name))
    if is_pairwise(chosen) or chosen.startswith("Judged"):
        ranked = [column for column in run.columns if not is_pairwise(column)]
        columns = [column for column in ranked if "[" not in column]
        raise UsageError(
            f"{chosen} is counted over comparisons or all judgements, and has no value before the "
            f"end; give --metric {' or '.join([*columns[:3], *SEEN])}"
        )
    return chosen


def _refuse(run: ScoredRun, axes: Sequence[str]) -> dict[str, str]:
    """Return why a run has no curve, by axis."""
    outcomes = run.outcomes.rows(run.query_ids)
    bare = sum(bool(row["ranking"]) and not row["trace"]["steps"] for row in outcomes)
    if bare:
        number = some_queries(bare, len(run.query_ids), "has", "have")
        return dict.fromkeys(axes, f"{number} a ranking and no trajectory")
    if not run.usage_known:
        used = [axis for axis in axes if axis != "searches"]
        return dict.fromkeys(used, "it was imported without what its model calls used")
    if "usd" in axes and run.scores["usage"]["list_usd"] is None:
        return {"usd": "the price of its model is not known"}
    return {}


def _describe_axis(
    axis: str, trajectories: Mapping[str, list[MetricTrajectory]], labels: Mapping[str, str]
) -> Result | None:
    largest = max(
        (course.costs[-1] for courses in trajectories.values() for course in courses), default=0
    )
    if not largest:
        return None
    budgets = _choose_budgets(axis, largest)
    rows = [
        Result(run=run, label=labels[run]) | _describe_curve(courses, budgets)
        for run, courses in trajectories.items()
    ]
    front = list[Result]()
    for index, budget in enumerate(budgets):
        value = max(row["mean"][index] for row in rows)
        if not front or value > front[-1]["value"]:
            names = [row["label"] for row in rows if row["mean"][index] == value]
            front.append({"budget": budget, "value": value, "runs": names})
    for row in rows:
        # No run ends better or cheaper than it, and neither worse nor dearer.
        mark = (row["end"], -row["cost"])
        marks = [(rival["end"], -rival["cost"]) for rival in rows]
        row["front"] = not any(
            end >= mark[0] and saved >= mark[1] and (end, saved) != mark for end, saved in marks
        )
    return {
        "words": AXES[axis],
        "budgets": budgets,
        "curves": rows,
        "front": front,
    }


def _choose_budgets(axis: str, largest: float) -> list[float]:
    unit: float = UNITS[
        axis
    ]  # a tenth where the largest is below ten, so that a cheap run has a curve as well
    while axis in ("tokens", "usd") and largest < 10 * unit and unit > 1e-6:
        unit /= 10
    end = math.ceil(round(largest / unit, 6))
    steps = {number * 10**power for power in range(len(str(end))) for number in range(1, 100)}
    steps |= {2**power for power in range(end.bit_length())}
    chosen = sorted(
        {step for step in steps if step < end} | {end} | ({0} if axis != "searches" else set())
    )
    budgets = [round(step * unit, 9) for step in chosen]
    return budgets if axis == "usd" else [round(budget) for budget in budgets]


def _describe_curve(courses: Sequence[MetricTrajectory], budgets: list[float]) -> Result:
    values, spent = np.empty((2, len(courses), len(budgets)))
    for number, course in enumerate(courses):
        costs = np.asarray(course.costs)
        places = costs.searchsorted(budgets, side="right") - 1
        values[number] = np.asarray(course.values)[places]
        spent[number] = costs[places]
    ends = np.array([course.costs[-1] for course in courses])
    intervals = [estimate_mean([column]) for column in values.T]
    mean, paid = ([fmean(column) for column in matrix.T.tolist()] for matrix in (values, spent))
    return {
        "queries": len(courses),
        "mean": mean,
        "low": [interval.low for interval in intervals],
        "high": [interval.high for interval in intervals],
        "spent": paid,
        "ended": [float((ends <= budget).mean()) for budget in budgets],
        "end": mean[-1],
        "cost": fmean(ends),
        "largest": float(ends.max()),
    }


def query_trajectory(
    outcome: Row,
    row: Row,
    metric: str,
    axes: Collection[str],
    depth: int,
) -> dict[str, MetricTrajectory]:
    """Return a query's value of `metric` at each cost, by axis; {} if the metric is undefined
    for it.

    `outcome` is its line of outcomes.jsonl, `row` that of attribution.jsonl. A cost buys all steps
    up to the next step that costs something, and in the end the submission. A model call is paid
    for with the step that follows it.
    """
    measured = _SeenShare(row, metric) if metric in SEEN else RankedValue(row, metric, depth)
    value = measured.value()
    if value is None:
        return {}
    courses = {axis: MetricTrajectory(array("d", [0.0]), array("d", [value])) for axis in axes}
    # They are measured where something is paid for; after the last cost the submission counts.
    unmeasured = list[Row]()
    for step in outcome["trace"]["steps"]:
        searched = step["tool"] in SURFACING and not step.get("refused")
        if costs := _costs(step.get("usage"), courses, searched=searched):
            value = _take_steps(measured, unmeasured, value)
            unmeasured.clear()
            for axis, cost in costs:
                courses[axis].pay(cost, value)
        unmeasured.append(step)
    for axis, spent in _costs(outcome["usage"], courses):  # calls after the last step
        if (remaining := spent - courses[axis].costs[-1]) > 1e-8:
            value = _take_steps(measured, unmeasured, value)
            unmeasured.clear()
            courses[axis].pay(remaining, value)
    if metric in SEEN:
        end = _take_steps(measured, unmeasured, value)
    else:
        end = metric_from_attribution(metric, outcome["ranking"], row) or 0.0
    for course in courses.values():
        course.values[-1] = end
    return courses


def _costs(
    usage: Row | None, axes: Collection[str], *, searched: bool = False
) -> list[tuple[str, float]]:
    costs = {"searches": int(searched)}
    if usage:
        costs |= {
            "calls": usage["calls"],
            "tokens": usage["input_tokens"] + usage["output_tokens"],
            "usd": usage["list_usd"],
        }
    return [(axis, cost) for axis, cost in costs.items() if axis in axes and cost]


def _take_steps(
    measured: "RankedValue | _SeenShare", steps: Sequence[Row], value_before: float
) -> float:
    """Take more steps, and return the value after them."""
    changes = [measured.add(step) for step in steps]
    return (measured.value() or 0.0) if any(changes) else value_before


class RankedValue:
    """The value of a query after the steps so far: a metric of the ranking by now."""

    def __init__(self, row: Row, metric: str, depth: int) -> None:
        self._metric = metric
        self._depth = depth
        self._grades = row["grades"]
        self._relevant = frozenset(history["unit"] for history in row["relevant"])
        self._sofar = AnytimeRanking(row.get("units", {}), self._relevant.union(self._grades))
        self._places: dict[str, int] | None = None
        self._value: float | None = None

    def add(self, step: Row) -> bool:
        """Take another step; return whether it can have changed the value."""
        return self._sofar.add(step)

    def value(self) -> float | None:
        """Return the value; None if it is undefined for the query."""
        places = self._sofar.places(self._depth)
        if places != self._places:
            judged = judge_positions(places, self._grades, self._relevant)
            self._places = places
            self._value = apply_metric(self._metric, judged)
        return self._value


class _SeenShare:
    """Of relevant documents, the share that came back from a search, or was shown to a model."""

    def __init__(self, row: Row, metric: str) -> None:
        self._relevant = frozenset(history["unit"] for history in row["relevant"])
        self._unit_of = row.get("units", {})
        self._metric = metric
        self._seen: set[str] = set()

    def add(self, step: Row) -> bool:
        before = len(self._seen)
        doc_ids = []
        if self._metric == "shown":
            shown = zip(step["doc_ids"], step.get("shown", ()), strict=False)
            doc_ids = [doc_id for doc_id, characters in shown if characters]
        elif step["tool"] in SURFACING and not step.get("refused"):
            doc_ids = step["doc_ids"]
        self._seen.update(self._unit_of.get(doc_id, doc_id) for doc_id in doc_ids)
        self._seen &= self._relevant
        return len(self._seen) > before

    def value(self) -> float | None:
        return len(self._seen) / len(self._relevant) if self._relevant else None


def judge_positions(
    places: Mapping[str, int], grades: Mapping[str, float], relevant: Collection[str]
) -> JudgedRanking:
    """Judge a ranking by the ranks of the judged units."""
    unit_at = {rank: unit for unit, rank in places.items()}
    return judge_units(
        [unit_at.get(place, "") for place in range(1, max(unit_at, default=0) + 1)],
        grades,
        relevant,
    )
