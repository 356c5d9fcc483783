"""The evaluations of a compilation, and what is told from them: feedback, candidates, gains."""

import itertools
import logging
import math
import time
from types import SimpleNamespace

import dspy
import pytest

import sextant.optimizers.candidate_evaluator
from sextant.evals.running.runner import submission_record
from sextant.optimizers import result_summary
from sextant.optimizers.candidate_evaluator import CandidateEvaluator, Rollout
from sextant.optimizers.setup import _quiet
from sextant.optimizers.trainset.demonstrations import relevant_documents
from sextant.optimizers.trainset.feedback import feedback
from sextant.optimizers.trainset.objective import make_objective
from sextant.optimizers.trainset.prompt_leaks import collect_passages
from sextant.optimizers.trainset.splits import make_folds, split_dev
from sextant.programs.retrieve import Retrieve
from sextant.tools.errors import AbortCompilation, RunIncomplete
from sextant.tools.models import language_model
from sextant.tools.models.client import DEADLINE
from sextant.tools.retrievers.lexical.bm25 import BM25
from sextant.tools.session import Toolbox


@pytest.fixture(scope="module")
def training():
    return split_dev("writing", "mini")


@pytest.fixture
def study(training):
    return CandidateEvaluator(training, make_objective(training.environment))


@pytest.fixture(scope="module")
def program(training):
    return Retrieve(Toolbox(training.environment.documents, BM25(training.environment.documents)))


def evaluated(study, values):
    """The study with candidates, each of which has a value for the first validation queries."""
    candidates = [
        study.candidate(dspy.Module(), {"number": number}) for number in range(len(values))
    ]
    for candidate, found in zip(candidates, values, strict=True):
        for query, value in zip(study.parts["validation"], found, strict=False):
            put(study, candidate.digest, query, value)
    study.before = candidates[0].digest
    return study, candidates


def put(study, digest, query, value):
    """Give a candidate a value for a query."""
    rollout = Rollout()
    rollout.value = value
    study.rollouts[digest, query.query_id] = rollout


