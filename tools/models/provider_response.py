"""The answer of a provider to a request, before it is booked: outputs, thoughts, finish reason, usage.

Text between the marks of thoughts, or before a closing mark whose opening mark was in the prompt, is
no part of the answer; a server with a parser for its model takes it out, and many servers have none.
To add a form of thoughts: a row in a table below. Left out: harmony's channels without their
tokens, and thoughts that only close inside a field. Booked answers are in storage/ledger.py,
errors in provider_errors.py, prices in prices.py, sums of usage in tools/records.py.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from sextant.tools.models.storage.ledger import Packed
from sextant.tools.models.tokens import Message
from sextant.tools.records import JsonObject

# Why an answer ended, in the words of OpenAI's Chat Completions, whatever its server calls it: "stop",
# "length" (the limit of tokens), "tool_calls", "content_filter" and so on. Two words are ours, for
# answers of which the rest was not waited for: "repetition" (of itself, or of the tools' descriptions)
# and "timeout" (the limit of --call-timeout, while the model went on writing). The text of all three
# kinds of cut answers is used as far as it goes.
LENGTH = "length"
REPETITION = "repetition"
TIMEOUT = "timeout"
_CUT = (LENGTH, REPETITION, TIMEOUT)
# Other words for an answer that was cut off at its limit, in lower case: of Mistral, Anthropic,
# Gemini, Cohere, Bedrock, Hugging Face's TGI and the Responses API, which gateways pass on.
_LENGTH_WORDS = (
    "max_tokens",
    "max_output_tokens",
    "max_completion_tokens",
    "max_new_tokens",
    "max_length",
    "model_length",
    "model_context_window_exceeded",
    "token_limit",
    "incomplete",
    "truncated",
)


def read_finish_reason(reason: object, tokens: int | None = None, limit: int | None = None) -> str:
    """Return a server's reason in our words.

    Without one, it is told by the number of `tokens` of the answer and their `limit`; None for
    numbers that are not known.
    """
    if not reason:
        is_full = tokens is not None and limit is not None and tokens >= limit
        return LENGTH if is_full else "stop"
    word = str(reason)
    plain = word.lower().replace("-", "_")
    return LENGTH if plain == LENGTH or plain in _LENGTH_WORDS else word


def is_cut(finish: str) -> bool:
    """Return whether an answer ended before the model had ended it."""
    return finish in _CUT


class Parted(NamedTuple):
    """The text of an answer in two parts: the model's thoughts, and its answer."""

    thoughts: str
    answer: str


# Tags, as in <think>...</think>. These are no names of fields.
_OWN_TAGS = ("think", "mm:think", "seed:think", "seed:cot_budget_reflect", "antthinking")
# These may be, in a prompt that asks for tags (DSPy's XMLAdapter): where the instruction has such a
# tag, it is a field.
_FIELD_TAGS = (
    *("thinking", "thought", "thoughts", "reason", "reasoning", "reflection", "scratchpad"),
    *("inner_monologue", "internal_monologue", "inner_thoughts", "analysis"),
    *("chain_of_thought", "thinking_process"),
)
# Other marks: what opens thoughts, and what closes them.
_MARKS = (
    ("[THINK]", "[/THINK]"),  # Mistral
    ("◁think▷", "◁/think▷"),  # Kimi
    ("<|begin_of_thought|>", "<|end_of_thought|>"),  # OpenThinker, Sky-T1
    ("<|START_THINKING|>", "<|END_THINKING|>"),  # Cohere
    ("<|channel>thought", "<channel|>"),  # Gemma 4
    ("<unused94>thought", "<unused95>"),  # MedGemma
    ("<|inner_prefix|>", "<|inner_suffix|>"),  # Apertus
    # OpenAI's harmony: the channel of the answer, or of a call, comes last
    ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant"),
)
_OPENING, _CLOSING = ("|".join(map(re.escape, marks)) for marks in zip(*_MARKS, strict=True))
_MARK = re.compile(
    rf"<(?P<slash>/?)(?P<tag>{'|'.join((*_OWN_TAGS, *_FIELD_TAGS))})(?:\s[^<>]*)?>"
    rf"|(?P<opening>{_OPENING})|(?P<closing>{_CLOSING})",
    re.IGNORECASE,
)
# Tokens that end a turn, which some servers leave in the text.
_TURN_ENDS = (
    *("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|eot|>", "<|end|>", "<|return|>"),
    *("<|endoftext|>", "<|end_of_text|>", "<|end_of_turn|>", "<|END_OF_TURN_TOKEN|>", "</s>"),
    *("<end_of_turn>", "<turn|>", "<｜end▁of▁sentence｜>", "<|END_RESPONSE|>"),
)
# The mark of harmony's last channel: what stands behind it is the answer.
_FINAL = re.compile(r"\s*(?:<\|start\|>assistant)?<\|channel\|>final[^<>]*<\|message\|>")


