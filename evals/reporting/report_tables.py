"""The tables of a group of runs: tasks are columns, systems are rows, and the papers' rows stand
apart from ours.

There is a table for each metric that the suite's paper prints, and for MultiConIR's protocols a
table with the conditions as columns (its Tables 1 and 13 to 20). Published rows are there only
next to runs over whole splits of the full release, for the same split and judgements. Whether a difference
is significant is for `sextant compare`.

Tables of comparisons are in comparison_tables.py, tables of losses in loss_tables.py.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from sextant import environments
from sextant.evals import published
from sextant.evals.reporting.run_groups import PAPERS, Group, file_slug, short_task_name
from sextant.evals.scoring.metrics import is_lower_better, is_pairwise, orient
from sextant.evals.scoring.scored_run import ScoredRun
from sextant.evals.scoring.statistics import TIE, estimate_mean
from sextant.evals.scoring.system_names import System
from sextant.tools.platform.number_format import plural
from sextant.tools.pool_kinds import WITH_RELEVANT
from sextant.tools.records import JsonObject

# Win(1) - Win(10), in Table 1 of MultiConIR.
DECLINE = "Decline"
CONDITIONS = tuple(range(1, 11))
# Win(k) is the k-th rung of a ladder of documents.
LADDERS = (
    "monotonicity",
    "format",
    "length512",
    "length1024",
)
# Decimals that the papers print; other papers print 3.
DECIMALS = {"multiconir": 4}

NOTES = {
    "Win": "Win: the share of comparisons in which the better document is scored strictly higher",
    "Flip": "Flip: the share of comparisons that come out otherwise when the query is told as "
    "prose; lower is better",
    DECLINE: "Decline is Win(1) - Win(10); lower is better, but none is marked as best: who wins "
    "nothing has 0",
    "BIRCO": "BIRCO's figures are means over 1,000 bootstrap resamples; these are plain means, "
    "the CSV file has both",
}

# Index of the column -> the figure of a paper.
_PaperRow = dict[int, published.PaperFigure]
RowKind = Literal["ours", "union", "gold", "computed", "published"]
# The headings above the rows of each kind.
HEADS: dict[RowKind, str] = {
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
    # A second line under the label.
    below: str = ""
    # The name of the task in sextant.evals.published.
    figure_task: str = ""
    # Whether these judgements lead the task.
    leads: bool = True


@dataclass(slots=True)
class ResultCell:
    """A figure with its source."""

    value: float
    # As it is shown, as in str.format: its places are those of value, low and high.
    form: str
    # A run folder, or a paper's table and row.
    source: str
    low: float | None = None
    high: float | None = None
    # The standard error that a paper prints.
    error: float | None = None
    queries: int | None = None
    failed: int | None = None
    # BIRCO's mean over bootstrap resamples, and its error.
    resampled: tuple[float, float] | None = None
    note: str = ""
    best: bool = False
    # Answers to the queries, of which each seed gives one.
    answers: int | None = None
    seeds: int = 1

    @property
    def title(self) -> str:
        """The sources of the figure, in a line."""
        parts = []
        if self.low is not None:
            parts.append(f"95 % interval {self.low:.4f} to {self.high:.4f}")
        if self.error is not None:
            parts.append(f"standard error {self.error}")
        size = "" if self.queries is None else plural(self.queries, "query", "queries")
        if self.seeds > 1:
            size += f", {self.seeds} seeds"
        return "; ".join(
            filter(
                None,
                [
                    *parts,
                    size,
                    self._failures,
                    self.note,
                    self.source,
                ],
            )
        )

    @property
    def _failures(self) -> str:
        if not self.failed:
            return ""
        share = f"{self.failed} of them"
        if self.answers is not None and self.answers != self.queries:
            share = f"{self.failed} of {plural(self.answers, 'answer')}"
        verb = "has" if self.failed == 1 else "have"
        return f"{share} failed and {verb} the worst value"


@dataclass(slots=True)
class ResultRow:
    """A system's figures, a cell for each column."""

    kind: RowKind
    label: str
    cells: list[ResultCell | None]
    # None for a system of a paper.
    system: System | None = None
    # Whether it may be the best of its column, as a bound may not.
    ranked: bool = True


@dataclass(slots=True)
class SystemFigures:
    """Figures of systems by columns, which are laid out as a table and drawn as plots."""

    # The beginning of the names of their files.
    stem: str
    title: str
    columns: list[ResultColumn]
    rows: list[ResultRow]
    notes: list[str] = field(default_factory=list)

    def of_kind(self, row_kind: RowKind) -> list[ResultRow]:
        """Its rows of a kind."""
        return [row for row in self.rows if row.kind == row_kind]


