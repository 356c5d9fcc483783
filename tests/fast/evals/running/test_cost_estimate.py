"""`--dry-run` sends nothing, and what it foretells is what the run then uses."""

import json
import re
from pathlib import Path

import pytest
from openai_server import fill

from evals.running.cost_estimate import CallTokens
from evals.running.request import SYSTEMS
from tools.models import context_window
from tools.models.prices import Price
from tools.models.run_resources import RunResources
from tools.plugins import load_object
from tools.records import Usage

ASK = ("--task", "congress", "--data", "mini")


def texts(request):
    """All that is text in a request's prompt."""
    found = [json.dumps(request["tools"])] if request.get("tools") else []
    for message in request["messages"]:
        found.append(str(message["content"]))
        for call in message.get("tool_calls", ()):
            found += [call["function"]["name"], call["function"]["arguments"]]
    return found


FORETOLD = [  # programs, made small
    ("rewrite", ()),
    ("decompose", ()),
    ("multihop", ("hops=2",)),
    ("rank", ("pool=40",)),
    ("tournament", ("pool=30",)),
    ("score", ("pool=6", "ties=")),
    ("subtask", ("pool=4", "ties=")),
    ("planner", ("rounds=1",)),
    ("verifier", ("rounds=1", "retrievers=bm25")),
    ("react", ("steps=5",)),
    ("react", ("steps=5", "interface=dspy", "max_calls=3")),
]


@pytest.mark.parametrize(("program", "parameters"), FORETOLD)
def test_the_run_uses_what_was_foretold(run, server, program, parameters):
    server.answer = fill
    ask = ["--program", program, *ASK, "--limit", "4", "--lm", server.spec]
    ask += [word for pair in parameters for word in ("-P", pair)]
    told = run(*ask, "--dry-run", "--json").json
    assert not server.requests
    if "interface=dspy" in parameters:
        server.answer = lambda prompt: {
            "thought": "",
            "calls": json.dumps({"tool_calls": []}),
        }  # asked for again
    ended = run(*ask, "--json").json
    assert ended["queries"] == told["queries"] == 4
    tokens = sum(
        context_window.tokens(text) for request in server.requests for text in texts(request)
    )
    for name, true in (("calls", len(server.requests)), ("input_tokens", tokens)):
        assert told[name]["low"] <= true <= told[name]["high"], (name, true, told[name])


def test_nothing_is_sent_nothing_is_made_and_no_key_is_needed(run, server, tmp_path):
    runs = tmp_path / "elsewhere"
    for spec in ("openai/gpt-5.2", server.spec, "offline"):
        result = run(
            "--program", "rewrite", *ASK, "--limit", 1, "--lm", spec, "--dry-run", "--runs", runs
        )
        assert result.code == 0 and "dry run: nothing was sent" in result.out
    assert (
        not server.requests
        and not list(runs.rglob("*.json*"))
        and not list(runs.rglob("*.sqlite3"))
    )


@pytest.mark.parametrize("name", sorted(SYSTEMS.keys() - {name for name, _ in FORETOLD}))
def test_it_is_told_for_every_other_program_and_agent(name, run):
    program = load_object("program", name, SYSTEMS)
    pool = ("-P", "pool=10") if program.pooled else ()
    told = run(
        "--program", name, *ASK, "--limit", 3, "--lm", "openai/gpt-4o", "--dry-run", "--json", *pool
    ).json
    for figure in ("calls", "input_tokens", "output_tokens", "list_usd", "hours"):
        low, expected, high = (told[figure][level] for level in ("low", "expected", "high"))
        assert low <= expected <= high and (low > 0) == bool(program.offline), figure
    assert told["window"] == 128_000 and told["queries"] == 3 and len(told["rehearsed"]) == 2


def test_dollars_are_the_price_of_the_tokens_and_unknown_is_not_nothing(run, server):
    ask = ("--program", "rewrite", *ASK, "--limit", "2", "--dry-run")
    told = run(*ask, "--lm", "openai/gpt-4o", "--json").json
    price = Price(2.5e-6, 1.25e-6, 10e-6)  # OpenAI's for gpt-4o
    for level in ("low", "expected", "high"):
        dollars = price.of(told["input_tokens"][level], 0, told["output_tokens"][level])
        assert told["list_usd"][level] == pytest.approx(dollars, rel=0.01)
    assert run(*ask, "--lm", server.spec, "--json").json["list_usd"] is None
    assert "price unknown" in run(*ask, "--lm", server.spec).out
    assert run(*ask, "--json").json["list_usd"] == {"low": 0, "expected": 0, "high": 0}


def test_a_budget_is_held_against_the_range(run):
    ask = (
        "--program",
        "multihop",
        *ASK,
        "-P",
        "hops=2",
        "--limit",
        6,
        "--lm",
        "openai/gpt-4o",
        "--dry-run",
    )
    told = run(*ask, "--json").json
    enough = {
        "--budget-calls": told["calls"]["high"],
        "--budget-tokens": told["input_tokens"]["expected"],
    }
    enough["--budget-usd"] = told["list_usd"]["low"] / 2
    budgets = run(*ask, "--json", *(word for pair in enough.items() for word in pair)).json[
        "budgets"
    ]
    found = {row["option"]: row["enough"] for row in budgets}
    assert found == {"--budget-usd": "no", "--budget-calls": "yes", "--budget-tokens": "perhaps"}
    calls = told["calls"]
    most = (calls["low"] + calls["expected"]) // 2
    lasts = 6 * most // calls["expected"]
    assert (
        f"--budget-calls {most} may not do; it is likely to last for {lasts} of 6"
        in run(*ask, "--budget-calls", most).out
    )


