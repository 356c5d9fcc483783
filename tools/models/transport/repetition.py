"""Find a text that repeats itself at its end: small models fall into loops that only their limit ends.

A loop is the same part, of up to 1,500 characters, at least four times in a row over at least 600
characters: words, sentences, a list of ids that begins again, blanks. Texts that only resemble each
other (rows of a table, ids that are counted up) are none.
"""

from typing import NamedTuple

REPEATS = 4
SHORTEST = 600  # characters of all repetitions together
LONGEST_PART = 1500  # characters
WINDOW = REPEATS * LONGEST_PART  # characters at the end of a text that decide
_PROBE = 32  # characters at the end that occur again, one part before


class Loop(NamedTuple):
    """A part that is repeated at the end of a text."""

    start: int  # where its first occurrence begins
    length: int  # of the part, in characters


def find_loop(text: str, shortest: int = SHORTEST) -> Loop | None:
    """Return the shortest part that is repeated at the end of `text`; None for none.

    All repetitions together have `shortest` characters or more, which is 100 at least.
    """
    if len(text) < shortest:
        return None
    tail = text[-WINDOW:]
    probe = tail[-_PROBE:]
    position = len(tail) - len(probe)
    while True:
        position = tail.rfind(probe, 0, position + len(probe) - 1)
        if position < 0:
            return None
        length = len(tail) - len(probe) - position
        needed = max(shortest, REPEATS * length)
        if needed <= len(tail) and tail[-needed:-length] == tail[length - needed :]:
            return Loop(_find_start(text, length), length)


def cut_loop(text: str) -> str:
    """Return `text` with its last loop once; unchanged if it ends in none."""
    # Shorter than in the stream, where a letter may be written as an escape of six characters
    loop = find_loop(text, SHORTEST // 6)
    return text[: loop.start + loop.length] if loop else text


def _find_start(text: str, length: int) -> int:
    start = len(text) - length
    while start > 0 and text[start - 1] == text[start - 1 + length]:
        start -= 1
    return start
