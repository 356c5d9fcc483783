"""Programs that are objects of this process, as a function in a notebook: `evaluate(program=answer)`.

An object gets a name, under which a request finds it: what it is called, and a digest of its source.
So a changed function makes another run, as a changed file does.
"""

import hashlib
import inspect
from collections.abc import Mapping
from typing import Any

from tools.errors import UsageError

# Digits of the digest in a name.
DIGITS = 8
# Values of an instance that are looked at.
MOST_HELD = 2000
# Types of values that a function reads and whose texts say all of them.
_PLAIN = (str, int, float, bool, bytes, type(None))

_objects = dict[str, Any]()


def register(user_object: Any) -> str:
    """Return the name of a program that is an object, as `answer@1a2b3c4d`."""
    label = getattr(user_object, "__name__", type(user_object).__name__)
    digest = hashlib.sha256(_describe(user_object).encode()).hexdigest()
    name = f"{label}@{digest[:DIGITS]}"
    _objects[name] = user_object
    return name


def is_registered(name: str) -> bool:
    """Return whether a program's name is that of an object."""
    return name in _objects


def find(name: str) -> Any:
    """Return the object of a name. KeyError if there is none."""
    return _objects[name]


def _describe(user_object: Any) -> str:
    """Return the sources of an object, and of the functions, classes and values that they read."""
    texts = {}
    pending = [user_object]
    module = inspect.getmodule(user_object)
    while pending:
        value = pending.pop()
        if not _has_source(value) and inspect.isfunction(getattr(value, "__wrapped__", None)):
            value = value.__wrapped__  # of functools.cache
        if id(value) in texts:
            continue
        texts[id(value)] = _read_source(value)
        for name, used in _list_used(value):
            if isinstance(used, _PLAIN):
                texts[id(value)] += f"\n{name} = {used!r}"
            elif inspect.getmodule(used) is module and _has_source(used):
                pending.append(used)
    return "\n".join(texts.values())


def _has_source(value: Any) -> bool:
    return inspect.isfunction(value) or inspect.isclass(value)


def _read_source(value: Any) -> str:
    shown = value if _has_source(value) else type(value)
    try:
        source = f"{shown.__qualname__}\n{inspect.getsource(shown)}"
    except (OSError, TypeError):  # as of a function that `exec` has made
        code = getattr(shown, "__code__", None)
        if code is None and shown.__module__ == "builtins":
            return str(shown.__qualname__)
        if code is None:
            raise UsageError(
                f"the source of {shown.__name__} is not known, so its runs could not be told from "
                f"those of another; put it into a file, and name it as FILE.py:NAME"
            ) from None
        source = f"{code.co_code.hex()} {code.co_consts} {code.co_names}"
    if shown is value:
        return source
    return f"{source}\n{_read_state(value)}"


def _read_state(value: Any) -> str:
    """Return the state of an instance, as far as a text can say it."""
    dump = getattr(value, "dump_state", None)  # of a dspy.Module
    if callable(dump):
        return repr(dump())
    lines = list[str]()
    _walk(value, lines, set())
    return "\n".join(lines)


def _walk(value: Any, lines: list[str], seen: set[int]) -> None:
    """Append the functions and plain values that an instance holds, as the nodes of a graph."""
    if isinstance(value, _PLAIN):
        lines.append(repr(value))
        return
    if id(value) in seen or len(seen) > MOST_HELD:
        return
    seen.add(id(value))
    if _has_source(value):
        lines.append(_read_source(value))
        for name, used in _list_used(value):
            if isinstance(used, _PLAIN):
                lines.append(f"{name} = {used!r}")
        return
    held = value if isinstance(value, Mapping) else _list_attributes(value)
    for name, content in held.items():
        lines.append(str(name))
        _walk(content, lines, seen)
    if isinstance(value, list | tuple):
        for content in value:
            _walk(content, lines, seen)
    if isinstance(value, set | frozenset):
        # Their order is another one in each process.
        lines += sorted(repr(content) for content in value if isinstance(content, _PLAIN))


def _list_attributes(value: Any) -> dict[str, Any]:
    attributes = dict(getattr(value, "__dict__", {}))
    for base in type(value).__mro__:
        slots = vars(base).get("__slots__", ())
        for name in [slots] if isinstance(slots, str) else slots:
            if hasattr(value, name):
                attributes[name] = getattr(value, name)
    return attributes


def _list_used(value: Any) -> list[tuple[str, Any]]:
    """Return the names that a function reads outside of itself, with their values."""
    if not inspect.isfunction(value):
        return []
    read = inspect.getclosurevars(value)
    return sorted({**read.globals, **read.nonlocals}.items())
