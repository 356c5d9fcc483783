"""The numbered tables and figures of the papers, as the TOML files of this folder have them: a
section each.

docs/guide/study.md explains the keys of a section and of a system.
"""

import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path

from sextant.environments import find_paper_instruction
from sextant.evals.papers.published import figures
from sextant.tools.errors import UnknownName, UsageError
from sextant.tools.records import JsonMapping


@dataclass(frozen=True, slots=True)
class PaperCell:
    """A number of a table: its system, task and metric, and the paper's value."""

    # "" for a statistic of the data.
    system: str
    task: str
    metric: str
    split: str
    # As in PaperFigure.
    judgements: str = ""
    # None if the paper prints none.
    value: float | str | None = None
    error: float | None = None
    note: str = ""
    # The reason why there can be no value of ours, whatever stands in.
    lacks: str = ""


@dataclass(frozen=True, slots=True)
class PaperTable:
    """A numbered table or figure."""

    # For example obliq/table2.
    name: str
    # Its section of the file.
    about: JsonMapping
    systems: tuple[JsonMapping, ...]
    cells: tuple[PaperCell, ...] = ()

    def runs_of(self, cell: PaperCell) -> list[JsonMapping]:
        """Return the systems whose runs a cell takes: one, or those whose mean it is of."""
        system = self.system(cell)
        names = system.get("mean_of", ())
        if not names:
            return [system]
        return [self.system(replace(cell, system=name)) for name in names]

    def system(self, cell: PaperCell) -> JsonMapping:
        """Return the system that makes a cell; UnknownName if there is none."""
        for system in self.systems:
            is_named = cell.system in (system["name"], *system.get("also", ()))
            if is_named and cell.task in system.get("tasks", [cell.task]):
                return system
        raise UnknownName(
            f"system of {self.name}", cell.system, {system["name"] for system in self.systems}
        )


@cache
def sections() -> dict[str, PaperTable]:
    """The tables and figures of the files by name, in their order."""
    tables = {}
    for path in sorted(Path(__file__).parent.glob("*.toml")):
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        shared = content.pop("system", [])
        shared += [
            {**system, **variant, "name": f"{system['name']} | {variant['name']}"}
            for variant in content.pop("variant", ())
            for system in shared
            if system["name"] in variant.get("of", [system["name"]])
        ]
        for name, settings in content.items():
            settings["system"] = list(_by_size(settings.get("system", ())))
            cells = []
            for cell in _cells(path.stem, name, settings):
                for row in settings.get("lacking", ()):
                    # An explanation, and the command that makes the cell.
                    keys = row.keys() - {"why", "make"}
                    if not cell.lacks and all(getattr(cell, key) == row[key] for key in keys):
                        cell = replace(cell, lacks=row["why"])
                cells.append(cell)
            systems = (*settings["system"], *shared)
            table = PaperTable(
                f"{path.stem}/{name}",
                settings,
                systems,
                tuple(cells),
            )
            tables[table.name] = table
    return tables


def find(name: str) -> PaperTable:
    """Return the table or figure called `name`; UnknownName if there is none."""
    if name not in sections():
        raise UnknownName("table or figure", name, sections())
    return sections()[name]


def _by_size(systems: Iterable[JsonMapping]) -> Iterator[JsonMapping]:
    for system in systems:
        for size in system.get("sizes", ()):
            yield {
                **system,
                "name": f"{system['name']} | {size}",
                "pool": system["pool"].format(size=size),
            }
        if "sizes" not in system:
            yield system


def _cells(suite: str, name: str, settings: JsonMapping) -> Iterator[PaperCell]:
    yield from _figure_cells(suite, name, settings)
    split = settings.get("split", "test")
    by_system = {"": settings.get("statistics", {}), **settings.get("published", {})}
    printed = set()
    for system, by_task in by_system.items():
        for task, values in by_task.items():
            for metric, value in values.items():
                printed.add((system, task, metric))
                yield PaperCell(system, task, metric, split, value=value)
    for cell in _grid_cells(settings, settings.get("grid", {}).get("tasks", ())):
        if (cell.system, cell.task, cell.metric) not in printed:
            yield cell


def _grid_cells(settings: JsonMapping, tasks: Iterable[str]) -> Iterator[PaperCell]:
    """Yield a cell for each of these tasks, each system and each metric of the section's grid."""
    grid = settings.get("grid", {})
    systems = grid.get("systems") or [system["name"] for system in settings["system"]]
    metrics = grid.get("metrics", ())
    split = settings.get("split", "test")
    for task, system, metric in product(tasks, systems, metrics):
        value = find_paper_instruction(task) if metric == "instruction" else None
        yield PaperCell(system, task, metric, split, value=value)


def add_tasks(table: PaperTable, tasks: Iterable[str]) -> PaperTable:
    """Return a figure with cells for further tasks, without values of the paper.

    UsageError for a table whose tasks are fixed.
    """
    if tasks and not _takes_tasks(table):
        names = [section.name for section in sections().values() if _takes_tasks(section)]
        raise UsageError(
            f"{table.name} takes no further tasks; with --task can be made {', '.join(names)}"
        )
    return replace(table, cells=(*table.cells, *_grid_cells(table.about, tasks)))


def _takes_tasks(table: PaperTable) -> bool:
    grid = table.about.get("grid", {})
    return bool(grid) and "" not in grid.get("systems", ())


def _figure_cells(suite: str, name: str, settings: JsonMapping) -> Iterator[PaperCell]:
    """Yield a cell for each figure of the paper that the section takes."""
    tables = settings.get("from", [name.replace("table", "Table ")])
    our_names = settings.get("metrics", {})
    for figure in figures():
        if (
            figure.task.startswith(f"{suite}/")
            and figure.table in tables
            and figure.metric in settings.get("only", [figure.metric])
            and figure.task in settings.get("tasks", [figure.task])
        ):
            yield PaperCell(
                figure.system,
                figure.task,
                our_names.get(figure.metric, figure.metric),
                figure.split,
                figure.judgements,
                figure.value,
                figure.error,
                figure.note,
            )
