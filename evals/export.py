"""A run in other formats (docs/guide/see-and-export.md): `sextant export RUN --to
trec --out FOLDER`.
"""

import argparse
import inspect
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sextant.evals.formats import FOLDERS, SERVICES
from sextant.evals.run_folder import read_config
from sextant.tools.errors import SextantError, UsageError
from sextant.tools.platform import files
from sextant.tools.platform.cli import (
    CommandParser,
    add_json_option,
    positive,
    print_json,
    print_stderr,
    print_stdout,
    run_and_leave,
    strip_control_characters,
)
from sextant.tools.platform.result_table import DefinitionList, show
from sextant.tools.platform.terminal import first_sentence
from sextant.tools.platform.waiting import announced
from sextant.tools.plugins import (
    FORMATS,
    describe_exception,
    display_name,
    list_names,
    load_object,
    resolve,
)
from sextant.tools.records import JsonObject

_TABLE = FOLDERS | SERVICES


def export(
    run: Path | None,
    to: str,
    out: str,
    *,
    query_ids: Sequence[str] = (),
    limit: int | None = None,
    prompts: bool = True,
    force: bool = False,
) -> JsonObject:
    """Write `run`, or for schemas None, in the format `to` at `out`; return the object that --json
    prints.

    `to` is a format's name, FILE.py:NAME or an entry point in the group sextant.formats.
    `query_ids` and `limit` choose queries; with `prompts`, formats that have a field for them
    include the messages to models, if they are kept; `force` writes into a folder that holds
    something else. UsageError if `out` cannot be written, DataError if the run cannot be read.
    """
    from sextant.evals.formats import export_run  # not for --help

    to = "otlp" if to == "openinference" and "://" in out else to
    write = _load_format(to)
    source = None
    notes = list[str]()
    report = JsonObject(format=display_name(to))
    if run:
        source, notes = export_run.select(run, query_ids, limit, prompts=prompts)
        report |= {
            "run": run.resolve().name,
            "queries": len(source.query_ids),
        }
    if to in SERVICES:
        if "://" not in out:
            example = "http://host:port"
            if to == "mlflow":
                example += f" or sqlite:///{out}.db"
            raise UsageError(f"--out {out!r} is no address; give {example}")
        return {
            "out": out,
            **report,
            "notes": notes + write(source, out, force=force),
        }
    with export_run.fill_folder(Path(out), force=force) as folder:
        report["notes"] = notes + _fill(to, write, source, folder)
        report["files"] = export_run.files_in(folder)
        files.replace(
            folder / export_run.MANIFEST, json.dumps(report, indent=2, ensure_ascii=False) + "\n"
        )
    return {"out": out, **report}


def _load_format(name: str) -> Any:
    return load_object("format", name, _TABLE, FORMATS)


def _fill(to: str, write: Any, source: Any, folder: Path) -> list[str]:
    if to in FOLDERS:
        return list(write(source, folder))
    try:
        return list(write(source, folder) or ())
    except SextantError:
        raise
    except Exception as error:
        # A user's function may raise anything.
        raise UsageError(f"format {to}: {describe_exception(error)}") from error


def parser() -> CommandParser:
    """Return the parser of the command line."""
    command_line = CommandParser(
        prog="sextant export",
        description="Write a scored run in another format; nothing is run.",
    )
    add = command_line.add_argument
    add("run", type=Path, nargs="?", metavar="RUN", help="a run folder")
    add(
        "--to",
        required=True,
        metavar="FORMAT",
        help=f"list, FILE.py:NAME, or one of {', '.join(_TABLE)}",
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
    add_json_option(command_line)
    return command_line


def command(arguments: argparse.Namespace) -> int:
    """Write the export, and print its path."""
    to = arguments.to
    as_json = arguments.json
    if to == "list":
        _list_formats(as_json=as_json)
        return 0
    resolve("format", to, _TABLE, FORMATS)
    if arguments.run is None and to != "schemas":
        raise UsageError("RUN is missing; name a run folder")
    if arguments.run is not None:
        read_config(arguments.run)  # before what follows is imported
    out = arguments.out
    if not out and to == "mlflow":
        out = os.environ.get("MLFLOW_TRACKING_URI")
    if not out:
        raise UsageError("--out is missing; say where the export goes")
    with announced(f"writing {out}"):
        report = export(
            arguments.run,
            to,
            out,
            query_ids=arguments.query_id,
            limit=arguments.limit,
            prompts=not arguments.no_prompts,
            force=arguments.force,
        )
    if as_json:
        print_json(report)
        return 0
    for note in report["notes"]:
        print_stderr(note)
    print_stdout(f"{strip_control_characters(report['out'])}\n")
    return 0


def _list_formats(*, as_json: bool) -> None:
    summaries = {}
    for name, package in list_names(_TABLE, FORMATS).items():
        summary = package
        if not package:
            summary = first_sentence(inspect.getdoc(_load_format(name)))
        summaries[name] = summary
    if as_json:
        print_json(summaries)
    else:
        show([DefinitionList(list(summaries.items()))])


if __name__ == "__main__":
    run_and_leave(parser(), command)
