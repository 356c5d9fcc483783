"""Judging what runs bring and nobody has judged: agreement, resuming, scores, and what the judge is shown."""

import json
import random
import re
import zlib
from dataclasses import replace
from pathlib import Path

import ir_measures
import pytest
import run_folders
from openai_server import given, ids
from sklearn import metrics as sklearn_metrics

from sextant import environments
from sextant.environments.base import Judgements
from sextant.evals.running.request import SharedRequest
from sextant.evals.scoring.metrics import measure_unjudged
from sextant.programs.compiled import read, write
from sextant.tools.errors import BudgetReached, UsageError
from sextant_construction import judge as module
from sextant_construction.judge_correction import draw_true_grades, measure_judge
from sextant_construction.llm_judge import UnusableJudge, judge_runs, render_judgements

PROGRAM = "sextant.programs.llm_tasks.relevance_judge:Judge"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Three systems on a miniature with pooled judgements."""
    place = tmp_path_factory.mktemp("judging")
    retrievers = ("bm25", "bm25(analyzer=english)", "bm25(b=0.0,k1=3.0)")
    words = (
        "--program",
        "retrieve",
        "--task",
        "twitter",
        "--split",
        "all",
        "--limit",
        4,
        "--retriever",
    )
    return [run_folders.run_in(place, *words, one) for one in retrievers]


@pytest.fixture
def judged(server, runs, tmp_path):
    """`judged(**options)`: the runs judged by a model that knows the release, and else grades by a document's id."""
    truth = environments.load("twitter", "mini", "all")
    texts = {" ".join(query.text.split()): query.query_id for query in truth.queries}
    asked = []

    def answer(prompt):
        query_id = texts[
            " ".join(given(prompt.rpartition("ended with")[0] or prompt, "description").split())
        ]
        shown = ids(prompt.rpartition("[[ ## passages ## ]]")[2])
        asked.append((query_id, shown))
        known = truth.judgements["pooled"].qrels[query_id]
        rows = [
            {"id": one, "grade": judged.grade(query_id, one, known.get(one)), "reason": "so"}
            for one in shown
        ]
        return {"verdicts": json.dumps(rows)}

    def run(**options):
        fields = {
            name: options.pop(name)
            for name in list(options)
            if name in ("budget_calls", "parameters")
        }
        request = SharedRequest(
            program=PROGRAM, task="twitter", lm=server.spec, max_concurrent=1, **fields
        )
        return judge_runs(request, runs, name=options.pop("name", tmp_path.name), **options)

    server.answer = answer
    judged = run
    judged.grade = lambda query_id, doc_id, known: (
        int(doc_id[-1] in "13579") * 2 if known is None else int(known)
    )
    judged.asked = asked
    return judged


def test_the_share_judged_and_the_bounds_are_those_of_ir_measures():
    drawn = random.Random(1)
    names = [f"d{number}" for number in range(30)]
    qrels = {
        f"q{n}": {one: drawn.choice([0, 0, 1, 2]) for one in drawn.sample(names, 9)} | {"d0": 1}
        for n in range(8)
    }
    rankings = {one: drawn.sample(names, drawn.choice([12, 25])) for one in qrels}
    scores = {
        one: {doc_id: -place for place, doc_id in enumerate(of)} for one, of in rankings.items()
    }
    found = measure_unjudged(["nDCG@10", "R@5", "AP@10"], Judgements(qrels), rankings)
    for name, one in found.items():
        depth = int(name.partition("@")[2])
        best = {
            q: of | {d: max(of.values()) for d in rankings[q][:depth] if d not in of}
            for q, of in qrels.items()
        }
        for key, judgements in {"mean": qrels, "right": best, "judged": qrels}.items():
            measure = ir_measures.parse_measure(f"Judged@{depth}" if key == "judged" else name)
            assert ir_measures.calc_aggregate([measure], judgements, scores)[
                measure
            ] == pytest.approx(one[key]), key


