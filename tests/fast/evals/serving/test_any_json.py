"""Any JSON that comes in by MCP or OpenEnv gets an answer, or one line that says what is wrong with it."""

import http.client
import json
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rest_client import opened
from test_servers import HELLO, ask

pytest.importorskip("mcp")

import anyio
from starlette.applications import Starlette

from sextant.evals.serving import mcp
from sextant.evals.serving.episode import TOOLS
from sextant.evals.serving.messages import NoMessage, read_message
from sextant.evals.serving.openenv_frames import PATH, TYPES, FrameReader

EXAMPLES = 60
METHODS = [
    "initialize",
    "ping",
    "tools/list",
    "tools/call",
    "resources/list",
    "resources/read",
    "resources/templates/list",
    "resources/subscribe",
    "prompts/list",
    "prompts/get",
    "completion/complete",
    "logging/setLevel",
    "server/discover",
    "notifications/initialized",
    "notifications/cancelled",
    "notifications/progress",
    "tasks/get",
    "unheard/of",
]
ARGUMENTS = ("query", "k", "doc_id", "chars", "doc_ids", "text", "answer")
NAMES = (
    *("name", "arguments", "uri", "_meta", "sextant/usage", "calls", "progressToken", "requestId"),
    *("level", "cursor", "ref", "argument", "capabilities", "clientInfo", "two\nlines", "\ud800"),
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(), max_size=9)
    | st.sampled_from(["\ud800", "sextant://task", "sextant://episode", "search", "5", "[1]"]),
    lambda parts: (
        st.lists(parts, max_size=3)
        | st.dictionaries(st.sampled_from(NAMES + ARGUMENTS), parts, max_size=4)
    ),
    max_leaves=9,
)
OF_TOOLS = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from(["next_query", *TOOLS]) | VALUES,
        "arguments": st.fixed_dictionaries({}, optional=dict.fromkeys(ARGUMENTS, VALUES)) | VALUES,
        "uri": VALUES,
        "_meta": st.fixed_dictionaries({}, optional={"sextant/usage": VALUES}) | VALUES,
    },
)
CALLS = st.fixed_dictionaries(
    {
        "jsonrpc": st.just("2.0"),
        "id": st.integers(0, 9),
        "method": st.sampled_from(METHODS),
        "params": OF_TOOLS | VALUES,
    }
)
MESSAGES = st.fixed_dictionaries(
    {"jsonrpc": st.just("2.0")},
    optional={
        "id": VALUES,
        "method": st.sampled_from(METHODS) | VALUES,
        "params": VALUES,
        "result": VALUES,
        "error": VALUES,
    },
)


def errors_in(answer):
    """The texts of the errors of an answer of the protocol, or of a tool."""
    if "error" in answer:
        return [answer["error"]["message"]]
    texts = [part["text"] for part in answer["result"].get("content", ())]
    parsed = [json.loads(text) for text in texts if text.startswith("{")]
    return [content["error"] for content in parsed if "error" in content]


def test_any_json_at_the_door_for_mcp_is_answered_or_refused_in_one_line(tmp_path):
    servers = []

    def serve_mcp(host, place):
        servers.append(mcp.McpServer(mcp.McpSessions(host)).web(place))
        return Starlette()  # which is served beside it, and answers nothing

    with opened(serve_mcp, tmp_path) as (_, host):
        host.repeat = True
        [server] = servers
        session = open_session(server.port)

        @settings(max_examples=EXAMPLES, deadline=None)
        @given(CALLS | MESSAGES | VALUES)
        def send(message):
            status, text = ask(server.port, "/mcp", json.dumps(message).encode(), **session)
            assert status in (200, 202, 400), text
            if status == 202:
                assert not text
                return
            for error in errors_in(json.loads(text)):
                assert error and "\n" not in error and "Traceback" not in error

        send()
        pinged = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        assert ask(server.port, "/mcp", json.dumps(pinged).encode(), **session)[0] == 200
        server.stop()


