"""Threads of the library that multiplies NumPy's matrices.

Several threads that each multiply with one thread take half the processor's time of threads whose
products share all cores: those wait for each other, and spin meanwhile.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import Lock
from typing import Any


class _SingleThreadedProducts:
    """Lets NumPy multiply with one thread while anyone is inside `products`."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._inside = 0
        self._limit: Any = None

    @contextmanager
    def products(self) -> Iterator[None]:
        with self._lock:
            if self._inside == 0:
                self._limit = _libraries().limit(limits=1)
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if self._inside == 0:
                    self._limit.restore_original_limits()


# A context manager for a block whose threads multiply side by side. The setting is the process's,
# so the last block to end restores it.
single_threaded_products = _SingleThreadedProducts().products


@cache
def _libraries() -> Any:
    from threadpoolctl import ThreadpoolController  # not for a search of a single query

    return ThreadpoolController().select(user_api="blas")
