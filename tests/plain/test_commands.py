"""Every command and sub-command, typed as `sextant ...` and as `python -m ...`."""

import argparse
import re
import shutil
from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

import pytest
from hub_server import HubServer
from openai_server import OpenAIServer, fill
from plain_installation import ROOT, STUDY, Shell
from results import Result

from sextant.environments import obliq
from sextant.evals.__main__ import import_command, list_modules

# `sextant NAME` and the same as `python -m MODULE`
TYPED = [(name, module) for name, (module, _) in list_modules().items()]


class Leaf(NamedTuple):
    """A command that does something: `sextant tasks show`, or `python -m sextant.environments show`."""

    as_sextant: str
    as_module: str


def sub_parsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The sub-commands of a command, by name."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def leaves() -> Iterator[Leaf]:
    """Every command that has no sub-commands, and every sub-command."""
    for name, module in TYPED:
        sub_commands = sub_parsers(import_command(name).parser())
        for sub_command in sub_commands:
            yield Leaf(f"sextant {name} {sub_command}", f"python -m {module} {sub_command}")
        if not sub_commands:
            yield Leaf(f"sextant {name}", f"python -m {module}")


LEAVES = list(leaves())
# As typed -> how its --help begins
USAGES = {
    typed: f"usage: {leaf.as_sextant} "
    for leaf in [
        *LEAVES,
        *(Leaf(f"sextant {name}", f"python -m {module}") for name, module in TYPED),
    ]
    for typed in leaf
}

# A real call of each: its arguments, in which a word in capitals stands for what the fixture `names` has made,
# and OUT for a file or folder that is not there.
LATENT = "--recipe latent --corpus task:twitter --set attribute.lens=stance"
CALLS = {
    "run": "--program rewrite --task code_retrieval --limit 2",
    "study": "study.toml",
    "serve": "--task congress --split dev --http",
    "gather": "SHARDED",
    "score": "RUN",
    "compare": "RUN OTHER",
    "curves": "RUN OTHER",
    "behaviour": "RUN OTHER",
    "credit": "RUN OTHER",
    "reach": "RUN",
    "variance": "STUDIED",
    "replay": "OTHER --retriever bm25s",
    "view": "RUN OTHER --export OUT.html",
    "report": "RUN OTHER --out OUT",
    "reproduce": "",
    "judge": "--task code_retrieval --runs RUN",
    "build list": "",
    "build new": f"OUT {LATENT}",
    "build run": "BUILD",
    "build status": "BUILD",
    "build review": "BUILD --out OUT.html",
    "build check": "BUILD",
    "build contamination": "--task code_retrieval",
    "export": "RUN --to trec --out OUT",
    "import": "RUN/run.trec --task code_retrieval --name theirs",
    "compile": "--program rewrite --task code_retrieval --optimizer labeled",
    "prompts show": "multihop",
    "prompts draw": "planner",
    "tasks list": "",
    "tasks show": "congress",
    "tasks fetch": "congress",
    "tasks check": "congress",
    "tasks search": "congress ferry",
    "tasks init": "OUT",
    "tasks make": "OUT --corpus NOTES --queries QUERIES --qrels QRELS",
    "tasks audit": "code_retrieval",
    "retrievers list": "",
    "retrievers check": "bm25",
    "retrievers push": "bm25 --task congress",
    "retrievers indexes": "",
    "retrievers delete": "--all",
    "models check": "LM",
    "doctor": "",
    "docs": "task",
    "cache list": "",
    "cache show": "KEY",
    "cache export": "OUT.jsonl",
    "cache clear": "--days 1",
}
# Characters of a line of the terminal in which they are given.
WIDTH = 80
# These print a file.
FILES = ("prompts show", "docs")
# Tables with more columns than the terminal has room for; cells of one word are not broken.
WIDE = (
    "study",
    "compare",
    "curves",
    "behaviour",
    "credit",
    "reach",
    "replay",
    "variance",
    "tasks audit",
    "tasks list",
    "cache list",
    "doctor",  # the path of an installation is a word
)
# What a plain installation cannot do ends with 2, in one line that names the extra.
NEEDS_AN_EXTRA = {"serve": "[rest]"}
# So begin the calls that sextant-construction brings.
OF_CONSTRUCTION = (
    "sextant build",
    "sextant judge",
    "python -m sextant_construction",
    "sextant tasks make",
    "sextant tasks audit",
)


@pytest.fixture(scope="module")
def lm() -> Iterator[str]:
    """The spec of a model on this machine."""
    with closing(OpenAIServer()) as server:
        server.answer = fill
        yield server.spec


@pytest.fixture(scope="module")
def hub() -> Iterator[HubServer]:
    """A hub that has the release of congress, as small as the miniature."""
    mini = ROOT / "environments" / "mini" / "obliq"
    files = {path: (mini / path).read_bytes() for path in obliq.SUITE.tasks["congress"].files}
    with closing(HubServer(obliq.RELEASE.repository, obliq.RELEASE.revision, files)) as server:
        yield server


@pytest.fixture(scope="module")
def module_shell(environment, home, tmp_path_factory) -> Shell:
    """A shell in a folder that the calls share, in a terminal of 80 characters."""
    return Shell(environment, home, tmp_path_factory.mktemp("shared"), COLUMNS=str(WIDTH))


@pytest.fixture(scope="module")
def construction_shell(environment, home, module_shell, construction) -> Shell:
    """The same, with sextant-construction."""
    return Shell(environment, home, module_shell.folder, COLUMNS=str(WIDTH), **construction)


