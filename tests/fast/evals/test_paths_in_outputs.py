"""Nothing that is made for others has the home directory or the working folder in it, whatever paths were typed."""

import gzip
import re
from base64 import b64decode

import pytest

from sextant.environments import __main__ as tasks
from sextant.evals import compare, export, import_run, report, run, score, study, view
from sextant.evals.formats import FOLDERS
from sextant.optimizers import compile as compiling

PROGRAM = """
def answer(query, search):
    return [hit.doc_id for hit in search(query)]


def broken(query, search):
    raise ValueError(f"nothing in {__file__}")
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working folder in a home directory, with data and a program; both have names that nothing else has."""
    folder = tmp_path / "home-of-ada" / "folder-of-ada"
    (folder / "own").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(folder.parent))
    monkeypatch.chdir(folder)
    words = ["tram", "ferry", "lamp", "rope", "sail", "tide"]
    texts = [f'{{"_id": "{{}}{place}", "text": "a {word}"}}\n' for place, word in enumerate(words)]
    for name, letter in (("corpus", "d"), ("queries", "q")):
        lines = "".join(texts).replace("{}", letter)
        (folder / "own" / f"{name}.jsonl").write_text(lines)
    judged = "".join(f"q{place}\td{place}\t1\n" for place in range(len(words)))
    (folder / "own" / "qrels.tsv").write_text(f"query-id\tcorpus-id\tscore\n{judged}")
    (folder / "agent.py").write_text(PROGRAM)
    return folder


def read_all(folder):
    """The text of every file below a folder; what a page holds packed is unpacked."""
    for file in folder.rglob("*"):
        if file.is_file():
            text = file.read_bytes().decode("utf-8", "replace")
            packed = re.findall(r'json\+gzip"[^>]*>([^<]+)<', text)
            unpacked = [gzip.decompress(b64decode(part)).decode() for part in packed]
            yield file, "\n".join([text, *unpacked])


def test_no_output_for_others_names_the_home_directory_or_the_working_folder(
    here, command_of, server, monkeypatch
):
    own, runs, out = here / "own", here / "runs", here / "out"
    out.mkdir()

    def call(module, *words, code=0):
        done = command_of(module)(*words)
        assert done.code == code, done.err
        return done.out

    call(tasks, "init", own)
    settings = own / "benchmark.toml"
    assert "folder-of-ada" not in settings.read_text()
    settings.write_text("split = { share = 0.5 }\n")
    asked = ("--task", own, "--runs", runs)
    everything = (*asked, "--split", "all")
    call(run, "--program", f"{here / 'agent.py'}:answer", *everything)
    call(run, "--program", f"{here / 'agent.py'}:broken", *everything, code=7)
    recorded = ("--lm", server.spec, "--cassette", out / "cassette.jsonl")
    call(run, "--program", "rewrite", *everything, *recorded, "--retriever", "bm25", code=7)
    call(compiling, "--program", "multihop", *asked, "--optimizer", "labeled")
    [good, bad] = sorted(runs.glob("own-own/agent.py-*"))
    call(import_run, good / "run.trec", *everything, "--name", "theirs")
    for name in FOLDERS:
        call(export, bad, "--to", name, "--out", out / name)
    call(report, runs, "--out", out / "report")
    call(view, runs, "--export", out / "page.html", "--prompts")
    (here / "study.toml").write_text(
        f'name = "mine"\ntasks = ["{own}"]\nfixed = {{ split = "all" }}\n'
        f'rows = {{ program = ["retrieve", "{here}/agent.py:answer"] }}\n'
    )
    call(study, here / "study.toml", "--runs", runs)
    for form in ("--json", "--markdown", "--latex"):
        (out / f"comparison{form}").write_text(call(compare, good, bad, form))
    told = {}
    for folder in (runs, out):
        for file, text in read_all(folder):
            if found := re.search(".{0,80}(?:home|folder)-of-ada.{0,40}", text):
                told[str(file.relative_to(here))] = found[0]
    assert told == {}
    monkeypatch.chdir("/")  # the data is found again from the run's own folder
    call(score, good)
