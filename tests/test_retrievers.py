"""Every registered retriever against one contract; bm25 against its formula; rank_bm25 against the library."""

import math
import re
import time

import bm25s
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rank_bm25 import BM25Okapi

import environments
from tools.corpus import Corpus
from tools.errors import DataError
from tools.records import Document
from tools.retrievers import RETRIEVERS, build, postings, store
from tools.retrievers.base import Ranker
from tools.retrievers.bm25 import BM25
from tools.retrievers.rank_bm25 import okapi_index, words
from tools.text import STOP_WORDS
from tools.text import words as tokens

# Makes an index a pool, as published: what a pool's documents are worth depends on the pool, and nothing is kept.
INDEXED = [name for name in RETRIEVERS if name != "pool_bm25"]


@pytest.mark.parametrize("name", RETRIEVERS)
class TestContract:
    def test_hits_come_best_first_and_at_most_k(self, name, corpus):
        hits = build(name, corpus).search("blue blood octopus", k=3)
        assert len(hits) == 3
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)

    def test_exclusion_happens_before_the_cut(self, name, corpus):
        retriever = build(name, corpus)
        best = retriever.search("blue blood", k=1)[0].doc_id
        hits = retriever.search("blue blood", k=2, excluded={best, "unheard of"})
        assert best not in [hit.doc_id for hit in hits]
        assert len(hits) == 2

    def test_a_pool_is_ranked_alone(self, name, corpus):
        pool = {"d5", "d1", "d3"}
        assert {hit.doc_id for hit in build(name, corpus).search("blue blood heart", k=6, among=pool)} == pool

    def test_more_than_the_corpus_has_may_be_asked_for(self, name, corpus):
        assert len(build(name, corpus).search("blood", k=100)) <= len(corpus)

    @pytest.mark.parametrize("text", ["", "?!", "zyzzyva", "\x00", "ﬁ ℵ 血"])
    def test_a_text_without_known_words_finds_nothing(self, name, corpus, text):
        hits = build(name, corpus).search(text, k=6)
        if name == "rank_bm25":  # there, as in the library, every document is a hit, the last one first
            assert [hit.doc_id for hit in hits] == list(corpus)[::-1] and {hit.score for hit in hits} == {0.0}
        elif name == "pool_bm25":
            assert {hit.score for hit in hits} == {0.0}
        elif name == "dense":  # a vector is near or far, and never absent
            assert len(hits) == 6
        else:
            assert hits == []

    @pytest.mark.parametrize("k", [0, -1])
    def test_no_documents_are_wanted_and_none_come(self, name, corpus, k):
        assert build(name, corpus).search("blood", k=k) == []

    def test_a_home_that_cannot_be_written_costs_no_results(self, name, corpus, tmp_path):
        (tmp_path / "file").write_text("not a folder")
        assert build(name, corpus, tmp_path / "file").search("blue blood", k=1)


@pytest.mark.parametrize("name", INDEXED)
class TestIndex:
    def test_a_pool_is_ranked_in_the_order_of_the_whole(self, name, corpus):
        retriever = build(name, corpus)
        whole = [hit.doc_id for hit in retriever.search("blue blood heart", k=6)]
        pool = [hit.doc_id for hit in retriever.search("blue blood heart", k=6, among={"d5", "d1", "d3"})]
        assert pool == [doc_id for doc_id in whole if doc_id in {"d1", "d3", "d5"}]

    def test_a_kept_index_gives_the_same_hits_as_a_fresh_one(self, name, corpus, tmp_path):
        fresh = build(name, corpus).search("blue blood octopus", k=6)
        assert build(name, corpus, tmp_path).search("blue blood octopus", k=6) == fresh
        [index] = (tmp_path / "indexes").iterdir()
        assert build(name, corpus, tmp_path).search("blue blood octopus", k=6) == fresh
        assert list((tmp_path / "indexes").iterdir()) == [index], "the second build loads what the first one kept"

    def test_another_corpus_gets_another_index(self, name, corpus, tmp_path):
        build(name, corpus, tmp_path)
        changed = [Document(d.doc_id, d.text.replace("blue", "green")) for d in corpus.values()]
        hits = build(name, Corpus(changed), tmp_path).search("green", k=4)
        assert {hit.doc_id for hit in hits} == {"d1", "d2", "d3", "d6"} and min(hit.score for hit in hits) > 0
        assert len(list((tmp_path / "indexes").iterdir())) == 2

    def test_a_damaged_index_is_built_again(self, name, corpus, tmp_path):
        expected = build(name, corpus, tmp_path).search("blue blood", k=6)
        [index] = (tmp_path / "indexes").iterdir()
        for spoilt in sorted(path for path in index.iterdir() if path.name != "key.json"):
            spoilt.write_bytes(b"")
            assert build(name, corpus, tmp_path).search("blue blood", k=6) == expected, spoilt.name
            [index] = (tmp_path / "indexes").iterdir()

    def test_an_index_made_by_other_code_is_not_used(self, name, corpus, tmp_path, monkeypatch):
        expected = build(name, corpus, tmp_path).search("blue blood", k=6)
        monkeypatch.setattr(store, "_code", lambda: "as it was before an edit")
        assert build(name, corpus, tmp_path).search("blue blood", k=6) == expected
        assert len(list((tmp_path / "indexes").iterdir())) == 2


