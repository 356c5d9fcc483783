"""Make a benchmark of a corpus: `python -m evals.build new FOLDER --recipe latent --corpus FILE`, then `run FOLDER`.

What asks a model is kept stage by stage, so `run` goes on where it was ended; docs/guide/build.md goes through it.
"""

import argparse
import json
import re
from importlib import import_module
from pathlib import Path
from typing import Any

from evals.running.request import Common
from tools import options
from tools.console import Parser, positive, put_out, run_and_leave
from tools.errors import UsageError
from tools.names import pick

# Options of a run that a build has no use for: its recipe says what is asked of what.
_WITHOUT = {"program", "task", "data", "columns", "qrels", "instruction", "limit", "retriever", "parameters", "k"}
_BLANK = {"program": "programs.building.fill:Fill", "task": "build"}
_ELSEWHERE = {  # commands with a file of their own: what is there has `add(parser)` and `command(arguments)`
    "review": ("evals.building.review", "write a page on which people judge, or take in their answers"),
    "check": ("evals.building.checks", "check a finished benchmark, and say how far to trust it"),
    "contamination": ("evals.building.contamination", "say what share of a task a model knows by heart"),
}


class _Late(Parser):
    """A parser that imports what has the options of its command when it is asked for them."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse, with those options."""
        if (found := _ELSEWHERE.get(self.prog.rpartition(" ")[2])) and not self._defaults.get("do"):
            module = import_module(found[0])
            module.add(self)
            self.set_defaults(do=module.command)
        return super().parse_known_args(args, namespace)


def parser() -> Parser:
    """Return the command line."""
    made = Parser(prog="python -m evals.build", description="Make a benchmark of a corpus.")
    commands = made.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Late)
    commands.add_parser("list", help="list the recipes").set_defaults(do=list_recipes)
    one = commands.add_parser("new", help="write a recipe with every default spelled out, to be edited")
    one.add_argument("folder", type=Path, metavar="FOLDER")
    one.add_argument("--recipe", required=True, metavar="NAME", help="python -m evals.build list has them")
    one.add_argument("--corpus", default="", metavar="PATH", help="a file, a folder, or task:NAME")
    about = "a value of the recipe, as TOML has it, e.g. cut.by=sections; repeatable"
    one.add_argument("--set", type=options.pair, action="append", default=[], metavar="SECTION.KEY=VALUE", help=about)
    one.set_defaults(do=new)
    one = commands.add_parser("run", help="make the benchmark; the same command goes on where it was ended")
    two = commands.add_parser("status", help="say how far a build is: what went in, came out and was dropped")
    for command, do in ((one, run), (two, status)):
        command.add_argument("folder", type=Path, metavar="FOLDER")
        command.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
        command.set_defaults(do=do)
    one.add_argument("--until", default="", metavar="STAGE", help="stop after this stage")
    one.add_argument("--dry-run", action="store_true", help="say what each stage will take; nothing is sent")
    one.add_argument("--cassette", type=Path, metavar="FILE", help="answer every call from FILE, or record it")
    one.add_argument("--limit", type=positive, metavar="N", help="a trial on N of the documents, in FOLDER/limit-N")
    about = "the model; NAME=SPEC for a role (sweep, write, judge) or a stage; repeatable"
    one.add_argument("--lm", action="append", default=[], metavar="SPEC", help=about)
    options.add_options(one, Common, without={*_WITHOUT, "runs", "lm"})
    for name, (_, about) in _ELSEWHERE.items():
        commands.add_parser(name, help=about)
    return made


def list_recipes(arguments: argparse.Namespace) -> int:
    """Print every recipe, with what it is for."""
    for name, reference in import_module("evals.building.recipe").RECIPES.items():
        about = import_module(reference.partition(":")[0]).__doc__ or ""
        put_out(f"{name:<13} {about.partition(': ')[2].partition(chr(10))[0]}\n")
    return 0


def new(arguments: argparse.Namespace) -> int:
    """Write recipe.toml into a folder that has none."""
    recipe = import_module("evals.building.recipe")
    kind = pick("recipe", arguments.recipe, recipe.RECIPES)
    if (path := arguments.folder / recipe.FILE).exists():
        raise UsageError(f"{path} is there; edit it, or choose another folder")
    made = recipe.change(kind(), [("corpus.path", arguments.corpus), *arguments.set])
    arguments.folder.mkdir(parents=True, exist_ok=True)
    path.write_text(recipe.write_toml(arguments.recipe, made), encoding="utf-8")
    put_out(f"{path}: edit it, then python -m evals.build run {arguments.folder} --dry-run\n")
    return 0


def run(arguments: argparse.Namespace) -> int:
    """Run a build, or say what it would take; print the funnel."""
    running = import_module("evals.building.running")
    named = dict(options.pair(one) for one in arguments.lm if re.match(r"[a-z_]+=", one))
    plain = [one for one in arguments.lm if not re.match(r"[a-z_]+=", one)]
    request = options.from_options(Common, vars(arguments) | {"lm": plain[-1] if plain else None, **_BLANK})
    asked = {name: getattr(arguments, name) for name in ("until", "dry_run", "cassette", "limit")}
    found = running.run(arguments.folder, request, named, **asked)
    put_out(json.dumps(found) + "\n" if arguments.json else running.render(found))
    return 0


def status(arguments: argparse.Namespace) -> int:
    """Print how far a build is."""
    running = import_module("evals.building.running")
    found = running.read_status(arguments.folder)
    put_out(json.dumps(found) + "\n" if arguments.json else running.render(found))
    return 0


def command(arguments: argparse.Namespace) -> int:
    """Do what the command names."""
    return int(arguments.do(arguments))


if __name__ == "__main__":
    run_and_leave(parser(), command)