def make_tables(group: Group, metrics: Sequence[str] = ()) -> list[SystemFigures]:
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


def _by_task(group: Group, metric: str) -> SystemFigures:
    columns = [column for task in group.tasks for column in task_columns(group, task, metric)]
    suite_tasks = (
        environments.suite(group.suite).tasks if group.suite in environments.SUITES else {}
    )
    if suite_tasks and {short_task_name(task) for task in group.tasks} == set(
        suite_tasks
    ):  # as papers print it
        columns.append(
            ResultColumn(
                tuple(group.tasks),
                metric,
                "",
                "mean",
                "of tasks",
                _mean_task(group),
            )
        )
    rows = _our_rows(group, columns)
    notes = [NOTES[metric]] if metric in NOTES else []
    if any(cell and cell.resampled for row in rows for cell in row.cells):
        notes.append(NOTES["BIRCO"])
    return SystemFigures(
        f"{group.stem}-{file_slug(metric)}",
        metric,
        columns,
        [*rows, *_published_rows(group, columns)],
        notes,
    )


def task_columns(group: Group, task: str, metric: str) -> list[ResultColumn]:
    """A task in a metric: by the judgements that lead, which are the paper's, then by other
    judgements.
    """
    judged_by = dict[str, None]()
    for run in group.of_task(task):
        for name in run.columns:
            plain, _, suffix = name.partition(" [")
            if plain == metric:
                judged_by[suffix.removesuffix("]") or run.scores["judgements"]] = None
    names = sorted(judged_by, key=lambda name: name not in ("gold", "document"))
    if is_pairwise(metric):
        # Comparisons depend on no judgements.
        names = names[:1]
    columns = []
    for name in names:
        column = ResultColumn(
            (task,),
            metric,
            name,
            short_task_name(task),
            below=name if len(names) > 1 else "",
            figure_task=task
            if name
            in (
                "gold",
                "pooled",
                names[0],
            )
            else "",
            leads=name == names[0],
        )
        columns.append(column)
    return columns


def sweep_tasks(group: Group) -> list[str]:
    """The tasks that a system was run on over pools of a single kind and several sizes."""
    pooled = {
        task: {system for system in map(group.system, group.of_task(task)) if system.pool}
        for task in group.tasks
    }
    return [
        task
        for task, systems in pooled.items()
        if len(systems) > len({system.resized(0) for system in systems})
    ]


def sweep_table(group: Group, task: str, metric: str) -> SystemFigures:
    """A task's metric with sizes of pools as columns, from which a plot of the sweep is drawn."""
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
                    "gold" if plain.pool in WITH_RELEVANT else "union",
                    str(plain),
                    cells,
                    plain,
                    ranked=False,
                )
            )
    stem = f"{group.stem}-{file_slug(short_task_name(task))}-pool-sweep-{file_slug(metric)}"
    return SystemFigures(
        stem, f"{metric} by size of the pool, {short_task_name(task)}", columns, rows
    )


def _by_condition(group: Group, tasks: tuple[str, ...]) -> SystemFigures:
    columns = condition_columns(group, tasks)
    rows = _our_rows(group, columns)
    title = "Win by conditions in the query"
    note = NOTES[DECLINE]
    if group.variant in LADDERS:
        title = "Win by conditions met"
        note = (
            "columns: the document that meets so many of the query's ten conditions, over the one "
            "that meets one less"
        )
    notes = [note]
    systems = {str(group.system(run)) for run in group.runs if run.config["task"] in tasks}
    if lacking := sorted(systems - {row.label for row in rows}):
        notes.append(f"not run in all of these domains, so not in the mean: {'; '.join(lacking)}")
    stem = f"{group.stem}-Win-by-conditions"
    domains = f"mean over {len(tasks)} domains"
    if len(tasks) == 1:
        domains = short_task_name(tasks[0])
        stem += f"-{file_slug(domains)}"
    published_rows = _published_rows(group, columns)
    return SystemFigures(
        stem,
        f"{title}, {domains}",
        columns,
        [*rows, *published_rows],
        notes,
    )


