"""The side of a compilation that DSPy's optimizers see: a program and a metric.

A call of an instrumented program with the id of a training query searches for that query as in a
run, scores the ranking and returns a small prediction, whoever calls it: an evaluation, a
bootstrap, a sampled trajectory. DSPy's own executor makes the calls. An exception that ends a compilation
passes through it, because `AbortCompilation` is no Exception; a call that it makes again, because
it is slow, gets the answers of the first (tools/models/storage/ledger.py). Demonstrations made of
traces have a few passages, cut short.

Nothing is kept here for a later sitting: an optimizer then starts again from its first step, with
the same seed, and the ledger has the answers.
"""

import contextvars
import hashlib
import json
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import fmean
from types import MethodType
from typing import Any

import dspy

from sextant.evals.run_folder import Outcome
from sextant.evals.running.runner import OUTAGE, answer_query
from sextant.evals.scoring.metrics import ranking_of
from sextant.optimizers.trainset.demonstrations import to_example, trim_traced_call
from sextant.optimizers.trainset.feedback import feedback
from sextant.optimizers.trainset.objective import Objective
from sextant.optimizers.trainset.splits import Trainset
from sextant.programs.compiled import Prompt, get_prompts
from sextant.tools.errors import AbortCompilation, Interrupted, SextantError
from sextant.tools.models.client import DEADLINE
from sextant.tools.models.provider_errors import format_refusal, responsible_party
from sextant.tools.platform.number_format import plural
from sextant.tools.records import JsonMapping, Query, usage_from_json

# The key of the objective among a candidate's parameters.
OBJECTIVE = "--instruction"
PARTS = ("train", "validation")
_SAMPLING = ("temperature", "rollout_id")  # of a model, by which its answers differ
SAID = 20  # evaluations between lines of progress; candidates.jsonl has the means in the end


@dataclass(frozen=True, slots=True)
class Candidate:
    """One state that a program was evaluated in: all that an optimizer can change."""

    digest: str  # eight hex digits over the rest
    prompts: Mapping[str, Prompt]  # by predictor
    parameters: JsonMapping  # that are tuned, and not prompts


class Rollout(dspy.Prediction):
    """An evaluation as an optimizer sees it.

    Prediction fields may enter prompts; class attributes must not.
    """

    # Class attributes, so that DSPy sets them as attributes and not as fields.
    candidate: str = ""  # its digest
    value: float = 0.0  # of the objective
    outcome: Outcome | None = None  # where the predictors' calls are wanted; a trace may be large


