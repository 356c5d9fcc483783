"""Chroma in a folder and on a real server, against brute force."""

import re
import shutil
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from bad_server import always, moved
from openai_server import bag_of_words

from sextant.tools.corpus import Corpus
from sextant.tools.errors import DataError, RunIncomplete, UsageError
from sextant.tools.records import Document, Query
from sextant.tools.retrievers import FILLS, index_store
from sextant.tools.retrievers.base import Search
from sextant.tools.retrievers.vectors import chroma
from sextant.tools.retrievers.vectors.chroma import Chroma
from sextant.tools.retrievers.vectors.exact_search import VectorRetriever
from sextant.tools.session import Toolbox

DOCUMENTS = 2500  # so that the last call of a build is not a full one


def unit(texts):
    vectors = bag_of_words(texts)
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


class Words:
    """An embedder: the mean of a random vector a word, of length 1."""

    name = "dense:words"
    dimension = 24

    def __init__(self):
        self.embedded = 0

    def key(self):
        return {"kind": "words"}

    def documents(self, texts, done=None):
        self.embedded += len(texts)
        return unit(texts)

    def queries(self, searches):
        return unit([search.text for search in searches])

    def left_out(self, text, instruction=""):
        return 0


def texts(number, seed):
    rng = np.random.default_rng(seed)
    return [" ".join(f"w{word}" for word in rng.zipf(1.3, 8) % 500) for _ in range(number)]


