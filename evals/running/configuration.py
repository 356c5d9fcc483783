"""The configuration of a run, as config.json has it, and the task that it leads back to.

It has all that the run's numbers depend on: its arguments, its data, and the sources and libraries that it uses.
"""

import platform
import subprocess
from collections.abc import Collection
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import environments
from evals import folder as run_folder
from evals.running.request import SYSTEMS, digest_files
from evals.running.resolve import Resolved
from tools import retrievers, sources
from tools.errors import DataError

if TYPE_CHECKING:
    from environments.base import Environment
    from tools.models.lm import Model
    from tools.retriever import Retriever

# Libraries that can change a ranking, by the name under which they are imported -> their distributions.
_LIBRARIES = {
    "chromadb": ("chromadb",),
    "dspy": ("dspy",),
    "gepa": ("gepa",),
    "json_repair": ("json-repair",),
    "langgraph": ("langgraph",),
    "nltk": ("nltk",),
    "numba": ("numba",),
    "numpy": ("numpy",),
    "optuna": ("optuna",),
    "rank_bm25": ("rank-bm25",),
    "sentence_transformers": ("sentence-transformers", "tokenizers", "torch", "transformers"),
    "tokenizers": ("tokenizers",),
    "torch": ("torch",),
    "transformers": ("transformers",),
}
_ALWAYS = (
    *("environments", "tools.retrievers"),  # what opens a task, and what builds a retriever
    "tools.models.adapter",  # writes the prompts and reads the answers of every program
)


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
        "files": digest_files(resolved.values),
        "depth": request.k or environment.depth,
        "retriever": {"name": spec, "with": retriever.name if retriever else spec},
        "lm": {"name": model.name, **model.settings},
        **identity(resolved, environment.task),
        run_folder.PROVENANCE: {
            "judgements": environment.headline,  # all are scored; rankings do not depend on which ones lead
            "data": environment.data,
            "folder": None if bundled else str(Path(environment.data).resolve()),
            "source": environment.source,
            "compiled": request.compiled and str(request.compiled),
            "price": model.price and model.price.provenance,
            "isolated": resolved.isolated,
            **origin(),
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


def identity(resolved: Resolved, task: str) -> dict[str, Any]:
    """The keys "code" and "versions" of a configuration: a digest of the sources used, and versions of libraries.

    `task` is a full name. What evals contributes (pools, what hands in at a limit) and what takes up compiled prompts
    counts where it is used; the engine without a model where the run has none, and else what sends. So an edited
    program does not resume the run of the program before the edit, which a git revision cannot tell while the edit is
    not committed.
    """
    pool, offline = resolved.pool, resolved.request.lm == "offline"
    specs = [*resolved.retrievers, *(pool.parts if pool else ())]
    references = [SYSTEMS[resolved.request.program], environments.SUITES[environments.parts(task)[0]][0]]
    references += [one for spec in specs for one in sorted(retrievers.references(spec))]
    modules = [reference.partition(":")[0] for reference in references] + list(_ALWAYS)
    modules += ["evals.running.pools"] * bool(pool) + ["evals.measuring.traces"] * bool(resolved.limits)
    modules += ["programs.compiled"] * bool(resolved.compiled) + ["tools.models.offline"] * offline
    return uses(modules, without=("tools.console", "tools.models.sending" if offline else "tools.models.offline"))


def uses(modules: Collection[str], *, without: Collection[str] = (), libraries: Collection[str] = ()) -> dict[str, Any]:
    """The same of any modules, `without` some packages; with `libraries` that others of theirs import."""
    found = sources.reach(modules, without=without)
    return {"code": found.digest(), "versions": _versions(found.libraries.union(libraries))}


def _versions(libraries: Collection[str]) -> dict[str, str]:
    """The versions of those libraries that can change a ranking."""
    named = {one for library in libraries for one in _LIBRARIES.get(library, ()) if find_spec(library)}
    return {name: version(name) for name in sorted(named)}


def origin() -> dict[str, str | None]:
    """Where the run was made, for the reader of config.json: nothing is compared with it."""
    return {"git_revision": _git_revision(), "python": platform.python_version(), "system": platform.platform()}


def _git_revision() -> str | None:
    def git(*arguments: str) -> str:
        command = ["git", "-C", str(Path(__file__).parents[2]), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+changes" if git("status", "--porcelain") else "")
    except (OSError, subprocess.SubprocessError):
        return None  # no git, or no repository: installed from an archive
