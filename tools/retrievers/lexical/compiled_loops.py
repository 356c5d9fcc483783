"""Compile loops with numba, and keep their machine code on disk, so that a later process needs no numba.

To import numba and to prepare its compiler takes most of a second, far longer than most searches. A
later process has LLVM's loader (llvmlite) link the machine code, and calls it through ctypes, which
holds no lock of the interpreter.

A loop takes arrays, named tuples of arrays, whole numbers and fractions; it returns nothing, a
whole number or several. It makes no arrays: its caller hands in what it writes to. It is called as
numba's compiled functions call each other: a pointer for the result, one for an exception, and the
arguments, of which an array is two pointers for its owner, its numbers of elements and of bytes,
its data, its shape and its strides.

Code is kept next to this file, or in $SEXTANT_HOME where that cannot be written. Code that was
damaged, or made of other sources, is made again.
"""

import ctypes
import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache, update_wrapper
from importlib.metadata import version
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from sextant.tools.platform import files
from sextant.tools.platform.waiting import announced

F = TypeVar("F", bound=Callable[..., Any])

_OWNDATA = 4  # of the flags of an array, which makes no difference to a loop
_LINKING = threading.Lock()


class _MachineCode(NamedTuple):
    """The compiled code of a loop for some types of arguments."""

    symbol: str
    results: int  # whole numbers that it returns
    data: bytes  # an object file

    def pack(self, source: str) -> bytes:
        """Return the contents of a file."""
        head = json.dumps([source, self.symbol, self.results]).encode()
        body = head + b"\n" + self.data
        return hashlib.sha256(body).hexdigest().encode() + b"\n" + body


class CompiledLoop:
    """A function that is compiled for the types of its arguments when it is first called with them."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        self._function = function
        self._options = options
        self._calls = dict[tuple[Any, ...], _NativeCall]()  # by the types of the arguments
        self._name = function.__name__
        update_wrapper(self, function)

    def __call__(self, *arguments: Any) -> Any:
        """Call the loop."""
        types = list[Any]()
        values = list[float]()
        _flatten(arguments, types, values)
        key = tuple(types)
        call = self._calls.get(key)
        if call is None:
            with _LINKING:
                call = self._calls.get(key) or self._prepare(key, arguments)
                self._calls[key] = call
        return call(values)

    def _prepare(self, types: tuple[Any, ...], arguments: Sequence[Any]) -> "_NativeCall":
        name = f"{self._name}-{_digest(f'{_processor()} {types}')}.code"
        source = self._source()
        code = _read_code(name, source)
        if code is None:
            with announced(f"compiling {self._name} for this processor, once"):
                code = self._compile(arguments)
            _write_code(name, code.pack(source))
        return _NativeCall(code, types)

    def _source(self) -> str:
        """Return a digest of all that the machine code depends on besides types and processor; "" if
        it cannot be read.
        """
        with suppress(OSError):
            sources = [_read_source(self._function.__code__.co_filename), _read_source(__file__)]
            return _digest(f"{sources} {_versions()}")
        return ""

    def _compile(self, arguments: Sequence[Any]) -> _MachineCode:
        import numba  # most processes find the machine code on disk

        dispatcher: Any = self.dispatcher()
        dispatcher.typingctx.refresh()
        dispatcher.targetctx.refresh()
        types = [numba.typeof(_plain(argument)) for argument in arguments]
        with numba.core.compiler_lock.global_compiler_lock:
            result = dispatcher._compiler.compile(tuple(types), None)  # noqa: SLF001  # no other
        library = result.library
        machine = library.codegen._tm  # noqa: SLF001  # as above
        module = library._final_module  # noqa: SLF001  # as above
        for function in module.functions:
            if function.is_declaration and not function.name.startswith("llvm."):
                raise TypeError(f"the loop {self._name} calls {function.name}")
        returned = result.fndesc.restype
        results = getattr(returned, "count", 0 if returned == numba.types.none else 1)
        return _MachineCode(result.fndesc.llvm_func_name, results, machine.emit_object(module))

    def dispatcher(self) -> Any:
        """Return numba's form of the loop, for which loops that it calls are in numba's form, too."""
        import numba  # as above

        named = self._function.__globals__
        own_names = self._function.__code__.co_names
        others = {
            name: named[name].dispatcher()
            for name in own_names
            if isinstance(named.get(name), CompiledLoop)
        }
        if named.get("array_at") is array_at:
            others["array_at"] = _compiled_array_at()
        function = FunctionType(
            self._function.__code__, named | others, self._name, self._function.__defaults__
        )
        return numba.njit(
            function,
            _nrt=False,  # no memory is counted, as none is made
            no_cpython_wrapper=True,
            no_cfunc_wrapper=True,
            **self._options,
        )


def array_at(address: int, size: int, dtype: type[np.generic]) -> NDArray[Any]:
    """Return the array at an address: a loop so takes any number of arrays, by a table of addresses.

    Only loops can call it. Who calls the loop keeps the arrays.
    """
    raise NotImplementedError


@cache
def _compiled_array_at() -> Any:
    """Return numba's form of `array_at`."""
    from numba import types  # as above
    from numba.extending import intrinsic  # as above
    from numba.np import arrayobj  # as above

    @intrinsic  # type: ignore[untyped-decorator]
    def compiled(typing_context: Any, address: Any, size: Any, dtype: Any) -> Any:
        array_type = types.Array(dtype.dtype, 1, "C")

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            array = arrayobj.make_array(array_type)(context, builder)
            element_type = context.get_data_type(array_type.dtype)
            element_size = context.get_constant(types.intp, context.get_abi_sizeof(element_type))
            arrayobj.populate_array(
                array,
                data=builder.inttoptr(arguments[0], array.data.type),
                shape=[arguments[1]],
                strides=[element_size],
                itemsize=element_size,
                meminfo=None,
            )
            return array._getvalue()  # noqa: SLF001  # no other

        return array_type(address, size, dtype), generate

    return compiled


