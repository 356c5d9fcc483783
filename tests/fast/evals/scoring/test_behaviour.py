"""What searchers do: figures of planted traces, kinds of failures, and sums that have to hold in real runs."""

import json

import pytest
import run_folders
from openai_server import given, ids

from sextant.environments.base import Judgements
from sextant.evals import behaviour as module
from sextant.evals.scoring.attribution import attribute, attribution_json
from sextant.evals.scoring.behaviour import compare_behaviour, figure_means
from sextant.evals.scoring.scored_run import read_scored_run
from sextant.evals.viewer.data import ViewerApi
from sextant.tools.errors import UsageError

USAGE = {
    "calls": 1,
    "repairs": 0,
    "input_tokens": 10,
    "output_tokens": 5,
    "paid_usd": 0.0,
    "list_usd": 0.0,
}
RELEVANT = Judgements({"q0": {"r1": 1, "r2": 1, "r3": 1, "r4": 1}})


def step(tool, argument="", doc_ids=(), hop=1, **more):
    shown = {"shown": [9] * len(doc_ids), "lengths": [9] * len(doc_ids)} if tool == "judge" else {}
    row = {
        "tool": tool,
        "argument": argument,
        "doc_ids": list(doc_ids),
        "hop": hop,
        "started": 0.0,
        "seconds": 0.5,
    }
    return row | shown | more


@pytest.fixture
def planted(tmp_path):
    """A scored run of one query with these steps; r1 to r4 are relevant."""

    def make(name, steps, ranking):
        place = run_folders.make(
            tmp_path / name, {"nDCG@10": [0.5]}, losses={"cutoff": 10, "at": {"10": {}}}
        )
        trace = {"steps": steps, "notes": [], "invented_ids": 0, "unusable": {}, "followed": {}}
        outcome = {
            "query_id": "q0",
            "ranking": ranking,
            "answer": "",
            "trace": trace,
            "usage": USAGE,
            "error": None,
        }
        row = attribution_json("?", attribute("q0", outcome, ranking, RELEVANT), outcome, RELEVANT)
        for file, line in (("outcomes", outcome), ("attribution", row)):
            (place / f"{file}.jsonl").write_text(json.dumps(line) + "\n")
        return place

    return make


STEPS = [
    step("search", "red fish", ["a", "r1"]),
    step("judge", "", ["a", "r1"], usage=USAGE),
    step("select", "", ["r1", "a"]),
    step("note", "one"),
    step("note", "two"),
    step("search", "red red boat", ["a", "r2", "b"], hop=2),
    step("note", "three"),
    step("search", "fish boat", ["a", "b"], hop=3),
    step("search", "green", ["b"], hop=3, among=True),
    step("judge", "", ["r2", "b"], hop=3, usage=USAGE | {"calls": 2}),
    step("drop", "", ["r2", "b"], hop=3),
    step("stop", "done"),
]


def test_the_figures_of_a_planted_trace_are_those_counted_by_hand(planted):
    refused = step("search", "nothing", [], hop=3, refused="no")
    repeat = step("repeat", "red fish", [], hop=3, repeated="search")
    found = compare_behaviour(
        [planted("one", [*STEPS[:-1], refused, repeat, STEPS[-1]], ["r1", "a", "b", "r2"])]
    )["runs"][0]
    means = {name: one["mean"] for name, one in found["figures"].items()}
    expected = {
        "searches": 3,
        "new_words": pytest.approx((1 / 2 + 0) / 2),
        "new_results": pytest.approx((2 / 3 + 0) / 2),
        "relevant": pytest.approx(2 / 3),
        "credited": pytest.approx(2 / 3),
        "selected": 0.5,
        "notes": 0.5,  # notes in a row are one
        "decided": 3,  # it put b before r2
        "repeats": 1,
        "forgotten": 0,
        "forgotten_tokens": 0,
    }
    assert [one["step"] for one in found["figures"]["repeats"]["examples"]] == [12]
    assert means == expected
    assert [one["step"] for one in found["figures"]["new_results"]["examples"]] == [7, 5]
    assert [one["step"] for one in found["figures"]["notes"]["examples"]] == [6, 3]
    hops = {
        key: (cost.get("searches", 0), cost.get("relevant", 0))
        for key, cost in found["costs"].items()
    }
    assert (hops["hop 1"], hops["hop 2"], hops["hop 3"], hops["search"]) == (
        (1, 1),
        (1, 1),
        (1, 0),
        (3, 2),
    )
    later = {key: cost["steps"] for key, cost in found["costs"].items() if key.startswith("call ")}
    assert later == {"call 1": 9, "call 4": 5} and found["costs"]["call 1"]["relevant"] == 2
    assert found["costs"]["judge"] == {"steps": 2, "seconds": 1.0, "calls": 3, "tokens": 30}


def test_a_lost_document_gets_the_first_kind_that_is_so(planted):
    other = planted(
        "two", [step("search", "boat", ["r1", "r3"]), step("stop", "done")], ["r1", "r3"]
    )
    one, _ = compare_behaviour([planted("one", STEPS, ["r1", "a"]), other])["runs"]
    kinds = {
        kind: [of["unit"] for of in row["examples"]]
        for kind, row in one["failures"].items()
        if row["documents"]
    }
    assert kinds == {"misled": ["r2"], "elsewhere": ["r3"], "nowhere": ["r4"]}
    assert one["failures"]["misled"]["examples"][0]["step"] == 10  # where it was dropped
    led = [
        row | {"doc_ids": [*row["doc_ids"], "r3"]} if row["argument"] == "fish boat" else row
        for row in STEPS
    ]
    [alone] = compare_behaviour([planted("three", led, ["r1", "a"])])["runs"]
    assert (
        alone["failures"]["misled"]["documents"] == 0
        and alone["failures"]["not_selected"]["documents"] == 1
    )


