"""What an agent does with each tool of a set, by whatever door it comes in; and what the run then has of it."""

import json

NAMED = "search,more,read,grep,phrase,count,note"
PARAMETERS = {"tools": NAMED, "max_grep": 1, "show_left": True}
OPTIONS = ("--tools", NAMED, "-P", "max_grep=1", "-P", "show_left=yes")
# The parameters of each tool with their types; those without a "?" are required.
SCHEMAS = {
    "search": {"query": "string", "k?": "integer"},
    "more": {"search": "string", "from?": "integer"},
    "read": {"doc_id": "string", "from?": "integer", "chars?": "integer"},
    "grep": {"pattern": "string", "k?": "integer"},
    "phrase": {"text": "string", "k?": "integer"},
    "count": {"words": "array"},
    "note": {"text": "string"},
    "notes": {},
    "select": {"doc_ids": "array"},
    "submit": {"doc_ids?": "array", "answer?": "string"},
}


def shape(schema):
    """The parameters of a JSON Schema as SCHEMAS has them; each has to have a description."""
    described = schema.get("properties", {})
    assert all(parameter["description"] for parameter in described.values())
    types = {
        name: parameter.get("type") or parameter["anyOf"][0]["type"]
        for name, parameter in described.items()
    }
    required = schema.get("required", [])
    return {name if name in required else f"{name}?": kind for name, kind in types.items()}


def script(*, strict=False):
    """Yield each call as a tool and its arguments, and take what came of it: the result, and whether it was refused.

    `strict` is a client that lets only arguments through that fit the schema.
    """

    number = int if strict else str
    found, _ = yield "search", {"query": "gas bill", "k": number(2)}
    assert len(found) == 2
    doc_id = found[0]["doc_id"]
    further, _ = yield "more", {"search": "Gas bill!", "from": number(11)}
    assert [row["rank"] for row in further] == [*range(11, 11 + len(further))] and further
    text, _ = yield (
        "read",
        {"doc_id" if strict else "docId": doc_id, "from": number(11), "chars": 9},
    )
    assert (text["from"], len(text["text"])) == (11, 9) and text["of"] > 100
    lines, _ = yield "grep", {"pattern": "(?i)GAS bill", "k": number(1)}
    assert "gas bill" in lines["lines"][0]["text"] and lines["matching_documents"] >= 1
    refusal, refused = yield "grep", {"pattern": "bill"}
    assert refused and "go on with other tools" in refusal["error"]
    lines, refused = yield "phrase", {"text": "THE BILL", "k": 1}
    assert not refused and "the bill" in lines["lines"][0]["text"].lower()
    counts, _ = yield "count", {"words": ["gas", "bill"] if strict else "gas, bill"}
    assert counts["documents"].keys() == {"gas", "bill"}
    assert 1 <= counts["all_words"] <= min(counts["documents"].values())
    refusal, refused = yield "count", {"words": [" "]}
    assert refused and refusal == {"error": "count needs words to look for"}
    yield "note", {"text": "look at towing boats"}
    board, _ = yield "notes", {}
    assert board == {"notes": ["look at towing boats"]}
    kept, _ = yield "select", {"doc_ids": [doc_id] if strict else doc_id}
    assert kept == {"selected": [doc_id]}
    handed_in, _ = yield "submit", {"answer": "towing"}
    assert handed_in["submitted"] > 2


def check_steps(steps):
    """Check the trace of such a query, as it is in the run folder."""
    called = [step["tool"] for step in steps]
    expected = [
        "search",
        "more",
        "read",
        "grep",
        "grep",
        "phrase",
        "count",
        "note",
        "notes",
        "select",
    ]
    assert called[: len(expected)] == expected
    more, read, grep, refused = steps[1:5]
    assert (more["argument"], more["first"]) == ("gas bill", 10) and more["doc_ids"]
    assert read["spans"] == [[[11, 20]]] and read["shown"] == [9]
    assert len(grep["doc_ids"]) == 1 and grep["argument"] == "(?i)GAS bill"
    assert "all 1 grep calls" in refused["refused"] and not refused.get("doc_ids")
    assert steps[7]["argument"] == "look at towing boats"
    assert called[-1] == "stop" and steps[-1]["argument"] == "budget"


def use_each(use, **options):
    """Do the script by a function of tool and arguments that returns a result, as text, and whether it was refused."""
    calls = script(**options)
    tool, arguments = next(calls)
    try:
        while True:
            text, refused = use(tool, arguments)
            tool, arguments = calls.send((json.loads(text), refused))
    except StopIteration:
        pass


async def use_each_async(use, **options):
    """Do the same by a coroutine function."""
    calls = script(**options)
    tool, arguments = next(calls)
    try:
        while True:
            text, refused = await use(tool, arguments)
            tool, arguments = calls.send((json.loads(text), refused))
    except StopIteration:
        pass
