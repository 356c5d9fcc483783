"""`--dry-run`: what a run would ask of its model, what that would cost, and how long it would take.

The program runs as it is on two of the pending queries: its own prompts, demonstrations, limits and the real
model's window, over the same documents. The engine without a model (tools/models/offline.py) answers in the
model's place. Every prompt is counted by OpenAI's o200k_base (tools/models/prompting.py), and the means are
taken for all queries. The two are those at one third and two thirds of the queries by length. For programs whose calls
grow with the pool, a query counts as much as its pool is large.

Nothing is sent: a retriever that would send texts, or load a model's weights, is replaced by bm25 here, which changes
which documents are read and hardly how long they are. What is not measured is assumed, and every assumption is in the
printout: how much a model writes and thinks, how fast it is, and how far it goes on searching. Where the answers of
earlier runs of the program with this model lie beside the runs, their length and their seconds are taken.

Left out: what an index costs (annotations, embeddings), input that a provider has cached, and retries.
"""

import json
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from math import ceil, prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.markup import escape

from evals import folder as run_folder
from evals.running.rehearsal import Call, Rehearsal, rehearse
from evals.running.request import Request
from evals.running.resolve import Resolved
from evals.showing.tables import empty, plain, printed, system_line, task_line
from tools.console import put_out, queries
from tools.errors import DataError
from tools.records import Query, Usage, total

if TYPE_CHECKING:
    from environments.base import Environment
    from evals.folder import Config
    from tools.models.lm import Model
    from tools.models.prices import Price


class Range(NamedTuple):
    """A figure that is not known yet."""

    low: float
    expected: float
    high: float

    def json(self, digits: int = 0) -> dict[str, float]:
        """As --json prints it."""
        return {name: round(value, digits or None) for name, value in self._asdict().items()}

    def times(self, *others: "Range | float") -> "Range":
        """The product, bound by bound."""
        factors = [self, *(one if isinstance(one, Range) else Range(one, one, one) for one in others)]
        return Range(*map(prod, zip(*factors, strict=True)))

    def plus(self, other: "Range") -> "Range":
        """The sum, bound by bound."""
        return Range(*map(sum, zip(self, other, strict=True)))


SAMPLE = 2  # queries that are rehearsed
ENOUGH = 20  # earlier answers from which on they are believed

# Assumed of a model that has not answered before.
ANSWER = Range(0.5, 1.5, 4.0)  # tokens of an answer: times those of the engine without a model, which is terse
THINKING = Range(0, 500, 2000)  # tokens of a reasoning model before it answers
PACE = 60.0  # tokens a second; half of it and twice as much in the range
DELAY = 1.0  # seconds before the first token
PROMPTS = Range(0.8, 1.0, 1.3)  # other queries, notes and tokenizers: a prompt's tokens
REPAIRS = 1.1  # answers that have to be asked for again: a tenth at most
NONE, ONE = Range(0, 0, 0), Range(1, 1, 1)


@dataclass(slots=True)
class Estimate:
    """What a command would ask, of all queries that it would answer."""

    about: dict[str, Any]  # task, data, split, program, retriever, lm
    owed: int  # queries
    done: int  # queries that the run folder has answered already
    rehearsed: list[str]  # query ids
    calls: Range
    tokens_in: Range
    tokens_out: Range
    usd: Range | None  # at list price; None where that is not known
    hours: Range
    largest: int  # tokens of the largest prompt
    window: int | None  # what the model takes
    price: "Price | None"
    budgets: list[dict[str, Any]]  # option, its value, whether it will do
    notes: list[str]  # assumptions, and what was otherwise than in the run

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


