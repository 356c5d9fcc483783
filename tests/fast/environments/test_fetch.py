"""Fetching a release: what is whole is marked, what breaks off goes on, and what is wrong is thrown away."""

import errno
import hashlib
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path

import huggingface_hub.constants
import pytest
from hub_server import HubServer

from sextant import environments
from sextant.environments import birco, obliq
from sextant.environments.base import Release, Suite, TaskInfo
from sextant.environments.fetch import fetch
from sextant.environments.task_card import data_state, run_checks, task_row
from sextant.tools.errors import DataError, RunConflict, UsageError
from sextant.tools.platform.files import sextant_home

MINI = Path(environments.__file__).parent / "mini/obliq"
PATHS = obliq.SUITE.tasks["congress"].files
TASKS = {"hub": "obliq/congress", "github": "birco/relic"}
CORPUS, QUERIES, QRELS = "/corpus.jsonl", "/queries.jsonl", "/qrels.tsv"

# A suite without a miniature, of which the project has none.
BARE = Suite(
    release=Release("github", "nobody/toy", "1" * 40, "CC BY 4.0", "none"),
    tasks={
        "toy": TaskInfo("what", "nDCG@10", "so", "none", {}, 1, ("a corpus.jsonl", "qrels.tsv"))
    },
    load=lambda request: pytest.fail("is only fetched"),
)


@pytest.fixture(autouse=True)
def allowed(monkeypatch):
    # conftest forbids the Hub to all tests, and its library reads that once, whichever test imports it.
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", "hf_of_the_test")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def serve(monkeypatch):
    servers = []

    def start(release: Release, files: dict[str, bytes]) -> HubServer:
        server = HubServer(release.repository, release.revision, files)
        servers.append(server)
        for name in ("HF_ENDPOINT", "SEXTANT_GITHUB_API", "SEXTANT_GITHUB_RAW"):
            monkeypatch.setenv(name, server.address)
        return server

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def hub(serve):
    return serve(obliq.RELEASE, {path: (MINI / path).read_bytes() for path in PATHS})


@pytest.fixture
def github(serve):
    def pickled(split: str) -> bytes:
        texts = {
            f"{split}-d{n}": f"A passage about a {word}."
            for n, word in enumerate(["ferry", "dam", "radio"])
        }
        labels = {f"{split}-q": {doc_id: n for n, doc_id in enumerate(texts)}}
        return pickle.dumps({"query": {f"{split}-q": "A radio?"}, "corpus": texts, "qrel": labels})

    files = {f"datasets/relic/{split}_set.pickle": pickled(split) for split in ("test", "dev")}
    return serve(birco.RELEASE, {"README.md": b"BIRCO", **files})


@pytest.fixture
def bare(serve, monkeypatch):
    monkeypatch.setitem(environments.SUITES, "bare", ("test_fetch:BARE", "toy"))
    return serve(BARE.release, {"a corpus.jsonl": b"x" * 50_000, "qrels.tsv": b"q\td\t1\n"})


@pytest.fixture
def lines():
    return []


@pytest.fixture
def waits(monkeypatch):
    """The waits between tries, in seconds, which take no time."""
    waits = []
    monkeypatch.setattr("sextant.environments.fetch.sleep", waits.append)
    return waits


@pytest.fixture
def get(lines, waits):
    """`fetch`, without the waiting."""
    return lambda task="obliq/congress": fetch(task, say=lines.append)


def data(suite: str = "obliq") -> Path:
    return sextant_home() / "data" / suite


def marked() -> bool:
    return any(data().glob("*.complete.json"))


def leftovers() -> list[str]:
    return sorted(path.name for path in data().rglob("*.part*"))


def test_a_task_of_the_hub_is_fetched_whole_marked_and_loads_and_a_second_fetch_asks_nobody(
    hub, get, lines
):
    with pytest.raises(DataError, match="is not there"):
        environments.load("obliq/congress", "full")
    assert get() == data()
    environment = environments.load("obliq/congress", split="all")
    assert (environment.data, len(environment.documents), len(environment.queries)) == (
        "full",
        288,
        36,
    )
    assert lines[0].startswith("obliq/congress: 3 files, ")
    assert " kB from dianetc/OBLIQ-Bench@4ebee29f (CC BY 4.0); 0 bytes" in lines[0]
    assert lines[-1] == f"obliq/congress: whole and checked, in {data()}"
    mark, of = json.loads((data() / "congress.complete.json").read_text()), obliq.RELEASE
    assert [mark[key] for key in ("repository", "revision", "licence")] == [
        of.repository,
        of.revision,
        "CC BY 4.0",
    ]
    assert mark["task"] == "obliq/congress" and len(mark["fetched"]) == len("2026-11-21")
    assert mark["files"] == {
        path: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for path, content in hub.files.items()
    }
    assert leftovers() == []
    assert len(hub.asked) == 1 + 2 * len(PATHS), (
        "the listing and the files, each of which is redirected once"
    )
    # The token goes to the Hub, and not to where it keeps large files.
    authorization = {Path(sent.path).name: sent.authorization for sent in hub.sent}
    assert authorization == {
        "corpus.jsonl": None,
        "queries.jsonl": None,
        "qrels.tsv": "Bearer hf_of_the_test",
    }
    assert get() == data() and len(hub.asked) == 1 + 2 * len(PATHS)
    assert (
        lines[-1]
        == f"obliq/congress: all files from dianetc/OBLIQ-Bench@4ebee29f are in {data()} already"
    )


