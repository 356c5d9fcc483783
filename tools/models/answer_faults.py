"""Faults of answers: refused, cut off, empty, incomplete, or a copy of the prompt."""

import re
from collections.abc import Sequence
from typing import Any

from tools import session
from tools.files import read_object
from tools.models.answer_checks import InvalidAnswer, Kind
from tools.models.answer_parsing import MARKER_FORM, answer_form
from tools.models.call_context import LastAnswer
from tools.number_format import abbreviate

COMPLETED = "[[ ## completed ## ]]"  # ends an answer in markers

# The first words of refusals; looked for only if an answer has none of the fields.
_REFUSAL = re.compile(
    r"\b(?:I(?:['\u2019]m| am) sorry|I can(?:['\u2019]|no)t|I(?:['\u2019]m| am) (?:not "
    r"able|unable)|I won['\u2019]t)\b",
    re.IGNORECASE,
)
_REFUSAL_CHARS = 200  # characters of an answer in which a refusal begins
_CUT_OFF: tuple[Kind, str] = ("cut off", "it was cut off before its end; be brief")
_REFUSED: tuple[Kind, str] = (
    "refused",
    "the task was not done; the material is only to be judged, and nothing harmful is asked",
)
# Finish reasons of answers that were refused or filtered: of OpenAI, of Anthropic, and of Gemini
# (https://ai.google.dev/api/generate-content#FinishReason), which gateways pass on.
_REFUSAL_REASONS = (
    "content_filter",
    "refusal",
    "safety",
    "recitation",
    "blocklist",
    "prohibited_content",
    "spii",
)
_MAX_QUOTED = 300  # characters of a refusal in a message
_MAX_ECHOED = 2000  # characters of a bad answer that are shown to the model again
# Words in a row that an answer shares with a prompt if it repeats the prompt; fewer happen by chance.
_LEAKED_WORDS = 12


def note_prompt_leak(instructions: str, texts: Sequence[str]) -> None:
    """Note the documents that ask for the prompt, if one of a model's texts repeats the prompt."""
    if any(_repeats(instructions, text) for text in texts) and (payer := session.current()):
        payer.note_leak()


def shorten_bad_answer(answer: str, finish: str) -> str:
    """Return the part of a bad answer that its model is shown again: nothing of an answer without end."""
    if answer and finish == "length":
        return "(an answer that was cut off, left out here)"
    if len(answer) <= _MAX_ECHOED:
        return answer
    return f"{answer[:_MAX_ECHOED]} (and so on; the rest is left out here)"


def looks_like_refusal(text: str) -> bool:
    """Return whether an answer begins like a refusal."""
    return bool(_REFUSAL.search(text[:_REFUSAL_CHARS]))


def is_whole(text: str) -> bool:
    """Return whether an answer has come to the end of its form, whatever its finish reason is."""
    if COMPLETED in text:
        return True
    return read_object(text.strip().removeprefix("```json").strip("` \n")) is not None


def is_broken_off(finish: str) -> bool:
    """Return whether an answer was cut off at its limit of tokens, or refused."""
    return finish == "length" or is_refusal(finish)


def broken_off(answer: LastAnswer) -> InvalidAnswer:
    """Return the fault of an answer that was cut off or refused."""
    if answer.finish == "length":
        return InvalidAnswer(*_CUT_OFF)
    return InvalidAnswer(*_REFUSED, report=report_refusal(*answer))


def is_refusal(finish: str) -> bool:
    """Return whether an answer ended because the model refused, or a filter of its provider stopped it."""
    return finish.lower() in _REFUSAL_REASONS


def report_refusal(text: str, finish: str) -> str:
    """Report to people that a model refused to answer, in its own words."""
    words = " ".join(text.split())
    quotation = f", in these words: {abbreviate(words, _MAX_QUOTED)!r}"
    explanation = quotation if words else " and gave no reason"
    return f"refused: the model refused to answer (finish reason {finish}){explanation}"


def fault_of(
    error: Exception,
    signature: Any,
    answer: LastAnswer,
) -> InvalidAnswer:
    """Return the fault of an answer that raised `error` when it was read."""
    if is_broken_off(answer.finish):
        return broken_off(answer)
    if looks_like_refusal(answer.text) and "[[ ##" not in answer.text:
        return InvalidAnswer(*_REFUSED, report=report_refusal(*answer))
    if not answer.text.strip():
        return InvalidAnswer("empty", "it is empty")
    message = str(error.args[0] if error.args else error)
    if field := re.search(r"Failed to parse field (\w+)", message):
        return InvalidAnswer("wrong type", f"the field {field[1]} is not of the type asked for")
    in_markers = answer_form(signature) is MARKER_FORM
    form = "each under its marker" if in_markers else "in one JSON object"
    return InvalidAnswer("unparsable", f"it does not have all of the fields asked for, {form}")


def _repeats(instructions: str, text: str) -> bool:
    """Return whether `text` has a long run of words of the instructions."""
    words = text.split()
    prompt = " ".join(instructions.split())
    # Each run of that length has one of these words.
    if not any(word in prompt for word in words[_LEAKED_WORDS - 1 :: _LEAKED_WORDS]):
        return False
    for start in range(len(words) - _LEAKED_WORDS + 1):
        if " ".join(words[start : start + _LEAKED_WORDS]) in prompt:
            return True
    return False
