"""The connection to an OpenAI-compatible server: a request out, an answer back, through libcurl.

DSPy's client and OpenAI's take milliseconds of CPU a call when many are in flight; this takes a seventh of one
(docs/decisions/call-overhead.md). Nothing is tried again here (tools/models/call.py does that), except that a
connection which the server closed between two calls is replaced before anything is sent on it.
"""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import dspy

from tools.models.sending import faults, protocol
from tools.models.sending.post import Server, Unanswered
from tools.models.sending.servers import openai_account

OPENAI = "https://api.openai.com/v1"
# Letters from which on a key is taken out of answers, too: "token" for a local server is a word like others.
SECRET = 16
LARGEST = 16 << 20  # bytes of an answer; a hundred times what the longest has


class Sent(NamedTuple):
    """What came back for a request."""

    reply: protocol.Reply
    headers: Mapping[str, str]


class Unreached(dspy.LMTransportError):
    """No answer came back: no connection, or one that broke."""

    def __init__(self, words: str, model: str, kind: str) -> None:
        super().__init__(words, model=model)
        self.kind = kind


@dataclass
class Wire:
    """One model behind a server. Threads share it; copies of a language model share its connections."""

    model: str  # as the server calls it
    url: str
    key: str = field(repr=False)  # "" is none
    needs_key: bool = False
    api: protocol.Api = "chat"
    _server: Server | None = field(default=None, init=False, repr=False)  # made for the first request
    _lock: Any = field(default_factory=threading.Lock, init=False, repr=False)

    def body(self, messages: Sequence[Any], tools: Sequence[Any], settings: Mapping[str, Any]) -> bytes:
        """A request as it is sent."""
        return protocol.body(self.api, self.model, messages, tools, settings)

    def send(self, body: bytes, deadline: float, *, tools: bool = False) -> Sent:
        """One answer, by `deadline` on the clock of time.monotonic. Raises DSPy's LM errors."""
        try:
            answer = self._connected().post(protocol.PATHS[self.api], body, deadline=deadline)
        except Unanswered as error:
            words = self._clean(str(error))
            if error.kind == "timeout":
                raise dspy.LMTimeoutError(words, model=self.model) from None
            if error.kind == "TLS":
                raise faults.untrusted(words, self.model) from None
            raise Unreached(words, self.model, error.kind) from None
        if answer.status != 200:
            raise protocol.failure(
                answer.status, answer.headers, answer.body, self.model, tools=tools, clean=self._clean
            )
        try:
            reply = protocol.read(self.api, answer.body, self.model, clean=self._clean)
        except protocol.Unreadable as error:
            raise protocol.Unreadable(self._clean(error.what), self.model, error.usage) from None
        if len(self.key) >= SECRET:
            calls = [{name: self._clean(text) for name, text in call.items()} for call in reply.tool_calls]
            reply = reply._replace(text=self._clean(reply.text), tool_calls=calls, finish=self._clean(reply.finish))
        return Sent(reply, answer.headers)

    def _connected(self) -> Server:
        with self._lock:
            if self._server is None:
                if not self.key and self.needs_key:
                    raise dspy.LMNotConfiguredError("$OPENAI_API_KEY is not set", model=self.model)
                headers = {"authorization": f"Bearer {self.key or 'none'}", "content-type": "application/json"}
                self._server = Server(self.url, headers | openai_account(self.url), largest=LARGEST)
            return self._server

    def _clean(self, text: str) -> str:
        """What a server said, without the key, if it said that back."""
        return text.replace(self.key, "***") if self.key else text

    def __deepcopy__(self, memo: object) -> Self:
        # DSPy's optimizers copy the language model with the program.
        return self
