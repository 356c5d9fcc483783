"""Metrics that a scored run lacks, computed from its outcomes and judgements without writing anything.

Metrics of rankings need the run folder alone: attribution.jsonl has the grades. Judged, and metrics of comparisons,
need the task's data as well.
"""

import dataclasses
import json
from collections.abc import Iterable, Sequence

from environments.base import Environment
from evals.folder import PROVENANCE
from evals.measuring.metrics import add_metrics, check_metric, compute, is_pairwise, judge_units, ranking_metric
from evals.measuring.scored import Column, Run
from evals.measuring.scoring import ranking_of, summarise_column, weigh_queries
from evals.running.configuration import load_environment
from tools.errors import DataError, SextantError, UsageError

Loaded = dict[str, Environment | SextantError]  # the data of runs, or why it is not here


def check_names(names: Iterable[str]) -> None:
    """UnknownName or UsageError for a name that is no metric; one by other judgements, "R@5 [pooled]", is one."""
    for name in names:
        check_metric(name.partition(" [")[0])


def fill_metrics(runs: Sequence[Run], names: Iterable[str]) -> tuple[list[Run], list[SextantError]]:
    """(the runs, with a column for each metric that they lacked and can have, an error for each that they cannot)."""
    loaded: Loaded = {}
    wanted, problems, filled_runs = list(names), list[SextantError](), list[Run]()
    for run in runs:
        filled = run
        for name in wanted:
            if name in run.columns or "[" in name:
                continue
            try:
                filled = _with_column(filled, name, _compute_column(run, name, loaded))
            except SextantError as problem:
                problems.append(problem.saying(f"{name} of {run.name} cannot be computed: {problem}"))
        filled_runs.append(filled)
    return filled_runs, problems


def _compute_column(
    run: Run, name: str, loaded: dict[str, Environment | SextantError]
) -> tuple[Column, dict[str, int]]:
    """(the value of each query, how much each counts in the mean)."""
    if not is_pairwise(name) and not name.startswith("Judged"):
        return {query_id: _ranking_value(run, name, query_id) for query_id in run.query_ids}, {}
    if is_pairwise(name) and not any(map(is_pairwise, run.columns)):  # do not load a corpus to find this out
        raise UsageError(f"{run.config['task']} has no such comparisons")
    environment = add_metrics(_load(run, loaded), [name])
    rankings = {query_id: ranking_of(run.outcomes[query_id]) for query_id in run.query_ids}
    column = {query_id: compute(name, query_id, rankings, environment) for query_id in run.query_ids}
    return column, weigh_queries(name, environment)


def _ranking_value(run: Run, name: str, query_id: str) -> float | None:
    ranking, row = run.outcomes[query_id]["ranking"], run.judged[query_id]
    units = row.get("units", {})
    collapsed = list(dict.fromkeys(units.get(doc_id, doc_id) for doc_id in ranking))
    return ranking_metric(name, judge_units(collapsed, row["grades"], {one["unit"] for one in row["relevant"]}))


def _load(run: Run, loaded: Loaded) -> Environment:
    """The data of a run, loaded once for all runs of it. DataError where it is not here."""
    key = json.dumps([run.contract, run.config[PROVENANCE]["folder"]], sort_keys=True)
    if key not in loaded:
        try:
            loaded[key] = load_environment(run.config, run.scores["judgements"])
        except SextantError as problem:
            loaded[key] = DataError(f"its data is not here any more ({problem})")
    found = loaded[key]
    if isinstance(found, SextantError):
        raise found
    return found


def _with_column(run: Run, name: str, computed: tuple[Column, dict[str, int]]) -> Run:
    column, weights = computed
    resampled = any("resampled" in one for one in run.scores["metrics"].values())
    measured = summarise_column(column, weights, resampled=resampled)
    scores = run.scores | {"metrics": run.scores["metrics"] | {name: measured}}
    return dataclasses.replace(run, scores=scores, columns=run.columns | {name: column})
