"""A lens whose annotation was killed goes on where it was."""

import re
import subprocess
import sys

from conftest import ROOT
from openai_server import annotate, prompts
from waiting import wait_for

from sextant.tools import retrievers
from sextant.tools.corpus import Corpus
from sextant.tools.models.run_resources import RunResources
from sextant.tools.records import Document

CORPUS = Corpus(Document(f"d{number:02}", f"text of number{number:02}") for number in range(40))
KILLED = """
import sys
from pathlib import Path
from test_lens_killed import CORPUS
from sextant.tools import retrievers
from sextant.tools.models.run_resources import RunResources
from sextant.tools.retrievers.lens import annotators as annotate
annotate.ModelAnnotator.workers = 1
retrievers.build(sys.argv[1], CORPUS, Path(sys.argv[2]), resources=RunResources())
"""


def sent(server):
    """The texts in each request."""
    return [set(re.findall(r"text of number\d\d", prompt)) for prompt in prompts(server)]


def kept(home):
    """How many batches are on disk."""
    return sum(
        path.read_bytes().count(b"\n")
        for path in home.glob("indexes/.annotations-*/annotations.jsonl")
    )


def test_nothing_is_annotated_twice_but_the_batch_that_was_in_flight(server, tmp_path):
    server.answer, server.delay = annotate, 2.0
    spec = f"lens(bm25,attribute=stance,model={server.spec})"
    words = [sys.executable, "-c", KILLED, spec, str(tmp_path)]
    process = subprocess.Popen(words, cwd=ROOT, env={"PYTHONPATH": ":".join(sys.path), "PATH": ""})
    wait_for(
        lambda: process.poll() is not None or (len(server.requests) == 3 and kept(tmp_path) == 2)
    )
    process.kill()
    process.wait()
    before = sent(server)
    server.requests.clear()
    server.delay = 0.0
    index = retrievers.build(spec, CORPUS, tmp_path, resources=RunResources())
    after = sent(server)
    assert len(before) == 3 and not (before[0] | before[1]) & set().union(*after)
    assert set().union(*before, *after) == set(CORPUS.texts())
    fresh = retrievers.build(spec, CORPUS, resources=RunResources())
    assert index.search("about number11", 3) == fresh.search("about number11", 3)
