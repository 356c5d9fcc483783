"""A program in a process of its own: the same outcomes, no judgement within its reach, and how it ends."""

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from bad_server import fine, latency
from conftest import ROOT
from run_folders import CONFIG
from waiting import wait_for

import environments
from agents import AGENTS
from evals import run_folder
from evals.running import runner
from evals.running.request import find_program
from programs import PROGRAMS
from programs.isolation import parent as isolated
from tools.corpus import Corpus
from tools.models import language_model
from tools.models.run_resources import RunResources
from tools.retrievers.lexical.bm25 import BM25
from tools.session import Limits, Toolbox

# A module outside of the checkout.
OUTSIDE = '''
import gc, json, os, signal, sys, time
from dataclasses import replace
from pathlib import Path
from agents import AGENTS
from programs import PROGRAMS
from tools.plugins import pick

class All:
    """Every program and agent; the query says which."""
    def __init__(self, toolbox, *, depth: int = 20):
        names = PROGRAMS | AGENTS
        self.systems = {name: pick("system", name, names)(toolbox, depth=depth) for name in names}

    def __call__(self, query):
        return self.systems[query.query_id](query=query)

class Odd:
    """Ends as the query says."""
    def __init__(self, toolbox, *, depth: int = 20):
        self.toolbox = toolbox

    def __call__(self, query):
        session = self.toolbox.open(replace(query, excluded=frozenset()))
        found = [hit.doc_id for hit in session.search(query.text, 5)]
        ends = {
            "raises": lambda: found[99],
            "exits": lambda: sys.exit("enough"),
            "hands in nothing": lambda: None,
            "guesses": lambda: session.read("nowhere"),
            "spends": lambda: [session.search(query.text) for _ in range(99)],
            "repeats": lambda: session.submit(found[:1] * 2),
            "submits": lambda: session.submit(found),
            "is killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
            "hangs": lambda: time.sleep(600),
        }
        return ends[query.query_id]()

class Hostile:
    """Looks for judgements and keys, and answers with where it has found some."""
    def __init__(self, toolbox, *, depth: int = 20, look: str = ""):
        self.toolbox, self.look = toolbox, look

    def __call__(self, query):
        session, found = self.toolbox.open(query), set()
        for path in [*Path(self.look).rglob("*.*"), Path(f"/proc/{os.getppid()}/environ")]:
            try:
                found.add(path.is_file() and path.suffix != ".py" and path.read_bytes() and "files")
            except OSError:
                pass
        try:
            import environments
            found.add(environments.load("congress", "mini").qrels and "package")
        except OSError:
            pass
        gc.unfreeze()
        if any(type(one).__name__ == "Environment" for one in gc.get_objects()):
            found.add("memory")
        frame = sys._getframe()
        while frame := frame.f_back:
            found |= {"frames"} & {"frames" if "runner.py" in frame.f_code.co_filename else ""}
        if any("KEY-OF" in value for value in os.environ.values()):
            found.add("keys")
        ranking = [hit.doc_id for hit in session.search(query.text, 5)]
        return session.submit(ranking, answer=json.dumps(sorted(filter(None, found))))
'''


@pytest.fixture
def outside(tmp_path, monkeypatch):
    place = tmp_path / "outside"
    place.mkdir()
    (place / "outside.py").write_text(OUTSIDE)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with isolated.kill_children_on_exit():
        yield str(place / "outside.py")
    sys.modules.pop("outside", None)


@pytest.fixture
def both(outside):
    """The system in a process of its own, the same here, a query, and the corpus and model of both."""

    def made(name):
        mini = environments.load("congress", "mini", "dev")
        corpus = Corpus(list(mini.documents.values())[:60])
        index = BM25(corpus)
        toolbox = Toolbox(
            corpus, index, others={"bm25": index, "dense": index}, limits=Limits(searches=30)
        )
        apart = isolated.IsolatedProgram(name, f"{outside}:{name}", [])(toolbox)
        assert "outside" not in sys.modules, "what nobody vouches for is not imported here"
        here = find_program(f"{outside}:{name}")(toolbox)
        return (
            apart,
            here,
            mini.queries[0],
            corpus,
            language_model.connect("offline", statistics=index.statistics),
        )

    return made


