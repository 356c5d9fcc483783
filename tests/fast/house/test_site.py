"""The pages of the site that are made of the code: every command's help, and names that exist."""

from importlib import import_module

import pytest
from conftest import ROOT
from docs_scripts import load_docs_script

from sextant.evals.__main__ import list_modules


@pytest.fixture(scope="module")
def pages():
    return load_docs_script("site_pages")


def test_the_page_of_commands_has_the_help_of_each_command_and_sub_command(pages):
    page = pages.describe_commands()
    for name in list_modules():
        assert f"\n## {name}\n" in page and f"usage: sextant {name} " in page
    assert "usage: sextant tasks fetch" in page


def test_what_the_page_of_python_names_is_there(pages):
    for names in pages.PYTHON.values():
        for name in names:
            source, _, attribute = name.rpartition(".")
            assert hasattr(import_module(source), attribute), name


def test_a_link_out_of_the_docs_becomes_its_name_and_others_stay(pages):
    class Page:
        class file:
            src_path = "guide/compare.md"

    config = type("Config", (), {"docs_dir": str(ROOT / "docs")})
    text = "[a](../../benchmarks/RESULTS.md) [b](../glossary.md#data) [c](trace.md)"
    shown = pages.on_page_markdown(text, Page, config, None)
    assert shown == "a [b](../glossary.md#data) [c](trace.md)"
