"""Kept indexes: built once, whole or absent, noticed when altered, listed and deleted."""

import fcntl
import json
import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path

import pytest
from waiting import wait_for

from sextant.evals.running.identity import code_and_versions
from sextant.tools.errors import UsageError
from sextant.tools.retrievers import index_store

KEY = {"kind": "numbers", "corpus": "0123"}


def build(folder):
    (folder / "numbers.txt").write_text("1 2 3")


def load(folder):
    return (folder / "numbers.txt").read_text()


def never(folder):
    raise AssertionError("it is there already")


@pytest.mark.parametrize("alter", [b"", b"1 2 4", b"1 2 3 4", None])
def test_an_index_whose_bytes_were_altered_or_that_has_no_manifest_is_built_again(tmp_path, alter):
    index_store.open_index(tmp_path, KEY, build=build, load=load)
    folder = tmp_path / "indexes" / index_store.index_name(KEY)
    (folder / "index.json").unlink() if alter is None else (folder / "numbers.txt").write_bytes(
        alter
    )
    assert index_store.open_index(tmp_path, KEY, build=build, load=load) == "1 2 3"
    assert index_store.open_index(tmp_path, KEY, build=never, load=load) == "1 2 3"


def test_a_build_that_failed_is_never_used_and_finds_its_draft_again(tmp_path):
    def first(folder):
        (folder / "half.txt").write_text("1")
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError):
        index_store.open_index(tmp_path, KEY, build=first, load=load)
    [draft] = index_store.list_stored_indexes(tmp_path)
    assert not draft.finished and not draft.in_use and draft.key == KEY

    def second(folder):
        (folder / "numbers.txt").write_text((folder / "half.txt").read_text() + " 2 3")

    assert index_store.open_index(tmp_path, KEY, build=second, load=load) == "1 2 3"
    assert [index.finished for index in index_store.list_stored_indexes(tmp_path)] == [True]


def _slow(home, counts):
    def build_slowly(folder):
        with (counts / str(os.getpid())).open("w"):
            time.sleep(0.5)
        build(folder)

    index_store.open_index(home, KEY, build=build_slowly, load=load)


def test_two_processes_that_want_the_same_index_build_it_once(tmp_path):
    counts = tmp_path / "counts"
    counts.mkdir()
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_slow, args=(tmp_path, counts)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0, 0]
    assert len(list(counts.iterdir())) == 1


def _forever(home):
    def build_forever(folder):
        (folder / "numbers.txt").write_text("1")
        (home / "started").write_text("")
        time.sleep(60)

    index_store.open_index(home, KEY, build=build_forever, load=load)


def test_what_is_being_built_is_not_deleted_and_a_process_that_is_killed_leaves_no_lock_and_no_index(
    tmp_path,
):
    process = multiprocessing.get_context("fork").Process(target=_forever, args=(tmp_path,))
    process.start()
    wait_for((tmp_path / "started").exists)
    [draft] = index_store.list_stored_indexes(tmp_path)
    assert draft.in_use
    with pytest.raises(UsageError, match="in use by another process"):  # and nobody waits
        index_store.delete(tmp_path, index_store.index_name(KEY))
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    [draft] = index_store.list_stored_indexes(tmp_path)
    assert not draft.in_use and not draft.finished
    index_store.delete(tmp_path, index_store.index_name(KEY))
    assert (
        index_store.list_stored_indexes(tmp_path) == []
        and index_store.open_index(tmp_path, KEY, build=build, load=load) == "1 2 3"
    )


def test_a_lock_that_was_removed_while_it_was_waited_for_is_not_taken(tmp_path):
    lock = tmp_path / f".{index_store.index_name(KEY)}.lock"
    held = []

    def hold():
        with index_store._locked(lock.with_name(index_store.index_name(KEY))):
            held.append(lock.stat().st_ino)

    with lock.open("w") as first:
        fcntl.flock(first, fcntl.LOCK_EX)
        waiting = threading.Thread(target=hold)
        waiting.start()
        time.sleep(0.1)
        lock.unlink()
        lock.write_text("")
    waiting.join()
    assert held == [lock.stat().st_ino]


