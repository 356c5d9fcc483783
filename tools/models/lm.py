"""The one door to models: what `--lm` may name, and the connected model that programs run with.

A spec is `offline` (no model), `MODEL@http://host:port/v1` (any server that speaks OpenAI's protocol: vLLM, llama.cpp,
Ollama, SGLang), `openai/MODEL`, or `provider/model` as LiteLLM names it. Keys come from the environment, or from a file
`.env` in the working directory, and go nowhere but to the provider: $SEXTANT_API_KEY for a server of one's own,
$OPENAI_API_KEY for OpenAI ($OPENAI_BASE_URL leads elsewhere), LiteLLM's usual names for the others.

What happens to a call is in tools/models/call.py. DSPy's own cache is off, because it is shared between runs and keeps
no usage. `python -m programs.lm cache` looks into ours.
"""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from tools.console.command import say
from tools.errors import ProviderRefused, UnknownName, UsageError
from tools.models.sending.servers import is_server
from tools.records import Usage

# LiteLLM downloads a price map when it is imported, and DSPy on the first call, unless told not to.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
logging.getLogger("dspy.clients.lm").setLevel(logging.ERROR)  # answers that were cut off are counted, by kind

if TYPE_CHECKING:  # DSPy and SQLite are behind these, and every command's --help imports this module
    from tools.models.language_model import LanguageModel
    from tools.models.offline.engine import Rules
    from tools.models.prices import Price
    from tools.models.terms import Terms
    from tools.text import TermStatistics

APIS = ("chat", "responses")
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")


@dataclass(frozen=True, slots=True)
class Model:
    """A connected language model. `name` says in every output which it was."""

    name: str  # "offline", or the spec
    settings: dict[str, Any]  # what goes into a run's config
    lm: "LanguageModel"  # DSPy's side of it

    @property
    def terms(self) -> "Terms":
        """The budget, gate, ledger and patience that it shares with the other models of its run."""
        return self.lm.terms

    @property
    def price(self) -> "Price | None":
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
        import dspy  # behind it are seconds of imports, and every command imports this module for its --help

        from tools.models.call import DEADLINE  # as above
        from tools.models.prompting.adapter import Adapter  # as above

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
    terms: "Terms | None" = None,
    *,
    statistics: "Callable[[], TermStatistics] | None" = None,
    settings: Settings = Settings(),
    rules: "Rules | None" = None,
) -> Model:
    """The model that `spec` names, asked on the `terms` of a run; nothing is sent yet.

    `offline` needs the corpus' `statistics`, and asks for them at its first call; it fills the fields that `rules` has.
    UsageError for a spec that names no model, or settings that it cannot have.
    """
    from tools.models import prices  # as in `active`
    from tools.models.language_model import LanguageModel  # as in `active`
    from tools.models.terms import Terms  # as in `active`

    terms = terms or Terms()
    if spec == "offline":
        return _offline(terms, statistics, settings, rules)
    name, url = _parse(spec)
    _check_provider(name, url)
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
    if settings.api == "responses" and not _is_openai(name, url):
        options["model_type"] = "responses"
    return {option: value for option, value in options.items() if value is not None}


def _kept(spec: str, settings: Settings, temperature: float | None, window: int | None) -> dict[str, Any]:
    """Return the settings that determine the numbers of a run, for its config."""
    kept = {"model": spec, "temperature": temperature, "seed": settings.seed, "window": window}
    kept |= {"reasoning_effort": settings.effort} if settings.effort else {}
    return kept | ({"api": settings.api} if settings.api != "chat" else {})


def _offline(
    terms: "Terms", statistics: "Callable[[], TermStatistics] | None", settings: Settings, rules: "Rules | None"
) -> Model:
    from tools.models.language_model import LanguageModel  # as in `connect`
    from tools.models.offline import engine as offline  # as in `connect`

    if statistics is None:
        raise UsageError("offline weighs words by a corpus; give it the corpus' statistics")
    engine = offline.OfflineEngine(statistics, rules)
    made = LanguageModel(offline.VERSION, terms, free=True, window=settings.context, engine=engine)
    return Model("offline", {"model": offline.VERSION, "window": settings.context}, made)


