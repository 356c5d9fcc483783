"""Messages of the Model Context Protocol before its SDK reads them, in the forms that clients send.

The SDK takes a request whose id is 1.0 for a notification, and answers nothing; a line that begins
with a byte order mark, or has half of a surrogate pair, is dropped; bytes that are no UTF-8 are
replaced, and the rest is searched; and pending requests are dropped if stdin ends.
"""

import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Self

import anyio
import mcp_types as types
from pydantic import ValidationError

from sextant.tools.models.answers.arguments import read_json
from sextant.tools.records import JsonObject

_FORMS = (
    'it has "jsonrpc": "2.0"; a request has a method, which is a text, an id, and an object as its '
    "params; a notification a method; an answer an id, and an object as its result or error"
)
LAST_ANSWERS = 10.0  # seconds that the last requests have when stdin has ended


class NoMessage(Exception):
    """The bytes are no message."""

    def __init__(self, reason: str, code: int = types.INVALID_REQUEST) -> None:
        super().__init__(reason)
        self.code = code

    def as_answer(self) -> JsonObject:
        """Return the message that says so."""
        return {
            "jsonrpc": "2.0",
            "id": None,
            "error": {"code": self.code, "message": str(self)},
        }


def read_message(text: str | bytes) -> JsonObject:
    """Parse a message. NoMessage if it is none."""
    try:
        message = read_json(text if isinstance(text, bytes) else text.removeprefix("\ufeff"))
    except ValueError as error:
        raise NoMessage(f"this is {error}", types.PARSE_ERROR) from None
    if not isinstance(message, dict):
        raise NoMessage("this is no message: send JSON objects, one at a time")
    if isinstance(number := message.get("id"), float) and number.is_integer():
        message["id"] = int(number)
    if "method" in message and "id" in message and not _is_id(message["id"]):
        raise NoMessage("the id of a request is a text or a whole number")
    try:
        types.jsonrpc_message_adapter.validate_python(message)
    except ValidationError:  # whose words are about all classes of messages at once
        raise NoMessage(f"this is no message: {_FORMS}") from None
    return message


def _is_id(value: Any) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool)


def write_message(message: JsonObject) -> str:
    """Write a message as JSON that every reader takes."""
    return json.dumps(message, ensure_ascii=False).encode(errors="replace").decode()


async def read_lines(
    pending_ids: set[Any], refuse: Callable[[NoMessage], Awaitable[None]]
) -> AsyncIterator[str]:
    """Yield the messages on stdin, and add the ids of requests to `pending_ids`; end once these are
    answered. A line that is no message is answered by `refuse`.

    From here on others in this process find stdin empty.
    """
    descriptor = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    # A thread may still read from it at the end, so nothing closes it.
    async for line in anyio.wrap_file(os.fdopen(descriptor, "rb", closefd=False)):
        if not line.strip(b"\xef\xbb\xbf \t\r\n"):
            continue
        try:
            message = read_message(line)
        except NoMessage as error:
            await refuse(error)
            continue
        if message.get("method") == "notifications/cancelled":
            request_id = (message.get("params") or {}).get("requestId")
            if _is_id(request_id):
                pending_ids.discard(request_id)
        elif "method" in message and "id" in message:
            pending_ids.add(message["id"])
        yield f"{write_message(message)}\n"
    with anyio.move_on_after(LAST_ANSWERS):
        while pending_ids:
            await anyio.sleep(0.02)


class Answers:
    """The server's output stream; ids of answers are taken out of `pending_ids`."""

    def __init__(self, stream: Any, pending_ids: set[Any]) -> None:
        self._stream = stream
        self._asked = pending_ids

    async def send(self, item: Any) -> None:
        """Write a message."""
        await self._stream.send(item)
        if isinstance(item.message, types.JSONRPCResponse | types.JSONRPCError):
            self._asked.discard(item.message.id)

    async def aclose(self) -> None:
        """Write no more."""
        await self._stream.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()


def is_open() -> bool:
    """Whether stdin and stdout are open."""
    return sys.stdin is not None and sys.stdout is not None
