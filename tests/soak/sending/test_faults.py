"""Each fault of a provider alone, met once and met always, as a user of the command line meets it.

Once: the run ends well. Always: it ends in bounded time, says so with its exit code, scores nothing 0 for the
provider's fault, and the same command finishes it when the provider is well. Rankings are those of an undisturbed run,
and the ledger is equal to the books of the server (tests/support/bad_server.py).
"""

import json
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import bad_server
import pytest
from bad_server import (
    OWN,
    PASSING,
    REFUSING,
    UNCLEAR,
    BadServer,
    Fault,
    always,
    fine,
    from_request,
    once,
    throttled,
)
from waiting import wait_for

from sextant.tools.models.call_limits import RetryPolicy
from sextant.tools.models.transport import http_client

TASK = (
    "--program",
    "multihop",
    "-P",
    "hops=2",
    "--task",
    "congress",
    "--split",
    "dev",
    "--limit",
    "3",
)
# As ever, and fifty times as impatient; less so where calls hang, which a busy machine must not look like.
QUICK = RetryPolicy(attempts=5, first=0.01, before=0.25, after=0.25, call=5.0)
HANGING = RetryPolicy(attempts=5, first=0.01, before=0.8, after=0.8, call=0.4)
HANG = {"silent", "stalls"}
LONGEST = 20.0  # seconds that a run of three queries may take before it gives up; a busy machine is allowed for
PROVIDERS = {**PASSING, "429, ms": throttled(0.05, "ms"), "429, 0.1": throttled(0.1)}


@pytest.fixture(autouse=True)
def impatient(monkeypatch, request):
    parameters = getattr(request.node, "callspec", None)
    hangs = parameters and parameters.params.get("kind") in HANG
    monkeypatch.setattr("sextant.tools.models.run_resources.PATIENCE", HANGING if hangs else QUICK)


@pytest.fixture
def ask(run, bad):
    """The command, on `bad`; after it, its ledger is compared with the books of the server."""

    def command(*arguments, task=TASK, at_once=2):
        result = run(*task, "--lm", bad.spec, "--max-concurrent", at_once, "--json", *arguments)
        if result.out:
            agree(result.json["ledger"], bad)
        return result

    return command


@pytest.fixture
def undisturbed(ask, bad, tmp_path):
    """The rankings of the run that nothing happens to, and how many calls it takes; once for all tests."""
    if not KNOWN:
        result = ask("--runs", tmp_path / "undisturbed")
        assert result.code == 0 and all(rankings(result).values())
        KNOWN.extend((rankings(result), len(bad.tries)))
        bad.forget()
    return KNOWN


KNOWN: list[Any] = []


def outcomes(result):
    file = Path(result.json["run"]) / "outcomes.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return {outcome["query_id"]: outcome for outcome in map(json.loads, lines)}


def rankings(result):
    return {query_id: outcome["ranking"] for query_id, outcome in outcomes(result).items()}


def agree(ledger, bad: BadServer) -> None:
    """The ledger, over all sittings, has what the server's books have."""
    unseen = ledger["faults"].get(
        "connection", 0
    )  # a request that found no connection was seen by nobody
    counted = sum(not one.closed_unseen for one in bad.tries)
    assert (ledger["sent"] - unseen, ledger["answered"]) == (counted, len(bad.paid))
    assert ledger["failed"] == sum(ledger["faults"].values()) == ledger["sent"] - ledger["answered"]
    statuses = Counter(str(one.status) for one in bad.tries if one.status not in (0, 200))
    assert {kind: many for kind, many in ledger["faults"].items() if kind.isdigit()} == statuses
    reported = [one.usage for one in bad.tries if isinstance(one.usage, dict) and counts(one.usage)]
    assert ledger["input_tokens"] == sum(report["prompt_tokens"] for report in reported)
    assert ledger["output_tokens"] == sum(report["completion_tokens"] for report in reported)
    assert ledger.get("unmetered", 0) == sum(one.usage not in reported for one in bad.paid)
    assert all(sum(one.paid for one in tries) <= 1 for tries in bad.by_call().values()), (
        "paid twice"
    )


def counts(report) -> bool:
    """Whether a report of usage is one, said another way than the product says it."""
    numbers = [report.get("prompt_tokens"), report.get("completion_tokens")]
    return all(type(number) is int and 0 <= number < 10**9 for number in numbers)


