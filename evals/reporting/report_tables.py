"""The tables of a group of runs: tasks are columns, systems are rows, and the papers' rows stand
apart from ours.

There is a table for each metric that the suite's paper prints, and for MultiConIR's protocols one
with the conditions as columns (its Tables 1 and 13 to 20). Published rows are there only beside
runs over whole splits of the full release, for the same split and judgements. Whether a difference
is significant is for `python -m evals.compare`.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Literal, NamedTuple

import numpy as np

import environments
from evals import published
from evals.reporting.run_groups import PAPERS, Group, System, file_slug, short_task_name
from evals.scoring.metrics import is_lower_better, is_pairwise, is_weighted
from evals.scoring.scored_run import ScoredRun
from evals.scoring.statistics import TIE
from tools.number_format import plural

DECLINE = "Decline"  # Win(1) - Win(10), in Table 1 of MultiConIR
CONDITIONS = tuple(range(1, 11))
LADDERS = (
    "monotonicity",
    "format",
    "length512",
    "length1024",
)  # Win(k) is the k-th rung of a ladder of documents
DECIMALS = {"multiconir": 4}  # as the papers print them; the others have 3

NOTES = {
    "Win": "Win: the share of comparisons in which the better document is scored strictly higher",
    "Flip": "Flip: the share of comparisons that come out otherwise when the query is told as "
    "prose; lower is better",
    DECLINE: "Decline is Win(1) - Win(10); lower is better, but none is marked as best: who wins "
    "nothing has 0",
    "BIRCO": "BIRCO's figures are means over 1,000 bootstrap resamples; these are plain means, "
    "the CSV file has both",
}

RowKind = Literal["ours", "union", "gold", "computed", "published"]
HEADS: dict[RowKind, str] = {  # what stands above the rows of a kind
    "ours": "",
    "union": "Over pools as retrieved: lower bounds",
    "gold": "Over pools with gold put in: upper bounds",
    "computed": "Computed from the judgements, not run",
    "published": "Published, as printed",
}


class ResultColumn(NamedTuple):
    """A task by some judgements in a metric, or the mean of such over tasks."""

    tasks: tuple[str, ...]
    metric: str
    judgements: str
    label: str
    below: str = ""  # a second line under it
    figure_task: str = ""  # what evals.published calls it
    leads: bool = True  # by the judgements that lead its task; others stand beside them


@dataclass(slots=True)
class ResultCell:
    """One figure with where it comes from."""

    value: float
    text: str
    source: str  # a run folder, or a paper's table and row
    low: float | None = None
    high: float | None = None
    error: float | None = None  # the standard error that a paper prints
    queries: int | None = None
    failed: int | None = None
    resampled: tuple[float, float] | None = (
        None  # BIRCO's mean over bootstrap resamples, and its error
    )
    note: str = ""
    best: bool = False
    answers: int | None = None  # to the queries: each seed gives one
    seeds: int = 1

    @property
    def title(self) -> str:
        """What is behind the figure, in a line."""
        interval = "" if self.low is None else f"95 % interval {self.low:.4f} to {self.high:.4f}"
        error = "" if self.error is None else f"standard error {self.error}"
        size = "" if self.queries is None else plural(self.queries, "query", "queries")
        size += f", {self.seeds} seeds" if self.seeds > 1 else ""
        answers = self.queries if self.answers is None else self.answers
        failed = ""
        if self.failed:
            share = (
                f"{self.failed} of {answers} answers"
                if answers != self.queries
                else f"{self.failed} of them"
            )
            failed = f"{share} failed and {'has' if self.failed == 1 else 'have'} the worst value"
        return "; ".join(filter(None, [interval, error, size, failed, self.note, self.source]))


@dataclass(slots=True)
class ResultRow:
    """A system's figures, a cell for each column."""

    kind: RowKind
    label: str
    cells: list[ResultCell | None]
    system: System | None = None  # None for a paper's
    ranked: bool = True  # may be the best of its column: not a bound


