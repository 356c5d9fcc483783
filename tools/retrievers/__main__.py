"""List and check retrievers, list and delete kept indexes: `python -m tools.retrievers`.

python -m tools.retrievers                  every kind with its options, and every model of the papers
python -m tools.retrievers check SPEC       whether a retriever, of one's own or not, does what all have to do
python -m tools.retrievers push SPEC --task TASK    fill the index of a search service, or go on filling it
python -m tools.retrievers indexes          what is kept, its size, and what was left half built
python -m tools.retrievers delete NAME...   remove indexes; --all removes every one
"""

import argparse
import inspect
import json
import logging
import time
import typing
from typing import Any

from rich.filesize import decimal

import environments
from tools import plugins
from tools.cli import (
    CommandParser,
    print_stderr,
    print_stdout,
    run_and_leave,
    strip_control_characters,
)
from tools.errors import DataError, UsageError
from tools.files import sextant_home
from tools.installation import find_page
from tools.retrievers import FILLS, RETRIEVERS, build, canonicalize, contract, index_store, lookup
from tools.retrievers.neural.model_table import rows


def parser() -> CommandParser:
    """Return the command line."""
    made = CommandParser(
        prog="python -m tools.retrievers",
        description="Kinds of retrievers, models, and kept indexes.",
    )
    verbs = made.add_subparsers(dest="verb", metavar="list | check | push | indexes | delete")
    about = {
        "list": "kinds and models, and what each needs (the default)",
        "check": "build a retriever over six documents, and see whether it does its duty",
        "push": "fill the index that a search service has of a task, or go on filling it",
        "indexes": "the indexes that are kept on disk",
        "delete": "remove indexes from disk; they are built again when they are wanted",
    }
    listing, checking, push, indexes, delete = (
        verbs.add_parser(name, help=text, description=text) for name, text in about.items()
    )
    checking.add_argument(
        "spec", metavar="SPEC", help="as for --retriever, e.g. my.py:MyRetriever(option=3)"
    )
    push.add_argument(
        "spec", metavar="SPEC", help="as for --retriever, e.g. milvus(http://host:19530)"
    )
    push.add_argument(
        "--task", required=True, metavar="TASK", help="whose documents; as for evals.run"
    )
    push.add_argument(
        "--data", metavar="WHAT", help="mini, full or a folder; full where it is fetched"
    )
    delete.add_argument("names", nargs="*", metavar="NAME", help="as `indexes` prints it")
    delete.add_argument("--all", action="store_true", help="every one")
    for verb in (listing, checking, indexes, delete):
        verb.add_argument(
            "--json",
            action="store_true",
            default=argparse.SUPPRESS,
            help="print JSON and nothing else",
        )
    made.add_argument("--json", action="store_true", help="the same for the list")
    made.set_defaults(verb="list")
    return made


def command(arguments: argparse.Namespace) -> int:
    """Run one verb."""
    verbs = {"list": _list, "check": _check, "push": _push, "indexes": _indexes, "delete": _delete}
    FILLS.set(arguments.verb in ("check", "push"))
    verbs[arguments.verb](arguments)
    return 0


def _list(arguments: argparse.Namespace) -> None:
    kinds = [
        _kind(name) | {"from": where}
        for name, where in plugins.list_names(RETRIEVERS, plugins.RETRIEVERS).items()
    ]
    columns = ("name", "kind", "expression", "instructed", "needs", "unsupported", "source")
    models = [{name: getattr(row, name) for name in columns} for row in rows().values()]
    if arguments.json:
        print_stdout(json.dumps({"kinds": kinds, "models": models}) + "\n")
        return
    lines = ["kinds"]
    for kind in kinds:
        lines.append(
            f"  {kind['form']:<22} {strip_control_characters(' '.join((kind['what'], kind['from'])))}".rstrip()
        )
        if kind["options"]:
            options = ", ".join(f"{name}={value}" for name, value in kind["options"].items())
            lines.append(f"  {'':<22} options: {options}")
    guide = find_page("docs/guide/retriever.md")
    lines.append(
        f"  {'FILE.py:CLASS':<22} A class of your own, also as package.module:CLASS; {guide}"
    )
    lines += [
        "",
        "models of the papers, and some more; every other sentence-transformers model works by "
        "its folder",
    ]
    for model in models:
        lines.append(
            f"  {model['expression']}{'  (takes instructions)' if model['instructed'] else ''}"
        )
        lines.append(f"      {model['unsupported'] or model['needs']}")
    print_stdout("\n".join(lines) + "\n")


