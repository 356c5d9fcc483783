"""The connection to an OpenAI-compatible server: a request out, an answer back, through libcurl.

DSPy's client and OpenAI's take milliseconds of CPU a call when many are in flight; this takes a seventh of one
(docs/decisions/call-overhead.md). Nothing is tried again here (tools/models/call.py does that), except that a
connection which the server closed between two calls is replaced before anything is sent on it.
"""

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import dspy

from tools.models.sending import faults, protocol
from tools.models.sending.post import Answer, Server, Unanswered
from tools.models.sending.servers import PROVIDERS, SERVER_KEY, openai_account, secret

# Letters from which on a key is taken out of answers, too: "token" for a local server is a word like others.
SECRET = 16
LARGEST = 32 << 20  # bytes of an answer; three times what 100 vectors of 4,096 numbers have, written out


class Reply(NamedTuple):
    """The answer to a request of a chat."""

    reply: protocol.Reply
    headers: Mapping[str, str]


class Unreached(dspy.LMTransportError):
    """No answer came back: no connection, or one that broke."""

    def __init__(self, words: str, model: str, kind: str) -> None:
        super().__init__(words, model=model)
        self.kind = kind


@dataclass
class Wire:
    """The connection to one model on a server. Threads share it, and so do copies of a language model."""

    model: str  # as the server calls it
    url: str
    variable: str  # of the environment, which has the key
    needs_key: bool = False
    api: str = "chat"  # or "responses"
    key: str = field(default="", init=False, repr=False)  # "" is none
    _server: Server | None = field(default=None, init=False, repr=False)  # made for the first request
    _lock: Any = field(default_factory=threading.Lock, init=False, repr=False)

    def __post_init__(self) -> None:
        self.key = secret(self.variable)

    @classmethod
    def to_server(cls, model: str, url: str, api: str = "chat") -> "Wire":
        """The connection to a server of the user's own."""
        return cls(model, url, SERVER_KEY, api=api)

    @classmethod
    def to_provider(cls, model: str, provider: str, api: str = "chat") -> "Wire":
        """The connection to a provider, or to where its variable in the environment leads."""
        url, elsewhere, variable = PROVIDERS[provider]
        place = next((os.environ[name] for name in elsewhere if os.environ.get(name)), url)
        return cls(model, place, variable, needs_key=True, api=api)

    def body(self, messages: Sequence[Any], tools: Sequence[Any], settings: Mapping[str, Any]) -> bytes:
        """A request of a chat as it is sent."""
        return protocol.body(self.api, self.model, messages, tools, settings)

    def send(self, body: bytes, deadline: float, *, tools: bool = False) -> Reply:
        """Send a request of a chat; the answer is there by `deadline`, a time.monotonic. Raises DSPy's LM errors."""
        answer = self.post(protocol.PATHS[self.api], body, deadline, tools=tools)
        try:
            reply = protocol.read(self.api, answer.body, self.model, clean=self.clean)
        except protocol.Unreadable as error:
            raise protocol.Unreadable(self.clean(error.what), self.model, error.usage) from None
        if len(self.key) >= SECRET:
            calls = [{name: self.clean(text) for name, text in call.items()} for call in reply.tool_calls]
            reply = reply._replace(text=self.clean(reply.text), tool_calls=calls, finish=self.clean(reply.finish))
        return Reply(reply, answer.headers)

    def post(self, path: str, body: bytes, deadline: float, *, tools: bool = False) -> Answer:
        """Send any request and return its answer, of status 200. Raises DSPy's LM errors."""
        try:
            answer = self._connect().post(path, body, deadline=deadline)
        except Unanswered as error:
            words = self.clean(str(error))
            if error.kind == "timeout":
                raise dspy.LMTimeoutError(words, model=self.model) from None
            if error.kind == "TLS":
                raise faults.tls_error(words, self.model) from None
            raise Unreached(words, self.model, error.kind) from None
        if answer.status != 200:
            raise protocol.failure(
                answer.status, answer.headers, answer.body, self.model, tools=tools, clean=self.clean
            )
        return answer

    def _connect(self) -> Server:
        with self._lock:
            if self._server is None:
                if not self.key and self.needs_key:
                    raise dspy.LMNotConfiguredError(f"${self.variable} is not set", model=self.model)
                headers = {"authorization": f"Bearer {self.key or 'none'}", "content-type": "application/json"}
                self._server = Server(self.url, headers | openai_account(self.url), largest=LARGEST)
            return self._server

    def clean(self, text: str) -> str:
        """Remove the key from what a server said."""
        return text.replace(self.key, "***") if self.key else text

    def __deepcopy__(self, memo: object) -> Self:
        # DSPy's optimizers copy the language model with the program.
        return self
