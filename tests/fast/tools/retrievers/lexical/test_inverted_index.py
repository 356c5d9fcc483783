"""The segments of the word index, which rank as one."""

import shutil

import numpy as np
import pytest
from hypothesis import strategies as st

from sextant.tools import corpus as corpora
from sextant.tools.corpus import Corpus, StoredCorpus, store
from sextant.tools.records import Document
from sextant.tools.retrievers import build
from sextant.tools.retrievers.base import Search
from sextant.tools.retrievers.lexical import bm25, inverted_index

TEXTS = st.lists(st.sampled_from(["aa", "bb", "cc", "dd", "ee", "ff"]), max_size=8).map(" ".join)
CORPORA = st.lists(st.dictionaries(st.integers(0, 30), TEXTS, max_size=24), min_size=2, max_size=4)
QUERIES = ["aa", "bb aa zz", "cc dd ee cc"]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(inverted_index, "SIZE", 5)


def made_of(texts) -> Corpus:
    return Corpus(Document(f"d{number:02}", text) for number, text in ({**texts, 31: "aa"}).items())


def ranked(retriever, documents):
    pool, excluded = frozenset(list(documents)[::2]), frozenset(list(documents)[:3])
    searches = [
        Search(query, among=among, excluded=excluded) for query in QUERIES for among in (None, pool)
    ]
    return retriever.search_many([*map(Search, QUERIES), *searches], 9), retriever.search(
        QUERIES[1], 3
    )


def segment_files(home):
    return {path.stat().st_ino for path in home.glob("indexes/bm25-*/segment-*/documents.npy")}


def test_a_build_that_was_stopped_keeps_the_segments_that_it_had_finished(tmp_path, monkeypatch):
    documents, whole = (
        made_of({number: f"word{number} heron" for number in range(30)}),
        inverted_index._Counter.save,
    )
    monkeypatch.setattr(
        inverted_index._Counter, "save", lambda counter, folder: whole(counter, folder) or stop()
    )

    def stop():
        if len(list(tmp_path.glob("indexes/.*/segment-*"))) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build("bm25", documents, tmp_path)
    finished = {path.stat().st_ino for path in tmp_path.glob("indexes/.*/segment-*/documents.npy")}
    monkeypatch.undo()
    monkeypatch.setattr(inverted_index, "SIZE", 5)
    kept = build("bm25", documents, tmp_path)
    assert len(finished) == 3 and finished < segment_files(tmp_path)
    assert ranked(kept, documents) == ranked(build("bm25", documents), documents)


@pytest.mark.parametrize("name", ["bm25", "bm25s", "bm25(analyzer=english)"])
def test_parts_that_are_told_the_sums_score_as_the_whole(name, corpus):
    whole, parts = (
        build(name, corpus),
        [build(name, corpus.slice(*ends)) for ends in ((0, 2), (2, 6))],
    )
    text = "why is the blood of an octopus blue, octopus zyzzyva"
    totals = bm25.CorpusTotals(*map(sum, zip(*(part.totals for part in parts), strict=True)))
    frequencies = sum(part.frequencies(text) for part in parts)
    found = [part.search_as_part([Search(text)], 6, totals, [frequencies]) for part in parts]
    hits = sorted(
        (hit for [hits] in found for hit in hits), key=lambda hit: (-hit.score, hit.doc_id)
    )
    assert hits == whole.search(text, 6) and len(hits) > 3


def test_of_a_large_stored_corpus_the_ids_are_not_held_and_hits_are_the_same(tmp_path, monkeypatch):
    held = made_of({number: "heron " * (number % 3) + "aa" for number in range(30, 0, -1)})
    store(held.values(), tmp_path / "x")
    monkeypatch.setattr(corpora, "_HELD", 10)
    for stored, same in (
        (StoredCorpus(tmp_path / "x"), held),
        (StoredCorpus(tmp_path / "x", 4, 22), held.slice(4, 22)),
    ):
        assert not isinstance(stored.doc_ids, tuple) and list(stored.doc_ids) == list(same)
        for name in ("bm25", "rank_bm25"):
            assert ranked(build(name, stored), held) == ranked(build(name, same), held)


def test_a_copied_store_is_read_once_more_and_not_made_again(tmp_path):
    store(made_of({1: "aa"}).values(), tmp_path / "x")
    shutil.copytree(tmp_path / "x", tmp_path / "copy", copy_function=shutil.copyfile)
    before = (tmp_path / "copy" / "meta.json").read_bytes()
    assert list(StoredCorpus(tmp_path / "copy")) == ["d01", "d31"]
    assert (tmp_path / "copy" / "meta.json").read_bytes() != before


def test_kinds_of_four_bytes_give_the_scores_of_kinds_of_two(tmp_path):
    documents = made_of({n: f"word{n % 7} heron " * (n % 5 + 1) for n in range(60)})
    query = "heron word3 heron word5"
    hits = build("bm25", documents, tmp_path).search(query, 50)
    for file in tmp_path.glob("indexes/*/segment-*/kinds.npy"):
        kinds = np.load(file)
        file.unlink()
        np.save(file, kinds.astype(np.uint32))
    assert build("bm25", documents, tmp_path).search(query, 50) == hits
