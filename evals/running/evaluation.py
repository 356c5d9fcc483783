"""Evaluate a search system on a task, from Python: `evaluate`, or `run` with a request and a report.

    result = evaluate(program="multihop", task="congress", split="dev")
    print(result.metrics["nDCG@10"].mean, result.folder)

Here a task, a retriever, a program and a model meet. Nothing is printed; a report is told what happens.
"""

import os
import time
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

# Nothing may phone home or spin idle cores; said before the libraries that look here are imported. LiteLLM's own
# switch is in tools/models/spec.py. NumPy's threads are off; those of the encoders are counted where they work, and
# $OMP_NUM_THREADS bounds them.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import environments
from evals.measuring.metrics import add_metrics
from evals.running import sitting
from evals.running.request import Request
from evals.running.resolve import Resolved, fit, resolve
from tools import options
from tools.errors import UsageError
from tools.models import spec

if TYPE_CHECKING:
    from environments.base import Environment
    from evals.running.forecast import Estimate


def evaluate(*, program: str, task: str, **fields: Any) -> sitting.Result:
    """Run a program on a task and score it; `fields` are those of evals.running.request.Request.

    What was answered before, in the same run folder, is not asked again. SextantError, of the kind that says what to
    do, where the request is wrong or queries are left pending; `run` gives back a result for these, too.
    """
    result = run(options.make(Request, {"program": program, "task": task, **fields}))
    if result.problem:
        raise result.problem
    return result


def run(request: Request, report: sitting.Report | None = None) -> sitting.Result:
    """Answer what is pending of a request's run, and score it. Queries may be pending afterwards: see `problem`."""
    started = time.monotonic()
    with _children(request):
        resolved, environment = _fit(request)
        return sitting.sit(resolved, environment, report, started)


def forecast(request: Request) -> "Estimate":
    """Estimate what the run of a request would ask of its model and what that would cost; nothing is sent."""
    if request.isolated:
        raise UsageError("--dry-run asks no program of somebody else's; leave out --isolated")
    resolved, environment = _fit(request)
    from evals.running.forecast import estimate  # imports rich

    return estimate(resolved, environment)


def _children(request: Request) -> AbstractContextManager[None]:
    """Return a context in which the processes of an isolated program end with it."""
    if not request.isolated:
        return nullcontext()
    from programs.isolation.parent import reaping  # few runs need it

    return reaping()


def _fit(request: Request) -> "tuple[Resolved, Environment]":
    """Look up the names of a request, load its task, and see that they fit."""
    spec.read_keys()
    resolved = resolve(request)
    environment = environments.load(
        request.task, request.data, request.split, qrels=request.qrels, instruction=request.instruction
    ).asking(limit=request.limit, query_ids=request.query_ids)
    return fit(resolved, environment), add_metrics(environment, request.metrics)
