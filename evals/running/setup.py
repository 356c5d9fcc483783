"""What a run works with: retrievers, model, program and configuration, made of a resolved request."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from evals import folder as run_folder
from evals.running import parameters, pools
from evals.running.configuration import configuration
from evals.running.connections import Connections
from evals.running.engines import Engines
from evals.running.resolve import Resolved
from programs.parts.ensembles import assembled
from tools.models.lm import Model
from tools.retriever import RanksOnly
from tools.session import Toolbox

if TYPE_CHECKING:
    from environments.base import Environment


@dataclass(slots=True)
class Ready:
    """What a run needs, once its indexes are there. But for them nothing has been sent."""

    resolved: Resolved
    environment: "Environment"  # with the pools of --pool once the run has begun
    engines: Engines
    model: Model
    config: run_folder.Config
    system: Any

    @property
    def workers(self) -> int:
        """Queries at a time."""
        return self.resolved.request.workers

    def begin(self, folder: run_folder.RunFolder) -> None:
        """Take up the books of the run in `folder`, and make its pools: what the searches for them cost is in these."""
        request, pool = self.resolved.request, self.resolved.pool
        self.engines.keep(folder.path, request.runs)
        if request.again:
            self.model.lm.anew = folder.ask_failed_again()
        self.model.begin(folder.path, folder.usage)
        if pool:
            parts = [self.engines.build(part) for part in pool.parts]
            self.environment = pools.pooled(self.environment, pool, parts)


def prepare(resolved: Resolved, environment: "Environment") -> Ready:
    """Open the retrievers, connect the model and make the program; indexes that are not there are built."""
    request, connections = resolved.request, Connections(resolved.request)
    engines = Engines(environment, connections.budget, request.prices, connections.for_lens)
    retriever = engines.build(resolved.retriever)
    others = {name: engines.build(spec) for name, spec in resolved.others.items()}
    model = connections.connect(environment, retriever, seed=request.seed)
    config = configuration(resolved, environment, retriever, model)
    config["retriever"]["others"] = {name: other.name for name, other in others.items()}
    if resolved.pool:
        parts = [engines.build(part).name for part in resolved.pool.parts]
        config["pool"] = resolved.pool.config(parts, environment)
        retriever, others = RanksOnly(retriever), {name: RanksOnly(other) for name, other in others.items()}
    depth, path = config["depth"], run_folder.place(request.runs, config)
    limits = parameters.session_limits(resolved.limits, depth)
    toolbox = Toolbox(environment.documents, retriever, others=others, limits=limits, checkpoints=path)
    system = resolved.constructor(toolbox, depth=depth, **resolved.values)
    if resolved.compiled and not resolved.isolated:
        system = assembled(resolved.compiled, system)
    return Ready(resolved, environment, engines, model, config, system)


def unsent(resolved: Resolved, environment: "Environment") -> tuple[Model, run_folder.Config]:
    """The model and the configuration alone, where no retriever is to be opened."""
    model = Connections(resolved.request).connect(environment, seed=resolved.request.seed)
    return model, configuration(resolved, environment, None, model)
