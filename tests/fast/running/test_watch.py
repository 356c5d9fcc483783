"""What a person sees of a run while it goes: a table on a terminal, lines elsewhere, and never a price made up."""

import io
import re
import threading
from dataclasses import replace

import pytest
from rich.console import Console

from evals.running.events import Tally, Watch
from evals.running.watch import Lines, LiveTable, plain_line, table
from tools.models.terms import Status
from tools.records import Usage

USAGE = Usage(calls=1204, input_tokens=1_240_000, output_tokens=311_000, paid_usd=1.23, list_usd=1.5, cached_calls=311)
BUSY = Status(in_flight=16, limit=32, sent=1300, failed=4, usage=USAGE)
HELD = replace(BUSY, waiting=8, reason="the provider asks to wait (429)", seconds=12.0)


def outcome(query_id="q", error=None):
    return {"query_id": query_id, "error": error, "seconds": 1.0, "usage": {"paid_usd": 0.1, "list_usd": 0.2}}


class Scene:
    """A run that is at the moment, and does, what a test says."""

    def __init__(self, queries=20):
        self.now, self.status = 0.0, BUSY
        tally = Tally(queries, "nDCG@10")
        self.watch = Watch(tally, lambda: self.status, Lines(tally).tell, clock=lambda: self.now)

    def after(self, seconds, status=None):
        self.now += seconds
        self.status = status or self.status
        self.watch.look()


@pytest.fixture
def said(capsys):
    """The lines on stderr since it was last asked."""
    return lambda: capsys.readouterr().err.splitlines()


def drawn(progress, width, **named):
    text = io.StringIO()
    Console(file=text, width=width).print(table(progress, width, **named))
    return text.getvalue()


def some(status):
    tally = Tally(120, "nDCG@10", [0.5] * 30, 2)
    for number in range(8):
        tally.add(str(number), 0.5, outcome()["usage"], failed=False)
    for number in range(2):
        tally.leave(f"owed {number}")
    return tally.progress(status, 192.5)


def test_the_table_says_all_that_there_is_to_know_at_80_characters():
    lines = drawn(some(HELD), 80, waits=True).splitlines()
    assert max(map(len, lines)) <= 80 and len(lines) == 5
    assert lines[0].split("  ")[0] == "queries" and lines[0].split()[-1] == "elapsed"
    for expected in (
        ["38/120", "1204", "16 of 32", "1.2M in", "$1.23 so far", "0.5000", "3:12"],
        ["2 pending", "311 cached", "8 waiting", "311k out", "$8.20 to come", "so far", "32:53 left"],
        ["2 failed", "4 failed", "$1.50 list"],
    ):
        assert re.split(r"  +", lines.pop(1).strip()) == expected
    assert lines.pop() == "waiting 12 s: the provider asks to wait (429); 8 calls wait"


@pytest.mark.parametrize("width", [1, 7, 20, 33, 47, 64, 79, 200])
def test_no_line_is_wider_than_the_terminal(width):
    long = replace(HELD, reason="x" * 300, usage=replace(USAGE, paid_usd=12_345.6, list_usd=None))
    assert max(map(len, drawn(some(long), width, waits=True).splitlines())) <= width


def test_what_is_to_come_is_the_mean_of_this_sittings_queries_times_those_not_done():
    tally = Tally(10, "nDCG@10", [0.5, None, 0.7])
    assert tally.progress(BUSY, 1.0).to_come.paid_usd is None, "of nothing, nothing is known"
    for query_id, paid, listed in (("a", 0.10, 0.20), ("b", 0.30, 0.30), ("c", 0.0, 0.10)):
        tally.add(query_id, None, {"paid_usd": paid, "list_usd": listed}, failed=False)
    progress = tally.progress(BUSY, 30.0)
    assert progress.to_come.paid_usd == pytest.approx(0.40 / 3 * 4)
    assert progress.to_come.list_usd == pytest.approx(0.60 / 3 * 4)
    assert progress.left == pytest.approx(30 / 3 * 4) and progress.mean == pytest.approx(0.6)
    assert Tally(3, "nDCG@10", [0.5] * 3).progress(BUSY, 1.0).to_come.paid_usd == 0.0


