"""The server that misbehaves does what it says, seen by clients that are not ours, and its books say what it did."""

import json
import socket

import httpx
import pytest
from bad_server import (
    GOOD,
    MISSING,
    OWN,
    PASSING,
    REFUSING,
    always,
    closes,
    fields_of,
    fine,
    from_request,
    latency,
    mixed,
    rate_headers,
    refused,
    reset,
    throttled,
    unauthorized,
    usage,
)
from waiting import wait_for

PROMPT = (
    "Your output fields are:\n1. `selected` (list[str]): ids\n2. `observations` (str): what fits\nAll interactions\n\n"
    '[[ ## description ## ]]\nsomething about a harbour ferry\n\n[[ ## passages ## ]]\n[{"id": "A"}, {"id": "B"}]'
)
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": PROMPT}]}
RESPONSES = {"model": "tiny", "input": [{"role": "user", "content": [{"type": "input_text", "text": PROMPT}]}]}


@pytest.fixture
def client(bad):
    with httpx.Client(base_url=bad.url, headers={"authorization": "Bearer sk-x"}, timeout=60, trust_env=False) as made:
        yield made


def ask(client, path="/chat/completions", body=CHAT):
    return client.post(path, json=body)


def test_an_answer_fills_the_fields_by_their_types_and_depends_on_the_prompt_alone(bad, client):
    [first, again] = [ask(client).json() for _ in range(2)]
    assert first == again
    text = first["choices"][0]["message"]["content"]
    assert text.startswith('[[ ## selected ## ]]\n["') and "\n[[ ## observations ## ]]\n" in text
    assert set(json.loads(fields_of(PROMPT)["selected"])) == {"A", "B"}
    assert fields_of(PROMPT.replace("ferry", "pilot")) != fields_of(PROMPT)


def test_both_protocols_carry_the_same_text(bad, client):
    chat, response = ask(client).json(), ask(client, "/responses", RESPONSES).json()
    assert response["output"][0]["content"][0]["text"] == chat["choices"][0]["message"]["content"]
    assert response["usage"]["input_tokens"] == chat["usage"]["prompt_tokens"] > 0


@pytest.mark.parametrize("kind", GOOD)
def test_what_is_fine_reaches_any_client_and_is_paid(kind, bad, client):
    bad.script = always(GOOD[kind])
    undisturbed = [ask(client).json()["choices"] for _ in range(3)]
    assert undisturbed[0] == undisturbed[1] == undisturbed[2]
    assert [one.paid for one in bad.tries] == [True] * 3 and {one.kind for one in bad.tries} == {kind}


@pytest.mark.parametrize("kind", PASSING)
def test_what_is_at_fault_is_no_answer_to_any_client_and_not_paid(kind, bad, client):
    bad.forget([PASSING[kind]])
    client.timeout = 0.2 if kind in ("silent", "stalls", "chunks_stall") else 60
    try:
        reply = ask(client)
        reply.raise_for_status()
        usable = "error" not in reply.json()["choices"][0] and len(reply.content) < 16 << 20
    except (httpx.HTTPError, ValueError, LookupError):
        usable = False
    assert not usable
    assert [one.paid for one in bad.tries] == [False]
    client.timeout = 60
    wait_for(lambda: not bad._refusing.is_set())
    assert ask(client).status_code == 200 and bad.tries[-1].paid


@pytest.mark.parametrize("kind", REFUSING | OWN)
def test_answers_that_are_meant_arrive_as_they_are(kind, bad, client):
    fault = (REFUSING | OWN)[kind]
    bad.script = always(fault)
    reply = ask(client)
    assert reply.status_code == fault.status and bad.tries[0].paid == fault.usable
    assert reply.headers["content-type"] == "application/json" and reply.json()


def test_a_key_is_repeated_where_that_is_wanted(bad, client):
    bad.script = from_request(2, unauthorized(repeats=True))
    assert ask(client).status_code == 200
    assert "sk-x" in ask(client).json()["error"]["message"] and bad.tries[1].key == "Bearer sk-x"


