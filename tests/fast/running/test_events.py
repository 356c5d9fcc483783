"""What other programs read of a run while it goes: a JSON object a line, in order, that never holds the run up."""

import dataclasses
import json
import re
import threading
import time
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from evals.running import events
from evals.running.events import EVENTS, Ended, Events, Pending, Resumed, Started, Tally, Waiting, Waits, Watch
from tools.errors import BudgetReached, DataError, ProviderRefused
from tools.models.terms import Status
from tools.records import Usage

ROOT = Path(__file__).parents[3]
BUSY = Status(in_flight=3, limit=4, sent=9, usage=Usage(calls=6, paid_usd=0.25, list_usd=None))
HELD = dataclasses.replace(BUSY, waiting=2, reason="the provider asks to wait (429)", seconds=7.0)
USAGE = {"calls": 2, "paid_usd": 0.1, "list_usd": 0.3}


def outcome(query_id, error=None):
    return {"query_id": query_id, "error": error, "seconds": 1.5, "usage": USAGE}


def told(lines):
    """The events of these lines, without their times."""
    return [{key: value for key, value in json.loads(line).items() if key != "time"} for line in lines]


def test_an_event_is_one_line_with_its_name_its_time_and_its_fields():
    lines = []
    with Events(lines.append) as writer:
        writer.tell(Pending("q\n1", "no\u2028 \ud800 é"))
    assert [line.count("\n") for line in lines] == [1, 1] and all(line.isascii() for line in lines)
    row = json.loads(lines[0])
    assert list(row) == ["event", "time", "query_id", "reason"]
    assert (row["event"], row["query_id"], row["reason"]) == ("owed", "q\n1", "no\u2028 \ud800 é")
    assert datetime.fromisoformat(row["time"]).utcoffset() == timedelta(0)
    assert abs(datetime.fromisoformat(row["time"]).timestamp() - time.time()) < 60


def test_progress_has_the_status_of_the_calls_and_what_is_to_come_and_none_is_null():
    tally = Tally(4, "nDCG@10", [0.5])
    tally.add("a", 1.0, {"paid_usd": 0.25, "list_usd": None}, failed=True)
    row = json.loads(events.line(tally.progress(BUSY, 2.0), 0.0))
    assert row.pop("status") == dataclasses.asdict(BUSY)
    assert row == {
        "event": "progress",
        "time": "1970-01-01T00:00:00.000+00:00",
        "queries": 4,
        "done": 2,
        "failed": 1,
        "owed": 0,
        "metric": "nDCG@10",
        "mean": 0.75,
        "elapsed": 2.0,
        "left": 4.0,
        "to_come": {"paid_usd": 0.5, "list_usd": None},
    }


def test_the_document_shows_every_event_with_every_field():
    text = (ROOT / "docs/decisions/watching.md").read_text(encoding="utf-8")
    shown = [json.loads(line) for line in text.splitlines() if line.startswith('{"event"')]
    table = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", text, re.M))
    assert list(table) == list(EVENTS)
    for name, kind in EVENTS.items():
        rows = [row for row in shown if row["event"] == name]
        assert rows or name == "owed", name
        for row in rows:
            assert list(row) == ["event", "time", *(field.name for field in dataclasses.fields(kind))]


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
    with pytest.raises(type(error)), Events(lines.append) as writer:
        writer.result = {"owed": 3}
        raise error
    assert told(lines) == [{"event": "ended", "code": code, "error": words, "result": {"owed": 3}}]


