"""Every registered kind of retriever against one contract. What a kind computes is checked in a file of its own."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import bert

from tools import retrievers
from tools.corpus import Corpus
from tools.models.terms import Terms
from tools.records import Document
from tools.retriever import Ranker, Search
from tools.retrievers import RETRIEVERS, check, parse

# MODEL is a tiny model of the right family, made on the spot; SERVER a server that speaks the OpenAI protocol.
SPECS = [
    *("bm25", "bm25(analyzer=english,k1=1.2)", "bm25s", "rank_bm25", "pool_bm25", "dense(search=int8)", "dense:MODEL"),
    *("api:SERVER", "chroma:dense:MODEL", "splade:MODEL", "late:MODEL", "cross:MODEL"),
    *("fusion(bm25,dense:MODEL,weights=[2,1])", "fusion(bm25,rank_bm25,method=scores)"),
    *("rerank(bm25,cross:MODEL,depth=3)", "lens(bm25,attribute=stance)"),
    "lens(dense:MODEL,attribute=authorship,query=true)",
]
QUERIES = [
    "blue blood octopus",
    "heart",
    "why is the blood of an octopus blue blue blood",
    "blue heart heart of a giraffe",
]
SPECS += [kind for kind in RETRIEVERS if not any(kind in text for text in SPECS)]  # by its name alone, and so tested
# These have a score for every document; the others may rank only documents that share a word with the text.
SCORE_ALL = ("rank_bm25", "dense", "api", "chroma", "late", "cross", "fusion", "rerank(fusion", "lens(dense")


def build(spec, corpus, home=None):
    return retrievers.build(spec, corpus, home, terms=Terms())


BUILT = {}


def in_memory(spec, corpus):
    """A retriever over the corpus of all tests, built once, for tests that only search."""
    if spec not in BUILT:
        BUILT[spec] = build(spec, corpus)
    return BUILT[spec]


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    home = tmp_path_factory.mktemp("models")
    return {
        "splade": bert(home / "splade", head="BertForMaskedLM"),
        "cross": bert(home / "cross", head="BertForSequenceClassification"),
        **dict.fromkeys(("dense", "late", "chroma"), bert(home / "bert")),
    }


@pytest.fixture
def spec(request, models, server):
    text = request.param
    for kind, folder in models.items():
        text = text.replace(f"{kind}:MODEL", f"{kind}:{folder}").replace(
            f"{kind}:dense:MODEL", f"{kind}:dense:{folder}"
        )
    return text.replace("SERVER", server.spec)


@pytest.mark.parametrize("spec", SPECS, indirect=True)
class TestContract:
    def test_hits_come_best_first_and_at_most_k(self, spec, corpus):
        hits = in_memory(spec, corpus).search("blue blood octopus", k=3)
        assert len(hits) == 3
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
        assert all(np.isfinite(hit.score) for hit in hits)

    def test_exclusion_happens_before_the_cut(self, spec, corpus):
        retriever = in_memory(spec, corpus)
        best = retriever.search("blue blood", k=1)[0].doc_id
        hits = retriever.search("blue blood", k=2, excluded={best, "unheard of"})
        assert best not in [hit.doc_id for hit in hits]
        assert len(hits) == 2

    def test_a_pool_is_ranked_alone_and_whole(self, spec, corpus):
        pool = {"d5", "d1", "d3", "unheard of"}
        retriever = in_memory(spec, corpus)
        hits = retriever.search("blue blood heart", k=6, among=pool, excluded={"d1"})
        assert {hit.doc_id for hit in hits} == {"d5", "d3"}
        assert retriever.search("blue blood heart", k=6, among=()) == []

    def test_more_than_the_corpus_has_may_be_asked_for(self, spec, corpus):
        hits = in_memory(spec, corpus).search("blood", k=100)
        assert len({hit.doc_id for hit in hits}) == len(hits) <= len(corpus)
        if spec.startswith(SCORE_ALL):
            assert len(hits) == len(corpus)

    @pytest.mark.parametrize(("text", "k"), [(" \n\t", 6), ("blood", 0), ("blood", -1)])
    def test_a_blank_text_finds_nothing_and_no_documents_are_none(self, spec, corpus, text, k):
        assert in_memory(spec, corpus).search(text, k=k) == []

    def test_a_text_of_unknown_signs_is_no_error(self, spec, corpus):
        texts = ("?!", "zyzzyva", "\x00", "ﬁ ℵ 血", "a" * 5000, "\udcff lone half")
        odd = [Document(f"odd{n}", text) for n, text in enumerate(texts)]
        retriever = build(spec, Corpus([*corpus.values(), *odd]))
        for text in texts:
            retriever.search(text, k=6)

    def test_a_batch_and_threads_give_what_one_search_gives_to_the_last_digit(self, spec, corpus):
        retriever = in_memory(spec, corpus)
        pool = {"d1", "d2", "d5"}
        narrowed = [Search(""), Search(QUERIES[0], excluded={"d1"}), Search(QUERIES[0], among=pool)]
        searches = [Search(text) for text in QUERIES] + narrowed
        alone = [retriever.search(search.text, 5, excluded=search.excluded, among=search.among) for search in searches]
        assert retriever.search_many(searches, 5) == alone
        assert retriever.search_many(searches[::-1], 5) == alone[::-1]
        with ThreadPoolExecutor(4) as threads:
            assert list(threads.map(lambda search: retriever.search_many([search], 5)[0], searches)) == alone
        if not spec.startswith(("pool_bm25", "fusion", "rerank", "lens")):  # whose scores depend on what they rank
            whole = {hit.doc_id: hit.score for hit in retriever.search(QUERIES[0], 6)}
            assert alone[-1] and all(whole[hit.doc_id] == hit.score for hit in alone[-1])

    def test_ties_are_in_the_order_of_the_doc_ids(self, spec, corpus):
        same = [Document(doc_id, "the blood of an octopus is blue") for doc_id in ("z", "b", "y", "a", "c")]
        hits = build(spec, Corpus([*same, *corpus.values()])).search("blue octopus blood", k=11)
        tied = [hit for hit in hits if hit.doc_id in ("z", "b", "y", "a", "c")]
        order = [hit.doc_id for hit in tied]
        if "rank_bm25" in spec and not spec.startswith("rerank"):  # the later one goes first, as in the library
            order.sort()
        assert order == ["a", "b", "c", "y", "z"]
        if not spec.startswith(("fusion", "rerank", "lens")):
            assert len({hit.score for hit in tied}) == 1

    def test_its_name_means_the_same_retriever(self, spec, corpus):
        retriever = in_memory(spec, corpus)
        again = build(check(retriever.name), corpus)
        assert again.name == retriever.name == str(parse(retriever.name))
        assert again.search(QUERIES[0], 5) == retriever.search(QUERIES[0], 5)

    def test_a_home_that_cannot_be_written_costs_no_results(self, spec, corpus, tmp_path):
        (tmp_path / "file").write_text("not a folder")
        assert build(spec, corpus, tmp_path / "file").search("blue blood", k=1) == in_memory(spec, corpus).search(
            "blue blood", 1
        )

    def test_kept_indexes_give_the_same_hits_and_another_corpus_gets_its_own(self, spec, corpus, tmp_path, server):
        fresh = in_memory(spec, corpus).search("blue blood octopus", k=6)
        assert build(spec, corpus, tmp_path).search("blue blood octopus", k=6) == fresh
        kept = _contents(tmp_path)
        asked = len(server.requests)
        assert build(spec, corpus, tmp_path).search("blue blood octopus", k=6) == fresh
        assert _contents(tmp_path) == kept
        assert len(server.requests) - asked <= 1, "the query alone"
        texts = [document.text for document in corpus.values()]
        changed = Corpus(map(Document, corpus, [*texts[1:], texts[0]]))  # each id has the text of the next
        after = build(spec, changed, tmp_path).search("blue blood octopus", k=6)
        assert after == build(spec, changed).search("blue blood octopus", k=6) != fresh


def _contents(folder):
    return sorted((path.relative_to(folder), path.stat().st_mtime_ns) for path in folder.rglob("index.json"))


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(1, 70))
def test_the_cut_is_that_of_a_full_sort(scores, k):
    doc_ids = [f"d{(7 * n) % 61:02}" for n in range(len(scores))]
    expected = sorted(zip(doc_ids, scores, strict=True), key=lambda pair: (-pair[1], pair[0]))[:k]
    hits = Ranker(doc_ids).top(np.array(scores, dtype=float), k)
    assert [(hit.doc_id, hit.score) for hit in hits] == expected
