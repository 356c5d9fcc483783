"""The books of one compilation: every candidate and every evaluation of one, on disk before it is used.

DSPy's optimizers see a program and a metric, and nothing of what is here. `Study.instrument` puts itself between: a
call of the program with the id of a training query searches for that query, scores the ranking, writes the evaluation
down and hands back a small prediction. Whatever a program is called by (an evaluation, a bootstrap, a sampled
trajectory) passes there. Two things of DSPy's are replaced while an optimizer works:

- its executor, which runs slow examples several times, drops everything after ten errors and hides faults of the
  provider. Here each example runs once, as many at a time as asked;
- its traces, which keep all that a predictor was shown. A demonstration made of them has a few passages, cut short.

Resuming is replaying: an optimizer starts again from its first step, with the same seed; evaluations that are on disk
are not made again, and model calls are answered from the ledger (tools/models/answers.py).
"""

import contextvars
import hashlib
import io
import json
import math
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MethodType
from typing import Any, TextIO

import dspy
from dspy.utils.parallelizer import ParallelExecutor
from typing_extensions import TypedDict

from evals.folder import Outcome, usage
from evals.measuring.scoring import ranking_of
from evals.running.runner import OUTAGE, answered
from optimizers.threads import at_once
from optimizers.training.feedback import feedback
from optimizers.training.objective import Objective
from optimizers.training.splits import Training
from programs.parts.compiled import Prompt, plain, prompt_from_json, prompts_of
from tools import disk, forms
from tools.console.wording import queries as counted
from tools.errors import DataError, Halt, Interrupted, RunIncomplete, SextantError
from tools.forms import Amount, Count, Number
from tools.models.call import DEADLINE
from tools.models.forms import CandidateForm
from tools.models.sending.faults import fault, refusal
from tools.models.sending.servers import cleaned
from tools.records import Query, Submission, trace_from_json

SHOWN = 6  # entries that a demonstration keeps of a list; of passages those that the answer names first
PAUSE = 15.0  # seconds between words of progress, where no candidate is through
CUT = 400  # characters of each text in such a list