def condition_columns(group: Group, tasks: tuple[str, ...]) -> list[ResultColumn]:
    """Win(1) to Win(10) over some domains.

    On a ladder Win(1) is its top, so the columns go from 10 to 1.
    """
    printed = ""
    if len(tasks) == 1:
        printed = tasks[0]
    else:
        domains = {short_task_name(task) for task in tasks}
        if domains == set(environments.suite("multiconir").tasks):
            printed = _mean_task(group)
    is_ladder = group.variant in LADDERS
    columns = []
    for k in CONDITIONS:
        label = str(11 - k) if is_ladder else str(k)
        below = f"over {10 - k}" if is_ladder else ""
        columns.append(ResultColumn(tasks, f"Win({k})", "", label, below, printed))
    if is_ladder:
        columns.reverse()
    if group.variant == "complexity":
        columns.append(ResultColumn(tasks, DECLINE, "", DECLINE, "", printed))
    return columns


def _our_rows(group: Group, columns: Sequence[ResultColumn]) -> list[ResultRow]:
    by_system: dict[System, dict[str, ScoredRun]] = {}
    for run in group.runs:
        by_system.setdefault(group.system(run), {})[run.config["task"]] = run
    rows = []
    for system, runs in by_system.items():
        cells = [_our_cell([runs.get(task) for task in column.tasks], column) for column in columns]
        sizes = [sibling.size for sibling in by_system if sibling.resized(0) == system.resized(0)]
        # Of a sweep over sizes of pools, the largest has a row, and a size of several tasks.
        if any(cells) and (system.size == max(sizes) or len(runs) > 1):
            row_kind = _row_kind(system)
            rows.append(
                ResultRow(
                    row_kind,
                    str(system),
                    cells,
                    system,
                    ranked=row_kind == "ours",
                )
            )
    return order_by_score(rows, columns)


def order_by_score(rows: Sequence[ResultRow], columns: Sequence[ResultColumn]) -> list[ResultRow]:
    """Return rows by their kind, and within it in the order of the mean of their figures, the best
    first.

    Rows without a figure in some column follow, those with figures in the same columns in the order
    of their mean. Computed and published rows keep their order.
    """

    def score(row: ResultRow) -> float:
        values = []
        for cell, column in zip(row.cells, columns, strict=True):
            if cell is not None:
                values.append(orient(column.metric.partition(",")[0], cell.value))
        return sum(values) / max(len(values), 1)

    # By kind, and by the columns in which they have a figure; complete rows come first.
    ordered = list[ResultRow]()
    for kind in HEADS:
        of_kind = [row for row in rows if row.kind == kind]
        if kind in ("computed", "published"):
            ordered += of_kind
            continue
        ranked: dict[tuple[bool, ...], list[ResultRow]] = {(True,) * len(columns): []}
        for row in of_kind:
            filled = tuple(cell is not None for cell in row.cells)
            ranked.setdefault(filled, []).append(row)
        for alike in ranked.values():
            ordered += sorted(alike, key=score, reverse=True)
    return ordered


def _row_kind(system: System) -> RowKind:
    if system.pool in WITH_RELEVANT:
        return "gold"
    return "union" if system.pool else "ours"


def _our_cell(runs: Sequence[ScoredRun | None], column: ResultColumn) -> ResultCell | None:
    finished = [run for run in runs if run is not None]
    if len(finished) < len(runs):
        return None
    measured = _measure(finished, column)
    if measured is None:
        return None
    resampled = measured.get("resampled")
    answers = sum(run.scores["queries"] for run in finished)
    return ResultCell(
        measured["mean"],
        "{:z.4f}",
        ", ".join(run.name for run in finished),
        measured.get("low"),
        measured.get("high"),
        queries=answers,
        failed=sum(run.scores["failed"] for run in finished),
        answers=answers,
        resampled=(
            resampled["mean"],
            resampled["error"],
        )
        if resampled
        else None,
        note=_name_published(finished, measured.get("name", "")),
    )


def _measure(runs: Sequence[ScoredRun], column: ResultColumn) -> JsonObject | None:
    if column.metric == DECLINE:
        return _decline(runs)
    return mean_over(runs, column.metric, column.judgements)


def _decline(runs: Sequence[ScoredRun]) -> JsonObject | None:
    first = mean_over(runs, "Win(1)", "")
    last = mean_over(runs, "Win(10)", "")
    return {"mean": first["mean"] - last["mean"]} if first and last else None


def _name_published(runs: Sequence[ScoredRun], metric: str) -> str:
    """Return the paper's figure for the same system as a note, "" if there is none."""
    if len(runs) != 1:
        return ""
    figure = published.published_values_for(runs[0].config).get(metric)
    if figure is None:
        return ""
    return f"the paper's {figure.system}, {figure.table}, is {figure.value}"


