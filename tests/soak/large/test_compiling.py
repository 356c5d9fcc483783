"""Compiling from end to end, with a model whose skill depends on its prompt (tests/support/prompted_model.py).

A prompt that is better is found by every optimizer, and is worth as much on queries that it was not chosen by, and in
another process; where a prompt changes nothing, or nothing but chance, nothing is reported.
"""

import io
import json
import subprocess
import sys
from collections import defaultdict
from contextlib import closing, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from conftest import ROOT
from prompted_model import ANGLE, STRICT, TRANSCRIPT, Asked, Model, Server, read, write_task

from sextant.evals import run as run_module
from sextant.evals.scoring.comparison import compare
from sextant.optimizers import compile as compile_module
from sextant.tools.platform.cli import run_command

PROGRAM = ("--program", "multihop", "--task", "congress", "-P", "hops=2", "-P", "per_hop=10")
SETTINGS = {
    "bootstrap_rs": ("-O", "demos=2", "-O", "candidates=2"),
    "mipro": ("-O", "demos=2", "-O", "candidates=3", "-O", "trials=5"),
    "copro": ("-O", "breadth=5", "-O", "depth=1"),
    # Sampled answers to one prompt come in the order in which threads ask: with one thread always in the same.
    "simba": ("-O", "candidates=6", "-O", "steps=1", "--max-concurrent", 1),
    "gepa": ("-O", "evaluations=6"),
}
MAIN = tuple(SETTINGS)
HELD_OUT = 30  # of the 80 test queries


def called(module, *words: object) -> dict:
    """What `python -m MODULE WORDS --json` prints, in this process."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = run_command(module.parser(), module.command, [*map(str, words), "--json"])
    assert code == 0, err.getvalue()
    return json.loads(out.getvalue())


class Place:
    """A task, the servers that know it, and the runs on it. What was compiled once is not compiled again."""

    def __init__(self, folder: Path, queries: int, train_share: float, seed: int) -> None:
        self.folder = folder
        self.train_share = train_share
        self.known = write_task(folder / "data", queries, seed)
        self.servers: list[Server] = []
        self.server = self.serve()
        self._compiled: dict[str, dict] = {}
        self.sent: dict[str, set[str]] = {}  # by optimizer, the requests of its compilation

    def serve(self, **kind: object) -> Server:
        self.servers.append(Server(Model(self.known, **kind)))
        return self.servers[-1]

    def about(self, lm: str = "") -> tuple:
        return (
            "--data",
            self.folder / "data",
            "--lm",
            lm or self.server.spec,
            "--runs",
            self.folder / "runs",
        )

    def run(self, *words: object, program: tuple = PROGRAM, lm: str = "") -> dict:
        return called(run_module, *program, *self.about(lm), *words)

    def compile(self, optimizer: str, *words: object, lm: str = "") -> dict:
        for server in self.servers:
            server.model.forget()  # what a test finds does not depend on those before it
        how = ("--train-share", self.train_share, "--folds", 1, "--optimizer", optimizer)
        return called(compile_module, *PROGRAM, *self.about(lm), *how, *words)

    def compiled(self, optimizer: str) -> dict:
        if optimizer not in self._compiled:
            before = len(self.server.requests)
            self._compiled[optimizer] = self.compile(optimizer, *SETTINGS[optimizer])
            self.sent[optimizer] = {json.dumps(body) for body in self.server.requests[before:]}
        return self._compiled[optimizer]

    def close(self) -> None:
        for server in self.servers:
            server.close()


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """100 queries: 8 to train on (the plain model finds 3 of them), 12 to validate (1), 80 to test."""
    with closing(Place(tmp_path_factory.mktemp("large"), 100, 0.4, seed=12)) as place:
        yield place


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """45 queries: 4 to train on (the plain model finds 2 of them), 5 to validate (none), 36 to test."""
    with closing(Place(tmp_path_factory.mktemp("small"), 45, 0.5, seed=14)) as place:
        yield place


ANOTHER = """
import io, json, sys
from contextlib import redirect_stdout
from sextant.evals import run
from sextant.tools.platform.cli import run_command
for line in sys.stdin:
    out = io.StringIO()
    with redirect_stdout(out):
        code = run_command(run.parser(), run.command, json.loads(line))
    print(json.dumps([code, out.getvalue()]), flush=True)
"""


class Elsewhere:
    """Another process, in which nothing is compiled."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", ANOTHER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def run(self, *words: object) -> dict:
        self._process.stdin.write(json.dumps([str(word) for word in words]) + "\n")
        self._process.stdin.flush()
        code, out = json.loads(self._process.stdout.readline())
        assert code == 0, out
        return json.loads(out)

    def close(self) -> None:
        self._process.communicate(timeout=20)  # which closes its input, and so ends it


