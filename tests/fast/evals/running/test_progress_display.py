"""What others see of a run while it goes: events for programs, a table or lines for a person; no price is made up."""

import dataclasses
import io
import json
import re
import threading
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from sextant.evals.running import events
from sextant.evals.running.events import (
    EVENTS,
    EventWriter,
    QueryPending,
    RunEnded,
    RunMonitor,
    Started,
    WaitDetector,
    WaitEnded,
    WaitStarted,
)
from sextant.evals.running.progress_display import LiveProgress, PlainProgress, lay_out, plain_line
from sextant.tools.errors import BudgetReached, DataError, ProviderRefused
from sextant.tools.models.run_resources import CallStats
from sextant.tools.records import Usage

ROOT = Path(__file__).parents[4]
USAGE = Usage(
    calls=1204,
    input_tokens=1_240_000,
    output_tokens=311_000,
    paid_usd=1.23,
    list_usd=1.5,
    cached_calls=311,
)
BUSY = CallStats(in_flight=16, limit=32, sent=1300, failed=4, usage=USAGE)
HELD = replace(BUSY, waiting=8, reason="the provider asks to wait (429)", seconds=12.0)
MULTIHOP = ("--program", "multihop", "--task", "congress", "--split", "dev")


def outcome(query_id="q", error=None, paid=0.1, listed=0.2):
    return {
        "query_id": query_id,
        "error": error,
        "seconds": 1.5,
        "usage": {"paid_usd": paid, "list_usd": listed},
    }


class Scene:
    """A run that is at the moment, and does, what a test says."""

    def __init__(
        self,
        queries=20,
        tell=lambda event, last=False: None,
        earlier=(),
        failed=0,
    ):
        self.now, self.status = 0.0, BUSY
        ready = SimpleNamespace(
            environment=SimpleNamespace(queries=range(queries), metric="nDCG@10"),
            model=SimpleNamespace(resources=SimpleNamespace(status=lambda: self.calls())),
            value=lambda one: one["value"],
        )
        before = {
            at: {"value": value, "error": "it failed" if at < failed else None}
            for at, value in enumerate(earlier)
        }
        folder = SimpleNamespace(outcomes=before)
        self.calls = lambda: self.status
        self.watch = RunMonitor(ready, folder, tell, lambda: self.now)
        self.add, self.leave = self.watch.add, self.watch.leave

    def after(self, seconds, status=BUSY):
        self.now, self.status = self.now + seconds, status
        self.watch.look()

    def progress(self, now, status=BUSY):
        self.now, self.status = now, status
        return self.watch.progress()


@pytest.fixture
def said(capsys):
    """The lines on stderr since it was last asked."""
    return lambda: capsys.readouterr().err.splitlines()


def told(lines):
    """The events of these lines, without their times."""
    return [
        {key: value for key, value in json.loads(line).items() if key != "time"} for line in lines
    ]


def drawn(progress, width, **named):
    text = io.StringIO()
    Console(file=text, width=width).print(lay_out(progress, **named))
    return text.getvalue()


def some(status):
    scene = Scene(120, earlier=[0.5] * 30, failed=2)
    for number in range(8):
        scene.add(outcome(str(number)), 0.5)
    for number in range(2):
        scene.leave(f"pending {number}", "")
    return scene.progress(192.5, status)


def test_an_event_is_one_line_with_its_name_its_time_and_its_fields():
    lines = []
    with EventWriter(lines.append) as writer:
        writer.tell(QueryPending("q\n1", "no\u2028 \ud800 é"))
    assert [line.count("\n") for line in lines] == [1, 1] and all(line.isascii() for line in lines)
    row = json.loads(lines[0])
    assert list(row) == ["event", "time", "query_id", "reason"]
    assert (row["event"], row["query_id"], row["reason"]) == ("owed", "q\n1", "no\u2028 \ud800 é")
    assert datetime.fromisoformat(row["time"]).utcoffset() == timedelta(0)


