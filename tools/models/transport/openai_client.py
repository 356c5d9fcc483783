"""The connection to a server of OpenAI's protocols, Chat Completions or Responses: a request out,
an answer back.

Many servers speak them (vLLM, llama.cpp, Ollama, SGLang, gateways), so every answer is checked.
OpenAI's client sends, over connections that are bounded (tools/models/transport/http_client.py).
Left out: images, audio, and sending again (tools/models/client.py).
"""

import json
import os
import re
import threading
import time
from bisect import bisect_left
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import dspy
import httpx
import orjson

from sextant.tools.models import model_spec as models
from sextant.tools.models import provider_errors, secrets, server_detection
from sextant.tools.models.call_limits import retry_after
from sextant.tools.models.model_spec import (
    DEFAULTS,
    PROVIDERS,
    SERVER_KEY,
    ModelSettings,
    ServerKind,
)
from sextant.tools.models.provider_response import (
    REPETITION,
    ProviderResponse,
    is_cut,
    read_finish_reason,
    read_report,
)
from sextant.tools.models.secrets import SECRET, header_values, redact_nested
from sextant.tools.models.tokens import Message, count_tokens, mark_cacheable_prefix
from sextant.tools.models.transport.http_client import (
    LARGEST,
    HttpClient,
    HttpResponse,
    TransportError,
    read_answer,
)
from sextant.tools.models.transport.streams import (
    STARTS,
    StreamReader,
    cut_loop,
    end_stream,
    events_to_json,
    first_token_offset,
    merge_chunks,
    stream_options,
)
from sextant.tools.session import SharedOnDeepcopy

if TYPE_CHECKING:
    import openai

PATHS = {"chat": "/chat/completions", "responses": "/responses"}
MARK = "[[ ##"  # what an answer in DSPy's form begins with
# What no thoughts begin with
_ANSWER_STARTS = (MARK, "{", "<tool_call>")
FINISH = 100  # letters of why an answer ended; the longest word for it has 20

# Has OpenAI's client leave the body of an answer to be read part by part
_STREAMED = {"X-Stainless-Raw-Response": "stream"}

Clean = Callable[[str], str]  # takes secrets out of a server's words


class Completion(NamedTuple):
    """The answer of a model."""

    text: str
    tool_calls: list[dict[str, str]]  # "id", "name" and "arguments", the last as it was written
    finish: str  # why it ended: "stop", "length", "content_filter", "refusal", "tool_calls", ...
    usage: Any  # as the server reports it; None where it does not
    reasoning: str = ""  # what it thought before, where the server shows that
    parts: Mapping[str, Any] = MappingProxyType({})  # of its message: what goes back with its calls
    first: float | None = None  # seconds to the first token, where the answer was streamed
    timings: Any = None  # llama.cpp's own measure of its speed

    def as_response(self, headers: Any, *, with_calls: bool) -> ProviderResponse:
        """Return the answer to be booked: its text, or its message with calls of tools."""
        output: Any = self.text
        if with_calls:
            parts = {"parts": dict(self.parts)} if self.parts else {}
            output = {"content": self.text, "tool_calls": self.tool_calls, **parts}
        return ProviderResponse(
            [output],
            self.finish,
            self.usage,
            headers,
            self.reasoning,
            self.first,
            timings=self.timings,
        )


class UnreadableResponse(dspy.LMTransportError):
    """An answer that cannot be read; `billed` if a credible `usage` was reported: another try costs
    as much.
    """

    kind = "unreadable"
    about: provider_errors.Subject = "unknown"  # whatever words stand in it

    def __init__(self, what: str, model: str, usage: Any = None) -> None:
        super().__init__(f"no answer that can be read: {what}", model=model)
        self.what = what
        self.usage = usage
        self.billed = read_report(usage) is not None


