"""A report made of runs: which tables and plots it has, and in which order.

The tables are made in report_tables.py, the plots in report_plots.py, the page in report_page.py.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from sextant.evals.reporting.comparison_tables import COSTS
from sextant.evals.reporting.compilations import compilations_table
from sextant.evals.reporting.loss_tables import (
    behaviour_table,
    gap_table,
    losses_table,
)
from sextant.evals.reporting.plots import Plot
from sextant.evals.reporting.report_page import Report, ReportSection
from sextant.evals.reporting.report_plots import (
    plot_gap,
    plot_table,
)
from sextant.evals.reporting.report_tables import (
    NO_PUBLISHED,
    make_tables,
)
from sextant.evals.reporting.run_groups import Group, group_runs, short_task_name
from sextant.evals.run_descriptions import model_name
from sextant.evals.run_folder import JUDGED_FILE, check_file
from sextant.evals.scoring.comparison import ComparedSystem, fill_metrics
from sextant.evals.scoring.harness_card import name_tools_and_memory
from sextant.evals.scoring.metrics import require_metrics
from sextant.evals.scoring.scored_run import ScoredRun, find_scored_runs, list_deviations
from sextant.tools.errors import DataError, UnknownName
from sextant.tools.platform.files import hide_folders
from sextant.tools.platform.number_format import plural, queries
from sextant.tools.platform.result_table import ResultTable, figure_cells, tabulate


def build(paths: Sequence[Path], metrics: Sequence[str] = (), *, force: bool = False) -> Report:
    """The report of the runs in `paths` and below them.

    DataError if no run has scores; UnknownName for a metric that no run has; UsageError if runs of
    a column are over different data, unless `force`.
    """
    metrics = require_metrics(metrics)
    runs, unscored = find_scored_runs(paths)
    if not runs:
        reason = next(iter(unscored.values()))
        raise DataError(f"none of the {len(unscored)} run folders has scores, e.g. {reason}")
    runs, problems = fill_metrics(runs, metrics)
    metric_names = {name for run in runs for name in run.columns if "[" not in name}
    for name in metrics:
        if name not in metric_names:
            unknown = UnknownName("metric of these runs", name, metric_names)
            raise problems[0] if problems else unknown
    groups, forced = group_runs(runs, force=force)
    left_out = {
        str(hide_folders(path.as_posix())): str(hide_folders(reason))
        for path, reason in sorted(unscored.items())
    }
    sections = [_section(group, metrics) for group in groups]
    sections += _shared_sections(groups, metrics, paths, left_out)
    tasks = {task for group in groups for task in group.tasks}
    summary = f"{plural(len(runs), 'run')} of {plural(len(tasks), 'task')}"
    if unscored:
        folders = plural(len(unscored), "folder")
        summary += f"; {folders} left out, for the reasons given below"
    warnings = [f"Forced: {problem}" for problem in forced]
    warnings += [str(problem) for problem in problems if isinstance(problem, DataError)]
    for run in runs:
        warnings += _warnings(run)
    summary += ". Made by sextant report."
    return Report(summary, warnings, sections, len(runs), left_out)


def _shared_sections(
    groups: Sequence[Group],
    metrics: Sequence[str],
    paths: Sequence[Path],
    left_out: Mapping[str, str],
) -> Iterator[ReportSection]:
    reasons = [{"run": run, "why": reason} for run, reason in left_out.items()]
    tables = [
        gap_table(groups, metrics),
        losses_table(groups),
        behaviour_table(groups),
        compilations_table(paths),
        _runs_table(groups),
        tabulate("Left out", reasons, stem="left-out"),
    ]
    if plot := plot_gap(groups):
        yield ReportSection(f"plot-{plot.stem}", plot.title, [plot])
    for table in tables:
        if table.rows:
            yield ReportSection(table.stem, table.title, [table])


def _warnings(run: ScoredRun) -> Iterator[str]:
    try:
        check_file(run.path / JUDGED_FILE, run.scores)
    except (ValueError, OSError) as error:
        yield f"{run.name}: {error}; sextant score {run.path} makes it again"
    if run.errors:
        first_error = next(iter(run.errors.values()))[:200]
        failures = f"{len(run.errors)} of {queries(len(run.query_ids))} failed and count 0"
        yield f"{run.name}: {failures}, e.g. {first_error}"


def _section(group: Group, metrics: Sequence[str]) -> ReportSection:
    tables = make_tables(group, metrics)
    headlines = {run.metric for run in group.runs}
    items: list[ResultTable | Plot | None] = []
    for table in tables:
        items.append(table.to_table())
        if table.is_ordered or table.title in (metrics or headlines) or len(group.tasks) == 1:
            items.append(plot_table(group, table))
    notes = [f"Model: {model_name(group.lm)}"] if group.lm else []
    if not any(table.of_kind("published") for table in tables):
        notes.append(NO_PUBLISHED)
    of_runs = dict.fromkeys(note for run in group.runs for note in run.scores.get("notes", []))
    return ReportSection(
        group.stem,
        group.title,
        [item for item in items if item],
        notes,
        [note[:1].upper() + note[1:] for note in of_runs],
    )


def _runs_table(groups: Sequence[Group]) -> ResultTable:
    rows = []
    for group in groups:
        for run in group.runs:
            config = run.config
            scores = run.scores
            row = {
                "system": str(group.system(run)),
                "task": short_task_name(config["task"]),
                "data": config["data"],
                "split": config["split"],
                "queries": scores["queries"],
                "failed": scores["failed"],
                **figure_cells(ComparedSystem((run,)).cost(), COSTS, "unknown"),
                **name_tools_and_memory(config),
                "run": run.name,
                # In the CSV only.
                "full task": config["task"],
                "data fingerprint": config["data_fingerprint"],
                "judgements": scores["judgements"],
                "relevant from": scores["relevant_from"],
                "retriever": str(config["retriever"].get("with", "")),
                "model": config["lm"]["name"],
                "code": str(config.get("code", "")),
                "deviations": " / ".join(list_deviations([run])),
            }
            rows.append(row)
    return tabulate(
        "Runs",
        rows,
        stem="runs",
        notes=["calls, tokens and prices are those of a query on average"],
        in_file=8,
    )
