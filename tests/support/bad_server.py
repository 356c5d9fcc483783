"""A local server that speaks the OpenAI protocol, misbehaves on command, and keeps the books that ours are held to.

    BadServer([throttled(0.1), fine(), reset()])    one fault a request in the order of arrival, `fine` from then on
    BadServer(lambda number, body: ...)             by number, from 1, and body
    BadServer(mixed(7))                             drawn by a seed
    server.script = ...; server.forget()            another script, and empty books

A `Fault` is what becomes of one request: what is sent back, and how the bytes go out. An answer depends on the prompt
alone, so that rankings can be compared with those of an undisturbed run. Every request is a `Try` in the books.

It speaks Chat (POST .../chat/completions) and Responses (POST .../responses) over HTTP/1.1 (RFC 9112), from a loop in a
thread of its own; its embeddings are all alike. Errors are worded as OpenAI words them. Left out: TLS, streams, HTTP/2.
"""

import asyncio
import hashlib
import json
import math
import random
import re
import socket
import struct
import threading
import time
import zlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from email.utils import formatdate
from typing import Any

from sextant.tools.models.transport import http_client

Body = dict[str, Any]  # of a request or an answer, as JSON has it
MISSING = object()  # in place of a usage block: none at all
BYTELESS = {
    "refused",
    "reset",
    "hung_up",
}  # faults that end the connection before any byte of an answer


@dataclass(slots=True)
class Try:
    """One request as the server saw it."""

    number: int  # from 1, in the order of arrival
    path: str
    body: Body
    key: str  # the authorization header
    arrived: float  # seconds on time.monotonic(), when the last byte of it was there
    kind: str = ""  # of the fault
    status: int = 0  # of what was sent whole; 0 where nothing was
    paid: bool = False  # whether an answer that can be used went out whole
    usage: Any = None  # what went out whole reports, whether it can be used or not
    ended: float = 0.0  # when its last byte went out, or the client went away
    in_flight: int = 0  # requests in work when it arrived, itself among them
    reused: bool = False  # whether its connection had answered a request before

    @property
    def asked(self) -> str:
        """What tells requests apart: tries of one call have the same."""
        return json.dumps(self.body, sort_keys=True)

    @property
    def closed_unseen(self) -> bool:
        """Whether its client has to take its connection for one that was closed between two requests.

        The connection had answered before, and ended at once, without a byte. Nothing tells the client that the
        request was read, so it sends the request once more, on a new connection, and counts no fault.
        """
        at_once = self.ended - self.arrived < http_client.STALE
        return self.reused and self.kind in BYTELESS and at_once


# What an answer is made of


def prompt_of(body: Body) -> str:
    """All text of a request, Chat or Responses."""
    messages = body.get("messages") or body.get("input") or ()  # or another protocol's
    if isinstance(messages, str):
        messages = [{"content": messages}]
    texts = [body.get("instructions") or ""]
    for message in messages:
        content = message.get("content") or ""
        texts += (
            [content] if isinstance(content, str) else [part.get("text", "") for part in content]
        )
    return "\n\n".join(text for text in texts if text)


def fields_of(prompt: str) -> dict[str, str]:
    """Fields as a model would fill them, by their types: `(str)`, `(list[str])`, `(float)` in the prompt's own list.

    Searches are words of the description, lists of ids those that were shown, numbers from 0 to 10; which, a hash of
    the prompt decides.
    """
    listed = prompt.partition("Your output fields are:")[2].partition("All interactions")[0]
    description = re.findall(
        r"\[\[ ## description ## \]\]\n(.*?)\n\n(?:\[\[|Respond)", prompt, re.S
    )
    words = re.findall(r"[a-z]{5,}", description[-1].lower()) if description else ["nothing"]
    shown = list(dict.fromkeys(re.findall(r'"id": ?"([^"]+)"', prompt)))
    shown.sort(key=lambda doc_id: _hash(doc_id, prompt))
    first = _hash(prompt) % len(words)
    text = " ".join([*words[first:], *words[:first]][:8])
    filled = {}
    for name, kind in re.findall(r"^\d+\. `(\w+)` \((.+?)\)", listed, re.M):
        if kind.startswith("list"):
            ids = shown if name == "ranked" else shown[:3]
            filled[name] = json.dumps(ids or [text])
        else:
            filled[name] = str(_hash(name, prompt) % 11) if kind in ("float", "int") else text
    return filled