def test_a_price_that_is_not_known_is_called_so_and_never_0():
    tally = Tally(10, "nDCG@10")
    tally.add("a", 0.5, {"paid_usd": 0.5, "list_usd": 0.5}, failed=False)
    tally.add("b", 0.5, {"paid_usd": None, "list_usd": None}, failed=False)
    tally.add("c", 0.5, {"paid_usd": 0.5, "list_usd": 0.5}, failed=False)
    unknown = replace(BUSY, usage=replace(USAGE, paid_usd=None, list_usd=None))
    progress = tally.progress(unknown, 1.0)
    assert (progress.to_come.paid_usd, progress.to_come.list_usd) == (None, None)
    for text in (drawn(progress, 80), plain_line(progress)):
        assert "price unknown" in text and "$" not in text
    # The run may know its price again, because only an earlier query's is missing: what is to come stays open.
    assert "to come" not in plain_line(tally.progress(BUSY, 1.0))


def test_an_owed_query_that_is_answered_after_all_is_not_owed():
    tally = Tally(4, "nDCG@10")
    tally.leave("a")
    assert (tally.progress(BUSY, 1.0).owed, tally.ended) == (1, 1)
    tally.add("a", 0.5, outcome()["usage"], failed=True)
    progress = tally.progress(BUSY, 1.0)
    assert (progress.owed, progress.done, progress.failed, tally.ended) == (0, 1, 1, 1)


def test_a_line_is_due_after_a_quarter_of_the_queries_or_five_seconds(said):
    scene = Scene()
    for number in range(1, 21):
        scene.watch.add(outcome(f"q{number}"), 0.5)
        scene.after(0.1)
    assert [line.split()[0] for line in said()] == ["5/20", "10/20", "15/20", "20/20"]

    scene = Scene(queries=1000)
    for number in range(1, 13):
        scene.watch.add(outcome(f"q{number}", error="E" if number == 3 else None), 0.5)
        scene.after(1.0)
    [first, second] = said()
    assert first.startswith("5/1000 queries  1 failed  nDCG@10 0.5000 so far  1204 calls (311 cached, 4 failed)")
    assert "16 of 32 in flight  1.2M tokens in, 311k out  $1.23 so far, $99.50 to come" in first
    assert first.endswith("0:05 elapsed  16:35 left") and second.startswith("10/1000")


def test_a_run_in_which_no_query_ends_says_so_once_a_minute(said):
    scene = Scene()
    for _ in range(4 * 150):
        scene.after(0.25)
    lines = said()
    assert len(lines) == 2 and lines[0].startswith("0/20 queries  1204 calls")


def test_waiting_and_going_on_are_said_at_once_where_it_is_long(said):
    scene = Scene()
    scene.after(0.25, HELD)
    assert said() == ["waiting 12 s: the provider asks to wait (429); 8 calls wait"]
    for _ in range(40):
        scene.after(0.25, replace(HELD, seconds=5.0))
    assert said() == []
    scene.after(0.25, replace(HELD, reason="the provider does not answer (500)", waiting=1, seconds=0.0))
    assert said() == ["waiting: the provider does not answer (500); 1 call waits"]
    scene.after(1.5, BUSY)
    assert said() == ["goes on after 0:12"]


def test_the_last_state_is_shown_however_the_block_ends(said):
    tally = Tally(40, "nDCG@10")
    with pytest.raises(KeyboardInterrupt), Watch(tally, lambda: BUSY, Lines(tally).tell) as watch:
        watch.add(outcome(), 0.25)
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
    watch = Watch(Tally(3, "nDCG@10"), lambda: BUSY, LiveTable(console).tell)
    watch.look()  # it can be written to until here
    console.file = Held()
    for _ in range(3):
        watch.add(outcome(), 0.5)
    with watch:
        pass
    assert watch._thread.is_alive(), "nobody has waited for the terminal"
    released.set()
    watch._thread.join()
    watch.look(last=True)


def test_a_reason_cannot_steer_the_terminal(said):
    evil = replace(HELD, reason="\x1b[2J\x07[red]wait\u202e")
    Scene().after(0.25, evil)
    [line] = said()
    for text in (line, drawn(some(evil), 80, waits=True)):
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text) and "[red]wait" in text
