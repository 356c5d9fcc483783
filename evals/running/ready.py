"""A run that is ready to begin: its task, program and model, with its indexes in place."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sextant.environments.base import Environment
from sextant.evals import run_folder
from sextant.evals.running import runner
from sextant.evals.running.resolve import ResolvedRequest
from sextant.evals.scoring.metrics import compute, ranking_of
from sextant.tools.models import language_model
from sextant.tools.retrievers.base import Retriever
from sextant.tools.retrievers.expressions import RetrieverSpec


@dataclass(slots=True)
class PreparedRun:
    """A run that is ready to answer queries: indexes built, model connected."""

    resolved: ResolvedRequest
    environment: Environment  # with the pools of --pool once the run has begun
    model: language_model.ConnectedModel
    config: run_folder.Config
    system: runner.System
    retrievers: Sequence[tuple[RetrieverSpec, Retriever]]  # that the program may search by
    start: Any = None  # what starts a worker, where queries are answered in other processes
    whole: int = 0  # queries of the run, where this is a shard of it

    def value(self, outcome: run_folder.Outcome) -> float | None:
        """Return the headline metric of an outcome."""
        query_id = outcome["query_id"]
        return compute(
            self.environment.metric, query_id, {query_id: ranking_of(outcome)}, self.environment
        )
