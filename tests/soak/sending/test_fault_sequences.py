"""A thousand runs against a provider that misbehaves at random: nothing is lost, nothing is paid for twice.

Each seed draws a program, some queries, how many are asked at a time, which faults there are and how often. The run is
given up and resumed until the provider is well, and then once more. The server's own books are the reference
(tests/support/bad_server.py), and a run that nobody disturbed has the rankings. One seed alone, with what the server
saw:

    PYTHONPATH=.:tests/support python tests/soak/sending/test_fault_sequences.py 17
"""

import random
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from bad_server import GOOD, OWN, PASSING, REFUSING, BadServer, Fault, Try, mixed, prompt_of
from run_folders import CONFIG

from sextant import environments
from sextant.evals import run_folder
from sextant.evals.running.runner import run_queries
from sextant.programs.multihop import MultiHop
from sextant.programs.pointwise import Score
from sextant.programs.query_rewriting import Rewrite
from sextant.tools.errors import ProviderRefused
from sextant.tools.models import language_model
from sextant.tools.models.call_limits import ConcurrencyLimiter, RetryPolicy
from sextant.tools.models.run_resources import RunResources
from sextant.tools.models.transport import http_client
from sextant.tools.retrievers.lexical.bm25 import BM25
from sextant.tools.session import Toolbox

SEEDS = 1000
WORKERS = 4  # at most
BLOCKS = 20  # tests, so that two processes share the work
AT_ONCE = 8  # runs side by side: they wait most of the time
SITTINGS = 30  # after which a provider that is well again must have answered everything
# The waits of a run, a hundredth of what they are otherwise. A call is cut off late enough for a busy machine.
QUICK = RetryPolicy(attempts=4, first=0.005, before=0.4, after=0.4, call=3.0)
UNIT = 0.01  # the first wait of an open circuit, in seconds

SLOW = {
    "silent",
    "stalls",
    "huge",
    "trickle",
}  # each costs a cut-off, or a lot of CPU: now and then
TOLD = {
    kind: kind for kind in GOOD | PASSING | REFUSING | OWN
} | {  # what the ledger calls a fault of the server
    **dict.fromkeys(("refused", "reset", "hung_up", "reset_inside"), "reset"),
    **dict.fromkeys(("silent", "stalls"), "timeout"),
    **dict.fromkeys(("empty_choice", "cut_json", "bad_utf8", "page"), "unreadable"),
    **{
        "huge": "too large",
        "no_quota": "429",
        "too_long": "400",
        "filtered_400": "400",
        "moved": "307",
    },
    **{"LiteLLM": "422", "Anthropic": "400", "inside 402": "error 402", "inside 502": "error 502"},
    **{"instead 502": "error 502", "instead server_error": "error 500"},
}
PROGRAMS = {
    "rewrite": lambda toolbox: Rewrite(toolbox, depth=20),
    "one hop": lambda toolbox: MultiHop(toolbox, depth=20, hops=1, per_hop=3, read_chars=200),
    "two hops": lambda toolbox: MultiHop(toolbox, depth=20, hops=2, per_hop=3, read_chars=200),
    "score": lambda toolbox: Score(toolbox, depth=20, pool=3, read_chars=200, ties=""),
}


class Drawn:
    """What a seed says."""

    def __init__(self, seed: int) -> None:
        drawn = random.Random(seed)
        self.seed = seed
        self.program = drawn.choice(list(PROGRAMS))
        self.queries = drawn.sample(environment().queries, drawn.randint(1, 4))
        self.workers = drawn.randint(1, WORKERS)
        quick = [fault for kind, fault in (GOOD | PASSING).items() if kind not in SLOW]
        self.faults: list[Fault] = drawn.sample(quick, drawn.randint(1, len(quick)))
        if seed % 10 == 0:
            self.faults.append(drawn.choice([(GOOD | PASSING)[kind] for kind in sorted(SLOW)]))
        if seed % 4 == 1:
            self.faults.append(drawn.choice(list(REFUSING.values())))
        if seed % 4 == 2:
            self.faults.append(drawn.choice(list(OWN.values())))
        self.share = drawn.choice([0.1, 0.3, 0.6, 0.9])
        self.troubled = drawn.randint(1, 4)  # sittings until the provider is well


@cache
def environment():
    return environments.load("congress", "mini", "all")


@cache
def toolbox():
    return Toolbox(environment().documents, BM25(environment().documents))


def work(drawn, folder, model):
    queries, documents = drawn.queries, environment().documents
    run_queries(
        PROGRAMS[drawn.program](toolbox()), queries, documents, folder, model, workers=drawn.workers
    )


