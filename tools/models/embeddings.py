"""Vectors of texts from a provider's API, or from any server that speaks OpenAI's embeddings
protocol.

Requests go over the same connections as every other call
(tools/models/transport/openai_client.py).
"""

import base64
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import dspy
import numpy as np
import orjson
from numpy.typing import NDArray

from sextant.tools import session
from sextant.tools.errors import DataError, ProviderRefused, RunIncomplete, UsageError
from sextant.tools.models import provider_errors
from sextant.tools.models.client import ModelClient
from sextant.tools.models.model_spec import PROVIDERS, SERVER_KEY, is_server, split_server
from sextant.tools.models.prices import Price
from sextant.tools.models.provider_response import ProviderResponse
from sextant.tools.models.run_resources import RunResources
from sextant.tools.models.secrets import redact
from sextant.tools.models.transport.openai_client import (
    OpenAIClient,
    UnreadableResponse,
    parse_body,
)
from sextant.tools.platform.number_format import plural
from sextant.tools.records import Usage

FORMAT = 1  # of the key; raised when equal keys would stand for other answers


class EmbeddingRefused(ValueError):
    """The API takes other requests, but not this request; `about` says whether its texts are why."""

    def __init__(self, words: str, about: provider_errors.Subject) -> None:
        super().__init__(words)
        self.about = about


def place(spec: str) -> tuple[str, str, str]:
    """Return provider, model and URL of `provider/model`, or of `MODEL@URL`, which has no provider; UsageError else."""
    model, url = split_server(spec)
    if "@" in spec:
        if not model or not is_server(url):
            shown = model if url else spec.partition("@")[0]
            wrong = f"api:{shown}@... is no server; write api:MODEL@http://host:port/v1"
            raise UsageError(f"{wrong}, and put a key for it in ${SERVER_KEY}")
        return "", model, url
    provider, _, model = spec.partition("/")
    if provider not in PROVIDERS or not model:
        forms = ", ".join(f"api:{name}/MODEL" for name in PROVIDERS)
        raise UsageError(
            f"api:{spec} names no model; write {forms} or api:MODEL@http://host:port/v1"
        )
    return provider, model, PROVIDERS[provider][0]


class _InvalidVectors(UnreadableResponse):
    """An answer without exactly a vector per text."""


