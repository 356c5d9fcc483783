"""`--dry-run`: what a command would ask of its model and what that would cost, told without asking it.

The program runs as it is on two of the queries that are owed: its own prompts, demonstrations, limits and the real
model's window, over the same documents. The engine without a model (tools/models/offline/engine.py) answers in the
model's place. Every prompt is counted by OpenAI's o200k_base (tools/models/prompting/context.py), and the means are
taken for all queries. The two are those at one third and two thirds of the queries by length. For programs whose calls
grow with the pool, a query counts as much as its pool is large.

Nothing is sent: a retriever that would send texts, or load a model's weights, is replaced by bm25 here, which changes
which documents are read and hardly how long they are. What is not measured is assumed, and every assumption is in the
printout: how much a model writes and thinks, how fast it is, and how far it goes on searching. Where the answers of
earlier runs of the program with this model lie beside the runs, their length and their seconds are taken.

Left out: what an index costs (annotations, embeddings), input that a provider has cached, and retries.
"""

import contextvars
import dataclasses
import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import dspy
from rich.markup import escape

from evals import folder as run_folder
from evals.running import parameters, pools
from evals.running.engines import lexical
from evals.running.request import WORKERS, Request
from evals.running.resolve import Resolved
from evals.running.runner import answered
from evals.showing.headings import system_line, task_line
from evals.showing.tables import empty, plain, printed
from tools import retrievers, session
from tools.console.command import put_out
from tools.console.wording import queries
from tools.errors import DataError, RunIncomplete
from tools.home import home
from tools.models.offline import engine as offline
from tools.models.offline.rules import RULES
from tools.models.prompting import context
from tools.models.prompting.adapter import ANSWERED, Adapter, Answered
from tools.records import Query, Usage, total
from tools.session import Toolbox

if TYPE_CHECKING:
    from agents.react import Turn
    from environments.base import Environment
    from evals.folder import Config
    from tools.corpus import Corpus
    from tools.models.lm import Model
    from tools.models.prices import Price
    from tools.retriever import Retriever
    from tools.retrievers.spec import Spec
    from tools.text import TermStatistics

SAMPLE = 2  # queries that are rehearsed
MESSAGE = 4  # tokens of a message beside its text, as OpenAI counts them
ENOUGH = 20  # earlier answers from which on they are believed

# Assumed of a model that has not answered before.
ANSWER = (0.5, 1.5, 4.0)  # tokens of an answer: times those of the engine without a model, which is terse
THINKING = (0, 500, 2000)  # tokens of a reasoning model before it answers
PACE = 60.0  # tokens a second; half of it and twice as much in the range
DELAY = 1.0  # seconds before the first token
PROMPTS = (0.8, 1.0, 1.3)  # other queries, notes and tokenizers: a prompt's tokens


# Programs whose calls a model decides -> the least and the most of them: as a share of those of the rehearsal, and as a
# function of the parameters and of the size of the pool (docs/decisions/programs.md). Of all others, calls follow from
# those two.
Ceiling = Callable[[Mapping[str, Any], int], int]
DECIDED: dict[str, tuple[float, Ceiling]] = {
    "multihop": (0.5, lambda given, pool: 2 * given["hops"] + bool(given["rerank"])),
    "notes": (0.5, lambda given, pool: 2 * given["hops"] + bool(given["rerank"])),
    "planner": (0.5, lambda given, pool: given["rounds"] * (given["parts"] + 1)),
    "verifier": (0.5, lambda given, pool: given["rounds"] * (ceil(given["verify"] / given["batch"]) + 2) - 1),
    "subtask": (0.2, lambda given, pool: 1 + pool * (given["requirements"] or FACETS)),
    "react": (0.3, lambda given, pool: given["steps"]),
}
FACETS = 30  # the most that a query of BIRCO has (Table 4), where nothing limits the requirements
REPAIRS = 1.1  # answers that have to be asked for again: a tenth at most
GROWING = ("react",)  # each prompt has all before it in it, so that half of the calls are a quarter of the tokens
POOLED = ("tournament", "rank", "score", "reason", "subtask")  # calls grow with the pool


class Range(NamedTuple):
    """A figure that is not known yet."""

    low: float
    expected: float
    high: float

    def json(self, digits: int = 0) -> dict[str, float]:
        """As --json prints it."""
        return {name: round(value, digits or None) for name, value in self._asdict().items()}


