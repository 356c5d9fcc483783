"""What makes two runs the same: the sources that are used, and of these what can change an answer."""

import re
import shutil
import sys
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

import environments
from evals.running.identity import code_identity
from evals.running.request import SYSTEMS, Request
from evals.running.resolve import resolve
from tools import code_digest

ROOT = Path(code_digest.__file__).parents[1]
USED = (
    "programs.multihop",
    "tools.retrievers.lexical.bm25",
    "tools.retrievers",
    "environments.obliq",
)


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of the packages, to be edited."""
    folder = tmp_path_factory.mktemp("tree")
    for package in ("agents", "environments", "programs", "tools"):
        shutil.copytree(
            ROOT / package, folder / package, ignore=shutil.ignore_patterns("mini", "__pycache__")
        )
    return folder


@contextmanager
def edited(path, before, after):
    text = path.read_text()
    assert before in text, (path, before)
    path.write_text(text.replace(before, after, 1))
    yield
    path.write_text(text)


def digest(tree, *modules):
    return code_digest.collect_sources(modules or USED, root=tree).digest()


@cache
def as_it_is(*modules):
    return digest(ROOT, *modules)


LOOP = "hop in range(1, self.hops + 1):"
SAME = {
    "a comment": ("programs/multihop.py", LOOP, f"{LOOP}  # of each query"),
    "the formatting": (
        "programs/multihop.py",
        LOOP,
        "hop in range(\n            1, (self.hops + 1)\n        ):",
    ),
    "a docstring": ("programs/multihop.py", "hop of search and reading", "hop"),
    "the docstring of a function": ("tools/text.py", '"""', '"""As it is. '),
    "another program": ("programs/query_rewriting.py", "self.depth", "self.depth + 1"),
    "another retriever": ("tools/retrievers/fusion.py", "self", "this"),
    "a name in a table": (
        "tools/retrievers/__init__.py",
        '"bm25s": ',
        '"other": "tools.other:Other",\n    "bm25s": ',
    ),
    "what only a type checker reads": (
        "tools/retrievers/__init__.py",
        "if TYPE_CHECKING:",
        "if TYPE_CHECKING:\n    import programs.query_rewriting",
    ),
}
OTHER = {
    "a statement": ("programs/multihop.py", LOOP, "hop in range(1, self.hops + 2):"),
    "a prompt": ("programs/multihop.py", "Write the next search", "Write one more search"),
    "the description of a field": (
        "programs/multihop.py",
        "which search this is",
        "what search this is",
    ),
    "an imported helper": (
        "tools/text.py",
        "def content_words",
        "def words_(): ...\n\n\ndef content_words",
    ),
    "the retriever": ("tools/retrievers/lexical/bm25.py", "import", "import math\nimport"),
    "the task": ("environments/obliq.py", "import", "import math\nimport"),
}


@pytest.mark.parametrize("what", SAME)
def test_it_is_the_same_run_whatever_is_edited_that_shapes_no_answer(tree, what):
    path, *change = SAME[what]
    with edited(tree / path, *change):
        assert digest(tree) == as_it_is()


@pytest.mark.parametrize("what", OTHER)
def test_it_is_another_run_when_what_it_uses_is_edited(tree, what):
    path, *change = OTHER[what]
    with edited(tree / path, *change):
        assert digest(tree) != as_it_is()


def move(tree, old, new):
    """Move a module in a copy of the packages, and mend what imports it."""
    (tree / new).parent.mkdir(exist_ok=True)
    (tree / old).rename(tree / new)
    before = old.removesuffix(".py").replace("/", ".")
    after = new.removesuffix(".py").replace("/", ".")
    package, _, name = before.rpartition(".")
    new_package, _, new_name = after.rpartition(".")

    def mend_line(found):
        names = found[1].split(", ")
        if name not in names:
            return found[0]
        others = ", ".join(other for other in names if other != name)
        return f"from {new_package} import {new_name}\n" + (
            f"from {package} import {others}\n" if others else ""
        )

    for path in tree.rglob("*.py"):
        text = path.read_text()
        mended = re.sub(rf"\b{re.escape(before)}\b", after, text)
        mended = mended.replace(before.replace(".", "/"), after.replace(".", "/"))
        mended = re.sub(rf"^from {package} import (.+)\n", mend_line, mended, flags=re.MULTILINE)
        if f"import {new_name}\n" in mended:
            mended = re.sub(rf"(?<![.\w]){name}\.(?=[A-Za-z_])", f"{new_name}.", mended)
        if mended != text:
            path.write_text(mended)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("tools/text.py", "tools/word_lists.py"),
        (
            "tools/plugins.py",
            "tools/lookup/entry_points_and_files.py",
        ),  # which others use by its name, as in `plugins.pick`
        ("programs/multihop.py", "programs/hops/in_turns.py"),
    ],
)
def test_a_file_that_is_moved_or_renamed_makes_no_other_run(tmp_path, old, new):
    for package in ("agents", "environments", "programs", "tools"):
        shutil.copytree(
            ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("mini", "__pycache__")
        )
    moved = new.removesuffix(".py").replace("/", ".")
    used = [moved if one.replace(".", "/") + ".py" == old else one for one in USED]
    move(tmp_path, old, new)
    found = code_digest.collect_sources(used, root=tmp_path)
    assert moved in found.modules
    assert found.digest() == as_it_is()
    with edited(tmp_path / new, "\n\n\n", "\n\n\nprint()\n"):
        assert digest(tmp_path, *used) != as_it_is()


def test_it_is_another_run_where_the_same_name_comes_from_another_module(tree):
    digests = {digest(tree)}
    for module in ("tools.text", "tools.records"):
        with edited(
            tree / "programs/multihop.py", "\nfrom", f"\nfrom {module} import words as chosen\nfrom"
        ):
            digests.add(digest(tree))
    assert len(digests) == 3


def test_texts_that_a_model_is_shown_count_wherever_they_stand(tree):
    for path, before in (
        ("programs/search_tools.py", "Search the collection; gives"),  # the docstring of a tool
        ("agents/verifier.py", "What a model finds in one passage"),  # of the type of a field
        ("agents/react.py", "Find the documents that a description asks for"),
    ):
        used = ("agents.react", "agents.verifier")
        with edited(tree / path, before, "Other words"):
            assert digest(tree, *used) != as_it_is(*used), before


def test_a_data_file_that_is_read_counts(tree):
    used = "tools.retrievers.neural.dense"
    with edited(tree / "tools/retrievers/neural/models.toml", "\n", "\n# one more line\n"):
        assert digest(tree, used) != as_it_is(used) and digest(tree) == as_it_is()


def test_a_users_own_program_is_its_file_and_what_it_imports_from_its_folder(tmp_path, monkeypatch):
    package = tmp_path / "mine_for_a_test"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "searcher.py").write_text(
        "import json\nimport helper_for_a_test\nfrom .prompts import Ask\nfrom programs.retrieve import Retrieve\n"
    )
    (package / "prompts.py").write_text('import dspy\nclass Ask(dspy.Signature):\n    """Ask."""\n')
    (tmp_path / "helper_for_a_test.py").write_text("DEPTH = 3\n")
    (tmp_path / "other.py").write_text("DEPTH = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    name = "mine_for_a_test.searcher"
    found = code_digest.collect_sources([name])
    used = {
        name,
        "mine_for_a_test.prompts",
        "helper_for_a_test",
        "programs.retrieve",
        "tools.session",
    }
    assert used <= {*found.modules} and "other" not in found.modules
    assert "dspy" in found.libraries and name not in sys.modules
    first = found.digest()
    with edited(package / "prompts.py", "Ask.", "Say."):
        assert code_digest.collect_sources([name]).digest() != first


def run_identity(program, retriever="bm25", **how):
    request = Request(
        program=program, task="congress", retriever=retriever, **{"lm": "offline"} | how
    )
    return code_identity(resolve(request), environments.load("congress", "mini"))


def test_a_table_brings_the_program_that_is_named_and_no_other():
    for name, reference in SYSTEMS.items():
        module = reference.partition(":")[0]
        others = {one.partition(":")[0] for one in SYSTEMS.values()} - {module}
        assert len(others & set(code_digest.collect_sources([module]).modules)) < 2, name


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


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """A module whose parts are kept on disk, and the file that has them."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    module = tmp_path / "module.py"
    module.write_text(
        'import programs.base as base\nfrom os import path\n\nNAME = "prompts.toml"\n\n\n'
        'class Ask(base.Signature):\n    """Answer \\udc80."""\n\n    words: list[str]\n'
    )
    code_digest.parse_module(module)
    [file] = (tmp_path / "__pycache__").iterdir()
    return module, file