def _hash(*parts: str) -> int:
    return int.from_bytes(hashlib.sha256("\0".join(parts).encode()).digest()[:6])


def good_answer(path: str, body: Body) -> Body:
    """What an undisturbed request gets."""
    if path.endswith("/embeddings"):
        data = [{"index": number, "embedding": [3.0, 4.0]} for number in range(len(body["input"]))]
        return {"data": data, "usage": {"prompt_tokens": 5, "total_tokens": 5}}
    prompt = prompt_of(body)
    text = "\n\n".join(
        f"[[ ## {name} ## ]]\n{value}"
        for name, value in [*fields_of(prompt).items(), ("completed", "")]
    )
    tokens_in, tokens_out = len(prompt) // 4, len(text) // 4
    about = {"id": f"x-{_hash(prompt)}", "model": body.get("model", "")}
    if path.endswith("/responses"):
        content = [{"type": "output_text", "text": text, "annotations": []}]
        message = {
            "type": "message",
            "id": "m",
            "role": "assistant",
            "status": "completed",
            "content": content,
        }
        usage: Body = {
            "input_tokens": tokens_in,
            "output_tokens": tokens_out,
            "total_tokens": tokens_in + tokens_out,
        }
        usage |= {
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        }
        made = {
            "object": "response",
            "created_at": 1,
            "status": "completed",
            "output": [message],
            "usage": usage,
        }
        return about | made | {"error": None, "incomplete_details": None}
    choice = {
        "index": 0,
        "finish_reason": "stop",
        "message": {"role": "assistant", "content": text},
    }
    usage = {
        "prompt_tokens": tokens_in,
        "completion_tokens": tokens_out,
        "total_tokens": tokens_in + tokens_out,
    }
    return about | {"object": "chat.completion", "created": 1, "choices": [choice], "usage": usage}


# How bytes go out. A way gets the head without its framing and the body; it says whether all of them were written.