class OpenAIClient(SharedOnDeepcopy):
    """The connection to a model on a server. Threads share it, and so do copies of a language
    model.
    """

    def __init__(
        self, model: str, url: str = "", *, provider: str = "", settings: ModelSettings = DEFAULTS
    ) -> None:
        """Name a server at `url`, or a `provider`; `model` is as the server calls it."""
        default_url, url_variables, self.variable = (
            PROVIDERS[provider] if provider else (url, (), SERVER_KEY)
        )
        self.url = next(
            (os.environ[name] for name in url_variables if os.environ.get(name)), default_url
        )
        self.model = model
        self.api = settings.api
        self.key = secrets.get_secret(self.variable)
        self._settings = settings
        self._headers = header_values(settings.headers)
        long = [
            value for value in self._headers.values() if len(value) >= SECRET
        ]  # others are words: a region, a team
        self._secrets = [value for value in (self.key, *long) if value]
        self._needs_key = bool(provider)
        self.server = server_detection.server_from_url(self.url, model)
        # Both are made for their first request
        self._server: HttpClient | None = None
        self._client: openai.OpenAI | None = None
        self._endpoint: Any = None  # of chats, an httpx.URL; known once there is a client
        # Whether answers begin with their first field, so that the last line of their form is their
        # end: a model that thinks aloud may write it in a draft, long before the answer.
        self._answers_at_once = False
        self._thinks_aloud = False
        self._lock = threading.Lock()

    def meet(self, remembered: dict[str, Any], *, ask: bool) -> None:
        """Ask a server of the user's own for its kind, or take it from the `kept` part of a
        cassette.
        """
        if ask and not self._needs_key:
            self.server = server_detection.detect_server(self, self.model)
            remembered |= {"kind": self.server.kind.name, "window": self.server.window}
        elif "kind" in remembered:
            self.server = self.server._replace(
                kind=server_detection.KINDS[remembered["kind"]], window=remembered["window"]
            )
        self._limit_reasoning()

    def _limit_reasoning(self) -> Any:
        """Return --reasoning-tokens as this server has it; UsageError if it is asked for and there
        is no place.
        """
        words: Any = self._settings.reasoning_tokens
        if words and not (self.server.kind.reasoning and self.api == "chat"):
            raise models.unsupported_reasoning_limit(f"{self.model} at {self.url}")
        for name in reversed(self.server.kind.reasoning):
            words = {name: words}
        return words

    def body(
        self, messages: Sequence[Message], tools: Sequence[Message], settings: Mapping[str, Any]
    ) -> bytes:
        """Return the request for a chat, whose parts are given as Chat Completions has them, whichever the protocol.

        This is stored, and keys are made of it, whatever server it goes to; see
        `write_server_limits`. Settings come first, the limit of an answer before all, and
        --extra-body has the last word.
        """
        limit = settings.get("max_completion_tokens") or settings.get("max_tokens")
        request: dict[str, Any] = {"max_tokens": limit} if limit else {}
        request |= {"model": self.model}
        request |= {
            name: settings[name]
            for name in settings
            if name not in ("max_completion_tokens", "max_tokens")
        }
        if self.api == "chat":
            request |= {"messages": list(messages)} | ({"tools": list(tools)} if tools else {})
        else:
            request["store"] = False
            if "reasoning_effort" in request:
                request["reasoning"] = {"effort": request.pop("reasoning_effort")}
            if "response_format" in request:
                request["text"] = {
                    "format": {
                        "type": "json_schema",
                        **request.pop("response_format")["json_schema"],
                    }
                }
            request.pop("seed", None)  # it has none
            request["input"] = [item for message in messages for item in _items(message)]
            if tools:
                # Chat checks arguments strictly where it is told to, Responses where it is not told
                # otherwise.
                request["tools"] = [
                    {"type": "function", "strict": False, **tool["function"]} for tool in tools
                ]
                if "temperature" not in request:  # a reasoning model's; others refuse this
                    request["include"] = ["reasoning.encrypted_content"]
        request = deep_merge(request, self._settings.extra_body)
        try:
            return orjson.dumps(request)
        except TypeError:  # lone surrogates
            return json.dumps(request).encode()

    def send(
        self,
        body: bytes,
        instruction: str,
        limit: int | None,
        deadline: float,
        *,
        tools: bool = False,
        last: str = "",
    ) -> ProviderResponse:
        """Send the request for a chat, with another `limit` of the answer perhaps; return the answer.

        A stream is left after the line `last`, if it reports usage all along, and when it repeats
        itself. `instruction` is the system message. Raises LM errors, also UnreadableResponse.
        """
        kind = self.server.kind
        request, reader = self._prepare(self._adapt(body, tools=tools), limit, last)
        began = time.monotonic()
        try:
            with self.asking(deadline, tools=tools) as (client, timeout):
                response = client.post(
                    self._endpoint,  # a path would be put together and parsed for each request
                    cast_to=httpx.Response,
                    content=request,
                    options={"headers": _STREAMED, "timeout": timeout},
                )
                answer = self._check_status(read_answer(response, reader), tools=tools)
        except dspy.LMError as error:
            if not (demand := _find_demand(str(error), kind)):
                raise
            self.server = self.server._replace(kind=self.server.kind._replace(**demand.change))
            raise dspy.LMTransportError(demand.words, model=self.model) from error
        received = end_stream(answer.body) if answer.left else answer.body
        reply = read_completion(self.api, received, self.model, clean=self.clean, limit=limit)
        if reader and is_cut(answer.left):
            reply = _end_reply(reply, answer.left, reader.tokens, request)
        if reader and is_stream(answer.body) and (offset := first_token_offset(answer.body)):
            arrival = answer.arrivals[bisect_left(answer.arrivals, (offset, 0.0))]
            reply = reply._replace(first=arrival[1] - began)
        if max(map(len, self._secrets), default=0) >= SECRET:
            reply = Completion(*redact_nested(list(reply), partial(self.clean, least=SECRET)))
        parted = reply.as_response(answer.headers, with_calls=tools).without_thoughts(instruction)
        if last:
            self._thinks_aloud |= bool(parted.reasoning)
            self._answers_at_once = reply.text.lstrip().startswith(MARK) and not self._thinks_aloud
        return parted

    def _prepare(
        self, body: bytes, limit: int | None, last: str
    ) -> tuple[bytes, StreamReader | None]:
        """Return a request as this server has it, and the reader of its answer, if that is streamed."""
        kind = self.server.kind
        chat = self.api == "chat"
        when = self._settings.stream
        streams = when == "on" or (when == "auto" and kind.stream)
        additions = stream_options(chat=chat, each=kind.stops == "stream") if streams else {}
        if chat:
            body = add_stop_and_schema(body, kind, last if self._answers_at_once else "")
        words = kind.limit if chat else ("max_output_tokens",)
        request = write_server_limits(body, words, limit, additions)
        marker = last if kind.stops == "stream" else ""
        return request, StreamReader(marker, chat=chat) if streams else None

    def _adapt(self, body: bytes, *, tools: bool) -> bytes:
        """Return a request with its limit of reasoning in its place, and marks for a cache that needs them."""
        if limit := self._settings.reasoning_tokens:
            reasoning_limit = orjson.dumps(self._limit_reasoning())[1:-1]
            body = body.replace(b'"reasoning_tokens":%d' % limit, reasoning_limit, 1)
        kind = self.server.kind
        arranges = kind.turns or not kind.system
        marks = kind.name in ("openrouter", "litellm") and "claude" in self.model
        if self.api != "chat" or not (arranges or marks):
            return body
        request = json.loads(body)
        messages = request["messages"]
        if arranges:
            messages = arrange_turns(messages, system=kind.system)
        if marks:
            messages = mark_cacheable_prefix(self.model, messages, grows=tools)
        return json.dumps({**request, "messages": messages}).encode()

    def get(self, path: str, deadline: float) -> HttpResponse:
        """Return the answer of status 200 to a GET, by `deadline`. Raises LM errors."""
        with self._lock:
            server = self._reach()
        with self._as_lm_errors():
            answer = server.post(path, b"", deadline=deadline)
        return self._check_status(answer)

    def _check_status(self, answer: HttpResponse, *, tools: bool = False) -> HttpResponse:
        if answer.status != 200:
            raise error_from_response(answer, self.model, tools=tools, clean=self.clean)
        return answer

    @contextmanager
    def asking(
        self, deadline: float, *, tools: bool = False
    ) -> Iterator[tuple["openai.OpenAI", httpx.Timeout]]:
        """Yield OpenAI's client, and the timeout for the one request of the block, whose answer comes by `deadline`.

        Errors of the client become LM errors.
        """
        import openai  # takes half a second, and nothing is sent if all answers are kept

        server, client = self._connect()
        try:
            with self._as_lm_errors(), server.bounded(deadline) as timeout:
                try:
                    yield client, timeout
                except openai.APIConnectionError as error:
                    cause = error.__cause__ or error
                    raise cause from cause.__cause__
        except openai.APIStatusError as error:
            response = error.response
            answer = HttpResponse(
                response.status_code, dict(response.headers.multi_items()), response.content
            )
            raise error_from_response(answer, self.model, tools=tools, clean=self.clean) from None

    @contextmanager
    def _as_lm_errors(self) -> Iterator[None]:
        """Turn the errors of requests in the block into LM errors."""
        try:
            yield
        except TransportError as error:
            message = self.clean(str(error))
            if error.kind == "TLS":
                raise provider_errors.tls_error(message, self.model) from None
            error_type = dspy.LMTimeoutError if error.kind == "timeout" else dspy.LMTransportError
            unreached = error_type(message, model=self.model)
            unreached.kind = error.kind  # for tools/models/provider_errors.py
            raise unreached from None

    def _connect(self) -> tuple[HttpClient, "openai.OpenAI"]:
        import openai  # as above

        with self._lock:
            server = self._reach()
            if self._client is None:
                client = openai.OpenAI(
                    api_key=self.key or "none",
                    base_url=server.url,
                    max_retries=0,
                    default_headers=server.headers,
                    http_client=server.client,
                )
                # Environment variables name these for OpenAI's own server alone, which has them from
                # `organization_headers`.
                client.organization = None
                client.project = None
                client._custom_headers = server.headers  # noqa: SLF001  # without $OPENAI_CUSTOM_HEADERS
                self._endpoint = httpx.URL(f"{server.url}{PATHS[self.api]}")
                self._client = client
            return server, self._client

    def _reach(self) -> HttpClient:
        """Return the connections to the server; the caller holds the lock."""
        if self._server is None:
            if not self.key and self._needs_key:
                raise dspy.LMNotConfiguredError(f"${self.variable} is not set", model=self.model)
            headers = {
                "Authorization": f"Bearer {self.key or 'none'}",
                "Content-Type": "application/json",
            }
            headers |= organization_headers(self.url)
            for name, value in self._headers.items():
                # As OpenAI's client spells it, so that the user's header takes its place
                headers["Authorization" if name.lower() == "authorization" else name] = value
            self._server = HttpClient(
                self.url,
                headers,
                largest=LARGEST,
                certificate=self._settings.client_certificate,
            )
        return self._server

    def clean(self, text: str, least: int = 0) -> str:
        """Return a server's words without secrets of `least` letters: the key, and values of
        headers.
        """
        for value in self._secrets:
            text = text.replace(value, "***") if len(value) >= least else text
        return text


