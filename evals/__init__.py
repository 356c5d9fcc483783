"""Run, score, compare: the only place where judgements and search systems meet.

from sextant.evals import behaviour, compare, credit, curves, evaluate, experiment, study

result = evaluate(program="multihop", task="congress", split="dev")
print(result.metrics["nDCG@10"].mean, result.folder)
experiment(["retrieve", "multihop"], "congress")

Results print as tables, are HTML in a notebook, and have `to_pandas()` (evals/python_interface.py).
"""

from importlib import import_module
from typing import Any

import sextant

sextant.use_full_name(__name__)


# Modules of commands, which can be called as functions.
_CALLABLE = ("behaviour", "compare", "credit", "curves", "study")
# Other names -> the module that defines them.
_DEFINED_IN = {
    "Request": "running.request",
    "Result": "running.evaluate",
    "evaluate": "running.evaluate",
    "experiment": "python_interface",
}
__all__ = [
    "Request",
    "Result",
    "behaviour",
    "compare",
    "credit",
    "curves",
    "evaluate",
    "experiment",
    "study",
]  # by __getattr__


def __getattr__(name: str) -> Any:
    """Import the Python interface on first use, so that --help does not wait for it."""
    if name in _CALLABLE:
        return import_module(f"sextant.evals.{name}")
    if name not in _DEFINED_IN:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"sextant.evals.{_DEFINED_IN[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
