"""The numbered tables and figures of the papers, as the TOML files beside this one have them.

A file is a suite's: in obliq.toml, [table2] is OBLIQ-Bench's Table 2, and each [[system]] is a row of the paper as a
row of a study: `name`, and fields of evals/running/request.py. Beside these it may have `tasks` (the only ones that it
is for), `bound` (random or maximum: evals/measuring/bounds.py), `give` (a parameter that the user has to give) and
`lacks` (why there is no such system). A section's own systems come before the file's. Keys of a section:

    title, needs, price    in words; `needs` is what neither the data nor the systems say
    lacking                [{ why, and any of system, task, metric, split }]: cells that cannot be made
    marked                 whether the best of a column is marked, and what does not differ from it

Its cells are the lines of the suite's CSV with its number, and those that it has itself:

    from, only             other tables of the CSV, and the only metrics of it
    metrics                { the paper's name of a metric = the one that we compute }
    split                  of all cells that are not in the CSV; test where none is named
    statistics             { task = { a statistic of the data (evals/measuring/described.py) = value } }
    published              { system = { task = { metric = value } } }
    grid                   { systems, tasks, metrics }: the paper prints no numbers, as of a figure's points
"""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from evals.published import figures
from tools.errors import UnknownName


@dataclass(frozen=True, slots=True)
class Cell:
    """One number of a table: what it is of, and the paper's value."""

    system: str  # empty for a statistic of the data
    task: str
    metric: str
    split: str
    judgements: str = ""  # as in Figure
    value: float | str | None = None  # None where the paper prints none
    error: float | None = None
    note: str = ""
    lacks: str = ""  # why there is none of ours


@dataclass(frozen=True, slots=True)
class Section:
    """A numbered table or figure."""

    name: str  # obliq/table2
    about: Mapping[str, Any]  # as in the file
    systems: tuple[Mapping[str, Any], ...]
    cells: tuple[Cell, ...] = ()

    def system(self, cell: Cell) -> Mapping[str, Any]:
        """Return the system that makes a cell; UnknownName where there is none."""
        for one in self.systems:
            if one["name"] == cell.system and any(fnmatch(cell.task, task) for task in one.get("tasks", ["*"])):
                return one
        raise UnknownName(f"system of {self.name}", cell.system, {one["name"] for one in self.systems})


@cache
def sections() -> dict[str, Section]:
    """Every numbered table and figure by name, in the order of the files."""
    found = {}
    for path in sorted(Path(__file__).parent.glob("*.toml")):
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        shared = content.pop("system", [])
        for name, about in content.items():
            made = Section(f"{path.stem}/{name}", about, (*about.get("system", ()), *shared))
            cells = tuple(replace(cell, lacks=_lacks(made, cell)) for cell in _cells(made))
            found[made.name] = replace(made, cells=cells)
    return found


def find(name: str) -> Section:
    """Return the table or figure called `name`; UnknownName where there is none."""
    if name not in sections():
        raise UnknownName("table or figure", name, sections())
    return sections()[name]


def _cells(section: Section) -> Iterator[Cell]:
    (suite, _, name), about = section.name.partition("/"), section.about
    tables, only = about.get("from", [name.capitalize().replace("Table", "Table ")]), about.get("only")
    for one in figures():
        if one.task.startswith(f"{suite}/") and one.table in tables and (only is None or one.metric in only):
            metric = about.get("metrics", {}).get(one.metric, one.metric)
            yield Cell(one.system, one.task, metric, one.split, one.judgements, one.value, one.error, one.note)
    split = about.get("split", "test")
    for system, by_task in {"": about.get("statistics", {}), **about.get("published", {})}.items():
        for task, values in by_task.items():
            yield from (Cell(system, task, metric, split, value=value) for metric, value in values.items())
    if grid := about.get("grid"):
        for task, system, metric in product(grid["tasks"], grid["systems"], grid["metrics"]):
            yield Cell(system, task, metric, split)


def _lacks(section: Section, cell: Cell) -> str:
    for one in section.about.get("lacking", ()):
        if all(getattr(cell, key) == value for key, value in one.items() if key != "why"):
            return str(one["why"])
    return str(section.system(cell).get("lacks", "")) if cell.system else ""
