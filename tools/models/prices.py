"""List prices and context windows of models, with their sources.

The user's own TOML file comes first: that of --prices or $SEXTANT_PRICES, else prices.toml in
$SEXTANT_HOME. Its entry replaces all that the table says of a model; docs/guide/cost.md has an
example. Then comes LiteLLM's table, read without importing LiteLLM, which takes seconds and may go
to the network. An unknown price is None, never 0; it is unknown, too, if tokens are only part of
the cost, or if the table has 0 for a model on somebody else's machines.

Left out: service tiers (batch, flex, priority), discounts by the hour and surcharges of regions,
which are not list prices, prices of caches kept for an hour, and currencies other than the US
dollar.
"""

import json
import os
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from datetime import UTC, date, datetime
from functools import cache, lru_cache
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NotRequired, cast

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field
from typing_extensions import TypedDict

from sextant.tools import schemas
from sextant.tools.errors import UsageError
from sextant.tools.platform import files
from sextant.tools.platform.files import expand_user_path, sextant_home
from sextant.tools.records import JsonObject

_MILLION = 1e6
_MODES = ("chat", "responses", "completion")  # in LiteLLM's table: what answers text with text
_OWN_MACHINES = ("ollama", "lemonade")  # providers in it that are the user's own
_FAMILIES = (
    "vertex_ai",
    "bedrock",
    "fireworks_ai",
)  # providers whose models are in it under several names
_INCLUSIVE = ("xai",)  # "above 200k" means 200,000 and more

# Models that search the web in every call, for a fee that no count of tokens shows.
_SEARCHING = re.compile(r"[/-](search|research|online)(-|$)|/sonar")

_ANSWER = 4096  # tokens of an answer of a model of which nothing else is known
# More is not asked for by itself: providers count the limit against the tokens of a minute and the
# credit left.
_LONGEST_ANSWER = 16_384

# Our name of a rate -> LiteLLM's
_RATES = {
    "input": "input_cost_per_token",
    "cached_input": "cache_read_input_token_cost",
    "cache_write": "cache_creation_input_token_cost",
    "output": "output_cost_per_token",
    "reasoning": "output_cost_per_reasoning_token",
}
_ABOVE = re.compile(rf"(?:{'|'.join(_RATES.values())})_above_(\d+)(k?)_tokens")

# Dollars per million tokens; who writes less means dollars per token, and a budget would not hold
_LEAST = 1e-4
_LARGEST_WINDOW = (
    1_000_000_000  # tokens; more is a slip, and as an endless integer could not be printed
)


class Price(NamedTuple):
    """US dollars a token."""

    input: float
    cached_input: float  # of the input: what the provider had cached
    output: float
    cache_write: float | None = (
        None  # of the input: what it put into its cache; None is like any input
    )
    reasoning: float | None = None  # of the output: thinking; None is like any output
    longer: tuple[
        tuple[int, "Price"], ...
    ] = ()  # (tokens, price of a whole call with more input than these), upwards
    source: str = ""  # who says so: "litellm 1.106.2", or the name of the user's file
    as_of: str | None = (
        # The day of it, 2026-11-01; None where the source has none, as LiteLLM's table has none
        None
    )

    def of(
        self, tokens_in: int, cached: int, tokens_out: int, reasoning: int = 0, written: int = 0
    ) -> float:
        """Return a call's dollars; `cached` and `written` tokens are part of the input, `reasoning` of the output."""
        price = self._for(tokens_in)
        write = price.input if price.cache_write is None else price.cache_write
        think = price.output if price.reasoning is None else price.reasoning
        usd = (
            (tokens_in - cached - written) * price.input
            + cached * price.cached_input
            + written * write
        )
        return usd + (tokens_out - reasoning) * price.output + reasoning * think

    def most(self, tokens_in: int, tokens_out: float) -> float:
        """Return the dollars of a call with these tokens if all are of the dearest kind."""
        if self.free:
            return 0.0
        price = self._for(tokens_in)
        dearest_in = max(price.input, price.cached_input, price.cache_write or 0.0)
        return tokens_in * dearest_in + tokens_out * max(price.output, price.reasoning or 0.0)

    def _for(self, tokens_in: int) -> "Price":
        """Return the prices of a call with this input."""
        price = self
        for limit, dearer in self.longer:
            if tokens_in > limit:
                price = dearer
        return price

    @property
    def free(self) -> bool:
        """Whether a call costs nothing, however much it used."""
        return not any(getattr(self, name) for name in _RATES) and all(
            dearer.free for _, dearer in self.longer
        )

    @property
    def provenance(self) -> JsonObject:
        """The price in dollars per million tokens, with its source and day, for a run's config."""
        prices = {
            name: _per_million(getattr(self, name)) for name in ("input", "cached_input", "output")
        }
        return {"source": self.source, "as_of": self.as_of, **prices}

    def __str__(self) -> str:
        """Return words: $1.75 in, $0.175 cached, $14 out per million tokens (litellm 1.106.2)."""
        labelled = {"in": self.input, "cached": self.cached_input, "out": self.output}
        rates = [f"${_per_million(price):g} {name}" for name, price in labelled.items()]
        listed = ", ".join(rates)
        long = f", more above {self.longer[0][0]:,} tokens of input" if self.longer else ""
        source = " of ".join(filter(None, (self.source, self.as_of)))
        return f"{listed} per million tokens{long}" + (f" ({source})" if source else "")


