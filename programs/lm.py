"""Model specs, and everything between a program and its model: one call, one count, one budget.

A spec is `offline` (no model), `MODEL@http://host:port/v1` (any server that speaks the OpenAI protocol), or
`provider/model` as LiteLLM names it, with the provider's key in its usual environment variable. DSPy's own cache is
off, because it is shared between runs and keeps no usage; a run keeps its answers in its own journal.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

# LiteLLM downloads a price map when it is imported, and DSPy on the first call, unless told not to.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

import dspy

from programs import offline, wire
from programs.adapter import ANSWERED, Adapter, Answered
from programs.budget import Budget
from programs.chat import Endpoint, Message, endpoint
from programs.journal import Answer, Journal, digest
from programs.offline_rules import RULES, Rules
from programs.prices import Price, price, window
from tools import session
from tools.errors import BudgetReached, Halt, ProviderRefused, RunIncomplete, SextantError, UsageError
from tools.records import Usage
from tools.servers import is_server
from tools.text import TermStatistics

logging.getLogger("dspy.clients.lm").setLevel(logging.ERROR)  # answers that were cut off are counted, by kind

# Seconds before a failed call is tried again, unless the provider says how many; then the query is owed.
WAITS = (1.0, 2.0)
LONGEST_WAIT = 60.0  # a provider that asks for more is not waited for


_FINISH: ContextVar[str] = ContextVar("finish", default="stop")  # why the last answer of this context ended


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


@dataclass(slots=True)
class _Call:
    """One call on its way: what it returned, once it did, and how often it has failed."""

    outputs: Any = None
    finish: str = "stop"  # or why the answer ended otherwise
    usage: Usage | None = None  # where who made the call knows it; else DSPy's tracker does
    failures: int = 0

    def pause(self, error: Exception) -> float:
        """Seconds until the call is worth another try after `error`; raises that again when it is not."""
        asked = getattr(error, "retry_after", None)
        if self.failures == len(WAITS) or not dspy.is_retryable_lm_error(error) or (asked or 0.0) > LONGEST_WAIT:
            raise error
        self.failures += 1
        return WAITS[self.failures - 1] if asked is None else max(0.0, float(asked))


class MeteredLM(dspy.LM):
    """DSPy's language model behind the budget, the journal and the books: no call gets past them.

    In this order: an answer that an earlier sitting of the run paid for is taken from the journal; else the
    budget is asked; the call is made; its usage is booked on the session; its answer goes to the journal.
    """

    def __init__(
        self,
        model: str,
        budget: Budget,
        *,
        cost: Price | None = None,
        free: bool = False,
        window: int | None = None,
        server: str = "",
        tools: Endpoint | None = None,
        **options: Any,
    ) -> None:
        """A call without a known `cost` has an unknown price, unless it is `free`; `window` is in tokens.

        `server` tells apart models of one name at two addresses.
        `tools` is where the model takes tool calls in the protocol's form; None where it does not.
        """
        super().__init__(model, cache=False, num_retries=0, **options)
        self.budget = budget
        self.free = free
        self.cost = cost
        self.window = window  # tokens of prompt and answer together; None where it is not known
        self.server = server
        self.tools = tools
        self.journal: Journal | None = None
        self.answered = False  # whether this model has answered anything yet
        self.halts = False  # whether a call for no query that stays unanswered raises Halt, which nobody swallows

    def __call__(self, prompt: Any = None, *, messages: Any = None, **kwargs: Any) -> Any:
        """DSPy's own call. Several completions of one prompt are as many calls: each is counted, paid for and kept."""
        if (wanted := kwargs.pop("n", None) or 1) > 1:
            each = [self(prompt, messages=messages, **{**kwargs, "rollout_id": number}) for number in range(wanted)]
            return [outputs[0] for outputs in each]
        with self._call(messages or prompt, kwargs) as call:
            while call.outputs is None:
                try:
                    call.outputs = super().__call__(prompt, messages=messages, **kwargs)
                    call.finish = _FINISH.get()
                except dspy.LMError as error:
                    time.sleep(call.pause(error))
        ANSWERED.set(Answered(_text(call.outputs), call.finish))
        return call.outputs

    async def acall(self, prompt: Any = None, *, messages: Any = None, **kwargs: Any) -> Any:
        """DSPy's own call, awaited."""
        with self._call(messages or prompt, kwargs) as call:
            while call.outputs is None:
                try:
                    call.outputs = await super().acall(prompt, messages=messages, **kwargs)
                    call.finish = _FINISH.get()
                except dspy.LMError as error:
                    await asyncio.sleep(call.pause(error))
        ANSWERED.set(Answered(_text(call.outputs), call.finish))
        return call.outputs

    def converse(self, messages: Sequence[Message], tools: Sequence[Message]) -> Message:
        """The model's next message in a conversation with tools: "content", "tool_calls", "finish".

        Like any other call, it passes the journal, the budget and the books. LMUnsupportedFeatureError without `tools`.
        """
        if self.tools is None:
            raise dspy.LMUnsupportedFeatureError("no tool interface", feature="tools", model=self.model)
        settings = {name: self.kwargs[name] for name in ("temperature", "seed") if self.kwargs.get(name) is not None}
        with self._call([list(messages), list(tools)], settings) as call:
            while call.outputs is None:
                try:
                    message, call.finish, reported = self.tools.complete(messages, tools, settings)
                    call.outputs, call.usage = [message], self._usage([reported] if reported else [])
                except dspy.LMError as error:
                    time.sleep(call.pause(error))
        return {**call.outputs[0], "finish": call.finish}

    def update_history(self, entry: dict[str, Any]) -> None:
        """DSPy hands every response over here; only why it ended is kept. Prompts would fill the memory."""
        _FINISH.set(_finish(entry.get("response")))

    @contextmanager
    def _call(self, asked: Any, kwargs: dict[str, Any]) -> Iterator[_Call]:
        """What comes before and after a call; its `outputs` are there already when they were paid for before."""
        payer, call = session.current(), _Call()
        if not self.journal:
            with self._paid(payer, call):
                yield call
            return
        owner = payer.query_id if payer else ""
        settings = {name: value for name, value in {**self.kwargs, **kwargs}.items() if not name.startswith("api_")}
        request = digest(f"{self.model} {self.server}".rstrip(), asked, settings)
        with self.journal.turn(owner, request) as answer:
            if answer:
                if payer:
                    payer.charge(answer.usage)
                call.outputs, call.finish = answer.outputs, answer.finish
                yield call
                return
            with self._paid(payer, call):
                yield call
            self.journal.write(owner, request, Answer(call.outputs, call.usage or Usage(), call.finish))

    @contextmanager
    def _paid(self, payer: session.Session | None, call: _Call) -> Iterator[None]:
        """Ask the budget before a call, and book after it what it used, on `payer` and in `call`."""
        usage = Usage()
        try:
            self.budget.take()
            usage = Usage(calls=1)  # a call that fails is a call, and costs nothing
            with dspy.track_usage() as tracker:
                yield
            tracked = [entry for entries in tracker.usage_data.values() for entry in entries]
            usage = call.usage = call.usage or self._usage(tracked)
            self.answered = True
        except Exception as error:
            reason = self._reason(error)
            if fault(reason) != "system":
                if payer:
                    payer.fault = reason
                elif self.halts:
                    raise Halt(reason) from error
            if reason is error:
                raise
            raise reason from error
        finally:
            self.budget.spend(usage)
            if payer:
                payer.charge(usage)

    def _reason(self, error: Exception) -> Exception:
        """What an exception of a call means, where its type does not say so."""
        if isinstance(error.__cause__, SextantError):
            return error.__cause__  # the offline engine's own words, which DSPy wraps
        ours = isinstance(error, dspy.LMInvalidRequestError) and not isinstance(error, dspy.ContextWindowExceededError)
        if ours and not self.answered:
            # Before any answer, a request that is not acceptable means settings, and would fail every query.
            return refusal(error, self.model)
        return error

    def _usage(self, reported: list[dict[str, Any]]) -> Usage:
        tokens_in = sum(_tokens(entry, "prompt_tokens") for entry in reported)
        tokens_out = sum(_tokens(entry, "completion_tokens") for entry in reported)
        cached = sum(_tokens(entry.get("prompt_tokens_details"), "cached_tokens") for entry in reported)
        paid = at_list_price = 0.0 if self.free else None
        if self.cost and reported:
            paid = self.cost.of(tokens_in, cached, tokens_out)
            at_list_price = self.cost.of(tokens_in, 0, tokens_out)
        return Usage(1, 0, tokens_in, tokens_out, paid, at_list_price)


