"""A run file in columns is the run file read line by line, however its lines are written."""

import gzip
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sextant.environments.readers import raw_files
from sextant.evals.formats.trec_columns import read_columns

SCORES = ["1", "-2.5", "+3", "1e-40", ".5", "7.", "1E3", "5e38", "-0.0", "16777217"]
BLANKS = st.sampled_from([" ", "\t", "  ", " \t ", "\v", "\f"])
IDS = st.sampled_from(["q1", "d1", '"d2"', "é", "a%20b", "\\n", "NA", "10"])


@st.composite
def run_lines(draw):
    """Return (the six columns of a line, the line)."""
    columns = [draw(IDS), "Q0", draw(IDS), "1", draw(st.sampled_from(SCORES)), draw(IDS)]
    text = columns[0]
    for column in columns[1:]:
        text += draw(BLANKS) + column
    around = st.sampled_from(["", "", " ", "\t", " \t"])
    return columns, draw(around) + text + draw(around)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(run_lines(), min_size=1, max_size=12),
    line_end=st.sampled_from(["\n", "\r\n", "\n\n", "\n \t\n", "\r"]),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
    block=st.sampled_from([64, 200, 1 << 20]),
    last_end=st.booleans(),
)
def test_columns_are_those_of_the_lines(rows, line_end, encoding, block, last_end, tmp_path):
    text = line_end.join(line for _, line in rows) + line_end * last_end
    (tmp_path / "run").write_bytes(text.encode(encoding))
    with pytest.MonkeyPatch.context() as patch:
        # Old Macs' line ends are told by the first block, which is longer than a line.
        patch.setattr(raw_files, "BLOCK", block)
        columns = read_columns(tmp_path / "run")
    read = [columns.raw_queries[number].decode() for number in columns.query_numbers]
    assert read == [row[0] for row, _ in rows]
    read = [columns.raw_documents[number].decode() for number in columns.document_numbers]
    assert read == [row[2] for row, _ in rows]
    with np.errstate(over="ignore"):
        scores = [np.float32(float(row[4])) for row, _ in rows]
    assert columns.scores.tolist() == scores
    assert columns.tag == rows[0][0][5]


@pytest.mark.parametrize(
    "second",
    [
        b"q1 Q0 d2 1 2.5",
        b"q1 Q0 d2 1 2.5 x y",
        b"q1 Q0 d2 1 nan x",
        b"q1 Q0 d2 1 1e400 x",
        b"q1 Q0 d2 1 1_0 x",
        b"q1 Q0 d2 1 0x1 x",
        b"q1 Q0 d2 1 \xd9\xa3 x",
        b"q1 Q0 d\xff 1 2.5 x",
        b"q1 Q0 d2 1 2.5 \xff",
    ],
)
def test_a_line_that_is_none_of_a_run_file_is_a_fault(second, tmp_path):
    (tmp_path / "run").write_bytes(b"q1 Q0 d1 1 3.5 x\n" + second + b"\n")
    with pytest.raises(ValueError):
        read_columns(tmp_path / "run")


def test_lines_of_unicode_s_blanks_count_for_nothing(tmp_path):
    text = "\n\u00a0\nq1 Q0 d1 1 3.5 x\n\u00a0\nq1 Q0 d2 1 2.5 y\n"
    (tmp_path / "run").write_text(text, "utf-8")
    columns = read_columns(tmp_path / "run")
    assert len(columns.scores) == 2
    assert columns.tag == "x"


def test_a_packed_file_is_unpacked_and_marks_at_joints_are_left_out(tmp_path):
    part = "q1 Q0 d1 1 3.5 x\n".encode("utf-8-sig")
    (tmp_path / "run.gz").write_bytes(gzip.compress(part) + gzip.compress(part))
    columns = read_columns(tmp_path / "run.gz")
    assert columns.raw_queries == [b"q1"]
    assert math.isclose(columns.scores.sum(), 7)
