"""One way to name things: a table from a short name to "module:attribute".

Plain data instead of decorators or import side effects: the whole list is in one place, a reader can jump
from the name to the file, and nothing heavy is imported until it is asked for.
"""

import importlib
from collections.abc import Mapping
from typing import Any

from tools.errors import UnknownName


def pick(kind: str, name: str, table: Mapping[str, str]) -> Any:
    """The object that `table` calls `name`; UnknownName, with the nearest names, when it has none."""
    if name not in table:
        raise UnknownName(kind, name, table)
    module, _, attribute = table[name].partition(":")
    return getattr(importlib.import_module(module), attribute)
