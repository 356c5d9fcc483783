"""OpenEnv's own client against our door: $SEXTANT_OPENENV names a Python that has openenv-core and what we need."""

import os
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT
from rest_client import outcomes, run_in_process, serving
from tool_set_calls import OPTIONS, check_steps

PYTHON = os.environ.get("SEXTANT_OPENENV", "")
pytestmark = pytest.mark.skipif(
    not PYTHON, reason="set SEXTANT_OPENENV to a Python with sextant-search[openenv]"
)
TASK = ("--task", "congress", "--split", "dev")


@pytest.fixture
def serve(tmp_path):
    with serving(
        PYTHON, *TASK, "--openenv", "--runs", tmp_path / "runs", SEXTANT_TOKEN="sesame"
    ) as start:
        yield start


def play(name, port, **more):
    script = Path(__file__).with_name("openenv_agents.py")
    command = [PYTHON, script, name, f"http://agent:sesame@127.0.0.1:{port}"]
    return subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, timeout=300, **more
    ).stdout


def test_a_run_by_openenv_is_that_of_a_program(serve, run, tmp_path):
    ours = run_in_process(run, tmp_path / "ours")
    process, port = serve()
    assert "a client without the token is refused" in play("answer_all", port)
    assert process.wait(60) == 0
    assert outcomes(tmp_path / "runs") == ours


def test_sixty_four_sessions_at_a_time_are_rewarded_each_for_its_own_and_a_further_one_is_refused(
    serve,
):
    _, port = serve("--repeat", "--rewards", "--shaping", "surfaced")
    assert "64 at a time" in play("sixty_four", port)


def test_the_folder_for_the_hub_is_whole_but_for_its_lock():
    command = [
        "-c",
        "import sys; from openenv.cli._validation import validate_multi_mode_deployment as check;",
    ]
    command[-1] += "from pathlib import Path; print(check(Path(sys.argv[1]))[1])"
    found = subprocess.check_output([PYTHON, *command, ROOT / "examples" / "openenv"], text=True)
    assert found.strip() == "[\"Missing uv.lock - run 'uv lock' to generate it\"]"


def test_messages_and_requests_that_make_no_sense_are_answered_in_one_line_and_end_no_session(
    serve,
):
    _, port = serve("--repeat")
    assert "all answered" in play("make_no_sense", port)


def test_each_tool_of_a_set_is_in_the_schema_of_an_action_and_can_be_used(serve, tmp_path):
    process, port = serve("--limit", "1", *OPTIONS)
    assert "each tool was used" in play("use_each_tool", port)
    assert process.wait(60) == 0
    [outcome] = outcomes(tmp_path / "runs").values()
    check_steps(outcome["trace"]["steps"])
