"""The stations of a request to a model: ledger, limiter, budget, sending, usage. Everything that is
sent passes here.

An answer that the ledger has is taken from there. Otherwise the request waits for the limiter and the
budget, is sent, and is booked before anybody sees its answer. A request without an answer is sent
again, a bounded number of times; each attempt asks the budget and is booked.
"""

import json
import math
import random
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import dspy

from sextant.tools.errors import ProviderRefused
from sextant.tools.models import provider_errors
from sextant.tools.models.call_limits import LONGEST_WAIT, CallReservation, SpeedMeter
from sextant.tools.models.provider_response import TIMEOUT, ProviderResponse, Send, read_report
from sextant.tools.models.run_resources import RunResources
from sextant.tools.models.secrets import secret_values
from sextant.tools.models.storage.ledger import ModelResponse, Packed, split_and_compress
from sextant.tools.models.tokens import Message, count_prompt_tokens
from sextant.tools.platform.cli import print_stderr
from sextant.tools.platform.number_format import plural
from sextant.tools.records import Usage
from sextant.tools.session import SharedOnDeepcopy, usage_recorded_elsewhere

if TYPE_CHECKING:
    from sextant.tools.models.prices import Price

DEADLINE: ContextVar[float] = ContextVar(
    "deadline", default=float("inf")
)  # of the query, by time.monotonic
_COARSEST = (
    0.25  # our tokens for each of a model's: some tokenizers have one for each letter or two
)
# tokens: a refusal for length that tells no number is not taken for a smaller window than that
_SMALLEST = 1024
_TOKENS_A_BYTE = 0.5  # of a request: nearly every token has two bytes or more
_TIME_MARGIN = 1.5  # times the seconds that a call needs at the speed measured
_BILLED = 2  # answers that are paid for and cannot be read, after which a call is not made again


@dataclass(slots=True)
class _RetryState:
    count: int = 0
    since: float = 0.0  # when the first one was
    billed: int = 0  # of them, those for which the provider reported tokens
    last: dspy.LMError | None = None


@dataclass(slots=True)
class _Attempt:
    """A request that is sent once."""

    started: float  # by time.monotonic
    deadline: float  # by time.monotonic
    response: ProviderResponse | None = None
    usage: Usage = field(default_factory=Usage)
    failure: dspy.LMError | None = None