@dataclass(slots=True)
class Call:
    """Tokens of one call of the rehearsal."""

    prompt: int
    answer: int


@dataclass(slots=True)
class Estimate:
    """What a command would ask, of all queries that it would answer."""

    about: dict[str, Any]  # task, data, split, program, retriever, lm
    owed: int  # queries
    done: int  # queries that the run folder has answered already
    spent: Usage  # on those
    rehearsed: list[str]  # query ids
    calls: Range
    tokens_in: Range
    tokens_out: Range
    usd: Range | None  # at list price; None where that is not known
    hours: Range
    largest: int  # tokens of the largest prompt
    window: int | None  # what the model takes
    price: "Price | None"
    budgets: list[dict[str, Any]] = field(default_factory=list)  # option, its value, whether it will do
    notes: list[str] = field(default_factory=list)  # assumptions, and what was otherwise than in the run

    def json(self) -> dict[str, Any]:
        """As --json prints it."""
        return {
            "dry_run": True,
            **self.about,
            "queries": self.owed,
            "answered": self.done,
            "rehearsed": self.rehearsed,
            "calls": self.calls.json(),
            "input_tokens": self.tokens_in.json(),
            "output_tokens": self.tokens_out.json(),
            "list_usd": self.usd and self.usd.json(6),
            "hours": self.hours.json(4),
            "largest_prompt": self.largest,
            "window": self.window,
            "price": None if self.price is None else str(self.price),
            "budgets": self.budgets,
            "notes": self.notes,
        }


def estimate(
    resolved: Resolved,
    environment: "Environment",
    model: "Model",
    config: "Config",
) -> Estimate:
    """What the command would ask of `model`, which is sent nothing. No run folder is made.

    `config` is the run's, but for the complete names of its retrievers, which only building them would tell.
    """
    request = resolved.request
    known = _answered(request.runs, config)
    if request.again:
        known = {query_id: one for query_id, one in known.items() if one["error"] is None}
    owed = [query for query in environment.queries if query.query_id not in known]
    spent = total(run_folder.usage(outcome) for outcome in known.values())
    chosen = _chosen(owed)
    notes: list[str] = []
    rehearsal = _rehearse(resolved, environment, model, chosen, notes)
    about = {name: config[name] for name in ("task", "data", "split", "program")}
    about |= {"retriever": str(resolved.retriever), "lm": request.lm}
    habits = _habits(request, model, [call for calls in rehearsal for call in calls], notes)
    price = None if request.lm == "offline" else model.price
    projected = _projection(resolved, owed, chosen, rehearsal, habits)
    first, last = projected.notes(request.program, request.lm)
    many = projected.many
    made = Estimate(
        about=about,
        owed=len(owed),
        done=len(known),
        spent=spent,
        rehearsed=[query.query_id for query in chosen],
        calls=Range(int(many.low), round(many.expected), ceil(many.high)),
        tokens_in=projected.tokens_in,
        tokens_out=projected.tokens_out,
        usd=Range(0, 0, 0) if request.lm == "offline" else projected.usd(price),
        hours=projected.hours,
        largest=max((call.prompt for call in projected.calls), default=0),
        window=getattr(model.lm, "window", None),
        price=price,
        notes=[*first, *notes, *last],
    )
    return dataclasses.replace(made, budgets=_budgets(request, made, spent))


def _answered(runs: Path, config: "Config") -> Mapping[str, Any]:
    """The outcomes in the folder of the same run, by query; none where there is none.

    The complete names of its retrievers are not compared.
    """
    wanted = _comparable(config)
    for path in sorted(run_folder.place(runs, config).parent.glob("*/config.json")):
        with suppress(DataError):  # a neighbour that is damaged
            if _comparable(run_folder.read_config(path.parent)) == wanted:
                return run_folder.read_outcomes(path.parent)
    return {}


def _comparable(config: "Config") -> dict[str, Any]:
    left_out = (run_folder.PROVENANCE, "pool")
    same = {name: value for name, value in config.items() if name not in left_out}
    same["retriever"] = config["retriever"]["name"]
    plain_values: dict[str, Any] = json.loads(json.dumps(same))
    return plain_values