def test_what_else_lies_among_the_indexes_is_no_harm(tmp_path):
    index_store.open_index(tmp_path, KEY, build=build, load=load)
    indexes, elsewhere = tmp_path / "indexes", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").write_text("")
    (indexes / "file").write_text("")
    (indexes / ".hidden").mkdir()
    (indexes / "loop").symlink_to(indexes / "loop")
    (indexes / "link").symlink_to(elsewhere)
    (indexes / "key-is-no-object").mkdir()
    (indexes / "key-is-no-object" / "index.json").write_text('{"key": [1]}')
    (indexes / "key-is-no-object" / "dangling").symlink_to("nowhere")
    names = [index.name for index in index_store.list_stored_indexes(tmp_path)]
    assert names == ["key-is-no-object", "link", index_store.index_name(KEY)]
    for name in names:
        index_store.delete(tmp_path, name)
    assert index_store.list_stored_indexes(tmp_path) == [] and (elsewhere / "precious").exists()


def _second_person(home):
    os.chdir(home)
    if os.geteuid() == 0:
        os.setuid(65534)  # root may write whatever there is
    assert index_store.open_index(Path(), KEY, build=build, load=load) == "1 2 3"


def test_another_persons_lock_and_draft_in_a_home_of_several_are_in_nobodys_way(tmp_path):
    (tmp_path / "indexes" / f".{index_store.index_name(KEY)}.draft").mkdir(0o555, parents=True)
    (tmp_path / "indexes" / f".{index_store.index_name(KEY)}.lock").touch(0o444)
    for folder in (tmp_path, tmp_path / "indexes"):
        folder.chmod(0o777)
    process = multiprocessing.get_context("fork").Process(target=_second_person, args=(tmp_path,))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert index_store.open_index(tmp_path, KEY, build=never, load=load) == "1 2 3"


class TestCommand:
    @pytest.fixture
    def command(self, command_of):
        from sextant.tools.retrievers import __main__ as module

        return command_of(module)

    def test_kinds_and_models_are_listed_with_what_each_needs(self, command):
        from sextant.tools.retrievers import RETRIEVERS

        code, out, _ = command()
        listed = json.loads(command("list", "--json")[1])
        assert json.loads(command("--json")[1]) == listed
        assert code == 0 and {kind["name"] for kind in listed["kinds"]} == set(RETRIEVERS)
        assert all(kind["what"] and kind["form"] in out for kind in listed["kinds"])
        assert all(model["needs"] and model["name"] in out for model in listed["models"])
        assert "fusion(A,B,...)" in out and "rerank(FIRST,SECOND)" in out and "splade:MODEL" in out

    def test_indexes_are_listed_and_deleted(self, command):
        from sextant.tools.platform.files import sextant_home

        assert command("indexes")[:2] == (0, "")
        index_store.open_index(sextant_home(), KEY, build=build, load=load)
        name = index_store.index_name(KEY)
        assert name in command("indexes")[1]
        [row] = json.loads(command("indexes", "--json")[1])
        assert row["name"] == name and row["finished"] and row["bytes"] > 5
        assert command("delete")[0] == 2
        code, _, said = command("delete", "numbers-0000000000000000")
        assert code == 2 and "no kept index is called" in said
        assert (
            command("delete", name)[0] == 0
            and index_store.list_stored_indexes(sextant_home()) == []
        )
        assert command("delete", "--all")[0] == 0


def test_an_index_by_a_model_on_an_accelerator_is_another_one_and_a_run_says_so(monkeypatch):
    on_cpu, words = (
        index_store.index_code_digest("sextant.tools.retrievers.neural.dense"),
        index_store.index_code_digest("sextant.tools.text"),
    )
    monkeypatch.setenv("SEXTANT_DEVICE", "cpu")
    assert (
        index_store.index_code_digest("sextant.tools.retrievers.neural.dense") == on_cpu
        and "device" not in code_and_versions([], libraries=["torch"])["versions"]
    )
    monkeypatch.setenv("SEXTANT_DEVICE", "cuda:1")  # there is none here; nothing is loaded
    assert (
        index_store.index_code_digest("sextant.tools.retrievers.neural.dense") != on_cpu
        and index_store.index_code_digest("sextant.tools.text") == words
    )
    assert code_and_versions([], libraries=["torch"])["versions"]["device"] == "cuda"
