"""A stream of events that is followed while it comes: when the rest of it need not be waited for."""

import json
import math
import re
import time
from collections.abc import Sequence
from typing import Any

from sextant.tools.models.answers.finish_reasons import REPETITION
from sextant.tools.models.transport.repetition import WINDOW, find_loop

# All that a model says, its thoughts and arguments of calls too; the Responses API repeats texts
# whole under other names.
_STRING = rb'": ?"((?:[^"\\]|\\.)+)"'
_SAID_IN_CHAT = re.compile(rb'"(?:content|reasoning_content|reasoning|arguments)' + _STRING)
_SAID_IN_RESPONSES = re.compile(rb'"delta' + _STRING)
_USAGE = re.compile(rb'"usage": ?\{')
_LOOK = 200  # bytes of text after which a loop or a copy is looked for again
_COPIED = 2  # descriptions of tools; a thought may quote the description of one
# The beginning of a description, of characters that JSON never escapes
_PLAIN = re.compile(r"[^\"\\\x00-\x1f\x7f-\U0010ffff]{30,60}")


class StreamReader:
    """Follows a stream while it comes, and tells when the rest of it need not be waited for.

    After a line of the content that is the `marker`, once an event has reported usage; but only if
    the content begins with a marker: other words may be thoughts, in which the form is drafted.
    Else once the text repeats itself (tools/models/transport/repetition.py), or the descriptions of
    two tools of its request, as small models do up to their limit.
    """

    def __init__(
        self, marker: str = "", *, chat: bool = True, descriptions: Sequence[bytes] = ()
    ) -> None:
        """Follow a stream of Chat Completions, or of the Responses API.

        `descriptions` are those of the request's tools (`tool_descriptions`).
        """
        self.finish = ""  # why the stream was left; "stop" after the marker
        self.tokens = 0  # at least: events that said something
        self._marker = marker.encode()
        self._opening = marker[:5].encode()
        self._descriptions = descriptions
        self._pattern = _SAID_IN_CHAT if chat else _SAID_IN_RESPONSES
        self._rest = b""  # of a line that has not come whole
        self._beginning = b""  # of the content
        self._text = b""  # the end of it, as it is escaped in JSON
        self._unseen = 0  # bytes of it since a loop was looked for
        self._started = time.monotonic()
        self._first = self._last = math.inf  # when something was said

    def take(self, piece: bytes) -> bool:
        """Read the next bytes; return whether that is enough."""
        lines, newline, self._rest = (self._rest + piece).rpartition(b"\n")
        said = self._pattern.findall(lines)
        if said:
            self._last = time.monotonic()
            self._first = min(self._first, self._last)
            self.tokens += len(said)
        added = b"".join(said)
        self._text = (self._text + added)[-WINDOW:]
        self._unseen += len(added)
        if self._marker and self._is_complete(added, lines + newline):
            self.finish = "stop"
        elif self._unseen >= _LOOK:
            self._unseen = 0
            if find_loop(self._text.decode("latin-1")) or self._copies_tools():
                self.finish = REPETITION
        return bool(self.finish)

    def is_writing(self) -> bool:
        """Return whether the model goes on writing: for a tenth of the time, and until a tenth of it ago."""
        now = time.monotonic()
        tenth = (now - self._started) / 10
        return now - self._first >= tenth and now - self._last <= tenth

    def _copies_tools(self) -> bool:
        copied = [description for description in self._descriptions if description in self._text]
        return len(copied) >= _COPIED

    def _is_complete(self, added: bytes, lines: bytes) -> bool:
        if len(self._beginning) < len(self._opening):
            beginning = (self._beginning + added).replace(b"\\n", b"").lstrip()
            self._beginning = beginning[: len(self._opening)]
        begins = self._beginning == self._opening
        ended = b"\\n" + self._marker in self._text[-200:]
        return begins and ended and lines.endswith(b"\n\n") and bool(_USAGE.search(lines))


def tool_descriptions(body: bytes) -> list[bytes]:
    """Return the first words of the description of each tool of a request, without equal ones."""
    tools: list[dict[str, Any]] = json.loads(body).get("tools", [])
    beginnings = set[bytes]()
    for tool in tools:
        described = tool.get("function", tool)
        if beginning := _PLAIN.match(str(described.get("description", ""))):
            beginnings.add(beginning[0].encode())
    return sorted(beginnings)
