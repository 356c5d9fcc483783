"""What the rows of the papers' tables lack on this machine, and the command that makes them for whoever
has it: `sextant reproduce --missing`.

Weights and keys are looked for; what a paper or its release lacks is said by the TOML files. What a
table costs is for --dry-run to say.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from sextant.evals.papers.sections import PaperTable
from sextant.evals.papers.settings import ReproductionSettings
from sextant.evals.running.candidate_pools import read as read_pool
from sextant.tools import retrievers
from sextant.tools.errors import SextantError
from sextant.tools.models.secrets import get_secret
from sextant.tools.platform.result_table import CommandLine, TerminalBlock
from sextant.tools.records import JsonMapping, JsonObject
from sextant.tools.retrievers.neural import model_table

NEVER = "nobody but the authors can make it"
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
    # The systems, or the figures of a table without systems.
    rows: dict[str, None] = field(default_factory=dict)
    tables: dict[str, None] = field(default_factory=dict)

    def json(self) -> JsonObject:
        """Return it as plain data."""
        return {
            "missing": self.missing,
            "command": self.command,
            "rows": list(self.rows),
            "tables": list(self.tables),
        }


def list_needs(system: JsonMapping) -> list[str]:
    """Return the model and the retrievers of a system, the retrievers of its pool included."""
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


def list_missing(tables: Iterable[PaperTable]) -> list[MissingRow]:
    """Return what is not here, in the order of the tables."""
    found = dict[str, MissingRow]()
    for table in tables:
        for row, lack in _list_lacks(table):
            entry = found.setdefault(lack.missing, lack)
            entry.rows[row] = None
            entry.tables[table.name] = None
    return list(found.values())


def _list_lacks(table: PaperTable) -> Iterator[tuple[str, MissingRow]]:
    """Yield (row, what it lacks) for a table."""
    about = table.about
    if "lacks" in about:
        yield about["title"], MissingRow(about["lacks"], about.get("make", NEVER))
    makers = {lacking["why"]: lacking.get("make", NEVER) for lacking in about.get("lacking", ())}
    for cell in table.cells:
        name = cell.system or cell.metric
        if cell.lacks:
            row = f"{name} on {cell.task}"
            yield row, MissingRow(cell.lacks, makers[cell.lacks])
            continue
        measured = _NO_FILES.explain_missing_file(cell.task, cell.metric)
        if measured:
            how, _, option = measured.rpartition(" with ")
            yield cell.task, MissingRow(how, f"sextant reproduce {table.name} {option}")
        for system in table.runs_of(cell) if cell.system else ():
            if "lacks" in system:
                yield system["name"], _explain_lack(system, table)
                continue
            for need in list_needs(system):
                if not is_here(need):
                    yield system["name"], _explain_need(need, table)


def _explain_lack(system: JsonMapping, table: PaperTable) -> MissingRow:
    """Return what a system lacks everywhere; a retired model can be served."""
    lacks = str(system["lacks"])
    model = str(system.get("lm", "")).partition("/")[2]
    if "make" in system or not model:
        return MissingRow(lacks, system.get("make", NEVER))
    command = f"sextant reproduce {table.name} --lm {model}@http://HOST:PORT/v1"
    return MissingRow(f"{lacks} ({model})", command)


def _explain_need(need: str, table: PaperTable) -> MissingRow:
    """Return what is missing of a model or retriever, and the command."""
    make = f"sextant reproduce {table.name}"
    if key := name_key(need):
        return MissingRow(f"a key of {need.removeprefix('api:')}", f"export {key}=...; {make}")
    model = need.partition(":")[2].partition("(")[0]
    # Its details are of what size it is, and what licence or base model it needs.
    missing = f"the weights of {model} ({model_table.rows()[model].needs})"
    return MissingRow(missing, f"hf download {model}; {make}")


def lay_out_missing(rows: Iterable[MissingRow]) -> list[TerminalBlock]:
    """Return two lines for each missing thing: the rows with their tables; and the command."""
    lines: list[TerminalBlock] = []
    for row in rows:
        # "Snowflake | Query-to-Doc" is Snowflake in another table.
        names = dict.fromkeys(name.partition(" | ")[0] for name in row.rows)
        lines.append(f"{row.missing}: {', '.join(names)} ({', '.join(row.tables)})")
        lines.append(CommandLine("   ", row.command))
    return lines