@dataclass(slots=True)
class ResultTable:
    """One table of a report."""

    stem: str  # of its file's name
    title: str
    columns: list[ResultColumn]
    rows: list[ResultRow]
    notes: list[str] = field(default_factory=list)

    def of_kind(self, row_kind: RowKind) -> list[ResultRow]:
        """Its rows of one kind."""
        return [row for row in self.rows if row.kind == row_kind]


def make_tables(group: Group, metrics: Sequence[str] = ()) -> list[ResultTable]:
    """The tables of a group: of `metrics`, or of those that its suite's paper prints."""
    tables = [_by_task(group, name) for name in _metrics(group, metrics)]
    if not metrics or any(name.startswith("Win") for name in metrics):
        # MultiConIR's: the mean over the domains of each protocol, and each domain of that of
        # complexity.
        tasks = [
            task
            for task in group.tasks
            if any("Win(1)" in run.columns for run in group.of_task(task))
        ]
        if len(tasks) > 1:
            tables.append(_by_condition(group, tuple(tasks)))
        if len(tasks) == 1 or group.variant == "complexity":
            tables += [_by_condition(group, (task,)) for task in tasks]
    for table in tables:
        _mark_best(table)
    return [table for table in tables if table.rows]


def _metrics(group: Group, only: Sequence[str]) -> list[str]:
    """The metrics that have a table by task, in the order of a run's own: those of the paper,
    or all without any.
    """
    columns = dict.fromkeys(name for run in group.runs for name in run.columns)
    names = [name for name in columns if "[" not in name and not name.startswith("Win(")]
    if only:
        return [name for name in names if name in only]
    headlines = {run.metric for run in group.runs}
    printed = {
        figure.metric for figure in published.figures() if figure.task.startswith(f"{group.suite}/")
    }
    return [name for name in names if name in headlines | printed | {"Triplets"}] or names


def _by_task(group: Group, metric: str) -> ResultTable:
    columns = [column for task in group.tasks for column in task_columns(group, task, metric)]
    suite_tasks = (
        environments.suite(group.suite).tasks if group.suite in environments.SUITES else {}
    )
    if suite_tasks and {short_task_name(task) for task in group.tasks} == set(
        suite_tasks
    ):  # as papers print it
        columns.append(
            ResultColumn(tuple(group.tasks), metric, "", "mean", "of tasks", _mean_task(group))
        )
    rows = _our_rows(group, columns)
    notes = [NOTES[metric]] if metric in NOTES else []
    if any(cell and cell.resampled for row in rows for cell in row.cells):
        notes.append(NOTES["BIRCO"])
    return ResultTable(
        f"{group.stem}-{file_slug(metric)}",
        metric,
        columns,
        [*rows, *_published_rows(group, columns)],
        notes,
    )


def task_columns(group: Group, task: str, metric: str) -> list[ResultColumn]:
    """A task in a metric: by the judgements that lead, which are the paper's, then by the
    others.
    """
    scored = [(run, *name.partition(" [")) for run in group.of_task(task) for name in run.columns]
    named = dict.fromkeys(
        suffix.removesuffix("]") or run.scores["judgements"]
        for run, plain, _, suffix in scored
        if plain == metric
    )
    names = sorted(named, key=lambda name: name not in ("gold", "document"))
    if is_pairwise(metric):
        names = names[:1]  # comparisons depend on no judgements
    columns = []
    for name in names:
        printed = task if name in ("gold", "pooled", names[0]) else ""
        below = name if len(names) > 1 else ""
        columns.append(
            ResultColumn(
                (task,), metric, name, short_task_name(task), below, printed, leads=name == names[0]
            )
        )
    return columns


def sweep_tasks(group: Group) -> list[str]:
    """The tasks that a system was run on over pools of one kind and several sizes."""
    pooled = {
        task: {system for system in map(group.system, group.of_task(task)) if system.pool}
        for task in group.tasks
    }
    return [
        task
        for task, systems in pooled.items()
        if len(systems) > len({system.resized(0) for system in systems})
    ]


