"""A run of any form of program whose file is edited is another run, or says what is not seen."""

import json
import os
import sys
from pathlib import Path

import pytest

from sextant.evals import evaluate, run_folder
from sextant.tools import retrievers
from sextant.tools.errors import UsageError

FUNCTION = """
from pathlib import Path

def answer(query, search):
    instead = {words}
    return search(instead or query, 5)
"""
MODULE = """
import dspy
from pathlib import Path
from sextant.programs.custom import search

class Agent(dspy.Module):
    def forward(self, question):
        instead = {words}
        found = search(instead or question)
        return dspy.Prediction(doc_ids=[hit.doc_id for hit in found.snippets][:5])
"""
RETRIEVER = """
from pathlib import Path
from sextant.tools.retrievers.lexical.bm25 import BM25

class Mine(BM25):
    def _search_many(self, searches, k):
        instead = {words}
        return super()._search_many([one._replace(text=instead or one.text) for one in searches], k)
"""
GRAPH = """
from pathlib import Path
from langgraph.graph import START, MessagesState, StateGraph

def make(search):
    def think(state):
        instead = {words}
        return {{"messages": [str(search.invoke({{"query": instead or state["messages"][-1].content}}))]}}

    graph = StateGraph(MessagesState)
    graph.add_node("think", think)
    graph.add_edge(START, "think")
    return graph.compile()
"""
HERE = "Path(__file__).parent"
# How the words are read: the code, and the files that are edited.
READ = {
    "in the source": ('"WORDS"', "mine.py"),
    "a module beside it": ("__import__('helper').WORDS", "helper.py"),
    "a module found by its name": (
        "__import__('importlib').import_module('hel' + 'per').WORDS",
        "helper.py",
    ),
    "a file beside it": (f"({HERE} / 'words.txt').read_text().strip()", "words.txt"),
    "a file in a folder": (f"({HERE} / 'in/it/words.txt').read_text().strip()", "in/it/words.txt"),
    "by the working folder": ("open('words.txt').read().strip()", "words.txt"),
    "by json": (f"__import__('json').load(({HERE} / 'a.json').open())['words']", "a.json"),
    "by numpy": (
        f"__import__('numpy').loadtxt({HERE} / 'words.txt', str, delimiter='|').item()",
        "words.txt",
    ),
    "for some queries": (
        f"({HERE} / 'words.txt').read_text().strip() if query[0] > 'D' else ''",
        "words.txt",
    ),
    "all files of a folder": (
        f"' '.join(f.read_text() for f in sorted(({HERE} / 'in').glob('*.txt'))).strip()",
        "in/new.txt",
    ),
    "a database": (
        f"__import__('sqlite3').connect({HERE} / 'words.db')"
        ".execute('select words from t').fetchone()[0]",
        "words.db",
    ),
}
TOOL = """
from pathlib import Path

def search(desk, query: str) -> str:
    '''Search for the same words, whatever they should be.'''
    return desk.search({words})
"""
CONTENT = {
    ".py": 'WORDS = "{}"\n',
    ".txt": "{}\n",
    ".json": '{{"words": "{}"}}\n',
}
LIMIT = {"task": "congress", "limit": 4, "split": "dev"}


def write(path, words):
    path.parent.mkdir(exist_ok=True, parents=True)
    if path.suffix == ".db":
        import sqlite3

        with sqlite3.connect(path) as database:
            database.execute("create table if not exists t (words)")
            database.execute("delete from t")
            database.execute("insert into t values (?)", [words])
        database.close()
    else:
        path.write_text(CONTENT[path.suffix].format(words))


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The folder of a user, in which he works."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.setattr(retrievers, "_USER_FILES", {})
    yield tmp_path
    for name in ("mine", "helper", "own", "own.mine", "metric"):
        sys.modules.pop(name, None)


def ask(**how):
    return evaluate(**LIMIT | {"runs": Path("runs")} | how)


def rank(result):
    outcomes = run_folder.read_outcomes(result.folder)
    return {query_id: outcome["ranking"] for query_id, outcome in outcomes.items()}


def check_two_runs(edit, **how):
    """A run, the same again, the run after an edit, which is another, and that again."""
    first, again = ask(**how), ask(**how)
    assert first.folder == again.folder
    edit()
    changed = ask(**how)
    assert changed.folder != first.folder
    assert rank(changed) != rank(first)
    assert ask(**how).folder == changed.folder


@pytest.mark.parametrize("read", READ)
def test_whatever_a_function_reads_and_however_it_is_another_run_if_it_is_edited(place, read):
    words, file = READ[read]
    write(place / "in" / "old.txt", "")
    if file == "mine.py":
        write_program = lambda text: (place / file).write_text(  # noqa: E731
            FUNCTION.format(words=words.replace("WORDS", text))
        )
    else:
        (place / "mine.py").write_text(FUNCTION.format(words=words))
        write_program = lambda text: write(place / file, text)  # noqa: E731
    if file != "in/new.txt":
        write_program("zebra")
    check_two_runs(lambda: write_program("hearing vaccine"), program="mine.py:answer")


