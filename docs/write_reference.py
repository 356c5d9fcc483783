"""Writes docs/reference.md: `python docs/write_reference.py`.

docs/reference.in has the sentences of the page. Its {{placeholders}} stand for what the code says
of itself: commands, options and their help, exit codes, the tables of names, and outputs.
"""

import inspect
import os
import re
import shlex
import subprocess
import sys
from argparse import SUPPRESS
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

# Found by the paths above.
from site_pages import list_parsers

from sextant import environments
from sextant.evals.__main__ import list_modules
from sextant.evals.running.request import SYSTEMS, find_program
from sextant.optimizers.teleprompters import TELEPROMPTERS
from sextant.tools import errors
from sextant.tools.platform.terminal import first_sentence
from sextant.tools.retrievers import RETRIEVERS
from sextant.tools.retrievers.__main__ import describe

# The page of a command.
PAGES = {
    "study": "guide/study.md",
    "serve": "guide/serve.md",
    "gather": "guide/scale.md",
    "compare": "decisions/comparing.md",
    "reach": "guide/compare.md",
    "variance": "guide/study.md",
    "credit": "guide/compare.md",
    "curves": "guide/compare.md",
    "behaviour": "guide/compare.md",
    "view": "guide/see-and-export.md",
    "report": "guide/see-and-export.md",
    "reproduce": "guide/study.md",
    "judge": "../construction/docs/build.md",
    "build": "../construction/docs/build.md",
    "export": "guide/see-and-export.md",
    "compile": "guide/compile.md",
    "models": "guide/models.md",
    "cache": "guide/cost.md",
}
# Options that have sentences of their own in the template.
SECTIONS = {"--program", "--task", "--retriever", "--lm", "--optimizer", "--json"}
_PLACEHOLDER = re.compile(r"\{\{(\w+) ?([^}]*)\}\}")


def compose() -> str:
    """Return the page. ValueError unless each option of `run` and `compile` is on it once."""
    template = (ROOT / "docs/reference.in").read_text(encoding="utf-8")
    check_options(template)
    return _PLACEHOLDER.sub(_fill, template)


def check_options(template: str) -> None:
    """Raise ValueError for an option of `run` or `compile` without a place in the template."""
    of_run = list_options("run")
    of_compile = list_options("compile").items()
    known = {("run", name) for name in of_run}
    # With another help it is another option.
    known |= {("compile", name) for name, help_text in of_compile if of_run.get(name) != help_text}
    known = {(command, name) for command, name in known if name not in SECTIONS}
    placed = set()
    for name, words in _PLACEHOLDER.findall(template):
        if name == "options":
            command, *options = words.split()
            placed |= {(command, option) for option in options}
    if wrong := placed ^ known:
        raise ValueError(f"docs/reference.in has no place, or a place for nothing: {sorted(wrong)}")


def list_options(command: str) -> dict[str, str]:
    """Return the options of a command that has no sub-commands, each with its help."""
    parser = next(list_parsers(command))
    options = {}
    for action in parser._actions:
        if action.option_strings and action.help != SUPPRESS and action.dest != "help":
            options[action.option_strings[-1]] = f"{action.help}"
    return options


def _fill(match: re.Match[str]) -> str:
    name, words = match.groups()
    makers = {
        "commands": _commands,
        "codes": _exit_codes,
        "tasks": _tasks,
        "options": _options,
        "programs": _programs,
        "retrievers": _retrievers,
        "optimizers": _optimizers,
        "output": _output,
    }
    return makers[name](words)


def _table(rows: Iterable[Iterable[str]]) -> str:
    """Return the rows of a table, with links to the pages that they name."""
    lines = []
    for row in rows:
        cells = [cell.replace("|", "\\|") for cell in row]
        lines.append(f"| {' | '.join(cells)} |".replace("|  |", "| |"))
    return _link("\n".join(lines))


def _link(text: str) -> str:
    return re.sub(r"(?<![(\w./-])[^\s(]*docs/([\w/-]*?)([\w-]+\.md)", r"[\2](\1\2)", text)


def _commands(_: str) -> str:
    rows = []
    for name, (module_name, description) in list_modules().items():
        sub_parsers = list(list_parsers(name))[1:]
        sub_commands = [f"`{parser.prog.split()[-1]}`" for parser in sub_parsers]
        module = "" if module_name == f"sextant.evals.{name}" else f"`{module_name}`"
        shown_name = f"[`{name}`]({PAGES[name]})" if name in PAGES else f"`{name}`"
        rows.append((shown_name, module, description, " ".join(sub_commands)))
    return _table(rows)


def _exit_codes(_: str) -> str:
    meanings = {0: "Done", errors.INTERRUPTED: "Interrupted"}
    for error_type in errors.SextantError.__subclasses__():
        meanings.setdefault(error_type.exit_code, _first_clause(error_type.__doc__ or ""))
    return _table((str(code), meaning) for code, meaning in sorted(meanings.items()))


def _tasks(suite: str) -> str:
    _, names = environments.SUITES[suite]
    return " ".join(f"`{name}`" for name in names.split())


def _options(words: str) -> str:
    command, *names = words.split()
    helps = list_options(command)
    return _table((f"`{name}`", _first_clause(helps[name])) for name in names)


def _first_clause(text: str) -> str:
    """Return a sentence up to its first semicolon: what follows is said by --help."""
    return first_sentence(text).rstrip(".").partition(";")[0]


def _programs(_: str) -> str:
    rows = []
    for name in SYSTEMS:
        description = first_sentence(inspect.getdoc(find_program(name)))
        rows.append((f"`{name}`", description))
    return _table(rows)


def _retrievers(_: str) -> str:
    rows = []
    for name in RETRIEVERS:
        retriever = describe(name)
        rows.append((f"`{retriever['form']}`", _first_clause(retriever["what"])))
    return _table(rows)


def _optimizers(_: str) -> str:
    return _table((f"`{name}`", row.summary) for name, row in TELEPROMPTERS.items())


def _output(words: str) -> str:
    """Return the output of a command in a home without data; `COMMAND ... LAST` ends with the
    first line that begins so.
    """
    line, _, last = words.partition(" ... ")
    _, *arguments = shlex.split(line)
    with TemporaryDirectory() as folder:
        surroundings = os.environ | {"SEXTANT_HOME": folder, "COLUMNS": "200"}
        command = [sys.executable, "-m", "sextant", *arguments, "--runs", f"{folder}/runs"]
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=surroundings,
            capture_output=True,
            encoding="utf-8",
            check=True,
        )
    lines = []
    for printed in done.stdout.splitlines():
        lines.append(printed.rstrip())
        if last and printed.startswith(last):
            break
    return "\n".join(lines).rstrip()


if __name__ == "__main__":
    (ROOT / "docs/reference.md").write_text(compose(), encoding="utf-8")
