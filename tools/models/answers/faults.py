"""Faults of answers: refused, cut off, empty, incomplete, or a copy of the prompt.

Checks that a program asks for are in checks.py; what can be used of a faulty answer, in salvage.py.
"""

import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import pydantic

from sextant.tools import session
from sextant.tools.models import call_context
from sextant.tools.models.answers.checks import InvalidAnswer, Kind
from sextant.tools.models.answers.schema import (
    MARKER_FORM,
    SIGNATURES_CACHED,
    answer_form,
    make_schema,
)
from sextant.tools.models.call_context import CallContext, LastAnswer, Repair
from sextant.tools.models.provider_response import is_cut
from sextant.tools.platform.files import read_object
from sextant.tools.platform.number_format import abbreviate

COMPLETED = "[[ ## completed ## ]]"  # ends an answer in markers
# The requests for a repair: behind a bad answer that the model is shown, for a short answer, and
# for an answer after nothing that can be shown.
SHOWN_REPAIR = "This answer does not fit: {reason}. Write the answer again, with every field."
# The request for a short answer names no number: Qwen2.5-Coder-0.5B gave "80" as a score after "at most 80 words".
BRIEF_REPAIR = "Keep the answer short: a few sentences in a text and a few items in a list."
PLAIN_REPAIR = "Fill in every field, in words of your own: {reason}."

# The first words of refusals; looked for only if an answer has none of the fields.
_REFUSAL = re.compile(
    r"\b(?:I(?:['\u2019]m| am) sorry|I can(?:['\u2019]|no)t|I(?:['\u2019]m| am) (?:not "
    r"able|unable)|I won['\u2019]t)\b",
    re.IGNORECASE,
)
_REFUSAL_CHARS = 200  # characters of an answer in which a refusal begins
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
# Faults whose answers the model is not shown again: they would be continued, or copied.
_NOT_SHOWN: tuple[Kind, ...] = ("cut off", "empty", "prompt copied")
_LISTED_IDS = 30  # the most ids that a request for a repair lists
# Words in a row of a value that are copied from the prompt, if they are half of the value.
_COPIED_WORDS = 6
_REFERENCE = re.compile(r"#/\$defs/\w+")  # inside the schema of a field, as DSPy's prompts have it
# Words in a row that an answer shares with a prompt if it repeats the prompt; fewer happen by chance.
_LEAKED_WORDS = 12


def note_prompt_leak(instructions: str, texts: Sequence[str]) -> None:
    """Note the documents that ask for the prompt, if one of a model's texts repeats the prompt."""
    if any(_repeats(instructions, text) for text in texts) and (payer := session.current()):
        payer.note_leak()


def make_repair(fault: InvalidAnswer, answer: str) -> Repair:
    """Return the repair of an answer with a fault."""
    if fault.kind in _NOT_SHOWN:
        return Repair(
            "",
            fault.reason,
            brief=fault.kind == "cut off",
        )
    return Repair(shorten_bad_answer(answer, "stop"), fault.reason)


def shorten_bad_answer(answer: str, finish: str) -> str:
    """Return the part of a bad answer that its model is shown again: nothing of an answer without end."""
    if answer and is_cut(finish):
        return "(an answer that was cut off, left out here)"
    if len(answer) <= _MAX_ECHOED:
        return answer
    return f"{answer[:_MAX_ECHOED]} (and so on; the rest is left out here)"


def write_request(repair: Repair, context: CallContext) -> str:
    """Return the words of the request for a repair, with the ids that may be named if they are few."""
    request = _request_words(repair)
    for check in context.checks:
        for name, shown in check.ids.items():
            if len(shown.among) <= _LISTED_IDS:
                request += f"\nThe ids for {name}: {', '.join(sorted(shown.among))}"
    return request


def _request_words(repair: Repair) -> str:
    if repair.brief:
        return BRIEF_REPAIR
    words = SHOWN_REPAIR if repair.answer else PLAIN_REPAIR
    return words.format(reason=repair.reason)


