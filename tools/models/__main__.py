"""Check a model before a run: `sextant models check SPEC`.

    sextant models check MODEL@URL    its abilities, its speed, and the options it needs
    sextant models check @URL         the names of the models that a server has

The calls that are sent are those of tools/models/model_check.py.
"""

import argparse
from typing import Any

from sextant.tools.errors import UsageError
from sextant.tools.models.model_spec import ModelSettings, parse, split_server
from sextant.tools.models.secrets import read_keys
from sextant.tools.platform.cli import (
    CommandParser,
    add_json_option,
    print_json,
    run_and_leave,
    strip_control_characters,
)
from sextant.tools.platform.cli_options import add_options, from_options
from sextant.tools.platform.result_table import CommandLine, DefinitionList, show
from sextant.tools.platform.waiting import announced


def parser() -> CommandParser:
    """Return the command line."""
    command_parser = CommandParser(
        prog="sextant models", description="What a model can do, before a run asks it."
    )
    summary = "send three small calls; say what works, and what a run needs"
    verbs = command_parser.add_subparsers(dest="verb", required=True, metavar="check")
    verb = verbs.add_parser("check", help=summary, description=summary)
    verb.add_argument(
        "spec", metavar="SPEC", help="as for --lm; @URL alone lists the models of a server"
    )
    add_json_option(verb)
    add_options(verb, ModelSettings)
    return command_parser


def command(arguments: argparse.Namespace) -> int:
    """Check a model, or list the models of a server; return 0 if it answers."""
    read_keys()
    spec = arguments.spec
    settings = from_options(ModelSettings, vars(arguments))
    if spec == "offline":
        raise UsageError(
            "offline is no model, so there is nothing to check; name a model, as for --lm"
        )
    if split_server(spec)[0]:
        parse(spec, "check")
    with announced("loading libraries"):
        from sextant.tools.models import model_check  # DSPy: not for --help

    with announced(f"asking {spec}"):
        if not split_server(spec)[0]:
            findings = model_check.list_models(spec, settings)
        else:
            findings = model_check.check(spec, settings)
    if arguments.json:
        print_json(findings)
        return 0
    items = list[tuple[str, str]]()
    commands = list[CommandLine]()
    for key, value in findings.items():
        if key == "first_run":
            commands.append(CommandLine("  first run:", value))
        else:
            items.append((key.replace("_", " "), _show(value)))
    show([DefinitionList(items), *commands])
    return 0


def _show(value: Any) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, list):
        return ", ".join(map(strip_control_characters, value))
    return strip_control_characters(value) if isinstance(value, str) else f"{value:,}"


if __name__ == "__main__":
    run_and_leave(parser(), command)
