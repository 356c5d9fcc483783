"""Embeddings from a provider's API, or from any server that speaks OpenAI's embeddings protocol.

`api:openai/text-embedding-3-large` and `api:gemini/gemini-embedding-2` go to the provider, and
`api:MODEL@http://host:port/v1` to a server. A key is read from the environment, and is in no name, index or message.
Left out: the providers' batch jobs (half the price, a day's wait), and several requests at a time.
"""

import base64
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from tools import session
from tools.corpus import Corpus
from tools.errors import BudgetReached, DataError, ProviderRefused, RunIncomplete, UsageError
from tools.models.sending.post import Server, redirected, untrusted
from tools.models.sending.refusals import said, subject
from tools.models.sending.servers import cleaned, is_server, openai_account
from tools.records import Usage
from tools.retriever import Search
from tools.retrievers.account import Account, Receipt, believable
from tools.retrievers.neural.encoding import encodable
from tools.retrievers.neural.models import Row, document_text, query_text, row_of
from tools.retrievers.spec import Value, spell
from tools.retrievers.vectors.embedding import Vectors
from tools.retrievers.vectors.vectors import Precision, VectorRetriever

# Base URL, and the environment variable of the key. To add one: a line here, and its models' rows in models.toml.
PROVIDERS = {
    "openai": ("https://api.openai.com/v1", "OPENAI_API_KEY"),
    "gemini": ("https://generativelanguage.googleapis.com/v1beta/openai", "GEMINI_API_KEY"),
}
SERVER_KEY = "SEXTANT_API_KEY"  # a user's key for a provider is not for every server that speaks its protocol

# Seconds before a request that was not answered is sent again, unless the provider says how many.
WAITS = (1.0, 2.0, 4.0, 8.0, 16.0)
LONGEST_WAIT = 60.0  # a provider that asks for more is not waited for
TIMEOUT = 120.0  # seconds for a whole answer
LARGEST = 32 << 20  # bytes of one; three times what 100 vectors of 4,096 numbers have, written out

# What every provider takes in one request: Gemini 100 texts, OpenAI 2,048 texts of 300,000 tokens together, and a token
# has at least one byte. A server that takes fewer is found out by its refusal.
MOST_TEXTS = 100
MOST_BYTES = 1 << 18

_FORMAT = 1  # raised when what is sent for a document changes; no digest of this file, because vectors are paid for
_KEPT_QUERIES = 4096  # vectors of queries in memory; 12 kB each at 3,072 numbers
_AGAIN = (408, 409, 425, 429)  # HTTP statuses of what may be answered another time; so may 500 and above


