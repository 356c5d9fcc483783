"""Every registered kind of retriever against one contract. What a kind computes is checked in a file of its own."""

from importlib.util import find_spec

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import bert

from sextant.tools import retrievers
from sextant.tools.models.run_resources import RunResources
from sextant.tools.records import Query
from sextant.tools.retrievers import RETRIEVERS, canonicalize, contract
from sextant.tools.retrievers.base import Ranker
from sextant.tools.session import Toolbox

# MODEL is a tiny model of the right family, made on the spot; SERVER a server that speaks the OpenAI protocol.
SPECS = [
    *(
        "bm25",
        "bm25(analyzer=english,k1=1.2)",
        "bm25s",
        "rank_bm25",
        "pool_bm25",
        "dense(search=int8)",
        "dense:MODEL",
    ),
    *("api:SERVER", "chroma:dense:MODEL", "splade:MODEL", "late:MODEL", "cross:MODEL"),
    *("fusion(bm25,dense:MODEL,weights=[2,1])", "fusion(bm25,rank_bm25,method=scores)"),
    *("rerank(bm25,cross:MODEL,depth=3)", "lens(bm25,attribute=stance)"),
    "lens(dense:MODEL,attribute=authorship,query=true)",
]
# They want a server, processes, or an extra: test_http.py, and test_milvus.py and test_sharded.py under tests/soak.
ELSEWHERE = ("http", "sharded", "ann", "milvus", "milvus_vectors")
SPECS += ["ann:dense:MODEL"] * bool(find_spec("faiss"))
SPECS += [
    kind for kind in RETRIEVERS if kind not in ELSEWHERE and not any(kind in text for text in SPECS)
]
# These have a score for every document; the others may rank only documents that share a word with the text.
SCORE_ALL = (
    "rank_bm25",
    "dense",
    "api",
    "ann",
    "chroma",
    "late",
    "cross",
    "fusion",
    "rerank(fusion",
    "lens(dense",
)


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    home = tmp_path_factory.mktemp("models")
    return {
        "splade": bert(home / "splade", head="BertForMaskedLM"),
        "cross": bert(home / "cross", head="BertForSequenceClassification"),
        **dict.fromkeys(("ann", "dense", "late", "chroma"), bert(home / "bert")),
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
def test_every_kind_keeps_the_contract_of_retrievers(spec):
    assert {holds: wrong for holds, wrong in contract.run(canonicalize(spec)) if wrong} == {}


@pytest.mark.parametrize("spec", SPECS, indirect=True)
def test_scores_are_what_the_kind_of_score_promises(spec, corpus):
    retriever = retrievers.build(spec, corpus, resources=RunResources())
    whole = {hit.doc_id: hit.score for hit in retriever.search("blue blood octopus", 100)}
    assert len(whole) == len(corpus) or not spec.startswith(SCORE_ALL)
    if not spec.startswith(
        ("pool_bm25", "fusion", "rerank", "lens")
    ):  # whose scores depend on what they rank
        hits = retriever.search("blue blood octopus", 6, among={"d1", "d2", "d5"})
        assert hits and all(whole[hit.doc_id] == hit.score for hit in hits)


@pytest.mark.parametrize("spec", SPECS, indirect=True)
def test_pages_of_a_ranking_are_one_deep_search(spec, corpus):
    retriever = retrievers.build(spec, corpus, resources=RunResources())
    deep = retriever.search("blue blood octopus", 1000)
    session = Toolbox(corpus, retriever).open(Query("q", "q"))
    session.kept_depth = 1000
    found = session.search("blue blood octopus", 2)
    while page := session.more("blue blood octopus", len(found) + 1, 2):
        found += page
    assert [(hit.doc_id, hit.score) for hit in found] == [*deep]


@pytest.mark.parametrize("spec", SPECS, indirect=True)
def test_a_kept_index_is_not_made_again(spec, corpus, tmp_path, server):
    for _ in range(2):
        kept, asked = _contents(tmp_path), len(server.requests)
        retrievers.build(spec, corpus, tmp_path, resources=RunResources()).search(
            "blue blood octopus", k=6
        )
    assert _contents(tmp_path) == kept
    assert len(server.requests) - asked <= 1, "the query alone"


def _contents(folder):
    return sorted(
        (path.relative_to(folder), path.stat().st_mtime_ns) for path in folder.rglob("index.json")
    )


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(1, 70))
def test_the_cut_is_that_of_a_full_sort(scores, k):
    doc_ids = [f"d{(7 * n) % 61:02}" for n in range(len(scores))]
    expected = sorted(zip(doc_ids, scores, strict=True), key=lambda pair: (-pair[1], pair[0]))[:k]
    hits = Ranker(doc_ids).top(np.array(scores, dtype=float), k)
    assert [(hit.doc_id, hit.score) for hit in hits] == expected
