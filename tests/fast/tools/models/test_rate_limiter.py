"""The gate: how many requests may be in flight and when, by a clock that is set, and against simulated providers."""

import heapq
import itertools
import math
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st
from waiting import wait_for

from sextant.tools.errors import Interrupted
from sextant.tools.models.call_limits import (
    CIRCUIT,
    DECREASE,
    LONGEST_PROBE,
    ConcurrencyLimiter,
    read_rate,
    retry_after,
)


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def enter(limiter, clock):
    """When a request got through now; None where it had to wait."""
    try:
        return limiter.enter(clock(), deadline=clock())
    except TimeoutError:
        return None


def enter_all(limiter, clock):
    """As many requests as get through now."""
    return list(iter(lambda: enter(limiter, clock), None))


def fail(limiter, entered, *, overload=False, asked=None, reason="500"):
    limiter.failed(entered, overload=overload, rest=asked, reason=reason)


def test_the_limit_comes_down_once_for_all_that_were_in_flight_together(clock):
    limiter = ConcurrencyLimiter(64, clock=clock)
    entered = enter_all(limiter, clock)
    clock.now += 1.0
    for one in entered[:5]:
        fail(limiter, one, overload=True)
    assert limiter.limit == int(64 * DECREASE)
    limiter.answered({})
    for _ in range(58):
        limiter.leave()
    clock.now += 1.0
    later = enter_all(limiter, clock)
    assert len(later) == int(64 * DECREASE)
    fail(limiter, later[0], overload=True)
    assert limiter.limit == int(64 * DECREASE * DECREASE), (
        "that one was sent after the first decrease"
    )


@given(
    st.lists(st.sampled_from(["answered", "overload", "failed", "leave", "refused"]), max_size=200),
    st.integers(1, 9),
)
def test_the_limit_is_never_below_one_or_above_the_most_and_somebody_gets_through_in_the_end(
    events, most
):
    clock = Clock()
    limiter = ConcurrencyLimiter(most, clock=clock)
    entered = []
    for event in events:
        entered += enter_all(limiter, clock)
        clock.now += 0.1
        if not entered:
            continue
        one = entered.pop(0)
        if event in ("overload", "failed"):
            fail(limiter, one, overload=event == "overload")
        elif event == "answered":
            limiter.answered({})
        else:
            getattr(limiter, event)()
        assert 1 <= limiter.limit <= most and limiter.in_flight == len(entered) <= most
    for _ in entered:
        limiter.leave()
    clock.now += LONGEST_PROBE
    assert enter(limiter, clock) is not None


def test_what_a_provider_asks_for_holds_everybody(clock):
    limiter = ConcurrencyLimiter(4, clock=clock)
    entered = enter_all(limiter, clock)
    fail(limiter, entered[0], overload=True, asked=7.0, reason="429")
    fail(limiter, entered[1], asked=2.0)  # the longer one holds
    for _ in range(2):
        limiter.answered({})
    assert limiter.pause() == ("the provider asks to wait (429)", 7.0)
    clock.now += 6.9
    assert enter(limiter, clock) is None
    clock.now += 0.2
    assert enter(limiter, clock) == clock.now and limiter.pause() == ("", 0.0)


def waiting(limiter, until):
    """A thread that waits for a place."""
    waits = threading.Thread(target=limiter.enter, args=(until,), daemon=True)
    waits.start()
    wait_for(lambda: limiter.waiting == 1)
    return waits


def test_what_is_in_flight_is_waited_for_however_slow_the_provider_is(clock):
    limiter = ConcurrencyLimiter(1, clock=clock)
    enter(limiter, clock)
    clock.now += 700.0
    waits = waiting(limiter, until=clock.now - 1.0)
    limiter.answered({})
    waits.join(120)
    assert limiter.in_flight == 1
    with pytest.raises(TimeoutError):
        limiter.enter(clock.now + 9.0, deadline=clock.now)


def test_while_the_circuit_is_open_a_queue_that_moves_is_waited_for_and_one_that_stands_is_not(
    clock,
):
    limiter = opened(clock)
    clock.now += 1.0
    enter(limiter, clock)  # to see
    with pytest.raises(TimeoutError, match="the provider does not answer"):
        limiter.enter(clock.now, patience=9.0)
    waits = waiting(limiter, until=clock.now + 9.0)
    limiter.answered({})
    waits.join(120)
    assert limiter.in_flight == 1


