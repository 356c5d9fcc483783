"""What a model call costs at list price, how much a model takes, and who says so.

The user's own file comes first (tools.models.prices), then the table that LiteLLM ships, read without importing
LiteLLM, which takes seconds and may go to the network. An unknown price is None, never 0. Of that table is taken what
concerns calls with text: input, cached input, writes to the provider's cache, output, thinking, and the higher prices
of long prompts. It is unknown, too, where tokens are only a part of what a call costs, or where the table has 0 for a
model that runs on somebody else's machines: there 0 stands for a price that nobody has published.

Left out: service tiers (batch, flex, priority), discounts by the hour and surcharges of regions, which are not list
prices, and prices of caches kept for an hour.
"""

import importlib.util
import json
import os
import re
import reprlib
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from tools.disk import expanded, home
from tools.errors import UnknownName, UsageError

_MILLION = 1e6
_MODES = ("chat", "responses", "completion")  # of LiteLLM's table: what answers text with text
_OWN_MACHINES = ("ollama", "lemonade")  # providers of that table that are the user's own
_FAMILIES = ("vertex_ai", "bedrock", "fireworks_ai")  # whose models are in it under several providers' names
_INCLUSIVE = ("xai",)  # "above 200k" means 200,000 and more

# Models that search the web in every call, for a fee that no count of tokens shows.
_SEARCHING = re.compile(r"[/-](search|research|online)(-|$)|/sonar")

_KEYS = {
    "input": "input_cost_per_token",
    "cached_input": "cache_read_input_token_cost",
    "cache_write": "cache_creation_input_token_cost",
    "output": "output_cost_per_token",
    "reasoning": "output_cost_per_reasoning_token",
}
_ABOVE = re.compile(rf"(?:{'|'.join(_KEYS.values())})_above_(\d+)(k?)_tokens")


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars a token."""

    input: float
    cached_input: float  # of the input: what the provider had cached
    output: float
    cache_write: float | None = None  # of the input: what it put into its cache; None is like any input
    reasoning: float | None = None  # of the output: thinking; None is like any output
    longer: tuple[tuple[int, "Price"], ...] = ()  # (tokens, price of a whole call with more input than these), upwards
    source: str = ""  # who says so: "litellm 1.106.2", or the name of the user's file
    as_of: str | None = None  # the day of it, 2026-11-01; None where the source has none, as LiteLLM's table has none

    def of(
        self,
        input_tokens: int,
        cached_tokens: int,
        output_tokens: int,
        reasoning_tokens: int = 0,
        cache_write_tokens: int = 0,
    ) -> float:
        """Dollars for one call. Cached and cache-written tokens are parts of the input, reasoning of the output."""
        price = self
        for limit, dearer in self.longer:
            if input_tokens > limit:
                price = dearer
        write = price.input if price.cache_write is None else price.cache_write
        think = price.output if price.reasoning is None else price.reasoning
        return (
            (input_tokens - cached_tokens - cache_write_tokens) * price.input
            + cached_tokens * price.cached_input
            + cache_write_tokens * write
            + (output_tokens - reasoning_tokens) * price.output
            + reasoning_tokens * think
        )

    @property
    def free(self) -> bool:
        """Whether a call costs nothing, however much it used."""
        rates = (self.input, self.cached_input, self.output, self.cache_write, self.reasoning)
        return not any(rates) and all(dearer.free for _, dearer in self.longer)

    @property
    def provenance(self) -> dict[str, Any]:
        """For a run's config: the price in dollars per million tokens, who says so and when."""
        prices = {name: _per_million(getattr(self, name)) for name in ("input", "cached_input", "output")}
        return {"source": self.source, "as_of": self.as_of, **prices}

    def __str__(self) -> str:
        """In words: $1.75 in, $0.175 cached, $14 out per million tokens (litellm 1.106.2)."""
        parts = {"in": self.input, "cached": self.cached_input, "out": self.output}
        said = ", ".join(f"${_per_million(price):g} {name}" for name, price in parts.items())
        long = f", more above {self.longer[0][0]:,} tokens of input" if self.longer else ""
        source = " of ".join(filter(None, (self.source, self.as_of)))
        return f"{said} per million tokens{long}" + (f" ({source})" if source else "")


def _per_million(price: float) -> float:
    return float(f"{price * _MILLION:.9g}")  # 1.75, and not 1.7500000000000002


def price(spec: str, file: str | Path | None = None) -> Price | None:
    """The list price of the model that --lm names so, or None when it is not known; `file` is what --prices named.

    UsageError for a file of the user's that cannot be used.
    """
    own = entry(spec, file)
    if own is None:
        return _listed(spec)
    return Price(
        input=own.input / _MILLION,
        cached_input=own.cached_input / _MILLION,
        output=own.output / _MILLION,
        cache_write=None if own.cache_write is None else own.cache_write / _MILLION,
        reasoning=None if own.reasoning is None else own.reasoning / _MILLION,
        source=own.source,
        as_of=own.as_of,
    )


