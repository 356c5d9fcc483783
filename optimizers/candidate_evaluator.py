"""The side of a compilation that DSPy's optimizers see: a program and a metric, whose evaluations
are logged.

A call of an instrumented program with the id of a training query searches for that query, scores
the ranking, logs the evaluation and returns a small prediction, whoever calls it: an evaluation, a
bootstrap, a sampled trajectory. While an optimizer works, DSPy's executor is replaced, because it
runs slow examples several times, drops everything after ten errors and hides faults of the
provider. Demonstrations made of traces have a few passages, cut short.

Resuming is replaying: an optimizer starts again from its first step, with the same seed;
evaluations that are on disk are not made again, and model calls are answered from the ledger
(tools/models/storage/response_cache.py).
"""

import contextvars
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MethodType
from typing import Any

import dspy

from sextant.evals.run_folder import Outcome
from sextant.evals.running.runner import OUTAGE, answer_query
from sextant.evals.scoring.metrics import ranking_of
from sextant.optimizers.evaluation_log import Candidate, Evaluation, EvaluationLog
from sextant.optimizers.request import CompileRequest
from sextant.optimizers.trainset.demonstrations import to_example, trim_traced_call
from sextant.optimizers.trainset.feedback import feedback
from sextant.optimizers.trainset.objective import Objective
from sextant.optimizers.trainset.splits import Trainset
from sextant.tools import schemas
from sextant.tools.errors import AbortCompilation, Interrupted, RunIncomplete, SextantError
from sextant.tools.models.client import DEADLINE
from sextant.tools.models.provider_errors import format_refusal, responsible_party
from sextant.tools.platform import number_format
from sextant.tools.process_changes import EXECUTE, while_running
from sextant.tools.records import JsonMapping, JsonObject, Query, Trace, total, usage_from_json
from sextant.tools.session import set_contextvar

# The key of the objective among a candidate's parameters.
OBJECTIVE = "--instruction"
PAUSE = 15.0  # seconds between lines of progress while no candidate is finished


class Rollout(dspy.Prediction):
    """An evaluation as an optimizer sees it.

    Prediction fields may enter prompts; class attributes must not.
    """

    # Class attributes, so that DSPy sets them as attributes and not as fields.
    evaluation: Evaluation = None  # type: ignore[assignment]
    outcome: Outcome | None = None  # None where the evaluation was read from disk
    outputs: Mapping[str, Sequence[str]] = {}  # output fields, by predictor


