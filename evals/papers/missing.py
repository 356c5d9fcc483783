"""What the rows of the papers' tables lack on this machine, and the command that makes them for
whoever has it: `python -m evals.reproduce --missing`.

Weights and keys are looked for; what a paper or its release lacks is said by the TOML files.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from evals.papers.settings import ReproductionSettings
from evals.published.sections import PaperTable
from evals.running.candidate_pools import read as read_pool
from tools import retrievers
from tools.errors import SextantError
from tools.models.secrets import get_secret
from tools.records import JsonMapping, JsonObject
from tools.result_table import CommandLine, TerminalBlock
from tools.retrievers.neural import model_table

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
def find_obstacle(need: str) -> str:
    """Return why a model or a retriever cannot be used here, such as no key; "" if it can."""
    key = name_key(need)
    if key:
        # The key alone is looked for, because the import of LiteLLM takes seconds.
        return "" if get_secret(key) else f"${key} is not set"
    try:
        retrievers.validate(retrievers.canonicalize(need))
    except SextantError as problem:
        return str(problem)
    return ""


def name_key(need: str) -> str:
    """Return the variable of the key that a model needs; "" for what runs here."""
    provider, _, model = need.removeprefix("api:").partition("/")
    return f"{provider.upper()}_API_KEY" if model and ":" not in provider else ""


def list_missing(tables: Iterable[PaperTable]) -> list[MissingRow]:
    """Return what is not here, in the order of the tables."""
    found = dict[str, MissingRow]()
    for table in tables:
        for row, missing, command in _list_lacks(table):
            entry = found.setdefault(missing, MissingRow(missing, command))
            entry.rows[row] = None
            entry.tables[table.name] = None
    return list(found.values())


def _list_lacks(table: PaperTable) -> Iterator[tuple[str, str, str]]:
    """Yield (row, what it lacks, the command) for a table."""
    about = table.about
    if "lacks" in about:
        yield about["title"], about["lacks"], about.get("make", NEVER)
    makers = {lacking["why"]: lacking.get("make", NEVER) for lacking in about.get("lacking", ())}
    for cell in table.cells:
        name = cell.system or cell.metric
        if cell.lacks:
            row = f"{name} on {cell.task}"
            yield row, cell.lacks, makers[cell.lacks]
            continue
        measured = _NO_FILES.explain_missing_file(cell.task, cell.metric)
        if measured:
            how, _, option = measured.rpartition(" with ")
            yield cell.task, how, _fill(f"python -m evals.reproduce {{table}} {option}", table)
        for system in table.runs_of(cell) if cell.system else ():
            if "lacks" in system:
                yield system["name"], *_explain_lack(system, table)
                continue
            for need in list_needs(system):
                if find_obstacle(need):
                    yield system["name"], *_explain_need(need, table)


def _explain_lack(system: JsonMapping, table: PaperTable) -> tuple[str, str]:
    """Return what a system lacks everywhere, and the command; a retired model can be served."""
    lacks = str(system["lacks"])
    model = str(system.get("lm", "")).partition("/")[2]
    if "make" in system or not model:
        return lacks, _fill(system.get("make", NEVER), table)
    serve = "python -m evals.reproduce {table} --lm " + f"{model}@http://HOST:PORT/v1"
    return f"{lacks} ({model})", _fill(serve, table)


def _explain_need(need: str, table: PaperTable) -> tuple[str, str]:
    """Return what is missing of a model or retriever, and the command."""
    make = _fill("python -m evals.reproduce {table}", table)
    key = name_key(need)
    if key:
        return f"a key of {need.removeprefix('api:')}", f"export {key}=...; {make}"
    model = need.partition(":")[2].partition("(")[0]
    folders = [model]
    missing = f"the weights of {model}"
    row = model_table.rows().get(model)
    if row and "an adapter" in row.needs:
        # Its adapter_config.json names the base model, if the table of models does not.
        folders.append(row.base or "BASE")
    elif row and "two adapters" in row.needs:
        folders += [row.base, "BASE"]
    if len(folders) > 1:
        missing += " and of its base model"
    command = "; ".join(f"hf download {folder}" for folder in folders)
    return missing, f"{command}; {make}"


def _fill(command: str, table: PaperTable) -> str:
    return command.format(table=table.name)


def lay_out_missing(rows: Iterable[MissingRow]) -> list[TerminalBlock]:
    """Return two lines for each missing thing: the rows with their tables, and the command."""
    lines = list[TerminalBlock]()
    for row in rows:
        # "Snowflake | Query-to-Doc" is Snowflake in another table.
        names = dict.fromkeys(name.partition(" | ")[0] for name in row.rows)
        places = ", ".join(_shorten_tables(row.tables))
        lines.append(f"{row.missing}: {', '.join(names)} ({places})")
        lines.append(CommandLine("   ", row.command))
    return lines


def _shorten_tables(tables: Iterable[str]) -> list[str]:
    """Return the tables by suite, those in a row as "table8-10"."""
    suites: dict[str, list[str]] = {}
    for table in tables:
        suite, _, name = table.partition("/")
        suites.setdefault(suite, []).append(name)
    return [f"{suite} {' '.join(_join_ranges(names))}" for suite, names in suites.items()]


def _join_ranges(names: Iterable[str]) -> list[str]:
    ranges = list[tuple[str, int, int]]()
    for name in names:
        kind = name.rstrip("0123456789")
        number = int(name.removeprefix(kind))
        last = ranges[-1] if ranges else ("", 0, 0)
        if last[0] == kind and last[2] == number - 1:
            ranges[-1] = (kind, last[1], number)
        else:
            ranges.append((kind, number, number))
    joined = []
    for kind, first, final in ranges:
        joined.append(f"{kind}{first}" if first == final else f"{kind}{first}-{final}")
    return joined