def _is_openai(name: str, url: str) -> bool:
    """Whether the model speaks OpenAI's protocol, which our own client does, too."""
    return bool(url) or name.startswith("openai/")


def _wire(name: str, url: str, api: str) -> Any:
    """The connection of a model that speaks OpenAI's protocol; None for LiteLLM's other providers."""
    from tools.models.sending.client import Wire  # as in `connect`

    if not _is_openai(name, url):
        return None
    model = name.partition("/")[2]
    return Wire.to_server(model, url, api=api) if url else Wire.to_provider(model, "openai", api=api)


def _check_provider(name: str, url: str) -> None:
    """UnknownName for a provider that nobody knows."""
    if _is_openai(name, url):
        return
    import litellm

    try:
        litellm.get_llm_provider(name)
    except litellm.exceptions.BadRequestError:
        known = [str(getattr(one, "value", one)) for one in litellm.provider_list]
        raise UnknownName("provider of models", name.partition("/")[0], known) from None


def check_key(spec: str) -> None:
    """ProviderRefused where the environment lacks the key that a model needs; nothing is sent."""
    name, url = ("", "") if spec == "offline" else _parse(spec)
    if not name or url:
        return
    if _is_openai(name, url):
        missing = [] if os.environ.get("OPENAI_API_KEY", "").strip() else ["OPENAI_API_KEY"]
    else:
        import litellm

        missing = litellm.validate_environment(name)["missing_keys"]
    # Where something else is missing as well, there may be other ways in: Azure's and Amazon's roles.
    if missing and all(variable.endswith("_API_KEY") for variable in missing):
        raise ProviderRefused(f"{spec} needs a key; put it in ${' or $'.join(missing)}, or into the file .env")


def _server(name: str) -> str:
    """Where a provider of LiteLLM's is, as far as the environment says so: OLLAMA_API_BASE and the like."""
    provider = name.partition("/")[0].upper()
    ends = ("_BASE", "_URL", "_ENDPOINT", "_HOST")
    return " ".join(f"{k}={v}" for k, v in sorted(os.environ.items()) if k.startswith(provider) and k.endswith(ends))


def _takes_temperature(name: str) -> bool:
    import dspy

    try:
        # DSPy refuses to make a reasoning model with a temperature other than 1, but lets 0 through.
        dspy.LM(name, temperature=0.5)
    except dspy.LMConfigurationError:
        return False
    return True


def price_is_known(spec: str, file: Path | None = None) -> bool:
    """Whether a budget in dollars can be kept for this model; `file` is the user's own prices."""
    return spec == "offline" or list_price(spec, file) is not None


def list_price(spec: str, file: Path | None = None) -> "Price | None":
    """Return what a token of the model costs, or None when it is not known."""
    from tools.models.prices import price

    return price(spec, file)


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
    if "?" in spec or "#" in spec:  # it would stand in the names of folders
        raise UsageError(f"{option} names no model with a ? or # in it; put keys into the environment")
    provider, slash, model = spec.partition("/")
    if not (provider and slash and model):
        raise UsageError(
            f"{option} {spec!r} names no model; "
            "write offline, provider/model (openai/gpt-5.2) or MODEL@http://host:port/v1"
        )
    return spec, ""


def read_keys(folder: Path = Path()) -> None:
    """Take keys that the environment lacks from the file `.env` in `folder`, if there is one.

    UsageError for a file that cannot be used. It shows nothing of a line, because that may be a key.
    """
    file = folder / ".env"
    try:
        if not file.is_file() and (not file.is_dir() or (file / "pyvenv.cfg").is_file()):
            return  # no file, and no folder by mistake: some call their virtual environment so
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {(error.strerror or str(error)).lower()}") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{file} is not UTF-8 in line {line}; save it as UTF-8") from None
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise UsageError(f"{file} has a NUL in line {line}; write text, as in SEXTANT_API_KEY=...")
    from dotenv import load_dotenv

    try:
        load_dotenv(stream=StringIO(text), override=False)
    except ValueError:  # e.g. a name with a = in it
        raise UsageError(f"{file} has a line that no environment takes; write NAME=value in each") from None
