"""`sextant compile` as a user meets it: what it refuses, what it leaves behind, what it never copies."""

import itertools
import json
import re
import shlex
from dataclasses import replace

import pytest
from conftest import lines, on_congress
from openai_server import given

from sextant import environments
from sextant.evals.reporting.compilations import compilations_table
from sextant.optimizers import compile as module
from sextant.optimizers.request import OPTIMIZERS, CompileRequest
from sextant.optimizers.setup import plan
from sextant.optimizers.teleprompters import TELEPROMPTERS
from sextant.optimizers.trainset.demonstrations import CUT, SHOWN
from sextant.programs.compiled import read, write
from sextant.programs.query_rewriting import QueryToDoc
from sextant.tools.corpus import Corpus
from sextant.tools.errors import UsageError
from sextant.tools.platform.cli import run_command
from sextant.tools.retrievers.base import NullRetriever
from sextant.tools.session import Toolbox

SMALL = ("--limit", "4", "-P", "hops=1", "-P", "per_hop=5")
SERVER = "tiny@http://127.0.0.1:9/v1"  # nobody is asked


def refused(result, code, *words):
    """One line that says so, and nothing evaluated."""
    assert result.code == code, result.err
    assert result.err.startswith("error: ") and result.err.count("\n") == 1 and result.out == ""
    assert result.files == []
    for word in words:
        assert word in result.err
    return True


@pytest.fixture(scope="module")
def labeled(tmp_path_factory):
    """The compiled.json of something small, which several tests take up."""
    runs = tmp_path_factory.mktemp("labeled")
    about = [
        "--program",
        "multihop",
        "--task",
        "congress",
        "--data",
        "mini",
        "--optimizer",
        "labeled",
        *SMALL,
    ]
    assert run_command(module.parser(), module.command, [*about, "--runs", str(runs)]) == 0
    [file] = runs.glob("compiled/*/*/compiled.json")
    return file


@pytest.fixture
def changed(labeled, tmp_path):
    """That file with something else in it."""

    def made(**fields):
        file = tmp_path / f"{'-'.join(fields)}.json"
        write(file, replace(read(labeled), **fields))
        return file

    return made


@pytest.mark.parametrize(
    ("others", "word"),
    [
        ({"program": None}, "--program is missing"),
        ({"task": None}, "--task is missing"),
        ({"optimizer": None}, "--optimizer"),
        ({"optimizer": "gepo"}, "did you mean 'gepa'"),
        ({"task": "congres"}, "did you mean 'congress'"),
        ({"program": "retrieve"}, "retrieve has no prompts; --optimizer tune"),
        ({"task": "books"}, "has 1 dev query"),
        ({"task": "oblik/*"}, "no task is called 'oblik/*'"),
        ({"optimizer": "ensemble"}, "needs two compiled programs"),
    ],
)
def test_names_that_are_missing_or_wrong_are_said(others, word, compiles):
    assert refused(compiles(**others), 2, word)


def test_prompts_to_start_from_are_named_by_their_file_where_a_name_is_wrong_or_none_is_edited(
    compiles, tmp_path
):
    misspelt = tmp_path / "misspelt.toml"
    misspelt.write_text('["search_quary"]\ninstructions = "Search."\n')
    assert refused(
        compiles("--start", misspelt),
        2,
        f"{misspelt}: no predictor of multihop is called 'search_quary'",
    )
    unedited = tmp_path / "unedited.toml"
    unedited.write_text("")
    done = compiles("--start", unedited, *SMALL, optimizer="labeled")
    assert f"no prompt in {unedited} is edited, so this is multihop as it is" in done.err, done.err


