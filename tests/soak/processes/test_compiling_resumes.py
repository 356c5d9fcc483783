"""A compilation that is cut off goes on: the same result as in one sitting, and nothing is paid for twice.

The server counts. A process that is killed loses the answers that were on their way, which are as many as it had
queries at work; everything else is on disk.
"""

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import cache
from pathlib import Path

import pytest
from openai_server import Failure, OpenAIServer, given, ids

from sextant import environments
from sextant.optimizers import compile as module
from sextant.tools.models.call_limits import RetryPolicy
from sextant.tools.platform.cli import run_command

ROOT = Path(__file__).parents[3]
WORKERS = 4
SEED = b"1"  # of the model's answers
DATA = ("--task", "writing", "--data", "mini", "--limit", "8")
BASE = (
    "--program",
    "multihop",
    *DATA,
    "-P",
    "hops=1",
    "-P",
    "per_hop=5",
    "--max-concurrent",
    str(WORKERS),
)
OPTIONS = {
    "bootstrap_rs": ["candidates=2"],
    "gepa": ["evaluations=4"],
    "simba": ["steps=2", "batch=3", "candidates=2"],
    "copro": ["breadth=2", "depth=1"],
}


@cache
def wanted_words():
    """By the text of a query, the words of the documents that it wants."""
    environment = environments.load("writing", "mini", "all")
    qrels = environment.judgements["gold"].qrels
    return {
        query.text: [
            word
            for doc_id in qrels[query.query_id]
            for word in words_of(environment.documents[doc_id].text)
        ]
        for query in environment.queries
    }


def words_of(text):
    return re.findall(r"[a-z]{4,}", text.lower())


def answers(prompt):
    """Every field that is asked for, the same for the same prompt.

    The search has one word of the wanted documents, and more with demonstrations and advice, so that every optimizer
    finds something better than the program before, and has much to ask.
    """
    [first, others] = re.findall(r"starting with the field `\[\[ ## (\w+) ## \]\]`(.*)", prompt)[-1]
    names = [
        first,
        *(name for name in re.findall(r"`\[\[ ## (\w+) ## \]\]`", others) if name != "completed"),
    ]
    return {
        name: answer(name, prompt, random.Random(zlib.crc32(SEED + prompt.encode())))
        for name in names
    }


def answer(name, prompt, rng):
    if name == "search":
        advice = [int(number) for number in re.findall(r"[Aa]dvice (\d+)", prompt)]
        words = wanted_words()[given(prompt, "description")]
        # The field is named twice where it is described, and once more in each demonstration.
        demonstrations = prompt.count("[[ ## search ## ]]") - 2
        length = 1 + 3 * demonstrations + sum(1 + number % 8 for number in advice)
        return " ".join(rng.sample(words, min(len(words), length)))
    if name == "selected":
        shown = ids(prompt.rpartition("[[ ## passages ## ]]")[2])
        return json.dumps(rng.sample(shown, min(2, len(shown))))
    if name == "module_advice":
        return json.dumps(
            {
                f"reader.{one}": f"Advice {rng.randrange(99)}."
                for one in ("next_search", "read_passages")
            }
        )
    return f"{name}: advice {rng.randrange(99)}"


def proposes(prompt):
    return "proposed_instruction" in prompt


def sent(server, key):
    """How many requests came with this key, which tells the processes apart."""
    return server.authorizations.count(f"Bearer {key}")


@pytest.fixture
def server(server):
    server.answer = answers
    return server


def words(server, optimizer, runs, *more):
    options = [word for option in OPTIONS[optimizer] for word in ("-O", option)]
    return [
        *BASE,
        "--lm",
        server.spec,
        "--optimizer",
        optimizer,
        *options,
        "--runs",
        str(runs),
        *map(str, more),
    ]


@pytest.fixture
def compiles(server, tmp_path, capsys, monkeypatch):
    """The command in this process: exit code, what it said, how many requests it made."""

    def command(optimizer, runs, *more, key="here"):
        monkeypatch.setenv("SEXTANT_API_KEY", key)
        capsys.readouterr()
        before = sent(server, key)
        code = run_command(
            module.parser(), module.command, words(server, optimizer, runs, "--json", *more)
        )
        err = capsys.readouterr().err
        return code, err, sent(server, key) - before

    return command


@pytest.fixture
def no_waiting(monkeypatch):
    monkeypatch.setattr(
        "sextant.tools.models.run_resources.PATIENCE", RetryPolicy(first=0.0, before=0.1, after=0.1)
    )


