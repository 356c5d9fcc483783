"""`--dry-run`: the calls that a run would make, their cost, and how long it would take.

The program runs as it is on two of the pending queries, those at a third and two thirds by length,
with nothing sent. The engine without a model answers in the model's place; bm25 stands in for
retrievers that would send requests or load weights, which changes which documents are read and
hardly how long they are. Prompts are counted by OpenAI's o200k_base.

The means of these queries stand for all; if calls grow with the pool, a query counts as much as
its pool is large. How much a model writes and thinks, how fast it is, and how far it goes on
searching is taken from earlier answers of the program with this model, or assumed; every assumption
is printed.

Left out: the cost of an index (annotations, embeddings), input that a provider has cached, and
retries.
"""

import contextvars
import json
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from math import ceil, inf
from pathlib import Path
from typing import Any, NamedTuple

import dspy
import numpy as np
from numpy.typing import NDArray

from environments.base import Environment
from evals import run_folder
from evals.run_descriptions import describe_system, describe_task
from evals.running.evaluate import LoadedRun, connect, load_run, make_system
from evals.running.identity import code_identity, run_conditions
from evals.running.ready import PreparedRun
from evals.running.request import SYSTEMS, Request, SharedRequest
from evals.running.resolve import ResolvedRequest, try_construct
from evals.running.runner import answer_query
from programs.base import Program
from tools import retrievers, session
from tools.corpus import Corpus
from tools.errors import FAULTS, DataError, RunIncomplete
from tools.files import sextant_home
from tools.models import call_context, context_window, offline_engine
from tools.models.adapter import Adapter
from tools.models.call_context import LastAnswer
from tools.models.language_model import ConnectedModel
from tools.models.prices import Price
from tools.number_format import plural, queries
from tools.pool_kinds import read_kind
from tools.records import JsonMapping, JsonObject, Query, Usage, total, usage_from_json
from tools.result_table import ResultTable, render_terminal
from tools.retrievers.base import Retriever
from tools.retrievers.lexical.bm25 import BM25
from tools.text import TermStatistics

LEVELS = ("low", "expected", "high")
Range = NDArray[np.float64]  # a figure that is not known yet, at the three levels

ENOUGH = 20  # earlier answers from which on they are believed

# Assumed of a model that has not answered before.
# Tokens of an answer, as a factor of those of the engine without a model, which is terse.
ANSWER = np.array([0.5, 1.5, 4.0])
THINKING = np.array([0.0, 500, 2000])  # tokens of a reasoning model before it answers
PACE = 60.0  # tokens a second; half of it and twice as much in the range
DELAY = 1.0  # seconds before the first token
PROMPTS = np.array([0.8, 1.0, 1.3])  # other queries, notes and tokenizers: a prompt's tokens
UNCACHED = np.array([0.5, 1.0, 1.0])  # share of a prompt that a server has to read
REPAIRS = 1.1  # answers that have to be asked for again: a tenth at most
REPEATED = np.array([1.0, 1.0, REPAIRS]), "for answers asked for again"
NONE = np.zeros(3)
# Of a corpus at most, for a rehearsal beside a run
_REHEARSED_DOCUMENTS = 50_000
MESSAGE = 4  # tokens of a message in addition to its text, as OpenAI counts them


class CallTokens(NamedTuple):
    """Tokens of a call."""

    prompt: int
    answer: int
    most: float = inf  # of a good answer, by its signature

    def written(self, factor: float) -> float:
        """Return the tokens of an answer that is `factor` times as long."""
        return min(factor * self.answer, max(self.most, self.answer))


class RehearsedRun(NamedTuple):
    """The rehearsed calls of a program, query by query."""

    program: Program
    queries: Sequence[Query]
    calls: Sequence[Sequence[CallTokens]] = ()  # of each query
    notes: Sequence[str] = ()  # what was otherwise than in the run
    # By how much a query's calls may be fewer or more, and the reason.
    factors: tuple[Range, str] = REPEATED

    @property
    def all_calls(self) -> list[CallTokens]:
        """The calls of all queries together."""
        return [call for calls in self.calls for call in calls]


