"""Remarks on the page: kept beside the runs, shown by every page, carried by an exported file."""

import http.client
import json
import shutil
from pathlib import Path

import pytest
from run_folders import run_in
from viewer_server import served

from sextant.evals.viewer.data import NotFound, ViewerApi
from sextant.tools.errors import UsageError


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run of congress in miniature, to be copied."""
    place = tmp_path_factory.mktemp("made")
    return run_in(place, "--program", "retrieve", "--task", "congress", "--limit", 3)


@pytest.fixture
def path(made, tmp_path):
    return Path(shutil.copytree(made, tmp_path / "runs" / made.parent.name / made.name))


@pytest.fixture
def answers(path):
    return ViewerApi([path.parents[1]])


def run_id(path):
    return "/".join(path.parts[-2:])


def keep(answers, path, **remark):
    body = json.dumps(remark).encode()
    return json.loads(answers.add_remark(f"run/{run_id(path)}/remark", body))


def listed(answers):
    [one] = json.loads(answers("runs.json"))["runs"]
    return one


def remarks(answers, path):
    return json.loads(answers(f"run/{run_id(path)}.json"))["remarks"]


def test_a_remark_is_a_line_of_a_file_beside_the_runs_and_no_file_of_a_run_changes(answers, path):
    before = {file: file.read_bytes() for file in path.iterdir() if file.is_file()}
    query_id = answers.query_ids(run_id(path))[0]
    keep(answers, path, query_id=query_id, step=0, label="good search", note="it names the man")
    [line] = (path.parents[1] / "remarks.jsonl").read_text().splitlines()
    row = json.loads(line)
    assert row["time"].endswith("+00:00")
    assert {key: row[key] for key in ("run", "query_id", "step", "label", "note")} == {
        "run": run_id(path),
        "query_id": query_id,
        "step": 0,
        "label": "good search",
        "note": "it names the man",
    }
    assert before == {file: file.read_bytes() for file in path.iterdir() if file.is_file()}


def test_the_last_remark_on_a_query_counts_and_an_empty_one_removes_it(answers, path):
    first, second, _ = answers.query_ids(run_id(path))
    keep(answers, path, query_id=first, label="wrong", note="")
    keep(answers, path, query_id=second, label="odd")
    keep(answers, path, query_id=first, label="right")
    assert {one["query_id"]: one["label"] for one in remarks(answers, path)} == {
        first: "right",
        second: "odd",
    }
    assert listed(answers)["remarks"] == 2
    keep(answers, path, query_id=second, label="", note="")
    assert [one["query_id"] for one in remarks(answers, path)] == [first]


def test_a_run_has_a_name_tags_and_a_note_of_the_page(answers, path):
    keep(answers, path, name="the floor", tags=["paper"], note="made on Monday")
    assert listed(answers)["named"] == {
        "name": "the floor",
        "tags": ["paper"],
        "note": "made on Monday",
    }
    assert listed(answers)["remarks"] == 0


def test_a_page_of_the_run_alone_and_an_exported_page_have_the_remarks(answers, path):
    query_id = answers.query_ids(run_id(path))[1]
    keep(answers, path, query_id=query_id, note="see the second search")
    for other in (ViewerApi([path]), ViewerApi([path.parents[1]], exported=True)):
        [one] = json.loads(other(f"run/{other.run_ids[0]}.json"))["remarks"]
        assert one["note"] == "see the second search"
    part = ViewerApi([path], exported=True, chosen=lambda ids: ids[:1])
    assert json.loads(part(f"run/{part.run_ids[0]}.json"))["remarks"] == []


def test_what_is_no_remark_is_refused_and_nothing_is_written(answers, path):
    for body in (b"", b"[]", b'{"note": 7}', b'{"step": 1, "note": "x"}', b'{"step": -1}'):
        with pytest.raises(UsageError):
            answers.add_remark(f"run/{run_id(path)}/remark", body)
    with pytest.raises(NotFound):
        answers.add_remark("run/none/remark", b"{}")
    assert not (path.parents[1] / "remarks.jsonl").exists()


def test_damaged_lines_are_left_out_and_a_torn_one_is_cut_off(answers, path):
    file = path.parents[1] / "remarks.jsonl"
    query_id = answers.query_ids(run_id(path))[0]
    file.write_bytes(b'\xff\n[1]\n{"run": "a torn li')
    keep(answers, path, query_id=query_id, note="kept")
    assert [one["note"] for one in remarks(answers, path)] == ["kept"]
    assert b"torn" not in file.read_bytes()


def test_only_who_knows_the_address_can_remark(answers, path):
    query_id = answers.query_ids(run_id(path))[0]
    body = json.dumps({"query_id": query_id, "note": "by HTTP"})
    with served(answers) as server:

        def post(start):
            connection = http.client.HTTPConnection(*server.server_address, timeout=60)
            connection.request("POST", f"{start}data/run/{run_id(path)}/remark", body)
            answer = connection.getresponse()
            answer.read()
            connection.close()
            return answer.status

        assert post("/guessed/") == 403
        assert not (path.parents[1] / "remarks.jsonl").exists()
        assert post(server.root) == 200
    assert [one["note"] for one in remarks(answers, path)] == ["by HTTP"]


def test_a_line_that_is_no_remark_is_left_out_and_said_once(answers, path, capsys):
    query_id = answers.query_ids(run_id(path))[0]
    keep(answers, path, query_id=query_id, note="it names the man")
    with (path.parents[1] / "remarks.jsonl").open("a") as file:
        for row in (
            {"query_id": [1], "note": "x"},
            {"query_id": query_id, "step": {}, "note": "x"},
        ):
            file.write(json.dumps({"run": run_id(path), **row}) + "\n")
    for _ in range(2):
        assert [remark["note"] for remark in remarks(answers, path)] == ["it names the man"]
    assert capsys.readouterr().err.count("2 lines are no remarks") == 1
