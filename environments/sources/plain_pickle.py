"""A program that prints a pickle of plain data as JSON: `python -I plain_pickle.py < FILE`.

A pickle can call whatever Python can import, and can bring Python down (a tuple nested a million deep for a key, a memo
entry numbered four billion). So environments/sources/birco_sets.py runs this in a process of its own, with limits, and
the unpickler here finds no names but those of dicts, bytes and NumPy scalars, in each of whose places it puts a plain
function. It imports nothing but Python's own library. Lists, sets, arrays and objects are left out.
"""

import io
import json
import pickle
import struct
import sys
from contextlib import suppress
from typing import Any

_MEMORY = 2 << 30  # bytes of address space
_SECONDS = 30  # of CPU time
_GROWTH = 100  # characters and numbers in the object for each byte of the file; one pool can be named many times

_NUMBERS = {
    **{"b1": "?", "f2": "e", "f4": "f", "f8": "d"},
    **{"i1": "b", "i2": "h", "i4": "i", "i8": "q", "u1": "B", "u2": "H", "u4": "I", "u8": "Q"},
}


class _Refused(Exception):
    """The pickle is no plain data, for the reason given."""


class _DataType:
    """Stands in for numpy.dtype."""

    def __init__(self, code: str, *_: object) -> None:
        self.code, self.order = code.lstrip("<>|="), ">" if code.startswith(">") else "<"

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = ">" if state[1] == ">" else "<"


def _scalar(kind: _DataType, data: bytes | str) -> Any:
    """The value of a NumPy scalar, which pickles as its data type and its bytes."""
    raw = data.encode("latin-1") if isinstance(data, str) else data  # Python 2 wrote bytes as text
    if kind.code.startswith("U"):
        return raw.decode("utf-32-be" if kind.order == ">" else "utf-32-le").rstrip("\0")
    return struct.unpack(kind.order + _NUMBERS[kind.code], raw)[0]


def _latin_1(text: str, _encoding: str) -> bytes:
    """Stands in for _codecs.encode, with which protocols below 3 write bytes."""
    return text.encode("latin-1")


# NumPy moved its core in version 2, and Python 3 its builtins; pickles of either are about.
_ADMITTED = {
    ("numpy", "dtype"): _DataType,
    **{(f"numpy.{core}.multiarray", "scalar"): _scalar for core in ("core", "_core")},
    ("_codecs", "encode"): _latin_1,
    **{(module, "bytes"): bytes for module in ("builtins", "__builtin__")},
    ("collections", "OrderedDict"): dict,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ADMITTED:
            raise _Refused(
                f"it names {f'{module}.{name}'[:60]!r}, and this data set needs only containers, strings and numbers. "
                "Nothing in it was run. Get the file from its source again"
            )
        return _ADMITTED[module, name]


class _Plain:
    """Makes an object what JSON can have, up to `room` characters and numbers; a number for a key becomes a text."""

    def __init__(self, room: int) -> None:
        self._room = room

    def of(self, value: Any) -> Any:
        self._room -= len(value) if isinstance(value, str) else 1
        if self._room < 0:
            raise _Refused("it repeats a value without end")
        if value is None or isinstance(value, (str, int, float)):
            return value
        if not isinstance(value, dict):
            raise _Refused(f"it holds a {type(value).__name__}")
        made: dict[str, Any] = {}
        for key, inside in value.items():
            if not isinstance(key, (str, int)) or isinstance(key, bool):
                raise _Refused(f"it has a {type(key).__name__} for a key")
            if (name := self.of(str(key))) in made:
                raise _Refused(f"the key {name[:60]!r} is there twice, as a number and as a text")
            made[name] = self.of(inside)
        return made


def _limit() -> None:
    """Bound memory and time, where the platform can, and leave no core file."""
    with suppress(ImportError):
        import resource  # not on Windows

        for kind, most in (("RLIMIT_AS", _MEMORY), ("RLIMIT_CPU", _SECONDS), ("RLIMIT_CORE", 0)):
            with suppress(AttributeError, ValueError, OSError):  # macOS has not every one
                resource.setrlimit(getattr(resource, kind), (most, most))


def _main(pickled: bytes) -> None:
    _limit()
    file = io.BytesIO(pickled)
    try:
        content = _Unpickler(file, encoding="latin-1").load()
        printed = json.dumps({"content": _Plain(_GROWTH * len(pickled)).of(content)})
        if file.read(1):
            raise _Refused("something follows its end")
    except _Refused as refused:
        printed = json.dumps({"refused": str(refused)})
    sys.stdout.write(printed)


if __name__ == "__main__":
    _main(sys.stdin.buffer.read())
