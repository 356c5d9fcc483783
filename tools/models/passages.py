"""Show documents to a model as passages, cut or split to the room that its prompt has for them.

Calls that read or rank passages are in programs/passage_reading.py.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pydantic

from sextant.tools.models.context_window import fit_length
from sextant.tools.platform.number_format import choose_verb
from sextant.tools.session import Session

# The description of the input `description`: in some tasks the query is itself a text of the kind
# that is wanted.
DESCRIPTION = (
    "the query: words about what is wanted, or a text to find the like of; the objective says which"
)
_FEWEST_CHARS = 50  # characters of a passage; a shorter passage is of no use
# A text of so many characters that has more tokens than most: digits are tokens of three at most.
SHORTEST_TEXT = ("0123456789" * _FEWEST_CHARS)[:_FEWEST_CHARS]


class Passage(pydantic.BaseModel):
    """One document as a model sees it."""

    id: str
    text: str


Fits = Callable[[list[Passage]], bool]
"""Tells whether a prompt has room for these passages."""


def show_passages(
    session: Session, doc_ids: Sequence[str], chars: int, fit: Fits = lambda passages: True
) -> list[Passage]:
    """Show documents together as passages of `chars` characters (0: whole).

    If they do not fit, they are cut to the length that fits, but to no less than 50 characters.
    """
    cut = partial(_cut, session, doc_ids, fit)
    texts = session.judge(doc_ids, chars or None, fit=cut)
    return _make_passages(doc_ids, texts)


def passage_batches(
    session: Session, doc_ids: Sequence[str], chars: int, fit: Fits
) -> Iterator[list[Passage]]:
    """Yield the documents as passages, in as few batches as `fit`; each is recorded as shown when it is yielded."""
    remaining = list(doc_ids)
    while remaining:
        batch = _Batch(session, remaining, fit)
        texts = session.judge(remaining, chars or None, fit=batch.select)
        passages = batch.passages or _make_passages(remaining, texts)
        yield passages
        remaining = remaining[len(passages) :]


def _cut(
    session: Session,
    doc_ids: Sequence[str],
    fit: Fits,
    texts: list[str],
) -> list[str]:
    """Return the texts, all cut to the length in which they fit together."""

    def fits(chars: int) -> bool:
        return fit(_make_passages(doc_ids, [text[:chars] for text in texts]))

    longest = max(map(len, texts), default=0)
    length = fit_length(longest, fits, _FEWEST_CHARS)
    if length < longest:
        session.shorten(
            f"passages: {len(texts)} {choose_verb(len(texts))} cut to {length} characters each, "
            f"instead of {longest}"
        )
    return [text[:length] for text in texts]


class _Batch:
    """Selects the documents of a reading: the longest beginning of `doc_ids` that fits."""

    def __init__(
        self,
        session: Session,
        doc_ids: list[str],
        fit: Fits,
    ) -> None:
        self.passages: list[Passage] = []  # empty if the only passage was cut
        self._session = session
        self._doc_ids = doc_ids
        self._fit = fit

    def select(self, texts: list[str]) -> list[str]:
        """Return as many of the texts as fit; the first one, cut, if it does not fit alone."""
        passages = _make_passages(self._doc_ids, texts)
        count = self._count_fitting(passages)
        if count < len(texts):
            self._session.shorten(
                f"passages: {count} of {len(texts)} in one reading, the others in the next"
            )
        if count > 1:
            self.passages = passages[:count]
            return texts[:count]
        return _cut(self._session, self._doc_ids, self._fit, texts[:1])

    def _count_fitting(self, passages: list[Passage]) -> int:
        """Return the length of the longest beginning that fits, by bisection; at least 1 if there are passages."""
        high = len(passages)
        low = high if self._fit(passages) else min(1, high)
        while high - low > 1:
            middle = (low + high) // 2
            if self._fit(passages[:middle]):
                low = middle
            else:
                high = middle
        return low


def _make_passages(doc_ids: Sequence[str], texts: Sequence[str]) -> list[Passage]:
    return [
        Passage(id=escape_markers(doc_id), text=escape_markers(text))
        for doc_id, text in zip(doc_ids, texts, strict=False)
    ]


def fit_notes(
    session: Session, notes: Sequence[str], fit: Callable[[list[str]], bool], *, what: str = "notes"
) -> list[str]:
    """Return the latest of `notes` that `fit` together, oldest first; `what` is their name in the
    trace.
    """
    latest = list(notes)
    while latest and not fit(latest):
        del latest[0]
    omitted = len(notes) - len(latest)
    if omitted:
        session.shorten(f"{what}: the {omitted} oldest of {len(notes)} are left out")
    return latest


def escape_markers(text: str) -> str:
    """Return `text` with blanks inside DSPy's field markers, [[ ## name ## ]], and its marks of images and files."""
    text = text.replace("<<CUSTOM-TYPE-", "< <CUSTOM-TYPE-")
    if "##" not in text:
        return text
    text = re.sub(r"\[(?=\[)", "[ ", text)
    return re.sub(r"\](?=\])", "] ", text)
