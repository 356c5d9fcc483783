"""Pickles of plain data, read without Python's unpickler.

A pickle is a program for a small stack machine, which can run anything when Python loads it, and can bring Python down
(a tuple nested a million deep for a key, a memo entry numbered four billion). The machine here has only the
instructions that plain data needs: dicts, lists, strings, numbers, and NumPy scalars, which are decoded without NumPy.
Any other instruction or name ends the reading before anything has been called. Sets, arrays and objects are left out.
"""

import pickletools
import re
import struct
from pathlib import Path
from typing import Any

from environments.sources import checks
from tools.errors import DataError

_NOT_RUN = "Nothing in it was run"


def read(path: Path) -> Any:
    """The object in `path`. DataError for a file that is missing, damaged or hostile."""
    try:
        return _Machine(path.read_bytes()).run()
    except DataError as error:
        raise DataError(f"{path} {error}") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
    except Exception as error:  # noqa: BLE001  # a damaged program can ask for anything, e.g. more than the stack has
        raise DataError(f"{path} is damaged and cannot be unpickled ({type(error).__name__}); fetch it again") from None


_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_VALUES = {
    *("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "UNICODE", "BINSTRING", "SHORT_BINSTRING", "STRING"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
    *("BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1", "LONG4", "BINFLOAT", "FLOAT"),
}
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class _Machine:
    """Recurses into nothing, and hashes nothing but strings and numbers."""

    def __init__(self, program: bytes) -> None:
        self._program = program
        self._stack: list[Any] = []
        self._below: list[list[Any]] = []  # the stack under each mark
        self._memo: dict[int, Any] = {}
        self._undecoded = len(program)  # bytes of scalars still allowed: a value repeated by reference is no plain data

    def run(self) -> Any:
        """The object that the program describes, which must be all there is in it."""
        for operation, argument, position in pickletools.genops(self._program):
            if operation.name == "STOP":
                if rest := len(self._program) - (position or 0) - 1:
                    raise DataError(f"has {rest} bytes after its end; fetch it again")
                return self._stack.pop()
            self._do(operation.name, argument)
        return None  # not reached: without a STOP, genops raises

    def _do(self, name: str, argument: Any) -> None:
        stack = self._stack
        if name in _VALUES:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _TUPLES:
            stack.append(tuple([stack.pop() for _ in range(_TUPLES[name])][::-1]))
        else:
            match name:
                case "PROTO" | "FRAME":
                    pass
                case "MEMOIZE":
                    self._memo[len(self._memo)] = stack[-1]
                case "PUT" | "BINPUT" | "LONG_BINPUT":
                    self._memo[argument] = stack[-1]
                case "GET" | "BINGET" | "LONG_BINGET":
                    stack.append(self._memo[argument])
                case "EMPTY_DICT":
                    stack.append({})
                case "EMPTY_LIST":
                    stack.append([])
                case "APPEND":
                    _extend([stack.pop()], stack[-1])
                case "SETITEM":
                    value, key = stack.pop(), stack.pop()
                    _set_items([key, value], stack[-1])
                case "REDUCE":
                    arguments, called = stack.pop(), stack.pop()
                    stack.append(self._called(called, arguments))
                case "BUILD":
                    state, what = stack.pop(), stack[-1]
                    _build(what, state)
                case "GLOBAL":
                    stack.append(_named(*argument.split(" ", 1)))
                case "STACK_GLOBAL":
                    attribute, module = stack.pop(), stack.pop()
                    stack.append(_named(module, attribute))
                case "MARK":
                    self._below.append(stack)
                    self._stack = []
                case _:
                    self._do_marked(name)

    def _do_marked(self, name: str) -> None:
        if name not in ("TUPLE", "LIST", "DICT", "APPENDS", "SETITEMS"):
            raise DataError(f"is refused: it has the instruction {name}, which plain data does not need. {_NOT_RUN}")
        marked, self._stack = self._stack, self._below.pop()
        match name:
            case "TUPLE":
                self._stack.append(tuple(marked))
            case "LIST":
                self._stack.append(marked)
            case "DICT":
                self._stack.append({})
                _set_items(marked, self._stack[-1])
            case "APPENDS":
                _extend(marked, self._stack[-1])
            case "SETITEMS":
                _set_items(marked, self._stack[-1])

    def _called(self, called: Any, arguments: Any) -> Any:
        if called not in _ADMITTED.values() or not isinstance(arguments, tuple):
            raise DataError(f"is refused: it calls {checks.shown(called)}. {_NOT_RUN}")
        self._undecoded -= sum(len(part) for part in arguments if isinstance(part, (str, bytes)))
        if self._undecoded < 0:
            raise DataError("is refused: it repeats a value without end")
        return called(*arguments)


def _extend(values: list[Any], target: Any) -> None:
    if not isinstance(target, list):
        raise DataError(f"is damaged: it appends to {checks.shown(target)}; fetch it again")
    target.extend(values)


def _set_items(flat: list[Any], target: Any) -> None:
    if not isinstance(target, dict):
        raise DataError(f"is damaged: it sets an item of {checks.shown(target)}; fetch it again")
    for key, value in zip(flat[::2], flat[1::2], strict=True):
        if not isinstance(key, (str, int, float)):
            raise DataError(f"is refused: it has {checks.shown(key)} for a key")
        if key in target:
            raise DataError(f"has the key {checks.shown(key)} twice; fetch it again")
        target[key] = value


def _named(module: Any, name: Any) -> Any:
    if not isinstance(module, str) or not isinstance(name, str) or (module, name) not in _ADMITTED:
        raise DataError(
            f"is refused: it names {checks.shown(f'{module}.{name}')}, and this data set needs only containers, "
            f"strings and numbers. {_NOT_RUN}. Get the file from its source again"
        )
    return _ADMITTED[module, name]


def _build(what: Any, state: Any) -> None:
    if not isinstance(what, _DataType) or not isinstance(state, tuple):
        raise DataError(f"is refused: it sets the state of {checks.shown(what)}. {_NOT_RUN}")
    if len(state) > 1 and state[1] in ("<", ">", "|", "="):
        what.order = state[1]


class _DataType:
    """Stands in for numpy.dtype: remembers what it was called with, and nothing else."""

    def __init__(self, code: Any, *flags: Any) -> None:
        if not isinstance(code, str) or not re.fullmatch(r"[<>|=]?([biufSU])(\d{1,9})|bool", code):
            raise DataError(f"is refused: it has a NumPy value of the kind {checks.shown(code)}")
        self.code = code
        self.order = "<"


def _scalar(kind: Any, data: Any = b"") -> str | float | bool:
    """The value of a NumPy scalar, which pickles as its dtype and its bytes."""
    if not isinstance(kind, _DataType) or not isinstance(data, (bytes, str)):
        raise DataError("is refused: it has a NumPy value that is none")
    raw = data.encode("latin-1") if isinstance(data, str) else data  # protocol 2 writes bytes as text
    code = kind.code.lstrip("<>|=")
    big = ">" in (kind.order, kind.code[0])
    if code.startswith("U"):
        return raw.decode("utf-32-be" if big else "utf-32-le").rstrip("\0")
    if code.startswith("S"):
        return raw.decode("utf-8").rstrip("\0")
    letter = {"b1": "?", "bool": "?", "f2": "e", "f4": "f", "f8": "d"} | {
        f"{sign}{size}": letter.upper() if sign == "u" else letter
        for sign in "iu"
        for size, letter in ((1, "b"), (2, "h"), (4, "i"), (8, "q"))
    }
    value: float | bool = struct.unpack((">" if big else "<") + letter[code], raw)[0]
    return value


def _latin_1(text: Any, encoding: Any) -> bytes:
    """Stands in for _codecs.encode, with which protocols below 3 write bytes."""
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise DataError("is refused: it has bytes in an encoding that no pickle writes")
    return text.encode("latin-1")


def _no_bytes() -> bytes:
    """Stands in for bytes, with which protocols below 3 write empty ones."""
    return b""


def _no_items() -> dict[Any, Any]:
    """Stands in for OrderedDict, whose items are set one by one."""
    return {}


# NumPy moved its core in version 2, and Python 3 its builtins; pickles of either are about.
_ADMITTED = {
    ("numpy", "dtype"): _DataType,
    **{(f"numpy.{core}.multiarray", "scalar"): _scalar for core in ("core", "_core")},
    ("_codecs", "encode"): _latin_1,
    **{(module, "bytes"): _no_bytes for module in ("builtins", "__builtin__")},
    ("collections", "OrderedDict"): _no_items,
}
