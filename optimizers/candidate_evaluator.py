"""The side of a compilation that DSPy's optimizers see: a program and a metric.

A call of an instrumented program with the id of a training query searches for that query as in a
run, scores the ranking and returns a small prediction, whoever calls it: an evaluation, a
bootstrap, a sampled trajectory. DSPy's own executor makes the calls. What has to end a compilation
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
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MethodType
from typing import Any

import dspy

from sextant.evals.run_folder import Outcome
from sextant.evals.running.runner import OUTAGE, answer_query
from sextant.evals.scoring.metrics import ranking_of
from sextant.optimizers.request import CompileRequest
from sextant.optimizers.trainset.demonstrations import to_example, trim_traced_call
from sextant.optimizers.trainset.feedback import feedback
from sextant.optimizers.trainset.objective import Objective, QueryScore
from sextant.optimizers.trainset.splits import Trainset
from sextant.programs.compiled import Prompt, get_prompts
from sextant.tools import schemas
from sextant.tools.errors import AbortCompilation, Interrupted, RunIncomplete, SextantError
from sextant.tools.models.client import DEADLINE
from sextant.tools.models.provider_errors import format_refusal, responsible_party
from sextant.tools.platform import number_format
from sextant.tools.records import JsonMapping, JsonObject, Query, Trace, total, usage_from_json

# The key of the objective among a candidate's parameters.
OBJECTIVE = "--instruction"
PAUSE = 15.0  # seconds between lines of progress while no candidate is finished


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
    evaluation: QueryScore = None  # type: ignore[assignment]
    outcome: Outcome | None = None  # where the predictors' calls are wanted; a trace may be large
    outputs: Mapping[str, Sequence[str]] = {}  # output fields, by predictor


class CandidateEvaluator:
    """Evaluates the states of a program on the training queries. Threads share it."""

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
        self._objectives: dict[str, Objective] = {}  # by query id
        usable = set[str]()
        for objective in objectives:
            queries = objective.environment.queries
            self._objectives |= {query.query_id: objective for query in queries}
            usable |= {query.query_id for query in objective.usable(queries)}
        self.parts: dict[str, tuple[Query, ...]] = {}
        self._queries: dict[str, Query] = {}
        for part_name in ("train", "validation"):
            self.parts[part_name] = tuple(
                query for query in getattr(training, part_name) if query.query_id in usable
            )
            self._queries |= {query.query_id: query for query in self.parts[part_name]}
        self._dev = self.parts["train"]  # all queries, with folds
        # The rank up to which a document is well ranked.
        self._cutoff = int(self.objective.metric.partition("@")[2] or 10)
        # Digests of the program as it is, and of the candidate that an optimizer starts from.
        self.before = ""
        self.start = ""
        # Digests of the candidates that an optimizer returned, with their parts that are no prompts.
        self.returned: dict[str, JsonMapping] = {}
        self.candidates: dict[str, Candidate] = {}  # in the order in which they came
        self.fold = 0
        self.fold_of = dict(training.fold_of)
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
        self._said = time.monotonic()
        self._told = set[tuple[str, str]]()  # candidates with the parts that are told

    # -- what an optimizer gets

    def instrument(self, program: Any, parameters: JsonMapping | None = None) -> Any:
        """Have calls of `program`, and of its copies, search for a query and be scored."""

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
        """The number of queries to train on and to validate; with folds, of each, or one more."""
        if not self.fold_of:
            return {part_name: len(queries) for part_name, queries in self.parts.items()}
        query_count = len(self._dev)
        folds = len(set(self.fold_of.values()))
        validation = query_count - math.ceil(query_count / folds)
        return {"train": query_count // folds, "validation": validation, "folds": folds}

    def take_fold(self, fold: int) -> None:
        """Train on one fold from now on, and validate on the others; does nothing without folds."""
        self.fold = fold
        if self.fold_of:
            self.parts = {part_name: self._take({fold}, part_name) for part_name in self.parts}

    def queries(self, digest: str, part_name: str) -> tuple[Query, ...]:
        """Return the queries of a part.

        With folds, "train" is the folds that the candidate was compiled on, and "validation" the others.
        """
        if not self.fold_of:
            return self.parts[part_name]
        is_given = digest in (self.before, self.start)
        return self._take(set() if is_given else self._made_in[digest], part_name)

    def _take(self, folds: set[int], part_name: str) -> tuple[Query, ...]:
        return tuple(
            query
            for query in self._dev
            if (self.fold_of[query.query_id] in folds) == (part_name == "train")
        )

    def scores(self, digest: str, part_name: str, like: str = "") -> dict[str, QueryScore]:
        """Return the student's scores of a candidate on a part, by query id, in the order of the queries.

        `like` is the digest of another candidate, whose part is taken.
        """
        return {
            query.query_id: self.rollouts[digest, query.query_id].evaluation
            for query in self.queries(like or digest, part_name)
            if (digest, query.query_id) in self.rollouts
        }

    def is_whole(self, digest: str, part_name: str) -> bool:
        """Whether a candidate was evaluated on every query of a part."""
        return 0 < len(self.scores(digest, part_name)) == len(self.queries(digest, part_name))

    def values(self, digest: str, part_name: str, like: str = "") -> list[float]:
        """Return the values of `scores`, weighed so that their mean is the mean over tasks."""
        scores = self.scores(digest, part_name, like)
        task_of = {query_id: self._objectives[query_id].environment.task for query_id in scores}
        queries_of = Counter(task_of.values())
        return [
            score.value * (len(scores) / (len(queries_of) * queries_of[task_of[query_id]]))
            for query_id, score in scores.items()
        ]

    def mean(self, digest: str, part_name: str, like: str = "") -> float:
        """Return the mean over tasks of the objective's values, for a candidate with evaluations."""
        values = self.values(digest, part_name, like)
        return sum(values) / len(values)

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
            except AbortCompilation as aborted:
                self.stop(aborted.reason)
                raise
            except Exception as error:
                self.stop(error)
                raise AbortCompilation(error) from error

    def _evaluate(self, program: Any, query_id: str, parameters: JsonMapping) -> Rollout:
        query = self._queries[query_id]
        candidate = self.candidate(program, parameters)
        key = (candidate.digest, query_id)
        counts = self._is_as_in_a_run(program)
        # A list if an optimizer wants the predictors' calls.
        listener = dspy.settings.trace
        if counts and listener is None and key in self.rollouts:
            return self.rollouts[key]
        objective = self._objectives[query_id]
        changes = {"objective": parameters[OBJECTIVE]} if OBJECTIVE in parameters else {}
        outcome, trace = self._answer(
            program, replace(query, **changes), traced=listener is not None
        )
        outcomes = [outcome]
        if twin := objective.twin(query):
            outcomes += self._answer(program, replace(twin, **changes), traced=False)[:1]
        if listener is not None:
            listener += map(trim_traced_call, trace)
        rollout = Rollout(ranking=outcome["ranking"][:10], error=outcome["error"] or "")
        rollout.candidate = candidate.digest
        rollout.evaluation = objective.score(
            query,
            ranking_of(outcome),
            total(usage_from_json(answered["usage"]) for answered in outcomes),
            twin=ranking_of(outcomes[1]) if twin else None,
        )
        rollout.outputs = {
            name: tuple(predictor.signature.output_fields)
            for name, predictor in program.named_predictors()
        }
        if listener is not None:
            rollout.outcome = outcome
        if counts:
            rollout.evaluation = self.rollouts.setdefault(key, rollout).evaluation
            self._tell(candidate.digest)
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

        def search(trace: list[Any]) -> Outcome | Exception:
            # In this context, which belongs to the query.
            DEADLINE.set(time.monotonic() + self._query_seconds)
            with dspy.context(trace=trace if traced else None):
                return answer_query(partial(type(program).forward, program), query, documents)

        # Answers of failed attempts are in the ledger.
        for _ in range(OUTAGE):
            trace: list[Any] = []
            result = contextvars.copy_context().run(search, trace)
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

    def _is_as_in_a_run(self, program: Any) -> bool:
        """Whether the student answers, and neither a teacher nor one of its sampled variants."""
        own_models = [predictor.lm for predictor in program.predictors() if predictor.lm]
        return _identity([*own_models, dspy.settings.lm][0]) == _identity(self.student)

    def _tell(self, digest: str) -> None:
        """Tell the mean over a part once a candidate's last query has been answered."""
        with self._lock:
            for part_name in self.parts:
                key = (digest, part_name)
                if key in self._told or not self.is_whole(*key):
                    continue
                self._told.add(key)
                mean = self.mean(*key)
                count = number_format.queries(len(self.queries(*key)))
                self._say(f"candidate {digest}  {part_name} {mean:.4f} over {count}")
                self._said = time.monotonic()
            if time.monotonic() - self._said > PAUSE:
                self._said = time.monotonic()
                self._say(number_format.plural(len(self.rollouts), "evaluation"))


def _identity(lm: Any) -> tuple[Any, ...]:
    url = lm.transport.url if lm.transport else ""
    return (lm.model, url, lm.kwargs.get("temperature"), lm.kwargs.get("rollout_id"))


def _digest(prompts: Mapping[str, Prompt], parameters: JsonMapping) -> str:
    states = {
        name: [prompt.instructions, prompt.demos, *filter(None, [prompt.descriptions])]
        for name, prompt in prompts.items()
    }
    text = json.dumps([states, parameters], sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]


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
