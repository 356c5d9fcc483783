"""Corpus text on its way into a prompt: always inside a typed field, never as part of an instruction."""

import re
from collections.abc import Sequence

import pydantic

from tools.session import Session


class Passage(pydantic.BaseModel):
    """One document as a model sees it."""

    id: str
    text: str


def show(session: Session, doc_ids: Sequence[str], chars: int) -> list[Passage]:
    """The documents as passages of at most `chars` characters each, recorded as shown together."""
    texts = session.judge(doc_ids, chars)
    return [Passage(id=defused(doc_id), text=defused(text)) for doc_id, text in zip(doc_ids, texts, strict=True)]


def defused(text: str) -> str:
    """`text` without a field marker of DSPy's prompts, [[ ## name ## ]]: a blank goes between its brackets."""
    return re.sub(r"\](?=\])", "] ", re.sub(r"\[(?=\[)", "[ ", text)) if "##" in text else text
