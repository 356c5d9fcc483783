"""Many runs as one report: `python -m evals.report RUN [RUN ...] --out report/`. Nothing is run.

Tables as in the four papers, for the same tasks and metrics, with the published rows where ours are comparable with
them; plots in the form of the papers' figures; floor and ceiling of each program. A page without script, Markdown, a
CSV file for each table and an SVG file for each plot (docs/decisions/reports.md). Run folders are all that is read.

Left out: tests of differences (`evals.compare`), and what happened to a query (`evals.view`).
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tools.console.command import Parser, put_out, run_and_leave
from tools.console.wording import number, plural
from tools.errors import DataError, UnknownName

if TYPE_CHECKING:
    from evals.measuring.bounds import Bounds, Kind
    from evals.measuring.scored import Run
    from evals.showing.report.groups import Group
    from evals.showing.report.page import Report, Section, Words
    from evals.showing.report.plots import Plot


def made(paths: Sequence[Path], metrics: Sequence[str] = (), *, force: bool = False) -> "Report":
    """The report of the runs in `paths` and below them.

    DataError where none has scores; UsageError where runs of one column are over different data, unless `force`.
    """
    from evals.measuring import scored
    from evals.showing.report import losses
    from evals.showing.report.absent import proposals
    from evals.showing.report.groups import grouped
    from evals.showing.report.page import Report, Words
    from evals.showing.report.plots import Plot

    runs, others = scored.find(paths)
    if not runs:
        raise DataError(f"none of the {len(others)} run folders has scores, e.g. {next(iter(others.values()))}")
    known = {name for run in runs for name in run.columns if "[" not in name}
    if strange := [name for name in metrics if name not in known]:
        raise UnknownName("metric of these runs", strange[0], known)
    groups, forced = grouped(runs, force=force)
    gap, gap_plots = _gap(groups, runs, metrics)
    rows = [[path.as_posix(), why] for path, why in sorted(others.items())]
    left_out = Words("left-out", "Left out", ["run", "why"], rows, long={1}) if rows else None
    sections = [_section(group, metrics) for group in groups]
    drawn = {item.kind for section in sections for item in section.items if isinstance(item, Plot)}
    return Report(
        "Sextant report",
        _summary(groups, len(runs), len(others)),
        [f"Forced: {problem}" for problem in forced] + _failures(runs),
        sections,
        gap,
        gap_plots,
        losses.table(groups),
        [plot for group in groups if (plot := losses.bars(group))],
        _runs_table(groups),
        left_out,
        proposals(groups, drawn | {plot.kind for plot in gap_plots}),
    )


def _summary(groups: Sequence["Group"], runs: int, others: int) -> str:
    tasks = len({task for group in groups for task in group.tasks})
    left_out = f"; {others} folders left out, for the reasons given below" if others else ""
    return f"{plural(runs, 'run')} of {plural(tasks, 'task')}{left_out}. Made by python -m evals.report."


def _failures(runs: Sequence["Run"]) -> list[str]:
    return [
        f"{run.name}: {len(run.errors)} of {len(run.query_ids)} queries failed and count 0, e.g. "
        f"{next(iter(run.errors.values()))[:200]}"
        for run in runs
        if run.errors
    ]


def _section(group: "Group", metrics: Sequence[str]) -> "Section":
    """A group's tables and plots: the plot by task after the table of the headline metric."""
    from evals.showing.report import plots, tables
    from evals.showing.report.page import Section

    made = tables.tables(group, metrics)
    headlines = {run.metric for run in group.runs}
    items: list[tables.Table | Plot] = []
    for table in sorted(made, key=lambda table: table.title not in headlines):
        items.append(table)
        if table.title in (metrics or headlines):
            items += filter(None, [plots.by_task(group, table)])
    items += filter(None, [plots.conditions(group)])
    for name in metrics or ("",):
        for task in tables.sweep_tasks(group):
            swept = tables.sweep(group, task, name or plots.SWEPT)
            items += [swept, plots.sweep(group, swept)] if swept.rows else []
        items += filter(None, [plots.instructions(group, name)])
    notes = [f"Model: {'offline, no language model' if group.lm == 'offline' else group.lm}"] if group.lm else []
    notes += dict.fromkeys(note for run in group.runs for note in run.scores.get("notes", []))
    notes += filter(None, [tables.why_no_published(group, made)])
    return Section(group.stem, group.title, [note[:1].upper() + note[1:] for note in notes], items)


# Floor and ceiling


def _gap(
    groups: Sequence["Group"], runs: Sequence["Run"], metrics: Sequence[str]
) -> tuple["Words | None", list["Plot"]]:
    """(the table of floors and ceilings, the plot of each kind of data)."""
    from evals.measuring import bounds
    from evals.showing.report import plots
    from evals.showing.report.page import Words

    rows = []
    for group in groups:
        for name in metrics or ("",):
            known = [gap for gap in bounds.between(group.runs, name) if not name or gap.metric == name]
            rows += [_gap_row(group, gap) for gap in known if {"best", "ceiling"} & gap.found.keys()]
    apart: dict[tuple[str, str, str], list[Group]] = {}
    for group in groups:
        apart.setdefault((group.data, group.split, group.asked), []).append(group)
    drawn = [plots.gap(members, name) for members in apart.values() for name in metrics or ("",)]
    names = ["program", "task", "metric", "floor", "lower bound", "program's", "ceiling", "gain", "missing", "closed"]
    names.append("bounds by other systems")
    notes = [
        "floor: its bare retriever; lower bound: the same system over a pool as retrieved; ceiling: over one with gold "
        "in it; best bare retriever: of all that were run",
        "gain, missing and closed, the share of ceiling - floor, are paired by query, with 95 % bootstrap intervals",
        "closed has none where the ceiling is not clearly above the floor",
    ]
    more = ["task's name", "floor is", "best bare", "best bare is", "lower bound is", "ceiling is", "run"]
    short_words = {1, 2}
    if len(used := {row[2] for row in rows}) == 1:  # then it is said once
        notes.insert(0, f"by {used.pop()}")
        rows, names, more = [[*row[:2], *row[3:], row[2]] for row in rows], names[:2] + names[3:], [*more, "metric"]
        short_words = {1}
    table = Words("gap", "Floor and ceiling", names, rows, short_words, {len(names) - 1}, more, notes) if rows else None
    return table, [plot for plot in drawn if plot]


