"""Changes of what belongs to others in this process, which are taken back at the end of a block.

Which changes Sextant makes: tools/process_changes.py.
"""

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, NamedTuple

_MISSING = object()


class SharedContext:
    """A context manager that any number of threads may be in at once: the first enters `change`,
    the last leaves it.
    """

    def __init__(self, change: Callable[[], AbstractContextManager[Any]]) -> None:
        self._change = change
        self._lock = threading.Lock()
        self._blocks = 0
        self._entered = ExitStack()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Hold the change for the block."""
        with self._lock:
            if self._blocks == 0:
                self._entered.enter_context(self._change())
            self._blocks += 1
        try:
            yield
        finally:
            with self._lock:
                self._blocks -= 1
                if self._blocks == 0:
                    self._entered.close()


class AttributeChange(NamedTuple):
    """An attribute of an object of others, and its value for a while."""

    owner: Any
    name: str
    value: Any


@contextmanager
def changed_attributes(changes: Iterable[AttributeChange]) -> Iterator[None]:
    """Set attributes in the block. One that somebody else has set meanwhile stays as it is."""
    made = []
    for change in changes:
        made.append((change, vars(change.owner).get(change.name, _MISSING)))
        setattr(change.owner, change.name, change.value)
    try:
        yield
    finally:
        for change, before in made:
            if vars(change.owner).get(change.name) is not change.value:
                continue
            if before is _MISSING:
                delattr(change.owner, change.name)
            else:
                setattr(change.owner, change.name, before)


@contextmanager
def changed_environment(variables: Mapping[str, str], *, override: bool = False) -> Iterator[None]:
    """Set environment variables in the block; those that are set already only if they are to
    `override`.
    """
    before = {name: os.environ.get(name) for name in variables}
    for name, value in variables.items():
        if override or before[name] is None:
            os.environ[name] = value
    try:
        yield
    finally:
        for name, value_before in before.items():
            if value_before is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value_before
