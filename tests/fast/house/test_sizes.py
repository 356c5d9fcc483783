"""Functions take few parameters, local imports give their reason, and the main job imports nothing heavy."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

from conftest import PRODUCT, ROOT

PARAMETERS = 8  # but for constructors of programs and retrievers, whose parameters are options of the command line
HEAVY = {
    "torch",
    "chromadb",
    "litellm",
    "sentence_transformers",
    "matplotlib",
    "optuna",
    "langgraph",
}
HEAVY_FOR_HELP = HEAVY | {"dspy", "numpy", "rich", "numba", "nltk"}


@cache
def sources() -> dict[Path, str]:
    return {
        path: path.read_text(encoding="utf-8")
        for name in (*PRODUCT, "benchmarks")
        for path in (ROOT / name).rglob("*.py")
    }


@cache
def functions() -> list[tuple[Path, ast.FunctionDef]]:
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return [
        (path, node)
        for path, text in sources().items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, kinds)
    ]


def where(path: Path, node: ast.stmt) -> str:
    return f"{path.relative_to(ROOT)}:{node.lineno}"


def test_no_function_has_too_many_parameters():
    many = {}
    for path, node in functions():
        own = node.args
        names = [
            one.arg
            for one in (*own.posonlyargs, *own.args, *own.kwonlyargs, own.vararg, own.kwarg)
            if one
        ]
        options = node.name == "__init__" and path.is_relative_to(ROOT / "tools/retrievers")
        options |= node.name == "__init__" and path.relative_to(ROOT).parts[0] in (
            "programs",
            "agents",
        )
        if not options and len(names) - (names[:1] == ["self"]) > PARAMETERS:
            many[where(path, node)] = len(names)
    assert many == {}


def test_imports_inside_functions_say_why():
    unexplained = set()
    for path, function in functions():
        lines = sources()[path].splitlines()
        for node in ast.walk(function):
            if not isinstance(node, ast.Import | ast.ImportFrom):
                continue
            if not any("#" in line for line in lines[node.lineno - 1 : node.end_lineno]):
                unexplained.add(where(path, node))
    assert not unexplained


def loaded(*words: object, code: int = 0) -> set[str]:
    """The modules in a process of its own after `python -m MODULE WORDS`, which ends with `code`."""
    script = (
        "import atexit, runpy, sys\n"
        "atexit.register(lambda: print('\\nLOADED', *sys.modules))\n"
        "sys.argv = sys.argv[1:]\n"
        "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
    )
    command = [sys.executable, "-c", script, *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return set(done.stdout.rpartition("LOADED ")[2].split())


def test_the_main_job_imports_nothing_heavy(tmp_path):
    modules = loaded(
        "sextant.evals.run",
        "--program",
        "multihop",
        "--task",
        "congress",
        "--limit",
        2,
        "--runs",
        tmp_path,
    )
    assert "sextant.programs.multihop" in modules
    assert not modules & HEAVY


def test_a_search_for_words_imports_no_client_of_a_model(tmp_path):
    modules = loaded(
        "sextant.evals.run",
        "--program",
        "retrieve",
        "--task",
        "congress",
        "--limit",
        2,
        "--runs",
        tmp_path,
    )
    assert "sextant.programs.retrieve" in modules
    assert not modules & (HEAVY | {"nltk", "openai", "httpx", "pyarrow", "pandas"})


def test_torch_is_imported_once_the_corpus_is_read(tmp_path):
    words = ("--program", "retrieve", "--task", "congress", "--retriever", "dense")
    modules = loaded(
        "sextant.evals.run", *words, "--data", tmp_path, "--runs", tmp_path / "runs", code=3
    )
    assert "sextant.environments.obliq" in modules
    assert not modules & HEAVY


def test_help_imports_nothing_that_takes_long():
    assert not loaded("sextant.evals.run", "--help") & HEAVY_FOR_HELP
