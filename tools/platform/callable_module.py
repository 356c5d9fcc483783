"""Modules that are commands, and can be called as functions: `from sextant.evals import compare`, then
`compare(RUN, RUN)`.
"""

import importlib
import sys
from types import ModuleType
from typing import Any


class CallableModule(ModuleType):
    """A module with a function of its name, which is imported when it is first called."""

    # "module:function".
    _function: str

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the function."""
        source, _, name = self._function.partition(":")
        return getattr(importlib.import_module(source), name)(*arguments, **named)


def make_callable(module_name: str, function: str) -> None:
    """Have calls of a module go to a function, named as "module:function"."""
    module = sys.modules[module_name]
    module.__class__ = CallableModule
    module._function = function  # type: ignore[attr-defined]  # noqa: SLF001  # our own class
