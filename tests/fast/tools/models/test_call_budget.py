"""What a run may use: each limit, what is in flight, threads near a limit, and a run of one cent."""

import random
import threading
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest
from openai_server import Failure

from sextant.evals import run_folder
from sextant.tools.errors import BudgetReached, UsageError
from sextant.tools.models import prices
from sextant.tools.models.call_limits import NOTHING, Budget, CallReservation, RetryPolicy
from sextant.tools.records import Usage

CENT = 0.01
# 12 queries, some 5 cents of gpt-4.1-mini in all.
MULTIHOP = ("--program", "multihop", "--task", "congress", "--split", "dev", "-P", "hops=2")


def used(usd=0.0, tokens=0):
    return Usage(1, 0, tokens, 0, usd, usd)


def take(budget, expected=NOTHING, **given):
    return budget.take(lambda in_flight: expected, **given)


def once(budget, usage=None, expected=NOTHING):
    take(budget, expected)
    budget.spend(usage or Usage(1), expected)


def test_dollars_are_counted_when_they_are_known_and_a_call_of_unknown_price_ends_the_run():
    budget = Budget(usd=CENT)
    once(budget, used(0.004))
    once(budget, used(0.0059))
    once(budget, used(0.004))
    with pytest.raises(BudgetReached, match=r"\$0\.01 is used up \(\$0\.0139 spent\)"):
        budget.take()
    unknown = Budget(usd=CENT)
    once(unknown, used(None))
    with pytest.raises(BudgetReached, match="not known"):
        unknown.take()
    once(Budget(calls=9), used(None))  # who limits no dollars need not know them
    resumed = Budget(usd=CENT)
    resumed.resume(Usage(calls=3, paid_usd=None))
    with pytest.raises(BudgetReached, match="not known"):
        resumed.take()


def test_work_that_is_more_than_what_is_left_is_refused_before_any_of_it_is_sent():
    budget = Budget(calls=10, usd=1.0)
    once(budget, used(0.4))
    budget.allow(9, 0.6)
    with pytest.raises(BudgetReached, match="10 calls, of which the budget has 9 left"):
        budget.allow(10, 0.0)
    with pytest.raises(BudgetReached, match=r"about \$0\.7000, and \$0\.6000 are left"):
        budget.allow(1, 0.7)
    with pytest.raises(UsageError, match="not known"):
        budget.allow(1, None)


def threads_of(work, many):
    threads = [threading.Thread(target=work, daemon=True) for _ in range(many)]
    for thread in threads:
        thread.start()
    return threads


def joined(threads):
    ends = time.monotonic() + 120.0
    for thread in threads:
        thread.join(max(0.0, ends - time.monotonic()))
        assert not thread.is_alive(), "a thread waits for ever"


def test_a_call_that_might_go_over_waits_for_the_one_in_flight_and_goes_on_when_that_was_cheaper():
    budget, expected = Budget(usd=CENT), CallReservation(usd=0.006)
    take(budget, expected)
    [second] = threads_of(lambda: take(budget, expected), 1)
    second.join(0.05)
    assert second.is_alive() and budget.calls == 1
    budget.spend(used(0.001), expected)
    joined([second])
    assert budget.calls == 2


def spent_by_threads(seed, limit, exact, many=16):
    """Threads spend what costs at random: (spent over the limit, the dearest call, what was in flight when it was)."""
    drawn = random.Random(seed)
    budget = Budget(usd=limit)
    costs = [
        drawn.choice([0.1, 1.0, 3.0]) * drawn.uniform(0.5, 1.5) * limit / 60 for _ in range(4000)
    ]
    guesses = costs if exact else [cost * drawn.uniform(0.2, 2.0) for cost in costs]
    sleeps = [drawn.uniform(0, 0.002) for _ in range(4000)]
    lock, spent, flying, reached, taken = threading.Lock(), [0.0], {}, [0.0], [0]

    def work():
        while True:
            with lock:
                number = taken[0]
                taken[0] += 1
            expected = CallReservation(usd=guesses[number])
            try:
                take(budget, expected)
            except BudgetReached:
                return
            with lock:
                assert spent[0] < limit, "sent after the limit was reached"
                flying[number] = costs[number]
            time.sleep(sleeps[number])
            with lock:
                if spent[0] < limit <= spent[0] + costs[number]:
                    reached[0] = sum(flying.values())
                spent[0] += costs[number]
                del flying[number]
                budget.spend(used(costs[number]), expected)

    joined(threads_of(work, many))
    assert spent[0] >= limit, "the threads gave up before"
    return spent[0] - limit, max(costs), reached[0]