class CallForecast(NamedTuple):
    """The calls to come in a run."""

    calls: float  # of a query
    seconds: float  # between the answers to two of them, with all workers at work


class AnswerAssumptions(NamedTuple):
    """Assumptions about a model's answers."""

    answers: Range  # tokens of an answer, as a factor of those of the rehearsal
    thinking: Range  # tokens before an answer
    seconds: Range  # a call
    notes: tuple[str, ...] = ()  # where that comes from


class EstimatedTotals(NamedTuple):
    """Estimated totals of all pending queries."""

    calls: Range
    input_tokens: Range
    output_tokens: Range
    list_usd: Range | None  # at list price; None where that is not known
    hours: Range  # with all workers at work


def render_estimate(estimate: JsonObject, subject_lines: Sequence[str] = ()) -> str:
    """Return an estimate as text for a terminal.

    `subject_lines` name the subject of the estimate, if it is no run of a task.
    """
    before = f"; {estimate['answered']} answered before" if estimate["answered"] else ""
    by = f"; rehearsed on {', '.join(estimate['rehearsed'])}" if estimate["rehearsed"] else ""
    pending = f"{queries(estimate['queries'])} to be asked{before}{by}"
    headings = [
        "dry run: nothing was sent",
        *(subject_lines or (describe_task(estimate), describe_system(estimate), pending)),
    ]
    named = (("calls", "calls"), ("tokens in", "input_tokens"), ("tokens out", "output_tokens"))
    rows = []
    for name, key in named:
        values = [f"{value:,.0f}" for value in estimate[key].values()]
        rows.append([name, *values])
    usd = [f"${value:,.4f}" for value in (estimate["list_usd"] or {}).values()]
    rows += [
        ["list price", *(usd or ("price unknown", "", ""))],
        ["time", *map(_clock, estimate["hours"].values())],
    ]
    table = ResultTable("", ["to expect", "low", "likely", "high"], rows)
    return render_terminal([*headings, table, *_footings(estimate), *estimate["notes"]])


def _footings(estimate: JsonObject) -> list[str]:
    lines = []
    if estimate["largest_prompt"]:
        takes = (
            "whose window is not known"
            if estimate["window"] is None
            else f"which takes {estimate['window']:,}"
        )
        lines.append(
            f"largest prompt: {plural(estimate['largest_prompt'], 'token')} (o200k_base), for a model {takes}"
        )
    if estimate["price"] is not None:
        lines.append(f"price: {estimate['price']}")
    elif estimate["lm"] == "offline":
        lines.append("offline asks no model: the tokens are what a model would be asked")
    lines += [_describe_budget(budget, estimate["queries"]) for budget in estimate["budgets"]]
    return lines


def _describe_budget(budget: JsonObject, query_count: int) -> str:
    words = {
        "yes": "will do",
        "no": "will not do",
        "perhaps": "may not do",
        "unknown": "cannot be told",
    }
    line = f"{budget['option']} {budget['value']:g} {words[budget['enough']]}"
    if budget["enough"] != "yes" and budget["lasts"] is not None:
        line += f"; it is likely to last for {budget['lasts']} of {queries(query_count)}"
    return line


def _clock(hours: float) -> str:
    seconds = round(3600 * hours)
    if seconds < 90:
        return f"{seconds} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{hours:.1f} h"


