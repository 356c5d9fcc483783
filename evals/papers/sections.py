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

# Of what nobody but the authors can make.
NEVER = "nobody but the authors can make it"


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
    published: float | str | None = None
    error: float | None = None
    note: str = ""
    # The reason why there can be no value of ours, whatever stands in, and what makes one.
    lacks: str = ""
    make: str = ""


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
        """Return the systems whose runs a cell takes: one, or those whose mean it is of; none for a
        statistic.
        """
        if not cell.system:
            return []
        system = self.system(cell)
        names = system.get("mean_of", ())
        return [self.system(replace(cell, system=name)) for name in names] or [system]

    def system(self, cell: PaperCell) -> JsonMapping:
        """Return the system that makes a cell. LookupError if the files name none."""
        for system in self.systems:
            is_named = cell.system in (system["name"], *system.get("also", ()))
            if is_named and cell.task in system.get("tasks", [cell.task]):
                return system
        raise LookupError(f"{self.name} has a row of no system: {cell.system}")


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
        for stem, about in content.items():
            about["system"] = list(_by_size(about.get("system", ())))
            name = f"{path.stem}/{stem}"
            cells = tuple(_explain_lack(cell, about) for cell in _cells(name, about))
            tables[name] = PaperTable(name, about, (*about["system"], *shared), cells)
    return tables


def find(name: str) -> PaperTable:
    """Return the table or figure called `name`; UnknownName if there is none."""
    if name not in sections():
        raise UnknownName("table or figure", name, sections())
    return sections()[name]


def _by_size(systems: Iterable[JsonMapping]) -> Iterator[JsonMapping]:
    for system in systems:
        if "sizes" not in system:
            yield system
        for size in system.get("sizes", ()):
            name = f"{system['name']} | {size}"
            yield {**system, "name": name, "pool": system["pool"].format(size=size)}


def _explain_lack(cell: PaperCell, about: JsonMapping) -> PaperCell:
    """Return a cell with the first row of `lacking` that is of it."""
    for row in about.get("lacking", ()):
        explained = {"lacks": row["why"], "make": row.get("make", NEVER)}
        keys = row.keys() - {"why", "make"}
        if all(getattr(cell, key) == row[key] for key in keys):
            return replace(cell, **explained)
    return cell


def _cells(name: str, about: JsonMapping) -> Iterator[PaperCell]:
    """Yield the cells of a section: the paper's figures that it takes, its own values, its grid."""
    suite, _, stem = name.partition("/")
    for figure in figures():
        if (
            figure.task.startswith(f"{suite}/")
            and figure.table in about.get("from", [stem.replace("table", "Table ")])
            and figure.metric in about.get("only", [figure.metric])
            and figure.task in about.get("tasks", [figure.task])
        ):
            yield PaperCell(
                figure.system,
                figure.task,
                about.get("metrics", {}).get(figure.metric, figure.metric),
                figure.split,
                figure.judgements,
                figure.value,
                figure.error,
                figure.note,
            )
    values = {}
    for system, by_task in {"": about.get("statistics", {}), **about.get("published", {})}.items():
        for task, by_metric in by_task.items():
            for metric, value in by_metric.items():
                values[system, task, metric] = value
    for key in _grid(about, about.get("grid", {}).get("tasks", ())):
        is_text = key[2] == "instruction"
        values.setdefault(key, find_paper_instruction(key[1]) if is_text else None)
    for key, value in values.items():
        yield PaperCell(*key, about.get("split", "test"), published=value)


def _grid(about: JsonMapping, tasks: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Yield (system, task, metric) for each of these tasks, and each system and metric of the grid."""
    grid = about.get("grid", {})
    systems = grid.get("systems") or [system["name"] for system in about["system"]]
    for task, system, metric in product(tasks, systems, grid.get("metrics", ())):
        yield system, task, metric


def add_tasks(table: PaperTable, tasks: Iterable[str]) -> PaperTable:
    """Return a figure with cells for further tasks, without values of the paper.

    UsageError for a table whose tasks are fixed.
    """
    if tasks and not _takes_tasks(table):
        names = [section.name for section in sections().values() if _takes_tasks(section)]
        raise UsageError(
            f"{table.name} takes no further tasks; with --task can be made {', '.join(names)}"
        )
    split = table.about.get("split", "test")
    added = [PaperCell(*key, split) for key in _grid(table.about, tasks)]
    return replace(table, cells=(*table.cells, *added))


def _takes_tasks(table: PaperTable) -> bool:
    grid = table.about.get("grid", {})
    return bool(grid) and "" not in grid.get("systems", ())