@pytest.mark.parametrize(("exact", "seed"), [(False, 0), (True, 1)], ids=["guessed", "as expected"])
def test_threads_together_go_over_by_what_was_in_flight_or_by_one_call_that_used_what_was_expected(
    exact, seed
):
    over, dearest, in_flight = spent_by_threads(seed, limit=1.0, exact=exact)
    assert 0 <= over <= (dearest if exact else in_flight) + 1e-9


@pytest.mark.parametrize("limit", ["usd", "tokens"])
def test_what_is_spent_and_in_flight_is_never_above_the_budget_unless_a_call_is_alone(limit):
    """Random schedules: calls begin as the budget lets them, and end in any order with at most what they may use."""
    for seed in range(1500):
        drawn = random.Random(seed)
        budget = Budget(**{limit: 1000})
        in_flight, spent, largest, alone = [], 0, 0, False
        for _ in range(60):
            if in_flight and drawn.random() < 0.5:
                most = in_flight.pop(drawn.randrange(len(in_flight)))
                actual = drawn.randint(0, most)
                spent += actual
                largest = max(largest, actual)
                budget.spend(used(actual, actual), CallReservation(most, most))
            most = drawn.choice([20, 200, 1500])
            with suppress(TimeoutError, BudgetReached):
                take(budget, CallReservation(most, most), deadline=0.0)
                alone = not in_flight
                in_flight.append(most)
            assert spent + sum(in_flight) <= 1000 or (alone and len(in_flight) <= 1)
        assert spent <= 1000 + largest


def test_threads_together_send_exactly_so_many_requests():
    drawn, budget, lock, sent = random.Random(1), Budget(calls=250), threading.Lock(), []

    def work():
        while True:
            try:
                budget.take()
            except BudgetReached:
                return
            with lock:
                sent.append(1)
                pause = drawn.uniform(0, 0.001)
            time.sleep(pause)
            budget.spend(Usage(1))

    joined(threads_of(work, 16))
    assert len(sent) == budget.calls == 250


@pytest.fixture
def priced(server, monkeypatch):
    """A server in OpenAI's place, so that the table's price of the model holds."""
    monkeypatch.setenv("OPENAI_BASE_URL", server.spec.partition("@")[2])
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    server.delay = 0.01
    reply, server.costs = server.reply, []

    def counted(path, request):
        answer = reply(path, request)
        usage, price = (
            answer["usage"],
            prices.price(f"openai/{request['model']}") or prices.Price(0, 0, 0),
        )
        server.costs.append(price.of(usage["prompt_tokens"], 0, usage["completion_tokens"]))
        return answer

    server.reply = counted
    return server


def rankings(result):
    return {
        name: row["ranking"]
        for name, row in run_folder.read_outcomes(Path(result.json["run"])).items()
    }


def test_a_budget_of_one_cent_is_kept_and_the_run_resumes_to_the_undisturbed_one(
    run, tmp_path, priced
):
    arguments = (*MULTIHOP, "--lm", "openai/gpt-4.1-mini", "--max-concurrent", 1, "--json")
    whole = run(*arguments, "--runs", tmp_path / "whole")
    assert whole.code == 0 and whole.json["usage"]["paid_usd"] > 2 * CENT
    assert whole.json["usage"]["paid_usd"] == pytest.approx(sum(priced.costs))
    priced.costs.clear()

    first = run(*arguments, "--budget-usd", CENT)
    assert (
        first.code == 8
        and "budget of $0.01 is used up" in first.err
        and "larger budget" in first.err
    )
    assert first.err.count("\n") == 1
    spent = sum(priced.costs)
    assert CENT <= spent <= CENT + max(priced.costs)
    assert first.json["ledger"]["paid_usd"] == pytest.approx(spent)
    assert first.json["ledger"]["answered"] == len(priced.costs)
    partial = first.json["partial"]
    assert partial["queries"] == 12 - first.json["owed"] and not first.json.get("metrics")
    assert partial["queries"] and 0 <= partial["metrics"]["nDCG@10"]["mean"] <= 1

    again = run(*arguments, "--budget-usd", CENT)
    assert again.code == 8 and sum(priced.costs) == spent, "the same budget buys nothing more"

    second = run(*arguments, "--budget-usd", 1)
    assert second.code == 0 and second.json["owed"] == 0
    assert rankings(second) == rankings(whole) and second.json["metrics"] == whole.json["metrics"]
    for ledger in ("usage", "ledger"):
        for name in ("paid_usd", "list_usd"):
            assert second.json[ledger][name] == pytest.approx(whole.json[ledger][name])
    assert sum(priced.costs) == pytest.approx(whole.json["ledger"]["paid_usd"]), (
        "nothing was paid twice"
    )