@dataclass(frozen=True, slots=True)
class Candidate:
    """One state that a program was evaluated in: all that an optimizer can change."""

    digest: str  # eight hex digits over the rest
    prompts: Mapping[str, Prompt]  # by predictor
    parameters: Mapping[str, Any]  # that are tuned, and not prompts


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What one candidate made of one query."""

    candidate: str  # its digest
    query_id: str
    sample: str  # "" of the student as it is; else the teacher or the sampled answers that it was made with
    value: float  # of the objective
    metrics: Mapping[str, float | None]
    calls: int
    tokens: int
    list_usd: float | None
    ranking: tuple[str, ...]  # its first ten documents
    error: str | None
    seconds: float


class EvaluationForm(TypedDict):
    """A line of evaluations.jsonl."""

    candidate: str
    query_id: str
    sample: str
    value: Number
    metrics: dict[str, Number | None]
    calls: Count
    tokens: Count
    list_usd: Amount | None
    ranking: list[str]
    error: str | None
    seconds: Amount


class Rollout(dspy.Prediction):
    """What an optimizer sees of an evaluation: fields for prompts, and beside them what no prompt shall have."""

    # Class attributes, so that DSPy sets them as attributes and not as fields.
    evaluation: Evaluation = None  # type: ignore[assignment]
    outcome: Outcome | None = None  # None where the evaluation was read from disk
    outputs: Mapping[str, Sequence[str]] = {}  # output fields, by predictor


class Study:
    """Evaluates the states of one program on the training queries, and keeps the books. Threads share it."""

    def __init__(
        self,
        folder: Path,
        training: Training,
        objective: Objective,
        *,
        workers: int = 1,
        query_seconds: float = math.inf,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        """`workers` is evaluations at a time, each of which may take `query_seconds`.

        `say` is told when a candidate is through with all of a part.
        """
        self.training = training
        self.objective = objective
        self.parts = {
            "train": tuple(objective.usable(training.train)),
            "validation": tuple(objective.usable(training.validation)),
        }
        self._cutoff = int(objective.metric.partition("@")[2] or 10)  # the place up to which a document is well ranked
        self._queries = {query.query_id: query for part in self.parts.values() for query in part}
        self._workers = workers
        self._query_seconds = query_seconds
        self._stopped = threading.Event()
        self._say = say
        self.folder = folder
        self._lock = threading.Lock()
        self._told = time.monotonic()
        self._student: tuple[Any, ...] = ()
        self.before = self.returned = ""  # the candidates that were started from, and that an optimizer returned
        self.candidates: dict[str, Candidate] = {}  # in the order in which they came
        self._evaluations: dict[tuple[str, str, str], Evaluation] = {}
        self._read()

    # -- what an optimizer gets

    def instrument(self, program: Any, parameters: Mapping[str, Any] | None = None) -> Any:
        """Have calls of `program`, and of its copies, pass through the study."""

        def forward(this: Any, query_id: str, **_: Any) -> Rollout:
            return self._rollout(this, query_id, parameters or {})

        program.forward = MethodType(forward, program)
        return program

    def examples(self, part: str) -> list[dspy.Example]:
        """The queries of "train" or "validation" as DSPy's examples; there is nothing of a judgement in them."""
        return [
            dspy.Example(query_id=query.query_id, objective=query.objective, description=query.text).with_inputs(
                "query_id", "objective", "description"
            )
            for query in self.parts[part]
        ]

    def metric(
        self, gold: Any, pred: Any, trace: Any = None, pred_name: str | None = None, pred_trace: Any = None
    ) -> Any:
        """DSPy's metric: the objective's value; with words beside it for a named predictor, as GEPA asks for them."""
        if pred_name is None:
            return pred.evaluation.value
        return dspy.Prediction(score=pred.evaluation.value, feedback=self._feedback(pred, pred_name))

    def told_metric(self, gold: Any, pred: Any, trace: Any = None) -> dspy.Prediction:
        """The same with words about the whole trajectory, as SIMBA passes them on."""
        return dspy.Prediction(score=pred.evaluation.value, feedback=self._feedback(pred, None))

    def _feedback(self, rollout: Rollout, predictor: str | None) -> str:
        outcome = rollout.outcome
        if outcome is None:
            return ""
        query = self._queries[outcome["query_id"]]
        if query not in self.parts["train"]:
            return ""  # nothing is learnt from the judgements that candidates are chosen by
        fields = rollout.outputs.get(predictor, ()) if predictor else ()
        return feedback(
            query,
            trace_from_json(query.query_id, outcome["trace"]),
            ranking_of(outcome),
            self.training.environment,
            cutoff=self._cutoff,
            error=outcome["error"] or "",
            outputs=fields,
        )

    @contextmanager
    def working(self, student: Any) -> Iterator[None]:
        """DSPy's optimizers work inside, with `student` as the model whose evaluations count."""
        self._student = _identity(student)
        theirs = ParallelExecutor.execute

        def execute(executor: Any, function: Callable[[Any], Any], data: Sequence[Any]) -> list[Any]:
            return self.each(function, data)

        ParallelExecutor.execute = execute
        try:
            yield
        finally:
            ParallelExecutor.execute = theirs

    # -- evaluating

    def evaluate(self, program: Any, part: str) -> list[Evaluation]:
        """One evaluation of `program` as it is for every query of a part, in their order."""
        with dspy.context(trace=None):
            rollouts = self.each(lambda query: program(query_id=query.query_id), self.parts[part])
        return [rollout.evaluation for rollout in rollouts]

    def each(self, function: Callable[[Any], Any], data: Sequence[Any]) -> list[Any]:
        """`function` of every item, `workers` at a time, each once. The first exception ends it, and is raised here."""
        if self._workers == 1 or len(data) < 2:
            return [contextvars.copy_context().run(function, item) for item in data]
        return at_once(function, data, self._workers)

    def stop(self) -> None:
        """Begin no evaluation any more: who asks for one meets Halt."""
        self._stopped.set()

    def _rollout(self, program: Any, query_id: str, parameters: Mapping[str, Any]) -> Rollout:
        """The program's work for one query, scored and written down. Halt when it cannot be done now."""
        if self._stopped.is_set():
            raise Halt(Interrupted())
        query = self._queries[query_id]
        candidate = self.candidate(program, parameters)
        sample = self._sample(program)
        wanted = dspy.settings.trace  # a list where somebody wants the predictors' calls
        known = self._evaluations.get((candidate.digest, query_id, sample))
        if wanted is None and known:
            return _seen(known, None, {})
        outcome, trace = self._answered(program, query, traced=wanted is not None)
        if wanted is not None:
            wanted += [_trimmed(step) for step in trace]
        evaluation = self._evaluated(candidate, query, sample, outcome)
        outputs = {name: tuple(one.signature.output_fields) for name, one in program.named_predictors()}
        return _seen(evaluation, outcome, outputs)

    def _answered(self, program: Any, query: Query, *, traced: bool) -> tuple[Outcome, list[Any]]:
        """The outcome, and DSPy's trace of the predictors' calls.

        What the provider owes, or the query's time was too short for, is asked for again, with the same time: what was
        answered until then is in the ledger.
        """
        documents = self.training.environment.documents
        owed: Exception = RuntimeError()
        for _ in range(OUTAGE):
            trace: list[Any] = []

            def search(trace: list[Any] = trace) -> Outcome | Exception:
                DEADLINE.set(time.monotonic() + self._query_seconds)  # in this context, which is of the query
                with dspy.context(trace=trace if traced else None):
                    return answered(lambda *, query: _own_forward(program, query), query, documents)

            result = contextvars.copy_context().run(search)
            if isinstance(result, dict):
                return result, trace
            owed = result
            if isinstance(owed, SextantError):
                raise Halt(owed)
            if fault(owed) == "refused":
                raise Halt(refusal(owed, str(dspy.settings.lm.model)))
        first = str(owed).strip().partition("\n")[0]
        raise Halt(RunIncomplete(f"the model's provider failed {OUTAGE} times in a row: {first}"))

    def _evaluated(self, candidate: Candidate, query: Query, sample: str, outcome: Outcome) -> Evaluation:
        spent = usage(outcome)
        scored = self.objective.of(query, ranking_of(outcome), spent, failed=outcome["error"] is not None)
        evaluation = Evaluation(
            candidate.digest,
            query.query_id,
            sample,
            scored.value,
            scored.metrics,
            spent.calls,
            scored.tokens,
            spent.list_usd,
            tuple(outcome["ranking"][:10]),
            outcome["error"],
            outcome["seconds"],
        )
        key = (candidate.digest, query.query_id, sample)
        with self._lock:
            if (known := self._evaluations.get(key)) is not None:
                return known
            self._append("evaluations.jsonl", asdict(evaluation))
            self._evaluations[key] = evaluation
            tick = time.monotonic() - self._told > PAUSE
            self._told = time.monotonic() if tick else self._told
        if tick:
            self._say(f"{len(self._evaluations)} evaluations, {self.calls} calls for them")
        if not sample:
            self._report(candidate, query)
        return evaluation

    def _report(self, candidate: Candidate, query: Query) -> None:
        for part, queries in self.parts.items():
            if query in queries and len(found := self.of(candidate.digest, part)) == len(queries):
                mean = sum(evaluation.value for evaluation in found) / len(found)
                self._say(f"candidate {candidate.digest}  {part} {mean:.4f} over {counted(len(found))}")

    # -- the books

    @property
    def calls(self) -> int:
        """Model calls of all evaluations, those of instructions not among them."""
        return sum(evaluation.calls for evaluation in list(self._evaluations.values()))

    def open_log(self) -> TextIO:
        """optimizer.log, to be written on: what DSPy says, and what providers said in between."""
        return _Log(disk.open_file(self.folder / "optimizer.log", "ab"), encoding="utf-8", errors="backslashreplace")

    def log(self, error: BaseException) -> None:
        """Keep what an optimizer broke off with, in optimizer.log."""
        with self.open_log() as log:
            log.write("".join(traceback.format_exception(error)))

    def of(self, digest: str, part: str) -> list[Evaluation]:
        """The student's evaluations of a candidate on a part, in the order of its queries; those that there are."""
        found = (self._evaluations.get((digest, query.query_id, "")) for query in self.parts[part])
        return [evaluation for evaluation in found if evaluation]

    def through(self, part: str) -> list[Candidate]:
        """The candidates that were evaluated on every query of a part."""
        whole = len(self.parts[part])
        return [one for one in list(self.candidates.values()) if len(self.of(one.digest, part)) == whole]

    def candidate(self, program: Any, parameters: Mapping[str, Any]) -> Candidate:
        """The candidate that a program is as it stands; written down when it is new."""
        prompts = prompts_of(program)
        digest = _digest(prompts, parameters)
        with self._lock:
            if digest not in self.candidates:
                candidate = Candidate(digest, prompts, dict(parameters))
                self._append("candidates.jsonl", asdict(candidate))
                self.candidates[digest] = candidate
            return self.candidates[digest]

    def _sample(self, program: Any) -> str:
        """Which other model, or numbered sample, a program is called with; "" where it is the student as in a run."""
        own = next((predictor.lm for predictor in program.predictors() if predictor.lm is not None), None)
        identity = _identity(own or dspy.settings.lm)
        return "" if identity == self._student else " ".join(map(str, identity))

    def _append(self, name: str, row: Mapping[str, Any]) -> None:
        path = self.folder / name
        try:
            disk.append_line(path, json.dumps(row, ensure_ascii=False).encode("utf-8", "backslashreplace"))
        except OSError as error:
            reason = f"{path}: {error.strerror}; what was evaluated before is safe; make room"
            raise Halt(RunIncomplete(reason)) from None

    def _read(self) -> None:
        """Take up what earlier sittings wrote. A torn last line is an evaluation still to be made."""
        for name, take in (("candidates.jsonl", self._take_candidate), ("evaluations.jsonl", self._take_evaluation)):
            path = self.folder / name
            for number, line in enumerate(disk.read_lines(path, repair=True), start=1):
                try:
                    take(line)
                except ValueError as error:
                    raise DataError(
                        f"{path}, line {number} is damaged ({error}); remove the line to have it made again"
                    ) from None

    def _take_candidate(self, line: bytes) -> None:
        row = forms.read_whole(CandidateForm, line)
        prompts = {name: prompt_from_json(one) for name, one in row["prompts"].items()}
        if row["digest"] != _digest(prompts, row["parameters"]):
            raise ValueError("it was edited")
        self.candidates[row["digest"]] = Candidate(row["digest"], prompts, row["parameters"])

    def _take_evaluation(self, line: bytes) -> None:
        row = forms.read(EvaluationForm, line)
        known = {name: row[name] for name in Evaluation.__slots__}
        evaluation = Evaluation(**known | {"ranking": tuple(row["ranking"]), "value": float(row["value"])})
        self._evaluations[evaluation.candidate, evaluation.query_id, evaluation.sample] = evaluation


