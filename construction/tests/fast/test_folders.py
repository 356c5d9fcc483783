"""Folders that somebody else has filled: what a link brings in from outside is left out, and named."""

import os
import random
from pathlib import Path

import pytest
from linked_folder import REASONS, make_linked_folder

from sextant_construction.folders import OUTSIDE, list_folder


@pytest.fixture
def corpus(tmp_path):
    return make_linked_folder(tmp_path)


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
