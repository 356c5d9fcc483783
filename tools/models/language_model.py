"""All model calls go through this module: the connected model that programs run with, as
tools/models/model_spec.py names it.

tools/models/client.py has the stations of a call. DSPy's own cache is off, because it is shared
between runs and keeps no usage; `sextant cache` lists ours.
"""

import asyncio
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from datetime import datetime
from functools import cached_property, partial
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

import dspy
import orjson
from dspy.lm15 import request_from_openai_chat

from sextant.tools import session
from sextant.tools.errors import (
    AbortCompilation,
    ProviderRefused,
    SextantError,
    UsageError,
    check_docstrings,
)
from sextant.tools.models import model_spec as models
from sextant.tools.models import offline_engine, provider_errors
from sextant.tools.models.answers.call_ids import identify, shorten_ids
from sextant.tools.models.answers.checks import (
    COMPLETED,
    LastAnswer,
    Rules,
    current_call,
    update_call,
)
from sextant.tools.models.answers.fields import find_tool, read_calls
from sextant.tools.models.client import DEADLINE, ModelClient
from sextant.tools.models.dspy_internals import (
    attributes,
    request_kwargs,
    response_value,
    with_callbacks,
)
from sextant.tools.models.model_spec import DEFAULTS, UNKNOWN, ServerInfo
from sextant.tools.models.model_spec import (
    ModelSettings as ModelSettings,  # who connects a model finds them here
)
from sextant.tools.models.prompting import Adapter, check_room, remaining_tokens
from sextant.tools.models.provider_response import (
    LENGTH,
    RECOUNT_TOKENS,
    ProviderResponse,
    find_instruction,
    part_output,
)
from sextant.tools.models.run_resources import RunResources
from sextant.tools.models.secrets import header_values
from sextant.tools.models.storage.ledger import ModelResponse
from sextant.tools.models.tokens import Message
from sextant.tools.platform.cli import print_stderr
from sextant.tools.records import Usage
from sextant.tools.text import TermStatistics

if TYPE_CHECKING:
    from sextant.tools.models.prices import Price
    from sextant.tools.models.transport.openai_client import OpenAIClient

# Settings that are in a config beside these, and those that say how something is sent.
_NOT_SHAPING = ("seed", "temperature", "context", "stream", "client_certificate")
FORMAT = 1  # of the key; raised when equal keys would stand for other answers

_CALLS = 1000  # of a query that its history has
_PROMPTS = 10  # of them, those that it has with what was sent
_NOT_KEPT = "(no longer kept)"
_REMAINDER = "remainder"  # makes the rest of an entry of the history, when somebody reads it
CALLS_IN_TEXT = (
    "its server has no parser for them (vLLM: --enable-auto-tool-choice --tool-call-parser, "
    "llama.cpp: --jinja), or none for the form in which the model writes them; "
    "-P interface=dspy asks for them in a prompt instead"
)
# Settings of a model that thinks.
_REASONING_SETTINGS = ("reasoning_tokens", "thinking")  # ours, and LiteLLM's for Anthropic
_OF_DSPY = ("rollout_id", "n", "cache", "num_retries")
# Settings that shape no answer, and secrets.
_NOT_SENT = (*_OF_DSPY, "timeout", "extra_headers")


