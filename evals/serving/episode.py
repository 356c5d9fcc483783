"""A query as an episode: its actions, observations and rewards.

    episode = world.open()
    observation = episode.act("search", {"query": "ferry timetable"})
    observation = episode.act("submit", {"doc_ids": ["d1", "d7"]})

Every door (evals/serving/__init__.py) goes through `act`, so the same actions leave the same trace,
ranking and score whichever way they came. An observation is JSON, with texts of documents as
strings in it; judgements are never in it. Left out: who may open which query, and where outcomes go
(evals/serving/episode_server.py).
"""

import inspect
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from http import HTTPStatus
from threading import RLock
from types import MethodType
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, TypeAdapter
from typing_extensions import TypedDict

from sextant.evals.scoring.anytime_ranking import anytime_ranking, submit_anytime
from sextant.evals.scoring.metrics import (
    canonicalize_metric,
    check_metric,
    compute,
    is_pairwise,
    ranking_of,
)
from sextant.programs import DEFAULT_TOOLS
from sextant.programs.corpus_tools import list_tools, prepare
from sextant.programs.search_tools import (
    REPEATS,
    SHOWN_BEFORE,
    EarlierSearch,
    SearchTools,
    as_json,
    describe_tool,
    public_name,
)
from sextant.tools import schemas, session
from sextant.tools.errors import SessionRefusal, UsageError
from sextant.tools.models.answers.arguments import (
    NO_BOOLEAN,
    form_of,
    list_parameters,
    read_object,
)
from sextant.tools.models.answers.arguments import read as read_arguments
from sextant.tools.models.answers.checks import InvalidAnswer
from sextant.tools.records import SURFACING, JsonObject, Query, Submission, Usage, usage_json
from sextant.tools.schemas import Amount, Count, UsageSchema
from sextant.tools.session import Toolbox

TOOLS = ("search", "read", "select", "note", "submit")
# Of which documents the recall shapes a reward -> the steps of a trace that name them.
POTENTIALS = {"surfaced": SURFACING, "read": ("read",), "selected": ("select",)}
LONGEST_QUERY = 10_000  # characters
LONGEST_NOTE = 100_000
NOT_BOOKED = "what the agent has used is not booked: report it before submit"
_AROUND_IDS = " \t\r\n\"'`[]"  # what models write around an id
_TYPES: dict[Any, JsonObject] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    list[str]: {"type": "array", "items": {"type": "string"}},
    list[str] | None: {"type": "array", "items": {"type": "string"}},
    inspect.Parameter.empty: {},
}  # as JSON Schema has them


class Observation(NamedTuple):
    """The result of an action."""

    text: str  # JSON
    reward: float
    done: bool
    refused: HTTPStatus | None = None  # of an action that did nothing: its text has an "error"
    left: dict[str, int] | None = None  # what the limits leave, if the agent is told

    def with_left(self) -> str:
        """Return the text, and in a second line what the limits leave, if the agent is told."""
        return self.text if self.left is None else f"{self.text}\n{as_json({'left': self.left})}"


class _EpisodeTools(SearchTools):
    """The tools of an episode, whose results keep their form when an agent repeats an action.

    The agent may be a script, and Sextant does not know which results it still has before it.
    """

    hides_shown = False

    def answer_repeated_search(self, earlier: EarlierSearch) -> str:
        """Return the hits of the earlier search without their texts, each with its `state`."""
        text = SHOWN_BEFORE
        if self.repeats >= REPEATS:
            text = f"{SHOWN_BEFORE[:-1]}; select the documents that fit, and {self.ending})"
        rows = []
        for snippet in earlier.snippets:
            doc_id = snippet.doc_id
            state = "read"
            if doc_id in self.selected:
                state = "selected"
            elif self.is_untried(doc_id):
                state = "only seen"
            rows.append({"doc_id": doc_id, "title": snippet.title, "text": text, "state": state})
        return as_json(rows)

    def answer_repeated_reading(self, doc_id: str, chars: int) -> str:
        """Return the text again."""
        text = self.session.read_whole(doc_id)
        return as_json({"doc_id": doc_id, "text": text[:chars] if chars else text})