def part_thoughts(text: str, instruction: str = "") -> Parted:
    """Return the thoughts in the text of an answer, and the rest; the unchanged text if it has
    none.

    The `instruction` is the prompt: a tag that it asks for holds a field, and no thoughts.
    """
    thoughts, answer = _part_by_marks(text, instruction)
    if final := _FINAL.match(answer):
        answer = answer[final.end() :]
    while (shorter := answer.rstrip()).endswith(_TURN_ENDS):
        answer = shorter[: shorter.rindex("<")]
    return Parted(thoughts, answer)


def _part_by_marks(text: str, instruction: str) -> Parted:
    thoughts = []
    answer = ""
    position = 0
    is_open = False
    for mark in _MARK.finditer(text):
        tag = (mark["tag"] or "").lower()
        if tag in _FIELD_TAGS and f"<{tag}>" in instruction:
            continue
        opens = bool(mark["opening"] or (tag and not mark["slash"]))
        if opens and is_open:
            continue
        before = text[position : mark.start()]
        if opens:
            answer += before
        else:
            thoughts.append(before if is_open else answer + before)
            answer = answer if is_open else ""
        position = mark.end()
        is_open = opens
    if is_open:  # it was cut off, or the model forgot the mark: no answer is known
        thoughts.append(text[position:])
    else:
        answer += text[position:]
    return Parted(_join(thoughts), answer.strip()) if thoughts else Parted("", text)


def _join(thoughts: Iterable[str]) -> str:
    return "\n".join(stripped for thought in thoughts if (stripped := thought.strip()))


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


class ProviderResponse(NamedTuple):
    """The answer to a request, before it is booked."""

    outputs: list[Any]
    finish: str
    usage: Any  # as reported
    headers: Any
    reasoning: str = ""
    first: float | None = None  # seconds to its first token, where it was streamed
    packed: Packed | None = None  # the request in parts, where that is for who sends it
    timings: Any = None  # the server's own measure of its speed

    def without_thoughts(self, instruction: str) -> "ProviderResponse":
        """Return the answer with the thoughts in its text as reasoning.

        `instruction` is the system message: a tag that it asks for marks no thoughts.
        """
        thoughts = [self.reasoning]
        outputs = list[Any]()
        for output in self.outputs:
            thought, remainder = part_output(output, instruction)
            thoughts.append(thought)
            outputs.append(remainder)
        return self._replace(outputs=outputs, reasoning="\n".join(filter(None, thoughts)))


Send = Callable[[float], ProviderResponse]
"""Sends one request; the answer is there by the deadline, or a DSPy LM error is raised."""


def find_instruction(messages: Sequence[Message]) -> str:
    """Return the system message of a model."""
    content = (
        messages[0].get("content")
        if messages and messages[0].get("role") in ("system", "developer")
        else ""
    )
    return content if isinstance(content, str) else ""


def part_output(output: Any, instruction: str) -> tuple[str, Any]:
    """Return the thoughts in the text of an output, and the output without them."""
    if isinstance(output, str):
        return part_thoughts(output, instruction)
    if not isinstance(output, dict):
        return "", output
    text_field = "content" if "tool_calls" in output and "text" not in output else "text"
    text = output.get(text_field)
    if not isinstance(text, str):
        return "", output
    thoughts, answer = part_thoughts(text, instruction)
    if answer == text:
        return "", output
    parted = {**output, text_field: answer}
    if text_field == "content" and thoughts:
        parted["said"] = text  # it may have to go back as it came
    return thoughts, parted