def test_agreement_on_the_release_is_measured_before_anything_else_is_asked(judged, capsys):
    drawn = random.Random(2)
    said, truth = [], []

    def noisy(query_id, doc_id, known):
        if known is None:
            return 0
        truth.append(known >= 1)
        said.append(bool(known >= 1) if drawn.random() < 0.7 else drawn.random() < 0.5)
        return 2 * said[-1]

    judged.grade = noisy
    found = judged(sample=16)["agreement"]
    assert found["documents"] == 16 and found["relevant"] == 8
    theirs = (
        sklearn_metrics.cohen_kappa_score,
        sklearn_metrics.precision_score,
        sklearn_metrics.recall_score,
    )
    assert [found[key] for key in ("kappa", "precision", "recall")] == pytest.approx(
        [of(truth, said) for of in theirs]
    )
    release = environments.load("twitter", "mini", "all").judgements["pooled"].qrels
    sampled = [all(one in release[query_id] for one in shown) for query_id, shown in judged.asked]
    assert sampled == sorted(sampled, reverse=True) and not sampled[-1]
    assert (
        "agreement with the release on a sample of 16 judged documents" in capsys.readouterr().err
    )


def test_a_judge_that_is_ended_goes_on_with_the_rest_and_scores_the_runs(judged, server, runs):
    with pytest.raises(BudgetReached):
        judged(budget_calls=7)
    found = judged()
    sent = [json.dumps(body["messages"]) for body in server.requests]
    assert len(sent) == len(set(sent)) > 7 and found["left"] == 0
    before = len(sent)
    assert judged() == found and len(server.requests) == before
    release = environments.load("twitter", "mini", "all")
    top = {
        doc_id
        for run in found["runs"]
        for row in _outcomes(run["run"])
        for doc_id in row["ranking"][:10]
    }
    assert top and found["judged"] == sum(
        len(shown) for query_id, shown in judged.asked if _new(release, query_id, shown)
    )
    for row in found["runs"]:
        ours = row["by"][found["name"]]["nDCG@10"]
        assert (
            ours["judged"] == 1.0
            and ours["mean"] == ours["right"] > row["by"]["pooled"]["nDCG@10"]["mean"]
        )
        assert row["by"]["pooled"]["nDCG@10"]["judged"] < 0.5
    scores = json.loads(
        (runs[0] / "scores.json").read_text()
    )  # a run's own scores know nothing of it
    assert scores["unjudged"]["nDCG@10"] == found["runs"][0]["by"]["pooled"]["nDCG@10"]
    assert found["name"] not in json.dumps(scores)


def _outcomes(run):
    return [
        json.loads(line)
        for line in Path(run, "outcomes.jsonl").read_text(encoding="utf-8").splitlines()
    ]


def _new(release, query_id, shown):
    return not set(shown) & release.judgements["pooled"].qrels[query_id].keys()


def test_a_system_that_lives_of_its_own_contributions_falls_when_they_are_left_out(judged, runs):
    alone = {}
    for place, run in enumerate(runs):
        for row in _outcomes(run):
            for doc_id in row["ranking"][:10]:
                alone.setdefault((row["query_id"], doc_id), set()).add(place)
    judged.grade = lambda query_id, doc_id, known: (
        2 * (alone.get((query_id, doc_id)) == {1}) if known is None else 0
    )
    found = judged(sample=2)
    means = [row["by"][found["name"]]["nDCG@10"]["mean"] for row in found["runs"]]
    own = found["left_out"][1]
    assert max(means) == means[1] and own["tau"] < 1 and own["change"] > 0.02
    assert [(one["tau"], one["change"]) for one in found["left_out"][::2]] == [(1, 0)] * 2


def test_what_an_answer_leaves_out_is_asked_for_alone_and_what_it_invents_is_dropped(
    judged, server
):
    whole, first = server.answer, []

    def lazy(prompt):
        rows = json.loads(whole(prompt)["verdicts"])
        if len(rows) > 1:
            first.append(len(rows) - 1)
            rows = [*rows[1:], {"id": "nobody", "grade": 2, "reason": "?"}]
        return {"verdicts": json.dumps(rows)}

    server.answer = lazy
    found = judged(sample=2)
    assert first and found["left"] == 0
    shown = [tuple(one) for _, one in judged.asked if len(one) == 1]
    assert len(set(shown)) > 1


def test_the_judge_is_told_the_rule_and_examples_and_neither_system_nor_grade(judged, server):
    judged(sample=2)
    prompt = "\n".join(str(message["content"]) for message in server.requests[-1]["messages"])
    assert (
        "implies the described stance strongly" in given(prompt, "grades")
        and "Ask what the writer" in prompt
    )
    query_id, shown = judged.asked[-1]
    gold = environments.load("twitter", "mini", "all").qrels[query_id]
    examples = ids(given(prompt, "examples"))
    assert examples and set(examples) <= gold.keys() and not set(examples) & set(shown)
    assert "bm25" not in prompt and '"grade": 2' not in re.sub(
        r"verdicts.*", "", prompt, flags=re.S
    )


