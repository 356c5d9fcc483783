"""What the rows of the papers' tables lack on this machine, the cheapest first, and the command that
makes them for whoever has it: `sextant reproduce --missing`.

Weights and keys are looked for; what a paper or its release lacks is said by the TOML files, what a
model costs by costs.json, which docs/write_costs.py writes.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from math import inf
from pathlib import Path

from sextant.evals.papers.sections import NEVER, PaperTable, find, sections
from sextant.evals.papers.settings import ReproductionSettings
from sextant.evals.running.candidate_pools import read as read_pool
from sextant.tools import retrievers
from sextant.tools.errors import SextantError
from sextant.tools.models.secrets import get_secret
from sextant.tools.platform.result_table import CommandLine, TerminalBlock
from sextant.tools.records import JsonMapping, JsonObject
from sextant.tools.retrievers.neural import model_table

COSTS = Path(__file__).with_name("costs.json")
# Rent of an H100 for an hour.
GPU_DOLLARS = 3.0
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
    # What all its rows cost together, and the hours of an H100 in it; None for what is not known.
    usd: float | None = None
    gpu_hours: float | None = None
    # The systems, or the figures of a table without systems.
    rows: list[str] = field(default_factory=list)
    tables: list[str] = field(default_factory=list)

    def json(self) -> JsonObject:
        """Return it as plain data."""
        return asdict(self)


@cache
def _read_costs() -> dict[str, dict[str, list[float]]]:
    """Return table -> model -> dollars, and hours if it is run here; "" is for all tables together."""
    costs: dict[str, dict[str, list[float]]] = json.loads(COSTS.read_text(encoding="utf-8"))
    return costs


def list_needs(system: JsonMapping) -> list[str]:
    """Return the model and the retrievers of a system, the retrievers of its pool included; of one
    that cannot be run, a retired model that can be served, as MODEL@URL.
    """
    if "lacks" in system:
        model = system.get("lm", "").partition("/")[2]
        if not model or "make" in system:
            return []
        return [f"{model}@http://HOST:PORT/v1"]
    needs = [
        system.get("retriever"),
        system.get("parameters", {}).get("ties"),
        system.get("lm"),
    ]
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


def list_missing(name: str = "") -> list[MissingRow]:
    """Return what is not here for a table, or for all: what can be bought, the cheapest first, then
    the rest in the order of the tables.
    """
    found = dict[str, MissingRow]()
    tables = [find(name)] if name else sections().values()
    for table in tables:
        for row, missing, command, need in _list_lacks(table):
            model = need.partition("(")[0]
            costs = _read_costs()[name].get(model, ())
            lack = MissingRow(missing, command, *costs)
            entry = found.setdefault(missing, lack)
            if row not in entry.rows:
                entry.rows.append(row)
            if table.name not in entry.tables:
                entry.tables.append(table.name)
    return sorted(found.values(), key=lambda row: row.usd or inf)


def _list_lacks(table: PaperTable) -> Iterator[tuple[str, str, str, str]]:
    """Yield (row, what it lacks in words, the command that makes it, what is bought) for a table."""
    about = table.about
    make = f"sextant reproduce {table.name}"
    if "lacks" in about:
        yield about["title"], about["lacks"], about.get("make", NEVER), ""
    for cell in table.cells:
        if cell.lacks:
            row = f"{cell.system or cell.metric} on {cell.task}"
            yield row, cell.lacks, cell.make, ""
            continue
        if measured := _NO_FILES.explain_missing_file(cell.task, cell.metric):
            how, _, option = measured.rpartition(" with ")
            yield cell.task, how, f"{make} {option}", ""
        for system in table.runs_of(cell):
            name = system["name"]
            if "lacks" not in system:
                for need in list_needs(system):
                    if not is_here(need):
                        missing, how = _explain_need(need)
                        yield name, missing, f"{how}; {make}", need
            elif served := "".join(list_needs(system)):
                model = served.partition("@")[0]
                missing = f"{system['lacks']} ({model})"
                yield name, missing, f"{make} --lm {served}", served
            else:
                yield name, system["lacks"], system.get("make", NEVER), ""


def _explain_need(need: str) -> tuple[str, str]:
    """Return what is missing of a model or retriever, and the command."""
    if key := name_key(need):
        return f"a key of {need.removeprefix('api:')}", f"export {key}=..."
    model = need.partition(":")[2].partition("(")[0]
    # Its details are of what size it is, and what licence or base model it needs.
    details = model_table.rows()[model].needs
    return f"the weights of {model} ({details})", f"hf download {model}"


def lay_out_missing(rows: list[MissingRow]) -> list[TerminalBlock]:
    """Return two lines for each missing thing: its cost, the rows with their tables; and the command."""
    lines: list[TerminalBlock] = [
        f"rough costs, at list prices of November 2026 and ${GPU_DOLLARS:g} an hour of an H100; "
        "--dry-run prices a table"
    ]
    for row in rows:
        # "Snowflake | Query-to-Doc" is Snowflake in another table.
        names = dict.fromkeys(name.partition(" | ")[0] for name in row.rows)
        cost = "" if row.usd is None else f"${row.usd:,.2f}"
        hours = "" if row.gpu_hours is None else f", {row.gpu_hours:.2g} h"
        tables = ", ".join(row.tables)
        about = f"{row.missing}: {', '.join(names)} ({tables})"
        lines.append(f"{cost}{hours}: {about}" if cost else about)
        lines.append(CommandLine("   ", row.command))
    return lines
