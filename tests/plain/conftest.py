"""A shell of a user who has installed the wheel, with no extra, and has set nothing."""

import os
from pathlib import Path

import pytest
from filelock import FileLock
from plain_installation import Shell, install_construction, make_environment


@pytest.fixture(scope="session")
def environment(tmp_path_factory, worker_id) -> Path:
    """The environment, which the first worker makes; $SEXTANT_PLAIN names one that is there."""
    if named := os.environ.get("SEXTANT_PLAIN"):
        return Path(named)
    own = tmp_path_factory.getbasetemp()
    shared = own if worker_id == "master" else own.parent
    with FileLock(shared / "environment.lock"):
        record = shared / "environment.txt"
        if not record.exists():
            record.write_text(str(make_environment(shared)), encoding="utf-8")
        return Path(record.read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def construction(tmp_path_factory) -> dict[str, str]:
    """The variable with which a shell has sextant-construction, too."""
    folder = install_construction(tmp_path_factory.mktemp("construction"))
    return {"PYTHONPATH": str(folder)}


@pytest.fixture(scope="session")
def home(tmp_path_factory) -> Path:
    """The user's home folder: indexes are kept there from test to test."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def module_shell(environment, home, tmp_path_factory) -> Shell:
    """A shell in a folder that the tests of a file share."""
    return Shell(environment, home, tmp_path_factory.mktemp("shared"))


@pytest.fixture
def shell(environment, home, tmp_path) -> Shell:
    """A shell in an empty folder."""
    folder = tmp_path / "empty"
    folder.mkdir()
    return Shell(environment, home, folder)
