"""What the rows of the papers' tables lack on this machine, the cheapest first, and the command that
makes them for whoever has it: `sextant reproduce --missing`.

Weights and keys are looked for; what a paper or its release lacks is said by the TOML files.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from math import inf
from pathlib import Path

from sextant import environments
from sextant.evals.papers.need_costs import GPU_DOLLARS, Reading, estimate_dollars
from sextant.evals.papers.sections import NEVER, PaperCell, PaperTable
from sextant.evals.papers.settings import ReproductionSettings
from sextant.evals.running.candidate_pools import read as read_pool
from sextant.tools import retrievers
from sextant.tools.errors import SextantError
from sextant.tools.models.secrets import get_secret
from sextant.tools.platform.result_table import CommandLine, TerminalBlock
from sextant.tools.records import JsonMapping, JsonObject
from sextant.tools.retrievers.neural import model_table

_NO_FILES = ReproductionSettings(
    data=None,
    limit=None,
    lm="",
    retriever="",
    runs=Path(),
)


@dataclass(slots=True)
class MissingRow:
    """A thing that is not here, and the rows that need it."""

    # In words
    missing: str
    command: str
    # The model or retriever that is bought; "" for what cannot be.
    need: str = ""
    readings: set[Reading] = field(default_factory=set)
    # The systems, or the figures of a table without systems.
    rows: dict[str, None] = field(default_factory=dict)
    tables: dict[str, None] = field(default_factory=dict)

    def cost(self) -> tuple[float | None, float | None]:
        """Return the dollars that all its rows cost together, and the hours of an H100 among it."""
        return estimate_dollars(self.need, self.readings) if self.need else (None, None)

    def json(self) -> JsonObject:
        """Return it as plain data."""
        usd, gpu_hours = self.cost()
        return {
            "missing": self.missing,
            "usd": usd,
            "gpu_hours": gpu_hours,
            "command": self.command,
            "rows": list(self.rows),
            "tables": list(self.tables),
        }


def list_needs(system: JsonMapping) -> list[str]:
    """Return the model and the retrievers of a system, the retrievers of its pool included."""
    needs = [system.get("retriever"), system.get("parameters", {}).get("ties"), system.get("lm")]
    if "pool" in system:
        pool = read_pool(system["pool"], retrievers.canonicalize(system["retriever"]))
        needs += map(str, pool.parts)
    return list(filter(None, needs))


@cache
def is_here(need: str) -> bool:
    """Return whether a model's key or a retriever's weights are on this machine."""
    if key := name_key(need):
        # The key alone is looked for, because the import of LiteLLM takes seconds.
        return bool(get_secret(key))
    with suppress(SextantError):
        retrievers.validate(retrievers.canonicalize(need))
        return True
    return False


def name_key(need: str) -> str:
    """Return the variable of the key that a model needs; "" for what runs here."""
    provider, _, model = need.removeprefix("api:").partition("/")
    return f"{provider.upper()}_API_KEY" if model and ":" not in provider else ""


def list_missing(tables: Iterable[PaperTable]) -> list[MissingRow]:
    """Return what is not here: what can be bought, the cheapest first, then the rest in the order of
    the tables.
    """
    found = dict[str, MissingRow]()
    for table in tables:
        for row, lack in _list_lacks(table):
            entry = found.setdefault(lack.missing, lack)
            entry.readings |= lack.readings
            entry.rows[row] = None
            entry.tables[table.name] = None
    return sorted(found.values(), key=lambda row: row.cost()[0] or inf)


def _list_lacks(table: PaperTable) -> Iterator[tuple[str, MissingRow]]:
    """Yield (row, what it lacks) for a table."""
    about = table.about
    if "lacks" in about:
        yield about["title"], MissingRow(about["lacks"], about.get("make", NEVER))
    for cell in table.cells:
        if cell.lacks:
            yield f"{cell.system or cell.metric} on {cell.task}", MissingRow(cell.lacks, cell.make)
            continue
        if measured := _NO_FILES.explain_missing_file(cell.task, cell.metric):
            how, _, option = measured.rpartition(" with ")
            yield cell.task, MissingRow(how, f"sextant reproduce {table.name} {option}")
        for system in table.runs_of(cell) if cell.system else ():
            for lack in _list_needs_of(system, cell, table.name):
                yield system["name"], lack


def _list_needs_of(system: JsonMapping, cell: PaperCell, table: str) -> Iterator[MissingRow]:
    """Yield what a system of a cell lacks: everywhere, though a retired model can be served; or the
    keys and weights that are not here.
    """
    make = f"sextant reproduce {table}"
    if lacks := system.get("lacks"):
        model = system.get("lm", "").partition("/")[2]
        if "make" in system or not model:
            yield MissingRow(lacks, system.get("make", NEVER))
            return
        served = f"{model}@http://HOST:PORT/v1"
        readings = _list_readings(system["lm"], system, cell)
        yield MissingRow(f"{lacks} ({model})", f"{make} --lm {served}", served, readings)
        return
    for need in list_needs(system):
        if is_here(need):
            continue
        if key := name_key(need):
            missing = f"a key of {need.removeprefix('api:')}"
            how = f"export {key}=..."
        else:
            model = need.partition(":")[2].partition("(")[0]
            # Its details are of what size it is, and what licence or base model it needs.
            missing = f"the weights of {model} ({model_table.rows()[model].needs})"
            how = f"hf download {model}"
        yield MissingRow(missing, f"{how}; {make}", need, _list_readings(need, system, cell))


def _list_readings(need: str, system: JsonMapping, cell: PaperCell) -> set[Reading]:
    """Return what a model or retriever of a system reads for a cell."""
    of_model = ("", "")
    if need == system.get("lm"):
        of_model = (system["program"], f"{system.get('instruction')} {system.get('pool')}")
    return {Reading(task, *of_model) for task in environments.expand_tasks(cell.task)}


def lay_out_missing(rows: Iterable[MissingRow]) -> list[TerminalBlock]:
    """Return two lines for each missing thing: its cost, the rows with their tables; and the command."""
    lines: list[TerminalBlock] = [
        f"rough costs, at list prices and ${GPU_DOLLARS:g} an hour of an H100; --dry-run prices a table"
    ]
    for row in rows:
        # "Snowflake | Query-to-Doc" is Snowflake in another table.
        names = dict.fromkeys(name.partition(" | ")[0] for name in row.rows)
        usd, gpu_hours = row.cost()
        cost = "" if usd is None else f"${usd:,.2f}: "
        if gpu_hours is not None:
            cost = f"${usd:,.2f}, {gpu_hours:.2g} h: "
        lines.append(f"{cost}{row.missing}: {', '.join(names)} ({', '.join(row.tables)})")
        lines.append(CommandLine("   ", row.command))
    return lines