def _kind(name: str) -> dict[str, Any]:
    try:
        kind = lookup(name)
    except UsageError as error:  # an installed package's
        return {"name": name, "form": name, "what": str(error), "options": {}}
    match kind.subject:
        case "":
            form = name
        case "str":
            form = name + ("[:MODEL]" if kind.model else ":MODEL")
        case "Embedder":
            form = f"{name}:EMBEDDER"
        case _:
            parts = (
                ["A", "B", "..."]
                if kind.many
                else [parameter.name.upper() for parameter in kind.positional]
            )
            form = f"{name}({','.join(parts)})"
    what = (inspect.getdoc(kind.made) or "").partition("\n")[0]
    options = {option: _default(parameter) for option, parameter in kind.options.items()}
    return {"name": name, "form": form, "what": what, "options": options}


def _default(parameter: inspect.Parameter) -> Any:
    if typing.get_origin(parameter.annotation) is typing.Literal:
        return "|".join(dict.fromkeys([parameter.default, *typing.get_args(parameter.annotation)]))
    return list(parameter.default) if isinstance(parameter.default, tuple) else parameter.default


def _check(arguments: argparse.Namespace) -> None:
    logging.getLogger("sextant").setLevel(
        logging.ERROR
    )  # it is warned of an index that cannot be kept, on purpose
    found = list[dict[str, str]]()
    for holds, wrong in contract.run(spec := canonicalize(arguments.spec)):
        found.append({"check": holds, "wrong": wrong})
        if not arguments.json:
            print_stdout(
                strip_control_characters(
                    f"{'WRONG' if wrong else 'ok   '}  {holds}{wrong and f': {wrong}'}"
                )
                + "\n"
            )
    if arguments.json:
        print_stdout(json.dumps({"retriever": str(spec), "checks": found}) + "\n")
    if broken := [one for one in found if one["wrong"]]:
        raise DataError(
            f"{spec} breaks {len(broken)} of {len(found)} checks, first: {broken[0]['check']}"
        )


def _push(arguments: argparse.Namespace) -> None:
    documents = environments.load(arguments.task, arguments.data).documents
    made = build(canonicalize(arguments.spec), documents, sextant_home())
    print_stdout(f"{strip_control_characters(made.name)} has all {len(documents):,} documents\n")


def _indexes(arguments: argparse.Namespace) -> None:
    found = index_store.list_stored_indexes(sextant_home())
    if arguments.json:
        print_stdout(json.dumps([index._asdict() for index in found]) + "\n")
        return
    for index in found:
        state = (
            ""
            if index.finished
            else "being built"
            if index.in_use
            else "half built; the next use goes on"
        )
        day = time.strftime("%Y-%m-%d %H:%M", time.localtime(index.built))
        shown = {
            name: value
            for name, value in index.key.items()
            if name not in ("kind", "corpus", "code", "format")
        }
        what = " ".join(
            f"{n}={v}" for n, v in shown.items() if isinstance(v, str | int | float) and v != ""
        )
        name = strip_control_characters(index.name)
        options = strip_control_characters(what)
        line = f"{name:<32} {decimal(index.bytes):>9}  {day}  {options} {state}"
        print_stdout(line.rstrip() + "\n")
    total = decimal(sum(index.bytes for index in found))
    place = sextant_home() / "indexes"
    print_stderr(
        f"{len(found)} indexes, {total}, in {place}" if found else f"no indexes in {place}"
    )


def _delete(arguments: argparse.Namespace) -> None:
    if bool(arguments.names) == arguments.all:
        raise UsageError(
            "give the names of indexes, as `python -m tools.retrievers indexes` prints them, or "
            "--all"
        )
    chosen = (
        [index.name for index in index_store.list_stored_indexes(sextant_home())]
        if arguments.all
        else arguments.names
    )
    deleted = list[str]()
    refused = list[UsageError]()
    for name in dict.fromkeys(chosen):
        try:
            index_store.delete(sextant_home(), name)
            deleted.append(name)
        except UsageError as refusal:  # it is in use, or there is none
            refused.append(refusal)
    if arguments.json:
        print_stdout(json.dumps({"deleted": deleted}) + "\n")
    elif deleted or not refused:
        print_stderr(f"deleted {', '.join(deleted)}" if deleted else "there was nothing to delete")
    if refused:
        raise refused[0]


if __name__ == "__main__":
    run_and_leave(parser(), command)