@pytest.mark.parametrize("kind", PROVIDERS)
def test_a_fault_that_comes_always_ends_the_run_and_the_same_command_finishes_it(
    kind, ask, bad, undisturbed
):
    bad.script = from_request(4, PROVIDERS[kind])
    started = time.monotonic()
    result = ask()
    assert time.monotonic() - started < LONGEST
    assert result.code == 7 and result.err.count("\n") == 1 and "the same command" in result.err
    assert result.json["owed"] == 3 and result.json["failed"] == 0 and result.json["metrics"] == {}
    assert outcomes(result) == {}
    tries_of_calls = [
        sum(not one.closed_unseen for one in tries) for tries in bad.by_call().values()
    ]
    assert max(tries_of_calls) <= QUICK.attempts
    again = [one for one in bad.tries if one.closed_unseen]
    assert len(again) <= 2, (
        "new connections alone are left once the connections of both queries were closed"
    )
    paid = len(bad.paid)
    assert paid == 3, "they are kept"
    bad.script = always(fine())
    wait_for(lambda: not bad._refusing.is_set())
    result = ask()
    assert result.code == 0 and rankings(result) == undisturbed[0]
    assert len(bad.paid) == undisturbed[1], "what had been paid for was not paid for again"
    sent = len(bad.tries)
    assert ask().code == 0 and len(bad.tries) == sent, "nothing is left to be asked"


def test_a_call_that_was_worked_on_before_the_server_hung_up_is_a_fault(ask, bad):
    bad.script = once(replace(bad_server.hung_up(), delay=http_client.STALE + 0.5), at=3)
    result = ask(at_once=1)
    assert result.code == 0 and result.json["ledger"]["faults"] == {"reset": 1}
    assert bad.tries[2].reused


@pytest.mark.parametrize("kind", REFUSING | UNCLEAR)
def test_who_refuses_or_says_nothing_of_the_text_ends_the_run_is_asked_once_and_costs_no_score(
    kind, ask, bad, undisturbed
):
    bad.script = from_request(4, (REFUSING | UNCLEAR)[kind])
    result = ask()
    assert result.code == (4 if kind in REFUSING else 7) and result.err.count("\n") == 1
    assert (result.json["owed"], result.json["failed"]) == (3, 0) and outcomes(result) == {}
    assert max(len(tries) for tries in bad.by_call().values()) == 1
    assert len(bad.tries) <= 3 + 3 or kind in UNCLEAR
    bad.script = always(fine())
    result = ask()
    assert (
        result.code == 0 and rankings(result) == undisturbed[0] and len(bad.paid) == undisturbed[1]
    )


@pytest.mark.parametrize(
    ("fault", "kind"),
    [(bad_server.filtered(), "refused"), (bad_server.null_content(), "empty")],
    ids=["filtered", "null_content"],
)
def test_an_answer_that_says_nothing_is_asked_for_once_more_and_counted(
    fault, kind, ask, bad, undisturbed
):
    bad.script = once(fault, at=5)
    result = ask()
    assert (
        result.code == 0
        and result.json["unusable"] == {kind: 1}
        and result.json["usage"]["repairs"] == 1
        and "repairs" not in result.json["ledger"]
    )
    assert len(bad.tries) == len(bad.paid), "it was an answer, and was paid for"
    bad.forget(always(fault))
    # The first searches are in the ledger; the readings cannot be used, which costs them alone.
    result = ask("-P", "read_chars=500")
    assert result.code == 0 and (result.json["failed"], result.json["owed"]) == (0, 0)
    assert result.json["unusable"] == {kind: len(bad.tries)} and all(rankings(result).values())
    # No search has been made in three hops: nothing of a query's answers can be used.
    bad.forget(always(fault))
    result = ask("-P", "hops=3", task=[word for word in TASK if word not in ("-P", "hops=2")])
    assert result.code == 7 and (result.json["failed"], result.json["owed"]) == (3, 0)


@pytest.mark.parametrize(
    "fault",
    [
        bad_server.filtered_400(),
        bad_server.broke_off(403, whole=True, message="Your input was flagged for 'x'."),
    ],
    ids=lambda fault: fault.kind,
)
def test_what_was_sent_is_at_fault_and_its_query_alone_fails(fault, ask, bad, undisturbed):
    bad.script = once(fault, at=5)
    result = ask()
    assert result.code == 7 and (result.json["failed"], result.json["owed"]) == (1, 0)
    failed = {query_id for query_id, outcome in outcomes(result).items() if outcome["error"]}
    assert len(failed) == 1
    assert {key: value for key, value in rankings(result).items() if key not in failed} == {
        key: value for key, value in undisturbed[0].items() if key not in failed
    }


@pytest.mark.parametrize(
    "fault", [bad_server.filtered_400(), bad_server.null_content()], ids=lambda fault: fault.kind
)
def test_a_run_whose_queries_fail_alike_stops_once_and_what_failed_is_asked_again(
    fault, run, bad, tmp_path
):
    def ask(*arguments):  # what is asked again is paid for again
        return run(*TASK[:-1], 12, "--lm", bad.spec, "--max-concurrent", 1, "--json", *arguments)

    expected = rankings(ask("--runs", tmp_path / "undisturbed"))
    bad.forget(always(replace(fault, delay=0.03)))
    first = ask()
    assert first.code == 7 and "queries ended alike: " in first.err
    assert 5 <= first.json["failed"] < 12 and first.json["owed"] == 12 - first.json["failed"]
    second = ask()
    assert second.code == 7 and (second.json["failed"], second.json["owed"]) == (12, 0)
    assert second.json["failure"]["queries"] == 12
    bad.script = from_request(len(bad.tries) + 5, bad_server.failing(503))
    cut = ask("--again", "failed")
    assert (
        cut.code == 7 and cut.json["owed"] and cut.json["failed"] == 0 and cut.json["metrics"] == {}
    )
    bad.script = always(fine())
    assert ask().json["failed"] == cut.json["owed"], (
        "what failed before counts where nothing follows"
    )
    result = ask("--again", "failed")
    assert result.code == 0 and rankings(result) == expected
    assert len((Path(result.json["run"]) / "outcomes.jsonl").read_text().splitlines()) == 24, (
        "the old are kept"
    )
    sent = len(bad.tries)
    assert (
        ask("--again", "failed").json["metrics"] == result.json["metrics"]
        and len(bad.tries) == sent
    )


