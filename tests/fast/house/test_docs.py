"""The README and the documents say what the commands print, and name only what is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [
    *ROOT.glob("*.md"),
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "benchmarks/RESULTS.md",
    ROOT / "construction/README.md",
    *sorted((ROOT / "construction/docs").glob("*.md")),
    ROOT / "environments/mini/README.md",
]
NAMING = [
    page for page in PAGES if page.name != "README.md" and page.parent.name != "guide"
]  # files that are here
REFERENCE = (ROOT / "docs/reference.md").read_text(encoding="utf-8")


def rows(text: str) -> list[list[str]]:
    """The table of scores in a printout: metric, mean, low, high."""
    pattern = r"^ ?((?:nDCG|R|RR)@\d+) +(\d\.\d{4}) +(\d\.\d{4}) to (\d\.\d{4})"
    return [list(match) for match in re.findall(pattern, text, re.M)]


def test_the_readmes_scores_are_what_the_main_job_and_its_floor_print(run):
    printed = {
        row[0]: row[1:] for row in rows(run("--program", "multihop", "--task", "congress").out)
    }
    mean, low, high = printed["nDCG@10"]
    assert f"it prints nDCG@10 {mean} (95 % interval {low} to {high})" in README
    [(_, floor, *_), *_] = rows(run("--program", "retrieve", "--task", "congress").out)
    assert f"`--program retrieve`, has {floor}" in README


def test_the_miniatures_table_in_the_results_is_what_the_programs_print(run):
    results = (
        (ROOT / "docs/results.md").read_text(encoding="utf-8").partition("## The miniature")[2]
    )
    for program in ("retrieve", "multihop"):
        metrics = run("--program", program, "--task", "congress", "--split", "all", "--json").json[
            "metrics"
        ]
        cells = [f"{metrics[name]['mean']:.4f}" for name in ("nDCG@10", "R@10", "R@100", "R@1000")]
        assert f"| {program} | {' | '.join(cells)} |" in results


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_link_leads_somewhere(path):
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists(), target


@pytest.mark.parametrize("page", NAMING, ids=lambda page: page.name)
def test_every_path_that_a_page_names_exists(page):
    folders = (
        "agents|benchmarks|construction|docs|environments|evals|optimizers|programs|tests|tools"
    )
    named = re.findall(rf"(?<![\w/.-])((?:{folders})/[\w./-]*\w)", page.read_text(encoding="utf-8"))
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_every_page_that_the_code_names_exists():
    folders = "agents|benchmarks|construction|environments|evals|optimizers|programs|tests|tools"
    sources = [path for folder in folders.split("|") for path in (ROOT / folder).rglob("*.py")]
    named = {
        (path.name, page)
        for path in sources
        for page in re.findall(r"(?<![\w/])docs/[\w/-]+\.md", path.read_text())
    }
    assert {(name, page) for name, page in named if not (ROOT / page).exists()} == set()


def test_every_option_in_the_readme_exists():
    from benchmarks import calls, retrieval
    from sextant.evals import compare, curves, export, import_run, replay, report, run, serve, view
    from sextant.optimizers import compile

    commands = (
        run,
        calls,
        retrieval,
        compare,
        compile,
        curves,
        replay,
        serve,
        view,
        report,
        export,
        import_run,
    )
    parsers = [command.parser() for command in commands]
    known = {
        option
        for parser in parsers
        for action in parser._actions
        for option in action.option_strings
    }
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", README + REFERENCE)) <= known | {"--strict"}


def _row(name, column):
    """A cell of a table with these row and column names."""
    head, found = [], None
    for line in (ROOT / "benchmarks/RESULTS.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip().strip("`") for cell in line.strip("|").split("|")]
        head = cells if "--" not in line and cells[0] in ("a query", "nDCG@10") else head
        if cells[0] == name and column in head:
            found = cells[head.index(column)]
    return found


@pytest.mark.parametrize("name", ["rewrite", "decompose", "multihop", "tournament"])
def test_the_table_of_calls_is_what_the_benchmark_counts(name):
    from benchmarks.programs import counted

    [counts] = counted("obliq/congress", [name], 3)
    for column in ("calls", "tokens of prompts", "largest prompt", "searches", "documents shown"):
        assert counts[column] == _row(name, column), column


def test_the_readme_is_short_and_its_tree_names_folders_that_are_there():
    assert len(re.findall(r"\S*\w\S*", README)) <= 700
    tree = README.partition("## Where things are\n\n```\n")[2].partition("\n```")[0]
    package = ""
    for line in tree.splitlines():
        package = line.split("/")[0] if not line.startswith(" ") else package
        for name in re.findall(r"\b([a-z_]+)/", line):
            assert (
                name == package
                or (ROOT / package / name).is_dir()
                or list((ROOT / package).rglob(name))
            ), line


def test_the_documents_have_at_most_31_500_words():
    words = 0
    for page in (ROOT / "docs").rglob("*.md"):
        text = re.sub(
            r"```.*?```|^    [^\n]*$", "", page.read_text(encoding="utf-8"), flags=re.S | re.M
        )
        words += sum(bool(re.search(r"\w", part)) for part in text.split())
    assert words <= 31_500