@pytest.fixture(scope="module")
def elsewhere():
    with closing(Elsewhere()) as made:
        yield made


def prompts(file: str) -> dict:
    return json.loads(Path(file).read_text(encoding="utf-8"))["prompts"]


def validated(found: dict) -> list[dict]:
    """The means of candidates on validation, in the order in which they came."""
    return [row["validation"] for row in rows(found) if "validation" in row]


def rows(found: dict) -> list[dict]:
    """The candidates of a compilation."""
    file = Path(found["compiled"]).with_name("candidates.jsonl")
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def rankings(run: dict) -> dict[str, list[str]]:
    """query_id -> the ranking of a run."""
    lines = (Path(run["run"]) / "outcomes.jsonl").read_text(encoding="utf-8").splitlines()
    return {row["query_id"]: row["ranking"] for row in map(json.loads, lines)}


def skills(place: Place, file: str) -> set[str]:
    """The tips that a compiled program gives its predictors, in words or by demonstrations."""
    model, found = place.server.model, set()
    for prompt in prompts(file).values():
        demos = [
            {
                name: value if isinstance(value, str) else json.dumps(value)
                for name, value in demo.items()
            }
            for demo in prompt["demos"]
        ]
        found |= model.taught(
            Asked(" ".join(prompt["instructions"].split()), (), tuple(demos), {}, 0.0)
        )
    return found


def test_the_plain_program_has_none_of_the_skills(large):
    result = large.run("--split", "dev", "--limit", 10)
    assert result["metrics"]["nDCG@10"]["mean"] < 0.3
    texts = "\n".join(large.server.prompts)
    assert not any(tip in texts for tip in (TRANSCRIPT, ANGLE, STRICT))


@pytest.mark.parametrize("optimizer", MAIN)
def test_every_optimizer_gains_on_validation_and_on_test_and_a_new_process_keeps_it(
    large, elsewhere, optimizer
):
    found = large.compiled(optimizer)
    assert found["kept"] == "compiled"
    [gain] = found["on_validation"][0]["comparisons"]
    assert gain["p_holm"] < 0.05 and gain["difference"] > 0.2
    ties = 0.01  # of R@100, which candidates are chosen by, too
    difference = found["after"]["mean"] - found["before"]["mean"]
    assert difference == pytest.approx(gain["difference"], abs=ties)
    assert TRANSCRIPT in skills(large, found["compiled"])
    # On test, where the compiled program is run by a process that has never compiled anything.
    compiled = (*PROGRAM[:4], "--compiled", found["compiled"], *large.about(), "--json")
    before = large.run("--limit", HELD_OUT)
    after = elsewhere.run(*compiled, "--limit", HELD_OUT)
    compared = compare([Path(before["run"]), Path(after["run"])])
    row = next(one for one in compared["comparisons"] if one["metric"] == "nDCG@10")
    assert row["difference"] > 0.2 and row["p_holm"] < 0.05 and row["queries"] == HELD_OUT
    # On dev, where the optimizer evaluated it: the same bytes are sent, and the same documents found.
    evaluated = rankings({"run": found["on_validation"][0]["runs"][-1]})
    sent = len(large.server.requests)
    asked = [word for query_id in evaluated for word in ("--query-id", query_id)]
    again = elsewhere.run(
        *compiled, "--split", "dev", *asked, "--runs", large.folder / "again" / optimizer
    )
    assert rankings(again) == evaluated
    requests = {json.dumps(body) for body in large.server.requests[sent:]}
    # What an optimizer before it has asked is not sent once more: answers are shared.
    assert len(requests) >= 3 * len(evaluated) and requests <= set().union(*large.sent.values())


@pytest.mark.parametrize("optimizer", MAIN)
def test_with_a_model_that_ignores_its_prompt_no_optimizer_reports_a_gain(small, optimizer):
    server = small.serve(ignores=True, lucky=0.6)
    found = small.compile(optimizer, *SETTINGS[optimizer], lm=server.spec)
    assert found["kept"] == "before"  # of equal ones, the one that was there
    assert (
        found["before"]["mean"] > 0 and len(rows(found)) > 1
    )  # it had some skill, others were tried
    whole = [row for row in validated(found) if row["queries"] == found["before"]["queries"]]
    assert {row["mean"] for row in whole} == {found["before"]["mean"]}
    if optimizer == "gepa":
        words = ("--limit", 6, "--compiled", found["compiled"])
        runs = [
            small.run("--limit", 6, lm=server.spec),
            small.run(*words, program=PROGRAM[:4], lm=server.spec),
        ]
        compared = compare([Path(result["run"]) for result in runs])
        assert {row["difference"] for row in compared["comparisons"]} == {0.0}