class _Log(io.TextIOWrapper):
    """A text file in which no key is kept: a provider's words may repeat one."""

    def write(self, text: str) -> int:
        """Write `text`, blackened."""
        return super().write(cleaned(text))


def _identity(lm: Any) -> tuple[Any, ...]:
    """What tells apart the models that a program may be called with."""
    settings = lm.kwargs
    return lm.model, lm.wire.url if lm.wire else "", settings.get("temperature"), settings.get("rollout_id")


def _digest(prompts: Mapping[str, Prompt], parameters: Mapping[str, Any]) -> str:
    """Eight hex digits over all that an optimizer can change."""
    states = {name: [prompt.instructions, prompt.demos] for name, prompt in prompts.items()}
    text = json.dumps([states, parameters], sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def _own_forward(program: Any, query: Query) -> Submission:
    submission: Submission = type(program).forward(program, query=query)
    return submission


def _seen(evaluation: Evaluation, outcome: Outcome | None, outputs: Mapping[str, Any]) -> Rollout:
    rollout = Rollout(ranking=list(evaluation.ranking), error=evaluation.error or "")
    rollout.evaluation, rollout.outcome, rollout.outputs = evaluation, outcome, outputs
    return rollout


def _trimmed(step: Any) -> tuple[Any, dict[str, Any], dspy.Prediction]:
    """A predictor's traced call as plain data: long lists and texts of what it was shown are cut."""
    predictor, inputs, outputs = step
    answer = plain(outputs)
    named = set(_texts(answer))
    asked = {name: plain(value) for name, value in inputs.items()}
    # What is a text by itself, such as the description, stays whole.
    shown = {name: value if isinstance(value, str) else _cut(value, named) for name, value in asked.items()}
    # DSPy draws among demonstrations by a digest of their pickle, in which it matters whether two equal texts are one
    # object: a parser's cache would decide. Read anew, none are.
    shown, answer = json.loads(json.dumps([shown, answer]))
    return predictor, shown, dspy.Prediction(**answer)


def _cut(value: Any, named: set[str]) -> Any:
    """`value` without the most of long lists and texts: the passages that are named, else the latest of a list."""
    if isinstance(value, str):
        return value[:CUT]
    if isinstance(value, Mapping):
        return {key: _cut(one, named) for key, one in value.items()}
    if not isinstance(value, list):
        return value
    if all(isinstance(one, Mapping) and {"id", "text"} <= one.keys() for one in value):
        chosen = sorted(value, key=lambda one: one["id"] not in named)[:SHOWN]  # stable: else as they were shown
        return [_cut(one, named) for one in value if one in chosen]
    return [_cut(one, named) for one in value[-SHOWN:]]


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _texts(one)
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one)
