"""Run, score, compare: the only place where judgements and search systems meet.

from evals import evaluate
result = evaluate(program="multihop", task="congress", split="dev")
print(result.metrics["nDCG@10"].mean, result.folder)
"""

from importlib import import_module
from typing import Any

from sextant_search import require_ours

require_ours("agents", "environments", "programs", "tools")

import tools  # noqa: F401  # it lets old names of modules be imported: tools/moved_modules.py


def __getattr__(name: str) -> Any:
    """Import the Python interface on first use, so that --help does not wait for it."""
    modules = {"evaluate": "evaluate", "Request": "request", "Result": "evaluate"}
    if name not in modules:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"evals.running.{modules[name]}"), name)