def organization_headers(url: str) -> dict[str, str]:
    """Return the headers that say which organization and project pays, for OpenAI itself; none for another server."""
    address = urlsplit(url)
    if (address.scheme, address.hostname) != ("https", "api.openai.com"):
        return {}
    headers = {
        "openai-organization": secrets.get_secret("OPENAI_ORG_ID")
        or secrets.get_secret("OPENAI_ORGANIZATION"),
        "openai-project": secrets.get_secret("OPENAI_PROJECT_ID")
        or secrets.get_secret("OPENAI_PROJECT"),
    }
    return {name: value for name, value in headers.items() if value}


def deep_merge(body: Mapping[str, Any], additions: Mapping[str, Any]) -> dict[str, Any]:
    """Return a body with `additions` in it, which win; mappings that both have are merged, and null takes a field out.

    That is how JSON Merge Patch has it (RFC 7396).
    """
    merged = dict(body)
    for name, value in additions.items():
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, Mapping):
            present = body.get(name)
            merged[name] = deep_merge(present if isinstance(present, Mapping) else {}, value)
        else:
            merged[name] = value
    return merged


# Where one of these is in a request, thoughts or a schema may have the last line in them.
_NO_STOP = (b'"stop":', b'"json_schema":', b'"reasoning_effort":', b'"thinking_budget_tokens":')


