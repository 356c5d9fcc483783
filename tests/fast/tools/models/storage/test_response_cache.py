"""The store of answers: what was paid for survives whatever happens, is paid for once, and the books add up."""

import math
import random
import signal
import sqlite3
import stat
import subprocess
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from contextvars import Context
from pathlib import Path

import dspy
import pytest
from waiting import wait_for

from sextant.tools.errors import DataError, LimitReached, RunIncomplete
from sextant.tools.models import language_model
from sextant.tools.models.call_limits import RetryPolicy
from sextant.tools.models.run_resources import RunResources
from sextant.tools.models.storage import ledger
from sextant.tools.models.storage.ledger import (
    NAME,
    Ledger,
    ModelResponse,
    ResponseCache,
    open_answers,
    open_ledger,
)
from sextant.tools.platform.cli import CommandParser, run_command
from sextant.tools.records import Query, Usage, total, usage_json
from sextant.tools.retrievers.lexical.bm25 import BM25
from sextant.tools.session import Toolbox

ROOT = Path(__file__).parents[5]


def key(number):
    return f"{number:016x}"


def paid(usd=0.5, at_list_price=0.6):
    return Usage(calls=1, input_tokens=100, output_tokens=10, paid_usd=usd, list_usd=at_list_price)


def rows(path, columns="key"):
    """What is in the file, read by SQLite alone."""
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(f"SELECT {columns} FROM calls ORDER BY id").fetchall()


def spoilt(path, column, value):
    """Two answers, of which the first has this in the column."""
    for number in (1, 2):
        Ledger(ResponseCache(path), "run").answered(
            "q", key(number), "tiny", ModelResponse(["first"], paid())
        )
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(f"UPDATE calls SET {column} = ? WHERE key = ?", (value, key(1)))


@pytest.fixture
def path(tmp_path):
    return tmp_path / NAME


def test_a_full_disk_fails_the_answers_that_find_no_room_and_no_others(path):
    answers = ResponseCache(path)
    usage_totals = Ledger(answers, "run")
    usage_totals.answered("q", key(0), "tiny", ModelResponse(["first"], paid()))
    [(pages,)] = answers._writing.writer.execute("PRAGMA page_count").fetchall()
    answers._writing.writer.execute(
        f"PRAGMA max_page_count = {pages + 2}"
    )  # as small as a disk can be

    def one(number):
        try:
            usage_totals.answered(
                "q", key(number), "tiny", ModelResponse(["much " * 20_000], paid())
            )
        except RunIncomplete as error:
            return "full" in str(error) and "make room" in str(error)
        return False

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(one, range(1, 9)))
    assert usage_totals.usage_totals.answered == 1, "what is not safe is not booked"
    answers._writing.writer.execute("PRAGMA max_page_count = 1000000")
    usage_totals.answered("q", key(9), "tiny", ModelResponse(["last"], paid()))
    assert rows(path) == [(key(0),), (key(9),)] and answers.take(key(1)) is None


def test_whatever_a_server_or_a_name_has_for_text_can_be_written_and_is_bounded(path):
    def asked():
        usage_totals = Ledger(ResponseCache(path), "run \udcff")
        with usage_totals.turn("q\ud800", key(1), "tiny\ud800") as found:
            if found is None:
                answer = ModelResponse(["ü \ud800 \u2028"], paid(), "\ud800" + "x" * 10_000)
                usage_totals.answered("q\ud800", key(1), "tiny\ud800", answer)
                usage_totals.book(
                    "tiny", Usage(), fault="\ud800" + "y" * 10_000, query_id="q\ud800", key=key(2)
                )
                usage_totals.answers.settle()
        return found, usage_totals

    (_, first), (found, again) = asked(), asked()
    assert found == ModelResponse(["ü \ud800 \u2028"], paid(), "?" + "x" * 99), (
        "the query's own, whatever its name"
    )
    assert first.usage_totals == again.usage_totals and first.usage_totals.faults == {
        "?" + "y" * 99: 1
    }
    assert [kept for kept, _ in again.answers.of_run(again.run)] == [key(1)]


