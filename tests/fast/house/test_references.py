"""Names of our own that the code gives as text exist: mypy does not read them."""

import ast
import re
from functools import reduce
from importlib import import_module
from pathlib import Path

import pytest

from sextant.evals.__main__ import list_modules
from sextant_construction.__main__ import parser as build_parser
from sextant_construction.recipe import RECIPES

ROOT = Path(__file__).parents[3]
PACKAGES = ("agents", "environments", "evals", "optimizers", "programs", "tools")
REFERENCE = re.compile(
    rf"(?:(?:sextant\.)?(?:{'|'.join(PACKAGES)})|sextant_construction)(?:\.\w+)*:\w+(?:\.\w+)*(?![\w/-])"
)


def references():
    found = {}
    for package in (*PACKAGES, "construction/sextant_construction"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    for reference in REFERENCE.findall(node.value):
                        found.setdefault(reference, path.relative_to(ROOT).as_posix())
    return found


@pytest.mark.parametrize("reference, path", references().items())
def test_a_reference_names_what_is_there(reference, path):
    module, _, attribute = reference.partition(":")
    assert module.startswith(("sextant.", "sextant_construction.")), path
    try:
        loaded = import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "sextant":
            raise
        pytest.skip(f"{error.name} is not installed")
    assert reduce(getattr, attribute.split("."), loaded) is not None, path


@pytest.mark.parametrize("reference", RECIPES.values(), ids=list(RECIPES))
def test_a_recipe_has_the_function_that_builds_its_benchmark(reference):
    assert callable(import_module(reference.partition(":")[0]).build_benchmark)


@pytest.mark.parametrize("started_by", sorted({command for command, _ in list_modules().values()}))
def test_a_command_has_a_parser_and_a_function(started_by):
    name = started_by.split()[0]
    module = import_module(name)
    if hasattr(module, "__path__"):
        module = import_module(f"{name}.__main__")
    assert callable(module.parser)
    assert callable(module.command)


@pytest.mark.parametrize("name", ["check", "contamination", "review"])
def test_a_late_sub_command_of_build_adds_its_options(name, capsys):
    with pytest.raises(SystemExit) as ended:
        build_parser().parse_args([name, "--help"])
    assert ended.value.code == 0
    assert f"sextant build {name}" in capsys.readouterr().out
