"""Programs that are objects of this process, as a function in a notebook: `evaluate(program=answer)`.

What an object answers with, such as lists that it reads and settings of its parts, cannot be read
for certain. So each `evaluate` of an object is a new run, unless the object says who it is.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from itertools import count
from typing import Any

from sextant.evals.run_descriptions import UNNAMED
from sextant.tools.errors import UsageError

_objects = dict[str, Any]()
_numbers = count(1)


@contextmanager
def registered(user_object: Any) -> Iterator[str]:
    """Yield a name, under which requests find the object meanwhile, as `answer@1`."""
    label = getattr(user_object, "__name__", type(user_object).__name__)
    name = f"{label}@{next(_numbers)}"
    _objects[name] = user_object
    try:
        yield name
    finally:
        del _objects[name]


def read_version(user_object: Any) -> str:
    """Return the `fingerprint` of an object, a text or a method that returns one; without one, a
    version that no other call has.
    """
    fingerprint = getattr(user_object, "fingerprint", None)
    if fingerprint is None:
        return f"{UNNAMED}{datetime.now():%-d %b %H:%M:%S.%f}"
    text = fingerprint() if callable(fingerprint) else fingerprint
    if not isinstance(text, str) or not text:
        raise UsageError(
            f"the fingerprint of {type(user_object).__name__} is {text!r}; it has to be a text, or "
            f"a method that returns one"
        )
    return text


def is_registered(name: str) -> bool:
    """Return whether a program's name is that of an object."""
    return name in _objects


def label(name: str) -> str:
    """Return the name of a program as outputs have it: that of an object without its number."""
    return name.rpartition("@")[0] if is_registered(name) else name


def find(name: str) -> Any:
    """Return the object of a name. KeyError if there is none."""
    return _objects[name]
