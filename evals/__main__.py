"""`sextant` and `python -m evals`: every command by name. `sextant run ...` is `python -m evals.run ...`.

The modules are started by name, as `python -m` would: this file imports no command.
"""

import runpy
import sys

from tools import installation
from tools.console import say
from tools.errors import UnknownName

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
    "prompts": ("programs show", "print the prompts of a program as a file, to edit for --prompts"),
    "tasks": ("environments", "list, show, fetch, check and search tasks"),
    "retrievers": ("tools.retrievers", "list retrievers and models; list and delete indexes"),
    "models": ("tools.models", "check a model: what works, how fast it is, which options it needs"),
    "cache": ("programs.lm cache", "list, show, export and clear the answers that were paid for"),
}


def main() -> None:
    """Start the command that is named first; without one, list them."""
    name, *rest = sys.argv[1:] or ["--help"]
    if name == "--version":
        print(installation.version())  # noqa: T201
    elif name in ("-h", "--help"):
        print(overview())  # noqa: T201
    elif name in COMMANDS:
        module, *words = COMMANDS[name][0].split()
        sys.argv = ["sextant" if words else f"sextant {name}", *words, *rest]
        runpy.run_module(module, run_name="__main__")
    else:
        say(f"error: {UnknownName('command', name, COMMANDS)}")
        sys.exit(UnknownName.exit_code)


def overview() -> str:
    """Return a line for each command: how it is called, the module behind it, and what it does."""
    lines = ["usage: sextant COMMAND ...     each command has --help", ""]
    for name, (module, about) in COMMANDS.items():
        lines.append(f"  sextant {name:<11} python -m {module:<20} {about}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