class LanguageModel(dspy.LM):
    """DSPy's language model with everything around a call. Threads share it."""

    def __init__(
        self,
        model: str,
        resources: RunResources,
        *,
        cost: "Price | None" = None,
        free: bool = False,
        window: int | None = None,
        limit: int | None = None,
        transport: "OpenAIClient | None" = None,
        **options: Any,
    ) -> None:
        """Call over `transport`, or else through dspy.LM: LiteLLM's providers, and the offline engine."""
        super().__init__(model, cache=False, num_retries=0, **options)
        self.limit = (
            limit  # tokens of an answer with its reasoning; None is for an engine of our own
        )
        # The most that a signature may ask for (tools/models/prompting.py): of --max-tokens, or
        # of the model, where `connect` has made this; None if neither is known
        self.largest_limit: int | None = None
        # DSPy names it by the model, and makes no reasoning model with a limit that it finds small.
        self._limited = (
            "max_completion_tokens" if "max_completion_tokens" in self.kwargs else "max_tokens"
        )
        self.kwargs[self._limited] = limit or self.kwargs.get(self._limited)
        self.resources = resources
        self.transport = transport
        self._server = _server(model)
        self.client = ModelClient(model, resources, cost, free, keeps_prompts=resources.prompts)
        self.client.window = window
        self.spec = model  # as --lm has it, where `connect` has made this
        self.tools: Any = (
            transport  # where it takes tool calls in the protocol's form; None where it does not
        )
        self.repeats = (
            resources.repeats
        )  # whether an equal request in a session is the same call, not another sample
        # Whether a call for no query that stays unanswered raises Halt, which nobody swallows
        self.halts = False
        self.anew: Mapping[
            str, int
        ] = {}  # queries that are asked anew, with the number of the attempt

    @property
    def server(self) -> ServerInfo:
        """Known facts about the server behind it."""
        return self.transport.server if self.transport else UNKNOWN

    @property
    def window(self) -> int | None:
        """Tokens of prompt and answer together, for this model and its copies; None if it is not
        known.
        """
        return self.client.window

    @property
    def thinks(self) -> bool:
        """Whether answers come with reasoning, by the settings or by an answer so far.

        The length of a good answer says nothing about its reasoning.
        """
        asked = any(self.kwargs.get(name) for name in _REASONING_SETTINGS)
        effort = self.kwargs.get("reasoning_effort") or "none"
        by_settings = asked or effort != "none" or self._limited == "max_completion_tokens"
        return by_settings or bool(self._server_facts.get("thinks"))

    @property
    def _server_facts(self) -> dict[str, Any]:
        """What the run has learnt of the server."""
        return self.resources.servers.setdefault(self.model, {})

    def meet(self) -> None:
        """Ask the server, or a cassette, for its kind and its model's limits; `window` stays where
        it is known.
        """
        if self.transport:
            self.transport.meet(self._server_facts, ask=not self.resources.cassette)
            self.client.window = self.window or self.server.window

    @property
    def structured(self) -> bool:
        """Whether signatures are sent as JSON schemas."""
        by_server = self.client.schemas == "auto" and (
            self.server.kind.schema if self.transport else self._known_by_litellm
        )
        return by_server or self.client.schemas == "on"

    @cached_property
    def _known_by_litellm(self) -> bool:
        return bool(self.supports_response_schema)

    @with_callbacks  # type: ignore[untyped-decorator]
    def __call__(self, prompt: Any = None, *, messages: Any = None, **kwargs: Any) -> Any:
        """Make DSPy's call: texts, or the response to a request of DSPy's own type."""
        request = kwargs.pop("request", prompt)
        if isinstance(request, dspy.lm15.Request):
            if request.model != self.model:
                raise ValueError(
                    f"the request is for {request.model}, and the model is {self.model}"
                )
            response = self.forward(**{**request_kwargs(request, "chat"), **kwargs})
            return response_value(response, "chat", request)
        outputs = list[Any]()
        for call in self._prepare_calls(prompt, messages, kwargs):
            outputs += self._conclude(call, self._answer(call)).outputs
        return outputs

    def forward(self, prompt: Any = None, messages: Any = None, **kwargs: Any) -> Any:
        """Return the answer as the protocol has it, by keys and by attributes."""
        calls = self._prepare_calls(prompt, messages, kwargs)
        return self._respond([self._conclude(call, self._answer(call)) for call in calls])

    def _prepare_calls(
        self, prompt: Any, messages: Any, kwargs: dict[str, Any]
    ) -> Iterator["_PreparedCall"]:
        """Yield a call for each completion that is wanted: it is counted, paid for and kept by itself."""
        # Programs have shortened by now what they can
        check_room(messages or (), "prompt")
        count = kwargs.pop("n", None) or 1
        if count == 1:
            yield self._prepare_call(prompt, messages, kwargs)
            return
        rollout = kwargs.pop("rollout_id", None)
        for n in range(count):
            sample = n if rollout is None else f"{rollout}.{n}"
            yield self._prepare_call(prompt, messages, {**kwargs, "rollout_id": sample})

    def _prepare_call(
        self,
        prompt: Any,
        messages: Any,
        kwargs: Mapping[str, Any],
        tools: Sequence[Message] | None = None,
    ) -> "_PreparedCall":
        """Return a call; `tools` are those of a conversation, whose next message is the answer."""
        if self.limit:
            kwargs = self._limit_answer(kwargs)
        settings = self._settings(kwargs)
        conversation = messages or [{"role": "user", "content": prompt}]
        counted = conversation
        if tools is None:
            tools = settings.get("tools") or None
        else:
            settings["tools"] = tools
            counted = [{"content": json.dumps([messages, tools])}]
        instruction = find_instruction(conversation)
        send: Callable[..., ProviderResponse]
        if self.transport:
            settings = {
                name: _as_json(value) for name, value in settings.items() if name != "tools"
            }
            request = self.transport.body(conversation, tools or (), settings)
            has_tools = tools is not None
            # An answer with a call of a tool has no mark at its end.
            last = "" if has_tools else COMPLETED
            send = partial(self.transport.send, request, instruction, tools=has_tools, last=last)
        else:
            request = _dumps([messages or prompt, settings])
            if isinstance(self.engine, str):  # LiteLLM makes the connection
                send = partial(self._by_litellm, conversation, tools, kwargs, instruction)
            else:
                send = partial(self._by_engine, conversation, instruction)
        return _PreparedCall(
            prompt=prompt,
            messages=messages,
            kwargs=kwargs,
            conversation=conversation,
            counted=counted,
            tools=tools,
            request=request,
            rollout=kwargs.get("rollout_id", self.kwargs.get("rollout_id")),
            send=send,
            limit=self.limit and kwargs[self._limited],
        )

    def _conclude(self, call: "_PreparedCall", answer: ModelResponse) -> ModelResponse:
        """Return an answer as DSPy takes it, which the context and the history now have."""
        # Answers kept by an earlier version have their thoughts in the text.
        instruction = find_instruction(call.conversation)
        outputs = [part_output(output, instruction)[1] for output in answer.outputs]
        if call.tools is not None:
            outputs = [
                _as_output(_read_message(output, call.conversation, call.tools))
                for output in outputs
            ]
        first = outputs[0] if outputs else ""
        text = first.get("text") if isinstance(first, dict) else first
        update_call(answer=LastAnswer(str(text or ""), answer.finish))
        answer = answer._replace(outputs=outputs)
        self._remember(call, answer)
        return answer

    def _limit_answer(self, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return settings of a call with the smallest limit of its answer, in this model's word for it."""
        limited = dict(kwargs)
        limits = [limited.pop(name, None) for name in ("max_completion_tokens", "max_tokens")]
        if limit := min(filter(None, (*limits, self.limit)), default=None):
            limited[self._limited] = limit
        return limited

    async def acall(self, prompt: Any = None, *, messages: Any = None, **kwargs: Any) -> Any:
        """Make DSPy's call in a thread, awaited."""
        return await _await_call(partial(self.__call__, prompt, messages=messages, **kwargs))

    async def aforward(self, prompt: Any = None, messages: Any = None, **kwargs: Any) -> Any:
        """Do what `forward` does in a thread, awaited."""
        return await _await_call(partial(self.forward, prompt, messages, **kwargs))

    def converse(
        self,
        messages: Sequence[Message],
        tools: Sequence[Message],
        settings: Mapping[str, Any] = {},
    ) -> Message:
        """Return the next message of a conversation with tools: "content", "tool_calls", "finish".

        `settings` are those of this call alone. The message may have "parts": content that is to be
        passed back with it, in addition to its content and in place of its calls. With "in_text",
        its calls were read out of the text.
        """
        if self.tools is None:
            raise dspy.LMUnsupportedFeatureError(
                "no tool interface", feature="tools", model=self.model
            )
        facts = self._server_facts
        again = False
        if not facts.get("short_ids"):
            try:
                return self._converse(messages, tools, settings)
            except dspy.LMError as error:
                if not provider_errors.refuses_call_ids(error):
                    raise
            facts["short_ids"] = again = True
        return self._converse(shorten_ids(messages), tools, settings, again=again)

    def _converse(
        self,
        messages: Sequence[Message],
        tools: Sequence[Message],
        settings: Mapping[str, Any],
        *,
        again: bool = False,
    ) -> Message:
        call = self._prepare_call(None, messages, settings, tools)
        answer = self._answer(call, again=again)
        message = _read_message(answer.outputs[0], messages, tools)
        facts = self._server_facts
        if message.get("in_text") and not facts.get("calls_in_text"):
            facts["calls_in_text"] = True
            print_stderr(
                f"{self.model.removeprefix('openai/')}: calls of tools are read out of its text; "
                f"{CALLS_IN_TEXT}"
            )
        self._remember(call, answer._replace(outputs=[_as_output(message)]))
        return {**message, "finish": answer.finish}

    @property
    def history(self) -> list[Any]:
        """The current query's calls, as DSPy keeps them; outside a run, this model's calls."""
        entries = self._entries
        for entry in entries:
            if remainder := entry.get(_REMAINDER):
                entry |= remainder()
                entry.pop(_REMAINDER, None)  # another thread may have done so meanwhile
        return entries

    @history.setter
    def history(self, entries: list[Any]) -> None:
        self._own_history = list(entries)

    @property
    def _entries(self) -> list[Any]:
        payer = session.current()
        return self._own_history if payer is None else payer.history

    def _remember(self, call: "_PreparedCall", answer: ModelResponse) -> None:
        """Let DSPy's usage tracker and the history have the usage of a call, as with a plain
        dspy.LM.
        """
        tracker = dspy.settings.usage_tracker
        if tracker is not None:
            tracker.add_usage(self.model, _report(answer.usage))
        if dspy.settings.disable_history:
            return
        entries = self._entries
        entry = {
            "prompt": call.prompt,
            "messages": call.messages and [*call.messages],
            "kwargs": {
                name: value for name, value in call.kwargs.items() if not name.startswith("api_")
            },
        }
        entries.append(entry | {_REMAINDER: partial(self._entry_of, answer, time.time())})
        if len(entries) > _PROMPTS:  # the prompts of all calls would fill the memory
            entries[-1 - _PROMPTS] |= {"prompt": _NOT_KEPT, "messages": None}
        del entries[:-_CALLS]

    def _entry_of(self, answer: ModelResponse, at: float) -> dict[str, Any]:
        """Return what the history has of an answer; hardly any program reads it."""
        return {
            "response": self._respond([answer]),
            "outputs": answer.outputs,
            "usage": _report(answer.usage),
            "cost": answer.usage.list_usd,
            "timestamp": datetime.fromtimestamp(at).astimezone().isoformat(),
            "uuid": str(uuid4()),
            "model": self.model,
            "response_model": self.model,
            "model_type": self.model_type,
        }

    def _respond(self, answers: Sequence[ModelResponse]) -> Any:
        """Return answers as the protocol has them, by keys and by attributes."""
        outputs = [(output, answer.finish) for answer in answers for output in answer.outputs]
        choices = [
            {"index": index, "message": _as_message(output), "finish_reason": finish}
            for index, (output, finish) in enumerate(outputs)
        ]
        usage = _report(sum((answer.usage for answer in answers), Usage()))
        return attributes({"model": self.model, "choices": choices, "usage": usage})

    def _settings(self, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        settings = {}
        for name, value in {**self.kwargs, **kwargs}.items():
            if value is not None and name not in _NOT_SENT and not name.startswith("api_"):
                settings[name] = value
        return settings

    def _by_engine(
        self, messages: Sequence[Message], instruction: str, limit: int | None, deadline: float
    ) -> ProviderResponse:
        """Have an engine of our own answer, which takes neither a limit nor time."""
        request = request_from_openai_chat({"model": self.model, "messages": list(messages)})
        response = self.engine.complete(request)
        answer = ProviderResponse([response.message.text or ""], "stop", None, {})
        return answer.without_thoughts(instruction)

    def _by_litellm(
        self,
        messages: Sequence[Message],
        tools: Sequence[Message] | None,
        settings: Mapping[str, Any],
        instruction: str,
        limit: int | None,
        deadline: float,
    ) -> ProviderResponse:
        from sextant.tools.models.transport import (
            litellm_client,  # not for the engine without a model
        )

        request: dict[str, Any] = {}
        for name, value in {**self.kwargs, **settings, self._limited: limit}.items():
            if value is not None and name not in _OF_DSPY:
                request[name] = value
        request |= {"model": self.model, "messages": messages}
        if tools is not None:
            request["tools"] = [*tools]
        most = self.resources.patience.call
        answer = litellm_client.send(self.model_type, request, deadline, most)
        return answer.without_thoughts(instruction)

    def _answer(
        self,
        call: "_PreparedCall",
        *,
        again: bool = False,  # whether this is another try of a call
    ) -> ModelResponse:
        """Return the answer to a call, charged to the session; sent with the limit that its
        messages and its signature leave.

        It is sent again with all the room that there is, if its signature's limit cut the first
        answer in its thoughts.
        """
        payer = session.current()
        owner = payer.query_id if payer else ""
        ask = self.client.ask
        request = call.request
        with self._noting_faults(request, call.counted, payer):
            if payer and not again:
                payer.allow_call()
            key = self._key(request, call.rollout, payer) if self.client.keeps else ""
            limits = self._limits(call.counted, call.limit)
            first_limit = limits.whole if self.thinks else limits.brief
            answer = ask(owner, key, request, partial(call.send, first_limit), first_limit)
            _charge(payer, answer, key)
            if self._note_thinking(answer, limits):
                key = key and blake2b(f"{key} whole".encode(), digest_size=8).hexdigest()
                answer = ask(owner, key, request, partial(call.send, limits.whole), limits.whole)
                _charge(payer, answer, key)
                if not all(map(_is_blank, answer.outputs)):
                    self._server_facts["thinks"] = True
        return answer

    @contextmanager
    def _noting_faults(
        self,
        request: bytes,
        messages: Sequence[Message],
        payer: session.Session | None,
    ) -> Iterator[None]:
        """Learn from an error of the block, note it in the session that pays, and raise it in our
        words.
        """
        window = self.window
        try:
            yield
        except Exception as error:
            reason = self._reason(error, request)
            if self.client.learns(reason, messages, window) and payer:
                payer.fault = reason  # and the query is answered again
            if provider_errors.responsible_party(reason) != "system":
                if payer:
                    payer.fault = reason
                elif self.halts:
                    raise AbortCompilation(reason) from error
            if reason is error:
                raise
            raise reason from error

    def _limits(self, messages: Sequence[Message], limit: int | None) -> "_AnswerLimits":
        """Return the limits of an answer to `messages`, none of which is in the request's key.

        `limit` is that of the call; a signature may raise it if it is only the default.
        """
        if limit is None:
            return _AnswerLimits(None, None)
        good = current_call().answer_tokens or limit
        if limit == self.limit:
            limit = max(limit, min(good, self.largest_limit or good))
        whole = remaining_tokens(messages, limit, self.window)
        return _AnswerLimits(whole, min(good, whole))

    def _note_thinking(self, answer: ModelResponse, limits: "_AnswerLimits") -> bool:
        """Note whether the model thinks before it answers; return whether the limit of its
        signature cut this answer in its thoughts.

        That is told by the answer alone, so that one from the ledger is treated like a new one.
        """
        has_thoughts = bool(answer.reasoning or answer.usage.reasoning_tokens)
        if has_thoughts:
            self._server_facts["thinks"] = True
        if limits.brief is None or limits.brief == limits.whole or answer.finish != LENGTH:
            return False
        is_brief = answer.usage.output_tokens <= limits.brief + RECOUNT_TOKENS
        # A server may hide thoughts, and not count them apart.
        return is_brief and (has_thoughts or all(map(_is_blank, answer.outputs)))

    def _key(self, request: bytes, rollout: Any, payer: session.Session | None) -> str:
        """Return sixteen hex digits over everything that shapes an answer."""
        url = self._server
        api = self.model_type
        if self.transport:
            url = self.transport.url
            api = self.transport.api
        key = blake2b(f"{FORMAT} {self.model} {url} {api} {rollout}\0".encode(), digest_size=8)
        key.update(request)
        if payer and not self.repeats and (sample := payer.count_request(key.hexdigest())):
            key.update(b"\0%d" % sample)
        if payer and payer.query_id in self.anew:
            key.update(b"\0again %d" % self.anew[payer.query_id])
        return key.hexdigest()

    def _reason(self, error: Exception, request: bytes) -> Exception:
        if isinstance(error.__cause__, SextantError):
            return error.__cause__  # the offline engine's own words, which DSPy wraps
        if b'"json_schema"' in request and provider_errors.refuses_schema(error):
            line = f"{self.model} takes no JSON schema: {str(error).strip().partition(chr(10))[0]}"
            if self.client.schemas == "on":
                return ProviderRefused(f"{line}; leave out --structured on", source=self.spec)
            if self.client.schemas == "auto":
                print_stderr(f"{line}; its answers are asked for in markers from here on")
            self.client.schemas = "off"
            return dspy.LMUnsupportedFeatureError(line, feature="response_format", model=self.model)  # type: ignore[no-any-return]
        unclear = (
            isinstance(error, dspy.LMInvalidRequestError)
            and provider_errors.error_topic(error) == "unknown"
        )
        # Before any answer it is the settings, then: it would fail every query.
        return (
            provider_errors.format_refusal(error, self.spec)
            if unclear and not self.client.answered
            else error
        )


async def _await_call(call: Callable[[], Any]) -> Any:
    returned, answered = await asyncio.to_thread(lambda: (call(), current_call().answer))
    update_call(answer=answered)
    return returned


class _PreparedCall(NamedTuple):
    """A call before it is sent."""

    prompt: Any
    messages: Any
    kwargs: Mapping[str, Any]
    conversation: Sequence[Message]
    counted: Sequence[Message]  # messages with as many tokens as all that is sent
    tools: Sequence[Message] | None  # None if the answer is a text
    request: bytes
    rollout: Any
    send: Callable[..., ProviderResponse]
    limit: int | None  # of the answer, in tokens


class _AnswerLimits(NamedTuple):
    """The most tokens of an answer; None for an engine of our own."""

    whole: int | None  # of any answer, as the window and --max-tokens leave them
    brief: int | None  # of a good answer without reasoning, by its signature


def _charge(payer: session.Session | None, answer: ModelResponse, key: str) -> None:
    if payer:
        payer.charge(answer.usage, key)


def _read_message(
    output: Message, messages: Sequence[Message], tools: Sequence[Message]
) -> Message:
    """Return a message with the calls in it, in its text perhaps, and an id for each."""
    functions = [tool["function"] for tool in tools]
    parameters = {
        function["name"]: function.get("parameters", {}).get("properties", {})
        for function in functions
    }
    _, message = part_output(output, find_instruction(messages))
    message = dict(message)
    original_text = message.pop("said", "")
    calls = message["tool_calls"]
    message_parts = dict(message.get("parts", {}))
    before = original_text.removesuffix(message["content"])  # thoughts and their marks
    if not calls and tools:
        calls, remaining_text = read_calls(message["content"], parameters)
        if calls:
            message |= {"content": remaining_text, "in_text": True}
    calls = [{**call, "name": find_tool(call["name"], parameters)} for call in calls]
    calls = identify(calls, messages)
    if written := message_parts.get("tool_calls"):
        message_parts["tool_calls"] = [
            {**written_call, "id": call["id"]}
            for written_call, call in zip(written, calls, strict=True)
        ]
    # Thoughts go back with the calls they led to, under the name they came with; harmony's channels
    # are refused there.
    if calls and original_text and before != original_text and "<|channel|>" not in original_text:
        message_parts = {"content": before + message["content"], **message_parts}
    return message | {"tool_calls": calls} | ({"parts": message_parts} if message_parts else {})


def _as_output(message: Message) -> Any:
    """Return a message as DSPy's output of a call: its text, or a record with its calls."""
    if not message["tool_calls"]:
        return message["content"]
    calls = [
        {
            "id": call["id"],
            "type": "function",
            "function": {"name": call["name"], "arguments": call["arguments"]},
        }
        for call in message["tool_calls"]
    ]
    return {"text": message["content"] or None, "tool_calls": attributes(calls)}


def _content(output: Any) -> str:
    if isinstance(output, dict):
        return str(output.get("text") or output.get("content") or "")
    return str(output or "")


def _as_message(output: Any) -> Message:
    """Return an output as the protocol's message."""
    message = {"role": "assistant", "content": _content(output)}
    if isinstance(output, dict) and output.get("tool_calls"):
        message["tool_calls"] = output["tool_calls"]
    return message


def _is_blank(output: Any) -> bool:
    """Return whether an output has neither text nor a call of a tool."""
    has_calls = isinstance(output, dict) and output.get("tool_calls")
    return not has_calls and not _content(output).strip()


def _as_json(value: Any) -> Any:
    """Return a setting as it is sent: DSPy's JSONAdapter gives a class if the protocol has a
    schema.
    """
    if isinstance(value, type) and hasattr(value, "model_json_schema"):
        schema = {"name": value.__name__, "strict": True, "schema": value.model_json_schema()}
        return {"type": "json_schema", "json_schema": schema}
    return value


def _report(usage: Usage) -> dict[str, Any]:
    """Return the usage of a call in the protocol's words; nothing if that is not known."""
    if usage.unmetered:
        return {}
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def _dumps(value: Any) -> bytes:
    try:
        return orjson.dumps(value, default=repr, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # lone surrogates
        return repr(value).encode("utf-8", "backslashreplace")


class ConnectedModel(NamedTuple):
    """A connected language model."""

    name: str  # in every output: "offline", or the spec
    settings: dict[str, Any]  # what goes into a run's config
    lm: LanguageModel  # DSPy's side of it

    @property
    def resources(self) -> RunResources:
        """The budget, limiter, ledger and patience that it shares with the other models of its run."""
        return self.lm.resources

    @property
    def price(self) -> "Price | None":
        """The price of a token, or None when it is not known."""
        return self.lm.client.cost

    def begin(self, folder: Path, spent: Usage) -> None:
        """Open the ledger of the run in `folder`; count the usage `spent` by its answered queries
        if no ledger has it.
        """
        self.resources.open(folder)
        usage_totals = self.resources.usage_totals
        if self.lm.client.free:
            self.resources.budget.resume(Usage(calls=spent.calls), source=folder.resolve())
        elif (
            self.resources.ledger
            and usage_totals
            and spent.calls
            and not usage_totals.sent
            and not usage_totals.cached
        ):
            print_stderr(
                "what this run sent before is in no ledger any more; its answered queries say "
                "what they used"
            )
            self.resources.ledger.book(self.name, spent)
            self.resources.budget.resume(spent, source=folder.resolve())

    @contextmanager
    def active(self) -> Iterator[None]:
        """Have DSPy predictors in the block use this model, for a query whose time begins; in this
        context alone.
        """
        deadline = min(
            DEADLINE.get(), time.monotonic() + self.resources.query_seconds
        )  # a lens has its query's
        # Our signatures are checked by their answers; DSPy's look at every element of every list
        # only logs.
        settings = {"lm": self.lm, "adapter": Adapter(), "trace": []}
        context = dspy.context(**settings, warn_on_type_mismatch=False)
        with session.set_contextvar(DEADLINE, deadline), context:
            yield


def connect(
    spec: str,
    resources: RunResources | None = None,
    *,
    statistics: Callable[[], TermStatistics] | None = None,
    settings: ModelSettings = DEFAULTS,
    rules: Rules | None = None,
) -> ConnectedModel:
    """Connect the model that `spec` names, with the `resources` of a run; UsageError for a bad spec or settings.

    Nothing is sent yet. `offline` needs the corpus' `statistics`, made at its first call, and fills fields by `rules`.
    """
    check_docstrings()
    resources = resources or RunResources()
    if spec == "offline":
        if statistics is None:
            raise UsageError("offline weighs words by a corpus; give it the corpus' statistics")
        engine = offline_engine.OfflineEngine(statistics, rules)
        model = LanguageModel(
            offline_engine.VERSION, resources, free=True, window=settings.context, engine=engine
        )
        return ConnectedModel(
            "offline", {"model": offline_engine.VERSION, "window": settings.context}, model
        )
    return _connect(spec, resources, settings)


def _connect(spec: str, resources: RunResources, settings: ModelSettings) -> ConnectedModel:
    from sextant.tools.models import prices  # not for the engine without a model
    from sextant.tools.models.transport import (
        litellm_client,  # as above
        openai_client,  # as above
    )

    for field in sorted(settings.extra_body.keys() & {"model", "messages", "input"}):
        raise UsageError(
            f"--extra-body has {field!r}, which each request has already; leave it out"
        )
    spec = models.add_scheme(spec)
    name, url = models.parse(spec)
    models.check_provider(name, url)
    cost = prices.price(spec, resources.prices)
    resources.budget.require_price(spec, known=cost is not None)
    if settings.api == "responses" and settings.seed is not None:
        raise UsageError("--api responses takes no seed; leave out --seed, or use --api chat")
    temperature = settings.temperature
    if temperature is None:
        with suppress(dspy.LMConfigurationError):
            # DSPy refuses to make a reasoning model with a temperature other than 1, but lets 0
            # through.
            dspy.LM(name, temperature=0.5)
            temperature = 0.0
    names = ("seed", "reasoning_effort", "top_p", "stop")
    options: dict[str, Any] = {
        name: getattr(settings, name) for name in names if getattr(settings, name) not in (None, ())
    }
    ours = None
    if models.is_openai(name, url):
        ours = openai_client.OpenAIClient(
            name.partition("/")[2], url, provider="" if url else "openai", settings=settings
        )
    elif settings.client_certificate:
        raise UsageError(
            f"--client-certificate is not for {spec}; name the file in $SSL_CERTIFICATE instead"
        )
    else:
        options |= {"model_type": "responses"} if settings.api == "responses" else {}
        options |= {"extra_body": dict(settings.extra_body)} if settings.extra_body else {}
        options |= {"extra_headers": header_values(settings.headers)} if settings.headers else {}
    if settings.reasoning_tokens and ours:
        options["reasoning_tokens"] = settings.reasoning_tokens
    elif settings.reasoning_tokens:
        options |= litellm_client.limit_reasoning(name, settings.reasoning_tokens)
        temperature = settings.temperature  # Anthropic takes thinking with none but 1
    longest = prices.max_output(spec, resources.prices)
    limit = settings.max_tokens or prices.longest_answer(
        spec, resources.prices, reasons=temperature is None
    )
    limit += settings.reasoning_tokens or 0
    largest_limit = settings.max_tokens or longest
    if largest_limit:
        largest_limit += settings.reasoning_tokens or 0
    options |= {
        "temperature": temperature,
        "window": settings.context or prices.window(spec, resources.prices),
    }
    model = LanguageModel(name, resources, cost=cost, transport=ours, limit=limit, **options)
    model.spec = spec
    model.largest_limit = largest_limit
    model.client.longest = longest
    model.client.meter = resources.meter(spec)
    model.client.schemas = settings.structured
    if settings.api == "chat" and prices.takes_tools(name):  # one of LiteLLM's others
        model.tools = model.tools or True
    described = {
        "model": spec,
        "temperature": temperature,
        "seed": settings.seed,
        "window": model.window,
    }
    shaping = [
        setting.name for setting in fields(ModelSettings) if setting.name not in _NOT_SHAPING
    ]
    described |= {
        name: value
        for name in shaping
        if (value := getattr(settings, name)) != getattr(DEFAULTS, name)
    }
    return ConnectedModel(spec, described | {"max_tokens": limit}, model)


def _server(name: str) -> str:
    """Return where the environment says that a provider of LiteLLM's is: OLLAMA_API_BASE and the like."""
    provider = name.partition("/")[0].upper()
    ends = ("_BASE", "_URL", "_ENDPOINT", "_HOST")
    return " ".join(
        f"{k}={v}"
        for k, v in sorted(os.environ.items())
        if k.startswith(provider) and k.endswith(ends)
    )
