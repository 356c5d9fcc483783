"""Vectors in Chroma: an approximate index (HNSW, https://arxiv.org/abs/1603.09320) in a folder or
on a Chroma server.

For corpora that exact search is too slow for, and, with a server, for several users over one index;
up to some hundred thousand documents, exact search is the better choice.

Chroma builds with random numbers, so two builds of one index differ in a few documents; over one
index, every process finds the same. Processes cannot share a folder of Chroma's, and readers change
it, so each process reads a private copy of its small database, beside the graph's own files, which
are only read.
"""

import logging
import shutil
import sqlite3
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import chromadb
import httpx
import numpy as np
from chromadb.config import Settings
from chromadb.errors import ChromaError, InvalidArgumentError, NotFoundError

from tools import files
from tools.cli import Progress
from tools.corpus import Corpus
from tools.errors import DataError, RunIncomplete, UsageError, require_at_least
from tools.models.model_spec import is_server
from tools.records import Hit
from tools.retriever import Search
from tools.retrievers import FILLS, Value, check_same_corpus, format_expression
from tools.retrievers.index_store import index_name, open_index
from tools.retrievers.vectors.approximate_base import (
    ApproximateIndex,
    ApproximateRetriever,
    Near,
    Rows,
    Scores,
)
from tools.retrievers.vectors.embedder import (
    Embedder,
    Vectors,
    chunk_by_size,
    open_vectors,
    vectors_key,
)
from tools.retrievers.vectors.exact_search import exact_scores

T = TypeVar("T")

_FORMAT = 1  # raised when the content of an index changes its meaning
WAITS = (0.5, 1.0, 2.0, 4.0)  # seconds before a server that did not answer is asked again
TIMEOUT = 60.0  # seconds; Chroma's own client waits for ever
_BLOCK = 1000  # vectors in one call; Chroma takes at most 5,461
_QUERIES = 100  # in one call
_NAME = "vectors"  # of the one collection in a folder


class Chroma(ApproximateRetriever):
    """The documents whose vectors have the largest inner product with the query's, nearly."""

    def __init__(
        self,
        corpus: Corpus,
        home: Path | None,
        embedder: Embedder,
        *,
        url: str = "",  # of a Chroma server; without one, the index is in a folder
        ef_search: int = 400,  # documents that a search keeps in view
        ef_construction: int = 200,  # that the build keeps in view
        neighbors: int = 32,  # that each is linked to
        server: str = "",  # the version that has to answer at `url`; that which does
    ) -> None:
        graph: dict[str, Value] = {"ef_construction": ef_construction, "neighbors": neighbors}
        options: dict[str, Value] = {"ef_search": ef_search, **graph}
        self.require("", 1, {"url": url, **options})
        super().__init__(corpus, embedder)
        self._effort = ef_search
        key = {**vectors_key(embedder, corpus), "kind": "chroma", "chroma": _FORMAT, **graph}
        settings = settings_of(ef_construction, neighbors, len(corpus))
        if url:
            vectors = partial(open_vectors, embedder, corpus, home)
            self._index = ChromaServerIndex(
                url, index_name(key), settings, (server, corpus), vectors
            )
            options = {"url": url, **options, "server": self._index.whole[0]}
        else:
            made = open_vectors(embedder, corpus, home)
            key |= {"chromadb": version("chromadb")}
            self._index = open_index(
                home, key, build=partial(_build, settings, made), load=partial(_open, made)
            )
        self.name = format_expression("chroma", parts=[embedder.name], options=options)

    def _search_many(self, searches: Sequence[Search], k: int) -> list[list[Hit]]:
        found = super()._search_many(searches, k)
        if isinstance(self._index, ChromaServerIndex):
            self._index.require_whole()
        return found

    @classmethod
    def require(cls, model: str, parts: int, options: Mapping[str, Any]) -> None:
        """Refuse options that are out of range."""
        require_at_least(
            2,
            "chroma",
            **{name: options[name] for name in ("ef_search", "ef_construction", "neighbors")},
        )
        url = options["url"]
        if url and not (is_server(url) and urlsplit(url).path in ("", "/")):
            form = "as in url=http://host:8000, without password, path or query"
            raise UsageError(f"chroma: url is that of a Chroma server, {form}")