def sweep_table(group: Group, task: str, metric: str) -> ResultTable:
    """A task's metric with sizes of pools as columns: what a plot of the sweep is drawn from."""
    systems = {group.system(run): run for run in group.of_task(task) if group.system(run).pool}
    sizes = sorted({system.size for system in systems})
    judgements = leading_judgements(group.of_task(task)[0])
    columns = [ResultColumn((task,), metric, judgements, str(size)) for size in sizes]
    rows = []
    for plain in dict.fromkeys(system.resized(0) for system in systems):
        runs = [systems.get(plain.resized(size)) for size in sizes]
        cells = [_our_cell([run], column) for run, column in zip(runs, columns, strict=True)]
        if any(cells):
            rows.append(
                ResultRow(
                    "gold" if plain.pool == "oracle" else "union",
                    str(plain),
                    cells,
                    plain,
                    ranked=False,
                )
            )
    stem = f"{group.stem}-{file_slug(short_task_name(task))}-pool-sweep-{file_slug(metric)}"
    return ResultTable(
        stem, f"{metric} by size of the pool, {short_task_name(task)}", columns, rows
    )


def _by_condition(group: Group, tasks: tuple[str, ...]) -> ResultTable:
    columns = condition_columns(group, tasks)
    domain = short_task_name(tasks[0]) if len(tasks) == 1 else ""
    ladder = group.variant in LADDERS
    heading = "Win by conditions met" if ladder else "Win by conditions in the query"
    met = (
        "columns: the document that meets so many of the query's ten conditions, over the one "
        "that meets one less"
    )
    notes = [met if ladder else NOTES[DECLINE]]
    rows = _our_rows(group, columns)
    systems = {str(group.system(run)) for run in group.runs if run.config["task"] in tasks}
    if lacking := sorted(systems - {row.label for row in rows}):
        notes.append(f"not run in all of these domains, so not in the mean: {'; '.join(lacking)}")
    stem = f"{group.stem}-Win-by-conditions" + (f"-{file_slug(domain)}" if domain else "")
    title = f"{heading}, {domain or f'mean over {len(tasks)} domains'}"
    return ResultTable(stem, title, columns, [*rows, *_published_rows(group, columns)], notes)


def condition_columns(group: Group, tasks: tuple[str, ...]) -> list[ResultColumn]:
    """Win(1) to Win(10) over some domains.

    On a ladder Win(1) is its top, so the columns go from 10 to 1.
    """
    is_whole = {short_task_name(task) for task in tasks} == set(
        environments.suite("multiconir").tasks
    )
    printed = tasks[0] if len(tasks) == 1 else _mean_task(group) if is_whole else ""
    if group.variant in LADDERS:
        return [
            ResultColumn(tasks, f"Win({k})", "", str(11 - k), f"over {10 - k}", printed)
            for k in reversed(CONDITIONS)
        ]
    wins = [ResultColumn(tasks, f"Win({k})", "", str(k), "", printed) for k in CONDITIONS]
    return wins + [ResultColumn(tasks, DECLINE, "", DECLINE, "", printed)] * (
        group.variant == "complexity"
    )


def _our_rows(group: Group, columns: Sequence[ResultColumn]) -> list[ResultRow]:
    by_system: dict[System, dict[str, ScoredRun]] = {}
    for run in group.runs:
        by_system.setdefault(group.system(run), {})[run.config["task"]] = run
    rows = []
    for system, runs in by_system.items():
        cells = [_our_cell([runs.get(task) for task in column.tasks], column) for column in columns]
        sizes = [sibling.size for sibling in by_system if sibling.resized(0) == system.resized(0)]
        # Of a sweep over sizes of pools, the largest has a row, and those of several tasks.
        if any(cells) and (system.size == max(sizes) or len(runs) > 1):
            row_kind: RowKind = (
                "gold" if system.pool == "oracle" else "union" if system.pool else "ours"
            )
            rows.append(ResultRow(row_kind, str(system), cells, system, ranked=row_kind == "ours"))
    return rows


