"""What a user makes without a key: programs in files, a benchmark of a folder, a study, and what is shown of runs."""

import shutil

import pytest
from plain_installation import ROOT, STUDY, Shell

# The four forms of docs/guide/program.md: a function, a dspy.Module, a graph, a class over a toolbox
FORMS = [
    "search_twice.py:answer",
    "dspy_agent.py:Agent",
    "langgraph_agent.py:build",
    "own_session.py:Skim",
]


@pytest.mark.parametrize("program", FORMS)
def test_a_program_in_a_file_runs_and_is_scored(program, shell):
    shutil.copy(ROOT / "examples" / program.partition(":")[0], shell.folder)
    printed = shell.succeed(
        "sextant", "run", "--program", program, "--task", "congress", "--limit", 2, "--json"
    ).json
    assert printed["queries"] == 2 and printed["failed"] == 0


def test_every_example_in_a_file_is_tried():
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == {
        form.partition(":")[0] for form in FORMS
    }


def test_a_folder_of_documents_becomes_a_benchmark_that_is_checked_and_run(
    environment, home, construction, tmp_path
):
    shell = Shell(environment, home, tmp_path, **construction)
    shutil.copytree(ROOT / "docs" / "guide", shell.folder / "notes")
    attribute = "attribute.attribute=what goes wrong for somebody who does not know this"
    new = (
        "--recipe",
        "latent",
        "--corpus",
        "notes",
        "--set",
        "cut.by=sections",
        "--set",
        attribute,
    )
    shell.succeed("sextant", "build", "new", "mine", *new)
    shell.succeed("sextant", "build", "run", "mine")
    assert (shell.folder / "mine" / "release" / "README.md").exists()
    shell.succeed("sextant", "build", "check", "mine")
    printed = shell.succeed(
        "sextant", "run", "--task", "mine/release", "--program", "retrieve", "--json"
    ).json
    assert printed["task"] == "own/mine" and printed["queries"] > 0


def test_a_study_a_report_and_a_page_show_the_same_runs(shell):
    (shell.folder / "study.toml").write_text(STUDY, encoding="utf-8")
    shell.succeed("sextant", "study", "study.toml")
    runs = [path.parent for path in shell.folder.rglob("scores.json")]
    assert len(runs) == 2
    shell.succeed("sextant", "report", "runs", "--out", "report")
    written = [path.suffix for path in (shell.folder / "report").rglob("*") if path.is_file()]
    assert {".html", ".svg", ".csv"} <= set(written), written
    shell.succeed("sextant", "view", "runs", "--export", "page.html")
    page = (shell.folder / "page.html").read_text(encoding="utf-8")
    assert all(run.name in page for run in runs)