def test_a_budget_in_dollars_holds_for_prices_of_the_user_s_own_and_needs_some(
    run, tmp_path, server
):
    file = tmp_path / "prices.toml"
    arguments = (*MULTIHOP, "--lm", server.spec, "--budget-usd", CENT, "--json", "--prices", file)
    file.write_text(f'as_of = 2026-11-01\n["{server.spec}"]\ninput = 5\noutput = 20\n')
    result = run(*arguments)
    tokens = result.json["ledger"]["input_tokens"], result.json["ledger"]["output_tokens"]
    assert result.code == 8
    assert result.json["ledger"]["paid_usd"] == pytest.approx(
        (5 * tokens[0] + 20 * tokens[1]) / 1e6
    )
    file.write_text('as_of = 2026-11-01\n["openai/another"]\ninput = 5\noutput = 20\n')
    unknown = run(*arguments)
    assert unknown.code == 2 and "is not known" in unknown.err and "--budget-calls" in unknown.err
    file.write_text(f'as_of = 2026-11-01\n["{server.spec}"]\ninput = 0\noutput = 0\n')
    free = run(*arguments, "--runs", tmp_path / "free")
    assert free.code == 0 and free.json["usage"]["paid_usd"] == 0


def test_a_run_stops_at_its_tokens_and_resumes(run, tmp_path, server):
    arguments = (*MULTIHOP, "--lm", server.spec, "--max-concurrent", 2, "--json")
    whole = run(*arguments, "--runs", tmp_path / "whole").json
    total = whole["usage"]["input_tokens"] + whole["usage"]["output_tokens"]
    largest = max(len(str(request["messages"])) // 4 for request in server.requests) + 500
    first = run(*arguments, "--budget-tokens", total // 2)
    assert first.code == 8 and "tokens is used up" in first.err
    ledger = first.json["ledger"]
    assert (
        total // 2 <= ledger["input_tokens"] + ledger["output_tokens"] <= total // 2 + 2 * largest
    )
    second = run(*arguments, "--budget-tokens", 2 * total)
    assert second.code == 0
    names = ("calls", "input_tokens", "output_tokens")
    assert [second.json["usage"][name] for name in names] == [
        whole["usage"][name] for name in names
    ]


def test_a_provider_that_reports_no_usage_ends_a_run_with_a_budget_of_tokens_or_dollars(
    run, priced
):
    reply = priced.reply
    priced.reply = lambda path, request: {
        key: value for key, value in reply(path, request).items() if key != "usage"
    }
    for limit in (("--budget-tokens", 10_000), ("--budget-usd", CENT)):
        result = run(
            *MULTIHOP, "--lm", "openai/gpt-4.1-mini", "--max-concurrent", 1, *limit, "--json"
        )
        assert result.code == 8 and "no usage reported" in result.err
    assert result.json["ledger"]["unmetered"] == len(priced.requests) == 1, (
        "the second sitting sent nothing"
    )


def test_failed_requests_count_in_a_budget_of_calls(run, server, monkeypatch):
    monkeypatch.setattr("sextant.tools.models.run_resources.PATIENCE", RetryPolicy(first=0.001))
    answer, numbers = server.answer, iter(range(10_000))

    def every_other(prompt):
        if next(numbers) % 2:
            raise Failure(500)
        return answer(prompt)

    server.answer = every_other
    result = run(
        *MULTIHOP, "--lm", server.spec, "--max-concurrent", 3, "--budget-calls", 21, "--json"
    )
    assert result.code == 8 and "budget of 21 model calls is used up" in result.err
    assert len(server.requests) == result.json["ledger"]["sent"] == 21
    assert result.json["ledger"]["faults"] == {"500": 21 - result.json["ledger"]["answered"]}


def test_a_run_stops_at_its_time_limit_keeps_what_was_in_flight_and_resumes(run, server):
    server.delay = 0.15
    arguments = (*MULTIHOP, "--lm", server.spec, "--max-concurrent", 4, "--json")
    first = run(*arguments, "--time-limit", "1s")
    assert first.code == 8 and "time limit of 1 s is reached" in first.err
    assert first.json["owed"] > 0
    sent = len(server.requests)
    assert first.json["ledger"]["answered"] == first.json["ledger"]["sent"] == sent, (
        "what was in flight is kept"
    )
    server.delay = 0.0
    second = run(*arguments)
    assert second.code == 0 and second.json["usage"]["calls"] == len(server.requests), (
        "and not paid for again"
    )


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (
            "sextant.evals.run",
            "--program retrieve --task congress --retriever lens(bm25,attribute=stance,query=true,model=LM)",
        ),
        ("sextant_construction.judge", "--task congress --runs RUN --lm LM"),
        ("sextant.evals.behaviour", "RUN --name-failures 2 --lm LM"),
        ("sextant.evals.reproduce", "obliq/table4 --limit 1 --retriever bm25 --lm LM"),
        (
            "sextant.optimizers.compile",
            "--program rewrite --task congress --optimizer copro --lm PRICED --prompt-lm LM",
        ),
        (
            "sextant.optimizers.compile",
            "--program retrieve --task congress --optimizer tune --range retriever=bm25|api:LM",
        ),
    ],
)
def test_dollars_are_refused_before_anything_is_sent_where_a_price_is_unknown(
    module, words, command_of, run, server, monkeypatch, tmp_path
):
    monkeypatch.setenv("OPENAI_BASE_URL", server.spec.partition("@")[2])
    monkeypatch.setenv("OPENAI_API_KEY", "sk-nothing")
    if "RUN" in words:
        words = words.replace(
            "RUN",
            run("--program", "retrieve", "--task", "congress", "--limit", 3, "--json").json["run"],
        )
    given = words.replace("PRICED", "openai/gpt-5-mini").replace("LM", server.spec).split()
    done = command_of(import_module(module))(*given, "--budget-usd", "1")
    assert done.code == 2 and f"the price of {server.spec} is not known" in done.out + done.err
    assert not server.requests


