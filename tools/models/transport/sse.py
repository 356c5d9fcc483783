"""Streamed answers, joined into the response that the server would have sent whole.

A stream is kept as it comes and read once, when it is whole: to parse each piece on its way would
cost more than all else that is done for a call. Left out: several choices, and data of an event in
several lines.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from sextant.tools.records import JsonMapping, JsonObject

DONE = b"data: [DONE]\n\n"
_STARTS = (b"data:", b"event:", b"id:", b"retry:", b"error:", b":")
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


def is_stream(body: bytes) -> bool:
    """Whether a body is a stream of events; a server may send its answer whole in spite of the
    request for a stream.
    """
    return body[:100].lstrip().startswith(_STARTS)


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
    match = _SAID.search(body) if is_stream(body) else None
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
