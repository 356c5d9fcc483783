"""Make a benchmark of a corpus: `sextant build new FOLDER --recipe latent --corpus FILE`,
then `run FOLDER`.

Answers of a model are kept stage by stage, so `run` goes on from its end; construction/docs/build.md
goes through it.
"""

import argparse
import re
import shlex
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from sextant.evals.running.request import SharedRequest
from sextant.tools import plugins
from sextant.tools.errors import UsageError
from sextant.tools.platform import cli_options
from sextant.tools.platform.cli import (
    Command,
    CommandParser,
    add_json_option,
    positive,
    print_command,
    print_result,
    run_and_leave,
)
from sextant.tools.platform.result_table import DefinitionList, ResultTable, show
from sextant.tools.platform.terminal import first_sentence
from sextant.tools.platform.waiting import announced
from sextant.tools.plugins import list_names
from sextant.tools.records import JsonObject

# Options of a run that a build has no use for: its recipe says what is asked of what.
_WITHOUT = {
    "program",
    "task",
    "data",
    "columns",
    "qrels",
    "instruction",
    "limit",
    "retriever",
    "parameters",
    "k",
}
_BLANK = {"program": "sextant_construction.stages.stage_program:StageProgram", "task": "build"}
# Commands with a file of their own: what is there has `add_options(parser)` and `command(arguments)`
_ELSEWHERE = {
    "review": (
        "sextant_construction.human_review",
        "write a page on which people judge, or take in their answers",
    ),
    "check": (
        "sextant_construction.checks",
        "check a finished benchmark, and say how far to trust it",
    ),
    "contamination": (
        "sextant_construction.contamination",
        "say what share of a task a model knows by heart",
    ),
}


