"""The guide's examples of programs, retrievers, formats, panels and benchmarks can be added to Sextant as they are."""

import ast
import re
import subprocess

import pytest
from conftest import ROOT
from test_readability import NEVER, NODES_A_LINE_OF_A_FILE, all_docstrings, count_nodes

from sextant import environments

GUIDE = ROOT / "docs/guide"
BLOCKS = {
    f"{page.name}: {block.splitlines()[0]}": block
    for page in sorted(GUIDE.glob("*.md"))
    for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.S)
    if re.match(r'(# \w+\.py\n)?"""', block)  # a whole file, which says what it is for
}


@pytest.mark.parametrize("name", BLOCKS)
def test_an_example_is_written_as_our_own_files_are(name):
    tree = ast.parse(BLOCKS[name])
    lines = [line for line in BLOCKS[name].splitlines() if line.strip()]
    assert count_nodes(tree) / len(lines) <= NODES_A_LINE_OF_A_FILE
    assert not re.search(rf"\b({'|'.join(NEVER)})\b", all_docstrings(tree))


def test_the_new_benchmark_of_the_guide_is_loaded_and_run(tmp_path, monkeypatch, run):
    chapter = (GUIDE / "task.md").read_text(encoding="utf-8").partition("# Add a task to")[2]
    (module,) = [block for name, block in BLOCKS.items() if name.startswith("task.md: ")]
    (row,) = re.findall(r'^    ("\w+": \(.*\)),$', chapter, re.M)
    (script,) = re.findall(r"```bash\n(.*?)```", chapter, re.S)
    subprocess.run(["bash", "-ec", script], cwd=tmp_path, check=True)
    (tmp_path / "environments/fieldnotes.py").write_text(module)
    folders = [*environments.__path__, str(tmp_path / "environments")]
    monkeypatch.setattr(environments, "__path__", folders)
    monkeypatch.setattr(environments, "MINI", tmp_path / "environments/mini")
    for suite, declaration in ast.literal_eval(f"{{{row}}}").items():
        monkeypatch.setitem(environments.SUITES, suite, declaration)
    splits = [environments.load("animals", split=split).queries for split in ("dev", "test")]
    assert sorted(query.query_id for split in splits for query in split) == ["q1", "q2", "q3"]
    result = run("--program", "retrieve", "--task", "animals")
    assert result.code == 0
    assert "fieldnotes/animals" in result.out
