"""A door of a run, opened for agents outside, and what is printed when all of its queries are answered."""

from collections.abc import Callable
from functools import partial

from evals.running.evaluation import Result
from evals.running.request import Request
from evals.running.watch import report
from evals.serving.clients import Place
from evals.serving.episode import Reward
from evals.serving.host import serve
from evals.showing.tables import show_scores
from tools.errors import UsageError
from tools.names import pick

__all__ = ["Reward", "open_door"]


def open_door(door: str, request: Request, place: Place, reward: Reward | None, *, repeat: bool) -> Result:
    """Serve the queries of a request by the door ("module:function"); print its scores where stdout is free.

    What the door returns, if anything, is called at the end: it lets clients go that have come for more queries.
    """
    try:
        through, ends = pick("door", door, {door: door}), list[Callable[[], None] | None]()
    except ModuleNotFoundError as error:
        extra = door.partition(":")[0].rpartition(".")[2]
        raise UsageError(f"this needs {error.name}, which is missing: pip install 'sextant[{extra}]'") from None
    serve_it = partial(serve, request, reward=reward, repeat=repeat, report=report)
    result = serve_it(lambda host: ends.append(through(host, place)))
    if place.transport != "stdio":  # whose protocol has stdout
        show_scores(result.json())
    for end in filter(None, ends):
        end()
    return result