def sent_off(server, optimizer, runs, key, hash_seed):
    """The same in a process of its own."""
    surroundings = os.environ | {"PYTHONHASHSEED": hash_seed, "SEXTANT_API_KEY": key}
    command = [sys.executable, "-m", "sextant.optimizers.compile", *words(server, optimizer, runs)]
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=surroundings,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def cut_off(server, process, key, after, number=signal.SIGKILL):
    """Send a signal after the request number `after`; the exit code, and what was said."""
    while sent(server, key) < after and process.poll() is None:
        time.sleep(0.001)
    process.send_signal(number)
    err = process.communicate(timeout=60)[1]
    return process.returncode, err


def the_folder(runs):
    [folder] = (path.parent for path in runs.glob("compiled/*/*/config.json"))
    return folder


def kept(runs):
    """compiled.json as it is, and learnt.json without the path in it."""
    folder = the_folder(runs)
    return (folder / "compiled.json").read_bytes(), (folder / "learnt.json").read_text().replace(
        str(runs), "RUNS"
    )


@pytest.mark.parametrize(
    "optimizer",
    [pytest.param("bootstrap_rs", marks=pytest.mark.smoke), "gepa", "simba"],
)
def test_a_killed_compilation_ends_as_one_in_one_sitting_and_pays_for_nothing_twice(
    optimizer, server, compiles, tmp_path
):
    code, _, whole = compiles(optimizer, tmp_path / "whole")
    assert code == 0 and whole > 15
    expected = kept(tmp_path / "whole")
    assert json.loads(expected[1])["kept"] == "compiled"

    chance = random.Random(zlib.crc32(optimizer.encode()))
    kills = {"early": chance.randrange(1, whole // 2), "late": chance.randrange(whole // 2, whole)}

    def interrupted(key):
        process = sent_off(server, optimizer, tmp_path / key, key, hash_seed=str(len(key)))
        return cut_off(server, process, key, kills[key])[0]

    with ThreadPoolExecutor() as both:
        assert list(both.map(interrupted, kills)) == [-signal.SIGKILL] * 2
    for key in kills:
        assert not (the_folder(tmp_path / key) / "compiled.json").exists()
        assert compiles(optimizer, tmp_path / key, key=key)[0] == 0
        assert kept(tmp_path / key) == expected
        assert whole <= sent(server, key) <= whole + WORKERS
    assert compiles(optimizer, tmp_path / "early", key="early") == (0, "", 0)
    assert kept(tmp_path / "early") == expected


def slowly(server, slow, until):
    """Answers as ever; those to requests that are `slow`, by their number and prompt, wait for `until`."""

    def answer(prompt):
        if slow(len(server.requests), prompt):
            until()
        return answers(prompt)

    return answer


@pytest.mark.parametrize(
    ("optimizer", "slow"),
    [
        pytest.param(
            "bootstrap_rs", lambda number, prompt: number > 4, id="evaluations, several at a time"
        ),
        pytest.param(
            "bootstrap_rs", lambda number, prompt: number > 10, id="a bootstrap, one at a time"
        ),
        pytest.param(
            "copro", lambda number, prompt: proposes(prompt), id="a writer of instructions"
        ),
    ],
)
def test_ctrl_c_waits_for_what_is_in_flight_and_it_is_not_paid_for_again(
    optimizer, slow, server, compiles, tmp_path
):
    _, _, whole = compiles(optimizer, tmp_path / "whole")
    arrived = threading.Event()
    server.requests.clear()
    server.answer = slowly(server, slow, lambda: (arrived.set(), time.sleep(0.7)))
    process = sent_off(server, optimizer, tmp_path / "cut", "cut", hash_seed="7")
    assert arrived.wait(60)
    process.send_signal(signal.SIGINT)
    err = process.communicate(timeout=60)[1]
    assert process.returncode == 130 and "Traceback" not in err
    assert err.splitlines()[-1] == "interrupted" and "is safe in" in err.splitlines()[-2]
    server.answer = answers
    assert compiles(optimizer, tmp_path / "cut", key="cut")[0] == 0
    assert sent(server, "cut") == whole, "nothing was sent that was not kept"
    assert kept(tmp_path / "cut") == kept(tmp_path / "whole")


def test_a_second_ctrl_c_waits_for_nothing(server, tmp_path):
    arrived, over = threading.Event(), threading.Event()
    server.answer = slowly(
        server, lambda number, prompt: number > 4, lambda: (arrived.set(), over.wait(60))
    )
    process = sent_off(server, "bootstrap_rs", tmp_path, "cut", hash_seed="7")
    assert arrived.wait(60)
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert process.poll() is None, "the first one waits"
    process.send_signal(signal.SIGINT)
    started = time.monotonic()
    err = process.communicate(timeout=60)[1]
    over.set()
    assert process.returncode == 130 and time.monotonic() - started < 2.5, (
        "well before the grace is over"
    )
    assert "Traceback" not in err and err.splitlines()[-1] == "interrupted"


def test_a_budget_stops_before_the_call_that_is_too_many_and_a_larger_one_goes_on(
    compiles, tmp_path
):
    _, _, whole = compiles("bootstrap_rs", tmp_path / "whole")
    code, err, first = compiles("bootstrap_rs", tmp_path / "small", "--budget-calls", 3)
    assert (
        (code, first) == (8, 3)
        and err.count("\n") == 1
        and "there is nothing to choose from yet" in err
    )
    assert not (the_folder(tmp_path / "small") / "compiled.json").exists()
    code, err, second = compiles("bootstrap_rs", tmp_path / "small", "--budget-calls", 13)
    assert (code, second) == (8, 10) and err.count("\n") == 1 and "the best so far is in" in err
    best = json.loads(kept(tmp_path / "small")[0])
    assert best["prompts"].keys() == {"reader.next_search", "reader.read_passages"}
    assert "budget of 13" in json.loads(kept(tmp_path / "small")[1])["stopped"]

    code, err, third = compiles("bootstrap_rs", tmp_path / "small", "--budget-calls", 1000)
    assert (code, err) == (0, "") and first + second + third == whole
    assert kept(tmp_path / "small") == kept(tmp_path / "whole")


# The first asks for so long that nobody waits for it; the second is a gateway's, and says nothing of the text.
OUTAGES = {
    "bootstrap_rs": Failure(503, retry_after=3600),
    "copro": Failure(400, message="reasoning_content is missing"),
}


@pytest.mark.parametrize("optimizer", OUTAGES)
def test_an_outage_ends_it_with_what_is_done_and_the_command_goes_on(
    optimizer, server, compiles, tmp_path, no_waiting
):
    _, _, whole = compiles(optimizer, tmp_path / "whole")
    failed, lock = [], threading.Lock()

    def down(prompt):
        with lock:
            if sent(server, "cut") > 12:
                failed.append(prompt)
                raise OUTAGES[optimizer]
        return answers(prompt)

    server.answer = down
    code, err, _ = compiles(optimizer, tmp_path / "cut", key="cut")
    assert code == 7 and err.count("\n") == 1 and "provider failed" in err
    server.answer = answers
    assert compiles(optimizer, tmp_path / "cut", key="cut")[0] == 0
    assert kept(tmp_path / "cut") == kept(tmp_path / "whole")
    assert sent(server, "cut") - len(failed) == whole


@pytest.mark.parametrize("refused", [lambda prompt: True, proposes])
def test_a_refused_key_ends_it_at_once(refused, server, compiles, tmp_path):
    def refuses(prompt):
        if refused(prompt):
            raise Failure(401, message="no such key")
        return answers(prompt)

    server.answer = refuses
    code, err, _ = compiles("copro", tmp_path)
    assert code == 4 and err.count("\n") == 1 and "refuses" in err and "no such key" in err, err
    # The program as it was is evaluated first, which a writer of instructions has nothing to do with.
    assert (the_folder(tmp_path) / "compiled.json").exists() == (refused is proposes)


def test_the_held_out_answer_is_not_paid_for_again(compiles, tmp_path):
    code, _, whole = compiles("bootstrap_rs", tmp_path, "--held-out")
    assert (
        code == 0 and whole > 2 * 2 * 48
    )  # two calls for each of the test queries, before and compiled
    expected = kept(tmp_path)
    assert json.loads(expected[1])["held_out"]
    assert compiles("bootstrap_rs", tmp_path, "--held-out")[::2] == (0, 0)
    assert kept(tmp_path) == expected  # the looks at the test split are counted elsewhere


def test_two_models_of_one_name_at_two_addresses_are_two(server, compiles, tmp_path):
    with closing(OpenAIServer(answers)) as other:
        code, _, asked = compiles("bootstrap_rs", tmp_path, "--teacher", other.spec)
    learnt = json.loads((the_folder(tmp_path) / "learnt.json").read_text())
    assert code == 0 and sent(other, "here") > 0
    # Demonstrations of the teacher are no evaluations of the student, and are paid for.
    assert learnt["usage"]["calls"] == asked + sent(other, "here")