@pytest.mark.parametrize(
    ("source", "file", "how"),
    [
        (MODULE, "mine.py", {"program": "mine.py:Agent"}),
        (MODULE, "own/mine.py", {"program": "own.mine:Agent"}),
        (GRAPH, "mine.py", {"program": "mine.py:make"}),
        (RETRIEVER, "mine.py", {"program": "retrieve", "retriever": "mine.py:Mine"}),
        (FUNCTION, "mine.py", {"program": "mine.py:answer", "workers": 2, "max_concurrent": 2}),
        (TOOL, "mine.py", {"program": "react", "parameters": {"tools": "mine.py:search"}}),
    ],
    ids=["a module", "a module in a package", "a graph", "a retriever", "workers", "a tool"],
)
@pytest.mark.parametrize("edits_source", [True, False], ids=["its source", "its data"])
def test_every_form_of_code_in_files_is_another_run(place, source, file, how, edits_source):
    words = '"zebra"' if edits_source else "Path('words.txt').read_text().strip()"
    path = place / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(source.format(words=words))
    write(place / "words.txt", "zebra")

    def edit():
        write(place / "words.txt", "hearing vaccine")
        path.write_text(path.read_text().replace('"zebra"', '"hearing vaccine"'))

    check_two_runs(edit, **how)


def test_a_run_that_is_anew_says_which_file_changed_and_the_old_text_has_the_old_run(place, caplog):
    (place / "mine.py").write_text(
        FUNCTION.format(words="Path('in/words.txt').read_text().strip()")
    )
    folders = []
    for words in ("zebra", "", "zebra"):
        write(place / "in" / "words.txt", words)
        folders.append(ask(program="mine.py:answer").folder)
    assert folders[0] == folders[2] != folders[1]
    assert f"in/words.txt changed since {folders[0]} was answered" in caplog.text
    assert caplog.text.count("changed since") == 1


def test_what_a_program_writes_itself_makes_no_other_run(place):
    (place / "mine.py").write_text(
        "from pathlib import Path\n\n"
        "def answer(query, search):\n"
        "    log = Path('in/log.txt')\n"
        "    with log.open('a') as file:\n"
        "        file.write(query)\n"
        "    sum(len(path.read_text()) for path in Path('in').glob('*.txt'))\n"
        "    return search(query, 5)\n"
    )
    (place / "in").mkdir()
    assert ask(program="mine.py:answer").folder == ask(program="mine.py:answer").folder


def test_a_file_that_changed_while_the_run_was_answering_is_refused(place):
    (place / "mine.py").write_text(FUNCTION.format(words="Path('words.txt').read_text().strip()"))
    write(place / "words.txt", "zebra")
    ask(program="mine.py:answer")
    write(place / "words.txt", "")
    folder = ask(program="mine.py:answer").folder
    opened = run_folder.read_opened(folder)
    run_folder.write_opened(folder, {name: f"{digest}, other" for name, digest in opened.items()})
    with pytest.raises(UsageError, match=r"words\.txt changed while"):
        ask(program="mine.py:answer")


@pytest.mark.parametrize("edited", ["metric.py", "weights.json"])
def test_an_edited_metric_scores_anew(place, edited):
    (place / "metric.py").write_text(
        "import json\nfrom pathlib import Path\n\n"
        "def mine(ranking, depth):\n"
        "    return 1.0 * json.loads(Path('weights.json').read_text())['words']\n"
    )
    (place / "weights.json").write_text('{"words": 0.25}')
    how = {"program": "retrieve", "metrics": ("metric.py:mine",)}
    first = ask(**how)
    assert first.metrics["metric.py:mine"].mean == 0.25
    file = place / edited
    seconds = int(file.stat().st_mtime)
    file.write_text(file.read_text().replace("1.0 *", "2.0 *").replace("0.25", "0.5"))
    os.utime(file, (seconds, seconds))  # as of an edit in the same second, which bytecode outlives
    second = ask(**how)
    assert second.metrics["metric.py:mine"].mean == 0.5
    assert _metric_code(first) != _metric_code(second)


def _metric_code(result):
    return result.json()["metric_code"]


def test_a_line_of_a_command_counts_with_the_files_that_it_names(place):
    from sextant.evals.running.request import hash_command_files

    for name in ("agent.py", "prompt.txt", "own.py"):
        (place / name).write_text(name)
    line = f"command:{sys.executable} agent.py --prompt=prompt.txt -m own --query {{query}}"
    before = hash_command_files(line)
    assert {"agent.py", "prompt.txt", "own.py"} < {*before}
    (place / "agent.py").write_text("edited")
    after = hash_command_files(line)
    assert {name for name in before if before[name] != after[name]} == {"agent.py"}


def test_a_program_may_change_the_working_folder(place):
    (place / "mine.py").write_text(
        "import os, tempfile\n\n"
        "def answer(query, search):\n"
        "    os.chdir(tempfile.mkdtemp())\n"
        "    return search(query, 5)\n"
    )
    result = ask(program="mine.py:answer")
    assert str(result.folder).startswith("runs/") and Path.cwd() == place
    lines = (result.folder / "outcomes.jsonl").read_text().splitlines()
    assert len(lines) == 4 and all(json.loads(line)["error"] is None for line in lines)
