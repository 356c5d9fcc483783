"""Vectors in Chroma: an approximate index (HNSW, https://arxiv.org/abs/1603.09320) in a folder or on a Chroma server.

For corpora that exact search is too slow for, and, with a server, for several users over one index. Only which
documents are looked at is approximate: those that Chroma finds are scored exactly, and where its graph does not find
enough, all documents that may come back are. Up to some hundred thousand documents, exact search is the better choice.

Chroma draws random numbers when it builds, so two builds of one index differ in a few documents; over one index, every
process finds the same. A folder of Chroma's is neither safe to share between processes nor left alone by a reader, so
each process reads a private copy of its small database, beside the graph's own files, which are only read.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from tools.corpus import Corpus
from tools.errors import UsageError
from tools.models.sending.servers import is_server
from tools.records import Hit
from tools.retriever import Ranker, Retriever, Search
from tools.retrievers.spec import Value, spell
from tools.retrievers.store import name_of
from tools.retrievers.vectors.embedding import Embedder, Vectors, embed_queries, open_vectors, vectors_key

Rows = NDArray[np.int64]  # positions in the corpus

_FORMAT = 1  # raised when what is put into Chroma changes its meaning


class Chroma(Retriever):
    """The documents whose vectors have the largest inner product with the query's, nearly."""

    def __init__(
        self,
        corpus: Corpus,
        home: Path | None,
        embedder: Embedder,
        *,
        url: str = "",
        ef_search: int = 400,
        ef_construction: int = 200,
        neighbors: int = 32,
    ) -> None:
        """`ef_search` and `ef_construction` are how many documents a search, and the build, keep in view; `neighbors`
        how many each document is linked to. `url` is that of a Chroma server; without one, the index is in a folder.
        """
        graph: dict[str, Value] = {"ef_construction": ef_construction, "neighbors": neighbors}
        options: dict[str, Value] = {"ef_search": ef_search, **graph}
        self.require("", 1, {"url": url, **options})
        self.name = spell("chroma", parts=[embedder.name], options={"url": url, **options} if url else options)
        self._ef_search = ef_search
        self._embedder = embedder
        self._ranker = Ranker(corpus.doc_ids)
        key = {**vectors_key(embedder, corpus), "kind": "chroma", "chroma": _FORMAT, **graph}
        from tools.retrievers.vectors.chroma_index import FolderIndex, ServerIndex, settings_of  # imports chromadb

        settings = settings_of(ef_construction, neighbors, len(corpus))

        def vectors() -> Vectors:
            return open_vectors(embedder, corpus, home)

        self._index: FolderIndex | ServerIndex
        if url:
            self._index = ServerIndex(url, name_of(key), settings, len(corpus), vectors)
        else:
            self._index = FolderIndex(home, key, settings, vectors())

    @classmethod
    def require(cls, model: str, parts: int, options: Mapping[str, Any]) -> None:
        """Refuse options that are out of range."""
        for name in ("ef_search", "ef_construction", "neighbors"):
            if options[name] < 2:
                raise UsageError(f"chroma: {name} is {options[name]}; it is a whole number of at least 2")
        url = options["url"]
        if url and not (is_server(url) and urlsplit(url).path in ("", "/")):
            raise UsageError(
                "chroma: url is that of a Chroma server, as in url=http://host:8000, without password, path or query"
            )

    def left_out(self, text: str, instruction: str = "") -> int:
        """How many tokens at the end of `text` are more than the embedder's model takes."""
        return self._embedder.left_out(text, instruction)

    def _search_many(self, searches: Sequence[Search], k: int) -> list[list[Hit]]:
        queries = embed_queries(self._embedder, searches, self._index.dimension)
        found = self._found(searches, queries, k)
        return [self._hits(*one, k) for one in zip(searches, queries, found, strict=True)]

    def _found(self, searches: Sequence[Search], queries: Vectors, k: int) -> list[Rows | None]:
        """Ask the graph for each search, and leave out what is excluded; None where it does not find enough.

        What it is asked for one search depends on nothing but that search, so that its hits do not either.
        """
        excluded = [self._ranker.rows(search.excluded) for search in searches]
        asked = defaultdict[int, list[int]](list)
        for i, search in enumerate(searches):
            wanted = k + len(excluded[i])  # those that may not come back take places
            if search.among is None and 2 * max(wanted, self._ef_search) < len(self._ranker):
                asked[wanted].append(i)
        found: list[Rows | None] = [None] * len(searches)
        for wanted, some in asked.items():
            for i, near in zip(some, self._index.near(queries[some], wanted, self._ef_search), strict=True):
                left = np.setdiff1d(near, excluded[i])
                if len(left) >= k:  # a graph may be in parts, of which a search sees one
                    found[i] = left
        return found

    def _hits(self, search: Search, query: Vectors, found: Rows | None, k: int) -> list[Hit]:
        """The best `k` of what was found, or of all that may come back, by their exact scores."""
        if found is None:
            allowed = self._ranker.allowed(search.excluded, search.among)
            found = np.arange(len(self._ranker)) if allowed is None else np.flatnonzero(allowed)
        return self._ranker.hits(found, self._index.scores(found, query), k)