def test_with_a_model_whose_answers_are_chance_no_corrected_gain_is_significant(large):
    """The best of several candidates is better by chance; over three divisions of dev that is not taken for a gain."""
    server = large.serve(noisy=True)
    differences, spreads = [], []
    for seed in range(3):
        found = large.compile(
            "bootstrap_rs", *SETTINGS["bootstrap_rs"], "--split-seed", seed, lm=server.spec
        )
        for compared in found.get("on_validation", ()):
            [gain] = compared["comparisons"]
            assert gain["p_holm"] >= 0.05, gain
            assert gain["p_holm"] == min(1.0, gain["p"] * found["candidates"])
        differences.append(found["after"]["mean"] - found["before"]["mean"])
        spreads.append(len({row["mean"] for row in validated(found)}))
    assert max(differences) > 0 and max(spreads) > 2  # there was something to be taken in by
    assert min(differences) >= 0  # the program before is kept where nothing is better


def test_a_teachers_demonstrations_teach_a_student_that_has_no_skill_of_its_own(small):
    student, teacher = small.serve(lucky=0.0), small.serve(able=True)
    alone = small.compile("bootstrap", lm=student.spec)
    assert alone["kept"] == "before" and alone["after"]["mean"] == 0
    taught = small.compile(
        "bootstrap", "-O", "demos=3", "--teacher", teacher.spec, "--held-out", lm=student.spec
    )
    assert teacher.requests and not any(read(body).demos for body in teacher.requests)
    [gain] = taught["on_validation"][0]["comparisons"]
    assert taught["kept"] == "compiled" and gain["losses"] == 0
    demos = [demo for prompt in prompts(taught["compiled"]).values() for demo in prompt["demos"]]
    assert demos and skills(small, taught["compiled"]) == {TRANSCRIPT, ANGLE, STRICT}
    said = json.dumps([body["messages"] for body in teacher.requests])
    assert all(demo["description"] in said for demo in demos)
    row = taught["held_out"][0]["comparisons"][0]
    assert row["difference"] > 0.5 and row["p_holm"] < 0.05


def test_prompts_of_a_users_own_are_where_compiling_starts_and_a_rival_to_the_end(small, tmp_path):
    file, server = tmp_path / "own.toml", small.serve(lucky=0.0)
    file.write_text(
        f'["reader.next_search"]\ninstructions = "Write the next search. {TRANSCRIPT} {ANGLE}"\n'
    )
    found = small.compile("gepa", *SETTINGS["gepa"], "--start", file, "--held-out", lm=server.spec)
    _, start, *_ = (row["mean"] for row in validated(found))
    assert found["kept"] == "compiled" and found["after"]["mean"] > start > found["before"]["mean"]
    assert skills(small, found["compiled"]) == {TRANSCRIPT, ANGLE, STRICT}
    # The start and what was compiled, against the program as it is.
    assert len(found["held_out"][0]["runs"]) == 2
    # From the best there is nothing better is found, and that is what is kept and taken up.
    again = small.compile("labeled", "--start", found["compiled"], "--held-out", lm=server.spec)
    assert again["kept"] == "start"
    assert prompts(again["compiled"]) == prompts(found["compiled"])
    assert [row["difference"] > 0.5 for row in again["held_out"][0]["comparisons"]] == [True]


def test_a_teacher_is_asked_in_the_steps_of_better_together_too(small):
    student, teacher = small.serve(lucky=0.0), small.serve(able=True)
    words = ("-O", "strategy=labeled -> bootstrap", "--teacher", teacher.spec)
    found = small.compile("better_together", *words, lm=student.spec)
    assert teacher.requests and skills(small, found["compiled"]) == {TRANSCRIPT, ANGLE, STRICT}


@pytest.mark.parametrize("optimizer", ["copro", "gepa"])
def test_the_prompt_model_writes_instructions_and_nothing_else(small, optimizer):
    student, writer = small.serve(), small.serve()
    small.compile(optimizer, *SETTINGS[optimizer], "--prompt-lm", writer.spec, lm=student.spec)
    assert writer.model.proposals == len(writer.requests) > 0
    assert student.model.proposals == 0 and student.requests
    assert {body["temperature"] for body in student.requests} == {0.0}
    assert {body["temperature"] for body in writer.requests} == {1.0}


