"""Many calls at once: connections to a server, beside those of DSPy's own client, and answers on their way to disk."""

import asyncio
import copy
import json
import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import dspy
import pytest
from openai_server import Failure

from programs import lm, wire
from programs.adapter import Adapter
from programs.journal import Answer, Journal
from programs.multihop import NextSearch, ReadPassages
from programs.passage import Passage
from tools import disk
from tools.errors import RunIncomplete
from tools.records import Usage


def url(server):
    return server.spec.partition("@")[2]


def ours(address):
    return dspy.LM("openai/tiny", cache=False, num_retries=0, temperature=0.0, seed=7, **wire.engines(address, "key"))


def dspys(address):
    """The client that DSPy makes by itself: the reference."""
    options = {"engine": "lm15", "api_base": address, "api_key": "key"}
    return dspy.LM("openai/tiny", cache=False, num_retries=0, temperature=0.0, seed=7, **options)


@pytest.fixture
def answering(server):
    """A server that says yes, and the connections that it was asked for."""
    server.answer = lambda prompt: {"raw": "yes"}
    server.connections = 0
    accept = server._server.get_request

    def counted():
        taken = accept()
        server.connections += 1
        return taken

    server._server.get_request = counted
    return server


def test_calls_one_after_another_go_over_one_connection_and_a_deep_copy_shares_it(answering):
    model = ours(url(answering))
    copied = copy.deepcopy(model)
    assert [one("yes?") for one in (model, model, copied, copied.copy(temperature=1.0))] == [["yes"]] * 4
    assert answering.connections == 1 and len(answering.requests) == 4


def test_calls_at_once_take_one_connection_each_and_keep_it(answering):
    answering.delay = 0.02
    model = ours(url(answering))
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(model, ["yes?"] * 64)) == [["yes"]] * 64
    assert answering.connections <= 8


def test_awaited_calls_keep_their_connections_and_every_event_loop_has_its_own(answering):
    model = copy.deepcopy(ours(url(answering)))

    async def ask():
        return [await model.acall("yes?") for _ in range(4)]

    for loops in (1, 2):
        assert asyncio.run(ask()) == [["yes"]] * 4
        assert answering.connections == loops


def test_the_request_is_the_one_that_dspys_own_client_sends(answering):
    for make in (ours, dspys):
        make(url(answering))("ü </x> \u2028", stop=["."], max_tokens=9)
    first, second = answering.requests
    assert json.dumps(first) == json.dumps(second) and first["seed"] == 7 and first["temperature"] == 0.0
    assert set(answering.authorizations) == {"Bearer key"}


FAILURES = {
    "400": Failure(400, "", "no such thing"),
    "too long": Failure(400, "context_length_exceeded", "maximum context length is 10 tokens"),
    "401": Failure(401, "invalid_api_key"),
    "402": Failure(402),
    "403": Failure(403),
    "404": Failure(404, "model_not_found"),
    "408": Failure(408),
    "quota": Failure(429, "insufficient_quota"),
    "429": Failure(429),
    "429, with a time": Failure(429, retry_after=7),
    "500": Failure(500),
    "503, with a time": Failure(503, retry_after=1.5),
    "reset": ConnectionResetError(),
}


def raised(model):
    with pytest.raises(dspy.LMError) as caught:
        model("yes?")
    error = caught.value
    return type(error), str(error), error.status, error.provider_code, error.retry_after, lm.fault(error)


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES.keys())
def test_a_failure_is_the_error_that_dspys_own_client_makes_of_it(failure, server):
    server.answer = lambda prompt: (_ for _ in ()).throw(failure)
    mine = raised(ours(url(server)))
    assert mine == raised(dspys(url(server))) and len(server.requests) == 2
    assert dspy.LMUnexpectedError not in mine


@pytest.mark.parametrize("page", [b"<html>soon</html>", b'{"id": "x", "choi', b'{"choices": []}', b"\xff\xfe", b"[1]"])
def test_what_is_no_answer_is_the_error_that_dspys_own_client_makes_of_it(page, server):
    server.page = page
    mine = raised(ours(url(server)))
    assert mine == raised(dspys(url(server))) and mine[-1] == "provider", "the query stays owed"


def test_a_server_that_is_not_there_is_the_provider_s_fault():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
    mine = raised(ours(address))
    assert mine[0] is dspy.LMTransportError and mine == raised(dspys(address))


@pytest.mark.parametrize(
    ("finish", "refusal"), [("stop", None), ("length", None), ("content_filter", None), ("stop", "I won't")]
)
def test_why_an_answer_ended_and_what_it_used_is_as_with_dspys_own_client(finish, refusal, server):
    fields = {"raw": "" if refusal else "yes", "finish": finish, "refusal": refusal}
    server.answer = lambda prompt: fields
    reply = server.reply
    details = {"prompt_tokens_details": {"cached_tokens": 1}, "completion_tokens_details": {"reasoning_tokens": 1}}
    server.reply = lambda path, body: (answer := reply(path, body)) | {"usage": answer["usage"] | details}
    seen = []
    for make in (ours, dspys):
        with dspy.track_usage() as tracker:
            model = make(url(server))
            outputs = model("is it yes?")
        response = model.history[-1]["response"]
        seen.append((outputs, response.finish_reason, response.message.parts, tracker.usage_data))
    assert seen[0] == seen[1]
    assert seen[0][3]["openai/tiny"][0]["prompt_tokens_details"]["cached_tokens"] == 1


