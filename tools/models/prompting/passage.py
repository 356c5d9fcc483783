"""Corpus text on its way into a prompt: always inside a typed field, never as part of an instruction.

What does not fit the model is foreseen: a reading is split into several, a batch that has to be seen together is cut.
Either is a step of the trace.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pydantic

from tools.models.prompting import context
from tools.session import Session

# What the input `description` is, as the model is told: in some tasks the query is itself a text like the wanted ones.
DESCRIPTION = "the query: words about what is wanted, or a text to find the like of; the objective says which"


class Passage(pydantic.BaseModel):
    """One document as a model sees it."""

    id: str
    text: str


Fits = Callable[[list[Passage]], bool]
_FEWEST_CHARS = 50  # of a passage, below which it says nothing


def show(session: Session, doc_ids: Sequence[str], chars: int, fit: Fits = lambda passages: True) -> list[Passage]:
    """The documents as passages of at most `chars` characters each, 0 for whole ones, recorded as shown together.

    All are shown; where they do not `fit`, each is cut to as many characters as do, down to 50.
    """
    return _passages(doc_ids, session.judge(doc_ids, chars or None, fit=partial(_cut, session, doc_ids, fit)))


def batches(session: Session, doc_ids: Sequence[str], chars: int, fit: Fits) -> Iterator[list[Passage]]:
    """The documents as passages in as few batches as `fit`, each recorded as shown when it is asked for."""
    left = list(doc_ids)
    while left:
        tried: list[Passage] = []
        shown = session.judge(left, chars or None, fit=partial(_beginning, session, left, fit, tried))
        passages = tried or _passages(left, shown)
        yield passages
        left = left[len(passages) :]


def _cut(session: Session, doc_ids: Sequence[str], fit: Fits, texts: list[str]) -> list[str]:
    longest = max(map(len, texts), default=0)
    most = context.fit_length(
        longest, lambda chars: fit(_passages(doc_ids, [text[:chars] for text in texts])), _FEWEST_CHARS
    )
    if most < longest:
        session.shorten(f"passages: {len(texts)} are cut to {most} characters each, instead of {longest}")
    return [text[:most] for text in texts]


def _beginning(
    session: Session, doc_ids: Sequence[str], fit: Fits, tried: list[Passage], texts: list[str]
) -> list[str]:
    """Return as many of the texts as fit; their passages go into `tried`, unless the only one had to be cut."""
    kept = context.fit_beginning(_passages(doc_ids, texts), fit)
    if len(kept) < len(texts):
        session.shorten(f"passages: {len(kept)} of {len(texts)} in one reading, the others in the next")
    if len(kept) > 1:
        tried += kept
        return texts[: len(kept)]
    return _cut(session, doc_ids, fit, texts[:1])


def _passages(doc_ids: Sequence[str], texts: Sequence[str]) -> list[Passage]:
    return [Passage(id=defuse(doc_id), text=defuse(text)) for doc_id, text in zip(doc_ids, texts, strict=False)]


def fit_notes(
    session: Session, notes: Sequence[str], fit: Callable[[list[str]], bool], *, what: str = "notes"
) -> list[str]:
    """The latest of `notes` that `fit` into a prompt together, oldest first; `what` they are is for the trace."""
    kept = context.fit_end(list(notes), fit)
    if len(kept) < len(notes):
        session.shorten(f"{what}: the {len(notes) - len(kept)} oldest of {len(notes)} are left out")
    return kept


def defuse(text: str) -> str:
    """`text` without a field marker of DSPy's prompts, [[ ## name ## ]]: a blank goes between its brackets.

    And without the marks between which DSPy would take text for an image or a file to be sent.
    """
    text = text.replace("<<CUSTOM-TYPE-", "< <CUSTOM-TYPE-")
    return re.sub(r"\](?=\])", "] ", re.sub(r"\[(?=\[)", "[ ", text)) if "##" in text else text
