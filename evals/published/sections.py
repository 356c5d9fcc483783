"""The numbered tables and figures of the papers, as the TOML files beside this one have them: a
section each.

docs/guide/reproduce.md says what the keys of a section and of a system mean.
"""

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from evals.published import figures
from tools.errors import UnknownName


@dataclass(frozen=True, slots=True)
class PaperCell:
    """One number of a table: what it is of, and the paper's value."""

    system: str  # empty for a statistic of the data
    task: str
    metric: str
    split: str
    judgements: str = ""  # as in Figure
    value: float | str | None = None  # None where the paper prints none
    error: float | None = None
    note: str = ""
    lacks: str = ""  # why there can be none of ours, whatever stands in


@dataclass(frozen=True, slots=True)
class PaperTable:
    """A numbered table or figure."""

    name: str  # obliq/table2
    about: Mapping[str, Any]  # as in the file
    systems: tuple[Mapping[str, Any], ...]
    cells: tuple[PaperCell, ...] = ()

    def system(self, cell: PaperCell) -> Mapping[str, Any]:
        """Return the system that makes a cell; UnknownName where there is none."""
        for one in self.systems:
            named = cell.system in (one["name"], *one.get("also", ()))
            if named and any(fnmatch(cell.task, task) for task in one.get("tasks", ["*"])):
                return one
        raise UnknownName(
            f"system of {self.name}", cell.system, {one["name"] for one in self.systems}
        )


@cache
def sections() -> dict[str, PaperTable]:
    """Every numbered table and figure by name, in the order of the files."""
    found = {}
    for path in sorted(Path(__file__).parent.glob("*.toml")):
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        shared = content.pop("system", [])
        for name, about in content.items():
            about["system"] = list(_by_size(about.get("system", ())))
            made = PaperTable(f"{path.stem}/{name}", about, (*about["system"], *shared))
            cells = (
                replace(cell, lacks=_lacks(cell, about)) for cell in _cells(path.stem, name, about)
            )
            found[made.name] = replace(made, cells=tuple(cells))
    return found


def find(name: str) -> PaperTable:
    """Return the table or figure called `name`; UnknownName where there is none."""
    if name not in sections():
        raise UnknownName("table or figure", name, sections())
    return sections()[name]


def _by_size(systems: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    for one in systems:
        for size in one.get("sizes", ()):
            yield {**one, "name": f"{one['name']} | {size}", "pool": one["pool"].format(size=size)}
        if "sizes" not in one:
            yield one


def _cells(suite: str, name: str, about: Mapping[str, Any]) -> Iterator[PaperCell]:
    tables = about.get("from", [name.replace("table", "Table ")])
    ours = about.get("metrics", {})
    split = about.get("split", "test")
    for one in figures():
        wanted = one.metric in about.get("only", [one.metric]) and one.task in about.get(
            "tasks", [one.task]
        )
        if one.task.startswith(f"{suite}/") and one.table in tables and wanted:
            values = (one.judgements, one.value, one.error, one.note)
            yield PaperCell(
                one.system, one.task, ours.get(one.metric, one.metric), one.split, *values
            )
    for system, by_task in {"": about.get("statistics", {}), **about.get("published", {})}.items():
        for task, values in by_task.items():
            yield from (
                PaperCell(system, task, metric, split, value=value)
                for metric, value in values.items()
            )
    grid = about.get("grid", {"tasks": ()})
    systems = grid.get("systems") or [one["name"] for one in about["system"]]
    for task, system, metric in product(grid["tasks"], systems, grid.get("metrics", ())):
        yield PaperCell(system, task, metric, split)


def _lacks(cell: PaperCell, about: Mapping[str, Any]) -> str:
    for row in about.get("lacking", ()):
        if all(getattr(cell, key) == value for key, value in row.items() if key != "why"):
            return str(row["why"])
    return ""
