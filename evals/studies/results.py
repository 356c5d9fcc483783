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
SAME = "†"  # beside a mean that cannot be told from the best of its column


class StudyResults(NamedTuple):
    """The finished cells of a study, and what they say."""

    study: StudyFile
    made: Sequence[CellResult]
    runs: dict[tuple[str, str], list[ScoredRun]]  # (row, task) -> one run for each seed
    metrics: dict[str, str]  # of each task
    values: significance.Values
    baseline: str
    tests: list[significance.RowTest]
    said: list[str]

    @property
    def deviations(self) -> list[str]:
        """How the programs of its runs differ from those of the papers, each line once."""
        return list_deviations(run for repeats in self.runs.values() for run in repeats)

    def json(self) -> dict[str, Any]:
        """Return the cells, the tests and the findings as plain data."""
        cells = list[dict[str, Any]]()
        for (row, task, request), folder, problem, unfit, _ in self.made:
            why = unfit or (str(problem) if problem else None)
            cells.append(
                {
                    "row": row,
                    "task": task,
                    "seed": request.seed,
                    "run": folder and str(folder),
                    "why": why,
                }
            )
        tests = [test._asdict() for test in self.tests]
        about = {
            "study": self.study.name,
            "question": self.study.question,
            "baseline": self.baseline,
        }
        return about | {
            "cells": cells,
            "tests": tests,
            "findings": self.said,
            "deviations": self.deviations,
        }


def gather(study: StudyFile, made: Sequence[CellResult]) -> StudyResults:
    """Read the finished cells, test the rows, and put into words what they say."""
    named = study.compare.get("metric", "")
    baseline = study.compare.get("baseline", made[0].cell.row)
    runs: dict[tuple[str, str], list[ScoredRun]] = {}
    for one in made:
        if one.folder and one.folder not in [
            run.path for run in runs.get(one.cell[:2], ())
        ]:  # offline has no seed
            [run], problems = fill_metrics([read_scored_run(one.folder)], [named] * bool(named))
            if problems:
                raise problems[0]
            runs.setdefault(one.cell[:2], []).append(run)
    metrics = {task: named or some[0].metric for (_, task), some in runs.items()}
    values: dict[str, dict[str, dict[str, float]]] = {task: {} for task in metrics}
    for (row, task), some in runs.items():
        values[task][row] = ComparedSystem(tuple(some)).values(metrics[task])
    untested = note_untested(runs, metrics)
    tested = {task: by_row for task, by_row in values.items() if task not in untested}
    tests = significance.test_rows(tested, baseline, metrics)
    sentences = [
        *say_failures(runs),
        *significance.describe_tests(tests, baseline, named),
        *untested.values(),
    ]
    return StudyResults(study, made, runs, metrics, values, baseline, tests, sentences)