def estimate(resolved: Resolved, environment: "Environment", model: "Model", config: "Config") -> Estimate:
    """What the run would ask of `model`, which is sent nothing. No run folder is made.

    `config` is the run's, but for the complete names of its retrievers, which only building them would tell.
    """
    request = resolved.request
    offline = request.lm == "offline"
    known = _answered(request.runs, config)
    if request.again:
        known = {query_id: one for query_id, one in known.items() if one["error"] is None}
    pending = [query for query in environment.queries if query.query_id not in known]
    rehearsal = rehearse(resolved, environment, model, _chosen(pending))
    habits = _habits(request, model, rehearsal.all_calls)
    price = None if offline else model.price
    many, tokens_in, tokens_out, usd, hours = _projection(resolved, rehearsal, pending, habits, price)
    made = Estimate(
        about={name: config[name] for name in ("task", "data", "split", "program")}
        | {"retriever": str(resolved.retriever), "lm": request.lm},
        owed=len(pending),
        done=len(known),
        rehearsed=[query.query_id for query in rehearsal.queries],
        calls=Range(int(many.low), round(many.expected), ceil(many.high)),
        tokens_in=tokens_in,
        tokens_out=tokens_out,
        usd=NONE if offline else usd,
        hours=hours,
        largest=max((call.prompt for call in rehearsal.all_calls), default=0),
        window=getattr(model.lm, "window", None),
        price=price,
        budgets=[],
        notes=_notes(resolved, rehearsal, pending, habits),
    )
    made.budgets = _budgets(request, made, total(run_folder.usage(outcome) for outcome in known.values()))
    return made


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


class Habits(NamedTuple):
    """What is believed of a model's answers."""

    answers: Range  # tokens of an answer, as a factor of those of the rehearsal
    thinking: Range  # tokens before an answer
    seconds: Range  # a call
    notes: tuple[str, ...] = ()  # where that comes from


def _habits(request: Request, model: "Model", calls: list[Call]) -> Habits:
    """From earlier answers of the same program and model, where there are enough; else assumed."""
    if request.lm == "offline":
        return Habits(ONE, NONE, NONE)
    mean = sum(call.answer for call in calls) / max(1, len(calls))
    if earlier := _earlier(request.runs / "answers.sqlite3", request.program, str(model.lm.model)):
        many, seconds, tokens, thinking = earlier
        note = (
            f"answers as in {many:,} earlier calls of this program with this model: {seconds:.2f} s, "
            f"{tokens:.0f} tokens of which {thinking:.0f} are thinking; a third less to half more"
        )
        written = (tokens - thinking) / max(1.0, mean)
        third_less = Range(1 / 1.5, 1, 1.5)
        return Habits(third_less.times(written), third_less.times(thinking), third_less.times(seconds), (note,))
    effort = model.settings.get("reasoning_effort")
    reasons = effort != "none" and (effort is not None or model.settings.get("temperature") is None)
    thought = THINKING if reasons else NONE
    lengths = ANSWER.times(mean).plus(thought)
    paces = (2 * PACE, PACE, PACE / 2)
    each = Range(*((DELAY * PACE + tokens) / pace for pace, tokens in zip(paces, lengths, strict=True)))
    note = (
        f"assumed of answers: {ANSWER.low:g}, {ANSWER.expected:g} and {ANSWER.high:g} times the {mean:,.0f} tokens "
        "that the engine without a model writes"
    )
    if reasons:
        note += f", and {THINKING.low}, {THINKING.expected:,} and {THINKING.high:,} of thinking"
    pace = f"assumed of a call: {DELAY:g} s and {PACE:g} tokens a second, half to twice as fast"
    return Habits(ANSWER, thought, each, (note, pace))


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