WRITER = """
import sys, threading
from pathlib import Path
from sextant.tools.models.storage.ledger import ModelResponse, ResponseCache
from sextant.tools.models.storage.ledger import Ledger
from sextant.tools.records import Usage
books = Ledger(ResponseCache(Path(sys.argv[1])), "run")
def write(first):
    for number in range(first, 100_000, 8):
        books.answered("q", f"{number:016x}", "tiny", ModelResponse(["answer " * 50], Usage(calls=1)))
        sys.stdout.write(f"{number:016x}\\n")
        sys.stdout.flush()
for first in range(8):
    threading.Thread(target=write, args=(first,)).start()
"""


@pytest.mark.parametrize("after", [1, 40])
def test_a_killed_process_loses_nothing_that_was_acknowledged(after, path):
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    told = [process.stdout.readline().strip() for _ in range(after)]
    process.send_signal(signal.SIGKILL)
    told += [
        line.strip()
        for line in process.communicate()[0].splitlines(keepends=True)
        if line.endswith("\n")
    ]
    kept = {one for (one,) in rows(path)}
    assert len(told) >= after and set(told) <= kept
    assert len(kept - set(told)) <= 16, (
        "of each of eight threads, one answer on its way and one before it was told"
    )
    answers = ResponseCache(path)
    assert all(answers.take(one)[0].outputs == ["answer " * 50] for one in told)
    assert Ledger(answers, "run").usage_totals.answered == len(kept)


@pytest.mark.parametrize(
    "end", [None, RunIncomplete("owed"), KeyboardInterrupt(), ZeroDivisionError()]
)
def test_however_a_command_ends_its_answers_are_in_the_one_file_and_its_owners_alone(end, tmp_path):
    def command(arguments):
        kept.append(Ledger(open_answers(path), "run"))
        kept[-1].answered("q", key(1), "tiny", ModelResponse(["yes"], paid()))
        if end:
            raise end
        return 0

    path, kept = tmp_path / "runs" / NAME, []
    with suppress(ZeroDivisionError):
        run_command(CommandParser(), command, [])
    assert list(path.parent.iterdir()) == [path] and rows(path) == [(key(1),)]
    assert [stat.S_IMODE(place.stat().st_mode) for place in (path, path.parent)] == [0o600, 0o700]
    assert open_answers(path).take(key(1))[0].outputs == ["yes"], "it can be opened again"


def test_a_command_closes_the_files_that_it_has_opened_and_no_others(tmp_path):
    def command(arguments):
        opened.append(open_answers(tmp_path / "of the command" / NAME))
        return 0

    opened = [open_answers(tmp_path / "before it" / NAME)]
    run_command(CommandParser(), command, [])
    assert [answers.close.alive for answers in opened] == [True, False]


@pytest.mark.parametrize(
    "content",
    [b"no database at all" * 1000, b"SQLite format 3\0" + b"\1" * 5000],
    ids=["text", "head"],
)
def test_a_file_that_is_none_of_ours_is_said_to_be_and_left_alone(content, path):
    path.write_bytes(content)
    with pytest.raises(DataError, match="keep it, as its answers were paid for") as caught:
        ResponseCache(path)
    assert str(path) in str(caught.value) and path.read_bytes() == content


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("outputs", "[5]", f"cache clear --key {key(1)}"),
        ("outputs", "[" * 100_000, f"cache clear --key {key(1)}"),
        ("usage", '{"calls": "x"}', "books of run are damaged"),
    ],
)
def test_a_damaged_cell_is_neither_an_answer_nor_zero_and_it_is_said_what_to_do(
    column, value, said, path
):
    spoilt(path, column, value)
    with pytest.raises(DataError, match=said):
        Ledger(ResponseCache(path), "run")
        ResponseCache(path).take(key(1))