def note_untested(
    runs: Mapping[tuple[str, str], Sequence[ScoredRun]], metrics: Mapping[str, str]
) -> dict[str, str]:
    """Return task -> a sentence, for the tasks whose metric counts every document that can be
    retrieved.
    """
    sentences = dict[str, str]()
    for task, metric in metrics.items():
        of_task = [run for (_, other), repeats in runs.items() if other == task for run in repeats]
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
        of_row = [repeats for (other, _), repeats in runs.items() if other == row]
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
        ResultRow("ours", row, [_cell(results, row, one) for one in columns])
        for row in dict(results.runs.keys())
    ]
    untested = note_untested(results.runs, results.metrics)
    for place, column in enumerate(columns):
        if not untested.keys().isdisjoint(column.tasks):
            continue
        best, tests = significance.find_best(
            {task: results.values[task] for task in column.tasks}, results.metrics
        )
        for row, cell in [(row.label, row.cells[place]) for row in rows]:
            if cell and row == best:
                cell.best = True
            elif cell and row in tests and not tests[row].significant:
                cell.text = cell.text + SAME
                cell.note = f"cannot be told from {best} ({tests[row]})"
    told = (
        f"bold is the best of a column; {SAME} cannot be told from it by paired permutation "
        f"tests, corrected by Holm"
    )
    programs = {
        row for (row, _), some in results.runs.items() if not all(run.is_floor for run in some)
    }
    notes = ["in brackets the 95 % interval", told]
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
    found: dict[str, dict[str, float | None]] = {}
    for one in results.made:
        for name, value in (one.bounds or {}).items():
            found.setdefault(name, {}).setdefault(one.cell.task, value)
    rows = []
    for name, by_task in found.items():
        cells = list[ResultCell | None]()
        for column in columns:
            known = [value for task in column.tasks if (value := by_task.get(task)) is not None]
            mean = fmean(known) if len(known) == len(column.tasks) else None
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
    every = [run for some in runs for run in some]
    if len(every) == 1 and not is_weighted(column.metric):
        mean, low, high = (
            every[0].scores["metrics"][column.metric][key] for key in ("mean", "low", "high")
        )
    elif len(runs) == 1:
        mean, low, high = bootstrap_mean(values[0])
    else:
        mean = sum(sum(some) / len(some) for some in values) / len(values)
        (low, high) = stratified(values)
    text = f"{mean:.4f}" if low is None else f"{mean:.4f} [{low:.3f}, {high:.3f}]"
    repeats = {len(some) for some in runs}
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
            for (of, _), some in results.runs.items()
            if of == row
            for run in some
        ]
        used = [
            [usage.get(key) for usage in usages]
            for key in ("calls", "input_tokens", "output_tokens", "list_usd")
        ]
        *sums, usd = [None if None in amounts else sum(amounts) for amounts in used]
        rows.append(
            [row, str(len(usages)), *(number(one, "{:,}") for one in sums), number(usd, "${:.4f}")]
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
    for (row, _), some in results.runs.items():
        seconds[row] += sum(outcome["seconds"] for run in some for outcome in run.outcomes.values())
    rows = [
        [*cells, f"{took:,.1f}"] for cells, took in zip(table.rows, seconds.values(), strict=True)
    ]
    return TextTable("", [*table.names, "seconds"], rows)


def _seconds_table(results: StudyResults) -> CsvTable:
    rows = []
    for (row, task), some in results.runs.items():
        seconds = [outcome["seconds"] for run in some for outcome in run.outcomes.values()]
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
    for place, row in enumerate(rows):
        shift = (place - (len(rows) - 1) / 2) * min(0.12, 0.7 / len(rows))
        points = [
            Point(x + shift, cell.value, cell.low, cell.high)
            for x, cell in enumerate(row.cells)
            if cell
        ]
        means.append(Series(row.label, points, place))
        found = [
            (x, tests.get((row.label, column.tasks))) for x, column in enumerate(table.columns)
        ]
        points = [Point(x + shift, one.difference, one.low, one.high) for x, one in found if one]
        changes += [Series(row.label, points, place)] if points else []
    ticks = {float(x): column.label for x, column in enumerate(table.columns)}
    plots = list[Plot]()
    files = dict[str, str | bytes]()
    change = f"less {results.baseline}"
    drawn = {
        "study-means": (table.columns[-1].metric, means),
        "study-differences": (change, changes),
    }
    for stem, (what, series) in drawn.items():
        if series:
            panel = Panel("", what, series, ticks, zero=what == change)
            title = f"{results.study.name}: {what}"
            plots.append(draw(stem, title, INTERVALS, lambda panel=panel: draw_panel(panel)))  # type: ignore[misc]
            files |= draw_for_papers(stem, title, panel)
    return plots, files


def make_report(results: StudyResults) -> tuple[Report, dict[str, str | bytes]]:
    """Return the report of a study, and the files that go beside it."""
    report = build.build([run.path for some in results.runs.values() for run in some], force=True)
    table = lay_out(results)
    seconds = _seconds_table(results)
    plots, files = _draw(results, table)
    report.title = f"Study {results.study.name}"
    report.summary = f"{results.study.question} {report.summary.partition(' Made by')[0]}".strip()
    missing = list_missing(results.made)
    others = [_tests_table(results), _cost_table(results), *missing]
    for one in missing:
        report.warnings.insert(
            0, f"{plural(len(one.rows), 'cell')} of {len(results.made)} are not there, see below"
        )
    first = ReportSection(
        "findings", "Findings", [table, *plots], [*results.said, *results.deviations, FILES]
    )
    report.sections[:0] = [first, *(ReportSection(one.stem, one.title, [one]) for one in others)]
    files |= {
        f"tables/{one.stem}.tex": to_latex([lay_out_plainly(one)])
        for one in [*report.tables, seconds]
    }
    return report, files | {"tables/study-seconds.csv": report_page.to_csv(seconds)}


def list_missing(made: Sequence[CellResult]) -> list[CsvTable]:
    """Return a table of the cells that are not there, with the reasons; none where all are."""
    rows = [[*one.cell[:2], one.unfit or str(one.problem)] for one in made if not one.folder]
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