def test_queries_that_were_answered_before_are_not_asked_again(run, server):
    server.answer = fill
    ask = ["--program", "multihop", *ASK, "--limit", "6", "-P", "hops=2", "--lm", server.spec]
    path = Path(run(*ask, "--json").json["run"])
    kept = (path / "outcomes.jsonl").read_text().splitlines(keepends=True)[:2]
    (path / "outcomes.jsonl").write_text("".join(kept))
    told = run(*ask, "--dry-run", "--json").json
    assert (told["queries"], told["answered"], told["calls"]["expected"]) == (4, 2, 16)
    assert not {json.loads(line)["query_id"] for line in kept} & set(told["rehearsed"])
    run(*ask)
    over = run(*ask, "--dry-run", "--json").json
    assert (over["queries"], over["calls"]["high"], over["rehearsed"]) == (0, 0, [])
    others = run(*ask, "-P", "per_hop=5", "--dry-run", "--json").json
    assert (others["queries"], others["answered"]) == (6, 0), "another configuration is another run"


def test_earlier_answers_of_the_model_take_the_place_of_assumptions(run, server, tmp_path):
    server.answer = fill
    server.delay = 0.05
    ask = ["--program", "multihop", *ASK, "--lm", server.spec]
    before = run(*ask, "--dry-run", "--json").json
    assert any(note.startswith("assumed of a call: 1 s") for note in before["notes"])
    run(*ask, "--limit", "4")
    after = run(*ask, "-P", "hops=3", "--dry-run", "--json").json
    [note] = [
        note for note in after["notes"] if re.match(r"answers as in (29|3\d) earlier calls", note)
    ]
    assert float(re.search(r": ([\d.]+) s", note)[1]) >= server.delay
    assert not any("assumed of a call" in note for note in after["notes"])
    assert [path.name for path in (tmp_path / "runs").glob("answers*")] == ["answers.sqlite3"], (
        "nothing is left open"
    )


def test_a_speed_measured_before_takes_the_place_of_an_assumed_one(run, server):
    ask = ["--program", "rewrite", *ASK, "--limit", "4", "--lm", server.spec]
    ask += ["--max-concurrent", "1", "--dry-run"]
    meter = RunResources().meter(server.spec)
    answer = Usage(1, 0, 1000, 101, 0.0, 0.0)
    meter.add(answer, seconds=150.0, first=50.0)
    told = run(*ask, "--json").json
    [note] = [note for note in told["notes"] if note.startswith("measured before")]
    assert "reads 20 and writes 1 tokens a second" in note
    seconds = told["input_tokens"]["expected"] / 20 + told["output_tokens"]["expected"]
    assert told["hours"]["expected"] * 3600 == pytest.approx(seconds, rel=0.01)


def test_a_retriever_that_would_send_texts_is_not_opened(run, server):
    ask = (
        "--program",
        "rewrite",
        *ASK,
        "--limit",
        1,
        "--lm",
        "openai/gpt-4o",
        "--dry-run",
        "--json",
    )
    for spec in (
        f"api:{server.spec}",
        f"fusion(bm25,api:{server.spec})",
        f"lens(bm25,model={server.spec})",
    ):
        told = run(*ask, "--retriever", spec).json
        assert any(
            "bm25 takes its place" in note and "comes on top" in note for note in told["notes"]
        ), spec
    assert not server.requests


def test_pools_of_different_sizes_count_as_much_as_they_are_large(run):
    ask = (
        "--program",
        "score",
        "-P",
        "ties=",
        "--task",
        "relic",
        "--data",
        "mini",
        "--split",
        "all",
        "--limit",
        "6",
    )
    told = run(*ask, "--lm", "openai/gpt-4o", "--dry-run", "--json").json["calls"]
    true = run(*ask, "--json").json["usage"]["calls"]
    assert told["low"] <= true <= told["high"] and told["expected"] == pytest.approx(true, rel=0.02)


def test_a_rehearsal_that_fails_tells_nothing(run):
    ask = ("--program", "multihop", *ASK, "--limit", "4", "--dry-run", "--lm", "openai/gpt-4o")
    result = run(*ask, "--context", "100")
    assert (
        result.code == 7
        and "the queries of the rehearsal failed" in result.err
        and "tokens larger" in result.err
    )


def test_an_answer_is_expected_to_be_no_longer_than_its_signature_allows():
    call = CallTokens(prompt=500, answer=60, most=200)
    assert [call.written(factor) for factor in (0.5, 1.5, 4.0)] == [30, 90, 200]
    assert CallTokens(prompt=500, answer=60).written(4.0) == 240
    assert CallTokens(prompt=500, answer=60, most=50).written(4.0) == 60, "it was rehearsed"