def opened(clock, most=64):
    """A gate whose circuit has just opened, with nothing in flight."""
    limiter = ConcurrencyLimiter(most, clock=clock)
    for _ in range(CIRCUIT):
        fail(limiter, enter(limiter, clock))
    return limiter


def test_failures_in_a_row_open_the_circuit_and_an_answer_in_between_starts_the_count_again(clock):
    limiter = ConcurrencyLimiter(64, clock=clock)
    for _ in range(3):
        for _ in range(CIRCUIT - 1):
            fail(limiter, enter(limiter, clock))
        enter(limiter, clock)
        limiter.answered({})
    assert limiter.pause() == ("", 0.0) and limiter.limit == 64
    for _ in range(CIRCUIT):
        fail(limiter, enter(limiter, clock), reason="503")
    assert limiter.pause() == ("the provider does not answer (503)", 1.0)


def test_an_open_circuit_lets_one_request_at_a_time_through_after_pauses_that_double(clock):
    limiter, pauses = opened(clock), []
    for _ in range(7):
        assert enter(limiter, clock) is None
        pauses.append(limiter.pause()[1])
        clock.now += pauses[-1]
        [probe] = enter_all(limiter, clock)
        clock.now += 0.3
        fail(limiter, probe)
    assert pauses == [1.0, 2.0, 4.0, 8.0, LONGEST_PROBE, LONGEST_PROBE, LONGEST_PROBE]


def test_an_answer_closes_the_circuit_and_the_limit_doubles_up_to_half_of_what_it_was(clock):
    limiter, rounds = opened(clock), []
    clock.now += 1.0
    for _ in range(10):
        entered = enter_all(limiter, clock)
        rounds.append(len(entered))
        for _ in entered:
            limiter.answered({})
    assert rounds[:6] == [1, 2, 4, 8, 16, 32], "to half of 64"
    assert 33 <= rounds[-1] <= 36, "and by about one a round from there on"
    for _ in range(CIRCUIT):
        fail(limiter, enter(limiter, clock))
    assert limiter.pause()[1] == 1.0, "the pauses begin with the first again"


def test_a_refusal_is_an_answer_of_a_provider_that_is_there(clock):
    limiter = ConcurrencyLimiter(4, clock=clock)
    for _ in range(3 * CIRCUIT):
        fail(limiter, enter(limiter, clock))
        enter(limiter, clock)
        limiter.refused()
    assert limiter.pause() == ("", 0.0)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.25"}, 0.25),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "Mon, 01 Jan 99999999999999999999 00:00:00 GMT"}, None),
        ({"retry-after": "Mon, 01 Jan 2099 00:00:00 -0000"}, None),  # no zone, as RFC 5322 has it
    ],
)
def test_retry_after_is_read_in_seconds_in_milliseconds_and_as_a_date(headers, seconds):
    assert retry_after(headers) == seconds


@pytest.mark.parametrize(
    ("reset", "seconds"),
    [("20ms", 0.02), ("1s", 1.0), ("7.66s", 7.66), ("1m0s", 60.0), ("0m2.5s", 2.5), ("0s", 0.0),
     ("6m0s", None), ("1h", None), ("soon", None), ("", None)],
)  # fmt: skip
@pytest.mark.parametrize("what", ["requests", "tokens"])
def test_rate_headers_are_read_as_openai_writes_them(reset, seconds, what):
    names = f"x-ratelimit-remaining-{what}", f"x-ratelimit-reset-{what}"
    assert read_rate({names[0]: "0", names[1]: reset}) == seconds
    assert (
        read_rate({names[0]: "12", names[1]: reset}) is None and read_rate({names[0]: "0"}) is None
    )


def test_many_threads_never_are_more_than_the_limit_and_none_is_forgotten():
    limiter, lock, inside, passed = ConcurrencyLimiter(8), threading.Lock(), set(), []

    def work(number):
        for _ in range(20):
            limiter.enter(math.inf)
            with lock:
                inside.add(number)
                assert len(inside) <= 8
            time.sleep(0.001)
            with lock:
                inside.remove(number)
                passed.append(number)
            limiter.answered({})

    with ThreadPoolExecutor(32) as pool:
        list(pool.map(work, range(32)))
    assert len(passed) == 32 * 20 and limiter.in_flight == limiter.waiting == 0


