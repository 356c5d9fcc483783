"""Searches of Milvus (https://milvus.io), a store for clusters: by words, with its BM25, or by
vectors, with HNSW.

`sextant retrievers push` fills an index; a run only reads it, and looks after every search
whether it is still the same. Both in a ranking are
fusion(milvus(URL),milvus_vectors:dense(url=URL)). Left out, for they are Milvus's limits: documents
below rank 16,384, and the text after 65,535 bytes.
"""

import logging
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sextant.tools.corpus import Corpus, indexed_text
from sextant.tools.errors import DataError, RunIncomplete, UsageError
from sextant.tools.models.model_spec import SERVER_KEY, is_server
from sextant.tools.models.secrets import get_secret
from sextant.tools.platform.cli import Progress
from sextant.tools.platform.installation import explain_missing
from sextant.tools.records import Hits, JsonObject
from sextant.tools.retrievers import FILLS, PUSH, ServiceState, check_same_corpus
from sextant.tools.retrievers.base import Options, Ranker, Retriever, Search, Searches
from sextant.tools.retrievers.expressions import format_expression
from sextant.tools.retrievers.index_store import IndexKey, index_name
from sextant.tools.retrievers.vectors.embedder import (
    Embedder,
    VectorRetrieverBase,
    embed_queries,
    open_vectors,
    vectors_key,
)
from sextant.tools.text import encodable

# documents of one search, bytes of a text
DEEPEST = 16_384
LONGEST = 65_535
SPARE = 32  # documents asked for beyond k, to see which ones are tied with the k-th
WAITS = (0.5, 1.0, 2.0, 4.0)  # seconds before a service that did not answer is asked again
TIMEOUT = 60.0  # seconds
BLOCK = 500  # documents in one call, which takes 64 MB
# By error codes; the last is of milvus-lite.
_REFUSALS = {
    100: PUSH,
    1100: "change the retriever",
    6: "change the retriever",
}