def test_a_folder_of_ones_own_is_compiled_on_beside_a_miniature(tmp_path):
    lines = {
        "corpus.jsonl": '{"_id": "d1", "text": "A tram."}',
        "queries.jsonl": '{"_id": "q1", "text": "tram"}',
    }
    for name, line in lines.items():
        (tmp_path / name).write_text(line + "\n")
    (tmp_path / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\n")
    request = CompileRequest(
        program="rewrite", task=f"congress,{tmp_path}", data="mini", optimizer="labeled"
    )
    assert plan(request).resolved.request.data == "mini"
    assert request.run(task=str(tmp_path)).data is None
    alone = CompileRequest(program="rewrite", task=str(tmp_path), data="mini", optimizer="labeled")
    with pytest.raises(UsageError, match="is itself the place of its data; leave out --data mini"):
        plan(alone)


# What every command refuses alike is in tests/fast/evals/running/test_run.py.
@pytest.mark.parametrize(
    ("words", "word"),
    [
        (("-O", "candidats=3"), "did you mean 'candidates'"),
        (("-O", "candidates"), "no value"),
        (("-O", "candidates=x"), "whole number"),
        (("-O", "threshold=nan"), "at least 0"),
        (("--budget", "huge"), "light"),
        (("--metric", "nDCG@11"), "nDCG@10"),
        (("--prompt-lm", "offline"), "takes no --prompt-lm"),
        (("--teacher", "gpt"), "--teacher 'gpt' names no model"),
        (("--lm", "gpt"), "--lm 'gpt' names no model"),
        (("--of", "x.json"), "takes no --of"),
        (("--range", "hops=1..2"), "takes no --range"),
        (("--price", "-1"), "price of a thousand tokens is -1.0"),
        (("--train-share", "0"), "not between 0 and 1"),
        (("--limit", "1"), "at least 2"),
        (("--folds", "13"), "--folds 13: obliq/congress has 12 dev queries"),
        (("--max-concurrent", "0"), "not a whole number of at least 1"),
        (("--budget-usd", "5", "--lm", SERVER), "use --budget-calls"),
        (("--budget-usd", "5", "--teacher", SERVER), "use --budget-calls"),
        (("--qrels", "nope"), "known: gold, pooled"),
        (("--instruction", "nope"), "no instruction is called 'nope'"),
    ],
)
def test_values_that_cannot_be_used_are_said(words, word, compiles):
    assert refused(compiles(*words), 2, word)


@pytest.mark.parametrize(
    ("optimizer", "words", "word"),
    [
        ("gepa", ("--teacher", "offline"), "takes no --teacher"),
        ("gepa", ("--prompt-lm", "gpt"), "--prompt-lm 'gpt' names no model"),
        ("copro", ("-O", "breadth=1"), "at least 2"),
        (
            "better_together",
            ("-O", "strategy=gepa -> tune"),
            "no step of better_together is called 'tune'",
        ),
        ("better_together", ("-O", "strategy="), "no step of better_together is called ''"),
        ("objective", ("--held-out", "legal_qa"), "objective writes what one task says of itself"),
        ("tune", ("--folds", "2"), "takes no --folds"),
        ("tune", ("--range", "hops=6..1"), "low has to be below high"),
        ("tune", ("--range", "hops=x"), "whole number"),
        ("tune", ("--range", "hops=0..2"), "hops of at least 1, not 0"),
        ("tune", ("--range", "hops=1|1"), "twice"),
        ("tune", ("--range", "hops=1|2", "--range", "hops=3|4"), "twice"),
        ("tune", ("--range", "hops="), "whole number"),
        ("tune", ("--range", "hopp=1..2"), "did you mean 'hops'"),
        ("tune", ("--retriever", "fusion(bm25,rank_bm25,weights=[1,{w}])"), "--retriever has {w}"),
        ("tune", ("--retriever", "bm25(k1={k})", "--range", "k=-1|1"), "k1"),
        ("tune", ("--range", "retriever=bm25|nope"), "no retriever is called 'nope'"),
        (
            "tune",
            ("--range", "w=1|2", "--range", "retriever=bm25(k1={w})|rank_bm25"),
            "do not go together",
        ),
    ],
)
def test_what_an_optimizer_has_no_use_for_is_said(optimizer, words, word, compiles):
    assert refused(compiles(*words, optimizer=optimizer), 2, word)


def test_every_optimizer_of_the_table_is_in_the_help(compiles):
    assert tuple(TELEPROMPTERS) == OPTIMIZERS
    assert list(json.loads(compiles("--json", optimizer="list", task=None).out)) == list(
        TELEPROMPTERS
    )


def test_a_metric_that_no_ranking_of_a_pool_changes_is_refused(compiles):
    assert refused(
        compiles("--metric", "R@20", program="rank", task="relic"),
        2,
        "counts all of a pool",
    )


def test_members_of_an_ensemble_have_one_program_and_one_set_of_parameters(
    compiles, labeled, changed, tmp_path
):
    other = changed(prompts=reworded(read(labeled)))
    result = compiles(
        *SMALL, "--of", labeled, "--of", other, optimizer="ensemble", runs=tmp_path / "both"
    )
    assert result.code == 0
    wrong = {
        changed(parameters={**read(labeled).parameters, "hops": 2}): (2, "has other parameters"),
        changed(retriever="rank_bm25"): (2, "or another retriever"),
        changed(program="rewrite"): (2, "was compiled for --program rewrite"),
        tmp_path / "nowhere.json": (3, "there is no compiled program"),
    }
    for file, (code, word) in wrong.items():
        assert refused(
            compiles(*SMALL, "--of", labeled, "--of", file, optimizer="ensemble"), code, word
        )
    assert refused(compiles(*SMALL, "--of", labeled, optimizer="ensemble"), 2, "needs two compiled")


def reworded(compiled):
    """The prompts of a compiled program, with other instructions."""
    return {
        name: replace(prompt, instructions=f"{prompt.instructions} Be brief.")
        for name, prompt in compiled.prompts.items()
    }


def test_equal_programs_in_an_ensemble_are_refused(compiles, labeled, changed, tmp_path):
    again, other = changed(origin={}), changed(prompts=reworded(read(labeled)))
    result = compiles(*SMALL, *of(labeled, again, other), optimizer="ensemble")
    assert refused(
        result, 2, "two compiled programs that differ", "of 3 given, 2 differ", "--of FILE"
    )
    assert compiles(*SMALL, *of(labeled, other), optimizer="ensemble").code == 0
    [candidate] = [
        row for row in rows(tmp_path / "runs", "candidates.jsonl") if "members" in row["parameters"]
    ]
    assert candidate["parameters"]["members"] == [read(labeled).digest(), read(other).digest()]


def of(*files):
    """The words of a command that name the members of an ensemble."""
    return [word for file in files for word in ("--of", file)]


def test_the_values_of_a_compiled_program_are_the_defaults_and_the_command_line_wins(run, changed):
    file = changed(retriever="rank_bm25")

    def ran(*words):
        result = run(
            *on_congress("multihop", 2),
            *words,
            "--json",
        )
        assert result.code == 0, result.err
        return result.json

    plain, with_it = ran(), ran("--compiled", file)
    assert with_it["retriever"] == "rank_bm25" and plain["retriever"] == "bm25"
    assert with_it["usage"]["calls"] == 2 * 2  # a hop of two calls, for two queries
    other = ran("--compiled", file, "-P", "hops=2", "--retriever", "bm25")
    assert other["retriever"] == "bm25" and other["usage"]["calls"] > 2 * 2
    assert len({plain["run"], with_it["run"], other["run"]}) == 3


def test_parameters_that_need_a_prompt_that_was_not_compiled_are_refused(run, labeled, changed):
    result = run(
        "--program", "multihop", "--task", "congress", "--compiled", labeled, "-P", "rerank=3"
    )
    assert (
        result.code == 2
        and "has no prompt for 'rank_candidates'" in result.err
        and result.err.count("\n") == 1
    )
    file = changed(retriever="dense:all-MiniLM-L6-v2(run_code=0123456789abcdef)")
    result = run("--program", "multihop", "--task", "congress", "--compiled", file)
    assert result.code == 2 and "Python code is to be run, which only you can allow" in result.err


def folders(result):
    """The folders of the compilations so far, by their names."""
    assert result.code == 0, result.err
    return {file.split("/")[2] for file in result.files}


def rows(runs, name):
    """The lines of a file of the one compilation in `runs`."""
    [file] = runs.glob(f"compiled/*/*/{name}")
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def prompts(runs):
    """Those of each candidate of the one compilation in `runs`."""
    return [prompt for row in rows(runs, "candidates.jsonl") for prompt in row["prompts"].values()]


def test_judgements_make_another_compilation_and_a_default_that_is_spelled_out_does_not(compiles):
    about = {"program": "query_to_doc", "task": "twitter", "optimizer": "labeled"}
    assert len(folders(compiles(**about))) == 1
    assert len(folders(compiles("--metric", "nDCG@10", "--qrels", "gold", **about))) == 1
    assert len(folders(compiles("--qrels", "pooled", **about))) == 2
    assert len(folders(compiles("--metric", "R@10", **about))) == 3


def test_rules_are_each_candidates_own_and_the_code_of_the_program_stays_as_it_was(
    compiles, run, server, tmp_path
):
    """The program has no lens, so all of its copies share one signature, the class in the code."""
    numbers = itertools.count(1)

    def answer(prompt):
        asked = re.findall(r"`\[\[ ## (\w+) ## \]\]`", prompt.rpartition("starting with")[2])
        told = f"Rule {next(numbers)}." if "natural_language_rules" in asked else "a law of leases"
        return {name: told for name in asked if name != "completed"}

    server.answer = answer
    empty = Toolbox(Corpus(()), NullRetriever())
    plain = [one.signature.instructions for one in QueryToDoc(empty).predictors()]
    about = {"program": "query_to_doc", "task": "legal_qa", "optimizer": "infer_rules"}
    assert compiles("--lm", server.spec, "-O", "candidates=3", "--folds", "1", **about).code == 0
    assert [one.signature.instructions for one in QueryToDoc(empty).predictors()] == plain

    ruled = [
        one["instructions"] for one in prompts(tmp_path / "runs") if "Rule" in one["instructions"]
    ]
    assert sorted(re.findall(r"Rule \d+", " ".join(ruled))) == [
        f"Rule {number}" for number in range(1, len(ruled) + 1)
    ]
    assert len(ruled) == 3 and all(text.startswith(plain[0]) for text in ruled)

    [file] = (tmp_path / "runs").glob("compiled/*/*/compiled.json")
    assert (
        run(
            "--program", "query_to_doc", "--task", "legal_qa", "--limit", "1", "--compiled", file
        ).code
        == 0
    )


def test_candidates_of_a_compilation_in_folds_have_means_with_their_queries(compiles, tmp_path):
    result = compiles("--folds", "2", optimizer="bootstrap")
    assert result.code == 0, result.err
    measured = [row["validation"] for row in rows(tmp_path / "runs", "candidates.jsonl")]
    assert {row["queries"] for row in measured} == {6, 12}


def test_demonstrations_of_an_agent_are_cut_however_long_its_history_was(compiles, tmp_path):
    words = (
        "-P",
        "steps=8",
        "--metric",
        "R@100",
        "-O",
        "threshold=0.01",
        "-O",
        "demos=1",
        "--limit",
        "8",
    )
    assert compiles(*words, program="react", optimizer="bootstrap").code == 0
    demos = [demo for prompt in prompts(tmp_path / "runs") for demo in prompt["demos"]]
    lists = [value for demo in demos for value in within(demo, list)]
    texts = [text for value in lists for text in within(value, str)]
    assert demos and max(map(len, lists)) == SHOWN == 6 and max(map(len, texts)) == CUT == 400


def within(value, kind):
    """All that is of a kind in a value, at any depth."""
    found = [value] if isinstance(value, kind) else []
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return found + [one for part in inner for one in within(part, kind)]


def test_a_budget_without_a_model_is_that_of_a_sitting(compiles):
    for _ in range(2):
        result = compiles("-P", "hops=1", "--budget-calls", "20")
        assert result.code == 8 and "budget of 20 model calls is used up" in result.err
        assert "no gain, the program is kept" in result.out
        assert "ended early by" in result.out
    result = compiles("-P", "hops=1")
    assert result.code == 0 and "no gain, the program is kept" in result.out


TUNED = ("--range", "rerank=0|20", "-P", "hops=2")  # which gains on the miniature


def test_over_several_tasks_each_counts_alike(compiles):
    words = ("--retriever", "bm25(b={b})", "--range", "b=0|0.75", "--metric", "R@10", "--json")
    about = {"program": "retrieve", "task": "congress,crumb/legal_q*", "optimizer": "tune"}
    found = json.loads(compiles(*words, **about).out)
    compared = found["on_validation"]
    tasks = [comparison["comparisons"][0] for comparison in compared]
    queries = [row["queries"] for row in tasks]
    assert [comparison["task"] for comparison in compared] == ["obliq/congress", "crumb/legal_qa"]
    assert queries == [6, 1] and tasks[0]["tests"] == 2 * found["candidates"]
    for when, key in (("before", "baseline_mean"), ("after", "mean")):
        mean = sum(row[key] for row in tasks) / 2
        # R@100, which decides between equals, is in the other.
        assert found[when]["mean"] == pytest.approx(mean, abs=0.01)


def test_other_tasks_that_are_held_out_say_whether_it_carries_over(compiles, tmp_path):
    words = (*TUNED, "--held-out", "legal_qa,paper_retrieval", "--json")
    found = json.loads(compiles(*words, task="congress,legal_qa", optimizer="tune").out)
    assert found["after"]["mean"] > found["before"]["mean"]
    assert found["parameters"] == {"rerank": [0, 20]}
    held_out = found["held_out"]
    assert [one["task"] for one in held_out] == ["crumb/legal_qa", "crumb/paper_retrieval"]
    *_, same, other = compilations_table([tmp_path]).rows
    assert same[1:3] == ["crumb/legal_qa", "test"]
    assert other[1:3] == ["crumb/paper_retrieval, not compiled on", "test"]
    for row, one in zip((same, other), held_out, strict=True):
        assert f"{one['comparisons'][0]['difference']:+.4f}" in row
        assert str(found["usage"]["calls"]) in row


def test_looks_are_counted_where_the_data_is_named_by_a_relative_path(
    run, compiles, folder, monkeypatch
):
    place = folder / "tip-of-tongue/congress/queries+qrels"
    lines(
        place / "queries.jsonl",
        [json.dumps({"_id": f"Q{n}", "text": f"Who heard {n}?"}) for n in range(40)],
    )
    lines(
        place / "qrels.tsv",
        ["query-id\tcorpus-id\tscore", *(f"Q{n}\tD{n % 7}\t1" for n in range(40))],
    )
    monkeypatch.chdir(folder.parent)
    about = {"program": "query_to_doc", "optimizer": "labeled"}
    assert (
        json.loads(compiles("--limit", "4", "--json", data=folder.name, **about).out)["looks"] == 0
    )
    assert run("--program", "query_to_doc", "--task", "congress", "--data", folder.name).code == 0
    for data in (folder.name, f"./{folder.name}/", folder):
        assert json.loads(compiles("--limit", "4", "--json", data=data, **about).out)["looks"] == 1


def test_the_command_that_is_printed_takes_it_up_as_it_is(run, compiles, tmp_path):
    given = {"--qrels": "pooled", "--instruction": "generic", "--k": "50", "--max-concurrent": "2"}
    given |= {"--pool": "oracle:30"}
    words = [word for pair in given.items() for word in pair]
    about = {
        "program": "query_to_doc",
        "task": "twitter",
        "optimizer": "labeled",
        "runs": tmp_path / "my runs",
    }
    # Printed only where there is something to take up; it is always in the result.
    command = shlex.split(json.loads(compiles(*words, "--json", **about).out)["take_up"])
    assert command[:3] == ["python", "-m", "sextant.evals.run"]
    assert {option: command[command.index(option) + 1] for option in given} == given
    ran = run(*command[3:], "--json")
    assert ran.code == 0, ran.err
    config = json.loads(
        (
            tmp_path / "my runs" / ran.json["run"].partition("my runs/")[2] / "config.json"
        ).read_text()
    )
    assert config["compiled"]["optimizer"] == "labeled" and config["depth"] == 50
    assert (
        config["pool"]["size"] == 30
        and config["instruction"] == "generic"
        and config["provenance"]["judgements"] == "pooled"
    )


def test_what_queries_say_of_their_task_is_drafted_from_training_queries_and_taken_up_by_a_run(
    server, compiles, run, tmp_path
):
    task = environments.load("congress", "mini", "all")
    wanted = {
        one.text: task.documents[next(iter(task.qrels[one.query_id]))].text for one in task.queries
    }
    writing = []

    def answer(prompt):
        if "## cases ##" in prompt:
            writing.append(prompt)
            return {"objective": f'Draft {len(writing)}:\n"find" it.'}
        knows = "Draft 2" in given(prompt, "objective")
        said = wanted[given(prompt, "description")][:300] if knows else "a law of leases"
        return {"analysis": "none", "brainstorming": "none", "document": said}

    server.answer = answer
    words = (
        "--lm",
        server.spec,
        "-O",
        "drafts=3",
        "--held-out",
        "--limit",
        "8",
        "--max-concurrent",
        "2",
        "--json",
    )
    about = {"program": "query_to_doc", "optimizer": "objective"}
    done = compiles(*words, **about)
    found = json.loads(done.out)
    assert (
        found["kept"] == "compiled"
        and found["parameters"]["--instruction"][1] == 'Draft 2: "find" it.'
    )
    assert found["after"]["mean"] > found["before"]["mean"] and found["candidates"] == 3
    assert found["held_out"][0]["comparisons"][0]["difference"] > 0.2
    trained = [sum(text in prompt for prompt in writing) for text in wanted]
    assert len(writing) == 3 and sum(map(bool, trained)) == found["queries"]["train"]
    assert (
        all(task.queries[0].objective in prompt for prompt in writing) and "Draft 2" in writing[2]
    )

    sent = len(server.requests)
    ran = run(*shlex.split(found["take_up"])[3:], "--json")  # as the test of --held-out was
    assert ran.code == 0 and ran.json["run"] and len(server.requests) == sent
    assert (
        compiles(*words, **about).out.partition('"seconds"')[0]
        == done.out.partition('"seconds"')[0]
    )


def test_a_run_says_what_its_prompts_were_compiled_by_and_warns_of_dev(run, labeled):
    about = ("--program", "multihop", "--task", "congress", "--limit", "2", "--compiled", labeled)
    warning = "dev queries are among these: it was compiled on them"
    for split, warned in (("test", False), ("dev", True), ("all", True)):
        result = run(*about, "--split", split)
        assert result.code == 0 and (warning in result.out) == warned
        assert re.search(r"compiled by labeled \([0-9a-f]{8}\)$", result.out.splitlines()[1])
    assert "compiled" not in run(*about[:6], "--split", "dev").out
