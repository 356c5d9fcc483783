"""Whatever a terminal can show, and whoever has stopped reading: a run that went well ends with 0."""

import os
import subprocess
import sys

import pytest

from tools.console import spell_in

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


@pytest.mark.parametrize(
    ("environment", "line", "bar"),
    [
        ({"PYTHONIOENCODING": "cp1252"}, b"---", b"###"),
        ({"PYTHONIOENCODING": "cp437"}, "───".encode("cp437"), "███".encode("cp437")),
        (POSIX, b"---", b"###"),
    ],
    ids=["cp1252", "cp437", "POSIX"],
)
def test_a_run_prints_what_the_terminal_can_show_of_tables_bars_and_texts(
    typed, tmp_path, environment, line, bar
):
    folder = tmp_path / "own"
    folder.mkdir()
    document = '{"_id": "d\u2013\u6771", "title": "", "text": "a tram"}\n'
    (folder / "corpus.jsonl").write_text(document, encoding="utf-8")
    (folder / "queries.jsonl").write_text('{"_id": "q", "text": "tram"}\n')
    (folder / "qrels.tsv").write_text(
        "query-id\tcorpus-id\tscore\nq\td\u2013\u6771\t1\n", encoding="utf-8"
    )
    ended = typed("sextant run --program multihop --task own --runs runs", **environment)
    assert ended.returncode == 0, ended.stderr
    assert line in ended.stdout and bar in ended.stdout
    searched = typed("sextant tasks search own tram", **environment)
    assert searched.returncode == 0 and rb"\u6771" in searched.stdout, searched.stderr


def test_columns_stay_where_they_are_and_what_has_no_sign_is_written_by_its_number():
    assert spell_in("utf-8", "─█† é") == "─█† é"
    assert spell_in("ascii", "─━│┼█▌†…–“a”") == '--|+##*~-"a"'
    assert spell_in("cp1252", "é 東") == r"é \u6771"


@pytest.mark.parametrize(
    "command", ["sextant", "sextant --version", "sextant run --help", "sextant tasks list"]
)
def test_who_stops_reading_or_closes_a_stream_ends_nothing_with_a_traceback(typed, command):
    for streams in (f"{command} | true", f"{command} >&-", f"{command} 2>&-", f"{command} <&-"):
        ended = typed(f"set -o pipefail; {streams}")
        assert ended.returncode == 0 and b"Traceback" not in ended.stderr, streams
    full = typed(f"{command} >/dev/full")
    assert full.returncode == 3
    assert (
        full.stderr == b"error: the result cannot be printed ([Errno 28] No space left on device)\n"
    )


def test_a_log_has_no_signs_that_draw_even_where_colours_are_forced(typed):
    ended = typed(
        "sextant run --program retrieve --task congress --runs runs", FORCE_COLOR="1", NO_COLOR=""
    )
    assert (
        ended.returncode == 0
        and b"\x1b[?25l" not in ended.stderr
        and b"\x1b[2K" not in ended.stderr
    )
