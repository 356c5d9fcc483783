"""The extras that pages, examples and messages name are those of pyproject.toml, and the page lists all of them."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CONSTRUCTION = tomllib.loads((ROOT / "construction/pyproject.toml").read_text(encoding="utf-8"))[
    "project"
]
EXTRAS = set(PROJECT["optional-dependencies"])
UNPINNED = {
    "inspect",
    "openenv",
    "verifiers",
}  # they do not install beside the pinned versions, or are for a server alone
PRODUCT = (
    "agents",
    "construction",
    "environments",
    "evals",
    "examples",
    "optimizers",
    "programs",
    "tools",
)
PAGES = [
    *ROOT.glob("*.md"),
    ROOT / "construction/README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "construction/docs").glob("*.md")),
    ROOT / "Makefile",
]
SOURCES = [path for folder in PRODUCT for path in sorted((ROOT / folder).rglob("*.py"))]
NAMED_IN_CODE = r"(?:explain_missing|tell_how_to_install)\((?:[^()]*, )?[\"']([\w-]+)[\"']\)"


def test_the_table_of_extras_has_those_of_the_project():
    page = (ROOT / "docs/guide/quickstart.md").read_text(encoding="utf-8")
    table = page.partition("| extra |")[2].partition("\n\n")[0]
    cells = re.findall(r"^\| (`[^|]*) \|", table, re.M)
    listed = [name for cell in cells for name in re.findall(r"`([\w-]+)`", cell)]
    assert sorted(listed) == sorted(EXTRAS)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_what_a_page_installs_is_a_place_and_extras_that_there_are(path):
    text = path.read_text(encoding="utf-8")
    assert not re.search(
        r"pip install (?:-\S+ )*[\"']?sextant(?:-search)?(?![\w_])(?!.* @ )", text
    )  # not on the index
    for extras in re.findall(r"\.(?:whl)?\[([\w,-]+)\]['\"]", text):
        assert set(extras.split(",")) <= EXTRAS, extras


def test_the_extras_that_messages_name_are_there():
    named = {
        name
        for path in SOURCES
        for name in re.findall(NAMED_IN_CODE, path.read_text(encoding="utf-8"))
    }
    assert {"mcp", "otlp", "ray", "ann"} <= named <= EXTRAS
    told = {
        name
        for path in SOURCES
        for name in re.findall(r"pip install '\.\[([\w-]+)\]'", path.read_text("utf-8"))
    }
    assert told and told <= EXTRAS


def test_every_dependency_has_an_exact_version_among_the_constraints():
    def names(lines: list[str]) -> set[str]:
        found = (re.match(r"[\w.-]+", line) for line in lines)
        return {re.sub(r"[-_.]+", "-", match[0]).lower() for match in found if match}

    pinned = names((ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines())
    extras = [line for name in EXTRAS - UNPINNED for line in PROJECT["optional-dependencies"][name]]
    ours = {"sextant-construction", "sextant-search"}
    assert names(PROJECT["dependencies"] + extras) - ours <= pinned
    others = [*CONSTRUCTION["dependencies"], *CONSTRUCTION["optional-dependencies"]["sources"]]
    assert names(others) - ours <= pinned
