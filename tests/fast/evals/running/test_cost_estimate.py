"""`--dry-run` sends nothing, and what it foretells is what the run then uses."""

import json
from pathlib import Path

import pytest
from openai_server import fill

from sextant.evals.running.cost_estimate import MESSAGE
from sextant.evals.running.request import SYSTEMS
from sextant.tools.models.prices import Price
from sextant.tools.models.tokens import count_tokens
from sextant.tools.plugins import load_object

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
    tokens = sum(count_tokens(text) for request in server.requests for text in texts(request))
    # An answer that is asked for again is one call more, which is said.
    assert len(server.requests) <= 1.1 * told["calls"]
    # Two of four queries stand for all, and their messages for those of longer conversations.
    assert tokens <= 1.4 * told["input_tokens"]
    if len(server.requests) == told["calls"] and program != "react":
        assert tokens == pytest.approx(told["input_tokens"], rel=0.3)
    assert any("not in it: reasoning" in note for note in told["notes"])


@pytest.mark.parametrize("structured", ["on", "off"])
def test_prompts_that_are_all_rehearsed_are_counted_to_the_token_in_the_form_sent(
    run, server, structured
):
    server.answer = fill
    ask = ["--program", "rewrite", *ASK, "--limit", 2, "--lm", server.spec]
    ask += ["--structured", structured]
    told = run(*ask, "--dry-run", "--json").json
    run(*ask)
    assert ["response_format" in body for body in server.requests] == [structured == "on"] * 2
    sent = [MESSAGE + count_tokens(text) for body in server.requests for text in texts(body)]
    assert told["input_tokens"] == sum(sent)


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
    for figure in ("calls", "input_tokens", "output_tokens", "list_usd"):
        assert (told[figure] > 0) == bool(program.offline), figure
    assert told["window"] == 128_000 and told["queries"] == 3 and len(told["rehearsed"]) == 2


def test_dollars_are_the_price_of_the_tokens_and_unknown_is_not_nothing(run, server):
    ask = ("--program", "rewrite", *ASK, "--limit", "2", "--dry-run")
    told = run(*ask, "--lm", "openai/gpt-4o", "--json").json
    price = Price(2.5e-6, 1.25e-6, 10e-6)  # OpenAI's for gpt-4o
    dollars = price.of(told["input_tokens"], 0, told["output_tokens"])
    assert told["list_usd"] == pytest.approx(dollars, rel=0.01)
    assert run(*ask, "--lm", server.spec, "--json").json["list_usd"] is None
    assert "unknown" in run(*ask, "--lm", server.spec).out
    assert run(*ask, "--json").json["list_usd"] == 0


def test_a_limit_of_calls_bounds_the_calls_of_each_query(run):
    ask = ["--program", "react", *ASK, "--limit", 4, "--lm", "openai/gpt-4o", "--dry-run", "--json"]
    free = run(*ask).json["calls"]
    assert run(*ask, "-P", "max_calls=3").json["calls"] == 4 * 3 < free


def test_queries_that_were_answered_before_are_not_asked_again(run, server):
    server.answer = fill
    ask = ["--program", "multihop", *ASK, "--limit", "6", "-P", "hops=2", "--lm", server.spec]
    path = Path(run(*ask, "--json").json["run"])
    kept = (path / "outcomes.jsonl").read_text().splitlines(keepends=True)[:2]
    (path / "outcomes.jsonl").write_text("".join(kept))
    told = run(*ask, "--dry-run", "--json").json
    assert (told["queries"], told["answered"], told["calls"]) == (4, 2, 16)
    assert not {json.loads(line)["query_id"] for line in kept} & set(told["rehearsed"])
    run(*ask)
    over = run(*ask, "--dry-run", "--json").json
    assert (over["queries"], over["calls"], over["rehearsed"]) == (0, 0, [])
    others = run(*ask, "-P", "per_hop=5", "--dry-run", "--json").json
    assert (others["queries"], others["answered"]) == (6, 0), "another configuration is another run"


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
            "bm25 takes the place of" in note and "comes on top" in note for note in told["notes"]
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
    assert told == pytest.approx(true, rel=0.02)


def test_a_rehearsal_that_fails_tells_nothing(run):
    ask = ("--program", "multihop", *ASK, "--limit", "4", "--dry-run", "--lm", "openai/gpt-4o")
    result = run(*ask, "--context", "100")
    assert (
        result.code == 7
        and "the queries of the rehearsal failed" in result.err
        and "tokens larger" in result.err
    )