class Embeddings:
    """A connected embedding model, asked with the resources of a run. Threads share it."""

    def __init__(
        self, spec: str, resources: RunResources, *, dimensions: int = 0, cost: Price | None = None
    ) -> None:
        """Connect the model `spec`, or UsageError; `dimensions` asks for shorter vectors, 0 for the model's own."""
        self.name = f"api:{spec}"
        self.provider, self.model, self.url = place(spec)
        resources.budget.require_price(spec, known=cost is not None)
        self.dimension = dimensions  # numbers in a vector, as soon as they are known
        self._settings: dict[str, Any] = {"dimensions": dimensions} if dimensions else {}
        self._transport = OpenAIClient(self.model, self.url, provider=self.provider)
        self.resources = resources
        self.client = ModelClient(self.name, resources, cost=cost, longest=0)

    def embed(
        self, texts: Sequence[str], *, kept: bool = True
    ) -> tuple[list[NDArray[np.float32]], Usage]:
        """Return a vector for each of a few texts that are not blank, in order, and their cost,
        which is recorded.

        They are `kept` in the ledger, or else by the caller. RunIncomplete when the API does not
        answer, ProviderRefused when it never will, DataError for other than a vector per text,
        NotAccepted for these texts.
        """
        request = orjson.dumps([self.model, self._settings, texts])
        prefix = b"%d embeddings %s\0" % (FORMAT, self._transport.url.encode())
        key = (
            blake2b(prefix + request, digest_size=8).hexdigest()
            if kept and self.client.keeps
            else ""
        )
        payer = session.current()
        try:
            owner = payer.query_id if payer else ""
            answer = self.client.ask(
                owner, key, request, lambda end: self._send(texts, end), limit=0
            )
        except dspy.LMError as error:
            raise self._reason(error) from None
        vectors = [
            np.frombuffer(base64.b64decode(output), dtype="<f4") for output in answer.outputs
        ]
        self.dimension = self.dimension or vectors[0].size
        return vectors, answer.usage

    def _send(self, texts: Sequence[str], deadline: float) -> ProviderResponse:
        """Send a request, and return base64 of each vector, in the order of the texts."""
        request = {
            "input": list(texts),
            "model": self.model,
            "encoding_format": "base64",
            **self._settings,
        }
        with self._transport.asking(deadline) as (client, timeout):
            answer = client.embeddings.with_raw_response.create(**request, timeout=timeout)
        body = parse_body(answer.content, self.model, clean=self._transport.clean)
        reported = body.get("usage") if isinstance(body, dict) else None
        if isinstance(
            reported, dict
        ):  # in the form of a chat's; vectors have no tokens of their own
            reported = {
                "prompt_tokens": reported.get("prompt_tokens") or reported.get("total_tokens"),
                "completion_tokens": 0,
            }
        try:
            vectors = self._vectors(getattr(answer.parse(), "data", None), len(texts))
        except ValueError as error:
            raise _InvalidVectors(self._transport.clean(str(error)), self.model, reported) from None
        return ProviderResponse(
            [base64.b64encode(vector.tobytes()).decode() for vector in vectors],
            "stop",
            reported,
            answer.headers,
        )

    def _vectors(self, entries: Any, expected: int) -> list[NDArray[np.float32]]:
        """Return the vectors of an answer, in the order of the texts. ValueError if they are not
        one a text.
        """
        entries = entries if isinstance(entries, list) else []
        if len(entries) != expected:
            raise ValueError(
                f"gave {plural(len(entries), 'vector')} for {plural(expected, 'text')}"
            )
        numbers = [getattr(entry, "index", None) for entry in entries]
        if sorted(numbers, key=str) == sorted(range(expected), key=str):
            entries = sorted(entries, key=lambda entry: int(entry.index))
        elif any(numbers):  # without any numbers, they are in order
            raise ValueError(f"gave vectors with the numbers {str(numbers)[:60]}")
        vectors = [_numbers(getattr(entry, "embedding", None)) for entry in entries]
        dimension = self.dimension or vectors[0].size
        for vector in vectors:
            if vector.ndim > 1:
                raise ValueError(
                    "gave a vector for each token and not for each text; have it pool them"
                )
            if vector.shape != (dimension,) or not dimension:
                raise ValueError(
                    f"gave a vector of {plural(vector.size, 'number')} where {dimension} are expected"
                )
        return vectors

    def _reason(self, error: dspy.LMError) -> Exception:
        words = redact(str(error).strip().partition("\n")[0])[:300]
        if isinstance(error, _InvalidVectors):
            return DataError(
                f"{self.name} {error.what}; nothing of it is used, and what was embedded is kept"
            )
        refusal = f"refuses: {words}; check the key, the quota and the name"
        if isinstance(error, dspy.LMNotConfiguredError):
            refusal = f"needs a key; put it in ${self._transport.variable}, or into the file .env"
        if provider_errors.responsible_party(error) == "refused":
            return ProviderRefused(f"{self.name} {refusal}", source=self.name)
        if dspy.is_retryable_lm_error(error) or not isinstance(error, dspy.LMInvalidRequestError):
            return RunIncomplete(f"{self.name} does not answer: {words}")
        return EmbeddingRefused(words, provider_errors.error_topic(error))


def _numbers(embedding: Any) -> NDArray[np.float32]:
    """Decode a vector of an answer; a server may ignore that base64 was requested."""
    try:
        if isinstance(embedding, str):
            return np.frombuffer(base64.b64decode(embedding), dtype="<f4")
        return np.array([*embedding], dtype=np.float32)
    except (TypeError, ValueError, OverflowError):
        return np.empty(0, dtype=np.float32)
