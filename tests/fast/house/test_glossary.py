"""The words that docs/glossary.md bans are in no name of a module, a class or a public function."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from conftest import PRODUCT, ROOT

PACKAGES = (*PRODUCT, "benchmarks")
_, _, NAMES = (ROOT / "docs/glossary.md").read_text(encoding="utf-8").partition("## Names in code")
BANNED = {
    word for line in re.findall(r"^    (\S.*)$", NAMES, re.MULTILINE) for word in line.split()
}
EXEMPT = set(re.findall(r"`(\w+)`", NAMES))


def names(path: Path) -> Iterator[str]:
    """Yield the names of a module: its own, its classes and its public functions."""
    yield path.stem
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef):
            yield node.name
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if is_function and not node.name.startswith("_"):
            yield node.name


def words(name: str) -> set[str]:
    """Return the words of a name, in lower case and without a plural s."""
    parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)
    return {part.lower() for part in parts} | {part.lower().removesuffix("s") for part in parts}


def test_no_name_has_a_word_that_the_glossary_bans():
    assert len(BANNED) > 20
    offenders = [
        f"{path.relative_to(ROOT)}: {name}"
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        for name in names(path)
        if name not in EXEMPT and words(name) & BANNED
    ]
    assert offenders == []


def test_the_architecture_page_names_every_context_variable():
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    table = page.partition("## State that follows a query")[2].partition("\n## ")[0]
    listed = set()
    for row in table.splitlines():
        cells = [re.findall(r"`([^`]+)`", cell) for cell in row.split("|")[1:3]]
        if len(cells) == 2:
            listed |= {(name, module) for name in cells[0] for module in cells[1]}
    defined = set()
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            source = path.read_text(encoding="utf-8")
            for name in re.findall(r"^(\w+)(?:: ContextVar\b.*)? = ContextVar\(", source, re.M):
                defined.add((name, str(path.relative_to(ROOT))))
    assert listed == defined


def test_the_architecture_page_names_functions_that_are_there():
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    table = page.partition("## The life of a model call")[2].partition("\n## ")[0]
    rows = re.findall(r"\| ((?:`\w+`, )*`\w+`) in `([\w/]+\.py)` \|", table)
    assert len(rows) > 8
    for functions, module in rows:
        source = (ROOT / module).read_text(encoding="utf-8")
        for function in re.findall(r"`(\w+)`", functions):
            assert re.search(rf"\bdef {function}\(", source), f"{module} has no {function}"
