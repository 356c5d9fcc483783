"""What the documents print of long work is what it prints."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
REFERENCE = (ROOT / "docs/reference.md").read_text(encoding="utf-8")


def test_the_references_compilation_is_what_tuning_prints(tmp_path, capsys):
    from optimizers import compile
    from tools.console import run_command

    words = ["--program", "multihop", "--task", "congress", "--optimizer", "tune", "--runs", str(tmp_path)]
    assert run_command(compile.parser(), compile.command, words) == 0
    printed = "\n".join(line.rstrip() for line in capsys.readouterr().out.splitlines())
    shown = REFERENCE.partition("--optimizer tune` begins with\n\n```\n")[2].partition("\n```")[0]
    assert shown.count("\n") > 10 and printed.startswith(shown)


@pytest.mark.parametrize(
    ("name", "task"), [("planner", "birco/relic"), ("tournament", "crumb/code_retrieval"), ("react", "obliq/twitter")]
)
def test_the_table_of_scores_is_what_the_programs_reach(name, task, tmp_path):
    from benchmarks.programs import score

    head, found = [], None
    for line in (ROOT / "docs/decisions/programs.md").read_text().splitlines():
        cells = [cell.strip().strip("`") for cell in line.strip("|").split("|")]
        head = cells if cells[0] == "nDCG@10" else head
        if cells[0] == name and task.partition("/")[2] in head:
            found = cells[head.index(task.partition("/")[2])]
    assert score(name, task, tmp_path) == found
