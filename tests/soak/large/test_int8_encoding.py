"""Encoding with eight bits: near the exact vectors, whatever the batch."""

import logging

import numpy as np
import tiny_models

from sextant.tools.retrievers.neural.dense import SentenceEmbedder


def test_eight_bits_are_near_the_exact_vectors_and_do_not_depend_on_the_batch(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    texts = [*tiny_models.TEXTS, " ".join(tiny_models.TEXTS)]
    embedder = SentenceEmbedder(encoder="int8", home=tmp_path)
    vectors = embedder.documents(texts)
    cosines = (vectors * SentenceEmbedder().documents(texts)).sum(axis=1)
    assert cosines.min() > 0.985 and cosines.mean() > 0.99
    assert cosines.max() < 1 - 1e-6  # it is not the float32 model that ran
    assert np.array_equal(vectors, [embedder.documents([text])[0] for text in texts])
    assert "encoder=int8" in embedder.name and embedder.key() != SentenceEmbedder().key()
    [kept] = (tmp_path / "indexes").glob("encoder-*")
    assert sum(file.stat().st_size for file in kept.iterdir()) < 75e6
    assert not caplog.records