def forecast(request: Request, opening: Callable[[Request], LoadedRun] = load_run) -> JsonObject:
    """Return the estimate of a run's model calls, in the format of --json.

    Nothing is sent or written.
    """
    opened = opening(request)
    resolved = opened.resolved
    environment = opened.environment
    model = connect(request, opened.terms, environment.documents, seed=request.seed)
    config = run_conditions(resolved, environment, None, model)
    before = find_existing_run(opened, config)
    answered = run_folder.read_outcomes(before) if before else {}
    if request.again:
        answered = {query_id: row for query_id, row in answered.items() if row["error"] is None}
    spent = total(usage_from_json(row["usage"]) for row in answered.values())
    pending = [
        query for query in request.share(environment.queries) if query.query_id not in answered
    ]
    rehearsal = rehearse(resolved, environment, model, _choose(pending))
    factors = _factors(resolved, rehearsal)
    earlier = _earlier_runs(request, model)
    return {
        **{name: config[name] for name in ("task", "data", "split", "program")},
        "retriever": str(resolved.retriever),
        "answered": len(answered),
        **extrapolate(request, model, rehearsal._replace(factors=factors), pending, spent, earlier),
    }


def _earlier_runs(request: Request, model: ConnectedModel) -> Path:
    return request.runs / "task" / run_folder.system_slug(request.program_label, model.name)


def expect_calls(ready: PreparedRun, pending: Sequence[Query]) -> CallForecast | None:
    """Return how many calls a pending query of a run makes, and how long they take.

    None where that would run code of a user's, or take long, or cannot be told.
    """
    request = ready.resolved.request
    environment = ready.environment
    small = len(environment.documents) <= _REHEARSED_DOCUMENTS
    if not pending or request.lm == "offline" or request.program not in SYSTEMS or not small:
        return None
    try:
        rehearsal = rehearse(ready.resolved, environment, ready.model, _choose(pending))
    except FAULTS:
        return None
    earlier = _earlier_runs(request, ready.model)
    seconds = _habits(request, ready.model, rehearsal, earlier).seconds[1]
    calls = len(rehearsal.all_calls) / len(rehearsal.queries)
    workers = min(request.at_once, len(pending))
    return CallForecast(calls, float(seconds) / workers)


def extrapolate(
    request: SharedRequest,
    model: ConnectedModel,
    rehearsal: RehearsedRun,
    pending: Sequence[Query],
    spent: Usage,
    earlier: Path,
) -> JsonObject:
    """Return the estimate for all `pending` queries from a rehearsal, its assumptions, and
    whether budgets suffice.

    Earlier answers are those of runs whose folders are called `earlier` with a digest. The seconds
    and tokens that `spent` counts.
    """
    habits = _habits(request, model, rehearsal, earlier)
    (factors, reason) = rehearsal.factors
    price = None if request.lm == "offline" else model.price
    workers = min(request.at_once, max(1, len(pending)))
    notes = [*rehearsal.notes, *habits.notes]
    figures = _multiply(rehearsal, pending, habits, price, factors, workers)
    if rehearsal.all_calls:
        calls = (
            f"calls: {factors[0]:.2g} to {factors[2]:.2g} times those of the rehearsal, {reason}"
        )
        notes.insert(
            0,
            f"{calls}; tokens of a prompt: 20 % less to 30 % more, for other queries and "
            f"tokenizers",
        )
    if request.lm == "offline":
        figures = figures._replace(list_usd=NONE)
    elif rehearsal.all_calls:
        notes.append(
            f"{plural(workers, 'request')} at a time; no retries, and no input from the provider's cache"
        )
    return {
        "dry_run": True,
        "lm": request.lm,
        "queries": len(pending),
        "rehearsed": [query.query_id for query in rehearsal.queries],
        **{name: _levels(name, figure) for name, figure in figures._asdict().items()},
        "largest_prompt": max((call.prompt for call in rehearsal.all_calls), default=0),
        "window": getattr(model.lm, "window", None),
        "price": None if price is None else str(price),
        "budgets": _check_budgets(request, figures, len(pending), spent),
        "notes": notes,
    }


def _levels(name: str, figure: Range | None) -> dict[str, float] | None:
    digits = {"list_usd": 6, "hours": 4}.get(name)
    pairs = () if figure is None else zip(LEVELS, figure.tolist(), strict=True)
    return {level: round(value, digits) for level, value in pairs} or None


