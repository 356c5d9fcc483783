"""What `evals.reproduce` prints: the list of tables and figures, and a table's cells beside
the paper's.
"""

from collections import Counter
from collections.abc import Mapping
from functools import cache
from typing import Any

import environments
from evals.papers.dataset_statistics import embed_pool_2d
from evals.papers.figures import save_figure
from evals.papers.tables import ReproducedTable, ReproductionSettings
from evals.published.sections import PaperTable, find, sections
from evals.running.candidate_pools import read as read_pool
from evals.studies.command_result import CommandResult
from evals.studies.run_cells import estimate_cells, explain, lay_out_ahead
from evals.studies.study_file import list_tasks
from evals.text_tables import TextBlock, TextTable, render_terminal
from tools import retrievers
from tools.errors import SextantError
from tools.models.model_spec import parse
from tools.models.secrets import get_secret
from tools.number_format import plural

MARKS = "* the highest of ours; = does not differ from it by a paired permutation test (p > .05)"


def reproduce_table(name: str | None, *, dry_run: bool, **conditions: Any) -> CommandResult:
    """Make the table called `name`, or the list of them; or, as a dry run, say what that takes."""
    if name is None:
        rows = [_describe(section) for section in sections().values()]
        return CommandResult({"sections": rows}, "".join(map(_list, rows)))
    if conditions["lm"]:
        parse(conditions["lm"])
    if conditions["retriever"]:
        retrievers.canonicalize(conditions["retriever"])
    table = ReproducedTable(find(name), ReproductionSettings(**conditions))
    if dry_run:
        found = estimate_cells(table.runs)[0] if table.runs else {}
        return CommandResult(
            found, render_terminal(lay_out_ahead(found) if found else ["it takes no run"])
        )
    found = {"name": name, "title": table.section.about["title"], "notes": list(table.warnings())}
    found["notes"] += table.section.about.get("notes", [])
    found["notes"] += [MARKS] * table.section.about.get("marked", False)
    found["notes"] += (
        [f"it cannot be made: {why}"] if (why := table.section.about.get("lacks")) else []
    )
    found["cells"] = list(table.cells())
    drawn = table.section.about.get("drawn", {})
    if drawn.get("kind") == "points":
        found["points"] = embed_pool_2d(
            table.load(found["cells"][0]["task"], found["cells"][0]["split"])
        )
    if found["cells"]:
        folder = table.conditions.runs / "studies" / name.replace("/", "-")
        found["files"] = list(map(str, save_figure(found, drawn, folder)))
    found["failed"], found["deviations"] = table.count_failed(), table.list_deviations()
    reasons, problem = explain(table.unfinished, len(found["cells"]))
    return CommandResult(
        found, render_terminal(list(_parts(found))), problem, found["failed"], reasons
    )


def _describe(section: PaperTable) -> dict[str, Any]:
    systems = [section.system(cell) if cell.system else {} for cell in section.cells]
    named = dict.fromkeys(cell.task for cell in section.cells if not cell.lacks)
    tasks = dict.fromkeys(task.partition(":")[0] for name in named for task in list_tasks(name))
    lacks = [
        cell.lacks or system.get("lacks")
        for cell, system in zip(section.cells, systems, strict=True)
    ]
    needs = [
        section.about.get("needs"),
        *(need for one in systems if "lacks" not in one for need in _list_needs(one)),
    ]
    return {
        "name": section.name,
        "title": section.about["title"],
        "cells": len(section.cells),
        "needs": {need: _why_not(need) for need in dict.fromkeys(filter(None, needs))},
        "data": {task: environments.fetch_marker(task).exists() for task in tasks},
        "price": section.about.get("price"),
        "lacks": dict(Counter(filter(None, lacks))),
        "why": section.about.get("lacks"),  # of all of it
    }


def _list_needs(system: Mapping[str, Any]) -> list[str]:
    """Return the model and the retrievers that a system has, those of its pool among them."""
    own = [system.get("retriever"), system.get("parameters", {}).get("ties"), system.get("lm")]
    pool = (
        read_pool(system["pool"], retrievers.canonicalize(own[0])).parts if "pool" in system else ()
    )
    return [*filter(None, own), *map(str, pool)]


@cache
def _why_not(need: str) -> str:
    """Return why a model or a retriever cannot be used here: no key, no weights; "" where it
    can.
    """
    provider, _, model = need.removeprefix("api:").partition("/")
    if model and ":" not in provider:
        key = f"{provider.upper()}_API_KEY"  # without LiteLLM, whose import takes seconds
        return "" if get_secret(key) else f"${key} is not set"
    try:
        retrievers.validate(retrievers.canonicalize(need))
    except SextantError as problem:
        return str(problem)
    return ""


def _list(row: Mapping[str, Any]) -> str:
    lines = [f"{row['name']:<18} {row['title']} ({plural(row['cells'], 'cell')})"]
    for what, there in (("it needs", True), ("not here:", False)):
        needs = [need for need, why in row["needs"].items() if there == (not why)]
        lines += [f"{what} {', '.join(needs)}"] if needs else []
    missing = [task for task, there in row["data"].items() if not there]
    lines += [f"data to fetch: {', '.join(missing)}"] if missing else []
    lines += [f"it cost the authors {row['price']}"] if row["price"] else []
    lines += [f"{plural(many, 'cell')} cannot be run: {why}" for why, many in row["lacks"].items()]
    lines += [f"it cannot be made: {row['why']}"] if row["why"] else []
    return f"\n{' ' * 19}".join(lines) + "\n"


def _parts(found: Mapping[str, Any]) -> list[TextBlock]:
    parts = list[TextBlock]()
    remarks = dict[str, int]()
    for task in dict.fromkeys(cell["task"] for cell in found["cells"]):
        rows = list[list[str]]()
        before = ""
        for cell in (one for one in found["cells"] if one["task"] == task):
            judged = f" [{cell['judgements']}]" if cell["judgements"] else ""
            told = filter(None, (cell["remark"], cell["note"]))
            said = [f"({remarks.setdefault(text, len(remarks) + 1)})" for text in told]
            ours = f"{_number(cell['ours'])} {cell['mark']}".rstrip()
            numbers = [_number(cell["published"]), ours, _number(cell["difference"], sign="+")]
            name = "" if cell["system"] == before else cell["system"]
            before = cell["system"]
            rows.append([name, cell["metric"] + judged, *numbers, " ".join(said)])
        parts.append(
            TextTable(
                task,
                ["system", "metric", "published", "ours", "difference", ""],
                rows,
                names=(0, 1, 5),
            )
        )
    made = sum(cell["ours"] is not None for cell in found["cells"])
    last = f"{plural(len(found['cells']), 'cell')}, {made} of them made"
    remarked = [f"({number}) {text}" for text, number in remarks.items()]
    files = [f"written: {', '.join(found['files'])}"] if "files" in found else []
    return [
        f"{found['name']}: {found['title']}",
        *found["notes"],
        *parts,
        *remarked,
        *found["deviations"],
        last,
        *files,
    ]


def _number(value: float | str | None, sign: str = "") -> str:
    if not isinstance(value, int | float):
        return value or "-"
    return f"{value:{sign},.0f}" if abs(value) >= 1000 else f"{value:{sign}.3f}"
