"""Ids of calls of tools: a conversation has each once, in a form that its server takes."""

import re
from collections.abc import Sequence
from typing import Any

from sextant.tools.records import JsonMapping, JsonObject


def identify(calls: Sequence[JsonMapping], conversation: Sequence[JsonMapping]) -> list[JsonObject]:
    """Return the calls of a conversation's next turn, each with an id that no other call has.

    An id of the server is kept, because the server may want to see it again. New ids are nine letters
    and digits, which every provider takes, made of the turn and the position of the call, so that an
    answer from the ledger has the same ids.
    """
    taken = set[Any]()
    for message in conversation:
        taken.update(call.get("id") for call in message.get("tool_calls") or ())
    identified = []
    for position, call in enumerate(calls):
        call_id = call.get("id")
        if not call_id or call_id in taken:
            call_id = f"c{len(conversation):05}{position:03}"
        taken.add(call_id)
        identified.append({**call, "id": call_id})
    return identified


def shorten_ids(conversation: Sequence[JsonMapping]) -> list[JsonObject]:
    """Return a conversation in which all ids of calls have nine letters and digits, for servers that refuse others."""
    short_ids = {}
    for turn, message in enumerate(conversation):
        for position, call in enumerate(message.get("tool_calls") or ()):
            is_short = re.fullmatch("[A-Za-z0-9]{9}", str(call["id"]))
            short_ids[call["id"]] = call["id"] if is_short else f"c{turn:05}{position:03}"
    messages = [dict(message) for message in conversation]
    for message in messages:
        if message.get("tool_calls"):
            message["tool_calls"] = [
                {**call, "id": short_ids[call["id"]]} for call in message["tool_calls"]
            ]
        if message.get("tool_call_id") in short_ids:
            message["tool_call_id"] = short_ids[message["tool_call_id"]]
    return messages
