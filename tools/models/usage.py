"""The tokens that a provider's usage block reports.

Prices are in prices.py, sums of usage in tools/records.py.
"""

from contextlib import suppress
from typing import Any, NamedTuple

from sextant.tools.records import JsonObject

# Usage blocks are OpenAI's Chat Completions ("prompt_tokens") and Responses ("input_tokens"), DSPy's and LiteLLM's for
# other providers, and Anthropic's own. They differ in three points that cost money when they are missed:
# - Anthropic counts what was read from its cache, or written to it, beside "input_tokens"; everybody else within it.
# - xAI, and Gemini's OpenAI-compatible endpoint, count thinking beside "completion_tokens" and only in "total_tokens";
#   it is billed as output (https://docs.x.ai/docs/key-information/consumption-and-rate-limits), so it is output here.
# - Where the provider's cache was used: "cached_tokens" in the details, or DeepSeek's "prompt_cache_hit_tokens".
# A block that is wrong in one place makes the call's usage unknown. What a total has beside its parts is thinking, up
# to the count of thinking, or up to THINKING where none is given; more is something else (a whole conversation, say).
# Left out: tokens of sound and pictures, and dollars that a few providers report.

MOST_TOKENS = (
    10_000_000  # of one call; the largest windows have 2 million, so a report of more is a mistake
)


# Gemini, which counts thinking in the total alone, ends an answer at 65,536 tokens. Four times that
# leaves room.
THINKING = 262_144


# Some servers count thinking by tokenising its text again, its marks included, and come out a few
# tokens higher than the output that it is part of. Up to so much more than the output counts as all
# of the output.
RECOUNT_TOKENS = 8


RECOUNT_SHARE = 0.02


class TokenCounts(NamedTuple):
    """Tokens of a call."""

    input_tokens: int  # all of the prompt
    cached_tokens: int  # of the input: what the provider had cached
    output_tokens: int  # all that was written, the thinking too
    reasoning_tokens: int  # of the output: thinking; 0 where it is not told apart
    cache_write_tokens: int = (
        0  # of the input: what the provider put into its cache at a price of its own
    )


def read_report(usage: Any) -> TokenCounts | None:
    """Read a provider's usage block, as parsed from JSON; None when it is missing or cannot be true."""
    with suppress(ValueError):
        return _read(usage) if isinstance(usage, dict) else None
    return None


def _read(usage: JsonObject) -> TokenCounts | None:
    chat = usage.get("prompt_tokens") is not None
    name_in, name_out = (
        ("prompt_tokens", "completion_tokens") if chat else ("input_tokens", "output_tokens")
    )
    if usage.get(name_in) is None or usage.get(name_out) is None:
        return None
    tokens_in = _count(usage, name_in)
    tokens_out = _count(usage, name_out)
    of_input = _details(usage, f"{name_in}_details")
    of_output = _details(usage, f"{name_out}_details")
    read = _count(usage, "cache_read_input_tokens")
    written = _count(usage, "cache_creation_input_tokens")
    if name_in == "input_tokens" and not of_input:
        tokens_in += read + written  # Anthropic's own block
    cached = _count(of_input, "cached_tokens") or read or _count(usage, "prompt_cache_hit_tokens")
    written = (
        written
        or _count(of_input, "cache_creation_tokens")
        or _count(of_input, "cache_write_tokens")
    )
    if not tokens_in or cached + written > tokens_in:
        raise ValueError  # a prompt of no tokens comes from a server that does not count
    reasoning = _count(of_output, "reasoning_tokens")
    uncounted = max(0, _count(usage, "total_tokens") - tokens_in - tokens_out)
    if uncounted > (_recounted(reasoning) if reasoning else THINKING):
        raise ValueError
    tokens_out += uncounted
    if reasoning > _recounted(tokens_out):
        raise ValueError
    return TokenCounts(tokens_in, cached, tokens_out, min(reasoning, tokens_out), written)


def _recounted(tokens: int) -> float:
    return tokens + max(RECOUNT_TOKENS, RECOUNT_SHARE * tokens)


def _count(block: JsonObject, name: str) -> int:
    count = block.get(name)
    if count is None:
        return 0
    if isinstance(count, float) and count.is_integer():  # as JavaScript and Lua write whole numbers
        count = int(count)
    if type(count) is not int or not 0 <= count <= MOST_TOKENS:  # isinstance would let True through
        raise ValueError
    return count


def _details(usage: JsonObject, name: str) -> JsonObject:
    details = usage.get(name) or {}  # some gateways write an empty one as []
    if not isinstance(details, dict):
        raise ValueError
    return details
