"""Vectors in Chroma: an approximate index (HNSW, https://arxiv.org/abs/1603.09320) in a folder or
on a Chroma server.

It is for corpora that are too large for exact search and, with a server, for an index that several
users share. Up to some hundred thousand documents, exact search is the better choice.

Chroma builds with random numbers, so two builds of an index differ in a few documents. Over the
same index, every process finds the same. Processes cannot share a folder of Chroma, and readers
change it. So each process reads a private copy of its small database, next to the files of the
graph, which are only read.
"""

import logging
import shutil
import sqlite3
import time
import weakref
from collections.abc import Callable
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

from sextant.tools.corpus import Corpus
from sextant.tools.errors import DataError, RunIncomplete, UsageError, require_at_least
from sextant.tools.models.model_spec import is_server
from sextant.tools.platform import files
from sextant.tools.platform.cli import Progress
from sextant.tools.platform.number_format import plural
from sextant.tools.records import Hits, JsonObject
from sextant.tools.retrievers import FILLS, ServiceState, check_same_corpus
from sextant.tools.retrievers.base import Options, Searches
from sextant.tools.retrievers.expressions import Value, format_expression
from sextant.tools.retrievers.index_store import index_name, open_index
from sextant.tools.retrievers.vectors.approximate_base import (
    ApproximateIndex,
    ApproximateRetriever,
    Near,
    Rows,
    Scores,
)
from sextant.tools.retrievers.vectors.embedder import (
    Embedder,
    Vectors,
    chunk_by_size,
    open_vectors,
    vectors_key,
)
from sextant.tools.retrievers.vectors.exact_search import exact_scores

T = TypeVar("T")

_FORMAT = 1  # raised when the content of an index changes its meaning
WAITS = (0.5, 1.0, 2.0, 4.0)  # seconds before a server that did not answer is asked again
TIMEOUT = 60.0  # seconds; Chroma's own client waits for ever
_BLOCK = 1000  # vectors in a call; Chroma takes at most 5,461
_QUERIES = 100  # in a call
_NAME = "vectors"  # of the only collection in a folder


class Chroma(ApproximateRetriever):
    """Searches a Chroma index for vectors with the largest inner products, approximately."""

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
        server: str = "",
    ) -> None:
        """Open or build the index.

        `url` is the address of a Chroma server; if it is empty, the index is in a folder.
        `ef_search` documents are candidates of a search, `ef_construction` of an insertion, and
        each document has links to `neighbors` others. `server` is the version that has to answer
        at `url`; by default the version that does.
        """
        graph: dict[str, Value] = {"ef_construction": ef_construction, "neighbors": neighbors}
        options: dict[str, Value] = {"ef_search": ef_search, **graph}
        self.require("", 1, {"url": url, **options})
        super().__init__(corpus, embedder)
        self._effort = ef_search
        key = {
            **vectors_key(embedder, corpus),
            "kind": "chroma",
            "chroma": _FORMAT,
            **graph,
        }
        settings = settings_of(ef_construction, neighbors, len(corpus))
        if url:
            vectors = partial(open_vectors, embedder, corpus, home)
            self._index = ChromaServerIndex(
                url, index_name(key), settings, (server, corpus), vectors
            )
            options = {
                "url": url,
                **options,
                "server": self._index.whole.version,
            }
        else:
            embedded = open_vectors(embedder, corpus, home)
            key |= {"chromadb": version("chromadb")}
            self._index = open_index(
                home,
                key,
                build=partial(_build, settings, embedded),
                load=partial(_open, embedded),
            )
        self.name = format_expression(
            "chroma",
            parts=[embedder.name],
            options=options,
        )

    def _search_many(self, searches: Searches, k: int) -> list[Hits]:
        hits = super()._search_many(searches, k)
        if isinstance(self._index, ChromaServerIndex):
            self._index.require_whole()
        return hits

    @classmethod
    def require(
        cls,
        model: str,
        part_count: int,
        options: Options,
    ) -> None:
        """Refuse options that are out of range."""
        names = ("ef_search", "ef_construction", "neighbors")
        require_at_least(2, "chroma", **{name: options[name] for name in names})
        url = options["url"]
        if url and not (is_server(url) and urlsplit(url).path in ("", "/")):
            raise UsageError(
                "chroma: url is that of a Chroma server, as in url=http://host:8000, without "
                "password, path or query"
            )


def settings_of(ef_construction: int, neighbors: int, documents: int) -> JsonObject:
    """Return the arguments with which Chroma makes a collection."""
    # Every process adds documents again, at random, that are not yet in the files of the graph.
    # So Chroma writes when the last document is in, and not every thousand.
    written = max(2, documents)
    return {
        "configuration": {
            "hnsw": {
                # The distance is 1 - the inner product, and vectors are stored as they are.
                "space": "ip",
                # The minimum; see _nearest.
                "ef_search": 2,
                "ef_construction": ef_construction,
                "max_neighbors": neighbors,
                "sync_threshold": written,
                "batch_size": min(100, written),
            }
        },
        "embedding_function": None,
    }


