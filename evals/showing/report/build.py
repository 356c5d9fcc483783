"""A report made of runs: which tables and plots it has, and in which order."""

import shlex
from collections.abc import Collection, Sequence
from pathlib import Path

import environments
from agents import AGENTS
from evals.measuring.comparison import fill_metrics
from evals.measuring.metrics import check_metric
from evals.measuring.scored import find
from evals.showing.report.groups import Group, group_runs, readable, short
from evals.showing.report.losses import LOSSES, gap_table, losses_table, plot_gaps, plot_losses
from evals.showing.report.page import Absent, Report, Section, Words
from evals.showing.report.plots import SWEPT, Plot, plot_by_task, plot_conditions, plot_instructions, plot_sweep
from evals.showing.report.tables import Table, make_tables, sweep_table, sweep_tasks, why_no_published
from evals.showing.tables import model
from programs import FLOOR, PROGRAMS, RANKER, READER
from tools.console import number, plural
from tools.errors import DataError, UnknownName

SEARCHED = "congress"  # where no run says otherwise: the task of OBLIQ-Bench's figures


def build(paths: Sequence[Path], metrics: Sequence[str] = (), *, force: bool = False) -> Report:
    """The report of the runs in `paths` and below them.

    DataError where no run has scores; UnknownName for a metric that is none; UsageError where runs of one column are
    over different data, unless `force`.
    """
    for name in metrics:
        check_metric(name.partition(" [")[0])
    runs, others = find(paths)
    if not runs:
        raise DataError(f"none of the {len(others)} run folders has scores, e.g. {next(iter(others.values()))}")
    runs, problems = fill_metrics(runs, metrics)
    known = {name for run in runs for name in run.columns if "[" not in name}
    if strange := [name for name in metrics if name not in known]:
        raise problems[0] if problems else UnknownName("metric of these runs", strange[0], known)
    groups, forced = group_runs(runs, force=force)
    sections = [_section(group, metrics) for group in groups]
    left_out = {path.as_posix(): why for path, why in sorted(others.items())}
    reasons = Words("left-out", "Left out", ["run", "why"], [[*row] for row in left_out.items()], long={1})
    for stem, title, items in (
        ("gap", "Floor and ceiling", [*plot_gaps(groups, metrics), gap_table(groups, metrics)]),
        ("losses", LOSSES, [*map(plot_losses, groups), losses_table(groups)]),
        ("runs", "Runs", [_runs_table(groups)]),
        ("left-out", "Left out", [reasons if left_out else None]),
    ):
        if shown := [item for item in items if item]:
            sections.append(Section(stem, title, shown))
    drawn = {item.kind for section in sections for item in section.items if isinstance(item, Plot)}
    tasks = {task for group in groups for task in group.tasks}
    fewer = f"; {plural(len(others), 'folder')} left out, for the reasons given below" if others else ""
    summary = f"{plural(len(runs), 'run')} of {plural(len(tasks), 'task')}{fewer}. Made by python -m evals.report."
    warnings = [f"Forced: {problem}" for problem in forced]
    warnings += [str(problem) for problem in problems if isinstance(problem, DataError)]
    for run in runs:
        if run.errors:
            many = f"{len(run.errors)} of {len(run.query_ids)} queries failed and count 0"
            warnings.append(f"{run.name}: {many}, e.g. {next(iter(run.errors.values()))[:200]}")
    return Report(summary, warnings, sections, _absent(groups, drawn), len(runs), left_out)


def _section(group: Group, metrics: Sequence[str]) -> Section:
    tables = make_tables(group, metrics)
    headlines = {run.metric for run in group.runs}
    items: list[Table | Words | Plot | None] = []
    for table in sorted(tables, key=lambda table: table.title not in headlines):
        items += [table, plot_by_task(group, table) if table.title in (metrics or headlines) else None]
    items.append(plot_conditions(group))
    for name in metrics or ("",):
        for task in sweep_tasks(group):
            swept = sweep_table(group, task, name or SWEPT)
            items += [swept, plot_sweep(group, swept)] if swept.rows else []
        items.append(plot_instructions(group, name))
    notes = [f"Model: {model(group.lm)}"] if group.lm else []
    notes += dict.fromkeys(note for run in group.runs for note in run.scores.get("notes", []))
    notes += filter(None, [why_no_published(group, tables)])
    shown = [item for item in items if item]
    return Section(group.stem, group.title, shown, [note[:1].upper() + note[1:] for note in notes])


