"""Python's side of the commands: results that print as tables, also in a notebook.

from sextant.evals import behaviour, compare, credit, curves, evaluate, experiment, study

print(compare(RUN, RUN))            # as `sextant compare` prints it
curves(RUN, RUN).plot()             # a figure of matplotlib
experiment(["retrieve", my_function], "congress").to_pandas()

Modules of these names are commands, too: `sextant.evals.compare` is a module that can be called
(`CallableModule`), so that both `compare(RUN, RUN)` and `compare.parser()` work.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sextant.evals.reporting import comparison_tables, plots
from sextant.evals.reporting.comparison_tables import overview_table, system_names
from sextant.evals.running.evaluate import Result, evaluate
from sextant.evals.scoring import behaviour as behaviour_of_runs
from sextant.evals.scoring import budget_curves, comparison
from sextant.evals.scoring import credit as credit_of_searches
from sextant.tools.errors import UsageError
from sextant.tools.platform.number_format import plural
from sextant.tools.platform.result_table import (
    ResultTable,
    TextBlock,
    html_of,
    render_terminal,
    to_data_frame,
)
from sextant.tools.records import JsonMapping, JsonObject

Run = str | Path | Result
# A system of an experiment: a program's name, an object, or the fields of a request.
System = str | JsonMapping | Callable[..., Any]


@dataclass(frozen=True, repr=False)
class TabledResult:
    """A result of several runs, which prints as its command does; `data` is what --json prints."""

    data: JsonMapping
    blocks: Sequence[TextBlock]
    # The rows of its data frame.
    rows: ResultTable | Sequence[JsonMapping]
    draw: Callable[[], Any] | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return render_terminal(self.blocks).rstrip("\n")

    __repr__ = __str__

    def __getitem__(self, key: str) -> Any:
        return self.data[key]

    def _repr_html_(self) -> str:
        return html_of(self.blocks)

    def json(self) -> JsonObject:
        """Return all of it as plain data, as --json prints it."""
        return dict(self.data)

    def to_pandas(self) -> Any:
        """Return the rows as a DataFrame of pandas, with numbers as numbers. ImportError without pandas."""
        if isinstance(self.rows, ResultTable):
            return self.rows.to_pandas()
        return to_data_frame(self.rows)

    def plot(self) -> Any:
        """Return a figure of matplotlib."""
        if self.draw is None:
            raise UsageError("this result has no plot")
        return self.draw()


def compare(
    *runs: Run | Sequence[Run], metrics: Sequence[str] = (), force: bool = False
) -> TabledResult:
    """Compare runs with the first, as `sextant compare` does.

    Runs are folders, or results of `evaluate`, one by one or in a list. `plot()` draws the
    differences from the first run in the headline metric, with their intervals. UsageError for runs
    that were not asked the same, unless `force`.
    """
    result = comparison.compare(_paths(runs), _as_list(metrics), force=force)
    return TabledResult(
        result,
        comparison_tables.lay_out_comparison(result, pairs=len(result["runs"]) == 1),
        result["comparisons"],
        lambda: plots.draw_differences(result, system_names(result)),
    )


def curves(*runs: Run | Sequence[Run], metric: str = "", by: str = "all") -> TabledResult:
    """Return a metric of runs after each search, call, token and cent, as `sextant curves`
    does.

    `by` is searches, calls, tokens, usd or all. `plot()` draws a panel for each.
    """
    axes = tuple(budget_curves.AXES) if by == "all" else (by,)
    result = budget_curves.curves(_paths(runs), metric, axes)
    return TabledResult(
        result,
        comparison_tables.lay_out_curves(result),
        comparison_tables.list_curve_rows(result),
        lambda: plots.draw_curves(result),
    )


def behaviour(*runs: Run | Sequence[Run]) -> TabledResult:
    """Count what the searchers of runs do, as `sextant behaviour` does."""
    result = behaviour_of_runs.compare_behaviour(_paths(runs))
    blocks = behaviour_of_runs.lay_out_behaviour(result)
    return TabledResult(
        result, blocks, next(block for block in blocks if isinstance(block, ResultTable))
    )


def credit(*runs: Run | Sequence[Run], metric: str = "surfaced") -> TabledResult:
    """Divide the score of runs among their searches, as `sextant credit` does."""
    result = credit_of_searches.compare_credit(_paths(runs), metric)
    blocks = credit_of_searches.lay_out_credit(result)
    return TabledResult(
        result, blocks, next(block for block in blocks if isinstance(block, ResultTable))
    )


def study(
    file: str | Path,
    runs: str | Path = Path("runs"),
) -> TabledResult:
    """Run the unfinished cells of a study, and return its table, as `sextant study` does.

    `plot()` draws the means of rows by tasks. The gravest error of unfinished cells is raised
    after all others have run.
    """
    from sextant.evals import study as command  # it imports this module

    outcome = command.run(file, Path(runs))
    if outcome.problem:
        raise outcome.problem
    blocks = list(outcome.blocks)
    return TabledResult(
        outcome.json,
        blocks,
        next(block for block in blocks if isinstance(block, ResultTable)),
        outcome.draw,
    )


def experiment(
    systems: Sequence[System],
    task: Any,
    *,
    baseline: int = 0,
    names: Sequence[str] = (),
    metrics: Sequence[str] = (),
    **fields: Any,
) -> TabledResult:
    """Run systems on a task, and return one table of systems by metrics.

    A system is a program's name, an object that `evaluate` takes, or a mapping of fields of a
    request, as `{"program": "multihop", "retriever": "dense"}`. `fields` are those of all systems.
    In the data frame each metric has the p of a paired test against the system at `baseline`
    (corrected by Holm over all tests of the table), and in print `*` is the best, `=` does not
    differ from it. Runs on disk are not asked again, except those of objects without a `name`.
    """
    systems = _as_list(systems)
    metrics = _as_list(metrics)
    if len(systems) < 2:
        raise UsageError("an experiment compares two systems or more")
    if names and len(names) != len(systems):
        count = plural(len(names), "name is", "names are")
        raise UsageError(f"{count} given for {plural(len(systems), 'system')}")
    if baseline not in range(len(systems)):
        last = len(systems) - 1
        raise UsageError(f"baseline={baseline} is no place of a system; give 0 to {last}")
    results = []
    for system in systems:
        own = dict(system) if isinstance(system, Mapping) else {"program": system}
        results.append(evaluate(**{"task": task, "metrics": tuple(metrics), **fields, **own}))
    folders = [result.folder for result in results]
    if len(set(folders)) < len(folders):
        raise UsageError("two of the systems are the same; name each once")
    order = [baseline, *(place for place in range(len(systems)) if place != baseline)]
    result = comparison.compare([folders[place] for place in order], metrics)
    if len(result["systems"]) < len(systems):
        raise UsageError("two of the systems are the same, but for their seeds; name each once")
    labels = system_names(result)
    if names:
        labels = [names[place] for place in order]
    table = overview_table(result, labels)
    return TabledResult(
        result,
        [table, *table.notes, *comparison_tables.lay_out_findings(result, labels)],
        _list_experiment_rows(result, labels),
        lambda: plots.draw_differences(result, labels),
    )


def _as_list(values: Any) -> list[Any]:
    """Return values as a list; a text, which Python would take for its letters, is one value."""
    return [values] if isinstance(values, str) else list(values)


def _paths(runs: Sequence[Run | Sequence[Run]]) -> list[Path]:
    """Return the folders of runs, which may be named one by one or in a list."""
    paths = []
    for run in runs:
        if isinstance(run, Result):
            paths.append(run.folder)
        elif isinstance(run, str | Path):
            paths.append(Path(run))
        else:
            paths += _paths(run)
    return paths


def _list_experiment_rows(result: JsonMapping, labels: Sequence[str]) -> list[JsonObject]:
    """Return a row for each system, with each metric and its p against the baseline."""
    adjusted = {(row["run"], row["metric"]): row["p_holm"] for row in result["comparisons"]}
    rows = []
    for place, (label, system) in enumerate(zip(labels, result["systems"], strict=True)):
        cells: JsonObject = {"system": label}
        for ranked in result["by_metric"]:
            metric = ranked["metric"]
            cells[metric] = ranked["means"][place]
            cells[f"{metric} p"] = adjusted.get((system["run"], metric))
        rows.append(cells)
    return rows
