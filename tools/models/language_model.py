"""DSPy's language model over our own way of sending: what programs call, with the books of their session.

Every call goes through tools/models/call.py; here a prompt becomes a request with a key, and an answer is booked on the
session that is open.
"""

import asyncio
import contextvars
import math
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from hashlib import blake2b
from typing import Any

import dspy
import orjson

from tools import session
from tools.errors import Halt, SextantError
from tools.models.answers import Answer
from tools.models.call import Caller, Send, Sent
from tools.models.prices import Price
from tools.models.prompting import context
from tools.models.prompting.adapter import ANSWERED, Answered
from tools.models.sending import faults, redirects
from tools.models.sending.client import SECRET, Wire
from tools.models.sending.protocol import Message
from tools.models.sending.servers import hide_keys
from tools.models.terms import Terms

FORMAT = 1  # of the key; raised when equal keys would stand for other answers

_FINISH: ContextVar[str] = ContextVar("finish", default="stop")  # why the last answer of this context ended
_NOT_SENT = ("rollout_id", "n", "cache", "num_retries", "timeout")  # settings that are DSPy's, and not the model's


class LanguageModel(dspy.LM):
    """DSPy's language model with everything around a call. Threads share it."""

    def __init__(
        self,
        model: str,
        terms: Terms,
        *,
        cost: Price | None = None,
        free: bool = False,
        window: int | None = None,
        wire: Wire | None = None,
        server: str = "",
        **options: Any,
    ) -> None:
        """`cost` and `free` are the Caller's; `window` is in tokens.

        Calls go over `wire`; without one, through dspy.LM: LiteLLM's providers, and engines of our own. `server` says
        where these are, as far as that shapes answers.
        """
        super().__init__(model, cache=False, num_retries=0, **options)
        self.terms = terms
        self.caller = Caller(model, terms, cost=cost, free=free)
        self.window = window  # tokens of prompt and answer together; None where it is not known
        self.wire = wire
        self.server = server
        self.connects = wire is None and "engine" not in options  # whether DSPy makes the connection
        self.tools = wire  # where it takes tool calls in the protocol's form; None where it does not
        self.repeats = terms.repeats  # whether what is asked again in a session is the same call, or another sample
        self.halts = False  # whether a call for no query that stays unanswered raises Halt, which nobody swallows
        self.anew: Mapping[str, int] = {}  # queries whose calls are others than before, with a number for which

    def __call__(self, prompt: Any = None, *, messages: Any = None, **kwargs: Any) -> Any:
        """DSPy's own call. Several completions of one prompt are as many calls: each is counted, paid for and kept."""
        if (wanted := kwargs.pop("n", None) or 1) > 1:
            return [self(prompt, messages=messages, **kwargs, **one)[0] for one in self._samples(kwargs, wanted)]
        context.check_room(messages or (), "prompt")  # programs have shortened by now what they can
        settings, rollout = self._settings(kwargs), kwargs.get("rollout_id", self.kwargs.get("rollout_id"))
        if self.wire is None:
            made = _dumps([messages or prompt, settings])
            answer = self._answer(
                made, rollout, lambda deadline: self._through_dspy(prompt, messages, kwargs, deadline)
            )
        else:
            conversation = messages or [{"role": "user", "content": prompt}]
            made = self.wire.body(conversation, (), settings)
            answer = self._answer(made, rollout, lambda deadline: self._over_the_wire(made, deadline))
        ANSWERED.set(Answered(_text(answer.outputs), answer.finish))
        return answer.outputs

    def _samples(self, kwargs: dict[str, Any], wanted: int) -> list[dict[str, Any]]:
        """Return a rollout id for each of several completions of one prompt, other ones for another rollout."""
        rollout = kwargs.pop("rollout_id", None)
        return [{"rollout_id": n if rollout is None else f"{rollout}.{n}"} for n in range(wanted)]

    async def acall(self, prompt: Any = None, *, messages: Any = None, **kwargs: Any) -> Any:
        """DSPy's own call, awaited: it is made in a thread."""
        outputs, answered = await asyncio.to_thread(self._call_in_thread, prompt, messages, kwargs)
        ANSWERED.set(answered)
        return outputs

    def _call_in_thread(self, prompt: Any, messages: Any, kwargs: dict[str, Any]) -> tuple[Any, Answered | None]:
        return self(prompt, messages=messages, **kwargs), ANSWERED.get()

    def converse(self, messages: Sequence[Message], tools: Sequence[Message]) -> Message:
        """The model's next message in a conversation with tools: "content", "tool_calls", "finish".

        LMUnsupportedFeatureError for a model that is not on the wire.
        """
        if self.wire is None or self.tools is None:
            raise dspy.LMUnsupportedFeatureError("no tool interface", feature="tools", model=self.model)
        body = self.wire.body(messages, tools, self._settings({}))
        rollout = self.kwargs.get("rollout_id")
        answer = self._answer(body, rollout, lambda deadline: self._over_the_wire(body, deadline, tools=True))
        return {**answer.outputs[0], "finish": answer.finish}

    def update_history(self, entry: dict[str, Any]) -> None:
        """DSPy hands every response over here; only why it ended is kept. Prompts would fill the memory."""
        _FINISH.set(_finish(entry.get("response")))

    def _settings(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the settings that are sent with the messages."""
        merged = {**self.kwargs, **kwargs}
        return {
            name: value
            for name, value in merged.items()
            if value is not None and name not in _NOT_SENT and not name.startswith("api_")
        }

    def _over_the_wire(self, body: bytes, deadline: float, *, tools: bool = False) -> Sent:
        assert self.wire
        reply, headers = self.wire.send(body, deadline, tools=tools)
        message = {"content": reply.text, "tool_calls": reply.tool_calls}
        return Sent([message] if tools else [reply.text], reply.finish, reply.usage, headers)

    def _through_dspy(self, prompt: Any, messages: Any, kwargs: dict[str, Any], deadline: float) -> Sent:
        if self.caller.free:
            return self._by_dspy(prompt, messages, kwargs)
        # Whole seconds of what its query has left: LiteLLM opens connections of their own for each number. They bound
        # the wait for a next byte; the whole answer is bounded by who waits here.
        left = max(1.0, math.ceil(deadline - time.monotonic()))
        if self.connects:
            kwargs = {**kwargs, "timeout": min(left, self.terms.patience.call)}
        try:
            sent = _in_time(lambda: self._by_dspy(prompt, messages, kwargs), deadline)
        except Exception as error:  # noqa: BLE001  # a provider's library may raise anything; it is raised again
            raise faults.from_litellm(error) from None
        if not sent.outputs:
            raise dspy.LMTransportError("an answer without a choice", model=self.model)
        return sent._replace(outputs=[_without_keys(output) for output in sent.outputs])

    def _by_dspy(self, prompt: Any, messages: Any, kwargs: dict[str, Any]) -> Sent:
        with dspy.track_usage() as tracker, redirects.refused():
            outputs = super().__call__(prompt, messages=messages, **kwargs)
        reported = [entry for entries in tracker.usage_data.values() for entry in entries]
        return Sent(outputs, _FINISH.get(), reported[-1] if reported else None, {})

    def _answer(self, made: bytes, rollout: Any, send: Send) -> Answer:
        """The answer to a request; booked on the session of this context."""
        payer = session.current()
        owner = payer.query_id if payer else ""
        try:
            if payer:
                payer.allow_call()
            key = self._key(made, rollout, payer) if self.caller.keeps else ""
            answer = self.caller.ask(owner, key, made, send)
        except Exception as error:
            reason = self._reason(error)
            if faults.fault(reason) != "system":
                if payer:
                    payer.fault = reason
                elif self.halts:
                    raise Halt(reason) from error
            if reason is error:
                raise
            raise reason from error
        if payer:
            payer.charge(answer.usage)
        return answer

    def _key(self, made: bytes, rollout: Any, payer: session.Session | None) -> str:
        """Sixteen hex digits over everything that shapes an answer."""
        url, api = (self.wire.url, self.wire.api) if self.wire else (self.server, self.model_type)
        where = f"{FORMAT} {self.model} {url} {api} {rollout}"
        key = blake2b(b"%s\0%s" % (where.encode(), made), digest_size=8)
        if payer and not self.repeats and (sample := payer.count_request(key.hexdigest())):
            key.update(b"\0%d" % sample)
        if payer and payer.query_id in self.anew:
            key.update(b"\0again %d" % self.anew[payer.query_id])
        return key.hexdigest()

    def _reason(self, error: Exception) -> Exception:
        """Return the error that an exception of a call stands for, where its type does not say so."""
        if isinstance(error.__cause__, SextantError):
            return error.__cause__  # the offline engine's own words, which DSPy wraps
        unclear = isinstance(error, dspy.LMInvalidRequestError) and faults.about(error) == "unknown"
        if unclear and not self.caller.answered:
            # Before any answer, a request that is not acceptable means settings, and would fail every query.
            return faults.refusal(error, self.model)
        return error


def _in_time(ask: Callable[[], Sent], deadline: float) -> Sent:
    """Return what `ask` returns, by the deadline; a thread that has nothing by then is abandoned."""
    done = queue.SimpleQueue[Sent | BaseException]()
    context = contextvars.copy_context()

    def work() -> None:
        try:
            done.put(context.run(ask))
        except BaseException as error:  # noqa: BLE001  # raised again by who waits
            done.put(error)

    threading.Thread(target=work, daemon=True).start()
    try:
        found = done.get(timeout=max(0.0, deadline - time.monotonic()))
    except queue.Empty:
        raise dspy.LMTimeoutError("the answer did not come in time") from None
    if isinstance(found, BaseException):
        raise found
    return found


def _without_keys(output: Any) -> Any:
    """An output, of which a provider may have made anything, without the keys of this environment."""
    if isinstance(output, dict):
        return {name: _without_keys(value) for name, value in output.items()}
    return hide_keys(output, SECRET) if isinstance(output, str) else output


def _finish(response: Any) -> str:
    """Why an answer ended, from DSPy's native response or LiteLLM's."""
    if isinstance(response, tuple):
        response = response[-1] if response else None
    reason = getattr(response, "finish_reason", None)
    if reason is None and getattr(response, "choices", None):
        reason = getattr(response.choices[0], "finish_reason", None)
    parts = getattr(getattr(response, "message", None), "parts", ())
    return "refusal" if any(type(part).__name__ == "RefusalPart" for part in parts) else str(reason or "stop")


def _text(outputs: Any) -> str:
    """The first of a model's outputs as text."""
    first = outputs[0] if outputs else ""
    return str((first.get("text") if isinstance(first, dict) else first) or "")


def _dumps(value: Any) -> bytes:
    try:
        return orjson.dumps(value, default=repr, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # lone surrogates
        return repr(value).encode("utf-8", "backslashreplace")