class Undisturbed:
    """The ranking of a query that nothing happens to, asked of the server's own answers once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._server = BadServer()
        self._known: dict[tuple[str, str], list[str]] = {}

    def __call__(self, program: str, query) -> list[str]:
        with self._lock:
            if (program, query.query_id) not in self._known:
                self._server.forget()
                with language_model.connect(self._server.spec).active():
                    submission = PROGRAMS[program](toolbox())(query=query)
                self._known[program, query.query_id] = list(submission.ranking)
            return self._known[program, query.query_id]


@contextmanager
def sitting(
    drawn: Drawn, server: BadServer, runs: Path
) -> Iterator[tuple[run_folder.RunFolder, language_model.ConnectedModel]]:
    """The run folder of a seed, and the model for one sitting in it."""
    # A name of its own for each seed: they share the file of answers, and must not answer each other's calls.
    spec = f"tiny-{drawn.seed}@{server.url}"
    model = language_model.connect(
        spec,
        RunResources(
            patience=QUICK, limiter=ConcurrencyLimiter(drawn.workers, unit=UNIT), query_seconds=20.0
        ),
    )
    with run_folder.claim(runs / "task" / f"seed-{drawn.seed}", CONFIG) as folder:
        model.begin(folder.path, folder.usage)
        yield folder, model


def check(seed: int, runs: Path, undisturbed: Undisturbed, server: BadServer) -> None:
    """The run of one seed, sitting after sitting; AssertionError for what must not be."""
    drawn = Drawn(seed)
    seen = 0
    for number in range(SITTINGS):
        troubled = number < drawn.troubled
        script = mixed(seed * 1000 + number, drawn.faults, drawn.share)
        server.script = script if troubled else lambda *_: GOOD["fine"]
        with sitting(drawn, server, runs) as (folder, model):
            before = set(folder.outcomes)
            try:
                work(drawn, folder, model)
            except ProviderRefused:
                # What is not acceptable before any answer is taken for a matter of settings.
                said = {one.kind for one in server.tries[seen:]}
                assert said & {*REFUSING, "filtered_400"}, "refused, and nobody had refused"
            assert before <= set(folder.outcomes), "a query that had been answered is lost"
            bounded(server.tries[seen:])
            resent(server, model)
            usage_totals(server, model)
            answered(drawn, folder, server, undisturbed)
            seen = len(server.tries)
            if len(folder.outcomes) == len(drawn.queries):
                break
            assert troubled or number == drawn.troubled, (
                "the provider is well, and queries are owed all the same"
            )
    assert len(folder.outcomes) == len(drawn.queries), "queries are owed in the end"
    again(drawn, server, runs)


def bounded(tries: list[Try]) -> None:
    """No call was tried more often in one sitting than patience has it.

    What was sent again unseen is no try. After a refusal for length the query is answered again, with new patience.
    """
    times = Counter[str]()
    for one in tries:
        if one.closed_unseen:
            continue
        times[one.asked] += 1
        assert times[one.asked] <= QUICK.attempts, f"a call was sent {times[one.asked]} times"
        if one.kind == "too_long":
            times[one.asked] = 0


def resent(server: BadServer, model: language_model.ConnectedModel) -> None:
    """What was sent again unseen went over a new connection, so that it cannot be sent again unseen once more.

    Where it found no connection, that is counted, and the next try of the call may have an old one again.
    """
    tries = [pair for one in server.by_call().values() for pair in pairwise(one)]
    over_old = sum(one.closed_unseen and following.reused for one, following in tries)
    faults = model.resources.usage_totals.faults
    counted = faults.get("connection", 0) + faults.get("reset", 0)
    made = sum(TOLD[one.kind] == "reset" and not one.closed_unseen for one in server.tries)
    assert over_old <= counted - made, f"{over_old} requests were sent again over an old connection"


def usage_totals(server: BadServer, model: language_model.ConnectedModel) -> None:
    """The ledger says what the server's books say, over all sittings, and no call was paid twice."""
    ours, tries = model.resources.usage_totals, server.tries
    twice = [tries for tries in server.by_call().values() if sum(one.paid for one in tries) > 1]
    assert not twice, f"a call was paid twice: requests {[one.number for one in twice[0]]}"
    expected = Counter(TOLD[one.kind] for one in tries if not one.paid and not one.closed_unseen)
    expected["connection"] = ours.faults.get(
        "connection", 0
    )  # a request that found no connection was seen by nobody,
    unseen = (
        ours.faults.get("reset", 0) - expected["reset"]
    )  # nor one whose connection the kernel had taken last
    closings = sum(one.kind == "refused" for one in tries)
    assert 0 <= unseen <= WORKERS * closings, (
        f"{unseen} resets that the server did not make, {closings} closings"
    )
    expected["reset"] += unseen
    assert ours.faults == +expected, f"the ledger has {ours.faults}, the server {+expected}"
    assert (ours.sent, ours.answered) == (
        sum(expected.values()) + len(server.paid),
        len(server.paid),
    ), "requests"
    reports = [one.usage for one in tries if one.usage]  # those that are sent here are honest
    tokens = [
        sum(report[name] for report in reports) for name in ("prompt_tokens", "completion_tokens")
    ]
    assert [ours.usage.input_tokens, ours.usage.output_tokens] == tokens, "tokens"
    unmetered = sum(not one.usage for one in server.paid)
    assert (ours.usage.calls, ours.usage.unmetered) == (len(server.paid), unmetered), "calls"


