"""Every table and figure of the papers is made on miniatures, with stand-ins for models and for weights."""

import pytest

from sextant.evals import reproduce
from sextant.evals.papers.sections import sections
from sextant.evals.studies.reproduce import reproduce_table

# Tables whose cells are made of what a user measured before, and gives with an option
FACETS = "give the build with --facets TASK=FOLDER"
GIVEN = {
    "birco/table3": "give what that prints with --contamination TASK=FILE",
    "birco/table4": FACETS,
    "birco/h2": FACETS,
}
TOO_FEW = "fewer than three queries, or a feature that all share"  # for a regression


@pytest.mark.parametrize("name", sections())
def test_a_table_is_made_but_for_the_cells_that_it_announces(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "solutions.jsonl").write_text(
        '{"_id": "1", "solution": "By induction."}\n'
    )  # the release has none
    limit = 10 if name.startswith("multiconir") else 2  # which asks for ten queries of a record
    conditions = {
        "data": "mini",
        "limit": limit,
        "lm": "offline",
        "retriever": "bm25",
        "runs": tmp_path / "runs",
    }
    found, section = reproduce_table(name, dry_run=False, **conditions).json, sections()[name]
    for cell, made in zip(section.cells, found["cells"], strict=True):
        announced = cell.lacks or (cell.system and section.system(cell).get("lacks"))
        asks_for = made["remark"].endswith(GIVEN.get(name, ())) or made["remark"] == TOO_FEW
        is_said = made["remark"] == announced if announced else asks_for
        assert made["ours"] is not None or is_said, made
    for ending in (".svg", ".pdf"):
        assert ("drawn" in section.about) == any(
            file.endswith(ending) for file in found.get("files", ())
        )


def test_a_run_that_breaks_off_leaves_the_other_cells_and_its_exit_code(
    command_of, server, tmp_path
):
    server.answer = lambda prompt: "nothing that fits"
    given = ("--data", "mini", "--limit", 6, "--retriever", "bm25", "--runs", tmp_path / "runs")
    done = command_of(reproduce)("obliq/table4", *given, "--lm", server.spec)
    assert (
        done.code == 7
        and "queries ended alike" in done.err
        and "Oracle GPT-5.2 Tournament" in done.out
    )
    assert "40 cells, 25 of them made" in done.out
