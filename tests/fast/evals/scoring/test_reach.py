"""Chances of documents: planted ones, brute force, and searches that are made."""

import random
from itertools import combinations
from math import comb

import numpy as np
import pytest

from sextant.evals.scoring.reach import DRAWN, SEARCHED, SIZES, Chance, reach, within
from sextant.tools.corpus import Corpus
from sextant.tools.records import Document, Hits
from sextant.tools.retrievers import build
from sextant.tools.retrievers.base import Search

WORDS = [
    f"{first}{second}"
    for first in "bdfgklm"
    for second in ["oak", "ash", "elm", "fir", "yew", "box"]
]


def corpus_of(generator, documents=150, length=12):
    texts = [" ".join(generator.choices(WORDS, k=length)) for _ in range(documents)]
    return Corpus(Document(f"d{number:03}", text) for number, text in enumerate(texts))


def finder(corpus, spec="bm25"):
    retriever = build(spec, corpus)

    def find(texts, k):
        return retriever.search_many([Search(text) for text in texts], k)

    return find


def rank_of(find, words, target):
    [hits] = find([" ".join(words)], 1000)
    return hits.doc_ids.index(target) + 1 if target in hits.doc_ids else 0


@pytest.mark.parametrize("spec", ["bm25", "bm25(k1=1.5,b=0.75)"])
@pytest.mark.parametrize("seed", range(3))
def test_chances_of_words_and_pairs_are_those_of_all_searches(spec, seed):
    generator = random.Random(seed)
    corpus = corpus_of(generator)
    find = finder(corpus, spec)
    words = generator.sample(WORDS, 12)
    targets = ["d003", "d077", "d140"]
    reached = reach(words, [{target} for target in targets], find, len(corpus), generator)
    assert reached.adds_up
    for target, chance in zip(targets, reached.chances, strict=True):
        for size in (1, 2):
            ranks = [rank_of(find, choice, target) for choice in combinations(words, size)]
            for k in (1, 10):
                brought = sum(0 < rank <= k for rank in ranks)
                assert chance.share(size, k) == brought / comb(12, size)
            assert chance.interval(size, 10) == (chance.share(size, 10),) * 2


@pytest.mark.parametrize("seed", range(5))
def test_the_best_search_is_made_and_no_search_of_three_words_is_better(seed):
    generator = random.Random(seed)
    corpus = corpus_of(generator)
    find = finder(corpus)
    words = generator.sample(WORDS, 9)
    reached = reach(words, [{"d010"}], find, len(corpus), generator)
    [(best, rank)] = reached.best
    choices = [choice for size in (1, 2, 3) for choice in combinations(words, size)]
    ranks = [rank_of(find, choice, "d010") for choice in choices]
    assert rank == min(filter(None, ranks), default=0)
    assert rank == (rank_of(find, [best], "d010") if best else 0)


def test_a_document_without_a_common_word_has_no_chance_and_no_best_search():
    corpus = Corpus(
        [Document("apart", "quartz"), Document("near", "oak elm"), Document("far", "oak")]
    )
    reached = reach(["oak", "elm"], [{"apart"}], finder(corpus), 3, random.Random(0))
    assert [reached.chances[0].share(size, 10) for size in SIZES] == [0.0] * 4
    assert reached.best == [("", 0)]


def test_a_document_with_a_word_of_its_own_has_the_chance_of_drawing_it():
    fillers = [Document(f"d{number}", "ash elm fir yew box") for number in range(30)]
    corpus = Corpus([Document("x", "heron"), *fillers])
    words = ["heron", "ash", "elm", "fir", "yew", "box"]
    [chance] = reach(words, [{"x"}], finder(corpus), 31, random.Random(0)).chances
    assert (chance.share(1, 1), chance.share(2, 1)) == (1 / 6, 1 / 3)
    low, high = chance.interval(3, 1)
    assert low < 1 / 2 < high


@pytest.mark.parametrize("spec", ["bm25", "fusion(bm25,rank_bm25)"])
def test_chances_grow_with_the_documents_that_count(spec):
    generator = random.Random(4)
    corpus = corpus_of(generator)
    targets = [{f"d{number:03}"} for number in range(20)]
    ks = (1, 3, 10, 50, 100)
    reached = reach(
        generator.sample(WORDS, 10), targets, finder(corpus, spec), len(corpus), generator
    )
    for chance in reached.chances:
        for size in SIZES:
            shares = [chance.share(size, k) for k in ks]
            assert shares == sorted(shares)


def test_a_retriever_whose_words_do_not_add_up_is_searched():
    generator = random.Random(5)
    corpus = corpus_of(generator)
    calls = []
    inner = finder(corpus, "fusion(bm25,rank_bm25(k1=3.0))")

    def find(texts, k):
        calls.extend(texts)
        return inner(texts, k)

    reached = reach(generator.sample(WORDS, 30), [{"d001"}], find, len(corpus), generator)
    assert not reached.adds_up
    assert max(map(len, reached.chances[0].ranks.values())) == SEARCHED
    assert not reached.chances[0].is_exact[2]
    [(best, rank)] = reached.best
    assert best in calls
    assert rank == rank_of(inner, [best], "d001")


def test_documents_that_count_as_one_are_reached_by_either():
    corpus = Corpus([Document("a", "oak"), Document("b", "elm"), Document("c", "fir")])
    both = reach(["oak", "elm", "fir"], [{"a", "b"}], finder(corpus), 3, random.Random(0))
    assert both.chances[0].share(1, 1) == 2 / 3


def test_intervals_of_drawn_chances_cover_the_chance():
    generator = np.random.default_rng(0)
    covered = []
    for chance in (0.02, 0.1, 0.3, 0.7):
        for brought in generator.binomial(DRAWN, chance, 2_000):
            drawn = Chance({3: [1] * int(brought) + [0] * (DRAWN - int(brought))}, {3: False})
            low, high = drawn.interval(3, 10)
            covered.append(low <= chance <= high)
    assert 0.94 <= np.mean(covered) <= 0.965


def test_tries_add_up_as_independent_searches():
    assert within(0.5, 2) == 0.75
    assert within(0.0, 100) == 0.0


def test_no_words_reach_nothing():
    def find(texts, k):
        return [Hits([], []) for _ in texts]

    reached = reach([], [{"a"}], find, 3, random.Random(0))
    assert reached.chances[0].share(2, 10) == 0.0
    assert reached.best == [("", 0)]
