"""Harness cards where runs stand next to each other: in comparisons, in reports, and on the page."""

import csv
import json
import shutil

import pytest
from run_folders import run_in

from sextant.evals import compare, report
from sextant.evals.viewer.data import ViewerApi

REACT = ("--program", "react", "--task", "congress", "--limit", 2)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Three runs of an agent: as it is, with other tools and another memory, with another memory alone."""
    place = tmp_path_factory.mktemp("made")
    return {
        "plain": run_in(place, *REACT),
        "both": run_in(place, *REACT, "-P", "tools=search,read,grep", "-P", "memory=placeholders"),
        "memory": run_in(place, *REACT, "-P", "memory=placeholders"),
    }


def card_notes(result) -> list[str]:
    return [note for note in result["notes"] if "harness card" in note]


def test_a_comparison_says_in_a_line_in_which_parts_the_cards_differ(command_of, runs):
    command = command_of(compare)
    result = command(runs["plain"], runs["both"], "--json").json
    assert card_notes(result) == [
        f"{runs['both']}: its harness card differs from the baseline's in memory, tools; a "
        "difference in score cannot be laid to one of these 2"
    ]
    [difference] = result["differences"]
    assert difference["harness"]["memory"] == ["oldest", "placeholders"]
    before, after = difference["harness"]["tools"]
    assert "grep" in after and "grep" not in before
    printed = command(runs["plain"], runs["both"]).out
    assert len([line for line in printed.splitlines() if "harness card differs" in line]) == 1


def test_one_part_is_named_alone(command_of, runs):
    result = command_of(compare)(runs["plain"], runs["memory"], "--json").json
    assert card_notes(result) == [
        f"{runs['memory']}: its harness card differs from the baseline's in memory"
    ]


def test_a_run_without_a_card_says_nothing(command_of, runs, tmp_path):
    old = shutil.copytree(runs["both"], tmp_path / "old")
    config = json.loads((old / "config.json").read_text())
    del config["provenance"]["harness"]
    (old / "config.json").write_text(json.dumps(config))
    result = command_of(compare)(runs["plain"], old, "--json").json
    assert card_notes(result) == [] and result["differences"][0]["harness"] == {}


def test_a_report_names_tools_and_memory(command_of, runs, tmp_path):
    command = command_of(report)
    assert command(runs["plain"], runs["both"], "--out", tmp_path / "two").code == 0
    text = (tmp_path / "two/report.md").read_text()
    assert "| tools | memory |" in text
    assert "| read, search, select | oldest |" in text
    assert "| grep, read, search, select | placeholders |" in text
    with (tmp_path / "two/tables/runs.csv").open(newline="") as file:
        assert {row["memory"] for row in csv.DictReader(file)} == {"oldest", "placeholders"}


def test_the_page_of_a_run_has_its_card_with_the_descriptions_of_tools(runs):
    answers = ViewerApi([runs["both"]])
    [row] = json.loads(answers("runs.json"))["runs"]
    config = json.loads(answers(f"run/{row['id']}.json"))["config"]
    assert "regular expression" in config["provenance"]["harness"]["tools"]["grep"]
