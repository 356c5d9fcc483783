"""Scans of texts find what Python's re finds, with an index and without."""

import random
import re
import unicodedata

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from sextant.tools.corpus import Corpus, StoredCorpus, store
from sextant.tools.errors import ScanRefused, UsageError
from sextant.tools.records import Document
from sextant.tools.retrievers.lexical.word_index import WordIndex, separate_words
from sextant.tools.text import UNSPACED_RUN
from sextant.tools.text_scan import CHARACTERS_AROUND, TextScanner

SEEDS = range(20)  # of a corpus each
PATTERNS = 100  # of a seed
WORDS = """the heron stands in water a.b x_1 Émile straße ΟΔΟΣ οδός мир東京都に住む हिन्दी 42 co-op (foo) “quoted” don't
    HERON Heron’s nn 東京 ab\ud800c é e\u0301 $5""".split()  # noqa: SIM905
BREAKS = [" ", " ", " ", "  ", "\t", "\n", "\n", "\r\n", "\r", "\n\n", ""]
PIECES = r"""heron her ron \bthe the\b ^the water$ . .* \d+ \w+ \s [^a] [hw]\w [[:alpha:]] (foo|bar) (in)? é É ст
    (?:a.b)    a\.b \(foo\) x? n{2} n{1,3} e* ^ $ \.? 東京 ΟΔ straße [^\s]+ \s+ “ \t \x41 (h(e)r) -""".split()  # noqa: SIM905


def make_corpus(seed):
    draw = random.Random(seed)
    texts = ["", "\n", "heron\r", "x\r\r\nheron\r\n"]
    for _ in range(16):
        count = draw.randrange(30)
        texts.append("".join(draw.choice(WORDS) + draw.choice(BREAKS) for _ in range(count)))
    draw.shuffle(texts)
    return Corpus(
        Document(f"d{number}", text, title="water heron") for number, text in enumerate(texts)
    )


def make_pattern(draw):
    pieces = draw.choices(PIECES, k=draw.randrange(1, 5))
    pattern = draw.choice(["", "", " ", ".*"]).join(pieces)
    if draw.random() < 0.1:
        pattern += "|" + draw.choice(PIECES)
    # Without regard to case, RE2 compares all of Unicode, and re.ASCII compares ASCII.
    return f"(?i){pattern}" if draw.random() < 0.2 and pattern.isascii() else pattern


def lines_of(text):
    return [line.removesuffix("\r") for line in text.split("\n")]


def scanners(corpus):
    return [TextScanner(corpus), TextScanner(corpus, WordIndex(corpus, least=0))]


def every_match(result):
    return [(match.doc_id, match.line, match.match_start, match.match_end) for match in result]


def expected(corpus, pattern):
    found = []
    for doc_id, document in corpus.items():
        start = 0
        for number, line in enumerate(document.text.split("\n"), 1):
            if match := pattern.search(line.removesuffix("\r")):
                found.append((doc_id, number, start + match.start(1), start + match.end(1)))
            start += len(line) + 1
    return found


def check(result, corpus, wanted):
    """Compare a whole result with the lines that match."""
    assert result.cut == ""
    assert result.lines == len(wanted)
    assert result.documents == len({doc_id for doc_id, *_ in wanted})
    shown = every_match(result.matches)
    assert set(shown) <= set(wanted) and shown == sorted(shown, key=wanted.index)
    for doc_id, _, start, _ in wanted:  # each is shown, if only in the window of another
        assert any(m.doc_id == doc_id and m.start <= start <= m.end for m in result.matches)
    for match in result.matches:
        text = corpus[match.doc_id].text
        assert 0 <= match.start <= match.match_start <= match.match_end
        assert match.end <= min(len(text), match.start + 3 * CHARACTERS_AROUND)