@pytest.mark.parametrize("task", ["paper_retrieval", "doris_mae", "twitter", "set_ops", "relic"])
def test_labels_feedback_and_leaks_mean_the_same_by_relevant(task):
    """With judgements of two kinds, graded ones, those of units, and of a pool."""
    given = split_dev(task, "mini")
    environment = given.environment
    judgements = environment.judgements[environment.headline]
    binary = judgements.qrels if judgements.binary is None else judgements.binary
    labels = relevant_documents(environment.queries, environment)
    told = {
        query.query_id: feedback(query, searched_for_nothing(query, environment), environment)
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
    session = Toolbox(environment.documents, BM25(environment.documents)).open(query)
    return submission_record(session.submit([]), query, environment.documents)


def test_feedback_is_of_training_queries_alone(study, program):
    instrumented = study.instrument(program)
    model = study.student = language_model.connect("offline", statistics=dict).lm
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
def test_every_evaluation_has_the_whole_time_of_a_query(workers, training, monkeypatch):
    ticks = itertools.count()  # a clock that goes on by a second whenever it is read
    clock = SimpleNamespace(monotonic=lambda: float(next(ticks)))
    monkeypatch.setattr(sextant.optimizers.candidate_evaluator, "time", clock)
    study = CandidateEvaluator(
        training,
        make_objective(training.environment),
        workers=workers,
        query_seconds=5000.0,
    )
    program = Timed(Toolbox(training.environment.documents, BM25(training.environment.documents)))
    with dspy.context(lm=language_model.connect("offline", statistics=dict).lm):
        study.student = dspy.settings.lm
        study.evaluate(study.instrument(program), "validation")
    assert (
        len(set(program.deadlines)) == len(study.parts["validation"]) > 3
        and min(program.deadlines) >= 5000.0
    )
    assert DEADLINE.get() == math.inf, "and nothing else has"


class Breaking(Retrieve):
    """Breaks off its second query, while others work."""

    def __init__(self, toolbox):
        super().__init__(toolbox)
        self.begun = itertools.count(1)
        self.ended = []

    def forward(self, *, query):
        if next(self.begun) == 2:
            raise AbortCompilation(RunIncomplete("no more"))
        time.sleep(0.1)
        self.ended.append(query)
        return super().forward(query=query)


@pytest.mark.parametrize("workers", [1, 2])
def test_what_ends_it_is_raised_and_nothing_begins_after_it(workers, training):
    """DSPy's executor has its queries left, and hands none of them out."""
    study = CandidateEvaluator(training, make_objective(training.environment), workers=workers)
    program = Breaking(
        Toolbox(training.environment.documents, BM25(training.environment.documents))
    )
    study.student = language_model.connect("offline", statistics=dict).lm
    with (
        dspy.context(lm=study.student, num_threads=workers),
        pytest.raises(AbortCompilation, match="no more"),
    ):
        study.evaluate(study.instrument(program), "validation")
    study.wait()
    assert len(study.rollouts) == len(program.ended) == 1


def test_a_study_that_was_stopped_begins_nothing(study, program):
    study.stop()
    with (
        dspy.context(lm=language_model.connect("offline", statistics=dict).lm),
        pytest.raises(AbortCompilation, match="interrupted"),
    ):
        study.evaluate(study.instrument(program), "validation")
    assert not study.rollouts


def test_no_key_that_a_provider_repeats_is_in_the_log(tmp_path, monkeypatch):
    key = "not-a-key-of-anybody"
    monkeypatch.setenv("SOME_PROVIDER_KEY", key)
    with pytest.raises(ValueError, match="Incorrect"), _quiet(tmp_path):
        print("it was sent with", key)  # noqa: T201  # as a library does
        logging.getLogger("dspy.teleprompt").warning("it was sent with %s", key)
        raise ValueError(f"Incorrect API key provided: {key}")
    text = (tmp_path / "optimizer.log").read_text(encoding="utf-8")
    assert key not in text
    assert (
        "ValueError: Incorrect API key provided: ***" in text
        and text.count("it was sent with ***") == 2
    )


def test_candidates_that_were_given_up_half_way_count_and_are_not_kept(study):
    count = len(study.parts["validation"])
    plain, better = [0.1] * count, [0.3 + 0.01 * place for place in range(count)]
    # The last was never evaluated: a teacher's.
    values = [plain, better, better[: count // 2], [0.9], []]
    again, candidates = evaluated(study, values)
    assert result_summary.choose_candidate(again) == candidates[1]
    found = result_summary.summarise(again, candidates[1])
    assert found["kept"] == "compiled" and found["candidates"] == 3
    assert found["before"] == {"mean": pytest.approx(0.1), "queries": count}
    means = [row.get("validation") for row in result_summary.list_candidates(again)]
    assert means[3:] == [{"mean": 0.9, "queries": 1}, None]


def test_with_folds_a_candidate_is_judged_by_all_queries_that_it_was_not_made_of(training):
    folded = make_folds(training, 3)
    study = CandidateEvaluator(folded, make_objective(folded.environment))
    plain = study.candidate(dspy.Module(), {}).digest
    study.before = plain
    made = []
    for number in range(3):
        study.fold = number
        made.append(study.candidate(dspy.Module(), {"number": number}))
    for query in folded.train:
        own = folded.fold_of[query.query_id]
        values = {plain: 0.1 * own} | {
            one.digest: 1.0 if own == n else 0.2 * own for n, one in enumerate(made)
        }
        for digest, value in values.items():
            put(study, digest, query, value)
    sizes = [list(folded.fold_of.values()).count(number) for number in range(3)]
    for number, one in enumerate(made):
        others = [n for n in range(3) if n != number for _ in range(sizes[n])]
        assert len(study.values(one.digest, "validation")) == len(others)
        assert study.change(one.digest) == pytest.approx(0.1 * sum(others) / len(others))
    assert len(study.values(plain, "validation")) == len(folded.train)
    assert result_summary.choose_candidate(study) == made[0]
    found = result_summary.summarise(study, made[0])
    assert found["before"]["queries"] == found["after"]["queries"] == sizes[1] + sizes[2]


def test_of_candidates_that_are_as_good_the_program_before_is_kept(study):
    count = len(study.parts["validation"])
    again, candidates = evaluated(study, [[0.5] * count] * 6 + [[0.9] * 3])
    assert min(one.digest for one in candidates) != candidates[0].digest
    best = result_summary.choose_candidate(again)
    assert best == candidates[0] and result_summary.summarise(again, best)["kept"] == "before"
