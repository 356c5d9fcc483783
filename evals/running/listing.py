"""`--program list`: the programs and the agents, a line each, with what -P may set."""

import inspect
import json
from typing import Any

from agents import AGENTS
from evals.running import parameters
from programs import PROGRAMS
from tools.console.command import put_out
from tools.table import pick


def show(*, as_json: bool) -> None:
    """Print the list on stdout."""
    rows = [_row(kind, name, table) for kind, table in _TABLES.items() for name in table]
    if as_json:
        put_out(json.dumps(rows) + "\n")
        return
    lines: list[str] = []
    for kind in _TABLES:
        lines.append(f"{kind}s")
        for row in rows:
            if row["kind"] == kind:
                lines += [f"  {row['name']:<18}{row['about']}", *_settings(row["parameters"])]
    put_out("\n".join(lines) + "\n")


_TABLES = {"program": PROGRAMS, "agent": AGENTS}


def _row(kind: str, name: str, table: dict[str, str]) -> dict[str, Any]:
    constructor = pick(kind, name, table)
    about = (inspect.getdoc(constructor) or "").partition("\n")[0]
    values = {key: parameter.default for key, parameter in parameters.declared(constructor).items()}
    return {"name": name, "kind": kind, "about": about, "parameters": values}


def _settings(values: dict[str, Any]) -> list[str]:
    if not values:
        return []
    written = [f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in values.items()]
    return [f"  {'':<18}-P {' '.join(written)}"]
