"""Comparisons of runs for the page, by the functions of `sextant compare`, `sextant curves` and
`sextant behaviour`.

A result names runs by their places in the list that was asked for, from 0.
"""

from collections.abc import Callable, Mapping, Sequence

from sextant.evals.reporting.findings import describe_families, judge
from sextant.evals.scoring.behaviour import FIGURES, compare_behaviour
from sextant.evals.scoring.budget_curves import curves
from sextant.evals.scoring.comparison import compare, compare_pairs
from sextant.evals.scoring.scored_run import ScoredRun, align_columns
from sextant.evals.scoring.statistics import ALPHA, TIE
from sextant.evals.scoring.system_names import name_systems
from sextant.tools.errors import SextantError
from sextant.tools.records import JsonMapping, JsonObject

# Keys of a comparison that the page shows.
_SHOWN = (
    "metric",
    "baseline_mean",
    "mean",
    "difference",
    "low",
    "high",
    "p",
    "p_holm",
    "wins",
    "ties",
    "losses",
    "queries",
    "detectable",
    "tests",
)
Answer = JsonObject


def compare_runs(runs: Sequence[ScoredRun], metric: str) -> Answer:
    """Return the differences of runs from the first, with verdicts on `metric`, "" for the headline.

    "comparisons" has a row for each run and metric, "pairs" one for each two runs if there are
    more than two. "queries" are all queries; "spread" has for each metric and query the difference
    of the second run from the first, or of the best of several from the worst, None if a run lacks
    it; "moved" counts those that are not ties. "names" tell the systems apart. "why" is the reason
    if the runs cannot be compared.
    """
    places = {run.name: place for place, run in enumerate(runs)}
    system_names = name_systems(runs)
    answer = _spread(runs) | {"names": system_names}
    paths = [run.path for run in runs]
    chosen = metric or runs[0].metric
    names = [f"{name} ({letter(place)})" for place, name in enumerate(system_names)]
    try:
        result = compare(paths, force=True)
        pairs = compare_pairs(paths, chosen) if len(runs) > 2 else []
    except SextantError as problem:
        return answer | {"metric": chosen, "why": str(problem)}
    notes = []
    for note in result["notes"]:
        for run, name in zip(runs, names, strict=True):
            note = note.replace(run.name, name)
        notes.append(note)
    return answer | {
        "metric": chosen,
        "why": "",
        "verdicts": [
            f"{names[places[row['run']]]} against {names[0]} in {chosen}: {judge(row)}"
            for row in result["comparisons"]
            if row["metric"] == chosen and row["queries"]
        ],
        "comparisons": [_show(row, places) for row in result["comparisons"]],
        "pairs": [_show(row, places) | {"baseline": places[row["baseline"]]} for row in pairs],
        "notes": notes,
        "alpha": ALPHA,
        "families": describe_families(result["comparisons"]),
    }


def _show(row: JsonMapping, places: Mapping[str, int]) -> Answer:
    return {"run": places[row["run"]], **{key: row.get(key) for key in _SHOWN}}


def letter(place: int) -> str:
    """Return the letter of a run on the page: A to Z, then A2 and so on."""
    round_number, index = divmod(place, 26)
    return f"{chr(ord('A') + index)}{round_number + 1 if round_number else ''}"


def _spread(runs: Sequence[ScoredRun]) -> Answer:
    query_ids = dict.fromkeys(query_id for run in runs for query_id in run.query_ids)
    spread = {}
    moved = {}
    for name in runs[0].columns:
        if not all(name in run.columns for run in runs):
            continue
        aligned = align_columns(*(run.columns[name] for run in runs))
        differences = {
            query_id: values[1] - values[0] if len(values) == 2 else max(values) - min(values)
            for query_id, values in aligned.items()
        }
        spread[name] = [differences.get(query_id) for query_id in query_ids]
        moved[name] = sum(abs(difference) >= TIE for difference in differences.values())
    return {
        "query_ids": list(query_ids),
        "spread": spread,
        "moved": moved,
        "tie": TIE,
    }


def draw_curves(runs: Sequence[ScoredRun], metric: str) -> Answer:
    """Return the curves of runs at equal budgets; "why" is the reason if there are none."""
    places = {run.name: place for place, run in enumerate(runs)}
    try:
        result = curves([run.path for run in runs], metric)
    except SextantError as problem:
        return {"why": str(problem), "axes": {}, "metric": metric, "refused": []}
    keys = ("mean", "low", "high", "end", "cost")
    axes = {}
    for axis, described in result["axes"].items():
        axes[axis] = {
            "words": described["words"],
            "budgets": described["budgets"],
            "curves": [
                {"run": places[row["run"]], **{key: row[key] for key in keys}}
                for row in described["curves"]
            ],
        }
    return {
        "why": "",
        "metric": result["metric"],
        "axes": axes,
        "refused": [
            {"run": places[row["run"]], "axis": row["axis"], "why": row["why"]}
            for row in result["refused"]
        ],
    }


def describe_behaviours(runs: Sequence[ScoredRun], _: str = "") -> Answer:
    """Return the behaviour of runs, and what each two find together; "why" is the reason if it is
    not known.
    """
    try:
        result = compare_behaviour([run.path for run in runs])
    except SextantError as problem:
        return {"why": str(problem)}
    return {
        "why": "",
        "words": FIGURES,
        "kinds": result["kinds"],
        "cutoff": result["runs"][0]["cutoff"],
        "runs": [
            {"figures": row["figures"], "failures": row["failures"]} for row in result["runs"]
        ],
        "pairs": result["pairs"],
    }


# By the first part of their paths.
COMPARISONS: dict[str, Callable[[Sequence[ScoredRun], str], Answer]] = {
    "compare": compare_runs,
    "curves": draw_curves,
    "behaviours": describe_behaviours,
}
