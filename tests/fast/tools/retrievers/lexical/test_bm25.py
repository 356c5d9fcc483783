"""The lexical retrievers against their formulas, the packages bm25s and rank-bm25, and Lucene's own analyzer."""

import json
from pathlib import Path
from typing import Any

import bm25s
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rank_bm25 import BM25Okapi

from sextant import environments
from sextant.tools.corpus import Corpus
from sextant.tools.errors import DataError, UsageError
from sextant.tools.records import Document
from sextant.tools.retrievers import build
from sextant.tools.retrievers.base import Ranker
from sextant.tools.retrievers.lexical import bm25, english_analyzer, inverted_index, numba_kernels
from sextant.tools.retrievers.lexical.bm25 import BM25
from sextant.tools.retrievers.lexical.numba_kernels import Postings
from sextant.tools.retrievers.lexical.rank_bm25 import _ANALYZER as ANALYZER
from sextant.tools.retrievers.lexical.rank_bm25 import words
from sextant.tools.text import content_words as tokens

GOLDEN = Path(__file__).parents[1] / "golden" / "english_analyzer.json"

# Few words and short documents, so that words in most documents (negative idf), words in all of them, empty documents,
# duplicates and ties are the rule.
WORDS = st.sampled_from(["aa", "bb", "cc", "dd", "ee", "ff"])
ADVERSARIAL = st.lists(st.lists(WORDS, max_size=8), min_size=1, max_size=24)
QUERY = st.lists(st.sampled_from(["aa", "bb", "cc", "dd", "zz"]), max_size=9)


def made_of(texts: list[list[str]]) -> Corpus:
    if not any(texts):
        texts = [*texts, ["aa"]]
    return Corpus(Document(f"d{n:02}", " ".join(text)) for n, text in enumerate(texts))


def drawn(documents: int, seed: int = 0) -> tuple[Corpus, list[str]]:
    """Documents and long queries out of the words of a miniature: numbers count here, not sense."""
    mini = environments.load("congress", "mini", "all")
    pool = [word for text in mini.documents.texts() for word in text.split()]
    generator = np.random.default_rng(seed)
    texts = (
        " ".join(pool[n] for n in generator.integers(len(pool), size=60).tolist())
        for _ in range(documents)
    )
    corpus = Corpus(Document(f"d{n:06}", text) for n, text in enumerate(texts))
    return corpus, [
        " ".join(pool[n] for n in generator.integers(len(pool), size=140).tolist())
        for _ in range(10)
    ]


def assert_equal_to_bm25s(
    ours, theirs: bm25s.BM25, split, corpus: Corpus, queries: list[str]
) -> None:
    for query in queries:
        known = [word for word in split(query) if word in theirs.vocab_dict]
        scores = theirs.get_scores(known) if known else np.zeros(len(corpus))
        order = sorted(
            np.flatnonzero(scores > 0).tolist(), key=lambda row: (-scores[row], corpus.doc_ids[row])
        )
        for k in (3, len(corpus)):
            expected = [(corpus.doc_ids[row], float(scores[row])) for row in order[:k]]
            assert list(map(tuple, ours.search(query, k))) == expected


@pytest.mark.parametrize("documents", [300, 3_000])
def test_bm25_scores_and_ranks_as_bm25s_to_the_last_bit(documents):
    corpus, queries = drawn(documents)
    theirs = bm25s.BM25(method="lucene", k1=0.9, b=0.4)
    theirs.index([tokens(text) for text in corpus.texts()], show_progress=False)
    assert_equal_to_bm25s(
        build("bm25", corpus), theirs, tokens, corpus, [*queries, "the", "people " * 9]
    )


@pytest.mark.parametrize(
    ("query", "found"),
    [("爬华山", {"zh"}), ("東京 Tower", {"ja", "en"}), ("แมว", {"th"}), ("塔", set())],
)
def test_bigrams_find_words_of_scripts_without_blanks(query, found):
    texts = {
        "zh": "人们常常去爬华山。",
        "ja": "東京タワーは赤い。",
        "th": "แมวนอนบนเสื่อ",
        "en": "The tower is red.",
    }
    corpus = Corpus(map(Document, texts, texts.values()))
    hits = build("bm25(analyzer=bigrams)", corpus).search(query, 4)
    assert {hit.doc_id for hit in hits} == found
    assert len(build("bm25", corpus).search(query, 4)) == ("Tower" in query)