def mean_over(runs: Sequence[ScoredRun], metric: str, judgements: str) -> JsonObject | None:
    """Mean and interval of a run, or of the mean over several tasks' runs; None if a run has no
    value.
    """
    columns = []
    for run in runs:
        name = _metric_name(run, metric, judgements)
        measured = run.scores["metrics"].get(name, {})
        if measured.get("mean") is None:
            return None
        if len(runs) == 1:
            return {**measured, "name": name}
        columns.append([value for value in run.columns[name].values() if value is not None])
    # Over tasks each query counts once, as in every test.
    return estimate_mean(columns)._asdict()


def _metric_name(run: ScoredRun, metric: str, judgements: str) -> str:
    """Return the name in the run's scores of a metric by some judgements."""
    judged_by = judgements or leading_judgements(run)
    if judged_by == run.scores["judgements"] or is_pairwise(metric):
        return metric
    return f"{metric} [{judged_by}]"


def leading_judgements(run: ScoredRun) -> str:
    """The judgements that a mean over tasks takes: the paper's, whichever lead the run."""
    leading = str(run.scores["judgements"])
    names = {
        leading,
        *(name.partition(" [")[2].removesuffix("]") for name in run.columns),
    }
    return next((name for name in ("gold", "document") if name in names), leading)


def _mark_best(table: SystemFigures) -> None:
    for rows in (
        table.of_kind("ours"),
        table.of_kind("published"),
    ):
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
    """The paper's figures for a column, of every system; none for runs that they may not stand
    next to.
    """
    if not group.whole or not column.figure_task:
        return []
    key = (column.figure_task, column.metric, group.split)
    judged = ("", column.judgements)
    figures = [figure for figure in published.figures() if figure.judgements in judged]
    return [
        figure
        for figure in figures
        if (
            figure.task,
            figure.metric,
            figure.split,
        )
        == key
    ]


def _published_rows(group: Group, columns: Sequence[ResultColumn]) -> list[ResultRow]:
    """The papers' rows for these columns, by system; several of a system if the paper's tables
    contradict each other.
    """
    # system -> table -> index of the column -> figure
    by_system: dict[str, dict[str, _PaperRow]] = {}
    for index, column in enumerate(columns):
        for figure in figures_for(group, column):
            row = by_system.setdefault(figure.system, {}).setdefault(figure.table, {})
            row.setdefault(index, figure)
    rows = []
    for system in sorted(by_system):
        for members in _together(by_system[system].values()):
            rows.append(_published_row(group, system, members, len(columns)))
    return rows


def _published_row(
    group: Group, system: str, members: Sequence[_PaperRow], width: int
) -> ResultRow:
    paper = PAPERS.get(group.suite, group.suite)
    decimals = DECIMALS.get(group.suite, 3)
    cells: list[ResultCell | None] = [None] * width
    figures = []
    for member in members:
        for index, figure in member.items():
            figures.append(figure)
            source = f"{paper}, {figure.table}, row {figure.row}"
            form = f"{{:.{decimals}f}}"
            cells[index] = cells[index] or ResultCell(
                figure.value, form, source, error=figure.error, note=figure.note
            )
    numbers = sorted({int(figure.table.split()[-1]) for figure in figures})
    tables = "Tables" if len(numbers) > 1 else "Table"
    label = f"{system} ({paper}, {tables} {', '.join(map(str, numbers))})"
    # The maximum and rankings of pools with gold in them are no system's.
    ranked = not any("bound, not a" in figure.note for figure in figures)
    return ResultRow("published", label, cells, ranked=ranked)


def _together(rows: Collection[_PaperRow]) -> list[list[_PaperRow]]:
    """Merge rows of several tables into as few as possible: a row joins the row that it continues
    or repeats.
    """
    merged: list[list[_PaperRow]] = []
    for row in sorted(rows, key=len, reverse=True):
        for members in merged:
            if all(_agree(row, member) for member in members):
                members.append(row)
                break
        else:
            merged.append([row])
    return merged


def _agree(row: _PaperRow, member: _PaperRow) -> bool:
    return all(row[index].value == member[index].value for index in row.keys() & member.keys())


def explain_missing_published(group: Group, tables: Sequence[SystemFigures]) -> str:
    """The reason why a group has no published row; "" if it has some."""
    if any(table.of_kind("published") for table in tables):
        return ""
    reason = "the paper has none for this variant, split, part of the queries and these metrics"
    if group.data == "mini":
        reason = (
            "these are the bundled miniatures, which are invented. They stand beside runs over "
            f"the full release: sextant tasks fetch {group.tasks[0]}, then "
            "sextant run --data full"
        )
    elif group.data != "full":
        reason = "the data is a folder's, not the pinned release that sextant run --data full reads"
    return f"No published figures: {reason}"
