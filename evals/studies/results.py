"""The results of a study, from the runs of its cells: tables, tests, plots, and a report around them.

RUNS/studies/NAME/ gets index.html, report.md, each table as CSV and LaTeX, the values of each
query (tables/study-queries.csv), and a plot of its means as SVG and PDF in the widths of papers'
columns. After the study's tables come those of `sextant report` over the same runs, with floors and
ceilings, and the papers' rows if the data are the release. Seconds depend on the machine, so they
are in a file of their own, tables/study-seconds.csv: all else is the same whenever and however
often the study was run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from sextant.evals.reporting import report as build
from sextant.evals.reporting import report_page
from sextant.evals.reporting.findings import findings_table, make_finding
from sextant.evals.reporting.plots import draw, draw_for_paper, draw_panels
from sextant.evals.reporting.report_page import ReportSection
from sextant.evals.reporting.report_plots import INTERVALS, make_panel
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
from sextant.evals.scoring.metrics import is_weighted
from sextant.evals.scoring.scored_run import ScoredRun, list_deviations
from sextant.evals.scoring.statistics import estimate_mean
from sextant.evals.studies import significance, variance
from sextant.evals.studies.run_cells import CellResult, add_costs, cost_cells
from sextant.evals.studies.study_file import StudyFile
from sextant.tools.platform import files as disk
from sextant.tools.platform.number_format import count_failed, plural
from sextant.tools.platform.result_table import LatexStyle, ResultTable, tabulate, to_csv, to_latex
from sextant.tools.records import JsonObject

FILES = (
    "Beside this page are all tables as CSV and LaTeX (tables/), the plot of these means as "
    "PDF and SVG as wide as columns and pages of ACL's and ACM's papers (plots/), the value of "
    "each query (tables/study-queries.csv), and the seconds (tables/study-seconds.csv)"
)
# Stands next to a mean that cannot be told from the baseline's.
NOT_DIFFERENT = "†"


@dataclass(frozen=True)
class StudyResults:
    """The finished cells of a study, with their tests."""

    study: StudyFile
    cells: Sequence[CellResult]
    # (row, task) -> a run for each seed.
    runs: Mapping[tuple[str, str], list[ScoredRun]]
    # task -> its metric.
    metrics: Mapping[str, str]
    values: significance.Values
    baseline: str
    tests: Sequence[significance.RowTest]
    # task -> why it is not tested.
    untested: Mapping[str, str]

    @property
    def by_row(self) -> dict[str, list[ScoredRun]]:
        """Row -> its runs on all tasks."""
        rows: dict[str, list[ScoredRun]] = {}
        for (row, _), repeats in self.runs.items():
            rows.setdefault(row, []).extend(repeats)
        return rows

    @property
    def all_runs(self) -> list[ScoredRun]:
        """All its runs, the seeds of a cell one after another."""
        return [run for repeats in self.runs.values() for run in repeats]

    @property
    def failed(self) -> int:
        """Queries that programs failed, each seed counted."""
        return _count_answers(self.all_runs)[0]

    @property
    def notes(self) -> list[str]:
        """The answers that programs failed, by row, and the tasks that are not tested."""
        counts = {row: _count_answers(runs) for row, runs in self.by_row.items()}
        failures = [f"{row} {count_failed(*count)}" for row, count in counts.items() if count[0]]
        words = "Failed answers, which have the worst value of each metric"
        return [
            *([f"{words}: {'; '.join(failures)}"] if failures else []),
            *self.untested.values(),
        ]

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
            "cells": [result.json() for result in self.cells],
            "tests": [test.json() | {"verdict": _find(test)["verdict"]} for test in self.tests],
            "findings": self.notes,
            "deviations": self.deviations,
            "failed": self.failed,
        }


def _count_answers(runs: Sequence[ScoredRun]) -> tuple[int, int]:
    """Return how many answers of runs failed, of how many."""
    failed = sum(run.scores["failed"] for run in runs)
    return failed, sum(run.scores["queries"] for run in runs)


def gather(study: StudyFile, cell_results: Sequence[CellResult]) -> StudyResults:
    """Take the values of the finished cells, and test the rows."""
    baseline = study.compare.get("baseline", cell_results[0].cell.row)
    runs: dict[tuple[str, str], list[ScoredRun]] = {}
    for (row, task, *_), run, *_ in cell_results:
        repeats = runs.setdefault((row, task), []) if run else []
        # The offline engine has no seed, so that several cells may have one run.
        if run and run.path not in [other.path for other in repeats]:
            filled, problems = fill_metrics([run], [study.metric] if study.metric else [])
            if problems:
                raise problems[0]
            repeats += filled
    metrics = {task: study.metric or repeats[0].metric for (_, task), repeats in runs.items()}
    values: dict[str, dict[str, dict[str, float]]] = {task: {} for task in metrics}
    of_task: dict[str, list[ScoredRun]] = {}
    for (row, task), repeats in runs.items():
        values[task][row] = ComparedSystem(tuple(repeats)).values(metrics[task])
        of_task.setdefault(task, []).extend(repeats)
    untested = {}
    for task, metric in metrics.items():
        # The metric counts every document that can be retrieved.
        if all(run.is_exhausted_by(metric) for run in of_task[task]):
            untested[task] = f"{task}: {note_exhausted(of_task[task], [metric])[0]}"
    tested = {task: by_row for task, by_row in values.items() if task not in untested}
    tests = significance.test_rows(tested, baseline, metrics)
    return StudyResults(study, cell_results, runs, metrics, values, baseline, tests, untested)


def lay_out(results: StudyResults) -> SystemTable:
    """Return the figures of the study: rows by tasks, and the mean over tasks of a row that has
    all of them.
    """
    metrics = results.metrics
    families = significance.group_by_family(metrics, metrics).values()
    columns = []
    for tasks in [*((task,) for task in metrics), *(tasks for tasks in families if len(tasks) > 1)]:
        names = ", ".join(dict.fromkeys(metrics[task] for task in tasks))
        label = f"{'mean' if len(tasks) > 1 else short_task_name(tasks[0])} {names}"
        is_tested = results.untested.keys().isdisjoint(tasks)
        columns.append(ResultColumn(tasks, names, "", label, ranked=is_tested))
    rows = [
        ResultRow("ours", row, [_mean_cell(results, row, column.tasks) for column in columns])
        for row in results.by_row
    ]
    rows = order_by_score(rows, columns)
    tests = {(test.row, test.tasks): test for test in results.tests}
    for row in rows:
        for column, cell in zip(columns, row.cells, strict=True):
            test = tests.get((row.label, column.tasks))
            if cell and test and not test.significant:
                cell.mark = NOT_DIFFERENT
    # Floors and ceilings of a task are those of its first cell that searches the same.
    bounds: dict[str, dict[str, float]] = {}
    for result in results.cells:
        for name, value in result.bounds.items():
            bounds.setdefault(name, {}).setdefault(result.cell.task, value)
    for name, by_task in bounds.items():
        cells: list[ResultCell | None] = []
        for column in columns:
            values = [by_task[task] for task in column.tasks if task in by_task]
            is_known = len(values) == len(column.tasks)
            cells.append(ResultCell(fmean(values), "{:.4f}", "computed") if is_known else None)
        if any(cells):
            rows.append(ResultRow("computed", name, cells, ranked=False))
    notes = ["in brackets the 95 % interval; bold is the best of a column"]
    notes += [NOTES[name] for name in dict.fromkeys(metrics.values()) if name in NOTES]
    if tests:
        notes.append(
            f"{NOT_DIFFERENT} cannot be told from {results.baseline} by paired permutation tests, "
            "corrected by Holm"
        )
    if any(map(is_weighted, metrics.values())):
        notes.append(
            "Triplets: the share of pairs of documents that are in the right order; each query "
            "counts once here, and as often as it has pairs in a run's own table"
        )
    table = SystemTable("study", results.study.name, columns, rows, notes)
    table.mark_best()
    return table


def _mean_cell(results: StudyResults, row: str, tasks: Sequence[str]) -> ResultCell | None:
    """Return the mean of a row over tasks, None if it lacks one of them."""
    values = [list(results.values[task].get(row, {}).values()) for task in tasks]
    if not all(values):
        return None
    runs = [run for task in tasks for run in results.runs.get((row, task), [])]
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


def lay_out_tests(results: StudyResults) -> list[ResultTable]:
    """Return the table of all tests against the baseline; none if there is nothing to test."""
    if not results.tests:
        return []
    title = f"Differences from {results.baseline}"
    tests = plural(results.tests[0].result.tests, "test")
    notes = [
        f"a row less {results.baseline}; above 0 is better, also where less of a metric is",
        f"Holm: adjusted for {tests} of this study; tasks are tested within each",
    ]
    return [findings_table(title, list(map(_find, results.tests)), "study-tests", notes)]


def _find(test: significance.RowTest) -> JsonObject:
    # Above 0 is better, whatever the metric.
    plain = test.result._asdict() | {"metric": ""}
    return make_finding(plain, test.row, test.place) | {"metric": test.metric}


def lay_out_costs(results: StudyResults) -> ResultTable:
    """Return calls, tokens and list price of each row."""
    rows = []
    for row, runs in results.by_row.items():
        costs = add_costs([run.scores["usage"] for run in runs])
        rows.append({"row": row, "runs": len(runs), **cost_cells(costs)})
    return tabulate("Cost", rows, stem="study-cost")


def draw_means(results: StudyResults) -> Any:
    """Return a figure of matplotlib: the means of rows by tasks, with their intervals."""
    table = lay_out(results)
    return draw_panels([make_panel(table, table.of_kind("ours"))])


def _write_runs(results: StudyResults) -> dict[str, str]:
    """Return CSV files by their names: the seconds of each run, and each query's value of each
    metric in it; none where the run has none.
    """
    metrics = list(dict.fromkeys(metric for run in results.all_runs for metric in run.columns))
    seconds: list[list[object]] = [["row", "task", "run", "queries", "seconds"]]
    queries: list[list[object]] = [["row", "task", "run", "query_id", *metrics, "error"]]
    for (row, task), repeats in results.runs.items():
        for run in repeats:
            about = [row, task, run.path.name]
            seconds.append([*about, len(run.query_ids), run.seconds])
            for query_id in run.query_ids:
                values = [run.columns.get(metric, {}).get(query_id) for metric in metrics]
                queries.append([*about, query_id, *values, run.errors.get(query_id)])
    return {
        "tables/study-seconds.csv": to_csv(seconds),
        "tables/study-queries.csv": to_csv(queries),
    }


def _list_factor_runs(cells: Sequence[CellResult]) -> list[variance.FactorRun]:
    return [
        variance.FactorRun(
            result.cell.task,
            variance.name_levels(result.cell.factors, result.run),
            result.run,
        )
        for result in cells
        if result.run
    ]


def list_missing(cell_results: Sequence[CellResult]) -> list[ResultTable]:
    """Return a table of the cells that are not there, with the reasons; none if all are there."""
    missing = [result for result in cell_results if result.problem]
    title = f"Cells that are not there: {len(missing)} of {len(cell_results)}"
    rows = []
    for cell, _, problem, _ in missing:
        rows.append({"row": cell.row, "task": cell.task, "why": str(problem)})
    return [tabulate(title, rows, stem="study-missing")] if rows else []


def write(results: StudyResults, figures: SystemTable, runs: Path) -> Path:
    """Write the results of a study, of which a cell is finished; return the page."""
    study = results.study
    report = build.build([run.path for run in results.all_runs], force=True)
    report.title = f"Study {study.name}"
    report.summary = f"{study.question} {report.summary.partition(' Made by')[0]}".strip()
    missing = list_missing(results.cells)
    report.warnings[:0] = [table.title for table in missing]
    contents: dict[str, str | bytes] = {**_write_runs(results)}
    panel = make_panel(figures, figures.of_kind("ours"))
    title = f"{study.name}: {panel.y}"
    contents |= draw_for_paper("study-means", title, panel)
    plot = draw("study-means", title, INTERVALS, [panel])
    notes = [*results.notes, FILES]
    further = [*lay_out_tests(results), lay_out_costs(results), *missing]
    cells = [result.json() for result in results.cells]
    contents[variance.CELLS_FILE] = disk.dumps(variance.describe_cells(cells, runs))
    report.sections[:0] = [
        ReportSection(
            "findings", "Findings", [figures.to_table(), plot], notes, results.deviations
        ),
        *(ReportSection(table.stem, table.title, [table]) for table in further),
        *variance.make_sections(_list_factor_runs(results.cells)),
    ]
    for table in report.tables:
        text = to_latex([*results.deviations, table], LatexStyle())
        contents[f"tables/{table.stem}.tex"] = text
    folder = runs / "studies" / study.name
    disk.mkdir_private(folder)
    # Another process may be at the same study.
    with disk.lock_file(folder / ".lock", lambda: None, disk.PRIVATE):
        return report_page.write(report, folder, contents)[0]
