"""Old names of modules that guides of Sextant 0.1 documented: they work for a release, with a
DeprecationWarning.

`import environments.own` gives the module `environments.custom` itself, and a reference such as
`--program programs.judging:Judge` means the program of the new module.
"""

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED_MODULES = {
    "environments.collections": "environments.readers.collections",
    "environments.own": "environments.custom",
    "evals.building": "evals.build",
    "evals.building.review": "evals.build.human_review",
    "evals.folder": "evals.run_folder",
    "evals.measuring": "evals.scoring",
    "evals.measuring.metrics": "evals.scoring.metrics",
    "evals.serving.host": "evals.serving.episode_server",
    "evals.serving.training": "evals.serving.rl_training",
    "programs.annotating": "programs.llm_tasks.lens_annotator",
    "programs.desk": "programs.search_tools",
    "programs.judging": "programs.llm_tasks.relevance_judge",
    "programs.own": "programs.custom",
    "tools.console": "tools.cli",
    "tools.models.offline": "tools.models.offline_rules",
    "tools.retriever": "tools.retrievers.base",
    "tools.retrievers.bm25": "tools.retrievers.lexical.bm25",
    "tools.retrievers.neural.models": "tools.retrievers.neural.model_table",
    "tools.retrievers.vectors.embedding": "tools.retrievers.vectors.embedder",
}


def current_name(module: str) -> str:
    """Return the present name of a module."""
    return MOVED_MODULES.get(module, module)


def install() -> None:
    """Let old names be imported. A second call changes nothing."""
    if not any(isinstance(finder, _AliasFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AliasFinder())


class _AliasFinder(MetaPathFinder):
    """Finds modules by their old names.

    It comes first: the path finder would load a second copy of `metrics` as
    `evals.measuring.metrics`, because `evals.measuring` is the package `evals.scoring`.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in MOVED_MODULES:
            return None
        new_name = MOVED_MODULES[fullname]
        warnings.warn(
            f"{fullname} is now {new_name}; the old name goes with the next release",
            DeprecationWarning,
            stacklevel=2,
        )
        return ModuleSpec(fullname, _AliasLoader(new_name))


class _AliasLoader(Loader):
    """Gives the module of another name in place of a new module."""

    def __init__(self, new_name: str) -> None:
        self._new_name = new_name
        self._own_spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._new_name)
        self._own_spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Give the module its own spec back, which the import system has replaced."""
        module.__spec__ = self._own_spec
