"""A search session: the only way a program or an agent touches a corpus.

A `Toolbox` is the shared, read-only side (documents and retriever); `open` starts a `Session`, the private
side of one query: limits, exclusions, candidate pool, trace. Neither leads to a judgement, so no searcher comes
by one by mistake; a program that means to does (docs/decisions/isolation.md). Exclusions and pools are enforced here,
those of the query that is asked (`asking`); evals/running/runner.py holds what is handed in against them once more.
"""

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

from tools.errors import (
    BudgetReached,
    DataError,
    DocumentNotFound,
    LimitReached,
    ProviderRefused,
    RunIncomplete,
    UsageError,
)
from tools.injection import appeal
from tools.records import (
    Document,
    Query,
    Snippet,
    Step,
    Submission,
    Tool,
    Trace,
    Usage,
    trace_from_json,
    trace_json,
    usage_from_json,
    usage_json,
)
from tools.retriever import Retriever

_CURRENT: ContextVar["Session | None"] = ContextVar("session", default=None)
_ASKED: ContextVar[Query | None] = ContextVar("asked", default=None)
_BRANCH: ContextVar["_Branch | None"] = ContextVar("branch", default=None)


def current() -> "Session | None":
    """The open session of this context: who pays for a model call, and whose trace a crash leaves."""
    return _CURRENT.get()


@contextmanager
def asking(query: Query) -> Iterator[None]:
    """Hold the sessions that are opened in the block, in its context, to the query that is asked.

    They have its exclusions and its pool, whatever query a program makes of it, such as one with other words.
    """
    token = _ASKED.set(query)
    try:
        yield
    finally:
        _ASKED.reset(token)


def enter(session: "Session | None") -> None:
    """Make `session` that of this context; None where one has ended."""
    _CURRENT.set(session)


@dataclass(frozen=True, slots=True)
class Limits:
    """What one session may use; None is no limit. Counts are calls, lengths are characters."""

    searches: int | None = None
    reads: int | None = None
    snippet_chars: int = 300
    calls: int | None = None  # of a model, those whose answers were kept among them
    tokens: int | None = None  # of prompts and answers together; a call that begins below may end above
    depth: int = 1000  # documents in the ranking that is made where a limit ends a session


@dataclass(slots=True)
class _Branch:
    """Where one line of work of a session stands. Parallel lines of one query have one each."""

    session: "Session"
    hop: int
    last: float  # when its last step was done, by the session's clock
    pending: Usage = field(default_factory=Usage)  # of model calls that no step has taken yet
    steps: list[Step] | None = None  # of a numbered line, until they are joined; else they go into the trace at once


class Toolbox:
    """The world that all queries of a run share. Threads may use it; nothing in it changes."""

    def __init__(
        self,
        documents: Mapping[str, Document],
        retriever: Retriever,
        *,
        others: Mapping[str, Retriever] | None = None,
        limits: Limits = Limits(),  # frozen, so sharing the default is safe
        clock: Callable[[], float] = time.perf_counter,
        checkpoints: Path | None = None,
    ) -> None:
        """`others` are retrievers that a search may name; `checkpoints` is a folder for what an agent keeps on disk."""
        self.checkpoints = checkpoints
        self._documents = documents
        self._retrievers = {"": retriever, **(others or {})}
        self._limits = limits
        self._clock = clock

    def open(self, query: Query, snapshot: Mapping[str, Any] | None = None) -> "Session":
        """Start the private side of `query`, and make it this context's current session.

        With a `snapshot` of an earlier session of the same query, it goes on where that one stood. ValueError for
        another query than the one that is being asked (`asking`).
        """
        if (asked := _ASKED.get()) is not None:
            if query.query_id != asked.query_id:
                raise ValueError(
                    f"a session was opened for query {query.query_id!r}, and {asked.query_id!r} is asked; "
                    "open it with the query that the program was given"
                )
            query = replace(query, excluded=asked.excluded, candidates=asked.candidates)
        session = Session(query, self._documents, self._retrievers, self._limits, self._clock)
        if snapshot:
            session.restore(snapshot)
        enter(session)
        return session

    def __deepcopy__(self, memo: object) -> Self:
        # DSPy's optimizers deep-copy programs; the corpus is the world, not a parameter.
        return self


