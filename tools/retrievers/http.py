"""The searches of a server elsewhere, by ids: Anserini's REST server, Search-R1's, or a run's
(sextant serve).

The server has to have indexed the task's own documents under their ids; texts are taken from the
task. A server knows no exclusions and no pools, so more is requested until there are enough allowed
documents. Searches are not kept: a cassette does not have them. Left out: documents below rank
10,000.
"""

import logging
import math
import time
from collections.abc import Sequence
from typing import Any, Literal
from urllib.parse import quote

import orjson

from sextant.tools.corpus import Corpus
from sextant.tools.errors import DataError, ProviderRefused, RunIncomplete, UsageError
from sextant.tools.models.call_limits import LONGEST_WAIT, retry_after
from sextant.tools.models.client import DEADLINE
from sextant.tools.models.model_spec import SERVER_KEY, is_server
from sextant.tools.models.run_resources import RunResources
from sextant.tools.models.secrets import get_secret, redact
from sextant.tools.models.transport.http_client import HttpClient, TransportError
from sextant.tools.platform.number_format import plural
from sextant.tools.records import Hit
from sextant.tools.retrievers.base import Options, Retriever, Search, Searches
from sextant.tools.retrievers.expressions import format_expression
from sextant.tools.text import encodable

DEEPEST = 10_000  # documents that are asked for
LARGEST = 256 << 20  # bytes of an answer, with the texts of as many
SLOWEST = 120.0  # seconds until an answer is given up
LONGEST = 7000  # bytes of a search in an address: Anserini's server takes 8,192 with the rest
_LOG = logging.getLogger("sextant")


