"""The status of a run in its folder: written while it goes, a sitting when it ends."""

import json
import time
from types import SimpleNamespace

import pytest
from openai_server import Failure, OpenAIServer, fill
from run_folders import run_in
from waiting import wait_for

from sextant.evals import run, run_sittings
from sextant.evals.running import evaluate, run_status
from sextant.evals.running.events import RunMonitor
from sextant.evals.running.request import Request
from sextant.tools.models.run_resources import CallStats
from sextant.tools.platform.cli import run_command
from sextant.tools.records import Usage, usage_json


def sittings(path):
    return [json.loads(line) for line in (path / run_sittings.SITTINGS).open()]


def test_a_finished_run_has_a_sitting_and_no_status(tmp_path):
    path = run_in(tmp_path, "--program", "retrieve", "--task", "congress", "--limit", 3)
    [sitting] = sittings(path)
    assert (sitting["state"], sitting["done"], sitting["queries"]) == ("finished", 3, 3)
    scores = json.loads((path / "scores.json").read_text())
    measured = scores["metrics"][sitting["metric"]]
    assert {key: sitting[key] for key in ("mean", "low", "high")} == {
        key: measured[key] for key in ("mean", "low", "high")
    }
    assert not (path / run_sittings.STATUS).exists()


def test_a_sitting_in_which_nothing_is_asked_is_none(tmp_path, monkeypatch):
    monkeypatch.setenv("SEXTANT_HOME", str(tmp_path / "home"))
    asked = {"program": "retrieve", "task": "congress", "data": "mini", "limit": 3}
    first = evaluate.evaluate(**asked, runs=tmp_path)
    evaluate.evaluate(**asked, runs=tmp_path)
    assert len(sittings(first.folder)) == 1


@pytest.fixture
def refusing(tmp_path, monkeypatch):
    """A run whose model refuses after its first answers."""
    monkeypatch.setenv("SEXTANT_HOME", str(tmp_path / "home"))
    answered = []

    def answer(prompt):
        answered.append(prompt)
        if len(answered) > 3:
            raise Failure(401, "invalid_api_key")
        return fill(prompt)

    server = OpenAIServer(answer)
    words = ["--program", "multihop", "--task", "congress", "--data", "mini", "--limit", "4"]
    words += ["--lm", server.spec, "--runs", str(tmp_path / "runs"), "--max-concurrent", "1"]
    assert run_command(run.parser(), run.command, words) == 4
    server.close()
    [config] = (tmp_path / "runs").rglob("config.json")
    return config.parent


def test_a_refused_run_says_who_refused_it(refusing):
    state = run_status.read_state(refusing)
    assert state is not None
    assert state.name == "refused" and "check the key" in state.reason
    assert not state.is_live


def test_a_status_counts_queries_and_names_those_in_flight(tmp_path):
    stats = CallStats(in_flight=2, limit=4, waiting=1, reason="rate limit")
    environment = SimpleNamespace(queries=["a", "b", "c"], metric="nDCG@10")
    model = SimpleNamespace(resources=SimpleNamespace(status=lambda: stats))
    request = Request(program="multihop", task="math", limit=3)
    resolved = SimpleNamespace(request=request)
    ready = SimpleNamespace(
        environment=environment, model=model, value=lambda outcome: 0.5, resolved=resolved
    )
    folder = SimpleNamespace(path=tmp_path, outcomes={})
    watch = RunMonitor(ready, folder)
    with run_status.RunStatus(ready, folder, watch) as status:
        status.begin("a")
        status.begin("b")
        status.add({"query_id": "a", "error": None, "seconds": 1.0, "usage": usage_json(Usage())})
        written = status.status()
        assert (written["done"], written["failed"]) == (1, 0)
        assert written["command"].endswith("run --program multihop --task math --limit 3")
        assert [one["query_id"] for one in written["in_flight"]] == ["b"]
        assert (written["state"], written["reason"]) == ("waiting", "rate limit")
        wait_for(lambda: json.loads((tmp_path / "status.json").read_text())["done"] == 1)
        assert run_status.read_state(tmp_path).is_live
    state = run_status.read_state(tmp_path, time.time())
    assert state.name == "broke off" and state.status["mean"] == 0.5
