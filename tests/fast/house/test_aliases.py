"""Old names of modules that guides documented."""

import importlib
import sys

import pytest

from tools.moved_modules import MOVED_MODULES, install
from tools.plugins import PROGRAMS, load_object, resolve


@pytest.mark.parametrize("old, new", MOVED_MODULES.items())
def test_an_old_name_gives_the_same_module_with_a_warning(old, new, monkeypatch):
    parent = old.rpartition(".")[0]
    importlib.import_module(parent)
    for name in MOVED_MODULES.keys() - {parent}:
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.warns(DeprecationWarning, match=f"{old} is now {new}"):
        module = importlib.import_module(old)
    assert module is importlib.import_module(new)
    assert module.__spec__.name == new


def test_a_reference_with_an_old_name_means_the_new_one():
    old = "programs.judging:Judge"
    assert resolve("program", old, {}, PROGRAMS) == "programs.llm_tasks.relevance_judge:Judge"
    assert load_object("program", old, {}, PROGRAMS).__name__ == "Judge"


def test_the_finder_is_installed_once():
    before = list(sys.meta_path)
    install()
    assert sys.meta_path == before
