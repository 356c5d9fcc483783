"""Nodes work on copies of one home, which Ray makes, and build nothing of their own."""

import os
import shutil
from pathlib import Path

import pytest
from run_folders import lasting

from sextant.tools.platform import files

boto3 = pytest.importorskip("boto3", reason="an extra: pip install '.[soak]'")
moto = pytest.importorskip("moto.server", reason="an extra: pip install '.[soak]'")


@pytest.fixture(scope="module", autouse=True)
def storage():
    """A server that speaks S3's protocol, of which the nodes know before they start."""
    server = moto.ThreadedMotoServer("127.0.0.1", port=0)
    server.start()
    place = f"http://127.0.0.1:{server.get_host_and_port()[1]}"
    told = {"AWS_ENDPOINT_URL": place, "AWS_DEFAULT_REGION": "us-east-1"}
    told |= dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "any")
    before = dict(os.environ)
    os.environ |= told
    yield boto3.client("s3")
    os.environ.clear()
    os.environ |= before
    server.stop()


@pytest.mark.parametrize("where", ["file", "s3"])
def test_nodes_read_the_index_of_a_home_that_is_shared_by_its_url(
    where, run, storage, cluster, monkeypatch, tmp_path, tmp_path_factory
):
    homes = [*tmp_path_factory.getbasetemp().glob("node[12]*")]
    assert len(homes) >= 2
    for left in (each for home in homes for each in home.iterdir()):
        files.remove(left)  # by tests before
    asked = ("--program", "multihop", "--task", "congress", "--limit", 2, "--json")
    here = lasting(Path(run(*asked).json["run"]))
    place = shutil.make_archive(str(tmp_path / where), "zip", tmp_path / "home")
    if where == "s3":
        storage.create_bucket(Bucket="homes")
        storage.upload_file(place, "homes", "home.zip")
        place = "homes/home.zip"
    monkeypatch.setenv("SEXTANT_SHARE", f"{where}://{place}")
    there = run(*asked, "--workers", "ray", "--runs", tmp_path / "there").json["run"]
    assert lasting(Path(there)) == here
    assert not any(any(home.iterdir()) for home in homes)
    session = Path(cluster.head_node.get_session_dir_path())
    assert [*session.glob(f"runtime_resources/working_dir_files/{where}*/indexes/bm25-*")]
