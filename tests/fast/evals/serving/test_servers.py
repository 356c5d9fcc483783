"""Requests in the forms that HTTP and its clients have, at the doors for REST and MCP."""

import gzip
import http.client
import json
import random
import re
import sys

import pytest
from rest_client import opened

pytest.importorskip("fastapi")
pytest.importorskip("mcp")

from starlette.applications import Starlette

from sextant.evals import serve
from sextant.evals.serving import mcp, rest, web_auth
from sextant.evals.serving.episode import TOOLS
from sextant.evals.serving.messages import NoMessage, read_message

HELLO = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "x", "version": "1"},
}
INITIALIZE = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO}
DOORS = {"rest": ("/sessions", {}, "query_id"), "mcp": ("/mcp", INITIALIZE, "serverInfo")}


def ask(port, path, body=b"", method="POST", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    usual = {"Content-Type": "application/json", "Accept": "application/json"}
    sent = usual | {name.replace("_", "-"): value for name, value in headers.items()}
    connection.putrequest(method, path, skip_host="Host" in sent)
    for name, value in sent.items():
        if value is not None:
            connection.putheader(name, value)
    chunks = not isinstance(body, bytes)
    if chunks:
        connection.putheader("Transfer-Encoding", "chunked")
    elif "Content-Length" not in sent:
        connection.putheader("Content-Length", str(len(body)))
    connection.endheaders(body, encode_chunked=chunks)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


@pytest.fixture(params=DOORS)
def door(request, tmp_path):
    """The port of a door, where something is posted there, its body, and what the answer has."""

    def serve_mcp(host, place):
        door = mcp.McpServer(mcp.McpSessions(host))
        servers.append(door.web(place))
        return Starlette()  # which is served beside it, and answers nothing

    servers = []
    application = rest.application if request.param == "rest" else serve_mcp
    with opened(application, tmp_path) as (port, host):
        host.repeat = True
        yield servers[0].port if servers else port, *DOORS[request.param]
    for server in servers:
        server.stop()


def test_a_request_may_come_in_chunks_up_to_the_bound_of_every_request(door):
    port, path, message, expected = door
    body = json.dumps(message).encode()
    status, answer = ask(port, path, iter([body[:1], body[1:]]))
    assert status == 200 and expected in answer
    blanks = b" " * (web_auth.MOST_BYTES - len(body))
    status, answer = ask(port, path, iter([blanks, body]))
    assert status == 200 and expected in answer
    assert ask(port, path, iter([blanks, b" ", body]))[0] == 413
    assert ask(port, path, blanks + b" " + body)[0] == 413
    assert ask(port, path, body)[0] == 200, "others go on"


# What clients leave out, or write otherwise.
ODD_HEADERS = [
    {"Content_Type": None},
    {"Content_Type": "Application/JSON; charset=UTF-8"},
    {"Accept": None},
    {"Accept": "*/*"},
    {"Accept": "application/json, text/event-stream"},
    {"Host": "LOCALHOST"},
    {"Host": ""},
    {"Host": "[::1]:80"},
]
REFUSED = [
    (415, {"Content_Encoding": "gzip"}),
    (421, {"Host": "evil.example"}),
    *(
        (421, {"Host": host})
        for host in (
            "127.0.0.1:80.evil.com",
            "localhost:evil",
            "127.0.0.1:99999",
            "localhost:80:80",
        )
    ),
    (403, {"Origin": "http://[evil"}),
    (403, {"Origin": "http://[", "Host": ""}),
    (403, {"Origin": "ftp://localhost", "Host": "localhost"}),
    (403, {"Origin": "http://localhost/path", "Host": "localhost"}),
    (403, {"Origin": "null"}),
]


def test_odd_headers_and_paths_do_no_harm_and_what_is_refused_is_told_why_in_one_line(door):
    port, path, message, expected = door
    body = json.dumps(message).encode()
    for headers in ODD_HEADERS:
        for written in (path, f"{path}/"):
            status, answer = ask(port, written, body, **headers)
            assert status == 200 and expected in answer, headers
    for expected_status, headers in REFUSED:
        status, answer = ask(
            port, path, gzip.compress(body) if expected_status == 415 else body, **headers
        )
        assert status == expected_status and json.loads(answer)["error"], headers


def test_rest_reads_json_of_any_type_and_refuses_the_rest_in_one_line(tmp_path):
    with opened(rest.application, tmp_path) as (port, _):
        status, answer = ask(
            port, "/sessions", json.dumps({"queryId": None}).encode(), Content_Type="text/plain"
        )
        session = json.loads(answer)["session"]
        assert status == 200
        sent = json.dumps({"query": "gas bill", "k": "1", "own": 1}).encode()
        seen = json.loads(
            ask(port, f"/sessions/{session}/search", sent, Content_Type="application/octet-stream")[
                1
            ]
        )
        assert len(seen["result"]) == 1 and seen["ignored"] == ["own"]
        assert ask(port, "/", method="HEAD") == (200, "")
        for path, body in (
            ("/sessions", b"{"),
            ("/sessions", b"[1]"),
            ("/retrieve", b'{"queries": [{}]}'),
        ):
            status, answer = ask(port, path, body)
            refused = 400 if body == b"{" else 422
            assert status == refused and isinstance(json.loads(answer)["error"], str)
        status, answer = ask(port, "/v1/congress/search?query=x&hits=many", method="GET")
        assert status == 422 and json.loads(answer)["error"].startswith("hits: ")


# Values that JSON or Python's reader of it has, and that are none of what a tool takes.
ODD_VALUES = [
    *(
        "NaN",
        "Infinity",
        "-1e999",
        "1" * 400,
        "1" * 5000,
        '"\\ud800"',
        '{"\\ud800": "\\udfff"}',
        "null",
        "true",
        '""',
        "{}",
    ),
    *("[" * depth + "]" * depth for depth in (50, 99, 300, 900, 3000)),
    *('{"a":' * depth + "1" + "}" * depth for depth in (99, 900, 3000)),
]
FIELDS = [
    "query_id",
    "query",
    "k",
    "doc_id",
    "chars",
    "doc_ids",
    "text",
    "answer",
    "queries",
    "topk",
    "return_scores",
    "calls",
    "tokens_in",
    "usd",
    "\\ud800",
]


def test_rest_answers_no_request_with_500_whatever_json_it_has(tmp_path):
    with opened(rest.application, tmp_path, rewards=True) as (port, host):
        host.repeat = True
        bodies = [
            *ODD_VALUES,
            *(f'{{"{name}": {value}}}' for name in FIELDS for value in ODD_VALUES),
        ]
        bodies += [f'{{"queries": ["x"], "topk": {value}}}' for value in ODD_VALUES]
        bodies += [f'{{"query": "x", "k": {value}}}' for value in ODD_VALUES]
        status, answer = ask(port, "/sessions", b"{}")
        session = f"/sessions/{json.loads(answer)['session']}"
        paths = [
            "/sessions",
            "/retrieve",
            *(f"{session}/{name}" for name in (*TOOLS[:-1], "usage", "submit")),
        ]
        for path in paths:
            for body in random.Random(path.rpartition("/")[2]).sample(bodies, 60):
                status, answer = ask(port, path, body.encode())
                assert status in (200, 400, 404, 409, 422, 429), (path, body, answer)
                assert status == 200 or "\n" not in json.loads(answer)["error"]
                json.loads(answer).items()


def test_messages_of_mcp_are_read_where_its_sdk_drops_them():
    assert read_message('\ufeff{"jsonrpc": "2.0", "id": 7.0, "method": "ping"}\r\n')["id"] == 7
    assert (
        read_message(b'\xef\xbb\xbf{"jsonrpc": "2.0", "method": "x", "params": null}')["method"]
        == "x"
    )
    for wrong in (
        "[" * 3000,
        '{"a":' * 300 + "1" + "}" * 300,
        "[]",
        "5",
        "{",
        '{"jsonrpc": "2.0", "id": null, "method": "ping"}',
        '{"id": 1, "method": "ping"}',
    ):
        with pytest.raises(NoMessage):
            read_message(wrong)


def test_what_to_paste_into_an_agent_is_printed_with_what_its_door_lacks_here(
    command_of, monkeypatch
):
    monkeypatch.setitem(sys.modules, "mcp", None)  # as where the extra is not installed
    for module in ("mcp.server", "sextant.evals.serving.mcp"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    done = command_of(serve)(
        "--task", "congress", "--split", "dev", "--mcp", "stdio", "--print-config"
    )
    assert done.code == 0 and "mcpServers" in done.out
    assert re.search(
        r"before an agent can come in, it needs the package mcp.*pip install .*\[mcp\]", done.err
    )


def test_bytes_that_are_no_utf_8_are_refused_with_their_place(tmp_path):
    with opened(rest.application, tmp_path) as (port, _):
        body = b'{"queries": ["M\xfcnchen"]}'
        for kind in ("application/json", "application/json; charset=iso-8859-1"):
            status, answer = ask(port, "/retrieve", body, Content_Type=kind)
            assert status == 400 and "byte 0xfc at 15" in answer
        for path in ("/v1/congress/search?query=M%FCnchen", "/v1/M%FCnchen/search?query=x"):
            status, answer = ask(port, path, method="GET")
            assert status == 400 and "byte 0xfc" in answer
        assert ask(port, "/v1/congress/search?query=M%C3%BCnchen", method="GET")[0] == 200


def test_what_cannot_be_done_has_a_status_and_a_wrong_address_says_which_there_are(tmp_path):
    with opened(rest.application, tmp_path) as (port, _):
        _, opening = ask(port, "/sessions", b"{}")
        session = f"/sessions/{json.loads(opening)['session']}"
        status, answer = ask(port, f"{session}/serch", b'{"query": "x"}')
        assert status == 404 and "search, read, select, note, submit" in answer
        status, answer = ask(port, f"{session}/search", method="GET")
        assert status == 405 and "POST search, read" in answer
        status, answer = ask(port, f"{session}/search", b"{}")
        assert status == 422 and "needs query" in json.loads(answer)["result"]["error"]
        assert ask(port, f"{session}/submit", b"{}")[0] == 200
        assert ask(port, f"{session}/search", b'{"query": "x"}')[0] in (404, 409)
