"""The cells of a paper's table, made: the study that they take, and what ours are beside the
paper's.

A run that cannot be made gives its reason to its cells, and the others are made.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import environments
from environments.base import Environment
from evals.formats.import_run import UNKNOWN, slugify
from evals.papers.dataset_statistics import (
    Value,
    compute_statistics,
    reciprocal_ranks,
    word_shares,
)
from evals.published.sections import PaperCell, PaperTable
from evals.scoring.metrics import is_pairwise
from evals.scoring.random_and_ideal import bound
from evals.scoring.scored_run import ScoredRun, list_deviations, read_scored_run
from evals.scoring.text_similarity import weighted_jaccard
from evals.studies import study_file
from evals.studies.run_cells import CellResult, StudyProgress, Unfinished, run_cells
from evals.studies.significance import find_best
from evals.studies.study_file import list_tasks
from tools import files
from tools.errors import DataError, SextantError
from tools.schemas import toml_lines

LEXICAL = (
    "bm25",
    "bm25s",
    "rank_bm25",
    "pool_bm25",
)  # retrievers that need neither key nor weights
HARD = (
    "hard negatives",
    "other documents",
)  # metrics: what evals.papers.dataset_statistics.reciprocal_ranks gives
MINIATURES = (
    "miniatures are invented and never comparable with a paper: the difference says nothing"
)
OF_SECTIONS = (
    "name",
    "row",
    "also",
    "tasks",
    "lacks",
    "sizes",
)  # keys of a system that a run does not have
DECLINE = "Decline"  # in MultiConIR's tables: Win(1) less Win(10)


@dataclass(frozen=True, kw_only=True)
class ReproductionSettings:
    """What a table is made with."""

    data: str | None
    limit: int | None
    lm: str  # in place of the models of the paper
    retriever: str  # in place of retrievers that need a key or weights
    runs: Path
    budget_usd: float | None = None  # for all of its runs together
    budget_calls: int | None = None  # the same
    prices: Path | None = None  # a file of the user's own
    quiet: bool = True  # else stderr has the live table of a study

    def fields(self, system: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
        """Return (a system's fields of a request, which stand-ins are among them)."""
        settings = {key: value for key, value in system.items() if key not in OF_SECTIONS}
        lexical = settings.get("retriever", LEXICAL[0]).partition("(")[0] in LEXICAL
        pool, _, named = settings.get("pool", "").partition("(")
        wanted = {
            "lm": self.lm if "lm" in settings else "",
            "retriever": "" if lexical else self.retriever,
        }
        wanted["pool"] = f"{pool}({self.retriever})" if named and self.retriever else ""
        changed = {key: value for key, value in wanted.items() if value and value != settings[key]}
        stand_ins = [f"{value} for {settings[key]}" for key, value in changed.items()]
        parameters = settings.get("parameters", {})
        if self.retriever and "ties" in parameters:  # of the programs that score
            stand_ins.append(f"{self.retriever} for {parameters['ties']}")
            changed["parameters"] = parameters | {"ties": self.retriever}
        return settings | changed, "; ".join(stand_ins)


class ReproducedTable:
    """A section as it is made: its runs as a study, and its data when a cell first needs them."""

    def __init__(self, section: PaperTable, conditions: ReproductionSettings) -> None:
        self.section = section
        self.conditions = conditions
        self.load = cache(self._load_task)
        self._read = cache(read_scored_run)
        self.planned = {(cell.row, cell.task): cell for cell in self._plan()}
        self.unfinished = list[
            Unfinished
        ]()  # the cells that could be made and are not, once `cells` has yielded all

    @property
    def runs(self) -> list[study_file.StudyCell]:
        """The runs that it takes, none of them twice: with stand-ins, rows may ask for the same."""
        return list(
            {repr(cell.request): cell for cell in reversed(self.planned.values())}.values()
        )[::-1]

    @cached_property
    def results(self) -> dict[str, CellResult]:
        """What came of its runs, by request."""
        results = (
            run_cells(self.runs, None if self.conditions.quiet else StudyProgress(self.runs))
            if self.runs
            else []
        )
        return {repr(result.cell.request): result for result in results}

    def cells(self) -> Iterator[dict[str, Any]]:
        """Yield every cell: the paper's value, ours, the difference, and a remark where there
        is one.
        """
        marks = self._mark() if self.section.about.get("marked") else {}
        for cell in self.section.cells:
            try:
                ours, remark = self._make(cell)
            except SextantError as problem:
                ours = None
                remark = str(problem)
                self.unfinished.append(Unfinished(cell.system or cell.metric, cell.task, problem))
            both = isinstance(ours, int | float) and isinstance(cell.value, int | float)
            difference = ours - cell.value if both else None  # type: ignore[operator]
            comparison = {
                "published": cell.value,
                "ours": ours,
                "difference": difference,
                "remark": remark,
            }
            comparison["mark"] = marks.get((cell.task, cell.metric, cell.system), "")
            yield {
                key: value for key, value in asdict(cell).items() if key not in ("value", "lacks")
            } | comparison

    def _mark(self) -> dict[tuple[str, str, str], str]:
        """Return "*" for the best of ours in each column, "=" for those that do not differ
        from it (p > .05).
        """
        columns: dict[tuple[str, str], dict[str, dict[str, float]]] = {}
        for cell in self.section.cells:
            try:
                run = self._find(cell, cell.task)[0]
            except SextantError:  # which `cells` says
                continue
            if not isinstance(run, str):
                values = {
                    query_id: value
                    for query_id, value in run.columns[cell.metric].items()
                    if value is not None
                }
                columns.setdefault((cell.task, cell.metric), {})[cell.system] = values
        marks = dict[tuple[str, str, str], str]()
        for (task, metric), column in columns.items():
            best, tests = find_best({task: column}, {task: metric})
            indistinguishable = [system for system, test in tests.items() if test.p > 0.05]
            marks |= {(task, metric, best): "*"} | dict.fromkeys(
                [(task, metric, system) for system in indistinguishable], "="
            )
        return marks

    def warnings(self) -> list[str]:
        """Return what the table may not be taken for."""
        tasks = dict.fromkeys(
            task for cell in self.section.cells if not cell.lacks for task in list_tasks(cell.task)
        )
        kinds = set[str]()
        missing = list[DataError]()
        for task in tasks:
            try:
                kinds.add(
                    environments.data_folder(environments.resolve(task), self.conditions.data)[0]
                )
            except DataError as problem:  # which the task's cells say, where other tasks are there
                missing.append(problem)
        if missing and not kinds:
            raise missing[0]
        folder_note = (
            "a folder's data is not the pinned release: the difference may be that of the data"
        )
        part_note = (
            f"only the first {self.conditions.limit} queries of each task are asked; the paper "
            f"has all"
        )
        notes = [MINIATURES] if "mini" in kinds else [folder_note] if kinds - {"full"} else []
        return notes + [part_note] * bool(self.conditions.limit)

    def _make(self, cell: PaperCell) -> tuple[Value, str]:
        if cell.lacks:
            return None, cell.lacks
        if not cell.system:
            return self._describe(cell), ""
        values = list[float]()
        stand_ins = ""
        for task in list_tasks(cell.task):
            value, stand_ins = self._measure(cell, task)
            if value is None:
                return None, stand_ins or "undefined for these queries"
            values.append(value)
        return fmean(values), stand_ins

    def _describe(self, cell: PaperCell) -> Value:
        environment = self.load(cell.task, cell.split)
        statistic, _, other_task = cell.metric.partition(" ")
        if statistic == "jaccard":
            return weighted_jaccard(
                word_shares(environment), word_shares(self.load(other_task, cell.split))
            )
        return compute_statistics(environment, [cell.metric])[cell.metric]

    def _measure(self, cell: PaperCell, task: str) -> tuple[float | None, str]:
        system = self.section.system(cell)
        if "bound" in system:
            return bound(system["bound"], cell.metric, self.load(task, cell.split)), ""
        run, stand_ins = self._find(cell, task)
        if isinstance(run, str):
            return None, run
        if cell.metric in HARD:
            rankings = {query_id: outcome["ranking"] for query_id, outcome in run.outcomes.items()}
            return reciprocal_ranks(self.load(task, cell.split), rankings)[
                HARD.index(cell.metric)
            ], stand_ins
        if cell.metric == DECLINE:
            first, last = (run.scores["metrics"].get(f"Win({k})", {}).get("mean") for k in (1, 10))
            return (None if None in (first, last) else first - last), stand_ins
        judged = (
            f" [{cell.judgements}]" if cell.judgements not in ("", run.scores["judgements"]) else ""
        )
        measured = run.scores["metrics"].get(cell.metric + judged, {})
        return measured.get("resampled", measured).get("mean"), stand_ins

    def _find(self, cell: PaperCell, task: str) -> tuple[ScoredRun | str, str]:
        """Return (the run of a cell or why nobody can make it, what is not as in the paper).

        Raise the problem for which it is not made.
        """
        system = self.section.system(cell)
        if imported := self._find_imported(system, task, cell.split):
            return imported, "the authors' own ranking"
        stand_ins = self.conditions.fields(system)[1]
        planned = self.planned.get((_row(system), task))
        result = self.results[repr(planned.request)] if planned else None
        if result and result.folder:
            return self._read(result.folder), stand_ins
        if result and result.problem and "lacks" not in system:
            raise result.problem
        return system.get("lacks") or (result.unfit if result else ""), stand_ins

    def count_failed(self) -> int:
        """Return how many queries the programs of its runs have failed."""
        folders = {result.folder for result in self.results.values() if result.folder}
        return sum(self._read(folder).scores["failed"] for folder in folders)

    def list_deviations(self) -> list[str]:
        """Return how the programs of its runs differ from those of the paper, each line once."""
        folders = {result.folder for result in self.results.values() if result.folder}
        return list_deviations(self._read(folder) for folder in sorted(folders))

    def _find_imported(self, system: Mapping[str, Any], task: str, split: str) -> ScoredRun | None:
        """Return the run that `evals.import_run` made of the authors' own ranking, where
        nothing is to stand in.
        """
        folder = self.conditions.runs / task.replace("/", "-")
        stands_in = self.conditions.fields(system)[1]
        for path in folder.glob(f"{slugify(system['name'])}-{UNKNOWN}-*") if not stands_in else ():
            run = self._read(path)
            if run.config["data_fingerprint"] == self.load(task, split).fingerprint:
                return run
        return None

    def _load_task(self, task: str, split: str) -> Environment:
        return environments.load(task, self.conditions.data, split).asking(
            limit=self.conditions.limit
        )

    def _plan(self) -> list[study_file.StudyCell]:
        """Write the study of the table, RUNS/studies/SUITE-TABLE/study.toml, and return its
        cells.
        """
        rows = dict[tuple[str, str], dict[str, Any]]()
        cells = [cell for cell in self.section.cells if cell.system and not cell.lacks]
        for cell in cells:
            system = self.section.system(cell)
            row = {
                "name": _row(system),
                "tasks": [],
                "split": cell.split,
                **self.conditions.fields(system)[0],
            }
            for task in list_tasks(cell.task) if "program" in system else ():
                tasks = rows.setdefault((row["name"], cell.split), row)["tasks"]
                tasks += [task] * (
                    task not in tasks and not self._find_imported(system, task, cell.split)
                )
        rows = {key: row for key, row in rows.items() if row["tasks"]}
        if not rows:
            return []
        name = self.section.name.replace("/", "-")
        tasks = [task for row in rows.values() for task in row["tasks"]]
        head = {
            "name": name,
            "question": self.section.about["title"],
            "tasks": [*dict.fromkeys(tasks)],
        }
        # Comparisons are measured by every task that has some; a part of its queries may lack those
        # of a kind.
        ranked = (
            cell.metric
            for cell in cells
            if cell.metric not in (*HARD, DECLINE) and not is_pairwise(cell.metric)
        )
        conditions = self.conditions
        prices = str(conditions.prices) if conditions.prices else None
        fixed = {
            "data": conditions.data,
            "limit": conditions.limit,
            "metrics": [*dict.fromkeys(ranked)],
        }
        fixed["prices"] = prices
        budget = {"usd": conditions.budget_usd, "calls": conditions.budget_calls}
        sections = [_toml(head), f"[budget]\n{_toml(budget)}", f"[fixed]\n{_toml(fixed)}"]
        sections += [f"[[row]]\n{_toml(row)}" for row in rows.values()]
        file = self.conditions.runs / "studies" / name / "study.toml"
        file.parent.mkdir(parents=True, exist_ok=True)
        files.replace(file, "\n".join(sections))
        return study_file.expand_cells(study_file.read_study(file), self.conditions.runs)


def _row(system: Mapping[str, Any]) -> str:
    return str(system.get("row", system["name"]))


def _toml(fields: Mapping[str, Any]) -> str:
    given = {key: field for key, field in fields.items() if field}
    return "".join(f"{line}\n" for line in toml_lines(given))