def _nearest(
    collection: Any,
    queries: Vectors,
    n: int,
    ef_search: int,
) -> list[Rows]:
    nearest = []
    for first in range(0, len(queries), _QUERIES):
        # Chroma has at least n_results candidates, so a graph serves every ef_search.
        answer = collection.query(
            query_embeddings=queries[first : first + _QUERIES],
            n_results=max(n, ef_search),
            include=["distances"],
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
        # This reads the graph, so its files may go away from now on.
        _nearest(collection, vectors[:1], 1, 1)
    index = ApproximateIndex(vectors, partial(_nearest, collection))
    weakref.finalize(index, stack.close)
    return index


def _build(settings: JsonObject, vectors: Vectors, folder: Path) -> None:
    folder = folder / "chroma"
    # The remains of a build that was killed.
    shutil.rmtree(folder, ignore_errors=True)
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
            # Every vector went through the database.
            database.execute("VACUUM")
    except (ChromaError, sqlite3.Error) as error:
        raise OSError(f"Chroma says {_line(error)}") from error


def _client(folder: str) -> Any:
    return chromadb.PersistentClient(folder, settings=Settings(anonymized_telemetry=False))


def _connected(url: str) -> Any:
    address = urlsplit(url)
    secure = address.scheme == "https"
    port = address.port or (443 if secure else 8000)
    settings = Settings(anonymized_telemetry=False)
    try:
        httpx.get(f"{url.rstrip('/')}/api/v2/heartbeat", timeout=TIMEOUT).raise_for_status()
        client = chromadb.HttpClient(
            address.hostname or "",
            port,
            ssl=secure,
            settings=settings,
        )
        # There is no setting for the timeout.
        client._server._session.timeout = TIMEOUT  # type: ignore[attr-defined]  # noqa: SLF001
        return client
    except Exception as error:  # any; ValueError if no server answers
        raise DataError(
            f"no Chroma server answers at {url} ({_line(error)}); start it with `chroma run`"
        ) from error


class ChromaServerIndex:
    """A collection of a Chroma server, filled by its first user.

    It is complete when its metadata has the dimension. Two users can fill it at once: vectors that are there stay.
    After every search its state is compared with `whole`.
    """

    def __init__(
        self,
        url: str,
        name: str,
        settings: JsonObject,
        expected: tuple[str, Corpus],
        vectors: Callable[[], Vectors],
    ) -> None:
        self._url = url
        self._client = _connected(url)
        server, corpus = expected
        server_version = server or self._ask(self._client.get_version)
        self.whole = ServiceState(server_version, corpus.fingerprint, len(corpus))
        self._collection = self._ask(self._client.get_or_create_collection, name, **settings)
        if FILLS.get() or "dimension" not in (self._collection.metadata or {}):
            embedded = vectors()
            try:
                self._fill(embedded, len(corpus))
            except RunIncomplete as outage:
                raise RunIncomplete(
                    f"{outage}; what it has is kept, and the same command goes on"
                ) from outage
        self.dimension = int(self._collection.metadata["dimension"])
        self.near: Near = partial(self._ask, _nearest, self._collection)
        self.require_whole()
        logging.getLogger("sextant").info(
            f"Chroma {self.whole.version} at {url} answers from its collection {name}"
        )

    def require_whole(self) -> None:
        """Raise DataError if the version of the service, or its number of vectors, has changed."""
        # The name of the collection holds the fingerprint of the corpus.
        state = ServiceState(
            self._ask(self._client.get_version),
            self.whole.corpus,
            self._ask(self._collection.count),
        )
        check_same_corpus(f"the index on {self._url}", state, self.whole)

    def _fill(self, vectors: Vectors, documents: int) -> None:
        progress = Progress(f"chroma at {self._url}", documents)
        for block in chunk_by_size([1] * documents, _BLOCK):
            ids = [str(row) for row in range(block.start, block.stop)]
            stored_ids = set(
                self._ask(
                    self._collection.get,
                    ids=ids,
                    include=[],
                )["ids"]
            )
            if missing := [row for row in ids if row not in stored_ids]:
                self._ask(
                    self._collection.add,
                    ids=missing,
                    embeddings=vectors[list(map(int, missing))],
                )
            progress.add(len(ids))
        self.require_whole()
        # From now on it counts as complete.
        self._ask(self._collection.modify, metadata={"dimension": vectors.shape[1]})

    def scores(self, rows: Rows, query: Vectors) -> Scores:
        """Return the exact inner products of documents with a query, shape (rows,)."""
        scores = np.empty(len(rows))
        for block in chunk_by_size([1] * len(rows), _BLOCK):
            vectors = self._vectors(rows[block])
            scores[block] = exact_scores(vectors, np.arange(len(vectors)), query)
        return scores

    def _vectors(self, rows: Rows) -> Vectors:
        ids = [str(row) for row in rows.tolist()]
        answer = self._ask(
            self._collection.get,
            ids=ids,
            include=["embeddings"],
        )
        # Chroma answers in an order of its own.
        positions = {row: position for position, row in enumerate(answer["ids"])}
        if len(positions) < len(ids):
            raise DataError(
                f"the index on {self._url} has lost {plural(len(ids) - len(positions), 'vector')}; delete it "
                f"there"
            )
        embeddings: Vectors = np.asarray(answer["embeddings"], dtype=np.float32)
        vectors: Vectors = embeddings[[positions[row] for row in ids]]
        return vectors

    def _ask(self, call: Callable[..., T], *arguments: Any, **options: Any) -> T:
        for wait in (*WAITS, None):
            try:
                return call(*arguments, **options)
            except (InvalidArgumentError, NotFoundError) as error:
                raise DataError(
                    f"the index on {self._url} does not fit or was deleted: {_line(error)}"
                ) from error
            except Exception as error:  # Chroma raises any type
                if wait is None:
                    raise RunIncomplete(
                        f"the Chroma server at {self._url} does not answer: {_line(error)}"
                    ) from error
                time.sleep(wait)
        raise AssertionError  # the last wait is None


def _line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).partition("\n")[0]
