"""What the papers' rows lack here, and the command that makes each for whoever has it."""

import pytest
from conftest import ROOT

from evals import reproduce
from evals.papers.missing import lay_out_missing, list_missing
from evals.published.sections import sections

KEYS = ("OPENAI_API_KEY", "GEMINI_API_KEY")


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """A machine without keys and weights."""
    for key in KEYS:
        monkeypatch.delenv(key, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "none"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.chdir(tmp_path)


def test_the_guides_table_is_what_the_command_prints(bare, command_of):
    printed = command_of(reproduce)("--missing").out
    guide = (ROOT / "docs/guide/study.md").read_text(encoding="utf-8")
    assert f"```\n{printed}```" in guide


def test_each_row_that_cannot_be_made_here_is_listed_once_with_a_command(bare):
    rows = list_missing(sections().values())
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
    from evals.papers import missing

    missing.find_obstacle.cache_clear()
    done = command_of(reproduce)("obliq/table2", "--missing", "--json").json["missing"]
    missing.find_obstacle.cache_clear()
    assert not [row["missing"] for row in done if "key" in row["missing"]]
    assert {row["command"].partition("; ")[2] for row in done} == {
        "python -m evals.reproduce obliq/table2"
    }


def test_an_adapter_lacks_its_base_model_too(bare):
    listed = {row.missing: row.command for row in list_missing(sections().values())}
    bases = {
        "castorini/rankllama-v1-7b-lora-passage": "BASE",
        "samaya-ai/promptriever-llama3.1-8b-instruct-v1": "meta-llama/Meta-Llama-3.1-8B-Instruct",
    }
    for model, base in bases.items():
        command = listed[f"the weights of {model} and of its base model"]
        assert command.startswith(f"hf download {model}; hf download {base}; python -m evals.")
    assert "the weights of BAAI/bge-reranker-v2-m3" in listed
    adapters = [missing for missing in listed if missing.endswith("base model")]
    assert len(adapters) == 7


def test_tables_in_a_row_are_a_range():
    [table] = [table for table in sections().values() if table.name == "crumb/table10"]
    rows = list_missing([sections()["crumb/table8"], sections()["crumb/table9"], table])
    assert any("(crumb table8-10)" in line for line in lay_out_missing(rows))