def test_two_runs_are_put_together_at_equal_searches(planted):
    many = [step("search", f"n{place}", [f"r{place}"]) for place in (1, 2, 3, 4)]
    few = [step("search", "x", ["r3"]), step("search", "y", ["r1"])]
    [pair] = compare_behaviour([planted("one", many, ["r1"]), planted("two", few, ["r3"])])["pairs"]
    assert pair["documents"] == {"both": 2, "first": 2, "second": 0, "neither": 0}
    assert pair["all"] == [1.0, 0.5, 1.0] and pair["equal"] == [
        0.5,
        0.5,
        0.5,
    ]  # r1 of one and r3 of the other


def test_of_real_runs_the_sums_hold_and_each_example_is_a_step_on_the_page(tmp_path, command_of):
    programs = ("multihop", "notes")
    runs = [
        run_folders.run_in(tmp_path, "--program", one, "--task", "congress", "--limit", 2)
        for one in programs
    ]
    command, page = command_of(module), ViewerApi([tmp_path / "runs"])
    done = command(*runs, "--json")
    for run, found in zip(runs, done.json["runs"], strict=True):
        scores = json.loads((run / "scores.json").read_text())
        means = {name: figure["mean"] for name, figure in found["figures"].items()}
        assert scores["searchers"] == means
        lost = sum(many for fate, many in scores["losses"]["documents"].items() if fate != "found")
        assert sum(one["documents"] for one in found["failures"].values()) == lost
        calls = dict.fromkeys(
            ("hop", "call", ""), 0
        )  # by hop, by calls so far, and by kind of step
        for key, cost in found["costs"].items():
            calls[key.split()[0] if " " in key else ""] += cost["calls"]
        assert 0 < calls["hop"] == calls["call"] == calls[""] <= scores["usage"]["calls"]
        name = f"run/{run.parent.name}/{run.name}"
        shown = json.loads(page(f"{name}/behaviour/all.json"))
        assert shown["figures"] == found["figures"]
        for example in found["figures"]["new_results"]["examples"]:
            steps = json.loads(page(f"{name}/query/{example['query_id']}.json"))["steps"]
            assert steps[example["step"]]["tool"] == "search"
    printed = command(*runs).out
    assert (
        ": by hop, by model calls so far, and by kind of step" in printed
        and "both together" in printed
    )
    other = run_folders.run_in(
        tmp_path, "--program", "retrieve", "--task", "congress", "--limit", 1
    )
    with pytest.raises(UsageError, match="not asked the same"):
        compare_behaviour([*runs, other])


def test_figures_and_seconds_of_a_run_scored_by_an_earlier_version_are_counted_again(tmp_path):
    path = run_folders.run_in(tmp_path, "--program", "multihop", "--task", "congress", "--limit", 2)
    kept = read_scored_run(path)
    scores = json.loads((path / "scores.json").read_text())
    for key in ("searchers", "query_seconds", "digest"):
        del scores[key]
    (path / "scores.json").write_text(json.dumps(scores))
    counted = read_scored_run(path)
    assert figure_means(counted) == figure_means(kept)
    assert counted.seconds == pytest.approx(kept.seconds)


def test_a_model_names_the_causes_of_a_sample_and_is_asked_about_each_failure_once(
    server, tmp_path, command_of
):
    programs = ("multihop", "retrieve")
    runs = [
        run_folders.run_in(tmp_path, "--program", one, "--task", "congress", "--limit", 4)
        for one in programs
    ]
    told = []

    def answer(prompt):
        [document], steps = ids(given(prompt, "passages")), given(prompt, "steps")
        told.append((given(prompt, "fate"), document, steps))
        return {
            "cause": "order" if "among the document" in steps else "wording",
            "because": f"see {document}",
        }

    server.answer, command = answer, command_of(module)
    words = (*runs, "--lm", server.spec, "--max-concurrent", 1, "--name-failures")
    assert "be read, a call each" in command(*words, 2, "--dry-run").out and not server.requests
    done = command(*words, 2, "--budget-calls", 1)
    assert done.code == 8 and "the same command goes on" in done.err
    assert command(*words, 2).code == 0 and len(told) == len(set(told)) <= 4
    found = command(*words, 99, "--json").json
    assert len(told) == len(set(told)) == len(server.requests)
    for run, of in zip(runs, found["runs"], strict=True):
        named = found["named"][of["run"]]
        many, lost = (
            sum(one["documents"] for one in table.values()) for table in (named, of["failures"])
        )
        assert many == lost > 0
        page = ViewerApi([tmp_path / "runs"])(
            f"run/{run.parent.name}/{run.name}/behaviour/all.json"
        )
        assert json.loads(page)["named"]["failures"] == named
        outcomes = {
            row["query_id"]: row
            for row in map(json.loads, (run / "outcomes.jsonl").read_text().splitlines())
        }
        for example in named["wording"]["examples"]:
            assert example["because"] == f"see {example['unit']}"
            searches = [
                s for s in outcomes[example["query_id"]]["trace"]["steps"] if s["tool"] == "search"
            ]
            said = [steps for _, document, steps in told if document == example["unit"]]
            assert any(
                all(repr(search["argument"][:20])[1:-1] in steps for search in searches)
                for steps in said
            )
    assert f"as {server.spec} reads the steps" in command(*words, 99).out
    assert command(runs[0].parent, "--json").code == 0  # the folder of causes is no run
