"""Nothing waits for ever: calls that hang, queries whose time is up, programs that hang, and Ctrl-C, once and twice."""

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from bad_server import fine, latency
from run_folders import CONFIG
from waiting import wait_for

from sextant import environments
from sextant.evals import run_folder
from sextant.evals.running import runner
from sextant.programs.query_rewriting import Rewrite
from sextant.tools.models import language_model
from sextant.tools.models.call_limits import ConcurrencyLimiter
from sextant.tools.models.run_resources import RunResources
from sextant.tools.retrievers.lexical.bm25 import BM25
from sextant.tools.session import Toolbox

ROOT = Path(__file__).parents[3]
MINI = environments.load("congress", "mini", "dev")
REWRITE = ("--program", "rewrite", "--task", "congress", "--split", "dev")
MULTIHOP = ("--program", "multihop", "--task", "congress", "--split", "dev")


@pytest.fixture
def system():
    return Rewrite(Toolbox(MINI.documents, BM25(MINI.documents)), depth=20)


def test_a_query_whose_time_is_up_stays_owed_and_the_calls_it_paid_for_are_kept(run, bad):
    bad.script = lambda number, body: latency(0.3)
    arguments = (
        *MULTIHOP,
        "--limit",
        2,
        "-P",
        "hops=4",
        "--lm",
        bad.spec,
        "--max-concurrent",
        2,
        "--json",
    )
    first = run(*arguments, "--query-timeout", "1.4s")
    assert first.code == 7 and first.json["owed"] == 2 and first.json["failed"] == 0, first.err
    cut = sum(not one.paid for one in bad.tries)
    assert len(bad.paid) == first.json["ledger"]["answered"] >= 2
    assert first.json["ledger"]["faults"].get("timeout", 0) == cut <= 2, (
        "the call of each query that was in flight"
    )
    bad.script = lambda number, body: fine()
    second = run(*arguments)
    assert second.code == 0 and second.json["usage"]["calls"] == len(bad.paid), (
        "nothing was paid for twice"
    )


class Hanging:
    """A program that hangs with some of its queries, outside of any call."""

    def __init__(self, system, hangs):
        self.system = system
        self.hangs = hangs
        self.until = threading.Event()

    def __call__(self, *, query):
        if query.query_id in self.hangs:
            self.until.wait(30.0)
        return self.system(query=query)


def sitting(tmp_path, system, queries, model, **more):
    """One sitting of a run: the fault it ended with, what is recorded, and who is owed."""
    owed = {}
    with run_folder.claim(tmp_path / "runs" / "task" / "run", CONFIG) as folder:
        model.begin(folder.path, folder.usage)
        problem = runner.run_queries(
            system,
            queries,
            MINI.documents,
            folder,
            model,
            hooks=runner.QueryHooks(pending=owed.__setitem__),
            **more,
        )
        return problem, dict(folder.outcomes), owed


def test_a_program_that_hangs_outside_of_calls_is_given_up_and_the_others_finish(
    tmp_path, system, bad, monkeypatch
):
    monkeypatch.setattr(runner, "GRACE", 0.2)
    queries = MINI.queries
    hanging = Hanging(system, {queries[0].query_id, queries[5].query_id})
    model = language_model.connect(
        bad.spec, RunResources(limiter=ConcurrencyLimiter(2), query_seconds=2.5)
    )
    try:
        problem, outcomes, owed = sitting(tmp_path, hanging, queries, model, workers=2)
        assert owed.keys() == hanging.hangs and all(
            "longer than 2.5 s" in reason for reason in owed.values()
        )
        assert outcomes.keys() == {query.query_id for query in queries} - hanging.hangs, (
            "with new threads for the two"
        )
        assert problem and all(outcome["error"] is None for outcome in outcomes.values())
        before = sum(one.paid for one in bad.tries)
    finally:
        hanging.until.set()
    time.sleep(0.3)
    on_disk = run_folder.read_outcomes(tmp_path / "runs" / "task" / "run")
    assert on_disk.keys() == outcomes.keys(), (
        "what a thread that was given up hands in later is not taken"
    )
    again = language_model.connect(bad.spec, RunResources(limiter=ConcurrencyLimiter(2)))
    problem, outcomes, owed = sitting(tmp_path, system, queries, again, workers=2)
    assert (problem, owed, len(outcomes)) == (None, {}, len(queries))
    assert sum(one.paid for one in bad.tries) <= before + 2


def start(shell, tmp_path, *arguments, hang_up=signal.SIG_DFL):
    """A run in a process of its own, as a terminal starts it."""

    def at_a_terminal():
        signal.signal(
            signal.SIGINT, signal.SIG_DFL
        )  # these tests may run in a script's background, which ignores it
        signal.signal(signal.SIGHUP, hang_up)

    return subprocess.Popen(
        [*shell, *map(str, arguments), "--runs", str(tmp_path / "runs")],
        cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=at_a_terminal,
    )  # fmt: skip


