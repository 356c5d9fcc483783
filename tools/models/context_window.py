"""Count the tokens of prompts and cut texts to the context window of the active model."""

import importlib.util
import os
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import dspy

Message = dict[str, Any]  # of the chat protocol: "role", "content", "tool_calls", ...


_ANSWER = 4096  # tokens kept for the answer, where neither the call nor the model has a limit


_SHARE = 3  # the part of the room that is kept for it at most: a third


_MARGIN = 0.9  # share of the window that is used


_SHORTEST = 64  # tokens without which no answer is possible


_MESSAGE = 8  # tokens of a message beside its text, at most


class PromptTooLong(Exception):
    """A prompt that the model cannot take and that cannot be shortened; it is not sent."""


def usable_context() -> int | None:
    """Return how many tokens the active model's prompt and answer may have together; None when not known."""
    most = getattr(dspy.settings.lm, "window", None)
    return None if most is None else int(most * _MARGIN)


def prompt_fits(predictor: Any, **inputs: Any) -> bool:
    """Whether the prompt of `predictor` for `inputs` leaves the model room for its answer."""
    room = usable_context()
    if room is None:
        return True
    predict = getattr(predictor, "predict", predictor)  # of a ChainOfThought
    messages = dspy.settings.adapter.format(predict.signature, predict.demos, inputs)
    limits = predict.config.get("max_tokens"), max_output_tokens()
    answer = min(*(int(one) for one in limits if one), room // _SHARE)
    return count_prompt_tokens(messages, room - answer) <= room - answer


def max_output_tokens() -> int:
    """Return how many tokens an answer of the active model may have."""
    return getattr(dspy.settings.lm, "limit", None) or _ANSWER


def remaining_tokens(messages: Sequence[Message], most: int, window: int | None) -> int:
    """Return how many tokens of `most` the prompt leaves for an answer in a `usable_context`; a few in any case."""
    if window is None:
        return most
    room = int(window * _MARGIN)
    return min(most, max(_SHORTEST, room - count_prompt_tokens(messages, room - most)))


def token_overflow(messages: Sequence[Message]) -> int:
    """Return by how many tokens a prompt exceeds the active model's window; 0 where it fits or that is not known."""
    most = getattr(dspy.settings.lm, "window", None)
    return (
        0
        if most is None
        else max(0, count_prompt_tokens(messages, most - _SHORTEST) + _SHORTEST - most)
    )


def check_room(messages: Sequence[Message], what: str) -> None:
    """Raise TooLong for messages that the active model cannot take; `what` names them in its message."""
    if more := token_overflow(messages):
        raise PromptTooLong(f"the {what} is {more} tokens larger than what the model takes")


def count_prompt_tokens(messages: Sequence[Message], room: int = 0) -> int:
    """Return a prompt's tokens, or its bytes where they fit `room`: a token has at least one, and counting is slow."""
    texts = [str(message["content"]) for message in messages]
    bound = sum(len(text.encode("utf-8", "surrogatepass")) + _MESSAGE for text in texts)
    return bound if bound <= room else sum(tokens(text) + _MESSAGE for text in texts)


# Anthropic's models alone cache nothing that is not marked, and nothing below so many tokens
# (https://docs.claude.com/en/docs/build-with-claude/prompt-caching). Others cache by themselves
# what begins alike.
_LEAST_CACHED = 1024


def mark_cacheable_prefix(model: str, messages: Sequence[Message], *, grows: bool) -> list[Message]:
    """Return messages with a mark for the provider's cache on the last that comes again, where the model needs one.

    That is the very last of a conversation, which grows, and of a prompt the one before the query.
    """
    marked = list(messages)
    place = len(messages) - (1 if grows else 2)
    repeats = "\n".join(str(one["content"]) for one in marked[: place + 1])[: 8 * _LEAST_CACHED]
    text = marked[place]["content"] if place >= 0 and "claude" in model else None
    if isinstance(text, str) and text and tokens(repeats) >= _LEAST_CACHED:
        part = {"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}
        marked[place] = marked[place] | {"content": [part]}
    return marked


def fit_length(chars: int, fit: Callable[[int], bool], fewest: int = 0) -> int:
    """Return how many of `chars` characters `fit`, to a sixteenth; at least `fewest`, whether they fit or not."""
    low = high = chars
    while low > fewest and not fit(low):
        low, high = max(low // 2, fewest), low
    while high - low > max(1, low // 16):
        middle = (low + high) // 2
        low, high = (middle, high) if fit(middle) else (low, middle)
    return low


def cut_to_share(text: str, share: float) -> str:
    """Return the beginning of `text` that takes at most `share` of the model's window; all where this is not known."""
    room = usable_context()
    return (
        text
        if room is None
        else text[: fit_length(len(text), lambda chars: tokens(text[:chars]) <= room * share)]
    )


def tokens(text: str) -> int:
    """Count the tokens of `text`; without the tokenizer, return an upper bound."""
    encoding = _encoding()  # without it: a token of text in a Latin script has some four bytes
    return (
        len(encoding.encode(text, disallowed_special=()))
        if encoding
        else len(text.encode("utf-8", "replace")) // 2
    )


@cache
def _encoding() -> Any:
    """Return the tokenizer, from the file that LiteLLM ships: tiktoken by itself would download it."""
    spec = importlib.util.find_spec("litellm")  # which is not imported: that takes seconds
    bundled = (
        Path(spec.origin).parent / "litellm_core_utils" / "tokenizers"
        if spec and spec.origin
        else None
    )
    # tiktoken's name for o200k_base: the SHA-1 of its address
    file = "fb374d419588a4632f3f557e76b4b70aebbca790"
    if bundled is None or not (bundled / file).is_file():
        return None
    import tiktoken  # few commands count tokens

    os.environ["TIKTOKEN_CACHE_DIR"] = str(bundled)  # as LiteLLM sets it
    return tiktoken.get_encoding("o200k_base")