def add_stop_and_schema(body: bytes, kind: ServerKind, last: str) -> bytes:
    """Return a request by Chat that ends before its `last` line, with a schema by the name that the server knows."""
    if kind.name == "llama-cpp-python" and b'"json_schema":' in body:
        request = json.loads(body)
        schema = request["response_format"]["json_schema"]["schema"]
        request["response_format"] = {"type": "json_object", "schema": schema}
        return json.dumps(request, separators=(",", ":")).encode()
    if (
        last
        and kind.stops == "stop"
        and last.encode() in body
        and not any(word in body for word in _NO_STOP)
    ):
        return body[:-1] + b',"stop":["%s"]}' % last.encode()
    return body


def write_server_limits(
    body: bytes, words: Sequence[str], limit: int | None = None, additions: Mapping[str, Any] = {}
) -> bytes:
    """Return a request for a chat with the limit of its answer, or another limit, in the `words` of
    a server.

    `additions` has further fields of the request; the request's own values win.
    """
    # Before the model are limits; parsing all would cost too much.
    head, model, after_model = body.partition(b'"model":')
    fields = dict(additions)
    if own_limit := orjson.loads(head.rstrip(b", ") + b"}").get("max_tokens"):
        fields |= dict.fromkeys(words, limit or own_limit)
    beginning = orjson.dumps(fields)[:-1] + b"," if fields else b"{"
    return beginning + model + after_model