def _per_million(price: float) -> float:
    return float(f"{price * _MILLION:.9g}")  # 1.75, and not 1.7500000000000002


def price(spec: str, file: str | Path | None = None) -> Price | None:
    """Return the list price of the model `spec`, None when not known. UsageError for a bad `file` of --prices."""
    entry = _find_own(spec, file)
    return _find_listed(spec) if entry is None else entry[0]


def check_file(file: Path) -> None:
    """Raise UsageError for a file of --prices that cannot be read, also if no price is looked up."""
    _read_own(file)


def window(spec: str, file: str | Path | None = None) -> int | None:
    """Return how many tokens a prompt may have, or None when that is not known; `spec` and `file` as in `price`."""
    entry = _find_own(spec, file)
    most = entry[1] if entry and entry[1] else _row(spec).get("max_input_tokens")
    return most if isinstance(most, int) else None


def takes_tools(model: str) -> bool:
    """Return whether the table says that the model takes tools; LiteLLM's own look-up may ask a server."""
    return bool(_row(model).get("supports_function_calling"))


def longest_answer(spec: str, file: str | Path | None = None, *, reasons: bool = False) -> int:
    """Return the tokens that an answer may have, if the user does not say; `spec` and `file` as in
    `price`.
    """
    most = max_output(spec, file) or (_LONGEST_ANSWER if reasons else _ANSWER)
    entry = _find_own(spec, file)
    return most if entry and entry[2] else min(most, _LONGEST_ANSWER)


def max_output(spec: str, file: str | Path | None = None) -> int | None:
    """Return the most tokens that the model can write, as the user's file or the table says; None
    if neither does.
    """
    entry = _find_own(spec, file)
    if entry and entry[2]:
        return entry[2]
    most = _row(spec).get("max_output_tokens")
    return int(most) if most else None


# The table that LiteLLM ships


def _find_listed(model: str) -> Price | None:
    row = _row(model)
    if (
        _SEARCHING.search(f"/{model}")
        or row.get("mode") not in _MODES
        or "input_cost_per_request" in row
    ):
        return None
    listed = row.get("tiered_pricing") or ()
    tiers = [tier for tier in listed if len(tier.get("range", ())) == 2]
    base = _rates(tiers[0] if tiers else row)
    # Half a price is the fee of a router, or an old search model; none is a place-holder.
    free = row["litellm_provider"] in _OWN_MACHINES and base and not base.input and not base.output
    if base is None or not (free or base.input * base.output):
        return None
    source = (
        f"litellm {metadata.version('litellm')}"  # neither the table nor its package has a date
    )
    steps = [(int(tier["range"][0]), rates) for tier in tiers[1:] if (rates := _rates(tier))]
    longer = sorted(steps if tiers else _longer(row, base), key=lambda step: step[0])
    return base._replace(longer=tuple(longer), source=source)


def _rates(row: JsonObject) -> Price | None:
    """Return the prices in a row, or in a tier of it; None without input and output."""
    rates = {
        name: row[key] for name, key in _RATES.items() if isinstance(row.get(key), int | float)
    }
    if "input" not in rates or "output" not in rates:
        return None
    write = (
        rates.get("cache_write") or None
    )  # the table has 0 where nothing is added to the price of the input
    return Price(**{"cached_input": rates["input"], **rates, "cache_write": write})


def _longer(row: JsonObject, base: Price) -> list[tuple[int, Price]]:
    """Return the dearer prices of longer prompts: each keeps the rates of the tier before that it
    does not change.
    """
    inclusive = row["litellm_provider"] in _INCLUSIVE
    price = base
    steps = {}
    for match in filter(None, map(_ABOVE.fullmatch, row)):
        steps[match[1] + match[2]] = int(match[1]) * (1000 if match[2] else 1)
    longer: list[tuple[int, Price]] = []
    for written, limit in sorted(steps.items(), key=lambda step: step[1]):
        changes: JsonObject = {}
        for name, key in _RATES.items():
            rate = row.get(f"{key}_above_{written}_tokens")
            if isinstance(rate, int | float):
                changes[name] = rate
        if price.cached_input == price.input and "input" in changes:
            changes.setdefault("cached_input", changes["input"])
        price = price._replace(**changes)
        longer.append((limit - inclusive, price))
    return longer


