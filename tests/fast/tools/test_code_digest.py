"""What makes two runs the same: the source files that are used."""

import ast
import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest

from sextant import environments
from sextant.evals.running.identity import code_identity
from sextant.evals.running.request import SYSTEMS, Request
from sextant.evals.running.resolve import resolve
from sextant.tools import code_digest
from sextant.tools.code_digest import collect_sources

ROOT = Path(code_digest.__file__).parents[1]
USED = (
    "sextant.programs.multihop",
    "sextant.tools.retrievers.lexical.bm25",
    "sextant.tools.retrievers",
    "sextant.environments.obliq",
)


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of the packages, to be edited."""
    folder = tmp_path_factory.mktemp("tree")
    ignored = shutil.ignore_patterns("mini", "__pycache__")
    shutil.copytree(ROOT, folder / "sextant", ignore=ignored)
    return folder


@contextmanager
def appended(path, text="\n# one more line\n"):
    before = path.read_text()
    path.write_text(before + text)
    yield
    path.write_text(before)


def digest(tree, *modules):
    return collect_sources(modules or USED, root=tree).digest()


@pytest.mark.parametrize(
    "path",
    [
        "programs/multihop.py",
        "programs/passage_reading.py",  # which it imports
        "tools/session.py",
        "environments/obliq.py",
        "tools/retrievers/lexical/bm25.py",
    ],
)
def test_an_edit_of_what_a_run_uses_makes_another_run(tree, path):
    before = digest(tree)
    with appended(tree / "sextant" / path):
        assert digest(tree) != before
    assert digest(tree) == before


@pytest.mark.parametrize(
    "path", ["programs/listwise.py", "evals/report.py", "evals/scoring/comparison.py"]
)
def test_an_edit_of_another_program_or_of_a_report_does_not(tree, path):
    before = digest(tree)
    with appended(tree / "sextant" / path):
        assert digest(tree) == before


def test_a_data_file_that_a_module_of_ours_names_counts(tree):
    used = "sextant.tools.retrievers.neural.dense"
    before = digest(tree, used)
    with appended(tree / "sextant/tools/retrievers/neural/models.toml"):
        assert digest(tree, used) != before


def list_imports_as_python_parses_them(path, package):
    """The imports of a file, without those under TYPE_CHECKING."""
    pending = [ast.parse(path.read_bytes())]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            pending += node.orelse
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            parents = package.split(".")
            base = parents[: len(parents) - node.level + 1] if node.level else []
            module = ".".join([*base, *filter(None, [node.module])])
            yield from ((module, alias.name) for alias in node.names)
        pending += ast.iter_child_nodes(node)


@pytest.mark.parametrize("package", ["agents", "environments", "evals", "programs", "tools"])
def test_no_import_of_ours_is_overlooked(package):
    for path in (ROOT / package).rglob("*.py"):
        parents = path.relative_to(ROOT).with_suffix("").parts[:-1]
        expected = {*list_imports_as_python_parses_them(path, ".".join(parents))}
        found = {*code_digest._list_imports(path.read_text(), ".".join(parents))}
        assert expected <= found, path


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("from a import (  # first)\n    b,\n    c as d,\n)", [("a", "b"), ("a", "c")]),
        ("from . import b\nfrom ..c import d", [("mine.inner", "b"), ("mine.c", "d")]),
        ("from a import b, \\\n    c", [("a", "b"), ("a", "c")]),
        ("import a.b as c, d; import e", [("a.b", ""), ("d", ""), ("e", "")]),
        ("def f():\n\tfrom a import b; import c", [("a", "b"), ("c", "")]),
        ("if TYPE_CHECKING:\n    import a\n\nimport b", [("b", "")]),
    ],
)
def test_each_form_of_an_import_is_read(text, found):
    assert [*code_digest._list_imports(text, "mine.inner")] == found


def test_a_users_own_program_is_its_file_and_what_it_imports_from_its_folder(tmp_path, monkeypatch):
    package = tmp_path / "mine_for_a_test"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "searcher.py").write_text(
        "import json\nimport helper_for_a_test\nfrom .prompts import Ask\n"
        "from sextant.programs.retrieve import Retrieve\n"
    )
    (package / "prompts.py").write_text('import dspy\nclass Ask(dspy.Signature):\n    """Ask."""\n')
    (tmp_path / "helper_for_a_test.py").write_text("DEPTH = 3\n")
    (tmp_path / "other.py").write_text("DEPTH = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    name = "mine_for_a_test.searcher"
    found = collect_sources([name])
    used = {
        name,
        "mine_for_a_test",
        "mine_for_a_test.prompts",
        "helper_for_a_test",
        "sextant.programs.retrieve",
        "sextant.tools.session",
    }
    assert used <= {*found.files} and "other" not in found.files
    assert {"dspy", "json"} <= found.libraries
    first = found.digest()
    with appended(package / "prompts.py"):
        assert collect_sources([name]).digest() != first


def test_what_a_distribution_installed_is_a_library_wherever_it_lies(tmp_path):
    program = tmp_path / "agent_for_a_test.py"
    program.write_text("import numbers_for_a_test\nimport helper_for_a_test\n")
    for name in ("numbers_for_a_test", "helper_for_a_test"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
    metadata = tmp_path / "numbers-1.0.dist-info"
    metadata.mkdir()
    (metadata / "RECORD").write_text("numbers_for_a_test/__init__.py,,\n")
    code_digest._list_installed.cache_clear()
    found = collect_sources([str(program)])
    assert {*found.files} == {"agent_for_a_test", "helper_for_a_test"}
    assert found.libraries == {"numbers_for_a_test"}


def test_a_library_beside_sextant_is_none_of_its_sources(tree):
    before = collect_sources(USED, root=tree)
    (tree / "numpy").mkdir()
    (tree / "numpy" / "__init__.py").write_text("")
    assert collect_sources(USED, root=tree) == before


def run_identity(program, retriever="bm25", **how):
    request = Request(
        program=program, task="congress", retriever=retriever, **{"lm": "offline"} | how
    )
    return code_identity(resolve(request), environments.load("congress", "mini"))


def test_a_table_brings_the_program_that_is_named_and_no_other():
    for name, reference in SYSTEMS.items():
        module = reference.partition(":")[0]
        others = {one.partition(":")[0] for one in SYSTEMS.values()} - {module}
        assert len(others & set(collect_sources([module]).files)) < 2, name


def test_what_evals_contributes_counts_where_it_is_used():
    plain = run_identity("rewrite")
    for how in ({"pool": "union:20"}, {"parameters": {"max_calls": 3}}, {"lm": "openai/gpt-5.2"}):
        assert run_identity("rewrite", **how)["code"] != plain["code"], how
    assert run_identity("rewrite", k=20, limit=3) == plain != run_identity("retrieve")


def test_the_versions_are_of_the_libraries_that_are_used():
    assert {"dspy", "numpy", "nltk"} <= run_identity("retrieve")["versions"].keys()
    assert not {"torch", "chromadb", "langgraph"} & run_identity("retrieve")["versions"].keys()
    assert {"chromadb", "torch", "sentence-transformers"} <= run_identity(
        "retrieve", "chroma:dense"
    )["versions"].keys()
    assert "langgraph" in run_identity("react")["versions"]
