"""The messages that clients of OpenEnv send by WebSocket, before its server reads them.

That server ends a session, and with it the episode, if a message is no object, comes as bytes, is
nested too deep or has half of a surrogate pair. Such a message is answered here with a line, and
the session goes on.
"""

import json
from collections.abc import Callable
from typing import Any

from sextant.tools.models.answers.arguments import SHOWN, read_json
from sextant.tools.text import replace_surrogates

PATH = "/ws"  # of its server, for messages with a type; others have other forms
TYPES = ("reset", "step", "state", "close", "mcp")
# The codes that OpenEnv's server has for such messages
_INVALID_JSON = "INVALID_JSON"
_WRONG_FORM = "VALIDATION_ERROR"
_UNKNOWN_TYPE = "UNKNOWN_TYPE"

Application = Callable[..., Any]  # ASGI


class WrongFrame(Exception):
    """A message has no form that OpenEnv's server can read."""

    def __init__(self, reason: str, code: str) -> None:
        super().__init__(reason)
        self.code = code

    def as_answer(self) -> str:
        """Return the answer that says so, as that server writes its own."""
        return json.dumps(
            {
                "type": "error",
                "data": {
                    "message": replace_surrogates(str(self)),
                    "code": self.code,
                },
            }
        )


def read_frame(frame: str | bytes, *, typed: bool = True) -> str:
    """Return a message as JSON text of an object that every reader takes; `typed` if its type is in
    TYPES.

    WrongFrame for anything else.
    """
    try:
        message = read_json(frame)
    except ValueError as error:
        raise WrongFrame(f"this is {error}", _INVALID_JSON) from None
    if not isinstance(message, dict):
        raise WrongFrame(
            "this is no message: send a JSON object like "
            '{"type": "step", "data": {"tool": "search", "arguments": {"query": "..."}}}',
            _WRONG_FORM,
        )
    message_type = message.get("type")
    if typed and message_type not in TYPES:
        shown = json.dumps(message_type)[:SHOWN]
        type_names = ", ".join(TYPES)
        raise WrongFrame(
            f"there is no type {shown} of messages; there are {type_names}", _UNKNOWN_TYPE
        )
    return replace_surrogates(json.dumps(message, ensure_ascii=False))


class FrameReader:
    """An application that is given only messages that it can read."""

    def __init__(self, application: Application) -> None:
        self._application = application

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve a connection."""
        if scope["type"] != "websocket":
            await self._application(scope, receive, send)
            return
        typed = scope["path"] == PATH

        async def receive_readable() -> Any:
            while True:
                event = await receive()
                if event["type"] != "websocket.receive":
                    return event
                frame = event.get("text")
                try:
                    text = read_frame(event["bytes"] if frame is None else frame, typed=typed)
                except WrongFrame as refusal:
                    await send({"type": "websocket.send", "text": refusal.as_answer()})
                else:
                    return {"type": "websocket.receive", "text": text}

        await self._application(scope, receive_readable, send)