def test_a_task_on_github_is_fetched_and_loads_and_its_variant_is_ignored(github, get):
    get("birco/relic:corpus")
    environment = environments.load("birco/relic", "full")
    assert [query.query_id for query in environment.queries] == ["test-q"]
    assert {sent.authorization for sent in github.sent} == {None}
    assert not (data("birco") / "README.md").exists()


@pytest.mark.parametrize("damage", ["gone", "short", "other bytes"])
def test_a_file_that_has_gone_or_changed_is_noticed_by_check_and_fetched_again_and_no_other(
    hub, get, damage
):
    get()
    path = next(data().rglob(CORPUS[1:]))
    changed = (
        b"short" if damage == "short" else path.read_bytes().replace(b"committee", b"Kommittee", 1)
    )
    path.unlink() if damage == "gone" else path.write_bytes(changed)
    if damage == "other bytes":
        files = [finding for finding in run_checks("obliq/congress") if finding.what == "files"]
        assert [finding.fine for finding in files] == [False] and "fetch it again" in files[0].said
    hub.sent.clear()
    get()
    assert [Path(sent.path).name for sent in hub.sent] == [path.name]
    assert all(finding.fine for finding in run_checks("obliq/congress") if finding.what == "files")


def test_a_suite_without_a_miniature_is_in_the_list_and_takes_no_other_task_away(bare):
    rows = {task: task_row(task) for task in environments.tasks()}
    assert rows["bare/toy"] | {"data": "none", "documents": None, "test": None} == rows["bare/toy"]
    assert all(
        one["data"] == "mini" and one["documents"]
        for task, one in rows.items()
        if task != "bare/toy"
    )
    with pytest.raises(
        DataError, match="bare has no miniature; `sextant tasks fetch bare/toy` gets the release"
    ):
        environments.load("bare/toy")


def test_another_pinned_revision_is_fetched_even_when_an_older_one_is_there(hub, get, lines):
    get()
    marker = data() / "congress.complete.json"
    marker.write_text(marker.read_text().replace(obliq.RELEASE.revision, "0" * 40))
    assert data_state("obliq/congress") == "outdated" and data_state("obliq/twitter") == "mini"
    hub.files[PATHS[0]] = hub.listed[PATHS[0]] = hub.files[PATHS[0]].replace(
        b"committee", b"Committee"
    )
    hub.cuts = [0, 0, 0]
    with pytest.raises(DataError):
        get()
    assert not marked()  # or a mixture of both would count as whole
    get()
    assert json.loads(marker.read_text())["revision"] == obliq.RELEASE.revision


def test_what_a_failed_command_has_downloaded_is_not_sent_again_to_the_next(hub, get, lines):
    hub.cuts = [100_000, 0, 0]
    with pytest.raises(
        DataError,
        match=r"cannot be reached \(.*\); the same command goes on where this one stopped",
    ):
        get()
    assert not marked() and len(leftovers()) == 1
    get()
    assert hub.bytes_sent(CORPUS) == len(hub.files[PATHS[0]])
    announced = [line for line in lines if line.startswith("obliq/congress: 3 files, ")]
    assert [line.rpartition("; ")[2] for line in announced] == [
        "0 bytes of it are here already",
        "100.0 kB of it are here already",
    ]
    assert environments.load("obliq/congress").data == "full" and leftovers() == []


def test_a_part_of_another_revisions_file_is_not_gone_on_with(hub, get):
    hub.cuts = [100_000, 0, 0]
    with pytest.raises(DataError):
        get()
    hub.files[PATHS[0]] = hub.listed[PATHS[0]] = hub.files[PATHS[0]].replace(
        b"committee", b"Committee"
    )
    hub.sent.clear()
    get()
    assert [sent.first for sent in hub.sent if sent.path.endswith(CORPUS)] == [
        0
    ] and leftovers() == []


def test_a_large_file_comes_through_a_line_that_breaks_often(bare, get):
    bare.files["a corpus.jsonl"] = bare.listed["a corpus.jsonl"] = os.urandom(7_500_000)
    bare.cuts = [1_100_000] * 6
    get("bare/toy")
    assert bare.bytes_sent("a corpus.jsonl") == 7_500_000


