"""A call that has to wait, and one that fails: what ends it, and where it is booked."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from bad_server import fine, throttled
from openai_server import annotate, sensible
from waiting import wait_for

from sextant.tools.models import language_model
from sextant.tools.models.call_limits import Budget, ConcurrencyLimiter, RetryPolicy
from sextant.tools.models.client import DEADLINE
from sextant.tools.models.run_resources import RunResources
from sextant.tools.records import Usage

MULTIHOP = ("--program", "multihop", "--task", "congress", "--split", "dev", "--data", "mini")


@contextmanager
def near_its_budget(server, **given):
    """A model whose second call stays on its way, so that the next one has to wait for the budget."""
    over = threading.Event()
    server.answer = lambda prompt: {"raw": "ok " * 20}
    model = language_model.connect(server.spec, RunResources(budget=Budget(tokens=900), **given))
    model.lm("w " * 50)
    server.answer = lambda prompt: over.wait(120) and {"raw": "ok " * 20}
    with ThreadPoolExecutor() as pool:
        slow = pool.submit(model.lm, "a " * 50)
        wait_for(lambda: len(server.requests) == 2)
        yield model
        assert not slow.done(), "it has waited for the slow call"
        over.set()
    slow.result()


def test_a_call_that_waits_for_the_budget_ends_with_its_query_and_is_not_counted(server):
    limiter = ConcurrencyLimiter(8)
    with (
        near_its_budget(server, limiter=limiter, query_seconds=0.3) as model,
        model.active(),
        pytest.raises(Exception, match="the query's time is up"),
    ):
        model.lm("b " * 50)
    assert (
        model.resources.budget.calls == len(server.requests) == 2
        and limiter.limit == 8
        and limiter.in_flight == 0
    )


def test_a_call_that_waits_for_the_budget_hears_that_the_run_is_stopped(server):
    with near_its_budget(server) as model, pytest.raises(Exception, match="interrupted"):
        threading.Timer(0.2, model.resources.limiter.halt).start()
        model.lm("b " * 50)
    assert model.resources.budget.calls == len(server.requests) == 2


def test_a_lens_has_no_more_time_than_the_query_that_needs_it(server):
    outer, inner = (
        language_model.connect(server.spec, RunResources(query_seconds=5)),
        language_model.connect(server.spec, RunResources(query_seconds=3600)),
    )
    with outer.active():
        deadline = DEADLINE.get()
        with inner.active():
            assert DEADLINE.get() == deadline


def test_samples_of_two_rollouts_are_other_samples(server, place):
    server.answer = lambda prompt: {"raw": str(len(server.requests))}
    model = language_model.connect(
        server.spec, settings=language_model.ModelSettings(temperature=1.0)
    )
    model.resources.open(place)
    model.lm.repeats = True
    samples = [
        *model.lm("x", n=2, rollout_id=5),
        *model.lm("x", n=2, rollout_id=6),
        *model.lm("x", n=2),
    ]
    assert len(set(samples)) == 6
    assert model.lm("x", n=2, rollout_id=5) == samples[:2]


def test_what_failed_before_there_was_a_ledger_is_booked_when_there_is(bad, place):
    bad.script = lambda number, body: throttled(0.0) if number < 3 else fine()
    model = language_model.connect(bad.spec, RunResources(patience=RetryPolicy(first=0.01)))
    model.lm("x")
    model.resources.open(place)
    assert (
        model.resources.usage_totals.faults == {"429": 2} and model.resources.usage_totals.sent == 3
    )


def test_what_is_known_from_outcomes_alone_stays_known(server, place):
    server.answer = lambda prompt: {"raw": "yes"}
    for sitting in range(3):
        budget = Budget(calls=100)
        model = language_model.connect(server.spec, RunResources(budget=budget))
        model.begin(place, Usage(calls=50))
        assert budget.calls == 50 + sitting
        model.lm(f"another prompt {sitting}")


def test_the_time_limit_ends_a_run_that_waits_as_the_provider_has_asked(run, bad):
    bad.script = lambda number, body: throttled(30.0)
    result = run(*MULTIHOP, "--lm", bad.spec, "--json", "--time-limit", "0.5")
    assert result.code == 8 and len(bad.tries) <= 8, "nothing was sent again"
    assert "the time limit of 0.5 s is reached" in result.err


def test_a_lens_that_searches_for_pools_is_in_the_books_and_is_not_asked_again(run, server):
    server.answer = lambda prompt: annotate(prompt) if "annotations" in prompt else sensible(prompt)
    ask = (*MULTIHOP, "--limit", "1", "--lm", server.spec, "--pool", "union:20", "--json")
    ask = (*ask, "--retriever", f"lens(bm25,model={server.spec},query=true)")
    first = run(*ask)
    assert first.code == 0 and first.json["ledger"]["sent"] == len(server.requests)
    asked = len(server.requests)
    assert run(*ask).code == 0 and len(server.requests) == asked