@pytest.mark.parametrize("seed", SEEDS)
def test_grep_finds_the_lines_that_re_finds(seed):
    corpus = make_corpus(seed)
    draw = random.Random(seed)
    with_index_and_without = scanners(corpus)
    for _ in range(PATTERNS):
        pattern = make_pattern(draw)
        flags = re.ASCII | (re.IGNORECASE if pattern.startswith("(?i)") else 0)
        python = pattern.removeprefix("(?i)").replace("[[:alpha:]]", "[A-Za-z]")
        wanted = expected(corpus, re.compile(f"({python})", flags))
        results = [scanner.grep(pattern, 10_000) for scanner in with_index_and_without]
        assert results[0] == results[1], pattern
        check(results[0], corpus, wanted)
        few = with_index_and_without[1].grep(pattern, 2)
        assert few == results[0]._replace(matches=results[0].matches[:2])


def is_outside(character):
    is_word = unicodedata.category(character)[0] in "LMN" or character == "_"
    return not is_word or bool(UNSPACED_RUN.match(character))


def find_phrase(line, phrase):
    """Return whether a line has the words of a phrase, by comparing it at every place."""
    line, phrase = (
        f" {' '.join(text.lower().replace('ς', 'σ').split())} " for text in (line, phrase)
    )
    inner = phrase[1:-1]
    return inner in line and any(
        line.startswith(inner, place)
        and is_outside(line[place - 1])
        and is_outside(line[place + len(inner)])
        for place in range(1, len(line) - len(inner))
    )


@pytest.mark.parametrize("seed", SEEDS[:3])
def test_phrases_and_counts_are_those_of_a_comparison_at_every_place(seed):
    corpus = make_corpus(seed)
    draw = random.Random(seed)
    words = [word for word in WORDS if "\ud800" not in word]
    excluded = frozenset(draw.sample(list(corpus), 5))
    pool = draw.sample(list(corpus), 15)
    for among in (None, pool):
        allowed = [d for d in corpus if d not in excluded and (among is None or d in among)]
        limits = {"excluded": excluded, "among": among}
        for scanner in scanners(corpus):
            for _ in range(8):
                phrase = " ".join(draw.choices(words, k=draw.randrange(1, 3)))
                found = scanner.phrase(phrase, 1000, **limits)
                lines = {
                    d: [find_phrase(line, phrase) for line in lines_of(corpus[d].text)]
                    for d in allowed
                }
                assert found.lines == sum(map(sum, lines.values()))
                matching = [d for d in allowed if any(lines[d])]
                assert list(dict.fromkeys(m.doc_id for m in found.matches)) == matching
                for match in found.matches:
                    span = corpus[match.doc_id].text[match.match_start : match.match_end]
                    assert (
                        span.lower().replace("ς", "σ").split()
                        == phrase.lower().replace("ς", "σ").split()
                    )
            asked = draw.sample(words, 3)
            having = {
                word: {
                    d
                    for d in allowed
                    if any(find_phrase(line, word) for line in lines_of(corpus[d].text))
                }
                for word in asked
            }
            counts = scanner.count(asked, **limits)
            assert counts.documents == {word: len(ids) for word, ids in having.items()}
            assert counts.together == len(set.intersection(*having.values()))


def test_excluded_documents_and_those_outside_the_pool_count_for_nothing():
    corpus = Corpus(Document(f"d{number}", "a heron\n" * 3) for number in range(9))
    for scanner in scanners(corpus):
        result = scanner.grep(
            "heron", 1, excluded=frozenset({"d0", "d4"}), among=["d4", "d8", "d2"]
        )
        assert (result.matches[0].doc_id, result.lines, result.documents) == ("d2", 6, 2)
        assert scanner.count(["heron"], excluded=frozenset({"d1"})).together == 8
        assert scanner.grep("heron", 5, among=[]) == ([], 0, 0, "")


def test_letters_that_re2_takes_as_equal_are_the_same_words():
    characters = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    cased = [c for c in characters if len({c, c.lower(), c.upper(), c.casefold()}) > 1]
    texts = pa.array(cased)
    for character in cased:
        equal = texts.filter(pc.match_substring_regex(texts, character, ignore_case=True))
        assert {separate_words(other) for other in equal.to_pylist()} == {separate_words(character)}