def test_the_document_shows_every_event_with_every_field():
    text = (ROOT / "docs/guide/see-and-export.md").read_text(encoding="utf-8")
    text = text.partition("\n## Events\n")[2]
    shown = [json.loads(line) for line in text.splitlines() if line.startswith('{"event"')]
    table = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", text, re.M))
    assert list(table) == list(EVENTS)
    for name, kind in EVENTS.items():
        rows = [row for row in shown if row["event"] == name]
        assert rows or name == "owed", name
        for row in rows:
            assert list(row) == [
                "event",
                "time",
                *(field.name for field in dataclasses.fields(kind)),
            ]


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (BudgetReached("the budget\nis used up"), 8, "the budget is used up"),
        (ProviderRefused("no"), 4, "no"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (PermissionError(13, "Permission denied"), 3, "[Errno 13] Permission denied"),
        (ZeroDivisionError("oh"), 1, "oh"),
    ],
)
def test_the_end_is_told_with_its_exit_code_whatever_ends_it(error, code, words):
    lines = []
    with pytest.raises(type(error)), EventWriter(lines.append) as writer:
        writer.result = {"owed": 3}
        raise error
    assert told(lines) == [{"event": "ended", "code": code, "error": words, "result": {"owed": 3}}]


def test_a_slow_reader_holds_nothing_up_and_loses_only_progress():
    reading, lines, scene = threading.Event(), [], Scene(4)

    def write(line):
        reading.wait(120)
        lines.append(line)

    with EventWriter(write) as writer:
        for number in range(3000):
            writer.tell(QueryPending(f"q{number}", ""))
            writer.tell(scene.progress(number))
        assert not lines, "nobody has waited for the reader"
        reading.set()
    names = [row["event"] for row in told(lines)]
    assert names.count("owed") == 3000 and 400 < names.count("progress") <= events.BACKLOG


def test_a_full_disk_ends_the_events_and_not_the_run(capsys):
    def write(line):
        raise DataError("the result cannot be printed (full)")

    with EventWriter(write) as writer:
        for number in range(5):
            writer.tell(QueryPending(f"q{number}", ""))
    assert (
        capsys.readouterr().err
        == "the result cannot be printed (full): no more events, but the run goes on\n"
    )


def test_waiting_is_told_when_it_is_long_or_has_become_so_and_resuming_after_it():
    waits = WaitDetector()
    other = replace(HELD, reason="budget", seconds=0.0)
    short = replace(HELD, seconds=0.9)
    turns = replace(BUSY, waiting=50)
    scene = [
        (0, BUSY),
        (1, HELD),
        (2, HELD),
        (3, other),
        (4, turns),
        (5, short),
        (5.9, short),
        (6.5, short),
        (9, BUSY),
    ]
    changes = [waits.look(status, now) for now, status in scene]
    assert {place: change for place, change in enumerate(changes) if change} == {
        1: WaitStarted("the provider asks to wait (429)", 12.0, 8),
        3: WaitStarted("budget", None, 8),
        4: WaitEnded(3),
        7: WaitStarted("the provider asks to wait (429)", 0.9, 8),
        8: WaitEnded(4),
    }


def test_a_watch_tells_queries_waits_and_progress_once_a_second():
    lines = []
    with EventWriter(lines.append) as writer:
        scene = Scene(3, writer.tell)
        scene.add(outcome("a", listed=0.3), 0.5)
        for _ in range(8):
            scene.after(0.25)
        scene.after(0.25, HELD)
        scene.leave("b", "503")
        scene.leave("c", "503")
        scene.after(0.25)
        scene.add(outcome("c", error="E: no", listed=0.3), None)  # which is pending no more
        scene.watch.look(last=True)
    rows = told(lines)
    names = " ".join(row["event"] for row in rows)
    assert names == "query progress progress waiting owed owed resumed query progress ended"
    usage = {"paid_usd": 0.1, "list_usd": 0.3}
    first = {"event": "query", "query_id": "a", "error": None, "seconds": 1.5, "usage": usage}
    assert rows[0] == first | {"metric": "nDCG@10", "value": 0.5}
    assert rows[7]["error"] == "E: no" and rows[7]["value"] is None
    last = rows[8]
    assert (last["done"], last["failed"], last["owed"], last["mean"]) == (2, 1, 1, 0.5)
    assert last["to_come"] == {"paid_usd": pytest.approx(0.1), "list_usd": pytest.approx(0.3)}


