"""Names of a user's own: files, modules and installed packages, and what is said of those that cannot be used."""

import json
import sys
from pathlib import Path

import pytest

from sextant.evals import compare, run_folder, score
from sextant.tools import code_digest, plugins

AGENT = '''
"""An agent."""
import helper_of_mine

class Agent:
    """Searches once."""
    def __init__(self, toolbox, *, depth: int = 100, k: int = 5, share=0.5):
        self.toolbox, self.k = toolbox, k

    def __call__(self, query):
        print("asked")
        session = self.toolbox.open(query)
        return session.submit([hit.doc_id for hit in session.search(query.text, self.k + helper_of_mine.MORE)])

class Fails(Agent):
    def __call__(self, query):
        self.toolbox.open(query).search(query.text)
        return {}[query.query_id]

class Unmade(Agent):
    def __init__(self, toolbox, *, depth: int = 100):
        self.k = toolbox.nothing

'''


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A folder with an agent in a file, in which the command is given."""
    place = tmp_path / "work"
    place.mkdir()
    (place / "agent_of_mine.py").write_text(AGENT)
    (place / "helper_of_mine.py").write_text("MORE = 0  # documents\n")
    (place / "needy_of_mine.py").write_text("import json\nimport nothing_of_mine\n")
    (place / "torn_of_mine.py").write_text("a = 1\nb = (\n")
    (place / "script_of_mine.py").write_text("import sys\nsys.exit('usage')\n")
    (place / "relative_of_mine.py").write_text("from .helper_of_mine import MORE\n")
    (place / "json.py").write_text("")
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield place
    for name in [name for name in sys.modules if "_of_mine" in name]:
        del sys.modules[name]


def ask(run, program, *more):
    return run("--program", program, "--task", "congress", "--split", "dev", "--limit", 6, *more)


BAD = {
    "agent_of_mine.py": "say which name in it is the program, as agent_of_mine.py:NAME",
    "agent_of_mine.py:Agnet": "no program in agent_of_mine.py is called 'Agnet'; did you mean 'Agent'?",
    "agent_of_mine.py:Unmade": "'Toolbox' object has no attribute 'nothing' (agent_of_mine.py, line 22)",
    "agents_of_mine.py:Agent": "there is no file agents_of_mine.py",
    "needy_of_mine.py:Agent": "No module named 'nothing_of_mine' (needy_of_mine.py, line 2)",
    "torn_of_mine.py:Agent": "SyntaxError: '(' was never closed (torn_of_mine.py, line 2)",
    "script_of_mine.py:Agent": "SystemExit: usage (script_of_mine.py, line 2)",
    "relative_of_mine.py:Agent": "name it as package.module:NAME, from the folder that has the package",
    "json.py:Agent": "json.py cannot be imported as 'json', which is another module",
    "nothing_of_mine.deep:Agent": "nothing_of_mine.deep cannot be imported: ModuleNotFoundError",
    "agent_of_mine:Agent.nothing": "no program is called 'agent_of_mine:Agent.nothing'",
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_name_that_cannot_be_used_is_answered_in_one_line(name, own, run):
    result = ask(run, name)
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert BAD[name] in result.err


def test_an_agent_in_a_file_is_run_scored_and_compared_also_when_the_file_is_gone(
    own, run, command_of
):
    result = ask(run, "agent_of_mine.py:Agent", "-P", "k=9", "-P", "share=0.25", "--json").json
    path = Path(result["run"])
    config = run_folder.read_config(path)
    assert (result["program"], result["failed"]) == ("agent_of_mine.py:Agent", 0)
    assert path.name.startswith("agent_of_mine.py-Agent-offline-")
    assert config["parameters"] == {"k": 9, "share": 0.25}
    assert config["provenance"]["program_file"] == "agent_of_mine.py"
    assert {len(one["ranking"]) for one in run_folder.read_outcomes(path).values()} == {9}
    assert ask(
        run, f"{own}/agent_of_mine.py:Agent", "-P", "k=9", "-P", "share=0.25", "--json"
    ).json["run"] == str(path)
    assert ask(run, "agent_of_mine:Agent", "--json").json["program"] == "agent_of_mine:Agent"
    assert "whole number" in ask(run, "agent_of_mine.py:Agent", "-P", "k=many").err
    for file in own.glob("*.py"):
        file.unlink()
    assert command_of(score)(path, "--json").json["metrics"] == result["metrics"]
    plain = ask(run, "retrieve", "--json").json["run"]
    assert command_of(compare)(plain, path).code == 0


def test_failures_of_a_users_code_are_printed_with_its_line(own, run):
    ask(run, "agent_of_mine.py:Fails")  # which may stop to say that all end alike
    result = ask(run, "agent_of_mine.py:Fails")
    assert result.code == 7 and "failed: 6 queries, first MINI-" in result.out
    assert ", with KeyError: 'MINI-" in result.out and "(agent_of_mine.py, line 18)\n" in result.out


@pytest.mark.parametrize("name", ["agent_of_mine.py:Agent", "agent_of_mine:Agent"])
def test_an_edit_of_a_users_code_makes_another_run(name, own):
    def code():  # in one process, as in a notebook
        made = plugins.load_object("program", name, {}, plugins.PROGRAMS)
        file = plugins.resolve("name", name, {}, plugins.PROGRAMS).rpartition(":")[0]
        return made.__init__.__kwdefaults__["k"], code_digest.collect_sources([file]).digest()

    _, first = code()
    for file, before, after in (
        ("helper_of_mine.py", "MORE = 0", "MORE = 1"),
        ("agent_of_mine.py", "k: int = 5", "k: int  = 6"),
    ):
        text = (own / file).read_text()
        (own / file).write_text(text.replace(before, after))
        k, digest = code()
        assert digest != first and k == (6 if "6" in after else 5), after
        (own / file).write_text(text)


def test_an_installed_package_adds_names_and_one_that_is_broken_says_why(
    own, run, tmp_path, monkeypatch
):
    site = tmp_path / "site-packages"
    (site / "theirs_of_mine").mkdir(parents=True)
    (site / "theirs_of_mine" / "__init__.py").write_text(AGENT)
    (site / "theirs-1.2.dist-info").mkdir()
    (site / "theirs-1.2.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: theirs\nVersion: 1.2\n"
    )
    points = "[sextant.programs]\ntheir_agent = theirs_of_mine:Agent\nbroken = theirs_of_mine.nothing:Agent\n"
    (site / "theirs-1.2.dist-info" / "entry_points.txt").write_text(
        f"{points}retrieve = theirs_of_mine:Agent\n"
    )
    monkeypatch.syspath_prepend(site)
    (site / "theirs-1.2.dist-info" / "RECORD").write_text("theirs_of_mine/__init__.py,,\n")
    listed = {row["name"]: row for row in json.loads(run("--program", "list", "--json").out)}
    assert "Searches once. (from package theirs 1.2)" in listed["their_agent"]["about"]
    assert (
        "cannot be used" in listed["broken"]["about"] and "the floor" in listed["retrieve"]["about"]
    )
    assert ask(run, "their_agent", "--json").json["program"] == "their_agent"
    assert "did you mean 'their_agent'" in ask(run, "thier_agent").err
    assert plugins.list_names([], plugins.PROGRAMS)["broken"] == "from package theirs 1.2"
    found = code_digest.collect_sources(
        [plugins.resolve("name", "their_agent", {}, plugins.PROGRAMS).rpartition(":")[0]]
    )
    assert set(found.files) == {"theirs_of_mine"} and "helper_of_mine" in found.libraries