@pytest.mark.parametrize("signature", [NextSearch, ReadPassages, NextSearch.with_instructions("Search.")])
def test_a_prompt_is_the_one_that_dspys_own_adapter_writes(signature):
    inputs = {
        "objective": "hearings",
        "description": "a ferry",
        "notes": ["one"],
        "passages": [Passage(id="d1", text="ferry")],
    }
    assert Adapter().format(signature, [], inputs) == dspy.ChatAdapter().format(signature, [], inputs)


def test_no_price_is_looked_up_for_a_server_of_ones_own(answering, monkeypatch):
    looked = []
    monkeypatch.setattr("dspy.clients.costs.model_info", lambda *about, **more: looked.append(about) or {})
    ours(url(answering))("yes?")
    assert not looked, "that is two passes through a whole table, 2 ms of CPU, for every answer"


def closing_server(requests):
    """Answers one request on a connection, says that it keeps it, and closes it."""
    listening = socket.create_server(("127.0.0.1", 0))
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "yes"}}
    body = json.dumps({"id": "x", "model": "tiny", "choices": [choice]}).encode()

    def serve():
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:  # the test is over
                return
            with connection, connection.makefile("rb") as reading:
                head = b"".join(iter(reading.readline, b"\r\n")).lower()
                requests.append(reading.read(int(head.partition(b"content-length:")[2].split()[0])))
                connection.sendall(
                    b"HTTP/1.1 200 OK\r\nconnection: keep-alive\r\ncontent-length: %d\r\n\r\n" % len(body)
                )
                connection.sendall(body)

    threading.Thread(target=serve, daemon=True).start()
    return listening


def test_a_connection_that_the_server_closed_between_two_calls_is_replaced_and_nothing_is_paid_twice():
    requests = []
    with closing_server(requests) as listening:
        model = ours(f"http://127.0.0.1:{listening.getsockname()[1]}/v1")
        for number in (1, 2, 3):
            assert model("yes?") == ["yes"] and len(requests) == number, "as many as were asked, and no failure"
            time.sleep(0.05)


def test_thirty_two_calls_at_once_are_at_least_eight_times_as_fast_as_one_at_a_time(answering):
    answering.delay = 0.2
    model = ours(url(answering))
    model("yes?")

    def rate(calls, workers):
        with ThreadPoolExecutor(workers) as pool:
            started = time.perf_counter()
            list(pool.map(model, ["yes?"] * calls))
            return calls / (time.perf_counter() - started)

    assert rate(128, 32) > 8 * rate(5, 1), "both in this run, client and server in one process"


def write(journal, number):
    journal.write("q", f"{number}", Answer([f"answer {number}"], Usage(calls=1)))


def test_answers_that_come_together_are_synced_together_and_each_is_on_disk_when_its_write_returns(
    tmp_path, monkeypatch
):
    path = tmp_path / "calls.jsonl"
    journal, synced, sync = Journal(path), [0], os.fsync

    def slow(descriptor):
        size = path.stat().st_size
        time.sleep(0.01)
        sync(descriptor)
        synced.append(size)

    def one(number):
        write(journal, number)
        safe = path.read_bytes()[: max(synced)].splitlines()
        return any(json.loads(line)["request"] == str(number) for line in safe)

    monkeypatch.setattr(os, "fsync", slow)
    with ThreadPoolExecutor(32) as pool:
        assert all(pool.map(one, range(320)))
    lines = [json.loads(line)["request"] for line in path.read_bytes().splitlines()]
    assert sorted(lines, key=int) == [str(number) for number in range(320)], "each once, and whole"
    assert len(synced) < 100 and journal.usage.calls == Journal(path).usage.calls == 320


def test_a_disk_that_is_full_fails_every_answer_of_the_batch_and_only_those(tmp_path, monkeypatch):
    path = tmp_path / "calls.jsonl"
    journal, append, begun, full = Journal(path), disk.append_line, threading.Event(), threading.Event()

    def fill(path, line):
        begun.set()
        full.wait(5)
        raise OSError(28, "No space left on device")

    def one(number):
        try:
            write(journal, number)
        except RunIncomplete as error:
            return "No space left" in str(error)
        return False

    monkeypatch.setattr(disk, "append_line", fill)
    with ThreadPoolExecutor(8) as pool:
        results = [pool.submit(one, number) for number in range(8)]
        begun.wait(5)
        full.set()
        assert all(result.result() for result in results)
    monkeypatch.setattr(disk, "append_line", append)
    assert journal.usage.calls == 0 and not path.exists()
    write(journal, 8)
    assert [json.loads(line)["request"] for line in path.read_bytes().splitlines()] == ["8"]
