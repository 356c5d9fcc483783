"""Nodes work on copies of one home, which Ray makes, and build nothing of their own."""

import shutil
from pathlib import Path

from run_folders import lasting

from tools import disk


def test_nodes_read_the_index_of_a_home_that_is_shared_by_its_url(
    run, cluster, monkeypatch, tmp_path, tmp_path_factory
):
    homes = [*tmp_path_factory.getbasetemp().glob("node[12]*")]
    assert len(homes) >= 2
    for left in (each for home in homes for each in home.iterdir()):
        disk.remove(left)  # by tests before
    asked = ("--program", "multihop", "--task", "congress", "--limit", 2, "--json")
    here = lasting(Path(run(*asked).json["run"]))
    zipped = shutil.make_archive(str(tmp_path / "shared"), "zip", tmp_path / "home")
    monkeypatch.setenv("SEXTANT_SHARE", f"file://{zipped}")
    there = run(*asked, "--workers", "ray", "--runs", tmp_path / "there").json["run"]
    assert lasting(Path(there)) == here
    assert not any(any(home.iterdir()) for home in homes)
    assert [*Path("/tmp/ray/session_latest").glob("runtime_resources/working_dir_files/*/indexes/bm25-*")]