def timeless(outcome):
    """An outcome as it is on disk, without what no two runs have in common."""
    plain = json.loads(json.dumps(outcome))
    steps = [{**step, "started": 0, "seconds": 0} for step in plain["trace"]["steps"]]
    return {**plain, "trace": {**plain["trace"], "steps": steps}, "seconds": 0, "traceback": ""}


@pytest.mark.parametrize(
    ("name", "ways"),
    [
        ("All", sorted(PROGRAMS | AGENTS)),
        ("Odd", ["raises", "exits", "hands in nothing", "guesses", "spends", "repeats", "submits"]),
    ],
)
def test_every_program_and_agent_and_every_end_comes_out_as_it_does_without(name, ways, both):
    apart, here, query, *world = both(name)
    for way in ways:
        asked = replace(query, query_id=way)
        there, wanted = (
            runner.answer_with_model(apart, asked, *world),
            runner.answer_with_model(here, asked, *world),
        )
        assert timeless(there) == timeless(wanted) and (name == "Odd" or wanted["error"] is None), (
            way
        )
    if name == "Odd":
        first = frozenset(there["ranking"][:1])
        masked = runner.answer_with_model(apart, replace(asked, excluded=first), *world)["ranking"]
        assert masked and not first & set(masked), (
            "the program has opened its session without the mask"
        )


def test_a_process_that_dies_is_the_programs_fault_and_one_that_hangs_is_ended(
    both, place, monkeypatch
):
    apart, _, query, corpus, model = both("Odd")
    monkeypatch.setattr(runner, "GRACE", 0.2)
    queries, pending = (
        [replace(query, query_id=way) for way in ("is killed", "submits", "hangs")],
        {},
    )
    impatient = language_model.connect(
        "offline", RunResources(query_seconds=0.5), statistics=BM25(corpus).statistics
    )
    with run_folder.claim(place, CONFIG) as folder:
        runner.run_queries(apart, queries[:2], corpus, folder, model)
        runner.run_queries(
            apart, queries[2:], corpus, folder, impatient, on_pending=pending.__setitem__
        )
    error = folder.outcomes["is killed"]["error"]
    assert error == "ProcessEnded: the program's process ended by itself with exit code -9"
    assert (
        folder.outcomes.keys() == {"is killed", "submits"} and folder.outcomes["submits"]["ranking"]
    )
    assert pending.keys() == {"hangs"}


def test_a_hostile_program_finds_no_judgement_no_key_and_no_file(
    run, tmp_path, folder, outside, monkeypatch
):
    monkeypatch.setenv("SEXTANT_API_KEY", "KEY-OF-SOMEBODY")

    def found(*arguments):
        asked = f"--program {outside}:Hostile --task congress --data {folder} --split all --limit 1".split()
        result = run(*asked, "-P", f"look={tmp_path}", "--json", *arguments).json
        [outcome] = run_folder.read_outcomes(Path(result["run"])).values()
        return json.loads(outcome["answer"]), result["isolated"]

    ways, told = found("--isolated")
    assert ways == ([] if "without files" in told else ["files", "package"])
    assert found("--runs", tmp_path / "again") == (
        ["files", "frames", "keys", "memory", "package"],
        None,
    )


def test_ctrl_c_ends_the_process_and_the_same_command_goes_on_to_the_same_scores(
    shell, tmp_path, run, bad, monkeypatch
):
    (tmp_path / "t").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "t"))  # where a process has a folder of its own
    bad.script = lambda number, body: fine() if number < 3 else latency(0.5)
    arguments = [
        "--program",
        "planner",
        "--task",
        "congress",
        "--limit",
        3,
        "--lm",
        bad.spec,
        "--max-concurrent",
        1,
    ]
    arguments += ["--json", "--runs", tmp_path / "runs"]
    process = subprocess.Popen(
        [*shell, *map(str, arguments), "--isolated"], cwd=ROOT, stderr=subprocess.PIPE
    )
    wait_for(lambda: len(bad._tries) > 3, 60)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert (
        process.returncode == 130
        and b"Traceback" not in err
        and not list((tmp_path / "t").iterdir())
    )
    bad.script = lambda number, body: fine()
    apart = run(*arguments, "--isolated").json
    assert apart["usage"]["calls"] == len(bad.paid), "nothing was paid for twice"
    here = run(*arguments[:-1], tmp_path / "again").json
    assert (apart["metrics"], apart["usage"]["calls"]) == (here["metrics"], here["usage"]["calls"])
