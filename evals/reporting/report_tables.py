"""The tables of a group of runs: systems are rows, and the papers' rows stand apart from ours.

A group of one task has one table, with metrics as columns; a group of several has a table for each
metric that the suite's paper prints, with tasks as columns. For MultiConIR's protocols a table has the
conditions as columns (its Tables 1 and 13 to 20). Published rows are there only next to runs over
whole splits of the full release, for the same split and judgements. Whether a difference is
significant is for `sextant compare`.
"""

from collections.abc import Sequence

from sextant import environments
from sextant.evals.papers import published
from sextant.evals.reporting.run_groups import PAPERS, Group, file_slug, short_task_name
from sextant.evals.reporting.system_table import (
    ResultCell,
    ResultColumn,
    ResultRow,
    RowKind,
    SystemTable,
    order_by_score,
)
from sextant.evals.scoring.metrics import is_pairwise
from sextant.evals.scoring.scored_run import ScoredRun
from sextant.evals.scoring.statistics import estimate_mean
from sextant.evals.scoring.system_names import System
from sextant.tools.pool_kinds import WITH_RELEVANT
from sextant.tools.records import JsonObject

# Win(1) - Win(10), in Table 1 of MultiConIR.
DECLINE = "Decline"
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


def make_tables(group: Group, metrics: Sequence[str] = ()) -> list[SystemTable]:
    """Return the tables of a group: of `metrics`, or of those that its suite's paper prints."""
    names = _choose_metrics(group, metrics)
    tasks = group.tasks
    if len(tasks) == 1:
        columns = list[ResultColumn]()
        for name in names:
            columns += _task_columns(group, tasks[0], name, name)
        tables = [_make_table(group, group.stem, short_task_name(tasks[0]), columns)]
    else:
        tables = [_by_task(group, name) for name in names]
    if not metrics or any(name.startswith("Win") for name in metrics):
        # MultiConIR's: the mean over the domains of each protocol, and each domain of that of
        # complexity.
        laddered = []
        for task in tasks:
            if any("Win(1)" in run.columns for run in group.of_task(task)):
                laddered.append(task)
        if len(laddered) > 1:
            tables.append(_by_condition(group, laddered))
        if len(laddered) == 1 or group.variant == "complexity":
            tables += [_by_condition(group, [task]) for task in laddered]
    return [table for table in tables if table.rows]


def _choose_metrics(group: Group, only: Sequence[str]) -> list[str]:
    """Return the metrics that have a column by task, the headline first: those of the paper, or all
    without any.
    """
    columns = dict.fromkeys(name for run in group.runs for name in run.columns)
    names = [name for name in columns if "[" not in name and not name.startswith("Win(")]
    if only:
        return [name for name in names if name in only]
    headlines = {run.metric for run in group.runs}
    printed = {
        figure.metric for figure in published.figures() if figure.task.startswith(f"{group.suite}/")
    }
    chosen = [name for name in names if name in headlines | printed | {"Triplets"}] or names
    return sorted(chosen, key=lambda name: name not in headlines)


def _make_table(
    group: Group, stem: str, title: str, columns: list[ResultColumn], notes: Sequence[str] = ()
) -> SystemTable:
    """Return the table of a group's systems, and of the paper's, with these columns."""
    rows = _our_rows(group, columns)
    notes = [*notes, *(NOTES[name] for name in NOTES if name in {c.metric for c in columns})]
    if any(cell and cell.resampled_mean is not None for row in rows for cell in row.cells):
        notes.append(NOTES["BIRCO"])
    rows += _published_rows(group, columns)
    table = SystemTable(stem, title, columns, rows, notes)
    table.mark_best()
    return table


def _by_task(group: Group, metric: str) -> SystemTable:
    columns = list[ResultColumn]()
    for task in group.tasks:
        columns += _task_columns(group, task, metric, short_task_name(task))
    suite = environments.SUITES.get(group.suite) and environments.suite(group.suite)
    if suite and {short_task_name(task) for task in group.tasks} == set(suite.tasks):
        # As papers print it.
        columns.append(
            ResultColumn(tuple(group.tasks), metric, "", "mean of tasks", _name_mean_task(group))
        )
    return _make_table(group, f"{group.stem}-{file_slug(metric)}", metric, columns)