def _tokens(entry: Any, name: str) -> int:
    """A count in a server's report of usage; 0 where the report has none, or something else in its place."""
    count = entry.get(name) if isinstance(entry, dict) else None
    return count if isinstance(count, int) and count > 0 else 0


@dataclass(frozen=True, slots=True)
class Model:
    """A connected model. `name` says in every output which it was."""

    name: str  # "offline", or the spec
    settings: dict[str, Any]  # what goes into a run's config
    _lm: MeteredLM

    @property
    def lm(self) -> MeteredLM:
        """DSPy's side of it, for who hands it on, as an optimizer does."""
        return self._lm

    @property
    def calls(self) -> int:
        """Calls made so far in the run, those in flight included."""
        return self._lm.budget.calls

    def begin(self, folder: Path, spent: Usage) -> None:
        """Work for the run in `folder` from here on: take up its journal, and count what it has used.

        `spent` is what its answered queries used; the offline engine, whose calls cost nothing to make
        again, has no journal and counts that.
        """
        if self.name != "offline":
            self._lm.journal = Journal(folder / "calls.jsonl")
            spent = self._lm.journal.usage
            self._lm.answered = spent.calls > 0  # in an earlier sitting
        self._lm.budget.resume(spent)

    def share(self, journal: Journal) -> None:
        """Keep answers in a journal that others keep theirs in, too; who shares it resumes the budget."""
        self._lm.journal = journal

    @contextmanager
    def active(self) -> Iterator[None]:
        """DSPy predictors called inside use this model; holds for the calling thread and its copies."""
        with dspy.context(lm=self._lm, adapter=Adapter(), trace=[]):
            yield


