"""Every table and figure of the papers is made on miniatures, with stand-ins for models and for weights."""

import pytest

from evals.published.sections import sections
from evals.studies.papers import Conditions, Table


@pytest.mark.parametrize("name", sections())
def test_a_table_is_made_but_for_the_cells_that_it_announces(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "solutions.jsonl").write_text('{"_id": "1", "solution": "By induction."}\n')  # the release has none
    limit = 10 if name.startswith("multiconir") else 2  # which asks for ten queries of a record
    conditions = Conditions(data="mini", limit=limit, lm="offline", retriever="bm25", runs=tmp_path / "runs")
    table = Table(sections()[name], conditions)
    for cell, made in zip(table.section.cells, table.cells(), strict=True):
        announced = cell.lacks or (cell.system and table.section.system(cell).get("lacks"))
        assert made["ours"] is not None or (announced and made["remark"] == announced), made