class HttpRetriever(Retriever):
    """The searches of a server, looked up in the task's documents by their ids."""

    loads_weights = True  # so to say: a dry run asks no server
    ties_by_id = False  # the server's order is taken as it is

    def __init__(
        self,
        corpus: Corpus,
        url: str,
        *,
        dialect: Literal["anserini", "search-r1"] = "anserini",
        resources: RunResources | None = None,
    ) -> None:
        """`url` is http://host:port/v1/INDEX of Anserini, or http://host:port of Search-R1."""
        self.name = format_expression(
            "http", url, options={"dialect": dialect} if dialect != "anserini" else None
        )
        self._corpus = corpus
        self._url = url
        self._dialect = dialect
        self._resources = resources or RunResources()
        headers = {"Content-Type": "application/json"}
        if key := get_secret(SERVER_KEY):
            headers["Authorization"] = f"Bearer {key}"
        self._server = HttpClient(
            url.removesuffix("/retrieve").removesuffix("/search"), headers, largest=LARGEST
        )
        self._said = False  # that there are unknown ids

    @classmethod
    def require(
        cls,
        model: str,
        part_count: int,
        options: Options,
    ) -> None:
        """Refuse anything but an address. Nothing is sent."""
        if not is_server(model):
            raise UsageError(
                f"http({model}) is no server; write "
                f"http(http://host:port/v1/INDEX,dialect=anserini)"
            )

    def left_out(self, text: str, instruction: str = "") -> int:
        """Return how many words at the end of a text are too many for an address."""
        return 0 if self._dialect != "anserini" else len(text.split()) - len(_cut(text).split())

    def _search_many(self, searches: Searches, k: int) -> list[list[Hit]]:
        hits_of = {}
        pending = list(range(len(searches)))
        depth = k + max(len(search.excluded) for search in searches)
        while pending:
            depth = min(depth, DEEPEST)
            answers = self._ask([searches[position].text for position in pending], depth)
            for position, hits in zip(pending, answers, strict=True):
                hits_of[position] = self._narrow(searches[position], hits)[:k]
            full = [len(hits) >= depth < DEEPEST for hits in answers]  # there may be more
            pending = [
                position
                for position, may_have_more in zip(pending, full, strict=True)
                if may_have_more and len(hits_of[position]) < k
            ]
            depth *= 4
        return [hits_of[position] for position in range(len(searches))]

    def _narrow(self, search: Search, hits: list[Hit]) -> list[Hit]:
        """Return those of the hits that the corpus has and the search allows, each once."""
        distinct = dict[str, Hit]()
        for hit in hits:
            distinct.setdefault(hit.doc_id, hit)
        unknown = [doc_id for doc_id in distinct if doc_id not in self._corpus]
        if unknown and not self._said:
            self._said = True
            _LOG.warning(
                f"{self.name} gives {plural(len(unknown), 'document')} of {len(distinct)} that "
                f"the task lacks, e.g. {unknown[0][:60]!r}; such ones are left out"
            )
        among = self._corpus if search.among is None else search.among
        barred = {*unknown, *search.excluded}
        return [hit for doc_id, hit in distinct.items() if doc_id in among and doc_id not in barred]

    def _ask(self, texts: Sequence[str], k: int) -> list[list[Hit]]:
        """Return up to `k` hits of each text, by falling score.

        DataError for an answer that has none.
        """
        try:
            if self._dialect == "anserini":
                paths = [
                    f"/search?query={quote(_cut(text), safe='')}&hits={k}"
                    for text in encodable(texts)
                ]
                return [
                    _sorted(
                        [(entry["docid"], entry) for entry in self._send(path)["candidates"]], k
                    )
                    for path in paths
                ]
            results = []
            most = max(1, DEEPEST // k)
            for start in range(0, len(texts), most):
                batch = encodable(texts[start : start + most])
                lists = self._send(
                    "/retrieve",
                    orjson.dumps(
                        {
                            "queries": batch,
                            "topk": k,
                            "return_scores": True,
                        }
                    ),
                )["result"]
                batch_hits = [
                    _sorted([(hit["document"]["id"], hit) for hit in hits], k) for hits in lists
                ]
                results += [hits for _, hits in zip(batch, batch_hits, strict=True)]
            return results
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"{self._url} gave no hits with ids and scores ({type(error).__name__}: "
                f"{str(error)[:80]}); is its dialect {self._dialect}?"
            ) from None

    def _send(self, path: str, body: bytes = b"") -> Any:
        """Return the JSON that answers a request.

        RunIncomplete if none comes, ProviderRefused for a 4xx.
        """
        patience = self._resources.patience
        wrong = ""
        for attempt in range(patience.attempts):
            pause = patience.first * 2.0**attempt
            try:
                answer = self._server.post(
                    path, body, deadline=min(time.monotonic() + SLOWEST, DEADLINE.get())
                )
                if answer.status == 200:
                    return orjson.loads(answer.body)
                wrong = f"status {answer.status}: {answer.body[:200].decode('utf-8', 'replace')}"
                if answer.status < 500 and answer.status not in (408, 425, 429):
                    raise ProviderRefused(
                        f"{self._url} refuses a search: {redact(wrong)}", source=f"http:{self._url}"
                    )
                pause = max(pause, min(retry_after(answer.headers) or 0.0, LONGEST_WAIT))
            except TransportError as failure:
                wrong = str(failure)
            if attempt + 1 < patience.attempts and time.monotonic() + pause < DEADLINE.get():
                self._resources.limiter.rest(pause)  # or Interrupted
        raise RunIncomplete(
            f"{self._url} does not answer: {redact(wrong)}; the same command goes on"
        )


def _sorted(entries: list[tuple[Any, Any]], k: int) -> list[Hit]:
    hits = [Hit(str(doc_id), float(entry["score"])) for doc_id, entry in entries]
    if not all(math.isfinite(hit.score) for hit in hits):
        raise ValueError("a score is not finite")
    return sorted(hits, key=lambda hit: -hit.score)[:k]


def _cut(text: str) -> str:
    """Return as much of the beginning of a text as has room in an address."""
    while (
        len(
            quote(
                text,
                safe="",
                errors="replace",
            )
        )
        > LONGEST
    ):
        text = text[: len(text) * 9 // 10]
    return text