def find_existing_run(opened: LoadedRun, conditions: run_folder.Config) -> Path | None:
    """Return the folder of the run under these `run_conditions`, if it exists.

    Retrievers are not opened, so their complete names are not compared. To digest the sources takes
    time, so that is done last.
    """
    pool = opened.resolved.pool
    request = opened.resolved.request
    conditions = conditions | {"pool": pool and pool.config((), opened.environment)}

    def comparable(config: run_folder.Config) -> Any:
        pool = config["pool"] and [read_kind(config), config["pool"]["size"]]
        named = {"retriever": config["retriever"]["name"], "pool": pool}
        return json.loads(json.dumps({key: config[key] for key in conditions} | named))

    for path in sorted(run_folder.run_path(request.runs, conditions).parent.glob("*/config.json")):
        with suppress(
            DataError, LookupError
        ):  # a neighbour that is damaged, or of a version before
            config = run_folder.read_config(path.parent)
            is_same = comparable(config) == comparable(conditions)
            if is_same and not run_folder.find_changed(path.parent, config):
                identity = code_identity(opened.resolved, opened.environment)
                if identity == {key: config[key] for key in identity}:
                    return path.parent
    return None


def _choose(pending: Sequence[Query]) -> list[Query]:
    ordered = sorted(
        pending, key=lambda query: (len(query.candidates or ()), len(query.text), query.query_id)
    )
    return [
        ordered[position]
        for position in sorted({len(ordered) // 3, len(ordered) * 2 // 3})
        if ordered
    ]


def _habits(
    request: SharedRequest,
    model: ConnectedModel,
    rehearsal: RehearsedRun,
    earlier: Path,
) -> AnswerAssumptions:
    if request.lm == "offline":
        return AnswerAssumptions(np.ones(3), NONE, NONE)
    calls = rehearsal.all_calls
    mean = sum(call.answer for call in calls) / max(1, len(calls))
    if habits := _read_earlier(earlier, str(model.lm.model)):
        answer_count, seconds, tokens, thinking, streamed, first, rate = habits
        factors = np.array([1 / 1.5, 1, 1.5])
        takes = f"{seconds:.2f} s"
        took = factors * seconds
        if streamed >= ENOUGH and rate:
            takes = f"{first:.2f} s to the first token, then {rate:,.0f} tokens a second"
            took = first + factors * tokens / rate
        note = f"answers as in {plural(answer_count, 'earlier call')} of this program with this model: {takes}, "
        note += (
            f"{tokens:.0f} tokens of which {thinking:.0f} are thinking; a third less to half more"
        )
        return AnswerAssumptions(
            factors * (tokens - thinking) / max(1.0, mean), factors * thinking, took, (note,)
        )
    effort = model.settings.get("reasoning_effort")
    reasons = effort != "none" and (effort is not None or model.settings.get("temperature") is None)
    thought = THINKING if reasons else NONE
    paces = np.array([2 * PACE, PACE, PACE / 2])
    times = "{:g}, {:g} and {:g}".format(*ANSWER)
    note = (
        f"assumed of answers: {times} times the {mean:,.0f} tokens that the engine without a "
        f"model writes"
    )
    note += ", and {:.0f}, {:,.0f} and {:,.0f} of thinking".format(*THINKING) if reasons else ""
    written = _count_written(calls, ANSWER) / max(1, len(calls)) + thought
    speed = model.lm.caller.meter.speed
    if speed.read and speed.write:
        prompt = sum(call.prompt for call in calls) / max(1, len(calls))
        seconds = UNCACHED * PROMPTS * prompt / speed.read + written / speed.write
        pace = f"measured before: {model.name} {speed}; up to half of a prompt may be in its cache"
        return AnswerAssumptions(ANSWER, thought, seconds, (note, pace))
    pace = f"assumed of a call: {DELAY:g} s and {PACE:g} tokens a second, half to twice as fast"
    return AnswerAssumptions(ANSWER, thought, (DELAY * PACE + written) / paces, (note, pace))


def _count_written(calls: Sequence[CallTokens], factors: Range) -> Range:
    """Return the tokens of all answers at the three levels, each answer within its limit."""
    counts = []
    for factor in factors.tolist():
        count = 0.0
        for call in calls:
            count += call.written(factor)
        counts.append(count)
    return np.array(counts)


def _read_earlier(runs: Path, model: str) -> tuple[Any, ...] | None:
    """Return the number of answers of the model in runs RUNS/TASK/NAME-..., and mean seconds,
    tokens, thinking.

    Then the number of those that were streamed, their mean seconds to the first token, and tokens a
    second from there.
    """
    statement = (
        "SELECT count(*), avg(seconds), avg(json_extract(usage, '$.output_tokens')),"
        " avg(coalesce(json_extract(usage, '$.reasoning_tokens'), 0)), count(first), avg(first),"
        " total(json_extract(usage, '$.output_tokens') * (first IS NOT NULL)) / total(seconds - "
        "first)"
        " FROM calls WHERE fault = '' AND model = ? AND instr(run, ?) > 0"
        " AND coalesce(json_extract(usage, '$.unmetered'), 0) = 0"
    )
    try:
        # Not read-only: such a connection leaves empty files beside it.
        file = (runs.parents[1] / "answers.sqlite3").resolve()
        with closing(sqlite3.connect(f"{file.as_uri()}?mode=rw", uri=True)) as opened:
            if "first" not in [name for _, name, *_ in opened.execute("PRAGMA table_info(calls)")]:
                statement = statement.replace("first", "NULL")  # a file of an earlier version
            row = opened.execute(statement, (model, f"/{runs.name}-")).fetchone()
    except sqlite3.Error:  # no file, or the run will say what is wrong with it
        return None
    return tuple(row) if row[0] >= ENOUGH else None


def _multiply(
    rehearsal: RehearsedRun,
    pending: Sequence[Query],
    habits: AnswerAssumptions,
    price: Price | None,
    factors: Range,
    workers: int,
) -> EstimatedTotals:
    """Project the calls of the rehearsal to all queries; the calls of a query come one after
    another.
    """
    program = rehearsal.program
    calls = rehearsal.all_calls
    weights = {query.query_id: 1.0 for query in pending}
    if program.pooled:  # a query counts as much as its pool is large
        weights = {
            query.query_id: max(1.0, len((query.candidates or set()) - query.excluded))
            for query in pending
        }
    share = sum(weights.values()) / max(
        1.0, sum(weights[query.query_id] for query in rehearsal.queries)
    )
    # Prompts are shorter where there are fewer calls.
    shrinks = np.array([factors[0] if program.cumulative else 1.0, 1.0, 1.0])
    call_counts = factors * (share * len(calls))
    answers = _count_written(calls, habits.answers) + habits.thinking * len(calls)
    usd = None
    if price is not None:
        # Some models take more a token for long prompts, so calls are priced one by one.
        costs = []
        for level in range(len(LEVELS)):
            thinking = int(np.rint(habits.thinking[level]))
            costs_of_calls = []
            for call in calls:
                prompt = round(call.prompt * PROMPTS[level])
                output = round(call.written(habits.answers[level])) + thinking
                costs_of_calls.append(price.of(prompt, 0, output, thinking))
            costs.append(sum(costs_of_calls))
        usd = factors * shrinks * share * np.array(costs)
    longest = factors * max(map(len, rehearsal.calls), default=0)
    return EstimatedTotals(
        calls=np.array([int(call_counts[0]), round(call_counts[1]), ceil(call_counts[2])]),
        input_tokens=factors * shrinks * PROMPTS * (share * sum(call.prompt for call in calls)),
        output_tokens=answers * factors * share,
        list_usd=usd,
        hours=habits.seconds * np.maximum(call_counts / workers, longest) / 3600,
    )


def _factors(resolved: ResolvedRequest, rehearsal: RehearsedRun) -> tuple[Range, str]:
    """Return by how much the calls of a query may be fewer or more than rehearsed, and why."""
    counts = list(map(len, rehearsal.calls))
    program = rehearsal.program
    default = resolved.values.get("pool", 0)
    ceilings = [
        program.most_calls(len(query.candidates or ()) or default) for query in rehearsal.queries
    ]
    most = max((ceiling for ceiling in ceilings if ceiling is not None), default=None)
    if most is None or not sum(counts):
        return REPEATED
    mean = sum(counts) / len(counts)
    most = min(most, resolved.limits.get("max_calls", most))
    # More than the ceiling is possible where a small window makes a program read in several calls.
    factors = [
        min(program.least_calls, min(counts) / mean),
        1.0,
        REPAIRS * max(most, *counts) / mean,
    ]
    return np.array(factors), "because a model may end early or repeat itself"


def _check_budgets(
    request: SharedRequest,
    figures: EstimatedTotals,
    pending: int,
    spent: Usage,
) -> list[JsonObject]:
    # What earlier sittings used counts; a time limit is for each sitting.
    needs: dict[str, tuple[Range | None, float]] = {
        "budget_usd": (figures.list_usd, spent.paid_usd or 0.0),
        "budget_calls": (figures.calls, spent.calls),
        "budget_tokens": (
            figures.input_tokens + figures.output_tokens,
            spent.input_tokens + spent.output_tokens,
        ),
        "time_limit": (figures.hours * 3600, 0.0),
    }
    verdicts = []
    for name, (need, spent_before) in needs.items():
        if (limit := getattr(request, name)) is None:
            continue
        enough = "unknown"
        lasts = None
        remaining = limit - spent_before
        if need is not None:
            low, expected, high = need.tolist()
            enough = "yes" if high <= remaining else "no" if low > remaining else "perhaps"
            lasts = min(pending, int(pending * remaining / expected)) if expected else None
        verdicts.append(
            {
                "option": f"--{name.replace('_', '-')}",
                "value": limit,
                "enough": enough,
                "lasts": lasts,
            }
        )
    return verdicts


def rehearse(
    resolved: ResolvedRequest,
    environment: Environment,
    model: ConnectedModel,
    queries: Sequence[Query],
) -> RehearsedRun:
    """Ask the program these queries, and `model` nothing. RunIncomplete if all of them fail."""
    plain = try_construct(resolved.constructor, resolved.values)
    program = (
        plain if isinstance(plain, Program) else Program(plain.toolbox, depth=0)
    )  # of which nothing is known
    if not queries:
        return RehearsedRun(program, ())
    environment = replace(environment, queries=tuple(queries))
    index = BM25(environment.documents, sextant_home())
    notes = []

    def build(spec: retrievers.RetrieverSpec) -> Retriever:
        if not any(
            part.sends or part.loads_weights or part.needs_lens
            for _, part in retrievers.iter_classes(spec)
        ):
            return retrievers.build(spec, environment.documents, sextant_home())
        sends = retrievers.find_api_parts(spec) or retrievers.find_lenses(spec)
        addition = ", and what it sends for its index and searches comes on top" if sends else ""
        notes.append(f"{spec} is not opened here; bm25 takes its place{addition}")
        return index

    retriever = build(resolved.retriever)
    named_retrievers = {name: build(spec) for name, spec in resolved.others.items()}
    if resolved.pool:
        environment = resolved.pool.add_to(
            environment, [build(spec) for spec in resolved.pool.parts]
        )
    system = make_system(resolved, environment, retriever, named_retrievers)
    rehearsal = StandInModel(index.statistics, model).watch(
        system, environment.queries, environment.documents
    )
    return rehearsal._replace(program=program, notes=[*notes, *rehearsal.notes])


class StandInModel(session.SharedOnDeepcopy, dspy.LM):
    """Takes the real model's place, with its window and interface: counts calls, and answers as `offline` does.

    Their usage is booked on the query, so that its limits hold.
    """

    def __init__(self, statistics: Callable[[], TermStatistics], model: ConnectedModel) -> None:
        self.rules = offline_engine.OfflineEngine(statistics)
        super().__init__(offline_engine.VERSION, cache=False, num_retries=0, engine=self.rules)
        real = model.lm
        self.window = getattr(real, "window", None)
        self.limit = getattr(real, "limit", None)
        # Where the real model takes tool calls in the protocol's form, so does this one.
        self.tools = getattr(real, "tools", None) or getattr(real, "wire", None)
        self.calls: list[CallTokens] = []  # of the last query

    def watch(
        self,
        system: Any,
        queries: Sequence[Query],
        documents: Corpus,
    ) -> RehearsedRun:
        """Return the calls that a program makes for the queries.

        RunIncomplete if all of them fail.
        """
        calls = []
        failed = []
        for query in queries:
            self.calls = []
            with dspy.context(lm=self, adapter=Adapter(), trace=[]):
                outcome = contextvars.copy_context().run(answer_query, system, query, documents)
            if isinstance(outcome, Exception):
                raise outcome
            failed += [f"query {query.query_id}: {outcome['error']}"] if outcome["error"] else []
            calls.append(self.calls)
        if len(failed) == len(calls) > 0:
            raise RunIncomplete(
                f"the queries of the rehearsal failed, so nothing can be told: {failed[0]}"
            )
        return RehearsedRun(system, queries, calls, failed)

    def __call__(self, prompt: Any = None, *, messages: Any = None, **kwargs: Any) -> Any:
        """Answer a predictor."""
        context_window.check_room(messages or (), "prompt")  # as the real model does
        self._allow()
        outputs = super().__call__(prompt, messages=messages, **kwargs)
        first = outputs[0] if outputs else ""
        text = str(first.get("text") or "") if isinstance(first, dict) else str(first)
        self._book(messages or [{"content": prompt}], [], [text])
        call_context.update(answer=LastAnswer(text))
        return outputs

    def converse(self, messages: Sequence[JsonMapping], tools: Sequence[JsonMapping]) -> JsonObject:
        """Answer a turn of a conversation with tools, by the program's rules for the same
        fields of a signature.
        """
        self._allow()
        outputs = self.rules.fill().values()
        thought = "\n".join(value for value in outputs if isinstance(value, str))
        calls = [
            {
                "id": f"call_{len(messages)}_{position}",
                "name": call.name,
                "arguments": json.dumps(call.args),
            }
            for output in outputs
            if isinstance(output, dspy.ToolCalls)
            for position, call in enumerate(output.tool_calls)
        ]
        self._book(
            messages,
            [json.dumps(list(tools))],
            [thought, *(value for call in calls for value in call.values())],
        )
        return {"content": thought, "tool_calls": calls, "finish": "tool_calls"}

    def _allow(self) -> None:
        if payer := session.current():
            payer.allow_call()

    def _book(
        self,
        messages: Sequence[JsonMapping],
        extra_texts: Sequence[str],
        written: Sequence[str],
    ) -> None:
        requested = [
            tool_call["function"]
            for message in messages
            for tool_call in message.get("tool_calls", ())
        ]
        texts = [*extra_texts, *(str(message["content"]) for message in messages)]
        texts += [
            text for function in requested for text in (function["name"], function["arguments"])
        ]
        call = CallTokens(
            MESSAGE * len(messages) + sum(map(context_window.tokens, texts)),
            sum(map(context_window.tokens, written)),
            call_context.current().answer_tokens or inf,
        )
        self.calls.append(call)
        if payer := session.current():
            payer.charge(Usage(calls=1, input_tokens=call.prompt, output_tokens=call.answer))
