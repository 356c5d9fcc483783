"""Every row of a paper's table that is a bare retriever says how it differs from the paper's, or does not differ."""

import re

import pytest
from conftest import ROOT

from sextant.environments import find_paper_instruction
from sextant.evals.papers.sections import sections
from sextant.evals.papers.settings import ReproductionSettings
from sextant.evals.studies.reproduced_table import ReproducedTable
from sextant.evals.studies.study_file import list_tasks
from sextant.tools.retrievers.neural import model_table

ROWS = {
    f"{table.name} {system['name']} {system.get('retriever')}": (table, system)
    for table in sections().values()
    for system in table.systems
    if system.get("program") == "retrieve"
}
# MultiConIR's Table 3, in tokens
LENGTHS = {
    "jina-embeddings-v3": 4096,
    "gte-large-en-v1.5": 8192,
    "NV-Embed-v2": 32768,
    "bge-en-icl": 32768,
    "gte-Qwen2-7B-instruct": 131072,
    "gte-Qwen2-1.5B-instruct": 131072,
    "e5-mistral-7b-instruct": 32768,
    "GritLM-7B": 4096,
    "LLM2Vec": 8192,
    "bge-reranker-v2-m3": 8192,
    "bge-reranker-v2-gemma": 1024,
    "followIR": 4096,
}
# Models of which the paper has no text on the task, though they were trained with such: the row says it.
UNSAID = ("obliq",)


def read_model(system):
    """The row of models.toml for a system's retriever, and the length that its expression gives; None for BM25."""
    name, _, options = system["retriever"].partition(":")[2].partition("(")
    length = re.search(r"max_tokens=(\d+)", options)
    return model_table.rows().get(name), length and int(length[1])


@pytest.mark.parametrize("key", ROWS)
def test_a_retriever_reads_what_the_papers_read_or_its_row_says_that_it_does_not(key):
    table, system = ROWS[key]
    suite = table.name.partition("/")[0]
    differs = system.get("differs", "")
    row, length = read_model(system)
    if row and row.instructed:
        tasks = [cell.task for cell in table.cells if cell.system == system["name"]]
        text = system.get("instruction", "ours")
        for task in (one for several in tasks for one in list_tasks(several)):
            assert text != "paper" or find_paper_instruction(task)
        assert text != "ours" or (suite in UNSAID and "instruction" in differs)
    if suite == "multiconir" and row:
        read = length or row.max_document_tokens
        assert read == LENGTHS[system["name"]] or f"{read:,} tokens" in differs
    if suite == "crumb" and row:
        assert f"here at {row.max_document_tokens:,}" in differs
    if system["retriever"].startswith("late:"):
        assert "PLAID" in differs
    if row and suite == "birco" and re.search("not verified|Without", row.source):
        assert differs
    assert row or differs, "a lexical retriever, or one that models.toml does not have"


def test_the_line_of_a_row_is_the_systems_and_that_of_a_stand_in_is_which_it_stands_for(tmp_path):
    conditions = ReproductionSettings(
        data="mini", limit=1, lm="offline", retriever="rank_bm25", runs=tmp_path
    )
    found = {}
    for cell in ReproducedTable(sections()["obliq/table4"], conditions).cells():
        found[cell.system] = cell.remark, cell.deviations
    remark, [line] = found["BM25"]
    assert remark == "" and line.startswith("BM25 differs from the paper's: the task's script")
    assert found["LateOn 0.1B"] == ("rank_bm25 for late:lightonai/LateOn", ())
    assert found["Gemini-2-Embedding"] == ("rank_bm25 for api:gemini/gemini-embedding-2", ())


def test_what_a_row_says_of_a_retriever_is_in_the_docs():
    page = (ROOT / "docs/decisions/programs.md").read_text(encoding="utf-8")
    for word in ("PLAID", "--instruction paper", "eight", "figure 18", "figure 24", "D.1.5"):
        assert word in page
