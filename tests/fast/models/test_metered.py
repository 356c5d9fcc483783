"""A call that has to wait, and one that fails: what ends it, and where it is booked."""

import threading
import time
from pathlib import Path

import dspy
import pytest
from bad_server import fine, throttled
from openai_server import annotate, sensible

from tools.models import lm
from tools.models.budget import Budget
from tools.models.call import DEADLINE
from tools.models.sending.gate import Gate
from tools.models.terms import Patience, Terms
from tools.records import Usage

ROOT = Path(__file__).parents[3]
MULTIHOP = ("--program", "multihop", "--task", "congress", "--split", "dev", "--data", "mini")


def side_by_side(model, prompts):
    """What each prompt got, or the error."""
    found = {}

    def ask(prompt):
        try:
            found[prompt] = model.lm(prompt)
        except dspy.LMError as error:
            found[prompt] = error

    threads = [threading.Thread(target=ask, args=(prompt,)) for prompt in prompts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_a_slow_provider_is_waited_for_where_calls_queue(server):
    server.answer, server.delay = (lambda prompt: {"raw": "yes"}), 0.4
    model = lm.connect(server.spec, Terms(gate=Gate(1), patience=Patience(before=0.1, after=0.1)))
    assert side_by_side(model, "abcd") == {prompt: ["yes"] for prompt in "abcd"}


def near_its_budget(server, seconds, **given):
    """A model whose second call is on its way for so long, and thereby the next one has to wait; and its thread."""
    server.answer = lambda prompt: {"raw": "ok " * 20}
    model = lm.connect(server.spec, Terms(budget=Budget(tokens=900), **given))
    model.lm("w " * 50)
    server.delay = seconds
    slow = threading.Thread(target=model.lm, args=("a " * 50,))
    slow.start()
    while len(server.requests) < 2:
        time.sleep(0.01)
    return model, slow


def test_a_call_that_waits_for_the_budget_ends_with_its_query_and_is_not_counted(server):
    gate = Gate(8)
    model, slow = near_its_budget(server, 2.0, gate=gate, query_seconds=0.7)
    started = time.monotonic()
    with model.active(), pytest.raises(Exception, match="the query's time is up"):
        model.lm("b " * 50)
    assert 0.5 < time.monotonic() - started < 1.5
    slow.join()
    assert model.terms.budget.calls == len(server.requests) == 2 and gate.limit == 8 and gate.in_flight == 0


def test_a_call_that_waits_for_the_budget_hears_that_the_run_is_stopped(server):
    model, slow = near_its_budget(server, 1.5)
    threading.Timer(0.2, model.terms.gate.halt).start()
    started = time.monotonic()
    with pytest.raises(Exception, match="interrupted"):
        model.lm("b " * 50)
    assert time.monotonic() - started < 1.0
    slow.join()
    assert model.terms.budget.calls == len(server.requests) == 2


def test_a_lens_has_no_more_time_than_the_query_that_needs_it(server):
    outer, inner = lm.connect(server.spec, Terms(query_seconds=5)), lm.connect(server.spec, Terms(query_seconds=3600))
    with outer.active(), inner.active():
        assert DEADLINE.get() - time.monotonic() <= 5


def test_samples_of_two_rollouts_are_other_samples(server, tmp_path):
    server.answer = lambda prompt: {"raw": str(len(server.requests))}
    model = lm.connect(server.spec, settings=lm.Settings(temperature=1.0))
    (tmp_path / "task" / "run").mkdir(parents=True)
    model.terms.open(tmp_path / "task" / "run")
    model.lm.repeats = True
    samples = [*model.lm("x", n=2, rollout_id=5), *model.lm("x", n=2, rollout_id=6), *model.lm("x", n=2)]
    assert len(set(samples)) == 6
    assert model.lm("x", n=2, rollout_id=5) == samples[:2]


def test_what_failed_before_there_was_a_ledger_is_booked_when_there_is(bad, tmp_path):
    bad.script = lambda number, body: throttled(0.0) if number < 3 else fine()
    model = lm.connect(bad.spec, Terms(patience=Patience(first=0.01)))
    model.lm("x")
    (tmp_path / "task" / "run").mkdir(parents=True)
    model.terms.open(tmp_path / "task" / "run")
    assert model.terms.books.faults == {"429": 2} and model.terms.books.sent == 3


def test_what_is_known_from_outcomes_alone_stays_known(server, tmp_path):
    folder = tmp_path / "task" / "run"
    folder.mkdir(parents=True)
    server.answer = lambda prompt: {"raw": "yes"}
    for sitting in range(3):
        budget = Budget(calls=100)
        model = lm.connect(server.spec, Terms(budget=budget))
        model.begin(folder, Usage(calls=50))
        assert budget.calls == 50 + sitting
        model.lm(f"another prompt {sitting}")


def test_the_time_limit_ends_a_run_that_waits_as_the_provider_has_asked(run, bad):
    bad.script = lambda number, body: throttled(30.0)
    started = time.monotonic()
    result = run(*MULTIHOP, "--lm", bad.spec, "--json", "--time-limit", "1.5")
    assert result.code == 8 and time.monotonic() - started < 8
    assert "the time limit of 1.5 s is reached" in result.err


def test_a_lens_that_searches_for_pools_is_in_the_books_and_is_not_asked_again(run, server):
    server.answer = lambda prompt: annotate(prompt) if "annotations" in prompt else sensible(prompt)
    ask = (*MULTIHOP, "--limit", "3", "--lm", server.spec, "--pool", "union:20", "--json")
    ask = (*ask, "--retriever", f"lens(bm25,model={server.spec},query=true)")
    first = run(*ask)
    assert first.code == 0 and first.json["ledger"]["sent"] == len(server.requests)
    asked = len(server.requests)
    assert run(*ask).code == 0 and len(server.requests) == asked