class _Transport(httpx.BaseTransport):
    """Has OpenAI's client send by post.py: with a deadline of the whole, bounds and no redirects."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """The answer to one request for embeddings, which is the only kind that is made."""
        status, headers, body = self._server.post("/embeddings", request.read(), deadline=time.monotonic() + TIMEOUT)
        kept = {name: headers[name] for name in ("location", "retry-after") if name in headers}  # the body is unpacked
        return httpx.Response(status, headers=kept, content=body)


def _connect(place: "_Place") -> Any:
    """OpenAI's client for a place. Nothing of the environment's organization goes to another server."""
    from openai import OpenAI  # takes half a second

    headers = {"authorization": f"Bearer {place.key or 'none'}", "content-type": "application/json"}
    transport = _Transport(Server(place.url, headers | openai_account(place.url), largest=LARGEST))
    client = httpx.Client(transport=transport, follow_redirects=False)
    return OpenAI(api_key=place.key or "none", base_url=place.url, max_retries=0, http_client=client)


class ApiEmbedder:
    """Vectors from an API. Threads share it.

    A provider may change a model under its name, and does not promise the same bits twice. So the vectors of documents
    are kept as they came, and a query's text is asked for once in a process.
    """

    def __init__(self, model: str, *, dimensions: int = 0, like: str = "", account: Account | None = None) -> None:
        """`dimensions` asks for shorter vectors, 0 for the model's own; `like` takes the row of another model.

        Every request is on the `account`, if there is one.

        UsageError when `model` names no provider and no server, ProviderRefused when the provider's key is not set.
        """
        if dimensions < 0:
            raise UsageError(
                f"dimensions is {dimensions}; it is how many numbers a vector has, or 0 for the model's own"
            )
        options: dict[str, Value] = {"dimensions": dimensions, "like": like}
        self.name = spell("api", model, options={name: value for name, value in options.items() if value})
        place = _place(model)
        self._row = _row(model, place, like)
        self._endpoint = _Endpoint(place, self._row, dimensions, account)
        self._account = account
        self._used = Usage()
        self._queries: dict[str, _Embedded] = {}
        self._lock = threading.Lock()

    @property
    def dimension(self) -> int:
        """Numbers in a vector. The model is asked when it has not given one yet."""
        if not self._endpoint.dimension:
            try:
                self._book(self._endpoint.embed(["dimension"])[1])
            except RunIncomplete as outage:
                raise RunIncomplete(f"{outage}; the same command goes on") from outage
            except BudgetReached as reached:
                raise reached.saying(f"{reached}; {self.name} was not asked") from None
        return self._endpoint.dimension

    def key(self) -> Mapping[str, object]:
        """All that shapes a document's vector, as far as a client knows."""
        return {"kind": "api", **self._endpoint.key(), "document": self._row.document, "format": _FORMAT}

    def documents(self, texts: Sequence[str]) -> Vectors:
        """The vectors of documents, in order; a blank one is not sent, and gets the zero vector.

        RunIncomplete when the API stops answering, ProviderRefused when it never will, DataError for a text that it
        refuses or an answer that is not one vector a text. What was used is kept for `take_usage`.
        """
        vectors = np.zeros((len(texts), self.dimension), dtype=np.float32)
        rows = [row for row, text in enumerate(texts) if text.strip()]
        sent = [document_text(self._row, texts[row]) for row in rows]
        for batch in self._endpoint.batches(sent):
            try:
                embedded, used = self._endpoint.embed(sent[batch])
            except _TextRefused as refusal:
                raise DataError(str(refusal)) from refusal
            except RunIncomplete as outage:
                raise RunIncomplete(f"{outage}; what was embedded is kept, and the same command goes on") from outage
            except BudgetReached as reached:
                more = " with a larger budget" if reached.larger else ""
                kept = f"what {self.name} has embedded is kept, and the same command{more} goes on"
                raise reached.saying(f"{reached}; {kept}") from None
            self._book(used)
            vectors[rows[batch]] = [one.vector for one in embedded]
        return vectors

    def queries(self, searches: Sequence[Search]) -> Vectors:
        """The vectors of the texts, in order. What they cost is booked on the open session; a repeated one is free.

        ValueError for a text that the API refuses, which is the fault of who wrote it; else as for `documents`.
        """
        texts = [query_text(self._row, search) for search in searches]
        with self._lock:
            found = {text: self._queries[text] for text in texts if text in self._queries}
        new = [text for text in dict.fromkeys(texts) if text not in found]
        for batch in self._endpoint.batches(new):
            embedded, used = self._endpoint.embed(new[batch])
            if payer := session.current():
                payer.charge(used)
            for text, one in zip(new[batch], embedded, strict=True):
                if not np.isfinite(one.vector).all():
                    raise DataError(f"{self.name} gave NaN or infinity for the query {_beginning(text)}")
                found[text] = self._keep(text, one)
        return np.stack([found[text].vector for text in texts])

    def left_out(self, text: str, instruction: str = "") -> int:
        """About how many tokens of a query were left out for the API to take it; 0 when it was not searched for."""
        with self._lock:
            embedded = self._queries.get(query_text(self._row, Search(text, instruction)))
        return embedded.left_out if embedded else 0

    def take_usage(self) -> Usage:
        """What documents have used since this was last asked."""
        with self._lock:
            used, self._used = self._used, Usage()
        return used

    def resume(self, spent: Usage) -> None:
        """Count what an earlier process has spent on the same vectors."""
        if self._account and spent.calls:
            self._account.resume(self._endpoint.name, spent)

    def _book(self, used: Usage) -> None:
        with self._lock:
            self._used += used

    def _keep(self, text: str, embedded: "_Embedded") -> "_Embedded":
        """What all threads use for a query: of several answers, the first."""
        with self._lock:
            while len(self._queries) >= _KEPT_QUERIES:
                del self._queries[next(iter(self._queries))]  # the oldest
            return self._queries.setdefault(text, embedded)


