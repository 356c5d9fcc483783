"""Vectors of a corpus: made once and resumed, and searched exactly. The reference is a float64 product in NumPy."""

import json
import logging
import os
import signal
import subprocess
import sys
from functools import cache
from hashlib import blake2b
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from sextant.tools.corpus import Corpus
from sextant.tools.errors import DataError
from sextant.tools.platform import cli
from sextant.tools.platform.cli import Progress
from sextant.tools.records import Document, Usage
from sextant.tools.retrievers.base import Search
from sextant.tools.retrievers.vectors import embedder as embedding
from sextant.tools.retrievers.vectors import exact_search, score_estimates
from sextant.tools.retrievers.vectors.embedder import open_vectors
from sextant.tools.retrievers.vectors.exact_search import VectorRetriever, exact_scores

PRECISIONS = pytest.mark.parametrize("search", ["float32", "int8"])


@cache
def digest_vector(text, dimension):
    if not text.strip(" "):  # no tokens
        return np.zeros(dimension, dtype=np.float32)
    seed = int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")
    vector = np.random.default_rng(seed).standard_normal(dimension)
    return (vector / np.linalg.norm(vector)).astype(np.float32)


class Digests:
    """An embedder whose vectors depend on nothing but the text. It remembers what it was given."""

    name = "digests"
    dimension = 37  # no multiple of what a processor takes at a time

    def __init__(self):
        self.given = []

    def key(self):
        return {"kind": "digests"}

    def vector(self, text):
        return digest_vector(text, self.dimension).copy()

    def documents(self, texts, done=None):
        self.given += texts
        return np.array([self.vector(text) for text in texts])

    def queries(self, searches):
        return np.array([self.vector(search.text) for search in searches])

    def left_out(self, text, instruction=""):
        return 0


class Spoilt(Digests):
    """One whose answers are not what they should be when a text says "bad"."""

    def __init__(self, spoil):
        super().__init__()
        self.spoil = spoil

    def documents(self, texts, done=None):
        made = super().documents(texts)
        return self.spoil(made, texts) if any("bad" in text for text in texts) else made


def documents(texts):
    return Corpus(Document(f"d{n:05}", text) for n, text in enumerate(texts))


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(embedding, "_BLOCK_TEXTS", 10)


