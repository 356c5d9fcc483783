"""An approximate index: what it finds is scored exactly, and how much it finds is measured and said."""

import re

import numpy as np
import pytest
from test_exact_search import Digests, documents

from sextant.evals.scoring.scored_run import name_retriever
from sextant.tools.errors import DataError
from sextant.tools.retrievers.vectors.ann import Ann
from sextant.tools.retrievers.vectors.embedder import open_vectors
from sextant.tools.retrievers.vectors.exact_search import VectorRetriever

pytest.importorskip("faiss")  # an extra


@pytest.fixture(scope="module")
def corpus():
    return documents([f"text {n % 2_990}" for n in range(3_000)])  # ten texts are there twice


def test_recall_is_that_of_brute_force_and_a_part_of_the_name(corpus, tmp_path):
    found = Ann(corpus, tmp_path, Digests(), nprobe=10)
    [(ten, hundred)] = re.findall(r"recall=\[([\d.]+),([\d.]+)\]", found.name)
    made = np.asarray(open_vectors(Digests(), corpus, tmp_path), dtype=np.float64)
    shares = []
    for row in range(0, 3_000, 15):
        scores = made @ made[row]
        scores[row] = -np.inf
        hits = found.search(f"text {row % 2_990}", 11)
        near = [scores[int(hit.doc_id[1:])] for hit in hits]
        shares.append(sum(near >= np.sort(scores)[-10] - 1e-9) / 10)
    assert 0.2 < float(ten) < 0.95 and float(hundred) < 0.95
    assert float(ten) == pytest.approx(np.mean(shares), abs=0.06), "of another sample"
    config = {"retriever": {"name": "ann:dense", "with": f"fusion(bm25,{found.name})"}}
    assert name_retriever(config) == f"ann:dense (recall@10 {ten}, recall@100 {hundred})"


def test_what_is_found_has_exact_scores_and_all_lists_give_the_exact_ranking(corpus, tmp_path):
    whole = VectorRetriever(corpus, tmp_path, Digests(), "digests")
    some, every = (
        Ann(corpus, tmp_path, Digests(), nprobe=2),
        Ann(corpus, tmp_path, Digests(), nprobe=46),
    )
    exact = {hit.doc_id: hit.score for hit in whole.search("a query", 3_000)}
    assert all(exact[hit.doc_id] == hit.score for hit in some.search("a query", 20))
    assert every.search("a query", 20) == whole.search("a query", 20)
    assert "recall=[1.0," in every.name and some.name != every.name
    assert len(list(tmp_path.glob("indexes/ann-*"))) == 1, "the lists are those of every nprobe"


def test_an_index_that_finds_less_than_is_asked_for_is_refused(corpus, tmp_path):
    with pytest.raises(DataError, match=r"less than \(0.99,\); raise nprobe"):
        Ann(corpus, tmp_path, Digests(), nprobe=1, recall=(0.99,))
