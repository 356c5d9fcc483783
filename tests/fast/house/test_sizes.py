"""Nothing grows too large to be read: files, functions, folders, and what the main job imports."""

import ast
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

from conftest import ROOT

PRODUCT = ("agents", "benchmarks", "environments", "evals", "optimizers", "programs", "tools")
FILE_LINES = 450
FUNCTION_LINES = 60
PARAMETERS = 8  # but for constructors of programs and retrievers, whose parameters are options of the command line
FILES_OF_A_FOLDER = 16  # beside those that a table of names has: a program more makes nothing harder to find
LOCAL_IMPORTS = 59  # in functions; each says in its line why it is not at the top
MODULES_OF_THE_MAIN_JOB = 61  # of ours, packages included
HEAVY = {"torch", "chromadb", "litellm", "sentence_transformers", "matplotlib", "optuna", "langgraph"}
HEAVY_FOR_HELP = HEAVY | {"dspy", "numpy", "rich", "numba", "nltk"}


@cache
def sources() -> dict[Path, str]:
    return {path: path.read_text(encoding="utf-8") for name in PRODUCT for path in (ROOT / name).rglob("*.py")}


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


def test_no_file_and_no_function_is_too_long():
    files = {str(path.relative_to(ROOT)): len(text.splitlines()) for path, text in sources().items()}
    assert {name: size for name, size in files.items() if size > FILE_LINES} == {}
    sizes = {where(path, node): node.end_lineno - node.lineno + 1 for path, node in functions()}
    assert {name: size for name, size in sizes.items() if size > FUNCTION_LINES} == {}


def test_no_function_has_too_many_parameters():
    many = {}
    for path, node in functions():
        own = node.args
        names = [one.arg for one in (*own.posonlyargs, *own.args, *own.kwonlyargs, own.vararg, own.kwarg) if one]
        options = node.name == "__init__" and path.is_relative_to(ROOT / "tools/retrievers")
        options |= node.name == "__init__" and path.relative_to(ROOT).parts[0] in ("programs", "agents")
        if not options and len(names) - (names[:1] == ["self"]) > PARAMETERS:
            many[where(path, node)] = len(names)
    assert many == {}


def test_no_folder_has_too_many_files():
    named = {
        ROOT / f"{module.replace('.', '/')}.py"
        for text in sources().values()
        for module in re.findall(r'"([a-z_.]+):[A-Z]\w+"', text)
    }
    paths = {path for name in (*PRODUCT, "tests") for path in (ROOT / name).rglob("*.py")} - named
    folders = Counter(str(path.parent.relative_to(ROOT)) for path in paths)
    assert {name: many for name, many in folders.items() if many > FILES_OF_A_FOLDER} == {}


def test_imports_inside_functions_are_few_and_say_why():
    found, unexplained = set(), set()
    for path, function in functions():
        lines = sources()[path].splitlines()
        for node in ast.walk(function):
            if isinstance(node, ast.Import | ast.ImportFrom):
                found.add(where(path, node))
                if not any("#" in line for line in lines[node.lineno - 1 : node.end_lineno]):
                    unexplained.add(where(path, node))
    assert len(found) <= LOCAL_IMPORTS, len(found)
    assert not unexplained


def loaded(*words: object) -> set[str]:
    """The modules in a process of its own after `python -m MODULE WORDS`."""
    script = (
        "import atexit, runpy, sys\n"
        "atexit.register(lambda: print('\\nLOADED', *sys.modules))\n"
        "sys.argv = sys.argv[1:]\n"
        "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
    )
    command = [sys.executable, "-c", script, *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.rpartition("LOADED ")[2].split())


def test_the_main_job_imports_little_of_ours_and_nothing_heavy(tmp_path):
    modules = loaded("evals.run", "--program", "multihop", "--task", "congress", "--limit", 2, "--runs", tmp_path)
    ours = {name for name in modules if name.partition(".")[0] in PRODUCT}
    assert "programs.multihop" in ours and len(ours) <= MODULES_OF_THE_MAIN_JOB, len(ours)
    assert not modules & HEAVY


def test_help_imports_nothing_that_takes_long():
    assert not loaded("evals.run", "--help") & HEAVY_FOR_HELP
