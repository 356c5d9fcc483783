"""Folders that somebody else has filled: what a link brings in from outside is left out, and named."""

import json
import os
import random
from pathlib import Path

import pytest
from building import build, prepare

from sextant.environments.folders import (
    HIDDEN,
    LINKS_READ_AGAIN,
    NO_FILE,
    NOWHERE,
    OUTSIDE,
    list_folder,
)
from sextant.environments.readers import documents
from sextant.evals.build import __main__ as command
from sextant.tools.errors import DataError

SECRET = "root:x:0:0:the secret of this machine"


@pytest.fixture
def corpus(tmp_path):
    """A folder of texts with every kind of link, beside a folder with a secret."""
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "corpus"
    (elsewhere / "deep").mkdir(parents=True)
    (folder / "own" / "deeper").mkdir(parents=True)
    (folder / ".git").mkdir()
    (elsewhere / "secret.txt").write_text(SECRET)
    (elsewhere / "deep" / "more.txt").write_text(f"more of {SECRET}")
    (folder / "a.txt").write_text("the tides of the harbour")
    (folder / "own" / "deeper" / "b.txt").write_text("the bells of the town")
    (folder / ".git" / "config.txt").write_text(SECRET)
    (folder / "notes.txt").symlink_to(elsewhere / "secret.txt")
    (folder / "up.txt").symlink_to("../elsewhere/secret.txt")
    (folder / "chain.txt").symlink_to("notes.txt")
    (folder / "own" / "folder").symlink_to(elsewhere)
    (folder / "own" / "again").symlink_to(folder / "own" / "deeper")
    (folder / "own" / "deeper" / "loop").symlink_to("..")
    (folder / "circle.txt").symlink_to("circle.txt")
    (folder / "gone.txt").symlink_to("nowhere.txt")
    (folder / "inner.txt").symlink_to("own/deeper/b.txt")
    (folder / "hidden.txt").symlink_to(".git/config.txt")
    os.mkfifo(folder / "pipe.txt")
    return folder


REASONS = {
    "notes.txt": OUTSIDE,
    "up.txt": OUTSIDE,
    "chain.txt": OUTSIDE,
    "own/folder": OUTSIDE,
    "own/again": LINKS_READ_AGAIN,
    "own/deeper/loop": LINKS_READ_AGAIN,
    "circle.txt": NOWHERE,
    "gone.txt": NOWHERE,
    "hidden.txt": HIDDEN,
    "pipe.txt": NO_FILE,
}


def test_links_out_of_a_folder_are_left_out_and_named_and_followed_where_that_is_wanted(corpus):
    files, left_out = list_folder(corpus)
    assert [path.relative_to(corpus).as_posix() for path in files] == [
        "a.txt",
        "inner.txt",
        "own/deeper/b.txt",
    ]
    assert {one.name: one.reason for one in left_out} == REASONS
    files, left_out = list_folder(corpus, follow_links=True)
    names = [path.relative_to(corpus).as_posix() for path in files]
    assert {
        "notes.txt",
        "up.txt",
        "chain.txt",
        "own/folder/secret.txt",
        "own/folder/deep/more.txt",
    } < set(names)
    assert OUTSIDE not in {one.reason for one in left_out}
    assert {one.name for one in left_out} == {
        name for name, reason in REASONS.items() if reason != OUTSIDE
    }


def test_of_random_trees_no_file_is_read_that_is_not_in_the_folder(tmp_path):
    for seed in range(40):
        chance = random.Random(seed)
        top = tmp_path / str(seed)
        folders = [top / "in", top / "out"]
        for folder in folders:
            folder.mkdir(parents=True)
        for number in range(25):
            parent = chance.choice(folders)
            path = parent / f"f{number}"
            what = chance.random()
            if what < 0.25:
                path.mkdir()
                folders.append(path)
            elif what < 0.5:
                path.write_text(str(number))
            else:
                target = chance.choice(list(top.rglob("*")) or [top])
                path.symlink_to(chance.choice([target, os.path.relpath(target, parent)]))
        inside = os.path.realpath(top / "in") + os.sep
        files, left_out = list_folder(top / "in")
        assert all(os.path.realpath(path).startswith(inside) for path in files)
        walked = {
            Path(at, name) for at, _, names in os.walk(top / "in") for name in names
        }  # in no linked folder
        assert set(files) == {
            path for path in walked if path.is_file() and os.path.realpath(path).startswith(inside)
        }
        followed, _ = list_folder(top / "in", follow_links=True)  # ends, whatever circles there are
        assert set(files) <= set(followed)
        for one in left_out:
            link = top / "in" / one.name
            assert link.is_symlink() and (one.reason == OUTSIDE) == (
                link.exists() and not (os.path.realpath(link) + os.sep).startswith(inside)
            )


def test_a_build_has_nothing_that_a_link_leads_to_and_says_which_links_those_are(
    corpus, tmp_path, capsys
):
    folder = prepare(tmp_path / "built", "recollection", str(corpus))
    build(folder, until="recollect")
    said = capsys.readouterr().err
    line = next(
        line for line in said.splitlines() if "links out of the folder are left out" in line
    )
    assert line.startswith("4 links") and "notes.txt -> " in line and "--follow-links" in line
    written = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert b"the bells of the town" in written and SECRET.encode() not in written
    rows = [json.loads(line) for line in (folder / "dropped.jsonl").read_text().splitlines()]
    assert {row["id"]: row["why"] for row in rows if row["stage"] == "ingest"} == REASONS
    assert json.loads((folder / "funnel.json").read_text())[0]["dropped"][OUTSIDE] == 4
    build(folder, until="recollect", follow_links=True)
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
        match=r"1 link out of the folder is left out: notes\.txt -> .*--follow-links takes",
    ):
        documents.list_files(only, "")
    for options, value in (((), "false"), (("--follow-links",), "true")):
        made = tmp_path / f"made-{value}"
        asked = ("new", made, "--recipe", "latent", "--corpus", only, *options)
        assert command_of(command)(*asked).code == 0
        assert f"follow_links = {value}" in (made / "recipe.toml").read_text()


def test_a_task_says_which_of_its_files_are_outside_of_its_folder(tmp_path):
    from sextant.environments.readers.collections import read_collection

    task, elsewhere = tmp_path / "task", tmp_path / "elsewhere"
    task.mkdir()
    elsewhere.mkdir()
    (elsewhere / "blob").write_text('{"_id": "d1", "text": "the tides"}\n')
    (task / "corpus.jsonl").symlink_to(elsewhere / "blob")
    (task / "queries.jsonl").write_text('{"_id": "q1", "text": "tides"}\n')
    (task / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\n")
    said = read_collection(task, tmp_path / "home").said
    assert any(
        "1 file is outside of the folder" in line and "corpus.jsonl" in line for line in said
    )
