"""What our packages import is declared in the pyproject.toml of their distribution, as a dependency or in an extra."""

import ast
import re
import sys
import tomllib
from functools import cache
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

from conftest import ROOT

PACKAGES = ("agents", "environments", "evals", "optimizers", "programs", "tools")
# A package -> the folder of its pyproject.toml
PROJECTS = dict.fromkeys(PACKAGES, ROOT) | {
    "construction/sextant_construction": ROOT / "construction"
}
FOR_DEVELOPERS = {
    "benchmarks",
    "check",
    "docs",
    "soak",
    "test",
    "test-models",
}  # extras that no user installs to use Sextant
# Modules of packages that are not installed for the tests, where the package is not called as its module
NAMED_OTHERWISE = {"mlflow": "mlflow-skinny", "openenv": "openenv-core"}
installed = cache(packages_distributions)


def normalized(name: str) -> str:
    """A distribution's name as the package index compares it, from a requirement."""
    return re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", name)[0]).lower()


def declared(folder: Path) -> set[str]:
    """The distributions that the folder's pyproject.toml names for users."""
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    requirements = list(project["dependencies"])
    for extra, more in project["optional-dependencies"].items():
        if extra not in FOR_DEVELOPERS:
            requirements += more
    return {normalized(requirement) for requirement in requirements}


def imported(path: Path) -> set[str]:
    """The modules that a file imports, also inside functions and by `import_module`; dotted, other than ours."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(
            ("import_module", "find_spec")
        ):
            names |= {word.value for word in node.args if isinstance(word, ast.Constant)}
    ours = {"sextant", "sextant_construction", *sys.stdlib_module_names}
    return {name for name in names if name.partition(".")[0] not in ours}


def origins(module: str) -> set[str]:
    """The distributions, one of which has to be declared for a module, or for what it is imported from."""
    top = module.partition(".")[0]
    candidates = installed().get(top, [])
    if not candidates:
        return {normalized(NAMED_OTHERWISE.get(top, top))}
    parts = module.split(".")
    while (
        len(set(candidates)) > 1 and len(parts) > 1
    ):  # a namespace that several distributions share
        having = {name for name in candidates if has_module(name, "/".join(parts))}
        if having:
            candidates = having
            break
        parts.pop()
    return {normalized(name) for name in candidates}


@cache
def has_module(name: str, path: str) -> bool:
    files = distribution(name).files or []
    return any(str(file).startswith((f"{path}/", f"{path}.")) for file in files)


def test_what_is_imported_is_declared():
    undeclared = {}
    for package, folder in PROJECTS.items():
        known = declared(folder)
        for path in (ROOT / package).rglob("*.py"):
            for module in imported(path):
                if not origins(module) & known:
                    undeclared.setdefault(module, set()).add(str(path.relative_to(ROOT)))
    assert undeclared == {}, "declare these in pyproject.toml, as a dependency or in an extra"


def test_a_package_of_a_shared_namespace_is_told_from_its_neighbours():
    assert origins("opentelemetry.sdk.trace.TracerProvider") == {"opentelemetry-sdk"}
    assert origins("google.protobuf.json_format") == {"protobuf"}