def _row(model: str) -> JsonObject:
    """Return the row of `provider/model`; {} for a name alone, which may be that of a server of the user's own."""
    provider, slash, name = model.partition("/")
    for row in (_table().get(model, {}), _table().get(name, {})) if slash else ():
        listed = str(row.get("litellm_provider"))
        if listed == provider or (provider in _FAMILIES and listed.startswith(provider)):
            return row
    return {}


@cache
def _table() -> dict[str, JsonObject]:
    name = "litellm/model_prices_and_context_window_backup.json"
    path = Path(str(metadata.distribution("litellm").locate_file(name)))
    return (
        cast(dict[str, JsonObject], json.loads(path.read_text(encoding="utf-8")))
        if path.is_file()
        else {}
    )


# The user's own file


def _day(value: Any) -> str:
    with suppress(ValueError, TypeError):
        return (value if isinstance(value, date) else date.fromisoformat(value)).isoformat()[:10]
    raise ValueError("should be a date like 2026-11-01")


def _per_token(value: float) -> float:
    if 0 < value < _LEAST:
        raise ValueError("should be dollars per million tokens, not per token")
    return value / _MILLION


def _model(name: str) -> str:
    if not (name.endswith("*") or "/" in name):
        raise ValueError("names no model")
    return name


_Name = Annotated[str, AfterValidator(_model)]
_Day = Annotated[str, BeforeValidator(_day)]
_Rate = Annotated[float, Field(ge=0, allow_inf_nan=False), AfterValidator(_per_token)]
_Tokens = Annotated[int, Field(ge=1, le=_LARGEST_WINDOW)]


class _Head(TypedDict):
    """What stands above the sections."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]
    as_of: NotRequired[_Day]


class _Section(_Head):
    """What stands in the section of a model: US dollars per million tokens, and tokens."""

    input: _Rate
    output: _Rate
    cached_input: NotRequired[_Rate]
    cache_write: NotRequired[_Rate]
    reasoning: NotRequired[_Rate]
    window: NotRequired[_Tokens]
    max_tokens: NotRequired[_Tokens]


_Entry = tuple[
    Price, int | None, int | None
]  # the price of a model, how many tokens it takes, and those of an answer


def _find_own(spec: str, file: str | Path | None) -> _Entry | None:
    """Return a model's entry in the user's file: its own section, or that of its longest beginning, or None."""
    named = str(file) if file is not None else os.environ.get("SEXTANT_PRICES")
    path = named or sextant_home() / "prices.toml"
    if isinstance(path, Path) and not path.is_file():
        return None
    sections = _read_own(path)
    spec = spec.rstrip("/")
    beginnings = [name for name in sections if name[-1] == "*" and spec.startswith(name[:-1])]
    return sections.get(spec) or (sections[max(beginnings, key=len)] if beginnings else None)


def _read_own(file: str | Path) -> Mapping[str, _Entry]:
    """Return the entries of a file of the user's own, read again if it has changed."""
    path = expand_user_path(str(file))
    try:
        status = path.stat()
        return _read(path, status.st_mtime_ns, status.st_size)
    except OSError as error:
        wrong = f"the prices in {path} cannot be read: {(error.strerror or str(error)).lower()}"
        raise UsageError(f"{wrong}; correct --prices or $SEXTANT_PRICES") from error


@lru_cache(maxsize=8)
def _read(path: Path, changed_ns: int, size: int) -> Mapping[str, _Entry]:
    usual = (
        'a section is ["provider/model"], ["MODEL@http://host:port/v1"] or ["provider/begin*"], its '
        "name in quotes, with input and output in US dollars per million tokens, 0 if it is free"
    )
    try:
        document = files.read_toml(path)
    except ValueError as error:
        raise UsageError(f"{path} is not TOML: {error}; {usual}") from error
    stray = {name: value for name, value in document.items() if not isinstance(value, dict)}
    try:
        dated = schemas.validate(_Head, stray).get("as_of")
        dated = dated or datetime.fromtimestamp(changed_ns / 1e9, UTC).date().isoformat()
        sections = schemas.validate(dict[_Name, _Section], _without(document, stray))
    except ValueError as error:
        raise UsageError(f"{path}: {error}; {usual}") from None
    return {
        name.rstrip("/"): _entry(section, path.name, dated) for name, section in sections.items()
    }


def _without(table: JsonObject, others: Collection[str]) -> JsonObject:
    return {name: value for name, value in table.items() if name not in others}


def _entry(section: JsonObject, source: str, dated: str) -> _Entry:
    """Return the entry of a section; `source` is the file's name, without its folder: others read it."""
    rates = {key: section[key] for key in _RATES if key in section}
    as_of = section.get("as_of", dated)
    entry_price = Price(**{"cached_input": rates["input"], **rates}, source=source, as_of=as_of)
    return entry_price, section.get("window"), section.get("max_tokens")
