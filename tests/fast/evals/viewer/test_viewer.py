"""The page's answers, the server that gives them, and the file that carries them."""

import base64
import csv
import gzip
import hashlib
import http.client
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_folders import run_in, unsealed
from viewer_server import served
from waiting import wait_for

from sextant.environments import load
from sextant.environments.ranking_metrics import PAIRWISE
from sextant.evals import view
from sextant.evals.scoring import scored_run
from sextant.evals.scoring.attribution import fate_at
from sextant.evals.scoring.metrics import is_lower_better
from sextant.evals.viewer import data as viewer_data
from sextant.evals.viewer import loaded_run
from sextant.evals.viewer import server as page_server
from sextant.evals.viewer.data import ViewerApi
from sextant.evals.viewer.panels import PANELS, load_panels
from sextant.tools.errors import DataError, UsageError
from sextant.tools.platform.cli import run_command


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two runs of congress in miniature, to be copied."""
    place = tmp_path_factory.mktemp("made")
    for program in ("multihop", "retrieve"):
        run_in(place, "--program", program, "--task", "congress", "--limit", 4)
    return place / "runs"


@pytest.fixture
def runs(made, tmp_path):
    return Path(shutil.copytree(made, tmp_path / "runs"))


@pytest.fixture
def multihop(runs):
    return next(runs.glob("*/multihop-*"))


@pytest.fixture
def command(command_of):
    """`sextant view ARGUMENTS`, in this process."""
    return command_of(view)


def asked(server, path, method="GET", start=None, **headers):
    """(status, headers, body) of one request, its path sent as it is after `start`, or else after the secret."""
    connection = http.client.HTTPConnection(*server.server_address, timeout=120)
    start = server.root[:-1] if start is None else start
    connection.putrequest(method, start + path, skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, answer.headers, body


def answer(answers, path):
    return json.loads(answers(path))


def address(run_id, query_id):
    return f"run/{run_id}/query/{query_id}.json"


def packed(page: str) -> dict:
    """The answers in an exported page."""
    blocks = re.findall(
        r'<script type="application/json\+gzip" data-path="([^"]*)">([^<]*)</script>', page
    )
    return {path: json.loads(gzip.decompress(base64.b64decode(block))) for path, block in blocks}


def test_the_runs_are_listed_with_what_their_scores_say(runs, multihop):
    answers = ViewerApi([runs])
    listed = answer(answers, "runs.json")
    there = sorted(str(path.parent.relative_to(runs)) for path in runs.rglob("config.json"))
    assert [run["id"] for run in listed["runs"]] == there
    entry = next(run for run in listed["runs"] if run["program"] == "multihop")
    scores = json.loads((multihop / "scores.json").read_text())
    assert {key: entry[key] for key in ("task", "metric", "usage", "losses", "queries")} == {
        key: scores[key] for key in ("task", "metric", "usage", "losses", "queries")
    }
    assert entry["metrics"]["nDCG@10"] == {
        key: scores["metrics"]["nDCG@10"][key] for key in ("mean", "low", "high")
    }
    assert entry["mini"] and not entry["imported"] and not listed["exported"]
    assert listed["fates"]["found"] == "found in the first {k}"
    assert listed["lower"] == [name for name in PAIRWISE if is_lower_better(name)] == ["Flip"]


def test_a_run_has_the_values_of_its_table_and_the_fates_of_its_attribution(runs, multihop):
    run_id = str(multihop.relative_to(runs))
    run = answer(ViewerApi([runs]), f"run/{run_id}.json")
    with (multihop / "scores.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert run["query_ids"] == [row["query_id"] for row in table]
    assert run["values"]["nDCG@10"] == [float(row["nDCG@10"]) for row in table]
    known = scored_run.read_scored_run(multihop)
    relevant = {query_id: known.judged[query_id]["relevant"] for query_id in run["query_ids"]}
    assert run["fates"] == [[fate_at(one, 10) for one in each] for each in relevant.values()]
    assert run["texts"][0] == known.judged[run["query_ids"][0]]["text"][:200]
    [floor] = run["bounds"]
    assert floor["label"] == "floor" and floor["what"].startswith("retrieve over bm25(")
    assert run["siblings"] == [str(path.relative_to(runs)) for path in runs.glob("*/retrieve-*")]


def test_a_query_has_its_trajectory_and_the_texts_of_what_was_seen(runs, multihop):
    run_id, known = str(multihop.relative_to(runs)), scored_run.read_scored_run(multihop)
    query_id = known.query_ids[1]
    query = answer(ViewerApi([runs], exported=True), f"run/{run_id}/query/{query_id}.json")
    outcome = known.outcomes[query_id]
    assert query["steps"] == outcome["trace"]["steps"]
    assert query["ranking"] == outcome["ranking"][:100] and query["ranked"] == len(
        outcome["ranking"]
    )
    assert query["values"] == {name: column[query_id] for name, column in known.columns.items()}
    relevant = known.judged[query_id]["relevant"]
    assert [one["fate"] for one in query["relevant"]] == [fate_at(one, 10) for one in relevant]
    assert query["objective"]
    shown = {doc_id for step in query["steps"] if step.get("shown") for doc_id in step["doc_ids"]}
    assert shown | query["grades"].keys() | set(query["ranking"][:20]) <= query["documents"].keys()
    document = load("congress", "mini", "all").documents[query["ranking"][0]]
    assert query["documents"][document.doc_id] == {
        "title": document.title,
        "text": document.text[:600],
        "length": len(document.text),
    }


def test_a_search_finds_each_text_with_all_the_words_once_a_query_at_its_first_step(runs, multihop):
    run_id, known = str(multihop.relative_to(runs)), scored_run.read_scored_run(multihop)
    documents, words = load("congress", "mini", "all").documents, ["HEARING", "the"]

    def has(text):
        return all(word.lower() in text.lower() for word in words)

    expected = set()
    for query_id, outcome in known.outcomes.items():
        steps = outcome["trace"]["steps"]
        shown = [
            (n, doc_id)
            for n, step in enumerate(steps)
            for doc_id in step["doc_ids"]
            if step.get("shown")
        ]
        first = {
            doc_id: n
            for n, doc_id in reversed(shown)
            if has(f"{documents[doc_id].title} {documents[doc_id].text}")
        }
        expected |= {(query_id, n, f"document {doc_id}") for doc_id, n in first.items()}
        expected |= {
            (query_id, n, step["tool"]) for n, step in enumerate(steps) if has(step["argument"])
        }
    found = answer(
        ViewerApi([runs], exported=True), f"run/{run_id}/search/{'%20'.join(words)}.json"
    )
    assert {(hit["query_id"], hit["step"], hit["where"]) for hit in found["hits"]} == expected
    assert {"document", "search"} <= {where.split()[0] for _, _, where in expected}
    assert not found["more"] and not found["unread"]
    assert all(
        word.lower() in "".join(hit["text"] for hit in found["hits"]).lower() for word in words
    )
    assert answer(ViewerApi([runs]), f"run/{run_id}/search/%20.json")["hits"] == []


def test_without_the_corpus_there_are_ids_and_a_reason(folder, run, tmp_path):
    made = run("--program", "retrieve", "--task", "congress", "--data", folder, "--split", "all")
    assert made.code == 0, made.err
    shutil.rmtree(folder)
    answers = ViewerApi([tmp_path / "runs"], exported=True)
    query = answer(answers, address(answers.run_ids[0], "Q1"))
    assert query["documents"] == {} and "no texts of documents" in query["no_documents"]
    assert query["text"] == "Something about a dam?" and query["grades"] == {"D1": 1.0}


def test_an_answer_does_not_wait_for_a_corpus_that_takes_long(runs, monkeypatch):
    ready, load = threading.Event(), loaded_run.load_environment
    monkeypatch.setattr(
        loaded_run, "load_environment", lambda config: ready.wait(120) and load(config)
    )
    monkeypatch.setattr(loaded_run, "PATIENCE", 0.05)
    answers = ViewerApi([runs])
    path = address(answers.run_ids[0], answers.query_ids(answers.run_ids[0])[0])
    first = answer(answers, path)
    assert (
        first["documents"] == {}
        and first["reading"]
        and "still being read" in first["no_documents"]
    )
    ready.set()
    wait_for(lambda: answer(answers, path)["documents"])


def test_runs_that_appear_change_or_go_are_seen_when_the_page_is_loaded_again(runs, multihop):
    answers = ViewerApi([runs])
    assert len(answer(answers, "runs.json")["runs"]) == 2
    shutil.copytree(multihop, runs / "later")
    scores = json.loads((unsealed(multihop) / "scores.json").read_text())
    (multihop / "scores.json").write_text(json.dumps(scores | {"notes": ["scored again"]}))
    listed = answer(answers, "runs.json")["runs"]
    assert "later" in [run["id"] for run in listed]
    assert [run["notes"] for run in listed if run["id"] == str(multihop.relative_to(runs))] == [
        ["scored again"]
    ]
    shutil.rmtree(multihop)
    assert len(answer(answers, "runs.json")["runs"]) == 2
    with pytest.raises(DataError, match="no run"):
        answers(f"run/{multihop.relative_to(runs)}.json")


def test_a_run_that_an_earlier_version_scored_opens_and_says_how_to_mend_it(runs, multihop):
    (unsealed(multihop) / "attribution.jsonl").unlink()
    scores = json.loads((multihop / "scores.json").read_text())
    del scores["losses"], scores["metric"]
    (multihop / "scores.json").write_text(json.dumps(scores))
    answers, run_id = ViewerApi([runs], exported=True), str(multihop.relative_to(runs))
    run = answer(answers, f"run/{run_id}.json")
    assert run["fates"] is None and f"sextant score {multihop}" in run["why_no_fates"]
    query = answer(answers, address(run_id, run["query_ids"][0]))
    assert query["relevant"] == [] and query["steps"] and query["text"]  # the corpus has the text
    assert (
        next(one for one in answer(answers, "runs.json")["runs"] if one["id"] == run_id)["metric"]
        == "nDCG@10"
    )


def test_a_run_that_cannot_be_read_is_listed_with_the_reason(runs, multihop):
    why = "scores in .* are damaged"
    (multihop / "scores.json").write_text("{")
    answers = ViewerApi([runs])
    listed = answer(answers, "runs.json")
    assert len(listed["runs"]) == 1
    assert [one["path"] for one in listed["unreadable"]] == [str(multihop)]
    assert re.search(why, listed["unreadable"][0]["why"])
    with pytest.raises(DataError, match=why):
        answers(f"run/{multihop.relative_to(runs)}.json")


def test_a_trajectory_that_is_damaged_says_so_and_the_others_open(runs, multihop):
    lines = (multihop / "outcomes.jsonl").read_text().splitlines()
    lines[0] = json.dumps({"query_id": json.loads(lines[0])["query_id"], "trace": 7})
    (multihop / "outcomes.jsonl").write_text("\n".join(lines) + "\n")
    answers, run_id = ViewerApi([runs]), str(multihop.relative_to(runs))
    first, second, *_ = answers.query_ids(run_id)
    with pytest.raises(DataError, match="is damaged"):
        answers(address(run_id, first))
    assert answer(answers, address(run_id, second))["steps"]


def test_run_ids_are_safe_in_links_and_each_its_own(runs, multihop):
    for name in ("a b", "a-b", "q", "<script>", "über", "a,b%2F..", "..."):
        shutil.copytree(multihop, runs / "odd" / name)
    answers = ViewerApi([runs, runs / "odd", multihop])
    ids = [run["id"] for run in answer(answers, "runs.json")["runs"]]
    assert len(ids) == len(set(ids)) == 9
    for run_id in ids:
        assert re.fullmatch(r"[\w.~-]+(/[\w.~-]+)*", run_id, re.ASCII)
        assert not {"q", "s", ".", ".."} & set(run_id.split("/"))
        assert answer(answers, f"run/{run_id}.json")["id"] == run_id


def test_the_page_is_served_with_a_policy_that_lets_only_its_own_script_run(runs):
    with served(ViewerApi([runs])) as server:
        for path, kind in {
            "/": "text/html",
            "/page.css": "text/css",
            "/page.js": "text/javascript",
        }.items():
            status, headers, body = asked(server, path)
            assert status == 200 and headers["Content-Type"].startswith(kind) and body
        assert body.decode().startswith('(() => {\n"use strict";')
        _, headers, _ = asked(server, "/data/runs.json")
        assert "default-src 'none'; script-src 'self';" in headers["Content-Security-Policy"]
        assert (
            headers["X-Content-Type-Options"] == "nosniff"
            and headers["Cache-Control"] == "no-store"
        )
        assert server.server_address[0] == "127.0.0.1"


def test_who_has_not_the_secret_is_refused_and_who_has_may_come_by_any_name(runs):
    with served(ViewerApi([runs])) as server, served(ViewerApi([runs])) as other:
        for host in (f"localhost:{server.server_port}", "machine.example:8000", "127.0.0.1:1", ""):
            assert asked(server, "/data/runs.json", Host=host)[0] == 200
        for start in (
            "",
            "/",
            "/.",
            server.root[:-2],
            server.root.swapcase()[:-1],
            other.root[:-1],
        ):
            for path in ("/", "/page.js", "/data/runs.json", "/data/../data/runs.json"):
                status, _, body = asked(server, path, start=start)
                assert (
                    status == 403
                    and b"sextant view printed" in body
                    and server.root.encode() not in body
                )


def test_what_the_browser_is_started_with_leads_to_the_page_once(runs):
    with served(ViewerApi([runs])) as server:
        once = server.address_once.removeprefix(f"http://127.0.0.1:{server.server_port}")
        status, headers, _ = asked(server, once, start="")
        assert (status, headers["Location"]) == (302, server.root) and once not in server.root
        assert asked(server, once, start="")[0] == 403


def test_other_methods_than_get_head_and_post_are_refused(runs):
    with served(ViewerApi([runs])) as server:
        status, headers, body = asked(server, "/data/runs.json", "HEAD")
        assert status == 200 and body == b"" and int(headers["Content-Length"]) > 100
        for method in ("PUT", "DELETE", "OPTIONS", "TRACE", "BREW"):
            status, headers, body = asked(server, "/", method)
            assert (
                status == 501 and json.loads(body)["error"] and "Content-Security-Policy" in headers
            )


# fmt: off
ODD = ["..", ".", "/", "//", "%2e%2e", "%2f", "data", "run", "query", ".json", "runs.json", "page.css", "etc/passwd",
       "%00", "%", "%zz", "?", "\\", "secret.txt", "config.json"]
# fmt: on
PARTS = st.sampled_from([*ODD, "obliq-congress", "a" * 5000, "é".encode().decode("latin-1")])


@pytest.fixture(scope="module")
def fuzzed(made, tmp_path_factory):
    place = Path(shutil.copytree(made, tmp_path_factory.mktemp("fuzzed") / "runs"))
    for folder in [place, *place.glob("*"), *place.glob("*/*")]:
        (folder / "secret.txt").write_text("THE-SECRET")
    with served(ViewerApi([place])) as server:
        yield server


@settings(max_examples=60)
@given(
    st.lists(
        PARTS | st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=5), max_size=9
    )
)
def test_whatever_path_is_asked_for_the_answer_is_a_page_or_a_line(fuzzed, parts):
    path = fuzzed.root + "".join(parts)
    with socket.create_connection(fuzzed.server_address, timeout=120) as connection:
        host = f"Host: 127.0.0.1:{fuzzed.server_port}\r\nConnection: close\r\n\r\n"
        connection.sendall(f"GET {path} HTTP/1.1\r\n{host}".encode("latin-1"))
        said = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, body = said.partition(b"\r\n\r\n")
    status = int(head.split()[1])
    assert status in (200, 404, 414) and b"THE-SECRET" not in body
    if status != 200:
        assert body.count(b"\n") == 1 and json.loads(body)["error"]


def test_a_port_in_use_is_said_in_a_line_and_without_one_the_next_is_taken(
    runs, command, monkeypatch
):
    answers = ViewerApi([runs])
    with page_server.open_server(answers, 0) as taken:
        code, out, err = command(runs, "--no-open", "--port", taken.server_port)
        assert (
            code == 2 and out == "" and len(err.splitlines()) == 2
        )  # the first says how many runs
        assert f"port {taken.server_port} of 127.0.0.1 cannot be served" in err
        monkeypatch.setattr(page_server, "PORT", taken.server_port)
        with page_server.open_server(answers, None) as second:
            assert taken.server_port < second.server_port < taken.server_port + 10
        monkeypatch.setattr(page_server, "PORTS", 1)
        with pytest.raises(UsageError, match="cannot be served"):
            page_server.open_server(answers, None)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["EMPTY"], 3, "holds no run folder"),
        (["EMPTY/not/there"], 3, "holds no run folder"),
        (["RUNS", "--port", "65536"], 2, "not a port from 0 to 65535"),
        (["RUNS", "--limit", "3"], 2, "are for --export"),
        (["RUNS", "--export", "EMPTY/not/there/page.html"], 2, "is no folder that can be written"),
        (["RUNS", "--export", "EMPTY"], 2, "cannot be written"),
        (["RUNS", "--export", "EMPTY/page.html", "--query", "nobody"], 2, "has a query 'nobody'"),
        (["EMPTY", "--export", "EMPTY/page.html"], 3, "holds no run folder"),
        ([], 2, "RUNS"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line(runs, tmp_path, command, arguments, code, said):
    (tmp_path / "empty").mkdir()
    places = {"RUNS": str(runs), "EMPTY": str(tmp_path / "empty")}
    words = [re.sub("RUNS|EMPTY", lambda match: places[match[0]], word) for word in arguments]
    given, out, err = command(*words)
    assert (given, out, len(err.splitlines())) == (code, "", 1) and said in err
    assert list((tmp_path / "empty").iterdir()) == []


def test_ctrl_c_ends_the_page_and_is_no_error(runs):
    with started(runs) as (process, _):
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 0
        assert "Traceback" not in process.stderr.read()


def test_runs_named_one_by_one_open_at_their_comparison_in_that_order(runs):
    folders = sorted((file.parent for file in runs.rglob("config.json")), reverse=True)
    with started(*folders) as (_, address):
        place = address.partition("#/compare/")[2]
    assert [Path(unquote(run_id)).name for run_id in place.split(",")] == [
        folder.name for folder in folders
    ]
    with started(runs) as (_, address):
        assert "#" not in address
    with started(folders[0]) as (_, address):
        assert "#" not in address


@contextmanager
def started(*arguments):
    """(the command as a process, its address)."""
    words = [
        sys.executable,
        "-m",
        "sextant.evals.view",
        *map(str, arguments),
        "--no-open",
        "--port",
        "0",
    ]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


def of_panels() -> int:
    """How many answers for each run an exported page has for panels."""
    return sum(len(panel.arguments) for panel in load_panels(()))


def test_an_exported_page_has_every_answer_and_needs_nothing_else(runs, tmp_path, command):
    file = tmp_path / "page.html"
    code, out, err = command(runs, "--export", file)
    assert (code, err) == (0, "") and "2 runs, 8 trajectories" in out and "MB" in out
    page = file.read_text(encoding="utf-8")
    assert command(runs, "--export", tmp_path / "again.html").code == 0
    assert (tmp_path / "again.html").read_text(
        encoding="utf-8"
    ) == page  # the same bytes for the same runs
    answers = ViewerApi([runs], exported=True)
    assert packed(page) == {
        path: json.loads(one) for path, one in page_server.list_answers(answers)
    }
    assert (
        len(packed(page)) == 1 + 2 * (1 + of_panels()) + 8 + 3
        and packed(page)["runs.json"]["exported"]
    )
    assert not re.search(
        r'<(link[^>]*stylesheet|script[^>]*src|img|iframe)|url\((?!["\']?data:)|@import', page
    )

    policy = re.search(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', page)
    assert policy and policy.start() < page.index("<style>") < page.index("<script")
    (program,) = re.findall("<script>(.*?)</script>", page, re.DOTALL)
    (style,) = re.findall("<style>(.*?)</style>", page, re.DOTALL)
    for name, text in {"script-src": program, "style-src": style}.items():
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{name} 'sha256-{digest}';" in policy[1]
    assert "unsafe" not in policy[1] and policy[1].startswith("default-src 'none'")


def test_an_export_may_have_some_queries_only_and_says_so(runs, multihop, tmp_path, command):
    query_ids = scored_run.read_scored_run(multihop).query_ids
    command(
        multihop,
        "--export",
        tmp_path / "page.html",
        "--query",
        query_ids[2],
        "--query",
        query_ids[0],
    )
    run = next(
        one for one in packed((tmp_path / "page.html").read_text()).values() if "query_ids" in one
    )
    assert (
        run["query_ids"] == [query_ids[0], query_ids[2]]
        and len(run["values"]["R@10"]) == len(run["fates"]) == 2
    )
    assert (
        "this file has 2 of the 4 queries; means and losses are over all of them"
        in run["scores"]["notes"]
    )
    command(runs, "--export", tmp_path / "page.html", "--limit", 1)
    assert len(packed((tmp_path / "page.html").read_text())) == 1 + 2 * (1 + of_panels()) + 2 + 3


def test_an_export_may_leave_the_corpus_at_home(multihop, tmp_path, command):
    command(multihop, "--export", tmp_path / "page.html", "--no-texts")
    queries = [
        one for one in packed((tmp_path / "page.html").read_text()).values() if "steps" in one
    ]
    assert len(queries) == 4 and all(
        one["text"] and one["objective"] and one["steps"] for one in queries
    )
    assert all(
        one["documents"] == {} and "without the texts" in one["no_documents"] for one in queries
    )


def test_an_export_leaves_out_runs_that_cannot_be_read_and_fails_without_any(
    runs, multihop, tmp_path, command
):
    (multihop / "scores.json").unlink()
    code, out, err = command(runs, "--export", tmp_path / "page.html")
    assert code == 0 and "1 run, 4 trajectories" in out and f"left out: {multihop}" in err
    assert packed((tmp_path / "page.html").read_text())["runs.json"]["unreadable"] == []
    code, out, err = command(multihop, "--export", tmp_path / "other.html")
    assert (code, out) == (3, "") and not (tmp_path / "other.html").exists()


def test_a_model_call_is_shown_as_it_was_sent_and_exported_only_where_that_is_asked_for(
    server, tmp_path, command
):
    made = run_in(
        tmp_path, "--program", "multihop", "--task", "congress", "--limit", 1, "--lm", server.spec
    )
    answers = ViewerApi([tmp_path])
    [run_id] = answers.run_ids
    [query_id] = answers.query_ids(run_id)
    steps = answer(answers, address(run_id, query_id))["steps"]
    keys = [key for step in steps for key in step.get("calls", ())]
    calls = [answer(answers, f"run/{run_id}/call/{key}.json") for key in keys]
    assert [call["messages"] for call in calls] == [body["messages"] for body in server.requests]
    assert all(
        call["finish"] == "stop" and "[[ ## completed ## ]]" in call["outputs"][0] for call in calls
    )
    for words, where in {
        "Your%20input%20fields%20are": "prompt",
        "completed": "answer of the model",
    }.items():
        hits = answer(answers, f"run/{run_id}/search/{words}.json")["hits"]
        assert (keys[0], where) in [(hit["call"], hit["where"]) for hit in hits]
        assert all(key in steps[hit["step"]]["calls"] for hit in hits if (key := hit["call"]))
    file = tmp_path / "page.html"
    for words, expected in (
        ((), set()),
        (["--prompts"], {f"run/{run_id}/call/{key}.json" for key in keys}),
    ):
        assert command(made, "--export", file, *words).code == 0
        assert {path for path in packed(file.read_text()) if "/call/" in path} == {
            path.replace(run_id, ViewerApi([made]).run_ids[0]) for path in expected
        }
    (tmp_path / "runs/answers.sqlite3").unlink()
    with pytest.raises(DataError, match="has no call"):
        answers(f"run/{run_id}/call/{keys[0]}.json")


def test_nothing_of_the_environment_or_of_this_machine_is_exported(
    folder, run, tmp_path, command, monkeypatch
):
    secret = "sk-do-not-tell-0123456789"
    monkeypatch.setenv("OPENAI_API_KEY", secret)
    (tmp_path / ".env").write_text("OTHER_KEY=in-a-dotenv-file-98765")
    made = run(
        "--program", "retrieve", "--task", "congress", "--data", folder, "--split", "all", "--json"
    )
    place = Path(made.json["run"])
    rows = [
        json.loads(line) for line in (unsealed(place) / "outcomes.jsonl").read_text().splitlines()
    ]
    rows[0] |= {"error": f"AuthError: the key {secret} is not known", "ranking": [], "scores": []}
    (place / "outcomes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    from sextant.evals import score

    assert run_command(score.parser(), score.command, [str(place)]) == 7
    assert command(place, "--export", tmp_path / "page.html")[0] == 0
    page = (tmp_path / "page.html").read_text()
    said = page + json.dumps(packed(page))
    for word in (secret, "in-a-dotenv-file", str(folder), str(Path.home()) + "/", str(tmp_path)):
        assert word not in said
    assert "the key [OPENAI_API_KEY] is not known" in said


def test_every_file_of_the_page_is_in_its_program():
    files = {panel.script.stem for panel in load_panels(()) if isinstance(panel.script, Path)}
    scripts = {*page_server.BEFORE_PANELS, *files, *page_server.AFTER_PANELS}
    assert {path.stem for path in page_server.PAGE.glob("*.js")} == scripts


def test_an_export_does_not_take_the_place_of_a_file_of_a_run(runs, multihop, command):
    file = multihop / "config.json"
    before = file.read_bytes()
    code, out, err = command(runs, "--export", file)
    assert (code, out, len(err.splitlines())) == (2, "", 1) and "is a file of the run" in err
    assert file.read_bytes() == before


GUIDE = Path(__file__).parents[4] / "docs/guide/extend.md"


def test_a_panel_in_a_file_of_the_users_own_is_on_the_page_like_ours(
    runs, multihop, tmp_path, command, monkeypatch
):
    section = GUIDE.read_text().partition("## A panel")[2]
    example = section.partition("```python\n")[2].partition("```")[0]
    (tmp_path / "times.py").write_text(example)
    (tmp_path / "broken_times.py").write_text(
        "from times import Panel\n\n\ndef fail(loaded, _):\n    return 1 / 0\n\n\n"
        'PANEL = Panel("broken", "", fail)\nTAKEN = Panel("search", "", fail)\n'
    )
    monkeypatch.chdir(tmp_path)
    result = command(runs, "--export", tmp_path / "page.html", "--panel", "times.py:PANEL")
    assert (result.code, result.err) == (0, "")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    run_id = str(multihop.relative_to(runs))
    seconds = [row[1] for row in packed(page)[f"run/{run_id}/times/all.json"]]
    assert len(seconds) == 4 and seconds == sorted(seconds, reverse=True)
    assert '{\n\naddPanel("times"' in page

    with served(ViewerApi([runs], panels=load_panels(["broken_times.py:PANEL"]))) as server:
        status, _, body = asked(server, f"/data/run/{run_id}/broken/all.json")
        assert status == 500
        assert b"ZeroDivisionError: division by zero (broken_times.py, line 5)" in body
        assert asked(server, f"/data/run/{run_id}/times/all.json")[0] == 404
    for name, reason in (
        ("broken_times.py:PANEL", "panel broken: ZeroDivisionError"),
        ("broken_times.py:TAKEN", "there is a panel 'search' already"),
        ("broken_times.py:fail", "is a function; a panel is a Panel"),
        ("timez", "no panel is called 'timez'"),
    ):
        result = command(runs, "--export", tmp_path / "other.html", "--panel", name)
        assert result.code == 2 and reason in result.err


def test_every_panel_has_a_script_that_adds_it():
    for name, panel in zip(PANELS, load_panels(()), strict=True):
        assert panel.name == name
        adds = "addQueryPanel" if panel.of_query else "addPanel"
        assert f'{adds}(\n  "{name}"' in panel.read_script().replace('l("', 'l(\n  "')


@pytest.mark.skipif(not shutil.which("node"), reason="needs Node.js")
def test_where_less_is_better_the_page_has_the_lower_point_in_front():
    page = Path(viewer_data.__file__).parent / "page"
    script = "".join((page / name).read_text() for name in ("words.js", "charts.js"))
    script += """
        LOWER = ["Flip"];
        const points = [[1, 0.5], [2, 0.3], [3, 0.4]];
        const ends = (metric) => front(points.map(([x, y]) => ({ x, worth: better(metric) * y }))).map((p) => p.x);
        console.log(JSON.stringify([ends("Flip"), ends("nDCG@10"), better("Win(1)"), better("Flip [gold]")]));
    """
    said = subprocess.run(["node", "-e", script], capture_output=True, text=True, check=True)
    assert json.loads(said.stdout) == [[1, 2], [1], 1, -1]