def test_the_command_tells_a_run_from_its_start_to_the_object_that_json_prints(run):
    result = run(*MULTIHOP, "--json-events")
    rows = told(result.out.splitlines())
    assert result.code == 0 and result.err == ""
    names = [row["event"] for row in rows]
    assert names[0] == "started" and names[-1] == "ended" and names[-2] == "progress"
    assert names.count("query") == 12 == rows[0]["queries"] and set(names) <= set(EVENTS)
    requests = [row["status"]["usage"] for row in rows if row["event"] == "progress"]
    assert requests[-1]["calls"] > 0 and not any("repairs" in usage for usage in requests)
    assert rows[0].keys() - {"event"} == {field.name for field in dataclasses.fields(Started)}
    assert rows[-1].keys() - {"event"} == {field.name for field in dataclasses.fields(RunEnded)}
    assert rows[0]["budget"].keys() == {"usd", "tokens", "calls", "seconds"}
    values = [row["value"] for row in rows if row["event"] == "query"]
    assert sum(values) / 12 == pytest.approx(rows[-1]["result"]["metrics"]["nDCG@10"]["mean"])
    again = run(*MULTIHOP, "--json").json
    assert {**again, "seconds": 0, "looks": 0} == {**rows[-1]["result"], "seconds": 0, "looks": 0}
    resumed = told(run(*MULTIHOP, "--json-events").out.splitlines())
    assert [row["event"] for row in resumed] == ["started", "progress", "ended"] and resumed[0][
        "done"
    ] == 12


def test_the_command_tells_what_ended_it_where_nothing_was_started(run):
    result = run("--program", "multihop", "--task", "congres", "--json-events")
    [row] = told(result.out.splitlines())
    assert (row["event"], row["code"], row["result"]) == ("ended", result.code, None)
    assert result.code == 2 and f"error: {row['error']}\n" == result.err


def test_the_command_tells_what_stays_owed_and_what_was_spent(run):
    result = run(*MULTIHOP, "--json-events", "--budget-calls", "20")
    rows = told(result.out.splitlines())
    assert (rows[-1]["event"], rows[-1]["code"]) == ("ended", 8) == ("ended", result.code)
    assert (
        rows[-1]["error"] in result.err and rows[-1]["result"]["owed"] == 12 - rows[-2]["done"] > 0
    )
    assert rows[-2]["status"]["usage"]["calls"] == 20


def test_a_terminal_says_all_that_there_is_to_know_at_80_characters():
    *lines, last = drawn(some(HELD), 80, waits=True).splitlines()
    assert max(map(len, lines)) <= 80 and len(lines) == 3
    assert " ".join(lines).split() == plain_line(some(HELD)).split()
    for expected in (
        "38/120 queries",
        "1204 calls (311 cached",
        "16 of 32 in flight",
        "$8.20 to come",
        "4 failed",
    ):
        assert expected in plain_line(some(HELD)), expected
    assert last == "waiting 12 s: the provider asks to wait (429); 8 calls wait"


@pytest.mark.parametrize("width", [1, 7, 20, 33, 47, 64, 79, 200])
def test_no_line_is_wider_than_the_terminal(width):
    long = replace(HELD, reason="x" * 300, usage=replace(USAGE, paid_usd=12_345.6, list_usd=None))
    assert max(map(len, drawn(some(long), width, waits=True).splitlines())) <= width


def test_what_is_to_come_is_the_mean_of_this_sittings_queries_times_those_not_done():
    scene = Scene(10, earlier=[0.5, None, 0.7])
    assert scene.progress(1.0).to_come.paid_usd is None, "of nothing, nothing is known"
    for query_id, paid, listed in (("a", 0.10, 0.20), ("b", 0.30, 0.30), ("c", 0.0, 0.10)):
        scene.add(outcome(query_id, paid=paid, listed=listed), None)
    progress = scene.progress(30.0)
    assert progress.to_come.paid_usd == pytest.approx(0.40 / 3 * 4)
    assert progress.to_come.list_usd == pytest.approx(0.60 / 3 * 4)
    assert progress.left == pytest.approx(30 / 3 * 4) and progress.mean == pytest.approx(0.6)
    assert Scene(3, earlier=[0.5] * 3).progress(1.0).to_come.paid_usd == 0.0


