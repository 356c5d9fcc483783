"""A report made of runs: which tables and plots it has, and in which order."""

from collections.abc import Sequence
from pathlib import Path

from evals.reporting.compilations import compilations_table
from evals.reporting.loss_tables import gap_table, losses_table, plot_losses, systems_table
from evals.reporting.report_page import CsvTable, Report, ReportSection
from evals.reporting.report_plots import SWEPT, Plot, plot_by_task, plot_conditions, plot_sweep
from evals.reporting.report_tables import (
    ResultTable,
    explain_missing_published,
    make_tables,
    sweep_table,
    sweep_tasks,
)
from evals.reporting.run_groups import Group, group_runs, short_task_name
from evals.run_folder import check_file
from evals.scoring.comparison import fill_metrics
from evals.scoring.metrics import check_metric
from evals.scoring.scored_run import find_scored_runs
from evals.text_tables import model_name
from tools.errors import DataError, UnknownName
from tools.number_format import number, plural


def build(paths: Sequence[Path], metrics: Sequence[str] = (), *, force: bool = False) -> Report:
    """The report of the runs in `paths` and below them.

    DataError where no run has scores; UnknownName for a metric that is none; UsageError where runs
    of one column are over different data, unless `force`.
    """
    for name in metrics:
        check_metric(name.partition(" [")[0])
    runs, unscored = find_scored_runs(paths)
    if not runs:
        raise DataError(
            f"none of the {len(unscored)} run folders has scores, e.g. {next(iter(unscored.values()))}"
        )
    runs, problems = fill_metrics(runs, metrics)
    metric_names = {name for run in runs for name in run.columns if "[" not in name}
    if strange := [name for name in metrics if name not in metric_names]:
        raise (
            problems[0]
            if problems
            else UnknownName("metric of these runs", strange[0], metric_names)
        )
    groups, forced = group_runs(runs, force=force)
    sections = [_section(group, metrics) for group in groups]
    left_out = {path.as_posix(): reason for path, reason in sorted(unscored.items())}
    reasons = CsvTable(
        "left-out", "Left out", ["run", "why"], [[*row] for row in left_out.items()], long={1}
    )
    groups_of_items: list[list[Plot | CsvTable | None]] = [[gap_table(groups, metrics)]]
    groups_of_items += [
        [*map(plot_losses, groups), losses_table(groups)],
        [systems_table(groups)],
        [compilations_table(paths)],
    ]
    groups_of_items += [[_runs_table(groups)], [reasons if left_out else None]]
    for items in groups_of_items:
        if shown := [
            item for item in items if item
        ]:  # a section is called as its table, after the plots
            sections.append(ReportSection(shown[-1].stem, shown[-1].title, shown))
    tasks = {task for group in groups for task in group.tasks}
    fewer = (
        f"; {plural(len(unscored), 'folder')} left out, for the reasons given below"
        if unscored
        else ""
    )
    summary = (
        f"{plural(len(runs), 'run')} of {plural(len(tasks), 'task')}{fewer}. Made by python -m "
        f"evals.report."
    )
    warnings = [f"Forced: {problem}" for problem in forced]
    warnings += [str(problem) for problem in problems if isinstance(problem, DataError)]
    for run in runs:
        try:
            check_file(run.path / "attribution.jsonl", run.scores)
        except (ValueError, OSError) as error:
            warnings.append(f"{run.name}: {error}; python -m evals.score {run.path} makes it again")
        if run.errors:
            failures = f"{len(run.errors)} of {len(run.query_ids)} queries failed and count 0"
            warnings.append(f"{run.name}: {failures}, e.g. {next(iter(run.errors.values()))[:200]}")
    return Report(summary, warnings, sections, len(runs), left_out)


def _section(group: Group, metrics: Sequence[str]) -> ReportSection:
    tables = make_tables(group, metrics)
    headlines = {run.metric for run in group.runs}
    items: list[ResultTable | CsvTable | Plot | None] = []
    for table in sorted(tables, key=lambda table: table.title not in headlines):
        items += [
            table,
            plot_by_task(group, table) if table.title in (metrics or headlines) else None,
        ]
    items.append(plot_conditions(group))
    for name in metrics or ("",):
        for task in sweep_tasks(group):
            swept = sweep_table(group, task, name or SWEPT)
            items += [swept, plot_sweep(group, swept)] if swept.rows else []
    notes = [f"Model: {model_name(group.lm)}"] if group.lm else []
    notes += dict.fromkeys(note for run in group.runs for note in run.scores.get("notes", []))
    notes += filter(None, [explain_missing_published(group, tables)])
    shown = [item for item in items if item]
    return ReportSection(
        group.stem, group.title, shown, [note[:1].upper() + note[1:] for note in notes]
    )


def _runs_table(groups: Sequence[Group]) -> CsvTable:
    names = [
        "system",
        "task",
        "data",
        "split",
        "queries",
        "failed",
        "calls",
        "tokens",
        "list price",
        "run",
    ]
    csv_heads = ["full task", "data fingerprint", "judgements", "retriever", "model", "code"]
    rows = []
    for group, run in [(owner, run) for owner in groups for run in owner.runs]:
        config = run.config
        scores = run.scores
        usage = run.scores["usage"]
        query_count = run.scores["queries"]
        about_data = [
            short_task_name(config["task"]),
            config["data"],
            config["split"],
            str(query_count),
            str(scores["failed"]),
        ]
        cost = ["unknown"] * 3  # of an imported run
        if run.usage_known:
            price = None if usage["list_usd"] is None else usage["list_usd"] / query_count
            tokens = f"{(usage['input_tokens'] + usage['output_tokens']) / query_count:,.0f}"
            tokens += (
                f" ({thinking / query_count:,.0f} thinking)"
                if (thinking := usage.get("reasoning_tokens"))
                else ""
            )
            cost = [f"{usage['calls'] / query_count:,.1f}", tokens, number(price, "${:.5f}")]
        exact = [config["task"], config["data_fingerprint"], scores["judgements"]]
        exact += [
            str(config["retriever"].get("with", "")),
            config["lm"]["name"],
            str(config.get("code", "")),
        ]
        rows.append([str(group.system(run)), *about_data, *cost, run.name, *exact])
    notes = ["calls, tokens and list price are those of a query on average"]
    return CsvTable("runs", "Runs", names, rows, {1, 2, 3}, {9}, csv_heads, notes)