def test_a_line_that_breaks_at_the_same_place_each_time_is_given_up(bare, get):
    bare.files["a corpus.jsonl"] = bare.listed["a corpus.jsonl"] = os.urandom(2_500_000)
    bare.cuts, bare.ranges = [1_100_000] * 100, False
    with pytest.raises(DataError, match="cannot be reached"):
        get("bare/toy")
    assert len(bare.sent) <= 4


def test_a_server_that_is_overloaded_is_asked_again_after_growing_waits_and_then_given_up(
    hub, get, waits
):
    hub.busy = 2
    get()
    assert waits == [1.0, 4.0] and marked()
    hub.busy = 100
    shutil.rmtree(data())
    with pytest.raises(
        DataError, match=r"127\.0\.0\.1:\d+ cannot be reached \(503 Service Unavailable\)"
    ):
        get()


def test_of_a_full_disk_the_same_command_goes_on(hub, get, little_room):
    words = rf"{os.strerror(errno.EFBIG)}; make room, .* and the same command goes on"
    with little_room(100_000), pytest.raises(DataError, match=words):
        get()
    assert not marked()
    get()
    assert [sent.first for sent in hub.sent if sent.path.endswith(CORPUS)] == [0, 100_000]
    assert environments.load("obliq/congress").data == "full"


@pytest.mark.parametrize("ending", [CORPUS, QRELS], ids=["by LFS", "by blob id"])
def test_a_file_with_another_checksum_is_thrown_away_and_nothing_is_marked(hub, get, ending):
    path = next(path for path in PATHS if path.endswith(ending))
    hub.files[path] = hub.files[path][:-2] + b"?\n"
    with pytest.raises(DataError) as caught:
        get()
    expected, got = hub.listed[path], hub.files[path]
    assert str(caught.value).startswith(
        f"{path} of dianetc/OBLIQ-Bench@4ebee29f is not what is listed"
    )
    if ending == CORPUS:
        assert hashlib.sha256(expected).hexdigest() in str(caught.value)
        assert hashlib.sha256(got).hexdigest() in str(caught.value)
    assert str(caught.value).endswith("fetch again; if it stays so, the release has changed")
    assert not marked() and leftovers() == []
    hub.files[path] = expected
    get()
    assert marked()


HUB = "dianetc/OBLIQ-Bench@4ebee29f"
# Server -> what it has as attributes, and the error; its listing may be changed, or be something else.
LISTINGS = {
    "gone": ("hub", {"revision": "0" * 40}, rf"{HUB} is not there any more \(404 "),
    "not for everybody": ("hub", {"status": 403}, r"\(403 .*a token may be needed: set HF_TOKEN"),
    "without an end": (
        "github",
        {"endless": True},
        "answers with more than 64 MiB; is it the right address",
    ),
    "without a file": ("hub", {"listed": {}}, rf"\S+@\w+ has no file '{re.escape(PATHS[0])}'"),
    "of another revision": ("hub", {"sha": "0" * 40}, f"answers for {HUB} with revision '0000"),
    "a hotel's page": (
        "hub",
        "<html>Log in to the network</html>",
        f"answers for {HUB} .* no listing of files",
    ),
    "a list": ("hub", ["x"], f"answers for {HUB} .* no listing of files"),
}


@pytest.mark.parametrize("kind", LISTINGS)
def test_a_listing_that_is_not_that_of_the_release_is_not_believed(kind, get, request, monkeypatch):
    name, change, said = LISTINGS[kind]
    server = request.getfixturevalue(name)
    whole = server.listing
    if not isinstance(change, dict):
        monkeypatch.setattr(server, "listing", lambda path: change)
    elif change.keys() <= vars(server).keys():
        vars(server).update(change)
    else:
        monkeypatch.setattr(
            server, "listing", lambda path: (found := whole(path)) and {**found, **change}
        )
    with pytest.raises(DataError, match=said):
        get(TASKS[name])
    assert server.sent == [] and len(server.asked) == 1 and not marked()


@pytest.mark.parametrize("path", ["../../outside", "/etc/outside", "datasets/../../../outside"])
def test_a_listing_with_a_path_that_leads_out_of_the_folder_is_refused(path, get, hub, tmp_path):
    hub.listed[path] = hub.files[path] = b"hostile"
    with pytest.raises(DataError, match="leads out of its folder"):
        get()
    assert hub.sent == [] and not list(tmp_path.rglob("outside"))


def test_another_process_that_fetches_the_same_task_is_waited_for_by_hand(hub, get):
    data().mkdir(parents=True)
    hold = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); print(1, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", hold, data() / ".congress.lock"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        other.stdout.readline()
        with pytest.raises(RunConflict, match="another process is fetching obliq/congress"):
            get()
        assert hub.asked == []
        other.communicate(b"\n")
    get()
    assert marked()


def test_the_hubs_offline_switch_is_respected_and_named(hub, get, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UsageError, match=r"HF_HUB_OFFLINE or .* is set; unset it to fetch"):
        get()
    assert hub.asked == []
