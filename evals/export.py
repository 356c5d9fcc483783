"""A run in other people's formats: `python -m evals.export RUN --to trec --out FOLDER`. Nothing is run.

A scored run folder is all that is read: no corpus, no model, no network. docs/decisions/export-import.md says what each
format has, and what it cannot have.
"""

import argparse
import inspect
import json
import os
from pathlib import Path
from typing import Any

from evals.formats import FOLDERS, SERVICES
from tools.console.command import Parser, clean, positive, put_out, run_and_leave, say
from tools.errors import UnknownName, UsageError

LIST = "list"


def export(run: Path, to: str, out: str, query_ids: list[str], limit: int | None, *, force: bool) -> dict[str, Any]:
    """Write `run` as format `to` at `out`; what was made, for --json."""
    from evals.formats.place import filling, manifest
    from evals.formats.source import source
    from evals.measuring.scored import read
    from tools.table import pick

    write = pick("format", to, FOLDERS | SERVICES)
    chosen, notes = source(read(run), query_ids, limit)
    about = {"format": to, "run": run.resolve().name, "queries": len(chosen.query_ids)}
    if to in SERVICES:
        if query_ids or limit:
            raise UsageError(f"--to {to} takes whole runs; leave out --query-id and --limit")
        return {"out": out, **about, "notes": notes + write(chosen, out, force=force)}
    with filling(Path(out), force=force) as folder:
        notes += write(chosen, folder)
        made = manifest(folder, about | {"notes": notes})
    return {"out": out, **made}


def formats() -> dict[str, str]:
    """Format -> what it is, in a line."""
    from tools.table import pick

    table = FOLDERS | SERVICES
    return {name: (inspect.getdoc(pick("format", name, table)) or "").partition("\n")[0] for name in table}


def parser() -> Parser:
    """The command line."""
    made = Parser(prog="python -m evals.export", description="Write a scored run in another format; nothing is run.")
    add = made.add_argument
    add("run", type=Path, nargs="?", metavar="RUN", help="a run folder")
    add("--to", required=True, metavar="FORMAT", help=f"list, or one of {', '.join(FOLDERS | SERVICES)}")
    add("--out", metavar="PLACE", help="a folder to be made; of mlflow an address, also $MLFLOW_TRACKING_URI")
    add("--query-id", action="append", default=[], metavar="ID", help="only this query; repeatable")
    add("--limit", type=positive, metavar="N", help="only the first N queries")
    add("--force", action="store_true", help="write into a folder that holds something else")
    add("--json", action="store_true", help="print one JSON object and nothing else")
    return made


def command(arguments: argparse.Namespace) -> int:
    """Write, and say what was made."""
    if arguments.to == LIST:
        known = formats()
        put_out(json.dumps(known) + "\n" if arguments.json else "".join(f"{n:<15}{a}\n" for n, a in known.items()))
        return 0
    if arguments.to not in FOLDERS | SERVICES:
        raise UnknownName("format", arguments.to, FOLDERS | SERVICES)
    if arguments.run is None:
        raise UsageError("RUN is missing; name a run folder")
    out = arguments.out or (os.environ.get("MLFLOW_TRACKING_URI") if arguments.to in SERVICES else None)
    if not out:
        raise UsageError("--out is missing; say where the export goes")
    made = export(arguments.run, arguments.to, out, arguments.query_id, arguments.limit, force=arguments.force)
    if arguments.json:
        put_out(json.dumps(made) + "\n")
        return 0
    for note in made["notes"]:
        say(note)
    put_out(f"{clean(made['out'])}\n")
    return 0


if __name__ == "__main__":
    run_and_leave(parser(), command)
