"""Somebody else's run becomes a run of ours: scored as trec_eval scores it, refused where it is not of the task."""

import gzip
import json
import os
import subprocess
import sys
from functools import partial

import pytest
import pytrec_eval
from atif import Trajectory
from conftest import lines
from foreign_runs import DOCUMENTS, STEPS, USED, atif, call, world
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sextant import environments
from sextant.environments.base import Comparison
from sextant.evals import compare, export, score
from sextant.evals import import_run as command_module
from sextant.evals import run as run_module
from sextant.evals.formats.import_run import import_run, read_trajectories
from sextant.evals.formats.trec import RunFile
from sextant.evals.scoring import score_run
from sextant.evals.scoring.scored_run import read_scored_run as read_run
from sextant.tools.corpus import Corpus
from sextant.tools.errors import DataError
from sextant.tools.platform.cli import run_command
from sextant.tools.records import Document, Query


def called(*arguments, module=command_module):
    return run_command(module.parser(), module.command, [str(argument) for argument in arguments])


@pytest.fixture
def imported(tmp_path):
    """Import into the made-up world; the scored run."""

    def run(run_lines, trajectories=None, world=world, **options):
        lines(tmp_path / "theirs.trec", run_lines)
        if trajectories is not None:
            lines(tmp_path / "theirs.jsonl", map(json.dumps, trajectories))
            options["trajectories"] = tmp_path / "theirs.jsonl"
        return read_run(
            import_run(tmp_path / "theirs.trec", world(), runs=tmp_path / "runs", **options)
        )

    return run


PLAIN = ["q1 Q0 d4 1 3.5 theirs", "q1 Q0 d1 2 2.5 theirs", "q2 Q0 d3 1 1 theirs"]


def values(run, metric):
    return run.columns[metric]


@pytest.mark.parametrize(
    ("program", "options"),
    # `score` breaks ties by a search that only orders what had surfaced
    [("multihop", []), ("score", ["-P", "pool=40", "-P", "ties=rank_bm25"])],
)
def test_an_exported_run_comes_back_with_the_same_scores_attribution_and_searches(
    program, options, tmp_path, capsys
):
    words = [
        "--program",
        program,
        "--task",
        "congress",
        "--data",
        "mini",
        "--limit",
        "3",
        "--split",
        "dev",
    ]
    assert called(*words, *options, "--runs", tmp_path / "runs", module=run_module) == 0
    (run,) = (tmp_path / "runs").glob("*/*")
    for to in ("trec", "atif"):
        assert called(run, "--to", to, "--out", tmp_path / to, module=export) == 0
    ours, environment = read_run(run), environments.load("congress", "mini", "dev").asking(limit=3)
    file = tmp_path / "trec" / "run.trec"
    for form in (run / "outcomes.jsonl", tmp_path / "atif" / "trajectories.jsonl"):
        back = import_run(
            file, environment, runs=tmp_path / form.stem, trajectories=form, encoded=True
        )
        for name in ("scores.csv", "attribution.jsonl"):
            assert (back / name).read_bytes() == (run / name).read_bytes()
        theirs = read_run(back)
        assert all(theirs.scores[key] == ours.scores[key] for key in ("usage", "losses"))
        own = f"{program} differs from the paper's"  # which an import, under another name, cannot know
        assert theirs.scores["notes"] == [
            note for note in ours.scores["notes"] if not note.startswith(own)
        ]
        orders = [only_orders(ours.outcomes[query_id]) for query_id in ours.query_ids]
        assert [only_orders(theirs.outcomes[query_id]) for query_id in ours.query_ids] == orders
        assert any(map(any, orders)) == (program == "score")
    back = import_run(file, environment, runs=tmp_path / "of the ranking alone", encoded=True)
    capsys.readouterr()
    assert called(run, back, "--force", "--json", module=compare) == 0
    result = json.loads(capsys.readouterr().out)
    assert all(row["difference"] == 0 for row in result["comparisons"] if row["queries"])
    assert result["cost"][1]["calls_per_query"] is None
    assert called(run, back, "--force", module=compare) == 0
    assert "unknown" in capsys.readouterr().out


def only_orders(outcome):
    return [
        step.get("among", False) for step in outcome["trace"]["steps"] if step["tool"] == "search"
    ]


