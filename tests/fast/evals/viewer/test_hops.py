"""Hops in a line, the time line of steps and calls, and ranks of documents that never surfaced."""

import json

import pytest
from openai_server import OpenAIServer, fill
from run_folders import run_in

from sextant.evals.running.replay import replay
from sextant.evals.viewer.data import ViewerApi
from sextant.evals.viewer.hops import describe_hops, describe_timeline
from sextant.tools.models.storage.request_store import CallTime


def step(tool, doc_ids=(), hop=1, **more):
    return {"tool": tool, "argument": "", "doc_ids": list(doc_ids), "hop": hop, **more}


def usage(tokens):
    spent = {"calls": 1, "repairs": 0, "input_tokens": tokens, "output_tokens": 1}
    return spent | {"paid_usd": 0.0, "list_usd": 0.5}


def test_a_hop_counts_new_documents_and_new_relevant_units_once():
    steps = [
        step("search", ["a", "b#1"], seconds=1.0, usage=usage(10)),
        step("select", ["a"], seconds=0.5, usage=usage(20)),
        step("drop", ["b#1"]),
        step("search", ["b#2", "c", "a"], hop=2),
    ]
    units = {"b#1": "b", "b#2": "b"}
    first, second = describe_hops(steps, ["b", "c"], units)
    assert {key: first[key] for key in ("first", "steps", "searches", "surfaced")} == {
        "first": 0,
        "steps": 3,
        "searches": 1,
        "surfaced": 2,
    }
    assert (first["relevant"], first["kept"], first["dropped"]) == (1, 1, 1)
    assert first["seconds"] == 1.5
    assert (first["usage"]["calls"], first["usage"]["input_tokens"]) == (2, 30)
    assert first["usage"]["list_usd"] == 1.0
    assert (second["first"], second["surfaced"], second["relevant"]) == (3, 2, 1)


def test_hops_that_come_again_are_parts_of_their_own():
    steps = [step("search", hop=1), step("note", hop=2), step("search", hop=1)]
    assert [hop["first"] for hop in describe_hops(steps, [], {})] == [0, 1, 2]


@pytest.mark.parametrize(
    ("calls", "starts"),
    [
        # In parallel, as they were: the second began half a second after the first.
        ([CallTime("a", 101.0, 1.0, 5), CallTime("b", 101.5, 1.0, 5)], [2.0, 2.5]),
        # One from the cache, answered a day before.
        ([CallTime("a", 101.0, 0.5, 5), CallTime("b", 9.0, 0.5, 5)], [2.0, 2.5]),
    ],
)
def test_calls_stand_in_their_step(monkeypatch, tmp_path, calls, starts):
    times = {call.key: call for call in calls}
    monkeypatch.setattr("sextant.evals.viewer.hops.read_call_times", lambda path, keys: times)
    steps = [step("search", started=2.0, seconds=1.6, calls=["a", "b"], usage=usage(7))]
    found = describe_timeline(steps, tmp_path)
    [one] = found["steps"]
    assert (one["tokens"], found["seconds"]) == (8, 3.6)
    assert [call["started"] for call in one["calls"]] == starts
    assert all(call["started"] + call["seconds"] <= 3.6 for call in one["calls"])


def test_steps_of_an_earlier_version_have_no_time_line(tmp_path):
    assert describe_timeline([step("search")], tmp_path)["steps"] == []


def test_a_run_with_a_model_has_the_times_of_its_calls(tmp_path):
    server = OpenAIServer(fill)
    words = ["--program", "multihop", "--task", "congress", "--limit", 2, "--lm", server.spec]
    path = run_in(tmp_path, *words)
    server.close()
    answers = ViewerApi([tmp_path / "runs"])
    run_id = "/".join(path.parts[-2:])
    query_id = answers.query_ids(run_id)[0]
    query = json.loads(answers(f"run/{run_id}/query/{query_id}.json"))
    found = query["timeline"]
    made = [len(one.get("calls", ())) for one in query["steps"]]
    assert [len(one["calls"]) for one in found["steps"]] == made and sum(made)


def test_ranks_of_documents_that_never_surfaced_agree_with_a_replay(tmp_path):
    path = run_in(tmp_path, "--program", "multihop", "--task", "congress", "--limit", 8)
    answers = ViewerApi([tmp_path / "runs"], exported=True)
    run_id = "/".join(path.parts[-2:])
    deeper = replay(path, depth=1000)["relevant"]
    first = {(row["query_id"], row["unit"]): row["now"] for row in deeper}
    compared = 0
    for query_id in answers.query_ids(run_id):
        found = json.loads(answers(f"run/{run_id}/ranks/{query_id}.json"))
        for unit, ranks in found["ranks"].items():
            assert len(ranks) == len(found["steps"])
            known = [rank for rank in ranks if rank is not None]
            expected = first[query_id, unit]
            assert (known[0] if known else None) == (expected and expected["rank"])
            compared += 1
    assert compared
