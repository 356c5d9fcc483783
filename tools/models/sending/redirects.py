"""A model's client sends to the host that it was told, and to no other.

LiteLLM's clients follow redirects, and there is no setting for it. httpx takes off one header of keys on the way to
another host, `Authorization`; `x-api-key`, `api-key` and `x-goog-api-key` go along, and so does the prompt.
DSPy's native client and tools/models/sending/post.py follow none.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, wraps
from typing import Any

import httpx

_REFUSED: ContextVar[bool] = ContextVar("redirects_refused", default=False)


@contextmanager
def refused() -> Iterator[None]:
    """Inside, no client of httpx follows a redirect, whatever it was made with; elsewhere they are as ever."""
    _prepare()
    token = _REFUSED.set(True)
    try:
        yield
    finally:
        _REFUSED.reset(token)


@cache
def _prepare() -> None:
    for client in (httpx.Client, httpx.AsyncClient):
        client.send = _staying(client.send)  # type: ignore[method-assign]


def _staying(send: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(send)
    def sent(client: Any, request: httpx.Request, **options: Any) -> Any:
        return send(client, request, **options | ({"follow_redirects": False} if _REFUSED.get() else {}))

    return sent
