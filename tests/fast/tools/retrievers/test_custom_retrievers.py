"""Retrievers in files of a user's own: the guide's runs, what breaks the contract is found, what is none is said."""

import json
import sys
from pathlib import Path

import pytest

from sextant.programs.compiled import Compiled, write
from sextant.tools import retrievers
from sextant.tools.errors import DataError, UsageError
from sextant.tools.records import Hit
from sextant.tools.retrievers import __main__ as command
from sextant.tools.retrievers import canonicalize, contract
from sextant.tools.retrievers.base import Search

GUIDE = Path(__file__).parents[4] / "docs/guide/retriever.md"
CODE = GUIDE.read_text(encoding="utf-8").partition("```python\n")[2].partition("```")[0]
NONE = """
from sextant.tools.retrievers.base import Retriever

class Idle(Retriever):
    pass

class Bare(Idle):
    def _search_many(self, searches, k):
        return []

class Typed(Bare):
    def __init__(self, corpus, *, options: dict = {}): ...

class Fails(Bare):
    def __init__(self, corpus, k=3):
        raise ValueError(f"{k} is no good")
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The current folder, with the guide's retriever."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(retrievers, "_USER_FILES", {})
    (tmp_path / "of_mine.py").write_text(CODE)
    yield tmp_path
    sys.modules.pop("of_mine", None)


def test_the_guides_retriever_keeps_the_contract_and_runs_alone_and_in_a_fusion(
    run, command_of, folder
):
    (folder / "a, b").mkdir()
    (folder / "of_mine.py").rename(folder / "a, b/of_mine.py")
    own = '"a, b/of_mine.py:Overlap"(prefix=5)'
    checked = command_of(command)("check", own, "--json")
    assert checked.code == 0 and {one["wrong"] for one in checked.json["checks"]} == {""}
    words = ("--program", "retrieve", "--task", "congress", "--json", "--retriever")
    alone = run(*words, own)
    assert alone.json["retriever"] == "of_mine.py:Overlap(prefix=5)", (
        "the folder is not the retriever's"
    )
    assert (
        run(*words, f'"{folder}/a, b/of_mine.py:Overlap"(prefix=5)').json["run"]
        == alone.json["run"]
    )
    fused = run(*words, f"rerank(fusion(bm25,{own},weights=[1,2]),bm25)")
    assert fused.json["metrics"] != alone.json["metrics"]
    config = json.loads(Path(fused.json["run"], "config.json").read_text())
    assert (
        config["retriever"]["name"]
        == "rerank(fusion(bm25,of_mine.py:Overlap(prefix=5),weights=[1.0,2.0]),bm25)"
    )
    (folder / "a, b/of_mine.py").write_text(CODE.replace("above=0.0", "above=0.3"))
    edited = run(*words, own)  # in the same process, as in a notebook
    assert (
        edited.json["run"] != alone.json["run"] and edited.json["metrics"] != alone.json["metrics"]
    )


def test_each_duty_is_a_line_of_the_check(folder, command_of):
    result = command_of(command)("check", "bm25")
    assert result.code == 0
    duties = [line for line in result.out.splitlines() if line.startswith("ok     ")]
    assert len(duties) == 8
    assert "\N{REPLACEMENT CHARACTER}" not in result.out


@pytest.mark.parametrize(
    ("right", "wrong", "broken"),
    [
        ("excluded=search.excluded, ", "", "Documents that are excluded"),
        ("among=search.among, ", "", "Documents that are excluded"),
        ("top(scores, k,", "top(scores, k + 1,", "It finds different documents"),
        ("above=0.0)", "above=0.0)[::-1]", "It finds different documents"),
        ("above=0.0)", "above=1.0)", "It finds different documents"),
        (
            "Ranker(corpus.doc_ids)",
            "Ranker(corpus.doc_ids, np.arange(len(corpus)))",
            "Documents of equal text",
        ),
        ("for search in searches]", "for search in searches[:1]]", "A search gives the same hits"),
        ("len(asked)", "(len(asked) + np.random.random())", "A search gives the same hits"),
        ("text.lower()", 'text.encode("ascii").decode().lower()', "Odd characters"),
        ("self._prefix = prefix", 'self._prefix, self.name = prefix, "overlap"', "Its name"),
    ],
)
def test_what_breaks_the_contract_is_found_by_the_check(folder, command_of, right, wrong, broken):
    assert right in CODE
    (folder / "of_mine.py").write_text(CODE.replace(right, wrong))
    found = command_of(command)("check", "of_mine.py:Overlap")
    assert (
        found.code == 3
        and f"WRONG  {broken}" in found.out
        and "error: of_mine.py:Overlap breaks" in found.err
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "of_mine.py:Idle",
            "is no retriever; write a subclass of sextant.tools.retrievers.base.Retriever with a method _search",
        ),
        ("of_mine.py:idle", "no retriever in"),
        ("of_mine.py:Bare", "its constructor takes `corpus`"),
        ("of_mine.py:Typed", "options by keyword, with a default and a type: str, int"),
        ("of_mine.py:Fails(k=x)", "k is 'x'; it should be a valid integer"),
        (
            "fusion(bm25,of_mine.py:Fails)",
            "cannot be built: ValueError: 3 is no good (of_mine.py, line 16)",
        ),
        ("of_mine.py", "the form is KIND, KIND:MODEL, FILE.py:CLASS"),
        ("elsewhere/of_mine.py:Fails", "there is no file elsewhere/of_mine.py"),
    ],
)
def test_what_is_no_retriever_of_ones_own_is_said_in_one_line(folder, text, said):
    (folder / "of_mine.py").write_text(NONE)
    with pytest.raises(UsageError) as refused:
        retrievers.build(text, contract.CORPUS)
    assert said in str(refused.value) and "\n" not in str(refused.value)


ANSWERS = "[self._search(search, k) for search in searches]"
HITS = "[[Hit({}, {}) for n in range(3)] for search in searches]"


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        (f"{ANSWERS}[:1]", "answered 1 of 2 searches"),
        (f"{ANSWERS} * 2", "answered 4 of 2 searches"),
        ("None", "answered None"),
        ("[None for search in searches]", "answered a search with None"),
        ("np.array([['d1', 'd2']])[[0, 0]]", "gave 'd1' as a hit"),
        (HITS.format("n", "1.0"), "gave the id 0, which no document has"),
        (HITS.format("f'd{n}'", "1.0"), "gave the id 'd0', which no document has"),
        (HITS.format("'d2'", "1.0"), "gave 'd2' twice"),
        (HITS.format("f'd{n + 1}'", "n"), "gave the score 1 after 0"),
        (HITS.format("f'd{n + 1}'", "np.nan"), "gave the score nan"),
        (HITS.format("f'd{n + 1}'", "'high'"), "gave the score 'high'"),
        (HITS.format("f'd{n + 4}'", "1.0"), "gave 'd4', which was not to come back"),
        ("[self._search(search, k + 2) for search in searches]", "gave 3 hits where k is 1"),
    ],
)
def test_what_is_no_answer_to_searches_is_said_with_the_retriever_s_name(folder, answers, said):
    (folder / "of_mine.py").write_text(CODE.replace(ANSWERS, answers))
    own = retrievers.build("fusion(of_mine.py:Overlap,bm25)", contract.CORPUS).parts[0]
    searches = [Search("blue blood", excluded={"d4"}), Search("blood octopus", excluded={"d4"})]
    with pytest.raises(DataError, match=f"retriever .*Overlap.* {said}; _search_many returns"):
        own.search_many(searches, 1)


def test_hits_of_numpy_s_types_are_plain_and_pairs_are_hits(folder):
    answers = "[[(np.str_(f'd{n}'), np.float32(1 / n)) for n in (1, 2)] for search in searches]"
    (folder / "of_mine.py").write_text(CODE.replace(ANSWERS, answers))
    [hit, _] = retrievers.build("of_mine.py:Overlap", contract.CORPUS).search("blood", 2)
    assert type(hit) is Hit and (type(hit.doc_id), type(hit.score)) == (str, float)


def test_a_retriever_that_fails_as_a_pool_is_made_is_said_in_one_line(folder, run):
    (folder / "of_mine.py").write_text(CODE.replace(ANSWERS, "[{}['vector']]"))
    words = ("--program", "retrieve", "--task", "congress", "--pool", "union:3")
    refused = run(*words, "--retriever", "of_mine.py:Overlap")
    assert refused.code == 2 and refused.err.count("\n") == 1
    assert "Overlap(prefix=20) failed: KeyError: 'vector' (of_mine.py, line" in refused.err


def test_a_file_that_only_a_compiled_file_names_is_not_run(folder, run):
    write(folder / "compiled.json", Compiled("multihop", {}, f"{folder}/of_mine.py:Overlap", {}))
    refused = run("--program", "multihop", "--task", "congress", "--compiled", "compiled.json")
    assert (
        refused.code == 2
        and "which only you can allow" in refused.err
        and "of_mine" not in sys.modules
    )


def test_two_files_of_one_name_are_not_taken_for_one_another(folder):
    (folder / "b").mkdir()
    (folder / "b/of_mine.py").write_text(CODE)
    with pytest.raises(UsageError, match="would have the same name in outputs"):
        canonicalize("fusion(of_mine.py:Overlap,b/of_mine.py:Overlap)")


def test_a_retriever_that_fails_leaves_the_query_pending_and_the_same_command_goes_on(run, folder):
    text = CODE + (
        "\n\n"
        "class Failing(Overlap):\n"
        "    def _search_many(self, searches, k):\n"
        "        from pathlib import Path\n"
        "        if Path('broken').exists():\n"
        "            raise OSError(28, 'No space left on device')\n"
        "        return super()._search_many(searches, k)\n"
    )
    (folder / "of_mine.py").write_text(text)
    (folder / "broken").touch()
    words = (
        "--program",
        "rewrite",
        "--task",
        "congress",
        "--limit",
        "2",
        "--json",
        "--retriever",
        "of_mine.py:Failing",
    )
    failing = run(*words)
    assert failing.code == 3 and failing.json["failed"] == 0 and failing.json["owed"] == 2
    assert "failed: OSError: [Errno 28] No space left on device" in failing.err
    (folder / "broken").unlink()
    whole = run(*words)
    assert whole.code == 0 and whole.json["run"] == failing.json["run"] and whole.json["owed"] == 0
