"""The reference is what the code says of itself."""

import pytest
from conftest import ROOT
from docs_scripts import load_docs_script


@pytest.fixture(scope="module")
def writer():
    return load_docs_script("write_reference")


def test_the_reference_is_what_its_command_writes(writer):
    page = (ROOT / "docs/reference.md").read_text(encoding="utf-8")
    assert writer.compose() == page, "python docs/write_reference.py writes it again"


def test_an_option_without_a_place_is_named(writer):
    template = (ROOT / "docs/reference.in").read_text(encoding="utf-8")
    writer.check_options(template)
    with pytest.raises(ValueError, match=r"\('run', '--budget-usd'\)\]"):
        writer.check_options(template.replace(" --budget-usd", ""))
    with pytest.raises(ValueError, match="--no-such-option"):
        writer.check_options(template.replace(" --budget-usd", " --budget-usd --no-such-option"))


def test_text_of_help_is_a_cell_of_a_table(writer):
    row = writer._table([("`--range`", "1..6 or a|b", "")])
    assert row == "| `--range` | 1..6 or a\\|b | |"
    linked = writer._table([("a", "see docs/guide/cost.md")])
    assert linked == "| a | see [cost.md](guide/cost.md) |"


def test_the_tables_of_the_guide_to_comparing_are_what_its_commands_print():
    writer = load_docs_script("write_compare")
    page = writer.PAGE.read_text(encoding="utf-8")
    assert writer.compose() == page, "python docs/write_compare.py writes it again"
