"""Ask a model: run a predictor on its inputs, with checks that a usable answer must pass.

    read = ask(self.read_passages, require_known_ids("selected", unread), **about, passages=passages)

An unusable answer is requested once more (tools/models/adapter.py), inside a call of the predictor, so
that DSPy's trace has the answer that was used. If no part of either answer can be used, the call goes
on with the `fallback` of its program, or else raises UnusableAnswer, a fault of the system.

Corpus text enters a prompt inside a typed field, never as part of an instruction. Tokens are counted
before a call. If a prompt is too long, a reading is split, a batch that must be seen together is
cut, or the oldest notes are left out; each is a step of the trace.

Checks are defined in tools/models/answers/checks.py, passages in passages.py, windows in
context_window.py and lenses in tools/lenses.py. Programs may import the names of those modules from
here, too.
"""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, get_origin

import dspy

from sextant.tools import session
from sextant.tools.lenses import LENSES, Lens, get_lens
from sextant.tools.models.answer_length import max_answer_tokens, predict
from sextant.tools.models.answers.checks import (
    AnswerCheck,
    AnswerTest,
    InvalidAnswer,
    Outputs,
    UnusableAnswer,
    changed_call,
    current_call,
    filled,
    require_in_range,
    require_known_ids,
    require_known_row_ids,
)
from sextant.tools.models.answers.salvage import describe
from sextant.tools.models.context_window import prompt_fits
from sextant.tools.models.passages import (
    DESCRIPTION,
    Passage,
    escape_markers,
    fit_notes,
    passage_batches,
    show_passages,
)

__all__ = [
    "DESCRIPTION",
    "LENSES",
    "AnswerCheck",
    "FallbackPrediction",
    "InvalidAnswer",
    "Lens",
    "Outputs",
    "Passage",
    "UnusableAnswer",
    "ask",
    "empty_outputs",
    "escape_markers",
    "filled",
    "fit_notes",
    "get_lens",
    "passage_batches",
    "predict",
    "prompt_fits",
    "require_in_range",
    "require_known_ids",
    "require_known_row_ids",
    "show_passages",
    "with_advice",
    "with_instructions",
]


def empty_outputs(predictor: Any, **values: Any) -> dict[str, Any]:
    """Return a fallback for `ask`: `values`, and an empty value for each other output field of a predictor.

    It is None for types other than texts and lists.
    """
    outputs = dict[str, Any]()
    for name, field in predictor.signature.output_fields.items():
        is_list = get_origin(field.annotation) is list
        outputs[name] = [] if is_list else "" if field.annotation is str else None
    return outputs | values


class FallbackPrediction(dspy.Prediction):
    """The values that a program goes on with, for want of an answer."""


def ask(
    predictor: dspy.Module,
    *checks: AnswerTest,
    fallback: Any = None,  # a mapping; any type, so that inputs may follow as a dict of objects
    **inputs: Any,
) -> Any:
    """Return the prediction for `inputs`, which passes all `checks`.

    A check is an AnswerCheck, or a function that raises InvalidAnswer for unusable outputs.

    `fallback` has a value for each output field: of the FallbackPrediction if no part of two answers
    can be used, which the trace notes. A field whose fallback is an empty text or list may be missing in an
    answer of which a part is used. Without a fallback, and outside of a session, such a call raises
    UnusableAnswer. A query of which every call went on without an answer fails all the same
    (`Session.submit`).
    """
    answer_checks = tuple(
        check if isinstance(check, AnswerCheck) else AnswerCheck(check) for check in checks
    )
    answer_tokens = max_answer_tokens(predictor, inputs) or current_call().answer_tokens
    context = {"checks": answer_checks, "answer_tokens": answer_tokens, "fallback": fallback or {}}
    with changed_call(**context):
        try:
            return predictor(**inputs)
        except UnusableAnswer as error:
            payer = session.current()
            if fallback is None or payer is None:
                raise
            payer.go_on_without(error, describe(fallback))
            return FallbackPrediction(**deepcopy(dict(fallback)))


def with_advice(signature: Any, advice: str) -> Any:
    """Return `signature` with `advice` at the end of its instructions."""
    if not advice:
        return signature
    return with_instructions(signature, f"{signature.instructions}\n\n{advice}")


def with_instructions(
    signature: Any, instructions: str, descriptions: Mapping[str, str] | None = None
) -> Any:
    """Return `signature` with other instructions and other descriptions of fields.

    Fields with another description are marked as `described`. The signature keeps its name: DSPy's
    copies are called StringSignature.
    """
    changed = signature.with_instructions(instructions)
    for name, text in (descriptions or {}).items():
        description = text or f"${{{name}}}"
        if description != signature.fields[name].json_schema_extra["desc"]:
            changed = changed.with_updated_fields(name, desc=description, described=True)
    changed.__name__ = signature.__name__
    return changed
