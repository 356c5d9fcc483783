"""Files that survive a crash: whose they are, and what a full disk and a killed writer leave."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sextant.tools.errors import DataError
from sextant.tools.platform import files
from sextant.tools.platform.cli import CommandParser, run_command
from sextant.tools.retrievers import index_store

ROOT = Path(__file__).parents[4]


def writer(folder, write, then):
    """A process that writes a file, and now does what its code says."""
    begin = (
        "import os, signal, sys; from pathlib import Path; from sextant.tools.platform import files\n"
        "path = Path(sys.argv[1])\n"
    )
    code = f"{begin}with files.{write}: print('writing', flush=True); {then}"
    command, pipe = [sys.executable, "-c", code, folder / "file"], subprocess.PIPE
    made = subprocess.Popen(
        command, cwd=ROOT, env=os.environ | {"TMPDIR": str(folder)}, stdin=pipe, stdout=pipe
    )
    assert made.stdout.readline() == b"writing\n"
    return made


@pytest.mark.parametrize(
    "write", ["replacing(path)", "temporary_sibling(path, folder=True)", "temporary_folder()"]
)
def test_what_a_killed_writer_left_is_swept_and_what_a_living_one_writes_is_not(write, tmp_path):
    killed = writer(tmp_path, write, "os.kill(os.getpid(), signal.SIGKILL)")
    assert killed.wait() == -signal.SIGKILL and len(list(tmp_path.iterdir())) == 1
    living = writer(tmp_path, write, "input()")
    [left] = tmp_path.iterdir()
    files.replace(tmp_path / "file", "whole")
    assert set(tmp_path.iterdir()) == {left, tmp_path / "file"}
    living.communicate(b"\n")
    assert living.returncode == 0 and list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_what_is_written_is_its_owners_alone_and_in_a_home_the_umask_decides(tmp_path):
    before = os.umask(0o022)
    try:
        files.mkdir_private(tmp_path / "runs" / "task")
        files.replace(tmp_path / "runs" / "text", "x")
        files.append_line(tmp_path / "runs" / "lines", b"x")
        index_store.open_index(
            tmp_path, {"kind": "x"}, build=lambda folder: None, load=lambda folder: None
        )
    finally:
        os.umask(before)
    for path in tmp_path.rglob("*"):
        allowed = 0o755 if "indexes" in path.parts else 0o700
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (allowed if path.is_dir() else allowed & 0o666), path


def test_lines_before_the_line_that_has_no_room_stay_and_no_part_of_it_does(tmp_path, little_room):
    path = tmp_path / "lines"
    with little_room(10_000):
        starts, error = files.append_lines(path, [b"x" * 4_000, b"y" * 5_000, b"z" * 4_000])
    assert starts == [0, 4_001] and isinstance(error, OSError)
    assert [len(line) for line in path.read_bytes().splitlines()] == [4_000, 5_000]
    assert files.append_lines(path, [b"a", b"b"]) == ([9_002, 9_004], None)


def test_a_full_disk_is_told_with_the_file_that_has_no_room_and_nothing_is_left_of_it(
    tmp_path, little_room, capsys
):
    with little_room(10_000):
        assert (
            run_command(
                CommandParser(),
                lambda arguments: files.replace(tmp_path / "file", "x" * 100_000),
                [],
            )
            == 3
        )
    err = capsys.readouterr().err
    assert (
        err
        == f"error: {tmp_path}/file: File too large; make room there, and give the same command again\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_an_array_has_its_room_before_it_is_filled_or_it_is_said_how_much_it_needs(
    tmp_path, little_room
):
    """Without, a disk that is full by then ends the process with SIGBUS."""
    index_store.create_memmap(tmp_path / "a.npy", (250_000,), np.int32)
    assert (tmp_path / "a.npy").stat().st_blocks * 512 >= 1_000_000
    makers = [path.name for path in (ROOT / "tools").rglob("*.py") if '"w+"' in path.read_text()]
    assert makers == ["index_store.py"], "all others ask there"

    def build(folder):
        index_store.create_memmap(folder / "b.npy", (250_000,), np.int32)

    with (
        little_room(10_000),
        pytest.raises(DataError, match=r"MB are free: .*it needs 1\.0 MB.*b\.npy.*make room"),
    ):
        index_store.open_index(tmp_path, {"kind": "x"}, build=build, load=lambda folder: None)


def test_what_an_oserror_says_is_shown_with_its_file_and_never_none():
    assert files.describe(OSError("the server has gone")) == "the server has gone"
    assert files.describe(FileNotFoundError(2, "No such file", "a.json")) == "a.json: No such file"
    assert files.describe(OSError(28, "No space left")) == "No space left"