def window(spec: str, file: str | Path | None = None) -> int | None:
    """Return how many tokens a prompt may have, or None when that is not known; `spec` and `file` as in `price`."""
    own = entry(spec, file)
    found = own.window if own and own.window else (_row(spec) or {}).get("max_input_tokens")
    return found if isinstance(found, int) else None


def _listed(model: str) -> Price | None:
    """The price of `provider/model` in LiteLLM's table."""
    row = _row(model)
    if (
        row is None
        or row.get("mode") not in _MODES
        or "input_cost_per_request" in row
        or _SEARCHING.search(f"/{model}")
    ):
        return None
    tiers = [tier for tier in row.get("tiered_pricing") or () if len(tier.get("range", ())) == 2]
    base = _rates(tiers[0] if tiers else row)
    if base is None or not _whole(base, row["litellm_provider"]):
        return None
    if tiers:
        dearer = [(int(tier["range"][0]), _rates(tier)) for tier in tiers[1:]]
        longer = [(limit, rates) for limit, rates in dearer if rates is not None]
    else:
        longer = _longer(row, base)
    return replace(base, longer=tuple(sorted(longer, key=lambda step: step[0])), source=_source())


def _rates(row: dict[str, Any]) -> Price | None:
    """The prices in one row, or in one of its tiers; None without input and output."""
    rates = {name: row[key] for name, key in _KEYS.items() if isinstance(row.get(key), int | float)}
    if "input" not in rates or "output" not in rates:
        return None
    if not rates.get("cache_write"):
        rates.pop("cache_write", None)  # the table has 0 where nothing is added to the price of the input
    return Price(**{"cached_input": rates["input"], **rates})


def _whole(rates: Price, provider: str) -> bool:
    """Whether these are prices, all that a call costs, and no place-holders."""
    if not rates.input and not rates.output:
        return provider in _OWN_MACHINES
    return bool(rates.input and rates.output)  # half a price is the fee of a router, or an old search model


def _longer(row: dict[str, Any], base: Price) -> list[tuple[int, Price]]:
    """The dearer prices of longer prompts: each keeps what the one before it says and it does not."""
    inclusive = row["litellm_provider"] in _INCLUSIVE
    steps = {
        match[1] + match[2]: int(match[1]) * (1000 if match[2] else 1) for match in map(_ABOVE.fullmatch, row) if match
    }
    found: list[tuple[int, Price]] = []
    for written, limit in sorted(steps.items(), key=lambda step: step[1]):
        named = {name: row.get(f"{key}_above_{written}_tokens") for name, key in _KEYS.items()}
        changes: dict[str, Any] = {name: value for name, value in named.items() if isinstance(value, int | float)}
        before = found[-1][1] if found else base
        if before.cached_input == before.input and "input" in changes:
            changes.setdefault("cached_input", changes["input"])
        found.append((limit - inclusive, replace(before, **changes)))
    return found


def _row(model: str) -> dict[str, Any] | None:
    """The row of `provider/model`; a name alone may be another provider's, or of a server of the user's own."""
    provider, slash, name = model.partition("/")
    for row in (_table().get(model), _table().get(name)):
        if slash and row and _same(provider, str(row.get("litellm_provider"))):
            return row
    return None


def _same(provider: str, listed: str) -> bool:
    return listed == provider or (provider in _FAMILIES and listed.startswith(provider))


@cache
def _source() -> str:
    """Return the name of the table. It has no date, nor has its package, and a file's time is that of installation."""
    from importlib import metadata  # here: it takes 40 ms, and a user's own prices do not need it

    try:
        return f"litellm {metadata.version('litellm')}"
    except metadata.PackageNotFoundError:
        return "litellm"


@cache
def _table() -> dict[str, dict[str, Any]]:
    spec = importlib.util.find_spec("litellm")
    if spec is None or spec.origin is None:
        return {}
    path = Path(spec.origin).parent / "model_prices_and_context_window_backup.json"
    if not path.is_file():
        return {}
    table: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return table


_PRICES = ("input", "output", "cached_input", "cache_write", "reasoning")
_ENTRIES = (*_PRICES, "as_of", "window")

# Nobody charges so little for a million tokens; who writes less means dollars per token, and a budget would not hold.
_LEAST = 1e-4

_LARGEST_WINDOW = 1_000_000_000  # tokens; more is a slip, and as an endless integer could not be printed