@pytest.mark.parametrize("name", ["bm25", "rank_bm25"])
def test_a_corpus_without_words_is_refused_where_words_are_all_there_is(name):
    with pytest.raises(DataError, match="no words"):
        build(name, Corpus([Document("a", "?"), Document("b", "!")]))


def test_bm25_by_pool_gives_the_packages_scores_for_each_pool(corpus):
    pool = ["d2", "d5", "d6"]
    query = "why is the blood of an octopus blue"
    library = BM25Okapi([corpus[doc_id].text.lower().split() for doc_id in pool])
    expected = dict(zip(pool, library.get_scores(query.split()), strict=True))
    hits = build("pool_bm25", corpus).search(query, k=3, among=set(pool))
    assert {hit.doc_id: hit.score for hit in hits} == pytest.approx(expected)


def test_bm25_over_two_documents_cannot_see_a_changed_word():
    # What MultiConIR's published win rates measure: a word that one of two documents has weighs log(1.5 / 1.5) = 0.
    pair = Corpus([Document("P", "a heron of the marsh at night"), Document("HN1", "a heron of the coast at night")])
    hits = build("pool_bm25", pair).search("a bird of the marsh", k=2, among={"P", "HN1"})
    assert hits[0].score == hits[1].score


def test_a_dense_retriever_finds_what_shares_no_word():
    documents = Corpus([Document("cat", "A kitten sleeps on the sofa."), Document("tax", "Revenue rules for firms.")])
    retriever = build("dense", documents)
    assert retriever.search("feline nap", k=1)[0].doc_id == "cat"
    scores = [hit.score for hit in retriever.search("A kitten sleeps on the sofa.", k=2)]
    assert scores[0] == pytest.approx(1.0, abs=1e-5) and -1 <= scores[1] < 0.5


def test_ties_are_broken_by_doc_id_even_at_the_cut():
    ranker = Ranker(["c", "a", "b", "z"])
    assert [hit.doc_id for hit in ranker.top(np.array([1.0, 1.0, 1.0, 2.0]), k=2)] == ["z", "a"]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(1, 70))
def test_the_cut_is_that_of_a_full_sort(scores, k):
    doc_ids = [f"d{(7 * n) % 61:02}" for n in range(len(scores))]
    expected = sorted(zip(doc_ids, scores, strict=True), key=lambda pair: (-pair[1], pair[0]))[:k]
    hits = Ranker(doc_ids).top(np.array(scores, dtype=float), k)
    assert [(hit.doc_id, hit.score) for hit in hits] == expected


@pytest.mark.parametrize("block", [1, 7, 50, 10**9])
def test_counting_in_blocks_is_counting_at_once(corpus, block, monkeypatch):
    texts = [tokens(text) for text in corpus.texts()] + [[], ["blood", "blood", "new"], []]
    monkeypatch.setattr(postings, "BLOCK", block)
    counted = postings.count(texts)
    by_row = {row: word for word, row in counted.vocabulary.items()}
    triples = zip(counted.word.tolist(), counted.document.tolist(), counted.count.tolist(), strict=True)
    found = [(by_row[row], document, number) for row, document, number in triples]
    expected = {(word, n, text.count(word)) for n, text in enumerate(texts) for word in text}
    assert set(found) == expected and len(found) == len(expected)
    assert list(counted.word) == sorted(counted.word), "ordered by word"
    assert counted.frequency.tolist() == [sum(word in text for text in texts) for word in counted.vocabulary]


def test_bm25_is_the_formula(corpus):
    k1, b = 0.9, 0.4
    texts = {
        document.doc_id: [word for word in re.findall(r"\w\w+", document.text.lower()) if word not in STOP_WORDS]
        for document in corpus.values()
    }
    mean = np.mean([len(text) for text in texts.values()])

    def score(query, text):
        total = 0.0
        for word in query:
            n = sum(word in other for other in texts.values())
            idf = math.log(1 + (len(texts) - n + 0.5) / (n + 0.5))
            tf = text.count(word)
            total += idf * tf / (tf + k1 * (1 - b + b * len(text) / mean))
        return total

    query = ["octopus", "blue", "blue", "blood"]  # a repeated word counts twice
    hits = build("bm25", corpus).search(" ".join(query), k=6)
    assert {hit.doc_id for hit in hits} == {"d1", "d2", "d3", "d4", "d6"}, "d5 shares no word and is no hit"
    for hit in hits:
        assert hit.score == pytest.approx(score(query, texts[hit.doc_id]), rel=1e-5)