@pytest.mark.parametrize(
    ("fault", "seconds"),
    [(throttled(0.3), 0.3), (throttled(0.3, "ms"), 0.3), (throttled(1, "date"), 0.9)],
    ids=["seconds", "ms", "date"],
)
def test_what_a_provider_asks_to_wait_is_waited_by_all(fault: Fault, seconds, ask, bad):
    bad.script = once(fault, at=2)
    assert ask(at_once=3).code == 0
    [told] = [one for one in bad.tries if one.kind == "429"]
    in_flight = [one for one in bad.tries if told.arrived < one.arrived < told.ended]
    after = [
        one.arrived - told.ended
        for one in bad.tries
        if one.arrived > told.ended and one not in in_flight
    ]
    # On a busy machine, others may be on their way when the answer came, or leave before it is read.
    early = [wait for wait in after if wait < seconds - 0.02]
    assert max(early, default=0.0) < 0.1 and len(early) < len(after)


def test_a_rate_that_is_used_up_is_waited_for(ask, bad):
    bad.script = once(bad_server.rate_headers(0, "3s"), at=2)
    assert ask(at_once=1).code == 0
    # The server notes the end of an answer only after its client may have it.
    assert bad.tries[2].arrived - bad.tries[1].ended > 2.5
    assert bad.tries[3].arrived - bad.tries[2].ended < 2.5, "once"


def test_a_provider_that_asks_for_an_hour_is_not_waited_for(ask, bad):
    bad.script = from_request(2, throttled(3600))
    started = time.monotonic()
    result = ask()
    assert time.monotonic() - started < LONGEST and result.code == 7 and result.json["failed"] == 0
    bad.script = from_request(1, bad_server.rate_headers(0, "6m0s"))
    started = time.monotonic()
    assert ask().code in (0, 7) and time.monotonic() - started < LONGEST


def test_fewer_are_sent_at_once_when_the_provider_has_too_many(ask, bad, monkeypatch):
    monkeypatch.setattr(
        "sextant.tools.models.run_resources.PATIENCE",
        RetryPolicy(attempts=9, first=0.05, before=5.0, after=5.0),
    )

    def too_many(number, body):
        busy = sum(not one.ended for one in bad._tries)
        return replace(throttled(), delay=0.05) if busy > 2 else bad_server.latency(0.1)

    bad.script = too_many
    result = ask("--limit", 6, at_once=6)
    assert result.code == 0, result.err
    assert (
        max(one.in_flight for one in bad.tries[:6]) > 3
        and max(one.in_flight for one in bad.tries[-6:]) <= 3
    )


@pytest.mark.parametrize(
    "fault",
    [bad_server.silent(), bad_server.stalls(), bad_server.trickle(0.05)],
    ids=["silent", "stalls", "trickle"],
)
def test_a_call_that_hangs_is_cut_off_in_time(fault, ask, bad, monkeypatch):
    monkeypatch.setattr("sextant.tools.models.run_resources.PATIENCE", HANGING)
    bad.script = once(fault, at=1)
    result = ask(at_once=1)
    assert result.code == 0 and result.json["ledger"]["faults"] == {"timeout": 1}
    assert bad.tries[0].ended - bad.tries[0].arrived == pytest.approx(HANGING.call, abs=3.0)


@pytest.mark.parametrize("kind", ["500", "stalls", "empty_choice", "page", "401", "filtered"])
def test_the_responses_protocol_is_held_to_the_same(kind, ask, bad, run):
    def command():
        return run(*TASK, "--lm", bad.spec, "--api", "responses", "--max-concurrent", 2, "--json")

    fault = {**PASSING, **REFUSING, **OWN}[kind]
    bad.script = once(fault, at=5)
    result = command()
    assert all(one.path.endswith("/responses") for one in bad.tries)
    assert result.code == (4 if kind == "401" else 0), result.err
    assert result.json["unusable"] == ({"refused": 1} if kind == "filtered" else {})
    bad.script = always(fine())
    result = command()
    assert result.code == 0 and result.json["owed"] == result.json["failed"] == 0
    ledger = result.json["ledger"]
    assert (ledger["sent"], ledger["answered"]) == (len(bad.tries), len(bad.paid))
    assert ledger["input_tokens"] == sum(
        one.usage["input_tokens"] for one in bad.tries if one.usage
    )
