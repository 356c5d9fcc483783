"""Compilations that take long."""

import gc
import json

import pytest

from sextant.tools.corpus import Corpus
from sextant.tools.retrievers.lexical.bm25 import BM25
from sextant.tools.session import Toolbox


def counted():
    """Corpora, indexes and toolboxes in memory, garbage that nobody has collected yet included."""
    gc.unfreeze()  # what a run has frozen, which is listed nowhere
    kinds = dict.fromkeys((Corpus, BM25, Toolbox), 0)
    for one in gc.get_objects():
        if type(one) in kinds:
            kinds[type(one)] += 1
    return list(kinds.values())


@pytest.mark.parametrize("optimizer", ["bootstrap_rs", "mipro", "gepa", "simba"])
def test_no_optimizer_copies_the_corpus_or_an_index(optimizer, compiles, monkeypatch):
    opened, counts = [], []
    whole = Toolbox.open

    def watched(toolbox, query, *snapshot):
        opened.append(id(toolbox))
        if len(opened) in (1, 10, 20):
            counts.append(counted())
        return whole(toolbox, query, *snapshot)

    gc.collect()
    before = counted()
    monkeypatch.setattr(Toolbox, "open", watched)
    option = {"gepa": "evaluations=6", "simba": "steps=2"}.get(optimizer, "candidates=4")
    assert compiles("-P", "hops=1", "-P", "per_hop=5", "-O", option, optimizer=optimizer).code == 0
    assert len(set(opened)) == 1 and len(counts) == 3  # one toolbox for all rollouts
    for count in counts:
        corpora, indexes, toolboxes = (now - then for now, then in zip(count, before, strict=True))
        # Of dev and of test, which was read to leave out what repeats it; and the empty one that checks are made with.
        assert 1 <= corpora <= 3
        assert indexes == 1
        assert 1 <= toolboxes <= 3


TUNED = ("--range", "rerank=0|20", "-P", "hops=2")  # which gains on the miniature


def test_a_budget_too_small_for_the_held_out_answer_shows_what_was_compiled(compiles, tmp_path):
    whole = compiles(*TUNED, optimizer="tune", runs=tmp_path / "whole")
    learnt = json.loads(next((tmp_path / "whole").rglob("learnt.json")).read_text())
    assert whole.code == 0 and learnt["kept"] == "compiled"
    calls = learnt["usage"]["calls"]
    for budget in (calls, calls + 50):
        result = compiles(*TUNED, "--held-out", "--budget-calls", budget, optimizer="tune")
        assert (
            result.code == 8
            and "the best on validation is kept" in result.out
            and "take it up with" in result.out
        )
        [error] = [line for line in result.err.splitlines() if line.startswith("error: ")]
        assert f"on the test split: the budget of {budget} model calls is used up" in error
        assert "the best so far is in" in error and "with a larger budget" in error
        assert any(file.endswith("compiled.json") for file in result.files)


def test_the_held_out_answer_is_in_the_one_metric_that_was_chosen_by(compiles):
    result = compiles(*TUNED, "--held-out", "--json", optimizer="tune")
    found = json.loads(result.out)
    assert [row["metric"] for row in found["held_out"][0]["comparisons"]] == ["nDCG@10"]
    assert found["looks"] == 2
