"""The cells of a paper's table, made: the runs that they take, and our values next to the paper's.

A run that cannot be made gives its reason to its cells, and the others are made.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from sextant import environments
from sextant.environments.base import Environment
from sextant.evals.formats.import_run import UNKNOWN, slugify
from sextant.evals.papers.dataset_statistics import (
    Value,
    compute_statistic,
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
from sextant.evals.running.request import Request
from sextant.evals.scoring.comparison import fill_metrics
from sextant.evals.scoring.metrics import is_pairwise
from sextant.evals.scoring.random_and_ideal import bound
from sextant.evals.scoring.scored_run import ScoredRun, list_deviations, read_scored_run
from sextant.evals.scoring.text_similarity import weighted_jaccard
from sextant.evals.studies.run_cells import CellResult, run_cells
from sextant.evals.studies.study_file import StudyCell, list_tasks
from sextant.programs import FLOOR
from sextant.tools.errors import DataError, NotApplicable, SextantError
from sextant.tools.platform.cli_options import make_request
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


class MeasuredValue(NamedTuple):
    """A value of ours."""

    ours: Value
    # What stands in for a part of the paper's system, or why there is no value.
    remark: str = ""
    # How its runs differ from the paper's, a line for each program.
    deviations: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TableCell(PaperCell):
    """A cell of a table: the paper's value and ours, if there are any."""

    # As in MeasuredValue.
    ours: Value = None
    remark: str = ""
    deviations: tuple[str, ...] = ()

    @property
    def difference(self) -> float | None:
        """Our value less the paper's; None unless both are numbers."""
        return _subtract(self.ours, self.published)

    def json(self) -> JsonObject:
        """Return it as plain data."""
        lines = " / ".join(self.deviations)
        return asdict(self) | {"deviations": lines, "difference": self.difference}