def answered(
    drawn: Drawn, folder: run_folder.RunFolder, server: BadServer, undisturbed: Undisturbed
) -> None:
    """What is recorded is what it would have been without any fault of the provider's."""
    for query in drawn.queries:
        if query.query_id not in folder.outcomes:
            continue
        outcome = folder.outcomes[query.query_id]
        own = [
            one.kind
            for one in server.tries
            if query.text in prompt_of(one.body) and one.kind in OWN
        ]
        if own or any(one.kind == "too_long" for one in server.tries):
            continue  # the model's or the program's doing: it may have changed what came after it, or every prompt
        assert outcome["error"] is None, (
            f"{query.query_id} scores 0 for the provider's fault: {outcome['error']}"
        )
        assert outcome["ranking"] == undisturbed(drawn.program, query), (
            f"{query.query_id} is ranked otherwise"
        )


def again(drawn: Drawn, server: BadServer, runs: Path) -> None:
    """The same command once more sends nothing."""
    before = len(server.tries)
    with sitting(drawn, server, runs) as (folder, model):
        work(drawn, folder, model)
    assert len(server.tries) == before, "a run that was finished has sent something"


@pytest.fixture(autouse=True)
def a_busy_machine_makes_no_closing_late(monkeypatch):
    monkeypatch.setattr(http_client, "STALE", 60.0)


@pytest.fixture(scope="module")
def undisturbed():
    rankings = Undisturbed()
    for (
        program
    ) in PROGRAMS:  # a first call imports what it needs, which takes longer than a call may
        rankings(program, environment().queries[0])
    return rankings


@pytest.mark.parametrize("block", range(BLOCKS))
def test_a_run_survives_a_random_sequence_of_faults(block, tmp_path, undisturbed):
    seeds = range(block * SEEDS // BLOCKS, (block + 1) * SEEDS // BLOCKS)
    toolbox()  # made once, before threads ask for it
    with ThreadPoolExecutor(AT_ONCE) as pool:
        failures = [
            failure
            for failure in pool.map(lambda seed: failed(seed, tmp_path, undisturbed), seeds)
            if failure
        ]
    assert not failures, "\n".join(failures)


def failed(seed: int, runs: Path, undisturbed: Undisturbed) -> str:
    """Why a seed failed, and how to see it alone; "" if it did not."""
    server = BadServer()
    try:
        check(seed, runs, undisturbed, server)
    except Exception as error:  # noqa: BLE001  # whatever it is, the seed has to be named
        return f"python {Path(__file__).name} {seed}: {type(error).__name__}: {str(error).splitlines()[:1]}"
    finally:
        server.close()
    return ""


def test_the_sequences_have_every_fault_and_every_program_in_them():
    drawn = [Drawn(seed) for seed in range(SEEDS)]
    kinds = Counter(fault.kind for one in drawn for fault in one.faults)
    assert kinds.keys() >= (GOOD | PASSING | REFUSING | OWN).keys() and min(kinds.values()) >= 10
    assert {one.program for one in drawn} == set(PROGRAMS) and {one.workers for one in drawn} == {
        1,
        2,
        3,
        4,
    }


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        server = BadServer()
        try:
            check(int(sys.argv[1]), Path(place), Undisturbed(), server)
        finally:
            for one in server.tries:
                paid = "paid" if one.paid else ""
                again = "sent again" if one.closed_unseen else ""
                told = f"{one.number:4} {one.kind:16} {one.status} {paid}{again} {one.asked[:60]}"
                print(told)  # noqa: T201
