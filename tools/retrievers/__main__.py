"""List and check retrievers, list and delete kept indexes: `sextant retrievers`.

sextant retrievers                          list retrievers, options and models
sextant retrievers check SPEC               test a retriever against the contract
sextant retrievers push SPEC --task TASK    fill the index of a search service
sextant retrievers indexes                  list kept indexes, with their sizes
sextant retrievers delete NAME...           remove indexes; --all removes them all
"""

import argparse
import inspect
import logging
import time
import typing
from itertools import starmap
from typing import Any

from rich.filesize import decimal

from sextant import environments
from sextant.tools import plugins
from sextant.tools.errors import DataError, UsageError
from sextant.tools.platform.cli import (
    CommandParser,
    print_json,
    print_stderr,
    run_and_leave,
)
from sextant.tools.platform.files import sextant_home
from sextant.tools.platform.installation import find_page
from sextant.tools.platform.number_format import plural
from sextant.tools.platform.result_table import DefinitionList, ResultTable, TerminalBlock, show
from sextant.tools.platform.terminal import first_sentence
from sextant.tools.platform.waiting import announced, each_announced
from sextant.tools.records import JsonObject
from sextant.tools.retrievers import (
    FILLS,
    RETRIEVERS,
    build,
    canonicalize,
    contract,
    index_store,
    lookup,
)
from sextant.tools.retrievers.neural.model_table import rows


def parser() -> CommandParser:
    """Return the command line."""
    command_line = CommandParser(
        prog="sextant retrievers",
        description="Kinds of retrievers, models, and kept indexes.",
    )
    verbs = command_line.add_subparsers(
        dest="verb", metavar="list | check | push | indexes | delete"
    )
    descriptions = {
        "list": "kinds and models, and what each needs (the default)",
        "check": "build a retriever over six documents, and see whether it does its duty",
        "push": "fill the index that a search service has of a task, or go on filling it",
        "indexes": "the indexes that are kept on disk",
        "delete": "remove indexes from disk; they are built again when they are wanted",
    }
    listing, checking, push, indexes, delete = (
        verbs.add_parser(
            name,
            help=text,
            description=text,
        )
        for name, text in descriptions.items()
    )
    checking.add_argument(
        "spec",
        metavar="SPEC",
        help="as for --retriever, e.g. my.py:MyRetriever(option=3)",
    )
    push.add_argument(
        "spec",
        metavar="SPEC",
        help="as for --retriever, e.g. milvus(http://host:19530)",
    )
    push.add_argument(
        "--task",
        required=True,
        metavar="TASK",
        help="whose documents; as for sextant run",
    )
    push.add_argument(
        "--data",
        metavar="WHAT",
        help="mini, full or a folder; full where it is fetched",
    )
    delete.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="as `indexes` prints it",
    )
    delete.add_argument(
        "--all",
        action="store_true",
        help="every one",
    )
    for verb in (listing, checking, indexes, delete):
        verb.add_argument(
            "--json",
            action="store_true",
            default=argparse.SUPPRESS,
            help="print JSON and nothing else",
        )
    command_line.add_argument(
        "--json",
        action="store_true",
        help="the same for the list",
    )
    command_line.set_defaults(verb="list")
    return command_line


def command(arguments: argparse.Namespace) -> int:
    """Run a verb."""
    verbs = {
        "list": _list,
        "check": _check,
        "push": _push,
        "indexes": _indexes,
        "delete": _delete,
    }
    FILLS.set(arguments.verb in ("check", "push"))
    verbs[arguments.verb](arguments)
    return 0


def _list(arguments: argparse.Namespace) -> None:
    origins = plugins.list_names(RETRIEVERS, plugins.RETRIEVERS)
    with announced("loading retrievers"):
        kinds = [describe(name) | {"from": origin} for name, origin in origins.items()]
    columns = ("name", "kind", "expression", "instructed", "needs", "unsupported", "source")
    models = [{name: getattr(row, name) for name in columns} for row in rows().values()]
    if arguments.json:
        print_json({"kinds": kinds, "models": models})
        return
    items = []
    for retriever in kinds:
        items.append((retriever["form"], f"{retriever['what']} {retriever['from']}".rstrip()))
        if retriever["options"]:
            options = ", ".join(starmap(_as_typed, retriever["options"].items()))
            items.append(("", f"options: {options}"))
    guide = find_page("docs/guide/retriever.md")
    items.append(("FILE.py:CLASS", f"A class of your own, also as package.module:CLASS; {guide}"))
    title = (
        "models of the papers, and some more; every other sentence-transformers model works by "
        "its folder"
    )
    blocks: list[TerminalBlock] = ["kinds", DefinitionList(items), "", title]
    for model in models:
        instructed = "  (takes instructions)" if model["instructed"] else ""
        blocks.append(f"  {model['expression']}{instructed}")
        blocks.append(f"      {model['unsupported'] or model['needs']}")
    show(blocks)


