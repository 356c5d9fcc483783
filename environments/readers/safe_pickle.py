"""A program that prints a pickle of plain data as JSON: `python -I safe_pickle.py < FILE`.

A pickle can call whatever Python can import, and can bring Python down (a tuple nested a million
deep for a key, a memo entry numbered four billion). So environments/birco.py runs this in a process
of its own, with limits, and the unpickler here finds no names but those of dicts, bytes and NumPy
scalars, in each of whose places it puts a plain function. It imports nothing but Python's own
library. Left out: sets, tuples, arrays and objects.
"""

import io
import json
import pickle
import resource
import struct
import sys
from contextlib import suppress
from typing import Any

# Characters and numbers in the object for each byte of the file; one pool can be named many times
_GROWTH = 100

# NumPy's names of numbers, and those of struct.
_NUMBERS = dict(zip("b1 f2 f4 f8 i1 i2 i4 i8 u1 u2 u4 u8".split(), "?efdbhiqBHIQ", strict=True))  # noqa: SIM905


class _Refused(Exception):
    """The pickle is no plain data, for the reason given."""


class _DataType:
    """Stands in for numpy.dtype."""

    def __init__(self, code: str, *_: object) -> None:
        self.code = code
        self.order = "<"

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = ">" if state[1] == ">" else "<"


def _scalar(kind: _DataType, data: bytes | str) -> Any:
    """Return the value of a NumPy scalar, which pickles as its data type and its bytes."""
    raw = data.encode("latin-1") if isinstance(data, str) else data  # Python 2 wrote bytes as text
    if kind.code.startswith("U"):
        return raw.decode("utf-32-be" if kind.order == ">" else "utf-32-le").rstrip("\0")
    return struct.unpack(kind.order + _NUMBERS[kind.code], raw)[0]


# NumPy moved its core in version 2, and Python 3 its builtins; pickles of either are about.
_ADMITTED = {
    ("numpy", "dtype"): _DataType,
    ("numpy.core.multiarray", "scalar"): _scalar,
    ("numpy._core.multiarray", "scalar"): _scalar,
    ("_codecs", "encode"): lambda text, _encoding: text.encode(
        "latin-1"
    ),  # protocols below 3 write bytes with it
    ("builtins", "bytes"): bytes,
    ("__builtin__", "bytes"): bytes,
    ("collections", "OrderedDict"): dict,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ADMITTED:
            raise _Refused(
                f"it names {f'{module}.{name}'[:60]!r}, and this data set needs only containers, "
                f"strings and numbers. "
                "Nothing in it was run. Get the file from its source again"
            )
        return _ADMITTED[module, name]


def _make_plain(content: Any, room: int) -> Any:
    """Return a value that JSON can hold, up to `room` characters and numbers; a number for a key
    becomes a text.
    """

    def plain(value: Any) -> Any:
        nonlocal room
        room -= len(value) if isinstance(value, str) else 1
        if room < 0:
            raise _Refused("it repeats a value without end")
        if value is None or isinstance(value, (str, int, float)):
            return value
        if isinstance(value, list):
            return list(map(plain, value))
        if not isinstance(value, dict):
            raise _Refused(f"it holds a {type(value).__name__}")
        mapping = {plain(str(key)): plain(inside) for key, inside in value.items()}
        if len(mapping) < len(value):
            raise _Refused("a key is there twice, as a number and as a text")
        return mapping

    return plain(content)


if __name__ == "__main__":
    # Bytes of address space, seconds of CPU time, and no core file.
    for limit, most in (("RLIMIT_AS", 2 << 30), ("RLIMIT_CPU", 30), ("RLIMIT_CORE", 0)):
        with suppress(ValueError, OSError):  # macOS does not take every one
            resource.setrlimit(getattr(resource, limit), (most, most))
    pickled = sys.stdin.buffer.read()
    file = io.BytesIO(pickled)
    try:
        content = _make_plain(_Unpickler(file, encoding="latin-1").load(), _GROWTH * len(pickled))
        printed = json.dumps({"content": content})
        if file.read(1):
            raise _Refused("something follows its end")
    except _Refused as refused:
        printed = json.dumps({"refused": str(refused)})
    sys.stdout.write(printed)
