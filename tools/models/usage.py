"""What a call used, out of the usage block of a provider's answer: the one place that knows their dialects.

Read are OpenAI's Chat Completions ("prompt_tokens") and Responses ("input_tokens"), what DSPy and LiteLLM make of other
providers, and Anthropic's own block. They differ in three points that cost money when they are missed:

- Anthropic counts what was read from its cache, or written to it, beside "input_tokens"; everybody else within it.
- xAI, and Gemini's OpenAI-compatible endpoint, count thinking beside "completion_tokens" and only in "total_tokens";
  it is billed as output (https://docs.x.ai/docs/key-information/consumption-and-rate-limits), so it is output here.
- Where the provider's cache was used: "cached_tokens" in the details, or DeepSeek's "prompt_cache_hit_tokens".

A block that is wrong in one place is believed in none: then the call's usage is unknown. That holds for a total, too.
What it has beside its parts is taken for thinking up to the count of thinking, or up to THINKING where none is told
apart; a total with more than that counts something else (a whole conversation, say), and is not billed as output.

Left out: tokens of sound and pictures, and what a few providers say the call cost in dollars.
"""

from typing import Any, NamedTuple

# No model takes or writes so much in one call (the largest windows have 2 million); a report of more is a mistake.
MOST_TOKENS = 10_000_000

# Gemini, which counts thinking in the total alone, ends an answer at 65,536 tokens. Four times that leaves room.
THINKING = 262_144

# Some servers count thinking by tokenising its text a second time, its marks included, and come out a few tokens
# higher than the output that it is part of. So much more than the output is taken for all of the output.
RECOUNT_TOKENS = 8
RECOUNT_SHARE = 0.02


class Metered(NamedTuple):
    """Tokens of one call."""

    input_tokens: int  # all of the prompt
    cached_tokens: int  # of the input: what the provider had cached
    output_tokens: int  # all that was written, the thinking too
    reasoning_tokens: int  # of the output: thinking; 0 where it is not told apart
    cache_write_tokens: int = 0  # of the input: what the provider put into its cache at a price of its own


class _Absurd(Exception):
    """A report that cannot be true."""


def read_report(usage: Any) -> Metered | None:
    """Read a provider's usage block, as parsed from JSON; None when it is missing or cannot be true."""
    if not isinstance(usage, dict):
        return None
    try:
        if usage.get("prompt_tokens") is not None:
            return _read(usage, "prompt_tokens", "completion_tokens")
        return _read(usage, "input_tokens", "output_tokens")
    except _Absurd:
        return None


def report_of_embeddings(usage: Any) -> dict[str, int] | None:
    """The usage block of an answer with vectors in the form of a chat's: they have no output tokens."""
    usage = usage if isinstance(usage, dict) else {}
    try:
        counts = [_count(usage, name) for name in ("prompt_tokens", "total_tokens") if usage.get(name) is not None]
    except _Absurd:
        return None
    return {"prompt_tokens": counts[0], "completion_tokens": 0} if counts else None


def _read(usage: dict[str, Any], name_in: str, name_out: str) -> Metered | None:
    if usage.get(name_in) is None or usage.get(name_out) is None:
        return None
    tokens_in, tokens_out = _count(usage, name_in), _count(usage, name_out)
    of_input, of_output = _details(usage, f"{name_in}_details"), _details(usage, f"{name_out}_details")
    read = _count(usage, "cache_read_input_tokens")
    written = _count(usage, "cache_creation_input_tokens")
    if name_in == "input_tokens" and not of_input:
        tokens_in += read + written  # Anthropic's own block
    cached = _count(of_input, "cached_tokens") or read or _count(usage, "prompt_cache_hit_tokens")
    written = written or _count(of_input, "cache_creation_tokens") or _count(of_input, "cache_write_tokens")
    if not tokens_in or cached + written > tokens_in:
        raise _Absurd  # a prompt of no tokens comes from a server that does not count
    reasoning = _count(of_output, "reasoning_tokens")
    beside = max(0, _count(usage, "total_tokens") - tokens_in - tokens_out)
    if beside > (_recounted(reasoning) if reasoning else THINKING):
        raise _Absurd
    tokens_out += beside
    if reasoning > _recounted(tokens_out):
        raise _Absurd
    return Metered(tokens_in, cached, tokens_out, min(reasoning, tokens_out), written)


def _recounted(tokens: int) -> float:
    """The most that a second count of as many tokens comes to."""
    return tokens + max(RECOUNT_TOKENS, RECOUNT_SHARE * tokens)


def _count(block: dict[str, Any], name: str) -> int:
    """A count of tokens; 0 where the block has none."""
    count = block.get(name)
    if count is None:
        return 0
    if type(count) is not int or not 0 <= count <= MOST_TOKENS:  # isinstance would let True through
        raise _Absurd
    return count


def _details(usage: dict[str, Any], name: str) -> dict[str, Any]:
    """A block in the block; {} where there is none. Some gateways write an empty one as []."""
    details = usage.get(name)
    if not details:
        return {}
    if not isinstance(details, dict):
        raise _Absurd
    return details
