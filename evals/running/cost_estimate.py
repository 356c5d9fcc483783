"""`--dry-run`: the calls that a run makes at most, and an estimate of their tokens and list price.

The program runs as it is on two of the pending queries, those at a third and two thirds by length,
with nothing sent. The engine without a model answers in the model's place, and bm25 searches in
that of every retriever, which changes which documents are read and hardly how long they are.
Prompts are counted by OpenAI's o200k_base.

A query makes as many calls as its program allows (`most_calls`), or as the rehearsal made if the
parameters determine them; if calls grow with the pool, a query counts as much as its pool is large.
Each call has the mean tokens of those of the rehearsal.

Left out, and said: reasoning, answers asked for again, the cost of an index (annotations,
embeddings), and input that a provider has cached.
"""

import contextvars
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import dspy

from sextant.environments.base import Environment
from sextant.evals import run_folder
from sextant.evals.run_descriptions import describe_system, describe_task
from sextant.evals.running.evaluate import LoadedRun, connect, load_run, make_system
from sextant.evals.running.identity import code_identity, run_conditions
from sextant.evals.running.request import Request, SharedRequest
from sextant.evals.running.resolve import ResolvedRequest, try_construct
from sextant.evals.running.runner import answer_query
from sextant.programs.base import Program
from sextant.tools import session
from sextant.tools.corpus import Corpus
from sextant.tools.errors import DataError, RunIncomplete
from sextant.tools.models import offline_engine
from sextant.tools.models.answers.checks import LastAnswer, update_call
from sextant.tools.models.language_model import ConnectedModel
from sextant.tools.models.prompting import Adapter, check_room
from sextant.tools.models.tokens import count_tokens
from sextant.tools.platform.files import sextant_home
from sextant.tools.platform.number_format import number, queries
from sextant.tools.platform.result_table import ResultTable, render_terminal
from sextant.tools.pool_kinds import read_kind
from sextant.tools.process_changes import while_running
from sextant.tools.records import JsonMapping, JsonObject, Query, Usage
from sextant.tools.retrievers.lexical.bm25 import BM25
from sextant.tools.text import TermStatistics

MESSAGE = 4  # tokens of a message in addition to its text, as OpenAI counts them
_OFFLINE = "offline asks no model: the tokens are what a model would be asked"
_SOURCES = (
    "calls: the most that the program allows, or as many as the rehearsal made; tokens: the mean of "
    "a call of the rehearsal, whose answers the engine without a model wrote",
    "not in it: reasoning, longer answers, answers asked for again, and less for input from the "
    "provider's cache",
)


class CallTokens(NamedTuple):
    """Tokens of a call."""

    prompt: int
    answer: int


class RehearsedRun(NamedTuple):
    """The rehearsed calls of a program, query by query."""

    program: Program
    queries: Sequence[Query]
    calls: Sequence[CallTokens] = ()  # of all its queries
    most: int = 0  # calls of these queries that the program allows, or that were made
    notes: Sequence[str] = ()  # what was otherwise than in the run


def render_estimate(estimate: JsonObject, subject_lines: Sequence[str] = ()) -> str:
    """Return an estimate as text for a terminal.

    `subject_lines` name the subject of the estimate, if it is no run of a task.
    """
    headings = subject_lines or (
        describe_task(estimate),
        describe_system(estimate),
        f"{queries(estimate['queries'])} to be asked, {estimate['answered']} answered before; "
        f"rehearsed on {', '.join(estimate['rehearsed']) or 'none'}",
    )
    rows = [
        ["calls, at most", f"{estimate['calls']:,}"],
        ["tokens in", f"{estimate['input_tokens']:,}"],
        ["tokens out", f"{estimate['output_tokens']:,}"],
        ["list price", number(estimate["list_usd"], "${:,.4f}", "unknown")],
        ["largest prompt, tokens of o200k_base", f"{estimate['largest_prompt']:,}"],
        ["window of the model", number(estimate["window"], "{:,}", "unknown")],
    ]
    table = ResultTable("", ["to expect", ""], rows)
    notes = [f"price: {estimate['price']}"] if estimate["price"] else []
    return render_terminal(
        ["dry run: nothing was sent", *headings, table, *notes, *estimate["notes"]]
    )