def _runs_table(groups: Sequence[Group]) -> Words:
    names = ["system", "task", "data", "split", "queries", "failed", "calls", "tokens", "list price", "run"]
    more = ["full task", "data fingerprint", "judgements", "retriever", "model", "code"]
    rows = []
    for group, run in [(one, run) for one in groups for run in one.runs]:
        config, scores, usage, many = run.config, run.scores, run.scores["usage"], run.scores["queries"]
        known = [short(config["task"]), config["data"], config["split"], str(many), str(scores["failed"])]
        cost = ["unknown"] * 3  # of an imported run
        if run.usage_known:
            price = None if usage["list_usd"] is None else usage["list_usd"] / many
            tokens = f"{(usage['input_tokens'] + usage['output_tokens']) / many:,.0f}"
            tokens += f" ({thinking / many:,.0f} thinking)" if (thinking := usage.get("reasoning_tokens")) else ""
            cost = [f"{usage['calls'] / many:,.1f}", tokens, number(price, "${:.5f}")]
        exact = [config["task"], config["data_fingerprint"], scores["judgements"]]
        exact += [str(config["retriever"].get("with", "")), config["lm"]["name"], str(config.get("code", ""))]
        rows.append([str(group.system(run)), *known, *cost, run.name, *exact])
    notes = ["calls, tokens and list price are those of a query on average"]
    return Words("runs", "Runs", names, rows, {1, 2, 3}, {9}, more, notes)


def _absent(groups: Sequence[Group], drawn: Collection[str]) -> list[Absent]:
    # --pool can be given where the corpus is searched; other protocols bring pools of their own.
    whole = [("birco", "corpus"), ("multiconir", "")]
    searching = [one for one in groups if one.suite in ("obliq", "crumb") or (one.suite, one.variant) in whole]
    pooled = searching[0] if searching else None
    over = pooled.tasks[0] if pooled else SEARCHED
    floor, ranker = (_command(pooled, program, over) for program in (FLOOR, RANKER))
    # A program that was run, on a task of CRUMB where there is one.
    crumb = next((one for one in groups if one.suite == "crumb"), groups[0])
    programs = [run.config["program"] for run in crumb.runs if not crumb.system(run).pool]
    program = next((name for name in programs if name != FLOOR and name in PROGRAMS | AGENTS), READER)
    instructed = _command(crumb, program, crumb.tasks[0] if crumb.suite in environments.SUITES else SEARCHED)
    known: dict[str, Absent] = {}  # by kind

    why = "OBLIQ-Bench's Figure 3: a ranker and the bare retriever over pools of at least two sizes."
    sizes = f'  {ranker} --pool "$kind:$size"\n  {floor} --pool "$kind:$size"'
    loops = f"for size in 50 100 200 400; do for kind in union oracle; do\n{sizes}\ndone; done"
    known["sweep"] = Absent("A metric by the size of the pool", why, loops)
    why = "OBLIQ-Bench's Figure 1: a search of the corpus, and a ranker over a pool with gold put in."
    known["gap"] = Absent("The best search against the ceiling", why, f"{floor}\n{ranker} --pool oracle:300")
    domains = " ".join(environments.suite("multiconir").tasks)
    own = next((group for group in groups if group.suite == "multiconir"), None)
    for variant, what, figure in (("complexity", "the number of conditions", 3), ("monotonicity", "conditions met", 4)):
        why = f"MultiConIR's Figure {figure}: its five domains as :{variant}."
        command = f"for task in {domains}; do\n  {_command(own, FLOOR, f'$task:{variant}')}\ndone"
        known[variant] = Absent(f"Win by {what}", why, command)
    why = "CRUMB's Figure 5: the same system with the task's own instruction, and with a generic one or none."
    command = f'for kind in task generic none; do\n  {instructed} --instruction "$kind"\ndone'
    known["instruction"] = Absent("What another instruction changes", why, command)
    return [one for kind, one in known.items() if kind not in drawn]


def _command(group: Group | None, program: str, task: str) -> str:
    words = ["--program", program, "--task", task]
    if group is not None:
        retriever = group.runs[0].config["retriever"]["name"]
        words += ["--data", group.data if group.data in ("mini", "full") else "FOLDER", "--split", group.split]
        words += ["--retriever", retriever] if retriever != "bm25" else []
        words += ["--lm", group.lm] if group.lm not in ("", "offline") else []
    # Names are data, and must not begin a line of their own.
    quoted = [f'"{word}"' if word.startswith("$task:") else shlex.quote(readable(word)) for word in words]
    return f"python -m evals.run {' '.join(quoted)}"
