"""The books of a compilation, and what is told from them: fates, feedback, candidates, gains, what is shown."""

import itertools
import json
import logging
import math
import time
from types import SimpleNamespace

import dspy
import pytest

import sextant.optimizers.candidate_evaluator
from sextant.evals.scoring.statistics import paired
from sextant.optimizers import result_report, result_summary
from sextant.optimizers.candidate_evaluator import CandidateEvaluator
from sextant.optimizers.evaluation_log import Evaluation
from sextant.optimizers.setup import _quiet
from sextant.optimizers.trainset.demonstrations import relevant_documents
from sextant.optimizers.trainset.feedback import feedback
from sextant.optimizers.trainset.objective import make_objective
from sextant.optimizers.trainset.prompt_leaks import collect_passages
from sextant.optimizers.trainset.splits import make_folds, split_dev
from sextant.programs.retrieve import Retrieve
from sextant.tools.errors import AbortCompilation, DataError
from sextant.tools.models import language_model
from sextant.tools.models.client import DEADLINE
from sextant.tools.records import Usage
from sextant.tools.retrievers.lexical.bm25 import BM25
from sextant.tools.session import Toolbox


@pytest.fixture(scope="module")
def training():
    return split_dev("writing", "mini")


@pytest.fixture
def study(training, tmp_path):
    return CandidateEvaluator(tmp_path, training, make_objective(training.environment))


@pytest.fixture(scope="module")
def program(training):
    return Retrieve(Toolbox(training.environment.documents, BM25(training.environment.documents)))