def test_passages_come_back_by_documents_trec_and_a_file_of_their_parents_is_refused(
    tmp_path, capsys
):
    words = ["--program", "retrieve", "--task", "crumb/clinical_trial", "--data", "mini"]
    assert called(*words, "--runs", tmp_path / "runs", module=run_module) == 0
    (run,) = (tmp_path / "runs").glob("*/*")
    assert called(run, "--to", "trec", "--out", tmp_path / "trec", module=export) == 0
    common = [
        "--task",
        "crumb/clinical_trial",
        "--data",
        "mini",
        "--encoded",
        "--runs",
        tmp_path / "back",
    ]
    assert called(tmp_path / "trec" / "documents.trec", *common) == 0
    (back,) = (tmp_path / "back").glob("*/*")
    assert (back / "scores.csv").read_bytes() == (run / "scores.csv").read_bytes()
    capsys.readouterr()
    assert called(tmp_path / "trec" / "run.trec", *common) == 3
    assert "ranks passages" in capsys.readouterr().err


def test_scores_of_a_trajectory_keep_the_order_among_equal_ones_and_the_ties_that_comparisons_count(
    imported,
):
    compared = {"q1": (Comparison("Win(1)", "d1", "d2"), Comparison("Win(1)", "d2", "d3"))}
    row = {"query_id": "q1", "steps": [], "ranking": ["d1", "d2", "d3"], "scores": [2.0, 2.0, 1.0]}
    compares = partial(world, metrics=("Win",), metric="Win", comparisons=compared)
    theirs = ["q1 Q0 d1 1 3 x", "q1 Q0 d2 2 2 x", "q1 Q0 d3 3 1 x"]
    run = imported([*theirs, "q2 Q0 d3 1 1 x"], trajectories=[row], world=compares)
    assert run.outcomes["q1"]["ranking"] == ["d1", "d2", "d3"]
    assert values(run, "Win")["q1"] == 0.5  # a tie is a loss
    run = imported(["q1 Q0 d1 1 2 x", *theirs[1:]], world=compares)
    assert run.outcomes["q1"]["ranking"] == ["d2", "d1", "d3"]  # equal ones as trec_eval has them
    assert values(run, "Win")["q1"] == 0.5


# Scores that are equal, that single precision makes equal, or that are not: trec_eval keeps them in single precision.
SCORES = st.sampled_from(
    [1.0, 1.0 + 1e-12, 1.00001, 0.3, 0.1 + 0.2, 1e-40, -2.0, 3e38, 5e38, -0.0, 0.0]
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_the_order_is_trec_eval_s_also_among_equal_scores(data, tmp_path):
    doc_ids = ["a", "B", "b", "é", "10", "9", "a b".replace(" ", "_")]
    scores = {doc_id: data.draw(SCORES) for doc_id in data.draw(st.permutations(doc_ids))}
    grades = {doc_id: data.draw(st.integers(0, 3)) for doc_id in doc_ids} | {"a": 1}
    corpus = Corpus(Document(doc_id, "text") for doc_id in doc_ids)
    environment = world(documents=corpus, queries=(Query("q", "what?"),))
    lines(tmp_path / "run", [f"q Q0 {doc_id} 1 {score!r} x" for doc_id, score in scores.items()])
    ranking = RunFile(tmp_path / "run", environment, encoded=False).ranking("q")[0]
    theirs = pytrec_eval.RelevanceEvaluator({"q": grades}, {"ndcg"}).evaluate({"q": scores})
    strictly = {doc_id: float(-place) for place, doc_id in enumerate(ranking)}
    ours = pytrec_eval.RelevanceEvaluator({"q": grades}, {"ndcg"}).evaluate({"q": strictly})
    assert ours["q"]["ndcg"] == pytest.approx(theirs["q"]["ndcg"], abs=1e-12)


def test_lines_may_come_in_any_order_and_the_rank_column_says_nothing(imported):
    run = imported(["q2 Q0 d3 7 -1 x", "", "q1\tQ0\td1\t1\t2.5\tx", "q1   Q0 d4 9 3.5 x\r"])
    assert run.outcomes["q1"]["ranking"] == ["d4", "d1"]
    assert values(run, "nDCG@10") == {"q1": 1.0, "q2": 1.0}
    assert run.scores["notes"] == [
        "documents are relevant above grade 0, of grades up to 2 (--relevant-from)"
    ]


def test_a_score_that_no_outcome_can_hold_is_refused_with_its_query(imported, tmp_path):
    with pytest.raises(DataError, match=r"theirs\.trec, query 'q1': scores\[0\] should be less"):
        imported(["q1 Q0 d1 1 9e37 x", "q1 Q0 d2 2 1 x"])
    assert not list((tmp_path / "runs").rglob("*.json*"))


def test_a_gzipped_file_is_read(tmp_path):
    (tmp_path / "run.trec.gz").write_bytes(gzip.compress("\n".join(PLAIN).encode()))
    assert RunFile(tmp_path / "run.trec.gz", world(), encoded=False).ranking("q1")[0] == [
        "d4",
        "d1",
    ]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("q1 Q0 d1 1 2.5", "5 columns"),
        ("q9 Q0 d1 1 2.5 x", "query 'q9' is not in the test split of made/up"),
        (
            "q01 Q0 d1 1 2.5 x",
            "; there is 'q1': write both alike",
        ),
        ("q1 Q0 D1 1 2.5 x", "; there is 'd1': write both alike"),
        ("q1 Q0 d9 1 2.5 x", "document 'd9' is not in the corpus"),
        ("q1 Q0 d4 2 2.5 x", "document 'd4' is there twice for query 'q1'"),
        ("q1 Q0 d2 1 nan x", "'nan' is no finite number"),
        ("q1 Q0 d2 1 1_0 x", "'1_0' is no finite number"),
        ("q1 Q0 hidden 1 2.5 x", "'hidden' is excluded for query 'q1'"),
        ("q2 Q0 d4 1 2.5 x", "'d4' is not in the pool of query 'q2'"),
    ],
)
def test_what_is_not_of_the_task_is_refused_with_its_line(line, said, imported, tmp_path):
    with pytest.raises(DataError) as refused:
        imported([*PLAIN, line])
    assert "theirs.trec, line 4: " in str(refused.value) and said in str(refused.value)
    assert not list((tmp_path / "runs").rglob("outcomes.jsonl"))