def _projection(
    resolved: Resolved, rehearsal: Rehearsal, pending: Sequence[Query], habits: Habits, price: "Price | None"
) -> tuple[Range, Range, Range, Range | None, Range]:
    """From the calls of the rehearsal to those of all queries: calls, tokens in and out, dollars, hours.

    Dollars are at list price, None where that is not known; some models take more a token for long prompts, so calls
    are priced one by one. Hours are with all workers at work; the calls of one query come mostly one after another.
    """
    program, calls = rehearsal.program, rehearsal.all_calls
    chosen = {query.query_id for query in rehearsal.queries}
    weights = {query.query_id: _weight(query) if program.pooled else 1.0 for query in pending}
    share = sum(weights.values()) / max(1.0, sum(weights[query_id] for query_id in chosen))
    factors = _factors(resolved, rehearsal)
    shrinks = Range(factors.low if program.cumulative else 1.0, 1.0, 1.0)  # of prompts, where there are fewer calls
    many = factors.times(share * len(calls))
    tokens_in = factors.times(shrinks, PROMPTS, share * sum(call.prompt for call in calls))
    answers = habits.answers.times(sum(call.answer for call in calls))
    tokens_out = answers.plus(habits.thinking.times(len(calls))).times(factors, share)
    usd = None
    if price is not None:
        each = zip(PROMPTS, habits.answers, habits.thinking, strict=True)
        usd = factors.times(shrinks, share, Range(*(sum(_cost(price, call, *one) for call in calls) for one in each)))
    longest = factors.times(max(map(len, rehearsal.calls), default=0))
    at_once = Range(*map(max, zip(many.times(1 / _workers(resolved.request, pending)), longest, strict=True)))
    return many, tokens_in, tokens_out, usd, habits.seconds.times(at_once, 1 / 3600)


def _workers(request: Request, pending: Sequence[Query]) -> int:
    """Queries at a time."""
    return min(request.workers, max(1, len(pending)))


def _weight(query: Query) -> float:
    """How much a query counts where calls grow with the pool: as its pool is large."""
    return float(max(1, len((query.candidates or frozenset()) - query.excluded)))


def _most(resolved: Resolved, rehearsal: Rehearsal) -> int | None:
    """The most calls of a query, where the model decides how many there are."""
    default = resolved.values.get("pool", 0)
    most = [rehearsal.program.most_calls(len(query.candidates or ()) or default) for query in rehearsal.queries]
    known = [one for one in most if one is not None]
    return max(known) if known else None


def _factors(resolved: Resolved, rehearsal: Rehearsal) -> Range:
    """By how much the calls of a query may be fewer or more than those of the rehearsal."""
    counts, most = list(map(len, rehearsal.calls)), _most(resolved, rehearsal)
    if most is None or not sum(counts):
        return Range(1.0, 1.0, REPAIRS)
    mean = sum(counts) / len(counts)
    most = min(most, resolved.limits.get("max_calls", most))
    # More than the ceiling is possible where a small window makes a program read in several calls.
    return Range(min(rehearsal.program.least_calls, min(counts) / mean), 1.0, REPAIRS * max(most, *counts) / mean)


def _notes(resolved: Resolved, rehearsal: Rehearsal, pending: Sequence[Query], habits: Habits) -> list[str]:
    """What is assumed, the most important first, and what was otherwise than in the run."""
    if not rehearsal.all_calls:
        return [*rehearsal.notes, *habits.notes]
    factors, request = _factors(resolved, rehearsal), resolved.request
    decides = _most(resolved, rehearsal) is not None
    why = "because a model decides when it has enough" if decides else "for answers asked for again"
    first = (
        f"calls: {factors.low:.2g} to {factors.high:.2g} times those of the rehearsal, {why}; "
        "tokens of a prompt: 20 % less to 30 % more, for other queries and tokenizers"
    )
    last = f"{_workers(request, pending)} requests at a time; no retries, and no input from the provider's cache"
    return [first, *rehearsal.notes, *habits.notes, *([] if request.lm == "offline" else [last])]


def _cost(price: "Price", call: Call, prompts: float, answers: float, thinking: float) -> float:
    """Dollars of one call: some models take more a token for long prompts, so calls are priced one by one."""
    thought = round(thinking)
    return price.of(round(call.prompt * prompts), 0, round(call.answer * answers) + thought, thought)


def _budgets(request: Request, made: Estimate, spent: Usage) -> list[dict[str, Any]]:
    """Whether each budget that the command names will do, and for how many queries it is likely to last.

    What earlier sittings used counts in it.
    """
    tokens = made.tokens_in.plus(made.tokens_out)
    needs: dict[str, tuple[Range | None, float | None]] = {
        "budget_usd": (made.usd, spent.paid_usd),
        "budget_calls": (made.calls, spent.calls),
        "budget_tokens": (tokens, spent.input_tokens + spent.output_tokens),
        "time_limit": (made.hours.times(3600), 0.0),  # seconds, of each sitting
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
