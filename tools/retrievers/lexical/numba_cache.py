"""Compile loops with numba, and keep their machine code on disk in a cache that a damaged file
cannot break.

numba raises any error from a damaged cache file, or in a folder that cannot be written any more, at
the call of the loop. Here the loop is then compiled again, and the cache is written again if it can
be. Left out: files whose bytes were exchanged for other valid bytes.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar, cast

import numba
from numba.core.caching import FunctionCache

F = TypeVar("F", bound=Callable[..., Any])


class RepairedCache(FunctionCache):
    """A cache of a loop that is empty if it cannot be read, and stays as it is if it cannot be
    written.
    """

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the machine code for a signature; None, which has it compiled, if there is
        none or it is damaged.
        """
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # noqa: BLE001  # unpickling damaged bytes raises nearly anything
            with suppress(OSError):
                self.flush()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep the machine code for a signature, if the folder can be written."""
        # A full disk, a folder without permission, an index that could not be emptied.
        with suppress(Exception):
            super().save_overload(sig, data)


def compile_loop(**options: Any) -> Callable[[F], F]:
    """Return a decorator that compiles a function without the interpreter's lock; `options`
    are numba's.
    """

    def decorate(function: F) -> F:
        loop = numba.njit(nogil=True, **options)(function)
        # Neither this folder, nor one of the user's, nor NUMBA_CACHE_DIR can be written.
        with suppress(RuntimeError):
            loop._cache = RepairedCache(function)  # noqa: SLF001  # what enable_caching() sets
        return cast(F, loop)

    return decorate
