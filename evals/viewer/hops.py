"""A query's trajectory in short: what each hop did and used, and when each step and model call was.

Times are in seconds from the beginning of the query.
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import chain, groupby
from pathlib import Path

from sextant.tools.models.storage.request_store import CallTime, read_call_times
from sextant.tools.records import (
    SURFACING,
    JsonMapping,
    JsonObject,
    total,
    usage_from_json,
    usage_json,
)

Step = JsonMapping
Answer = JsonObject
# Seconds by which a call may seem to end after its step, as clocks are read one after the other.
_CLOCKS = 0.25


def describe_hops(
    steps: Sequence[Step], relevant: Collection[str], units: Mapping[str, str]
) -> list[Answer]:
    """Return the hops of a trajectory in order, a stretch of steps with the same number each.

    "first" is the number of its first step, "steps" how many there are; "searches", "surfaced" (new
    documents), "relevant" (new units of `relevant`), "kept" and "dropped" count; "usage" is of its
    model calls and "seconds" its time. `units` has the unit of documents that have another name.
    """
    hops = list[Answer]()
    seen = set[str]()
    unseen_units = set(relevant)
    for number, stretch in groupby(steps, key=lambda step: step.get("hop", 0)):
        in_hop = list(stretch)
        by_tool: dict[str, list[list[str]]] = {"search": [], "select": [], "drop": []}
        for step in in_hop:
            tool = "search" if step["tool"] in SURFACING else step["tool"]
            by_tool.setdefault(tool, []).append(step["doc_ids"])
        new = set(chain.from_iterable(by_tool["search"])) - seen
        seen |= new
        found = {units.get(doc_id, doc_id) for doc_id in new} & unseen_units
        unseen_units -= found
        usages = (usage_from_json(step["usage"]) for step in in_hop if step.get("usage"))
        hops.append(
            {
                "hop": number,
                "first": sum(hop["steps"] for hop in hops),
                "steps": len(in_hop),
                "searches": len(by_tool["search"]),
                "surfaced": len(new),
                "relevant": len(found),
                "kept": sum(map(len, by_tool["select"])),
                "dropped": sum(map(len, by_tool["drop"])),
                "seconds": sum(step.get("seconds") or 0.0 for step in in_hop),
                "usage": usage_json(total(usages)),
            }
        )
    return hops


def describe_timeline(steps: Sequence[Step], answers: Path) -> Answer:
    """Return when each step began and ended, and the model calls in it, from the file of `answers`.

    A call has its "key", "started", "seconds" and "tokens". Calls whose times do not fit into their
    step, as of answers from the cache, stand one after the other from its beginning.
    """
    times = read_call_times(answers, [key for step in steps for key in step.get("calls", ())])
    rows = []
    for step in steps:
        started = step.get("started")
        if started is None:
            continue
        seconds = step.get("seconds") or 0.0
        usage = step.get("usage") or {}
        calls = [times[key] for key in step.get("calls", ()) if key in times]
        rows.append(
            {
                "tool": step["tool"],
                "started": started,
                "seconds": seconds,
                "tokens": usage.get("input_tokens", 0) + usage.get("output_tokens", 0),
                "calls": _place_calls(calls, started, seconds),
            }
        )
    end = max((row["started"] + row["seconds"] for row in rows), default=0.0)
    return {
        "steps": rows if len(rows) == len(steps) else [],
        "seconds": end,
    }


def _place_calls(calls: Sequence[CallTime], started: float, seconds: float) -> list[Answer]:
    if not calls:
        return []
    first = min(call.at - call.seconds for call in calls)
    fits = max(call.at for call in calls) - first <= seconds + _CLOCKS
    placed = []
    position = started
    for call in calls:
        if fits:
            position = started + call.at - call.seconds - first
        placed.append(
            {
                "key": call.key,
                "started": position,
                "seconds": min(call.seconds, max(0.0, started + seconds - position)),
                "tokens": call.tokens,
            }
        )
        position += call.seconds
    return placed