class Api(VectorRetriever):
    """Exact search in the vectors of an API."""

    def __init__(
        self,
        corpus: Corpus,
        home: Path | None,
        model: str,
        *,
        dimensions: int = 0,
        like: str = "",
        search: Precision = "float32",
        account: Account | None = None,
    ) -> None:
        embedder = ApiEmbedder(model, dimensions=dimensions, like=like, account=account)
        super().__init__(corpus, home, embedder, embedder.name, search)

    @classmethod
    def require(cls, model: str, parts: int, options: Mapping[str, Any]) -> None:
        """Refuse a model without a provider or a key. Nothing is sent."""
        ApiEmbedder(model, dimensions=options["dimensions"], like=options["like"])


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a model is, and as what it is known there."""

    name: str  # as it is given, for people
    model: str
    url: str
    key: str = field(repr=False)  # empty where none is needed
    provider: str  # empty for a server of the user's own


def _place(spec: str) -> _Place:
    """Where `provider/model` or `MODEL@URL` is."""
    model, at, url = spec.partition("@")
    if at:
        if not model or not is_server(url):
            raise UsageError(
                f"api:{model}@... is no server; write api:MODEL@http://host:port/v1, "
                f"and put a key for it in ${SERVER_KEY}"
            )
        return _Place(f"api:{spec}", model, url, _key(SERVER_KEY), "")
    provider, _, model = spec.partition("/")
    if provider not in PROVIDERS or not model:
        known = ", ".join(f"api:{name}/MODEL" for name in PROVIDERS)
        raise UsageError(f"api:{spec} names no model; write {known} or api:MODEL@http://host:port/v1")
    url, variable = PROVIDERS[provider]
    key = _key(variable)
    if not key:
        raise ProviderRefused(f"api:{spec} needs a key; put it in ${variable}")
    return _Place(f"api:{spec}", model, url, key, provider)


def _key(variable: str) -> str:
    """A key out of the environment; empty where there is none."""
    key = os.environ.get(variable, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise UsageError(f"${variable} has a character in it that no key has")
    return key


def _row(spec: str, place: _Place, like: str) -> Row:
    """A provider's model is in the table by its whole name; a server may have any model of vectors."""
    if place.provider:
        return row_of(spec, "api", like)
    try:
        return row_of(place.model, "api", like)
    except UsageError:
        return row_of(place.model, "dense", like)


@dataclass(frozen=True, slots=True)
class _Embedded:
    vector: Vectors  # shape (dimension,)
    left_out: int = 0  # about how many tokens of the text are not in it


class _TextRefused(ValueError):
    """The API takes other texts, but not this one."""


class _Failed(Exception):
    """A request without an answer, in one line of the provider's; `about` says whether that is for its text."""

    def __init__(self, words: str, status: int = 0, codes: Sequence[str] = (), asked: float | None = None) -> None:
        super().__init__(words.strip().partition("\n")[0][:300])
        self.status = status  # 0 where nothing came back
        self.about = subject(status, codes, words)
        self.asked = asked  # seconds until the provider wants to be asked again


