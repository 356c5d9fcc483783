"""Every test has a home and a working folder of its own, no model key, and no network to lean on."""

import json
import os
import resource
import signal
import ssl
import subprocess
import sys
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

os.environ |= {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}
# Workers of pytest-xdist have a width of 80 in it, and lines in a pipe stay whole without it.
os.environ.pop("COLUMNS", None)

# What a shell starts in the background ignores Ctrl-C, and so would every process that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest
from bad_server import BadServer
from chromium import Watched, chromium
from hypothesis import settings
from openai_server import OpenAIServer
from results import Result

from sextant import PACKAGES
from sextant.tools.corpus import Corpus
from sextant.tools.platform import waiting
from sextant.tools.session import set_current

ROOT = Path(__file__).parent
PRODUCT = (*PACKAGES, "construction/sextant_construction")  # the folders of what is installed

settings.register_profile("fast", deadline=None, max_examples=40)  # a slow machine fails nothing
settings.load_profile("fast")


@pytest.fixture(autouse=True)
def own_surroundings(tmp_path, monkeypatch):
    set_current(None)  # a session that another test left open
    monkeypatch.setenv("SEXTANT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NO_COLOR", "1")
    # A slow machine must not add a line to what a command says.
    monkeypatch.setattr(waiting, "LOG_SECONDS", 60.0)
    keys = (
        "SEXTANT_LM SEXTANT_API_KEY OPENAI_API_KEY GEMINI_API_KEY OPENAI_BASE_URL OPENAI_API_BASE"
    )
    for name in keys.split():
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def run(tmp_path, command_of):
    """`sextant run ARGUMENTS`, in this process."""
    from sextant.evals import run as module

    command = command_of(module)
    return lambda *words: command(
        *words, *(() if "--runs" in words else ("--runs", tmp_path / "runs"))
    )


@pytest.fixture
def place(tmp_path):
    """A run folder with nothing in it, RUNS/TASK/NAME; no other test has its RUNS."""
    made = tmp_path / "runs" / "task" / "run"
    made.mkdir(parents=True)
    return made


@pytest.fixture
def command_of(capsys):
    """A module's command line, in this process: `command_of(module)(*arguments)`."""

    def of(module):
        def command(*arguments: object) -> Result:
            from sextant.tools.platform.cli import run_command

            capsys.readouterr()
            code = run_command(
                module.parser(), module.command, [str(argument) for argument in arguments]
            )
            return Result(code, *capsys.readouterr())

        return command

    return of


@pytest.fixture
def shell():
    """The same as a process of its own, for what only a process can show."""
    return [sys.executable, "-m", "sextant.evals.run"]


@pytest.fixture
def server():
    """A local server that speaks the OpenAI protocol; tests say what it answers."""
    with closing(OpenAIServer()) as made:
        yield made


@pytest.fixture
def bad():
    """A server that does what it is told to do wrong, and keeps books of its own."""
    with closing(BadServer()) as made:
        yield made


@pytest.fixture
def elsewhere():
    """Another server of that kind, to which nobody has been sent by the user."""
    with closing(BadServer()) as made:
        yield made


@pytest.fixture(scope="module")
def browser():
    """Chromium without a window; the test is skipped where there is none."""
    with chromium() as started:
        with Watched(
            started
        ) as watched:  # the first page of a browser takes longer, whatever it shows
            watched.page.goto("data:text/html,")
        yield started


@pytest.fixture
def little_room():
    """`with little_room(BYTES)`: no file may grow larger, as on a full disk, which nobody has to fill."""

    @contextmanager
    def limited(size):
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return limited


@pytest.fixture(scope="session")
def certificate_folder(tmp_path_factory):
    """A folder with a certificate for this machine that nobody vouches for, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    names = "subjectAltName=DNS:localhost,DNS:provider.example,IP:127.0.0.1"
    files = ["-keyout", folder / "key.pem", "-out", folder / "cert.pem"]
    made = subprocess.run([*command.split(), "-addext", names, *files], capture_output=True)
    if made.returncode:
        pytest.skip("openssl cannot make a certificate here")
    return folder


@pytest.fixture
def certificate(certificate_folder):
    """The file of the certificate, and a server's side of it, which a test may change."""
    folder = certificate_folder
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return folder / "cert.pem", context


