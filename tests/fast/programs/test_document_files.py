"""Documents as files of an agent: what rg, sed and cat show of them, keep back, trace and refuse."""

import json
import os
import random
import subprocess
import sys
from contextlib import contextmanager

import pytest
from conftest import ROOT
from rest_client import outcomes

pytest.importorskip("mcp")

from sextant.agents.react import React
from sextant.environments import load
from sextant.environments.base import Judgements
from sextant.evals.scoring.attribution import attribute
from sextant.evals.serving.mcp import open_clients
from sextant.programs.document_files import COMMANDS, give_files, locate, name_document
from sextant.programs.external_agent import Served
from sextant.tools.corpus import Corpus
from sextant.tools.errors import UsageError
from sextant.tools.records import Document, Query, trace_json
from sextant.tools.retrievers.lexical.bm25 import BM25
from sextant.tools.session import Limits, Toolbox

WORDS = ["ferry", "Dam", "a.b", "nurse", "pension", "café", "radio (1)", r"x\Ey"]
DRAW = random.Random(5)
IDS = [*(f"d{n}" for n in range(40)), "a/b", "über", "x%41.txt", "half \ud800", "..", "a b"]
CORPUS = Corpus(
    Document(
        doc_id,
        "\n".join(" ".join(DRAW.choices(WORDS, k=4)) for _ in range(DRAW.randint(0, 9)))
        + f"\nmark{number}"
        + DRAW.choice(["", "\n"]),
    )
    for number, doc_id in enumerate(IDS)
)
INDEX = BM25(CORPUS)
ALL = Query("q", "a nurse on the ferry")
AGENT = """
import os, subprocess, sys, anyio, mcp_agents

def shell(line):
    folder = os.environ["SEXTANT_FILES"]
    done = subprocess.run(line, shell=True, capture_output=True, text=True, cwd=folder, stdin=subprocess.DEVNULL)
    return done.stdout + done.stderr

first, second, third, unread = sorted(os.listdir(os.environ["SEXTANT_FILES"]))[:4]
said = [
    shell(f"rg -n -i 'FERR(y|ies)' {first}"),
    shell(f"sed -n '1,2p' $SEXTANT_FILES/{second}; cat {third}"),
    shell(f"echo 1 | cat; rg --pcre2 x; cat gone.txt; cat {first} {second}"),
]

async def submit():
    async with mcp_agents.come_in(os.environ["SEXTANT_MCP_URL"], os.environ["SEXTANT_TOKEN"]) as client:
        said.append(await mcp_agents.call(client, "submit", doc_ids=[first, unread.removesuffix(".txt"), "no"]))

anyio.run(submit)
print(*said, sep="\\n")
"""


class Agent:
    """Gives commands as a process of an agent's does."""

    def __init__(self, episode, token, server, root):
        self.episode = episode
        self.root = root
        self._environment = {
            "PATH": f"{COMMANDS}:{os.environ['PATH']}",
            "SEXTANT_MCP_URL": server["url"],
            "SEXTANT_TOKEN": token,
            "SEXTANT_FILES": str(root),
            "LC_ALL": "C.UTF-8",
        }

    def run(self, *words, stdin=subprocess.DEVNULL, shown_by=None):
        """Return code, stdout and stderr of a command in the folder of the files."""
        done = subprocess.run(
            words,
            cwd=self.root,
            env=self._environment if shown_by is None else {"LC_ALL": "C.UTF-8"},
            capture_output=True,
            stdin=stdin,
            check=False,
        )
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    @property
    def steps(self):
        return self.episode.desk.session.trace.steps


@contextmanager
def agent(folder, query=ALL, corpus=CORPUS, **limits):
    toolbox = Toolbox(corpus, INDEX, limits=Limits(**limits))
    folder.mkdir(exist_ok=True)
    with open_clients().admit(toolbox, 100, query, "files") as (episode, token, server):
        yield Agent(episode, token, server, give_files(episode.desk, corpus, query, folder))


def file_of(doc_id):
    return f"./{locate(doc_id, CORPUS)}"


