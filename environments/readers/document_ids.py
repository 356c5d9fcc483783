"""Ids that two files spell differently: found, so that a message can say how they differ; never
taken for each other.

Frames make "101.0" of 101, spreadsheets drop the zeros of "051", Macs write names in another
Unicode form.
"""

import re
import unicodedata
from collections.abc import Callable, Collection, Iterable
from itertools import islice
from typing import NamedTuple
from urllib.parse import unquote

from sextant.environments.readers.files import abbreviate

MOST = 1_000_000  # ids of a corpus that are looked at, which takes a second or two

_UNSEEN = "\0\ufeff\u200b"  # characters that nobody sees
SEPARATORS = ":#_-./@%|"  # between the name of a document and that of a passage in it


class Difference(NamedTuple):
    """A difference between two spellings of an id, and the change that removes it."""

    name: str
    remove: Callable[[str], str]


def _strip(name: str) -> str:
    return name.strip().strip(_UNSEEN).strip()


def _remove_marks(name: str) -> str:
    return name[1:-1] if len(name) > 2 and name[0] == name[-1] and name[0] in "\"'" else name


def _write_out(name: str) -> str:
    if re.fullmatch(r"\d(\.\d+)?[eE]\+?\d{1,2}", name) and float(name).is_integer():
        return str(int(float(name)))
    return name


DIFFERENCES = (
    Difference("percent-encoding", unquote),
    Difference("the Unicode form (NFC or NFD)", lambda name: unicodedata.normalize("NFC", name)),
    Difference("blanks or unseen characters at an end", _strip),
    Difference("quotation marks around it", _remove_marks),
    Difference(
        "a .0 at the end, as frames write whole numbers",
        lambda name: re.sub(r"(?<=\d)\.0+$", "", name),
    ),
    Difference("an exponent, as spreadsheets write long numbers", _write_out),
    Difference("zeros before the number", lambda name: re.sub(r"^(\D*)0+(?=\d+$)", r"\1", name)),
    Difference("capitals", str.casefold),
)


def fold(name: str) -> str:
    """Return the common form of all spellings of an id."""
    for difference in DIFFERENCES:
        name = difference.remove(name)
    return name


class Alike(NamedTuple):
    """Two spellings of an id."""

    name: str
    known: str

    @property
    def difference(self) -> str:
        """How the two differ."""
        for difference in DIFFERENCES:
            if difference.remove(self.name) == difference.remove(self.known):
                return difference.name
        return "their spelling"

    def describe(self, side: str, other_side: str) -> str:
        """Return in words how the name on one side differs from the names on the other side."""
        both = f"{abbreviate(self.name)} in the {side} and {abbreviate(self.known)} in the {other_side}"
        return f"{both} differ in {self.difference}; write both alike"


def find_alike(names: Iterable[str], candidates: Iterable[str]) -> Alike | None:
    """Return the first of `known` that spells one of `names` differently, with that name;
    None if there is none.
    """
    folded = {fold(name): name for name in names}
    for candidate in islice(candidates, MOST):
        name = folded.get(fold(candidate))
        if name is not None and name != candidate:
            return Alike(name, candidate)
    return None


def suggest(name: str, candidates: Iterable[str]) -> str:
    """Return the end of a message that `name` is not known: how `known` spells it; "" if
    they have nothing alike.
    """
    alike = find_alike([name], candidates)
    return (
        f"; there is {abbreviate(alike.known)}, which differs in {alike.difference}: write both alike"
        if alike
        else ""
    )


def compare(
    strangers: Collection[str],
    side: str,
    candidates: Collection[str],
    other_side: str,
) -> str:
    """Return in words, with an id of each, how the ids of one side differ from the `known` ids of
    the other.
    """
    if alike := find_alike(strangers, candidates):
        return f"{alike.describe(side, other_side)}."
    first = next(iter(candidates), None)
    example = f"e.g. {abbreviate(next(iter(strangers)))} in the {side}, and {abbreviate(first)} in the {other_side}"
    return f"{example}; do both have the same ids?"


def find_separator(parents: Collection[str], candidates: Iterable[str]) -> str:
    """Return the separator with which `known` passages are called PARENT:PASSAGE after
    `parents`; "" for none.
    """
    wanted = set(parents)
    for candidate in islice(candidates, MOST):
        for separator in SEPARATORS:
            if candidate.rpartition(separator)[0] in wanted:
                return separator
    return ""
