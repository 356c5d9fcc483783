"""What the graphs of the agents share: work side by side in a fixed order, and how nodes are connected."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, TypeVar

import dspy
from langgraph.graph import START, StateGraph

from tools.records import Query
from tools.session import Session

T = TypeVar("T")


def side_by_side(session: Session, hop: int, jobs: Sequence[Callable[[], T]], threads: int) -> list[T]:
    """Do the jobs of one hop at the same time; results, steps and DSPy's trace of calls are in order of the jobs."""
    calls: list[list[Any]] = [[] for _ in jobs]
    whole = dspy.settings.trace  # teleprompters take demonstrations from it

    def work(number: int) -> T:
        with session.branch(hop, line=number), dspy.context(trace=None if whole is None else calls[number]):
            return jobs[number]()

    numbers = range(len(jobs))
    if threads == 1:
        results = [work(number) for number in numbers]  # nothing is begun after a job that fails
    else:
        contexts = [copy_context() for _ in jobs]
        with ThreadPoolExecutor(threads) as pool:  # which cancels those that have not begun when one fails
            results = list(pool.map(lambda number: contexts[number].run(work, number), numbers))
    session.join()
    if whole is not None:
        whole += [call for line in calls for call in line]
    return results


class Work:
    """The nodes of one query's graph. What they share is the state; steps go into the session's trace."""

    def __init__(self, program: Any, query: Query) -> None:
        self.program = program
        self.session: Session = program.toolbox.open(query)
        self.about = {"objective": query.objective, "description": query.text}


def connect(state: Any, nodes: Mapping[Callable[..., Any], str | Callable[..., str]], saver: Any = None) -> Any:
    """Return a graph that begins with the first node; each maps to the next one's name, or a function that names it."""
    graph = StateGraph(state)
    for node, following in nodes.items():
        graph.add_node(node.__name__, node)
        if isinstance(following, str):
            graph.add_edge(node.__name__, following)
        else:
            graph.add_conditional_edges(node.__name__, following)
    graph.add_edge(START, next(iter(nodes)).__name__)
    return graph.compile(checkpointer=saver)