def evaluated(study, values):
    """The same study, read again from a folder in which each candidate has a value for the first validation queries."""
    queries = study.parts["validation"]
    digests = [
        study.candidate(dspy.Module(), {"number": number}).digest for number in range(len(values))
    ]
    used = {"calls": 1, "tokens": 10, "list_usd": 0.0, "ranking": [], "error": None, "seconds": 0.0}
    rows = [
        {
            "candidate": digest,
            "query_id": query.query_id,
            "sample": "",
            "value": value,
            "metrics": {},
            **used,
        }
        for digest, found in zip(digests, values, strict=True)
        for query, value in zip(queries, found, strict=False)
    ]
    (study.folder / "evaluations.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    again = CandidateEvaluator(study.folder, study.training, study.objective)
    again.before = digests[0]
    return again, [again.candidates[digest] for digest in digests]


@pytest.mark.parametrize("task", ["paper_retrieval", "doris_mae", "twitter", "set_ops", "relic"])
def test_labels_feedback_and_leaks_mean_the_same_by_relevant(task):
    """With judgements of two kinds, graded ones, those of units, and of a pool."""
    given = split_dev(task, "mini")
    environment = given.environment
    judgements = environment.judgements[environment.headline]
    binary = judgements.qrels if judgements.binary is None else judgements.binary
    labels = relevant_documents(environment.queries, environment)
    told = {
        query.query_id: feedback(query, *searched_for_nothing(query, environment), environment)
        for query in environment.queries
    }
    everywhere = set()
    for query in environment.queries:
        graded = judgements.qrels[query.query_id]
        expected = {one for one, grade in binary[query.query_id].items() if grade >= 1}
        expected = expected or {one for one, grade in graded.items() if grade > 0}
        assert f"Relevant documents: {len(expected)} " in told[query.query_id]
        if judgements.unit_of:
            expected = {one for one in environment.documents if judgements.unit_of(one) in expected}
        assert set(labels[query.query_id]) == expected
        everywhere |= expected
    passages = collect_passages("train", environment.queries, environment)
    assert {one.owner for one in passages if one.kind == "gold document"} == everywhere


def searched_for_nothing(query, environment):
    from sextant.evals.scoring.metrics import Ranking

    session = Toolbox(environment.documents, BM25(environment.documents)).open(query)
    return session.submit([]).trace, Ranking([])


def test_feedback_is_of_training_queries_alone(study, program):
    instrumented = study.instrument(program)
    model = language_model.connect("offline", statistics=dict).lm
    said = {}
    for part, queries in study.parts.items():
        for query in queries:
            with dspy.context(lm=model, trace=[]):  # somebody watches, as a bootstrap does
                rollout = instrumented(query_id=query.query_id)
            assert rollout.outcome is not None
            asked = (
                study.metric(None, rollout, pred_name="search"),
                study.metric(None, rollout, pred_name=""),
            )
            assert {one.score for one in asked} == {study.metric(None, rollout)}
            said.setdefault(part, []).extend(one.feedback for one in asked)
    assert set(said["validation"]) == {""}
    assert all("Relevant documents: " in text for text in said["train"])


class Timed(Retrieve):
    """Notes the deadlines that it is given."""

    def __init__(self, toolbox):
        super().__init__(toolbox)
        self.deadlines = []

    def forward(self, *, query):
        self.deadlines.append(DEADLINE.get())
        return super().forward(query=query)


@pytest.mark.parametrize("workers", [1, 3])
def test_every_evaluation_has_the_whole_time_of_a_query(workers, training, tmp_path, monkeypatch):
    ticks = itertools.count()  # a clock that goes on by a second whenever it is read
    clock = SimpleNamespace(monotonic=lambda: float(next(ticks)))
    monkeypatch.setattr(sextant.optimizers.candidate_evaluator, "time", clock)
    study = CandidateEvaluator(
        tmp_path,
        training,
        make_objective(training.environment),
        workers=workers,
        query_seconds=5000.0,
    )
    program = Timed(Toolbox(training.environment.documents, BM25(training.environment.documents)))
    with dspy.context(lm=language_model.connect("offline", statistics=dict).lm):
        found = study.evaluate(study.instrument(program), "validation")
    assert len(set(program.deadlines)) == len(found) > 3 and min(program.deadlines) >= 5000.0
    assert DEADLINE.get() == math.inf, "and nothing else has"


def test_a_candidate_that_is_evaluated_by_many_threads_is_told_once(training, program, tmp_path):
    told = list[str]()
    study = CandidateEvaluator(
        tmp_path, training, make_objective(training.environment), say=told.append, workers=8
    )
    student = language_model.connect("offline", statistics=dict).lm
    with dspy.context(lm=student), study.working(student):
        for number in range(20):
            study.evaluate(study.instrument(program, {"number": number}), "validation")
    whole = [line for line in told if "validation" in line]
    assert len(whole) == len(set(whole)) == 20


def test_a_study_that_was_stopped_begins_nothing(study, program):
    study.stop()
    with (
        dspy.context(lm=language_model.connect("offline", statistics=dict).lm),
        pytest.raises(AbortCompilation, match="interrupted"),
    ):
        study.evaluate(study.instrument(program), "validation")
    assert not (study.folder / "evaluations.jsonl").exists()


@pytest.mark.parametrize("workers", [1, 2])
def test_the_first_exception_ends_it_once_what_is_on_its_way_is_there(workers, training, tmp_path):
    ended = []

    def function(number):
        if number == 1:
            raise AbortCompilation(RuntimeError("no more"))
        time.sleep(0.1)
        ended.append(number)

    with pytest.raises(AbortCompilation, match="no more"):
        CandidateEvaluator(
            tmp_path, training, make_objective(training.environment), workers=workers
        ).each(function, range(100))
    assert ended in ([0], [0, 2], [2, 0])


def test_no_key_that_a_provider_repeats_is_in_the_log(study, monkeypatch):
    key = "not-a-key-of-anybody"
    monkeypatch.setenv("SOME_PROVIDER_KEY", key)
    with pytest.raises(ValueError, match="Incorrect"), _quiet(study):
        print("it was sent with", key)  # noqa: T201  # as a library does
        logging.getLogger("dspy.teleprompt").warning("it was sent with %s", key)
        raise ValueError(f"Incorrect API key provided: {key}")
    text = (study.folder / "optimizer.log").read_text(encoding="utf-8")
    assert key not in text
    assert (
        "ValueError: Incorrect API key provided: ***" in text
        and text.count("it was sent with ***") == 2
    )


@pytest.mark.parametrize("change", ["instructions", "demos", "parameters", "digest"])
def test_a_candidate_that_was_edited_is_damaged_data(change, study, training):
    program = dspy.Predict("description -> search")
    study.candidate(program, {"hops": 1})
    file = study.folder / "candidates.jsonl"
    row = json.loads(file.read_text())
    [prompt] = row["prompts"].values()
    if change == "instructions":
        prompt["instructions"] += " Do it well."
    elif change == "demos":
        prompt["demos"].append({"description": "a", "search": "b"})
    else:
        row[change] = {"parameters": {"hops": 2}, "digest": "01234567"}[change]
    file.write_text(json.dumps(row) + "\n")
    with pytest.raises(DataError, match=r"candidates.jsonl, line 1 is damaged"):
        CandidateEvaluator(study.folder, training, study.objective)


def test_a_gain_is_corrected_for_candidates_that_were_given_up_half_way(study):
    count = len(study.parts["validation"])
    plain, better = [0.1] * count, [0.3 + 0.01 * place for place in range(count)]
    values = [
        plain,
        better,
        better[: count // 2],
        [0.0],
        [],
    ]  # the last was never evaluated: a teacher's
    again, candidates = evaluated(study, values)
    assert result_summary.choose_candidate(again) == candidates[1]
    found = result_summary.measure_gain(again, candidates[1])
    p = paired(plain, better).p
    assert (
        found["candidates"] == 3
        and found["p"] == p
        and found["p_corrected"] == pytest.approx(3 * p)
    )
    rows = {row["candidate"]: row["whole"] for row in result_summary.list_candidates(again)}
    assert rows == {one.digest: place < 2 for place, one in enumerate(candidates[:4])}


def test_with_folds_a_candidate_is_judged_by_all_queries_that_it_was_not_made_of(
    training, tmp_path
):
    folded = make_folds(training, 3)
    study = CandidateEvaluator(tmp_path, folded, make_objective(folded.environment))
    plain = study.candidate(dspy.Module(), {}).digest
    study.before = plain
    made = []
    for number in range(3):
        study.take_fold(number)
        made.append(study.candidate(dspy.Module(), {"number": number}))
    for query in folded.train:
        own = folded.fold_of[query.query_id]
        values = {plain: 0.1 * own} | {
            one.digest: 1.0 if own == n else 0.2 * own for n, one in enumerate(made)
        }
        for digest, value in values.items():
            study.add(Evaluation(digest, query.query_id, "", value, {}, 1, 1, 0.0, [], None, 0.0))
    sizes = [list(folded.fold_of.values()).count(number) for number in range(3)]
    for number, one in enumerate(made):
        others = [n for n in range(3) if n != number for _ in range(sizes[n])]
        assert len(study.evaluations_of(one.digest, "validation")) == len(others)
        assert study.change(one.digest) == pytest.approx(0.1 * sum(others) / len(others))
    assert len(study.evaluations_of(plain, "validation")) == len(folded.train)
    assert (
        result_summary.choose_candidate(study) == made[0]
        and result_summary.measure_gain(study, made[0])["wins"] == sizes[1] + sizes[2]
    )
    assert {row["candidate"] for row in result_summary.list_candidates(study)} == {
        plain,
        *(one.digest for one in made),
    }


def test_of_candidates_that_are_as_good_the_one_that_is_kept_is_shown_first(study):
    count = len(study.parts["validation"])
    again, candidates = evaluated(study, [[0.5] * count] * 6 + [[0.9] * 3])
    assert min(one.digest for one in candidates) != candidates[0].digest
    best = result_summary.choose_candidate(again)
    found = result_summary.summarise(again, best, Usage(), "")
    assert best == candidates[0] and found["kept"] == "before"
    shown = [row["candidate"] for row in found["candidates"]]
    assert shown == [
        best.digest,
        *sorted(one.digest for one in candidates[1:6]),
        candidates[6].digest,
    ]


def test_every_query_that_moved_is_kept_and_the_most_are_shown(study):
    count = len(study.parts["validation"])
    assert count == 12
    plain = [0.5] * count
    moves = [0.1 * place for place in (4, -4, 3, -3, 2, -2, 1, -1, 5, 0, 0, 4.5)]
    again, candidates = evaluated(study, [plain, [0.5 + move for move in moves]])
    found = result_summary.summarise(again, candidates[1], Usage(), "")
    expected = {
        query.query_id: move
        for query, move in zip(again.parts["validation"], moves, strict=True)
        if move
    }
    assert {row["query_id"]: row["difference"] for row in found["moved"]} == pytest.approx(expected)
    assert [row["difference"] for row in found["moved"]] == pytest.approx(
        sorted(expected.values(), reverse=True)
    )
    assert len(found["moved"]) == 10
    printed = "\n".join(result_report._queries_moved(found))
    assert [query_id for query_id in expected if query_id not in printed] == [
        again.parts["validation"][6].query_id
    ]
