"""A stream of events that is followed while it comes: when the rest of it need not be waited for."""

import math
import re
import time

from sextant.tools.models.provider_response import REPETITION
from sextant.tools.models.transport.repetition import WINDOW, find_loop

# All that a model says, its thoughts and arguments of calls too; the Responses API repeats texts
# whole under other names.
_STRING = rb'": ?"((?:[^"\\]|\\.)+)"'
_SAID_IN_CHAT = re.compile(rb'"(?:content|reasoning_content|reasoning|arguments)' + _STRING)
_SAID_IN_RESPONSES = re.compile(rb'"delta' + _STRING)
_USAGE = re.compile(rb'"usage": ?\{')
_LOOK = 200  # bytes of text after which a loop is looked for again


class StreamReader:
    """Follows a stream while it comes, and tells when the rest of it need not be waited for.

    After a line of the content that is the `marker`, once an event has reported usage; but only if
    the content begins with a marker: other words may be thoughts, in which the form is drafted.
    Else once the text repeats itself (tools/models/transport/repetition.py).
    """

    def __init__(self, marker: str = "", *, chat: bool = True) -> None:
        """Follow a stream of Chat Completions, or of the Responses API."""
        self.finish = ""  # why the stream was left; "stop" after the marker
        self.tokens = 0  # at least: events that said something
        self._marker = marker.encode()
        self._opening = marker[:5].encode()
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
            if find_loop(self._text.decode("latin-1")):
                self.finish = REPETITION
        return bool(self.finish)

    def is_writing(self) -> bool:
        """Return whether the model goes on writing: for a tenth of the time, and until a tenth of it ago."""
        now = time.monotonic()
        tenth = (now - self._started) / 10
        return now - self._first >= tenth and now - self._last <= tenth

    def _is_complete(self, added: bytes, lines: bytes) -> bool:
        if len(self._beginning) < len(self._opening):
            beginning = (self._beginning + added).replace(b"\\n", b"").lstrip()
            self._beginning = beginning[: len(self._opening)]
        begins = self._beginning == self._opening
        ended = b"\\n" + self._marker in self._text[-200:]
        return begins and ended and lines.endswith(b"\n\n") and bool(_USAGE.search(lines))
