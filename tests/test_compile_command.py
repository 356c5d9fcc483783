"""`python -m optimizers.compile` as a user meets it: what it refuses, what it leaves behind, what it never copies."""

import fcntl
import gc
import json
import re
from typing import NamedTuple

import pytest

from optimizers import compile as module
from optimizers.teleprompters import TELEPROMPTERS
from tools.command import run_command
from tools.corpus import Corpus
from tools.retrievers.bm25 import BM25
from tools.session import Toolbox

SMALL = ("--limit", "4", "-P", "hops=1", "-P", "per_hop=5")
SERVER = "tiny@http://127.0.0.1:9/v1"  # nobody is asked


class Result(NamedTuple):
    code: int
    out: str
    err: str
    files: list[str]  # in the runs folder


@pytest.fixture
def compiles(tmp_path, capsys):
    """The command in this process; `words` may have other values for what it has by itself."""

    def command(*words, program="multihop", task="congress", optimizer="bootstrap_rs", data="mini", runs=None):
        runs = runs or tmp_path / "runs"
        given = {"--program": program, "--task": task, "--optimizer": optimizer, "--data": data, "--runs": runs}
        line = [str(word) for name, value in given.items() if value for word in (name, value)]
        capsys.readouterr()
        code = run_command(module.parser(), module.command, [*line, *map(str, words)])
        files = sorted(str(path.relative_to(runs)) for path in runs.rglob("*") if path.is_file())
        return Result(code, *capsys.readouterr(), files)

    return command


@pytest.fixture
def compiled(compiles, tmp_path):
    """Compiles something small in a folder of its own; its compiled.json."""

    def made(name, *words, **others):
        assert compiles(*words, **{"optimizer": "labeled", "runs": tmp_path / name} | others).code == 0
        [file] = (tmp_path / name).glob("compiled/*/*/compiled.json")
        return file

    return made


def refused(result, code, *words):
    """One line that says so, and nothing evaluated."""
    assert result.code == code, result.err
    assert result.err.startswith("error: ") and result.err.count("\n") == 1 and result.out == ""
    assert result.files == []
    for word in words:
        assert word in result.err
    return True


# -- refused before anything is done


@pytest.mark.parametrize(
    ("others", "word"),
    [
        ({"program": None}, "--program is missing"),
        ({"task": None}, "--task is missing"),
        ({"optimizer": None}, "--optimizer"),
        ({"optimizer": "gepo"}, "did you mean 'gepa'"),
        ({"program": "mulithop"}, "did you mean 'multihop'"),
        ({"task": "congres"}, "did you mean 'congress'"),
        ({"program": "retrieve"}, "retrieve has no prompts; --optimizer tune"),
        ({"task": "books"}, "has 1 dev query"),
        ({"optimizer": "ensemble"}, "needs two compiled programs"),
    ],
)
def test_names_that_are_missing_or_wrong_are_said(others, word, compiles):
    assert refused(compiles(**others), 2, word)


@pytest.mark.parametrize(
    ("words", "word"),
    [
        (("-O", "candidats=3"), "did you mean 'candidates'"),
        (("-O", "candidates"), "no value"),
        (("-O", "candidates=x"), "whole number"),
        (("-O", "candidates=0"), "at least 1"),
        (("-O", "threshold=nan"), "at least 0"),
        (("-O", "threshold=inf"), "at least 0"),
        (("--budget", "huge"), "light"),
        (("--metric", "nDCG@11"), "nDCG@10"),
        (("--prompt-lm", "offline"), "leave out --prompt-lm"),
        (("--teacher", "gpt"), "--teacher 'gpt' names no model"),
        (("--lm", "gpt"), "--lm 'gpt' names no model"),
        (("--of", "x.json"), "--of is for --optimizer ensemble"),
        (("--range", "hops=1..2"), "--range is for --optimizer tune"),
        (("--price", "-1"), "price of a thousand tokens is -1.0"),
        (("--price", "nan"), "price of a thousand tokens is nan"),
        (("--train-share", "0"), "not between 0 and 1"),
        (("--train-share", "1"), "not between 0 and 1"),
        (("--train-share", "nan"), "not between 0 and 1"),
        (("--limit", "1"), "at least 2"),
        (("--limit", "0"), "'0' is not a whole number"),
        (("--seed", "-1"), "--seed -1"),
        (("--seed", str(2**32)), "--seed"),
        (("--max-concurrent", "0"), "not a whole number of at least 1"),
        (("--budget-usd", "nan"), "not an amount above 0"),
        (("--budget-usd", "5", "--lm", SERVER), "use --budget-calls"),
        (("--budget-usd", "5", "--teacher", SERVER), "use --budget-calls"),
        (("-P", "hops=0"), "hops of at least 1"),
        (("-P", "hop=1"), "did you mean 'hops'"),
        (("--retriever", "nope"), "no retriever is called 'nope'"),
        (("--qrels", "nope"), "known: gold, pooled"),
        (("--instruction", "nope"), "no instruction is called 'nope'"),
    ],
)
def test_values_that_cannot_be_used_are_said(words, word, compiles):
    assert refused(compiles(*words), 2, word)