def settings_of(ef_construction: int, neighbors: int, documents: int) -> dict[str, Any]:
    """Return the arguments with which Chroma makes a collection."""
    # Documents that are not yet in the graph's files are added anew, at random, in every process.
    # So Chroma writes when the last document is in, and not every thousand.
    written = max(2, documents)
    graph = {
        "space": "ip",  # the distance is 1 - the inner product, and vectors are stored as they are
        "ef_search": 2,  # the least, see _nearest
        "ef_construction": ef_construction,
        "max_neighbors": neighbors,
        "sync_threshold": written,
        "batch_size": min(100, written),
    }
    return {"configuration": {"hnsw": graph}, "embedding_function": None}


def _nearest(collection: Any, queries: Vectors, n: int, ef_search: int) -> list[Rows]:
    nearest = list[Rows]()
    for first in range(0, len(queries), _QUERIES):
        some = queries[first : first + _QUERIES]
        # Chroma keeps at least n_results in view; so one graph serves every ef_search.
        answer = collection.query(
            query_embeddings=some, n_results=max(n, ef_search), include=["distances"]
        )
        for ids, distances in zip(answer["ids"], answer["distances"], strict=True):
            last = np.searchsorted(distances, distances[min(n, len(ids)) - 1], side="right")
            nearest.append(np.array(ids[:last], dtype=np.int64))
    return nearest


def _open(vectors: Vectors, folder: Path) -> ApproximateIndex:
    stack = ExitStack()
    private = stack.enter_context(files.temporary_folder())
    for path in (folder / "chroma").iterdir():
        if path.is_dir():
            (private / path.name).symlink_to(path.resolve())
        else:
            shutil.copy(path, private)
    client = _client(str(private))
    stack.callback(client.close)
    collection = client.get_collection(_NAME, embedding_function=None)
    if len(vectors):
        _nearest(collection, vectors[:1], 1, 1)  # reads the graph, whose files may go away now
    opened = ApproximateIndex(vectors, partial(_nearest, collection))
    weakref.finalize(opened, stack.close)
    return opened


def _build(settings: dict[str, Any], vectors: Vectors, folder: Path) -> None:
    folder = folder / "chroma"
    shutil.rmtree(folder, ignore_errors=True)  # of a build that was killed
    try:
        client = _client(str(folder))
        with closing(client):
            collection = client.create_collection(_NAME, **settings)
            progress = Progress("chroma", len(vectors))
            for block in chunk_by_size([1] * len(vectors), _BLOCK):
                ids = [str(row) for row in range(block.start, block.stop)]
                collection.add(ids=ids, embeddings=vectors[block])
                progress.add(len(ids))
        with closing(sqlite3.connect(folder / "chroma.sqlite3")) as database:
            database.execute("VACUUM")  # every vector went through it
    except (ChromaError, sqlite3.Error) as error:
        raise OSError(f"Chroma says {_line(error)}") from error


def _client(folder: str) -> Any:
    return chromadb.PersistentClient(folder, settings=Settings(anonymized_telemetry=False))


def _connected(url: str) -> Any:
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    port = parts.port or (443 if secure else 8000)
    settings = Settings(anonymized_telemetry=False)
    try:
        httpx.get(f"{url.rstrip('/')}/api/v2/heartbeat", timeout=TIMEOUT).raise_for_status()
        client = chromadb.HttpClient(parts.hostname or "", port, ssl=secure, settings=settings)
        client._server._session.timeout = TIMEOUT  # type: ignore[attr-defined]  # noqa: SLF001  # there is no setting
        return client
    except Exception as error:  # Chroma raises what it likes, ValueError for a server that is away
        raise DataError(
            f"no Chroma server answers at {url} ({_line(error)}); start it with `chroma run`"
        ) from error