def test_scoring_refuses_the_rankings_that_an_import_refuses(imported):
    run = imported(PLAIN)
    rows = {query_id: run.outcomes[query_id] for query_id in run.query_ids}
    rows["q1"] |= {"ranking": ["hidden"], "scores": []}
    for row in rows.values():
        row.pop("digest", None)  # as a run of before has none
    lines(run.path / "outcomes.jsonl", map(json.dumps, rows.values()))
    with pytest.raises(DataError, match=r"outcomes\.jsonl.*'hidden' is excluded for query 'q1'"):
        score_run.score(run.path, world())


def test_ids_are_decoded_only_where_it_is_asked_for(tmp_path):
    lines(tmp_path / "plain", ["q1 Q0 a%20b 1 1 x"])
    assert RunFile(tmp_path / "plain", world(), encoded=False).ranking("q1")[0] == ["a%20b"]
    lines(tmp_path / "ours", ["q1 Q0 a%2520b 1 1 x"])
    assert RunFile(tmp_path / "ours", world(), encoded=True).ranking("q1")[0] == ["a%20b"]
    with pytest.raises(DataError, match="--encoded"):
        RunFile(tmp_path / "ours", world(), encoded=False)


def test_queries_that_are_missing_count_nothing_and_it_is_said(imported):
    run = imported(PLAIN[:2])
    assert values(run, "nDCG@10") == {"q1": 1.0, "q2": 0.0}
    assert run.scores["metrics"]["nDCG@10"]["mean"] == 0.5
    said = "1 of 2 queries are not in the run file: they count 0, and trec_eval leaves them out"
    assert run.scores["notes"][1:] == [said]


def test_queries_that_nobody_judged_are_left_out_and_it_is_said(imported):
    rows = [*PLAIN, "q7 Q0 d1 1 1 x", "q8 Q0 d1 1 1 x", "q8 Q0 d1 2 0 x"]
    run = imported(rows, world=lambda: world(unjudged={"q7", "q8", "q9"}))
    assert run.query_ids == ["q1", "q2"]
    said = "2 queries of the run file have no judgement: left out, as trec_eval does"
    assert run.scores["notes"][1:] == [said]


def test_ties_and_long_rankings_are_said(imported):
    rows = ["q1 Q0 d1 1 1 x", "q1 Q0 d2 1 1 x", "q1 Q0 d3 1 0 x", "q2 Q0 d3 1 1 x"]
    run = imported(rows, world=lambda: world(depth=2))
    assert run.outcomes["q1"]["ranking"] == ["d2", "d1"]
    assert run.scores["notes"][-2].startswith("1 of 2 queries have equal scores")
    assert (
        run.scores["notes"][-1] == "1 of 2 rankings are longer than the task's 2, and are cut there"
    )


