"""Find the ids that a model means, among the ids that it was shown.

An id may stand behind a word for a document, in brackets, before its title, in another case and
without zeros; two ids that it may be are none.
"""

import re
import unicodedata
from collections.abc import Collection, Iterator
from typing import Any

from sextant.tools.models.answers.fields import convert

_EDGES = " \t\r\n.,;:!?*#`\"'()[]{}<>\u2018\u2019\u201c\u201d"
_LABELS = r"(?:documents?|docs?|passages?|ids?|identifiers?|numbers?|no)"
_LABEL = re.compile(rf"(?:{_LABELS}(?:[\s_-]*ids?)?[\s:=#._-]*)+", re.IGNORECASE)
_ENDS_IN_LABEL = re.compile(rf"\b{_LABELS}[\s_:=#.-]*\Z", re.IGNORECASE)
_AFTER = re.compile(r"[:(\u2013\u2014=]|\s-|->")  # ends an id, before a title or a score
_BETWEEN = re.compile(r"[,;>|\n]|\band\b|(?<=\])\s?(?=\[)")  # two ids
_WORD = re.compile(r"[^\s,;|]+")
_LABEL_CHARS = 20  # characters before a number in which a word for a document is looked for
_LONG_NUMBER = 4  # digits from which a number in a text is an id
_LONGEST = 500  # characters of a text in which an id is looked for at the beginning


class Ids:
    """The ids that a model was shown."""

    def __init__(self, among: Collection[str]) -> None:
        self.among = among
        # Ids by their plain forms; made when it is needed.
        self._alike: dict[str, list[str]] = {}

    def find(self, written: Any) -> str | None:
        """Return the id that is meant; None if it is none of the ids, or may be several."""
        try:
            text = convert(str, getattr(written, "id", written))
        except ValueError:
            return None
        if text in self.among:
            return str(text)
        if not self._alike:
            for doc_id in self.among:
                self._alike.setdefault(_key(doc_id), []).append(doc_id)
        for form in _forms(text[:_LONGEST]):
            if form in self.among:
                return form
            alike = self._alike.get(_key(form), [])
            if len(alike) == 1:
                return alike[0]
        return None

    def read(self, values: Any) -> list[Any]:
        """Return a list with each value as the ids that it means; other values stay, as texts."""
        read = []
        for value in values:
            parts = [value]
            if isinstance(value, str) and self.find(value) is None:
                parts = [part for part in _BETWEEN.split(value) if part.strip(_EDGES)]
            named = [doc_id for part in parts if (doc_id := self.find(part)) is not None]
            is_known = named and len(named) == len(parts)
            read += named if is_known else [value if isinstance(value, str) else str(value)]
        return read

    def find_in_text(self, text: str) -> list[str]:
        """Return the ids that stand as words in a text, in order.

        A short number, which may be any number, has to stand in brackets or behind a word for a document.
        """
        named = []
        for piece in _WORD.finditer(text):
            word = piece[0].strip(_EDGES)
            doc_id = self.find(word)
            is_long = not word.isdecimal() or len(word) >= _LONG_NUMBER
            is_marked = piece[0].strip(".,;:!?") != word or _ENDS_IN_LABEL.search(
                text[max(0, piece.start() - _LABEL_CHARS) : piece.start()]
            )
            if doc_id is not None and (is_long or is_marked):
                named.append(doc_id)
        return list(dict.fromkeys(named))


def _forms(text: str) -> Iterator[str]:
    """Yield the ids that a text may mean, the likeliest first."""
    yield text
    yield (edged := text.strip(_EDGES))
    label = _LABEL.match(edged)
    unlabelled = edged[label.end() :] if label else edged
    for form in (unlabelled, _AFTER.split(edged)[0], _AFTER.split(unlabelled)[0]):
        yield form.strip(_EDGES)


def _key(text: str) -> str:
    """Return a form in which an id and a model's spelling of it are equal: case, blanks, zeros and ".0" apart."""
    plain = "".join(unicodedata.normalize("NFKC", text).casefold().split())
    number = re.fullmatch(r"0*(\d+)(?:\.0+)?", plain)
    return number[1] if number else plain