def _our_cell(runs: Sequence[ScoredRun | None], column: ResultColumn) -> ResultCell | None:
    finished = [run for run in runs if run is not None]
    if len(finished) < len(runs):
        return None
    measured = mean_over(finished, column.metric, column.judgements)
    if column.metric == DECLINE:
        first, last = (mean_over(finished, f"Win({k})", "") for k in (1, 10))
        measured = {"mean": first["mean"] - last["mean"]} if first and last else None
    if measured is None:
        return None
    resampled = measured.get("resampled")
    paper_figure = (
        published.published_values_for(finished[0].config).get(measured.get("name", ""))
        if len(finished) == 1
        else None
    )
    return ResultCell(
        measured["mean"],
        f"{measured['mean'] + 0.0:.4f}",
        ", ".join(run.name for run in finished),
        measured.get("low"),
        measured.get("high"),
        queries=sum(run.scores["queries"] for run in finished),
        failed=sum(run.scores["failed"] for run in finished),
        answers=sum(run.scores["queries"] for run in finished),
        resampled=(resampled["mean"], resampled["error"]) if resampled else None,
        note=f"the paper's {paper_figure.system}, {paper_figure.table}, is {paper_figure.value}"
        if paper_figure
        else "",
    )


def _name_figure(figure: published.PaperFigure) -> str:
    return f"the paper's {figure.system}, {figure.table}, is {figure.value}"


def mean_over(runs: Sequence[ScoredRun], metric: str, judgements: str) -> dict[str, Any] | None:
    """Mean and interval of one run, or of the mean over several tasks' runs; None where one
    of them has no value.
    """
    measurements = list[
        tuple[str, dict[str, Any]]
    ]()  # the name in the run's scores, and what it measured
    for run in runs:
        by = judgements or leading_judgements(run)
        name = (
            metric if by == run.scores["judgements"] or is_pairwise(metric) else f"{metric} [{by}]"
        )
        measured = run.scores["metrics"].get(name, {})
        if measured.get("mean") is None:
            return None
        measurements.append((name, measured))
    if len(measurements) == 1:
        return measurements[0][1] | {"name": measurements[0][0]}
    columns = []
    for run, (name, _) in zip(runs, measurements, strict=True):
        columns.append([value for value in run.columns[name].values() if value is not None])
    if is_weighted(
        metric
    ):  # over tasks each query counts once, as in the interval and in every test
        means = [fmean(column) for column in columns]
    else:
        means = [measured["mean"] for _, measured in measurements]
    low, high = stratified(columns)
    return {"mean": sum(means) / len(means), "low": low, "high": high}


def leading_judgements(run: ScoredRun) -> str:
    """The judgements that a mean over tasks takes: the paper's, whichever lead the run."""
    leading = str(run.scores["judgements"])
    names = {leading, *(name.partition(" [")[2].removesuffix("]") for name in run.columns)}
    return next((name for name in ("gold", "document") if name in names), leading)


def stratified(
    columns: Sequence[Sequence[float]], *, resamples: int = 2_000, seed: int = 0
) -> tuple[float, float]:
    """The 95 % percentile bootstrap interval of the mean of several means, each resampled for
    itself.
    """
    generator = np.random.default_rng(seed)
    means = np.zeros(resamples)
    for column in columns:
        values = np.asarray(column, dtype=np.float64)
        draws = generator.integers(0, len(values), size=(resamples, len(values)))
        means += values[draws].mean(axis=1) / len(columns)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def _mark_best(table: ResultTable) -> None:
    for rows in (table.of_kind("ours"), table.of_kind("published")):
        for index, column in enumerate(table.columns):
            cells = [cell for row in rows if row.ranked and (cell := row.cells[index]) is not None]
            if column.metric == DECLINE:
                continue
            choose = min if is_lower_better(column.metric) else max
            best = choose((cell.value for cell in cells), default=0.0)
            for cell in cells:
                cell.best = len(cells) > 1 and abs(cell.value - best) < TIE


