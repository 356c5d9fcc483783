"""A run whose queries are answered from outside: which query an episode gets, and where its outcome
goes.

`serve_episodes` opens the run folder, as sextant run does, lets `play` hand out the queries, and
scores the outcomes. A query's first submission is its outcome, on disk before anybody hears of it;
a query whose agent went away is handed out again. With `repeat`, queries go on being handed out for
training, and their results are scored, not kept. Once the budget is used up, by what agents report
or by the time that has passed, only the episodes that are open go on.

A thread takes locks in a fixed order: that of Clients (mcp.py), an Episode's (episode.py), the
Host's. Each is held while later locks are taken, never earlier locks, and no thread holds the locks
of two episodes. An episode's lock is held as long as its search takes, so nothing that others wait
for may wait for it.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from queue import SimpleQueue
from typing import Any

from sextant.evals import run_folder
from sextant.evals.run_folder import Outcome, RunFolder
from sextant.evals.running import evaluate, runner
from sextant.evals.running.earlier_usage import UNREPORTED
from sextant.evals.running.progress_display import report
from sextant.evals.running.request import Request
from sextant.evals.running.resolve import PreparedRun
from sextant.evals.scoring.score_run import record_test_use
from sextant.evals.scoring.score_table import show_scores
from sextant.evals.serving.client_config import ServerAddress
from sextant.evals.serving.episode import Episode, EpisodeFactory, Observation, RewardSettings
from sextant.programs.external_agent import Served
from sextant.tools.errors import BudgetReached, RunIncomplete, SessionRefusal, UsageError
from sextant.tools.models.call_limits import Budget
from sextant.tools.platform.cli import print_stderr
from sextant.tools.platform.installation import explain_missing
from sextant.tools.platform.interrupts import check_interrupts
from sextant.tools.platform.number_format import plural
from sextant.tools.plugins import describe_exception as describe_error
from sextant.tools.plugins import load_object
from sextant.tools.records import Usage
from sextant.tools.retrievers.base import Retriever

MOST = 64  # episodes open at a time
IDLE = 600.0  # seconds without an action, after which an episode makes room for another


class NoQueryAvailable(SessionRefusal):
    """No query can be handed out now: all are answered, or in others' hands, or the budget is used up."""


@dataclass(eq=False, slots=True)
class EpisodeServer(EpisodeFactory):
    """The episodes of a run. Threads share it."""

    _: KW_ONLY
    folder: RunFolder
    tell: Callable[[Outcome], None]
    retriever: Retriever  # for searches that belong to no session
    limits: Mapping[str, int]  # of each query
    budget: Budget = field(default_factory=Budget)
    repeat: bool = False
    most: int = MOST
    idle: float = IDLE
    _todo: deque[str] = field(init=False)
    _open: set[Episode] = field(init=False, default_factory=set)
    _lock: threading.RLock = field(init=False, default_factory=threading.RLock)
    _news: SimpleQueue[Outcome] = field(init=False, default_factory=SimpleQueue)

    def __post_init__(self) -> None:
        EpisodeFactory.__post_init__(self)
        self._todo = deque(
            query_id for query_id in self.queries if query_id not in self.folder.outcomes
        )

    def open(self, query_id: str = "") -> Episode:
        """Start an episode of a query that is not answered yet, by default the next.

        NothingOpen if there is none, or too many are open; UsageError for a query that there is not.
        """
        self._take_back(self.idle)
        with self._lock:
            try:
                self.budget.check()
            except BudgetReached as reached:
                raise NoQueryAvailable(f"{reached}; no further query is handed out") from None
            if len(self._open) >= self.most:
                raise NoQueryAvailable(
                    f"no more than {plural(self.most, 'episode')} may be open; end one, or come "
                    f"again later"
                )
            episode = EpisodeFactory.open(self, self._choose_query(query_id))
            if episode.query.query_id in self._todo:
                self._todo.remove(episode.query.query_id)
            self._open.add(episode)
            return episode

    def _choose_query(self, query_id: str) -> str:
        """Return `query_id`, by default the next query. NoQueryAvailable if it is not free."""
        if not self._todo and self.repeat:
            self._todo.extend(self.queries)
        if not query_id and not self._todo:
            raise NoQueryAvailable("every query is answered, or in others' hands")
        if query_id in self.queries and query_id not in self._todo and not self.repeat:
            raise NoQueryAvailable(f"query {query_id!r} is answered, or in another's hands")
        return query_id or self._todo[0]

    def _take_back(self, idle: float) -> None:
        """Hand out the queries of episodes again that were left alone for `idle` seconds."""
        with self._lock:
            episodes = list(self._open)
        for episode in episodes:  # without the lock: an episode takes its own first
            episode.leave_if_idle(idle)

    def act(
        self,
        episode: Episode,
        tool: str,
        arguments: Any,
    ) -> Observation:
        """Call a tool in an episode. RunIncomplete if that cannot be done now; its query is handed
        out again.
        """
        try:
            return episode.act(tool, arguments)
        except Exception as error:  # noqa: BLE001  # of a provider, an index or a user's retriever: others go on
            episode.leave()
            print_stderr(
                f"{tool[:60]} of query {episode.query.query_id}: {describe_error(error)}"
            )  # may name files of ours
            raise RunIncomplete("this cannot be done now; the query is handed out again") from None

    def keep(self, episode: Episode) -> None:
        """Write the outcome of an episode, if its query has none yet."""
        query = episode.query
        submission = episode.submission
        assert submission is not None
        if episode.reported == Usage():
            self.budget.resume(UNREPORTED, requests=1)
        with self._lock:
            if query.query_id not in self.folder.outcomes:
                outcome = {
                    "query_id": query.query_id,
                    **runner.submission_record(submission, query, self.environment.documents),
                    "seconds": round(time.monotonic() - episode.opened, 4),
                }
                self.folder.append(outcome)
                self._news.put(outcome)
            elif episode.reported != Usage():
                self.folder.note_left(query.query_id, episode.desk.session.usage)
            self._open.discard(episode)

    def leave(self, episode: Episode) -> None:
        """Hand the query of an episode out again."""
        with self._lock:
            query_id = episode.query.query_id
            if episode not in self._open:
                return
            self._open.remove(episode)
            if episode.reported != Usage():
                self.folder.note_left(query_id, episode.desk.session.usage)
            if query_id not in self.folder.outcomes and query_id not in self._todo:
                self._todo.append(query_id)

    def spend(self, usage: Usage) -> None:
        """Count an agent's reports on the budget of the run."""
        self.budget.resume(usage)

    def state(self) -> dict[str, int]:
        """Return how many queries there are, and how many of them are answered and open."""
        with self._lock:
            answered = len(self.folder.outcomes)
            return {
                "queries": len(self.queries),
                "answered": answered,
                "open": len(self._open),
            }

    @property
    def done(self) -> bool:
        """Whether every query is answered, or the budget used up and no episode open, so none is handed out again."""
        with self._lock:
            if not self.repeat and len(self.folder.outcomes) == len(self.queries):
                return True
            return not self._open and self._is_used_up()

    def _is_used_up(self) -> bool:
        """Whether the budget lets no further episode begin."""
        try:
            self.budget.check()
        except BudgetReached:
            return True
        return False

    def wait(self, ended: Callable[[], bool] = lambda: False) -> None:
        """Wait in the main thread until all is done or `ended`, and tell of outcomes as they come."""
        while not (self.done or ended()) or not self._news.empty():
            check_interrupts()
            if self._is_used_up():
                self._take_back(self.idle)  # which nobody opens another episode to do
            while not self._news.empty():
                self.tell(self._news.get())
            time.sleep(0.05)

    def close(self) -> None:
        """Take the episodes back that are open, but for such as something is being done in."""
        self._take_back(-1.0)


