"""How many files of ours somebody has to know who follows a query; docs/architecture.md lists them."""

import inspect
import re
import sys
import threading
from contextlib import contextmanager
from dataclasses import replace

from conftest import ROOT
from openai_server import asked, ids

from sextant import PACKAGES
from sextant.evals.running.runner import answer_with_model
from sextant.programs.multihop import MultiHop
from sextant.tools.models import language_model
from sextant.tools.process_changes import while_running
from sextant.tools.records import Query, Usage
from sextant.tools.retrievers.lexical.bm25 import BM25
from sextant.tools.session import Toolbox

MOST = 27
QUERY = Query("q", "Which animals have blood of an odd colour?", "Short texts about animals.")


def script(prompt):
    """A model that searches for something else in each hop, and keeps the first passage."""
    if asked(prompt) == "search":
        return {"search": f"blue blood {len(prompt)}"}
    return {"selected": str(ids(prompt)[:1]).replace("'", '"'), "observations": "It fits."}


@contextmanager
def noted_files():
    """The files of ours whose functions the block calls, in any thread that it starts, too."""
    files = set()

    def note_call(frame, event, argument):
        if event == "call" and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            files.add(frame.f_code.co_filename.removeprefix(f"{ROOT}/").removeprefix("sextant/"))

    threading.setprofile(note_call)
    sys.setprofile(note_call)
    try:
        yield files
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    files -= {file for file in files if not file.startswith(tuple(f"{name}/" for name in PACKAGES))}


def listed_files():
    """The files in the table of docs/architecture.md, by folder."""
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    section = text.partition("## The life of a query")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(.*?)` \| (.*) \|$", section, re.MULTILINE)
    return {f"{folder}/{name}" for folder, names in rows for name in re.findall(r"`(.*?)`", names)}


def test_a_query_enters_the_files_that_the_docs_list(server, corpus, tmp_path):
    server.answer = script
    program = MultiHop(Toolbox(corpus, BM25(corpus)))
    for name in ("first", "second"):  # loops are compiled with the first, once on a machine
        model = language_model.connect(server.spec)
        folder = tmp_path / name / "task" / "run"
        folder.mkdir(parents=True)
        model.begin(folder, Usage())
        query = replace(QUERY, text=f"{QUERY.text} ({name})")
        with while_running(), noted_files() as files:
            outcome = answer_with_model(program, query, corpus, model)
        model.resources.settle()
        assert outcome["error"] is None
    assert files == listed_files()
    assert len(files) <= MOST
