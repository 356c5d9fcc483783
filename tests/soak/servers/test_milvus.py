"""Milvus: its own server of 2.3.5, which knows vectors alone, and milvus-lite's, which knows BM25, too."""

import json
import math
import re
import socket
import subprocess
import sys
from collections import Counter
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from conftest import ROOT
from tiny_models import bert
from waiting import wait_for

from sextant.tools.errors import DataError, RunIncomplete
from sextant.tools.retrievers import FILLS, build, canonicalize, contract, milvus

pymilvus = pytest.importorskip("pymilvus", reason="pip install '.[milvus]'")
SERVERS = ("milvus-lite", "milvus-server")  # the second is of the package milvus==2.3.5
WORDS = "milvus({},analyzer=standard)"


@contextmanager
def started(command, folder):
    if not (program := Path(sys.executable).with_name(command)).exists():
        pytest.skip(f"there is no {command}: pip install milvus-lite milvus==2.3.5")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    options = ["server", "--data-dir", folder, "--host", "127.0.0.1", "--port", port]
    options = options if command == "milvus-lite" else ["--data", folder, "--proxy-port", port]
    process = subprocess.Popen(
        [program, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_for(lambda: process.poll() is not None or answers(f"http://127.0.0.1:{port}"))
        yield f"http://127.0.0.1:{port}", process
    finally:
        process.kill() if command == "milvus-lite" else process.send_signal(2)
        process.wait()


def answers(url):
    try:
        with closing(pymilvus.MilvusClient(url, timeout=1)) as client:
            return client.list_collections() is not None
    except pymilvus.MilvusException:
        return False


@pytest.fixture
def lite(tmp_path):
    with started("milvus-lite", tmp_path / "lite") as (url, _):
        yield url


@pytest.fixture
def fills(monkeypatch):
    monkeypatch.setattr(milvus, "WAITS", ())
    token = FILLS.set(True)
    yield
    FILLS.reset(token)


@pytest.mark.parametrize("command", SERVERS)
def test_both_kinds_keep_the_contract_of_retrievers(command, tmp_path, fills):
    with started(command, tmp_path / "data") as (url, _):
        specs = [f"milvus_vectors:dense:{bert(tmp_path / 'bert')}(url={url})", WORDS.format(url)]
        for spec in specs if command == "milvus-lite" else specs[:1]:
            assert {
                holds: wrong for holds, wrong in contract.run(canonicalize(spec)) if wrong
            } == {}


def test_scores_are_those_of_the_formula(
    lite, fills
):  # with k1 1.5, which is milvus-lite's; Milvus has 1.2
    found = build(WORDS.format(lite), contract.CORPUS).search("blue blood octopus", 6)
    words = {
        doc_id: Counter(re.findall(r"\w+", one.text.lower()))
        for doc_id, one in contract.CORPUS.items()
    }
    mean, scores = sum(sum(one.values()) for one in words.values()) / 6, Counter[str]()
    for word in ("blue", "blood", "octopus"):
        having = sum(word in one for one in words.values())
        for doc_id, one in words.items():
            length = 1.5 * (0.25 + 0.75 * sum(one.values()) / mean)
            scores[doc_id] += (
                math.log(1 + (6.5 - having) / (having + 0.5))
                * one[word]
                * 2.5
                / (one[word] + length)
            )
    assert dict(found) == pytest.approx(
        {doc_id: score for doc_id, score in scores.items() if score}
    )


def test_an_index_that_changes_under_a_run_is_no_longer_searched(tmp_path, fills):
    with started("milvus-lite", tmp_path) as (url, process):
        made = build(WORDS.format(url), contract.CORPUS)
        made._client.delete(made._name, ids=[0])
        with pytest.raises(
            DataError,
            match=r"has version milvus_lite.*, 5 documents, and not .* 6 documents; .*push",
        ):
            made.search("blood", 3)
        with pytest.raises(DataError, match=r"and not version 2\.6\.1"):
            build(WORDS.format(url)[:-1] + ",server=2.6.1)", contract.CORPUS)
        build(WORDS.format(url), contract.CORPUS)  # puts it right
        assert len(made.search("blood", 6)) == 5
        process.kill()
        with pytest.raises(RunIncomplete, match="the same command goes on"):
            made.search("blood", 3)


def test_a_push_that_was_killed_goes_on_and_a_run_before_its_end_says_so(lite, tmp_path, run):
    documents = ({"_id": f"d{n}", "text": f"w{n % 97} w{n % 89} octopus"} for n in range(8000))
    (tmp_path / "corpus.jsonl").write_text("\n".join(map(json.dumps, documents)))
    (tmp_path / "queries.jsonl").write_text(json.dumps({"_id": "q", "text": "w3 w5"}))
    (tmp_path / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nq\td3\t1\n")
    spec, words = WORDS.format(lite), ("--task", str(tmp_path))
    push = [sys.executable, "-m", "sextant.tools.retrievers", "push", spec, *words]
    client = pymilvus.MilvusClient(lite)

    def count():
        return sum(
            client.query(name, output_fields=["count(*)"])[0]["count(*)"]
            for name in client.list_collections()
        )

    process = subprocess.Popen(push, cwd=ROOT)
    wait_for(lambda: process.poll() is not None or count() >= 1000)
    process.kill()
    process.wait()
    left = count()
    result = run("--program", "retrieve", *words, "--retriever", spec)
    assert 1000 <= left < 8000 and result.code == 3 and "sextant retrievers push" in result.err
    for _ in range(2):
        assert (
            subprocess.run(push, cwd=ROOT, capture_output=True, text=True, check=True).stdout.count(
                "8,000"
            )
            == 1
        )
        assert count() == 8000
    assert run("--program", "retrieve", *words, "--retriever", spec).code == 0
