"""Sextant, a sandbox for agentic search: `from sextant.evals import evaluate`, or `sextant run`.

In the repository the six packages are folders at the top, and links in this folder lead to them;
in an installation they are in this folder.
"""

import sys
from importlib import import_module

PACKAGES = ("agents", "environments", "evals", "optimizers", "programs", "tools")


def use_full_name(package: str) -> None:
    """Let a package that was imported by its short name be the package in `sextant`.

    So `python -m evals.run`, which works in a checkout, loads each module once, as sextant.evals.
    """
    if package.partition(".")[0] in PACKAGES:
        sys.modules[package] = import_module(f"sextant.{package}")