def _task_columns(group: Group, task: str, metric: str, head: str) -> list[ResultColumn]:
    """Return a task in a metric: by the judgements that lead, which are the paper's, then by other
    judgements, which stand in the heads if they are several.
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
        leads = name == names[0]
        label = f"{head} {name}" if len(names) > 1 else head
        figure_task = task if leads or name in ("gold", "pooled") else ""
        columns.append(
            ResultColumn(
                (task,),
                metric,
                name,
                label,
                figure_task,
                leads,
            )
        )
    return columns


def sweep_tasks(group: Group) -> list[str]:
    """Return the tasks that a system was run on over pools of a single kind and several sizes."""
    tasks = []
    for task in group.tasks:
        systems = {system for system in map(group.system, group.of_task(task)) if system.pool}
        if len(systems) > len({system.resized(0) for system in systems}):
            tasks.append(task)
    return tasks


def sweep_table(group: Group, task: str, metric: str) -> SystemTable:
    """Return a task's metric with sizes of pools as columns."""
    systems = {group.system(run): run for run in group.of_task(task) if group.system(run).pool}
    sizes = sorted({system.size for system in systems})
    judgements = _leading_judgements(group.of_task(task)[0])
    columns = [ResultColumn((task,), metric, judgements, str(size)) for size in sizes]
    rows = []
    for plain in dict.fromkeys(system.resized(0) for system in systems):
        cells = [
            _our_cell([systems.get(plain.resized(size))], column)
            for size, column in zip(sizes, columns, strict=True)
        ]
        if any(cells):
            rows.append(
                ResultRow(
                    _row_kind(plain),
                    str(plain),
                    cells,
                    plain,
                    ranked=False,
                )
            )
    name = short_task_name(task)
    return SystemTable(
        f"{group.stem}-{file_slug(name)}-pool-sweep-{file_slug(metric)}",
        f"{metric} by size of the pool, {name}",
        columns,
        rows,
        [
            "pools as retrieved are lower bounds, and dashed in the plot; those with every missing "
            "relevant document put in are upper bounds"
        ],
        is_ordered=True,
    )


def _by_condition(group: Group, tasks: Sequence[str]) -> SystemTable:
    """Return Win(1) to Win(10) over some domains.

    On a ladder Win(1) is its top, so the columns go from 10 to 1.
    """
    stem = f"{group.stem}-Win-by-conditions"
    domains = f"mean over {len(tasks)} domains"
    printed = ""
    if len(tasks) == 1:
        printed = tasks[0]
        domains = short_task_name(printed)
        stem += f"-{file_slug(domains)}"
    elif set(map(short_task_name, tasks)) == set(environments.suite("multiconir").tasks):
        printed = _name_mean_task(group)
    title = "Win by conditions in the query"
    notes = []
    labels = {k: str(k) for k in range(1, 11)}
    if group.variant in LADDERS:
        title = "Win by conditions met"
        notes.append(
            "columns: the document that meets so many of the query's ten conditions, over the one "
            "that meets one less"
        )
        labels = {k: f"{11 - k} over {10 - k}" for k in range(10, 0, -1)}
    columns = []
    for k, label in labels.items():
        columns.append(
            ResultColumn(
                tuple(tasks),
                f"Win({k})",
                "",
                label,
                printed,
            )
        )
    if group.variant == "complexity":
        columns.append(
            ResultColumn(
                tuple(tasks),
                DECLINE,
                "",
                DECLINE,
                printed,
                ranked=False,
            )
        )
    table = _make_table(group, stem, f"{title}, {domains}", columns, notes)
    table.is_ordered = True
    systems = {str(group.system(run)) for run in group.runs if run.config["task"] in tasks}
    if lacking := sorted(systems - {row.label for row in table.rows}):
        table.notes.append(
            f"not run in all of these domains, so not in the mean: {'; '.join(lacking)}"
        )
    return table


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
            kind = _row_kind(system)
            rows.append(
                ResultRow(
                    kind,
                    str(system),
                    cells,
                    system,
                    ranked=kind == "ours",
                )
            )
    return order_by_score(rows, columns)


def _row_kind(system: System) -> RowKind:
    if system.pool in WITH_RELEVANT:
        return "gold"
    return "union" if system.pool else "ours"


def _our_cell(runs: Sequence[ScoredRun | None], column: ResultColumn) -> ResultCell | None:
    finished = [run for run in runs if run is not None]
    if len(finished) < len(runs):
        return None
    measured = _mean_over(finished, column.metric, column.judgements)
    if measured is None:
        return None
    answers = sum(run.scores["queries"] for run in finished)
    resampled = measured.get("resampled") or {}
    note = ""
    if len(finished) == 1:
        published_values = published.published_values_for(finished[0].config)
        if figure := published_values.get(measured.get("name", "")):
            note = f"the paper's {figure.system}, {figure.table}, is {figure.value}"
    return ResultCell(
        measured["mean"],
        "{:z.4f}",
        ", ".join(run.name for run in finished),
        measured.get("low"),
        measured.get("high"),
        queries=answers,
        failed=sum(run.scores["failed"] for run in finished),
        answers=answers,
        resampled_mean=resampled.get("mean"),
        resampled_error=resampled.get("error"),
        note=note,
    )