def test_times_rise_and_nothing_is_lost_with_many_that_tell():
    lines = []
    with Events(lines.append) as writer:

        def tell(name):
            for number in range(500):
                writer.tell(Pending(f"{name}{number}", ""))

        threads = [threading.Thread(target=tell, args=(name,)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    rows = [json.loads(line) for line in lines]
    assert [row["time"] for row in rows] == sorted(row["time"] for row in rows)
    assert {row["query_id"] for row in rows[:-1]} == {f"{name}{number}" for name in "abcd" for number in range(500)}
    assert rows[-1]["event"] == "ended"


def test_a_slow_reader_holds_nothing_up_and_loses_only_progress():
    reading, lines = threading.Event(), []

    def write(line):
        reading.wait(120)
        lines.append(line)

    tally = Tally(4, "nDCG@10")
    with Events(write) as writer:
        for number in range(3000):
            writer.tell(Pending(f"q{number}", ""))
            writer.tell(tally.progress(BUSY, number))
        assert not lines, "nobody has waited for the reader"
        reading.set()
    names = [row["event"] for row in told(lines)]
    assert names.count("owed") == 3000 and 400 < names.count("progress") <= events.BACKLOG


def test_a_full_disk_ends_the_events_and_not_the_run(capsys):
    def write(line):
        raise DataError("the result cannot be printed (full)")

    with Events(write) as writer:
        for number in range(5):
            writer.tell(Pending(f"q{number}", ""))
    assert capsys.readouterr().err == "the result cannot be printed (full): no more events, but the run goes on\n"


def test_waiting_is_told_when_it_is_long_or_has_become_so_and_resuming_after_it():
    waits = Waits()
    other = dataclasses.replace(HELD, reason="budget", seconds=0.0)
    short = dataclasses.replace(HELD, seconds=0.9)
    turns = dataclasses.replace(BUSY, waiting=50)
    scene = [(0, BUSY), (1, HELD), (2, HELD), (3, other), (4, turns), (5, short), (5.9, short), (6.5, short), (9, BUSY)]
    changes = [waits.look(status, now) for now, status in scene]
    assert changes == [
        None,
        Waiting("the provider asks to wait (429)", 7.0, 2),
        None,
        Waiting("budget", None, 2),
        Resumed(3),
        None,
        None,
        Waiting("the provider asks to wait (429)", 0.9, 2),
        Resumed(4),
    ]


def test_a_watch_tells_queries_waits_and_progress_once_a_second():
    lines, now, status = [], [0.0], [BUSY]
    with Events(lines.append) as writer:
        watch = Watch(Tally(3, "nDCG@10"), lambda: status[0], writer.tell, clock=lambda: now[0])

        def after(seconds, new=BUSY):
            now[0], status[0] = now[0] + seconds, new
            watch.look()

        watch.add(outcome("a"), 0.5)
        for _ in range(8):
            after(0.25)
        after(0.25, HELD)
        watch.leave("b", "503")
        after(0.25)
        watch.add(outcome("c", error="E: no"), None)
        watch.look(last=True)
    rows = told(lines)
    names = [row["event"] for row in rows]
    assert names == ["query", "progress", "progress", "waiting", "owed", "resumed", "query", "progress", "ended"]
    assert rows[0] == {
        "event": "query",
        "query_id": "a",
        "error": None,
        "seconds": 1.5,
        "usage": USAGE,
        "metric": "nDCG@10",
        "value": 0.5,
    }
    assert rows[6]["error"] == "E: no" and rows[6]["value"] is None
    last = rows[7]
    assert (last["done"], last["failed"], last["owed"], last["mean"]) == (2, 1, 1, 0.5)
    assert last["to_come"] == {"paid_usd": pytest.approx(0.1), "list_usd": pytest.approx(0.3)}


MULTIHOP = ("--program", "multihop", "--task", "congress", "--split", "dev")


def test_the_command_tells_a_run_from_its_start_to_the_object_that_json_prints(run):
    result = run(*MULTIHOP, "--json-events")
    rows = told(result.out.splitlines())
    assert result.code == 0 and result.err == ""
    names = [row["event"] for row in rows]
    assert names[0] == "started" and names[-1] == "ended" and names[-2] == "progress"
    assert names.count("query") == 12 == rows[0]["queries"] and set(names) <= set(EVENTS)
    assert rows[0].keys() - {"event"} == {field.name for field in dataclasses.fields(Started)}
    assert rows[-1].keys() - {"event"} == {field.name for field in dataclasses.fields(Ended)}
    assert rows[0]["budget"].keys() == {"usd", "tokens", "calls", "seconds"}
    values = [row["value"] for row in rows if row["event"] == "query"]
    assert sum(values) / 12 == pytest.approx(rows[-1]["result"]["metrics"]["nDCG@10"]["mean"])
    again = run(*MULTIHOP, "--json").json
    assert {**again, "seconds": 0, "looks": 0} == {**rows[-1]["result"], "seconds": 0, "looks": 0}
    resumed = told(run(*MULTIHOP, "--json-events").out.splitlines())
    assert [row["event"] for row in resumed] == ["started", "progress", "ended"] and resumed[0]["done"] == 12


def test_the_command_tells_what_ended_it_where_nothing_was_started(run):
    result = run("--program", "multihop", "--task", "congres", "--json-events")
    [row] = told(result.out.splitlines())
    assert (row["event"], row["code"], row["result"]) == ("ended", result.code, None)
    assert result.code == 2 and f"error: {row['error']}\n" == result.err


def test_the_command_tells_what_stays_owed_and_what_was_spent(run):
    result = run(*MULTIHOP, "--json-events", "--budget-calls", "20")
    rows = told(result.out.splitlines())
    assert (rows[-1]["event"], rows[-1]["code"]) == ("ended", 8) == ("ended", result.code)
    assert rows[-1]["error"] in result.err and rows[-1]["result"]["owed"] == 12 - rows[-2]["done"] > 0
    assert rows[-2]["status"]["usage"]["calls"] == 20
