"""The speed of a server: a median of its answers, kept between commands, and followed by the time of a call."""

import json

import pytest

from sextant.tools.models.call_limits import UNKNOWN, RetryPolicy, Speed, SpeedMeter, read_speeds
from sextant.tools.models.client import ModelClient
from sextant.tools.models.run_resources import RunResources
from sextant.tools.platform.files import sextant_home
from sextant.tools.records import Usage

SPEC = "tiny@http://localhost:1/v1"


def answer(tokens_in=1000, tokens_out=101, cached=0):
    return Usage(1, 0, tokens_in, tokens_out, 0.0, 0.0, cached_tokens=cached)


def test_cached_tokens_are_not_read_and_the_first_token_is_not_written():
    meter = SpeedMeter()
    meter.add(answer(cached=500), seconds=15.0, first=5.0)
    assert meter.speed == Speed(read=100.0, write=10.0)
    assert meter.speed.seconds(200, 20) == 4.0


def test_a_single_slow_answer_changes_little():
    meter = SpeedMeter()
    for first in (5.0, 5.0, 500.0, 5.0, 5.0):
        meter.add(answer(), seconds=first + 10.0, first=first)
    assert meter.speed.read == 200.0


@pytest.mark.parametrize(
    ("tokens_in", "tokens_out", "first"),
    [(20, 3, 0.1), (1000, 101, None), (1000, 101, 20.0)],
)
def test_what_is_too_short_or_was_not_streamed_measures_nothing(tokens_in, tokens_out, first):
    meter = SpeedMeter()
    meter.add(answer(tokens_in, tokens_out), seconds=10.0, first=first)
    assert meter.speed == UNKNOWN and meter.speed.seconds(1, 1) is None


def test_the_timings_of_a_server_count_before_ours_which_have_the_wait_for_a_slot_in_them():
    timings = {
        "prompt_n": 900,
        "prompt_per_second": 300.0,
        "predicted_n": 50,
        "predicted_per_second": 15.0,
    }
    meter = SpeedMeter()
    meter.add(answer(), seconds=100.0, first=90.0, timings=timings)
    assert meter.speed == Speed(300.0, 15.0)


@pytest.mark.parametrize("timings", [[], {"prompt_n": "900"}, {"prompt_n": 900}, "fast"])
def test_timings_of_another_form_are_no_timings(timings):
    meter = SpeedMeter()
    meter.add(answer(), seconds=15.0, first=5.0, timings=timings)
    assert meter.speed == Speed(200.0, 10.0)


def test_the_next_command_knows_what_was_measured():
    meter = RunResources().meter(SPEC)
    meter.add(answer(), seconds=15.0, first=5.0)
    assert RunResources().meter(SPEC).speed == Speed(200.0, 10.0)
    assert RunResources().meter("other@http://localhost:1/v1").speed == UNKNOWN


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"a": 1}', '{"a": {"read": -1, "write": "x"}}'])
def test_a_damaged_file_of_speeds_is_as_good_as_none(text):
    sextant_home().mkdir(parents=True)
    (sextant_home() / "speeds.json").write_text(text)
    assert read_speeds().get("a", UNKNOWN) == UNKNOWN
    meter = SpeedMeter(SPEC)
    meter.add(answer(), seconds=15.0, first=5.0)
    kept = json.loads((sextant_home() / "speeds.json").read_text())
    assert kept[SPEC] == {"read": 200.0, "write": 10.0}


def client(speed, **policy):
    made = ModelClient("openai/tiny", RunResources(patience=RetryPolicy(**policy)))
    if speed:
        made.meter.add(
            answer(), seconds=1000 / speed.read + 100 / speed.write, first=1000 / speed.read
        )
    return made


def test_a_call_may_take_as_long_as_a_slow_server_needs_which_is_said_once(capsys):
    slow = client(Speed(read=20.0, write=5.0), follows_speed=True)
    # 8,000 bytes are 4,000 tokens at most: 200 s; 4,096 tokens of an answer: 819 s; and half more.
    assert slow._time_limit(8000, 4096) == pytest.approx(1.5 * (200 + 819.2))
    slow._time_limit(8000, 4096)
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "reads 20 and writes 5 tokens a second" in said
    assert "26 minutes" in said and "--call-timeout" in said


@pytest.mark.parametrize(
    ("speed", "follows"),
    [
        (Speed(2000.0, 100.0), True),  # fast
        (None, True),  # not known
        (Speed(20.0, 5.0), False),  # --call-timeout
    ],
)
def test_a_call_has_its_usual_time_everywhere_else(speed, follows, capsys):
    usual = client(speed, follows_speed=follows)
    assert usual._time_limit(8000, 4096) == 600.0 and not capsys.readouterr().err
