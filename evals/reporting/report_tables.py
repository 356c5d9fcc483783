"""The tables of a group of runs: systems are rows, and the papers' rows stand apart from ours.

A group of one task has one table, with metrics as columns; a group of several has a table for each
metric, with tasks as columns. For MultiConIR's protocols a table has the
conditions as columns (its Tables 1 and 13 to 20), and for pools of several sizes the sizes. Published
rows, one for each system and table of a paper, are there only next to runs over whole splits of the
full release, for the same split and judgements. Whether a difference is significant is for
`sextant compare`.
"""

from collections import defaultdict
from collections.abc import Sequence

from sextant.evals.papers import published
from sextant.evals.reporting.run_groups import (
    PAPERS,
    Group,
    file_slug,
    list_tasks,
    short_task_name,
)
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

# The metric of OBLIQ-Bench's Figure 3.
SWEPT = "R@10"
# Win(1) - Win(10), in Table 1 of MultiConIR.
DECLINE = "Decline"
# Win(k) is the k-th rung of a ladder of documents.
LADDERS = ("monotonicity", "format", "length512", "length1024")
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
# Is said of a group without a row of a paper.
NO_PUBLISHED = (
    "No published figures: a paper's figures stand beside runs over all queries of its split of the "
    "full release, not beside part of the queries, a folder's data or the bundled miniatures, which "
    "are invented"
)


def make_tables(group: Group, metrics: Sequence[str] = ()) -> list[SystemTable]:
    """Return the tables of a group: of `metrics`, or of all."""
    tasks = group.tasks
    headlines = {run.metric for run in group.runs}
    known = {name: None for run in group.runs for name in run.columns if "[" not in name}
    names = [name for name in known if name in (metrics or known) and "Win(" not in name]
    # The headline is first.
    names.sort(key=lambda name: name not in headlines)
    if len(tasks) == 1:
        by_metric = [column for name in names for column in _columns(group, tasks[0], name, name)]
        tables = [_make_table(group, group.stem, short_task_name(tasks[0]), by_metric)]
    else:
        tables = [_by_task(group, name) for name in names]
    if not metrics or any(name.startswith("Win") for name in metrics):
        # MultiConIR's: each domain, and their mean.
        laddered = list(
            dict.fromkeys(run.config["task"] for run in group.runs if "Win(1)" in run.columns)
        )
        tables += [_by_condition(group, [task]) for task in laddered]
        if len(laddered) > 1:
            tables.append(_by_condition(group, laddered))
    for name in metrics or (SWEPT,):
        tables += [_by_pool_size(group, task, name) for task in tasks]
    return [table for table in tables if table.columns]


def _make_table(
    group: Group,
    stem: str,
    title: str,
    columns: list[ResultColumn],
    notes: Sequence[str] = (),
    *,
    is_ordered: bool = False,
) -> SystemTable:
    """Return the table of a group's systems, and of the paper's, with these columns."""
    rows = order_by_score(_our_rows(group, columns), columns)
    notes = [*notes, *(NOTES[name] for name in NOTES if name in {c.metric for c in columns})]
    if any(cell and cell.resampled_mean is not None for row in rows for cell in row.cells):
        notes.append(NOTES["BIRCO"])
    rows += _published_rows(group, columns)
    table = SystemTable(stem, title, columns, rows, notes, is_ordered)
    table.mark_best()
    return table


def _by_task(group: Group, metric: str) -> SystemTable:
    columns = list[ResultColumn]()
    for task in group.tasks:
        columns += _columns(group, task, metric, short_task_name(task))
    if _has_all_tasks(group, group.tasks):
        # As papers print it.
        columns.append(
            ResultColumn(tuple(group.tasks), metric, "", "mean of tasks", _name_mean_task(group))
        )
    return _make_table(group, f"{group.stem}-{file_slug(metric)}", metric, columns)


def _has_all_tasks(group: Group, tasks: Sequence[str]) -> bool:
    return set(map(short_task_name, tasks)) == set(list_tasks(group.suite))


def _name_mean_task(group: Group) -> str:
    return f"{group.suite}/*" + (f":{group.variant}" if group.variant else "")


def _columns(group: Group, task: str, metric: str, head: str) -> list[ResultColumn]:
    """Return a task in a metric: by the judgements that lead, which are the paper's, then by other
    judgements, which stand in the heads if they are several.
    """
    judged_by = set()
    for run in group.of_task(task):
        for name in run.columns:
            plain, _, suffix = name.partition(" [")
            if plain == metric:
                judged_by.add(suffix.removesuffix("]") or run.scores["judgements"])
    names = sorted(judged_by, key=lambda name: (name not in ("gold", "document"), name))
    if is_pairwise(metric):
        # Comparisons depend on no judgements.
        names = names[:1]
    columns = []
    for name in names:
        leads = name == names[0]
        label = f"{head} {name}" if len(names) > 1 else head
        figure_task = task if leads or name in ("gold", "pooled") else ""
        columns.append(ResultColumn((task,), metric, name, label, figure_task, leads))
    return columns