def _items(message: Message) -> list[dict[str, Any]]:
    """Return a message of Chat as items of Responses."""
    content = message["content"]
    if message["role"] == "tool":
        call_id = message["tool_call_id"]
        return [{"type": "function_call_output", "call_id": call_id, "output": content}]
    items = [*message.get("reasoning_items", ())]
    calls = message.get("tool_calls") or ()
    if content or not calls:
        items.append({"role": message["role"], "content": content})
    for call in calls:
        items.append({"type": "function_call", "call_id": call["id"], **call["function"]})
    return items


def _end_reply(reply: Completion, finish: str, tokens: int, request: bytes) -> Completion:
    """Return the part of a reply whose rest was not waited for, without its repetitions, with its
    usage by our count where the server has not reported it.

    `tokens` is the least number of tokens that have come.
    """
    if read_report(reply.usage) is None:
        arguments = [call["arguments"] for call in reply.tool_calls]
        text = "".join([reply.reasoning, reply.text, *arguments])
        usage = {
            "prompt_tokens": count_tokens(request.decode("utf-8", "replace")),
            "completion_tokens": max(tokens, count_tokens(text)),
        }
        reply = reply._replace(usage=usage)
    if finish == REPETITION:
        calls = [*reply.tool_calls]
        if calls:
            calls[-1] = {**calls[-1], "arguments": cut_loop(calls[-1]["arguments"])}
        reply = reply._replace(text=cut_loop(reply.text), tool_calls=calls)
    return reply._replace(finish=finish)


def read_completion(
    api: str, data: bytes, model: str, *, clean: Clean = str, limit: int | None = None
) -> Completion:
    """Read the answer of a chat in a body with status 200; `limit` is the most tokens that it may
    have. Unreadable, or DSPy's LM error for a reported error.
    """
    answer = parse_body(data, model, clean=clean)
    usage = answer.get("usage") if isinstance(answer, dict) else None
    try:
        reply = _chat(answer, usage) if api == "chat" else _responses(answer, usage)
    except (KeyError, IndexError, TypeError, AttributeError, RecursionError):
        beginning = _start(data, 200, clean)
        raise UnreadableResponse(f"it has no message, but {beginning!r}", model, usage) from None
    metered = read_report(usage)
    tokens = metered.output_tokens if metered else None
    # Cleaned before it is cut, so that no secret is cut in two.
    finish = clean(read_finish_reason(reply.finish, tokens, limit))[:FINISH]
    return reply._replace(
        finish="".join(letter if letter.isprintable() else "?" for letter in finish),
        timings=answer.get("timings"),
    )


def is_stream(body: bytes) -> bool:
    """Return whether a body is a stream of events; a server may send its answer whole in spite of the
    request for a stream.
    """
    return body[:100].lstrip().startswith(STARTS)


def parse_body(data: bytes, model: str, *, clean: Clean = str) -> Any:
    """Parse a body with status 200. Unreadable when it is no JSON, an LM error if it reports one."""
    data = data.removeprefix(BOM_UTF8)
    try:
        streamed = is_stream(data)
        text = events_to_json(data) if streamed else data
        try:
            answer = orjson.loads(text)
        except ValueError:
            if b"\\ud" not in text.lower():
                raise
            answer = json.loads(
                text
            )  # halves of surrogate pairs, which are no UTF-8: models write them
        if streamed:
            answer = merge_chunks(answer)
    except (ValueError, RecursionError, AttributeError, TypeError) as error:
        raise UnreadableResponse(
            f"{str(error).partition(':')[0]} in {_start(data, 80, clean)!r}", model
        ) from None
    if isinstance(answer, dict) and (failed := _failure_inside(answer, model, clean)):
        raise failed
    return answer


