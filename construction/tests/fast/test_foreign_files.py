"""What strangers leave in a folder of a build ends in one line: no wait, no traceback."""

import os

import pytest

from sextant.tools.errors import SextantError
from sextant_construction.documents.markup import read_xml
from sextant_construction.recipe import read_recipe


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "nested"])
def test_a_recipe_that_is_no_file_is_refused_at_once(kind, tmp_path):
    path = tmp_path / "recipe.toml"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    else:
        path.write_text("a = " + "[" * 3000 + "]" * 3000)
    with pytest.raises((SextantError, OSError)) as refused:
        read_recipe(tmp_path)
    assert not isinstance(refused.value, RecursionError) and "\n" not in str(refused.value)


@pytest.mark.parametrize("encoding", ["rot13", "no-such", "base64", "utf-7"])
def test_an_encoding_that_is_none_is_one_line(encoding, tmp_path):
    path = tmp_path / "a.xml"
    path.write_text(f'<?xml version="1.0" encoding="{encoding}"?><a><b>text</b></a>')
    try:
        list(read_xml(path, "a", "b"))
    except SextantError as refused:
        assert str(path) in str(refused)  # else the parser can read it