def _gap_row(group: "Group", gap: "Bounds") -> list[str]:
    from evals.showing.report.groups import short

    paired = ["" if one is None else _with_interval(*one[:3], "+") for one in (gap.gained, gap.missing)]
    closed = "" if gap.closed is None else _percent(*gap.closed)
    run = gap.run
    assert run is not None
    task = run.config["task"]
    kinds: tuple[Kind | None, ...] = ("floor", "union", None, "ceiling")
    return [
        str(group.system(run)),
        short(task),
        gap.metric,
        *(_figure(gap.mean(kind)) if kind is None or gap.is_own(kind) else "" for kind in kinds),
        *paired,
        closed,
        gap.others,
        task,
        gap.describe("floor"),
        _figure(gap.mean("best")),
        gap.describe("best"),
        gap.describe("union"),
        gap.describe("ceiling"),
        run.name,
    ]


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value + 0.0:.4f}"


def _with_interval(value: float, low: float | None, high: float | None, sign: str = "-") -> str:
    number = f"{round(value, 4) + 0.0:{sign}.4f}"
    return number if low is None or high is None else f"{number} ({low:.3f} to {high:.3f})"


def _percent(value: float, low: float | None, high: float | None) -> str:
    number = f"{value:.0%}"
    return number if low is None or high is None else f"{number} ({low:.0%} to {high:.0%})"


# Runs


def _runs_table(groups: Sequence["Group"]) -> "Words":
    from evals.showing.report.groups import short
    from evals.showing.report.page import Words

    names = ["system", "task", "data", "split", "queries", "failed", "calls", "tokens", "list price", "run"]
    more = ["full task", "data fingerprint", "judgements", "retriever", "model", "code"]
    rows = []
    for group in groups:
        for run in group.runs:
            config, scores = run.config, run.scores
            known = [short(config["task"]), config["data"], config["split"], str(scores["queries"])]
            exact = [config["task"], config["data_fingerprint"], scores["judgements"]]
            exact += [str(config["retriever"].get("with", "")), config["lm"]["name"], str(config.get("code", ""))]
            rows.append([str(group.system(run)), *known, str(scores["failed"]), *_cost(run), run.name, *exact])
    notes = ["calls, tokens and list price are those of a query on average"]
    return Words("runs", "Runs", names, rows, {1, 2, 3}, {9}, more, notes)


def _cost(run: "Run") -> list[str]:
    """Calls, tokens and list price of a query; of an imported run nobody may know."""
    if not run.usage_known:
        return ["unknown"] * 3
    usage, many = run.scores["usage"], run.scores["queries"]
    price = None if usage["list_usd"] is None else usage["list_usd"] / many
    tokens = usage["input_tokens"] + usage["output_tokens"]
    return [
        f"{usage['calls'] / many:,.1f}",
        f"{tokens / many:,.0f}",
        number(price, "${:.5f}"),
    ]


def parser() -> Parser:
    """The command line."""
    made = Parser(prog="python -m evals.report", description="Tables and plots of many runs; nothing is run.")
    add = made.add_argument
    add("runs", type=Path, nargs="+", metavar="RUN", help="run folders, or folders that have some in them")
    add("--out", type=Path, required=True, metavar="DIR", help="where the report goes; an earlier one is replaced")
    add("--metric", action="append", default=[], metavar="NAME", help="only this metric, tables and plots; repeatable")
    add("--force", action="store_true", help="take runs over different data into one column, and say so")
    add("--json", action="store_true", help="print one JSON object and nothing else")
    return made


def command(arguments: argparse.Namespace) -> int:
    """Make the report, write it, say where it is."""
    from evals.showing.report import page
    from evals.showing.report.groups import readable

    page.check(arguments.out)
    report = made(arguments.runs, list(dict.fromkeys(arguments.metric)), force=arguments.force)
    files = page.names(page.write(report, arguments.out), arguments.out)
    if arguments.json:
        result = {
            "report": str(arguments.out / "index.html"),
            "files": files,
            "runs": len(report.runs.rows),
            "left_out": {row[0]: row[1] for row in report.left_out.rows} if report.left_out else {},
            "notes": report.warnings,
            "absent": [one.title for one in report.absent],
        }
        put_out(json.dumps(result) + "\n")
        return 0
    lines = [report.summary, *report.warnings]
    lines += [f"left out: {row[1]}" for row in report.left_out.rows] if report.left_out else []
    lines += [f"{plural(len(report.tables), 'table')}, {plural(len(report.plots), 'plot')}: {arguments.out}/index.html"]
    put_out("".join(f"{readable(line)}\n" for line in lines))
    return 0


if __name__ == "__main__":
    run_and_leave(parser(), command)