def test_what_nobody_knows_is_unknown(imported):
    run = imported(PLAIN, model="openai/gpt-5.2")
    assert run.config["program"] == "theirs"
    assert run.config["retriever"]["name"] == "unknown"
    assert run.config["lm"]["name"] == "openai/gpt-5.2"
    assert run.config["imported"]["usage"] is False
    assert set(run.scores["usage"].values()) == {None}
    assert {one["lost_as"] for one in run.judged["q1"]["relevant"]} == {"ranked_low"}
    assert run.scores["losses"]["documents"]["found"] == 3


def test_without_a_trajectory_a_document_that_is_not_ranked_is_lost_nobody_knows_how(imported):
    run = imported(PLAIN[:1] + PLAIN[2:])
    lost = {one["unit"]: one["lost_as"] for one in run.judged["q1"]["relevant"]}
    assert lost == {"d1": "unknown", "d4": "ranked_low"}


def test_a_trajectory_says_where_documents_were_lost(imported):
    run = imported(
        ["q1 Q0 d2 1 1 x", "q2 Q0 d3 1 1 x"], trajectories=[{"query_id": "q1", "steps": STEPS}]
    )
    lost = {one["unit"]: one for one in run.judged["q1"]["relevant"]}
    assert lost["d1"]["lost_as"] == "shown_in_part"
    assert (lost["d1"]["hop"], lost["d1"]["rank"], lost["d1"]["chars"]) == (1, 2, 5)
    assert lost["d1"]["length"] == len(DOCUMENTS["d1"])  # the corpus says so
    assert lost["d4"]["lost_as"] == "never_surfaced"
    read_step = run.outcomes["q1"]["trace"]["steps"][1]
    assert read_step["shown"] == read_step["lengths"] == [len(DOCUMENTS["d2"])]
    assert "1 of 2 queries have no trajectory" in run.scores["notes"]


def test_usage_is_known_only_where_every_query_says_it(imported):
    both = [{"query_id": name, "steps": [], "usage": USED} for name in ("q1", "q2")]
    run = imported(PLAIN, trajectories=both)
    assert run.config["imported"]["usage"] is True
    assert (run.scores["usage"]["calls"], run.scores["usage"]["list_usd"]) == (4, 1.0)
    assert run.scores["usage"]["paid_usd"] is None  # nobody said
    run = imported(PLAIN, trajectories=both[:1])
    assert set(run.scores["usage"].values()) == {None}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("{", "no JSON"),
        ({"steps": []}, "query_id is missing"),
        ({"query_id": "q9", "steps": []}, "query 'q9' is not in the test split"),
        ({"query_id": "q2", "steps": []}, "query 'q2' is in line 1 already"),
        ({"query_id": "q1", "steps": [{"tool": "dance"}]}, "step 1: tool should be 'search'"),
        (
            {"query_id": "q1", "steps": [{"tool": "search", "doc_ids": ["d9"]}]},
            "step 1: document 'd9' is not in",
        ),
        ({"query_id": "q1", "steps": [{"tool": "search", "doc_ids": ["hidden"]}]}, "excluded"),
        ({"query_id": "q2", "steps": [{"tool": "search", "doc_ids": ["d4"]}]}, "not in the pool"),
        (
            {"query_id": "q1", "steps": [{"tool": "search", "doc_ids": ["d1"], "shown": [1, 2]}]},
            "'shown'",
        ),
        (
            {"query_id": "q1", "steps": [{"tool": "read", "doc_ids": ["d1"], "shown": [10**6]}]},
            "more of a document",
        ),
        (
            {"query_id": "q1", "steps": [{"tool": "note", "usage": USED | {"list_usd": -1}}]},
            "usage.list_usd should be",
        ),
        (
            {"query_id": "q1", "steps": [{"tool": "note", "calls": 5}]},
            "step 1: calls should be a valid tuple",
        ),
        ({"query_id": "q1", "steps": [], "ranking": ["d1"]}, "is not that of"),
        ({"query_id": "q1", "steps": [], "error": "boom"}, "has an error"),
    ],
)
def test_a_trajectory_that_cannot_be_is_refused_with_its_line(row, said, imported, tmp_path):
    good = {"query_id": "q2", "steps": []}
    with pytest.raises(DataError, match="line 2") as refused:
        if row == "{":
            (tmp_path / "torn.jsonl").write_text(f"{json.dumps(good)}\n{{")
            list(read_trajectories(tmp_path / "torn.jsonl", world()))
        imported(PLAIN, trajectories=[good, row])
    assert said in str(refused.value)
    assert not list((tmp_path / "runs").rglob("outcomes.jsonl"))


