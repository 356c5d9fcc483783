"""The numbered tables and figures of the papers, as the TOML files beside this one have them: a
section each.

docs/guide/study.md says what the keys of a section and of a system mean.
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
        for system in self.systems:
            named = cell.system in (system["name"], *system.get("also", ()))
            if named and any(fnmatch(cell.task, task) for task in system.get("tasks", ["*"])):
                return system
        raise UnknownName(
            f"system of {self.name}", cell.system, {system["name"] for system in self.systems}
        )


@cache
def sections() -> dict[str, PaperTable]:
    """Every numbered table and figure by name, in the order of the files."""
    tables = {}
    for path in sorted(Path(__file__).parent.glob("*.toml")):
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        shared = content.pop("system", [])
        for name, settings in content.items():
            settings["system"] = list(_by_size(settings.get("system", ())))
            table = PaperTable(f"{path.stem}/{name}", settings, (*settings["system"], *shared))
            cells = (
                replace(cell, lacks=_lacks(cell, settings))
                for cell in _cells(path.stem, name, settings)
            )
            tables[table.name] = replace(table, cells=tuple(cells))
    return tables


def find(name: str) -> PaperTable:
    """Return the table or figure called `name`; UnknownName where there is none."""
    if name not in sections():
        raise UnknownName("table or figure", name, sections())
    return sections()[name]


def _by_size(systems: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    for system in systems:
        for size in system.get("sizes", ()):
            yield {
                **system,
                "name": f"{system['name']} | {size}",
                "pool": system["pool"].format(size=size),
            }
        if "sizes" not in system:
            yield system


def _cells(suite: str, name: str, settings: Mapping[str, Any]) -> Iterator[PaperCell]:
    tables = settings.get("from", [name.replace("table", "Table ")])
    ours = settings.get("metrics", {})
    split = settings.get("split", "test")
    for figure in figures():
        wanted = figure.metric in settings.get(
            "only", [figure.metric]
        ) and figure.task in settings.get("tasks", [figure.task])
        if figure.task.startswith(f"{suite}/") and figure.table in tables and wanted:
            values = (figure.judgements, figure.value, figure.error, figure.note)
            yield PaperCell(
                figure.system,
                figure.task,
                ours.get(figure.metric, figure.metric),
                figure.split,
                *values,
            )
    for system, by_task in {
        "": settings.get("statistics", {}),
        **settings.get("published", {}),
    }.items():
        for task, values in by_task.items():
            yield from (
                PaperCell(system, task, metric, split, value=value)
                for metric, value in values.items()
            )
    grid = settings.get("grid", {"tasks": ()})
    systems = grid.get("systems") or [system["name"] for system in settings["system"]]
    for task, system, metric in product(grid["tasks"], systems, grid.get("metrics", ())):
        yield PaperCell(system, task, metric, split)


def _lacks(cell: PaperCell, settings: Mapping[str, Any]) -> str:
    for row in settings.get("lacking", ()):
        if all(getattr(cell, key) == value for key, value in row.items() if key != "why"):
            return str(row["why"])
    return ""