@dataclass(frozen=True, slots=True)
class Entry:
    """The prices of one model, in US dollars per million tokens, and its window."""

    input: float
    output: float
    cached_input: float
    cache_write: float | None
    reasoning: float | None
    window: int | None
    as_of: str  # a date, 2026-11-01
    source: str  # the file's name, without its folder: it goes into what others read


def entry(spec: str, file: str | Path | None = None) -> Entry | None:
    """Return the entry of the model `spec` in the user's file, or None; `file` is the value of --prices.

    The model's own section is before those of beginnings, the longest of these first. UsageError for a bad file.
    """
    path = _place(file)
    if path is None:
        return None
    try:
        status = path.stat()
        sections = _read(path, status.st_mtime_ns, status.st_size)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(
            f"the prices in {path} cannot be read: {reason}; correct --prices or $SEXTANT_PRICES"
        ) from error
    spec = spec.rstrip("/")
    beginnings = [name for name in sections if name.endswith("*") and spec.startswith(name[:-1])]
    return sections.get(spec) or (sections[max(beginnings, key=len)] if beginnings else None)


def _place(file: str | Path | None) -> Path | None:
    named = str(file) if file is not None else os.environ.get("SEXTANT_PRICES")
    if named:
        return expanded(named)
    usual = home() / "prices.toml"
    return usual if usual.is_file() else None


@lru_cache(maxsize=8)
def _read(path: Path, changed_ns: int, size: int) -> Mapping[str, Entry]:
    """The sections of one state of a file, by the name of the model."""
    usual = 'a section is ["openai/gpt-5.2"], its name in quotes, with input = 1.75'
    try:
        document = tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except RecursionError:
        raise UsageError(f"{path} has brackets in brackets without end; {usual}") from None
    except ValueError as error:
        raise UsageError(f"{path} is not TOML: {error}; {usual}") from error
    dated = _date(document.pop("as_of", None), path, "as_of")
    dated = dated or datetime.fromtimestamp(changed_ns / 1e9, UTC).date().isoformat()
    return {name.rstrip("/"): _entry(path, name, section, dated) for name, section in document.items()}


def _entry(path: Path, name: str, section: Any, dated: str) -> Entry:
    if not isinstance(section, dict):
        raise UsageError(f"{path} has {name} = {_shown(section)} outside of a section; only as_of may be there")
    if not (name.endswith("*") or "/" in name):
        raise UsageError(
            f"{path} has a section {name!r}, which names no model; "
            'write ["provider/model"], ["MODEL@http://host:port/v1"] or ["provider/begin*"], with the quotes'
        )
    for key in section:
        if key not in _ENTRIES:
            raise UnknownName(f"key of {name!r} in {path}", key, _ENTRIES)
    prices = {key: _price(section.get(key), path, name, key) for key in _PRICES}
    ingoing, outgoing, cached = prices["input"], prices["output"], prices["cached_input"]
    if ingoing is None or outgoing is None:
        missing = "input" if ingoing is None else "output"
        raise UsageError(f"{path}: {name!r} has no {missing}; write its US dollars per million tokens, 0 if it is free")
    return Entry(
        input=ingoing,
        output=outgoing,
        cached_input=ingoing if cached is None else cached,
        cache_write=prices["cache_write"],
        reasoning=prices["reasoning"],
        window=_window(section.get("window"), path, name),
        as_of=_date(section.get("as_of"), path, f"as_of of {name!r}") or dated,
        source=path.name,
    )


def _price(value: Any, path: Path, name: str, key: str) -> float | None:
    if value is None:
        return None
    said = f"{path}: {key} of {name!r} is {_shown(value)}; write US dollars per million tokens"
    # Not math.isfinite(), which fails for an integer that no float can hold. nan is in no range.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= sys.float_info.max:
        raise UsageError(f"{said}, 0 or more")
    if 0 < value < _LEAST:
        raise UsageError(f"{said}, not per token")
    return float(value)


def _window(value: Any, path: Path, name: str) -> int | None:
    if value is None or (type(value) is int and 0 < value <= _LARGEST_WINDOW):
        return value
    raise UsageError(
        f"{path}: window of {name!r} is {_shown(value)}; write a number of tokens, 1 to {_LARGEST_WINDOW:,}"
    )


def _date(value: Any, path: Path, what: str) -> str | None:
    if value is None:
        return None
    try:
        day = date.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        day = None
    if not isinstance(day, date):
        raise UsageError(f"{path}: {what} is {_shown(value)}; write a date like 2026-11-01")
    return day.isoformat()[:10]  # of a time, its day


def _shown(value: Any) -> str:
    """A value for a message: its beginning and its end where it is long."""
    try:
        return reprlib.repr(value)  # unlike repr(), for tables in tables without end, too
    except ValueError:
        return "an endless number"  # Python prints no integer of more than 4,300 digits
