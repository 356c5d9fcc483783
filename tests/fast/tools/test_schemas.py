"""A file of a run that was edited after it was written is named. For random damage, see tests/soak/large."""

import json
import shutil
from pathlib import Path

import pytest
from run_folders import run_in

from sextant.evals import score
from sextant.evals.run_folder import read_outcomes
from sextant.evals.scoring.scored_run import find_scored_runs
from sextant.tools.errors import SextantError
from sextant.tools.platform.cli import run_command


@pytest.fixture(scope="module")
def run_of_ours(tmp_path_factory):
    """A scored run as we write it."""
    words = ("--program", "multihop", "--task", "congress", "--limit", 3, "--split", "dev")
    return run_in(tmp_path_factory.mktemp("made"), *words)


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        (
            "outcomes.jsonl",
            '"ranking":["',
            '"ranking":["MINI-h01-1","',
            "line 1 is damaged (it was edited",
        ),
        ("scores.csv", "0.", "0.9", "scores.csv has changed since the run was scored"),
        ("scores.json", '"mean": 0.', '"mean": 0.9', "scores.json was edited"),
        ("config.json", '"data": "mini"', '"data": "full"', "the name of another configuration"),
        (
            "attribution.jsonl",
            "never_surfaced",
            "found",
            "attribution.jsonl has changed since the run was scored",
        ),
    ],
)
def test_a_file_of_a_run_that_was_edited_is_named_and_scoring_again_mends_what_it_makes(
    name, old, new, said, run_of_ours, tmp_path, capsys
):
    path = Path(shutil.copytree(run_of_ours, tmp_path / run_of_ours.name))
    assert old in (path / name).read_text()
    (path / name).write_text((path / name).read_text().replace(old, new))
    runs, others = find_scored_runs([path])
    with pytest.raises(SextantError) as refused:
        raise (
            SextantError(*others.values())
            if others
            else SextantError(len(runs[0].outcomes), len(runs[0].judged))
        )
    assert said in str(refused.value)
    made_by_scoring = name not in ("outcomes.jsonl", "config.json")
    assert run_command(score.parser(), score.command, [str(path)]) == (0 if made_by_scoring else 3)
    again, others = find_scored_runs([path])
    assert not made_by_scoring or (
        len(again) == 1 and len(again[0].outcomes) == len(again[0].judged) == 3
    )


def test_a_line_of_another_run_is_not_taken_for_one_of_this(run_of_ours, tmp_path):
    path = Path(shutil.copytree(run_of_ours, tmp_path / "renamed"))
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"program": "another"}))
    with pytest.raises(
        SextantError, match=r"line 1 is damaged \(it was edited, or is of another run"
    ):
        read_outcomes(path)
    (problem,) = find_scored_runs([path])[1].values()
    assert "config.json was edited after the run was scored" in problem


def test_every_form_has_a_schema():
    from sextant.evals import run_schemas as of_runs
    from sextant.evals.formats import atif
    from sextant.programs.compiled import Compiled
    from sextant.tools.schemas import schema

    for form in (
        of_runs.ConfigSchema,
        of_runs.OutcomeSchema,
        of_runs.ScoresSchema,
        atif.AtifLine,
        Compiled,
    ):
        assert "$defs" in schema(form)