def copies_prompt(signature: Any, value: Any) -> bool:
    """Return whether a value is a copy of words of the prompt, and no answer.

    The words are the signature's instructions and descriptions, and the request for a repair.
    """
    if isinstance(value, list):
        return bool(value) and all(copies_prompt(signature, item) for item in value)
    if isinstance(value, pydantic.BaseModel):
        return _is_copied_object(signature, value)
    if not isinstance(value, str):
        return False
    words = value.split()
    descriptions = _descriptions(signature)
    text = " ".join(words).casefold().strip(". ")
    if text in descriptions or _is_placeholder(signature, value):
        return True
    if len(words) < _COPIED_WORDS:
        return False
    width = max(_COPIED_WORDS, math.ceil(len(words) / 2))
    repair = call_context.current().repair
    request = _request_words(repair) if repair else ""
    prompt = " ".join([signature.instructions, *descriptions, request]).casefold()
    return _repeats(
        prompt,
        text,
        width,
    )


def _is_copied_object(signature: Any, value: pydantic.BaseModel) -> bool:
    """Return whether a text of an object stands for a value, or all of its texts are copies.

    One copied text costs the object nothing: small models copy the description of a remark, and write a good search.
    """
    texts = []
    for name, field in type(value).model_fields.items():
        if field.annotation is str:
            texts.append(getattr(value, name))
    if any(_is_placeholder(signature, text) for text in texts):
        return True
    return bool(texts) and all(copies_prompt(signature, text) for text in texts)


def _is_placeholder(signature: Any, text: str) -> bool:
    """Return whether a text is a placeholder of DSPy's prompt, or a reference in a schema."""
    plain = text.strip(". \n").casefold()
    is_name = plain.startswith("{") and plain[1:-1] in signature.output_fields
    return is_name or bool(_REFERENCE.fullmatch(plain))


@lru_cache(maxsize=SIGNATURES_CACHED)
def _descriptions(signature: Any) -> list[str]:
    """Return the descriptions of a signature's output fields, and of the fields of its objects."""
    described = [field.json_schema_extra["desc"] for field in signature.output_fields.values()]
    schemas = [make_schema(signature)]
    while schemas:
        schema = schemas.pop()
        if isinstance(schema, dict):
            schemas += schema.values()
            description = schema.get("description")
            if isinstance(description, str):
                described.append(description)
    return [description.casefold() for description in described]


def find_copied(signature: Any, values: Mapping[str, Any]) -> None:
    """Raise InvalidAnswer for values of which one is a copy of words of the prompt."""
    for name, value in values.items():
        if copies_prompt(signature, value):
            reason = f"{name} repeats the words of the request; answer in words of your own"
            raise InvalidAnswer("prompt copied", reason)


def ends_inside_list(text: str) -> bool:
    """Return whether an answer ends inside a list or an object, whatever its finish reason is."""
    last = re.split(r"\[\[ ## \w+ ## \]\]", text)[-1].strip().removeprefix("```json").strip("` \n")
    return last.startswith(("[", "{")) and not last.endswith(("]", "}"))


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
    return is_cut(finish) or is_refusal(finish)


def cut_off() -> InvalidAnswer:
    """Return the fault of an answer that was cut off."""
    return InvalidAnswer("cut off", "it was cut off before its end")


def broken_off(answer: LastAnswer) -> InvalidAnswer:
    """Return the fault of an answer that was cut off or refused."""
    if is_cut(answer.finish):
        return cut_off()
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
    if ends_inside_list(answer.text):
        return cut_off()
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


def _repeats(
    instructions: str,
    text: str,
    width: int = _LEAKED_WORDS,
) -> bool:
    """Return whether `text` has a run of `width` words of the instructions."""
    words = text.split()
    prompt = _join_words(instructions)
    # Each run of that length has one of these words.
    if not any(word in prompt for word in words[width - 1 :: width]):
        return False
    starts = range(len(words) - width + 1)
    runs = (" ".join(words[start : start + width]) for start in starts)
    return any(run in prompt for run in runs)


@lru_cache(maxsize=SIGNATURES_CACHED)
def _join_words(text: str) -> str:
    """Return a text with a blank between its words, cached because each answer is compared with instructions."""
    return " ".join(text.split())
