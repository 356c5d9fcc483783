"""The cells of a paper's table, made: the study that they take, and our values next to the
paper's.

A run that cannot be made gives its reason to its cells, and the others are made.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from sextant import environments
from sextant.environments.base import Environment
from sextant.evals.formats.import_run import UNKNOWN, slugify
from sextant.evals.papers.dataset_statistics import (
    Value,
    compute_statistics,
    reciprocal_ranks,
    word_shares,
)
from sextant.evals.papers.difficulty import FACET_COUNT, measure_feature, regress, split_metric
from sextant.evals.papers.measured import (
    CATEGORIES,
    FACETS,
    read_category,
    read_facets,
    summarise_facets,
)
from sextant.evals.papers.sections import PaperCell, PaperTable, add_tasks
from sextant.evals.papers.settings import ReproductionSettings
from sextant.evals.scoring.comparison import fill_metrics
from sextant.evals.scoring.metrics import is_pairwise
from sextant.evals.scoring.random_and_ideal import bound
from sextant.evals.scoring.scored_run import ScoredRun, list_deviations, read_scored_run
from sextant.evals.scoring.text_similarity import weighted_jaccard
from sextant.evals.studies import study_file
from sextant.evals.studies.run_cells import CellResult, StudyProgress, Unfinished, run_cells
from sextant.evals.studies.significance import find_best
from sextant.evals.studies.study_file import list_tasks
from sextant.programs import FLOOR
from sextant.tools.errors import DataError, SextantError
from sextant.tools.platform.number_format import queries
from sextant.tools.records import JsonMapping, JsonObject

# Metrics that sextant.evals.papers.dataset_statistics.reciprocal_ranks gives.
HARD = ("hard negatives", "other documents")
MINIATURES = (
    "miniatures are invented and never comparable with a paper: the difference says nothing"
)
FOLDERS = "a folder's data is not the pinned release: the difference may be that of the data"
SHIPPED = "the authors' own ranking"
# Half of the last of three decimals.
ROUNDING = 0.0005
# In MultiConIR's tables: Win(1) less Win(10).
DECLINE = "Decline"


class MissingValue(Exception):
    """The reason why a cell has no value, wherever it is made."""


class ReproducedCell(NamedTuple):
    """A cell's value of ours."""

    value: Value
    # What stands in for a part of the paper's system.
    remark: str = ""
    # How its runs differ from the paper's, a line for each program.
    deviations: tuple[str, ...] = ()


class TableCell(NamedTuple):
    """A cell of a table: the paper's value and ours, if there are any."""

    system: str
    task: str
    metric: str
    split: str
    judgements: str
    published: Value
    error: float | None
    note: str
    ours: Value
    difference: float | None
    remark: str
    # "*" for the best of ours in a column, "=" for a value that does not differ from it.
    mark: str
    # Lines, joined by " / ".
    deviations: str