@dataclass(slots=True)
class Line:
    """One connection, and what a fault may do to it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    requests: int = 0  # that came over it, GETs among them

    async def send(self, data: bytes) -> None:
        """Write, and wait until the last byte has left for the kernel."""
        self.writer.write(data)
        await self.writer.drain()

    async def until_the_client_goes(self) -> None:
        with suppress(OSError):
            while await self.reader.read(65536):
                pass

    def reset(self) -> None:
        """End it with RST instead of FIN."""
        connection = self.writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


Way = Callable[[Line, bytes, bytes], Awaitable[bool]]


def _framed(head: bytes, body: bytes) -> bytes:
    return b"%scontent-length: %d\r\n\r\n%s" % (head, len(body), body)


async def whole(line: Line, head: bytes, body: bytes) -> bool:
    await line.send(_framed(head, body))
    return True


async def in_chunks(line: Line, head: bytes, body: bytes) -> bool:
    """Chunked, in several writes, with an extension on each chunk and a trailer."""
    await line.send(head + b"transfer-encoding: chunked\r\n\r\n")
    for part in (body[first : first + 700] for first in range(0, len(body), 700)):
        await line.send(b"%x;part=yes\r\n%s\r\n" % (len(part), part))
    await line.send(b"0\r\nx-checked: no\r\n\r\n")
    return True


def _broken(part: Callable[[bytes, bytes], bytes], end: str = "") -> Way:
    """Send a part of the answer, and then reset or close the connection, or say nothing more."""

    async def way(line: Line, head: bytes, body: bytes) -> bool:
        if sent := part(head, body):
            await line.send(sent)
            await asyncio.sleep(0.002)  # or the client sees the reset alone
        if end == "reset":
            line.reset()
        elif end == "close":
            line.writer.close()
        else:
            await line.until_the_client_goes()
        return False

    return way


def _nothing(head: bytes, body: bytes) -> bytes:
    return b""


def _half(head: bytes, body: bytes) -> bytes:
    return _framed(head, body)[: -len(body) // 2]


def bytewise(every: float) -> Way:
    """The head one byte at a time."""

    async def way(line: Line, head: bytes, body: bytes) -> bool:
        for byte in _framed(head, body)[: -len(body)]:
            await line.send(bytes([byte]))
            await asyncio.sleep(every)
            if line.reader.at_eof():
                return False
        await line.send(body)
        return True

    return way


def drips(every: float) -> Way:
    """The body one byte at a time, and so no pause that is long."""

    async def way(line: Line, head: bytes, body: bytes) -> bool:
        await line.send(_framed(head, body)[: -len(body)])
        for byte in body:
            await line.send(bytes([byte]))
            await asyncio.sleep(every)
            if line.reader.at_eof():
                return False
        return True

    return way


# The faults


@dataclass(frozen=True, slots=True)
class Fault:
    """What becomes of one request."""

    kind: str
    status: int = 200
    headers: tuple[tuple[str, str | Callable[[], str]], ...] = (
        ("content-type", "application/json"),
    )
    spoil: Callable[[Body, Try], Any] = lambda answer, request: (
        answer
    )  # bytes are sent as they are, else JSON
    way: Way = whole
    delay: float = 0.0  # seconds before anything is sent
    usable: bool = True  # whether a client that gets all of it has an answer
    away: float = (
        0.0  # seconds from now on in which new connections are refused, and old ones reset
    )


def _by(kind: str, way: Way = whole, *, usable: bool = True) -> Callable[[], Fault]:
    """The fault that is in nothing but the way in which bytes go out."""
    return lambda: Fault(kind, way=way, usable=usable)


fine = _by("fine")
chunked = _by("chunked", in_chunks)
reset = _by("reset", _broken(_nothing, "reset"), usable=False)
hung_up = _by("hung_up", _broken(_nothing, "close"), usable=False)
reset_inside = _by("reset_inside", _broken(_half, "reset"), usable=False)
silent = _by("silent", _broken(_nothing), usable=False)
stalls = _by("stalls", _broken(_half), usable=False)


def latency(seconds: float) -> Fault:
    return Fault("latency", delay=seconds)


def trickle(every: float) -> Fault:
    return Fault("trickle", way=bytewise(every))


def rate_headers(remaining: int = 0, reset: str = "20ms", limit: int = 60) -> Fault:
    """A good answer that says how many requests may follow, and when there are more: "1s", "20ms", "6m0s"."""
    named = {"limit": str(limit), "remaining": str(remaining), "reset": reset}
    headers = [(f"x-ratelimit-{name}-requests", value) for name, value in named.items()]
    return Fault("rate_headers", headers=(("content-type", "application/json"), *headers))


def _error(
    kind: str, status: int, message: str, code: str = "", headers: Iterable[tuple[str, Any]] = ()
) -> Fault:
    def spoil(answer: Body, request: Try) -> Body:
        words = message.replace("{key}", request.key.removeprefix("Bearer ").strip())
        return {
            "error": {
                "message": words,
                "type": code or "server_error",
                "param": None,
                "code": code or None,
            }
        }

    return Fault(
        kind, status, (("content-type", "application/json"), *headers), spoil, usable=False
    )


def throttled(after: float | None = None, form: str = "seconds") -> Fault:
    """429; `after` is seconds until one may come again, as `form` writes it: "seconds", "date", "ms"."""
    seconds = after or 0.0
    headers = {
        "seconds": ("retry-after", f"{seconds:g}"),
        "date": ("retry-after", lambda: formatdate(math.ceil(time.time() + seconds), usegmt=True)),
        "ms": ("retry-after-ms", f"{seconds * 1000:g}"),
    }
    sent = () if after is None else (headers[form],)
    return _error("429", 429, "Rate limit reached. Please slow down.", "rate_limit_exceeded", sent)


def failing(status: int = 500) -> Fault:
    """500, 502, 503 or Anthropic's 529; a gateway's 502 is a page."""
    if status == 502:
        return Fault(
            "502",
            502,
            (("content-type", "text/html"),),
            lambda *_: b"<h1>Bad Gateway</h1>",
            usable=False,
        )
    return _error(str(status), status, "The server had an error while processing your request.")


def refused(seconds: float) -> Fault:
    """This connection is reset, and for `seconds` so is every other one that brings a request; new ones are refused."""
    return Fault("refused", way=_broken(_nothing, "reset"), away=seconds, usable=False)


def _spoilt(
    kind: str, spoil: Callable[[Body, Try], Any], content: str = "application/json"
) -> Callable[[], Fault]:
    """The fault that is in nothing but the body of a good answer, which no client can use."""
    return lambda: Fault(kind, headers=(("content-type", content),), spoil=spoil, usable=False)


empty_choice = _spoilt("empty_choice", lambda answer, _: answer | _in_either(answer, [], []))
cut_json = _spoilt(
    "cut_json", lambda answer, _: json.dumps(answer).encode()[:-40]
)  # with the length that it has
bad_utf8 = _spoilt(
    "bad_utf8", lambda a, _: json.dumps(a).encode().replace(b"[[ ## ", b"\xff\xfe\xc3[[ ## ")
)
page = _spoilt("page", lambda *_: b"<html>Back soon.</html>", "text/html")
huge = _spoilt(
    "huge", lambda answer, _: b" " * (40 << 20) + json.dumps(answer).encode()
)  # only its end tells


def bomb(encoding: str = "gzip", size: int = 400 << 20) -> Fault:
    """An answer that is small until it is unpacked."""
    packer = zlib.compressobj(9, wbits=zlib.MAX_WBITS | (16 if encoding == "gzip" else 0))
    packed = b"".join(packer.compress(b" " * (1 << 20)) for _ in range(size >> 20)) + packer.flush()
    headers = (("content-type", "application/json"), ("content-encoding", encoding))
    return Fault("bomb", headers=headers, spoil=lambda *_: packed, usable=False)


def null_content() -> Fault:
    """A well-formed answer that says nothing: the model's doing, as far as anybody can tell."""
    silent = {
        "index": 0,
        "finish_reason": "stop",
        "message": {"role": "assistant", "content": None},
    }
    item = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": []}
    return Fault(
        "null_content", spoil=lambda answer, _: answer | _in_either(answer, [silent], [item])
    )