def test_bm25_is_bm25s_own_lucene_variant():
    mini = environments.load("congress", "mini", "all")
    theirs = bm25s.BM25(method="lucene", k1=0.9, b=0.4)
    theirs.index([tokens(text) for text in mini.documents.texts()], show_progress=False)
    ours = build("bm25", mini.documents)
    for query in mini.queries:
        known = [word for word in tokens(query.text) if word in theirs.vocab_dict]
        scores = dict(zip(mini.documents, theirs.get_scores(known).tolist(), strict=True))
        hits = ours.search(query.text, k=288)
        assert len(hits) == sum(score > 0 for score in scores.values())
        assert [hit.score for hit in hits] == pytest.approx([scores[hit.doc_id] for hit in hits], rel=1e-5)


def test_what_a_corpus_knows_of_its_words_is_counted_right(corpus):
    statistics = BM25(corpus).statistics()
    assert statistics.documents == 6
    assert {word: statistics.frequency[word] for word in ("blood", "octopus", "giraffe")} == {
        "blood": 5,
        "octopus": 2,
        "giraffe": 1,
    }
    lengths = [len(tokens(document.text)) for document in corpus.values()]
    assert statistics.average_length == sum(lengths) / 6
    assert statistics.weight("zyzzyva") == 0 < statistics.weight("blood") < statistics.weight("giraffe")


def library_order(scores) -> list[int]:
    """What rank_bm25's get_top_n sorts by, with a sort that is stable on every machine."""
    return np.argsort(scores, kind="stable")[::-1].tolist()


def assert_equal_to_the_library(corpus: Corpus, queries: list[str]) -> None:
    library = BM25Okapi([words(text) for text in corpus.texts()])
    ours = build("rank_bm25", corpus)
    for query in queries:
        scores = library.get_scores(words(query))
        hits = ours.search(query, k=len(corpus))
        order = library_order(scores)
        assert [hit.score for hit in hits] == [scores[row] for row in order], "equal to the last bit"
        assert [hit.doc_id for hit in hits] == [corpus.doc_ids[row] for row in order]


def test_rank_bm25_ranks_as_the_library_does_on_real_text():
    mini = environments.load("congress", "mini", "all")
    assert_equal_to_the_library(mini.documents, [query.text for query in mini.queries])


# Few words and short documents, so that words in most documents (negative idf), words in all of them, empty documents,
# duplicates and ties are the rule.
WORDS = st.sampled_from(["aa", "bb", "cc", "dd", "ee", "ff"])
ADVERSARIAL = st.lists(st.lists(WORDS, max_size=8), min_size=1, max_size=24)


@settings(max_examples=300, deadline=None)
@given(ADVERSARIAL, st.lists(st.sampled_from(["aa", "bb", "cc", "dd", "zz"]), max_size=9))
def test_rank_bm25_ranks_as_the_library_does_on_adversarial_text(texts, query):
    if not any(texts):
        texts = [*texts, ["aa"]]
    corpus = Corpus(Document(f"d{n}", " ".join(text)) for n, text in enumerate(texts))
    assert_equal_to_the_library(corpus, [" ".join(query)])


def test_the_librarys_own_top_n_differs_at_most_in_the_order_of_ties():
    mini = environments.load("congress", "mini", "all")
    library = BM25Okapi([words(text) for text in mini.documents.texts()])
    ours = build("rank_bm25", mini.documents)
    for query in mini.queries:
        scores = library.get_scores(words(query.text))
        theirs = library.get_top_n(words(query.text), list(range(len(scores))), n=100)
        hits = ours.search(query.text, k=100)
        assert [scores[row] for row in theirs] == [hit.score for hit in hits]


def test_rank_bm25_takes_at_most_a_hundredth_of_the_librarys_time():
    mini = environments.load("congress", "mini", "all")
    # 20,000 documents out of the miniature's words: the time depends on counts, not on sense.
    generator = np.random.default_rng(0)
    vocabulary = [word for text in mini.documents.texts() for word in words(text)]
    texts = [[vocabulary[n] for n in generator.integers(0, len(vocabulary), size=60)] for _ in range(20_000)]
    corpus = Corpus(Document(f"d{n}", " ".join(text)) for n, text in enumerate(texts))
    query = mini.queries[0].text
    library, ours = BM25Okapi(texts), build("rank_bm25", corpus)

    def fastest(call, repeats):
        times = []
        for _ in range(repeats):
            started = time.perf_counter()
            call()
            times.append(time.perf_counter() - started)
        return min(times)

    theirs = fastest(lambda: library.get_scores(words(query)), 2)
    assert fastest(lambda: ours.search(query, k=1000), 20) <= theirs / 100


def test_the_engine_is_bm25s_with_the_idf_exchanged():
    index = okapi_index([["aa", "bb"], ["aa", "cc", "cc"], ["aa"]], k1=1.5, b=0.75, epsilon=0.25)
    scores = BM25Okapi([["aa", "bb"], ["aa", "cc", "cc"], ["aa"]]).get_scores(["aa", "cc"])
    assert index.get_scores(["aa", "cc"]).tolist() == scores.tolist()
    assert index.scores["data"].dtype == np.float64
