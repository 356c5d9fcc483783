"""Compile loops with numba, which keeps their machine code on disk for later processes.

numba keeps it in $NUMBA_CACHE_DIR, else next to the source, else in the user's cache folder. If none
of these can be written, each process compiles the loops that it calls.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from numba import types
from numba.extending import intrinsic

F = TypeVar("F", bound=Callable[..., Any])


def compile_loop(**options: Any) -> Callable[[F], F]:
    """Return a decorator that compiles a function for the types of its arguments; `options` are
    numba's.

    The compiled function holds no lock of the interpreter.
    """

    def decorate(function: F) -> F:
        try:
            compiled = numba.njit(function, nogil=True, cache=True, **options)
        except RuntimeError:  # no folder can be written
            compiled = numba.njit(function, nogil=True, **options)
        return cast(F, compiled)

    return decorate


@intrinsic  # type: ignore[untyped-decorator]
def pointer_to(typing_context: Any, address: Any) -> Any:
    """Return the pointer to an address, for `numba.carray`: so a loop takes any number of arrays, by
    a table of addresses, while its caller keeps the arrays.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.voidptr(types.int64), generate