def test_an_agent_reads_files_by_commands_and_the_trace_has_what_they_showed(run, tmp_path):
    (tmp_path / "agent.py").write_text(AGENT)
    script = f"PYTHONPATH={ROOT / 'tests' / 'support'} {sys.executable} {tmp_path / 'agent.py'}"
    result = run(
        *("--task", "congress", "--split", "dev", "--limit", 1, "--runs", tmp_path / "runs"),
        *("--program", f"command:env {script}", "--tools", "files", "-P", "max_reads=3"),
    )
    assert result.code == 0, result.err
    (outcome,) = outcomes(tmp_path / "runs").values()
    documents = load("congress").documents
    first, second, third, unread = sorted(documents)[:4]
    steps = outcome["trace"]["steps"]
    assert [(step["tool"], step["doc_ids"]) for step in steps[:6]] == [
        ("files", []),
        ("grep", [first]),
        ("read", [second]),
        ("read", [third]),
        ("read", [first]),
        ("read", []),
    ]
    said = outcome["trace"]["notes"][-1]
    for step in steps[1:5]:
        text = documents[step["doc_ids"][0]].text
        for start, end in step.get("spans", [[[0, step["shown"][0]]]])[0]:
            assert text[start:end].strip() in said
    assert "all 3 read calls" in steps[5]["refused"] and steps[5]["refused"] in said
    assert "only rg [-i" in said and "gone.txt: No such file" in said
    assert outcome["ranking"][:2] == [first, unread] and "'unknown': ['no']" in said
    assert [step["doc_ids"] for step in steps if step["tool"] == "files"] == [[], [unread]]
    assert "1 document named that no tool had shown" in result.err + result.out


def test_rg_sed_and_cat_show_what_the_real_programs_do(tmp_path):
    draw = random.Random(1)
    with agent(tmp_path / "own") as ours:
        for _ in range(8):
            path = file_of(draw.choice(IDS))
            flags = draw.sample(["-i", "-n", "-w", "-c"], draw.randint(0, 3))
            flags += draw.choice([[], ["-m2"], ["-m", "1"]] + ([] if "-c" in flags else [["-A1"]]))
            pattern = draw.choice(["ferry", "DAM", "r.* (nurse|pension)", "^nurse", "a.b"])
            first, last = draw.randint(1, 5), draw.randint(1, 12)
            for words, same in (
                (["rg", *flags, pattern, path], ["grep", "-E", *flags, pattern, path]),
                (
                    ["rg", "-F", path, "-e", "a.b", "-e", r"x\Ey"],
                    ["grep", "-e", r"a\.b\|x\\Ey", path],
                ),
                (["sed", "-n", f"{first},{last}p", path], []),
                (["sed", "-n", f"{first}p", path], []),
                (["cat", path, path], []),
            ):
                code, shown, said = ours.run(*words)
                _, right, _ = ours.run(*(same or words), shown_by="the real program")
                # rg prints no count where nothing matches, and grep no context that has a match.
                assert shown == right or (not shown and right == "0\n") or "-A1" in words, words
                assert not said and code == int(words[0] == "rg" and not shown)
        assert ours.run("rg", "-l", "-i", "MARK4[01]")[1].split() == ["a%2Fb.txt", "%C3%BCber.txt"]
        assert ours.run("rg", "-c", "mark4[01]", ".")[1].split() == [
            "a%2Fb.txt:1",
            "%C3%BCber.txt:1",
        ]
        assert ours.run("rg", "-C1", "-n", "mark7")[1].splitlines()[1].startswith("d7.txt:")
        assert ours.run("bash", "-c", "echo b | sed s/b/c/; echo d | cat")[1] == "c\nd\n"
        for words in (
            ["rg", "-P", "x", "."],
            ["rg", "x", ".", "/etc"],
            ["rg", "(", "."],
            ["rg", "-A", "x", "y", "."],
            ["sed", "s/a/b/", file_of("d1")],
            ["sed", "-n", "1p;2p", file_of("d1")],
            ["cat", "-n", file_of("d1")],
            ["cat", "."],
        ):
            code, shown, said = ours.run(*words)
            assert (code, shown, said.count("\n")) == (2, "", 1), words


def test_no_command_shows_an_excluded_document_although_its_file_is_there(tmp_path):
    excluded = frozenset(random.Random(2).sample(IDS, 10))
    marks = {f"mark{IDS.index(doc_id)}" for doc_id in excluded}
    with agent(tmp_path / "own", Query("q", "ferry", "", excluded)) as ours:
        for doc_id in excluded:
            path = file_of(doc_id)
            assert (ours.root / path).exists()
            for words in (["rg", "mark", path], ["sed", "-n", "1,99p", path], ["cat", path]):
                code, shown, said = ours.run(*words)
                assert code and not shown and "mark" not in said
            assert ours.episode.act("select", {"doc_ids": [doc_id, path]}).refused
        for words in (
            ["rg", "mark"],
            ["rg", "-C", "9", "ferry|Dam", "."],
            ["rg", "mark", *ours.root.iterdir()],
        ):
            shown = ours.run(*words)[1]
            assert shown and marks.isdisjoint(shown.replace(":", "\n").split())
        assert excluded.isdisjoint(map(name_document, ours.run("rg", "-l", ".")[1].splitlines()))
        for step in ours.steps:
            assert excluded.isdisjoint(step.doc_ids)