@pytest.mark.parametrize(
    "pattern", ["(a+)+$", "(a|a)*b", "(x+x+)+y", "a.*a.*a.*a.*b", "(a|b)*a(a|b){500}c"]
)
def test_hostile_patterns_end(pattern):
    corpus = Corpus([Document("long", "a" * 1_000_000)])
    result = TextScanner(corpus).grep(pattern, 3)
    assert result.lines == (pattern == "(a+)+$")


def test_a_long_line_is_cut_around_its_match():
    text = "é" * 500_000 + "heron" + "x" * 500_000
    [match] = TextScanner({"long": Document("long", text)}).grep("heron", 3).matches
    assert text[match.match_start : match.match_end] == "heron"
    assert match.start == 500_000 - CHARACTERS_AROUND
    assert match.end == 500_000 + 2 * CHARACTERS_AROUND


def test_close_lines_are_one_match_and_distant_lines_are_two():
    text = "\n".join(["heron", "b", "heron", *"cdefgh", "heron"])
    first, second = TextScanner({"a": Document("a", text)}).grep("heron", 9).matches
    assert (first.line, text[first.start : first.end]) == (1, "heron\nb\nheron\nc\nd")
    assert (second.line, text[second.start : second.end]) == (10, "g\nh\nheron")


def test_a_scan_with_its_matches_counts_in_the_first_50_mb_and_says_so():
    line = "x" * 1_000_000
    corpus = Corpus(Document(f"d{number}", f"heron\n{line}") for number in range(60))
    result = TextScanner(corpus).grep("heron", 2)
    assert [match.doc_id for match in result.matches] == ["d0", "d1"]
    assert 50 <= result.documents < 54
    assert result.cut == f"counted in the first {result.documents} of 60 documents"
    assert TextScanner(corpus).grep("heron", 61).documents == 60


def test_a_scan_that_is_out_of_time_says_so():
    corpus = Corpus(Document(f"d{number}", "heron " * 200_000) for number in range(3))
    result = TextScanner(corpus).grep("heron", 5, seconds=0)
    assert (result.documents, result.cut) == (1, "out of time after 1 of 3 documents")
    counts = TextScanner(corpus).count(["heron", "water"], seconds=0)
    assert (counts.documents, counts.cut) == ({"heron": 1, "water": 0}, result.cut)


@pytest.mark.parametrize(
    "pattern", ["", "(", "a)(b", r"(a)\1", "(?=a)", "a{2000}", "\ud800", r"\Qa"]
)
def test_what_re2_does_not_read_is_refused_in_a_line(pattern):
    with pytest.raises(ScanRefused) as refusal:
        TextScanner(Corpus([])).grep(pattern, 3)
    assert "\n" not in str(refusal.value) and "give a pattern" in str(refusal.value)


def test_blank_phrases_and_no_words_are_refused():
    scanner = TextScanner(Corpus([]))
    with pytest.raises(ScanRefused, match="nothing to search for"):
        scanner.phrase(" \n", 3)
    with pytest.raises(UsageError, match="at least 1"):
        scanner.count([])
    assert scanner.grep("a", 3) == ([], 0, 0, "")


def test_an_index_is_kept_and_opened_again(tmp_path):
    store(make_corpus(0).values(), tmp_path / "corpus")
    corpus = StoredCorpus(tmp_path / "corpus")
    results = [
        TextScanner(corpus, index).grep("heron", 100)
        for index in (None, *(WordIndex(corpus, tmp_path, least=0) for _ in range(2)))
    ]
    assert results[0] == results[1] == results[2]
    assert len(list(tmp_path.glob("indexes/words-*"))) == 1


def test_a_corpus_without_words_is_scanned_without_an_index():
    corpus = Corpus([Document("a", "-- ??")])
    assert TextScanner(corpus, WordIndex(corpus, least=0)).grep(r"\?", 3).lines == 1
