"""The results of a study, from the run folders of its cells: the findings, and a report around
them.

RUNS/studies/NAME/ gets index.html, report.md, each table as CSV and LaTeX, the values of each
query (tables/study-queries.csv), and the study's own plots as SVG and PDF in the widths of papers'
columns. After the study's tables come those of `sextant report` over the same runs, with floors and
ceilings, and the papers' rows if the data are the release. Seconds depend on the machine, so they
are in a table of their own, tables/study-seconds.csv: all else is the same whenever and however
often the study was run.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from sextant.evals.reporting import report as build
from sextant.evals.reporting import report_page
from sextant.evals.reporting.findings import findings_table, make_finding
from sextant.evals.reporting.plots import (
    Panel,
    Point,
    Series,
    draw,
    draw_for_paper,
    draw_panels,
)
from sextant.evals.reporting.report_page import ReportSection
from sextant.evals.reporting.report_plots import INTERVALS, make_panel, shift_dots
from sextant.evals.reporting.report_tables import NOTES
from sextant.evals.reporting.run_groups import short_task_name
from sextant.evals.reporting.system_table import (
    ResultCell,
    ResultColumn,
    ResultRow,
    SystemTable,
    order_by_score,
)
from sextant.evals.scoring.comparison import ComparedSystem, fill_metrics, note_exhausted
from sextant.evals.scoring.metrics import canonicalize_metric, is_weighted
from sextant.evals.scoring.scored_run import ScoredRun, list_deviations, read_scored_run
from sextant.evals.scoring.statistics import estimate_mean
from sextant.evals.studies import significance
from sextant.evals.studies.run_cells import CellResult
from sextant.evals.studies.study_file import StudyFile
from sextant.tools.platform import files as disk
from sextant.tools.platform.number_format import count_failed, plural
from sextant.tools.platform.result_table import (
    LatexStyle,
    ResultTable,
    figure_cell,
    tabulate,
    to_csv,
    to_latex,
)
from sextant.tools.records import JsonObject

FILES = (
    "Beside this page are all tables as CSV and LaTeX (tables/), the plots of these findings as "
    "PDF and SVG as wide as "
    "columns and pages of ACL's and ACM's papers (plots/), the value of each query "
    "(tables/study-queries.csv), and the seconds (tables/study-seconds.csv)"
)
# Stands next to a mean that cannot be told from the best of its column.
NOT_DIFFERENT = "†"


class StudyResults(NamedTuple):
    """The finished cells of a study, with their tests."""

    study: StudyFile
    cells: Sequence[CellResult]
    # (row, task) -> a run for each seed.
    runs: dict[tuple[str, str], list[ScoredRun]]
    # task -> its metric.
    metrics: dict[str, str]
    values: significance.Values
    baseline: str
    tests: list[significance.RowTest]
    # task -> why it is not tested.
    untested: dict[str, str]

    @property
    def by_row(self) -> dict[str, list[ScoredRun]]:
        """Row -> its runs on all tasks."""
        rows: dict[str, list[ScoredRun]] = {}
        for (row, _), repeats in self.runs.items():
            rows.setdefault(row, []).extend(repeats)
        return rows

    @property
    def notes(self) -> list[str]:
        """The queries that programs failed, by row, and the tasks that are not tested."""
        failures = []
        for row, runs in self.by_row.items():
            failed, answers = _count_answers(runs)
            if failed:
                seeds = {len(repeats) for (name, _), repeats in self.runs.items() if name == row}
                # Without a number of seeds, one of one of the tasks is still to be run.
                count = count_failed(failed, answers, seeds.pop() if len(seeds) == 1 else 1)
                failures.append(f"{row} {count}")
        words = f"Failed queries, which have the worst value of each metric: {'; '.join(failures)}"
        return [*([words] if failures else []), *self.untested.values()]

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
        return {
            "study": self.study.name,
            "question": self.study.question,
            "baseline": self.baseline,
            "cells": [
                {
                    "row": row,
                    "task": task,
                    "seed": request.seed,
                    "run": folder and str(folder),
                    "why": unfit or (str(problem) if problem else None),
                }
                for (row, task, request), folder, problem, unfit, _ in self.cells
            ],
            "tests": [test.json() | {"verdict": _find(test)["verdict"]} for test in self.tests],
            "findings": self.notes,
            "deviations": self.deviations,
        }


def _count_answers(runs: Sequence[ScoredRun]) -> tuple[int, int]:
    """Return how many queries of runs failed, of how many."""
    failed = sum(run.scores["failed"] for run in runs)
    return failed, sum(run.scores["queries"] for run in runs)


def gather(study: StudyFile, cell_results: Sequence[CellResult]) -> StudyResults:
    """Read the finished cells, test the rows, and put the findings into words."""
    metric = canonicalize_metric(study.compare.get("metric", ""))
    baseline = study.compare.get("baseline", cell_results[0].cell.row)
    runs: dict[tuple[str, str], list[ScoredRun]] = {}
    for result in cell_results:
        repeats = runs.get(result.cell[:2], [])
        # The offline engine has no seed, so that several cells may have one folder.
        if result.folder and result.folder not in [run.path for run in repeats]:
            [run], problems = fill_metrics(
                [read_scored_run(result.folder)], [metric] if metric else []
            )
            if problems:
                raise problems[0]
            runs[result.cell[:2]] = [*repeats, run]
    metrics = {task: metric or repeats[0].metric for (_, task), repeats in runs.items()}
    values: dict[str, dict[str, dict[str, float]]] = {task: {} for task in metrics}
    for (row, task), repeats in runs.items():
        values[task][row] = ComparedSystem(tuple(repeats)).values(metrics[task])
    untested = note_untested(runs, metrics)
    tested = {task: by_row for task, by_row in values.items() if task not in untested}
    tests = significance.test_rows(tested, baseline, metrics)
    return StudyResults(
        study,
        cell_results,
        runs,
        metrics,
        values,
        baseline,
        tests,
        untested,
    )


def note_untested(
    runs: Mapping[tuple[str, str], Sequence[ScoredRun]], metrics: Mapping[str, str]
) -> dict[str, str]:
    """Return task -> a sentence, for the tasks whose metric counts every document that can be
    retrieved.
    """
    sentences = {}
    for task, metric in metrics.items():
        of_task = [run for key, repeats in runs.items() if key[1] == task for run in repeats]
        if of_task and all(run.is_exhausted_by(metric) for run in of_task):
            [note] = note_exhausted(of_task, [metric])
            sentences[task] = f"{task}: {note}"
    return sentences


def lay_out(results: StudyResults) -> SystemTable:
    """Return the figures of the study: rows by tasks, and the mean over tasks of a row that has
    all of them.
    """
    families = significance.group_by_family(results.metrics, results.metrics)
    columns = [
        ResultColumn((task,), metric, "", f"{short_task_name(task)} {metric}")
        for task, metric in results.metrics.items()
    ]
    for family, tasks in families.items():
        if len(tasks) > 1:
            label = "mean" if len(families) == 1 else f"mean {family}"
            metrics = dict.fromkeys(results.metrics[task] for task in tasks)
            columns.append(ResultColumn(tasks, ", ".join(metrics), "", label))
    rows = [
        ResultRow("ours", row, [_cell(results, row, column) for column in columns])
        for row in results.by_row
    ]
    rows = order_by_score(rows, columns)
    for index, column in enumerate(columns):
        if results.untested.keys().isdisjoint(column.tasks):
            _mark_column(results, column.tasks, {row.label: row.cells[index] for row in rows})
    # Floors and ceilings of a task are those of its first cell that searches the same.
    bounds: dict[str, dict[str, float | None]] = {}
    for result in results.cells:
        for name, value in (result.bounds or {}).items():
            bounds.setdefault(name, {}).setdefault(result.cell.task, value)
    for name, by_task in bounds.items():
        cells = [_bound_cell(by_task, column.tasks) for column in columns]
        if any(cells):
            rows.append(ResultRow("computed", name, cells, ranked=False))
    return SystemTable(
        "study",
        results.study.name,
        columns,
        rows,
        _table_notes(results, families),
    )


def _mark_column(
    results: StudyResults, tasks: Sequence[str], cells: Mapping[str, ResultCell | None]
) -> None:
    """Mark the best cell of a column, and those that cannot be told from it."""
    values = {task: results.values[task] for task in tasks}
    best, tests = significance.find_best(values, results.metrics)
    for row, cell in cells.items():
        if cell and row == best:
            cell.best = True
        elif cell and row in tests and not tests[row].significant:
            cell.mark = NOT_DIFFERENT
            result = tests[row].result
            cell.note = (
                f"cannot be told from {best} ({result.difference:+.4f}, n={result.queries}, "
                f"p {result.p_holm:.3f})"
            )


def _table_notes(results: StudyResults, families: Iterable[str]) -> list[str]:
    notes = [
        "in brackets the 95 % interval",
        f"bold is the best of a column; {NOT_DIFFERENT} cannot be told from it by paired "
        "permutation tests, corrected by Holm",
    ]
    kinds = ", ".join(families)
    if ", " in kinds:
        notes.append(f"no mean over all tasks, since their metrics differ in kind: {kinds}")
    notes += [NOTES[name] for name in dict.fromkeys(results.metrics.values()) if name in NOTES]
    if any(map(is_weighted, results.metrics.values())):
        notes.append(
            "Triplets: the share of pairs of documents that are in the right order; each query "
            "counts once here, and as often as it has pairs in a run's own table"
        )
    bare = [row for row, runs in results.by_row.items() if all(run.is_floor for run in runs)]
    if bare:
        notes.append(f"floors that were run, bare retrievers: {', '.join(bare)}")
    return notes


def _bound_cell(by_task: Mapping[str, float | None], tasks: Sequence[str]) -> ResultCell | None:
    bounds = [bound for task in tasks if (bound := by_task.get(task)) is not None]
    if len(bounds) < len(tasks):
        return None
    return ResultCell(fmean(bounds), "{:.4f}", "computed, not run")


def _cell(results: StudyResults, row: str, column: ResultColumn) -> ResultCell | None:
    values = [list(results.values[task].get(row, {}).values()) for task in column.tasks]
    if not all(values):
        return None
    by_task = [results.runs.get((row, task), []) for task in column.tasks]
    runs = [run for task_runs in by_task for run in task_runs]
    mean, low, high = estimate_mean(values)
    failed, answers = _count_answers(runs)
    return ResultCell(
        mean,
        "{:.4f}" if low is None else "{:.4f} [{:.3f}, {:.3f}]",
        ", ".join(run.name for run in runs),
        low,
        high,
        queries=sum(map(len, values)),
        failed=failed,
        answers=answers,
    )


def lay_out_tests(results: StudyResults, table: SystemTable) -> list[ResultTable]:
    """Return the table of all tests against the baseline; none if there is nothing to test."""
    if not results.tests:
        return []
    order = [row.label for row in table.rows]
    tests = sorted(results.tests, key=lambda test: order.index(test.row))
    notes = [
        f"a row less {results.baseline}; above 0 is better, also where less of a metric is",
        f"Holm: adjusted for {plural(tests[0].result.tests, 'test')} of this study; tasks are tested "
        "within each",
    ]
    return [
        findings_table(
            f"Differences from {results.baseline}", list(map(_find, tests)), "study-tests", notes
        )
    ]


def _find(test: significance.RowTest) -> JsonObject:
    # Above 0 is better, whatever the metric.
    plain = test.result._asdict() | {"metric": ""}
    return make_finding(plain, test.row, test.place) | {"metric": test.metric}


def lay_out_costs(results: StudyResults) -> ResultTable:
    """Return calls, tokens and list price of each row."""
    forms = {
        "calls": "{:,}",
        "input_tokens": "{:,}",
        "output_tokens": "{:,}",
        "list_usd": "${:.4f}",
    }
    heads = ("calls", "tokens in", "tokens out", "list price")
    rows = []
    for row, runs in results.by_row.items():
        usages = [run.scores["usage"] for run in runs]
        cells: JsonObject = {"row": row, "runs": len(usages)}
        for head, (key, form) in zip(heads, forms.items(), strict=True):
            amounts = [usage.get(key) for usage in usages]
            # It is not known of all runs if it is not known of one.
            cells[head] = figure_cell(None if None in amounts else sum(amounts), form, "unknown")
        rows.append(cells)
    return tabulate("Cost", rows, stem="study-cost")


def _seconds_table(results: StudyResults) -> ResultTable:
    rows = []
    for (row, task), repeats in results.runs.items():
        seconds = sum(run.seconds for run in repeats)
        answers = sum(len(run.query_ids) for run in repeats)
        rows.append(
            {
                "row": row,
                "task": task,
                "queries": answers,
                "seconds": figure_cell(seconds, "{:.2f}"),
                "seconds a query": figure_cell(seconds / answers),
            }
        )
    return tabulate("Seconds", rows, stem="study-seconds")


def draw_means(results: StudyResults) -> Any:
    """Return a figure of matplotlib: the means of rows by tasks, with their intervals."""
    return draw_panels([_make_panels(results, lay_out(results))["study-means"]])


def _make_panels(results: StudyResults, table: SystemTable) -> dict[str, Panel]:
    """Return the panels of means and of differences, by the stem of their files."""
    means = make_panel(table, table.of_kind("ours"))
    tests = {(test.row, test.tasks): test.result for test in results.tests}
    changes = []
    for series in means.series:
        points = []
        shift = shift_dots(series.number, len(means.series))
        for place, column in enumerate(table.columns):
            if test := tests.get((series.label, column.tasks)):
                points.append(Point(place + shift, test.difference, test.low, test.high))
        if points:
            changes.append(Series(series.label, points, series.number))
    panels = {"study-means": means}
    if changes:
        panels["study-differences"] = Panel(
            "", f"difference from {results.baseline}", changes, means.ticks, zero=True
        )
    return panels


def _list_query_values(results: StudyResults) -> list[list[object]]:
    """Return heads, and a row for each query of each run, with its value of each metric; None where
    the run has none.
    """
    metrics = dict.fromkeys(metric for run in results.all_runs for metric in run.columns)
    rows: list[list[object]] = [
        [
            "row",
            "task",
            "run",
            "query_id",
            *metrics,
            "error",
        ]
    ]
    for (row, task), repeats in results.runs.items():
        for run in repeats:
            for query_id in run.query_ids:
                values = [run.columns.get(metric, {}).get(query_id) for metric in metrics]
                rows.append([row, task, run.path.name, query_id, *values, run.errors.get(query_id)])
    return rows


def list_missing(cell_results: Sequence[CellResult]) -> list[ResultTable]:
    """Return a table of the cells that are not there, with the reasons; none if all are there."""
    # Seeds of a cell have the same reason.
    reasons = dict[tuple[str, str, str], int]()
    for result in cell_results:
        if not result.folder:
            why = result.unfit or str(result.problem)
            key = (result.cell.row, result.cell.task, why)
            reasons[key] = reasons.get(key, 0) + 1
    rows = [{"row": row, "task": task, "why": why} for row, task, why in reasons]
    title = f"Cells that are not there: {sum(reasons.values())} of {len(cell_results)}"
    return [tabulate(title, rows, stem="study-missing")] if rows else []


def write(results: StudyResults, figures: SystemTable, runs: Path) -> Path:
    """Write the results of a study, of which a cell is finished; return the page."""
    report = build.build([run.path for run in results.all_runs], force=True)
    report.title = f"Study {results.study.name}"
    report.summary = f"{results.study.question} {report.summary.partition(' Made by')[0]}".strip()
    missing = list_missing(results.cells)
    report.warnings[:0] = [table.title for table in missing]
    files: dict[str, str | bytes] = {}
    plots = []
    for stem, panel in _make_panels(results, figures).items():
        title = f"{results.study.name}: {panel.y}"
        plots.append(draw(stem, title, INTERVALS, [panel]))
        files |= draw_for_paper(stem, title, panel)
    table = figures.to_table()
    notes = [*results.notes, FILES]
    report.sections[:0] = [
        ReportSection("findings", "Findings", [table, *plots], notes, results.deviations),
        *(
            ReportSection(further.stem, further.title, [further])
            for further in (*lay_out_tests(results, figures), lay_out_costs(results), *missing)
        ),
    ]
    seconds = _seconds_table(results)
    for table in [*report.tables, seconds]:
        text = to_latex([*results.deviations, table], LatexStyle())
        files[f"tables/{table.stem}.tex"] = text
    files["tables/study-seconds.csv"] = seconds.to_csv()
    files["tables/study-queries.csv"] = to_csv(_list_query_values(results))
    folder = runs / "studies" / results.study.name
    disk.mkdir_private(folder)
    with disk.lock_file(
        folder / ".lock", lambda: None, disk.PRIVATE
    ):  # another process may be at the same study
        return report_page.write(report, folder, files)[0]
