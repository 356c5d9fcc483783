"""Pages of the site that are made of the code: the help of each command, and docstrings of the
Python interface. A hook of MkDocs (mkdocs.yml).
"""

import re
import sys
from argparse import ArgumentParser, _SubParsersAction
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from sextant.evals.__main__ import import_command, list_modules  # found by the path above

# What a user calls or subclasses, as module:name or a whole module, by heading.
PYTHON = {
    "Run and compare": [
        "sextant.evals.running.evaluate.evaluate",
        "sextant.evals.running.evaluate.Result",
    ]
    + [
        f"sextant.evals.python_interface.{name}"
        for name in ("experiment", "compare", "curves", "behaviour", "study", "TabledResult")
    ],
    "Requests": ["sextant.evals.running.request.Request"],
    "Tasks": ["environments.load", "sextant.environments.base.Environment"],
    "Programs": [
        "sextant.programs.base.Program",
        "sextant.tools.session.Toolbox",
        "sextant.tools.session.Session",
    ],
    "Retrievers": ["sextant.tools.retrievers.base.Retriever"],
    "Records": ["sextant.tools.records"],
    "Tables": ["sextant.tools.platform.result_table.ResultTable"],
}
_LINK = re.compile(r"\[([^\]]*)\]\(((?:\.\./)+[^)#]*)(?:#[^)]*)?\)")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are made of the code."""
    from mkdocs.structure.files import File  # this file is read without MkDocs, too

    pages = {"python.md": describe_python(), "commands.md": describe_commands()}
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Leave the names of links that lead out of docs/, whose targets are in the repository alone."""
    docs = Path(config.docs_dir)
    folder = (docs / page.file.src_path).parent

    def shorten(match: re.Match[str]) -> str:
        target = (folder / match[2]).resolve()
        return match[0] if target.is_relative_to(docs) and target.is_file() else match[1]

    return _LINK.sub(shorten, markdown)


def describe_python() -> str:
    """Return the page of what can be imported."""
    lines = ["# Python", ""]
    for heading, names in PYTHON.items():
        lines += [f"## {heading}", ""]
        for name in names:
            lines += [f"::: {name}", "    options:", "      heading_level: 3", ""]
    return "\n".join(lines)


def describe_commands() -> str:
    """Return the page with the help of each command and its sub-commands."""
    lines = ["# Commands", "", "The `--help` of each command.", ""]
    for name, (module_name, description) in list_modules().items():
        lines += [f"## {name}", "", f"{description} (`python -m {module_name}`)", ""]
        for parser in list_parsers(name):
            lines += ["```text", parser.format_help().rstrip(), "```", ""]
    return "\n".join(lines)


def list_parsers(name: str) -> Iterator[ArgumentParser]:
    """Yield the parser of a command, and those of its sub-commands."""
    parser = import_command(name).parser()
    yield parser
    yield from _sub_parsers(parser).values()


def _sub_parsers(parser: ArgumentParser) -> dict[str, ArgumentParser]:
    found = dict[str, ArgumentParser]()
    for action in parser._actions:
        if isinstance(action, _SubParsersAction):
            found |= action.choices
    return found
