"""A report made of runs: which tables and plots it has, and in which order.

The tables are made in report_tables.py, the plots in report_plots.py, the page in report_page.py.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from sextant.evals.reporting import figure_layout
from sextant.evals.reporting.compilations import compilations_table
from sextant.evals.reporting.loss_tables import (
    gap_table,
    losses_table,
    plot_gap,
    plot_losses,
    systems_table,
)
from sextant.evals.reporting.report_page import Report, ReportSection, report_table
from sextant.evals.reporting.report_plots import (
    SWEPT,
    Plot,
    plot_by_task,
    plot_conditions,
    plot_sweep,
)
from sextant.evals.reporting.report_tables import (
    explain_missing_published,
    make_tables,
    sweep_table,
    sweep_tasks,
)
from sextant.evals.reporting.run_groups import Group, group_runs, short_task_name
from sextant.evals.run_descriptions import model_name
from sextant.evals.run_folder import JUDGED_FILE, check_file
from sextant.evals.scoring.comparison import fill_metrics
from sextant.evals.scoring.metrics import require_metrics
from sextant.evals.scoring.scored_run import ScoredRun, find_scored_runs, list_deviations
from sextant.tools.errors import DataError, UnknownName
from sextant.tools.platform.files import hide_folders
from sextant.tools.platform.number_format import number, plural, queries
from sextant.tools.platform.result_table import ResultTable

_RUN_HEADS = [
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
_RUN_CSV_HEADS = [
    "full task",
    "data fingerprint",
    "judgements",
    "relevant from",
    "retriever",
    "model",
    "code",
    "deviations",
]


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
        hide_folders(path.as_posix()): hide_folders(reason)
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
) -> list[ReportSection]:
    rows = [[path, reason] for path, reason in left_out.items()]
    reasons = report_table(
        "left-out",
        "Left out",
        ["run", "why"],
        rows,
        long=(1,),
    )
    groups_of_items: list[list[Plot | ResultTable | None]] = [
        [plot_gap(groups), gap_table(groups, metrics)],
        [*map(plot_losses, groups), losses_table(groups)],
        [systems_table(groups)],
        [compilations_table(paths)],
        [_runs_table(groups)],
        [reasons if left_out else None],
    ]
    sections = []
    for items in groups_of_items:
        shown = [item for item in items if item]
        if shown:
            # A section has the name of its table, which comes after the plots.
            table = shown[-1]
            sections.append(ReportSection(table.stem, table.title, shown))
    return sections


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
    for table in sorted(tables, key=lambda table: table.title not in headlines):
        items.append(figure_layout.lay_out(table))
        if table.title in (metrics or headlines):
            items.append(plot_by_task(group, table))
    items.append(plot_conditions(group))
    for name in metrics or (SWEPT,):
        for task in sweep_tasks(group):
            swept = sweep_table(group, task, name)
            if swept.rows:
                items += [figure_layout.lay_out(swept), plot_sweep(group, swept)]
    notes = [f"Model: {model_name(group.lm)}"] if group.lm else []
    if missing := explain_missing_published(group, tables):
        notes.append(_capitalize(missing))
    of_runs = dict.fromkeys(note for run in group.runs for note in run.scores.get("notes", []))
    return ReportSection(
        group.stem,
        group.title,
        [item for item in items if item],
        notes,
        [_capitalize(note) for note in of_runs],
    )


def _capitalize(text: str) -> str:
    return text[:1].upper() + text[1:]


def _runs_table(groups: Sequence[Group]) -> ResultTable:
    rows = [_run_row(group, run) for group in groups for run in group.runs]
    notes = ["calls, tokens and list price are those of a query on average"]
    return report_table(
        "runs",
        "Runs",
        _RUN_HEADS,
        rows,
        words=(1, 2, 3),
        long=(9,),
        csv_heads=_RUN_CSV_HEADS,
        notes=notes,
    )


def _run_row(group: Group, run: ScoredRun) -> list[str]:
    config = run.config
    scores = run.scores
    return [
        str(group.system(run)),
        short_task_name(config["task"]),
        config["data"],
        config["split"],
        str(scores["queries"]),
        str(scores["failed"]),
        *_cost_cells(run),
        run.name,
        config["task"],
        config["data_fingerprint"],
        scores["judgements"],
        f"{scores['relevant_from']:g}",
        str(config["retriever"].get("with", "")),
        config["lm"]["name"],
        str(config.get("code", "")),
        " / ".join(list_deviations([run])),
    ]


def _cost_cells(run: ScoredRun) -> list[str]:
    """Return calls, tokens and list price of a query on average, which imported runs may lack."""
    if not run.usage_known:
        return ["unknown"] * 3
    usage = run.scores["usage"]
    query_count = run.scores["queries"]
    tokens = f"{(usage['input_tokens'] + usage['output_tokens']) / query_count:,.0f}"
    if thinking := usage.get("reasoning_tokens"):
        tokens += f" ({thinking / query_count:,.0f} thinking)"
    price = None if usage["list_usd"] is None else usage["list_usd"] / query_count
    return [
        f"{usage['calls'] / query_count:,.1f}",
        tokens,
        number(price, "${:.5f}"),
    ]
