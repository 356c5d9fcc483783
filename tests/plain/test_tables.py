"""Every program, agent, retriever and optimizer runs with its defaults, on bundled data, without a model."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from plain_installation import Shell
from tiny_models import bert

from sextant.agents import AGENTS
from sextant.optimizers.request import OPTIMIZERS
from sextant.programs import PROGRAMS
from sextant.programs.compiled import read, write
from sextant.tools.retrievers import RETRIEVERS

# How a retriever is named by default, unless that is its name alone. MODEL is a folder with a tiny model.
EXPRESSIONS = {
    "chroma": "chroma:dense",
    "splade": "splade:MODEL",
    "cross": "cross:MODEL",
    "fusion": "fusion(bm25,dense)",
    "rerank": "rerank(bm25,cross:MODEL)",
    "lens": "lens(bm25,attribute=stance)",
    "sharded": "sharded(bm25)",
}
HEADS = {"splade": "BertForMaskedLM", "cross": "BertForSequenceClassification"}

# A retriever that needs an extra -> how it is named, and the extra, which the refusal names
EXTRAS = {
    "ann": ("ann:dense", "[ann]"),
    "milvus": ("milvus(http://127.0.0.1:9)", "[milvus]"),
    "milvus_vectors": ("milvus_vectors:dense(url=http://127.0.0.1:9)", "[milvus]"),
}
NEED_A_SERVER = ("api", "http")


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory):
    """Makes a tiny model of a family, and returns its folder. PyTorch is imported only where one is wanted."""
    folder = tmp_path_factory.mktemp("models")

    def make(family: str) -> Path:
        if not (folder / family).exists():
            bert(folder / family, head=HEADS[family])
        return folder / family

    return make


def study(shell: Shell, rows: str, task: str) -> dict[Path, list[dict[str, Any]]]:
    """Run the rows of a study over two queries in one process; return the outcomes by their files."""
    text = f'name = "every"\ntasks = ["{task}"]\nfixed = {{ data = "mini", limit = 2 }}\n[rows]\n{rows}\n'
    (shell.folder / "study.toml").write_text(text, encoding="utf-8")
    shell.succeed("sextant", "study", "study.toml")
    outcomes = {}
    for path in shell.folder.glob("runs/*/*/outcomes.jsonl"):
        lines = path.read_text(encoding="utf-8").splitlines()
        outcomes[path] = [json.loads(line) for line in lines]
    return outcomes


def test_every_program_and_agent_answers(shell):
    names = [*PROGRAMS, *AGENTS]
    outcomes = study(shell, f"program = {json.dumps(names)}", task="code_retrieval")
    assert len(outcomes) == len(names)
    for path, rows in outcomes.items():
        assert len(rows) == 2 and not any(row["error"] for row in rows), path


def test_a_program_that_needs_an_extra_names_it(shell):
    done = shell("sextant", "run", "--program", "command:cat", "--task", "congress", "--limit", 2)
    assert done.code == 2 and "[mcp]" in done.err and done.err.count("\n") == 1


def test_every_retriever_finds_documents(shell, model_folder):
    expressions = []
    for name in RETRIEVERS:
        if name in (*EXTRAS, *NEED_A_SERVER):
            continue
        expression = EXPRESSIONS.get(name, name)
        for family in HEADS:
            if f"{family}:MODEL" in expression:
                expression = expression.replace("MODEL", str(model_folder(family)))
        expressions.append(expression)
    rows = f'program = "retrieve"\nretriever = {json.dumps(expressions)}'
    outcomes = study(shell, rows, task="birco/arguana")
    assert len(outcomes) == len(expressions)
    for path, rows_of_run in outcomes.items():
        assert len(rows_of_run) == 2 and all(row["ranking"] for row in rows_of_run), path


@pytest.mark.parametrize("name", EXTRAS)
def test_a_retriever_that_needs_an_extra_names_it(name, shell):
    expression, extra = EXTRAS[name]
    done = shell(
        "sextant", "run", "--program", "retrieve", "--task", "arguana", "--retriever", expression
    )
    assert done.code == 2 and extra in done.err and done.err.count("\n") == 1


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "ensemble"])
def test_an_optimizer_compiles(name, shell):
    program = "multihop" if name == "tune" else "rewrite"  # which has no parameter to tune
    words = ("--program", program, "--task", "code_retrieval", "--json")
    printed = shell.succeed("sextant", "compile", "--optimizer", name, *words).json
    assert printed["optimizer"] == name and printed["after"]["queries"]


def test_an_ensemble_of_two_compiled_programs_is_compiled(shell):
    words = ("--program", "rewrite", "--task", "code_retrieval")
    shell.succeed("sextant", "compile", "--optimizer", "labeled", *words)
    [file] = shell.folder.rglob("compiled.json")
    compiled, other = read(file), shell.folder / "other.json"
    prompts = {
        name: replace(prompt, instructions=f"{prompt.instructions} Be brief.")
        for name, prompt in compiled.prompts.items()
    }
    write(other, replace(compiled, prompts=prompts))
    shell.succeed(
        "sextant", "compile", "--optimizer", "ensemble", "--of", file, "--of", other, *words
    )