def test_a_wait_is_asked_for_in_each_of_the_three_forms(bad, client):
    bad.forget([throttled(1.5), throttled(2, "date"), throttled(0.25, "ms"), throttled()])
    replies = [ask(client) for _ in range(4)]
    assert [reply.status_code for reply in replies] == [429] * 4
    assert replies[0].headers["retry-after"] == "1.5" and replies[2].headers["retry-after-ms"] == "250"
    assert replies[1].headers["retry-after"].endswith(" GMT") and "retry-after" not in replies[3].headers


def test_rates_are_told_in_headers(bad, client):
    bad.script = always(rate_headers(0, "6m0s"))
    headers = ask(client).headers
    assert (headers["x-ratelimit-remaining-requests"], headers["x-ratelimit-reset-requests"]) == ("0", "6m0s")


def test_usage_is_reported_as_it_is_told(bad, client):
    bad.forget([usage({"prompt_tokens": 10**18}), usage(MISSING), usage(None)])
    answers = [ask(client).json() for _ in range(3)]
    assert answers[0]["usage"] == bad.paid[0].usage == {"prompt_tokens": 10**18}
    assert "usage" not in answers[1] and answers[2]["usage"] is None


def test_connections_are_refused_for_a_while_and_then_taken(bad, client):
    bad.forget([refused(1.0)])
    with pytest.raises(httpx.TransportError):
        ask(client)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", bad.port))
    wait_for(lambda: not bad._refusing.is_set())
    assert ask(client).status_code == 200 and len(bad.tries) == 2


def test_an_old_connection_is_reset_while_new_ones_are_refused(bad):
    with httpx.Client(base_url=bad.url, trust_env=False) as old, httpx.Client(base_url=bad.url, trust_env=False) as new:
        assert ask(old).status_code == 200
        bad.script = lambda number, body: refused(60.0) if number == 2 else fine()
        with pytest.raises(httpx.TransportError):
            ask(new)
        with pytest.raises(httpx.TransportError):
            ask(old)
    assert [one.kind for one in bad.tries] == ["fine", "refused", "refused"]


def test_the_end_of_a_connection_comes_with_the_answer_and_not_after_it(bad):
    bad.script = always(closes())
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(json.dumps(CHAT))}\r\n\r\n"
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", bad.port)) as line:
            line.sendall((head + json.dumps(CHAT)).encode())
            received = b""
            while b"completed ## ]]" not in received or not received.endswith(b"}"):
                received += line.recv(65536)
            line.setblocking(False)
            assert line.recv(1) == b"", "and does not block"


def test_the_books_count_what_is_in_work_and_what_lay_between_tries(bad):
    import threading

    bad.script = always(latency(0.4))
    bodies = [CHAT | {"seed": number} for number in range(8)] + [CHAT | {"seed": 0}]
    with httpx.Client(base_url=bad.url, trust_env=False) as client:
        threads = [threading.Thread(target=ask, args=(client,), kwargs={"body": body}) for body in bodies[:8]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        ask(client, body=bodies[8])
    assert bad.at_once == max(one.in_flight for one in bad.tries) == 8
    assert sorted(len(tries) for tries in bad.by_call().values()) == [1] * 7 + [2]
    assert len(bad.intervals()) == 1 and 0 < bad.intervals()[0] < 0.5
    assert bad.tries[0].ended - bad.tries[0].arrived >= 0.4


def test_a_seed_draws_the_same_faults_again():
    drawn = [[mixed(7)(number, {}).kind for number in range(200)] for _ in range(2)]
    assert drawn[0] == drawn[1] != [mixed(8)(number, {}).kind for number in range(200)]
    assert {*GOOD, *PASSING} - set(drawn[0]) < {*GOOD, *PASSING} and drawn[0].count("fine") > 80


def test_a_reset_is_one(bad):
    bad.script = always(reset())
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(json.dumps(CHAT))}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", bad.port)) as line:
        line.sendall((head + json.dumps(CHAT)).encode())
        with pytest.raises(ConnectionResetError):
            line.recv(1)