def test_a_call_that_does_nothing_is_an_error_to_the_client_and_names_the_tools(tmp_path):
    servers = []

    def serve_mcp(host, place):
        servers.append(mcp.McpServer(mcp.McpSessions(host)).web(place))
        return Starlette()

    with opened(serve_mcp, tmp_path):
        [server] = servers
        session = open_session(server.port)

        def call(tool, **arguments):
            params = {"name": tool, "arguments": arguments}
            message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
            answer = ask(server.port, "/mcp", json.dumps(message).encode(), **session)[1]
            return json.loads(answer)["result"]

        assert call("search", query="a word")["isError"], "no query is open"
        assert not call("next_query")["isError"]
        wrong = call("serch", query="a word")
        assert wrong["isError"] and "there are search, read" in wrong["content"][0]["text"]
        assert call("search")["isError"] and not call("search", query="a word")["isError"]
        assert not call("submit", doc_ids=[])["isError"]
        server.stop()


def test_a_line_that_is_no_utf_8_is_refused_and_not_searched_for(tmp_path):
    hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO}
    wrong = '{"jsonrpc": "2.0", "id": 2, "method": "München"}'.encode("latin-1")
    door = ["--task", "congress", "--split", "dev", "--mcp", "stdio"]
    done = subprocess.run(
        [sys.executable, "-m", "sextant.evals.serve", *door, "--runs", tmp_path],
        input=json.dumps(hello).encode() + b"\n" + wrong + b"\n",
        capture_output=True,
        check=False,
        timeout=120,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    [refused] = [answer for answer in answers if "error" in answer]
    assert refused["error"]["message"] == "this is no UTF-8: byte 0xfc at 40"
    assert len(answers) == 2 and refused["id"] is None


def open_session(port):
    """Begin a session; return the headers of its requests."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO}
    sent = {"Content-Type": "application/json", "Accept": "application/json"}
    connection.request("POST", "/mcp", json.dumps(hello), sent)
    answer = connection.getresponse()
    answer.read()
    return {
        "mcp_session_id": answer.headers["mcp-session-id"],
        "mcp_protocol_version": HELLO["protocolVersion"],
    }


@settings(max_examples=EXAMPLES, deadline=None)
@given((MESSAGES | VALUES).map(json.dumps) | st.text(max_size=30) | st.binary(max_size=30))
def test_any_line_is_a_message_or_refused_in_one_line(line):
    try:
        message = read_message(line)
    except NoMessage as refusal:
        assert "\n" not in str(refusal) and refusal.as_answer()["error"]["message"]
    else:
        assert message["jsonrpc"] == "2.0"


FRAMES = (
    st.fixed_dictionaries({"type": st.sampled_from(TYPES) | VALUES}, optional={"data": VALUES})
    | VALUES
).map(json.dumps)
ODD_FRAMES = ["[" * 5000 + "]" * 5000, "1" * 5000, '{"type": "reset", "data": NaN}', "\ufeff{}", ""]


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.lists(FRAMES | st.text(max_size=9) | st.sampled_from(ODD_FRAMES), max_size=4))
def test_a_session_of_openenv_is_given_objects_alone_and_goes_on_after_any_other_message(texts):
    sent = [{"type": "websocket.connect"}]
    for number, text in enumerate(texts):
        form = {"bytes": text.encode("utf-8", "replace")} if number % 2 else {"text": text}
        sent.append({"type": "websocket.receive", **form})
    sent.append({"type": "websocket.receive", "text": '{"type": "state"}'})
    answers = list[str]()
    read = list[str]()

    async def receive():
        return sent.pop(0) if sent else {"type": "websocket.disconnect"}

    async def send(event):
        answers.append(event["text"])

    async def application(scope, receive, send):
        while (event := await receive())["type"] != "websocket.disconnect":
            if event["type"] == "websocket.receive":
                read.append(event["text"])

    anyio.run(FrameReader(application), {"type": "websocket", "path": PATH}, receive, send)
    assert len(answers) + len(read) == len(texts) + 1 and read[-1] == '{"type": "state"}'
    for text in read:
        assert json.loads(text)["type"] in TYPES and text.encode()
    for answer in map(json.loads, answers):
        assert answer["type"] == "error" and "\n" not in answer["data"]["message"]