class _Endpoint:
    """One model of one API: texts to vectors, whatever the API does."""

    def __init__(self, place: _Place, row: Row, dimensions: int, account: Account | None) -> None:
        self.name = place.name
        self._account = account
        self._price = _price(place, row, account)
        self.dimension = dimensions  # 0 until the model has said it
        self._place = place
        self._row = row
        self._settings: dict[str, Any] = {"dimensions": dimensions} if dimensions else {}
        self._most_texts = MOST_TEXTS
        self._answered = False  # whether the model has answered anything yet
        self._client = _connect(place)

    def key(self) -> dict[str, object]:
        longest, normalize = self._row.max_document_tokens, self._row.normalize
        return {
            "model": self._place.model,
            "url": self._place.url,
            **self._settings,
            "max_tokens": longest,
            "normalize": normalize,
        }

    def batches(self, texts: Sequence[str]) -> Iterator[slice]:
        """Which texts go into one request."""
        first = 0
        while first < len(texts):
            last, size = first, 0
            while last < len(texts) and last - first < self._most_texts:
                size += len(texts[last].encode("utf-8", "replace"))
                if size > MOST_BYTES and last > first:
                    break
                last += 1
            yield slice(first, last)
            first = last

    def embed(self, texts: Sequence[str]) -> tuple[list[_Embedded], Usage]:
        """The vectors of a few texts that are not blank, in order, and what they cost.

        What the API does not accept is sent in halves, and a single text that is too long without its end.
        """
        try:
            vectors, used = self._request(texts)
        except _Failed as refusal:
            if len(texts) == 1:
                return self._shortened(texts[0], refusal)
            middle = len(texts) // 2
            (head, used), (tail, more) = self.embed(texts[:middle]), self.embed(texts[middle:])
            if not any(one.left_out for one in head + tail):  # it was not a text, so they were too many
                self._most_texts = min(self._most_texts, len(texts) - middle)
            return head + tail, used + more
        return [_Embedded(vector) for vector in vectors], used

    def _shortened(self, text: str, refusal: _Failed) -> tuple[list[_Embedded], Usage]:
        """One text that was refused, nine tenths of it at a time, until it is taken.

        The tokens cannot be counted here, so this keeps between 90 and 100 per cent of what the model takes.
        """
        whole, longest = len(text), self._row.max_document_tokens
        while refusal.about == "length" and longest and len(text) > longest:  # a character may be a token
            text = text[: len(text) * 9 // 10]
            try:
                [vector], used = self._request([text])
            except _Failed as again:
                refusal = again
                continue
            return [_Embedded(vector, max(1, round(longest * (whole - len(text)) / len(text))))], used
        if refusal.about != "unknown":
            hint = "" if longest or refusal.about == "content" else "; (like=MODEL) says how long a text may be"
            raise _TextRefused(f"{self.name} refuses the text {_beginning(text)}: {refusal}{hint}") from None
        if not self._answered:  # so it is not the text
            raise ProviderRefused(f"{self.name} refuses: {refusal}; check the name and the options") from None
        raise RunIncomplete(f"{self.name} does not answer for the text {_beginning(text)}: {refusal}") from None

    def _request(self, texts: Sequence[str]) -> tuple[Vectors, Usage]:
        """The answer to one request, tried several times. _Failed when it is not acceptable as it is."""
        for wait in (*WAITS, None):
            try:
                with self._paid(texts) as receipt:
                    answer = self._answer(texts)
                    receipt.usage = self._usage(answer.get("usage"))
                return self._vectors(answer["data"], len(texts)), receipt.usage
            except _Failed as failure:
                time.sleep(self._pause(failure, wait))
        raise AssertionError  # the last wait is None, with which _pause always raises

    def _paid(self, texts: Sequence[str]) -> AbstractContextManager[Receipt]:
        """Around one request: the account has it."""
        if self._account is None:
            return nullcontext(Receipt())
        tokens = sum(len(text.encode("utf-8", "replace")) for text in texts) // 4
        usd = None if self._price is None else tokens * self._price / 1e6
        return self._account.request(self.name, tokens, usd)

    def _answer(self, texts: Sequence[str]) -> dict[str, Any]:
        """The answer to one request, sent once: a list of vectors under "data", else _Failed."""
        import openai

        try:
            response = self._client.embeddings.with_raw_response.create(
                input=encodable(texts), model=self._place.model, encoding_format="base64", **self._settings
            ).http_response
        except openai.APIStatusError as refusal:
            response = refusal.response
        except openai.APIConnectionError as failure:
            if getattr(failure.__cause__, "kind", "") == "TLS":
                raise ProviderRefused(self._clean(untrusted(f"{self.name}: {failure.__cause__}"))) from None
            raise _Failed(self._clean(str(failure.__cause__))) from None
        status, headers = response.status_code, response.headers
        try:
            answer = json.loads(response.content)
        except (ValueError, RecursionError):  # a gateway's page
            answer = response.content.decode("utf-8", "replace")
        if status == 200 and isinstance(answer, dict) and isinstance(answer.get("data"), list):
            return answer
        words, codes = said(answer)
        if 300 <= status < 400:
            words = redirected(status, headers)
        words = words or f"status {status}, and {_beginning(self._clean(str(answer)))}"
        raise _Failed(self._clean(words), status, codes, _seconds(headers.get("retry-after")))

    def _pause(self, failure: _Failed, wait: float | None) -> float:
        """Seconds until a failed request is worth another try; where it is not, an error of ours, or the failure."""
        status, about = failure.status, failure.about
        if about == "account" or 300 <= status < 400:
            raise ProviderRefused(f"{self.name} refuses: {failure}; check the key, the quota and the name") from None
        if about != "unknown" or (400 <= status < 500 and status not in _AGAIN):
            raise failure
        if wait is None or (failure.asked or 0.0) > LONGEST_WAIT:
            raise RunIncomplete(f"{self.name} does not answer: {failure}") from None
        return wait if failure.asked is None else failure.asked

    def _vectors(self, entries: list[Any], expected: int) -> Vectors:
        """The vectors of an answer, in the order of the texts; shape (expected, dimension)."""
        if len(entries) != expected:
            raise DataError(
                f"{self.name} gave {len(entries)} vectors for {expected} texts; nothing of them is used, "
                "and what was embedded before is kept"
            )
        entries = [entry if isinstance(entry, dict) else {} for entry in entries]
        positions = [entry.get("index") for entry in entries]
        if sorted(positions, key=str) == sorted(range(expected), key=str):
            entries.sort(key=lambda entry: int(entry["index"]))
        elif any(positions):  # without any numbers, they are in order
            numbers = _beginning(self._clean(str(positions)))
            raise DataError(f"{self.name} gave vectors with the numbers {numbers}; nothing of them is used")
        vectors = [_numbers(entry.get("embedding")) for entry in entries]
        dimension = self.dimension or len(vectors[0])
        for vector in vectors:
            if vector.shape != (dimension,) or not dimension:
                raise DataError(f"{self.name} gave a vector of {vector.size} numbers where {dimension} are expected")
        self.dimension, self._answered = dimension, True
        made: Vectors = np.stack(vectors)
        if not self._row.normalize:
            return made
        lengths = np.linalg.norm(made.astype(np.float64), axis=1, keepdims=True)
        return (made / np.where(lengths == 0, 1, lengths)).astype(np.float32)

    def _usage(self, reported: Any) -> Usage:
        """What one answer cost: unknown, and never nothing, where the API or the table does not say."""
        tokens, price = _tokens(reported), self._price
        dollars = tokens * price / 1e6 if price is not None and (tokens or not price) else None
        return Usage(calls=1, input_tokens=tokens, paid_usd=dollars, list_usd=dollars, unmetered=int(not tokens))

    def _clean(self, text: str) -> str:
        """What a server said, without keys, if it said one back; before anything of it is cut off."""
        return cleaned(text.replace(self._place.key, "***") if self._place.key else text)


def list_price(model: str, like: str = "", account: Account | None = None) -> float | None:
    """US dollars per million tokens of `api:MODEL`: what the user says, else the table, in which no server is."""
    place = _place(model)
    return _price(place, _row(model, place, like), account)


def _price(place: _Place, row: Row, account: Account | None) -> float | None:
    """US dollars per million tokens: what the user says, else the table; None where nobody knows it."""
    said = account.price(place.name) if account else None
    return said if said is not None else (row.price or None if place.provider else None)


def _tokens(reported: Any) -> int:
    """What an answer says was read; 0 where it does not, or says what cannot be true, as in tools/models/usage.py."""
    usage = reported if isinstance(reported, dict) else {}
    counts = [usage[name] for name in ("prompt_tokens", "total_tokens") if usage.get(name) is not None]
    return int(counts[0]) if counts and all(map(believable, counts)) else 0


def _numbers(embedding: Any) -> Vectors:
    """One vector of an answer; a server may ignore that base64 was asked for."""
    if isinstance(embedding, str):
        try:
            return np.frombuffer(base64.b64decode(embedding), dtype="<f4")
        except ValueError:
            return np.empty(0, dtype=np.float32)
    try:
        return np.array([*embedding], dtype=np.float32)
    except (TypeError, ValueError, OverflowError):
        return np.empty(0, dtype=np.float32)


def _seconds(header: str | None) -> float | None:
    try:
        return max(0.0, float(header)) if header else None
    except ValueError:  # a date, which nobody sends
        return None


def _beginning(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:60]}...")