COMMAND = """
import threading, time, weakref
from sextant.tools.platform.cli import CommandParser, run_and_leave

class Thing:
    pass

def busy(*_):
    print("ready", flush=True)
    ends = time.monotonic() + 0.5
    while time.monotonic() < ends:
        pass

def command(arguments):
    {}
    time.sleep(60)
    return 0

parser = CommandParser()
parser.add_argument("--runs")
run_and_leave(parser, command)
"""
WHERE = {
    "the callback of a weak reference": "thing = Thing(); reference = weakref.ref(thing, busy); del thing",
    "a finalizer": "Thing.__del__ = busy; Thing()",
    "a lock": "lock = threading.Lock(); lock.acquire(); busy(); lock.acquire()",
    "Python": "busy()\n    while True: pass",
    "what catches everything": """busy()
    while True:
        try: time.sleep(60)
        except BaseException: pass""",
}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("where", WHERE)
def test_a_signal_is_heard_wherever_it_lands(where, number, tmp_path):
    process = start([sys.executable, "-c", COMMAND.format(WHERE[where])], tmp_path)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and err == "interrupted\n"


def safe(tmp_path):
    """The outcomes on disk, if there are any; DataError when a line is damaged."""
    paths = list((tmp_path / "runs").rglob("outcomes.jsonl"))
    return run_folder.read_outcomes(paths[0].parent) if paths else {}


def test_ctrl_c_waits_for_what_is_in_flight_and_keeps_its_answers(shell, tmp_path, run, bad):
    bad.script = lambda number, body: fine() if number < 5 else latency(1.2)
    arguments = (*MULTIHOP, "--lm", bad.spec, "--max-concurrent", 6, "--json")
    process = start(shell, tmp_path, *arguments)
    wait_for(lambda: sum(not one.ended and one.kind == "latency" for one in bad._tries) == 6)
    sent = len(bad._tries)
    process.send_signal(signal.SIGINT)
    started = time.monotonic()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and 0.2 < time.monotonic() - started < runner.GRACE + 10.0
    assert "are safe in" in err and "Traceback" not in err
    assert len(bad.tries) == len(bad.paid) == sent, (
        "nothing more was sent, and all of it was answered"
    )
    bad.script = lambda number, body: fine()
    resumed = run(*arguments)
    assert resumed.code == 0 and resumed.json["usage"]["calls"] == len(bad.paid), (
        "nothing was paid for twice"
    )


def test_ctrl_c_twice_ends_at_once_and_leaves_a_sound_folder(shell, tmp_path, run, bad):
    bad.script = lambda number, body: fine() if number < 30 else latency(60.0)
    arguments = (*MULTIHOP, "--lm", bad.spec, "--max-concurrent", 6, "--json")
    process = start(shell, tmp_path, *arguments)
    wait_for(lambda: sum(not one.ended and one.kind == "latency" for one in bad._tries) == 6)
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert process.poll() is None, "the first one waits"
    process.send_signal(signal.SIGINT)
    started = time.monotonic()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and time.monotonic() - started < 2.5, (
        "well before the grace is over"
    )
    assert "Traceback" not in err and err.strip().endswith("interrupted")
    kept = {query_id: outcome["ranking"] for query_id, outcome in safe(tmp_path).items()}
    bad.script = lambda number, body: fine()
    resumed = run(*arguments)
    assert resumed.code == 0 and resumed.json["owed"] == 0
    after = run_folder.read_outcomes(Path(resumed.json["run"]))
    assert (
        kept.items()
        <= {query_id: outcome["ranking"] for query_id, outcome in after.items()}.items()
    )
    paid = json.loads(resumed.out)["usage"]["calls"]
    assert paid <= len(bad.tries) <= paid + 6, "at most what was in flight was asked again"


def test_a_terminal_that_closes_is_one_ctrl_c_however_often_it_tells(shell, tmp_path, bad):
    bad.script = lambda number, body: fine() if number < 5 else latency(1.2)
    process = start(
        shell, tmp_path, *MULTIHOP, "--lm", bad.spec, "--max-concurrent", 6, "--json-events"
    )
    wait_for(lambda: sum(not one.ended and one.kind == "latency" for one in bad._tries) == 6)
    sent = len(bad._tries)
    process.send_signal(signal.SIGHUP)
    time.sleep(0.3)
    process.send_signal(signal.SIGHUP)
    out, err = process.communicate(timeout=60)
    ended = json.loads(out.splitlines()[-1])
    assert process.returncode == 130 and (ended["event"], ended["code"]) == ("ended", 130)
    assert "are safe in" in err and len(bad.tries) == len(bad.paid) == sent, (
        "what was in flight was answered"
    )


def test_a_run_under_nohup_outlives_its_terminal(shell, tmp_path, bad):
    bad.script = lambda number, body: latency(0.2)
    process = start(
        shell, tmp_path, *REWRITE, "--limit", 3, "--lm", bad.spec, hang_up=signal.SIG_IGN
    )
    wait_for(lambda: bad._tries)
    process.send_signal(signal.SIGHUP)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 0 and len(safe(tmp_path)) == 3, err