# Thoughts go back under the name they came with, and only with the calls that they led to: DeepSeek
# refuses calls without them (https://api-docs.deepseek.com/guides/thinking_mode), models behind
# vLLM and SGLang lose the thread, OpenRouter takes its details whole
# (https://openrouter.ai/docs/use-cases/reasoning-tokens), and LiteLLM Anthropic's signed blocks.
# Gemini 3 refuses calls without the signature beside each
# (https://ai.google.dev/gemini-api/docs/thought-signatures).
_THOUGHTS = (
    "reasoning_details",
    "thinking_blocks",
    "reasoning_content",
    "reasoning",
    "thinking",
)  # the first of them
_BESIDE_CALLS = (
    "extra_content",
    "provider_specific_fields",
)  # where Gemini's signatures are; the second is LiteLLM's
# Where thoughts are told: the first that has a text. Blocks come last, because texts next to them
# say the same.
_TOLD = (
    "reasoning_content",
    "reasoning",
    "reasoning_text",
    "thinking",
    "thinking_blocks",
    "reasoning_details",
)
# Names of the text in a block of thoughts
_TEXTS = ("thinking", "text", "content", "summary")
_THOUGHT_PARTS = (
    "thinking",
    "reasoning",
    "thought",
    "reasoning_content",
    "reasoning_text",
    "redacted_thinking",
)


class _Content(NamedTuple):
    text: str
    thoughts: str
    refusal: str


def _chat(answer: Any, usage: Any) -> Completion:
    choice = answer["choices"][0]
    message = choice.get("message")
    if message is None and choice.get("finish_reason"):
        message = {}  # Gemini's, where thoughts take all tokens or a filter the whole answer
    written = message.get("tool_calls") or ()
    written = [written] if isinstance(written, dict) else written
    if not written and isinstance(message.get("function_call"), dict):
        written = [{"function": message["function_call"]}]  # the protocol's form until 2023
    calls = [_call(call, call.get("function", call)) for call in written]
    content = _read_content(message.get("content"))
    refusal = _text(message.get("refusal")) or content.refusal
    told = (_text_within(message.get(name)) for name in _TOLD)
    reasoning = next(filter(None, told), "") or content.thoughts
    text = content.text or refusal
    if not (text.strip() or calls) and reasoning.lstrip().startswith(_ANSWER_STARTS):
        # A server whose parser of thoughts expects some takes the whole answer for thoughts
        text = reasoning
        reasoning = ""
    is_refused = refusal or message.get("refusal")
    finish = "refusal" if is_refused else str(choice.get("finish_reason") or "")
    parts = _parts_of_calls(message, written, content) if calls else {}
    return Completion(text, calls, finish, usage, reasoning, parts)


def _parts_of_calls(
    message: Mapping[str, Any], written: Sequence[Mapping[str, Any]], content: _Content
) -> dict[str, Any]:
    """Return what goes back with the calls of a message: thoughts, and data next to the calls."""
    parts = {}
    if thoughts := next((name for name in _THOUGHTS if message.get(name)), None):
        parts[thoughts] = message[thoughts]
    if content.thoughts:
        parts["content"] = message["content"]
    if any(call.get(name) for call in written for name in _BESIDE_CALLS):
        parts["tool_calls"] = [
            {name: call[name] for name in call if name != "index"} for call in written
        ]
    return parts


def _read_content(content: Any) -> _Content:
    """Read a content: a text, or parts, as Mistral and Anthropic have it."""
    if not isinstance(content, list):
        return _Content(content if isinstance(content, str) else "", "", "")
    parts = [part for part in content if isinstance(part, dict)]
    thoughts = [part for part in parts if _is_thought(part)]
    said = [part for part in parts if not _is_thought(part)]
    return _Content(
        "".join(_text(part.get("text")) for part in said),
        "".join(map(_text_within, thoughts)),
        "".join(_text(part.get("refusal")) for part in parts),
    )


def _is_thought(content_part: Mapping[str, Any]) -> bool:
    return content_part.get("type") in _THOUGHT_PARTS or content_part.get("thought") is True


def _text_within(value: Any) -> str:
    """Return the text of thoughts: itself, or in blocks and lists of them."""
    if isinstance(value, list):
        return "".join(map(_text_within, value))
    if isinstance(value, dict):
        texts = (_text_within(value.get(name)) for name in _TEXTS)
        return next(filter(None, texts), "")
    return value if isinstance(value, str) else ""


