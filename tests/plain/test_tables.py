"""Every program, agent, retriever and optimizer runs with its defaults, on bundled data, without a model."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_models import bert

from agents import AGENTS
from optimizers.request import OPTIMIZERS
from programs import PROGRAMS
from programs.compiled import read, write
from tools.retrievers import RETRIEVERS

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


@pytest.mark.parametrize("name", [*PROGRAMS, *AGENTS])
def test_a_program_answers(name, shell):
    words = ("--program", name, "--task", "code_retrieval", "--limit", 2, "--json")
    printed = shell.succeed("sextant", "run", *words).json
    outcomes = (
        (shell.folder / printed["run"] / "outcomes.jsonl").read_text(encoding="utf-8").splitlines()
    )
    assert len(outcomes) == 2 and not any(json.loads(line)["error"] for line in outcomes)


def test_a_program_that_needs_an_extra_names_it(shell):
    done = shell("sextant", "run", "--program", "command:cat", "--task", "congress", "--limit", 2)
    assert done.code == 2 and "[mcp]" in done.err and done.err.count("\n") == 1


@pytest.mark.parametrize(
    "name", [name for name in RETRIEVERS if name not in (*EXTRAS, *NEED_A_SERVER)]
)
def test_a_retriever_finds_documents(name, shell, model_folder):
    expression = EXPRESSIONS.get(name, name)
    for family in HEADS:
        if f"{family}:MODEL" in expression:
            expression = expression.replace("MODEL", str(model_folder(family)))
    words = (
        "--program",
        "retrieve",
        "--task",
        "birco/arguana",
        "--retriever",
        expression,
        "--json",
    )
    printed = shell.succeed("sextant", "run", *words).json
    assert printed["metrics"]["nDCG@10"]["mean"] >= 0
    outcomes = (
        (shell.folder / printed["run"] / "outcomes.jsonl").read_text(encoding="utf-8").splitlines()
    )
    assert outcomes and all(json.loads(line)["ranking"] for line in outcomes)


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
    assert printed["optimizer"] == name and printed["candidates"]


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