def test_an_error_of_theirs_is_an_error_here(imported):
    run = imported(
        PLAIN[:2], trajectories=[{"query_id": "q2", "steps": [], "error": "Timeout: gave up"}]
    )
    assert run.errors == {"q2": "Timeout: gave up"}
    assert run.scores["losses"]["documents"]["error"] == 1
    assert not [note for note in run.scores["notes"] if "not in the run file" in note]


@pytest.mark.parametrize(
    "results",
    [
        [{"extra": {"doc_ids": ["d2", "d1"]}}],
        [
            {"content": "two", "extra": {"source_doc_id": "d2"}},
            {"content": "one", "extra": {"source_doc_id": "d1"}},
        ],
        [{"content": json.dumps([{"docid": "d2", "score": 1}, {"docid": "d1", "score": 0}])}],
        [{"content": json.dumps({"results": [{"id": "d2"}, {"id": "d1"}]})}],
        [{"content": json.dumps(["d2", "d1"])}],
    ],
)
def test_atif_of_another_system_is_read_as_far_as_it_says(results, imported):
    row = atif(
        [
            {"source": "user", "message": "first?"},
            call(
                "web_search",
                {"query": "number"},
                *results,
                metrics={"prompt_tokens": 9, "completion_tokens": 2},
            ),
            call("open_document", {"docid": "d2"}, {"content": "The committee"}, llm_call_count=0),
            {"source": "agent", "message": "It is d2.", "llm_call_count": 0},
        ],
        session_id="q1",
    )
    Trajectory.model_validate(row)
    run = imported(["q1 Q0 d2 1 1 x", "q2 Q0 d3 1 1 x"], trajectories=[row])
    search, opened, note = run.outcomes["q1"]["trace"]["steps"]
    assert (search["tool"], search["argument"], search["doc_ids"]) == (
        "search",
        "number",
        ["d2", "d1"],
    )
    assert (opened["tool"], opened["doc_ids"], opened["shown"]) == (
        "read",
        ["d2"],
        [len("The committee")],
    )
    assert (note["tool"], note["argument"]) == ("note", "It is d2.")
    assert run.outcomes["q1"]["usage"]["input_tokens"] == 9
    assert {one["unit"]: one["lost_as"] for one in run.judged["q1"]["relevant"]}[
        "d1"
    ] == "not_shown"


def test_atif_whose_searches_do_not_say_what_they_found_leaves_the_loss_unknown(imported):
    row = atif(
        [call("search", {"query": "number"}, {"content": "Some prose."})], trajectory_id="q1"
    )
    run = imported(PLAIN[2:], trajectories=[row])
    assert run.outcomes["q1"]["trace"]["steps"] == []
    assert {one["lost_as"] for one in run.judged["q1"]["relevant"]} == {"unknown"}
    said = "1 of 2 trajectories do not say what their searches found, so their steps are left out"
    assert said in run.scores["notes"]


def test_the_command_scores_prints_and_can_be_given_again(tmp_path, capsys):
    environment = environments.load("congress", "mini")
    first = next(iter(environment.documents))
    lines(
        tmp_path / "run.trec",
        [f"{query.query_id} Q0 {first} 1 1 my system/2" for query in environment.queries],
    )
    assert (
        called(
            tmp_path / "run.trec",
            "--task",
            "congress",
            "--data",
            "mini",
            "--runs",
            tmp_path / "runs",
        )
        == 3
    )
    assert "7 columns" in capsys.readouterr().err
    lines(
        tmp_path / "run.trec",
        [f"{query.query_id} Q0 {first} 1 1 my/system" for query in environment.queries],
    )
    words = [
        tmp_path / "run.trec",
        "--task",
        "congress",
        "--data",
        "mini",
        "--runs",
        tmp_path / "runs",
    ]
    assert called(*words, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["program"] == "my-system" and told["looks"] == 1
    assert called(*words, "--json") == 0
    assert json.loads(capsys.readouterr().out) == told
    assert called(told["run"], "--json", module=score) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["metrics"] == told["metrics"] and again["notes"] == told["notes"]
    assert called(*words, "--name", "a/b") == 2
    assert "'a-b'" in capsys.readouterr().err
    assert called(tmp_path / "nowhere", *words[1:]) == 3
    os.mkfifo(tmp_path / "pipe")
    capsys.readouterr()
    assert called(tmp_path / "pipe", *words[1:]) == 3
    assert "pipe is no file, which is read more than once" in capsys.readouterr().err


def test_importing_a_run_loads_no_dspy():
    code = "import sys, sextant.evals.formats.import_run; sys.exit('dspy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
