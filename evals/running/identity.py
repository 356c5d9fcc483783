"""Everything that a run's numbers depend on, as config.json records it.

That is the arguments, the data, and a digest of the sources and the versions of the libraries in
use. `sextant.evals.run_folder.load_environment` leads from a configuration back to the task.
"""

import os
import platform
from collections.abc import Collection
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING

from sextant import environments
from sextant.environments.base import Environment
from sextant.evals import run_folder
from sextant.evals.running.request import (
    SYSTEMS,
    hash_command_files,
    hash_input_files,
    resolve_program,
)
from sextant.evals.scoring.metrics import find_metric_source, is_custom
from sextant.programs import list_own_sources
from sextant.tools import code_digest, retrievers
from sextant.tools import plugins as names
from sextant.tools.models.secrets import hash_variables
from sextant.tools.platform import installation
from sextant.tools.records import JsonObject
from sextant.tools.retrievers.base import Retriever
from sextant.tools.user_files import is_own

if TYPE_CHECKING:
    from sextant.evals.running.resolve import ResolvedRequest
    from sextant.tools.models.language_model import ConnectedModel

# Libraries that can change a ranking, as they are imported; distributions have hyphens in place of
# underscores.
_LIBRARIES = {
    "chromadb",
    "dspy",
    "gepa",
    "json_repair",
    "langgraph",
    "nltk",
    "numba",
    "numpy",
    "optuna",
    "rank_bm25",
    "sentence_transformers",
    "tokenizers",
    "torch",
    "transformers",
}
# Libraries through which another library ranks.
_RANKS_WITH = {"sentence_transformers": ("tokenizers", "torch", "transformers")}
# Modules that shape no answer: what commands print, and how they end.
_COMMAND_LINE = (
    "sextant.tools.platform.cli",
    "sextant.tools.platform.installation",
    "sextant.tools.platform.interrupts",
    "sextant.tools.platform.number_format",
    "sextant.tools.otel_spans",
    "sextant.tools.platform.waiting",
)
# The engine without a model.
_OFFLINE = ("sextant.tools.models.offline_engine", "sextant.tools.models.offline_rules")
# Modules of every run: they open a task, build a retriever, write prompts and read answers.
_ALWAYS = ("environments", "sextant.tools.retrievers", "sextant.tools.models.prompting")


def run_config(
    resolved: "ResolvedRequest",
    environment: Environment,
    retriever: Retriever | None,
    model: "ConnectedModel",
) -> run_folder.Config:
    """Return everything that determines a run's numbers; the other facts are under "provenance".

    No retriever: only its name.
    """
    request = resolved.request
    source = resolve_program(request.program).rpartition(":")[0]
    return run_conditions(resolved, environment, retriever, model) | {
        **code_identity(resolved, environment),
        run_folder.PROVENANCE: {
            "program_file": str(names.resolve_file(source)) if source.endswith(".py") else None,
            "compiled": resolved.compiled and str(request.compiled or request.prompts),
            "price": model.price and model.price.provenance,
            "server": {
                "kind": model.lm.server.kind.name,
                "window": model.lm.server.window,
            },
            "folders": list_user_folders(resolved),
            **data_origin(environment),
        },
    }


def run_conditions(
    resolved: "ResolvedRequest",
    environment: Environment,
    retriever: Retriever | None,
    model: "ConnectedModel",
) -> run_folder.Config:
    """Return the part of a configuration that does not depend on the sources."""
    request = resolved.request
    compiled = resolved.compiled
    spec = str(resolved.retriever)
    return {
        "task": environment.task,
        "data": "folder" if environment.folder else environment.data,
        "compiled": compiled
        and {"digest": compiled.digest(), "optimizer": "", "task": ""}
        | {
            key: value
            for key, value in compiled.origin.items()
            if key in ("optimizer", "task", "edited", "differs")
        },
        "pool": None,
        "max_p": environment.max_p,
        "instruction": request.instruction,
        # texts, queries, judgements, exclusions, pools
        "data_fingerprint": environment.fingerprint,
        "split": environment.split,
        "asked": {
            "limit": request.limit,
            "query_ids": list(dict.fromkeys(request.query_ids)),
        },
        "program": request.program_label,
        "name": request.name,
        "parameters": dict(resolved.values),
        "limits": dict(resolved.limits),
        "files": hash_input_files(resolved.values)
        | hash_command_files(request.program)
        | hash_variables(request.env),
        "depth": request.k or environment.depth,
        "retriever": {"name": spec, "with": retriever.name if retriever else spec},
        "lm": {"name": model.name, **model.settings},
    }


