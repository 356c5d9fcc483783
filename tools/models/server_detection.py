"""Detect the kind of a server that speaks OpenAI's protocol, and its token limit: by asking the
server, or from a table.

Servers call the same things by different words, and ignore unknown words. `KINDS` has the features
of each; `detect_server` tells them apart by their listings of models. To add a kind: a row in
`KINDS`, for a provider a row in `_ADDRESSES`, too. Left out: features that do not depend on the
kind of a server, such as the price of its models.
"""

import re
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import dspy
import orjson

from sextant.tools.models.model_spec import UNKNOWN, ServerInfo, ServerKind
from sextant.tools.platform.cli import print_stderr
from sextant.tools.records import JsonMapping, JsonObject

# For each of the two questions. A server that is busy with long prompts answers late, and a run whose server is
# taken for an unknown one has other prompts, which a later sitting would pay for again.
SECONDS = 20.0
_MOST = 1_000_000_000  # tokens of a window; more is a mistake

_LLAMA = ("thinking_budget_tokens",)
_ROWS = (
    UNKNOWN.kind,
    ServerKind("openai", ("max_completion_tokens",), schema=True, stream=True),
    ServerKind("openrouter", schema=True, stream=True, reasoning=("reasoning", "max_tokens")),
    ServerKind(
        "gemini",
        schema=True,
        stream=True,
        reasoning=("extra_body", "google", "thinking_config", "thinking_budget"),
    ),
    ServerKind(
        "vllm",
        schema=True,
        stream=True,
        stops="stream",
        reasoning=("thinking_token_budget",),
        owner="vllm",
        bounds=True,
    ),
    ServerKind("sglang", schema=True, stream=True, owner="sglang"),
    ServerKind(
        "llama.cpp",
        schema=True,
        stream=True,
        stops="stop",
        reasoning=_LLAMA,
        owner="llamacpp",
        bounds=True,
        more="/../props",
    ),
    ServerKind(
        "llama-cpp-python", schema=True, stops="stop", owner="me"
    ),  # its streams have no usage
    ServerKind(
        "ollama", schema=True, stream=True, stops="stop", owner="library", more="/../api/ps"
    ),
    ServerKind(
        "lmstudio",
        schema=True,
        stream=True,
        stops="stop",
        owner="organization_owner",
        more="/../api/v0/models",
    ),
    ServerKind(
        "transformers", ("max_completion_tokens",)
    ),  # it refuses stream_options and response_format
    ServerKind(
        "litellm", stream=True, more="/model/info"
    ),  # whether it takes a schema depends on the model behind it
)
KINDS = {row.name: row for row in _ROWS}

# The domain of a provider -> kind
_ADDRESSES = {
    "api.openai.com": "openai",
    "openai.azure.com": "openai",
    "openrouter.ai": "openrouter",
    "generativelanguage.googleapis.com": "gemini",
}
_OWNERS = {row.owner: row.name for row in _ROWS if row.owner}
# What a window is called, in a row about a model or in one of its parts. The first is what is
# loaded, the last may be more than is: llama.cpp's n_ctx_train, say, is not here.
_WINDOWS = [
    "loaded_context_length",
    "max_model_len",
    "n_ctx",
    "context_length",
    "context_window",
    "max_input_tokens",
]
_WINDOW_BLOCKS = ("meta", "model_info", "default_generation_settings")
_LITELLM = 1677610602  # when each model was made, as its proxy says of all of them
# Its own default, for a model that is not loaded yet; it cuts what is longer without a word
_OLLAMA = 4096
# Models of OpenAI's take its own word only, wherever they are.
_NEWER = re.compile(r"(?:^|/)(?:gpt-5|o\d)")
_GATEWAY = UNKNOWN.kind._replace(limit=("max_completion_tokens",))


def server_from_url(url: str, model: str = "") -> ServerInfo:
    """Return the kind of the server at `url` by its address alone."""
    host = f".{urlsplit(url).hostname}"
    name = next((name for domain, name in _ADDRESSES.items() if host.endswith(f".{domain}")), "")
    return ServerInfo(_GATEWAY if not name and _NEWER.search(model) else KINDS[name])


def detect_server(transport: Any, model: str, seconds: float = SECONDS) -> ServerInfo:
    """Return the kind that the server of a client reports, asked at most twice; an unknown one if
    it says nothing.
    """
    server = server_from_url(transport.url, model)
    if server.kind.name in ("openai", "gemini"):
        return server  # neither tells how much a model takes
    row = _row(get_json(transport, "/models", seconds), model)
    owner = (
        "litellm" if row.get("created") == _LITELLM else _OWNERS.get(str(row.get("owned_by")), "")
    )
    name = server.kind.name or owner
    window = _window(row)
    if window is None and KINDS[name].more:
        listing = get_json(transport, KINDS[name].more, seconds)
        if not name and "/load_model" in _mapping(_mapping(listing).get("paths")):
            name = "transformers"
        window = _window(_row(listing, model))
    if name == "ollama":
        window = window or _OLLAMA
    return ServerInfo(KINDS[name] if name else server.kind, window)


def get_json(transport: Any, path: str, seconds: float) -> Any:
    """Return the JSON that a server has at a path; None if it has none, or does not answer in time, which is said."""
    try:
        return orjson.loads(transport.get(path, time.monotonic() + seconds).body)
    except dspy.LMTimeoutError:
        print_stderr(
            f"{transport.url} did not answer GET {path.removeprefix('/..')} within {seconds:g} s: its kind and window "
            "are not known, and requests have the form that every server takes"
        )
        return None
    except (dspy.LMError, ValueError):
        return None


def _row(listing: Any, model: str) -> JsonMapping:
    """Return the entry of a listing for the model; if its name is not there, of the only model, or
    the listing itself.
    """
    rows = _mapping(listing).get("data") or _mapping(listing).get("models")
    rows = (
        [row for row in rows if isinstance(row, dict)]
        if isinstance(rows, list)
        else [_mapping(listing)]
    )
    named = [row for row in rows if model in map(row.get, ("id", "model", "name", "model_name"))]
    if not named and len(rows) == 1:
        named = rows
    chosen: JsonObject = named[0] if named else {}
    return chosen


def _window(row: JsonMapping) -> int | None:
    blocks = [row, *(_mapping(row.get(block_name)) for block_name in _WINDOW_BLOCKS)]
    windows: Iterator[Any] = (block.get(name) for name in _WINDOWS for block in blocks)
    return next((value for value in windows if type(value) is int and 0 < value <= _MOST), None)


def _mapping(value: Any) -> JsonObject:
    return value if isinstance(value, dict) else {}