class ReproducedTable:
    """A section as it is made: its runs as a study, and its data when a cell first needs them."""

    def __init__(self, section: PaperTable, conditions: ReproductionSettings) -> None:
        self.section = add_tasks(section, conditions.tasks)
        self.conditions = conditions
        self.load = cache(self._load_task)
        self._read = cache(self._read_run)
        self.planned = {(cell.row, cell.task): cell for cell in self._plan()}
        # The cells that could be made and are not, once `cells` has yielded all.
        self.unfinished = list[Unfinished]()

    @property
    def runs(self) -> list[study_file.StudyCell]:
        """The runs that it takes, none of them twice: with stand-ins, rows may ask for the same."""
        once = dict[str, study_file.StudyCell]()
        for cell in self.planned.values():
            once.setdefault(repr(cell.request), cell)
        return list(once.values())

    @cached_property
    def results(self) -> dict[str, CellResult]:
        """The results of its runs, by request."""
        runs = self.runs
        results = run_cells(runs, StudyProgress(runs, quiet=self.conditions.quiet)) if runs else []
        return {repr(result.cell.request): result for result in results}

    def cells(self) -> Iterator[TableCell]:
        """Yield every cell: the paper's value, ours, the difference, and a remark, if any."""
        marks = self._mark() if self.section.about.get("marked") else {}
        for cell in self.section.cells:
            try:
                made = self._make(cell)
            except MissingValue as reason:
                made = ReproducedCell(None, str(reason))
            except SextantError as problem:
                made = ReproducedCell(None, str(problem))
                name = cell.system or cell.metric
                self.unfinished.append(Unfinished(name, cell.task, problem))
            yield TableCell(
                cell.system,
                self._name_task(cell),
                cell.metric,
                cell.split,
                cell.judgements,
                cell.value,
                cell.error,
                cell.note,
                made.value,
                _subtract(made.value, cell.value),
                made.remark,
                marks.get((cell.task, cell.metric, cell.system), ""),
                " / ".join(made.deviations),
            )

    def _mark(self) -> dict[tuple[str, str, str], str]:
        """Return "*" for the best of ours in each column, "=" for those that do not differ
        from it (p > .05).
        """
        columns: dict[tuple[str, str], dict[str, dict[str, float]]] = {}
        for cell in self.section.cells:
            # `cells` reports what cannot be made.
            with suppress(SextantError, MissingValue):
                run, _ = self._find(cell, cell.task)
                values = run.columns[cell.metric].items()
                columns.setdefault((cell.task, cell.metric), {})[cell.system] = {
                    query: value for query, value in values if value is not None
                }
        marks = {}
        for (task, metric), column in columns.items():
            best, tests = find_best({task: column}, {task: metric})
            marks[task, metric, best] = "*"
            for system, test in tests.items():
                if not test.significant:
                    marks[task, metric, system] = "="
        return marks

    def warnings(self) -> list[str]:
        """Return the reasons why the table is not comparable with the paper's."""
        names = {cell.task for cell in self.section.cells if not cell.lacks}
        sources = set()
        missing = []
        for task in sorted({task for name in names for task in list_tasks(name)}):
            if task.partition(":")[0] not in environments.tasks():
                # Its data is the user's own, or in a build.
                continue
            try:
                sources.add(environments.data_folder(task, self.conditions.data)[0])
            except DataError as problem:
                # The task's cells report it, if other tasks are there.
                missing.append(problem)
        if missing and not sources:
            raise missing[0]
        notes = []
        if "mini" in sources:
            notes.append(MINIATURES)
        elif sources - {"full"}:
            notes.append(FOLDERS)
        if limit := self.conditions.limit:
            notes.append(
                f"only the first {queries(limit)} of each task are asked; the paper has all"
            )
        return notes

    def _make(self, cell: PaperCell) -> ReproducedCell:
        missing = cell.lacks or self.conditions.explain_missing_file(cell.task, cell.metric)
        if missing:
            raise MissingValue(missing)
        if not cell.system:
            return ReproducedCell(self._describe(cell))
        measured = [self._measure(cell, task) for task in list_tasks(cell.task)]
        values = [made.value for made in measured if isinstance(made.value, int | float)]
        if len(values) < len(measured):
            raise MissingValue("undefined for these queries")
        mean = fmean(values)
        remark = measured[-1].remark
        difference = _subtract(mean, cell.value) or 0.0
        if SHIPPED in remark and abs(difference) > ROUNDING and not cell.note:
            remark += ", which gives another value than the paper prints"
        lines = dict.fromkeys(line for made in measured for line in made.deviations)
        return ReproducedCell(mean, remark, tuple(lines))

    def _describe(self, cell: PaperCell) -> Value:
        if cell.metric in CATEGORIES:
            return read_category(self.conditions.contamination[cell.task], cell.metric)
        environment = self.load(cell.task, cell.split)
        if cell.metric in FACETS:
            counts = read_facets(self.conditions.facets[cell.task])
            query_ids = [query.query_id for query in environment.queries]
            return summarise_facets(counts, query_ids, cell.metric)
        statistic, _, other_task = cell.metric.partition(" ")
        if statistic == "jaccard":
            return weighted_jaccard(
                word_shares(environment), word_shares(self.load(other_task, cell.split))
            )
        return compute_statistics(environment, [cell.metric])[cell.metric]

    def _measure(self, cell: PaperCell, task: str) -> ReproducedCell:
        """Return a cell's value on a task, None if it is undefined."""
        system = self.section.system(cell)
        if "bound" in system:
            return ReproducedCell(bound(system["bound"], cell.metric, self.load(task, cell.split)))
        if "mean_of" in system:
            return self._regress(cell, task)
        run, stand_ins = self._find(cell, task)
        return ReproducedCell(
            self._read_value(run, cell, task), stand_ins, tuple(self._list_deviations(run, system))
        )

    def _list_deviations(self, run: ScoredRun, system: JsonMapping) -> list[str]:
        """Return how a run differs from the paper's system, and what its pool gives away.

        A bare retriever's row says what its paper leaves open, unless another retriever stands in.
        """
        lines = list_deviations([run])
        if run.config["program"] != FLOOR or run.config.get("imported"):
            return lines
        lines = [line for line in lines if line != run.deviations]
        is_papers = self.conditions.fields(system)[0]["retriever"] == system["retriever"]
        if is_papers and "differs" in system:
            lines.append(f"{system['name']} differs from the paper's: {system['differs']}")
        return lines

    def _regress(self, cell: PaperCell, task: str) -> ReproducedCell:
        """Return a figure of the regression of the mean of several systems on a feature."""
        figure, feature = split_metric(cell.metric)
        columns = []
        remarks = dict[str, None]()
        deviations = dict[str, None]()
        for system in self.section.runs_of(cell):
            run, remark = self._find(replace(cell, system=system["name"]), task)
            columns.append(run.columns[run.metric])
            remarks[remark] = None
            deviations[run.deviations] = None
        if feature == FACET_COUNT:
            values: Mapping[str, float] = read_facets(self.conditions.facets[task])
        else:
            values = measure_feature(self.load(task, cell.split), feature)
        line = regress(values, columns)
        if line is None:
            raise MissingValue("fewer than three queries, or a feature that all share")
        remark = "; ".join(filter(None, remarks))
        return ReproducedCell(line[figure], remark, tuple(filter(None, deviations)))

    def _read_value(self, run: ScoredRun, cell: PaperCell, task: str) -> float | None:
        if cell.metric in HARD:
            rankings = {query_id: outcome["ranking"] for query_id, outcome in run.outcomes.items()}
            ranks = reciprocal_ranks(self.load(task, cell.split), rankings)
            return ranks[HARD.index(cell.metric)]
        if cell.metric == DECLINE:
            return _subtract(run.mean("Win(1)"), run.mean("Win(10)"))
        name = cell.metric
        if cell.judgements not in ("", run.scores["judgements"]):
            name += f" [{cell.judgements}]"
        measured = run.scores["metrics"].get(name, {})
        if self.section.about.get("resampled", True):
            measured = measured.get("resampled", measured)
        mean: float | None = measured.get("mean")
        return mean

    def _read_run(self, path: Path) -> ScoredRun:
        """Read a run, with those of the table's metrics that it was not scored by.

        The rankings of imported runs are scored by the metrics of their task alone.
        """
        [filled], _ = fill_metrics([read_scored_run(path)], self._list_metrics())
        return filled

    def _find(self, cell: PaperCell, task: str) -> tuple[ScoredRun, str]:
        """Return the run of a cell, and the differences from the paper.

        Raise the problem for which it is not made here, or why it cannot be made anywhere.
        """
        system = self.section.system(cell)
        if imported := self._find_imported(system, task, cell.split):
            return imported, SHIPPED
        stand_ins = self.conditions.fields(system)[1]
        planned = self.planned.get((_row(system), task))
        result = self.results[repr(planned.request)] if planned else None
        if result and result.folder:
            return self._read(result.folder), stand_ins
        lacks = self.conditions.explain_lack(system)
        if result and result.problem and not lacks:
            raise result.problem
        raise MissingValue(lacks or (result.unfit if result else ""))

    def count_failed(self) -> int:
        """Return how many queries the programs of its runs have failed."""
        folders = {result.folder for result in self.results.values() if result.folder}
        return sum(self._read(folder).scores["failed"] for folder in folders)

    def _find_imported(self, system: JsonMapping, task: str, split: str) -> ScoredRun | None:
        """Return the run that `sextant import` made of the authors' own ranking; None if
        something stands in.
        """
        if self.conditions.fields(system)[1]:
            return None
        folder = self.conditions.runs / task.replace("/", "-")
        for path in folder.glob(f"{slugify(system['name'])}-{UNKNOWN}-*"):
            run = self._read(path)
            if run.config["data_fingerprint"] == self.load(task, split).fingerprint:
                return run
        return None

    def _load_task(self, task: str, split: str) -> Environment:
        data = None if environments.is_place(task) else self.conditions.data
        return environments.load(task, data, split).asking(limit=self.conditions.limit)

    def _name_task(self, cell: PaperCell) -> str:
        """Return the name of a cell's task: own/NAME for the place of the user's data."""
        if not environments.is_place(cell.task):
            return cell.task
        return self.load(cell.task, cell.split).task

    def _plan(self) -> list[study_file.StudyCell]:
        """Return the cells of the table's study."""
        rows = self._plan_rows()
        if not rows:
            return []
        conditions = self.conditions
        fixed = {
            "data": conditions.data,
            "limit": conditions.limit,
            "metrics": self._list_metrics(),
            "prices": conditions.prices and str(conditions.prices),
        }
        study = study_file.StudyFile(
            name=self.section.name.replace("/", "-"),
            tasks=list(dict.fromkeys(task for row in rows for task in row["tasks"])),
            fixed={key: value for key, value in fixed.items() if value},
            row=rows,
        )
        if conditions.budget_usd:
            study.budget["usd"] = conditions.budget_usd
        if conditions.budget_calls:
            study.budget["calls"] = conditions.budget_calls
        return study_file.expand_cells(study, conditions.runs)

    def _list_metrics(self) -> list[str]:
        """Return the metrics of rankings that its cells need.

        Comparisons are measured by every task that has some; a part of its queries may lack a sort
        of comparison.
        """
        metrics = dict.fromkeys(cell.metric for cell in self._asked_cells())
        derived = (*HARD, DECLINE)
        return [
            metric
            for metric in metrics
            if metric not in derived and not split_metric(metric)[0] and not is_pairwise(metric)
        ]

    def _asked_cells(self) -> list[PaperCell]:
        return [cell for cell in self.section.cells if cell.system and not cell.lacks]

    def _plan_rows(self) -> list[JsonObject]:
        rows = dict[tuple[str, str], JsonObject]()
        for cell in self._asked_cells():
            for system in self.section.runs_of(cell):
                if "program" not in system or self.conditions.explain_lack(system):
                    continue
                name = _row(system)
                row = {"name": name, "tasks": [], "split": cell.split}
                row |= self.conditions.fields(system)[0]
                tasks = rows.setdefault((name, cell.split), row)["tasks"]
                for task in list_tasks(cell.task):
                    if task not in tasks and not self._find_imported(system, task, cell.split):
                        tasks.append(task)
        return [row for row in rows.values() if row["tasks"]]


def _row(system: JsonMapping) -> str:
    return str(system.get("row", system["name"]))


def _subtract(ours: Value, published: Value) -> float | None:
    if isinstance(ours, int | float) and isinstance(published, int | float):
        return ours - published
    return None


def count_equal(cells: Iterable[TableCell]) -> tuple[int, int]:
    """Return how many cells have our value and the paper's, and how many of these are equal to
    three decimals.
    """
    both = [cell.difference for cell in cells if cell.difference is not None]
    return len(both), sum(abs(difference) <= ROUNDING for difference in both)
