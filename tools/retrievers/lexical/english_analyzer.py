"""The words of an English text as Lucene's EnglishAnalyzer has them, which Anserini and Pyserini
index with by default.

StandardTokenizer (the word boundaries of Unicode's UAX #29, at most 255 characters), the English
possessive off, lower case, Lucene's 33 stop words out, Porter's stemmer with the departures of its
author's own program. The golden file of tests/fast/tools/retrievers/lexical/test_bm25.py has the
output of Lucene 8.8.1 itself for hard cases.

Left out: the scripts that UAX #29 segments by character (Han, Hiragana) or by dictionary (Thai,
Lao, Khmer, Myanmar) are single characters here; emoji are dropped, but Lucene keeps them.
"""

import re
from functools import cache

from nltk.stem.porter import PorterStemmer

from sextant.tools.text import STOP_WORDS

_LONGEST = 255  # characters; a longer word becomes several

# UAX #29, rules WB5 to WB13b, on Python's character classes: letters join across one of . ' : and
# the like (WB6, WB7), digits across one of . , ' ; (WB11, WB12), and connectors such as _ join
# anything (WB13).
_IDEOGRAPH = (
    r"\u3005-\u3007\u3040-\u309f\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
_MARK = r"[\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u064b-\u065f\u0900-\u0903\u093a-\u094f\u200d\u00ad\ufe0f]*"
# What is \w and no letter.
_NUMBER = r"\u00b2\u00b3\u00b9\u00bc-\u00be\u2070-\u2089\u2150-\u215f\u2460-\u249b\u24ea-\u24ff\u2776-\u2793"
_LETTER = rf"(?:[^\W\d_{_IDEOGRAPH}{_NUMBER}]{_MARK})"
_DIGIT = rf"(?:\d{_MARK})"
_CONNECTOR = r"[_\u203f\u2040\u2054\ufe33\ufe34\ufe4d-\ufe4f\uff3f]"
_WORD = re.compile(
    rf"(?:{_CONNECTOR}*(?:{_LETTER}(?:[.':\u00b7\u2018\u2019\u2024\ufe55\uff07\uff0e\uff1a\u0387\u05f4]{_MARK}(?={_LETTER}))?"
    rf"|{_DIGIT}(?:[.',;\u2018\u2019\u2024\u066c\uff07\uff0e\uff0c\uff1b]{_MARK}(?={_DIGIT}))?))+{_CONNECTOR}*"
    rf"|[{_IDEOGRAPH}]{_MARK}"
)
_STEMMER = PorterStemmer(mode="MARTIN_EXTENSIONS")
_POSSESSIVE = ("'s", "'S", "\u2019s", "\u2019S", "\uff07s", "\uff07S")


def words(text: str) -> list[str]:
    """Return the stems of the words of `text`, in order, with repeats."""
    pieces = (
        word[start : start + _LONGEST]
        for word in _WORD.findall(text)
        for start in range(0, len(word), _LONGEST)
    )
    return [stem for piece in pieces if (stem := _stem(piece))]


@cache
def _stem(word: str) -> str:  # empty for a stop word
    if word.endswith(_POSSESSIVE):
        word = word[:-2]
    word = "".join(
        "i" if letter == "\u0130" else letter.lower() for letter in word
    )  # one for one, as in Java
    return "" if word in STOP_WORDS else _STEMMER.stem(word, to_lowercase=False)