def bill(priced, tokens_of):
    """Have the server bill so many tokens of output, whatever it wrote: (number of the call, request) -> tokens."""
    reply, costs, lock = priced.reply, [], threading.Lock()

    def billed(path, request):
        answer = reply(path, request)
        with lock:
            tokens = tokens_of(len(costs), request)
            prompt = answer["usage"]["prompt_tokens"]
            costs.append(prices.price(f"openai/{request['model']}").of(prompt, 0, tokens))
        answer["usage"] |= {"completion_tokens": tokens, "total_tokens": prompt + tokens}
        return answer

    priced.reply = billed
    return costs


BILLS = {
    "up to its limit": lambda number, request: random.Random(number).randint(200, 4000),
    "more than its limit": lambda number, request: random.Random(number).randint(8000, 20_000),
    "more after a good answer": lambda number, request: 15_000 if number else 10,
    "more than a model can write after a good answer": lambda number, request: (
        200_000 if number else 10
    ),
}


@pytest.mark.parametrize("many", [8, 64])
@pytest.mark.parametrize("model", ["gpt-4.1-mini", "gpt-4o-mini"])
@pytest.mark.parametrize("manner", BILLS)
def test_a_budget_is_exceeded_by_one_call_at_most_whatever_a_server_bills(
    run, priced, manner, model, many
):
    costs = bill(priced, BILLS[manner])
    priced.delay = 0.1  # so that all that may be in flight is
    limits = ("--max-concurrent", many, "--max-tokens", 4000, "--budget-usd", 0.05)
    result = run(*MULTIHOP, "--lm", f"openai/{model}", *limits, "--json")
    assert result.code == 8 and 0.05 <= sum(costs) <= 0.05 + max(costs)


def test_calls_of_a_server_that_keeps_its_limits_are_soon_in_flight_together(run, priced):
    flying, most, lock = [0], [0], threading.Lock()
    reply = priced.reply

    def watched(path, request):
        with lock:
            flying[0] += 1
            most[0] = max(most[0], flying[0])
        time.sleep(0.1)
        answer = reply(path, request)
        with lock:
            flying[0] -= 1
        return answer

    priced.reply = watched
    result = run(*MULTIHOP, "--lm", "openai/gpt-4o-mini", "--max-concurrent", 8, "--budget-usd", 1)
    assert result.code == 0 and most[0] == 8


def test_a_model_whose_longest_answer_nobody_knows_is_asked_one_call_at_a_time_and_it_is_said(
    run, tmp_path, server
):
    file = tmp_path / "prices.toml"
    file.write_text(f'as_of = 2026-11-01\n["{server.spec}"]\ninput = 5\noutput = 20\n')
    arguments = (*MULTIHOP, "--lm", server.spec, "--budget-usd", 1, "--prices", file, "--limit", 2)
    alone = run(*arguments, "--runs", tmp_path / "alone")
    assert alone.code == 0 and "one at a time" in alone.err and "--context N" in alone.err
    known = run(*arguments, "--context", 16_000)
    assert known.code == 0 and "one at a time" not in known.err


def test_calls_go_in_the_order_in_which_they_came_so_that_a_large_one_is_not_passed_for_ever():
    budget, small = Budget(usd=CENT), CallReservation(usd=0.001)
    take(budget, small)
    [large] = threads_of(lambda: take(budget, CallReservation(usd=1.0)), 1)
    large.join(0.05)
    with pytest.raises(TimeoutError):
        take(budget, small, deadline=0.0)
    budget.spend(used(0.001), small)
    joined([large])
