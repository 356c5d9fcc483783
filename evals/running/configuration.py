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

# Libraries that can change a ranking, as they are imported; distributions have hyphens in place of underscores.
_LIBRARIES = {
    *("chromadb", "dspy", "gepa", "json_repair", "langgraph", "nltk", "numba", "numpy", "optuna", "rank_bm25"),
    *("sentence_transformers", "tokenizers", "torch", "transformers"),
}
_BESIDE = {"sentence_transformers": ("tokenizers", "torch", "transformers")}  # what such a library ranks with
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
    """Return "code" and "versions" of a configuration: a digest of the sources used, and versions of libraries.

    `task` is a full name. Modules that only some runs use count where they are used. So an edited program does not
    resume the run of the program before the edit, also before a commit.
    """
    pool, offline = resolved.pool, resolved.request.lm == "offline"
    references = [SYSTEMS[resolved.request.program], environments.SUITES[environments.parts(task)[0]][0]]
    references += [one for spec in resolved.all_retrievers for one in sorted(retrievers.references(spec))]
    modules = [reference.partition(":")[0] for reference in references] + list(_ALWAYS)
    modules += ["evals.running.pools"] * bool(pool) + ["evals.measuring.traces"] * bool(resolved.limits)
    modules += ["programs.compiled"] * bool(resolved.compiled) + ["tools.models.offline"] * offline
    return uses(modules, without=("tools.console", "tools.models.sending" if offline else "tools.models.offline"))


def uses(modules: Collection[str], *, without: Collection[str] = (), libraries: Collection[str] = ()) -> dict[str, Any]:
    """Return "code" and "versions" of any modules `without` some packages; more `libraries` may be counted."""
    found = sources.reach(modules, without=without)
    used = found.libraries.union(libraries)
    named = {one for name in used & _LIBRARIES for one in (name, *_BESIDE.get(name, ())) if find_spec(name)}
    names = sorted(name.replace("_", "-") for name in named)
    return {"code": found.digest(), "versions": {name: version(name) for name in names}}


def origin() -> dict[str, str | None]:
    """Return where the run was made, for the reader of config.json alone."""
    return {"git_revision": _git_revision(), "python": platform.python_version(), "system": platform.platform()}


def _git_revision() -> str | None:
    def git(*arguments: str) -> str:
        command = ["git", "-C", str(Path(__file__).parents[2]), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+changes" if git("status", "--porcelain") else "")
    except (OSError, subprocess.SubprocessError):
        return None  # no git, or no repository: installed from an archive
