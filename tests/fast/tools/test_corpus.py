"""A stored corpus is the same as one in memory, and costs next to nothing to open."""

import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sextant.tools.corpus import Corpus, StoredCorpus, open_or_store, store
from sextant.tools.errors import DataError
from sextant.tools.records import Document
from sextant.tools.retrievers import build

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
DOCUMENTS = st.lists(
    st.builds(Document, doc_id=TEXTS.filter(bool), text=TEXTS, title=TEXTS, parent=TEXTS),
    max_size=12,
    unique_by=lambda document: document.doc_id,
)


@given(documents=DOCUMENTS, stranger=TEXTS)
@settings(max_examples=30)
def test_a_stored_corpus_is_the_one_in_memory(documents, stranger, tmp_path_factory):
    place = tmp_path_factory.mktemp("store") / "corpus"
    held, kept = Corpus(documents), open_or_store(place, lambda: iter(documents))
    assert isinstance(kept, StoredCorpus)
    assert list(kept) == list(held) and kept.doc_ids == held.doc_ids and len(kept) == len(held)
    assert dict(kept) == dict(held)
    assert list(kept.stream()) == list(held.stream()) and list(kept.texts()) == list(held.texts())
    assert kept.fingerprint == held.fingerprint
    assert kept.repeats() == held.repeats()
    assert (stranger in kept) == (stranger in held) and kept.get(stranger) == held.get(stranger)
    assert 7 not in kept and None not in kept


@given(
    documents=DOCUMENTS,
    ends=st.tuples(st.integers(0, 12), st.integers(0, 12)).map(sorted),
    stranger=TEXTS,
)
@settings(max_examples=30)
def test_a_slice_sent_to_another_process_has_its_rows_and_no_others(
    documents, ends, stranger, tmp_path_factory
):
    start, stop = (min(end, len(documents)) for end in ends)
    place = tmp_path_factory.mktemp("store") / "corpus"
    for whole in Corpus(documents), open_or_store(place, lambda: iter(documents)):
        part = pickle.loads(pickle.dumps(whole.slice(start, stop)))
        assert list(part) == list(whole)[start:stop] and len(part) == stop - start
        assert list(part.stream()) == documents[start:stop] == [part[doc_id] for doc_id in part]
        assert not any(doc_id in part for doc_id in {stranger, *whole} - set(part))
        assert (
            part.fingerprint
            == Corpus(documents).slice(start, stop).fingerprint
            != whole.fingerprint
        )


@pytest.mark.parametrize("count", [0, 1, 700])
def test_every_id_is_found_and_none_beside_them(count, tmp_path):
    ids = [f"{7919 * number % 1009}" for number in range(count)]
    store((Document(doc_id, f"text {doc_id}") for doc_id in ids), tmp_path / "x")
    kept = StoredCorpus(tmp_path / "x")
    assert [kept[doc_id].text for doc_id in ids] == [f"text {doc_id}" for doc_id in ids]
    strangers = [
        "",
        "0000",
        "~",
        *(f"{doc_id}0" for doc_id in ids),
        *(f"{doc_id} " for doc_id in ids),
    ]
    assert [doc_id in kept for doc_id in strangers] == [doc_id in set(ids) for doc_id in strangers]


def test_the_second_opening_reads_no_document_again(tmp_path):
    place = tmp_path / "corpora" / "x"
    open_or_store(place, lambda: iter([Document("a", "one"), Document("b", "two")]))

    def unread():
        raise AssertionError("the source was read again")

    assert open_or_store(place, unread)["b"].text == "two"


SMALL = [
    f"{name}.bin" for name in ("ids", "ends", "id_ends", "order", "places", "sums")
]  # files that are read whole on opening
NOT_META = [b"[]", b"null", b'{"format": 4, "files": null}', b'{"format": 4, "files": {}}']


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *((name, b"") for name in ["meta.json", "fields.bin", *SMALL]),
        *((name, None) for name in SMALL),  # other bytes of the same number
        *(("meta.json", content) for content in NOT_META),
    ],
)
def test_a_damaged_store_is_made_again(name, content, tmp_path):
    documents = [Document(f"id-{n}", f"text {n}") for n in range(50)]
    place = tmp_path / "x"
    open_or_store(place, lambda: iter(documents))
    whole = (place / name).read_bytes()
    (place / name).write_bytes(
        whole[:-1] + bytes([whole[-1] ^ 0xFF]) if content is None else content
    )
    again = open_or_store(place, lambda: iter(documents))
    assert list(again.stream()) == documents and dict(again) == {d.doc_id: d for d in documents}
    assert StoredCorpus(place)["id-7"].text == "text 7"


def test_a_document_that_changed_on_disk_is_noticed_when_it_is_read_and_made_again(tmp_path):
    documents = [Document("a", "a nurse of the ward"), Document("b", "a ferry")]
    place = tmp_path / "x"
    open_or_store(place, lambda: iter(documents))
    fields = (place / "fields.bin").read_bytes()
    (place / "fields.bin").write_bytes(fields.replace(b"nurse", b"purse"))
    damaged = open_or_store(place, lambda: iter(documents))
    assert damaged["b"].text == "a ferry"
    with pytest.raises(DataError, match="the same command makes it again"):
        _ = damaged["a"]
    assert open_or_store(place, lambda: iter(documents))["a"].text == "a nurse of the ward"


def test_what_is_outdated_is_removed(tmp_path):
    documents = [Document("a", "one")]
    earlier = open_or_store(tmp_path / "old", lambda: iter(documents))
    open_or_store(tmp_path / "new", lambda: iter(documents))
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
    assert earlier["a"].text == "one", "who has it open goes on reading"


def test_a_home_that_cannot_be_written_costs_memory_and_no_results(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    corpus = open_or_store(tmp_path / "file" / "x", lambda: iter([Document("a", "one")]))
    assert corpus["a"].text == "one" and not isinstance(corpus, StoredCorpus)


def test_an_id_that_comes_twice_leaves_nothing_behind(tmp_path):
    with pytest.raises(DataError, match="two documents have the id 'a'"):
        open_or_store(tmp_path / "x", lambda: iter([Document("a", "one"), Document("a", "two")]))
    assert list(tmp_path.iterdir()) == []


def test_retrievers_find_in_a_stored_corpus_what_they_find_in_memory(corpus, tmp_path):
    store(corpus.values(), tmp_path / "x")
    query, stored = "why is octopus blood blue", StoredCorpus(tmp_path / "x")
    assert build("bm25", stored).search(query, k=6) == build("bm25", corpus).search(query, k=6)