def test_a_judge_s_prompt_is_compiled_on_pools_as_a_program_s_and_taken_up(
    judged, server, compiled
):
    file = compiled(
        "judge",
        "--limit",
        "4",
        "--pool",
        "oracle:10",
        "--qrels",
        "pooled",
        program=PROGRAM,
        task="twitter",
    )
    found = read(file)
    strict = {
        name: replace(one, instructions=f"Be strict. {one.instructions}")
        for name, one in found.prompts.items()
    }
    write(file, replace(found, prompts=strict))
    assert judged(name="plain")["prompt"] != judged(name="strict", compiled=file)["prompt"]
    told = ["Be strict. Grade each passage" in str(body) for body in server.requests]
    assert sum(told) == len(told) / 2 and told[-1]


def test_of_a_document_its_best_placed_passage_is_read_and_the_judgement_is_of_the_document(
    server, tmp_path
):
    words = (
        "--program",
        "retrieve",
        "--task",
        "crumb/clinical_trial",
        "--split",
        "all",
        "--limit",
        3,
        "--retriever",
    )
    runs = [run_folders.run_in(tmp_path, *words, one) for one in ("bm25", "bm25(b=0.0,k1=3.0)")]
    truth = environments.load("crumb/clinical_trial", "mini", "all")
    parent, known = truth.judgements["document"].unit_of, truth.judgements["document"].qrels
    texts, asked = {" ".join(query.text.split()): query.query_id for query in truth.queries}, {}

    def answer(prompt):
        query_id = texts[" ".join(given(prompt, "description").split())]
        shown = ids(prompt.rpartition("[[ ## passages ## ]]")[2])
        asked.setdefault(query_id, []).extend(shown)
        rows = [
            {"id": one, "grade": 2 * (parent(one)[-1] in "13579"), "reason": "so"} for one in shown
        ]
        return {"verdicts": json.dumps(rows)}

    server.answer = answer
    found = judge_runs(
        SharedRequest(program=PROGRAM, task="crumb/clinical_trial", lm=server.spec),
        runs,
        name="m",
        sample=4,
    )
    assert found["left"] == 0 and found["agreement"]["documents"] == 4
    highest = max(grade for grades in known.values() for grade in grades.values())
    rankings = [{row["query_id"]: row["ranking"] for row in _outcomes(run)} for run in runs]
    for query_id, passages in asked.items():
        assert len(set(map(parent, passages))) == len(passages)
        for one in passages:
            places = [
                next(
                    place
                    for place, doc_id in enumerate(ranking[query_id])
                    if parent(doc_id) == parent(one)
                )
                for ranking in rankings
            ]
            assert any(ranking[query_id][min(places)] == one for ranking in rankings)
    for row, ranking in zip(found["runs"], rankings, strict=True):
        units = {query_id: list(dict.fromkeys(map(parent, of))) for query_id, of in ranking.items()}
        ours = {
            q: {one: highest * (one[-1] in "13579") for one in map(parent, asked[q])} | known[q]
            for q in units
        }
        scores = {
            query_id: {one: -place for place, one in enumerate(of)}
            for query_id, of in units.items()
        }
        measure = ir_measures.parse_measure("nDCG@10")
        qrels = {
            query_id: {one: int(grade) for one, grade in of.items()}
            for query_id, of in ours.items()
        }
        assert ir_measures.calc_aggregate([measure], qrels, scores)[measure] == pytest.approx(
            row["by"]["m"]["nDCG@10"]["mean"]
        )
        assert row["by"]["m"]["nDCG@10"]["judged"] == 1.0 and set(row["by"]) == {"document", "m"}


def test_another_judge_has_a_folder_of_its_own_and_other_runs_are_refused(judged, runs, command_of):
    places = {
        judged(sample=2)["folder"],
        judged(sample=2, parameters={"read_chars": "50"})["folder"],
    }
    assert len(places) == 2
    with pytest.raises(UsageError, match="not the release's own"):
        judged(name="pooled")
    command = command_of(module)
    done = command("--task", "congress", "--runs", *runs)
    assert done.code == 2 and "give runs of one task" in done.err
    done = command("--task", "twitter", "--runs", *runs, "--dry-run")
    assert (
        done.code == 0
        and "to be judged in" in done.out
        and not list(runs[0].parent.glob("judged-offline*"))
    )
    done = command("--task", "twitter", "--runs", runs[0].parent)  # whose other folders are judges
    assert done.code == 0 and "no language model" in done.out and "Kendall's tau with" in done.out


