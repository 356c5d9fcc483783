"""The configuration of a run, as config.json has it, and the task that it leads back to."""

from pathlib import Path
from typing import TYPE_CHECKING

import environments
from evals import folder as run_folder
from evals.running import parameters, provenance
from evals.running.resolve import Resolved
from tools.errors import DataError

if TYPE_CHECKING:
    from environments.base import Environment
    from tools.models.lm import Model
    from tools.retriever import Retriever


def configuration(
    resolved: Resolved, environment: "Environment", retriever: "Retriever | None", model: "Model"
) -> run_folder.Config:
    """Return all that determines a run's numbers; what does not is under "provenance". No retriever: only its name."""
    request, compiled, spec = resolved.request, resolved.compiled, str(resolved.retriever)
    bundled = environment.data in ("mini", "full")
    return {
        "task": environment.task,
        "data": environment.data if bundled else "folder",
        "compiled": compiled
        and {"digest": compiled.digest(), **{key: compiled.origin.get(key, "") for key in ("optimizer", "task")}},
        "pool": None,
        "max_p": environment.max_p,
        "instruction": request.instruction,
        "data_fingerprint": environment.fingerprint,  # texts, queries, judgements, exclusions, pools
        "split": environment.split,
        "asked": {"limit": request.limit, "query_ids": list(dict.fromkeys(request.query_ids))},
        "program": request.program,
        "parameters": dict(resolved.values),
        "limits": dict(resolved.limits),
        "files": parameters.digests(resolved.values),
        "depth": request.k or environment.depth,
        "retriever": {"name": spec, "with": retriever.name if retriever else spec},
        "lm": {"name": model.name, **model.settings},
        **provenance.identity(resolved, environment.task),
        run_folder.PROVENANCE: {
            "judgements": environment.headline,  # all are scored; rankings do not depend on which ones lead
            "data": environment.data,
            "folder": None if bundled else str(Path(environment.data).resolve()),
            "source": environment.source,
            "compiled": request.compiled and str(request.compiled),
            "price": model.price and model.price.provenance,
            "isolated": resolved.isolated,
            **provenance.origin(),
        },
    }


def load_environment(config: run_folder.Config, qrels: str = "") -> "Environment":
    """Load the environment that a run was made in, `qrels` leading; DataError when the data has changed."""
    where = config[run_folder.PROVENANCE]["folder"] or config["data"]
    loaded = environments.load(
        config["task"],
        where,
        config["split"],
        qrels=qrels or config[run_folder.PROVENANCE]["judgements"],
        instruction=config["instruction"],
    )
    asked = config["asked"]
    chosen = loaded.asking(limit=asked["limit"], query_ids=asked["query_ids"])
    if chosen.fingerprint != config["data_fingerprint"]:
        raise DataError(
            f"the data of {config['task']} in {where} is not what the run was made with "
            f"({chosen.fingerprint}, not {config['data_fingerprint']}); run again"
        )
    return chosen
