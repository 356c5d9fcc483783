"""The results of a study, from the run folders of its cells: the findings, and a report around
them.

RUNS/studies/NAME/ gets index.html, report.md, each table as CSV and LaTeX, the values of each
query (tables/study-queries.csv), and the study's own plots as SVG and PDF in the widths of papers'
columns. After the study's tables come those of `sextant report` over the same runs, with floors and
ceilings, and the papers' rows if the data are the release. Seconds depend on the machine, so they
are in a table of their own, tables/study-seconds.csv: all else is the same whenever and however
often the study was run.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from sextant.evals.reporting import figure_layout, report_page
from sextant.evals.reporting import report as build
from sextant.evals.reporting.plots import COLUMNS
from sextant.evals.reporting.report_page import Report, ReportSection, report_table
from sextant.evals.reporting.report_plots import (
    INTERVALS,
    Panel,
    PaperPlot,
    Point,
    Series,
    draw,
    draw_for_paper,
    draw_panel,
    locate_cells,
)
from sextant.evals.reporting.report_tables import (
    ResultCell,
    ResultColumn,
    ResultRow,
    SystemFigures,
    order_by_score,
)
from sextant.evals.reporting.run_groups import short_task_name
from sextant.evals.reporting.verdicts import round_p
from sextant.evals.scoring.comparison import ComparedSystem, fill_metrics, note_exhausted
from sextant.evals.scoring.metrics import canonicalize_metric, is_lower_better, is_weighted
from sextant.evals.scoring.scored_run import ScoredRun, list_deviations, read_scored_run
from sextant.evals.scoring.statistics import estimate_mean
from sextant.evals.studies import significance
from sextant.evals.studies.run_cells import CellResult
from sextant.evals.studies.study_file import StudyFile
from sextant.tools.platform import files as disk
from sextant.tools.platform.number_format import choose_verb, count_failed, number, plural
from sextant.tools.platform.result_table import (
    LatexStyle,
    ResultTable,
    figure_cell,
    to_csv,
    to_latex,
)
from sextant.tools.records import JsonMapping, JsonObject

FILES = (
    "Beside this page are all tables as CSV and LaTeX (tables/), the plots of these findings as "
    "PDF and SVG as wide as "
    "columns and pages of ACL's and ACM's papers (plots/), the value of each query "
    "(tables/study-queries.csv), and the seconds (tables/study-seconds.csv)"
)
# Stands next to a mean that cannot be told from the best of its column.
NOT_DIFFERENT = "†"


class StudyResults(NamedTuple):
    """The finished cells of a study, with their tests and findings."""

    study: StudyFile
    cells: Sequence[CellResult]
    # (row, task) -> a run for each seed.
    runs: dict[tuple[str, str], list[ScoredRun]]
    # task -> its metric.
    metrics: dict[str, str]
    values: significance.Values
    baseline: str
    tests: list[significance.RowTest]
    findings: list[str]

    @property
    def all_runs(self) -> list[ScoredRun]:
        """All its runs, the seeds of a cell one after another."""
        return [run for repeats in self.runs.values() for run in repeats]

    @property
    def deviations(self) -> list[str]:
        """How the programs of its runs differ from those of the papers, each line once."""
        return list_deviations(self.all_runs)

    def json(self) -> JsonObject:
        """Return the cells, the tests and the findings as plain data."""
        cells = []
        for (row, task, request), folder, problem, unfit, _ in self.cells:
            reason = unfit or (str(problem) if problem else None)
            cells.append(
                {
                    "row": row,
                    "task": task,
                    "seed": request.seed,
                    "run": folder and str(folder),
                    "why": reason,
                }
            )
        tests = [test.json() for test in self.tests]
        head = {
            "study": self.study.name,
            "question": self.study.question,
            "baseline": self.baseline,
        }
        return head | {
            "cells": cells,
            "tests": tests,
            "findings": self.findings,
            "deviations": self.deviations,
        }


def gather(study: StudyFile, cell_results: Sequence[CellResult]) -> StudyResults:
    """Read the finished cells, test the rows, and put the findings into words."""
    metric = canonicalize_metric(study.compare.get("metric", ""))
    baseline = study.compare.get("baseline", cell_results[0].cell.row)
    runs = _read_runs(cell_results, metric)
    metrics = {task: metric or repeats[0].metric for (_, task), repeats in runs.items()}
    values: dict[str, dict[str, dict[str, float]]] = {task: {} for task in metrics}
    for (row, task), repeats in runs.items():
        values[task][row] = ComparedSystem(tuple(repeats)).values(metrics[task])
    untested = note_untested(runs, metrics)
    tested = {task: by_row for task, by_row in values.items() if task not in untested}
    tests = significance.test_rows(tested, baseline, metrics)
    sentences = [
        *say_failures(runs),
        *significance.describe_tests(tests, baseline),
        *untested.values(),
    ]
    return StudyResults(study, cell_results, runs, metrics, values, baseline, tests, sentences)


def _read_runs(
    cell_results: Sequence[CellResult], metric: str
) -> dict[tuple[str, str], list[ScoredRun]]:
    runs: dict[tuple[str, str], list[ScoredRun]] = {}
    for result in cell_results:
        key = result.cell[:2]
        # The offline engine has no seed, so that several cells may have one folder.
        folders = [run.path for run in runs.get(key, ())]
        if result.folder and result.folder not in folders:
            metrics = [metric] if metric else []
            [run], problems = fill_metrics([read_scored_run(result.folder)], metrics)
            if problems:
                raise problems[0]
            runs.setdefault(key, []).append(run)
    return runs


def note_untested(
    runs: Mapping[tuple[str, str], Sequence[ScoredRun]], metrics: Mapping[str, str]
) -> dict[str, str]:
    """Return task -> a sentence, for the tasks whose metric counts every document that can be
    retrieved.
    """
    sentences = {}
    for task, metric in metrics.items():
        of_task = [
            run
            for (_, task_of_runs), repeats in runs.items()
            if task_of_runs == task
            for run in repeats
        ]
        if of_task and all(run.is_exhausted_by(metric) for run in of_task):
            [note] = note_exhausted(of_task, [metric])
            sentences[task] = f"{task}: {note}"
    return sentences


def say_failures(runs: Mapping[tuple[str, str], Sequence[ScoredRun]]) -> list[str]:
    """Return a sentence on the queries that programs failed, with each row that has some;
    none if no query failed.
    """
    by_row: dict[str, list[Sequence[ScoredRun]]] = {}
    for (row, _), repeats in runs.items():
        by_row.setdefault(row, []).append(repeats)
    failures = []
    for row, of_tasks in by_row.items():
        failed = sum(run.scores["failed"] for repeats in of_tasks for run in repeats)
        answers = sum(run.scores["queries"] for repeats in of_tasks for run in repeats)
        seeds = {len(repeats) for repeats in of_tasks}
        if failed and len(seeds) == 1:
            failures.append(f"{row} {count_failed(failed, answers, seeds.pop())}")
        elif failed:
            # A seed of one of the tasks is still to be run.
            failures.append(f"{row} {failed} of {plural(answers, 'answer')}")
    if not failures:
        return []
    return [f"Failed queries, which have the worst value of each metric: {'; '.join(failures)}"]


def lay_out(results: StudyResults) -> SystemFigures:
    """Return the figures of the study: rows by tasks, and the mean over tasks of a row that has
    all of them.
    """
    families = significance.group_by_family(results.metrics, results.metrics)
    columns = _columns(results, families)
    rows = []
    for row in dict(results.runs.keys()):
        rows.append(ResultRow("ours", row, [_cell(results, row, column) for column in columns]))
    rows = order_by_score(rows, columns)
    untested = note_untested(results.runs, results.metrics)
    for index, column in enumerate(columns):
        if untested.keys().isdisjoint(column.tasks):
            _mark_column(results, column, {row.label: row.cells[index] for row in rows})
    notes = _table_notes(results, families)
    bounds = _bounds(results, columns)
    return SystemFigures(
        "study",
        results.study.name,
        columns,
        [*rows, *bounds],
        notes,
    )


def _columns(results: StudyResults, families: Mapping[str, tuple[str, ...]]) -> list[ResultColumn]:
    columns = []
    for task, metric in results.metrics.items():
        columns.append(
            ResultColumn(
                (task,),
                metric,
                "",
                short_task_name(task),
                metric,
            )
        )
    for family, tasks in families.items():
        if len(tasks) > 1:
            label = "mean" if len(families) == 1 else f"mean {family}"
            metrics = dict.fromkeys(results.metrics[task] for task in tasks)
            columns.append(ResultColumn(tasks, ", ".join(metrics), "", label))
    return columns


def _mark_column(
    results: StudyResults, column: ResultColumn, cells: Mapping[str, ResultCell | None]
) -> None:
    """Mark the best cell of a column, and those that cannot be told from it."""
    values = {task: results.values[task] for task in column.tasks}
    best, tests = significance.find_best(values, results.metrics)
    for row, cell in cells.items():
        if cell and row == best:
            cell.best = True
        elif cell and row in tests and not tests[row].significant:
            cell.form += NOT_DIFFERENT
            result = tests[row].result
            cell.note = (
                f"cannot be told from {best} ({result.difference:+.4f}, n={result.queries}, "
                f"p {round_p(result.p_holm)})"
            )


def _table_notes(results: StudyResults, families: Mapping[str, tuple[str, ...]]) -> list[str]:
    notes = [
        "in brackets the 95 % interval",
        f"bold is the best of a column; {NOT_DIFFERENT} cannot be told from it by paired "
        "permutation tests, corrected by Holm",
    ]
    if len(families) > 1:
        kinds = ", ".join(families)
        notes.append(f"no mean over all tasks, since their metrics differ in kind: {kinds}")
    if any(map(is_lower_better, results.metrics.values())):
        notes.append(
            "Flip: the share of comparisons that come out otherwise once the query is written as "
            "prose; less is better"
        )
    if any(map(is_weighted, results.metrics.values())):
        notes.append(
            "Triplets: the share of pairs of documents that are in the right order; each query "
            "counts once here, and as often as it has pairs in a run's own table"
        )
    bare = dict(results.runs.keys())
    for (row, _), repeats in results.runs.items():
        if not all(run.is_floor for run in repeats):
            bare.pop(row, "")
    if bare:
        notes.append(f"floors that were run, bare retrievers: {', '.join(bare)}")
    return notes


def _bounds(results: StudyResults, columns: Sequence[ResultColumn]) -> list[ResultRow]:
    """Return the rows of floors and ceilings.

    The bounds of a task are those of its first cell that searches the same.
    """
    by_name: dict[str, dict[str, float | None]] = {}
    for result in results.cells:
        for name, value in (result.bounds or {}).items():
            by_name.setdefault(name, {}).setdefault(result.cell.task, value)
    rows = []
    for name, by_task in by_name.items():
        cells = [_bound_cell(by_task, column.tasks) for column in columns]
        if any(cells):
            rows.append(ResultRow("computed", name, cells, ranked=False))
    return rows


def _bound_cell(by_task: Mapping[str, float | None], tasks: Sequence[str]) -> ResultCell | None:
    bounds = [bound for task in tasks if (bound := by_task.get(task)) is not None]
    if len(bounds) < len(tasks):
        return None
    return ResultCell(fmean(bounds), "{:.4f}", "computed, not run")


def _cell(results: StudyResults, row: str, column: ResultColumn) -> ResultCell | None:
    by_task = [results.runs.get((row, task), []) for task in column.tasks]
    values = [list(results.values[task].get(row, {}).values()) for task in column.tasks]
    if not all(values):
        return None
    runs = [run for task_runs in by_task for run in task_runs]
    mean, low, high = estimate_mean(values)
    form = "{:.4f}" if low is None else "{:.4f} [{:.3f}, {:.3f}]"
    seeds = {len(task_runs) for task_runs in by_task}
    return ResultCell(
        mean,
        form,
        ", ".join(run.name for run in runs),
        low,
        high,
        queries=sum(map(len, values)),
        failed=sum(run.scores["failed"] for run in runs),
        answers=sum(run.scores["queries"] for run in runs),
        seeds=seeds.pop() if len(seeds) == 1 else 1,
    )


def lay_out_tests(results: StudyResults, table: SystemFigures) -> list[ResultTable]:
    """Return the table of all tests against the baseline; none if there is nothing to test."""
    if not results.tests:
        return []
    order = [row.label for row in table.rows]
    rows = []
    for test in sorted(results.tests, key=lambda test: order.index(test.row)):
        result = test.result
        rows.append(
            [
                test.row,
                test.place,
                test.metric,
                figure_cell(result.difference, "{:+.4f}"),
                figure_cell(result.low, "{:+.4f}", "too few"),
                figure_cell(result.high, "{:+.4f}", "too few"),
                round_p(result.p),
                round_p(result.p_holm),
                f"{result.wins}/{result.ties}/{result.losses}",
                figure_cell(result.detectable),
            ]
        )
    heads = ["row", "task", "metric", "difference", "low", "high", "p", "Holm", "w/t/l", "shows"]
    tests = plural(results.tests[0].result.tests, "test")
    notes = [
        f"a row less {results.baseline}; above 0 is better, also where less of a metric is",
        "low, high: 95 % interval; p: paired sign-flip permutation test, within each task; Holm: "
        f"adjusted for {tests}",
        "w/t/l: queries won, tied, lost; shows: the difference that so many queries show in 80 % "
        "of cases, as the first of these tests; too few, -: too few queries differ",
    ]
    title = f"Differences from {results.baseline}"
    return [report_table("study-tests", title, heads, rows, words=(1, 2), notes=notes)]


def lay_out_costs(results: StudyResults) -> ResultTable:
    """Return calls, tokens and list price of each row."""
    usages: dict[str, list[JsonMapping]] = {}
    for (row, _), repeats in results.runs.items():
        usages.setdefault(row, []).extend(run.scores["usage"] for run in repeats)
    rows = []
    for row, of_runs in usages.items():
        cells = [row, str(len(of_runs))]
        for key in ("calls", "input_tokens", "output_tokens"):
            cells.append(number(_sum(of_runs, key), "{:,}"))
        cells.append(number(_sum(of_runs, "list_usd"), "${:.4f}"))
        rows.append(cells)
    heads = ["row", "runs", "calls", "tokens in", "tokens out", "list price"]
    return report_table("study-cost", "Cost", heads, rows)


def _sum(usages: Sequence[JsonMapping], key: str) -> Any:
    """Return the sum over runs; None if it is not known of a run."""
    amounts = [usage.get(key) for usage in usages]
    return None if None in amounts else sum(amounts)


def _seconds_table(results: StudyResults) -> ResultTable:
    rows = []
    for (row, task), repeats in results.runs.items():
        seconds = sum(run.seconds for run in repeats)
        answers = sum(len(run.query_ids) for run in repeats)
        rows.append([row, task, str(answers), f"{seconds:.2f}", f"{seconds / answers:.4f}"])
    return report_table(
        "study-seconds",
        "Seconds",
        ["row", "task", "queries", "seconds", "seconds a query"],
        rows,
        words=(1,),
    )


def draw_means(results: StudyResults) -> Any:
    """Return a figure of matplotlib: the means of rows by tasks, with their intervals."""
    panels = _make_panels(results, lay_out(results))
    return draw_panel(panels["study-means"])


def _titled_panels(results: StudyResults, table: SystemFigures) -> list[tuple[str, str, Panel]]:
    """Return the panels of means and of differences that show something, with stem and title."""
    panels = _make_panels(results, table)
    return [
        (stem, f"{results.study.name}: {panel.y}", panel)
        for stem, panel in panels.items()
        if panel.series
    ]


def _make_panels(results: StudyResults, table: SystemFigures) -> dict[str, Panel]:
    rows = table.of_kind("ours")
    tests = {(test.row, test.tasks): test for test in results.tests}
    means = []
    changes = []
    for index, row in enumerate(rows):
        shift = (index - (len(rows) - 1) / 2) * min(0.12, 0.7 / len(rows))
        change_points = []
        for x, column in enumerate(table.columns):
            if test := tests.get((row.label, column.tasks)):
                difference, low, high, *_ = test.result
                change_points.append(Point(x + shift, difference, low, high))
        places = [x + shift for x in range(len(table.columns))]
        means.append(Series(row.label, locate_cells(places, row.cells), index))
        if change_points:
            changes.append(Series(row.label, change_points, index))
    ticks = {float(x): column.label for x, column in enumerate(table.columns)}
    change = f"difference from {results.baseline}"
    return {
        "study-means": Panel("", table.columns[-1].metric, means, ticks),
        "study-differences": Panel("", change, changes, ticks, zero=True),
    }


def make_report(
    results: StudyResults, figures: SystemFigures
) -> tuple[Report, dict[str, str | bytes]]:
    """Return the report of a study with its `figures` (lay_out), and the files that go with it."""
    panels = _titled_panels(results, figures)
    report = _build_report(results, figures, panels)
    files: dict[str, str | bytes] = {}
    for panel, width_name in product(panels, COLUMNS):
        files |= draw_for_paper(PaperPlot(*panel, width_name))
    seconds = _seconds_table(results)
    paths = [run.name for run in results.all_runs]
    for table in [*report.tables, seconds]:
        text = to_latex([*results.deviations, table], LatexStyle(), paths)
        files[f"tables/{table.stem}.tex"] = text
    files["tables/study-seconds.csv"] = seconds.to_csv()
    files["tables/study-queries.csv"] = to_csv(_list_query_values(results))
    return report, files


def _list_query_values(results: StudyResults) -> list[list[object]]:
    """Return heads, and a row for each query of each run, with its value of each metric; None where
    the run has none.
    """
    metrics = dict.fromkeys(metric for run in results.all_runs for metric in run.columns)
    rows: list[list[object]] = [["row", "task", "run", "query_id", *metrics, "error"]]
    for (row, task), repeats in results.runs.items():
        for run in repeats:
            for query_id in run.query_ids:
                values = [run.columns.get(metric, {}).get(query_id) for metric in metrics]
                error = run.errors.get(query_id)
                rows.append([row, task, run.path.name, query_id, *values, error])
    return rows


def _build_report(
    results: StudyResults, figures: SystemFigures, panels: Sequence[tuple[str, str, Panel]]
) -> Report:
    report = build.build([run.path for run in results.all_runs], force=True)
    table = figure_layout.lay_out(figures)
    plots = [
        draw(stem, title, INTERVALS, partial(draw_panel, panel)) for stem, title, panel in panels
    ]
    report.title = f"Study {results.study.name}"
    report.summary = f"{results.study.question} {report.summary.partition(' Made by')[0]}".strip()
    missing = list_missing(results.cells)
    for missing_table in missing:
        count = plural(len(missing_table.rows), "cell")
        warning = f"{count} of {len(results.cells)} {choose_verb(len(missing_table.rows))} not there, see below"
        report.warnings.insert(0, warning)
    notes = [*results.findings, FILES]
    findings = ReportSection("findings", "Findings", [table, *plots], notes, results.deviations)
    sections = [findings]
    for further in (*lay_out_tests(results, figures), lay_out_costs(results), *missing):
        sections.append(ReportSection(further.stem, further.title, [further]))
    report.sections[:0] = sections
    return report


def list_missing(cell_results: Sequence[CellResult]) -> list[ResultTable]:
    """Return a table of the cells that are not there, with the reasons; none if all are there."""
    rows = [
        [
            *result.cell[:2],
            result.unfit or str(result.problem),
        ]
        for result in cell_results
        if not result.folder
    ]
    if not rows:
        return []
    title = "Cells that are not there"
    heads = ["row", "task", "why"]
    return [report_table("study-missing", title, heads, rows, words=(1,), long=(2,))]


def write(results: StudyResults, figures: SystemFigures, runs: Path) -> Path:
    """Write the results of a study, of which a cell is finished; return the page."""
    report, files = make_report(results, figures)
    folder = runs / "studies" / results.study.name
    disk.mkdir_private(folder)
    with disk.lock_file(
        folder / ".lock", lambda: None, disk.PRIVATE
    ):  # another process may be at the same study
        return report_page.write(report, folder, files)[0]
