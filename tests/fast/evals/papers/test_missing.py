"""What the papers' rows lack here, and the command that makes each for whoever has it."""

import json

import pytest
from conftest import ROOT
from docs_scripts import load_docs_script

from sextant.evals import reproduce
from sextant.evals.papers.missing import COSTS, list_missing
from sextant.evals.papers.sections import sections

KEYS = ("OPENAI_API_KEY", "GEMINI_API_KEY")


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """A machine without keys and weights."""
    for key in KEYS:
        monkeypatch.delenv(key, raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "none"))
    monkeypatch.chdir(tmp_path)


def test_the_guides_table_is_what_the_command_prints(bare, command_of):
    printed = command_of(reproduce)("obliq/table2", "--missing").out
    guide = (ROOT / "docs/guide/study.md").read_text(encoding="utf-8")
    assert f"```\n{printed}```" in guide


def test_what_can_be_bought_comes_first_and_the_cheapest_before_all(bare, command_of):
    rows = command_of(reproduce)("--missing", "--json").json["missing"]
    known = [row["usd"] for row in rows if row["usd"] is not None]
    assert known == sorted(known) and [row["usd"] for row in rows[: len(known)]] == known
    costs = {row["missing"].partition(" (")[0]: row for row in rows}
    assert costs["a key of openai/gpt-5.2"]["gpu_hours"] is None
    # Table 1 of OBLIQ-Bench: documents and characters; 4.5 of these a token, at most 8,192 of a document
    sizes = ((72122, 212), (507729, 4161), (3508, 316), (10389, 2315), (213650, 2545))
    tokens = sum(documents * characters for documents, characters in sizes) / 4.5
    others = costs["a key of gemini/gemini-embedding-2"]
    crumb = 40956 * 2661 / 4.5  # Figure 1 has StackExchange, too
    assert others["usd"] == pytest.approx((tokens + crumb) * 0.20 / 1e6, rel=0.005)
    hours = 2 * 4.0e9 * (tokens + crumb * 1) / (0.4 * 989e12) / 3600
    weights = costs["the weights of Qwen/Qwen3-Embedding-4B"]
    assert weights["gpu_hours"] == pytest.approx(hours, rel=0.005)
    assert weights["usd"] == pytest.approx(3 * hours, rel=0.005)


def test_each_row_that_cannot_be_made_here_is_listed_once_with_a_command(bare):
    rows = list_missing()
    listed = {(name, table) for row in rows for name in row.rows for table in row.tables}
    lacking = 0
    for table in sections().values():
        for cell in table.cells:
            for system in table.runs_of(cell) if cell.system and not cell.lacks else ():
                if "lacks" in system:
                    assert (system["name"], table.name) in listed
                    lacking += 1
    assert lacking > 100
    assert len({row.missing for row in rows}) == len(rows)
    assert all(row.command for row in rows)


def test_a_key_that_is_there_is_not_missing(bare, monkeypatch, command_of):
    done = command_of(reproduce)("obliq/table2", "--missing", "--json").json["missing"]
    assert [row["missing"] for row in done if "key" in row["missing"]]
    for key in KEYS:
        monkeypatch.setenv(key, "x")
    from sextant.evals.papers import missing

    missing.is_here.cache_clear()
    done = command_of(reproduce)("obliq/table2", "--missing", "--json").json["missing"]
    missing.is_here.cache_clear()
    assert not [row["missing"] for row in done if "key" in row["missing"]]
    assert {row["command"].partition("; ")[2] for row in done} == {"sextant reproduce obliq/table2"}


def test_what_weights_need_beside_themselves_is_said(bare):
    listed = {row.missing: row.command for row in list_missing()}
    [adapter] = [missing for missing in listed if "rankllama" in missing]
    assert "an adapter, and Llama 2, whose licence must be agreed to" in adapter
    assert listed[adapter].startswith("hf download castorini/rankllama-v1-7b-lora-passage; sextant")


def test_the_costs_on_file_are_those_of_the_tables_and_their_models():
    kept = json.loads(COSTS.read_text(encoding="utf-8"))
    written = load_docs_script("write_costs").list_costs()
    assert {name: list(costs) for name, costs in kept.items()} == {
        name: list(costs) for name, costs in written.items()
    }