class ReportedUsage(TypedDict, total=False):
    """The usage of an agent's own model as the agent reports it; a price that is left out is not known."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]  # as pydantic wants it

    calls: Annotated[Count, NO_BOOLEAN]
    tokens_in: Annotated[Count, NO_BOOLEAN]
    tokens_out: Annotated[Count, NO_BOOLEAN]
    usd: Annotated[Amount, NO_BOOLEAN]


@dataclass(frozen=True, slots=True)
class RewardSettings:
    """The reward of an episode: a metric of its submission, less its costs.

    With a `potential`, each step is rewarded by the change of the recall among the documents that surfaced, were read
    or were selected, and the last step takes the potential back (Ng, Harada and Russell, ICML 1999): the sum over an
    episode is the same with it and without.
    """

    metric: str = ""  # "" is the headline metric of the task
    potential: str = ""  # "" or one of POTENTIALS
    search_cost: float = 0.0  # for each search
    token_cost: float = 0.0  # for each token of a model that the agent reports
    allow_test: bool = False  # reward queries outside dev, too, at the end of an episode alone

    def __post_init__(self) -> None:
        if self.potential and self.potential not in POTENTIALS:
            raise UsageError(
                f"there is no potential {self.potential!r}; there are {', '.join(POTENTIALS)}"
            )
        for name in ("search_cost", "token_cost"):
            try:
                amount = schemas.validate(Amount, getattr(self, name))
            except ValueError:
                raise UsageError(
                    f"{name} is {getattr(self, name)!r}; "
                    "what is taken off a reward is a number of at least 0"
                ) from None
            object.__setattr__(self, name, amount)
        object.__setattr__(self, "metric", canonicalize_metric(self.metric))
        if self.metric:
            check_metric(self.metric)


@dataclass(frozen=True)
class EpisodeTool:
    """A tool of an episode; the first parameter of its function is the episode, or its SearchTools."""

    function: Callable[..., str]
    of_desk: bool = False

    @property
    def name(self) -> str:
        """Its name."""
        return self.function.__name__

    @cached_property
    def form(self) -> type[BaseModel]:
        """The form of its arguments."""
        return form_of(self.function)

    def bind(self, episode: "Episode") -> Callable[..., str]:
        """Return the function for an episode."""
        return MethodType(self.function, episode.desk if self.of_desk else episode)

    def call(self, episode: "Episode", arguments: Any) -> str:
        """Use it with arguments as they are sent."""
        return self.bind(episode)(**read_arguments(self.name, self.form, arguments))


@dataclass(eq=False, slots=True)
class EpisodeFactory:
    """Shared state of a task's episodes.

    `open` starts an episode; a subclass may choose its query, and keep its result.
    """

    toolbox: Toolbox
    environment: Any  # an Environment; None where others keep it, and queries are given one by one
    depth: int  # documents of a ranking
    reward: RewardSettings | None = (
        None  # None: every reward is 0, and nothing tells how good an answer was
    )
    named_tools: str = DEFAULT_TOOLS  # with commas between: programs/corpus_tools.py
    show_left: bool = False  # whether results say what the limits leave
    queries: dict[str, Query] = field(init=False)
    tools: dict[str, EpisodeTool] = field(init=False)  # by name

    def __post_init__(self) -> None:
        self.tools = list_episode_tools(self.named_tools)
        self.queries = self.environment.queries_by_id if self.environment else {}
        metric = self.reward and (self.reward.metric or self.environment.metric)
        if metric and is_pairwise(metric):
            raise UsageError(
                f"{metric} compares two queries, so it is no reward of one; name another --reward"
            )

    def open(self, query_id: str = "") -> "Episode":
        """Start an episode of a query, by default the first. UsageError for a query that there is not."""
        if query_id and query_id not in self.queries:
            raise UsageError(f"there is no query {query_id[:60]!r} here")
        return Episode(self, self.queries[query_id or next(iter(self.queries))])

    def keep(self, episode: "Episode") -> None:
        """Take the submission of an episode."""

    def leave(self, episode: "Episode") -> None:
        """Take back an abandoned episode."""

    def spend(self, usage: Usage) -> None:
        """Take the usage that an agent reports, if it counts on a budget."""

    def value(self, query_id: str, submission: Submission) -> float:
        """Return the metric of a submission; 0 if it is undefined."""
        return (
            compute(
                (self.reward and self.reward.metric) or self.environment.metric,
                query_id,
                {
                    query_id: ranking_of(
                        {"ranking": submission.ranking, "scores": submission.scores}
                    )
                },
                self.environment,
            )
            or 0.0
        )


class Episode:
    """A query, searched from outside. Threads may share it; their actions run one after another."""

    def __init__(self, world: EpisodeFactory, query: Query) -> None:
        self.world = world
        self.query = query
        self.submission: Submission | None = None
        self.over = False
        self.opened = time.monotonic()
        self.touched = self.opened  # when somebody last went on with it
        before = session.current()
        with session.for_query(query):
            self.desk = _EpisodeTools(world.toolbox.open(query), hops=0, ending="submit")
        prepare(self.desk, [tool.function for tool in world.tools.values()])
        session.set_current(before)
        self._lock = RLock()
        self.reported = Usage()  # what the agent says that it has used
        self.given = 0.0  # the sum of the rewards so far
        self._unit_of: Callable[[str], str] = str
        if world.reward:
            judgements = world.environment.judgements[world.environment.headline]
            self._unit_of = judgements.unit_of or str
            self._relevant = judgements.recalled(query.query_id).keys()

    def state(self) -> JsonObject:
        """Return the steps done so far, and what the limits leave; None is no limit."""
        with self._lock:
            steps = self.desk.session.trace.steps
            limits = self.desk.session.limits
            calls_by_tool = Counter[str](step.tool for step in steps if not step.refused)
            left: dict[str, int | None] = {**self.desk.session.left()}
            for name, tool in (("searches", "search"), ("reads", "read")):
                limit = getattr(limits, name)
                left[name] = None if limit is None else limit - calls_by_tool[tool]
            return {
                **query_for_agent(self.query),
                "over": self.over,
                "selected": [*self.desk.selected],
                "left": left,
                "steps": [
                    {"tool": step.tool, "argument": step.argument, "doc_ids": list(step.doc_ids)}
                    for step in steps
                ],
            }

    def act(self, tool: str, arguments: Any) -> Observation:
        """Use a tool, with arguments as tools/models/answers/arguments.py reads them.

        A refusal is seen, and no error; provider faults are raised, as FAULTS or DSPy's LM errors.
        """
        with self._lock, session.as_current(self.desk.session):
            if self.over:
                return Observation(
                    as_json({"error": "this episode is over"}),
                    0.0,
                    done=True,
                    refused=HTTPStatus.CONFLICT,
                )
            refused = None
            try:
                if tool not in self.world.tools:
                    raise InvalidAnswer(
                        "unknown tool",
                        f"there is no tool {tool[:60]!r}; there are {', '.join(self.world.tools)}",
                    )
                text = self.world.tools[tool].call(self, arguments)
            except (SessionRefusal, InvalidAnswer) as refusal:
                refused = (
                    HTTPStatus.CONFLICT
                    if isinstance(refusal, SessionRefusal)
                    else HTTPStatus.UNPROCESSABLE_ENTITY
                )
                text = as_json({"error": str(refusal)})
            finally:
                self.touch()
            told = self.world.show_left and not self.over
            left = self.desk.session.left() if told else None
            return Observation(text, self._reward(), self.over, refused, left)

    def run_command(self, name: str, words: Sequence[str]) -> str:
        """Search or read as a command of an agent with files asks (programs/document_files.py)."""
        with self._lock, session.as_current(self.desk.session):
            self.touch()
            return str(getattr(self.desk.files, f"run_{name}")(*words))

    def touch(self) -> None:
        """Note that somebody goes on with it."""
        self.touched = time.monotonic()

    def search(self, query: str, k: int = 10) -> str:
        """Search the collection; gives the best matches, each with its doc_id, title and the beginning of its text.

        Args:
            query: What to search for.
            k: How many documents to give.
        """
        return self.desk.search_once(query[:LONGEST_QUERY], min(k, self.world.depth))

    def read(self, doc_id: str, chars: int = 0) -> str:
        """Read a document that a search gave.

        Args:
            doc_id: Its doc_id.
            chars: How much of it to give, from its beginning; 0 is all.
        """
        return self.desk.read_once(self._list_shown([doc_id])[0], max(0, chars))

    def select(self, doc_ids: list[str]) -> str:
        """Keep documents that fit, likeliest first.

        Args:
            doc_ids: Their doc_ids, of documents that you have seen.
        """
        return self.desk.select(self._list_shown(doc_ids))

    def note(self, text: str) -> str:
        """Write a note for whoever looks at this search later.

        Args:
            text: What to note.
        """
        self.desk.session.note(text[:LONGEST_NOTE])
        return as_json({"noted": True})

    def submit(self, doc_ids: list[str] | None = None, answer: str = "") -> str:
        """Hand in the ranking, which ends this search.

        Args:
            doc_ids: The documents found, best first; without them, those selected, and then the others that were seen.
            answer: A text that answers the query, where one is wanted.
        """
        desk = self.desk
        session = self.desk.session
        named = list(dict.fromkeys(self._list_shown(doc_ids or [])))
        ranked = desk.known(named, self.query) if named else desk.rank_all()
        self._end(
            desk.hand_in(ranked, self.world.depth, answer=answer)
            if ranked
            else session.submit((), answer=answer)
        )
        unknown = [doc_id for doc_id in named if doc_id not in ranked]
        return as_json(
            {
                "submitted": len(ranked[: self.world.depth]),
                **({"unknown": unknown} if unknown else {}),
            }
        )

    def _list_shown(self, doc_ids: list[str]) -> list[str]:
        """Return the ids of a list, without the blanks and marks around those of documents.

        A lone text that has several of them is read as their list.
        """
        # The documents that the agent may name.
        surfaced = {
            *self.desk.best_rank,
            *((self.query.candidates or frozenset()) - self.query.excluded),
        }
        for separator in (
            (r"[,;\n]", r"\s") if len(doc_ids) == 1 and doc_ids[0] not in surfaced else ()
        ):
            names = [part.strip(_AROUND_IDS) for part in re.split(separator, doc_ids[0])]
            if surfaced.intersection(names):
                return list(filter(None, names))
        named = [
            title if doc_id not in surfaced and title in surfaced else doc_id
            for doc_id, title in zip(
                doc_ids, [doc_id.strip(_AROUND_IDS) for doc_id in doc_ids], strict=True
            )
        ]
        return self.desk.files.read_names(named) if self.desk.files else named

    def charge(self, reported: Any) -> None:
        """Book the reported usage of the agent's own model. UsageError if it does not fit `ReportedUsage`.

        SessionRefusal once the episode is over: its outcome is written, and nothing is booked.
        """
        try:
            used: ReportedUsage = schemas.validate(
                ReportedUsage,
                {name: value for name, value in read_object(reported).items() if value is not None},
                strict=False,
            )
        except ValueError as error:
            raise UsageError(f"what the agent has used cannot be booked: {error}") from None
        tokens_in = used.get("tokens_in", 0)
        tokens_out = used.get("tokens_out", 0)
        usd = used.get("usd")
        usage = Usage(used.get("calls", 1), 0, tokens_in, tokens_out, usd, usd)
        with self._lock:
            if self.over:
                raise SessionRefusal(f"query {self.query.query_id!r} is over; {NOT_BOOKED}")
            try:
                schemas.validate(UsageSchema, usage_json(self.desk.session.usage + usage))
            except ValueError as error:
                raise UsageError(
                    f"what the agent has used cannot be booked: in all, {error}"
                ) from None
            self.desk.session.charge(usage)
            self.reported += usage
            self.world.spend(usage)

    def cut(self, *, why: str = "budget") -> float:
        """End the episode with the ranking that its trace would have handed in by now; return the last reward.

        The trace says `why`: by default, because of a limit.
        """
        with self._lock:
            if self.over:
                return 0.0
            self._end(submit_anytime(self.desk.session, reason=why))
            return self._reward()

    def value_so_far(self) -> float:
        """Return the metric of its submission, or of the ranking that its trace would submit now."""
        with self._lock:
            return self.world.value(
                self.query.query_id,
                self.submission
                or Submission(anytime_ranking(self.desk.session), self.desk.session.trace),
            )

    def leave(self) -> None:
        """End the episode without an outcome: its query is asked again."""
        with self._lock:
            if not self.over:
                self.over = True
                self.world.leave(self)

    def leave_if_idle(self, seconds: float) -> None:
        """Leave it if it was abandoned for that long. While something is done in it, it is not idle."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            if time.monotonic() - self.touched > seconds:
                self.leave()
        finally:
            self._lock.release()

    def _end(self, submission: Submission) -> None:
        self.submission = submission
        self.world.keep(self)  # where this raises, as on a full disk, the episode can still be left
        self.over = True

    def _reward(self) -> float:
        """Return the reward of the steps since the last reward."""
        reward = self.world.reward
        # Outside dev, only the last reward, after the submission, is not 0.
        if not reward or not (self.submission or self.world.environment.split == "dev"):
            return 0.0
        steps = self.desk.session.trace.steps
        usage = self.desk.session.usage
        worth = -reward.search_cost * sum(step.tool in SURFACING for step in steps)
        worth -= reward.token_cost * (usage.input_tokens + usage.output_tokens)
        if self.submission:
            worth += self.world.value(self.query.query_id, self.submission)
        elif reward.potential and self._relevant:
            units = {
                self._unit_of(doc_id)
                for step in steps
                if step.tool in POTENTIALS[reward.potential]
                for doc_id in step.doc_ids
            }
            worth += len(units.intersection(self._relevant)) / len(self._relevant)
        paid_before = self.given
        self.given = worth
        return worth - paid_before + 0.0  # which is never -0.0


