"""Two things stand in one place: what DSPy does not document, and SQL on the tables of answers."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from conftest import ROOT

PACKAGES = ("agents", "environments", "evals", "optimizers", "programs", "tools")
INTERNALS = ROOT / "tools/models/dspy_internals.py"
STORAGE = ROOT / "tools/models/storage"
# What the file of DSPy's undocumented names has, by its module there.
NAMES = {
    "apply_output_field_defaults": "dspy.adapters.utils",
    "parse_value": "dspy.adapters.utils",
    "translate_field_type": "dspy.adapters.utils",
    "attributes": "dspy.clients.call_result",
    "litellm_errors": "dspy.clients.engines.litellm_errors",
    "error_boundary": "dspy.clients.errors",
    "chat_to_responses": "dspy.clients.legacy_requests",
    "request_kwargs": "dspy.clients.lm15_boundary",
    "response_value": "dspy.clients.lm15_boundary",
    "dotdict": "dspy.dsp.utils",
    "InstructionProposer": "dspy.teleprompt.gepa",
    "parallelizer": "dspy.utils",
    "with_callbacks": "dspy.utils.callback",
}
# Modules that DSPy documents: its requests and answers, and the base class of callbacks.
DOCUMENTED = ("dspy", "dspy.lm15", "dspy.utils.callback.BaseCallback")
# DSPy's packages, whose names are undocumented where `dspy` itself has not got them.
INSIDE = re.compile(
    r"dspy\.(adapters|clients|core|dsp|evaluate|predict|primitives|propose|signatures|teleprompt|utils)\b"
)
TABLES = re.compile(r"\b(?:FROM|INTO|UPDATE|JOIN|TABLE)\s+(?:\w+\.)?(?:calls|parts|gathered)\b")


def sources() -> Iterator[tuple[Path, ast.Module]]:
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            yield path, ast.parse(path.read_text(encoding="utf-8"))


def imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Module and name of what a file imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", alias.name) for alias in node.names)


def test_undocumented_names_of_dspy_are_imported_in_one_file_alone():
    tree = ast.parse(INTERNALS.read_text(encoding="utf-8"))
    assert {name: module for module, name in imported(tree)} == NAMES
    found = []
    for path, tree in sources():
        if path == INTERNALS:
            continue
        names = {f"{module}.{name}" for module, name in imported(tree) if module not in DOCUMENTED}
        names |= {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        names -= {*DOCUMENTED}
        found += [
            (str(path), name) for name in names if name.startswith("dspy.") and INSIDE.match(name)
        ]
    assert not found


def test_statements_about_answers_stand_where_answers_are_stored():
    found = []
    for path, tree in sources():
        texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
        if STORAGE not in path.parents:
            found += [(str(path), text) for text in texts if TABLES.search(str(text))]
    assert not found