def test_a_price_that_is_not_known_is_called_so_and_never_0():
    scene = Scene(10)
    for query_id, paid in (("a", 0.5), ("b", None), ("c", 0.5)):
        scene.add(outcome(query_id, paid=paid, listed=paid), 0.5)
    progress = scene.progress(
        1.0, replace(BUSY, usage=replace(USAGE, paid_usd=None, list_usd=None))
    )
    assert (progress.to_come.paid_usd, progress.to_come.list_usd) == (None, None)
    for text in (drawn(progress, 80), plain_line(progress)):
        assert "price unknown" in text and "$" not in text
    # The run may know its price again, because only an earlier query's is missing: what is to come stays open.
    assert "to come" not in plain_line(scene.progress(1.0))


def test_a_line_is_due_after_a_quarter_of_the_queries_or_five_seconds(said):
    scene = Scene(20, PlainProgress().tell)
    for number in range(1, 21):
        scene.add(outcome(f"q{number}"), 0.5)
        scene.after(0.1)
    assert [line.split()[0] for line in said()] == ["5/20", "10/20", "15/20", "20/20"]

    scene = Scene(1000, PlainProgress().tell)
    for number in range(1, 13):
        scene.add(outcome(f"q{number}", error="E" if number == 3 else None), 0.5)
        scene.after(1.0)
    [first, second] = said()
    assert first.startswith(
        "5/1,000 queries  1 failed  nDCG@10 0.5000 so far  1204 calls (311 cached, 4 failed)"
    )
    assert "16 of 32 in flight  1.2M tokens in, 311k out  $1.23 so far, $99.50 to come" in first
    assert first.endswith("0:05 elapsed  16:35 left") and second.startswith("10/1,000")


def test_a_run_in_which_no_query_ends_says_so_once_a_minute(said):
    scene = Scene(20, PlainProgress().tell)
    for _ in range(4 * 150):
        scene.after(0.25)
    lines = said()
    assert len(lines) == 2 and lines[0].startswith("0/20 queries  1204 calls")


def test_waiting_and_going_on_are_said_at_once_where_it_is_long(said):
    scene = Scene(20, PlainProgress().tell)
    scene.after(0.25, HELD)
    assert said() == ["waiting 12 s: the provider asks to wait (429); 8 calls wait"]
    for _ in range(40):
        scene.after(0.25, replace(HELD, seconds=5.0))
    assert said() == []
    scene.after(
        0.25, replace(HELD, reason="the provider does not answer (500)", waiting=1, seconds=0.0)
    )
    assert said() == ["waiting: the provider does not answer (500); 1 call waits"]
    scene.after(1.5, BUSY)
    assert said() == ["goes on after 0:12"]


def test_the_last_state_is_shown_however_the_block_ends(said):
    scene = Scene(40, PlainProgress().tell)
    with pytest.raises(KeyboardInterrupt), scene.watch:
        scene.add(outcome(), 0.25)
        raise KeyboardInterrupt
    assert said()[-1].startswith("1/40 queries  nDCG@10 0.2500 so far")


def test_a_terminal_that_stands_still_does_not_hold_up_the_run():
    class Held(io.StringIO):
        def write(self, text):
            if "\x1b" in text:
                released.wait(120)
            return super().write(text)

    released = threading.Event()
    console = Console(file=io.StringIO(), force_terminal=True, width=80, height=20)
    scene = Scene(3, LiveProgress(console).tell)
    scene.watch.look()  # it can be written to until here
    console.file = Held()
    with scene.watch as watch:
        pass
    assert watch._thread.is_alive(), "nobody has waited for the terminal"
    released.set()
    watch._thread.join()
    watch.look(last=True)


def test_nothing_is_drawn_once_the_run_has_ended_with_an_error():
    asked, released = threading.Event(), threading.Event()

    def count_calls():
        """Count the calls of the run, which takes longer than the run."""
        if threading.current_thread() is scene.watch._thread:
            asked.set()
            released.wait(120)
        return BUSY

    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80, height=20)
    scene = Scene(3, LiveProgress(console).tell)
    scene.calls = count_calls
    with pytest.raises(BudgetReached), scene.watch as watch:
        asked.wait(120)
        raise BudgetReached("the budget is spent")
    at_the_error = screen.getvalue()
    released.set()
    watch._thread.join()
    assert at_the_error and screen.getvalue() == at_the_error


def test_a_reason_cannot_steer_the_terminal(said):
    evil = replace(HELD, reason="\x1b[2J\x07[red]wait\u202e")
    Scene(20, PlainProgress().tell).after(0.25, evil)
    [line] = said()
    for text in (line, drawn(some(evil), 80, waits=True)):
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text) and "[red]wait" in text