def _mean_over(runs: Sequence[ScoredRun], metric: str, judgements: str = "") -> JsonObject | None:
    """Return mean and interval of a run, or of the mean over several tasks' runs; None if a run has
    no value.
    """
    if metric == DECLINE:
        first = _mean_over(runs, "Win(1)")
        last = _mean_over(runs, "Win(10)")
        return {"mean": first["mean"] - last["mean"]} if first and last else None
    columns = []
    for run in runs:
        judged_by = judgements or _leading_judgements(run)
        name = metric
        if judged_by != run.scores["judgements"] and not is_pairwise(metric):
            name = f"{metric} [{judged_by}]"
        measured = run.scores["metrics"].get(name, {})
        if measured.get("mean") is None:
            return None
        if len(runs) == 1:
            return {**measured, "name": name}
        columns.append([value for value in run.columns[name].values() if value is not None])
    # Over tasks each query counts once, as in every test.
    return estimate_mean(columns)._asdict()


def _leading_judgements(run: ScoredRun) -> str:
    """Return the judgements that a mean over tasks takes: the paper's, whichever lead the run."""
    names = [run.scores["judgements"]]
    names += [name.partition(" [")[2].removesuffix("]") for name in run.columns]
    return next((name for name in ("gold", "document") if name in names), names[0])


def _name_mean_task(group: Group) -> str:
    return f"{group.suite}/*" + (f":{group.variant}" if group.variant else "")


# Index of a column -> the figures in it, which are equal.
_PublishedFigures = dict[int, list[published.PaperFigure]]


def _published_rows(group: Group, columns: Sequence[ResultColumn]) -> list[ResultRow]:
    """Return the papers' rows for these columns, by system; several of a system if the paper's tables
    contradict each other. None for runs that they may not stand next to.
    """
    # (system, table) -> index of the column -> figure
    printed: dict[tuple[str, str], dict[int, published.PaperFigure]] = {}
    for index, column in enumerate(columns if group.whole else ()):
        key = (column.figure_task, column.metric, group.split)
        for figure in published.figures():
            is_alike = (figure.task, figure.metric, figure.split) == key
            if is_alike and figure.judgements in ("", column.judgements):
                printed.setdefault((figure.system, figure.table), {}).setdefault(index, figure)
    by_system: dict[str, list[_PublishedFigures]] = {}
    # A row of a table joins the row that it continues or repeats.
    for (system, _), figures in sorted(printed.items(), key=lambda item: -len(item[1])):
        merged = by_system.setdefault(system, [])
        for row in merged:
            shared = row.keys() & figures.keys()
            if all(row[index][0].value == figures[index].value for index in shared):
                break
        else:
            row = {}
            merged.append(row)
        for index, figure in figures.items():
            row.setdefault(index, []).append(figure)
    return [
        _published_row(group, system, row, len(columns))
        for system in sorted(by_system)
        for row in by_system[system]
    ]


def _published_row(group: Group, system: str, row: _PublishedFigures, width: int) -> ResultRow:
    paper = PAPERS.get(group.suite, group.suite)
    form = f"{{:.{DECIMALS.get(group.suite, 3)}f}}"
    cells: list[ResultCell | None] = [None] * width
    for index, (figure, *_) in row.items():
        source = f"{paper}, {figure.table}, row {figure.row}"
        cells[index] = ResultCell(
            figure.value,
            form,
            source,
            error=figure.error,
            note=figure.note,
        )
    figures = [figure for alike in row.values() for figure in alike]
    numbers = sorted({int(figure.table.split()[-1]) for figure in figures})
    tables = "Tables" if len(numbers) > 1 else "Table"
    label = f"{system} ({paper}, {tables} {', '.join(map(str, numbers))})"
    # The maximum and rankings of pools with gold in them are no system's.
    ranked = not any("bound, not a" in figure.note for figure in figures)
    return ResultRow("published", label, cells, ranked=ranked)


def explain_missing_published(group: Group, tables: Sequence[SystemTable]) -> str:
    """Return the reason why a group has no published row; "" if it has some."""
    if any(table.of_kind("published") for table in tables):
        return ""
    reason = "the paper has none for this variant, split, part of the queries and these metrics"
    if group.data != "full":
        reason = (
            "they stand beside runs over the full release, not over a folder's data or the bundled "
            f"miniatures, which are invented: sextant tasks fetch {group.tasks[0]}, then "
            "sextant run --data full"
        )
    return f"No published figures: {reason}"