def forecast(request: Request, opening: Callable[[Request], LoadedRun] = load_run) -> JsonObject:
    """Return the estimate of a run's model calls, in the format of --json.

    Nothing is sent or written.
    """
    opened = opening(request)
    resolved = opened.resolved
    environment = opened.environment
    model = connect(request, opened.resources, environment.documents, seed=request.seed)
    before = find_existing_run(opened, model)
    answered = run_folder.read_outcomes(before) if before else {}
    if request.again:
        answered = {query_id: row for query_id, row in answered.items() if row["error"] is None}
    asked = request.share(environment.queries)
    pending = [query for query in asked if query.query_id not in answered]
    rehearsal = rehearse(resolved, environment, model, _choose(pending))
    return {
        "task": environment.task,
        "data": "folder" if environment.folder else environment.data,
        "split": environment.split,
        "program": request.program_label,
        "retriever": str(resolved.retriever),
        "answered": len(answered),
        **extrapolate(request, model, rehearsal, pending),
    }


def extrapolate(
    request: SharedRequest,
    model: ConnectedModel,
    rehearsal: RehearsedRun,
    pending: Sequence[Query],
) -> JsonObject:
    """Return the estimate for all `pending` queries from a rehearsal."""
    sizes = {
        query.query_id: len((query.candidates or set()) - query.excluded) or 1 for query in pending
    }
    if not rehearsal.program.pooled:
        sizes = dict.fromkeys(sizes, 1)
    share = sum(sizes.values()) / max(1, sum(sizes[query.query_id] for query in rehearsal.queries))
    calls = share * rehearsal.most
    rehearsed = rehearsal.calls
    repeats = calls / max(1, len(rehearsed))
    is_offline = request.lm == "offline"
    price = None if is_offline else model.price
    # Some models take more a token for long prompts, so calls are priced one by one.
    usd = price and repeats * sum(price.of(call.prompt, 0, call.answer) for call in rehearsed)
    return {
        "dry_run": True,
        "lm": request.lm,
        "queries": len(pending),
        "rehearsed": [query.query_id for query in rehearsal.queries],
        "calls": ceil(round(calls, 6)),
        "input_tokens": round(repeats * sum(call.prompt for call in rehearsed)),
        "output_tokens": round(repeats * sum(call.answer for call in rehearsed)),
        "list_usd": 0.0 if is_offline else usd and round(usd, 6),
        "largest_prompt": max((call.prompt for call in rehearsed), default=0),
        "window": getattr(model.lm, "window", None),
        "price": price and str(price),
        "notes": [_OFFLINE] * is_offline + [*_SOURCES, *rehearsal.notes],
    }


def find_existing_run(opened: LoadedRun, model: ConnectedModel | None = None) -> Path | None:
    """Return the folder of a request's run, if it exists; `model` is that of the request.

    Retrievers are not opened, so their complete names are not compared. To digest the sources takes
    time, so that is done last.
    """
    resolved, environment, _, resources = opened
    request = resolved.request
    model = model or connect(request, resources, environment.documents, seed=request.seed)
    conditions = run_conditions(resolved, environment, None, model)
    conditions["pool"] = resolved.pool and resolved.pool.config((), environment)

    def comparable(config: run_folder.Config) -> str:
        pool = config["pool"] and [read_kind(config), config["pool"]["size"]]
        named = {"retriever": config["retriever"]["name"], "pool": pool}
        return json.dumps({key: config[key] for key in conditions} | named, sort_keys=True)

    for path in sorted(run_folder.run_path(request.runs, conditions).parent.glob("*/config.json")):
        # A neighbour may be damaged, or of a version before.
        with suppress(DataError, LookupError):
            config = run_folder.read_config(path.parent)
            if (
                comparable(config) == comparable(conditions)
                and not run_folder.find_changed(path.parent, config)
                and config.items() >= code_identity(resolved, environment).items()
            ):
                return path.parent
    return None