def read_anew(module):
    """Parse a module as another process would."""
    code_digest._read.cache_clear()
    return code_digest.parse_module(module)


def test_parts_that_were_kept_are_those_that_were_parsed(kept):
    module, file = kept
    parsed = code_digest._parse(module.read_bytes())
    assert code_digest._load_parts(file, file.read_bytes().split(b"\n")[0]) == parsed
    assert read_anew(module) == parsed
    assert parsed.classes and parsed.imports and parsed.strings == {"prompts.toml"}


@pytest.mark.parametrize("damage", [b"", b"\n", b"no such file", b"a\nb\n[]"])
def test_damaged_parts_are_made_again(kept, damage):
    module, file = kept
    whole = file.read_bytes()
    file.write_bytes(damage or whole.replace(b"prompts", b"rubbish"))
    assert read_anew(module) == code_digest._parse(module.read_bytes())
    assert file.read_bytes() == whole


def test_parts_of_an_edited_source_are_made_again(kept):
    module, _ = kept
    module.write_text('NAME = "other.toml"\n')
    assert read_anew(module).strings == {"other.toml"}


def test_nothing_is_kept_where_python_keeps_no_bytecode(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    module = tmp_path / "module.py"
    module.write_text("WORDS = 3\n")
    code_digest.parse_module(module)
    assert [path.name for path in tmp_path.iterdir()] == ["module.py"]
