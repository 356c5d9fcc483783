"""Ids that two files spell differently: found, so that a message can show both; never taken for each
other.

Frames make "101.0" of 101, spreadsheets drop the zeros of "051", Macs write names in another
Unicode form.
"""

import re
import unicodedata
from collections.abc import Collection, Iterable
from itertools import islice
from typing import NamedTuple
from urllib.parse import unquote

from sextant.environments.readers.files import abbreviate

MOST = 1_000_000  # ids of a corpus that are looked at, which takes a second or two

_EDGES = "\0\ufeff\u200b\"' \t\N{NO-BREAK SPACE}"  # blanks, quotation marks, characters nobody sees


def fold(name: str) -> str:
    """Return the common form of all spellings of an id: without percent-encoding, capitals, marks
    and blanks at its ends, zeros before a number and .0 behind it.
    """
    plain = unicodedata.normalize("NFC", unquote(name)).strip(_EDGES).casefold()
    plain = re.sub(r"(?<=\d)\.0+$", "", plain)
    return re.sub(r"^(\D*)0+(?=\d+$)", r"\1", plain)


def find_alike(names: Iterable[str], candidates: Iterable[str]) -> tuple[str, str] | None:
    """Return the first of `candidates` that spells one of `names` differently, behind that name;
    None if there is none.
    """
    folded = {fold(name): name for name in names}
    for candidate in islice(candidates, MOST):
        if (name := folded.get(fold(candidate), candidate)) != candidate:
            return name, candidate
    return None


def suggest(name: str, candidates: Iterable[str]) -> str:
    """Return the end of a message that `name` is not known: the candidate that is spelled nearly
    so; "" if none is.
    """
    alike = find_alike([name], candidates)
    return f"; there is {abbreviate(alike[1])}: write both alike" if alike else ""


class Mismatch(NamedTuple):
    """That the ids of two sides are not the same, in words with an id of each."""

    is_spelling: bool  # they are two spellings of an id
    text: str

    def __str__(self) -> str:
        return self.text


def compare(
    strangers: Collection[str],
    side: str,
    candidates: Collection[str],
    other_side: str,
) -> Mismatch:
    """Compare ids of one side that the other does not have with those that it has."""
    alike = find_alike(strangers, candidates)
    stranger, known = alike or (next(iter(strangers)), next(iter(candidates), ""))
    # What differs in Unicode's form alone looks the same.
    plain = [unicodedata.normalize("NFC", name) for name in (stranger, known)]
    show = ascii if plain[0] == plain[1] else abbreviate
    pair = f"{show(stranger)} in the {side}, and {show(known)} in the {other_side}"
    remedy = "write both alike" if alike else "do both have the same ids?"
    return Mismatch(alike is not None, f"{pair}: {remedy}")