def _choose(pending: Sequence[Query]) -> list[Query]:
    """Return the queries of the rehearsal: those at a third and two thirds by length."""
    ordered = sorted(
        pending, key=lambda query: (len(query.candidates or ()), len(query.text), query.query_id)
    )
    places = {len(ordered) // 3, len(ordered) * 2 // 3}
    return [ordered[place] for place in sorted(places) if ordered]


def rehearse(
    resolved: ResolvedRequest,
    environment: Environment,
    model: ConnectedModel,
    queries: Sequence[Query],
) -> RehearsedRun:
    """Ask the program these queries, and `model` nothing. RunIncomplete if all of them fail."""
    plain = try_construct(resolved.constructor, resolved.values)
    # Of a program that is none of ours nothing is known.
    program = plain if isinstance(plain, Program) else Program(plain.toolbox, depth=0)
    if not queries:
        return RehearsedRun(program, ())
    environment = replace(environment, queries=tuple(queries))
    index = BM25(environment.documents, sextant_home())
    notes = [
        f"bm25 takes the place of {spec} here; what that sends, if anything, comes on top"
        for spec in dict.fromkeys(map(str, resolved.all_retrievers))
        if spec != "bm25"
    ]
    if pool := resolved.pool:
        environment = pool.add_to(environment, [index for _ in pool.parts])
    system = make_system(resolved, environment, index, dict.fromkeys(resolved.others, index))
    pool_size = resolved.values.get("pool", 0)
    limit = resolved.limits.get("max_calls", sys.maxsize)

    def most_calls(query: Query) -> int:
        return min(limit, program.most_calls(len(query.candidates or ()) or pool_size) or 0)

    rehearsal = StandInModel(index.statistics, model).watch(
        system, environment.queries, environment.documents, most_calls
    )
    return rehearsal._replace(program=program, notes=[*notes, *rehearsal.notes])


class StandInModel(session.SharedOnDeepcopy, dspy.LM):
    """Takes the real model's place, with its window and interface: counts calls, and answers as `offline` does.

    Their usage is booked on the query, so that its limits hold.
    """

    def __init__(self, statistics: Callable[[], TermStatistics], model: ConnectedModel) -> None:
        self.rules = offline_engine.OfflineEngine(statistics)
        super().__init__(offline_engine.VERSION, cache=False, num_retries=0, engine=self.rules)
        # So that prompts have the form, and calls of tools the protocol, of the real model's.
        for name in ("window", "limit", "structured", "server", "tools"):
            setattr(self, name, getattr(model.lm, name, None))
        self.calls: list[CallTokens] = []

    def watch(
        self,
        system: Any,
        queries: Sequence[Query],
        documents: Corpus,
        most_calls: Callable[[Query], int] = lambda _: 0,
    ) -> RehearsedRun:
        """Return the calls that a program makes for the queries.

        `most_calls` are those that it may make for one, or 0. RunIncomplete if all queries fail.
        """
        most = 0
        failed = []
        for query in queries:
            begun = len(self.calls)
            with while_running(), dspy.context(lm=self, adapter=Adapter(), trace=[]):
                outcome = contextvars.copy_context().run(answer_query, system, query, documents)
            if isinstance(outcome, Exception):
                raise outcome
            if outcome["error"]:
                failed.append(f"query {query.query_id}: {outcome['error']}")
            # More than the program allows are made if a small window makes it read in several.
            most += max(len(self.calls) - begun, most_calls(query))
        if failed and len(failed) == len(queries):
            raise RunIncomplete(
                f"the queries of the rehearsal failed, so nothing can be told: {failed[0]}"
            )
        return RehearsedRun(system, queries, self.calls, most, failed)

    def __call__(self, prompt: Any = None, *, messages: Any = None, **kwargs: Any) -> Any:
        """Answer a predictor."""
        check_room(messages or (), "prompt")  # as the real model does
        self._allow()
        text = self.rules.write()
        self._book([message["content"] for message in messages or [{"content": prompt}]], text)
        update_call(answer=LastAnswer(text))
        return [text] * (kwargs.get("n") or 1)

    def converse(self, messages: Sequence[JsonMapping], tools: Sequence[JsonMapping]) -> JsonObject:
        """Answer a turn of a conversation with tools, by the program's rules for the same
        fields of a signature. It is counted as the JSON that is sent.
        """
        self._allow()
        outputs = self.rules.fill().values()
        thought = "\n".join(value for value in outputs if isinstance(value, str))
        wanted = chain(*(each.tool_calls for each in outputs if isinstance(each, dspy.ToolCalls)))
        calls = [
            {
                "id": f"call_{len(messages)}_{position}",
                "name": call.name,
                "arguments": json.dumps(call.args),
            }
            for position, call in enumerate(wanted)
        ]
        self._book([json.dumps([*messages, *tools])], thought, json.dumps(calls))
        return {"content": thought, "tool_calls": calls, "finish": "tool_calls"}

    def _allow(self) -> None:
        if payer := session.current():
            payer.allow_call()

    def _book(self, messages: Sequence[object], *written: str) -> None:
        prompt = sum(MESSAGE + count_tokens(str(message)) for message in messages)
        answer = sum(map(count_tokens, written))
        self.calls.append(CallTokens(prompt, answer))
        if payer := session.current():
            payer.charge(Usage(1, input_tokens=prompt, output_tokens=answer))
