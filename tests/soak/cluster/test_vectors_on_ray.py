"""Vectors that a Ray cluster makes are those of one machine."""

from itertools import islice

import numpy as np
import pytest
import tiny_models

from sextant.tools.corpus import Corpus, open_or_store
from sextant.tools.records import Document
from sextant.tools.retrievers.neural.dense import SentenceEmbedder
from sextant.tools.retrievers.vectors import embedder as embedding

TEXTS = [
    f"Octopus {n} has {n * n % 9973} hearts, " + "and blue blood, " * (n % 5) for n in range(7000)
]  # four blocks


@pytest.fixture
def corpus(tmp_path):
    return open_or_store(
        tmp_path / "corpus", lambda: [Document(str(n), text) for n, text in enumerate(TEXTS)]
    )


def test_vectors_of_a_cluster_are_those_of_one_machine_also_when_the_first_job_was_killed(
    tmp_path, monkeypatch, cluster, corpus
):
    from sextant.evals.running.workers.ray_workers import starting

    model = tiny_models.bert(tmp_path / "model")
    here = np.array(embedding.open_vectors(SentenceEmbedder(str(model)), corpus, tmp_path / "here"))
    asked = []

    def killed(embedder, corpus, blocks):
        blocks = list(blocks)
        asked.append([first for first, _ in blocks])
        made = make(embedder, corpus, blocks[1:3] if len(asked) == 1 else blocks)
        yield from islice(made, 2)
        if len(asked) == 1:
            raise KeyboardInterrupt

    with starting("ray"):
        make = embedding.ELSEWHERE.get()
        monkeypatch.setattr(embedding, "ELSEWHERE", type("", (), {"get": lambda: killed}))
        with pytest.raises(KeyboardInterrupt):
            embedding.open_vectors(SentenceEmbedder(str(model)), corpus, tmp_path / "there")
        there = np.array(
            embedding.open_vectors(SentenceEmbedder(str(model)), corpus, tmp_path / "there")
        )
    assert asked == [[0, 2048, 4096, 6144], [0, 6144]]
    assert np.array_equal(here.view(np.uint32), there.view(np.uint32))


def test_a_text_that_the_model_fails_on_is_told_of_in_one_line(tmp_path, cluster):
    from sextant.evals.running.workers.ray_workers import starting
    from sextant.tools.errors import DataError

    class Failing:
        name = "failing"

        def documents(self, texts, done):
            raise ValueError("no such word")

    with starting("ray"), pytest.raises(DataError, match="failing failed on the Ray cluster"):
        list(embedding.ELSEWHERE.get()(Failing(), Corpus([Document("1", "a")]), [(0, ["1"])]))