class Session:
    """One query's view of the corpus. Every call but `whole`, which shows nobody anything, leaves a step in `trace`."""

    def __init__(
        self,
        query: Query,
        documents: Mapping[str, Document],
        retrievers: Mapping[str, Retriever],
        limits: Limits,
        clock: Callable[[], float],
    ) -> None:
        self.trace = Trace(query.query_id)
        self._query = query
        self._documents = documents
        self._retrievers = retrievers
        self._limits = limits
        self._clock = clock
        self._opened = clock()
        self._root = _Branch(self, 0, self._opened)
        self._surfaced = set(query.candidates or ()) - query.excluded
        self._shown: set[str] = set()
        self._spent = Usage()
        self._used: Counter[Tool] = Counter()
        self._lines: dict[int, list[Step]] = {}  # steps of numbered lines that are not in the trace yet
        self._calls = 0  # that were allowed
        self._over = ""  # why no model may be called any more, once that is so
        self._asked: Counter[str] = Counter()
        self.fault: Exception | None = None  # why a provider left a call unanswered, if one did
        # LangGraph runs parallel nodes of one query in threads; they share this session.
        self._lock = threading.Lock()

    @property
    def query_id(self) -> str:
        """The query that this session is for."""
        return self._query.query_id

    @property
    def usage(self) -> Usage:
        """Of all model calls so far, also those after the last step."""
        with self._lock:
            return self._spent

    @property
    def hop(self) -> int:
        """The hop that is being made, from 1; set by the program, and written into every step."""
        return self._branch().hop

    @hop.setter
    def hop(self, hop: int) -> None:
        self._branch().hop = hop

    @contextmanager
    def branch(self, hop: int | None = None, *, line: int | None = None) -> Iterator[None]:
        """A line of work beside others, such as a node of a graph: its own hop, start times and pending usage.

        Holds for the calling context. What is left pending goes to the line that it branched off. Steps of a numbered
        `line` reach the trace when the lines are joined, so that their order is not that of the threads.
        """
        parent = self._branch()
        mine = _Branch(self, parent.hop if hop is None else hop, self._clock())
        if line is not None:
            with self._lock:
                mine.steps = self._lines.setdefault(line, [])
        token = _BRANCH.set(mine)
        try:
            yield
        finally:
            _BRANCH.reset(token)
            with self._lock:
                parent.pending += mine.pending
                parent.last = max(parent.last, mine.last)

    def join(self) -> None:
        """Put the steps of all numbered lines into the trace, line by line; for when none of them is at work."""
        with self._lock:
            for line in sorted(self._lines):
                self.trace.steps += self._lines[line]
                self.trace.notes += [step.argument for step in self._lines[line] if step.tool == "note"]
            self._lines.clear()

    def _branch(self) -> _Branch:
        branch = _BRANCH.get()
        return branch if branch and branch.session is self else self._root

    def charge(self, usage: Usage) -> None:
        """Book a model call on this query; the next step of the same line of work carries it."""
        with self._lock:
            self._branch().pending += usage
            self._spent += usage

    def asked_before(self, request: str) -> int:
        """How often the same request was made before in this session; each is a sample of its own."""
        with self._lock:
            self._asked[request] += 1
            return self._asked[request] - 1

    @property
    def limits(self) -> Limits:
        """What it may use."""
        return self._limits

    def allow_call(self) -> None:
        """Ask for one call of a model, before its answer is looked up or it is sent. Several tries are one call.

        LimitReached when there is none left; the session is over then, and only `submit` and `abandon` are left to do.
        UsageError when tokens are limited and a call has not said how many it used.
        """
        limits = self._limits
        if limits.calls is None and limits.tokens is None:
            return
        with self._lock:
            spent = self._spent.input_tokens + self._spent.output_tokens
            if limits.tokens is not None and self._spent.unmetered:
                raise UsageError(
                    "-P max_tokens cannot be kept: the provider did not report what a call used; use -P max_calls"
                )
            if not self._over and limits.calls is not None and self._calls >= limits.calls:
                self._over = f"all {limits.calls} model calls of this session are used"
            if not self._over and limits.tokens is not None and spent >= limits.tokens:
                self._over = f"all {limits.tokens} tokens of this session are used ({spent} so far)"
            if self._over:
                self._take_back()
                raise LimitReached(self._over)
            self._calls += 1

    def _take_back(self) -> None:
        """Nothing that was to be shown in a call that is not made was shown; the lock is held."""
        branch = self._branch()
        steps = self.trace.steps if branch.steps is None else branch.steps
        place = len(steps)
        called = branch.pending.calls > 0  # what came before the last call reached a model in it
        while place and not called:
            place -= 1
            step = steps[place]
            called = step.usage.calls > 0  # the call was made before this step
            if step.shown:
                steps[place] = replace(step, shown=(0,) * len(step.shown))

    def snapshot(self) -> dict[str, Any]:
        """Everything that `Toolbox.open` needs to go on from here in another process, as plain data."""
        with self._lock:
            return {
                "trace": trace_json(self.trace),
                "usage": usage_json(self._spent),
                "pending": usage_json(self._root.pending),
                "seconds": self._clock() - self._opened,
                "used": dict(self._used),
                "asked": dict(self._asked),
            }

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Take up where `snapshot` was made; for a session that has done nothing yet."""
        self.trace = trace_from_json(self.query_id, snapshot["trace"])
        self._spent = usage_from_json(snapshot["usage"])
        self._calls = self._spent.calls
        self._opened = self._clock() - snapshot["seconds"]
        self._root.pending = usage_from_json(snapshot["pending"])
        self._used.update(snapshot["used"])
        self._asked.update(snapshot["asked"])
        for step in self.trace.steps:
            if step.tool == "search":
                self._surfaced.update(step.doc_ids)
            if step.shown:
                self._shown.update(step.doc_ids)

    def search(
        self,
        text: str,
        k: int = 10,
        *,
        shown: bool = False,
        instruction: str | None = None,
        retriever: str = "",
        among: Collection[str] | None = None,
    ) -> list[Snippet]:
        """The `k` documents that best match `text`, best first; fewer when there are fewer.

        `shown` says that the snippets go to a model as they are, as an agent's search results do. `instruction`
        reaches retrievers that were trained with one; it is the query's objective where none is given. `retriever` is
        one of the toolbox' others; the run's own where none is named. `among` is for an order of what has surfaced
        already: of those documents, only what a search of the session returned comes back.
        """
        if retriever not in self._retrievers:
            raise UsageError(f"the toolbox has no retriever {retriever!r}; give it as one of its others")
        engine = self._retrievers[retriever]
        self._spend("search", text, self._limits.searches)
        query = self._query
        told = query.objective if instruction is None else instruction
        pool = query.candidates if among is None else self._surfaced.intersection(among)
        try:
            hits = engine.search(text, k, instruction=told, excluded=query.excluded, among=pool)
        except (BudgetReached, DataError, RunIncomplete, ProviderRefused) as fault:  # of embeddings, a server, an index
            self.fault = self.fault or fault
            raise
        found = [self._documents[hit.doc_id] for hit in hits]
        doc_ids = tuple(document.doc_id for document in found)
        cut = self._limits.snippet_chars
        snippets = [
            Snippet(document.doc_id, document.title, document.text[:cut], hit.score)
            for document, hit in zip(found, hits, strict=True)
        ]
        with self._lock:
            self._surfaced.update(doc_ids)
            self._shown.update(doc_ids if shown else ())
        self._record(
            "search",
            text,
            doc_ids,
            retriever=engine.name,
            k=k,
            instruction=instruction or "",
            cut=engine.left_out(text, told),
            among=among is not None,
            shown=tuple(len(snippet.text) for snippet in snippets) if shown else (),
            lengths=tuple(len(document.text) for document in found) if shown else (),
        )
        return snippets

    def read(self, doc_id: str, chars: int | None = None, *, fit: Callable[[str], str] = lambda text: text) -> str:
        """One document's text, cut to `chars`, and then by `fit`, which may shorten it further.

        Raises DocumentNotFound unless a search of this session returned it: an id that was guessed, or
        that is excluded for this query, does not exist.
        """
        self._spend("read", doc_id, self._limits.reads)
        try:
            text = self._find(doc_id).text
        except DocumentNotFound as refusal:
            self._record("read", doc_id, refused=str(refusal))
            raise
        shown = fit(text[:chars])
        with self._lock:
            self._shown.add(doc_id)
        self._record("read", doc_id, (doc_id,), shown=(len(shown),), lengths=(len(text),))
        return shown

    def judge(
        self,
        doc_ids: Sequence[str],
        chars: int | None = None,
        *,
        fit: Callable[[list[str]], list[str]] = lambda texts: texts,
    ) -> list[str]:
        """The texts of several documents that are about to be shown together to a model, cut as in `read`.

        `fit` may shorten them and leave out the last ones; what it returns is what is shown and recorded.
        """
        texts = [self._find(doc_id).text for doc_id in doc_ids]
        shown = fit([text[:chars] for text in texts])
        seen = tuple(doc_ids)[: len(shown)]
        with self._lock:
            self._shown.update(seen)
        lengths = tuple(map(len, texts))[: len(shown)]
        self._record("judge", "", seen, shown=tuple(map(len, shown)), lengths=lengths)
        return shown

    def whole(self, doc_id: str) -> str:
        """All of a document's text, for a program to count in. No step says so, because no model may see it.

        Raises DocumentNotFound as `read` does.
        """
        return self._find(doc_id).text

    def select(self, doc_ids: Iterable[str], among: Sequence[str]) -> list[str]:
        """Keep `doc_ids` out of the shown documents `among`; the rest of `among` is recorded as dropped.

        What a model named without having been shown it is left out and counted; repeats are left out.
        """
        named = list(dict.fromkeys(doc_ids))
        kept = [doc_id for doc_id in named if doc_id in among and doc_id in self._shown]
        self.invented(named)
        self._record("select", "", tuple(kept))
        self._note_appeals(kept, "selected")
        dropped = tuple(doc_id for doc_id in among if doc_id in self._shown and doc_id not in kept)
        self._record("drop", "", dropped)
        return kept

    def invented(self, doc_ids: Iterable[str]) -> None:
        """Count those of the ids that a model named which were not shown to it; `select` does so by itself."""
        with self._lock:
            self.trace.invented_ids += sum(doc_id not in self._shown for doc_id in set(doc_ids))

    def note(self, text: str) -> None:
        """Write `text` down; it goes into the trace."""
        with self._lock:
            if self._branch().steps is None:
                self.trace.notes.append(text)
        self._record("note", text)

    def rank(self, doc_ids: Sequence[str]) -> None:
        """Record an order that a model gave."""
        self._record("rank", "", tuple(doc_ids))
        self._note_appeals(doc_ids[:1], "ranked first")

    def shorten(self, what: str) -> None:
        """Record what was left out of a prompt for it to fit the model, in words."""
        self._record("shorten", what)

    def unusable(self, kind: str) -> None:
        """Count an answer of a model that could not be used."""
        with self._lock:
            self.trace.unusable[kind] = self.trace.unusable.get(kind, 0) + 1

    def blame(self, words: str, what: str) -> None:
        """A model answered with `words` that only a document can have given it.

        Noted are the shown ones that have them and speak to the model.
        """
        if words := words.strip():
            whole = re.compile(rf"(?<!\w){re.escape(words)}(?!\w)")  # "d1" is not in "d12"
            # The words alone are looked for first: most texts lack them, and the pattern takes a hundred times as long.
            self._note_appeals(
                self._shown_so_far(), what, lambda text: bool(words in text and whole.search(text) and appeal(text))
            )

    def leaked(self) -> None:
        """A model has answered with its prompt: note the shown documents that ask for that."""
        self._note_appeals(self._shown_so_far(), "printed the prompt", lambda text: appeal(text) == "prompt")

    def _note_appeals(
        self, doc_ids: Iterable[str], what: str, asks: Callable[[str], bool] = lambda text: bool(appeal(text))
    ) -> None:
        """Note that `what` happened, for those of the documents that were shown to a model and ask for it."""
        for doc_id in doc_ids:
            if doc_id in self._shown and asks(self._documents[doc_id].text):
                with self._lock:
                    self.trace.followed.setdefault(doc_id, what)

    def _shown_so_far(self) -> list[str]:
        with self._lock:  # other lines of work go on showing
            return sorted(self._shown)

    def submit(
        self, ranking: Sequence[str], *, scores: Sequence[float] = (), why: str = "done", answer: str = ""
    ) -> Submission:
        """End the session with `ranking`, best first, and its `scores` where the system has any.

        ValueError when it repeats or invents a document, or when the scores don't fit it. Raises `fault` again
        when a model call failed and the program went on without the answer: such a ranking says nothing about
        the program.
        """
        if self.fault:
            raise self.fault
        if len(set(ranking)) < len(ranking):
            raise ValueError("the ranking names a document twice")
        if strange := [doc_id for doc_id in ranking if doc_id not in self._surfaced]:
            raise ValueError(f"the ranking names {strange[0]!r}, which no search of the session returned")
        if scores and (len(scores) != len(ranking) or any(a < b for a, b in pairwise(scores))):
            raise ValueError("the scores must be one a ranked document, and never rise")
        self.join()
        # Who goes on after a search was refused, and ends by itself, was ended by the limit all the same.
        refused = any(step.refused and step.tool == "search" for step in self.trace.steps)
        self._record("stop", "budget" if refused else why)
        if _CURRENT.get() is self:
            enter(None)  # what is asked of a model from here on is not for this query
        return Submission(tuple(ranking), self.trace, answer, self.usage, tuple(scores))

    def abandon(self, why: str) -> None:
        """End the session without a ranking, e.g. after an error; the trace stays."""
        self.join()
        self._record("stop", why)

    def _find(self, doc_id: str) -> Document:
        if doc_id not in self._surfaced or doc_id in self._query.excluded:
            raise DocumentNotFound(f"no document {doc_id!r} here; use a doc_id that a search returned")
        return self._documents[doc_id]

    def _spend(self, tool: Tool, argument: str, limit: int | None) -> None:
        with self._lock:
            granted = limit is None or self._used[tool] < limit
            self._used[tool] += granted
        if not granted:
            refusal = f"all {limit} {tool} calls of this session are used; submit now"
            self._record(tool, argument, refused=refusal)
            raise LimitReached(refusal)

    def _record(
        self,
        tool: Tool,
        argument: str = "",
        doc_ids: tuple[str, ...] = (),
        *,
        retriever: str = "",
        k: int = 0,
        instruction: str = "",
        cut: int = 0,
        among: bool = False,
        shown: tuple[int, ...] = (),
        lengths: tuple[int, ...] = (),
        refused: str = "",
    ) -> None:
        with self._lock:
            if self._over and tool != "stop":  # another line of work, that does not know it yet
                raise LimitReached(self._over)
            now, branch = self._clock(), self._branch()
            steps = self.trace.steps if branch.steps is None else branch.steps
            steps.append(
                Step(
                    tool=tool,
                    argument=argument,
                    doc_ids=doc_ids,
                    hop=branch.hop,
                    started=branch.last - self._opened,
                    seconds=now - branch.last,
                    usage=branch.pending,
                    retriever=retriever,
                    k=k,
                    instruction=instruction,
                    cut=cut,
                    among=among,
                    shown=shown,
                    lengths=lengths,
                    refused=refused,
                )
            )
            branch.pending = Usage()
            branch.last = now