def compile_loop(**options: Any) -> Callable[[F], F]:
    """Return a decorator that compiles a function; `options` are numba's."""

    def decorate(function: F) -> F:
        return cast(F, CompiledLoop(function, options))

    return decorate


def _plain(argument: Any) -> Any:
    return int(argument) if isinstance(argument, bool) else argument


def _flatten(arguments: Sequence[Any], types: list[Any], values: list[float]) -> None:
    """Add the type of each argument to `types`, and its numbers for the call to `values`."""
    for argument in arguments:
        if isinstance(argument, np.ndarray):
            types.append((argument.dtype.char, argument.ndim, argument.flags.num & ~_OWNDATA))
            # __array_interface__ lists the fields of a record anew, in ten times as long.
            values += (0, 0, argument.size, argument.itemsize, argument.ctypes.data)
            values += argument.shape
            values += argument.strides
        elif isinstance(argument, tuple):
            types.append(len(argument))
            _flatten(argument, types, values)
        elif isinstance(argument, int | np.integer):
            types.append("int")
            values.append(int(argument))
        else:
            types.append("float")
            values.append(float(argument))


def _list_numbers(types: Sequence[Any]) -> Iterator[Any]:
    """Yield the C type of each number that `_flatten` makes of arguments of these types."""
    for kind in types:
        if kind == "float":
            yield ctypes.c_double
        elif kind == "int":
            yield ctypes.c_int64
        elif isinstance(kind, tuple):
            dimensions = kind[1]
            pointer = ctypes.c_void_p
            yield from (pointer, pointer, ctypes.c_int64, ctypes.c_int64, pointer)
            yield from [ctypes.c_int64] * (2 * dimensions)


class _NativeCall:
    """Calls machine code; threads share it."""

    def __init__(self, code: _MachineCode, types: Sequence[Any]) -> None:
        engine = _engine()
        engine.add_object_file(_parse_object(code.data))
        engine.finalize_object()
        address = engine.get_function_address(code.symbol)
        numbers = _list_numbers(types)
        prototype = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, *numbers)
        self._function = prototype(address)
        self._results = code.results

    def __call__(self, values: Sequence[float]) -> Any:
        results = (ctypes.c_int64 * max(1, self._results))()
        exception = ctypes.c_void_p()
        if self._function(ctypes.addressof(results), ctypes.addressof(exception), *values) == -1:
            raise RuntimeError("a compiled loop has failed")
        if self._results > 1:
            return tuple(results)
        return results[0] if self._results else None


@cache
def _engine() -> Any:
    import llvmlite.binding as llvm  # not for --help

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(codemodel="jitdefault")
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)


def _parse_object(data: bytes) -> Any:
    from llvmlite.binding.object_file import ObjectFileRef  # as above

    return ObjectFileRef.from_data(data)


@cache
def _processor() -> str:
    import llvmlite.binding as llvm  # as above

    return f"{llvm.get_process_triple()} {llvm.get_host_cpu_name()} {llvm.get_host_cpu_features().flatten()}"


@cache
def _versions() -> str:
    return f"{version('numba')} {version('llvmlite')}"


@cache
def _read_source(path: str) -> bytes:
    return Path(path).read_bytes()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def code_folders() -> list[Path]:
    """Return the folders in which machine code is kept, the first that can be written."""
    return [Path(__file__).parent / "__pycache__", files.sextant_home() / "loops"]


def _read_code(name: str, source: str) -> _MachineCode | None:
    """Return code that was made of `source`, if it is on disk and whole."""
    for folder in code_folders():
        with suppress(OSError, ValueError):
            digest, _, body = (folder / name).read_bytes().partition(b"\n")
            if hashlib.sha256(body).hexdigest().encode() != digest:
                continue
            head, _, data = body.partition(b"\n")
            made_of, symbol, results = json.loads(head)
            if made_of == source:
                return _MachineCode(symbol, results, data)
    return None


def _write_code(name: str, content: bytes) -> None:
    for folder in code_folders():
        with suppress(OSError):  # a full disk, or a folder without permission
            folder.mkdir(parents=True, exist_ok=True)
            files.replace(folder / name, content, files.SHARED)
            return