class CandidateEvaluator(EvaluationLog):
    """Evaluates the states of a program on the training queries, and logs them. Threads share it."""

    def __init__(
        self,
        folder: Path,
        training: Trainset,
        *objectives: Objective,  # one a task, all of one metric
        workers: int = 1,  # evaluations at a time
        query_seconds: float = math.inf,  # limit of one evaluation
        say: Callable[[str], None] = lambda line: None,  # is given lines of progress
        record: Callable[[], None] = lambda: None,  # is called before an evaluation is logged
    ) -> None:
        queries_by_part = {"train": training.train, "validation": training.validation}
        self._objectives: dict[str, Objective] = {}
        self.tasks: dict[str, str] = {}
        usable = set[str]()
        for objective in objectives:
            environment = objective.environment
            for query in environment.queries:
                self._objectives[query.query_id] = objective
                self.tasks[query.query_id] = environment.task
            usable.update(query.query_id for query in objective.usable(environment.queries))
        usable_by_part = {}
        for part_name, part_queries in queries_by_part.items():
            usable_by_part[part_name] = tuple(
                query for query in part_queries if query.query_id in usable
            )
        super().__init__(folder, usable_by_part)
        self.fold_of = dict(training.fold_of)
        self.training = training
        self.objective = objectives[0]
        # The rank up to which a document is well ranked.
        self._cutoff = int(self.objective.metric.partition("@")[2] or 10)
        self._queries = {
            query.query_id: query for part_queries in self.parts.values() for query in part_queries
        }
        self._workers = workers
        self._query_seconds = query_seconds
        self._stopped = threading.Event()
        self._say = say
        self._record = record
        self._said = time.monotonic()
        self._whole_parts_said = set[tuple[str, str]]()
        self._student: tuple[Any, ...] = ()

    # -- what an optimizer gets

    def instrument(self, program: Any, parameters: JsonMapping | None = None) -> Any:
        """Have calls of `program`, and of its copies, pass through the study."""

        def forward(this: Any, query_id: str, **_: Any) -> Rollout:
            return self._roll_out(this, query_id, parameters or {})

        program.forward = MethodType(forward, program)
        return program

    def examples(self, part_name: str) -> list[dspy.Example]:
        """Return the queries of "train" or "validation" as DSPy's examples; there is nothing of a judgement in them."""
        return [to_example(query) for query in self.parts[part_name]]

    def metric(
        self,
        gold: Any,
        pred: Any,
        trace: Any = None,
        pred_name: str | None = None,
        pred_trace: Any = None,
    ) -> Any:
        """DSPy's metric: the objective's value; with words for a predictor, as GEPA asks, or "" for all of them."""
        if pred_name is None:
            return pred.evaluation.value
        return dspy.Prediction(
            score=pred.evaluation.value, feedback=self._feedback(pred, pred_name)
        )

    def _feedback(self, rollout: Rollout, predictor: str) -> str:
        outcome = rollout.outcome
        if (
            outcome is None
            or (query := self._queries[outcome["query_id"]]) not in self.parts["train"]
        ):
            return ""  # nothing is learnt from the judgements that candidates are chosen by
        return feedback(
            query,
            schemas.build_dataclass(Trace, {"query_id": query.query_id, **outcome["trace"]}),
            ranking_of(outcome),
            self._objectives[query.query_id].environment,
            cutoff=self._cutoff,
            error=outcome["error"] or "",
            outputs=rollout.outputs.get(predictor, ()),
        )

    @contextmanager
    def working(self, student: Any) -> Iterator[None]:
        """DSPy's optimizers work inside, with `student` as the model whose evaluations count."""
        self._student = _identity(student)
        with while_running(), set_contextvar(EXECUTE, self.each):
            yield

    def values(
        self,
        digest: str,
        part_name: str,
        like: str = "",
    ) -> list[float]:
        """Return the values of `evaluations_of`, weighed so that their mean is the mean over tasks."""
        evaluations = self.evaluations_of(digest, part_name, like)
        tasks = Counter(self.tasks[evaluation.query_id] for evaluation in evaluations)
        values = []
        for evaluation in evaluations:
            of_task = tasks[self.tasks[evaluation.query_id]]
            weight = len(evaluations) / (len(tasks) * of_task)
            values.append(evaluation.value * weight)
        return values

    def mean(
        self,
        digest: str,
        part_name: str,
        like: str = "",
    ) -> float:
        """Return the mean over tasks of the objective's values, for a candidate with evaluations."""
        values = self.values(digest, part_name, like)
        return sum(values) / len(values)

    def change(self, digest: str) -> float:
        """Return the gain of a candidate over the program before, on its own validation queries."""
        return self.mean(digest, "validation") - self.mean(self.before, "validation", digest)

    # -- evaluating

    def evaluate(self, program: Any, part_name: str) -> list[Evaluation]:
        """Evaluate `program` as it is on every query of a part; return the evaluations in their order."""
        with dspy.context(trace=None):
            rollouts = self.each(
                lambda query: program(query_id=query.query_id), self.parts[part_name]
            )
        return [rollout.evaluation for rollout in rollouts]

    def each(self, function: Callable[[Any], Any], data: Sequence[Any]) -> list[Any]:
        """Return `function` of every item, `workers` at a time, each once; raise the first exception."""
        with ThreadPoolExecutor(self._workers) as pool:
            futures = [pool.submit(contextvars.copy_context().run, function, item) for item in data]
            for first in wait(futures, return_when=FIRST_EXCEPTION).done:
                # Calls in flight are paid for, and logged when they are answered.
                if first.exception():
                    pool.shutdown(cancel_futures=True)
                    first.result()
        return [future.result() for future in futures]

    def stop(self) -> None:
        """Start no further evaluation: a request for one raises AbortCompilation."""
        self._stopped.set()

    def _roll_out(
        self,
        program: Any,
        query_id: str,
        parameters: JsonMapping,
    ) -> Rollout:
        """Run the program on a query, score and log it. AbortCompilation if that is impossible now."""
        if self._stopped.is_set():
            raise AbortCompilation(Interrupted())
        query = self._queries[query_id]
        candidate = self.candidate(program, parameters)
        sample = self._sample(program)
        # A list if an optimizer wants the predictors' calls.
        listener = dspy.settings.trace
        evaluation = self._evaluations.get((candidate.digest, query_id, sample))
        outcome = None
        if listener is not None or evaluation is None:
            twin = self._objectives[query_id].twin(query)
            changes = {"objective": parameters[OBJECTIVE]} if OBJECTIVE in parameters else {}
            outcome, trace = self._answer(
                program, replace(query, **changes), traced=listener is not None
            )
            twin_outcome = (
                self._answer(program, replace(twin, **changes), traced=False)[0] if twin else None
            )
            if listener is not None:
                listener += map(trim_traced_call, trace)
            evaluation = self._book(candidate, query, sample, outcome, twin_outcome)
        rollout = Rollout(ranking=evaluation.ranking, error=evaluation.error or "")
        rollout.evaluation = evaluation
        rollout.outcome = outcome
        rollout.outputs = {
            name: tuple(predictor.signature.output_fields)
            for name, predictor in program.named_predictors()
        }
        return rollout

    def _answer(
        self,
        program: Any,
        query: Query,
        *,
        traced: bool,
    ) -> tuple[Outcome, list[Any]]:
        """Return the outcome and DSPy's trace; retried if the provider fails, or the time is too short."""
        problem = Exception()
        documents = self._objectives[query.query_id].environment.documents
        # Answers of failed attempts are in the ledger.
        for _ in range(OUTAGE):
            trace: list[Any] = []

            def search(trace: list[Any] = trace) -> Outcome | Exception:
                # In this context, which belongs to the query.
                DEADLINE.set(time.monotonic() + self._query_seconds)
                with dspy.context(trace=trace if traced else None):
                    return answer_query(partial(type(program).forward, program), query, documents)

            result = contextvars.copy_context().run(search)
            if isinstance(result, dict):
                return result, trace
            if isinstance(result, SextantError):
                raise AbortCompilation(result)
            if responsible_party(result) == "refused":
                raise AbortCompilation(format_refusal(result, str(dspy.settings.lm.model)))
            problem = result
        first = str(problem).strip().partition("\n")[0]
        raise AbortCompilation(
            RunIncomplete(f"the model's provider failed {OUTAGE} times in a row: {first}")
        )

    def _book(
        self,
        candidate: Candidate,
        query: Query,
        sample: str,
        outcome: Outcome,
        twin_outcome: Outcome | None,
    ) -> Evaluation:
        spent = total(
            usage_from_json(answered["usage"]) for answered in (outcome, twin_outcome) if answered
        )
        objective = self._objectives[query.query_id]
        twin = ranking_of(twin_outcome) if twin_outcome else None
        scored = objective.score(query, ranking_of(outcome), spent, twin=twin)
        evaluation = Evaluation(
            candidate=candidate.digest,
            query_id=query.query_id,
            sample=sample,
            value=scored.value,
            metrics=scored.metrics,
            calls=spent.calls,
            tokens=scored.tokens,
            list_usd=spent.list_usd,
            ranking=outcome["ranking"][:10],
            error=outcome["error"],
            seconds=outcome["seconds"],
        )
        self._record()
        recorded = self.add(evaluation)
        if recorded is evaluation:
            self._tell(candidate.digest, query, sample)
        return recorded

    def _tell(
        self,
        digest: str,
        query: Query,
        sample: str,
    ) -> None:
        with self._lock:
            due = time.monotonic() - self._said > PAUSE
            self._said = time.monotonic() if due else self._said
        if due:
            evaluations = number_format.plural(len(self._evaluations), "evaluation")
            calls = number_format.plural(self.calls, "call")
            self._say(f"{evaluations}, {calls} for them")
        if not sample:
            self._tell_whole_parts(digest, query)

    def _tell_whole_parts(self, digest: str, query: Query) -> None:
        """Tell the mean over each part of which a candidate's last query has been answered."""
        for part_name, queries in self.parts.items():
            if query not in queries or not self.is_whole(digest, part_name):
                continue
            with self._lock:
                # The threads of the last two queries may both come here.
                is_said = (digest, part_name) in self._whole_parts_said
                self._whole_parts_said.add((digest, part_name))
            if not is_said:
                mean = self.mean(digest, part_name)
                count = number_format.queries(len(queries))
                self._say(f"candidate {digest}  {part_name} {mean:.4f} over {count}")

    def _sample(self, program: Any) -> str:
        """Return the program's other model, or its numbered sample; "" for the student as in a run."""
        own_model = next(
            (predictor.lm for predictor in program.predictors() if predictor.lm is not None), None
        )
        identity = _identity(own_model or dspy.settings.lm)
        return "" if identity == self._student else " ".join(map(str, identity))


def _identity(lm: Any) -> tuple[Any, ...]:
    settings = lm.kwargs
    return (
        lm.model,
        lm.wire.url if lm.wire else "",
        settings.get("temperature"),
        settings.get("rollout_id"),
    )


@dataclass(slots=True)
class TeleprompterContext:
    """The inputs of a teleprompter."""

    study: CandidateEvaluator
    inputs: Any  # sextant.optimizers.setup.CompilationInputs: the plan, the models, and what makes programs
    request: CompileRequest
    student: Any  # the program, instrumented
    options: JsonMapping
    teacher_lm: Any | None  # that makes demonstrations in the student's place

    @property
    def teacher_settings(self) -> JsonObject:
        """DSPy's form of the teacher."""
        return {} if self.teacher_lm is None else {"lm": self.teacher_lm}


@dataclass(frozen=True, slots=True)
class TeleprompterResult:
    """The result of a teleprompter: a program to validate, and its parts that are no prompts."""

    program: Any
    form: JsonMapping = field(default_factory=dict)  # fields of sextant.programs.compiled.Compiled