def _responses(answer: Any, usage: Any) -> Completion:
    texts = []
    calls = []
    thoughts = []
    finish = "stop"
    items = []
    for item in answer["output"]:
        if item["type"] == "function_call":
            calls.append(_call({**item, "id": item.get("call_id")}, item))
        if item["type"] == "reasoning":
            thoughts += [_text(item.get("summary")), _text(item.get("content"))]
            # Else it names one that is not stored.
            if item.get("encrypted_content") or item.get("content"):
                items.append(item)
        if item["type"] == "message":
            content = _read_content(item.get("content"))
            finish = "refusal" if content.refusal else finish
            texts.append(content.text + content.refusal)
    status = answer.get("status")
    if status == "failed" or (not answer["output"] and status != "incomplete"):
        raise KeyError("output")
    if status == "incomplete":
        finish = str((answer.get("incomplete_details") or {}).get("reason") or "incomplete")
    reasoning = "\n\n".join(filter(None, thoughts))
    parts = {"reasoning_items": items} if calls and items else {}
    return Completion("".join(texts), calls, finish, usage, reasoning, parts)


def _text(content: Any) -> str:
    return _read_content(content).text


def _call(call: Any, function: Any) -> dict[str, str]:
    """Return a tool call with every field as text, whatever a server makes of the protocol."""
    function = function if isinstance(function, dict) else {}
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        arguments = "" if arguments is None else json.dumps(arguments, default=str)
    return {
        "id": str(call.get("id") or ""),
        "name": str(function.get("name") or ""),
        "arguments": arguments,
    }


class _Demand(NamedTuple):
    """A demand of a server that its refusals tell; the request is sent again in the way it demands."""

    pattern: re.Pattern[str]  # in the words of a refusal
    change: Mapping[str, Any]  # of the server's kind
    words: str  # for the ledger


_TURNS = re.compile(r"roles must alternate|unexpected role '?user'? after role", re.IGNORECASE)
_NO_SYSTEM = re.compile(
    r"(?:system|developer)\W+(?:role|message|instruction|prompt)s?\W+(?:is |are )?not (?:supported|enabled|allowed)"
    r"|only user\W+(?:and )?(?:assistant|model)\W+roles are supported"
    r"|not support\W+(?:the )?(?:system|developer)\b",
    re.IGNORECASE,
)
_DEMANDS = (
    # OpenAI's models under a name of a gateway's
    _Demand(
        re.compile(r"use '?max_completion_tokens", re.IGNORECASE),
        {"limit": ("max_completion_tokens",)},
        "the limit of an answer has another name here",
    ),
    # Templates of Mistral's models; the first of them take a system message for one of the user's
    _Demand(_TURNS, {"turns": True}, "messages have to take turns here"),
    _Demand(_TURNS, {"system": False}, "no system message is taken here"),
    # Templates of Gemma and others; Gemini's API for Gemma; OpenAI's o1-mini
    _Demand(_NO_SYSTEM, {"system": False}, "no system message is taken here"),
)


def _find_demand(refusal: str, kind: ServerKind) -> _Demand | None:
    """Return what a server demands that refused a request of this `kind`; None if it demands nothing new."""
    for demand in _DEMANDS:
        is_new = any(getattr(kind, name) != value for name, value in demand.change.items())
        if is_new and demand.pattern.search(refusal):
            return demand
    return None


def arrange_turns(messages: Sequence[Message], *, system: bool) -> list[Message]:
    """Return messages in which user and model take turns, without a `system` message if none is taken.

    Texts of one role in a row are joined, and a message of the user behind a tool's result has a
    short one of the model before it.
    """
    arranged: list[Message] = []
    for message in messages:
        role = message["role"]
        if role in ("system", "developer") and not system:
            role = "user"
        before = arranged[-1]["role"] if arranged else ""
        if role == before == "user" and isinstance(message["content"], str):
            joined = f"{arranged[-1]['content']}\n\n{message['content']}"
            arranged[-1] = {**arranged[-1], "content": joined}
            continue
        if role == "user" and before == "tool":
            arranged.append({"role": "assistant", "content": "I have read this."})
        arranged.append({**message, "role": role})
    return arranged


_NO_TOOLS = re.compile(r"\b(?:tools?|tool_choice|function(?:s| call\w*))\b", re.IGNORECASE)
# llama.cpp without --jinja answers a request that it does not take with status 500.
_TOOLS_REFUSED = re.compile(r"\btools? param requires\b", re.IGNORECASE)
_MARKUP = re.compile(r"<(script|style|head\b).*?</\1>|<[^>]*>", re.IGNORECASE | re.DOTALL)
_OF_ACCOUNT: Mapping[int, type[dspy.LMError]] = {
    **dict.fromkeys((401, 403), dspy.LMAuthError),
    **dict.fromkeys((402, 429), dspy.LMBillingError),
    404: dspy.LMUnsupportedModelError,
}