def query_for_agent(query: Query) -> dict[str, str]:
    """Return the texts that an agent gets of a query before it begins."""
    return {
        "query_id": query.query_id,
        "query": query.text,
        "objective": query.objective,
    }


def describe(tool: EpisodeTool) -> JsonObject:
    """Return the name, the description and the JSON Schema of the parameters of a tool."""
    summary, descriptions = describe_tool(tool.function)
    fields = {}
    required = []
    for parameter in list_parameters(tool.function):
        name = public_name(parameter.name)
        kind = parameter.annotation
        schema = _TYPES[kind] if kind in _TYPES else TypeAdapter(kind).json_schema()
        fields[name] = {**schema, "description": descriptions.get(parameter.name, "")}
        if parameter.default is parameter.empty:
            required.append(name)
        elif parameter.default is not None:
            fields[name]["default"] = parameter.default
    return {
        "name": tool.name,
        "description": summary,
        "parameters": {"type": "object", "properties": fields, "required": required},
    }


def rename_parameters(text: str) -> str:
    """Return a signature or a docstring with the names that clients know: `from` for `from_`."""
    return re.sub(r"\b([a-z]+)_:", r"\1:", text)


def list_episode_tools(named: str) -> dict[str, EpisodeTool]:
    """Return the tools of an episode by name: those that are `named`, select, note and submit.

    Their search and select are the episode's, which take what clients send in more forms.
    """
    own = {name: EpisodeTool(getattr(Episode, name)) for name in TOOLS}
    if named == DEFAULT_TOOLS:
        return own
    tools = {}
    for function in list_tools(named, runs_commands=True):
        name = function.__name__
        is_plain = function in (SearchTools.search, SearchTools.select)
        tools[name] = own[name] if is_plain else EpisodeTool(function, of_desk=True)
    return {**tools, "note": tools.get("note", own["note"]), "submit": own["submit"]}