def filtered() -> Fault:
    """200, and the answer was taken back by a content filter."""
    choice = {
        "index": 0,
        "finish_reason": "content_filter",
        "message": {"role": "assistant", "content": ""},
    }

    def spoil(answer: Body, _: Try) -> Body:
        if "output" in answer:
            return answer | {
                "status": "incomplete",
                "incomplete_details": {"reason": "content_filter"},
                "output": [],
            }
        return answer | {"choices": [choice]}

    return Fault("filtered", spoil=spoil)


def _in_either(answer: Body, choices: list[Any], output: list[Any]) -> Body:
    return {"output": output} if "output" in answer else {"choices": choices}


def usage(reported: Any) -> Fault:
    """A good answer with another report of what it used."""

    def spoil(answer: Body, _: Try) -> Body:
        kept = {name: value for name, value in answer.items() if name != "usage"}
        return kept if reported is MISSING else kept | {"usage": reported}

    return Fault("usage", spoil=spoil)


def told(kind: str, status: int, message: str, code: str = "invalid_request_error") -> Fault:
    """An error as a gateway words it."""
    return _error(kind, status, message, code)


def too_long() -> Fault:
    words = "This model's maximum context length is 8192 tokens. However, your messages resulted in 9001 tokens."
    return told("too_long", 400, words, "context_length_exceeded")


def filtered_400() -> Fault:
    return told(
        "filtered_400",
        400,
        "The response was filtered by the content management policy.",
        "content_filter",
    )


def no_quota() -> Fault:
    return told("no_quota", 429, "You exceeded your current quota.", "insufficient_quota")


def walled(status: int) -> Fault:
    """The page of a firewall, which knows nothing of models: 403 or 413."""
    page = b"<!DOCTYPE html><html><head><title>Forbidden</title></head><h1>Blocked by content policy</h1></html>"
    return Fault(
        f"wall {status}", status, (("content-type", "text/html"),), lambda *_: page, usable=False
    )


def broke_off(
    code: Any = 502, *, whole: bool = False, message: str = "Provider returned error"
) -> Fault:
    """OpenRouter's error inside a 200: in the choice, where the model had begun, or instead of an answer."""
    error = {"code": code, "message": message}
    choice = {
        "index": 0,
        "finish_reason": "error",
        "error": error,
        "message": {"role": "assistant", "content": ""},
    }

    def spoil(answer: Body, _: Try) -> Body:
        if "output" in answer:
            return answer | {"status": "failed", "error": error, "output": []}
        return {"error": error} if whole else answer | {"choices": [choice]}

    return Fault(f"{'instead' if whole else 'inside'} {code}", spoil=spoil, usable=False)


