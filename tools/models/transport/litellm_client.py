"""Providers that LiteLLM reaches, and not our own client. LiteLLM sends over our connections.

It makes clients of its own kinds, so its settings for clients are set while a call lasts, and none
of ours stays in its cache. Its answers are read as our own client's are. Left out: streams.
"""

import math
import os
import time
from collections.abc import Iterator
from concurrent.futures import wait
from contextlib import contextmanager
from functools import cache, partial
from threading import Lock
from typing import Any

import dspy
import httpx

from sextant.tools.models import provider_errors
from sextant.tools.models.dspy_internals import chat_to_responses, error_boundary, litellm_errors
from sextant.tools.models.model_spec import import_litellm, unsupported_reasoning_limit
from sextant.tools.models.provider_response import ProviderResponse
from sextant.tools.models.secrets import SECRET, redact, redact_nested
from sextant.tools.models.tokens import mark_cacheable_prefix
from sextant.tools.models.transport.http_client import ServerConnections, bounding, find_proxy
from sextant.tools.models.transport.openai_client import Completion, read_completion
from sextant.tools.platform.interrupts import start_thread
from sextant.tools.platform.temporary_changes import (
    AttributeChange,
    SharedContext,
    changed_attributes,
)

# Providers that LiteLLM gives a limit of reasoning.
_THINKING = ("anthropic/", "bedrock/", "gemini/", "vertex_ai/")


def send(api: str, request: dict[str, Any], deadline: float, most: float) -> ProviderResponse:
    """Return the answer to a chat, in the form of Chat Completions whatever the `api`.

    It comes by the `deadline`, by time.monotonic; `most` bounds the seconds that LiteLLM is told.
    Raises DSPy's LM errors.
    """
    seconds_left = max(0.0, deadline - time.monotonic())
    # Whole seconds, as LiteLLM opens new connections for each other number. This bounds the wait for
    # a next byte.
    request["timeout"] = min(max(1.0, math.ceil(seconds_left)), most)
    try:
        with bounding(deadline):
            pending = start_thread(partial(_converse, api, request))  # abandoned at the deadline
        if not wait([pending], timeout=seconds_left).done:
            raise dspy.LMTimeoutError("the answer did not come in time")
        reply = pending.result()
    except Exception as error:  # noqa: BLE001  # a provider's library may raise anything; it is raised again
        raise provider_errors.from_litellm(error) from None
    reply = Completion(*redact_nested(list(reply), partial(redact, least=SECRET)))
    return reply.as_response({}, with_calls="tools" in request)


def _converse(api: str, request: dict[str, Any]) -> Completion:
    model = request["model"]
    has_tools = "tools" in request
    messages = mark_cacheable_prefix(model, request["messages"], grows=has_tools)
    if has_tools:
        # LiteLLM writes words of its own into a text that is empty, and leaves one alone that is
        # missing. Looking for tools of its MCP gateway, it imports a package that it comes without.
        messages = [
            message if message.get("content") else message | {"content": None}
            for message in messages
        ]
        request = request | {"_skip_mcp_handler": True}
    once = {"num_retries": 0, "cache": {"no-cache": True, "no-store": True}}
    request = request | {"messages": messages} | once
    litellm = import_litellm()
    with (
        _own_connections(),
        error_boundary(model, unexpected=True),
        litellm_errors(model=model, provider=model.partition("/")[0]),
    ):
        if api == "responses":
            answered = litellm.responses(**chat_to_responses(request))
        else:
            answered = litellm.completion(**request)
    return read_completion(api, answered.model_dump_json().encode(), model)


def limit_reasoning(model: str, tokens: int) -> dict[str, Any]:
    """Return the option for --reasoning-tokens; UsageError if LiteLLM has none that is a limit."""
    if not model.startswith(_THINKING):
        raise unsupported_reasoning_limit(f"{model}, by way of LiteLLM,")
    return {"thinking": {"type": "enabled", "budget_tokens": tokens}}


class _Servers(httpx.BaseTransport):
    """Connections to all servers that LiteLLM sends to.

    A redirect is an error: LiteLLM's clients follow redirects, and there is no setting for it. httpx
    removes a single header of keys on the way to another host, `Authorization`; `x-api-key`,
    `api-key` and `x-goog-api-key` go along, and so does the prompt.
    """

    def __init__(self) -> None:
        from litellm.llms.custom_httpx.http_handler import (
            get_ssl_configuration,  # few calls need it
        )

        # As LiteLLM's clients have it, with the certificate of the client that it looks for
        self._tls = httpx.create_ssl_context(
            verify=get_ssl_configuration(),
            cert=os.environ.get("SSL_CERTIFICATE", import_litellm().ssl_certificate),
        )
        self._lock = Lock()
        self._servers = dict[str, ServerConnections]()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        url = f"{request.url.scheme}://{request.url.netloc.decode('ascii')}"
        with self._lock:
            if url not in self._servers:
                self._servers[url] = ServerConnections(self._tls, find_proxy(url))
        response = self._servers[url].handle_request(request)
        if response.has_redirect_location:
            response.request = request
            response.read()
            raise httpx.HTTPStatusError("a redirect", request=request, response=response)
        return response


@cache
def _clients() -> list[AttributeChange]:
    """Return LiteLLM's settings while we call it, whose clients are for all our calls."""
    litellm = import_litellm()
    transport = _Servers()
    return [
        # The client of the providers that LiteLLM reaches by OpenAI's library
        AttributeChange(litellm, "client_session", httpx.Client(transport=transport)),
        # The transport of clients that it makes for the others
        AttributeChange(litellm, "sync_transport", transport),
        AttributeChange(
            litellm,
            "in_memory_llm_clients_cache",
            type(litellm.in_memory_llm_clients_cache)(),
        ),
        AttributeChange(litellm, "suppress_debug_info", True),
    ]


@SharedContext
@contextmanager
def _own_connections() -> Iterator[None]:
    with changed_attributes(_clients()):
        yield