def connect(
    spec: str,
    *,
    statistics: Callable[[], TermStatistics] | None = None,
    budget: Budget | None = None,
    seed: int | None = None,
    context: int | None = None,
    rules: Rules = RULES,
) -> Model:
    """The model that `spec` names; nothing is sent yet. `context` is how many tokens it takes; else a table says.

    `offline` needs the corpus' `statistics`, and asks for them at its first call; it fills the fields that `rules` has.
    UsageError for a spec that names no model.
    """
    budget = budget or Budget()
    if spec == "offline":
        if statistics is None:
            raise UsageError("offline weighs words by a corpus; give it the corpus' statistics")
        engine = offline.OfflineEngine(statistics, rules)
        engines: dict[str, Any] = {"engine": engine, "async_engine": offline.AsyncOfflineEngine(engine)}
        metered = MeteredLM(offline.VERSION, budget, free=True, window=context, **engines)
        return Model("offline", {"model": offline.VERSION, "window": context}, metered)
    name, url = _parse(spec)
    options: dict[str, Any] = {
        "server": url,
        "tools": endpoint(name, url),
        "cost": None if url else price(name),
        "window": context or (None if url else window(name)),
    }
    if seed is not None:
        options["seed"] = seed
    if url:
        # The user's OpenAI key is not for every server that speaks its protocol.
        options |= wire.engines(url, os.environ.get("SEXTANT_API_KEY") or "none")
    temperature = 0.0 if _takes_temperature(name) else None
    metered = MeteredLM(name, budget, temperature=temperature, **options)
    settings = {"model": spec, "temperature": temperature, "seed": seed, "window": metered.window}
    return Model(spec, settings, metered)


def _takes_temperature(name: str) -> bool:
    try:
        # DSPy refuses to make a reasoning model with a temperature other than 1, but lets 0 through.
        dspy.LM(name, temperature=0.5)
    except dspy.LMConfigurationError:
        return False
    return True


def price_is_known(spec: str) -> bool:
    """Whether a budget in dollars can be kept for this model."""
    return spec == "offline" or list_price(spec) is not None


def list_price(spec: str) -> Price | None:
    """What a token of the model costs, or None when it is not known."""
    name, url = _parse(spec)
    return None if url else price(name)


def check(spec: str, option: str = "--lm") -> None:
    """UsageError for a spec that names no model, the value of `option`; quick, before anything is loaded."""
    if spec != "offline":
        _parse(spec, option)


def _parse(spec: str, option: str = "--lm") -> tuple[str, str]:
    """(LiteLLM name, base URL or "")."""
    name, at, url = spec.partition("@")
    if at and "://" in url:  # a name of a provider's may have an @ in it, too
        if not name or not is_server(url):
            raise UsageError(
                f"{option} {name + '@...'!r} is no server; write MODEL@http://host:port/v1, "
                "and put a key for it in $SEXTANT_API_KEY"
            )
        return f"openai/{name}", url
    provider, slash, model = spec.partition("/")
    if not (provider and slash and model):
        raise UsageError(
            f"{option} {spec!r} names no model; "
            "write offline, provider/model (openai/gpt-5.2) or MODEL@http://host:port/v1"
        )
    return spec, ""


Fault = Literal["refused", "provider", "system"]

# The provider's words, as types, HTTP statuses and OpenAI's codes, for what would be so for every query of the run.
_REFUSALS = (
    dspy.LMAuthError,
    dspy.LMBillingError,
    dspy.LMConfigurationError,
    dspy.LMNotConfiguredError,
    dspy.LMUnsupportedModelError,
)
_REFUSAL_STATUSES = (401, 402, 403, 404, 405)
_REFUSAL_CODES = ("unsupported_parameter", "unsupported_value")


def fault(error: BaseException) -> Fault:
    """Whose fault an exception of a program is.

    "refused": nobody will answer this run at all (key, quota, model, settings). "provider": a call was not
    answered this time (timeout, 429, 5xx, connection, a gateway's page), or the run itself stopped it (budget,
    full disk); the query stays owed. "system": everything else, an outcome.
    """
    if isinstance(error, BudgetReached | RunIncomplete):
        return "provider"
    if isinstance(error, (ProviderRefused, UsageError, *_REFUSALS)):
        return "refused"
    if getattr(error, "status", None) in _REFUSAL_STATUSES or getattr(error, "provider_code", None) in _REFUSAL_CODES:
        return "refused"
    # What the program sent is at fault: too long, or not acceptable as content.
    if isinstance(error, dspy.LMInvalidRequestError | dspy.LMUnsupportedFeatureError):
        return "system"
    return "provider" if isinstance(error, dspy.LMError) else "system"


def refusal(error: BaseException, spec: str) -> ProviderRefused:
    """One line out of a provider's refusal."""
    first = str(error).strip().partition("\n")[0]
    return ProviderRefused(
        f"{spec}: the provider refuses: {first}; check the key, the quota, the name and the settings"
    )