@pytest.fixture(scope="session")
def corpus() -> Corpus:
    from sextant.tools.retrievers.contract import CORPUS

    return CORPUS


@pytest.fixture
def folder(tmp_path):
    """A data folder in OBLIQ-Bench's layout, with seven documents and four queries, to be spoilt."""
    place = tmp_path / "data" / "tip-of-tongue" / "congress"
    (place / "corpus").mkdir(parents=True)
    (place / "queries+qrels").mkdir()
    words = ["ferry", "dam", "bridge", "nurse", "pension", "orchard", "radio"]
    documents = [
        {"_id": f"D{n}", "text": f"The committee heard about the {word}."}
        for n, word in enumerate(words)
    ]
    queries = [
        {"_id": f"Q{n}", "text": f"Something about a {word}?"} for n, word in enumerate(words[:4])
    ]
    lines(place / "corpus/corpus.jsonl", map(json.dumps, documents))
    lines(place / "queries+qrels/queries.jsonl", map(json.dumps, queries))
    lines(
        place / "queries+qrels/qrels.tsv",
        ["query-id\tcorpus-id\tscore", *(f"Q{n}\tD{n}\t1" for n in range(4))],
    )
    return tmp_path / "data"


def on_congress(program: str, limit: int) -> tuple[object, ...]:
    """Return the arguments of a run over the first development queries of the small congress."""
    return ("--program", program, "--task", "congress", "--split", "dev", "--limit", limit)


def lines(path: Path, rows) -> None:
    path.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")


class Compiled(NamedTuple):
    code: int
    out: str
    err: str
    files: list[str]  # in the runs folder


@pytest.fixture
def compiles(tmp_path, command_of):
    """`sextant compile` in this process; `words` may have other values for what it has by itself."""
    from sextant.optimizers import compile

    def command(
        *words,
        program="multihop",
        task="congress",
        optimizer="bootstrap_rs",
        data="mini",
        runs=None,
    ):
        runs = runs or tmp_path / "runs"
        given = {
            "--program": program,
            "--task": task,
            "--optimizer": optimizer,
            "--data": data,
            "--runs": runs,
        }
        line = [word for name, value in given.items() if value for word in (name, value)]
        result = command_of(compile)(*line, *words)
        return Compiled(
            *result,
            sorted(str(path.relative_to(runs)) for path in runs.rglob("*") if path.is_file()),
        )

    return command


@pytest.fixture
def compiled(compiles, tmp_path):
    """Compiles something small in a folder of its own; its compiled.json."""

    def made(name, *words, **others):
        assert (
            compiles(*words, **{"optimizer": "labeled", "runs": tmp_path / name} | others).code == 0
        )
        [file] = (tmp_path / name).glob("compiled/*/*/compiled.json")
        return file

    return made


SMALL_NODE = {"num_cpus": 1, "object_store_memory": 100_000_000}


@pytest.fixture(scope="module")
def ray_nodes(tmp_path_factory):
    """A head without a place for work, and two nodes with one each; this process is not connected to it."""
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install '.[ray]'")
    from ray.cluster_utils import Cluster

    # A busy machine takes longer than Ray waits for a node.
    os.environ |= {
        "RAY_raylet_start_wait_time_s": "300",
        "RAY_worker_register_timeout_seconds": "300",
    }
    started = Cluster(
        initialize_head=True,
        head_node_args=SMALL_NODE | {"num_cpus": 0, "include_dashboard": False},
    )
    for number in (1, 2):
        own = {
            "SEXTANT_HOME": str(tmp_path_factory.mktemp(f"node{number}")),
            "SEXTANT_API_KEY": f"of-node-{number}",
        }
        started.add_node(**SMALL_NODE, env_vars=own)
    yield started
    ray.shutdown()
    started.shutdown()


@pytest.fixture
def cluster(ray_nodes, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", ray_nodes.address)
    return ray_nodes
