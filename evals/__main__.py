"""`sextant` and `python -m sextant`: every command by name. `sextant run` is `python -m sextant.evals.run`.

A command is imported when it is called, so that each starts as fast as by `python -m`.
"""

import sys
from argparse import Namespace
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from sextant.tools import plugins
from sextant.tools.errors import UnknownName, UsageError
from sextant.tools.platform import installation
from sextant.tools.platform.cli import (
    CommandParser,
    print_stdout,
    report_error,
    run_and_leave,
    run_command,
)
from sextant.tools.platform.terminal import definitions

# A name -> its module, and what the command does.
COMMANDS = {
    "run": ("sextant.evals.run", "run a program or an agent on a task, and score it"),
    "study": ("sextant.evals.study", "run many systems on many tasks, and compare them"),
    "serve": (
        "sextant.evals.serve",
        "hand the queries of a run out to agents outside, over MCP or REST",
    ),
    "gather": ("sextant.evals.gather", "join the shards of a run, and score it"),
    "score": ("sextant.evals.score", "score a run folder again"),
    "compare": ("sextant.evals.compare", "compare runs query by query, with uncertainty"),
    "curves": ("sextant.evals.curves", "compare runs at equal budgets"),
    "behaviour": ("sextant.evals.behaviour", "say what searchers do, and where documents are lost"),
    "credit": ("sextant.evals.credit", "say which searches earned the score, at which cost"),
    "reach": ("sextant.evals.reach", "say how likely relevant documents are found at all"),
    "variance": ("sextant.evals.variance", "say which factors of a study move its score"),
    "replay": ("sextant.evals.replay", "give the searches of a run to another retriever"),
    "view": ("sextant.evals.view", "look at trajectories in a browser"),
    "report": ("sextant.evals.report", "put many runs into one report, beside the papers' figures"),
    "reproduce": (
        "sextant.evals.reproduce",
        "make a paper's table or figure again, beside its figures",
    ),
    "export": ("sextant.evals.export", "write a run in the format of another tool"),
    "import": ("sextant.evals.import_run", "make a run folder from the results of another system"),
    "compile": (
        "sextant.optimizers.compile",
        "optimize the prompts or parameters of a program on dev",
    ),
    "prompts": (
        "sextant.programs",
        "print the prompts of a program as a file, to edit for --prompts; draw an agent",
    ),
    "tasks": ("sextant.environments", "list, show, fetch, check and search tasks"),
    "retrievers": (
        "sextant.tools.retrievers",
        "list retrievers and models; list and delete indexes",
    ),
    "models": (
        "sextant.tools.models",
        "check a model: what works, how fast it is, which options it needs",
    ),
    "doctor": (
        "sextant.evals.doctor",
        "say what is here: packages, disk, GPU, keys, servers, data",
    ),
    "docs": ("sextant.evals.docs", "print a page of the guide"),
    "cache": (
        "sextant.evals.cache",
        "list, show, export and clear the answers that were paid for",
    ),
}
# Commands of sextant-construction, which need not be installed, and what each does. Entry points
# of installed packages in the group `sextant.commands` name a module with `parser` and `command`.
SEPARATE = {
    "build": "make a benchmark of a corpus, and check one",
    "judge": "have a model judge what runs bring and nobody has judged",
}


def main() -> None:
    """Run the named command; without a name, list the commands."""
    name, *arguments = sys.argv[1:] or ["--help"]
    if name == "--version":
        show(installation.version())
    elif name in ("-h", "--help"):
        show(list_commands())
    elif name in COMMANDS or name in list_modules():
        run_by_name(name, arguments)
    else:
        sys.exit(report_error(UnknownName("command", name, list_modules())))


def show(text: str) -> None:
    """Print a text, and exit."""

    def command(_: Namespace) -> int:
        print_stdout(f"{text}\n")
        return 0

    sys.exit(run_command(CommandParser(), command, []))  # whose arguments have been read here


def run_by_name(name: str, arguments: list[str]) -> None:
    """Run a command as `python -m` would, and exit."""
    try:
        module = import_command(name)
    except UsageError as error:
        sys.exit(report_error(error))
    sys.argv = [f"sextant {name}", *arguments]
    run_and_leave(module.parser(), module.command)


def import_command(name: str) -> Any:
    """Return the module of a command, which has `parser` and `command`.

    UsageError if its package is not installed.
    """
    if name not in COMMANDS:
        return plugins.load_command(name, f"sextant {name}")
    path, _ = COMMANDS[name]
    spec = find_spec(path)
    return import_module(
        f"{path}.__main__"
        if spec is not None and spec.submodule_search_locations is not None
        else path
    )


def list_modules() -> dict[str, tuple[str, str]]:
    """Return every command, also of installed packages: its module, "" if it is not installed,
    and what it does.
    """
    commands = COMMANDS | {name: ("", purpose) for name, purpose in SEPARATE.items()}
    for name, entry_point in plugins.list_entry_points(plugins.COMMANDS).items():
        if name not in COMMANDS:
            commands[name] = (
                entry_point.module.removesuffix(".__main__"),
                SEPARATE.get(name, plugins.list_names((), plugins.COMMANDS)[name]),
            )
    return commands


def list_commands() -> str:
    """Return a line for each command."""
    rows = [(name, description) for name, (_, description) in list_modules().items()]
    return f"usage: sextant COMMAND ...     each command has --help\n\n{definitions(rows)}"


if __name__ == "__main__":
    main()
