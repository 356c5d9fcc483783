"""The notebooks of the guide run from their first cell to their last, and carry no output."""

import json
import linecache

import pytest
from conftest import ROOT

NOTEBOOKS = sorted((ROOT / "docs/guide").glob("*.ipynb"))


def read_cells(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def run_cell(source, name, namespace):
    # As in a notebook, where inspect finds the source of a function in a cell.
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    exec(compile(source, name, "exec"), namespace)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_every_cell_of_a_notebook_runs(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__main__"}
    for number, cell in enumerate(read_cells(path)):
        run_cell("".join(cell["source"]), f"<cell {number} of {path.name}>", namespace)
    assert list((tmp_path / "runs").rglob("scores.json"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_is_kept_without_outputs(path):
    for cell in read_cells(path):
        assert cell["outputs"] == [] and cell["execution_count"] is None


def test_the_agent_of_the_guide_has_at_most_twenty_lines():
    [source] = [
        "".join(cell["source"])
        for cell in read_cells(ROOT / "docs/guide/agent.ipynb")
        if "def agent" in "".join(cell["source"])
    ]
    assert sum(bool(line.strip()) for line in source.splitlines()) <= 20
