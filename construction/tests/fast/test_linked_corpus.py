"""A corpus in a folder that somebody else has filled: what a link brings in from outside is left out, and named."""

import json

import pytest
from building import build, prepare
from linked_folder import REASONS, SECRET, make_linked_folder

from sextant.tools.errors import DataError
from sextant_construction import __main__ as command
from sextant_construction import documents
from sextant_construction.folders import OUTSIDE


@pytest.fixture
def corpus(tmp_path):
    return make_linked_folder(tmp_path)


def test_a_build_has_nothing_that_a_link_leads_to_and_says_which_links_those_are(
    corpus, tmp_path, capsys
):
    folder = prepare(tmp_path / "built", "recollection", str(corpus))
    build(folder, until="recollect")
    said = capsys.readouterr().err
    line = next(
        line for line in said.splitlines() if "links out of the folder are left out" in line
    )
    assert (
        line.startswith("4 links")
        and "chain.txt -> " in line
        and "corpus.follow_links takes" in line
    )
    written = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert b"the bells of the town" in written and SECRET.encode() not in written
    rows = [json.loads(line) for line in (folder / "dropped.jsonl").read_text().splitlines()]
    assert {row["id"]: row["why"] for row in rows if row["stage"] == "ingest"} == REASONS
    assert json.loads((folder / "funnel.json").read_text())[0]["dropped"][OUTSIDE] == 4
    prepare(folder, "recollection", str(corpus), corpus={"follow_links": True})
    build(folder, until="recollect")
    written = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert SECRET.encode() in written


def test_the_option_is_written_into_a_recipe_and_a_corpus_of_nothing_but_links_says_what_takes_them(
    corpus, tmp_path, command_of
):
    only = tmp_path / "only"
    only.mkdir()
    (only / "notes.txt").symlink_to(corpus / "a.txt")
    with pytest.raises(
        DataError,
        match=r"1 link out of the folder is left out, e\.g\. notes\.txt -> .*corpus.follow_links takes",
    ):
        documents.list_files(only)
    for options, value in (((), "false"), (("--follow-links",), "true")):
        made = tmp_path / f"made-{value}"
        asked = ("new", made, "--recipe", "latent", "--corpus", only, *options)
        assert command_of(command)(*asked).code == 0
        assert f"follow_links = {value}" in (made / "recipe.toml").read_text()
