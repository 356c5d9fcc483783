"""A query's trajectory in short: what each hop did and used, and when each step and model call was.

Times are in seconds from the beginning of the query.
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from sextant.tools.models.storage.request_store import CallTime, read_call_times
from sextant.tools.records import JsonMapping, JsonObject, Usage, total, usage_from_json, usage_json

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
    seen_units = set[str]()
    usages = list[Usage]()
    for number, step in enumerate(steps):
        if not hops or hops[-1]["hop"] != step.get("hop", 0):
            usages = []
            hops.append(_new_hop(step, number))
        hop = hops[-1]
        tool = step["tool"]
        hop["steps"] += 1
        hop["seconds"] += step.get("seconds") or 0.0
        if usage := step.get("usage"):
            usages.append(usage_from_json(dict(usage)))
            hop["usage"] = usage_json(total(usages))
        if tool == "select":
            hop["kept"] += len(step["doc_ids"])
        elif tool == "drop":
            hop["dropped"] += len(step["doc_ids"])
        elif tool == "search":
            hop["searches"] += 1
            new = set(step["doc_ids"]) - seen
            seen |= new
            hop["surfaced"] += len(new)
            new_units = {units.get(doc_id, doc_id) for doc_id in new}
            found = (new_units & set(relevant)) - seen_units
            seen_units |= found
            hop["relevant"] += len(found)
    return hops


def _new_hop(step: Step, number: int) -> Answer:
    counts = ("steps", "searches", "surfaced", "relevant", "kept", "dropped")
    hop: Answer = dict.fromkeys(counts, 0)
    return hop | {
        "hop": step.get("hop", 0),
        "first": number,
        "seconds": 0.0,
        "usage": usage_json(Usage()),
    }


def describe_timeline(steps: Sequence[Step], answers: Path) -> Answer:
    """Return when each step began and ended, and the model calls in it, from the file of `answers`.

    A call has its "key", "started", "seconds" and "tokens". Calls whose times do not fit into their
    step, as of answers from the cache, stand one after the other from its beginning.
    """
    keys = [key for step in steps for key in step.get("calls", ())]
    times = read_call_times(answers, keys)
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
    last = max(call.at for call in calls)
    fits = last - first <= seconds + _CLOCKS
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
