"""What strangers write, raise or leave in a folder ends in one line: no wait, no traceback, no silence."""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sextant.environments.custom import read_settings
from sextant.evals import run as run_module
from sextant.evals.run_folder import read_config
from sextant.evals.running.workers.shards import gather
from sextant.evals.scoring.scored_run import find_folders
from sextant.evals.studies import study_file
from sextant.programs import prompts
from sextant.programs.texts_by_id import read_texts
from sextant.tools.errors import RunConflict, SextantError
from sextant.tools.models import prices
from sextant.tools.models.storage.request_store import translate_sqlite_errors
from sextant.tools.platform import files
from sextant.tools.retrievers import index_store

ROOT = Path(__file__).parents[3]
READERS = {
    "benchmark.toml": lambda path: read_settings(path.parent),
    "config.json": lambda path: read_config(path.parent),
    "study.toml": study_file.read_study,
    "prompts.toml": lambda path: prompts.read(path, "multihop"),
    "solutions.jsonl": lambda path: read_texts(path, "solution"),
    "prices.toml": lambda path: prices.price("a/b", path),
}


def run(*words, cwd, **how):
    command = [sys.executable, "-m", *map(str, words)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=cwd, env=environment, timeout=120, text=True, **how)


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "nested"])
@pytest.mark.parametrize("name", READERS)
def test_a_file_that_is_none_is_refused_at_once(name, kind, tmp_path):
    path = tmp_path / name
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    else:
        path.write_text(
            "a = " + "[" * 3000 + "]" * 3000 if path.suffix == ".toml" else "[" * 3000 + "]" * 3000
        )
    with pytest.raises((SextantError, OSError)) as refused:
        READERS[name](path)
    assert not isinstance(refused.value, RecursionError) and "\n" not in str(refused.value)


@pytest.mark.parametrize("kind", ["pipe", "missing", "wrong"])
def test_prices_that_cannot_be_read_are_refused_also_where_no_price_is_needed(
    kind, tmp_path, command_of
):
    path = tmp_path / "prices.toml"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "wrong":
        path.write_text('["a/b"]\ninput = "much"\n')
    words = ("--program", "retrieve", "--task", "congress", "--data", "mini", "--lm", "offline")
    refused = command_of(run_module)(*words, "--runs", tmp_path / "runs", "--prices", path)
    assert refused.code == 2 and refused.err.count("\n") == 1 and str(path) in refused.err


def test_a_file_of_more_than_its_kind_can_have_is_not_read(tmp_path):
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(files.LARGEST_INPUT + 1)
    with pytest.raises(OSError, match="has more than 64 MiB"):
        files.read_input(path)


def test_folders_in_folders_without_end_are_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    try:
        for _ in range(1500):
            Path("d").mkdir()
            os.chdir("d")
        with pytest.raises(OSError, match="folders in folders"):
            find_folders([tmp_path])
    finally:  # pytest could not remove them
        subprocess.run(["rm", "-rf", str(tmp_path / "d")], check=True)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        "[" * 3000,
        '{"files": 5}',
        '{"files": {"a": [1]}}',
        '{"files": {"a": 1}}',
        '{"key": [1]}',
    ],
)
def test_an_index_with_a_damaged_list_of_files_is_built_again(text, tmp_path):
    def build(folder):
        (folder / "a").write_text("built")

    def load(folder):
        return (folder / "a").read_text()

    key = {"kind": "some", "corpus": "1"}
    assert index_store.open_index(tmp_path, key, build=build, load=load) == "built"
    (manifest,) = tmp_path.rglob("index.json")
    manifest.write_text(text)
    assert index_store.open_index(tmp_path, key, build=build, load=load) == "built"


@pytest.mark.parametrize("path", ["/", "/etc", "/etc/x"])
def test_what_is_no_run_of_shards_is_one_line(path):
    with pytest.raises(SextantError):
        gather(Path(path))


@pytest.mark.parametrize(
    "names", [("shard-1-of-2", "shard-3-of-2"), ("shard-1-of-2", "shard-01-of-2")]
)
def test_a_shard_that_is_none_of_the_others_is_named(names, tmp_path):
    for name in names:
        (tmp_path / name / "task/run").mkdir(parents=True)
        (tmp_path / name / "task/run/config.json").touch()
    with pytest.raises(RunConflict, match="is no shard of 2, or there twice"):
        gather(tmp_path / "task/run")


