"""The engines behind `Session.search`, by name: `build("bm25", corpus, home)`."""

from pathlib import Path
from typing import TYPE_CHECKING

from tools.corpus import Corpus
from tools.table import pick

if TYPE_CHECKING:  # NumPy is behind it, and a command's --help lists the names below
    from tools.retrievers.base import Retriever

# To add one: a file with a class that is made of (corpus, home) and satisfies Retriever, named here.
RETRIEVERS = {
    "bm25": "tools.retrievers.bm25:BM25",
    "rank_bm25": "tools.retrievers.rank_bm25:RankBM25",
    "pool_bm25": "tools.retrievers.pool_bm25:PoolBM25",
    "dense": "tools.retrievers.dense:Dense",
}


def build(name: str, corpus: Corpus, home: Path | None = None) -> "Retriever":
    """The retriever called `name` over `corpus`; its index is kept under `home`, or not kept when None."""
    retriever: Retriever = pick("retriever", name, RETRIEVERS)(corpus, home)
    return retriever
