"""Count the tokens of prompts, and cut texts to the context window of the active model.

Tokens are counted with OpenAI's o200k_base, whichever the model, and a tenth of the window stays
free because other tokenizers count differently. If a model's window is unknown (a server of the
user's own, without --context), everything fits, and the provider refuses prompts that are too long.
"""

import importlib.util
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import dspy

from sextant.tools.platform.number_format import plural
from sextant.tools.platform.temporary_changes import changed_environment

Message = dict[str, Any]  # of the chat protocol: "role", "content", "tool_calls", ...

# Tokens reserved for the answer, if neither the call nor the model has a limit.
_ANSWER_TOKENS = 4096
# At most this part of the room is reserved for the answer: a third.
_ANSWER_PART = 3
_MARGIN = 0.9  # share of the window that is used
_SHORTEST_ANSWER = 64  # tokens without which no answer is possible
_MESSAGE_TOKENS = 8  # tokens of a message in addition to its text, at most
# Only Anthropic's models need a mark to cache a prompt, and cache none with fewer tokens
# (https://docs.claude.com/en/docs/build-with-claude/prompt-caching). Other providers cache equal
# beginnings by themselves.
_LEAST_CACHED = 1024
# tiktoken's name for the file of o200k_base: the SHA-1 of its address.
_ENCODING_FILE = "fb374d419588a4632f3f557e76b4b70aebbca790"


class PromptTooLong(Exception):
    """A prompt that the model cannot take and that cannot be shortened; it is not sent."""


def _window() -> int | None:
    window: int | None = getattr(dspy.settings.lm, "window", None)
    return window


def usable_context() -> int | None:
    """Return the number of tokens for the active model's prompt and answer together; None if it is unknown."""
    window = _window()
    return None if window is None else int(window * _MARGIN)


def prompt_fits(predictor: Any, **inputs: Any) -> bool:
    """Return whether the prompt of `predictor` for `inputs` leaves the model room for its answer."""
    room = usable_context()
    if room is None:
        return True
    predict = getattr(predictor, "predict", predictor)  # of a ChainOfThought
    reserved = min(max_output_tokens(), room // _ANSWER_PART)
    if limit := predict.config.get("max_tokens"):
        reserved = min(reserved, int(limit))
    prompt_room = room - reserved
    messages = dspy.settings.adapter.format(predict.signature, predict.demos, inputs)
    return count_prompt_tokens(messages, prompt_room) <= prompt_room


def max_output_tokens() -> int:
    """Return the number of tokens that an answer of the active model may have."""
    return getattr(dspy.settings.lm, "limit", None) or _ANSWER_TOKENS


def remaining_tokens(
    messages: Sequence[Message],
    max_tokens: int,
    window: int | None,
) -> int:
    """Return how many of `max_tokens` the prompt leaves for an answer in a `window`; at least 64."""
    if window is None:
        return max_tokens
    room = int(window * _MARGIN)
    remaining = room - count_prompt_tokens(messages, room - max_tokens)
    return min(max_tokens, max(_SHORTEST_ANSWER, remaining))


def token_overflow(messages: Sequence[Message], *, with_margin: bool = False) -> int:
    """Return the number of tokens by which a prompt exceeds the active model's window.

    0 if it fits, or if the window is unknown. `with_margin` for prompts that could be shorter: the
    model may count more tokens than we do.
    """
    window = usable_context() if with_margin else _window()
    if window is None:
        return 0
    room = window - _SHORTEST_ANSWER
    return max(0, count_prompt_tokens(messages, room) - room)


def check_room(messages: Sequence[Message], noun: str, *, with_margin: bool = False) -> None:
    """Raise PromptTooLong for messages that the active model cannot take; the error calls them `noun`."""
    if overflow := token_overflow(messages, with_margin=with_margin):
        raise PromptTooLong(
            f"the {noun} is {plural(overflow, 'token')} larger than what the model takes"
        )


def count_prompt_tokens(messages: Sequence[Message], room: int = 0) -> int:
    """Return a prompt's tokens, or an upper bound if that fits `room`.

    The bound is the number of bytes: a token has at least one, and counting tokens is slow.
    """
    texts = [str(message["content"]) for message in messages]
    overhead = _MESSAGE_TOKENS * len(texts)
    bound = overhead + sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
    if bound <= room:
        return bound
    return overhead + sum(tokens(text) for text in texts)


def mark_cacheable_prefix(
    model: str,
    messages: Sequence[Message],
    *,
    grows: bool,
) -> list[Message]:
    """Return messages with a mark for the provider's cache, if the model needs a mark.

    The mark is on the last message that is sent again: of a conversation, which `grows`, the very
    last, and of a prompt the message before the query.
    """
    marked = list(messages)
    index = len(messages) - (1 if grows else 2)
    if index < 0 or "claude" not in model:
        return marked
    text = marked[index]["content"]
    if not isinstance(text, str) or not text:
        return marked
    prefix = "\n".join(str(message["content"]) for message in marked[: index + 1])
    # English has some four characters a token, so the beginning is enough.
    if tokens(prefix[: 8 * _LEAST_CACHED]) >= _LEAST_CACHED:
        block = {"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}
        marked[index] = marked[index] | {"content": [block]}
    return marked


def fit_length(
    chars: int,
    fit: Callable[[int], bool],
    fewest: int = 0,
) -> int:
    """Return how many of `chars` characters `fit`, to a sixteenth; at least `fewest`, whether they fit or not."""
    low = chars
    high = chars
    while low > fewest and not fit(low):
        high = low
        low = max(low // 2, fewest)
    while high - low > max(1, low // 16):
        middle = (low + high) // 2
        if fit(middle):
            low = middle
        else:
            high = middle
    return low


def cut_to_share(text: str, share: float) -> str:
    """Return the beginning of `text` that takes at most `share` of the model's window.

    The whole text, if the window is unknown.
    """
    room = usable_context()
    if room is None:
        return text
    max_tokens = room * share
    length = fit_length(len(text), lambda chars: tokens(text[:chars]) <= max_tokens)
    return text[:length]


def tokens(text: str) -> int:
    """Count the tokens of `text`; without the tokenizer, return an upper bound."""
    encoding = _encoding()
    if encoding is None:
        # A token of text in a Latin script has some four bytes.
        return len(text.encode("utf-8", "replace")) // 2
    return len(encoding.encode(text, disallowed_special=()))


@cache
def _encoding() -> Any:
    """Return the tokenizer from the file that LiteLLM ships, or None: tiktoken by itself would download it."""
    spec = importlib.util.find_spec("litellm")  # not imported, because that takes seconds
    if not spec or not spec.origin:
        return None
    folder = Path(spec.origin).parent / "litellm_core_utils" / "tokenizers"
    if not (folder / _ENCODING_FILE).is_file():
        return None
    import tiktoken  # few commands count tokens

    with changed_environment({"TIKTOKEN_CACHE_DIR": str(folder)}, override=True):
        return tiktoken.get_encoding("o200k_base")