def _chosen(owed: Sequence[Query]) -> list[Query]:
    """Those at one third and two thirds by the size of the pool and the length of the text."""
    ordered = sorted(owed, key=lambda query: (len(query.candidates or ()), len(query.text), query.query_id))
    places = sorted({len(ordered) * place // (SAMPLE + 1) for place in range(1, SAMPLE + 1)})
    return [ordered[place] for place in places if place < len(ordered)]


def _rehearse(
    resolved: Resolved,
    environment: "Environment",
    model: "Model",
    chosen: Sequence[Query],
    notes: list[str],
) -> list[list[Call]]:
    """The calls that the program makes for each of the chosen queries."""
    if not chosen:
        return []
    environment = dataclasses.replace(environment, queries=tuple(chosen))
    index = lexical(environment)

    def build(spec: "Spec") -> "Retriever":
        if retrievers.words_only(spec):
            return retrievers.build(spec, environment.documents, home())
        note = f"{spec} is not opened here; bm25 takes its place"
        if retrievers.apis(spec) or retrievers.lenses(spec):
            note += ", and what it sends for its index and searches comes on top"
        notes.append(note)
        return index

    retriever = build(resolved.retriever)
    others = {name: build(spec) for name, spec in resolved.others.items()}
    if resolved.pool:
        environment = pools.pooled(environment, resolved.pool, [build(part) for part in resolved.pool.parts])
    depth = resolved.request.k or environment.depth
    limits = parameters.session_limits(resolved.limits, depth)
    toolbox = Toolbox(environment.documents, retriever, others=others, limits=limits)
    system = resolved.constructor(toolbox, depth=depth, **resolved.values)
    if resolved.compiled:
        from programs.parts.ensembles import assembled

        system = assembled(resolved.compiled, system)
    stand_in = StandIn(index.statistics, model)
    asked = [_asked(stand_in, system, query, environment.documents) for query in environment.queries]
    failed = [error for _, error in asked if error]
    if len(failed) == len(asked):
        raise RunIncomplete(f"the queries of the rehearsal failed, so nothing can be told: {failed[0]}")
    notes += failed
    return [calls for calls, _ in asked]


def _asked(stand_in: "StandIn", system: Any, query: Query, documents: "Corpus") -> tuple[list[Call], str]:
    """The calls for one query, and why it failed, if it did."""
    stand_in.made = []
    with dspy.context(lm=stand_in, adapter=Adapter(), trace=[]):
        outcome = contextvars.copy_context().run(answered, system, query, documents)
    if isinstance(outcome, Exception):
        raise outcome
    return stand_in.made, f"query {query.query_id}: {outcome['error']}" if outcome["error"] else ""


class StandIn(dspy.LM):
    """In the real model's place: it has that one's window and interface, counts what it is asked, and makes up answers.

    The answers are those of the engine without a model. What they used is booked on the query, so that its limits hold.
    """

    def __init__(self, statistics: "Callable[[], TermStatistics]", model: "Model") -> None:
        engine = offline.OfflineEngine(statistics)
        engines: dict[str, Any] = {"engine": engine, "async_engine": offline.AsyncOfflineEngine(engine)}
        super().__init__(offline.VERSION, cache=False, num_retries=0, **engines)
        real = model.lm
        self.window = getattr(real, "window", None)
        # Where the real model takes tool calls in the protocol's form, so does this one.
        self.tools = getattr(real, "tools", None) or getattr(real, "wire", None)
        self.made: list[Call] = []
        self._statistics = statistics

    def __call__(self, prompt: Any = None, *, messages: Any = None, **kwargs: Any) -> Any:
        """A predictor's call."""
        self._allow()
        outputs = super().__call__(prompt, messages=messages, **kwargs)
        asked = messages or [{"content": prompt}]
        first = outputs[0] if outputs else ""
        text = str(first.get("text") or "") if isinstance(first, dict) else str(first)
        self._book(sum(MESSAGE + context.tokens(str(message["content"])) for message in asked), context.tokens(text))
        ANSWERED.set(Answered(text))
        return outputs

    def converse(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """A turn of a conversation with tools (agents/react.py), by the rules for the same fields of a signature."""
        self._allow()
        turns = _turns(messages)
        said = str(messages[1]["content"])
        most = int(said.rpartition("At most ")[2].partition(" ")[0])
        inputs = {"description": said, "history": turns, "steps_left": most - len(turns) - 1}
        statistics = self._statistics()
        thought = str(RULES["thought"](inputs, statistics))
        calls = [
            {"id": f"call_{len(turns)}_{place}", "name": one.name, "arguments": json.dumps(one.args)}
            for place, one in enumerate(RULES["calls"](inputs, statistics).tool_calls)
        ]
        written = [thought, *(part for one in calls for part in one.values())]
        self._book(
            sum(MESSAGE + sum(map(context.tokens, _texts(message))) for message in messages)
            + context.tokens(json.dumps(list(tools))),
            sum(map(context.tokens, written)),
        )
        return {"content": thought, "tool_calls": calls, "finish": "tool_calls"}

    def _allow(self) -> None:
        if payer := session.current():
            payer.allow_call()

    def _book(self, prompt: int, answer: int) -> None:
        self.made.append(Call(prompt, answer))
        if payer := session.current():
            payer.charge(Usage(calls=1, input_tokens=prompt, output_tokens=answer))

    def __deepcopy__(self, memo: object) -> "StandIn":
        # DSPy copies the model with a program; what was counted is one.
        return self


def _turns(messages: Sequence[Mapping[str, Any]]) -> "list[Turn]":
    """The turns of a conversation, as a signature has them."""
    from agents.react import Turn

    made: list[Turn] = []
    for message in messages:
        if message["role"] == "assistant":
            calls = [one["function"] for one in message.get("tool_calls", ())]
            called = [{"name": one["name"], "args": json.loads(one["arguments"])} for one in calls]
            made.append(Turn(thought=message["content"], calls=called, results=[]))
        elif message["role"] == "tool":
            made[-1].results.append(message["content"])
    return made


def _texts(message: Mapping[str, Any]) -> list[str]:
    """What of a message is counted."""
    calls = [one["function"] for one in message.get("tool_calls", ())]
    return [str(message["content"]), *(text for one in calls for text in (one["name"], one["arguments"]))]


class Habits(NamedTuple):
    """What is believed of a model's answers."""

    answers: Range  # tokens of an answer, as a factor of those of the rehearsal
    thinking: Range  # tokens before an answer
    seconds: Range  # a call


def _habits(request: Request, model: "Model", calls: list[Call], notes: list[str]) -> Habits:
    """From earlier answers of the same program and model, where there are enough; else assumed."""
    if request.lm == "offline":
        return Habits(Range(1, 1, 1), Range(0, 0, 0), Range(0, 0, 0))
    mean = sum(call.answer for call in calls) / max(1, len(calls))
    if earlier := _earlier(request.runs / "answers.sqlite3", request.program, str(model.lm.model)):
        many, seconds, tokens, thinking = earlier
        notes.append(
            f"answers as in {many:,} earlier calls of this program with this model: {seconds:.2f} s, "
            f"{tokens:.0f} tokens of which {thinking:.0f} are thinking; a third less to half more"
        )
        written = (tokens - thinking) / max(1.0, mean)
        return Habits(*(Range(value / 1.5, value, 1.5 * value) for value in (written, thinking, seconds)))
    effort = model.settings.get("reasoning_effort")
    reasons = effort != "none" and (effort is not None or model.settings.get("temperature") is None)
    thought = Range(*THINKING) if reasons else Range(0, 0, 0)
    answers = Range(*ANSWER)
    lengths = [mean * factor + tokens for factor, tokens in zip(answers, thought, strict=True)]
    paces = (2 * PACE, PACE, PACE / 2)
    notes.append(
        f"assumed of answers: {ANSWER[0]:g}, {ANSWER[1]:g} and {ANSWER[2]:g} times the {mean:,.0f} tokens that the "
        "engine without a model writes"
        + (f", and {THINKING[0]}, {THINKING[1]:,} and {THINKING[2]:,} of thinking" if reasons else "")
    )
    notes.append(f"assumed of a call: {DELAY:g} s and {PACE:g} tokens a second, half to twice as fast")
    return Habits(
        answers,
        thought,
        Range(*(DELAY * PACE / pace + tokens / pace for pace, tokens in zip(paces, lengths, strict=True))),
    )


def _earlier(path: Path, program: str, model: str) -> tuple[int, float, float, float] | None:
    """Of earlier answers of the program with the model: how many, and their mean seconds, tokens and thinking."""
    if not path.is_file():
        return None
    statement = (
        "SELECT count(*), avg(seconds), avg(json_extract(usage, '$.output_tokens')),"
        " avg(coalesce(json_extract(usage, '$.reasoning_tokens'), 0))"
        " FROM calls WHERE fault = '' AND model = ? AND instr(run, ?) > 0"
        " AND coalesce(json_extract(usage, '$.unmetered'), 0) = 0"
    )
    try:
        # Not read-only: such a connection leaves empty files beside it.
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=rw", uri=True)) as opened:
            many, *means = opened.execute(statement, (model, f"/{program}-")).fetchone()
    except sqlite3.Error:  # the run will say what is wrong with it
        return None
    return (many, *means) if many >= ENOUGH else None


@dataclass(frozen=True, slots=True)
class _Projection:
    """From the calls of the rehearsal to those of all queries; of each figure what is low, expected and high."""

    calls: list[Call]  # of the rehearsal
    longest: int  # calls of the chosen query that has the most
    share: float  # how many times the work of the chosen queries is that of all
    factors: Range  # by which the calls of a query may be fewer or more
    shrinks: Range  # by which prompts are smaller where there are fewer calls
    habits: Habits
    workers: int  # requests at a time

    @property
    def many(self) -> Range:
        """Calls."""
        return Range(*(self.share * len(self.calls) * factor for factor in self.factors))

    @property
    def tokens_in(self) -> Range:
        """Of all prompts."""
        prompts = self.share * sum(call.prompt for call in self.calls)
        return Range(*(prompts * f * p * s for f, p, s in zip(self.factors, PROMPTS, self.shrinks, strict=True)))

    @property
    def tokens_out(self) -> Range:
        """Of all answers, with what is thought before them."""
        answers, count = sum(call.answer for call in self.calls), len(self.calls)
        each = zip(self.factors, self.habits.answers, self.habits.thinking, strict=True)
        return Range(*(self.share * f * (answers * factor + count * thinking) for f, factor, thinking in each))

    def usd(self, price: "Price | None") -> Range | None:
        """At list price; None where that is not known."""
        if price is None:
            return None
        each = zip(self.factors, self.shrinks, PROMPTS, self.habits.answers, self.habits.thinking, strict=True)
        return Range(
            *(self.share * f * s * sum(_cost(price, call, p, a, t) for call in self.calls) for f, s, p, a, t in each)
        )

    @property
    def hours(self) -> Range:
        """With so many requests at a time; the calls of one query come mostly one after another."""
        each = zip(self.habits.seconds, self.many, self.factors, strict=True)
        return Range(
            *(seconds / 3600 * max(number / self.workers, self.longest * factor) for seconds, number, factor in each)
        )

    def notes(self, program: str, lm: str) -> tuple[list[str], list[str]]:
        """What is assumed: the most important first, and what comes last."""
        if not self.calls:
            return [], []
        why = "because a model decides when it has enough" if program in DECIDED else "for answers asked for again"
        first = (
            f"calls: {self.factors.low:.2g} to {self.factors.high:.2g} times those of the rehearsal, {why}; "
            "tokens of a prompt: 20 % less to 30 % more, for other queries and tokenizers"
        )
        last = f"{self.workers} requests at a time; no retries, and no input from the provider's cache"
        return [first], [] if lm == "offline" else [last]


def _projection(
    resolved: Resolved,
    owed: Sequence[Query],
    chosen: Sequence[Query],
    rehearsal: list[list[Call]],
    habits: Habits,
) -> _Projection:
    request = resolved.request
    weights = {query.query_id: _weight(request.program, query) for query in owed}
    factors = _factors(resolved, chosen, rehearsal)
    return _Projection(
        calls=[call for one in rehearsal for call in one],
        longest=max(map(len, rehearsal), default=0),
        share=sum(weights.values()) / max(1.0, sum(weights[query.query_id] for query in chosen)),
        factors=factors,
        shrinks=Range(factors.low if request.program in GROWING else 1.0, 1.0, 1.0),
        habits=habits,
        workers=min(request.max_concurrent or WORKERS, max(1, len(owed))),
    )


def _weight(program: str, query: Query) -> float:
    """How much a query counts: as its pool is large, where the calls are."""
    return float(max(1, len((query.candidates or frozenset()) - query.excluded))) if program in POOLED else 1.0


def _factors(resolved: Resolved, chosen: Sequence[Query], rehearsal: list[list[Call]]) -> Range:
    """By how much the calls of a query may be fewer or more than those of the rehearsal."""
    program, counts = resolved.request.program, list(map(len, rehearsal))
    if program not in DECIDED or not sum(counts):
        return Range(1.0, 1.0, REPAIRS)
    share, ceiling = DECIDED[program]
    mean = sum(counts) / len(counts)
    sizes = [len(query.candidates or ()) or resolved.values.get("pool", 0) for query in chosen]
    most = max(ceiling(resolved.values, size) for size in sizes)
    most = min(most, resolved.limits.get("max_calls", most))
    # More than the ceiling is possible where a small window makes a program read in several calls.
    return Range(min(share, min(counts) / mean), 1.0, REPAIRS * max(most, *counts) / mean)


def _cost(price: "Price", call: Call, prompts: float, answers: float, thinking: float) -> float:
    """Dollars of one call: some models take more a token for long prompts, so calls are priced one by one."""
    thought = round(thinking)
    return price.of(round(call.prompt * prompts), 0, round(call.answer * answers) + thought, thought)


def _budgets(request: Request, made: Estimate, spent: Usage) -> list[dict[str, Any]]:
    """Whether each budget that the command names will do, and for how many queries it is likely to last.

    What earlier sittings used counts in it.
    """
    tokens = Range(*(sum(pair) for pair in zip(made.tokens_in, made.tokens_out, strict=True)))
    needs: dict[str, tuple[Range | None, float | None]] = {
        "budget_usd": (made.usd, spent.paid_usd),
        "budget_calls": (made.calls, spent.calls),
        "budget_tokens": (tokens, spent.input_tokens + spent.output_tokens),
        "time_limit": (Range(*(3600 * hours for hours in made.hours)), 0.0),  # seconds, of each sitting
    }
    told = []
    for name, (need, used) in needs.items():
        given = getattr(request, name)
        if given is None:
            continue
        left = given - (used or 0.0)
        enough = "unknown" if need is None else "yes" if need.high <= left else "no" if need.low > left else "perhaps"
        lasts = None if need is None or not need.expected else min(made.owed, int(made.owed * left / need.expected))
        told.append({"option": f"--{name.replace('_', '-')}", "value": given, "enough": enough, "lasts": lasts})
    return told


def show(found: Estimate, *, as_json: bool) -> None:
    """Print an estimate on stdout."""
    if as_json:
        put_out(json.dumps(found.json()) + "\n")
        return
    table = empty("to expect", "low", "likely", "high")
    table.add_row("calls", *(f"{value:,.0f}" for value in found.calls))
    table.add_row("tokens in", *(f"{value:,.0f}" for value in found.tokens_in))
    table.add_row("tokens out", *(f"{value:,.0f}" for value in found.tokens_out))
    dollars = ("price unknown", "", "") if found.usd is None else tuple(f"${value:,.4f}" for value in found.usd)
    table.add_row("list price", *dollars)
    table.add_row("time", *map(_clock, found.hours))
    put_out(printed([*_headings(found), table, *_footings(found)]))


def _headings(found: Estimate) -> list[str]:
    before = f"; {found.done} answered before" if found.done else ""
    by = f"; rehearsed on {', '.join(found.rehearsed)}" if found.rehearsed else ""
    lines = ["dry run: nothing was sent", task_line(found.about), system_line(found.about)]
    return [*map(plain, lines), plain(f"{queries(found.owed)} to be asked{before}{by}")]


def _footings(found: Estimate) -> list[str]:
    lines = []
    if found.largest:
        takes = "whose window is not known" if found.window is None else f"which takes {found.window:,}"
        lines.append(f"largest prompt: {found.largest:,} tokens (o200k_base), for a model {takes}")
    if found.price is not None:
        lines.append(f"price: {found.price}")
    elif found.about["lm"] == "offline":
        lines.append("offline asks no model: the tokens are what a model would be asked")
    words = {"yes": "will do", "no": "will not do", "perhaps": "may not do", "unknown": "cannot be told"}
    for one in found.budgets:
        lasts = f"; it is likely to last for {one['lasts']} of {queries(found.owed)}" if one["enough"] != "yes" else ""
        lines.append(
            f"{one['option']} {one['value']:g} {words[one['enough']]}{lasts if one['lasts'] is not None else ''}"
        )
    return [escape(plain(line)) for line in [*lines, *found.notes]]


def _clock(hours: float) -> str:
    seconds = round(3600 * hours)
    if seconds < 90:
        return f"{seconds} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{hours:.1f} h"
