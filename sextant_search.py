"""The start of Sextant: our six packages have common names, and no module of somebody else's may stand in for one.

Every package's __init__.py calls `require_ours` before it imports anything of ours, and the command `sextant` starts
here. So this module imports none of the six, and each of them has this module's name in its __init__.py.
"""

import os
import sys
from collections.abc import Iterable
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("agents", "environments", "evals", "optimizers", "programs", "tools")

_HERE = Path(__file__).parent
_MARK = b"sextant_search"
_OWN_ENVIRONMENT = "install Sextant into an environment of its own"
_AGAIN = "install Sextant again, with pip's --force-reinstall --no-deps"


def main() -> None:
    """Start the command `sextant`, unless one of our packages is somebody else's."""
    if problem := find_foreign(PACKAGES):
        _exit(problem)
    from evals.__main__ import main as start  # it may be imported only after the check

    start()


def require_ours(*needed: str) -> None:
    """Raise ImportError if a package that is needed is not Sextant's.

    For `python -m`, which looks into the current folder first, all six must be: it is one line on stderr, exit code 2.
    """
    is_command = (
        getattr(sys, "argv", None) and sys.argv[0] == "-m"
    )  # while the module to be run is looked for
    problem = find_foreign(PACKAGES if is_command else needed)
    if problem and is_command:
        _exit(problem)
    if problem:
        raise ImportError(problem)


def find_foreign(packages: Iterable[str]) -> str:
    """Return which of our packages is not Sextant's, and what to do; "" if all of them are."""
    for package in packages:
        if problem := _find_problem(package):
            return problem
    return ""


def _exit(problem: str) -> None:
    print(f"error: {problem}", file=sys.stderr)  # noqa: T201
    raise SystemExit(2)


def _find_problem(package: str) -> str:
    ours = _HERE / package / "__init__.py"
    spec = _find_spec(package)
    if (
        spec is None or spec.origin is None
    ):  # a folder without __init__.py counts only if there is no package
        lost = "which another package of that name takes along when it is uninstalled"
        return f"{ours} is missing, {lost}; {_AGAIN}"
    place = Path(spec.origin)
    if not place.is_absolute():
        return f"a module {package!r} that was loaded before hides Sextant's; give it another name"
    if _is_same(place, ours):
        if _MARK in ours.read_bytes():
            return ""
        other = _find_distribution(package)
        return f"{other} has put its own {package!r} over Sextant's ({place}); {_OWN_ENVIRONMENT}, or {_AGAIN}"
    shown = place.parent if place.name == "__init__.py" else place
    hides = f"{shown} hides Sextant's {package!r}"
    if "-packages" in str(place):
        return f"{hides}: it comes with {_find_distribution(package)}; {_OWN_ENVIRONMENT}, or uninstall that package"
    folder = shown.parent
    added = os.environ.get("PYTHONPATH")
    if added and any(_is_same(Path(entry), folder) for entry in added.split(os.pathsep)):
        return f"{hides}; rename it, or take {folder} out of $PYTHONPATH"
    if _is_same(folder, Path()):
        return f"{hides}; use the command `sextant`, or start in another folder"
    return f"{hides}; rename it, or take {folder} out of Python's path"


def _find_spec(package: str) -> ModuleSpec | None:
    try:
        return find_spec(package)
    except ValueError:  # a module that was put into sys.modules by hand
        return ModuleSpec(
            package, None, origin=getattr(sys.modules[package], "__file__", None) or package
        )


def _find_distribution(package: str) -> str:
    """Return the name of another distribution that has installed a package of this name, as far as that is known."""
    from importlib.metadata import packages_distributions  # it takes long to import and to ask

    others = sorted({*packages_distributions().get(package, [])} - {"sextant-search"})
    return " and ".join(others) or "another package"


def _is_same(first: Path, second: Path) -> bool:
    try:
        return first == second or first.samefile(second)
    except OSError:
        return False