def open_training_pool(request: Request, reward: RewardSettings | None = None) -> EpisodeFactory:
    """Return the world of a request for training in this process: nothing is kept, but that test was looked at."""
    ready = evaluate.prepare_loaded(evaluate.load_run(_checked(request, reward)))
    if reward:
        record_test_use(ready.config, run_folder.run_path(request.runs, ready.config))
    assert isinstance(ready.system, Served)
    system = ready.system
    return EpisodeFactory(
        system.toolbox, ready.environment, system.depth, reward, system.tools, system.show_left
    )


def serve_episodes(
    request: Request,
    play: Callable[[EpisodeServer], None],
    *,
    reward: RewardSettings | None = None,
    repeat: bool = False,
    report: evaluate.Report | None = None,
) -> evaluate.Result:
    """Have `play` hand out the pending queries of a request's run, then score it; `problem` as for evaluation.run.

    The program is served:NAME, with the name of the agent.
    """

    def answer(ready: PreparedRun, folder: RunFolder, hooks: runner.QueryHooks) -> None:
        budget = ready.model.resources.budget
        assert isinstance(ready.system, Served)
        host = EpisodeServer(
            ready.system.toolbox,
            ready.environment,
            ready.system.depth,
            reward,
            ready.system.tools,
            ready.system.show_left,
            folder=folder,
            tell=hooks.outcome,
            retriever=ready.retrievers[0][1],
            limits=ready.resolved.limits,
            budget=budget,
            repeat=repeat,
            most=request.max_concurrent or MOST,
        )
        try:
            play(host)
        finally:
            host.close()
        if len(folder.outcomes) < len(host.queries):
            budget.check()

    return evaluate.run_request(_checked(request, reward), report, answer=answer)


def load_door(door: str) -> Any:
    """Return the function that a door, "module:function", names.

    UsageError for one whose packages are not installed.
    """
    try:
        return load_object("door", door, {door: door})
    except ModuleNotFoundError as error:
        extra = door.partition(":")[0].rpartition(".")[2]
        raise UsageError(f"it needs {explain_missing(error.name, extra)}") from None


def serve_command(
    door: str,
    request: Request,
    address: ServerAddress,
    reward: RewardSettings | None,
    *,
    repeat: bool,
) -> evaluate.Result:
    """Serve the queries of a request by the door ("module:function"); print its scores if stdout is free.

    A function that the door returns is called at the end: it lets clients go that have come for more queries.
    """
    through = load_door(door)
    ends = []
    result = serve_episodes(
        request,
        lambda host: ends.append(through(host, address)),
        reward=reward,
        repeat=repeat,
        report=report,
    )
    if address.transport != "stdio":  # whose protocol has stdout
        show_scores(result.json())
    for end in filter(None, ends):
        end()
    return result


def _checked(request: Request, reward: RewardSettings | None) -> Request:
    if reward and request.split != "dev" and not reward.allow_test:
        raise UsageError(
            f"rewards would tell how good answers to {request.split} queries are; "
            "take the split dev, or allow it (--allow-test)"
        )
    if not request.program.startswith("served:"):
        raise UsageError(f"an agent outside is called served:NAME, not {request.program}")
    if request.compiled or request.prompts:
        raise UsageError("an agent outside has prompts of its own; leave the option out")
    return replace(request, lm="offline")


serve = serve_episodes  # its name in Sextant 0.1, which guides documented; it goes with the next release