@settings(max_examples=15)
@given(ADVERSARIAL, QUERY)
def test_bm25_ranks_as_bm25s_does_on_adversarial_text(texts, query):
    corpus = made_of(texts)
    theirs = bm25s.BM25(method="lucene", k1=0.9, b=0.4)
    theirs.index([tokens(text) for text in corpus.texts()], show_progress=False)
    assert_equal_to_bm25s(build("bm25", corpus), theirs, tokens, corpus, [" ".join(query)])


def test_the_kind_bm25s_is_the_package_with_its_own_defaults():
    mini = environments.load("congress", "mini", "all")
    theirs = bm25s.BM25()
    theirs.index(
        bm25s.tokenize(list(mini.documents.texts()), show_progress=False), show_progress=False
    )

    def split(text):
        [found] = bm25s.tokenize([text], return_ids=False, show_progress=False)
        return found

    queries = [query.text for query in mini.queries]
    assert_equal_to_bm25s(build("bm25s", mini.documents), theirs, split, mini.documents, queries)


def test_thousands_of_ties_at_the_cut_are_broken_by_doc_id():
    corpus = Corpus(Document(f"d{(7919 * n) % 10_007:05}", "heron") for n in range(10_007))
    hits = build("bm25", corpus).search("heron heron", k=100)
    assert [hit.doc_id for hit in hits] == [f"d{n:05}" for n in range(100)]


def test_what_a_corpus_knows_of_its_words_is_counted_right(corpus):
    statistics = BM25(corpus).statistics()
    assert statistics.documents == 6
    assert [statistics.frequency[word] for word in ("blood", "octopus", "giraffe")] == [5, 2, 1]
    assert set(statistics.frequency) == {
        word for document in corpus.values() for word in tokens(document.text)
    }
    lengths = [len(tokens(document.text)) for document in corpus.values()]
    assert statistics.average_length == sum(lengths) / 6
    assert (
        statistics.weight("zyzzyva")
        == 0
        < statistics.weight("blood")
        < statistics.weight("giraffe")
    )


@pytest.mark.parametrize("name", ["bm25", "bm25s", "rank_bm25"])
@pytest.mark.parametrize("documents", [[], [Document("a", "?"), Document("b", "!")]])
def test_a_corpus_without_words_is_refused_where_words_are_all_there_is(name, documents):
    with pytest.raises(DataError, match="no words"):
        build(name, Corpus(documents))


@pytest.mark.parametrize("name", ["bm25(k1=-1)", "bm25(b=1.5)", "rank_bm25(b=-0.1)"])
def test_parameters_out_of_range_are_refused(name, corpus):
    with pytest.raises(UsageError, match="k1 of 0 or more and b from 0 to 1"):
        build(name, corpus)


TEXT = st.text(
    st.characters(codec="utf-8") | st.sampled_from("aAbB_9 .-\n\x00\x1fİ\u212aß"), max_size=60
)


@settings(max_examples=15)
@given(st.lists(TEXT, min_size=1, max_size=12), st.sampled_from([1, 20, 1 << 20]))
@pytest.mark.parametrize(
    "analyzer", [bm25.analyzer_of("plain"), bm25.analyzer_of("english"), ANALYZER]
)
def test_the_compiled_loop_counts_what_the_analyzer_says(analyzer, tmp_path_factory, texts, block):
    texts = [*texts, "heron"]
    corpus = Corpus(Document(str(n), text) for n, text in enumerate(texts))
    split = [analyzer.words(text) for text in texts]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inverted_index, "BLOCK", block)
        patch.setattr(inverted_index, "SIZE", 5)
        folder = tmp_path_factory.mktemp("index")
        inverted_index.build(corpus, analyzer, folder)
    index, found = inverted_index.InvertedIndex(folder), {}
    for number, segment in enumerate(index.segments):
        words = segment.list_words(analyzer.reading())
        indptr, documents, kinds = segment.lists
        for row, word in enumerate(words):
            for posting in range(indptr[row], indptr[row + 1]):
                document, kind = 5 * number + int(documents[posting]), kinds[posting]
                found[word, document] = segment.pairs[:, kind].tolist()
        for text in texts:  # a query is read as a document is
            rows, sums = index.look_up(*read(analyzer, text))
            rows = rows[number, : len(sums)].tolist()
            assert [words[row] if row >= 0 else None for row in rows] == [
                word if word in words else None for word in analyzer.words(text)
            ]
            numbers = index.frequencies(analyzer.reading())
            assert sums.tolist() == [numbers.get(word, 0) for word in analyzer.words(text)]
    expected = {
        (word, n): [text.count(word), len(text)] for n, text in enumerate(split) for word in text
    }
    assert found == expected and index.totals == (len(texts), sum(map(len, split)))