@pytest.mark.parametrize(
    ("optimizer", "words", "word"),
    [
        ("gepa", ("--teacher", "offline"), "leave out --teacher"),
        ("labeled", ("--teacher", "offline"), "leave out --teacher"),
        ("gepa", ("--prompt-lm", "gpt"), "--prompt-lm 'gpt' names no model"),
        ("copro", ("-O", "breadth=1"), "at least 2"),
        ("better_together", ("-O", "strategy=gepa -> tune"), "no step of better_together is called 'tune'"),
        ("better_together", ("-O", "strategy="), "no step of better_together is called ''"),
        ("better_together", ("-O", "effort=huge"), "light"),
        ("tune", ("--range", "hops=6..1"), "low has to be below high"),
        ("tune", ("--range", "hops=1..nan"), "low has to be below high"),
        ("tune", ("--range", "hops=x"), "whole number"),
        ("tune", ("--range", "hops=1|x"), "whole number"),
        ("tune", ("--range", "hops=0..2"), "hops of at least 1, not 0"),
        ("tune", ("--range", "hops=1|1"), "twice"),
        ("tune", ("--range", "hops=1|2", "--range", "hops=3|4"), "twice"),
        ("tune", ("--range", "hops="), "no values"),
        ("tune", ("--range", "hopp=1..2"), "did you mean 'hops'"),
        ("tune", ("--retriever", "fusion(bm25,rank_bm25,weights=[1,{w}])"), "--retriever has {w}"),
        ("tune", ("--retriever", "bm25(k1={k})", "--range", "k=-1|1"), "k1"),
        ("tune", ("--range", "retriever=bm25|nope"), "no retriever is called 'nope'"),
    ],
)
def test_what_an_optimizer_has_no_use_for_is_said(optimizer, words, word, compiles):
    assert refused(compiles(*words, optimizer=optimizer), 2, word)


def test_every_optimizer_of_the_table_is_in_the_help(compiles):
    assert tuple(TELEPROMPTERS) == module.OPTIMIZERS
    assert list(json.loads(compiles("--json", optimizer="list", task=None).out)) == list(TELEPROMPTERS)


@pytest.mark.parametrize("dev", [0, 1])
def test_a_dev_split_of_none_or_one_is_not_enough(dev, compiles, tmp_path):
    place = tmp_path / "data" / "tip-of-tongue" / "congress"
    (place / "corpus").mkdir(parents=True)
    (place / "queries+qrels").mkdir()
    rows = {
        "corpus/corpus.jsonl": [{"_id": f"D{n}", "text": f"The committee heard {n} witnesses."} for n in range(6)],
        "queries+qrels/queries.jsonl": [{"_id": f"Q{n}", "text": f"Who heard {n}?"} for n in range(1 + dev)],
    }
    for name, one in rows.items():
        (place / name).write_text("".join(json.dumps(row) + "\n" for row in one))
    qrels = ["query-id\tcorpus-id\tscore", *(f"Q{n}\tD{n}\t1" for n in range(1 + dev))]
    (place / "queries+qrels/qrels.tsv").write_text("\n".join(qrels) + "\n")
    assert refused(compiles(data=tmp_path / "data"), 2, "dev quer")


def test_a_metric_that_no_ranking_of_a_pool_changes_is_refused(compiles):
    assert refused(compiles("--metric", "R@20", program="rank", task="relic"), 2, "all of a pool of 14 documents")


def test_a_runs_folder_that_cannot_be_written_is_said_first(compiles, tmp_path):
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        result = compiles(runs=place)
        assert result.code == 2 and "choose --runs" in result.err and result.err.count("\n") == 1


def test_data_that_is_not_there_is_code_3(compiles, tmp_path):
    assert refused(compiles(data=tmp_path / "nowhere"), 3, "is not a folder")


def test_a_folder_is_of_one_process_at_a_time(compiles, tmp_path):
    assert compiles(*SMALL).code == 0
    [folder] = (tmp_path / "runs").glob("compiled/*/*")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = compiles(*SMALL)
    assert result.code == 2 and "another process is running" in result.err and result.err.count("\n") == 1
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


# -- members of an ensemble