def test_the_books_of_a_run_are_the_sums_of_what_it_sent_whatever_is_in_the_file_beside_it(path):
    rng = random.Random(4)
    answers = ResponseCache(path)
    ledgers, sent = {run: Ledger(answers, run) for run in ("one", "two")}, {"one": [], "two": []}
    for number in range(300):
        run, fault = rng.choice(["one", "two"]), rng.choice(["", "", "429", "timeout"])
        counts = {
            name: rng.randrange(9)
            for name in ("input_tokens", "output_tokens", "unmetered", "reasoning_tokens")
        }
        usage = Usage(
            calls=0 if fault else 1, paid_usd=rng.random(), list_usd=rng.random(), **counts
        )
        sent[run].append((fault, usage))
        if fault:
            ledgers[run].book("tiny", usage, fault=fault, query_id="q", key=key(number))
        else:
            ledgers[run].answered("q", key(number), "tiny", ModelResponse(["yes"], usage))
    answers.write([])  # who waits for nothing waits for all before it
    for run, requests in sent.items():
        used = total(usage for _, usage in requests)
        for usage_totals in (
            ledgers[run].usage_totals,
            Ledger(ResponseCache(path), run).usage_totals,
        ):
            assert usage_totals.sent == len(requests) and usage_totals.answered == sum(
                not fault for fault, _ in requests
            )
            assert usage_totals.faults == {
                kind: sum(fault == kind for fault, _ in requests) for kind in ("429", "timeout")
            }
            assert usage_json(usage_totals.usage) == pytest.approx(usage_json(used))
            assert usage_totals.json()["failed"] == usage_totals.sent - usage_totals.answered


def test_an_answer_of_another_run_is_booked_once_for_each_query_in_however_many_sittings_it_is_asked_for(
    path,
):
    def sitting():
        answers = ResponseCache(path)
        for query_id in ("q1", "q2", "q1"):
            with Ledger(answers, "second").turn(query_id, key(1), "tiny") as answer:
                used.append(answer.usage)
        answers.settle()
        return Ledger(answers, "second").usage_totals

    used = []
    Ledger(ResponseCache(path), "first").answered(
        "q", key(1), "tiny", ModelResponse(["yes"], paid())
    )
    for _ in range(3):
        usage_totals = sitting()
        assert (usage_totals.cached, usage_totals.usage) == (2, Usage(list_usd=1.2)), (
            "of two queries"
        )
    assert (
        len(rows(path)) == 3 and Ledger(ResponseCache(path), "second").usage_totals == usage_totals
    )
    assert len(used) == 9 and {usage.cached_calls for usage in used} == {1}, (
        "what a query is told stays the same"
    )


def test_of_runs_side_by_side_that_paid_for_the_same_each_has_its_own_answer_ever_after(path):
    side_by_side = {run: ResponseCache(path) for run in ("first", "second")}
    for run, kept in side_by_side.items():
        Ledger(kept, run).answered("q", key(1), "tiny", ModelResponse([f"of {run}"], paid()))
    for run in side_by_side:
        again = ResponseCache(path)
        assert [(key(1), [f"of {run}"])] == [
            (one, answer.outputs) for one, answer in again.of_run(run)
        ]
        with Ledger(again, run).turn("q", key(1), "tiny") as answer:
            assert answer.outputs == [f"of {run}"] and answer.usage == paid()
        with Ledger(again, run).turn("another", key(1), "tiny") as answer:
            assert answer.outputs == [f"of {run}"] and answer.usage.cached_calls == 1
    with Ledger(again, "third").turn("q", key(1), "tiny") as answer:
        assert answer.outputs == ["of first"]


def test_a_run_whose_folder_was_removed_and_made_anew_is_another_run(place):
    first = open_ledger(place).run
    assert open_ledger(place).run == first
    (place / "run-id").unlink()
    assert open_ledger(place).run != first and open_ledger(place).run.startswith("task/run/")


