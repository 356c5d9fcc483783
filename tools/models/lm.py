"""The one door to language models: the connected model that programs run with, as tools/models/spec.py names it.

What happens to a call is in tools/models/call.py. DSPy's own cache is off, because it is shared between runs and keeps
no usage. `python -m programs.lm cache` looks into ours.
"""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import dspy

from tools.console.command import say
from tools.errors import UsageError
from tools.models import prices
from tools.models.call import DEADLINE
from tools.models.language_model import LanguageModel
from tools.models.offline import engine as offline
from tools.models.offline.engine import Rules
from tools.models.prices import Price
from tools.models.prompting.adapter import Adapter
from tools.models.sending.client import Wire
from tools.models.spec import check_provider, is_openai, parse
from tools.models.terms import Terms
from tools.records import Usage
from tools.text import TermStatistics

logging.getLogger("dspy.clients.lm").setLevel(logging.ERROR)  # answers that were cut off are counted, by kind


@dataclass(frozen=True, slots=True)
class Model:
    """A connected language model. `name` says in every output which it was."""

    name: str  # "offline", or the spec
    settings: dict[str, Any]  # what goes into a run's config
    lm: LanguageModel  # DSPy's side of it

    @property
    def terms(self) -> Terms:
        """The budget, gate, ledger and patience that it shares with the other models of its run."""
        return self.lm.terms

    @property
    def price(self) -> Price | None:
        """The price of a token, or None when it is not known."""
        return self.lm.caller.cost

    def begin(self, folder: Path, spent: Usage) -> None:
        """Work for the run in `folder` from here on: take up its ledger, and count what it has used.

        `spent` is what its answered queries used; the offline engine, whose calls cost nothing to make again, has no
        ledger and counts those.
        """
        self.terms.open(folder)
        books = self.terms.books
        if self.lm.caller.free:
            self.terms.budget.resume(Usage(calls=spent.calls))
        elif self.terms.ledger and books and spent.calls and not books.sent and not books.cached:
            say("what this run sent before is in no ledger any more; its answered queries say what they used")
            self.terms.ledger.index(self.name, spent)
            self.terms.budget.resume(spent)

    @contextmanager
    def active(self) -> Iterator[None]:
        """DSPy predictors called inside use this model, for one query: its time runs from here.

        Holds for the calling thread and its copies.
        """
        token = DEADLINE.set(min(DEADLINE.get(), monotonic() + self.terms.query_seconds))  # a lens has its query's
        try:
            # Our signatures are checked by their answers; DSPy's look at every element of every list only logs.
            with dspy.context(lm=self.lm, adapter=Adapter(), trace=[], warn_on_type_mismatch=False):
                yield
        finally:
            DEADLINE.reset(token)


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a model; None leaves one to the model."""

    seed: int | None = None
    temperature: float | None = None  # 0 where the model takes one
    effort: str | None = None  # of reasoning
    api: str = "chat"  # or "responses"
    context: int | None = None  # tokens that it takes; else a table says


def connect(
    spec: str,
    terms: Terms | None = None,
    *,
    statistics: Callable[[], TermStatistics] | None = None,
    settings: Settings = Settings(),
    rules: Rules | None = None,
) -> Model:
    """The model that `spec` names, asked on the `terms` of a run; nothing is sent yet.

    `offline` needs the corpus' `statistics`, and asks for them at its first call; it fills the fields that `rules` has.
    UsageError for a spec that names no model, or settings that it cannot have.
    """
    terms = terms or Terms()
    if spec == "offline":
        return _offline(terms, statistics, settings, rules)
    name, url = parse(spec)
    check_provider(name, url)
    if settings.api == "responses" and settings.seed is not None:
        raise UsageError("--api responses takes no seed; leave out --seed, or use --api chat")
    window = settings.context or prices.window(spec, terms.prices)
    temperature = settings.temperature
    if temperature is None and _takes_temperature(name):
        temperature = 0.0
    made = LanguageModel(
        name,
        terms,
        cost=prices.price(spec, terms.prices),
        window=window,
        wire=_wire(name, url, settings.api),
        server=_server(name),
        **_options(name, url, settings),
        temperature=temperature,
    )
    return Model(spec, _kept(spec, settings, temperature, window), made)


def _options(name: str, url: str, settings: Settings) -> dict[str, Any]:
    """Return the settings that DSPy takes, beside the temperature."""
    options: dict[str, Any] = {"seed": settings.seed, "reasoning_effort": settings.effort}
    if settings.api == "responses" and not is_openai(name, url):
        options["model_type"] = "responses"
    return {option: value for option, value in options.items() if value is not None}


def _kept(spec: str, settings: Settings, temperature: float | None, window: int | None) -> dict[str, Any]:
    """Return the settings that determine the numbers of a run, for its config."""
    kept = {"model": spec, "temperature": temperature, "seed": settings.seed, "window": window}
    kept |= {"reasoning_effort": settings.effort} if settings.effort else {}
    return kept | ({"api": settings.api} if settings.api != "chat" else {})


def _offline(
    terms: Terms, statistics: Callable[[], TermStatistics] | None, settings: Settings, rules: Rules | None
) -> Model:

    if statistics is None:
        raise UsageError("offline weighs words by a corpus; give it the corpus' statistics")
    engine = offline.OfflineEngine(statistics, rules)
    made = LanguageModel(offline.VERSION, terms, free=True, window=settings.context, engine=engine)
    return Model("offline", {"model": offline.VERSION, "window": settings.context}, made)


def _wire(name: str, url: str, api: str) -> Any:
    """The connection of a model that speaks OpenAI's protocol; None for LiteLLM's other providers."""
    if not is_openai(name, url):
        return None
    model = name.partition("/")[2]
    return Wire.to_server(model, url, api=api) if url else Wire.to_provider(model, "openai", api=api)


def _server(name: str) -> str:
    """Where a provider of LiteLLM's is, as far as the environment says so: OLLAMA_API_BASE and the like."""
    provider = name.partition("/")[0].upper()
    ends = ("_BASE", "_URL", "_ENDPOINT", "_HOST")
    return " ".join(f"{k}={v}" for k, v in sorted(os.environ.items()) if k.startswith(provider) and k.endswith(ends))


def _takes_temperature(name: str) -> bool:
    try:
        # DSPy refuses to make a reasoning model with a temperature other than 1, but lets 0 through.
        dspy.LM(name, temperature=0.5)
    except dspy.LMConfigurationError:
        return False
    return True
