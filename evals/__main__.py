"""`sextant` and `python -m evals`: every command by name. `sextant run ...` is `python -m evals.run
...`.

A command is imported when it is called, so that each starts as fast as by `python -m`.
"""

import sys
from argparse import Namespace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from tools import installation
from tools.cli import CommandParser, print_stdout, report_error, run_and_leave, run_command, spell
from tools.errors import UnknownName
from tools.terminal import definitions

NO_BREAK = "\N{NO-BREAK SPACE}"
# A name -> what `python -m` is given for it, a module and its sub-command if any, and what the
# command does.
COMMANDS = {
    "run": ("evals.run", "run a program or an agent on a task, and score it"),
    "study": ("evals.study", "run many systems on many tasks, and compare them"),
    "serve": ("evals.serve", "hand the queries of a run out to agents outside, over MCP or REST"),
    "gather": ("evals.gather", "join the shards of a run, and score it"),
    "score": ("evals.score", "score a run folder again"),
    "compare": ("evals.compare", "compare runs query by query, with uncertainty"),
    "curves": ("evals.curves", "compare runs at equal budgets"),
    "behaviour": ("evals.behaviour", "say what searchers do, and where documents are lost"),
    "replay": ("evals.replay", "give the searches of a run to another retriever"),
    "view": ("evals.view", "look at trajectories in a browser"),
    "report": ("evals.report", "put many runs into one report, beside the papers' figures"),
    "reproduce": ("evals.reproduce", "make a paper's table or figure again, beside its figures"),
    "judge": ("evals.judge", "have a model judge what runs bring and nobody has judged"),
    "build": ("evals.build", "make a benchmark of a corpus, and check one"),
    "export": ("evals.export", "write a run in the format of another tool"),
    "import": ("evals.import_run", "make a run folder from the results of another system"),
    "compile": ("optimizers.compile", "optimize the prompts or parameters of a program on dev"),
    "prompts": (
        "programs",
        "print the prompts of a program as a file, to edit for --prompts; draw an agent",
    ),
    "tasks": ("environments", "list, show, fetch, check and search tasks"),
    "retrievers": ("tools.retrievers", "list retrievers and models; list and delete indexes"),
    "models": ("tools.models", "check a model: what works, how fast it is, which options it needs"),
    "doctor": ("evals.doctor", "say what is here: packages, disk, GPU, keys, servers, data"),
    "docs": ("evals.docs", "print a page of the guide"),
    "cache": ("programs.lm cache", "list, show, export and clear the answers that were paid for"),
}


def main() -> None:
    """Run the named command; without a name, list the commands."""
    typed = "python -m evals" if Path(sys.argv[0]).name == "__main__.py" else "sextant"
    name, *arguments = sys.argv[1:] or ["--help"]
    if name == "--version":
        show(installation.version())
    elif name in ("-h", "--help"):
        show(list_commands(typed))
    elif name in COMMANDS:
        run_by_name(name, arguments, typed)
    else:
        sys.exit(report_error(UnknownName("command", name, COMMANDS)))


def show(text: str) -> None:
    """Print a text, and exit."""

    def command(_: Namespace) -> int:
        print_stdout(f"{text}\n")
        return 0

    sys.exit(run_command(CommandParser(), command, []))  # whose arguments have been read here


def run_by_name(name: str, arguments: list[str], typed: str) -> None:
    """Run a command as `python -m` would, and exit; its --help shows the typed name."""
    started_by, _ = COMMANDS[name]
    package_or_module, *sub_command = started_by.split()
    spell(f"python -m {started_by}", f"{typed} {name}")
    spec = find_spec(package_or_module)
    is_package = spec is not None and spec.submodule_search_locations is not None
    module = import_module(f"{package_or_module}.__main__" if is_package else package_or_module)
    sys.argv = [f"{typed} {name}", *sub_command, *arguments]
    run_and_leave(module.parser(), module.command)


def list_commands(typed: str) -> str:
    """Return a line for each command: its name, the module behind it, and a description."""
    rows = []
    for name, (started_by, description) in COMMANDS.items():
        # A command is not broken between its words.
        module_command = f"python -m {started_by}".replace(" ", NO_BREAK)
        rows.append((name, f"{description} ({module_command})"))
    head = f"usage: {typed} COMMAND ...     each command has --help"
    return f"{head}\n\n{definitions(rows)}".replace(NO_BREAK, " ")


if __name__ == "__main__":
    main()