def test_the_same_request_at_once_is_sent_once_and_the_others_wait_for_its_answer(path):
    usage_totals, sent = Ledger(ResponseCache(path), "run"), []

    def ask(number):
        with usage_totals.turn(f"q{number}", key(number % 2), "tiny") as found:
            if found is None:
                sent.append(number)
                time.sleep(0.05)
                found = ModelResponse([f"answer {number % 2}"], paid())
                usage_totals.answered(f"q{number}", key(number % 2), "tiny", found)
        return found

    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(ask, range(16)))
    assert len(sent) == 2 and [one.outputs for one in found] == [
        [f"answer {number % 2}"] for number in range(16)
    ]
    assert sum(one.usage.paid_usd for one in found) == 1.0, "who waited pays nothing"
    assert (usage_totals.usage_totals.sent, usage_totals.usage_totals.cached) == (2, 14)


def asked_at_once(usage_totals, error, *, deadline=math.inf):
    """What came of five equal requests, and how many were sent. The first fails once the four others wait for it."""
    sent = []

    def waiting():
        awaited = usage_totals._sent[key(1)]
        return len(awaited._condition._waiters) if awaited else 0

    def ask(number):
        with usage_totals.turn(f"q{number}", key(1), "tiny", deadline=deadline) as found:
            if found is None:
                sent.append(number)
                if len(sent) == 1:
                    wait_for(lambda: waiting() == 4)
                    raise error
                found = ModelResponse(["yes"], paid())
                usage_totals.answered(f"q{number}", key(1), "tiny", found)
        return found

    with ThreadPoolExecutor(5) as pool:
        asked = [pool.submit(ask, number) for number in range(5)]
    return [one.exception() or one.result().outputs for one in asked], len(sent)


def test_when_the_one_that_was_sent_fails_all_who_wait_for_it_fail_with_it_and_who_asks_later_is_sent(
    path,
):
    usage_totals, error = Ledger(ResponseCache(path), "run"), ConnectionError("gone")
    assert asked_at_once(usage_totals, error) == ([error] * 5, 1)
    assert len(traceback.extract_tb(error.__traceback__)) < 12, "of one thread, not of all"
    with usage_totals.turn("q", key(1), "tiny") as found:
        assert found is None


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (LimitReached("all calls"), math.inf),
        (dspy.LMTimeoutError("time is up"), 600.0),
        (KeyboardInterrupt(), math.inf),
    ],
    ids=["a limit of its session", "little time left", "a stop"],
)
def test_what_ended_the_one_that_was_sent_alone_ends_nobody_who_waits_and_the_next_one_is_sent(
    error, seconds, path, monkeypatch
):
    monkeypatch.setattr(ledger, "_SHORT", 1200.0)  # so that the test may take its time
    found, sent = asked_at_once(
        Ledger(ResponseCache(path), "run"), error, deadline=time.monotonic() + seconds
    )
    assert sent == 2 and found.count(error) == 1 and found.count(["yes"]) == 4


def test_nobody_waits_for_an_equal_request_beyond_the_deadline_of_its_own_query(path):
    usage_totals = Ledger(ResponseCache(path), "run")
    with usage_totals.turn("slow", key(1), "tiny"), ThreadPoolExecutor(1) as pool:

        def ask():
            with usage_totals.turn("q", key(1), "tiny", deadline=time.monotonic() + 0.05):
                pass

        with pytest.raises(TimeoutError, match="not answered yet"):
            pool.submit(ask).result(120)
        assert usage_totals._sent.keys() == {key(1)}, "it is still the other's"


def asked(corpus, model, times, query_id="q1"):
    """The answers to one prompt, asked several times in one session."""
    Toolbox(corpus, BM25(corpus)).open(Query(query_id, "blue blood"))
    return [model.lm("A colour?")[0] for _ in range(times)]