def test_members_of_an_ensemble_have_one_program_and_one_set_of_parameters(compiles, compiled, tmp_path):
    one, two = compiled("one", *SMALL), compiled("two", *SMALL, "--seed", "3")
    result = compiles(*SMALL, "--of", one, "--of", two, optimizer="ensemble", runs=tmp_path / "both")
    assert result.code == 0
    wrong = {
        compiled("hops", "--limit", "4", "-P", "hops=2", "-P", "per_hop=5"): (2, "has other parameters"),
        compiled("retriever", *SMALL, "--retriever", "rank_bm25"): (2, "or another retriever"),
        compiled("program", "--limit", "4", program="rewrite"): (2, "was compiled for --program rewrite"),
        tmp_path / "nowhere.json": (3, "there is no compiled program"),
    }
    for file, (code, word) in wrong.items():
        assert refused(compiles(*SMALL, "--of", one, "--of", file, optimizer="ensemble"), code, word)
    assert refused(compiles(*SMALL, "--of", one, optimizer="ensemble"), 2, "needs two")


# -- what a run takes from a compiled program


def test_the_values_of_a_compiled_program_are_the_defaults_and_the_command_line_wins(run, compiled):
    file = compiled("one", *SMALL, "--retriever", "rank_bm25")

    def ran(*words):
        result = run("--program", "multihop", "--task", "congress", "--split", "dev", "--limit", "2", *words, "--json")
        assert result.code == 0, result.err
        return result.json

    plain, with_it = ran(), ran("--compiled", file)
    config = json.loads((file.parent / "config.json").read_text())
    assert with_it["retriever"] == "rank_bm25" and plain["retriever"] == "bm25"
    assert config["parameters"]["hops"] == 1
    assert with_it["usage"]["calls"] == 2 * 2  # a hop of two calls, for two queries

    other = ran("--compiled", file, "-P", "hops=2", "--retriever", "bm25")
    assert other["retriever"] == "bm25" and other["usage"]["calls"] > 2 * 2
    assert len({plain["run"], with_it["run"], other["run"]}) == 3


def test_parameters_that_need_a_prompt_that_was_not_compiled_are_refused(run, compiled):
    file = compiled("one", *SMALL)
    result = run("--program", "multihop", "--task", "congress", "--compiled", file, "-P", "rerank=3")
    assert result.code == 2 and "has no prompt for 'rank_candidates'" in result.err and result.err.count("\n") == 1


# -- what is left behind, and what is never copied


@pytest.mark.parametrize("optimizer", ["bootstrap_rs", "mipro", "gepa", "simba", "knn"])
def test_every_file_is_text_that_anybody_can_read(optimizer, compiles, tmp_path):
    assert compiles(*SMALL, optimizer=optimizer).code == 0
    [folder] = (tmp_path / "runs").glob("compiled/*/*")
    for path in (path for path in folder.rglob("*") if path.is_file()):
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".json":
            json.loads(text)
        elif path.suffix == ".jsonl":
            assert all(isinstance(json.loads(line), dict) for line in text.splitlines())
        else:
            assert path.name in {".lock", "optimizer.log"}
    assert not re.search(r"\b(pickle|cloudpickle|dill|marshal)\b", _sources())


def _sources():
    from pathlib import Path

    packages = ("optimizers", "programs", "tools", "evals")
    files = [file for package in packages for file in (Path(__file__).parent.parent / package).rglob("*.py")]
    imports = [line for file in files for line in file.read_text().splitlines() if "import" in line]
    return "\n".join(imports)


def counted():
    """Corpora, indexes and toolboxes in memory, garbage that nobody has collected yet included."""
    kinds = dict.fromkeys((Corpus, BM25, Toolbox), 0)
    for one in gc.get_objects():
        if type(one) in kinds:
            kinds[type(one)] += 1
    return list(kinds.values())


@pytest.mark.parametrize("optimizer", ["bootstrap_rs", "mipro", "gepa", "simba"])
def test_no_optimizer_copies_the_corpus_or_an_index(optimizer, compiles, monkeypatch):
    opened, counts = [], []
    whole = Toolbox.open

    def watched(toolbox, query):
        opened.append(id(toolbox))
        if len(opened) in (1, 10, 20):
            counts.append(counted())
        return whole(toolbox, query)

    gc.collect()
    before = counted()
    monkeypatch.setattr(Toolbox, "open", watched)
    option = {"gepa": "evaluations=6", "simba": "steps=2"}.get(optimizer, "candidates=4")
    assert compiles("-P", "hops=1", "-P", "per_hop=5", "-O", option, optimizer=optimizer).code == 0
    assert len(set(opened)) == 1 and len(counts) == 3  # one toolbox for all rollouts
    for count in counts:
        corpora, indexes, toolboxes = (now - then for now, then in zip(count, before, strict=True))
        # Of dev and of test, which was read to leave out what repeats it; and the empty one that checks are made with.
        assert 1 <= corpora <= 3
        assert indexes == 1
        assert 1 <= toolboxes <= 3
