"""A model server that answers every call after a fixed time and does almost no work: `python -m
benchmarks.answering`.

It speaks the part of HTTP and of the Chat protocol that benchmarks/calls.py needs: requests with a
stated length, one after another on a connection, and answers token by token where a stream is asked
for. It prints its port. To a reading prompt of `multihop` it answers with the first id that was
shown, to a prompt for a search with words of the description, different ones in each hop, and to
the prompts of teleprompters with an instruction of its own for each. GET returns the last 256
request bodies.
"""

import asyncio
import re
import sys
from collections import deque
from collections.abc import Iterator
from hashlib import blake2b
from itertools import chain
from math import ceil

import orjson

from sextant.tools.platform.cli import print_stdout

KEPT = 256
PACE = 60  # pieces of a streamed answer a second, as a model writes tokens
FIRST = 0.2  # of the time that an answer takes: until its first token, where it is streamed
FIRST_ID = re.compile(r'\{"id": "((?:[^"\\]|\\.)*)"')
DESCRIPTION = re.compile(r"\[\[ ## description ## \]\]\n(.*?)\n\n\[\[ ##", re.DOTALL)
HOP = re.compile(r"\[\[ ## hop ## \]\]\n(\d+) of (\d+)")
ASKED = re.compile(r"starting with the field (.*)")
FIELD = re.compile(r"\[\[ ## (\w+) ## \]\]")
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


def answer(prompt: str) -> str:
    """What the model says to one of multihop's prompts; it depends on the prompt alone."""
    if "field `[[ ## selected ## ]]`" in prompt:
        shown = FIRST_ID.search(prompt)
        selected = f'["{shown[1]}"]' if shown else "[]"
        fields = (
            f"[[ ## selected ## ]]\n{selected}\n\n[[ ## observations ## ]]\nthe first one fits in "
            f"part\n\n[[ ## summary ## ]]\none fits"
        )
        return f"{fields}\n\n[[ ## completed ## ]]\n"
    if "field `[[ ## search ## ]]`" not in prompt and (asked := ASKED.findall(prompt)):
        instruction = (
            f"Look closely, and mind case {blake2b(prompt.encode(), digest_size=4).hexdigest()}."
        )
        parts = [
            f"[[ ## {name} ## ]]\n{'' if name == 'completed' else instruction}"
            for name in FIELD.findall(asked[-1])
        ]
        return "\n\n".join(parts)
    told = DESCRIPTION.search(prompt)
    hop = HOP.search(prompt)
    words = re.findall(r"[a-z]{5,}", told[1].lower()) if told else []
    first = 4 * (int(hop[2]) - int(hop[1])) if hop else 0
    search = " ".join((words[first:] + words)[:8]) or "water"
    fields = f"[[ ## search ## ]]\n{search}\n\n[[ ## rationale ## ]]\nother words"
    return f"{fields}\n\n[[ ## completed ## ]]\n"


class Connection(asyncio.Protocol):
    """One client's connection."""

    def __init__(self, latency: float, bodies: deque[bytes]) -> None:
        """`latency` in seconds; `bodies` are those of all connections."""
        self._latency = latency
        self._bodies = bodies
        self._waiting = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has come."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """A part of a request, or the whole of one."""
        self._waiting += data
        head, found, _ = self._waiting.partition(b"\r\n\r\n")
        if not found:
            return
        if head.startswith(b"GET"):
            self._waiting.clear()
            self._send(orjson.dumps([body.decode() for body in self._bodies]))
            return
        length = LENGTH.search(head)
        end = len(head) + 4 + (int(length[1]) if length else 0)
        if len(self._waiting) >= end:
            body = bytes(self._waiting[len(head) + 4 : end])
            del self._waiting[:end]
            self._bodies.append(body)
            send = self._stream if b'"stream":true' in body[:200] else self._answer
            asyncio.get_running_loop().call_later(
                self._latency * (send == self._answer or FIRST), send, body
            )

    def _stream(self, body: bytes) -> None:
        """Send the answer at the pace of a model, in what is left of the time that it takes;
        some tokens at a time.
        """
        text = answer(orjson.loads(body)["messages"][-1]["content"])
        about = {"id": "chatcmpl-1", "created": 1}
        about |= {"object": "chat.completion.chunk", "model": "tiny"}
        tokens = [text[at : at + 4] for at in range(0, len(text), 4)]
        left = self._latency * (1 - FIRST)
        choices = [
            [{"index": 0, "delta": {"content": token}, "finish_reason": None}] for token in tokens
        ]
        ends = [{"index": 0, "delta": {}, "finish_reason": "stop"}]
        usage = {"prompt_tokens": len(body) // 4, "completion_tokens": len(tokens)}
        events = [about | {"choices": choice} for choice in [*choices, ends]] + [
            about | {"choices": [], "usage": usage}
        ]
        lines = [b"data: %s\n\n" % event for event in [*map(orjson.dumps, events), b"[DONE]"]]
        many = max(1, ceil(len(lines) / (1 + left * PACE)))
        pieces = [b"".join(lines[at : at + many]) for at in range(0, len(lines), many)]
        self._transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: "
            b"chunked\r\n\r\n"
        )
        self._send_next(iter(pieces), left / max(1, len(pieces) - 1))

    def _send_next(self, pieces: Iterator[bytes], pause: float) -> None:
        piece = next(pieces)
        if not self._transport.is_closing():
            self._transport.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            if (more := next(pieces, None)) is None:
                self._transport.write(b"0\r\n\r\n")
            else:
                asyncio.get_running_loop().call_later(
                    pause, self._send_next, chain([more], pieces), pause
                )

    def _answer(self, body: bytes) -> None:
        text = answer(orjson.loads(body)["messages"][-1]["content"])
        choice = {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": text},
        }
        usage = {"prompt_tokens": len(body) // 4, "completion_tokens": len(text) // 4}
        usage["total_tokens"] = sum(usage.values())
        made = {"id": "x", "object": "chat.completion", "created": 1, "model": "tiny"}
        self._send(orjson.dumps(made | {"choices": [choice], "usage": usage}))

    def _send(self, body: bytes) -> None:
        if not self._transport.is_closing():
            head = (
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
            )
            self._transport.write(head % len(body) + body)


async def serve(latency: float) -> None:
    """Answer calls after `latency` seconds each, until the process ends."""
    bodies = deque[bytes](maxlen=KEPT)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: Connection(latency, bodies), "127.0.0.1", 0, backlog=1024
    )
    print_stdout(f"{server.sockets[0].getsockname()[1]}\n")
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(float(sys.argv[1])))