class Milvus(Retriever):
    """BM25 in Milvus, over the words of its analyzer.

    The index is a collection, whole when it has every document; their keys are the positions in the corpus. `server` is
    the version that has to answer. Of the analyzers milvus-lite has only `standard`, without stems.
    """

    loads_weights = True  # so to say: a dry run asks no service
    _ef = 0  # documents that a search of a graph keeps in view

    def __init__(
        self,
        corpus: Corpus,
        url: str,
        *,
        analyzer: Literal["english", "standard"] = "english",
        server: str = "",
    ) -> None:
        self._analyzer = analyzer
        server = self._open(url, corpus, {"kind": "milvus", "analyzer": analyzer}, server)
        self.name = format_expression(
            "milvus", url, options={"analyzer": analyzer, "server": server}
        )

    @classmethod
    def require(
        cls,
        model: str,
        part_count: int,
        options: Options,
    ) -> None:
        """Refuse anything but an address. Nothing is sent."""
        if not is_server(options.get("url", model)):
            raise UsageError(
                "Milvus needs an address: milvus(http://host:19530), "
                "milvus_vectors:dense(url=http://...)"
            )

    def _open(
        self,
        url: str,
        corpus: Corpus,
        key: IndexKey,
        server: str,
    ) -> str:
        """Return the service's version.

        DataError if none answers, it is not `server`, or the index is not whole.
        """
        self._url = url
        self._corpus = corpus
        self._ranker = Ranker(corpus.doc_ids)
        self._name = index_name(
            {
                **key,
                "corpus": corpus.fingerprint,
                "milvus": 1,
            }
        ).replace("-", "_")
        try:
            connect = import_module("pymilvus").MilvusClient
            # It would print its exceptions.
            logging.getLogger("pymilvus").setLevel(logging.CRITICAL)
            self._client = connect(
                url,
                token=get_secret(SERVER_KEY),
                timeout=TIMEOUT,
            )
            version = str(self._client.get_server_version())
        except ImportError:
            raise UsageError(f"Milvus needs {explain_missing('pymilvus', 'milvus')}") from None
        except Exception as error:
            raise DataError(
                f"no Milvus answers at {url} ({_line(error)}); start it, mend the address, or put "
                "its key into $SEXTANT_API_KEY"
            ) from error
        self._whole = ServiceState(server or version, corpus.fingerprint, len(corpus))
        if FILLS.get():
            self._fill()
        self._ask(self._client.load_collection)
        self._require_whole("Strong")
        logging.getLogger("sextant").info(
            f"Milvus {version} at {url} answers from its collection {self._name}"
        )
        return version

    def _fill(self) -> None:
        # Documents go in by their order, so the count says where a killed push was; its last block
        # goes in once more.
        if not self._ask(self._client.has_collection):
            schema = self._client.create_schema()
            index = self._client.prepare_index_params()
            schema.add_field("row", import_module("pymilvus").DataType.INT64, is_primary=True)
            index.add_index("searched", **self._describe(schema))
            self._ask(
                self._client.create_collection,
                schema=schema,
                index_params=index,
                properties={"sextant.corpus": self._corpus.fingerprint},
            )
        self._ask(self._client.load_collection)
        count = self._state("Strong").documents
        documents = len(self._corpus)
        rows_done = count if count >= documents else count // BLOCK * BLOCK
        progress = Progress(f"Milvus at {self._url}", documents, done=rows_done)
        for first in range(rows_done, documents, BLOCK):
            rows = range(first, min(first + BLOCK, documents))
            self._ask(
                self._client.upsert, data=[{"row": row, **self._content(row)} for row in rows]
            )
            progress.add(len(rows))
        self._ask(self._client.flush)

    def _describe(self, schema: Any) -> JsonObject:
        """Add the fields next to the row, and return the parameters of their index."""
        milvus = import_module("pymilvus")
        schema.add_field(
            "text",
            milvus.DataType.VARCHAR,
            max_length=LONGEST,
            enable_analyzer=True,
            analyzer_params={"type": self._analyzer},
        )
        schema.add_field("searched", milvus.DataType.SPARSE_FLOAT_VECTOR)
        schema.add_function(
            milvus.Function("bm25", milvus.FunctionType.BM25, ["text"], ["searched"])
        )
        return {"index_type": "SPARSE_INVERTED_INDEX", "metric_type": "BM25"}

    def _content(self, row: int) -> JsonObject:
        return {
            "text": indexed_text(self._corpus[self._corpus.doc_ids[row]])
            .encode("utf-8", "replace")[:LONGEST]
            .decode("utf-8", "ignore")
        }

    def _state(self, consistency: str) -> ServiceState:
        """Ask for the state of the collection; with "Strong" consistency it has every write."""
        properties = self._ask(self._client.describe_collection)["properties"]
        [count] = self._ask(
            self._client.query,
            output_fields=["count(*)"],
            consistency_level=consistency,
        )
        return ServiceState(
            self._client.get_server_version(),
            properties.get("sextant.corpus", ""),
            count["count(*)"],
        )

    def _require_whole(self, consistency: str = "Bounded") -> None:
        check_same_corpus(f"{self._name} at {self._url}", self._state(consistency), self._whole)

    def _ask(self, call: Callable[..., Any], **options: Any) -> Any:
        waits = iter(WAITS)
        while True:
            try:
                return call(
                    self._name,
                    timeout=TIMEOUT,
                    **options,
                )
            except Exception as error:
                todo = _REFUSALS.get(getattr(error, "code", 0), "")
                if todo or not (wait := next(waits, 0)):
                    failed, todo = (
                        (DataError, todo) if todo else (RunIncomplete, "the same command goes on")
                    )
                    raise failed(
                        f"Milvus at {self._url}, {self._name}: {_line(error)}; {todo}"
                    ) from error
                time.sleep(wait)

    def _queries(self, searches: Searches) -> Sequence[Any]:
        return encodable(search.text for search in searches)

    def _search_many(self, searches: Searches, k: int) -> list[Hits]:
        results = [
            self._find(search, query, k)
            for search, query in zip(searches, self._queries(searches), strict=True)
        ]
        self._require_whole()
        return results

    def _find(
        self,
        search: Search,
        query: Any,
        k: int,
    ) -> Hits:
        rows = set(self._ranker.rows(search.excluded))
        limit = min(k + SPARE, DEEPEST)
        condition = f"row not in {sorted(rows)}" if rows else ""
        if search.among is not None:
            condition = f"row in {sorted({*self._ranker.rows(search.among)} - rows)}"
        arguments = {
            "data": [query],
            "anns_field": "searched",
            "filter": condition,
            "output_fields": ["row"],
        }
        while True:  # until all that are tied with the k-th are there, of which Milvus gives any
            [hits] = self._ask(
                self._client.search,
                limit=limit,
                search_params={"params": {"ef": max(self._ef, limit)} if self._ef else {}},
                **arguments,
            )
            # BM25 of milvus-lite is negative.
            scores = np.array(hits.distances) if self._ef else np.abs(hits.distances)
            if len(hits) < limit or limit == DEEPEST or scores[k - 1] != scores[-1]:
                return self._ranker.hits(np.array(hits.ids, dtype=np.int64), scores, k)
            limit = min(4 * limit, DEEPEST)


class MilvusVectors(VectorRetrieverBase, Milvus):
    """Nearly exact search in vectors, by a graph in Milvus.

    A search keeps `ef` documents in view, or as many as are asked for.
    """

    def __init__(
        self,
        corpus: Corpus,
        home: Path | None,
        embedder: Embedder,
        *,
        url: str = "",
        ef: int = 400,
        server: str = "",
    ) -> None:
        self._embedder = embedder
        self._ef = max(1, ef)
        self._vectors = (
            open_vectors(embedder, corpus, home)
            if FILLS.get()
            else np.empty((0, 0), dtype=np.float32)
        )
        server = self._open(
            url, corpus, {**vectors_key(embedder, corpus), "kind": "milvus_vectors"}, server
        )
        self.name = format_expression(
            "milvus_vectors",
            "",
            [embedder.name],
            {
                "url": url,
                "ef": ef,
                "server": server,
            },
        )

    def _describe(self, schema: Any) -> JsonObject:
        schema.add_field(
            "searched", import_module("pymilvus").DataType.FLOAT_VECTOR, dim=self._vectors.shape[1]
        )
        return {
            "index_type": "HNSW",
            "metric_type": "IP",
            "params": {"M": 32, "efConstruction": 200},
        }

    def _content(self, row: int) -> JsonObject:
        return {"searched": self._vectors[row]}

    def _queries(self, searches: Searches) -> Sequence[Any]:
        return list(embed_queries(self._embedder, searches, self._embedder.dimension))


def _line(error: Exception) -> str:
    return " ".join(str(getattr(error, "message", error)).split())[:200] or type(error).__name__