class _LateParser(CommandParser):
    """A parser of a sub-command whose options are in a `module`, which is imported when the sub-command is called."""

    def __init__(self, module: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._module = module

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse, with those options."""
        if self._module:
            with announced("loading libraries"):
                module = import_module(self._module)
            self._module = ""
            module.add_options(self)
            self.set_defaults(do=module.command)
        return super().parse_known_args(args, namespace)


def parser() -> CommandParser:
    """Return the command line."""
    command_line = CommandParser(prog="sextant build", description="Make a benchmark of a corpus.")
    commands = command_line.add_subparsers(
        dest="command", required=True, metavar="COMMAND", parser_class=_LateParser
    )

    def add_command(name: str, do: Command, purpose: str) -> Any:
        added = commands.add_parser(name, help=purpose, description=purpose)
        added.set_defaults(do=do)
        if do is not list_recipes:
            added.add_argument("folder", type=Path, metavar="FOLDER")
        return added

    add_command("list", list_recipes, "list the recipes")
    purpose = "write a recipe with every default spelled out, to be edited"
    add = add_command("new", new, purpose).add_argument
    add(
        "--recipe",
        required=True,
        metavar="NAME",
        help="a name of sextant build list, FILE.py:NAME or package.module:NAME",
    )
    add("--corpus", default="", metavar="PATH", help="a file, a folder, or task:NAME")
    follow_links = "read what links out of the corpus' folder lead to, which is then released"
    add("--follow-links", action="store_true", help=follow_links)
    add(
        "--set",
        type=cli_options.parse_name_value,
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        help="a value of the recipe, as TOML has it, e.g. cut.by=sections; repeatable",
    )

    purpose = "make the benchmark; the same command goes on where it was ended"
    running = add_command("run", run, purpose)
    add_json_option(running)
    add = running.add_argument
    add("--until", default="", metavar="STAGE", help="stop after this stage")
    add("--dry-run", action="store_true", help="say what each stage will take; nothing is sent")
    purpose = "a trial on N of the documents, in FOLDER/limit-N"
    add("--limit", type=positive, metavar="N", help=purpose)
    purpose = "the model; NAME=SPEC for a role (sweep, write, judge) or a stage; repeatable"
    add("--lm", action="append", default=[], metavar="SPEC", help=purpose)
    cli_options.add_options(running, SharedRequest, without={*_WITHOUT, "runs", "lm"})

    purpose = "say how far a build is: what went in, came out and was dropped"
    add_json_option(add_command("status", status, purpose))
    for name, (module, purpose) in _ELSEWHERE.items():
        commands.add_parser(name, help=purpose, description=purpose, module=module)
    return command_line


def list_recipes(arguments: argparse.Namespace) -> int:
    """Print every recipe, with its purpose, and those of installed packages."""
    items = []
    with announced("loading recipes"):
        from sextant_construction.recipe import RECIPES  # not for --help

        for name, package in list_names(RECIPES, plugins.RECIPES).items():
            purpose = package
            if name in RECIPES:
                module = import_module(RECIPES[name].partition(":")[0])
                purpose = first_sentence(module.__doc__).partition(": ")[2]
            items.append((name, purpose))
    show([DefinitionList(items)])
    return 0


def new(arguments: argparse.Namespace) -> int:
    """Write recipe.toml into a folder that has none."""
    with announced("loading recipes"):
        from sextant_construction import recipe  # not for --help

        recipe_class = recipe.load_recipe_class(arguments.recipe)
    path = arguments.folder / recipe.FILE
    if path.exists():
        raise UsageError(f"{path} is there; edit it, or choose another folder")
    values = [("corpus.path", arguments.corpus)]
    if arguments.follow_links:
        values.append(("corpus.follow_links", "true"))
    values += arguments.set
    settings = recipe.change(recipe.change(recipe_class(), values).preset(), values)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    text = recipe.write_toml(recipe.portable_name(arguments.recipe), settings)
    path.write_text(text, encoding="utf-8")
    command = f"sextant build run {shlex.quote(str(arguments.folder))} --dry-run"
    print_command(f"{path}: edit it, then", command)
    return 0


def run(arguments: argparse.Namespace) -> int:
    """Run a build, or estimate it; print the funnel."""
    with announced("loading libraries"):
        from sextant_construction import run_recipe as running  # DSPy and NumPy: not for --help

    models: dict[str, str] = {}  # by role or stage; "" is all others
    for text in arguments.lm:
        role = ""
        spec = text
        if re.match(r"[a-z_]+=", text):
            role, spec = cli_options.parse_name_value(text)
        if models.setdefault(role, spec) != spec:
            option = f"--lm {role}".strip()
            raise UsageError(
                f"{option} is given twice, as {models[role]!r} and as {spec!r}; give it once"
            )
    plain = models.pop("", None)
    values = vars(arguments)
    request = cli_options.from_options(SharedRequest, values | {"lm": plain, **_BLANK})
    names = ("until", "dry_run", "limit")
    options = {name: values[name] for name in names}
    result = running.run(arguments.folder, request, models, **options)
    print_result(result, running.render_build, as_json=arguments.json)
    return 0


def status(arguments: argparse.Namespace) -> int:
    """Print how far a build is."""
    with announced("loading libraries"):
        from sextant_construction import run_recipe as running  # DSPy and NumPy: not for --help

    result = running.read_status(arguments.folder)
    print_result(result, running.render_build, as_json=arguments.json)
    return 0


def make_task(folder: Path, corpus: Sequence[Path], queries: Path, qrels: Path) -> list[str]:
    """Do `sextant tasks make`, as make_task.py."""
    from sextant_construction import make_task as making  # NumPy: not for --help

    return making.make_task(folder, corpus, queries, qrels)


def audit(tasks: Sequence[str], data: str | None) -> tuple[JsonObject, list[str | ResultTable]]:
    """Do `sextant tasks audit`, as audit.py; return it as plain data, and laid out."""
    from sextant_construction import audit as auditing  # NumPy and scikit-learn: not for --help

    findings = auditing.audit(tasks, data)
    rows = [finding._asdict() | {"leak": finding.is_leak} for finding in findings]
    return {"findings": rows}, auditing.lay_out_audit(findings)


def command(arguments: argparse.Namespace) -> int:
    """Run the command that the arguments name."""
    return int(arguments.do(arguments))


if __name__ == "__main__":
    run_and_leave(parser(), command)