class ChromaServerIndex:
    """A collection of a Chroma server, filled by its first user, and complete when its metadata has the dimension.

    Two users can fill it at once: vectors that are there stay. `whole` is looked for after every search.
    """

    def __init__(
        self,
        url: str,
        name: str,
        settings: dict[str, Any],
        whole: tuple[str, Corpus],
        vectors: Callable[[], Vectors],
    ) -> None:
        self._url = url
        self._client = _connected(url)
        (server, corpus) = whole
        self.whole = server or self._ask(self._client.get_version), corpus.fingerprint, len(corpus)
        self._collection = self._ask(self._client.get_or_create_collection, name, **settings)
        if FILLS.get() or "dimension" not in (self._collection.metadata or {}):
            made = vectors()
            try:
                self._fill(made, len(corpus))
            except RunIncomplete as outage:
                raise RunIncomplete(
                    f"{outage}; what it has is kept, and the same command goes on"
                ) from outage
        self.dimension = int(self._collection.metadata["dimension"])
        self.near: Near = partial(self._ask, _nearest, self._collection)
        self.require_whole()
        logging.getLogger("sextant").info(
            f"Chroma {self.whole[0]} at {url} answers from its collection {name}"
        )

    def require_whole(self) -> None:
        """Raise DataError where the service's version, or its number of vectors, is another one."""
        # the collection's name is that of the corpus
        corpus = self.whole[1]
        count = self._ask(self._collection.count)
        check_same_corpus(
            f"the index on {self._url}",
            (self._ask(self._client.get_version), corpus, count),
            self.whole,
        )

    def _fill(self, vectors: Vectors, documents: int) -> None:
        progress = Progress(f"chroma at {self._url}", documents)
        for block in chunk_by_size([1] * documents, _BLOCK):
            ids = [str(row) for row in range(block.start, block.stop)]
            there = set(self._ask(self._collection.get, ids=ids, include=[])["ids"])
            if missing := [row for row in ids if row not in there]:
                self._ask(
                    self._collection.add, ids=missing, embeddings=vectors[list(map(int, missing))]
                )
            progress.add(len(ids))
        self.require_whole()
        self._ask(self._collection.modify, metadata={"dimension": vectors.shape[1]})  # it is whole

    def scores(self, rows: Rows, query: Vectors) -> Scores:
        """Return the exact inner products of documents with one query, shape (rows,)."""
        scores = np.empty(len(rows))
        for block in chunk_by_size([1] * len(rows), _BLOCK):
            vectors = self._vectors(rows[block])
            scores[block] = exact_scores(vectors, np.arange(len(vectors)), query)
        return scores

    def _vectors(self, rows: Rows) -> Vectors:
        ids = [str(row) for row in rows.tolist()]
        answer = self._ask(self._collection.get, ids=ids, include=["embeddings"])
        place = {row: i for i, row in enumerate(answer["ids"])}  # in an order of Chroma's
        if len(place) < len(ids):
            raise DataError(
                f"the index on {self._url} has lost {len(ids) - len(place)} vectors; delete it "
                f"there"
            )
        vectors: Vectors = np.asarray(answer["embeddings"], dtype=np.float32)[
            [place[row] for row in ids]
        ]
        return vectors

    def _ask(self, call: Callable[..., T], *arguments: Any, **options: Any) -> T:
        for wait in (*WAITS, None):
            try:
                return call(*arguments, **options)
            except (InvalidArgumentError, NotFoundError) as error:
                raise DataError(
                    f"the index on {self._url} does not fit or was deleted: {_line(error)}"
                ) from error
            except Exception as error:  # Chroma raises what it likes
                if wait is None:
                    raise RunIncomplete(
                        f"the Chroma server at {self._url} does not answer: {_line(error)}"
                    ) from error
                time.sleep(wait)
        raise AssertionError  # the last wait is None


def _line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).partition("\n")[0]