class CandidateEvaluator:
    """Evaluates the states of a program on the training queries. Threads share it.

    An undivided dev split is trained on in fold 0 and validated in fold 1.
    """

    def __init__(
        self,
        training: Trainset,
        *objectives: Objective,  # one a task, all of one metric
        workers: int = 1,  # evaluations at a time
        query_seconds: float = math.inf,  # limit of one evaluation
        say: Callable[[str], None] = lambda line: None,  # is given lines of progress
    ) -> None:
        self.training = training
        self.objective = objectives[0]
        # By query id.
        self._objectives = {
            query.query_id: objective
            for objective in objectives
            for query in objective.environment.queries
        }
        usable = {
            query.query_id
            for objective in objectives
            for query in objective.usable(objective.environment.queries)
        }
        # In the order in which they are trained on.
        dev = {query.query_id: query for query in (*training.train, *training.validation)}
        self._queries = {query_id: query for query_id, query in dev.items() if query_id in usable}
        trained = {query.query_id for query in training.train}
        self._fold_of = training.fold_of or {
            query_id: int(query_id not in trained) for query_id in dev
        }
        self.folds = sorted({*training.fold_of.values()}) or [0]  # to train on in turn
        # That is trained on now; at first none of several, so that all queries validate.
        self.fold = -1 if training.fold_of else 0
        # The rank up to which a document is well ranked.
        self._cutoff = int(self.objective.metric.partition("@")[2] or 10)
        # Digests of the program as it is, and of the candidate that an optimizer starts from.
        self.before = ""
        self.start = ""
        # Digests of the candidates that an optimizer returned, with their parts that are no prompts.
        self.returned: dict[str, JsonMapping] = {}
        self.candidates: dict[str, Candidate] = {}  # in the order in which they came
        # The folds in which an optimizer evaluated a candidate, by its digest.
        self._made_in: dict[str, set[int]] = {}
        # By candidate and query: the student's, as in a run.
        self.rollouts: dict[tuple[str, str], Rollout] = {}
        self.student: Any = None  # the model whose evaluations count
        self._workers = workers
        self._room = threading.Semaphore(workers)
        self._query_seconds = query_seconds
        self._ending: Exception | None = None  # why nothing is evaluated any more
        self._lock = threading.Lock()
        self._say = say

    # -- what an optimizer gets

    def instrument(self, program: Any, parameters: JsonMapping | None = None) -> Any:
        """Have calls of `program`, and of its copies, search for a query and be scored."""

        def forward(this: Any, query_id: str, **_: Any) -> Rollout:
            return self._roll_out(this, query_id, parameters or {})

        program.forward = MethodType(forward, program)
        return program

    @property
    def parts(self) -> dict[str, tuple[Query, ...]]:
        """The queries of "train" and "validation" in the present fold."""
        return {part_name: self.queries(part_name) for part_name in PARTS}

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
        """DSPy's metric: the objective's value; with words if `pred_name` is not None, as GEPA asks."""
        if pred_name is None:
            return pred.value
        return dspy.Prediction(score=pred.value, feedback=self._feedback(pred))

    def _feedback(self, rollout: Rollout) -> str:
        outcome = rollout.outcome
        # Nothing is learnt from the judgements that candidates are chosen by.
        if outcome is None or self._fold_of[outcome["query_id"]] != self.fold:
            return ""
        return feedback(
            self._queries[outcome["query_id"]],
            outcome,
            self._objectives[outcome["query_id"]].environment,
            cutoff=self._cutoff,
        )

    # -- candidates and their values

    def candidate(self, program: Any, parameters: JsonMapping) -> Candidate:
        """Return the present state of a program as a candidate."""
        prompts = get_prompts(program)
        digest = _digest(prompts, parameters)
        with self._lock:
            self._made_in.setdefault(digest, set()).add(self.fold)
            return self.candidates.setdefault(digest, Candidate(digest, prompts, dict(parameters)))

    @property
    def sizes(self) -> dict[str, int]:
        """The number of queries to train on and to validate; with folds, of both together."""
        if len(self.folds) > 1:
            return {"dev": len(self._queries), "folds": len(self.folds)}
        return {part_name: len(queries) for part_name, queries in self.parts.items()}

    def queries(self, part_name: str, digest: str = "") -> tuple[Query, ...]:
        """Return the queries of "train" or "validation", in the present fold or of a candidate.

        With folds, "train" is the folds that the candidate was compiled on, and "validation" the others.
        """
        trained = {self.fold}
        if digest and len(self.folds) > 1:
            is_given = digest in (self.before, self.start)
            trained = set() if is_given else self._made_in[digest]
        return tuple(
            query
            for query_id, query in self._queries.items()
            if (self._fold_of[query_id] in trained) == (part_name == "train")
        )

    def values(self, digest: str, part_name: str, like: str = "") -> dict[str, float]:
        """Return the student's values of a candidate on a part, by query id, in the order of the queries.

        `like` is the digest of another candidate, whose part is taken.
        """
        return {
            query.query_id: self.rollouts[digest, query.query_id].value
            for query in self.queries(part_name, like or digest)
            if (digest, query.query_id) in self.rollouts
        }

    def is_whole(self, digest: str, part_name: str) -> bool:
        """Whether a candidate was evaluated on every query of a part."""
        return 0 < len(self.values(digest, part_name)) == len(self.queries(part_name, digest))

    def mean(self, digest: str, part_name: str, like: str = "") -> float:
        """Return the mean over tasks of the objective's values, for a candidate with evaluations."""
        of_task: dict[str, list[float]] = {}
        for query_id, value in self.values(digest, part_name, like).items():
            of_task.setdefault(self._objectives[query_id].environment.task, []).append(value)
        return fmean(map(fmean, of_task.values()))

    def change(self, digest: str) -> float:
        """Return the gain of a candidate over the program before, on its own validation queries."""
        return self.mean(digest, "validation") - self.mean(self.before, "validation", digest)

    # -- evaluating

    def evaluate(self, program: Any, part_name: str) -> str:
        """Evaluate `program` as it is on every query of a part; return the candidate's digest."""
        evaluator = dspy.Evaluate(
            devset=self.examples(part_name), metric=self.metric, num_threads=self._workers
        )
        with dspy.context(trace=None):
            _, rollout, _ = evaluator(program).results[0]
        return str(rollout.candidate)

    def stop(self, reason: Exception | None = None) -> None:
        """Start no further evaluation: a request for one raises AbortCompilation."""
        self._ending = self._ending or reason or Interrupted()

    def wait(self) -> None:
        """Wait for the evaluations in flight: they are paid for."""
        for _ in range(self._workers):
            self._room.acquire()
        # For those that an executor still has, which end at once.
        self._room.release(self._workers)

    def _roll_out(self, program: Any, query_id: str, parameters: JsonMapping) -> Rollout:
        """Run the program on a query and score it. AbortCompilation if that is impossible now."""
        with self._room:
            if self._ending:
                raise AbortCompilation(self._ending)
            try:
                return self._evaluate(program, query_id, parameters)
            except (AbortCompilation, Exception) as error:
                reason = error.reason if isinstance(error, AbortCompilation) else error
                self.stop(reason)
                raise AbortCompilation(reason) from error

    def _evaluate(self, program: Any, query_id: str, parameters: JsonMapping) -> Rollout:
        query = self._queries[query_id]
        candidate = self.candidate(program, parameters)
        key = (candidate.digest, query_id)
        counts = self._is_as_in_a_run(program)
        # A list if an optimizer wants the predictors' calls.
        listener = dspy.settings.trace
        if counts and listener is None and key in self.rollouts:
            return self.rollouts[key]
        if OBJECTIVE in parameters:
            query = replace(query, objective=parameters[OBJECTIVE])
        trace: list[Any] = []
        outcome = self._answer(program, query, trace)
        rollout = Rollout(ranking=outcome["ranking"][:10], error=outcome["error"] or "")
        rollout.candidate = candidate.digest
        rollout.value = self._objectives[query_id].score(
            query, ranking_of(outcome), usage_from_json(outcome["usage"])
        )
        if listener is not None:
            listener += map(trim_traced_call, trace)
            rollout.outcome = outcome
        if counts:
            rollout.value = self.rollouts.setdefault(key, rollout).value
            if len(self.rollouts) % SAID == 0:
                evaluations = plural(len(self.rollouts), "evaluation")
                self._say(f"{evaluations}, of {plural(len(self.candidates), 'candidate')}")
        return rollout

    def _answer(self, program: Any, query: Query, trace: list[Any]) -> Outcome:
        """Return the outcome, and fill DSPy's trace; retried if the provider fails, or the time is too short."""
        documents = self._objectives[query.query_id].environment.documents

        def search() -> Outcome | Exception:
            # In this context, which belongs to the query.
            DEADLINE.set(time.monotonic() + self._query_seconds)
            with dspy.context(trace=trace):
                return answer_query(partial(type(program).forward, program), query, documents)

        # Answers of failed attempts are in the ledger.
        for _ in range(OUTAGE):
            trace.clear()
            result = contextvars.copy_context().run(search)
            if isinstance(result, dict):
                return result
            refused = responsible_party(result) == "refused"
            problem = format_refusal(result, str(dspy.settings.lm.model)) if refused else result
            if isinstance(problem, SextantError):
                break
        raise AbortCompilation(problem)

    def _is_as_in_a_run(self, program: Any) -> bool:
        """Whether the student answers, and neither a teacher nor one of its sampled variants."""
        own_models = [predictor.lm for predictor in program.predictors() if predictor.lm]
        answering, student = (
            (lm.model, lm.transport and lm.transport.url, *map(lm.kwargs.get, _SAMPLING))
            for lm in ([*own_models, dspy.settings.lm][0], self.student)
        )
        return answering == student


def _digest(prompts: Mapping[str, Prompt], parameters: JsonMapping) -> str:
    states = {
        name: [prompt.instructions, prompt.demos, prompt.descriptions]
        for name, prompt in prompts.items()
    }
    text = json.dumps([states, parameters], sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]


@dataclass(slots=True)
class TeleprompterContext:
    """The inputs of a teleprompter."""

    study: CandidateEvaluator
    inputs: Any  # sextant.optimizers.setup.CompilationInputs: the plan, the models, and what makes programs
    student: Any  # the program, instrumented
    teacher_lm: Any | None  # that makes demonstrations in the student's place

    @property
    def request(self) -> Any:
        """The CompileRequest."""
        return self.inputs.request

    @property
    def seed(self) -> int:
        """The seed of the optimizer, as NumPy takes it."""
        return int(self.request.seed % 2**32)


@dataclass(frozen=True, slots=True)
class TeleprompterResult:
    """The result of a teleprompter: a program to validate, and its parts that are no prompts."""

    program: Any
    form: JsonMapping = field(default_factory=dict)  # fields of sextant.programs.compiled.Compiled
