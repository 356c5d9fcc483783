"""Streamed answers: followed while they come, and joined into the response that the server would have
sent whole.

A stream is kept as it comes and parsed once, when it is whole: to parse each piece on its way would
cost more than all else that is done for a call. On its way it is only searched for its end, and for
a loop, in which small models go on until their limit: the same part, of up to 1,500 characters, at
least four times in a row over at least 600 characters (words, sentences, a list of ids that begins
again, blanks). Texts that only resemble each other (rows of a table, ids that are counted up) are
none. Left out: several choices, and data of an event in several lines.
"""

import math
import re
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from sextant.tools.models.provider_response import REPETITION
from sextant.tools.records import JsonMapping, JsonObject

DONE = b"data: [DONE]\n\n"
STARTS = (b"data:", b"event:", b"id:", b"retry:", b"error:", b":")
# The data of an event, or of an error: llama.cpp wrote "error:" in place of "data:" until 2025
_DATA = re.compile(rb"^(?:data: ?|(event: ?error\r?\ndata: ?|error: ?))([^\r\n]+)", re.MULTILINE)
_SAID = re.compile(
    rb'"(?:content|reasoning_content|reasoning|refusal|arguments|text|delta)": ?"[^"]'
)
_GROWING = (
    "arguments",
    "text",
    "summary",
)  # texts within a tool call, or a piece of reasoning, that come in parts
_DELTAS = ("response.output_text.delta", "response.reasoning_text.delta")
_ENDS = ("response.completed", "response.incomplete", "response.failed")


def stream_options(*, chat: bool, each: bool) -> JsonObject:
    """Return the options that request a stream with usage at its end, or with `each` of its events."""
    options = {"include_usage": True} | ({"continuous_usage_stats": True} if each else {})
    return {"stream": True} | ({"stream_options": options} if chat else {})


def events_to_json(body: bytes) -> bytes:
    """Return the events of a stream as a JSON array, with null for the mark of its end."""
    events = []
    for error, data in _DATA.findall(body):
        event = b"null" if data.strip() == b"[DONE]" else data
        events.append(b'{"failed":%s}' % event if error else event)
    return b"[" + b",".join(events) + b"]"


def end_stream(body: bytes) -> bytes:
    """Return the whole lines of a stream that was left, with the mark of its end."""
    return body[: body.rfind(b"\n") + 1] + DONE


def first_token_offset(body: bytes) -> int:
    """Return the byte up to which a stream has said something: text, thought or the arguments of a tool; 0 for none."""
    match = _SAID.search(body)
    return match.end() if match else 0


def merge_chunks(events: Sequence[Any]) -> JsonObject:
    """Return the answer that the events of a stream make up, with "error" for a stream that has or
    meets an error.
    """
    usage = None
    timings = None
    finish = None
    is_ended = False
    deltas = []  # of the Responses API
    message = dict[str, Any]()
    texts = defaultdict(list)
    contents = []
    for event in events:
        if event is None:
            is_ended = True
            continue
        if event.get("type") in _ENDS:
            return dict(event["response"])
        if event.get("type") in _DELTAS:
            deltas.append(event)
            continue
        usage = event.get("usage") or usage
        timings = event.get("timings") or timings
        failed = event.get("failed") or event
        is_error = failed is not event or "error" in (event.get("type"), event.get("object"))
        if error := failed.get("error") or (failed if is_error else None):
            return {"error": error, "usage": usage}
        for choice in event.get("choices") or ():
            finish = choice.get("finish_reason") or finish
            for name, value in (choice.get("delta") or choice.get("message") or {}).items():
                if isinstance(value, str) and name != "role":
                    texts[name].append(value)
                elif name == "content" and isinstance(
                    value, list
                ):  # in parts, of which some may be thoughts
                    contents += value
                else:
                    _add(message, {name: value})
    if deltas and is_ended:
        return _merge_responses(deltas)
    if not finish and not is_ended:
        return {"error": "the answer broke off", "usage": usage}
    message |= {name: "".join(parts) for name, parts in texts.items()}
    if contents:
        message["content"] = [*contents, {"type": "text", "text": message.get("content", "")}]
    choices = [{"message": message, "finish_reason": finish}]
    return {
        "choices": choices,
        "usage": usage,
        "timings": timings,
    }


def _merge_responses(deltas: Sequence[JsonMapping]) -> JsonObject:
    """Return the response of a stream that was left before its last event, which has all of it."""
    texts = defaultdict[str, str](str)
    for event in deltas:
        texts[event["type"]] += event["delta"]
    said, thought = (texts[name] for name in _DELTAS)
    thoughts = {
        "type": "reasoning",
        "content": [{"text": thought}],
    }
    message = {
        "type": "message",
        "content": [{"type": "output_text", "text": said}],
    }
    return {
        "status": "incomplete",
        "output": [thoughts, message],
        "usage": None,
    }


def _add(target: JsonObject, piece: JsonMapping) -> None:
    for name, value in piece.items():
        if isinstance(value, dict):
            _add(target.setdefault(name, {}), value)
        elif isinstance(value, list):
            items = target.setdefault(name, [])
            for item in value:
                _add(_same(items, item), item)
        elif name in _GROWING and isinstance(value, str):
            target[name] = target.get(name, "") + value
        elif value not in (None, ""):
            target[name] = value


def _same(items: list[JsonObject], piece: JsonMapping) -> JsonObject:
    """Return the item that a piece goes on with; some servers number all calls of an answer 0, or none."""
    index = piece.get("index")
    identity = piece.get("id")
    for item in items[::-1] if index is not None else ():
        if index == item.get("index") and (not identity or identity == item.get("id", identity)):
            return item
    items.append({})
    return items[-1]


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
    Else once the text repeats itself.
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


REPEATS = 4
SHORTEST = 600  # characters of all repetitions together
LONGEST_PART = 1500  # characters
WINDOW = REPEATS * LONGEST_PART  # characters at the end of a text that decide
_PROBE = 32  # characters at the end that occur again, one part before


class Loop(NamedTuple):
    """A part that is repeated at the end of a text."""

    start: int  # where its first occurrence begins
    length: int  # of the part, in characters


def find_loop(text: str, shortest: int = SHORTEST) -> Loop | None:
    """Return the shortest part that is repeated at the end of `text`; None for none.

    All repetitions together have `shortest` characters or more, which is 100 at least.
    """
    if len(text) < shortest:
        return None
    tail = text[-WINDOW:]
    probe = tail[-_PROBE:]
    position = len(tail) - len(probe)
    while True:
        position = tail.rfind(probe, 0, position + len(probe) - 1)
        if position < 0:
            return None
        length = len(tail) - len(probe) - position
        needed = max(shortest, REPEATS * length)
        if needed <= len(tail) and tail[-needed:-length] == tail[length - needed :]:
            return Loop(_find_start(text, length), length)


def cut_loop(text: str) -> str:
    """Return `text` with its last loop once; unchanged if it ends in none."""
    # Shorter than in the stream, where a letter may be written as an escape of six characters
    loop = find_loop(text, SHORTEST // 6)
    return text[: loop.start + loop.length] if loop else text


def _find_start(text: str, length: int) -> int:
    start = len(text) - length
    while start > 0 and text[start - 1] == text[start - 1 + length]:
        start -= 1
    return start
