"""Elements of a text that is no whole XML: a tag that opens, and the next that closes it.

A pattern with a lazy body looks from each opening tag to the end of the text. Here the closing tags
are found once, so the time grows with the length of the text alone, whatever a model has written.
"""

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

_CLOSING = re.compile(r"</([^<>\s/]+)>")


class Element(NamedTuple):
    """An element, and the part of the text that it is."""

    start: int
    end: int
    tag: str
    body: str


def find_elements(text: str, opening: re.Pattern[str]) -> Iterator[Element]:
    """Yield the elements of a text whose tags `opening` matches, with the name as its first group; none inside another.

    A tag that nothing closes is left out.
    """
    closings = defaultdict(list)
    for closing in _CLOSING.finditer(text):
        closings[closing[1]].append(closing.start())
    place = 0
    for opened in opening.finditer(text):
        tag = opened[1]
        if opened.start() < place or tag not in closings:
            continue
        starts = closings[tag]
        index = bisect_left(starts, opened.end())
        if index < len(starts):
            place = starts[index] + len(f"</{tag}>")
            yield Element(opened.start(), place, tag, text[opened.end() : starts[index]])
