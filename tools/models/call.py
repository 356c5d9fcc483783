"""What happens to one model call: cache, limits, budget, gate, sending, books. No call gets past it.

In this order: an answer that is there already is taken from the ledger; else the gate gives a place and the budget a
request; it is sent; what it used is booked, in the ledger before the program sees the answer. A request that was left
without an answer is sent again, a bounded number of times; each time it asks the budget and is booked.
"""

import asyncio
import contextvars
import math
import queue
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, NamedTuple

import dspy
import orjson
from dspy.utils.callback import with_callbacks

from tools import session
from tools.errors import Halt, SextantError
from tools.models import usage as metering
from tools.models.answers import Answer, Ledger
from tools.models.budget import Budget, Expected
from tools.models.prices import Price
from tools.models.prompting.adapter import ANSWERED, Answered
from tools.models.sending import faults, redirects
from tools.models.sending.client import SECRET, Wire
from tools.models.sending.gate import LONGEST_WAIT, Gate
from tools.models.sending.protocol import Message
from tools.models.sending.servers import cleaned
from tools.records import Usage

FORMAT = 1  # of the key; raised when equal keys would stand for other answers

DEADLINE: ContextVar[float] = ContextVar("deadline", default=float("inf"))  # of the query, by time.monotonic
_FINISH: ContextVar[str] = ContextVar("finish", default="stop")  # why the last answer of this context ended
_BILLED = 2  # answers that are paid for and cannot be read, after which a call is not made again
_NOT_SENT = ("rollout_id", "n", "cache", "num_retries", "timeout")  # settings that are DSPy's, and not the model's


@dataclass(frozen=True, slots=True)
class Patience:
    """How often, and for how long, a request without an answer is sent again; then its query stays owed."""

    attempts: int = 6
    first: float = 0.5  # seconds before the second attempt, unless the provider says how many; doubled each time
    before: float = 5.0  # seconds from its first failure on, for a model that has not answered anything yet
    after: float = 30.0  # the same, once it has; and for one that says it is asked too much
    call: float = 600.0  # seconds until a request is cut off


class _Sent(NamedTuple):
    """One request's answer before it is booked."""

    outputs: list[Any]
    finish: str
    usage: Any  # as reported
    headers: Any


@dataclass(slots=True)
class _Failures:
    """Those of one call so far."""

    count: int = 0
    since: float = 0.0  # when the first one was
    billed: int = 0  # of them, those for which the provider reported tokens
    last: dspy.LMError | None = None

    def add(self, error: dspy.LMError, now: float) -> None:
        self.since = self.since or now
        self.count, self.last = self.count + 1, error
        self.billed += getattr(error, "billed", False)


Send = Callable[[float], _Sent]
"""Sends one request; the answer is there by the deadline, or a DSPy LM error is raised."""


