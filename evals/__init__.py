"""Run, score, compare: the only place where judgements and search systems meet.

from evals import evaluate
result = evaluate(program="multihop", task="congress", split="dev")
print(result.metrics["nDCG@10"].mean, result.folder)
"""

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any


def refuse_shadows(*packages: str) -> None:
    """Raise ImportError where a file or folder of the user's has the name of one of our packages and is found first.

    For `python -m evals.run`, which looks into the current folder first, it is one line on stderr and exit code 2.
    """
    ours = Path(__file__).parents[1]
    for package in packages:
        spec = find_spec(package)
        places = [Path(place) for place in spec.submodule_search_locations or [spec.origin or ""]] if spec else []
        if ours / package not in places:
            where = f"{places[0]} hides" if places else "there is no package for"
            problem = f"{where} Sextant's {package!r}; use the command `sextant`, or start in another folder"
            if sys.argv[0] == "-m":  # this package is being imported for a command of its own
                print(f"error: {problem}", file=sys.stderr)  # noqa: T201
                raise SystemExit(2)
            raise ImportError(problem)


refuse_shadows("tools", "environments", "programs", "agents")


def __getattr__(name: str) -> Any:
    """Import what is for Python when it is used: --help does not wait for it."""
    modules = {"evaluate": "evaluation", "Request": "request", "Result": "evaluation"}
    if name not in modules:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"evals.running.{modules[name]}"), name)