def test_halt_lets_nothing_more_through_and_wakes_whoever_waits():
    limiter = ConcurrencyLimiter(1)
    limiter.enter(0.0)
    with ThreadPoolExecutor(5) as pool:
        waits = [pool.submit(limiter.enter, math.inf) for _ in range(3)]
        waits += [pool.submit(limiter.rest, 60.0) for _ in range(2)]
        wait_for(lambda: limiter.waiting == 3)
        limiter.halt()
        assert all(isinstance(wait.exception(120), Interrupted) for wait in waits)
    assert limiter.in_flight == 1, "what is in flight goes on"
    limiter.answered({})
    with pytest.raises(Interrupted):
        limiter.enter(time.monotonic())


class Simulation:
    """Workers that call one after another; a provider that works on `capacity` requests at once and has no queue.

    What is too much gets a 429 after 50 ms, an answer takes a second, give or take half. Everything on one clock, so
    a seed always gives the same.
    """

    def __init__(self, capacity, most, *, seed=1, asked=None):
        self.capacity, self.asked = capacity, asked
        self.clock = Clock()
        self.limiter = ConcurrencyLimiter(most, clock=self.clock)
        self.drawn = random.Random(seed)
        self.waiting = [0] * most  # attempts so far, of each worker that wants to send
        self.events = []  # (when, number, what, attempt): "rested", or when it entered
        self.numbers = itertools.count()
        self.busy = self.answered = self.refused = 0

    def run(self, seconds):
        ends = self.clock.now + seconds
        while self.clock.now < ends:
            self.send()
            pause = self.limiter.pause()[1]
            times = [event[0] for event in self.events[:1]] + [self.clock.now + pause] * bool(
                pause and self.waiting
            )
            self.clock.now = max(self.clock.now + 1e-9, min(times))
            while self.events and self.events[0][0] <= self.clock.now:
                self.happen(*heapq.heappop(self.events)[2:])
        return self

    def send(self):
        while self.waiting and (entered := enter(self.limiter, self.clock)) is not None:
            attempt = self.waiting.pop(0)
            works = self.busy < self.capacity
            self.busy += works
            self.after(self.drawn.uniform(0.5, 1.5) if works else 0.05, (works, entered), attempt)

    def after(self, seconds, what, attempt):
        heapq.heappush(self.events, (self.clock.now + seconds, next(self.numbers), what, attempt))

    def happen(self, what, attempt):
        if what == "rested":
            self.waiting.append(attempt)
        elif what[0]:
            self.busy, self.answered = self.busy - 1, self.answered + 1
            self.limiter.answered({})
            self.waiting.append(0)
        else:
            self.refused += 1
            fail(self.limiter, what[1], overload=True, asked=self.asked, reason="429")
            rest = (
                0.5 * 2.0 ** min(attempt, 4) * self.drawn.uniform(0.75, 1.25)
            )  # as tools/models/client.py has it
            self.after(self.asked or rest, "rested", attempt + 1)


@pytest.mark.parametrize("capacity", [1, 2, 4, 8, 16, 32, 64])
def test_a_provider_of_any_capacity_is_used_to_four_fifths(capacity):
    simulated = Simulation(capacity, 64).run(200.0)
    assert simulated.answered >= 0.8 * capacity * 200.0
    # One request too many per cycle of growing: rare where there is much to gain, and cheap where there is little.
    most = 0.6 if capacity < 4 else 0.2 if capacity < 16 else 0.05
    assert simulated.refused <= most * (simulated.answered + simulated.refused)


def test_a_provider_that_is_away_is_asked_once_in_a_while_and_found_again():
    simulated = Simulation(16, 64).run(50.0)
    simulated.capacity, before = 0, simulated.refused
    simulated.run(300.0)
    asked = simulated.refused - before
    assert CIRCUIT <= asked <= 64 + 300.0 / LONGEST_PROBE + 10
    simulated.capacity, answered = 16, simulated.answered
    simulated.run(LONGEST_PROBE + 15.0)
    answered = simulated.answered - answered
    assert answered >= 0.5 * 16 * 15.0
