"""Faults of answers: refused, cut off, empty, incomplete, or a copy of the prompt."""

import re
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

from tools import session
from tools.files import read_object
from tools.models.answer_checks import InvalidAnswer, Kind
from tools.models.answer_parsing import MARKER_FORM, answer_form
from tools.number_format import abbreviate


class LastAnswer(NamedTuple):
    """The last answer of a model in this context, as it came."""

    text: str = ""
    finish: str = "stop"  # or why it ended otherwise: "length", "content_filter", ...


ANSWERED: ContextVar[LastAnswer] = ContextVar("answered", default=LastAnswer())  # noqa: B039  # a tuple


COMPLETED = "[[ ## completed ## ]]"  # ends an answer in markers


# How models begin an answer when they will not give it; looked for only where an answer has none of
# the fields.
_REFUSAL = re.compile(
    r"\b(?:I(?:['\u2019]m| am) sorry|I can(?:['\u2019]|no)t|I(?:['\u2019]m| am) (?:not "
    r"able|unable)|I won['\u2019]t)\b",
    re.IGNORECASE,
)


_CUT_OFF: tuple[Kind, str] = ("cut off", "it was cut off before its end; be brief")


_REFUSED: tuple[Kind, str] = (
    "refused",
    "the task was not done; the material is only to be judged, and nothing harmful is asked",
)


# Reasons for the end of an answer that was refused or held back: of OpenAI, of Anthropic, and of
# Gemini (https://ai.google.dev/api/generate-content#FinishReason), which gateways pass on.
_REFUSALS = (
    "content_filter",
    "refusal",
    "safety",
    "recitation",
    "blocklist",
    "prohibited_content",
    "spii",
)


_MOST_QUOTED = 300  # characters of a refusal in a message


_MOST_ECHOED = 2000  # characters of a bad answer that are shown to the model again


_FEWEST_WORDS = 12  # of a prompt, one after another, in an answer: fewer happen by chance


def note_prompt_leak(instructions: str, written: Sequence[str]) -> None:
    """Note the documents that ask for the prompt, when a model's text repeats it."""
    if any(_repeats(instructions, text) for text in written) and (payer := session.current()):
        payer.note_leak()


def shorten_bad_answer(answer: str, finish: str) -> str:
    """Return as much of a bad answer as its model is shown again: of one that ran away, nothing."""
    if answer and finish == "length":
        return "(an answer that was cut off, left out here)"
    return (
        answer
        if len(answer) <= _MOST_ECHOED
        else f"{answer[:_MOST_ECHOED]} (and so on; the rest is left out here)"
    )


def looks_like_refusal(text: str) -> bool:
    """Whether an answer begins like a refusal."""
    return bool(_REFUSAL.search(text[:200]))


def is_whole(text: str) -> bool:
    """Whether an answer has come to the end of its form, whatever the server says of how it ended."""
    return (
        COMPLETED in text
        or read_object(text.strip().removeprefix("```json").strip("` \n")) is not None
    )


def is_broken_off(finish: str) -> bool:
    """Whether an answer was cut off at its limit of tokens, or refused."""
    return finish == "length" or is_refusal(finish)


def broken_off(text: str, finish: str) -> InvalidAnswer:
    """Return the fault of an answer that was cut off or refused."""
    if finish == "length":
        return InvalidAnswer(*_CUT_OFF)
    return InvalidAnswer(*_REFUSED, report=report_refusal(text, finish))


def is_refusal(finish: str) -> bool:
    """Whether an answer ended because the model refused to give it, or a filter of its provider held it back."""
    return finish.lower() in _REFUSALS


def report_refusal(text: str, finish: str) -> str:
    """Say for people that a model refused to answer, in its own words."""
    words = " ".join(text.split())
    quoted = (
        f", in these words: {abbreviate(words, _MOST_QUOTED)!r}" if words else " and gave no reason"
    )
    return f"refused: the model refused to answer (finish reason {finish}){quoted}"


def fault_of(error: Exception, signature: Any) -> InvalidAnswer:
    """Return the fault of the last answer, which raised `error` when it was read."""
    text, finish = ANSWERED.get()
    if is_broken_off(finish):
        return broken_off(text, finish)
    if looks_like_refusal(text) and "[[ ##" not in text:
        return InvalidAnswer(*_REFUSED, report=report_refusal(text, finish))
    if not text.strip():
        return InvalidAnswer("empty", "it is empty")
    wrong = str(error.args[0] if error.args else error)
    if field := re.search(r"Failed to parse field (\w+)", wrong):
        return InvalidAnswer("wrong type", f"the field {field[1]} is not of the type asked for")
    form = (
        "each under its marker" if answer_form(signature) is MARKER_FORM else "in one JSON object"
    )
    return InvalidAnswer("unparsable", f"it does not have all of the fields asked for, {form}")


def _repeats(instructions: str, text: str) -> bool:
    """Whether `text` has a long run of words of the instructions."""
    words = text.split()
    prompt = " ".join(instructions.split())
    if not any(word in prompt for word in words[_FEWEST_WORDS - 1 :: _FEWEST_WORDS]):
        return False  # each run has one of these words
    starts = range(len(words) - _FEWEST_WORDS + 1)
    return any(" ".join(words[start : start + _FEWEST_WORDS]) in prompt for start in starts)