def _by_pool_size(group: Group, task: str, metric: str) -> SystemTable:
    """Return a task's metric with sizes of pools as columns; none if no system has several sizes."""
    systems = {group.system(run) for run in group.of_task(task) if run.pool}
    sizes = sorted({system.size for system in systems})
    if len(systems) == len({system.resized(0) for system in systems}):
        sizes = []
    judgements = _leading_judgements(group.of_task(task)[0])
    columns = [
        ResultColumn((task,), metric, judgements, str(size), ranked=False, size=size)
        for size in sizes
    ]
    name = short_task_name(task)
    note = (
        "pools as retrieved are lower bounds, and dashed in the plot; those with every missing "
        "relevant document put in are upper bounds"
    )
    stem = f"{group.stem}-{file_slug(name)}-pool-sweep-{file_slug(metric)}"
    title = f"{metric} by size of the pool, {name}"
    return _make_table(group, stem, title, columns, [note], is_ordered=True)


def _by_condition(group: Group, tasks: Sequence[str]) -> SystemTable:
    """Return Win(1) to Win(10) over some domains; on a ladder Win(1) is its top."""
    stem = f"{group.stem}-Win-by-conditions"
    if len(tasks) == 1:
        printed = tasks[0]
        domains = short_task_name(printed)
        stem += f"-{file_slug(domains)}"
    else:
        printed = _name_mean_task(group) if _has_all_tasks(group, tasks) else ""
        domains = f"mean over {len(tasks)} domains"
    notes = ["a system that was not run in all of these domains has an empty row"]
    if group.variant in LADDERS:
        notes.append(
            "column k: the document that meets 11 - k of the query's ten conditions, over the one "
            "that meets one less"
        )
    columns = [ResultColumn(tuple(tasks), f"Win({k})", "", str(k), printed) for k in range(1, 11)]
    if group.variant == "complexity":
        columns.append(ResultColumn(tuple(tasks), DECLINE, "", DECLINE, printed, ranked=False))
    title = f"Win by conditions in the query, {domains}"
    return _make_table(group, stem, title, columns, notes, is_ordered=True)


def _our_rows(group: Group, columns: Sequence[ResultColumn]) -> list[ResultRow]:
    """Return a row for each system that was run on a task of the columns, over pools of the columns'
    sizes if they have sizes.
    """
    swept = any(column.size for column in columns)
    tasks = {task for column in columns for task in column.tasks}
    by_system: dict[System, dict[tuple[str, int], ScoredRun]] = defaultdict(dict)
    for run in group.runs:
        system = group.system(run)
        if run.config["task"] in tasks and (system.pool or not swept):
            size = system.size if swept else 0
            by_system[system.resized(0) if swept else system][run.config["task"], size] = run
    rows = []
    for system, runs in by_system.items():
        cells = []
        for column in columns:
            cells.append(
                _our_cell([runs.get((task, column.size)) for task in column.tasks], column)
            )
        kind: RowKind = "union" if system.pool else "ours"
        if system.pool in WITH_RELEVANT:
            kind = "gold"
        rows.append(ResultRow(kind, str(system), cells, system, ranked=kind == "ours"))
    return rows


def _our_cell(runs: Sequence[ScoredRun | None], column: ResultColumn) -> ResultCell | None:
    finished = [run for run in runs if run is not None]
    measured = _mean_over(finished, column.metric, column.judgements)
    if len(finished) < len(runs) or measured is None:
        return None
    answers = sum(run.scores["queries"] for run in finished)
    resampled = measured.get("resampled") or {}
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
            return dict(measured)
        columns.append([value for value in run.columns[name].values() if value is not None])
    # Over tasks each query counts once, as in every test.
    return estimate_mean(columns)._asdict() if columns else None


def _leading_judgements(run: ScoredRun) -> str:
    """Return the judgements that a mean over tasks takes: the paper's, whichever lead the run."""
    names = [run.scores["judgements"]]
    names += [name.partition(" [")[2].removesuffix("]") for name in run.columns]
    return next((name for name in ("gold", "document") if name in names), names[0])


def _published_rows(group: Group, columns: Sequence[ResultColumn]) -> list[ResultRow]:
    """Return the papers' rows for these columns, one for each system and table; none for runs that
    they may not stand next to.
    """
    paper = PAPERS.get(group.suite, group.suite)
    form = f"{{:.{DECIMALS.get(group.suite, 3)}f}}"
    rows: dict[str, ResultRow] = {}
    for index, column in enumerate(columns if group.whole else ()):
        key = (column.figure_task, column.metric, group.split)
        for figure in published.figures():
            is_alike = (figure.task, figure.metric, figure.split) == key
            if is_alike and figure.judgements in ("", column.judgements):
                label = f"{figure.system} ({paper}, {figure.table})"
                empty = ResultRow("published", label, [None] * len(columns))
                row = rows.setdefault(label, empty)
                source = f"{paper}, {figure.table}, row {figure.row}"
                cell = ResultCell(figure.value, form, source, error=figure.error, note=figure.note)
                row.cells[index] = row.cells[index] or cell
                # The maximum and rankings of pools with gold in them are no system's.
                row.ranked = row.ranked and "bound, not a" not in figure.note
    return [rows[label] for label in sorted(rows)]
