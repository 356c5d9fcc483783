"""The results of a study, from the run folders of its cells: what was found, and a report around
it.

RUNS/studies/NAME/ gets index.html, report.md, each table as CSV and LaTeX, and the study's own
plots as SVG and PDF in the widths of papers' columns. After the study's tables come those of
`evals.report` over the same runs, with floors and ceilings, and the papers' rows where the data are
the release. Seconds depend on the machine, so they are in a table of their own,
tables/study-seconds.csv: all else is the same whenever and however often the study was run.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from evals.reporting import report as build
from evals.reporting import report_page
from evals.reporting.report_page import CsvTable, Report, ReportSection
from evals.reporting.report_plots import (
    INTERVALS,
    Panel,
    Plot,
    Point,
    Series,
    draw,
    draw_for_papers,
    draw_panel,
)
from evals.reporting.report_tables import (
    ResultCell,
    ResultColumn,
    ResultRow,
    ResultTable,
    stratified,
)
from evals.reporting.run_groups import short_task_name
from evals.scoring.comparison import ComparedSystem, fill_metrics, note_exhausted
from evals.scoring.metrics import is_lower_better, is_weighted
from evals.scoring.scored_run import ScoredRun, list_deviations, read_scored_run
from evals.scoring.statistics import bootstrap_mean
from evals.studies import significance
from evals.studies.run_cells import CellResult
from evals.studies.study_file import StudyFile
from evals.text_tables import BoldCell, TextTable, to_latex
from evals.text_tables import (
    render_terminal as render_terminal,  # which evals/study.py takes from here
)
from tools import files as disk
from tools.number_format import count_failed, number, plural

FILES = (
    "Beside this page are all tables as CSV and LaTeX (tables/), the plots of these findings as "
    "PDF and SVG as wide as "
    "columns and pages of ACL's and ACM's papers (plots/), and the seconds "
    "(tables/study-seconds.csv)"
)
NOT_DIFFERENT = "†"  # beside a mean that cannot be told from the best of its column


class StudyResults(NamedTuple):
    """The finished cells of a study, and what they say."""

    study: StudyFile
    cells: Sequence[CellResult]
    runs: dict[tuple[str, str], list[ScoredRun]]  # (row, task) -> one run for each seed
    metrics: dict[str, str]  # of each task
    values: significance.Values
    baseline: str
    tests: list[significance.RowTest]
    findings: list[str]

    @property
    def deviations(self) -> list[str]:
        """How the programs of its runs differ from those of the papers, each line once."""
        return list_deviations(run for repeats in self.runs.values() for run in repeats)

    def json(self) -> dict[str, Any]:
        """Return the cells, the tests and the findings as plain data."""
        cells = list[dict[str, Any]]()
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
        tests = [test._asdict() for test in self.tests]
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
    """Read the finished cells, test the rows, and put into words what they say."""
    named = study.compare.get("metric", "")
    baseline = study.compare.get("baseline", cell_results[0].cell.row)
    runs: dict[tuple[str, str], list[ScoredRun]] = {}
    for result in cell_results:
        if result.folder and result.folder not in [
            run.path for run in runs.get(result.cell[:2], ())
        ]:  # offline has no seed
            [run], problems = fill_metrics([read_scored_run(result.folder)], [named] * bool(named))
            if problems:
                raise problems[0]
            runs.setdefault(result.cell[:2], []).append(run)
    metrics = {task: named or repeats[0].metric for (_, task), repeats in runs.items()}
    values: dict[str, dict[str, dict[str, float]]] = {task: {} for task in metrics}
    for (row, task), repeats in runs.items():
        values[task][row] = ComparedSystem(tuple(repeats)).values(metrics[task])
    untested = note_untested(runs, metrics)
    tested = {task: by_row for task, by_row in values.items() if task not in untested}
    tests = significance.test_rows(tested, baseline, metrics)
    sentences = [
        *say_failures(runs),
        *significance.describe_tests(tests, baseline, named),
        *untested.values(),
    ]
    return StudyResults(study, cell_results, runs, metrics, values, baseline, tests, sentences)


def note_untested(
    runs: Mapping[tuple[str, str], Sequence[ScoredRun]], metrics: Mapping[str, str]
) -> dict[str, str]:
    """Return task -> a sentence, for the tasks whose metric counts every document that can be
    retrieved.
    """
    sentences = dict[str, str]()
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
    rows = []
    for row in dict.fromkeys(row for row, _ in runs):
        of_row = [repeats for (row_of_runs, _), repeats in runs.items() if row_of_runs == row]
        every = [run for repeats in of_row for run in repeats]
        failed = sum(run.scores["failed"] for run in every)
        answers = sum(run.scores["queries"] for run in every)
        seeds = {len(repeats) for repeats in of_row}
        if failed and len(seeds) == 1:
            rows.append(f"{row} {count_failed(failed, answers, seeds.pop())}")
        elif failed:  # a seed of one of the tasks is still to be run
            rows.append(f"{row} {failed} of {answers} answers")
    return (
        [f"Failed queries, which have the worst value of each metric: {'; '.join(rows)}"]
        if rows
        else []
    )


def lay_out(results: StudyResults) -> ResultTable:
    """Return the table of the study: rows by tasks, and the mean over tasks where a row has
    all of them.
    """
    columns = [
        ResultColumn((task,), metric, "", short_task_name(task), metric)
        for task, metric in results.metrics.items()
    ]
    families = significance.group_by_family(results.metrics, results.metrics)
    for family, tasks in families.items():
        if len(tasks) > 1:
            label = "mean" if len(families) == 1 else f"mean {family}"
            metrics = dict.fromkeys(results.metrics[task] for task in tasks)
            columns.append(ResultColumn(tasks, ", ".join(metrics), "", label))
    rows = [
        ResultRow("ours", row, [_cell(results, row, column) for column in columns])
        for row in dict(results.runs.keys())
    ]
    untested = note_untested(results.runs, results.metrics)
    for index, column in enumerate(columns):
        if not untested.keys().isdisjoint(column.tasks):
            continue
        best, tests = significance.find_best(
            {task: results.values[task] for task in column.tasks}, results.metrics
        )
        for row, cell in [(row.label, row.cells[index]) for row in rows]:
            if cell and row == best:
                cell.best = True
            elif cell and row in tests and not tests[row].significant:
                cell.text = cell.text + NOT_DIFFERENT
                cell.note = f"cannot be told from {best} ({tests[row]})"
    marks_note = (
        f"bold is the best of a column; {NOT_DIFFERENT} cannot be told from it by paired permutation "
        f"tests, corrected by Holm"
    )
    programs = {
        row
        for (row, _), repeats in results.runs.items()
        if not all(run.is_floor for run in repeats)
    }
    notes = ["in brackets the 95 % interval", marks_note]
    if len(families) > 1:
        notes.append(
            f"no mean over all tasks, since their metrics differ in kind: {', '.join(families)}"
        )
    if any(map(is_lower_better, results.metrics.values())):
        notes.append("less of Flip is better")
    if any(map(is_weighted, results.metrics.values())):
        notes.append(
            "Triplets: each query counts once here, and as often as it has triplets in a run's "
            "own table"
        )
    if bare := [row.label for row in rows if row.label not in programs]:
        notes.append(f"floors that were run, bare retrievers: {', '.join(bare)}")
    return ResultTable(
        "study", results.study.name, columns, [*rows, *_bounds(results, columns)], notes
    )


def _bounds(results: StudyResults, columns: Sequence[ResultColumn]) -> list[ResultRow]:
    """Return the rows of floors and ceilings: a task's are those of its first cell that
    searches the same.
    """
    by_name: dict[str, dict[str, float | None]] = {}
    for result in results.cells:
        for name, value in (result.bounds or {}).items():
            by_name.setdefault(name, {}).setdefault(result.cell.task, value)
    rows = []
    for name, by_task in by_name.items():
        cells = list[ResultCell | None]()
        for column in columns:
            bounds = [value for task in column.tasks if (value := by_task.get(task)) is not None]
            mean = fmean(bounds) if len(bounds) == len(column.tasks) else None
            cells.append(
                None if mean is None else ResultCell(mean, f"{mean:.4f}", "computed, not run")
            )
        rows += [ResultRow("computed", name, cells, ranked=False)] if any(cells) else []
    return rows


def _cell(results: StudyResults, row: str, column: ResultColumn) -> ResultCell | None:
    runs = [results.runs.get((row, task), []) for task in column.tasks]
    values = [list(results.values[task].get(row, {}).values()) for task in column.tasks]
    if not all(values):
        return None
    every = [run for task_runs in runs for run in task_runs]
    if len(every) == 1 and not is_weighted(column.metric):
        mean, low, high = (
            every[0].scores["metrics"][column.metric][key] for key in ("mean", "low", "high")
        )
    elif len(runs) == 1:
        mean, low, high = bootstrap_mean(values[0])
    else:
        mean = sum(sum(task_values) / len(task_values) for task_values in values) / len(values)
        (low, high) = stratified(values)
    text = f"{mean:.4f}" if low is None else f"{mean:.4f} [{low:.3f}, {high:.3f}]"
    repeats = {len(task_runs) for task_runs in runs}
    return ResultCell(
        mean,
        text,
        ", ".join(run.name for run in every),
        low,
        high,
        queries=sum(map(len, values)),
        failed=sum(run.scores["failed"] for run in every),
        answers=sum(run.scores["queries"] for run in every),
        seeds=repeats.pop() if len(repeats) == 1 else 1,
    )


def _tests_table(results: StudyResults) -> CsvTable:
    rows = []
    for test in results.tests:
        over = (
            test.tasks[0]
            if len(test.tasks) == 1
            else f"mean of {len(test.tasks)} {test.metric}".strip()
        )
        shown = number(test.detectable, unknown="none")
        figures = [test.difference, test.low, test.high, test.p, test.p_holm]
        rows.append(
            [test.row, over, *(f"{figure:.4f}" for figure in figures), str(test.queries), shown]
        )
    names = [
        "row",
        "task",
        "difference",
        "low",
        "high",
        "p",
        "p by Holm",
        "queries",
        "could be shown",
    ]
    note = f"a row less {results.baseline}; above 0 is better, also where less of a metric is"
    return CsvTable(
        "study-tests", f"Differences from {results.baseline}", names, rows, {1}, notes=[note]
    )


def _cost_table(results: StudyResults) -> CsvTable:
    rows = []
    for row in dict(results.runs.keys()):
        usages = [
            run.scores["usage"]
            for (row_of_runs, _), repeats in results.runs.items()
            if row_of_runs == row
            for run in repeats
        ]
        by_key = [
            [usage.get(key) for usage in usages]
            for key in ("calls", "input_tokens", "output_tokens", "list_usd")
        ]
        *sums, usd = [None if None in amounts else sum(amounts) for amounts in by_key]
        rows.append(
            [
                row,
                str(len(usages)),
                *(number(amount, "{:,}") for amount in sums),
                number(usd, "${:.4f}"),
            ]
        )
    return CsvTable(
        "study-cost",
        "Cost",
        ["row", "runs", "calls", "tokens in", "tokens out", "list price"],
        rows,
    )


def lay_out_costs(results: StudyResults) -> TextTable:
    """Return what the rows cost and how long they took, for the terminal."""
    table = _cost_table(results)
    seconds = dict.fromkeys(dict(results.runs.keys()), 0.0)
    for (row, _), repeats in results.runs.items():
        seconds[row] += sum(
            outcome["seconds"] for run in repeats for outcome in run.outcomes.values()
        )
    rows = [
        [*cells, f"{took:,.1f}"] for cells, took in zip(table.rows, seconds.values(), strict=True)
    ]
    return TextTable("", [*table.names, "seconds"], rows)


def _seconds_table(results: StudyResults) -> CsvTable:
    rows = []
    for (row, task), repeats in results.runs.items():
        seconds = [outcome["seconds"] for run in repeats for outcome in run.outcomes.values()]
        rows.append(
            [
                row,
                task,
                str(len(seconds)),
                f"{sum(seconds):.2f}",
                f"{sum(seconds) / len(seconds):.4f}",
            ]
        )
    return CsvTable(
        "study-seconds",
        "Seconds",
        ["row", "task", "queries", "seconds", "seconds a query"],
        rows,
        {1},
    )


def _draw(results: StudyResults, table: ResultTable) -> tuple[list[Plot], dict[str, str | bytes]]:
    """Return the plots of means and of differences, and the files of both in the widths of
    papers.
    """
    rows = table.of_kind("ours")
    tests = {(test.row, test.tasks): test for test in results.tests}
    means = list[Series]()
    changes = list[Series]()
    for index, row in enumerate(rows):
        shift = (index - (len(rows) - 1) / 2) * min(0.12, 0.7 / len(rows))
        points = [
            Point(x + shift, cell.value, cell.low, cell.high)
            for x, cell in enumerate(row.cells)
            if cell
        ]
        means.append(Series(row.label, points, index))
        row_tests = [
            (x, tests.get((row.label, column.tasks))) for x, column in enumerate(table.columns)
        ]
        points = [
            Point(x + shift, test.difference, test.low, test.high) for x, test in row_tests if test
        ]
        changes += [Series(row.label, points, index)] if points else []
    ticks = {float(x): column.label for x, column in enumerate(table.columns)}
    plots = list[Plot]()
    files = dict[str, str | bytes]()
    change = f"less {results.baseline}"
    drawn = {
        "study-means": (table.columns[-1].metric, means),
        "study-differences": (change, changes),
    }
    for stem, (value_label, series) in drawn.items():
        if series:
            panel = Panel("", value_label, series, ticks, zero=value_label == change)
            title = f"{results.study.name}: {value_label}"
            plots.append(draw(stem, title, INTERVALS, lambda panel=panel: draw_panel(panel)))  # type: ignore[misc]
            files |= draw_for_papers(stem, title, panel)
    return plots, files


def make_report(results: StudyResults) -> tuple[Report, dict[str, str | bytes]]:
    """Return the report of a study, and the files that go beside it."""
    report = build.build(
        [run.path for repeats in results.runs.values() for run in repeats], force=True
    )
    table = lay_out(results)
    seconds = _seconds_table(results)
    plots, files = _draw(results, table)
    report.title = f"Study {results.study.name}"
    report.summary = f"{results.study.question} {report.summary.partition(' Made by')[0]}".strip()
    missing = list_missing(results.cells)
    further = [_tests_table(results), _cost_table(results), *missing]
    for missing_table in missing:
        report.warnings.insert(
            0,
            f"{plural(len(missing_table.rows), 'cell')} of {len(results.cells)} are not there, see below",
        )
    first = ReportSection(
        "findings", "Findings", [table, *plots], [*results.findings, *results.deviations, FILES]
    )
    report.sections[:0] = [
        first,
        *(ReportSection(extra.stem, extra.title, [extra]) for extra in further),
    ]
    files |= {
        f"tables/{printed.stem}.tex": to_latex([lay_out_plainly(printed)])
        for printed in [*report.tables, seconds]
    }
    return report, files | {"tables/study-seconds.csv": report_page.to_csv(seconds)}


def list_missing(cell_results: Sequence[CellResult]) -> list[CsvTable]:
    """Return a table of the cells that are not there, with the reasons; none where all are."""
    rows = [
        [*result.cell[:2], result.unfit or str(result.problem)]
        for result in cell_results
        if not result.folder
    ]
    return (
        [
            CsvTable(
                "study-missing", "Cells that are not there", ["row", "task", "why"], rows, {1}, {2}
            )
        ]
        if rows
        else []
    )


def lay_out_plainly(table: ResultTable | CsvTable) -> TextTable:
    """Return a table of a report as one for the terminal or LaTeX."""
    note = ". ".join(table.notes)
    if isinstance(table, CsvTable):
        rows = [row[: len(table.names)] for row in table.rows]
        return TextTable(table.title, table.names, rows, [0, *table.words, *table.long], note)
    heads = ["system", *(f"{column.label} {column.below}".strip() for column in table.columns)]
    shown = list[list[str]]()
    for row in table.rows:
        label = row.label + " (computed, not run)" * (row.kind == "computed")
        shown.append(
            [
                label,
                *(
                    (BoldCell if cell.best else str)(cell.text) if cell else ""
                    for cell in row.cells
                ),
            ]
        )
    return TextTable(table.title, heads, shown, note=note)


def write(results: StudyResults, runs: Path) -> Path | None:
    """Write the results of a study; return the page, which there is once a cell is finished."""
    if not results.runs:
        return None
    report, files = make_report(results)
    folder = runs / "studies" / results.study.name
    disk.mkdir_private(folder)
    with disk.lock_file(
        folder / ".lock", lambda: None, disk.PRIVATE
    ):  # another process may be at the same study
        return report_page.write(report, folder, files)[0]
