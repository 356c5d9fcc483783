"""Corpus text on its way into a prompt: always inside a typed field, never as part of an instruction."""

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
    return [
        # DSPy marks fields of a prompt with [[ ## name ## ]]; a document must not be able to open one.
        Passage(id=doc_id, text=text.replace("[[ ##", "[[ #").replace("## ]]", "# ]]"))
        for doc_id, text in zip(doc_ids, texts, strict=True)
    ]