def test_a_judge_that_ended_before_its_configuration_was_written_goes_on(judged):
    folder = Path(judged(sample=2)["folder"])
    for path in folder.iterdir():
        path.unlink()
    assert judged(sample=2)["folder"] == str(folder)


def test_a_judge_without_a_usable_grade_for_the_sample_is_asked_about_nothing_else(judged, server):
    server.answer = lambda prompt: {"verdicts": "[]"}
    with pytest.raises(
        UnusableJudge, match="gave no usable grade for any of the 4 sampled documents"
    ):
        judged(sample=4)
    release = environments.load("twitter", "mini", "all").judgements["pooled"].qrels
    known = {doc_id for grades in release.values() for doc_id in grades}
    for body in server.requests:
        prompt = "\n".join(str(message["content"]) for message in body["messages"])
        assert set(ids(prompt.rpartition("[[ ## passages ## ]]")[2])) <= known


def test_a_grade_of_one_is_relevant_in_every_metric_and_in_the_agreement(judged):
    """The release of this task has grades of 0 and 1."""
    judged.grade = lambda query_id, doc_id, known: 1
    found = judged(sample=8)
    assert found["agreement"]["recall"] == 1.0
    judged.grade = lambda query_id, doc_id, known: 2
    whole = judged(sample=8, name="whole")
    for row, other in zip(found["runs"], whole["runs"], strict=True):
        assert row["by"][found["name"]] == other["by"]["whole"]


def test_means_by_a_judge_are_given_without_its_errors_too(judged, command_of, capsys):
    drawn = random.Random(4)
    judged.grade = lambda query_id, doc_id, known: 2 * (drawn.random() < (0.9 if known else 0.4))
    found = judged(sample=30)
    assert set(found["judge"]) == {"precision", "recall", "relevant"}
    for row, mean in zip(found["runs"], found["corrected"], strict=True):
        assert mean["low"] <= mean["mean"] <= mean["high"]
        assert (
            mean["mean"] < row["by"][found["name"]]["nDCG@10"]["mean"]
        )  # nothing in the pool is relevant by design
    text = render_judgements(found)
    assert (
        "among what was judged, by the errors on the sample: precision" in text
        and "corrected" in text
    )
    said = "the judge differs from the paper's: a reason is given with each grade"
    assert said in " ".join(text.split())


def test_corrected_means_do_not_depend_on_the_order_of_the_answers(judged):
    def grade(query_id, doc_id, known):
        share = zlib.crc32(doc_id.encode()) % 10
        return 2 * (share < (9 if known else 4))

    judged.grade = grade
    found = judged(sample=30)
    outcomes = Path(found["folder"]) / "outcomes.jsonl"
    lines = outcomes.read_text().splitlines(keepends=True)
    outcomes.write_text("".join(reversed(lines)))
    again = judged(sample=30)
    assert again["corrected"] == found["corrected"]
    assert again["judge"] == found["judge"]


def test_a_judge_without_errors_is_corrected_by_little_and_a_wrong_one_to_the_truth():
    generator = random.Random(5)
    truth = [float(generator.random() < 0.2) for _ in range(400)]
    sample = [(float(number % 2), 2 * (number % 2)) for number in range(50)]
    right = measure_judge(
        [2 * int(one) for one in truth],
        list(draw_true_grades(sample, [2 * int(x) for x in truth])),
        bool,
    )
    assert (
        right.relevant.low <= sum(truth) / 400 <= right.relevant.high and right.precision.mean > 0.9
    )

    def err(true):
        return 2 * int(generator.random() < (0.9 if true else 0.15))

    sample = [(float(number % 2), err(number % 2)) for number in range(200)]
    said = [err(true) for true in truth]
    wrong = measure_judge(said, list(draw_true_grades(sample, said)), bool)
    calls = sum(map(bool, said)) / 400
    assert wrong.relevant.low <= sum(truth) / 400 <= wrong.relevant.high < calls
    assert (
        wrong.precision.low
        <= sum(true for true, one in zip(truth, said, strict=True) if one) / sum(map(bool, said))
        <= (wrong.precision.high)
    )
    with pytest.raises(ValueError, match="one grade only"):
        next(draw_true_grades([(1.0, 2)], [0, 2]))
