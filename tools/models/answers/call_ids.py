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
            call_id = _make_id(len(conversation), position)
        taken.add(call_id)
        identified.append({**call, "id": call_id})
    return identified


def shorten_ids(conversation: Sequence[JsonMapping]) -> list[JsonObject]:
    """Return a conversation in which all ids of calls have nine letters and digits, for servers that refuse others."""
    short_ids = {}
    for turn, message in enumerate(conversation):
        for position, call in enumerate(message.get("tool_calls") or ()):
            call_id = call["id"]
            is_short = re.fullmatch("[A-Za-z0-9]{9}", str(call_id))
            short_ids[call_id] = call_id if is_short else _make_id(turn, position)
    shortened = []
    for message in conversation:
        changed = dict(message)
        if calls := message.get("tool_calls"):
            changed["tool_calls"] = [{**call, "id": short_ids[call["id"]]} for call in calls]
        result_id = message.get("tool_call_id")
        if result_id in short_ids:
            changed["tool_call_id"] = short_ids[result_id]
        shortened.append(changed)
    return shortened


def _make_id(turn: int, position: int) -> str:
    return f"c{turn:05}{position:03}"
