"""Whatever a terminal can show, and whoever has stopped reading: a run that went well ends with 0."""

import io
import os
import subprocess
import sys

import pytest
from conftest import ROOT

from sextant.tools.platform.cli import CommandParser, print_stderr, spell_in

POSIX = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.fixture
def typed(tmp_path):
    """Runs a shell command in which `sextant` is ours; gives its exit code, stdout and stderr as bytes."""

    def run(command, **environment):
        line = command.replace("sextant", f"{sys.executable} -m evals")
        words = ["bash", "-c", line]
        return subprocess.run(
            words, cwd=tmp_path, env={**os.environ, **environment}, capture_output=True, timeout=300
        )

    return run


# A command that prints signs of tables, of bars and of texts
PRINTS = r"""
from sextant.tools.platform.cli import CommandParser, print_stdout, run_and_leave

def command(arguments):
    print_stdout("\u2500\u2500\u2500 \u2588\u2588\u2588 \u6771")
    return 0

run_and_leave(CommandParser(), command)
"""


@pytest.mark.parametrize(
    ("environment", "shown"),
    [
        ({"PYTHONIOENCODING": "cp1252"}, rb"--- ### \u6771"),
        ({"PYTHONIOENCODING": "cp437"}, "─── ███ ".encode("cp437") + rb"\u6771"),
        (POSIX, rb"--- ### \u6771"),
    ],
    ids=["cp1252", "cp437", "POSIX"],
)
def test_a_terminal_is_sent_the_signs_that_it_can_show(environment, shown):
    command = [sys.executable, "-c", PRINTS]
    ended = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, timeout=300
    )
    assert ended.returncode == 0 and ended.stdout.rstrip() == shown, ended


def test_a_run_ends_well_on_a_terminal_without_unicode_and_its_log_draws_nothing(typed, tmp_path):
    folder = tmp_path / "own"
    folder.mkdir()
    document = '{"_id": "d\u2013\u6771", "title": "", "text": "a tram"}\n'
    (folder / "corpus.jsonl").write_text(document, encoding="utf-8")
    (folder / "queries.jsonl").write_text('{"_id": "q", "text": "tram"}\n')
    (folder / "qrels.tsv").write_text(
        "query-id\tcorpus-id\tscore\nq\td\u2013\u6771\t1\n", encoding="utf-8"
    )
    colours = {"FORCE_COLOR": "1", "NO_COLOR": ""}
    ended = typed("sextant run --program multihop --task own --runs runs", **POSIX, **colours)
    assert ended.returncode == 0, ended.stderr
    assert b"---" in ended.stdout and b"###" in ended.stdout
    assert b"\x1b[?25l" not in ended.stderr and b"\x1b[2K" not in ended.stderr


def test_columns_stay_where_they_are_and_what_has_no_sign_is_written_by_its_number():
    assert spell_in("utf-8", "─█† é") == "─█† é"
    assert spell_in("ascii", "─━│┼█▌†…–“a”") == '--|+##*~-"a"'
    assert spell_in("cp1252", "é 東") == r"é \u6771"


@pytest.mark.parametrize("command", ["sextant", "sextant run --help", "sextant tasks list"])
def test_who_stops_reading_or_closes_a_stream_ends_nothing_with_a_traceback(typed, command):
    for streams in (f"{command} | true", f"{command} >&-", f"{command} 2>&-", f"{command} <&-"):
        ended = typed(f"set -o pipefail; {streams}")
        assert ended.returncode == 0 and b"Traceback" not in ended.stderr, streams
    full = typed(f"{command} >/dev/full")
    assert full.returncode == 3
    assert (
        full.stderr == b"error: the result cannot be printed ([Errno 28] No space left on device)\n"
    )


def test_lines_of_many_threads_are_printed_whole():
    class Pieces(io.StringIO):
        """Keeps each write, between any two of which another thread may write."""

        def __init__(self):
            super().__init__()
            self.writes = list[str]()

        def write(self, text):
            self.writes.append(text)
            return super().write(text)

    stream = Pieces()
    print_stderr("candidate 1: \x1b[31m0.5", to=stream)
    assert stream.writes == ["candidate 1: \N{REPLACEMENT CHARACTER}[31m0.5\n"]


def test_the_help_of_an_option_has_its_default_once():
    parser = CommandParser(prog="sextant")
    parser.add_argument("--depth", default=10, help="of a ranking")
    parser.add_argument("--rounds", default=4, help="default: 4 for each call in flight")
    text = " ".join(parser.format_help().split())
    assert "--depth DEPTH of a ranking (default: 10)" in text
    assert text.endswith("--rounds ROUNDS default: 4 for each call in flight")


NOISY = r"""
import ctypes
import subprocess
from sextant.tools.platform.cli import CommandParser, add_json_option, print_json, run_and_leave

def command(arguments):
    print("a program speaks")
    subprocess.run(["echo", "its subprocess speaks"])
    subprocess.Popen(["sh", "-c", "sleep 1; echo late"])
    ctypes.CDLL(None).puts(b"a library speaks")
    print_json({"a": 1})
    return 0

parser = CommandParser()
add_json_option(parser)
run_and_leave(parser, command)
"""


def test_the_result_in_json_stands_alone_on_stdout_whoever_prints(tmp_path):
    command = [sys.executable, "-c", NOISY, "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert ended.stdout == '{"a": 1}\n'
    for who in ("a program", "its subprocess", "a library", "late"):
        assert who in ended.stderr
