"""An index of the words of texts as they are written, for scans of the texts (tools/text_scan.py).

A word is a run of letters, marks, digits and underscores, in any letter case; nothing is stemmed or
left out. In scripts without blanks between words, such as Chinese and Thai, two neighbouring
characters are a word. Single characters are not looked up.

Letters that RE2 takes as equal without regard to case are equal here, and the classes of characters
outside ASCII are RE2's. So a text in which RE2 finds a literal has the literal's words.
"""

import logging
import re
import string
from collections.abc import Sequence
from functools import cached_property, lru_cache, partial
from importlib.metadata import version
from itertools import accumulate
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sextant.tools.corpus import Corpus
from sextant.tools.errors import DataError
from sextant.tools.retrievers.index_store import index_code_digest, open_index
from sextant.tools.retrievers.lexical import inverted_index
from sextant.tools.retrievers.lexical.inverted_index import Analyzer, InvertedIndex, Segment
from sextant.tools.text import UNSPACED_RUN, bigram_words

_LOG = logging.getLogger("sextant")

LEAST_CHARACTERS = (
    50_000_000  # of a corpus that is indexed; a scan of a smaller one takes no second
)
WORD_CLASS = r"\pL\pM\pN_"  # the characters of words, within [] of RE2
# Letters that str.lower does not change although RE2 takes them as equal to others.
_FOLDED = str.maketrans(
    "µſ\u0345ςϐϑϕϖϰϱϵᲀᲁᲂᲃᲄᲅᲆᲇᲈẛ\u1fbe\u1fd3\u1fe3ﬅ", "μsισβθφπκρεвдосттъѣꙋṡι\u0390\u03b0ﬆ"
)
_LETTERS = string.ascii_letters + string.digits + "_"
_SEPARATORS = bytes(
    code if code > 127 or chr(code) in _LETTERS else ord(" ") for code in range(256)
)
_NON_ASCII_RUN = re.compile(r"[^\x00-\x7f]+")
_PART = re.compile(" ?[^ ]{2,} ?")  # with a blank where it starts or ends a word
_MOST_PARTS = 8  # that are looked up
_MOST_WORDS = 20_000  # with a part; more are in about all documents
_SOURCES = (
    "sextant.tools.text",
    "sextant.tools.retrievers.lexical.numba_kernels",
    "sextant.tools.retrievers.lexical.inverted_index",
    "sextant.tools.retrievers.lexical.word_index",
)


def separate_words(text: str) -> str:
    """Return the words of a text in lower case, with blanks between them. The result starts, or
    ends, with a blank if the text does not start, or end, with a word.
    """
    cleaned = _NON_ASCII_RUN.sub(lambda run: _clean_run(run[0]), text.lower())
    return cleaned.encode().translate(_SEPARATORS).decode()


@lru_cache(1 << 17)
def _clean_run(run: str) -> str:
    folded = run.translate(_FOLDED).encode(errors="replace").decode()
    spread = UNSPACED_RUN.sub(lambda words: f" {' '.join(bigram_words(words[0]))} ", folded)
    return str(pc.replace_substring_regex(spread, rf"[^{WORD_CLASS}]+", " "))


class WordIndex:
    """Tells which documents of a corpus can have a text in them.

    It is built or opened at first use. A corpus below `least` characters has none, and neither has
    one for which there is no room.
    """

    def __init__(
        self, corpus: Corpus, home: Path | None = None, *, least: int = LEAST_CHARACTERS
    ) -> None:
        self._corpus = corpus
        self._home = home
        self._least = least

    @cached_property
    def segments(self) -> Sequence[Segment]:
        """The parts of the index, none if there is no index; to build them takes minutes for a
        gigabyte of texts.
        """
        lengths = (len(document.text) for document in self._corpus.stream())
        if not any(total >= self._least for total in accumulate(lengths)):
            return ()
        key = {
            "kind": "words",
            "corpus": self._corpus.fingerprint,
            "pyarrow": version("pyarrow"),
            "code": index_code_digest(*_SOURCES),
        }
        analyzer = Analyzer(lambda text: separate_words(text).split(), _LETTERS)
        build = partial(inverted_index.build, self._corpus, analyzer)
        try:
            return open_index(self._home, key, build=build, load=InvertedIndex).segments
        except DataError as error:
            _LOG.info(f"{error}; texts are scanned without an index of their words")
            return ()

    def having(self, literals: Sequence[str]) -> list[bool]:
        """Return for each document whether it can have all of the literals in its text."""
        parts = [
            part
            for literal in literals
            for part in _PART.findall(separate_words(literal).replace(" ", "  "))
        ]
        answers = []
        for segment in self.segments:
            table = segment.words
            words = pa.LargeStringArray.from_buffers(
                len(table.codes), pa.py_buffer(table.starts), pa.py_buffer(table.letters)
            )
            nothing, blank = pa.array(["", " "], words.type)
            padded = pc.binary_join_element_wise(nothing, words, nothing, blank)
            can_match = np.ones(len(segment.lengths), np.bool_)
            for part in parts[:_MOST_PARTS]:
                rows = pc.indices_nonzero(pc.match_substring(padded, part)).to_pylist()
                has_part = np.full_like(can_match, len(rows) > _MOST_WORDS)
                for row in rows[:_MOST_WORDS]:
                    first, stop = segment.lists.indptr[row : row + 2]
                    has_part[segment.lists.documents[first:stop]] = True
                can_match &= has_part
            answers += can_match.tolist()
        return answers or [True] * len(self._corpus)