def test_samples_of_one_prompt_are_different_answers_and_come_back_in_their_order(
    server, corpus, place
):
    server.answer = lambda prompt: {"raw": f"answer {len(server.requests)}"}
    first = language_model.connect(server.spec)
    first.begin(place, Usage())
    assert asked(corpus, first, 3) == ["answer 1", "answer 2", "answer 3"]
    again = language_model.connect(server.spec)
    again.begin(place, Usage())
    assert (
        asked(corpus, again, 4) == ["answer 1", "answer 2", "answer 3", "answer 4"]
        and len(server.requests) == 4
    )
    assert asked(corpus, again, 2, "q2") == ["answer 1", "answer 2"], (
        "another query asks the same, and pays nothing"
    )
    assert again.resources.usage_totals.cached == 2 and again.resources.usage_totals.sent == 4


NOWHERE = "http://127.0.0.1:9/v1"  # nobody answers there, and the request has its key all the same
TOOL = {"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}
MESSAGES = [{"role": "user", "content": "A colour?"}]


def ask(model):
    return model.lm(messages=MESSAGES)


OTHERWISE = {
    "as it is": ({}, ask),
    "model": ({"spec": f"other@{NOWHERE}"}, ask),
    "server": ({"spec": f"tiny@{NOWHERE.replace('9', '10')}"}, ask),
    **{
        name: ({name: value}, ask)
        for name, value in (("api", "responses"), ("temperature", 0.5), ("seed", 1))
    },
    "effort": ({"reasoning_effort": "low"}, ask),
    "temperature of a call": ({}, lambda model: model.lm(messages=MESSAGES, temperature=0.7)),
    "max_tokens": ({}, lambda model: model.lm(messages=MESSAGES, max_tokens=9)),
    "words": ({}, lambda model: model.lm(messages=[{"role": "user", "content": "A colour!"}])),
    "role": ({}, lambda model: model.lm(messages=[{"role": "system", "content": "A colour?"}])),
    "one more message": ({}, lambda model: model.lm(messages=MESSAGES * 2)),
    "a tool": ({}, lambda model: model.lm.converse(MESSAGES, [TOOL])),
    "rollout": ({}, lambda model: model.lm(messages=MESSAGES, rollout_id=1)),
    "rollout of a copy, as optimizers make them": (
        {},
        lambda model: model.lm.copy(rollout_id=3)(messages=MESSAGES),
    ),
}


def keys_of(place, settings, ask, times=1):
    """The keys under which requests are booked."""
    spec, settings = (
        settings.get("spec", f"tiny@{NOWHERE}"),
        {k: v for k, v in settings.items() if k != "spec"},
    )
    model = language_model.connect(
        spec,
        RunResources(patience=RetryPolicy(attempts=1)),
        settings=language_model.ModelSettings(**settings),
    )
    model.begin(place, Usage())
    for _ in range(times):
        with pytest.raises(dspy.LMError):
            ask(model)
    usage_totals = model.resources.ledger
    usage_totals.answers.write([])
    return [found for (found,) in rows(usage_totals.answers.path)][-times:]


def test_whatever_shapes_an_answer_is_in_the_key_of_its_request(place):
    def all_of_them():  # outside of any session, which counts what it asks
        return {
            name: Context().run(keys_of, place, *otherwise)[0]
            for name, otherwise in OTHERWISE.items()
        }

    keys = all_of_them()
    assert not [
        (one, other) for one in keys for other in keys if one < other and keys[one] == keys[other]
    ]
    assert all_of_them() == keys


def test_the_second_time_that_a_session_asks_is_another_request_and_an_optimizers_second_time_is_not(
    place, corpus
):
    Toolbox(corpus, BM25(corpus)).open(Query("q1", "blue blood"))
    assert len(set(keys_of(place, *OTHERWISE["as it is"], times=3))) == 3

    def repeated(model):
        model.lm.repeats = True
        model.lm(messages=MESSAGES)

    assert len(set(keys_of(place, {}, repeated, times=3))) == 1