def _mean_task(group: Group) -> str:
    return f"{group.suite}/*" + (f":{group.variant}" if group.variant else "")


def figures_for(group: Group, column: ResultColumn) -> list[published.PaperFigure]:
    """What the paper prints for a column, whatever the system; nothing for runs that it may
    not stand beside.
    """
    if not group.whole or not column.figure_task:
        return []
    key = (column.figure_task, column.metric, group.split)
    judged = ("", column.judgements)
    figures = [figure for figure in published.figures() if figure.judgements in judged]
    return [figure for figure in figures if (figure.task, figure.metric, figure.split) == key]


def _published_rows(group: Group, columns: Sequence[ResultColumn]) -> list[ResultRow]:
    """The papers' rows for these columns, by system; several of one where the paper's tables
    contradict each other.
    """
    by_system: dict[
        str, dict[str, dict[int, published.PaperFigure]]
    ] = {}  # system -> table -> column -> figure
    for index, column in enumerate(columns):
        for figure in figures_for(group, column):
            by_system.setdefault(figure.system, {}).setdefault(figure.table, {}).setdefault(
                index, figure
            )
    paper = PAPERS.get(group.suite, group.suite)
    decimals = DECIMALS.get(group.suite, 3)
    rows = []
    for system in sorted(by_system):
        for members in _together(by_system[system].values()):
            cells: list[ResultCell | None] = [None] * len(columns)
            for index, figure in (
                (index, figure) for row in members for index, figure in row.items()
            ):
                source = f"{paper}, {figure.table}, row {figure.row}"
                text = f"{figure.value:.{decimals}f}"
                cells[index] = cells[index] or ResultCell(
                    figure.value, text, source, error=figure.error, note=figure.note
                )
            figures = [figure for row in members for figure in row.values()]
            numbers = sorted({int(figure.table.split()[-1]) for figure in figures})
            label = (
                f"{system} ({paper}, Table{'s' if len(numbers) > 1 else ''} "
                f"{', '.join(map(str, numbers))})"
            )
            # The maximum and rankings of pools with gold in them are no system's.
            ranked = not any("bound, not a" in figure.note for figure in figures)
            rows.append(ResultRow("published", label, cells, ranked=ranked))
    return rows


def _together(
    rows: Collection[dict[int, published.PaperFigure]],
) -> list[list[dict[int, published.PaperFigure]]]:
    """Rows of several tables in as few as hold them: what continues or repeats a row goes
    with it.
    """
    merged: list[list[dict[int, published.PaperFigure]]] = []
    for row in sorted(rows, key=len, reverse=True):
        for members in merged:
            if all(
                row[index].value == member[index].value
                for member in members
                for index in row.keys() & member.keys()
            ):
                members.append(row)
                break
        else:
            merged.append([row])
    return merged


def explain_missing_published(group: Group, tables: Sequence[ResultTable]) -> str:
    """Why a group has no published row; empty where it has some."""
    if any(table.of_kind("published") for table in tables):
        return ""
    splits = {
        figure.split
        for figure in published.figures()
        if figure.task in (*group.tasks, _mean_task(group))
    }
    reason = "the paper has none for this variant and these metrics"
    if group.data == "mini":
        reason = (
            "these are the bundled miniatures, which are invented. They stand beside runs over "
            "the full release: "
        )
        reason += (
            f"python -m environments fetch {group.tasks[0]}, then python -m evals.run --data full"
        )
    elif group.data != "full":
        reason = "the data is a folder's, not the pinned release that evals.run --data full reads"
    elif group.queries:
        reason = "only a part of the queries was asked"
    elif splits and group.split not in splits:
        reason = f"the paper's are for --split {' and '.join(sorted(splits))}"
    return f"No published figures: {reason}"