@pytest.fixture(scope="module")
def large():
    """20,000 documents; among them copies, and texts without tokens."""
    return documents(
        [f"text {n % 15_000}" if n % 1_000 else " " * (n // 1_000) for n in range(20_000)]
    )


@pytest.fixture(scope="module", params=["float32", "int8"])
def retriever(request, large, tmp_path_factory):
    home = tmp_path_factory.getbasetemp() / "vectors"
    return VectorRetriever(large, home, Digests(), "digests", search=request.param)


def brute_force(corpus, query, k, excluded=(), among=None):
    embedder = Digests()
    scores = embedder.documents(list(corpus.texts())).astype(np.float64) @ embedder.vector(
        query
    ).astype(np.float64)
    # Copies of a text get equal scores only with the last digits cut off: BLAS sums them in different orders.
    ranked = sorted(zip((-scores).round(12).tolist(), corpus.doc_ids, strict=True))
    allowed = [
        pair for pair in ranked if pair[1] not in excluded and (among is None or pair[1] in among)
    ]
    return [(doc_id, -score) for score, doc_id in allowed[:k]]


def assert_equal(hits, expected):
    assert [hit.doc_id for hit in hits] == [doc_id for doc_id, _ in expected]
    assert [hit.score for hit in hits] == pytest.approx([score for _, score in expected], abs=1e-11)


def test_the_ranking_is_that_of_brute_force_in_float64(large, retriever):
    for query in ("one", "two", "text 17"):
        assert_equal(retriever.search(query, 500), brute_force(large, query, 500))


@pytest.mark.parametrize("held", [20_000, 1 << 26])
def test_a_batch_of_any_size_gives_what_each_search_gives_alone_to_the_last_bit(
    large, retriever, monkeypatch, held
):
    monkeypatch.setattr(exact_search, "_MAX_SCORES", held)
    searches = [Search(f"query {n}") for n in range(60)]
    alone = [retriever.search(search.text, 50) for search in searches]
    assert retriever.search_many(searches, 50) == alone
    assert retriever.search_many(searches[7:10], 50) == alone[7:10]
    assert retriever.search_many(searches[::-1], 50) == alone[::-1]
    assert_equal(alone[3], brute_force(large, "query 3", 50))


def test_masks_apply_before_the_cut_alone_and_in_a_batch(large, retriever):
    best = [hit.doc_id for hit in retriever.search("masked", 40)]
    excluded = Search("masked", excluded=frozenset([*best[:30], "no such document"]))
    pool = Search(
        "masked", among=frozenset(large.doc_ids[100:140]), excluded=frozenset(large.doc_ids[:110])
    )
    tiny = Search("masked", among=frozenset(large.doc_ids[:3]))
    batch = [excluded, pool, tiny, *(Search(f"other {n}") for n in range(9))]
    found = retriever.search_many(batch, 20)
    assert_equal(found[0], brute_force(large, "masked", 20, excluded=excluded.excluded))
    assert_equal(
        found[1], brute_force(large, "masked", 20, excluded=pool.excluded, among=pool.among)
    )
    assert len(found[1]) == 20 and len(found[2]) == 3
    assert found == [retriever.search_many([search], 20)[0] for search in batch]


@PRECISIONS
def test_thousands_of_equal_scores_at_the_cut_are_ordered_by_doc_id(tmp_path, search):
    corpus = documents(["one text"] * 9_000 + ["another", "", "a third"])
    retriever = VectorRetriever(corpus, tmp_path, Digests(), "digests", search=search)
    found = retriever.search_many([Search("one text")] * 6, 100)
    assert [[hit.doc_id for hit in hits] for hits in found] == [list(corpus.doc_ids[:100])] * 6
    assert found[0] == retriever.search("one text", 100)
    assert len({hit.score for hit in found[0]}) == 1


@PRECISIONS
def test_a_document_of_no_tokens_scores_zero_and_a_query_of_none_ties_everything(tmp_path, search):
    corpus = documents([" ", "blood", "copper", "iron"])
    retriever = VectorRetriever(corpus, tmp_path, Digests(), "digests", search=search)
    assert dict(retriever.search("hearts", 4))["d00000"] == 0
    [nothing] = retriever.search_with(np.zeros((1, 37), np.float32), [Search("")], 4)
    assert [hit.doc_id for hit in nothing] == list(corpus.doc_ids)


@PRECISIONS
def test_exact_search_of_any_length_and_direction_are_ranked_right(tmp_path, search):
    # A common direction, as some models have it, lengths from 1e-3 to 1e3, and one number that outweighs the rest.
    class Uneven(Digests):
        def vector(self, text):
            vector = super().vector(text)
            vector[0] += 5
            vector[1] *= 20
            return vector * np.float32(10 ** (3 * np.tanh(vector[2] * 9)))

    embedder = Uneven()
    corpus = documents([f"text {n}" for n in range(6_000)])
    retriever = VectorRetriever(corpus, tmp_path, embedder, "uneven", search=search)
    made = np.array([embedder.vector(text) for text in corpus.texts()]).astype(np.float64)
    queries = [f"query {n}" for n in range(12)]
    for query, hits in zip(
        queries, retriever.search_many(list(map(Search, queries)), 100), strict=True
    ):
        scores = made @ embedder.vector(query).astype(np.float64)
        assert [hit.doc_id for hit in hits] == [
            corpus.doc_ids[row] for row in np.argsort(-scores)[:100]
        ]
        assert hits == retriever.search(query, 100)


@PRECISIONS
def test_no_estimate_is_further_off_than_its_bound(large, tmp_path, search):
    made = open_vectors(Digests(), large, tmp_path)
    query = Digests().vector("anything")
    true = made.astype(np.float64) @ query.astype(np.float64)
    if search == "int8":
        estimates = score_estimates.from_codes(tmp_path, {"of": "test"}, made)
        true -= made.mean(axis=0, dtype=np.float64) @ query  # the same for all documents
    else:
        estimates = score_estimates.from_vectors(made)
    off = np.abs(estimates.of_queries(query[None])[0] - true)
    assert (off <= estimates.errors).all()
    assert (off.max() > 1e-4) == (search == "int8"), "codes are coarser than vectors"


def test_both_precisions_give_the_same_hits_to_the_last_bit_with_and_without_a_home(
    large, tmp_path
):
    searches = [Search("one", excluded=frozenset(large.doc_ids[:9_000])), Search(" ")]
    searches += [Search(f"query {n}") for n in range(9)]
    found = [
        VectorRetriever(large, home, Digests(), "digests", search).search_many(searches, 300)
        for search, home in (("float32", None), ("int8", None), ("int8", tmp_path))
    ]
    assert found[0] == found[1] == found[2]


def test_codes_are_an_index_of_their_own_beside_the_vectors(corpus, tmp_path):
    VectorRetriever(corpus, tmp_path, Digests(), "digests")
    [vectors] = (tmp_path / "indexes").glob("[!.]*")
    VectorRetriever(corpus, tmp_path, Digests(), "digests", "int8")
    codes, again = sorted((tmp_path / "indexes").glob("[!.]*"))
    assert codes.name.startswith("codes-") and again == vectors
    assert np.load(codes / "codes.npy").dtype == np.int8


@pytest.mark.parametrize("dimension", [1, 3, 4, 37])
def test_an_exact_score_is_a_sum_in_a_fixed_order_whatever_rows_are_scored_with_it(dimension):
    generator = np.random.default_rng(0)
    vectors = generator.standard_normal((3_000, dimension)).astype(np.float32)
    query = vectors[0]
    whole = exact_scores(vectors, np.arange(3_000), query)
    for row in (0, 1, 1_500):
        resources = vectors[row].astype(np.float64) * query
        end = dimension // 4 * 4
        lanes = [[*resources[lane:end:4]] for lane in range(4)]
        lanes[0] += [*resources[end:]]
        a, b, c, d = (sum(lane, 0.0) for lane in lanes)
        alone = exact_scores(vectors, np.array([row]), query)
        assert alone.tolist() == [whole[row]] == [(a + b) + (c + d)]


HERE = Path(__file__).parents[5]
PLACES = [str(place) for place in (Path(__file__).parent, HERE / "tests/support", HERE)]


def test_the_longest_texts_are_embedded_first_and_each_distinct_one_once(tmp_path):
    embedder = Digests()
    corpus = Corpus(
        [
            Document("a", "short"),
            Document("b", "a longer text"),
            Document("c", "other"),
            Document("d", "short"),
            Document("e", "longer text", title="a"),  # as a text, the same as b
            Document("f", "another texts"),
            Document("g", "the longest text of them all"),
        ]
    )
    made = open_vectors(embedder, corpus, tmp_path)
    assert embedder.given[0] == "the longest text of them all"
    assert sorted(embedder.given[1:3]) == ["a longer text", "another texts"]
    assert sorted(embedder.given[3:]) == ["other", "short"]
    for row, text in enumerate(corpus.texts()):
        assert made[row].tolist() == embedder.vector(text).tolist()


KILLED = """
import os, signal, sys; sys.path[:0] = {path!r}
from pathlib import Path
from test_exact_search import *
embedding._BLOCK_TEXTS = 10
def die(made, texts):
    os.kill(os.getpid(), signal.SIGKILL)
open_vectors(Spoilt(die), documents(["bad", *(f"text {{n:03}}" for n in range(25))]), Path({home!r}))
"""


@pytest.mark.usefixtures("small_blocks")
def test_a_build_that_was_killed_in_its_third_block_goes_on_there(tmp_path):
    code = KILLED.format(path=PLACES, home=str(tmp_path))
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    embedder = Digests()
    corpus = documents(["bad", *(f"text {n:03}" for n in range(25))])
    made = open_vectors(embedder, corpus, tmp_path)
    assert len(embedder.given) == 6
    assert made.tolist() == [embedder.vector(text).tolist() for text in corpus.texts()]


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("damage", ["torn record", "short vectors", "another dimension"])
def test_a_draft_that_does_not_fit_is_begun_again(tmp_path, damage):
    def fail(made, texts):
        raise ConnectionError("away")

    corpus = documents(["bad", *(f"text {n:03}" for n in range(25))])
    with pytest.raises(ConnectionError):
        open_vectors(Spoilt(fail), corpus, tmp_path)
    [draft] = tmp_path.glob("indexes/.*.draft")
    embedder = Digests()
    if damage == "torn record":
        os.truncate(draft / "embedded.json", 20)
    elif damage == "short vectors":
        os.truncate(draft / "vectors.npy", 1000)
    else:
        embedder.dimension = 36
    made = open_vectors(embedder, corpus, tmp_path)
    assert len(embedder.given) == 26
    assert made.tolist() == [embedder.vector(text).tolist() for text in corpus.texts()]


def nan(made, texts):
    made[[("bad" in text) for text in texts], 3] = np.nan
    return made


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (nan, "NaN or infinity for the document 'd00007'"),
        (lambda made, texts: made * np.float32(np.inf), "NaN or infinity"),
        (lambda made, texts: made[1:], r"shape \(19, 37\) where \(20, 37\)"),
        (lambda made, texts: made[:, 1:], r"shape \(20, 36\) where \(20, 37\)"),
    ],
)
def test_exact_search_that_cannot_be_right_are_refused(tmp_path, spoil, says):
    corpus = documents(["bad text" if n == 7 else f"text {n}" for n in range(20)])
    with pytest.raises(DataError, match=says):
        open_vectors(Spoilt(spoil), corpus, tmp_path)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_query_that_becomes_nan_is_refused_and_named(corpus, bad):
    class Broken(Digests):
        def queries(self, searches):
            return super().queries(searches) * np.array(
                [[bad if "bad" in s.text else 1] for s in searches]
            )

    retriever = VectorRetriever(corpus, None, Broken(), "broken")
    with pytest.raises(DataError, match="NaN or infinity for the query 'a bad one'"):
        retriever.search_many([Search("good"), Search("a bad one")], 3)


