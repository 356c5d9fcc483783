"""What the agents' graphs share: a context for each query, parallel work in a fixed order,
and the connection of nodes.

An agent's graph is `graph` in its module, made once. The state of a query is LangGraph's
runtime context: `work = agent.begin(query)`, `state = graph.invoke(work.start, context=work)`,
`work.submit(state)`.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, TypeVar

import dspy
from langgraph.graph import START, StateGraph
from langgraph.runtime import Runtime

from sextant.programs.base import Program
from sextant.tools.errors import UsageError
from sextant.tools.models.answers.checks import changed_call
from sextant.tools.records import JsonObject, Query, Submission
from sextant.tools.session import Session

T = TypeVar("T")


def run_parallel(
    session: Session,
    hop: int,
    jobs: Sequence[Callable[[], T]],
    threads: int,
) -> list[T]:
    """Run the jobs of a hop in parallel.

    Results, steps and DSPy's trace of calls are in the order of the jobs.
    """
    calls: list[list[Any]] = [[] for _ in jobs]
    # Teleprompters take demonstrations from it.
    outer_trace = dspy.settings.trace

    def work(number: int) -> T:
        with (
            session.branch(hop, line=number),
            dspy.context(trace=None if outer_trace is None else calls[number]),
        ):
            return jobs[number]()

    numbers = range(len(jobs))
    # DSPy streams from the thread that it has started itself.
    if threads == 1 or dspy.settings.send_stream:
        # If a job fails, no further job starts.
        results = [work(number) for number in numbers]
    else:
        contexts = [copy_context() for _ in jobs]
        # If a job fails, the pool cancels the jobs that have not started.
        with ThreadPoolExecutor(threads) as pool:
            results = list(pool.map(lambda number: contexts[number].run(work, number), numbers))
    session.join()
    if outer_trace is not None:
        outer_trace += [call for line in calls for call in line]
    return results


@dataclass(eq=False)
class NodeContext:
    """A query's context, with the graph nodes as its methods. Nodes hand on the state."""

    program: Any
    query: Query
    snapshot: JsonObject | None = None  # of a session to resume
    start: ClassVar[Any]  # the first state of the graph
    ranking: ClassVar[Any]  # method that returns the documents of a state, best first

    def __post_init__(self) -> None:
        self.session: Session = self.program.toolbox.open(self.query, self.snapshot)
        self.about: JsonObject = {
            "objective": self.query.objective,
            "description": self.query.text,
        }

    def submit(self, state: Any) -> Submission:
        """End the session with the ranking of the last state of the graph."""
        return self.session.submit(self.ranking(state)[: self.program.depth], why=state["why"])


class Agent(Program):
    """A program whose `graph` has a context of its own for each query."""

    graph: ClassVar[Any]

    def begin(self, query: Query, snapshot: JsonObject | None = None) -> Any:
        """Open a session, or resume it from a `snapshot`; return the context of the graph."""
        return self.graph.context_schema(self, query, snapshot)

    def forward(self, query: Query) -> Submission:
        """Return every document that surfaced, selected documents first."""
        work = self.begin(query)
        return work.submit(self.graph.invoke(work.start, context=work))  # type: ignore[no-any-return]


Following = str | Callable[..., str] | tuple[Callable[..., str], list[str]]  # the next node


def build_graph(
    state: Any,
    nodes: Mapping[Callable[..., Any], Following],
    context: type[NodeContext] | None = None,
) -> Any:
    """Return a graph that begins with the first node.

    A node maps to the name of the next node, or to a function of the state that names it, with all possible names.
    With a `context`, nodes are methods of it.
    """
    graph = StateGraph(state, context_schema=context)
    for node, following in nodes.items():
        graph.add_node(node.__name__, partial(_work, node) if context else node)
        if isinstance(following, str):
            graph.add_edge(node.__name__, following)
        else:
            graph.add_conditional_edges(
                node.__name__, *(following if isinstance(following, tuple) else (following,))
            )
    graph.add_edge(START, next(iter(nodes)).__name__)
    return graph.compile()


def _work(method: Callable[..., Any], state: Any, runtime: Runtime[Any]) -> Any:
    if runtime.context is None:
        raise UsageError("the graph has no session: give context=agent.begin(query)")
    with changed_call(rules=runtime.context.program.offline):
        return method(runtime.context, state)


# The name in Sextant 0.1, which guides documented; it goes with the next release.
connect = build_graph
