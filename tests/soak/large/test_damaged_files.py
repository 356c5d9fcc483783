"""Whatever the bytes of a file from elsewhere are, it is read, or refused in one line."""

import contextlib
import gzip
import json
import shutil
import sqlite3
from functools import partial
from pathlib import Path
from random import Random

import pytest
from foreign_runs import STEPS, USED, atif, call, world
from mutations import mutated
from run_folders import run_in, unsealed

from sextant import environments
from sextant.evals import compare, curves, export
from sextant.evals.cache import command, parser
from sextant.evals.formats.import_run import read_trajectories
from sextant.evals.formats.trec import RunFile
from sextant.evals.scoring import score_run
from sextant.evals.scoring.scored_run import find_scored_runs
from sextant.evals.viewer.data import ViewerApi as Page
from sextant.evals.viewer.server import list_answers
from sextant.programs import compiled
from sextant.tools.errors import SextantError
from sextant.tools.models.storage.cassette import read_cassette, write_cassette
from sextant.tools.models.storage.ledger import NAME, Ledger, ModelResponse, ResponseCache
from sextant.tools.platform.cli import run_command
from sextant.tools.records import Usage

MANY = 1000  # mutations of a form


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A scored run as we write it, without digests, so that what is changed in it gets as far as its readers."""
    words = ("--program", "multihop", "--task", "congress", "--limit", 3, "--split", "dev")
    return unsealed(run_in(tmp_path_factory.mktemp("made"), *words))


READERS = [(compare, 2, []), (curves, 1, []), (export, 1, ["--to", "atif", "--force", "--out"])]


def use_run(path: Path, environment, number: int) -> None:
    """Open and score a run, and compare, plot or export it, each with whatever it says of it."""
    with contextlib.suppress(SextantError):
        for _ in list_answers(Page([path])):
            pass
    find_scored_runs([path])
    module, times, words = READERS[number % len(READERS)]
    with contextlib.suppress(SextantError):
        out = [str(path.parent / "out")] if "--out" in words else []
        module.command(module.parser().parse_args([*[str(path)] * times, *words, *out]))
    with contextlib.suppress(SextantError):
        score_run.score(path, environment)


@pytest.mark.parametrize(
    "name", ["config.json", "outcomes.jsonl", "scores.json", "scores.csv", "attribution.jsonl"]
)
def test_a_run_whose_files_hold_anything_is_read_or_refused(name, made, tmp_path, capsys):
    environment = environments.load("congress", "mini", "dev").asking(limit=3)
    random, path = Random(name), tmp_path / "run"
    for number in range(MANY):
        shutil.copytree(made, path, dirs_exist_ok=True)
        (path / name).write_bytes(mutated(random, (path / name).read_bytes()))
        use_run(path, environment, number)
        capsys.readouterr()


def _cassette(path: Path) -> bytes:
    answer = ModelResponse(["text", {"text": "t"}], Usage(1, 0, 5, 2, 0.1, 0.1))
    write_cassette(path, [(f"{number:016x}", answer) for number in range(3)])
    return path.read_bytes()


def _compiled(path: Path) -> bytes:
    prompt = compiled.Prompt("Do.", ({"a": "b"},), "Asked", ("in a: str",), "0")
    neighbour = compiled.NeighbourExample("q1", "text", {"ask": [{"a": "b"}]})
    parts = {
        "parameters": {"hops": 2},
        "retriever": "bm25",
        "prompts": {"ask": prompt},
        "neighbours": (neighbour,),
    }
    compiled.write(
        path, compiled.Compiled("multihop", **parts, origin={"optimizer": "gepa", "task": "x"})
    )
    return path.read_bytes()


def _lines(*rows) -> bytes:
    return "".join(f"{json.dumps(row)}\n" for row in rows).encode()


def _atif(path: Path) -> bytes:
    found = {"extra": {"doc_ids": ["d1"], "shown": [3], "lengths": [9]}, "content": '["d1"]'}
    metrics = {"prompt_tokens": 9, "completion_tokens": 2, "cost_usd": 0.1}
    searched = call(
        "search", {"query": "x", "k": 3}, found, metrics=metrics, extra={"hop": 1, "started": 0.5}
    )
    return _lines(
        atif(
            [searched], session_id="q1", extra={"seconds": 2.0, "ranking": ["d1"], "scores": [1.0]}
        )
    )


def _trajectories(path: Path) -> None:
    for _ in read_trajectories(path, world()):
        pass


RUN = b"q1 Q0 d1 1 2.5 x\n"
FOREIGN = {"query_id": "q1", "trace": {"steps": STEPS}, "usage": USED, "scores": [1]}
FILES = {
    "cassette": ("x.jsonl", _cassette, lambda path: list(read_cassette(path))),
    "compiled": ("compiled.json", _compiled, compiled.read),
    "trajectories": (
        "x.jsonl",
        lambda _: _lines(FOREIGN, {"query_id": "q2", "steps": STEPS[:1]}),
        _trajectories,
    ),
    "atif": ("x.jsonl", _atif, _trajectories),
    "trec": (
        "x",
        lambda _: RUN + b"q2 Q0 d3 1 1 x\n",
        partial(RunFile, environment=world(), encoded=True),
    ),
    "gzip": (
        "x.gz",
        lambda _: gzip.compress(RUN * 50),
        partial(RunFile, environment=world(), encoded=False),
    ),
}


@pytest.mark.parametrize("form", FILES)
def test_a_file_that_holds_anything_is_read_or_refused_in_a_line(form, tmp_path):
    name, make, read = FILES[form]
    random, path = Random(form), tmp_path / name
    data = make(path)
    for _ in range(MANY):
        path.write_bytes(mutated(random, data))
        try:
            read(path)
        except SextantError as error:
            assert str(path) in str(error) and "\n" not in str(error)


def test_a_cell_of_the_answers_that_holds_anything_is_read_or_refused(tmp_path, capsys):
    random = Random(0)
    columns = (
        "key",
        "run",
        "query_id",
        "model",
        "at",
        "seconds",
        "fault",
        "usage",
        "outputs",
        "finish",
    )
    good = ResponseCache(tmp_path / "good" / NAME)
    Ledger(good, "t/r/1").answered(
        "q", "0" * 16, "m", ModelResponse(["text"], Usage(1, 0, 5, 2, 0.1, 0.1))
    )
    good.query("PRAGMA wal_checkpoint(TRUNCATE)")
    usage = json.dumps({"calls": 1, "paid_usd": 0.1})
    for number in range(MANY):
        path = tmp_path / str(number % 2) / NAME
        shutil.rmtree(path.parent, ignore_errors=True)
        shutil.copytree(tmp_path / "good", path.parent)
        column = random.choice(columns)
        nasty = (
            mutated(random, usage.encode()).decode("utf-8", "replace")
            if random.random() < 0.5
            else None
        )
        value = (
            nasty
            if nasty is not None
            else random.choice([b"\xff", -1, 2**62, 1e308, "x", "9" * 5000, "[" * 5000])
        )
        with (
            contextlib.closing(sqlite3.connect(path)) as opened,
            opened,
            contextlib.suppress(sqlite3.Error),
        ):
            opened.execute(f"UPDATE calls SET {column} = ?", (value,))
        with contextlib.suppress(SextantError):
            changed = ResponseCache(path)
            with contextlib.suppress(SextantError):
                changed.take("0" * 16)
            Ledger(changed, "t/r/1").usage_totals.json()
        for words in (["list"], ["show", "0"]):
            code = run_command(parser(), command, [*words, "--runs", str(path.parent)])
            assert code in (0, 2, 3)
        capsys.readouterr()
