"""How many files of ours somebody has to know who follows a query; docs/architecture.md lists them.

The query is answered in a process of its own, in which no other test has registered callbacks.
"""

import inspect
import json
import re
import subprocess
import sys
import threading
from pathlib import Path

from openai_server import asked, ids

ROOT = Path(__file__).parents[4]
MOST = 25
# Answers two queries of multihop by the server SPEC with ledgers in FOLDER; prints the files of the second, because
# loops are compiled with the first, once on a machine.
COMMAND = [sys.executable, "-c", "import test_query_files; test_query_files.print_files()"]


def script(prompt):
    """A model that searches for something else in each hop, and keeps the first passage."""
    if asked(prompt) == "search":
        return {"search": f"blue blood {len(prompt)}"}
    return {"selected": str(ids(prompt)[:1]).replace("'", '"'), "observations": "It fits."}


def print_files():
    """What the command does."""
    from sextant import PACKAGES
    from sextant.evals.running.runner import answer_with_model
    from sextant.programs.multihop import MultiHop
    from sextant.tools.models import language_model
    from sextant.tools.process_changes import while_running
    from sextant.tools.records import Query, Usage
    from sextant.tools.retrievers.contract import CORPUS
    from sextant.tools.retrievers.lexical.bm25 import BM25
    from sextant.tools.session import Toolbox

    files = set()

    def note_call(frame, event, argument):
        if event == "call" and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            files.add(frame.f_code.co_filename.removeprefix(f"{ROOT}/").removeprefix("sextant/"))

    spec, folder = sys.argv[1:]
    program = MultiHop(Toolbox(CORPUS, BM25(CORPUS)))
    for name in ("first", "second"):
        model = language_model.connect(spec)
        place = Path(folder) / name / "task" / "run"
        place.mkdir(parents=True)
        model.begin(place, Usage())
        query = Query("q", f"Which animals have blood of a {name} colour?", "Texts about animals.")
        files.clear()
        with while_running():
            threading.setprofile(note_call)
            sys.setprofile(note_call)
            outcome = answer_with_model(program, query, CORPUS, model)
            sys.setprofile(None)
            threading.setprofile(None)
        model.resources.settle()
        assert outcome["error"] is None
    packages = tuple(f"{name}/" for name in PACKAGES)
    sys.stdout.write(json.dumps([file for file in files if file.startswith(packages)]))


def listed_files():
    """The files that docs/architecture.md lists."""
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    section = text.partition("## The life of a query")[2].partition("\n## ")[0]
    return set(re.findall(r"[\w/]+\.py", section))


def test_a_query_enters_the_files_that_the_docs_list(server, tmp_path, monkeypatch):
    server.answer = script
    folders = (ROOT, ROOT / "tests/support", Path(__file__).parent)
    monkeypatch.setenv("PYTHONPATH", ":".join(map(str, folders)))
    command = [*COMMAND, server.spec, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    files = set(json.loads(done.stdout.splitlines()[-1]))
    assert files == listed_files()
    assert len(files) <= MOST