def moved(place: str, status: int = 307) -> Fault:
    """302 asks for a GET without the body, 307 and 308 for the same request."""
    headers = (("location", place), ("content-type", "application/json"))
    return Fault("moved", status, headers, lambda *_: {"moved": place}, usable=False)


def unauthorized(*, repeats: bool = False) -> Fault:
    told = "Incorrect API key provided: {key}." if repeats else "Your key has expired."
    return _error("401", 401, f"{told} Get another.", "invalid_api_key")


_IN_AND_OUT = ((-5, -1), ("120", "4"), (10**18, 10**18), (12.5, 3.25), (True, False))
ABSURD_USAGE: tuple[Any, ...] = (MISSING, None, {}, [], "none")
ABSURD_USAGE += tuple(
    {"prompt_tokens": one, "completion_tokens": other} for one, other in _IN_AND_OUT
)


def _by_kind(*faults: Fault) -> dict[str, Fault]:
    return {fault.kind: fault for fault in faults}


# By what they do to a call. Waits are short, so that tests are.
GOOD = _by_kind(
    fine(), latency(0.05), chunked(), trickle(0.0005), rate_headers(0, "20ms"), usage(MISSING),
)  # fmt: skip
PASSING = _by_kind(  # the provider's: another try may do
    throttled(), failing(500), failing(502), failing(503), failing(529), refused(0.05), reset(), hung_up(),
    reset_inside(), silent(), stalls(), empty_choice(), cut_json(), bad_utf8(), page(), huge(),
    broke_off(), broke_off(whole=True), broke_off("server_error", whole=True),
)  # fmt: skip
REFUSING = _by_kind(  # nobody will be answered
    unauthorized(), no_quota(),
    told("LiteLLM", 422, "Budget has been exceeded! Current cost: 2.1, Max budget: 2.0", "budget_exceeded"),
    told("Anthropic", 400, "Your credit balance is too low to access the Anthropic API."),
    broke_off(402, message="Insufficient credits"), moved("http://127.0.0.1:9/v1/chat/completions?key=1"),
)  # fmt: skip
UNCLEAR = _by_kind(  # no use in trying again at once, and nothing that is said of the text
    told("DeepSeek", 400, "The `reasoning_content` in the thinking mode must be passed back to the API."),
    told("unprocessable", 422, "Input should be a valid string"), walled(403), walled(413),
    broke_off(400, message="Provider returned error"),
)  # fmt: skip
OWN = _by_kind(too_long(), filtered_400(), filtered(), null_content())  # no outage
# Scripts

Script = Callable[[int, Body], Fault]


def in_order(faults: Iterable[Fault]) -> Script:
    coming = iter(faults)
    return lambda number, body: next(coming, fine())


def always(fault: Fault) -> Script:
    return lambda number, body: fault


def from_request(first: int, fault: Fault) -> Script:
    return lambda number, body: fault if number >= first else fine()


def once(fault: Fault, at: int = 2) -> Script:
    return lambda number, body: fault if number == at else fine()


def mixed(
    seed: int, faults: Sequence[Fault] = (*GOOD.values(), *PASSING.values()), share: float = 0.5
) -> Script:
    """A fault for `share` of the requests; the n-th request of a seed always meets the same."""

    def draw(number: int, body: Body) -> Fault:
        drawn = random.Random(f"{seed} {number}")
        return drawn.choice(faults) if drawn.random() < share else fine()

    return draw


# The server