@pytest.mark.parametrize(
    ("optimizer", "words"),
    [
        ("labeled", ("-O", "k=2")),
        ("infer_rules", ("-O", "candidates=1")),
        ("better_together", ("-O", "strategy=bootstrap -> gepa")),
    ],
)
def test_an_optimizer_runs_to_its_end_and_a_run_takes_up_what_it_made(small, optimizer, words):
    found = small.compile(optimizer, *words)
    assert found["stopped"] == "" and found["kept"] == "compiled", found["candidates"]
    before = len(small.server.requests)
    run = small.run("--limit", 3, "--compiled", found["compiled"], program=PROGRAM[:4])
    config = json.loads((Path(run["run"]) / "config.json").read_text(encoding="utf-8"))
    assert config["compiled"]["optimizer"] == optimizer and config["parameters"]["hops"] == 2
    shown = {
        demo["description"] for body in small.server.requests[before:] for demo in read(body).demos
    }
    made = prompts(found["compiled"]).values()
    assert shown == {demo["description"] for prompt in made for demo in prompt["demos"]}


def test_neighbours_give_each_query_demonstrations_of_its_own(small):
    server, teacher = small.serve(lucky=0.0), small.serve(able=True)
    found = small.compile("knn", "-O", "k=1", "--teacher", teacher.spec, lm=server.spec)
    assert found["kept"] == "compiled"
    body = json.loads(Path(found["compiled"]).read_text(encoding="utf-8"))
    assert (
        len(body["neighbours"]) == 4
    )  # all of the training queries, because the teacher does well on all
    before = len(server.requests)
    small.run("--limit", 12, "--compiled", found["compiled"], program=PROGRAM[:4], lm=server.spec)
    shown = defaultdict(set)
    for request in server.requests[before:]:
        asked = read(request)
        shown[asked.fields["description"]].add(tuple(demo["description"] for demo in asked.demos))
    assert len(shown) == 12 and all(
        len(demos) == 1 for demos in shown.values()
    )  # the same in every call of a query
    assert set().union(*shown.values()) <= {(row["text"],) for row in body["neighbours"]}
    assert len(set().union(*shown.values())) > 1


def test_an_ensemble_ranks_by_the_reciprocal_ranks_of_its_members(small):
    members = [small.compile("labeled", "-O", "k=2"), small.compile("bootstrap", "-O", "demos=1")]
    files = [member["compiled"] for member in members]
    found = small.compile("ensemble", *(word for file in files for word in ("--of", file)))
    assert found["kept"] == "compiled"
    files.append(found["compiled"])
    runs = [small.run("--limit", 4, "--compiled", file, program=PROGRAM[:4]) for file in files]
    first, second, fused = map(rankings, runs)
    assert first != second and len(fused) == 4
    for query_id, ranking in fused.items():
        points = defaultdict(float)
        for member in (first, second):
            for rank, doc_id in enumerate(member[query_id], start=1):
                points[doc_id] += 1 / (60 + rank)
        assert set(ranking) <= set(points)
        assert [points[doc_id] for doc_id in ranking] == sorted(points.values(), reverse=True)[
            : len(ranking)
        ]


@pytest.mark.parametrize(
    ("agent", "optimizer", "words"),
    [
        ("planner", "gepa", ("-O", "evaluations=1")),
        ("react", "bootstrap", ("-O", "demos=1", "-P", "steps=4")),
        ("notes", "gepa", ("-O", "evaluations=1", "-P", "hops=2")),
        ("verifier", "bootstrap", ("-P", "retrievers=bm25", "-P", "rounds=2", "-P", "verify=20")),
    ],
)
def test_an_agent_is_compiled_without_a_model_and_its_file_is_taken_up(
    tmp_path, agent, optimizer, words
):
    about = (
        "--program",
        agent,
        "--task",
        "congress",
        "--data",
        "mini",
        "--runs",
        tmp_path / "runs",
    )
    found = called(
        compile_module, *about, "--optimizer", optimizer, "--limit", 4, "--metric", "R@100", *words
    )
    assert found["after"]["mean"] >= found["before"]["mean"]
    run = called(run_module, *about, "--limit", 2, "--compiled", found["compiled"])
    config = json.loads((Path(run["run"]) / "config.json").read_text(encoding="utf-8"))
    assert config["compiled"]["optimizer"] == optimizer
    if agent == "react":  # whose demonstrations the other interface would not show
        assert config["parameters"]["interface"] == "dspy"
