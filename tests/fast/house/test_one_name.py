"""All modules of ours are imported from `sextant`, and none is loaded twice under two names."""

import ast
import json
import re
import subprocess
import sys

import pytest
from conftest import ROOT

from sextant import PACKAGES
from sextant.evals.__main__ import COMMANDS, list_modules

SHORT = re.compile(rf"^\s*(?:>>> )?(?:from|import) ({'|'.join(PACKAGES)})\b", re.M)
# They tell of the modules themselves.
NAME_MODULES = {"evals/__main__.py", "evals/python_interface.py"}
# Starts a module as `python -m` does, in a checkout, and prints the files that two modules share.
SCRIPT = """
import collections, json, os, runpy, sys
names = collections.defaultdict(list)
try:
    runpy.run_module(sys.argv[1], run_name="__main__", alter_sys=True)
except SystemExit:
    pass
seen = {}
for name, module in list(sys.modules.items()):
    if file := getattr(module, "__file__", None):
        seen.setdefault(os.path.realpath(file), {})[id(module)] = name
print(json.dumps([sorted(names.values()) for names in seen.values() if len(names) > 1]))
"""


def list_tracked(*suffixes):
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    paths = [ROOT / line for line in listed.stdout.splitlines() if line.endswith(suffixes)]
    return [path for path in paths if path.is_file()]


def list_imports(source):
    """The modules that a source imports, with the names that it takes from each."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_no_file_imports_ours_without_the_prefix():
    short = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in list_tracked(".py")
        if path.parent.name != "clients"  # examples/clients import packages of others
        for name in list_imports(path.read_text(encoding="utf-8"))
        if name.partition(".")[0] in PACKAGES
    ]
    assert short == []


def test_no_page_imports_ours_without_the_prefix():
    pages = list_tracked(".md", ".in", ".ipynb")
    texts = {
        path: path.read_text(encoding="utf-8") for path in pages if path.name != "CHANGELOG.md"
    }
    assert {path: SHORT.findall(text) for path, text in texts.items() if SHORT.search(text)} == {}


MODULES = [re.escape(path.removeprefix("sextant.")) for path, _ in COMMANDS.values()]
DOTTED = "|".join(module for module in MODULES if "." in module)
COMMAND_MODULE = re.compile(
    rf"python -m (?:$|{'|'.join(PACKAGES)})|(?<![\w.])(?:sextant\.)?(?:{DOTTED})(?![\w.:/])"
)


@pytest.mark.parametrize("package", (*PACKAGES, "construction/sextant_construction"))
def test_a_text_names_a_command_as_it_is_typed(package):
    """Not by its module, which an installation starts otherwise. The table of commands has the modules."""
    named = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            text = node.value if isinstance(node, ast.Constant) else None
            found = COMMAND_MODULE.search(text) if isinstance(text, str) else None
            if found and found[0] != text:  # a whole text is a module to be imported
                named[str(path.relative_to(ROOT))] = found[0]
    assert named.keys() <= NAME_MODULES, named


def list_twice_loaded(module, folder):
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.argv[1:] = [{module!r}, '--help']\n{SCRIPT}"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("module", sorted({path for path, _ in list_modules().values()}))
def test_no_command_loads_a_module_twice_under_two_names(module):
    assert list_twice_loaded(module.removeprefix("sextant."), ROOT) == []