CORPUS = Corpus(Document(f"d{number}", text) for number, text in enumerate(texts(DOCUMENTS, 0)))
SEARCHES = [Search(text) for text in texts(40, 1)]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A home in which the index of CORPUS is built."""
    home = tmp_path_factory.mktemp("chroma")
    Chroma(CORPUS, home, Words())
    return home


@pytest.fixture(scope="module")
def exact():
    return VectorRetriever(CORPUS, None, Words(), "exact")


class ChromaServer:
    def __init__(self, folder):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.folder = folder

    def start(self):
        command = [
            Path(sys.executable).with_name("chroma"),
            "run",
            "--path",
            self.folder,
            "--port",
            str(self.port),
        ]
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for _ in range(300):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return self
            time.sleep(0.1)
        raise TimeoutError("chroma run did not start")

    def stop(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def server_of_all(tmp_path_factory):
    server = ChromaServer(tmp_path_factory.mktemp("server")).start()
    yield server
    server.stop()


@pytest.fixture
def served(server_of_all, monkeypatch):
    """A server without collections; a test that stops it starts it again."""
    monkeypatch.setattr(chroma, "WAITS", (0.0,))
    client = chroma._connected(server_of_all.url)
    for collection in client.list_collections():
        client.delete_collection(collection.name)
    return server_of_all


def test_nearly_all_that_exact_search_finds_is_found_with_the_same_scores(home, exact):
    found = Chroma(CORPUS, home, Words()).search_many(SEARCHES, 20)
    wanted = exact.search_many(SEARCHES, 20)
    common = [
        len(set(a) & set(b)) for a, b in zip(found, wanted, strict=True)
    ]  # of (doc_id, score)
    assert np.mean(common) / 20 >= 0.98
    assert all(len(hits) == 20 for hits in found)


def test_the_graph_is_asked_and_not_all_documents(home, monkeypatch):
    retriever = Chroma(CORPUS, home, Words())
    scored = []
    scores = retriever._index.scores
    monkeypatch.setattr(
        retriever._index,
        "scores",
        lambda rows, query: scored.append(len(rows)) or scores(rows, query),
    )
    retriever.search(SEARCHES[0].text, 20, excluded=["nobody"])
    assert scored == [20]


def test_a_search_that_keeps_more_in_view_finds_more_in_the_same_index(home, exact):
    wanted = [{hit.doc_id for hit in hits} for hits in exact.search_many(SEARCHES, 5)]
    found = {}
    for ef_search in (2, 400):
        hits = Chroma(CORPUS, home, Words(), ef_search=ef_search).search_many(SEARCHES, 5)
        found[ef_search] = sum(
            len(a & {hit.doc_id for hit in b}) for a, b in zip(wanted, hits, strict=True)
        )
    assert found[2] < found[400] == 5 * len(SEARCHES)
    assert [index.name.partition("-")[0] for index in index_store.list_stored_indexes(home)] == [
        "chroma",
        "vectors",
    ]


def test_exclusions_and_pools_come_before_the_cut(home, exact):
    retriever = Chroma(CORPUS, home, Words())
    text = SEARCHES[0].text
    best = [hit.doc_id for hit in exact.search(text, 30)]
    left = retriever.search(text, 10, excluded=best[:20])
    assert len(left) == 10 and not {hit.doc_id for hit in left} & set(best[:20])
    pool = {"among": [*best[:5], "d7", "d8", "nobody"], "excluded": [best[0]]}
    assert retriever.search(text, 10, **pool) == exact.search(text, 10, **pool)


@pytest.mark.parametrize("k", [DOCUMENTS // 2, DOCUMENTS, 2 * DOCUMENTS])
def test_k_near_the_corpus_size_gives_k_and_is_exact(home, exact, k):
    assert Chroma(CORPUS, home, Words()).search("w1 w2", k) == exact.search("w1 w2", k)


@pytest.mark.parametrize("size", [0, 1, 2, 3])
def test_small_corpora_are_whole_rankings(size):
    corpus = Corpus(Document(f"d{number}", f"w{number}") for number in range(size))
    hits = Chroma(corpus, None, Words()).search("w0", 5)
    assert len(hits) == size and all(hit.doc_id == "d0" for hit in hits[:1])


def test_ties_are_broken_by_doc_id_at_the_cut_too():
    copies = [Document(f"copy{number:02}", "w1 w2") for number in reversed(range(20))]
    corpus = Corpus([*copies, *CORPUS.stream()])
    found = Chroma(corpus, None, Words()).search("w1 w2", 5)
    assert [hit.doc_id for hit in found] == [f"copy{number:02}" for number in range(5)]


def test_a_build_that_stopped_half_way_is_redone_without_embedding_again(
    home, exact, tmp_path, monkeypatch
):
    monkeypatch.setattr(
        chroma, "_client", lambda folder, client=chroma._client: Failing(client(folder), calls=2)
    )
    embedder = Words()
    with pytest.raises(DataError, match="power cut"):
        Chroma(CORPUS, tmp_path, embedder)
    monkeypatch.undo()
    retriever = Chroma(CORPUS, tmp_path, embedder)
    assert embedder.embedded == len(set(CORPUS.texts()))
    assert retriever._index.near.args[0].count() == DOCUMENTS
    assert retriever.search("w1 w2", DOCUMENTS) == exact.search("w1 w2", DOCUMENTS)


class Failing:
    """A client whose collections fail after so many calls."""

    def __init__(self, client, calls):
        self._client, self._calls = client, calls
        self.close = client.close

    def create_collection(self, *arguments, **options):
        collection = self._client.create_collection(*arguments, **options)
        add, left = collection.add, iter(range(self._calls))

        def failing(**options):
            if next(left, None) is None:
                raise OSError("power cut")
            add(**options)

        collection.add = failing
        return collection


@pytest.mark.parametrize(
    "options",
    [
        {"ef_search": 1},
        {"ef_construction": 0},
        {"neighbors": -3},
        {"url": "localhost:8000"},
        {"url": "http://h/x"},
    ],
)
def test_options_that_make_no_sense_are_a_mistake_in_the_command(corpus, options):
    with pytest.raises(UsageError, match=next(iter(options))):
        Chroma(corpus, None, Words(), **options)


def test_a_server_serves_what_a_folder_does_and_embeds_once_for_all(served, exact, tmp_path):
    first, second = Words(), Words()
    retriever = Chroma(CORPUS, tmp_path / "one", first, url=served.url)
    again = Chroma(CORPUS, tmp_path / "two", second, url=served.url)
    assert (first.embedded, second.embedded) == (len(set(CORPUS.texts())), 0)
    found, wanted = again.search_many(SEARCHES, 20), exact.search_many(SEARCHES, 20)
    assert found == retriever.search_many(SEARCHES, 20)
    assert np.mean([len(set(a) & set(b)) for a, b in zip(found, wanted, strict=True)]) / 20 >= 0.98
    pool = {"among": ["d9", "d3", "d5"], "excluded": ["d5"]}
    assert again.search("w1 w2", 5, **pool) == exact.search("w1 w2", 5, **pool)
    assert again.search("w1 w2", DOCUMENTS - 1) == exact.search("w1 w2", DOCUMENTS - 1)
    served.stop()
    served.start()
    assert retriever.search_many(SEARCHES, 20) == found


def test_a_collection_that_is_not_whole_is_filled_up_and_not_overwritten(
    served, exact, tmp_path, monkeypatch
):
    vectors = np.asarray(exact._vectors)
    whole = Chroma(CORPUS, tmp_path, Words(), url=served.url)
    collection = whole._index._collection
    name, settings = (collection.name, chroma.settings_of(200, 32, 2500))
    client = chroma._connected(served.url)
    client.delete_collection(name)
    client.create_collection(name, **settings).add(
        ids=["3", "1700"], embeddings=vectors[[3, 1700]] * 2
    )
    filled = Chroma(CORPUS, tmp_path, Words(), url=served.url)
    some = np.array([1700, 4, 3])
    np.testing.assert_array_equal(filled._index._vectors(some), vectors[some] * [[2], [1], [2]])
    assert filled._index._collection.count() == DOCUMENTS


def test_two_who_fill_a_collection_at_once_get_one_index(served, exact, tmp_path):
    with ThreadPoolExecutor(2) as pool:
        made = list(
            pool.map(lambda n: Chroma(CORPUS, tmp_path / str(n), Words(), url=served.url), range(2))
        )
    assert [one._index._collection.count() for one in made] == [DOCUMENTS] * 2
    assert made[0].search_many(SEARCHES, 10) == made[1].search_many(SEARCHES, 10)
    assert made[0].search("w1 w2", DOCUMENTS) == exact.search("w1 w2", DOCUMENTS)


@pytest.mark.parametrize("hangs", [True, False])
def test_a_server_that_is_away_or_hangs_is_named(hangs, monkeypatch, corpus):
    monkeypatch.setattr(chroma, "TIMEOUT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        if not hangs:
            silent.close()
        with pytest.raises(DataError, match=f"no Chroma server answers at {url}") as caught:
            Chroma(corpus, None, Words(), url=url)
    assert "\n" not in str(caught.value)


def test_a_redirect_is_not_followed_with_vectors(bad, elsewhere, corpus):
    bad.script = always(moved(f"http://localhost:{elsewhere.port}/"))
    with pytest.raises(DataError, match=r"no Chroma server answers at .*Redirect"):
        Chroma(corpus, None, Words(), url=bad.url.removesuffix("/v1"))
    assert not elsewhere.tries


def test_a_server_that_goes_away_leaves_the_query_owed_and_may_come_back(served, tmp_path):
    retriever = Chroma(CORPUS, tmp_path, Words(), url=served.url)
    before = retriever.search("w1 w2", 5)
    served.stop()
    session = Toolbox(CORPUS, retriever).open(Query("q", "w1"))
    with pytest.raises(RunIncomplete, match=f"{served.url} does not answer") as caught:
        session.search("w1 w2")
    assert session.fault is caught.value
    served.start()
    assert retriever.search("w1 w2", 5) == before


def test_a_collection_that_was_deleted_is_named(served, tmp_path):
    retriever = Chroma(CORPUS, tmp_path, Words(), url=served.url)
    chroma._connected(served.url).delete_collection(retriever._index._collection.name)
    with pytest.raises(DataError, match=f"{served.url} does not fit or was deleted"):
        retriever.search("w1", 3)


def test_a_run_says_which_server_answers_and_notices_that_its_index_changes(served, tmp_path):
    retriever = Chroma(CORPUS, tmp_path, Words(), url=served.url)
    version = re.search(r",server=([\d.]+)\)$", retriever.name)[1]
    assert Chroma(CORPUS, tmp_path, Words(), url=served.url, server=version).name == retriever.name
    with pytest.raises(DataError, match=rf"has version {version}, .* and not version 0\.1, "):
        Chroma(CORPUS, tmp_path, Words(), url=served.url, server="0.1")
    retriever._index._collection.delete(ids=["7"])
    for ask in (
        lambda: retriever.search("w1", 3),
        lambda: Chroma(CORPUS, tmp_path, Words(), url=served.url),
    ):
        with pytest.raises(
            DataError, match=r"2,499 documents, and not .* 2,500 documents; .* push"
        ):
            ask()
    token = FILLS.set(True)
    Chroma(CORPUS, tmp_path, Words(), url=served.url)  # puts it right
    FILLS.reset(token)
    assert len(retriever.search("w1", DOCUMENTS)) == DOCUMENTS


def test_an_index_works_while_it_is_deleted(tmp_path):
    retriever = Chroma(CORPUS, tmp_path, Words())
    before = retriever.search_many(SEARCHES, 10)
    shutil.rmtree(tmp_path / "indexes")
    assert retriever.search_many(SEARCHES, 10) == before


def test_a_server_that_goes_away_while_it_is_filled_keeps_what_it_has(
    served, tmp_path, monkeypatch
):
    embedder = Words()
    asked = chroma.ChromaServerIndex._ask

    def fails_at_the_third_block(self, call, *arguments, **options):
        if "embeddings" in options and options["ids"][0] == "2000":
            served.stop()
        return asked(self, call, *arguments, **options)

    monkeypatch.setattr(chroma.ChromaServerIndex, "_ask", fails_at_the_third_block)
    with pytest.raises(RunIncomplete, match="what it has is kept, and the same command goes on"):
        Chroma(CORPUS, tmp_path, embedder, url=served.url)
    monkeypatch.setattr(chroma.ChromaServerIndex, "_ask", asked)
    served.start()
    [before] = [
        collection.count() for collection in chroma._connected(served.url).list_collections()
    ]
    retriever = Chroma(CORPUS, tmp_path, embedder, url=served.url)
    assert (before, retriever._index._collection.count()) == (2000, DOCUMENTS)
    assert embedder.embedded == len(set(CORPUS.texts()))