@PRECISIONS
@pytest.mark.parametrize("size", [0, 1, 2])
def test_a_corpus_may_be_empty_or_tiny(tmp_path, search, size):
    retriever = VectorRetriever(
        documents(["blood", "iron"][:size]), tmp_path, Digests(), "digests", search=search
    )
    assert len(retriever.search("hearts", 5)) == size
    assert [len(hits) for hits in retriever.search_many([Search("hearts")] * 9, 5)] == [size] * 9


@pytest.mark.usefixtures("small_blocks")
def test_what_embedding_cost_is_kept_with_the_vectors_also_that_of_a_block_that_failed(tmp_path):
    class Billed(Spoilt):
        batch = 10

        def documents(self, texts, done=None):
            self.usage = Usage(calls=1, input_tokens=len(texts), paid_usd=None)
            return super().documents(texts)

        def take_usage(self):
            taken, self.usage = self.usage, Usage()
            return taken

        def resume(self, spent):
            before.append(spent.calls)

    before = []
    corpus = documents(["bad", *(f"text {n:03}" for n in range(25))])
    with pytest.raises(DataError):
        open_vectors(Billed(nan), corpus, tmp_path)
    open_vectors(Billed(lambda made, texts: made), corpus, tmp_path)
    [record] = tmp_path.glob("indexes/vectors-*/embedded.json")
    usage = json.loads(record.read_text())["usage"]
    assert (usage["calls"], usage["input_tokens"], usage["paid_usd"]) == (4, 32, None)
    assert before[0] == 0 < before[1] < 4, "the second one has heard what the first has spent"


def test_progress_is_said_after_five_seconds_then_every_half_minute_and_at_the_end_of_long_work(
    monkeypatch, caplog
):
    clock = SimpleNamespace(now=100.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(cli, "time", clock)
    caplog.set_level(logging.INFO, "sextant")
    progress = Progress("dense", 28_315, done=315)
    for n in range(28):
        clock.now += 2
        progress.add(1000)
        if n == 2:
            assert caplog.messages == ["dense: 3,315 of 28,315 documents, 500 a second, 50 s left"]
    assert len(caplog.messages) == 3
    assert caplog.messages[-1] == "dense: 28,315 of 28,315 documents, 500 a second"
    terminal = StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(sys, "__stderr__", terminal)
    progress = Progress("dense", 28_315)
    for _ in range(4):
        clock.now += 5
        progress.add(4000)
    cli.print_stderr("error: the disk is full")
    first, *_, last = terminal.getvalue().split("\x1b[K")
    assert first == "\rdense: 4,000 of 28,315 documents, 800 a second, 30 s left"
    assert last == "error: the disk is full\n", "it stands where the bar was"
