"""What a model call costs at list price, and how much a model takes, from the table that LiteLLM ships.

An unknown price is None, never 0.

Reads LiteLLM's file without importing LiteLLM, which takes seconds and may go to the network.
"""

import importlib.util
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars a token."""

    input: float
    cached_input: float
    output: float

    def of(self, input_tokens: int, cached_tokens: int, output_tokens: int) -> float:
        """Dollars for one call; `cached_tokens` are those of the input that the provider had cached."""
        fresh = input_tokens - cached_tokens
        return fresh * self.input + cached_tokens * self.cached_input + output_tokens * self.output


def window(model: str) -> int | None:
    """How many tokens a prompt of `provider/model` may have, or None when it is not known."""
    found = (_row(model) or {}).get("max_input_tokens")
    return found if isinstance(found, int) else None


def _row(model: str) -> dict[str, Any] | None:
    table = _table()
    provider, _, name = model.partition("/")
    row = table.get(model)
    if row is None and table.get(name, {}).get("litellm_provider") == provider:
        row = table[name]  # a name alone may be another provider's, or of a server of the user's own
    return row


def price(model: str) -> Price | None:
    """The list price of `provider/model`, or None when it is not known."""
    row = _row(model)
    if row is None or "input_cost_per_token" not in row or "output_cost_per_token" not in row:
        return None
    return Price(
        input=row["input_cost_per_token"],
        cached_input=row.get("cache_read_input_token_cost", row["input_cost_per_token"]),
        output=row["output_cost_per_token"],
    )


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