@pytest.fixture
def fetching_shell(environment, home, hub, tmp_path) -> Shell:
    """The same, of a user who gets releases from that hub, and keeps them apart."""
    return Shell(
        environment,
        home,
        tmp_path,
        HF_ENDPOINT=hub.address,
        SEXTANT_HOME=str(tmp_path / "releases"),
        COLUMNS=str(WIDTH),
    )


@pytest.fixture(scope="module")
def names(module_shell, construction_shell, lm) -> dict[str, object]:
    """What stands for the words in capitals: runs, a build, a task, answers that are kept."""
    shell: Shell = module_shell
    run = ("sextant", "run", "--task", "code_retrieval", "--json")
    first = shell.succeed(*run, "--program", "retrieve").json["run"]
    second = shell.succeed(*run, "--program", "rewrite", "--lm", lm).json["run"]
    for part in ("1/2", "2/2"):
        sharded = shell.succeed(*run, "--program", "query_to_doc", "--shard", part).json["run"]
    construction_shell.succeed("sextant", "build", "new", "mine", *LATENT.split())
    construction_shell.succeed("sextant", "build", "run", "mine")
    calls = shell.succeed("sextant", "cache", "list", "--calls", "--json").json
    (shell.folder / "study.toml").write_text(STUDY, encoding="utf-8")
    shell.succeed("sextant", "study", "study.toml")
    [studied] = (shell.folder / "runs/studies").iterdir()
    task = shell.folder / "data"
    task.mkdir()
    (task / "corpus.jsonl").write_text(
        '{"_id": "d1", "text": "a ferry"}\n{"_id": "d2", "text": "a dam"}\n'
    )
    (task / "queries.jsonl").write_text('{"_id": "q1", "text": "ferry"}\n')
    (task / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\n")
    notes = shell.folder / "notes"
    notes.mkdir()
    (notes / "ferry.md").write_text("# Ferries\n\nA ferry on a rope crosses the river.\n")
    (notes / "dam.txt").write_text("A dam keeps the water back.\n")
    (shell.folder / "notes.tsv").write_text("query-id\tcorpus-id\tscore\nq1\tferry.md\t1\n")
    return {
        "RUN": shell.folder / first,
        "OTHER": shell.folder / second,
        "SHARDED": shell.folder / sharded,
        "BUILD": shell.folder / "mine",
        "STUDIED": studied,
        "TASK": task,
        "NOTES": notes,
        "QUERIES": task / "queries.jsonl",
        "QRELS": shell.folder / "notes.tsv",
        "LM": lm,
        "KEY": calls["calls"][0]["key"],
    }


def test_here_is_a_call_of_every_command():
    assert {leaf.as_sextant.removeprefix("sextant ") for leaf in LEAVES} == set(CALLS)


@pytest.mark.parametrize("typed", sorted(USAGES))
def test_help_begins_with_the_command_by_its_name_and_fits_the_terminal(
    typed, module_shell, construction_shell
):
    shell = construction_shell if typed.startswith(OF_CONSTRUCTION) else module_shell
    done = shell.succeed(*typed.split(), "--help")
    assert done.out.startswith(USAGES[typed])
    assert too_wide(done) == []


@pytest.mark.parametrize("place", range(len(LEAVES)), ids=[leaf.as_sextant for leaf in LEAVES])
def test_a_call_does_what_it_is_for(
    place, names, module_shell, construction_shell, fetching_shell, tmp_path
):
    leaf = LEAVES[place]
    typed = leaf[place % 2]  # that both are the same command, its --help shows
    command = leaf.as_sextant.removeprefix("sextant ")
    shell = fetching_shell if command == "tasks fetch" else module_shell
    if leaf.as_sextant.startswith(OF_CONSTRUCTION):
        shell = construction_shell
    out = tmp_path / "out"
    if command == "tasks init":
        shutil.copytree(names["TASK"], out)
    arguments = [put_in(word, names | {"OUT": out}) for word in CALLS[command].split()]
    done = shell(*typed.split(), *arguments)
    if command in NEEDS_AN_EXTRA:
        assert done.code == 2 and NEEDS_AN_EXTRA[command] in done.err, done
        assert done.err.count("\n") == 1, done
    else:
        assert done.code == 0, done
    assert command in (*FILES, *NEEDS_AN_EXTRA, *WIDE) or too_wide(done) == []


@pytest.mark.parametrize("call", ["build list", "tasks make OUT --corpus A --queries B --qrels C"])
def test_without_construction_its_commands_end_with_the_line_that_installs_it(call, shell):
    done = shell("sextant", *call.split())
    assert done.code == 2 and done.err.count("\n") == 1, done
    assert "needs the package sextant-construction" in done.err and "pip install" in done.err


def too_wide(done: Result) -> list[str]:
    """The lines that are wider than the terminal, unless they have just a word, as a path, or are a command."""
    lines = [*done.out.splitlines(), *done.err.splitlines()]
    return [
        line
        for line in lines
        if len(line) > WIDTH and len(line.split()) > 1 and not re.match(" +(sextant|python) ", line)
    ]


def put_in(word: str, names: dict[str, object]) -> str:
    """Put what a name in capitals stands for in its place."""
    found = re.match("[A-Z]+", word)
    return word if found is None else word.replace(found[0], str(names[found[0]]), 1)


def test_pages_that_help_names_are_installed(shell):
    text = " ".join(shell.succeed("sextant", "run", "--help").out.split())
    named = {*re.findall(r"`sextant docs ([\w-]+)`", text)}
    assert len(named) >= 3 and "site-packages" not in text
    for page in named:
        assert shell.succeed("sextant", "docs", page).out.startswith("# ")
