"""Recipes of the user's own: from the guide, from a file that is none, and from an installed package."""

import re
import shlex
import shutil
import sys

import pytest
from conftest import ROOT

from sextant import environments
from sextant.tools.errors import UnknownName, UsageError
from sextant.tools.platform.cli import run_command
from sextant_construction import __main__ as command
from sextant_construction.recipe import load_recipe_class

PAGE = (ROOT / "docs/guide/extend.md").read_text(encoding="utf-8").partition("## A recipe\n")[2]


@pytest.fixture
def build(tmp_path, monkeypatch):
    """`sextant build WORDS`, in a folder with the guide as `notes`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    shutil.copytree(ROOT / "docs/guide", tmp_path / "notes", ignore=lambda *_: ["models"])
    return lambda *words: run_command(command.parser(), command.command, [*words])


def test_the_recipe_of_the_guide_builds_a_task_without_a_model(build, tmp_path):
    section = PAGE.partition("\n## ")[0]
    [block] = re.findall(r"```python\n(.+?)```", section, re.S)
    (tmp_path / "my_recipe.py").write_text(block)
    new, run = re.findall(r"^    sextant build (.+)$", section, re.M)
    assert build(*shlex.split(new)) == 0
    assert build(*shlex.split(run)) == 0
    task = environments.load(str(tmp_path / "mine/release"), split="all")
    assert task.queries
    for query in task.queries:
        relevant = task.judgements["gold"].relevant(query.query_id)
        [page] = {doc_id.partition(":")[0] for doc_id in relevant}
        assert {one for one in task.documents if one.partition(":")[0] == page} == {*relevant}
    text = (tmp_path / "mine/release/benchmark.toml").read_text()
    assert 'recipe = "my_recipe.py:GroupsRecipe"' in text and str(tmp_path) not in text


def test_a_name_that_is_no_recipe_is_refused_in_a_line(build, tmp_path):
    (tmp_path / "odd.py").write_text("answer = 42\n")
    with pytest.raises(UsageError, match=r"^odd.py:answer is no recipe"):
        load_recipe_class("odd.py:answer")
    with pytest.raises(UnknownName, match="latent"):
        load_recipe_class("latnt")


def test_a_recipe_without_its_function_and_one_that_fails_are_named(build, tmp_path, capsys):
    head = "from sextant_construction.recipe import Recipe\n\nclass Bare(Recipe):\n    pass\n"
    (tmp_path / "bare_recipe.py").write_text(head)
    assert build("new", "bare", "--recipe", "bare_recipe.py:Bare", "--corpus", "notes") == 0
    assert build("run", "bare") == 2
    assert "has no function build_benchmark(build)" in capsys.readouterr().err
    (tmp_path / "bad_recipe.py").write_text(f"{head}\ndef build_benchmark(build):\n    1 / 0\n")
    assert build("new", "bad", "--recipe", "bad_recipe.py:Bare", "--corpus", "notes") == 0
    assert build("run", "bad") == 2
    error = capsys.readouterr().err
    assert "the recipe bad_recipe.py:Bare fails: ZeroDivisionError" in error
    assert "(bad_recipe.py, line 7)" in error


def test_an_entry_point_is_a_recipe_and_listed(build, tmp_path, capsys):
    folder = tmp_path / "theirs-1.2.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.2\n")
    (folder / "entry_points.txt").write_text("[sextant.recipes]\ntheirs = their_recipe:Bare\n")
    (tmp_path / "their_recipe.py").write_text(
        "from sextant_construction.recipe import Recipe\n\nclass Bare(Recipe):\n    pass\n"
    )
    sys.path.insert(0, str(tmp_path))
    assert load_recipe_class("theirs").__name__ == "Bare"
    assert build("list") == 0
    assert "theirs        from package theirs 1.2" in capsys.readouterr().out
