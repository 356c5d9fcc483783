"""A small world, and trajectories of other systems in it."""

from sextant.environments.base import Environment, Judgements
from sextant.tools.corpus import Corpus
from sextant.tools.records import Document, Query

DOCUMENTS = {
    name: f"The committee heard about number {name}."
    for name in ("d1", "d2", "d3", "d4", "hidden", "a%20b")
}


def world(**changes) -> Environment:
    """Two queries over six documents; one is excluded for q1, and q2 has a pool."""
    queries = (
        Query("q1", "first?", excluded=frozenset({"hidden"})),
        Query("q2", "second?", candidates=frozenset({"d1", "d2", "d3"})),
    )
    fields = {
        "task": "made/up",
        "data": "mini",
        "split": "test",
        "source": "made up",
        "documents": Corpus(Document(name, text) for name, text in DOCUMENTS.items()),
        "queries": queries,
        "judgements": {"gold": Judgements({"q1": {"d1": 1.0, "d4": 2.0}, "q2": {"d3": 1.0}})},
        "headline": "gold",
        "metrics": ("nDCG@10", "R@10"),
        "metric": "nDCG@10",
    }
    return Environment(**fields | changes)


STEPS = [
    {"tool": "search", "argument": "first", "doc_ids": ["d2", "d1"], "hop": 1, "shown": [5, 5]},
    {"tool": "read", "argument": "d2", "doc_ids": ["d2"], "hop": 2},
    {"tool": "select", "doc_ids": ["d2"], "hop": 2},
]
USED = {"calls": 2, "input_tokens": 30, "output_tokens": 4, "list_usd": 0.5}


def atif(steps, **more):
    numbered = [{"step_id": number} | step for number, step in enumerate(steps, start=1)]
    return {
        "schema_version": "ATIF-v1.6",
        "agent": {"name": "a", "version": "1"},
        "steps": numbered,
    } | more


def call(name, arguments, *results, **more):
    observed = {"results": [{"source_call_id": "c"} | result for result in results]}
    calls = [{"tool_call_id": "c", "function_name": name, "arguments": arguments}]
    return {"source": "agent", "message": "", "tool_calls": calls, "observation": observed} | more
