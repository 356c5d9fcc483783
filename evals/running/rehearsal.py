"""A rehearsal for `--dry-run`: the program as it is, on a few queries, with nothing sent.

The engine without a model answers in the model's place. What a retriever would send, or load weights for, is left to
bm25, which changes which documents are read and hardly how long they are. Prompts are counted by OpenAI's o200k_base.
"""

import contextvars
import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import dspy

from evals.running.evaluation import make_system
from evals.running.resolve import Resolved, trial
from evals.running.runner import answer
from programs.base import Program
from tools import retrievers, session
from tools.disk import home
from tools.errors import RunIncomplete
from tools.models import offline, prompting
from tools.models.adapter import ANSWERED, Adapter, Answered
from tools.records import Query, Usage
from tools.retrievers.bm25 import BM25

if TYPE_CHECKING:
    from environments.base import Environment
    from tools.corpus import Corpus
    from tools.models.lm import Model
    from tools.retriever import Retriever
    from tools.retrievers import Spec
    from tools.text import TermStatistics

MESSAGE = 4  # tokens of a message beside its text, as OpenAI counts them


class Call(NamedTuple):
    """Tokens of one call."""

    prompt: int
    answer: int


class Rehearsal(NamedTuple):
    """What the program did, query by query."""

    program: Program
    queries: Sequence[Query]
    calls: Sequence[Sequence[Call]] = ()  # of each query
    notes: Sequence[str] = ()  # what was otherwise than in the run

    @property
    def all_calls(self) -> list[Call]:
        """The calls of all queries together."""
        return [call for calls in self.calls for call in calls]


def rehearse(resolved: Resolved, environment: "Environment", model: "Model", queries: Sequence[Query]) -> Rehearsal:
    """Ask the program these queries, and `model` nothing. RunIncomplete where all of them fail."""
    plain = trial(resolved.constructor, resolved.values)
    program = plain if isinstance(plain, Program) else Program(plain.toolbox, depth=0)  # of which nothing is known
    if not queries:
        return Rehearsal(program, ())
    environment = dataclasses.replace(environment, queries=tuple(queries))
    index, notes = BM25(environment.documents, home()), list[str]()

    def build(spec: "Spec") -> "Retriever":
        if retrievers.words_only(spec):
            return retrievers.build(spec, environment.documents, home())
        sends = retrievers.apis(spec) or retrievers.lenses(spec)
        more = ", and what it sends for its index and searches comes on top" if sends else ""
        notes.append(f"{spec} is not opened here; bm25 takes its place{more}")
        return index

    retriever = build(resolved.retriever)
    others = {name: build(spec) for name, spec in resolved.others.items()}
    if resolved.pool:
        environment = resolved.pool.add_to(environment, [build(part) for part in resolved.pool.parts])
    system = make_system(resolved, environment, retriever, others)
    stand_in, calls, failed = StandIn(index.statistics, model), [], []
    for query in environment.queries:
        failed += stand_in.ask(system, query, environment.documents)
        calls.append(stand_in.calls)
    if len(failed) == len(calls):
        raise RunIncomplete(f"the queries of the rehearsal failed, so nothing can be told: {failed[0]}")
    return Rehearsal(program, environment.queries, calls, notes + failed)


class StandIn(dspy.LM):
    """Takes the real model's place, with its window and interface: counts calls, and answers as `offline` does.

    What they used is booked on the query, so that its limits hold.
    """

    def __init__(self, statistics: "Callable[[], TermStatistics]", model: "Model") -> None:
        self.rules = offline.OfflineEngine(statistics)
        super().__init__(offline.VERSION, cache=False, num_retries=0, engine=self.rules)
        real = model.lm
        self.window = getattr(real, "window", None)
        # Where the real model takes tool calls in the protocol's form, so does this one.
        self.tools = getattr(real, "tools", None) or getattr(real, "wire", None)
        self.calls: list[Call] = []  # of the last query

    def ask(self, system: Any, query: Query, documents: "Corpus") -> list[str]:
        """Return why the query failed, if it did; its calls are in `calls`."""
        self.calls = []
        with dspy.context(lm=self, adapter=Adapter(), trace=[]):
            outcome = contextvars.copy_context().run(answer, system, query, documents)
        if isinstance(outcome, Exception):
            raise outcome
        return [f"query {query.query_id}: {outcome['error']}"] if outcome["error"] else []

    def __call__(self, prompt: Any = None, *, messages: Any = None, **kwargs: Any) -> Any:
        """Answer a predictor."""
        prompting.check_room(messages or (), "prompt")  # as the real model does
        self._allow()
        outputs = super().__call__(prompt, messages=messages, **kwargs)
        first = outputs[0] if outputs else ""
        text = str(first.get("text") or "") if isinstance(first, dict) else str(first)
        self._book(messages or [{"content": prompt}], [], [text])
        ANSWERED.set(Answered(text))
        return outputs

    def converse(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Answer a turn of a conversation with tools, by the program's rules for the same fields of a signature."""
        self._allow()
        outputs = self.rules.fill().values()
        thought = "\n".join(one for one in outputs if isinstance(one, str))
        calls = [
            {"id": f"call_{len(messages)}_{place}", "name": call.name, "arguments": json.dumps(call.args)}
            for one in outputs
            if isinstance(one, dspy.ToolCalls)
            for place, call in enumerate(one.tool_calls)
        ]
        self._book(messages, [json.dumps(list(tools))], [thought, *(part for one in calls for part in one.values())])
        return {"content": thought, "tool_calls": calls, "finish": "tool_calls"}

    def _allow(self) -> None:
        if payer := session.current():
            payer.allow_call()

    def _book(self, messages: Sequence[Mapping[str, Any]], beside: Sequence[str], written: Sequence[str]) -> None:
        texts = [*beside, *(text for message in messages for text in _texts(message))]
        call = Call(MESSAGE * len(messages) + sum(map(prompting.tokens, texts)), sum(map(prompting.tokens, written)))
        self.calls.append(call)
        if payer := session.current():
            payer.charge(Usage(calls=1, input_tokens=call.prompt, output_tokens=call.answer))

    def __deepcopy__(self, memo: object) -> "StandIn":
        return self  # DSPy copies the model with a program, and there is one count


def _texts(message: Mapping[str, Any]) -> list[str]:
    calls = [one["function"] for one in message.get("tool_calls", ())]
    return [str(message["content"]), *(text for one in calls for text in (one["name"], one["arguments"]))]