def describe(name: str) -> JsonObject:
    """Return the form of a retriever's expressions, a sentence about it, and its options."""
    try:
        retriever_type = lookup(name)
    except UsageError as error:  # of an installed package
        return {
            "name": name,
            "form": name,
            "what": str(error),
            "options": {},
        }
    match retriever_type.subject:
        case "":
            form = name
        case "str":
            form = name + ("[:MODEL]" if retriever_type.model else ":MODEL")
        case "Embedder":
            form = f"{name}:EMBEDDER"
        case _:
            parts = [parameter.name.upper() for parameter in retriever_type.positional]
            if retriever_type.variadic:
                parts = ["A", "B", "..."]
            form = f"{name}({','.join(parts)})"
    summary = first_sentence(inspect.getdoc(retriever_type.constructor))
    return {
        "name": name,
        "form": form,
        "what": summary,
        "options": {
            option: _default(parameter) for option, parameter in retriever_type.options.items()
        },
    }


def _as_typed(option: str, value: Any) -> str:
    """Return an option with its default as an expression has it."""
    typed = str(value).lower() if isinstance(value, bool) else value
    return f"{option}={typed}"


def _default(parameter: inspect.Parameter) -> Any:
    default = parameter.default
    if typing.get_origin(parameter.annotation) is typing.Literal:
        return "|".join(dict.fromkeys([default, *typing.get_args(parameter.annotation)]))
    return list(default) if isinstance(default, tuple) else default


def _check(arguments: argparse.Namespace) -> None:
    # A check has an index that cannot be kept, on purpose, which would print a warning.
    logging.getLogger("sextant").setLevel(logging.ERROR)
    spec = canonicalize(arguments.spec)
    checks = []
    for duty, deviation in each_announced(f"checking {spec}", contract.run(spec)):
        checks.append({"check": duty, "wrong": deviation})
        if not arguments.json:
            line = f"WRONG  {duty}: {deviation}" if deviation else f"ok     {duty}"
            show([line])
    if arguments.json:
        print_json({"retriever": str(spec), "checks": checks})
    if broken := [check for check in checks if check["wrong"]]:
        raise DataError(
            f"{spec} breaks {len(broken)} of {len(checks)} checks, first: {broken[0]['check']}"
        )


def _push(arguments: argparse.Namespace) -> None:
    documents = environments.load(arguments.task, arguments.data).documents
    spec = canonicalize(arguments.spec)
    with announced(f"opening {spec} over {plural(len(documents), 'document')}"):
        retriever = build(spec, documents, sextant_home())
    show([f"{retriever.name} has all of {plural(len(documents), 'document')}"])


def _indexes(arguments: argparse.Namespace) -> None:
    indexes = index_store.list_stored_indexes(sextant_home())
    if arguments.json:
        print_json([index._asdict() for index in indexes])
        return
    cells = []
    for index in indexes:
        built = time.strftime("%Y-%m-%d %H:%M", time.localtime(index.built))
        notes = [
            f"{name}={value}"
            for name, value in index.key.items()
            if name not in ("kind", "corpus", "code", "format")
            and isinstance(value, str | int | float)
            and value != ""
        ]
        if not index.finished:
            notes.append("being built" if index.in_use else "half built; the next use goes on")
        cells.append([index.name, decimal(index.bytes), built, " ".join(notes)])
    if indexes:
        show([ResultTable("", ["index", "size", "built", "options"], cells, names=(0, 2, 3))])
    total = decimal(sum(index.bytes for index in indexes))
    folder = sextant_home() / "indexes"
    if indexes:
        print_stderr(f"{plural(len(indexes), 'index', 'indexes')}, {total}, in {folder}")
    else:
        print_stderr(f"no indexes in {folder}")


def _delete(arguments: argparse.Namespace) -> None:
    if bool(arguments.names) == arguments.all:
        raise UsageError(
            "give the names of indexes, as `sextant retrievers indexes` prints them, or --all"
        )
    names = arguments.names
    if arguments.all:
        names = [index.name for index in index_store.list_stored_indexes(sextant_home())]
    deleted = []
    refused = []
    for name in dict.fromkeys(names):
        try:
            index_store.delete(sextant_home(), name)
            deleted.append(name)
        except UsageError as refusal:  # it is in use, or there is none
            refused.append(refusal)
    if arguments.json:
        print_json({"deleted": deleted})
    elif deleted or not refused:
        print_stderr(f"deleted {', '.join(deleted)}" if deleted else "there was nothing to delete")
    if refused:
        raise refused[0]


if __name__ == "__main__":
    run_and_leave(parser(), command)