def test_what_cannot_be_opened_for_want_of_a_file_is_not_to_be_recovered(tmp_path):
    import sqlite3

    path = tmp_path / "nowhere/answers.sqlite"
    with pytest.raises(SextantError) as refused, translate_sqlite_errors(path):
        sqlite3.connect(path)
    assert str(path) in str(refused.value) and ".recover" not in str(refused.value)


@pytest.mark.parametrize(
    "raised", ["KeyboardInterrupt", "SystemExit", "SystemExit(0)", "GeneratorExit", "Mute()"]
)
@pytest.mark.parametrize("place", ["module", "constructor"])
def test_what_a_users_code_raises_to_end_the_process_ends_in_one_line(
    place, raised, tmp_path, monkeypatch, command_of
):
    mute = "class Mute(Exception):\n    def __str__(self):\n        raise KeyboardInterrupt\n"
    top = f"raise {raised}\n" if place == "module" else ""
    body = f"raise {raised}" if place == "constructor" else "pass"
    constructor = f"    def __init__(self, toolbox):\n        {body}\n"
    name = f"raises_in_{place}_{re.sub(r'[()]', '_', raised)}"  # no two tests import one module
    (tmp_path / f"{name}.py").write_text(f"{mute}{top}class Mine:\n{constructor}")
    monkeypatch.chdir(tmp_path)
    words = ("--program", f"{name}.py:Mine", "--task", "congress", "--data", "mini", "--limit", 1)
    with ThreadPoolExecutor(1) as pool:  # commands work in a thread of their own
        refused = pool.submit(command_of(run_module), *words).result()
    assert refused.code == 2 and refused.err.count("\n") == 1, refused.err
    assert refused.err.startswith(f"error: {name}.py")


@pytest.mark.parametrize("raised", ["KeyboardInterrupt", "SystemExit(0)", "Mute()"])
def test_what_a_users_retriever_raises_is_no_outcome_of_a_query(
    raised, tmp_path, monkeypatch, command_of
):
    name = f"retriever_raises_{re.sub(r'[()]', '_', raised)}"
    (tmp_path / f"{name}.py").write_text(
        "from sextant.tools.retrievers.base import Retriever\n"
        "class Mute(Exception):\n    def __str__(self):\n        raise ValueError\n"
        "class Found(Retriever):\n"
        "    def __init__(self, corpus):\n        self.corpus, self._ids = corpus, list(corpus)\n"
        f"    def _search_many(self, searches, k):\n        raise {raised}\n"
    )
    monkeypatch.chdir(tmp_path)
    about = ("--program", "retrieve", "--task", "congress", "--data", "mini", "--limit", 2)
    done = command_of(run_module)(*about, "--retriever", f"{name}.py:Found", "--runs", "runs")
    assert done.code == 3 and "2 of 2 queries are pending" in done.err
    assert "Traceback" not in done.err
    assert not [line for file in tmp_path.glob("runs/*/*/outcomes.jsonl") for line in file.open()]


def test_a_reader_that_has_gone_fails_no_query(tmp_path):
    (tmp_path / "loud.py").write_text(
        "def answer(query, search, read):\n    print('x' * 100_000)\n    return []\n"
    )
    words = (
        "sextant.evals.run",
        "--program",
        "loud.py:answer",
        "--task",
        "congress",
        "--data",
        "mini",
        "--limit",
        2,
    )
    reader, writer = os.pipe()
    os.close(reader)
    done = run(*words, cwd=tmp_path, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert done.returncode == 0 and "failed" not in done.stderr, done.stderr


def test_a_terminal_gets_no_control_characters_of_a_program(tmp_path):
    (tmp_path / "rude.py").write_text(
        "import sys\n"
        "def answer(query, search, read):\n"
        "    print('\\x1b]0;title\\x07shown', '\\x9b2J')\n"
        "    print('\\x1b[2Jtold', file=sys.stderr)\n"
        "    return []\n"
    )
    words = (
        "sextant.evals.run",
        "--program",
        "rude.py:answer",
        "--task",
        "congress",
        "--data",
        "mini",
        "--limit",
        1,
    )
    ours, theirs = os.openpty()
    done = run(*words, cwd=tmp_path, stdout=theirs, stderr=theirs)
    os.close(theirs)
    told = b""
    try:
        while block := os.read(ours, 1 << 16):
            told += block
    except OSError:  # all is read
        pass
    os.close(ours)
    assert done.returncode == 0 and b"shown" in told and b"told" in told
    assert b"\x1b]0;" not in told and "\x9b".encode() not in told and b"\x1b[2Jtold" not in told