def test_a_query_with_a_pool_has_only_the_files_of_its_pool(tmp_path):
    pool = frozenset(IDS[30:])
    query = Query("q", "ferry", "", frozenset(["d31"]), pool)
    with agent(tmp_path / "own", query) as ours:
        found = {name_document(path.name): path.read_bytes() for path in ours.root.iterdir()}
        texts = {doc_id: CORPUS[doc_id].text for doc_id in pool - {"d31"}}
        assert found == {key: text.encode() for key, text in texts.items()}
        assert {path.stat().st_mode & 0o777 for path in ours.root.iterdir()} == {0o444}
        assert ours.root.stat().st_mode & 0o777 == 0o555
        ours.root.chmod(0o755)
        for doc_id in ("d1", "d31"):  # which an agent writes itself
            (ours.root / f"{doc_id}.txt").write_text("mark")
            assert ours.run("rg", "mark", f"{doc_id}.txt")[:2] == (1, "")
            assert ours.run("cat", f"{doc_id}.txt")[:2] == (2, "")


def test_files_of_a_large_corpus_are_spread_over_folders_that_rg_searches(tmp_path):
    corpus = Corpus(Document(f"d{n}", f"ferry {n}") for n in range(3000))
    with agent(tmp_path / "own", corpus=corpus) as ours:
        folders = sorted(path.name for path in ours.root.iterdir())
        assert folders == ["0000", "0001", "0002"]
        counts = [ours.run("rg", "-l", "ferry", folder)[1].count("\n") for folder in folders]
        assert counts == [len([*(ours.root / folder).iterdir()]) for folder in folders]
        path = ours.run("rg", "-l", "ferry 77$")[1].strip()
        assert ours.run("cat", path)[1] == "ferry 77"


def test_limits_hold_for_commands_and_a_refusal_says_so(tmp_path):
    with agent(tmp_path / "own", grep=1, reads=2) as ours:
        assert ours.run("rg", "ferry")[0] == 0
        code, shown, said = ours.run("rg", "ferry")
        assert (code, shown) == (1, "") and "all 1 grep calls" in said
        code, shown, said = ours.run("cat", *map(file_of, IDS[:3]))
        assert shown == "".join(CORPUS[doc_id].text for doc_id in IDS[:2])
        assert code == 1 and "all 2 read calls" in said
        assert [step.tool for step in ours.steps if step.refused] == ["grep", "read"]
        ours.episode.cut()
        assert ours.run("cat", file_of("d1"))[:2] == (2, "")


def test_what_no_tool_showed_is_taken_and_counted_and_its_fate_is_unknown(tmp_path):
    with agent(tmp_path / "own") as ours:
        act = ours.episode.act
        assert json.loads(act("files", {}).text) == {"folder": str(ours.root)}
        ours.run("cat", file_of("d1"))
        named = ["d1", "d2", file_of("a/b"), f"{ours.root}/d3.txt", "invented"]
        assert json.loads(act("select", {"doc_ids": named[:2]}).text)["selected"] == ["d1", "d2"]
        submitted = json.loads(act("submit", {"doc_ids": named}).text)
        assert submitted == {"submitted": 4, "unknown": ["invented"]}
    submission = ours.episode.submission
    assert submission.ranking == ("d1", "d2", "a/b", "d3")
    trace = trace_json(submission.trace)
    unshown = [step["doc_ids"] for step in trace["steps"] if step["tool"] == "files"]
    assert unshown == [[], ["d2"], ["a/b", "d3"]]
    outcome = {"query_id": "q", "trace": trace, "error": None}
    judged = Judgements({"q": dict.fromkeys(["d1", "d2", "d9"], 1.0)})
    fates = {row["unit"]: row["lost_as"] for row in attribute("q", outcome, ["d1", "d2"], judged)}
    assert fates == {"d1": "ranked_low", "d2": "unknown", "d9": "unknown"}


def test_files_are_refused_to_agents_that_run_no_commands():
    for program in (React, Served):
        with pytest.raises(UsageError, match="command:LINE"):
            program(Toolbox(CORPUS, INDEX), tools="search,files")