def error_from_response(
    answer: HttpResponse, model: str, *, tools: bool = False, clean: Clean = str
) -> dspy.LMError:
    """Return the error for an answer of another status than 200."""
    status = answer.status
    page = ""
    if 300 <= status < 400:
        return provider_errors.redirect_error(status, answer.headers, model, clean)
    try:
        error_body = provider_errors.read_error(orjson.loads(answer.body))
    except ValueError:
        page = _start(answer.body, 4000, clean)
        words = " ".join(_MARKUP.sub(" ", page).split())[:200]
        error_body = provider_errors.ProviderErrorBody(
            f"status {status}" + (f", with a page that begins {words!r}" if words else "")
        )
    error = _error(status, error_body, model, clean, tools, page)
    error.retry_after = retry_after(answer.headers) or error_body.wait
    return error


def _error(
    status: int,
    error_body: provider_errors.ProviderErrorBody,
    model: str,
    clean: Clean,
    tools: bool,
    page: str = "",
) -> dspy.LMError:
    topic = provider_errors.classify_topic(status, error_body.codes, page or error_body.words)
    error = _type(status, topic, error_body, tools)(
        message=clean(error_body.words) or f"status {status}",
        model=model,
        status=status,
        provider_code=clean(error_body.codes[0]) if error_body.codes else None,
    )
    error.about = topic  # for tools/models/provider_errors.py
    return error


def _type(
    status: int,
    topic: provider_errors.Subject,
    error_body: provider_errors.ProviderErrorBody,
    tools: bool,
) -> Any:
    if tools and provider_errors.CALL_IDS.search(
        error_body.words
    ):  # whatever the status: it comes out of the model's template
        return partial(dspy.LMUnsupportedFeatureError, feature=provider_errors.CALL_ID_FEATURE)
    if topic == "account":
        if "model_not_found" in error_body.codes:
            return dspy.LMUnsupportedModelError
        return _OF_ACCOUNT.get(status, dspy.LMInvalidRequestError)
    if status in (408, 409, 425, 429):
        return dspy.LMRateLimitError
    # Before tools: OpenAI counts the tokens "in the functions" of a conversation. Before the status:
    # Ollama refuses with 500 what no other try makes shorter
    if topic == "length":
        return dspy.ContextWindowExceededError
    if tools and status == 500 and _TOOLS_REFUSED.search(error_body.words):
        return partial(dspy.LMUnsupportedFeatureError, feature="tools")
    if status >= 500 and status != 501:
        return dspy.LMServerError
    if not 400 <= status < 500:  # no server of this protocol sends it
        return dspy.LMTransportError
    if tools and topic == "unknown" and _NO_TOOLS.search(error_body.words):
        return partial(dspy.LMUnsupportedFeatureError, feature="tools")
    return dspy.LMInvalidRequestError


def _failure_inside(answer: dict[str, Any], model: str, clean: Clean) -> dspy.LMError | None:
    """Return the error that a gateway sends with status 200, in place of an answer or in its choice; None for none."""
    usage = answer.get("usage")
    choice: dict[str, Any] = {}
    with suppress(KeyError, IndexError, TypeError, ValueError):
        choice = dict(answer["choices"][0])
    broken = "the answer broke off" if choice.get("finish_reason") == "error" else None
    is_error = answer.get("object") == "error"  # FastChat's, and vLLM's until 2025
    error = answer.get("error") or choice.get("error") or (answer if is_error else broken)
    if not error:
        return None
    code = error.get("code") if isinstance(error, dict) else None  # it is the status, or else 500
    status = code if isinstance(code, int) and 400 <= code < 600 else 500
    lm_error = _error(
        status, provider_errors.read_error({"error": error}), model, clean, tools=False
    )
    lm_error.kind = f"error {status}"
    lm_error.usage = usage
    lm_error.billed = read_report(usage) is not None
    return lm_error


def _start(data: bytes, most: int, clean: Clean) -> str:
    """Return the beginning of a body, cleaned before it is cut, so that no secret is cut in two."""
    return clean(data[: most + 4096].decode("utf-8", "replace"))[:most]