def read(analyzer, text):
    data, prepared = analyzer.encode(text)
    return np.frombuffer(data, dtype=np.uint8), prepared, analyzer.reading()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_scores_are_plain_sums_whatever_part_of_the_documents_has_a_term(dtype, tmp_path):
    size, generator = 40_000, np.random.default_rng(0)  # more than one block of documents
    lists = [
        np.sort(generator.permutation(size)[:n])
        for n in (1, 2, 3_000, 12_000, 18_000, size - 1, size)
    ]
    weights = [generator.random(len(each)).astype(dtype) for each in lists]
    np.save(tmp_path / "indptr.npy", np.cumsum([0, *map(len, lists)]))
    np.save(tmp_path / "documents.npy", np.concatenate(lists).astype(np.int32))
    np.save(tmp_path / "weights.npy", np.concatenate(weights))
    doc_ids = [f"d{row:05}" for row in range(size)]
    opened = Postings(tmp_path, Ranker(doc_ids))
    for number, k in ((1, 1), (3, 10), (12, 1_000), (12, 35_000), (12, size)):
        terms = generator.integers(len(lists), size=number)  # with repeats
        amounts = generator.random(number).astype(dtype)
        expected = np.zeros(size, dtype)
        for term, amount in zip(terms.tolist(), amounts, strict=True):
            expected[lists[term]] += amount * weights[term]
        expected[[3, 39_000]] = 0  # excluded
        order = np.lexsort((np.arange(size), -expected))[:k]
        best = [(doc_ids[row], float(expected[row])) for row in order.tolist() if expected[row] > 0]
        found = opened.search(terms, k, amounts=amounts, excluded={"d00003", "d39000"})
        assert list(map(tuple, found)) == best, "equal to the last bit"


def test_the_compiled_loops_need_no_folder_for_their_machine_code():
    source = Path(numba_kernels.__file__).read_text(encoding="utf-8")
    nowhere, space = "<no file, whose digest could be kept>", dict[str, Any]()
    exec(compile(source, nowhere, "exec"), space)
    slots = np.full(2, -1, dtype=np.int32)
    space["rehash"](slots, np.zeros(1, dtype=np.int64), 1)
    assert slots.tolist() == [0, -1]


@pytest.mark.parametrize(
    ("text", "expected"), json.loads(GOLDEN.read_text(encoding="utf-8"))["tokens of texts"]
)
def test_english_words_are_lucenes(text, expected):
    assert english_analyzer.words(text) == expected


def library_order(scores) -> list[int]:
    """What rank_bm25's get_top_n sorts by, with a sort that is stable on every machine."""
    return np.argsort(scores, kind="stable")[::-1].tolist()


def assert_equal_to_the_library(corpus: Corpus, queries: list[str]) -> None:
    library = BM25Okapi([words(text) for text in corpus.texts()])
    ours = build("rank_bm25", corpus)
    for query in queries:
        if not query.strip():
            continue
        scores = library.get_scores(words(query))
        order = library_order(scores)
        for k in (3, len(corpus)):
            hits = ours.search(query, k)
            assert [hit.score for hit in hits] == [scores[row] for row in order[:k]], (
                "equal to the last bit"
            )
            assert [hit.doc_id for hit in hits] == [corpus.doc_ids[row] for row in order[:k]]


def test_rank_bm25_ranks_as_the_library_does_on_real_text_and_on_thousands_of_documents():
    mini = environments.load("congress", "mini", "all")
    assert_equal_to_the_library(mini.documents, [query.text for query in mini.queries])
    corpus, queries = drawn(1_500)
    assert_equal_to_the_library(corpus, queries[:3])


@settings(max_examples=15)
@given(ADVERSARIAL, QUERY)
def test_rank_bm25_ranks_as_the_library_does_on_adversarial_text(texts, query):
    assert_equal_to_the_library(made_of(texts), [" ".join(query)])


def test_bm25_by_pool_gives_the_packages_scores_for_each_pool(corpus):
    pool = ["d2", "d5", "d6"]
    query = "why is the blood of an octopus blue"
    library = BM25Okapi([corpus[doc_id].text.lower().split() for doc_id in pool])
    expected = dict(zip(pool, library.get_scores(query.split()), strict=True))
    hits = build("pool_bm25", corpus).search(query, k=3, among=set(pool))
    assert {hit.doc_id: hit.score for hit in hits} == pytest.approx(expected)
