"""Show documents to a model as passages, in as many or as few characters as its prompt has room for."""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pydantic

from tools.models.context_window import fit_length
from tools.session import Session

# What the input `description` is, for the model: in some tasks the query is itself a text like the
# wanted ones.
DESCRIPTION = (
    "the query: words about what is wanted, or a text to find the like of; the objective says which"
)


class Passage(pydantic.BaseModel):
    """One document as a model sees it."""

    id: str
    text: str


Fits = Callable[[list[Passage]], bool]


_FEWEST_CHARS = 50  # of a passage, below which it says nothing


def show_passages(
    session: Session, doc_ids: Sequence[str], chars: int, fit: Fits = lambda passages: True
) -> list[Passage]:
    """Show documents together as passages of `chars` characters (0: whole), or of as many as `fit`, at least 50."""
    return _passages(
        doc_ids, session.judge(doc_ids, chars or None, fit=partial(_cut, session, doc_ids, fit))
    )


def passage_batches(
    session: Session, doc_ids: Sequence[str], chars: int, fit: Fits
) -> Iterator[list[Passage]]:
    """Yield the documents as passages in as few batches as `fit`, each recorded as shown when it is taken."""
    left = list(doc_ids)
    while left:
        tried: list[Passage] = []
        shown = session.judge(
            left, chars or None, fit=partial(_beginning, session, left, fit, tried)
        )
        passages = tried or _passages(left, shown)
        yield passages
        left = left[len(passages) :]


def _cut(session: Session, doc_ids: Sequence[str], fit: Fits, texts: list[str]) -> list[str]:
    longest = max(map(len, texts), default=0)
    most = fit_length(
        longest,
        lambda chars: fit(_passages(doc_ids, [text[:chars] for text in texts])),
        _FEWEST_CHARS,
    )
    if most < longest:
        session.shorten(
            f"passages: {len(texts)} are cut to {most} characters each, instead of {longest}"
        )
    return [text[:most] for text in texts]


def _beginning(
    session: Session, doc_ids: list[str], fit: Fits, tried: list[Passage], texts: list[str]
) -> list[str]:
    """Return as many of the texts as fit; their passages go into `tried`, unless the only one had to be cut."""
    passages = _passages(doc_ids, texts)
    low = len(texts) if fit(passages) else min(1, len(texts))
    high = len(texts)
    while (
        high - low > 1
    ):  # the longest beginning that fits, by bisection; at least one passage, if there is one
        middle = (low + high) // 2
        low, high = (middle, high) if fit(passages[:middle]) else (low, middle)
    kept = passages[:low]
    if len(kept) < len(texts):
        session.shorten(
            f"passages: {len(kept)} of {len(texts)} in one reading, the others in the next"
        )
    if len(kept) > 1:
        tried += kept
        return texts[: len(kept)]
    return _cut(session, doc_ids, fit, texts[:1])


def _passages(doc_ids: Sequence[str], texts: Sequence[str]) -> list[Passage]:
    return [
        Passage(id=escape_markers(doc_id), text=escape_markers(text))
        for doc_id, text in zip(doc_ids, texts, strict=False)
    ]


def fit_notes(
    session: Session, notes: Sequence[str], fit: Callable[[list[str]], bool], *, what: str = "notes"
) -> list[str]:
    """Return the latest of `notes` that `fit` together, oldest first; `what` names them in the trace."""
    kept = list(notes)
    while kept and not fit(kept):
        del kept[0]
    if len(kept) < len(notes):
        session.shorten(f"{what}: the {len(notes) - len(kept)} oldest of {len(notes)} are left out")
    return kept


def escape_markers(text: str) -> str:
    """Return `text` with blanks inside DSPy's field markers, [[ ## name ## ]], and its marks of images and files."""
    text = text.replace("<<CUSTOM-TYPE-", "< <CUSTOM-TYPE-")
    return re.sub(r"\](?=\])", "] ", re.sub(r"\[(?=\[)", "[ ", text)) if "##" in text else text
