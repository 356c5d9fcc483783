"""A run file is read line by line, however its lines are written, and refused with the faulty line."""

import gzip

import numpy as np
import pytest
from foreign_runs import world
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sextant.evals.formats.trec import RunFile
from sextant.tools.corpus import Corpus
from sextant.tools.errors import DataError
from sextant.tools.records import Document, Query

SCORES = ["1", "-2.5", "+3", "1e-40", ".5", "7.", "1E3", "5e38", "-0.0", "16777217"]
BLANKS = st.sampled_from([" ", "\t", "  ", " \t ", "\v", "\f"])
DOCUMENTS = ["q1", "d1", '"d2"', "é", "a%20b", "\\n", "NA", "10"]


@st.composite
def run_lines(draw):
    """Return (the six columns of a line, the line)."""
    query_id = draw(st.sampled_from(["q1", "q2"]))
    columns = [query_id, "Q0", draw(st.sampled_from(DOCUMENTS)), "1", draw(st.sampled_from(SCORES))]
    columns.append(draw(st.sampled_from(["x", "é"])))
    text = columns[0]
    for column in columns[1:]:
        text += draw(BLANKS) + column
    around = st.sampled_from(["", "", " ", "\t", " \t"])
    return columns, draw(around) + text + draw(around)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(run_lines(), min_size=1, max_size=8, unique_by=lambda row: tuple(row[0][:3:2])),
    line_end=st.sampled_from(["\n", "\r\n", "\n\n", "\n \t\n", "\n\u00a0\n"]),
    encoding=st.sampled_from(["utf-8", "utf-8-sig"]),
    last_end=st.booleans(),
)
def test_rankings_are_those_of_the_lines(rows, line_end, encoding, last_end, tmp_path):
    text = line_end.join(line for _, line in rows) + line_end * last_end
    (tmp_path / "run").write_bytes(text.encode(encoding))
    environment = world(
        documents=Corpus(Document(doc_id, "text") for doc_id in DOCUMENTS),
        queries=(Query("q1", "what?"), Query("q2", "who?")),
    )
    run = RunFile(tmp_path / "run", environment, encoded=False)
    assert run.tag == rows[0][0][5]
    for query_id in ("q1", "q2"):
        with np.errstate(over="ignore"):
            of_query = [
                (float(np.float32(float(row[4]))), row[2].encode(), row[2])
                for row, _ in rows
                if row[0] == query_id
            ]
        ranked = sorted(of_query, reverse=True)
        ranking = run.ranking(query_id)
        assert ranking.doc_ids == [doc_id for _, _, doc_id in ranked]
        assert ranking.scores == [score for score, _, _ in ranked]


@pytest.mark.parametrize(
    "second",
    [
        b"q1 Q0 d2 1 2.5",
        b"q1 Q0 d2 1 2.5 x y",
        b"q1 Q0 d2 1 nan x",
        b"q1 Q0 d2 1 1e400 x",
        b"q1 Q0 d2 1 0x1 x",
        b"q1 Q0 d2 1 \xd9\xa3 x",
        b"q1 Q0 d\xff 1 2.5 x",
        b"q1 Q0 d2 1 2.5 \xff",
    ],
)
def test_a_line_that_is_none_of_a_run_file_is_refused_with_its_number(second, tmp_path):
    (tmp_path / "run").write_bytes(b"q1 Q0 d1 1 3.5 x\n" + second + b"\n")
    with pytest.raises(DataError, match="line 2"):
        RunFile(tmp_path / "run", world(), encoded=False)


def test_a_packed_file_is_unpacked_and_marks_at_joints_are_left_out(tmp_path):
    parts = ["q1 Q0 d1 1 3.5 x\n", "q1 Q0 d4 1 3.5 x\n"]
    packed = [gzip.compress(part.encode("utf-8-sig")) for part in parts]
    (tmp_path / "run.gz").write_bytes(b"".join(packed))
    run = RunFile(tmp_path / "run.gz", world(), encoded=False)
    assert run.ranking("q1").doc_ids == ["d4", "d1"]
