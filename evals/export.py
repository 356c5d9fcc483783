"""A run in other formats (docs/guide/see-and-export.md): `python -m evals.export RUN --to
trec --out FOLDER`.
"""

import argparse
import inspect
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evals.formats import FOLDERS, SERVICES
from tools import files
from tools.cli import (
    CommandParser,
    positive,
    print_stderr,
    print_stdout,
    run_and_leave,
    strip_control_characters,
)
from tools.errors import UnknownName, UsageError
from tools.plugins import load_object


def export(
    run: Path | None,
    to: str,
    out: str,
    *,
    query_ids: Sequence[str] = (),
    limit: int | None = None,
    prompts: bool = True,
    force: bool = False,
) -> dict[str, Any]:
    """Write `run`, or for schemas None, in the format `to` at `out`; return what was made, as
    --json prints it.

    `query_ids` and `limit` choose queries; with `prompts`, formats that have a place for them take
    along what was sent to models, as far as it is kept; `force` writes into a folder that holds
    something else. UsageError for what cannot be written there, DataError for a run that cannot be
    read.
    """
    from evals.formats import export_run  # here, for the sake of --help

    to = "otlp" if to == "openinference" and "://" in out else to
    write = load_object("format", to, FOLDERS | SERVICES)
    source = None
    notes = list[str]()
    made = dict[str, Any](format=to)
    if run:
        source, notes = export_run.select(run, query_ids, limit, prompts=prompts)
        made |= {"run": run.resolve().name, "queries": len(source.query_ids)}
    if to in SERVICES:
        if "://" not in out:
            mend = "http://host:port" + f" or sqlite:///{out}.db" * (to == "mlflow")
            raise UsageError(f"--out {out!r} is no address; give {mend}")
        return {"out": out, **made, "notes": notes + write(source, out, force=force)}
    with export_run.fill_folder(Path(out), force=force) as folder:
        made |= {"notes": notes + write(source, folder), "files": export_run.files_in(folder)}
        files.replace(
            folder / export_run.MANIFEST, json.dumps(made, indent=2, ensure_ascii=False) + "\n"
        )
    return {"out": out, **made}


def parser() -> CommandParser:
    """Return the parser of the command line."""
    made = CommandParser(
        prog="python -m evals.export",
        description="Write a scored run in another format; nothing is run.",
    )
    add = made.add_argument
    add("run", type=Path, nargs="?", metavar="RUN", help="a run folder")
    add(
        "--to",
        required=True,
        metavar="FORMAT",
        help=f"list, or one of {', '.join(FOLDERS | SERVICES)}",
    )
    add("--out", metavar="PLACE", help="the folder to make; for mlflow and otlp an address")
    add("--query-id", action="append", default=[], metavar="ID", help="only this query; repeatable")
    add("--limit", type=positive, metavar="N", help="only the first N queries")
    add(
        "--no-prompts",
        action="store_true",
        help="leave out what was sent to models, and what they answered",
    )
    add("--force", action="store_true", help="write into a folder that holds something else")
    add("--json", action="store_true", help="print one JSON object and nothing else")
    return made


def command(arguments: argparse.Namespace) -> int:
    """Write, and say what was made."""
    to = arguments.to
    as_json = arguments.json
    table = FOLDERS | SERVICES
    if to == "list":
        known = {
            name: (inspect.getdoc(load_object("format", name, table)) or "").partition("\n")[0]
            for name in table
        }
        print_stdout(
            json.dumps(known) + "\n"
            if as_json
            else "".join(f"{n:<15}{a}\n" for n, a in known.items())
        )
        return 0
    if to not in table:
        raise UnknownName("format", to, table)
    if arguments.run is None and to != "schemas":
        raise UsageError("RUN is missing; name a run folder")
    out = arguments.out or (os.environ.get("MLFLOW_TRACKING_URI") if to == "mlflow" else None)
    if not out:
        raise UsageError("--out is missing; say where the export goes")
    chosen = {
        "query_ids": arguments.query_id,
        "limit": arguments.limit,
        "prompts": not arguments.no_prompts,
    }
    made = export(arguments.run, to, out, **chosen, force=arguments.force)
    for note in () if as_json else made["notes"]:
        print_stderr(note)
    print_stdout(f"{json.dumps(made) if as_json else strip_control_characters(made['out'])}\n")
    return 0


if __name__ == "__main__":
    run_and_leave(parser(), command)