def code_identity(resolved: "ResolvedRequest", environment: Environment) -> JsonObject:
    """Return "code" and "versions" of a configuration: a digest of the sources used, and versions
    of libraries.

    Modules that only some runs use count if they are used. So an edited program does not resume
    the run of the program before the edit, also before a commit.
    """
    offline = resolved.request.lm == "offline"
    unused = ("sextant.tools.models.transport",) if offline else _OFFLINE
    return code_and_versions(
        _list_modules(resolved, environment), without=(*_COMMAND_LINE, *unused)
    )


def list_user_folders(resolved: "ResolvedRequest") -> list[str]:
    """Return the folders with code of the user's own: of the program, its tools, retrievers and metrics."""
    metrics = filter(is_custom, resolved.request.metrics)
    modules = [*_list_program_modules(resolved), *map(find_metric_source, metrics)]
    folders = {
        f"{names.find_folder(module)}{os.sep}"
        for module in modules
        if module.partition(".")[0] != "sextant"
    }
    return sorted(filter(is_own, folders))


def _list_program_modules(resolved: "ResolvedRequest") -> list[str]:
    modules = [resolve_program(resolved.request.program).rpartition(":")[0]]
    for spec in resolved.all_retrievers:
        modules += [part.__module__ for _, part in retrievers.iter_classes(spec)]
    return modules + list_own_sources(str(resolved.values.get("tools", "")))


def _list_modules(resolved: "ResolvedRequest", environment: Environment) -> list[str]:
    """Return the modules of a run's task, retrievers and program, and those that only some
    runs use.
    """
    references = [environments.SUITES[environments.split_name(environment.task)[0]][0]]
    if names.is_reference(environment.data):  # the code of a user's own task
        references.append(environment.data)
    modules = _list_program_modules(resolved)
    modules += [reference.rpartition(":")[0] for reference in references]
    modules += _ALWAYS
    if resolved.request.program not in SYSTEMS:
        modules += ["sextant.programs.custom", "sextant.programs.custom_langgraph"]
    if resolved.pool:
        modules.append("sextant.evals.running.candidate_pools")
    if resolved.limits:
        modules.append("sextant.evals.scoring.anytime_ranking")
    if resolved.compiled:
        modules.append("sextant.programs.compiled")
    if resolved.request.lm == "offline":
        modules += _OFFLINE
    return modules


def code_and_versions(
    modules: Collection[str], *, without: Collection[str] = (), libraries: Collection[str] = ()
) -> JsonObject:
    """Return "code" and "versions" of any modules `without` some packages; more `libraries`
    may be counted.
    """
    sources = code_digest.collect_sources(modules, without=without)
    installed = set()
    for library in sources.libraries.union(libraries) & _LIBRARIES:
        if find_spec(library):
            installed.update([library, *_RANKS_WITH.get(library, ())])
    distributions = sorted(library.replace("_", "-") for library in installed)
    versions = {distribution: version(distribution) for distribution in distributions}
    if "torch" in versions:
        from sextant.tools.retrievers.index_store import accelerator  # NumPy

        # The type of the weights on a device is in models.toml, which is in the digest.
        if device_type := accelerator():
            versions["device"] = device_type
    return {"code": sources.digest(), "versions": versions}


def data_origin(environment: Environment) -> JsonObject:
    """Return where the data came from and the run was made, for the reader of config.json alone."""
    return {
        # All are scored; rankings do not depend on which ones lead
        "judgements": environment.headline,
        "data": environment.data,
        "folder": environment.folder,
        "source": environment.source,
        "columns": dict(environment.columns),
        "relevant_from": environment.relevant_from,
        # Of Sextant, not of the project that it is installed in
        "git_revision": installation.git_revision(),
        "python": platform.python_version(),
        "system": platform.platform(),
    }