class BadServer:
    """Serves until `close`. `spec` is what --lm takes."""

    def __init__(self, script: Script | Iterable[Fault] = ()) -> None:
        self.script: Script = script if callable(script) else in_order(script)
        self.models: Body = {}  # what GET /models says; a GET is in no books
        self._tries = list[Try]()
        self._busy = 0
        self._loop = asyncio.new_event_loop()
        self._tasks = set[asyncio.Task[None]]()
        self._refusing = threading.Event()
        self._kept = _bound(
            0
        )  # never listens: nobody else is given the port while new connections are refused
        self.port = int(self._kept.getsockname()[1])
        self._listen()
        self.url = f"http://127.0.0.1:{self.port}/v1"
        self.spec = f"tiny@{self.url}"
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    # The books

    @property
    def tries(self) -> list[Try]:
        """All requests since the books were opened, once none is in work any more."""
        ends = time.monotonic() + 5.0
        while (
            self._busy
            and time.monotonic() < ends
            and threading.current_thread() is not self._thread
        ):
            time.sleep(0.0005)
        return self._tries

    @property
    def paid(self) -> list[Try]:
        """Those of them that were answered, and are to be paid for."""
        return [one for one in self.tries if one.paid]

    def by_call(self) -> dict[str, list[Try]]:
        """The tries of each call, in order: what was asked tells calls apart."""
        calls = dict[str, list[Try]]()
        for one in self.tries:
            calls.setdefault(one.asked, []).append(one)
        return calls

    def forget(self, script: Script | Iterable[Fault] | None = None) -> None:
        """Open new books, perhaps with another script. What is in work stays in the old ones."""
        while self._refusing.is_set():
            time.sleep(0.001)
        if script is not None:
            self.script = script if callable(script) else in_order(script)
        self._tries = []

    # Connections

    def close(self) -> None:
        """Stop at once; connections are dropped."""
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()
        self._kept.close()

    async def _stop(self) -> None:
        if not self._refusing.is_set():
            self._refuse(0.0)
        others = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def _listen(self) -> None:
        self._listener = _bound(self.port)
        self._listener.listen(1024)
        self._listener.setblocking(False)
        self._loop.add_reader(self._listener, self._accept)
        self._refusing.clear()

    def _accept(self) -> None:
        with suppress(BlockingIOError):
            while True:
                connection, _ = self._listener.accept()
                task = self._loop.create_task(self._serve(connection))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    def _refuse(self, seconds: float) -> None:
        """Close the listening socket, for good if it is for no time."""
        self._refusing.set()
        self._accept()  # who is connected already, as far as the kernel is concerned: nobody would see their requests
        self._loop.remove_reader(self._listener)
        self._listener.close()
        if seconds:
            self._loop.call_later(seconds, self._listen)

    async def _serve(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=connection)
        writer.transport.set_write_buffer_limits(0)  # `drain` returns when all is with the kernel
        line = Line(reader, writer)
        with suppress(OSError, asyncio.IncompleteReadError):
            while not writer.is_closing():
                await self._answer(await _request(line), line)
        writer.close()

    async def _answer(self, request: Try, line: Line) -> None:
        if not request.body and not request.path.startswith(
            "/api/"
        ):  # of Chroma, which is in the books
            found = self.models if request.path.endswith("/v1/models") else {}
            await _carry_out(
                Fault("GET", 200 if found else 404, spoil=lambda *_: found), request, line
            )
            return
        self._busy += 1
        self._tries.append(request)
        request.number, request.in_flight = len(self._tries), self._busy
        try:
            fault = (
                refused(0.0)
                if self._refusing.is_set()
                else self.script(request.number, request.body)
            )
            request.kind = fault.kind
            if fault.away:
                self._refuse(fault.away)
            await asyncio.sleep(fault.delay)
            if line.reader.at_eof():
                raise ConnectionResetError("the client has not waited for it")
            await _carry_out(fault, request, line)
        finally:
            request.ended = time.monotonic()
            self._busy -= 1


def _bound(port: int) -> socket.socket:
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    one.bind(("127.0.0.1", port))
    return one


async def _request(line: Line) -> Try:
    """The next request of a connection, once the last byte of it is there."""
    head = (await line.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.strip().split("\r\n")
    headers = {
        name.strip().lower(): value.strip()
        for name, _, value in (one.partition(":") for one in lines)
    }
    if headers.get("expect", "").lower() == "100-continue":
        await line.send(b"HTTP/1.1 100 Continue\r\n\r\n")
    body = await line.reader.readexactly(int(headers.get("content-length", "0")))
    line.requests += 1
    return Try(
        0,
        first.split()[1],
        json.loads(body or b"{}"),
        headers.get("authorization", ""),
        time.monotonic(),
        reused=line.requests > 1,
    )


async def _carry_out(fault: Fault, request: Try, line: Line) -> None:
    answer = fault.spoil(good_answer(request.path, request.body), request)
    head = f"HTTP/1.1 {fault.status} {'OK' if fault.status == 200 else 'No'}\r\n" + "".join(
        f"{name}: {value if isinstance(value, str) else value()}\r\n"
        for name, value in fault.headers
    )
    body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    if await fault.way(line, head.encode(), body):
        request.status = fault.status
        request.paid = fault.usable
        request.usage = answer.get("usage") if isinstance(answer, dict) else None