class MeteredLM(dspy.LM):
    """DSPy's language model with everything around a call. Threads share it."""

    def __init__(
        self,
        model: str,
        budget: Budget,
        *,
        gate: Gate | None = None,
        patience: Patience = Patience(),
        cost: Price | None = None,
        free: bool = False,
        window: int | None = None,
        wire: Wire | None = None,
        server: str = "",
        **options: Any,
    ) -> None:
        """A call without a known `cost` has an unknown price, unless it is `free`; `window` is in tokens.

        Calls go over `wire`; without one, through dspy.LM: LiteLLM's providers, and engines of our own. `server` says
        where these are, as far as that shapes answers.
        """
        super().__init__(model, cache=False, num_retries=0, **options)
        self.budget = budget
        self.gate = gate or Gate(1024)
        self.patience = patience
        self.free = free
        self.cost = cost
        self.window = window  # tokens of prompt and answer together; None where it is not known
        self.wire = wire
        self.server = server
        self.connects = wire is None and "engine" not in options  # whether DSPy makes the connection
        self.tools = wire  # where it takes tool calls in the protocol's form; None where it does not
        self.ledger: Ledger | None = None
        self.repeats = False  # whether what is asked again in a session is the same call: an optimizer numbers samples
        self.answered = False  # whether this model has answered anything yet
        self.halts = False  # whether a call for no query that stays unanswered raises Halt, which nobody swallows
        self.anew: Mapping[str, int] = {}  # queries whose calls are others than before, with a number for which
        self._unbooked = list[tuple[str, Usage, float]]()  # failures, while there is no ledger
        self._output_tokens = 500.0  # of an answer, as far as is known: a running mean

    @with_callbacks  # type: ignore[untyped-decorator]
    def __call__(self, prompt: Any = None, *, messages: Any = None, **kwargs: Any) -> Any:
        """DSPy's own call. Several completions of one prompt are as many calls: each is counted, paid for and kept."""
        if (wanted := kwargs.pop("n", None) or 1) > 1:
            return [self(prompt, messages=messages, **kwargs, **one)[0] for one in self._samples(kwargs, wanted)]
        settings, rollout = self._settings(kwargs), kwargs.get("rollout_id", self.kwargs.get("rollout_id"))
        self._warn_zero_temp_rollout(settings.get("temperature"), rollout)
        if self.wire is None:
            made = _dumps([messages or prompt, settings])
            answer = self._answer(
                made, rollout, lambda deadline: self._through_dspy(prompt, messages, kwargs, deadline)
            )
        else:
            asked = messages or [{"role": "user", "content": prompt}]
            made = self.wire.body(asked, (), settings)
            answer = self._answer(made, rollout, lambda deadline: self._over_the_wire(made, deadline))
        ANSWERED.set(Answered(_text(answer.outputs), answer.finish))
        return answer.outputs

    def _samples(self, kwargs: dict[str, Any], wanted: int) -> list[dict[str, Any]]:
        """What tells so many completions of one prompt apart, also from those of another rollout."""
        rollout = kwargs.pop("rollout_id", None)
        return [{"rollout_id": n if rollout is None else f"{rollout}.{n}"} for n in range(wanted)]

    async def acall(self, prompt: Any = None, *, messages: Any = None, **kwargs: Any) -> Any:
        """DSPy's own call, awaited: it is made in a thread."""
        outputs, answered = await asyncio.to_thread(self._called, prompt, messages, kwargs)
        ANSWERED.set(answered)
        return outputs

    def _called(self, prompt: Any, messages: Any, kwargs: dict[str, Any]) -> tuple[Any, Answered | None]:
        return self(prompt, messages=messages, **kwargs), ANSWERED.get()

    def converse(self, messages: Sequence[Message], tools: Sequence[Message]) -> Message:
        """The model's next message in a conversation with tools: "content", "tool_calls", "finish".

        Like any other call, it passes everything above. LMUnsupportedFeatureError for a model that is not on the wire.
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
        """What is sent with a request beside the messages."""
        merged = {**self.kwargs, **kwargs}
        return {
            name: value
            for name, value in merged.items()
            if value is not None and name not in _NOT_SENT and not name.startswith("api_")
        }

    def _over_the_wire(self, body: bytes, deadline: float, *, tools: bool = False) -> _Sent:
        assert self.wire
        reply, headers = self.wire.send(body, deadline, tools=tools)
        message = {"content": reply.text, "tool_calls": reply.tool_calls}
        return _Sent([message] if tools else [reply.text], reply.finish, reply.usage, headers)

    def _through_dspy(self, prompt: Any, messages: Any, kwargs: dict[str, Any], deadline: float) -> _Sent:
        if self.free:
            return self._by_dspy(prompt, messages, kwargs)
        # Whole seconds of what its query has left: LiteLLM opens connections of their own for each number. They bound
        # the wait for a next byte; the whole answer is bounded by who waits here.
        left = max(1.0, math.ceil(deadline - time.monotonic()))
        if self.connects:
            kwargs = {**kwargs, "timeout": min(left, self.patience.call)}
        try:
            sent = _in_time(lambda: self._by_dspy(prompt, messages, kwargs), deadline)
        except Exception as error:  # noqa: BLE001  # a provider's library may raise anything; it is raised again
            raise faults.from_litellm(error) from None
        if not sent.outputs:
            raise dspy.LMTransportError("an answer without a choice", model=self.model)
        return sent._replace(outputs=[_without_keys(output) for output in sent.outputs])

    def _by_dspy(self, prompt: Any, messages: Any, kwargs: dict[str, Any]) -> _Sent:
        with dspy.track_usage() as tracker, redirects.refused():
            outputs = super().__call__(prompt, messages=messages, **kwargs)
        reported = [entry for entries in tracker.usage_data.values() for entry in entries]
        return _Sent(outputs, _FINISH.get(), reported[-1] if reported else None, {})

    def _answer(self, made: bytes, rollout: Any, send: Send) -> Answer:
        """The answer to a request, from the ledger or by sending it; booked on the session of this context."""
        payer = session.current()
        owner = payer.query_id if payer else ""
        try:
            if payer:
                payer.allow_call()
            if self.ledger is None:
                answer = self._sent(owner, "", made, send)
            else:
                key = self._key(made, rollout, payer)
                answer = self._once(owner, key, made, send)
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

    def _once(self, owner: str, key: str, made: bytes, send: Send) -> Answer:
        """The answer to a request, from the ledger, from somebody who is asking the same, or by sending it."""
        assert self.ledger
        try:
            with self.ledger.turn(owner, key, self.model, self._worth, deadline=DEADLINE.get()) as found:
                return found or self._sent(owner, key, made, send)
        except TimeoutError as waited:
            raise _out_of_time(str(waited)) from None

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

    def _sent(self, owner: str, key: str, made: bytes, send: Send) -> Answer:
        """The answer of the provider, asked as often as patience has it."""
        failures = _Failures()
        while True:
            entered = self._entered(failures)
            sent = self._attempt(owner, key, made, send)
            if isinstance(sent, Answer):
                return sent
            self._again(sent, entered, failures)

    def _attempt(self, owner: str, key: str, made: bytes, send: Send) -> Answer | dspy.LMError:
        """One request, asked of the budget before and booked after: its answer, or why there is none."""
        expected, usage, failure, sent = self._expected(made), Usage(), None, None
        self._take(expected)
        started = time.monotonic()  # the budget may have let it wait since it entered
        try:
            sent = send(min(started + self.patience.call, DEADLINE.get()))
            usage = self._usage(sent.usage)
        except dspy.LMNotConfiguredError:  # nothing was sent
            self.gate.left()
            raise
        except dspy.LMError as error:
            failure, usage = error, self._usage_of_failure(error)
        except BaseException:
            self.gate.left()
            raise
        finally:
            self.budget.spend(usage, expected)
        seconds = time.monotonic() - started
        if failure is None:
            assert sent
            self.answered = True
            self.gate.answered(sent.headers)
            answer = Answer(sent.outputs, usage, sent.finish, seconds)
            if self.ledger:
                self.ledger.answered(owner, key, self.model, answer)
            return answer
        kind = faults.kind(failure)
        if self.ledger:
            self.ledger.failed(owner, key, self.model, kind, usage, seconds)
        else:
            self._unbooked.append((kind, usage, seconds))
        return failure

    def keep(self, ledger: Ledger) -> None:
        """From here on, take answers from the ledger and book what is sent in it; first, what failed before."""
        failed, self._unbooked = self._unbooked, []
        for kind, usage, seconds in failed:
            ledger.failed("", "", self.model, kind, usage, seconds)
        self.ledger = ledger

    def _take(self, expected: Expected) -> None:
        """Ask the budget, with a place that is given back where there is nothing to be sent."""
        try:
            self.budget.take(expected, deadline=DEADLINE.get(), check=self.gate.check)
        except TimeoutError as waited:
            self.gate.left()
            raise _out_of_time(f"its calls waited for {waited}") from None
        except BaseException:
            self.gate.left()
            raise

    def _entered(self, failures: "_Failures") -> float:
        """When the gate let a request through. The last failure when it did not in time."""
        now, deadline, patience = time.monotonic(), DEADLINE.get(), self._patience(failures)
        if now >= deadline:
            raise failures.last or _out_of_time()
        try:
            until = min(deadline, self.budget.ends)
            return self.gate.enter((failures.since or now) + patience, patience=patience, deadline=until)
        except TimeoutError as waited:
            self.budget.check()
            if time.monotonic() >= deadline:
                raise failures.last or _out_of_time(str(waited)) from None
            raise failures.last or dspy.LMTimeoutError(f"nothing was sent: {waited}") from None

    def _again(self, error: dspy.LMError, entered: float, failures: "_Failures") -> None:
        """Tell the gate of a failure, and wait until another attempt is worth it. Raises the failure where none is."""
        asked: float | None = getattr(error, "retry_after", None)
        if not dspy.is_retryable_lm_error(error):
            self.gate.refused()
            raise error
        self.gate.failed(entered, overload=faults.overload(error), asked=asked, reason=faults.kind(error))
        now = time.monotonic()
        failures.add(error, now)
        given_up = failures.count == self.patience.attempts or failures.billed == _BILLED
        if given_up or (asked or 0.0) > LONGEST_WAIT:
            raise error
        if asked:
            return  # the gate holds everybody back for so long
        pause = self.patience.first * 2.0 ** (failures.count - 1)
        pause *= random.uniform(0.75, 1.25)  # so that those that failed together do not come together
        if now + pause >= min(failures.since + self._patience(failures), DEADLINE.get()):
            raise error
        self.gate.rest(min(pause, max(0.0, self.budget.ends - now)))

    def _patience(self, failures: "_Failures") -> float:
        """Seconds: an address with a slip of the pen should not take as long as a provider that is overloaded."""
        alive = self.answered or (failures.last is not None and faults.overload(failures.last))
        return self.patience.after if alive else self.patience.before

    def _expected(self, made: bytes) -> Expected:
        """What a request is taken to use until its answer says."""
        if not self.budget.limited:
            return Expected()
        tokens_in, tokens_out = len(made) // 4, round(self._output_tokens)
        usd = self.cost.of(tokens_in, 0, tokens_out) if self.cost else 0.0
        return Expected(tokens_in + tokens_out, usd)

    def _worth(self, usage: Usage) -> float | None:
        """What an answered request costs at list price."""
        if self.cost is None:
            return None
        return self.cost.of(usage.input_tokens, 0, usage.output_tokens, usage.reasoning_tokens)

    def _usage(self, reported: Any) -> Usage:
        """What an answered request used; unknown where it is not reported, or cannot be true."""
        metered = metering.reported(reported)
        if metered is None:
            price = 0.0 if self.free or (self.cost and self.cost.free) else None
            return Usage(1, 0, 0, 0, price, price, unmetered=0 if self.free else 1)
        tokens_in, cached, tokens_out, reasoning, written = metered
        self._output_tokens += 0.1 * (tokens_out - self._output_tokens)
        paid = at_list_price = 0.0 if self.free else None
        if self.cost:
            paid = self.cost.of(tokens_in, cached, tokens_out, reasoning, written)
            at_list_price = self.cost.of(tokens_in, 0, tokens_out, reasoning)
        return Usage(1, 0, tokens_in, tokens_out, paid, at_list_price, cached_tokens=cached, reasoning_tokens=reasoning)

    def _usage_of_failure(self, error: dspy.LMError) -> Usage:
        """What a request used that was left without an answer: nothing, unless the provider says otherwise.

        Where nobody knows a price, nobody knows what it cost either.
        """
        reported = getattr(error, "usage", None)
        nothing = 0.0 if self.free or self.cost else None
        usage = self._usage(reported) if reported else Usage(paid_usd=nothing, list_usd=nothing)
        return replace(usage, calls=0, unmetered=0)

    def _reason(self, error: Exception) -> Exception:
        """What an exception of a call means, where its type does not say so."""
        if isinstance(error.__cause__, SextantError):
            return error.__cause__  # the offline engine's own words, which DSPy wraps
        unclear = isinstance(error, dspy.LMInvalidRequestError) and faults.about(error) == "unknown"
        if unclear and not self.answered:
            # Before any answer, a request that is not acceptable means settings, and would fail every query.
            return faults.refusal(error, self.model)
        return error


def _in_time(ask: Callable[[], _Sent], deadline: float) -> _Sent:
    """What `ask` gives, by the deadline; a thread that has nothing by then is left behind."""
    done = queue.SimpleQueue[_Sent | BaseException]()
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
    return cleaned(output, SECRET) if isinstance(output, str) else output


def _out_of_time(why: str = "") -> dspy.LMTimeoutError:
    return dspy.LMTimeoutError(f"the query's time is up (--query-timeout){why and ': '}{why}")


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
