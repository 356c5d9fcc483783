"""The searches of a server elsewhere, by ids: Anserini's REST server, Search-R1's, or a run's (python -m evals.serve).

The server has to have indexed the task's own documents under their ids; texts are taken from the task. A server knows
no exclusions and no pools, so it is asked for more until enough of what may come back is there. Searches are not kept:
a cassette does not have them. Left out: documents below rank 10,000.
"""

import logging
import math
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal
from urllib.parse import quote

import orjson

from tools.corpus import Corpus
from tools.errors import DataError, ProviderRefused, RunIncomplete, UsageError
from tools.models.call import DEADLINE
from tools.models.sending.gate import LONGEST_WAIT, retry_after
from tools.models.sending.post import Server, Unanswered
from tools.models.spec import SERVER_KEY, hide_keys, is_server, secret
from tools.models.terms import Terms
from tools.records import Hit
from tools.retriever import Retriever, Search
from tools.retrievers import spell
from tools.text import encodable

DEEPEST = 10_000  # documents that are asked for
LARGEST = 256 << 20  # bytes of an answer, with the texts of as many
SLOWEST = 120.0  # seconds until an answer is given up
LONGEST = 7000  # bytes of a search in an address: Anserini's server takes 8,192 with the rest
_BATCH = 64  # searches in one request to Search-R1
_LOG = logging.getLogger("sextant")


class Http(Retriever):
    """The searches of a server, looked up in the task's documents by their ids."""

    loads_weights = True  # so to say: a dry run asks no server
    ties_by_id = False  # the server's order is taken as it is

    def __init__(
        self,
        corpus: Corpus,
        url: str,
        *,
        dialect: Literal["anserini", "search-r1"] = "anserini",
        terms: Terms | None = None,
    ) -> None:
        """`url` is http://host:port/v1/INDEX of Anserini, or http://host:port of Search-R1."""
        self.name = spell("http", url, options={"dialect": dialect} if dialect != "anserini" else None)
        self._corpus, self._url, self._dialect, self._terms = corpus, url, dialect, terms or Terms()
        headers = {"Content-Type": "application/json"}
        if key := secret(SERVER_KEY):
            headers["Authorization"] = f"Bearer {key}"
        self._server = Server(url.removesuffix("/retrieve").removesuffix("/search"), headers, largest=LARGEST)
        self._said = False  # that there are unknown ids

    @classmethod
    def require(cls, model: str, parts: int, options: Mapping[str, Any]) -> None:
        """Refuse what is no address. Nothing is sent."""
        if not is_server(model):
            raise UsageError(f"http({model}) is no server; write http(http://host:port/v1/INDEX,dialect=anserini)")

    def left_out(self, text: str, instruction: str = "") -> int:
        """Return how many words at the end of a text are too many for an address."""
        return 0 if self._dialect != "anserini" else len(text.split()) - len(_cut(text).split())

    def _search_many(self, searches: Sequence[Search], k: int) -> list[list[Hit]]:
        found = dict[int, list[Hit]]()
        asked, pending = k + max(len(search.excluded) for search in searches), list(range(len(searches)))
        while pending:
            asked, more = min(asked, DEEPEST), list[int]()
            for place, hits in zip(pending, self._ask([searches[one].text for one in pending], asked), strict=True):
                search, there = searches[place], {one.doc_id: one for one in reversed(hits) if one.doc_id in self._corpus}
                self._say_unknown(len(hits) - len(there), hits)
                allowed = [there.pop(hit.doc_id) for hit in hits if hit.doc_id in there]
                among = self._corpus if search.among is None else search.among
                found[place] = [hit for hit in allowed if hit.doc_id in among and hit.doc_id not in search.excluded][:k]
                wanted = min(k, len(among))
                if len(found[place]) < wanted and len(hits) >= asked and asked < DEEPEST:
                    more.append(place)
            asked, pending = 4 * asked, more
        return [found[place] for place in range(len(searches))]