@dataclass(eq=False)
class ModelClient(SharedOnDeepcopy):
    """Sends the requests of a model with the resources of its run. Threads share it."""

    model: str
    resources: RunResources
    cost: "Price | None" = None  # of tokens; None where it is not known
    free: bool = False  # whether a call costs 0 and is not in the ledger
    keeps_prompts: bool = False  # whether requests are kept beside their answers
    # "on", or "auto": whether signatures are sent as JSON schemas; until the model refuses one
    schemas: str = "off"
    window: int | None = None  # tokens of prompt and answer together; None where it is not known
    longest: int | None = None  # tokens of an answer that the model can write, as `window`

    def __post_init__(self) -> None:
        self.meter = SpeedMeter()  # of the server; `connect` puts the run's own in its place
        self._slow = False  # whether it was told that calls may take longer than usual
        self._answered = False
        self._largest_output = 0  # tokens of the longest answer so far
        self._kept = 0  # answers that were billed no more than they could use
        self._exceeded = False  # whether one was billed more
        self._told = False  # whether it was told that calls go one at a time
        self._secrets = [json.dumps(secret)[1:-1].encode() for secret in secret_values()]
        if not self.free:
            self.resources.join()

    @property
    def answered(self) -> bool:
        """Whether the model has answered anything yet, in this sitting or before."""
        return self._answered or self.resources.answered_before

    @property
    def keeps(self) -> bool:
        """Whether there is a ledger that answers are kept in."""
        return not self.free and self.resources.ledger is not None

    def ask(
        self, owner: str, key: str, request: bytes | int, send: Send, limit: int | None = None
    ) -> ModelResponse:
        """Return the answer to the request `made`: from the ledger, from an equal request in flight, or by sending it.

        It may be the size alone, in bytes, if `send` packs the request for the ledger.
        `key` stands for everything that shapes the answer; "" is for an answer that an index keeps,
        not the ledger.
        `owner` is the query that pays, "" for none. `limit` is the most tokens of the answer, None
        if there is none. Raises DSPy's LM errors and those of sextant.tools.errors.
        """
        failures = _RetryState()
        with self._turn(owner, key) as known_answer:
            if known_answer:
                return known_answer
            while True:
                entered = self._enter(failures)
                with self._attempt(owner, key, request, limit) as attempt:
                    attempt.response = send(attempt.deadline)
                if attempt.failure is None:
                    return self._book(owner, key, request, attempt)
                self._wait_for_another(attempt.failure, entered, failures)

    @contextmanager
    def _turn(self, owner: str, key: str) -> Iterator[ModelResponse | None]:
        """Give the block the answer of the ledger, or None: it has to send the request then."""
        ledger = None if self.free or not key else self.resources.ledger
        if ledger is None:
            if not self.free:
                self.resources.check_sends(
                    f"a call of {self.model}" + (f" for query {owner!r}" if owner else "")
                )
            yield None
            return
        try:
            with ledger.turn(
                owner, key, self.model, self._list_price, deadline=DEADLINE.get()
            ) as known_answer:
                yield known_answer
        except TimeoutError as waited:
            raise _out_of_time(str(waited)) from None

    def pack(self, request: bytes, known_parts: Collection[int]) -> Packed | None:
        """Return a request as the ledger keeps it, without parts that are `known` there; None if it
        keeps none.
        """
        return (
            split_and_compress(request, known_parts, self._secrets) if self.keeps_prompts else None
        )

    def learns(self, refusal: Any, messages: Sequence[Message], before: int | None) -> bool:
        """Take from a refusal for length how much the model takes, in tokens as we count them; mark it as `learnt`.

        The window was `before` when the call began. A request that a cassette lacks counts as
        refused, if the run that was recorded has learnt a window.
        """
        resources = self.resources
        server_facts = self.resources.servers.setdefault(self.model, {})
        if (
            resources.cassette
            and isinstance(refusal, ProviderRefused)
            and server_facts.get("learnt", before) != before
        ):
            self.window = server_facts["learnt"]
        elif (
            not isinstance(refusal, dspy.LMError)
            or provider_errors.error_topic(refusal) != "length"
        ):
            return False
        refusal.learnt = True  # for who answers the query again
        if self.window == before:  # else a call beside this one has learnt it meanwhile
            stated_window, stated_prompt, counted_prompt = (
                *provider_errors.read_window(refusal),
                count_prompt_tokens(messages),
            )
            window = stated_window or max(counted_prompt // 2, _SMALLEST)
            if stated_window and stated_prompt:
                window = round(
                    stated_window * min(1.0, max(_COARSEST, counted_prompt / stated_prompt))
                )
            self.window = server_facts["learnt"] = max(
                1, min(window, before * 4 // 5) if before else window
            )
            words = (
                f"takes {plural(self.window, 'token')}, as its refusal says; --context {self.window} says "
                f"so from the start"
            )
            print_stderr(f"{self.model.removeprefix('openai/')} {words}")
        return True

    def _enter(self, failures: _RetryState) -> float:
        """Wait for the limiter; return when it let the request through, or raise the last failure."""
        now = time.monotonic()
        deadline = DEADLINE.get()
        patience = self._patience(failures)
        if now >= deadline:
            raise failures.last or _out_of_time()
        try:
            until = min(deadline, self.resources.budget.ends)
            return self.resources.limiter.enter(
                (failures.since or now) + patience, patience=patience, deadline=until
            )
        except TimeoutError as waited:
            self.resources.budget.check()
            late = _out_of_time(str(waited)) if time.monotonic() >= deadline else None
            raise (
                failures.last or late or dspy.LMTimeoutError(f"nothing was sent: {waited}")
            ) from None

    def _most(self, size: int, limit: int | None) -> CallReservation:
        """Return the most that a request of `size` bytes can use: a token a byte, and the longest answer of the model.

        Its own `limit` is no bound, because some servers do not keep it.
        """
        lengths = (self.longest, self.window, math.inf)
        longest = next(length for length in lengths if length is not None)
        tokens_out = max(limit or 0, longest)
        usd = self.cost.most(size, tokens_out) if self.cost else 0.0
        return CallReservation(size + tokens_out, usd, self.model)

    def _reserve(
        self, most: CallReservation, in_flight: Sequence[CallReservation] = ()
    ) -> CallReservation:
        """Return what a budget keeps for a call: `most`, or all there is until answers show that it holds.

        There are as many of the model's calls in flight as answers that were billed rightly.
        """
        beside = sum(call.model == self.model for call in in_flight)
        if beside < self._kept and not self._exceeded:
            return most
        return CallReservation(math.inf, math.inf, self.model)

    def _compare(self, usage: Usage, most: CallReservation) -> None:
        """Note whether a call was billed more than it could use; say why calls go one at a time."""
        used = usage.input_tokens + usage.output_tokens
        self._exceeded |= used > most.tokens
        self._kept += usage.calls
        alone = self._kept and self.resources.budget.goes_alone(self._reserve(most))
        if self._told or not alone:
            return
        self._told = True
        reason = "how long its answers can be is not known; --context N says so"
        if self._exceeded:
            reason = f"it billed {used:,} tokens where {most.tokens:,} were possible"
        name = self.model.removeprefix("openai/")
        print_stderr(f"calls of {name} go one at a time under the budget: {reason}")

    def _time_limit(self, size: int, limit: int | None) -> float:
        """Return the seconds for a request of `size` bytes: more than usual if the server is that slow."""
        patience = self.resources.patience
        if not patience.follows_speed:
            return patience.call
        tokens_in = size * _TOKENS_A_BYTE
        tokens_out = max(limit or 0, self._largest_output)
        speed = self.meter.speed
        needed = (speed.seconds(tokens_in, tokens_out) or 0.0) * _TIME_MARGIN
        if needed <= patience.call:
            return patience.call
        if not self._slow:
            self._slow = True
            print_stderr(
                f"{self.model.removeprefix('openai/')} {speed}, so a call may take "
                f"{math.ceil(needed / 60)} minutes; --call-timeout sets another limit"
            )
        return needed

    @contextmanager
    def _attempt(
        self, owner: str, key: str, request: bytes | int, limit: int | None
    ) -> Iterator[_Attempt]:
        """Reserve the cost of a request that the block sends; note its usage, and book its failure."""
        size = request if isinstance(request, int) else len(request)
        resources = self.resources
        most = self._most(size, limit)
        try:
            reserved = resources.budget.take(
                partial(self._reserve, most), deadline=DEADLINE.get(), check=resources.limiter.rest
            )  # Interrupted, where it waits
        except BaseException as error:
            resources.limiter.leave()
            if isinstance(error, TimeoutError):
                raise _out_of_time(f"its calls waited for {error}") from None
            raise
        started = time.monotonic()  # the budget may have let it wait since it entered
        deadline = min(started + self._time_limit(size, limit), DEADLINE.get())
        attempt = _Attempt(started, deadline)
        try:
            with usage_recorded_elsewhere():
                yield attempt
            response = attempt.response
            assert response
            if response.finish == TIMEOUT and time.monotonic() >= DEADLINE.get():
                cut = dspy.LMTimeoutError("an answer was cut off")
                cut.usage = response.usage
                raise cut
            attempt.usage = self.usage_of(response.usage)
            self._answered = True
        except BaseException as error:
            if not isinstance(error, dspy.LMError) or isinstance(error, dspy.LMNotConfiguredError):
                resources.limiter.leave()  # no failure of the provider
                raise
            if isinstance(error, dspy.LMTimeoutError) and time.monotonic() >= DEADLINE.get():
                error = _out_of_time(str(error), getattr(error, "usage", None))
            attempt.failure = error
            attempt.usage = self._usage_of_failure(error)
            if not self.free:
                resources.book(
                    self.model,
                    attempt.usage,
                    fault=provider_errors.error_label(error),
                    seconds=time.monotonic() - started,
                    query_id=owner,
                    key=key,
                )
        finally:
            self._compare(attempt.usage, most)
            resources.budget.spend(attempt.usage, reserved)

    def _book(
        self,
        owner: str,
        key: str,
        request: bytes | int,
        attempt: _Attempt,
    ) -> ModelResponse:
        """Book an answered request; its answer is on disk when this returns."""
        response = attempt.response
        assert response
        resources = self.resources
        resources.limiter.answered(response.headers)
        answer = ModelResponse(
            response.outputs,
            attempt.usage,
            response.finish,
            time.monotonic() - attempt.started,
            response.reasoning,
            response.first,
        )
        if not self.free:
            self.meter.add(attempt.usage, answer.seconds, answer.first, response.timings)
        if key and resources.ledger:
            packed = (
                response.packed
                if isinstance(request, int)
                else self.pack(request, resources.ledger.answers.parts)
            )
            resources.ledger.answered(owner, key, self.model, answer, packed)
        elif not self.free:
            resources.book(self.model, attempt.usage, query_id=owner)
        return answer

    def _wait_for_another(self, error: dspy.LMError, entered: float, failures: _RetryState) -> None:
        """Tell the limiter of a failure, then wait until the next attempt; raise the failure if there
        is to be none.
        """
        limiter = self.resources.limiter
        patience = self.resources.patience
        if not dspy.is_retryable_lm_error(error):
            limiter.refused()
            raise error
        requested_rest: float | None = getattr(
            error, "retry_after", None
        )  # seconds that the provider asks for
        limiter.failed(
            entered,
            overload=provider_errors.is_overload(error),
            rest=requested_rest,
            reason=provider_errors.error_label(error),
        )
        now = time.monotonic()
        failures.since = failures.since or now
        failures.count = failures.count + 1
        failures.last = error
        failures.billed += getattr(error, "billed", False)
        if (
            failures.count == patience.attempts
            or failures.billed == _BILLED
            or (requested_rest or 0.0) > LONGEST_WAIT
        ):
            raise error
        if requested_rest:
            return  # the limiter holds everybody back for so long
        # Not all equal, so that those that failed together do not come together.
        pause = patience.first * 2.0 ** (failures.count - 1) * random.uniform(0.75, 1.25)
        if now + pause >= min(failures.since + self._patience(failures), DEADLINE.get()):
            raise error
        limiter.rest(min(pause, max(0.0, self.resources.budget.ends - now)))

    def _patience(self, failures: _RetryState) -> float:
        """Return the seconds to go on trying: a mistyped address should not take as long as an overloaded provider."""
        alive = self.answered or (
            failures.last is not None and provider_errors.is_overload(failures.last)
        )
        return self.resources.patience.after if alive else self.resources.patience.before

    def _list_price(self, usage: Usage) -> float | None:
        return (
            self.cost.of(usage.input_tokens, 0, usage.output_tokens, usage.reasoning_tokens)
            if self.cost
            else None
        )

    def usage_of(self, reported: Any) -> Usage:
        """Return the usage of an answered request; unknown if that is not `reported`, or cannot be
        true.
        """
        metered = read_report(reported)
        if metered is None:
            price = 0.0 if self.free or (self.cost and self.cost.free) else None
            return Usage(1, 0, 0, 0, price, price, unmetered=0 if self.free else 1)
        tokens_in, cached, tokens_out, reasoning, written = metered
        self._largest_output = max(self._largest_output, tokens_out)
        paid = listed = 0.0 if self.free else None
        if self.cost:
            paid = self.cost.of(tokens_in, cached, tokens_out, reasoning, written)
            listed = self.cost.of(tokens_in, 0, tokens_out, reasoning)
        return Usage(
            1,
            0,
            tokens_in,
            tokens_out,
            paid,
            listed,
            cached_tokens=cached,
            reasoning_tokens=reasoning,
        )

    def _usage_of_failure(self, error: dspy.LMError) -> Usage:
        """Return the usage of a request without an answer: nothing, unless the provider reports
        usage.
        """
        reported = getattr(error, "usage", None)
        nothing = (
            0.0 if self.free or self.cost else None
        )  # without a price, its cost is not known either
        usage = self.usage_of(reported) if reported else Usage(paid_usd=nothing, list_usd=nothing)
        return replace(usage, calls=0, unmetered=0)


def _out_of_time(reason: str = "", usage: Any = None) -> dspy.LMTimeoutError:
    """Return the failure of a call that ended with the time of its query, with its usage if known.

    In another sitting it would have had more time.
    """
    error = dspy.LMTimeoutError(
        f"the query's time is up (--query-timeout){reason and ': '}{reason}"
    )
    error.usage = usage
    return error
