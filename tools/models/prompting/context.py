"""Does a prompt fit the model? Asked before it is sent, by counting tokens; who does not fit shortens, and says so.

Tokens are counted with OpenAI's o200k_base, whichever the model, and a tenth is kept free because other tokenizers
count otherwise. Where a model's window is not known (a server of the user's own, without --context), everything fits:
what is too long is then the provider's to refuse.
"""

import importlib.util
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import dspy

_ANSWER = 4096  # tokens kept for the answer, where the call names no limit of its own; a third of the room at most
_MARGIN = 0.9  # share of the window that is used
_SHORTEST = 64  # tokens without which no answer is possible
_MESSAGE = 8  # tokens of a message beside its text, at most


class TooLong(Exception):
    """A prompt that the model cannot take, and that nothing in it can be left out of: it is not sent."""


def fits(predictor: Any, **inputs: Any) -> bool:
    """Whether the prompt of `predictor` for `inputs` leaves the model room for its answer."""
    room = window()
    if room is None:
        return True
    predict = getattr(predictor, "predict", predictor)  # of a ChainOfThought
    messages = dspy.settings.adapter.format(predict.signature, predict.demos, inputs)
    answer = min(int(predict.config.get("max_tokens") or _ANSWER), room // 3)
    return _bound(messages, room - answer) <= room - answer


def count_in_messages(messages: Sequence[Mapping[str, Any]]) -> int:
    """Count the tokens of a prompt in the protocol's form."""
    return sum(tokens(str(message["content"])) + _MESSAGE for message in messages)


def _bound(messages: Sequence[Mapping[str, Any]], room: int) -> int:
    """`count_in_messages`; or a bound that is within `room`, which is made a thousand times as fast and says as much.

    A token has one byte at least, so a prompt with fewer bytes than there is room for fits, however it is cut.
    """
    bound = sum(len(str(message["content"]).encode("utf-8", "surrogatepass")) + _MESSAGE for message in messages)
    return bound if bound <= room else count_in_messages(messages)


def overflows(messages: Sequence[Mapping[str, Any]]) -> int:
    """Return by how many tokens a prompt exceeds the active model's window; 0 where it fits, or nobody knows."""
    most = getattr(dspy.settings.lm, "window", None)
    return 0 if most is None else max(0, _bound(messages, most - _SHORTEST) + _SHORTEST - most)


def check_room(messages: Sequence[Mapping[str, Any]], what: str) -> None:
    """TooLong for messages that the active model cannot take; `what` they are is for its words."""
    if more := overflows(messages):
        raise TooLong(f"the {what} is {more} tokens larger than what the model takes")


def window() -> int | None:
    """Tokens that prompt and answer together may have, of the model that is active here; None when not known."""
    most = getattr(dspy.settings.lm, "window", None)
    return None if most is None else int(most * _MARGIN)


def fit_beginning(items: list[Any], fit: Callable[[list[Any]], bool]) -> list[Any]:
    """Return the longest beginning of `items` that fits, by bisection; one item at least, if there is one."""
    if fit(items):
        return items
    low, high = min(1, len(items)), len(items)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fit(items[:middle]) else (low, middle)
    return items[:low]


def fit_length(chars: int, fit: Callable[[int], bool], fewest: int = 0) -> int:
    """Return how many of `chars` characters `fit`: all, or the most to a sixteenth; `fewest` where not even they do."""
    low, high = chars, chars
    while low > fewest and not fit(low):
        low, high = max(low // 2, fewest), low
    while high - low > max(1, low // 16):
        middle = (low + high) // 2
        low, high = (middle, high) if fit(middle) else (low, middle)
    return low


def cut_to_share(text: str, share: float) -> str:
    """Return the beginning of `text` that takes at most `share` of the model's window; all where that is not known."""
    room = window()
    return text if room is None else text[: fit_length(len(text), lambda chars: tokens(text[:chars]) <= room * share)]


def fit_end(items: list[Any], fit: Callable[[list[Any]], bool]) -> list[Any]:
    """Return the longest end of `items` that fits; it may be empty."""
    first = next((first for first in range(len(items)) if fit(items[first:])), len(items))
    return items[first:]


def tokens(text: str) -> int:
    """Count the tokens of `text`; an upper bound, where the tokenizer is not there."""
    with _LOADING:  # the first calls of several threads would undo each other's variable
        encoding = _encoding()
    # A token of text in a Latin script has some four bytes.
    return len(encoding.encode(text, disallowed_special=())) if encoding else len(text.encode("utf-8", "replace")) // 2


@cache
def _encoding() -> Any:
    """The tokenizer, from the file that LiteLLM ships: tiktoken by itself would download it."""
    spec = importlib.util.find_spec("litellm")  # which is not imported: that takes seconds
    bundled = Path(spec.origin).parent / "litellm_core_utils" / "tokenizers" if spec and spec.origin else None
    if bundled is None or not (bundled / _FILE).is_file():
        return None
    import tiktoken  # few commands count tokens

    before = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = str(bundled)
    try:
        return tiktoken.get_encoding("o200k_base")
    finally:
        os.environ.pop(_VARIABLE)
        if before is not None:
            os.environ[_VARIABLE] = before


_LOADING = threading.Lock()
_VARIABLE = "TIKTOKEN_CACHE_DIR"
_FILE = "fb374d419588a4632f3f557e76b4b70aebbca790"  # tiktoken's name for o200k_base: the SHA-1 of its address