class ReproducedTable:
    """A section as it is made: its runs, and its data when a cell first needs them."""

    def __init__(self, section: PaperTable, settings: ReproductionSettings) -> None:
        self.section = add_tasks(section, settings.tasks)
        self.settings = settings
        self.load = cache(self._load_task)
        self._read = cache(self._read_run)
        # (row, task) -> its run, which several may share: with stand-ins they may ask for the same.
        self.planned = dict[tuple[str, str], StudyCell]()
        self.runs = self._plan()
        # Of the cells that could be made and are not, once `cells` has returned all.
        self.problems = list[SextantError]()

    def _plan(self) -> list[StudyCell]:
        """Fill `planned`, and return the runs that it takes, none of them twice."""
        settings = self.settings
        shared: JsonObject = {
            "runs": settings.runs,
            "limit": settings.limit,
            "metrics": self._list_metrics(),
            "prices": settings.prices,
            "budget_usd": settings.budget_usd,
            "budget_calls": settings.budget_calls,
        }
        runs = dict[str, StudyCell]()
        for cell in self._asked_cells():
            for system in self.section.runs_of(cell):
                if "program" not in system or settings.explain_lack(system):
                    continue
                for task in list_tasks(cell.task):
                    key = (_row(system), task)
                    if key in self.planned or self._find_imported(system, task, cell.split):
                        continue
                    shared["data"] = None if environments.is_place(task) else settings.data
                    asked = {**shared, "task": task, "split": cell.split}
                    request = make_request(Request, asked | settings.fields(system)[0])
                    self.planned[key] = runs.setdefault(repr(request), StudyCell(*key, request, {}))
        return list(runs.values())

    def _asked_cells(self) -> list[PaperCell]:
        return [cell for cell in self.section.cells if cell.system and not cell.lacks]

    def _list_metrics(self) -> list[str]:
        """Return the metrics of rankings that its cells need.

        Comparisons are measured by every task that has some; a part of its queries may lack a sort
        of comparison.
        """
        return [
            metric
            for metric in dict.fromkeys(cell.metric for cell in self._asked_cells())
            if metric not in (*HARD, DECLINE)
            and not split_metric(metric)[0]
            and not is_pairwise(metric)
        ]

    @cached_property
    def results(self) -> dict[tuple[str, str], CellResult]:
        """The results of its runs, by the row and task of their cells."""
        results = run_cells(self.runs, quiet=self.settings.quiet) if self.runs else []
        return {(result.cell.row, result.cell.task): result for result in results}

    def cells(self) -> list[TableCell]:
        """Return every cell: the paper's value, ours, and a remark, if any."""
        made = []
        for cell in self.section.cells:
            try:
                measured = self._make(cell)
            except SextantError as problem:
                measured = MeasuredValue(None, str(problem))
                # Others cannot be made anywhere.
                if not isinstance(problem, NotApplicable):
                    place = f"{cell.system or cell.metric} on {cell.task}"
                    self.problems.append(problem.saying(f"{place}: {problem}"))
            about = asdict(cell) | measured._asdict()
            if environments.is_place(cell.task):
                # own/NAME
                about["task"] = self.load(cell.task, cell.split).task
            made.append(TableCell(**about))
        return made

    def warnings(self) -> list[str]:
        """Return the reasons why the table is not comparable with the paper's.

        DataError if none of its data is there.
        """
        names = {cell.task for cell in self.section.cells if not cell.lacks}
        sources = set()
        missing = []
        for task in sorted({task for name in names for task in list_tasks(name)}):
            # Other data is the user's own, or in a build.
            if task.partition(":")[0] in environments.tasks():
                try:
                    sources.add(environments.data_folder(task, self.settings.data)[0])
                except DataError as problem:
                    missing.append(problem)
        if missing and not sources:
            raise missing[0]
        notes = [MINIATURES] if "mini" in sources else [FOLDERS] if sources - {"full"} else []
        if limit := self.settings.limit:
            notes.append(
                f"only the first {queries(limit)} of each task are asked; the paper has all"
            )
        return notes

    def _make(self, cell: PaperCell) -> MeasuredValue:
        """Return our value of a cell; NotApplicable if it cannot be made, or without a file."""
        if missing := cell.lacks or self.settings.explain_missing_file(cell.task, cell.metric):
            raise NotApplicable(missing)
        if not cell.system:
            return MeasuredValue(self._describe(cell))
        measured = [self._measure(cell, task) for task in list_tasks(cell.task)]
        values = [made.ours for made in measured if isinstance(made.ours, int | float)]
        if len(values) < len(measured):
            raise NotApplicable("undefined for these queries")
        lines = dict.fromkeys(line for made in measured for line in made.deviations)
        return MeasuredValue(fmean(values), measured[-1].remark, tuple(lines))

    def _describe(self, cell: PaperCell) -> Value:
        """Return a statistic of the data."""
        if cell.metric in CATEGORIES:
            return read_category(self.settings.contamination[cell.task], cell.metric)
        environment = self.load(cell.task, cell.split)
        if cell.metric in FACETS:
            counts = read_facets(self.settings.facets[cell.task])
            query_ids = [query.query_id for query in environment.queries]
            return summarise_facets(counts, query_ids, cell.metric)
        statistic, _, other_task = cell.metric.partition(" ")
        if statistic == "jaccard":
            other = self.load(other_task, cell.split)
            return weighted_jaccard(word_shares(environment), word_shares(other))
        return compute_statistic(environment, cell.metric)

    def _measure(self, cell: PaperCell, task: str) -> MeasuredValue:
        """Return a cell's value on a task, None if it is undefined."""
        system = self.section.system(cell)
        if "bound" in system:
            return MeasuredValue(bound(system["bound"], cell.metric, self.load(task, cell.split)))
        if "mean_of" in system:
            return self._regress(cell, task)
        run, stand_ins = self._find(cell, task)
        deviations = list_deviations([run])
        # A bare retriever's row says what its paper leaves open, unless another stands in for it.
        if run.config["program"] == FLOOR and not run.config.get("imported"):
            deviations = [line for line in deviations if line != run.deviations]
            is_papers = self.settings.fields(system)[0]["retriever"] == system["retriever"]
            if is_papers and "differs" in system:
                deviations.append(f"{system['name']} differs from the paper's: {system['differs']}")
        return MeasuredValue(self._read_value(run, cell, task), stand_ins, tuple(deviations))

    def _regress(self, cell: PaperCell, task: str) -> MeasuredValue:
        """Return a figure of the regression of the mean of several systems on a feature."""
        figure, feature = split_metric(cell.metric)
        found = [
            self._find(replace(cell, system=system["name"]), task)
            for system in self.section.runs_of(cell)
        ]
        if feature == FACET_COUNT:
            values: Mapping[str, float] = read_facets(self.settings.facets[task])
        else:
            values = measure_feature(self.load(task, cell.split), feature)
        line = regress(values, [run.columns[run.metric] for run, _ in found])
        if line is None:
            raise NotApplicable("fewer than three queries, or a feature that all share")
        remarks = dict.fromkeys(remark for _, remark in found if remark)
        deviations = dict.fromkeys(run.deviations for run, _ in found if run.deviations)
        return MeasuredValue(line[figure], "; ".join(remarks), tuple(deviations))

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
        planned = self.planned.get((_row(system), task))
        result = self.results[planned.row, planned.task] if planned else None
        if result and result.run:
            return self._read(result.run.path), self.settings.fields(system)[1]
        lacks = self.settings.explain_lack(system)
        raise (not lacks and result and result.problem) or NotApplicable(lacks)

    def count_failed(self) -> int:
        """Return how many queries the programs of its runs have failed."""
        return sum(result.run.scores["failed"] for result in self.results.values() if result.run)

    def _find_imported(self, system: JsonMapping, task: str, split: str) -> ScoredRun | None:
        """Return the run that `sextant import` made of the authors' own ranking; None if
        something stands in.
        """
        if self.settings.fields(system)[1]:
            return None
        folder = self.settings.runs / task.replace("/", "-")
        for path in folder.glob(f"{slugify(system['name'])}-{UNKNOWN}-*"):
            run = self._read(path)
            if run.config["data_fingerprint"] == self.load(task, split).fingerprint:
                return run
        return None

    def _load_task(self, task: str, split: str) -> Environment:
        data = None if environments.is_place(task) else self.settings.data
        return environments.load(task, data, split).asking(limit=self.settings.limit)


def _row(system: JsonMapping) -> str:
    return str(system.get("row", system["name"]))


def _subtract(ours: Value, published: Value) -> float | None:
    if isinstance(ours, int | float) and isinstance(published, int | float):
        return ours - published
    return None
