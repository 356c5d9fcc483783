"""A search session: the only way for a program or an agent to reach a corpus.

A `Toolbox` is the shared, read-only side (documents and retriever); `open` starts a `Session`, the
private side of a query. A session keeps to its limits, hides excluded documents and documents
outside the candidate pool, writes its trace (`TraceRecorder`) and notes which documents a model
followed (tools/text.py). Neither holds judgements (docs/guide/isolation.md).
"""

import operator
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

from sextant.tools import plugins
from sextant.tools.errors import (
    FAULTS,
    DataError,
    DocumentNotFound,
    LimitReached,
    SextantError,
    UsageError,
)
from sextant.tools.platform.files import sextant_home
from sextant.tools.platform.number_format import plural
from sextant.tools.records import (
    NO_USAGE,
    SURFACING,
    Document,
    Hits,
    JsonMapping,
    JsonObject,
    Query,
    Snippet,
    Span,
    Step,
    Submission,
    Tool,
    Trace,
    Usage,
    check_usage,
    trace_json,
    usage_from_json,
    usage_json,
)
from sextant.tools.text import injection_kind

if TYPE_CHECKING:  # NumPy is behind it, and --help of commands reads this file
    from sextant.tools.retrievers.base import Retriever
    from sextant.tools.text_scan import TextScanner, WordCounts

_CURRENT: ContextVar["Session | None"] = ContextVar("session", default=None)
_LINE: ContextVar["_Branch | None"] = ContextVar("line", default=None)
_ANSWERED: ContextVar[Query | None] = ContextVar("answered", default=None)
BOOKED: ContextVar[bool] = ContextVar(
    "booked", default=False
)  # whether who sends something keeps its books


def current() -> "Session | None":
    """Return the open session of this context: who pays for a model call, and whose trace a crash leaves."""
    return _CURRENT.get()


def set_current(session: "Session | None") -> None:
    """Make `session` the current one of this context, or None."""
    _CURRENT.set(session)


@contextmanager
def set_contextvar(variable: ContextVar[Any], value: Any) -> Iterator[None]:
    """Set a variable of this context in the block."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


# Gives sessions opened in the block the exclusions and the pool of a query, whatever a program
# makes of it.
for_query = partial(set_contextvar, _ANSWERED)
# Makes a session the current one in the block.
as_current = partial(set_contextvar, _CURRENT)
# Has `count_unmetered_request` count nothing of the block: who sends something there keeps its books.
usage_recorded_elsewhere = partial(set_contextvar, BOOKED, True)


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a session; None is no limit. Counts are calls, lengths are characters."""

    searches: int | None = None
    reads: int | None = None
    more: int | None = None
    grep: int | None = None
    phrase: int | None = None
    count: int | None = None
    snippet_chars: int = 300
    calls: int | None = None  # of a model, including those whose answers were kept
    tokens: int | None = (
        None  # of prompts and answers together; a call that begins below may end above
    )
    depth: int = 1000  # documents in the ranking that is made where a limit ends a session
    scan_seconds: float = 10.0  # of one grep or phrase, after which it is cut, and says so


def count_unmetered_request(to: str) -> None:
    """Record a request that the program sent with its own client. Its usage is unknown; the trace
    notes this once.
    """
    payer = current()
    if (
        payer is not None and not payer.closed and not BOOKED.get()
    ):  # a library's thread may outlive its query
        payer.charge(
            Usage(
                calls=1,
                paid_usd=None,
                list_usd=None,
                unmetered=1,
            )
        )
        message = f"sends to {to} by itself; what that used is not known"
        if message not in payer.trace.notes:
            payer.note(message)


# Where one is set, searches make spans, as where OpenTelemetry's SDK is loaded, which MLflow does:
# tools/otel_spans.py
_SENDING = (
    "OTEL_TRACES_EXPORTER",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
)
_ELSEWHERE = (
    "a query is answered in one process: a program may search, read and ask the model in threads, "
    "in no other process"
)
# Why a query names a document that none of its searches brought; dropping it keeps a ranking from
# depending on the queries before.
UNFOUND_ID = "invented, or kept in a cache from another query's search"
_World = tuple[
    Any,  # a Corpus; any mapping of documents, if nothing scans them
    "Mapping[str, Retriever]",
    Limits,
    Callable[[], float],
]  # of a toolbox


def _open_scanner(corpus: Any) -> "TextScanner":
    """Return what finds lines in the texts of a corpus; it is kept with the corpus."""
    kept = vars(corpus)
    if "scanner" not in kept:
        from sextant.tools.retrievers.lexical.word_index import WordIndex  # PyArrow and numba
        from sextant.tools.text_scan import TextScanner  # as above, and few runs scan

        kept["scanner"] = TextScanner(corpus, WordIndex(corpus, sextant_home()))
    scanner: TextScanner = kept["scanner"]
    return scanner


# Tools whose limit is called by another name than they.
_LIMITS = {"search": "searches", "read": "reads"}
# Tools whose calls can be limited.
_LIMITED: tuple[Tool, ...] = ("search", "more", "grep", "phrase", "count", "read")


class _Ranking(NamedTuple):
    """A ranking that was made by a search, to go on in."""

    retriever: str
    hits: Hits


class Excerpt(NamedTuple):
    """Lines of a document around a match."""

    doc_id: str
    title: str
    line: int  # of the match, from 1
    text: str
    first: int = 0  # the line at which the text begins


class Excerpts(NamedTuple):
    """The result of a scan of all texts."""

    rows: list[Excerpt]
    lines: int  # that match in all, or until the scan was cut
    documents: int
    partial: str  # why the scan was cut; "" if it was not


class SharedOnDeepcopy:
    """An object that is shared if DSPy's optimizers deep-copy a program or its model: a
    connection, a ledger, the corpus.
    """

    def __deepcopy__(self, memo: object) -> Self:
        return self


class Toolbox(SharedOnDeepcopy):
    """The corpus, retrievers and limits that all queries of a run share. Immutable, so threads share it."""

    def __init__(
        self,
        documents: Mapping[str, Document],
        retriever: "Retriever",
        *,
        others: "Mapping[str, Retriever] | None" = None,
        limits: Limits | None = None,
        clock: Callable[[], float] = time.perf_counter,
        checkpoints: Path | None = None,
    ) -> None:
        """`others` are retrievers that a search may name; `checkpoints` is a folder for files of
        an agent.
        """
        self.checkpoints = checkpoints
        self._world: _World = (
            documents,
            {"": retriever, **(others or {})},
            limits or Limits(),
            clock,
        )
        if any(map(os.environ.get, _SENDING)):
            from sextant.tools import otel_spans  # OpenTelemetry, which most runs go without

            otel_spans.start()

    @property
    def documents(self) -> Any:
        """The corpus, from which files are made before any query."""
        return self._world[0]

    @property
    def limits(self) -> Limits:
        """The limits of each session."""
        return self._world[2]

    def open(self, query: Query, snapshot: JsonMapping | None = None) -> "Session":
        """Start the private side of `query`, or go on from a `snapshot` of it, and make it this context's session.

        ValueError for another query than the query that is being answered (`for_query`).
        """
        if (answered := _ANSWERED.get()) is not None:
            if query.query_id != answered.query_id:
                message = (
                    f"a session was opened for query {query.query_id!r}, and "
                    f"{answered.query_id!r} is asked"
                )
                raise ValueError(f"{message}; open it with the query that the program was given")
            query = replace(query, excluded=answered.excluded, candidates=answered.candidates)
        session_class = Session
        if "opentelemetry.sdk.trace" in sys.modules:
            from sextant.tools import otel_spans  # as above

            session_class = otel_spans.watch(Session)
        session = session_class(query, self._world, snapshot or {})
        set_current(session)
        return session


def _is_of_provider(error: Exception) -> bool:
    """Return whether an exception is DSPy's for a model's provider, without importing DSPy."""
    dspy = sys.modules.get("dspy")
    return dspy is not None and isinstance(error, dspy.LMError)


@dataclass(slots=True)
class _Branch:
    """The state of a line of work in a session. Each parallel line of a query has its own."""

    recorder: "TraceRecorder"
    hop: int
    last: float  # when its last step was done, by the session's clock
    steps: list[
        Step
    ]  # those of a numbered line are its own until the lines are joined, all others the trace's
    pending: Usage = field(default_factory=Usage)  # of model calls that no step has taken yet
    calls: list[str] = field(default_factory=list)  # their keys


class TraceRecorder:
    """Writes the trace of a query. Threads share it."""

    def __init__(self, query_id: str, clock: Callable[[], float], snapshot: JsonMapping) -> None:
        """Continue from the `snapshot` of an earlier trace of the same query; an empty snapshot
        starts a new trace.
        """
        self.query_id = query_id
        self.trace = Trace(query_id)
        if snapshot:
            from sextant.tools import (
                schemas,  # Pydantic is behind it, and --help of commands reads this file
            )

            self.trace = schemas.build_dataclass(Trace, {"query_id": query_id, **snapshot["trace"]})
        self.usage = (
            usage_from_json(snapshot["usage"]) if snapshot else Usage()
        )  # of all model calls so far
        self._lock = RLock()  # LangGraph runs parallel nodes of one query in threads
        self._clock = clock
        opened_at = clock()
        self._opened = opened_at - snapshot.get("seconds", 0.0)
        pending = usage_from_json(snapshot.get("pending", {}))
        self._root = _Branch(
            self, snapshot.get("hop", 0), opened_at, self.trace.steps, pending, self.trace.calls
        )
        # Steps of numbered lines that are not in the trace yet, and the calls that none of these
        # has taken.
        self._numbered: dict[int, tuple[list[Step], list[str]]] = {}

    @property
    def _line(self) -> _Branch:
        line = _LINE.get()
        return line if line and line.recorder is self else self._root

    @property
    def hop(self) -> int:
        """The hop that is being made, from 1; set by the program, and written into every step."""
        return self._line.hop

    @hop.setter
    def hop(self, hop: int) -> None:
        self._line.hop = hop

    @contextmanager
    def branch(self, hop: int | None = None, *, line: int | None = None) -> Iterator[None]:
        """Start a line of work in this context, such as a node of a graph: its own hop, start times
        and pending usage.

        Usage that no step took goes to the line that it branched off. Steps of a numbered `line`
        reach the trace when the lines are joined, so that their order does not depend on the
        threads.
        """
        parent = self._line
        with self._lock:
            steps, left = (
                (parent.steps, parent.calls)
                if line is None
                else self._numbered.setdefault(line, ([], []))
            )
        mine = _Branch(self, parent.hop if hop is None else hop, self._clock(), steps)
        token = _LINE.set(mine)
        try:
            yield
        finally:
            _LINE.reset(token)
            with self._lock:
                parent.pending += mine.pending
                left += mine.calls
                parent.last = max(parent.last, mine.last)

    def join(self) -> None:
        """Put the steps of all numbered lines into the trace, line by line, once all of them
        have ended.
        """
        with self._lock:
            for number in sorted(self._numbered):
                steps, left = self._numbered.pop(number)
                self.trace.steps += steps
                self._line.calls += left
                self.trace.notes += [step.argument for step in steps if step.tool == "note"]

    def charge(self, usage: Usage, key: str = "") -> None:
        """Book a model call on this query; the next step of the same line of work carries it, and
        the `key` it has.

        ValueError, and nothing is booked, if the usage has a number below 0.
        """
        check_usage(usage)
        with self._lock:
            self._line.pending += usage
            self._line.calls += [key] if key else []
            self.usage += usage

    def snapshot(self) -> JsonObject:
        """Return all that is needed to go on from here in another process, as plain data."""
        with self._lock:
            usage_totals = {
                "usage": usage_json(self.usage),
                "pending": usage_json(self._root.pending),
            }
            seconds = self._clock() - self._opened
            return {
                "trace": trace_json(self.trace),
                **usage_totals,
                "seconds": seconds,
                "hop": self._root.hop,
            }

    def _add(
        self, tool: Tool, argument: str = "", doc_ids: tuple[str, ...] = (), **details: Any
    ) -> None:
        time_now = self._clock()
        line = self._line
        started = line.last - self._opened
        seconds = time_now - line.last
        usage = line.pending
        calls = tuple(line.calls)
        hop = details.pop("hop", 0) or line.hop
        line.steps.append(
            Step(
                tool,
                argument,
                doc_ids,
                hop=hop,
                started=started,
                seconds=seconds,
                usage=usage,
                calls=calls,
                **details,
            )
        )
        if tool == "note" and line.steps is self.trace.steps:
            self.trace.notes.append(argument)
        line.pending = NO_USAGE
        line.last = time_now
        line.calls.clear()

    def _unshow(self) -> None:
        """Set `shown` to 0 on the steps since the last call that reached a model: a limit has
        refused their call.
        """
        line = self._line
        index = len(line.steps)
        called = line.pending.calls > 0
        while index and not called:
            index -= 1
            step = line.steps[index]
            called = step.usage.calls > 0  # the call was made before this step
            if step.shown:
                line.steps[index] = replace(step, shown=(0,) * len(step.shown))


class Session(TraceRecorder):
    """A query's view of the corpus. Every call that shows or orders documents leaves a step in
    `trace`.
    """

    def __init__(
        self,
        query: Query,
        world: _World,
        snapshot: JsonMapping,
    ) -> None:
        self._documents, self._retrievers, self.limits, clock = world
        super().__init__(query.query_id, clock, snapshot)
        self.fault: Exception | None = None  # why a provider left a call unanswered, if one did
        # Answers of which the program used all, or a part.
        self._usable = snapshot.get("usable", self.usage.calls)
        self._unusable: Exception | None = None  # of the last call that went on without an answer
        self.history = list[Any]()  # of its calls of a model, as DSPy keeps them
        self._query = query
        self._process = os.getpid()
        self._over = ""  # why nothing may be done any more, once that is so
        self.ended_by_limit = False  # whether calls or tokens were used up
        self.closed = False  # whether the query has been answered, or given up
        self._calls = snapshot["usage"]["calls"] if snapshot else 0  # that were allowed
        self._used = Counter[str](snapshot.get("used", {}))  # searches and reads
        self._requests = Counter[str](snapshot.get("asked", {}))
        self._surfaced = set(query.candidates or ()) - query.excluded
        self._shown = set[str]()
        self._selected = set[str]()
        # Documents of a ranking that are kept for `more`; 0 keeps none.
        self.kept_depth = 0
        self._rankings = {
            text: _Ranking(retriever, Hits(doc_ids, scores))
            for text, retriever, doc_ids, scores in snapshot.get("rankings", ())
        }
        for step in self.trace.steps:  # of the snapshot
            self._surfaced.update(step.doc_ids if step.tool in SURFACING else ())
            self._shown.update(step.doc_ids if step.shown else ())
            self._selected.update(step.doc_ids if step.tool == "select" else ())

    def __reduce__(self) -> Any:
        """Refuse to be pickled: actions of another process on a copy would be in no trace."""
        raise UsageError(_ELSEWHERE)

    def snapshot(self) -> JsonObject:
        """Return all that `Toolbox.open` needs to go on from here in another process, as plain data."""
        with self._lock:
            return super().snapshot() | {
                "used": dict(self._used),
                "asked": dict(self._requests),
                "usable": self._usable,
                "rankings": [
                    [text, ranking.retriever, ranking.hits.doc_ids, ranking.hits.scores]
                    for text, ranking in self._rankings.items()
                ],
            }

    def count_request(self, request: str) -> int:
        """Count a model request by its digest; returns how often this session made it before: repeats are samples."""
        with self._lock:
            self._requests[request] += 1
            return self._requests[request] - 1

    def allow_call(self) -> None:
        """Count one model call before its answer is looked up or it is sent; retries are one call.

        LimitReached when there is none left; only `submit` and `abandon` work then. UsageError when tokens are limited
        and a call did not report how many it used.
        """
        limits = self.limits
        self._check_process()
        with self._lock:
            tokens = self.usage.input_tokens + self.usage.output_tokens
            if limits.tokens is not None and self.usage.unmetered:
                reason = "the provider did not report what a call used"
                raise UsageError(f"-P max_tokens cannot be kept: {reason}; use -P max_calls")
            for limit, used, noun in (
                (limits.calls, self._calls, "model call"),
                (limits.tokens, tokens, "token"),
            ):
                if not self._over and limit is not None and used >= limit:
                    beyond = f" ({used:,} so far)" if used > limit else ""
                    self._over = (
                        f"the limit of {plural(limit, noun)} of this session is reached{beyond}"
                    )
                    self.ended_by_limit = True
            if self._over:
                self._unshow()
                raise LimitReached(self._over)
            self._calls += 1

    def search(
        self,
        text: str,
        k: int = 10,
        *,
        shown: bool = False,
        instruction: str | None = None,
        retriever: str = "",
        among: Collection[str] | None = None,
        hop: int | None = None,
        seen: Collection[str] = (),
    ) -> list[Snippet]:
        """Return the `k` documents that match `text` best, best first, or fewer if there are fewer.

        `shown` says that the snippets go to a model as they are, unless it has `seen` all of these documents before.
        `instruction`, by default the query's objective, is
        for retrievers trained with instructions. `retriever` names another retriever of the
        toolbox; `among` keeps to such as surfaced.
        `hop` is the hop of the search, if other threads may begin the next hop meanwhile.
        """
        hits, record = self._retrieve(text, k, retriever, instruction, among)
        snippets = self._cut_snippets(hits)
        details: JsonObject = {"hop": hop or 0}
        if shown and not set(hits.doc_ids) <= set(seen):
            details |= self._show_snippets(snippets)
        record(**details)
        return snippets

    def more(self, text: str, first: int, k: int = 10) -> list[Snippet]:
        """Return `k` documents of the ranking of an earlier search for `text`, from the rank `first` on.

        They are for a model to see; ranks are from 1. Nothing is searched: the ranking was kept,
        for which `kept_depth` was set before the search. ValueError for another text or rank;
        LimitReached if no call is left.
        """
        ranking = self._rankings.get(text)
        if ranking is None or first < 1:
            raise ValueError(f"there is no rank {first} of a search for {text!r}")
        self._take("more", text)
        page = ranking.hits[first - 1 : first - 1 + k]
        with self._lock:
            self._surfaced.update(page.doc_ids)
        snippets = self._cut_snippets(page)
        self._record(
            "more",
            text,
            tuple(page.doc_ids),
            retriever=ranking.retriever,
            k=k,
            first=first - 1,
            **self._show_snippets(snippets),
        )
        return snippets

    def scan(
        self,
        tool: Literal["grep", "phrase"],
        words: str,
        k: int = 10,
        *,
        shown: bool = True,
        among: Collection[str] | None = None,
        **layout: Any,
    ) -> Excerpts:
        """Return lines of the stored texts that match the regular expression or have the phrase `words`.

        At most `k` lines with two around each, in the order of the corpus. `shown` says that a model
        sees them; `among` keeps to such as surfaced; `layout` has options of `TextScanner.grep`.
        ScanRefused for an expression that cannot be used; LimitReached if no scan is left.
        """
        self._take(tool, words)
        scanner = _open_scanner(self._documents)
        query = self._query
        found = (scanner.grep if tool == "grep" else scanner.phrase)(
            words,
            k,
            excluded=query.excluded,
            among=query.candidates if among is None else self._surfaced.intersection(among),
            seconds=self.limits.scan_seconds,
            **layout,
        )
        spans = dict[str, list[Span]]()
        excerpts = []
        for match in found.matches:
            document = self._documents[match.doc_id]
            spans.setdefault(match.doc_id, []).append((match.start, match.end))
            text = document.text[match.start : match.end]
            first = document.text.count("\n", 0, match.start) + 1
            excerpts.append(Excerpt(match.doc_id, document.title, match.line, text, first))
        with self._lock:
            self._surfaced.update(spans)
            self._shown.update(spans if shown else ())
        details: JsonObject = {}
        if shown:
            details["spans"] = tuple(map(tuple, spans.values()))
            details["shown"] = tuple(
                sum(end - start for start, end in parts) for parts in spans.values()
            )
            details["lengths"] = tuple(len(self._documents[doc_id].text) for doc_id in spans)
        self._record(tool, words, tuple(spans), k=k, partial=found.cut, **details)
        return Excerpts(excerpts, found.lines, found.documents, found.cut)

    def count(self, words: Sequence[str]) -> "WordCounts":
        """Return in how many documents each of the words is, and all of them together. LimitReached
        if no count is left.
        """
        argument = " ".join(words)
        self._take("count", argument)
        query = self._query
        counts: WordCounts = _open_scanner(self._documents).count(
            words,
            excluded=query.excluded,
            among=query.candidates,
            seconds=self.limits.scan_seconds,
        )
        self._record("count", argument, partial=counts.cut)
        return counts

    def _cut_snippets(self, hits: Hits) -> list[Snippet]:
        snippets = []
        for doc_id, score in zip(hits.doc_ids, hits.scores, strict=True):
            document = self._documents[doc_id]
            text = document.text[: self.limits.snippet_chars]
            snippets.append(Snippet(doc_id, document.title, text, score))
        return snippets

    def _show_snippets(self, snippets: Sequence[Snippet]) -> JsonObject:
        """Note that a model sees the snippets; return the fields of their step."""
        with self._lock:
            self._shown.update(snippet.doc_id for snippet in snippets)
        return {
            "shown": tuple(len(snippet.text) for snippet in snippets),
            "lengths": tuple(len(self._documents[snippet.doc_id].text) for snippet in snippets),
        }

    def find_hits(
        self,
        text: str,
        k: int,
        *,
        instruction: str | None = None,
        retriever: str = "",
        among: Collection[str] | None = None,
    ) -> Hits:
        """Search like `search`, for a program that needs only ids and scores: no document is read."""
        hits, record = self._retrieve(text, k, retriever, instruction, among)
        record()
        return hits

    def _retrieve(
        self,
        text: str,
        k: int,
        retriever: str,
        instruction: str | None,
        among: Collection[str] | None,
    ) -> tuple[Hits, Callable[..., None]]:
        """Count a search; return its hits, and a function that records it with further details."""
        k = operator.index(k)
        if retriever not in self._retrievers:
            raise UsageError(
                f"the toolbox has no retriever {retriever!r}; give it as one of its others"
            )
        if not isinstance(text, str):
            raise TypeError(f"search takes a text, not {type(text).__name__!r}")
        engine = self._retrievers[retriever]
        query = self._query
        self._take("search", text)
        objective = query.objective if instruction is None else instruction
        pool = query.candidates if among is None else self._surfaced.intersection(among)
        try:
            try:
                # A thread of a program's may have no session.
                with as_current(self), usage_recorded_elsewhere():
                    hits = engine.search(
                        text,
                        max(k, self.kept_depth),
                        instruction=objective,
                        excluded=query.excluded,
                        among=pool,
                    )
            except plugins.ENDS_PROCESS as error:
                plugins.refuse_end(error)
        except FAULTS as fault:  # of embeddings, a server, an index
            self.fault = self.fault or fault
            raise
        except Exception as error:
            if isinstance(error, SextantError) or _is_of_provider(error):
                raise
            # A full disk, too little memory, a broken index: no fault of the program, so no outcome
            # of its query.
            self.fault = self.fault or DataError(
                f"retriever {engine.name} failed: {type(error).__name__}: {plugins.show(error)}; "
                "the query stays pending, and the same command goes on once the retriever works"
            )
            raise self.fault from error
        if self.kept_depth:
            self._rankings[text] = _Ranking(engine.name, hits)
            hits = hits[:k]
        doc_ids = tuple(hits.doc_ids)
        with self._lock:
            self._surfaced.update(doc_ids)
        record = partial(
            self._record,
            "search",
            text,
            doc_ids,
            retriever=engine.name,
            k=k,
            instruction=instruction or "",
            cut=engine.left_out(text, objective),
            among=among is not None,
        )
        return hits, record

    def read(
        self,
        doc_id: str,
        chars: int | None = None,
        *,
        first: int = 0,
        fit: Callable[[str], str] = lambda text: text,
    ) -> str:
        """Return a document's text from its character `first` on, cut to `chars`, and then by `fit`.

        DocumentNotFound unless a search returned it.
        """
        self._take("read", doc_id)
        try:
            text = self.read_whole(doc_id)
        except DocumentNotFound as refusal:
            self._record("read", doc_id, refused=str(refusal))
            raise
        shown = fit(text[first:][:chars])
        self._show(
            "read",
            doc_id,
            [doc_id],
            [text],
            [shown],
            (((first, first + len(shown)),),) if first else (),
        )
        return shown

    def open_files(self) -> None:
        """Let an agent name all documents that the query may see, as it has their files."""
        if self._query.candidates is None:
            self._surfaced.update(self._documents.keys() - self._query.excluded)
        self._record("files")

    def record_unshown(self, doc_ids: Iterable[str]) -> tuple[str, ...]:
        """Record those documents that an agent names and no tool has shown, and return them."""
        with self._lock:
            unshown = tuple(
                doc_id
                for doc_id in dict.fromkeys(doc_ids)
                if doc_id in self._surfaced and doc_id not in self._shown
            )
            self._shown.update(unshown)
        if unshown:
            self._record("files", "", unshown)
        return unshown

    def read_whole(self, doc_id: str) -> str:
        """Return all of a document's text, for a program to count in; no model may see it, so it leaves no step."""
        if doc_id not in self._surfaced or doc_id in self._query.excluded:
            raise DocumentNotFound(
                f"no document {doc_id!r} here; use a doc_id that a search returned"
            )
        return str(self._documents[doc_id].text)

    def judge(
        self,
        doc_ids: Sequence[str],
        chars: int | None = None,
        *,
        fit: Callable[[list[str]], list[str]] = list,
    ) -> list[str]:
        """Return the texts of documents to be shown together to a model, cut as in `read`; `fit` may drop the last."""
        texts = [self.read_whole(doc_id) for doc_id in doc_ids]
        shown = fit([text[:chars] for text in texts])
        self._show(
            "judge",
            "",
            doc_ids,
            texts,
            shown,
        )
        return shown

    def select(self, doc_ids: Iterable[str], among: Collection[str]) -> list[str]:
        """Keep the `doc_ids` that were shown `among` others, each once; drop the others, and count the invented."""
        named = list(dict.fromkeys(doc_ids))
        selected = [doc_id for doc_id in named if doc_id in among and doc_id in self._shown]
        self._selected.update(selected)
        self.count_invented(named)
        self._record("select", "", tuple(selected))
        self._note_followed("selected", selected)
        self._record(
            "drop",
            "",
            tuple(doc_id for doc_id in among if doc_id in self._shown and doc_id not in selected),
        )
        return selected

    def rank(self, doc_ids: Sequence[str]) -> None:
        """Record an order that a model gave."""
        self._record("rank", "", tuple(doc_ids))
        self._note_followed("ranked first", self._shown.intersection(doc_ids[:1]))

    def note(self, text: str) -> None:
        """Write `text` into the trace."""
        self._record("note", text)

    def note_at_end(self, text: str) -> None:
        """Write `text` into the trace, also after the query has been answered: the last words of an agent outside."""
        with self._lock:
            self._add("note", text)

    def list_notes(self) -> None:
        """Record that the notes so far were shown again."""
        self._record("notes")

    def repeat(self, tool: Tool, argument: str) -> None:
        """Record a repeated search, reading or note; it counts towards no limit and shows nothing."""
        self._record("repeat", argument, repeated=tool)

    def forget(self, doc_ids: Iterable[str]) -> None:
        """Record those documents as forgotten that were shown and are not selected: no text of them is in the
        prompt any more.
        """
        forgotten = [
            doc_id for doc_id in doc_ids if doc_id in self._shown and doc_id not in self._selected
        ]
        if forgotten:
            self._record("forget", "", tuple(forgotten))

    def shorten(self, what: str) -> None:
        """Record, in words, the part that was left out of a prompt to make it fit the model."""
        self._record("shorten", what)

    def count_invented(self, doc_ids: Iterable[str]) -> None:
        """Count the ids that a model named without having seen them; `select` does this already."""
        with self._lock:
            self.trace.invented_ids += len(set(doc_ids) - self._shown)

    def count_usable(self) -> None:
        """Count a model answer that the program uses, whole or in part."""
        with self._lock:
            self._usable += 1

    def count_unusable(self, kind: str) -> None:
        """Count a model answer that could not be used."""
        with self._lock:
            self.trace.unusable[kind] = self.trace.unusable.get(kind, 0) + 1

    def use_in_part(self, kind: str, part: str) -> None:
        """Count an answer that `count_unusable` counted as one that is used in part; record the part in words."""
        trace = self.trace
        with self._lock:
            left = trace.unusable.pop(kind) - 1
            trace.unusable |= {kind: left} if left else {}
            trace.used_in_part[kind] = trace.used_in_part.get(kind, 0) + 1
            self._usable += 1
        self._record("salvage", f"a part of an answer ({kind}): {part}")

    def go_on_without(self, error: Exception, values: str) -> None:
        """Record that the program goes on with `values`, in words, after answers that raised `error`."""
        with self._lock:
            self.trace.fallbacks += 1
            self._unusable = error
        self._record("salvage", f"no answer ({error}); goes on with {values}")

    def blame(self, words: str, what: str) -> None:
        """Note the shown documents that speak to the model and have the `words` with which it did `what`."""
        if words := words.strip():
            pattern = re.compile(rf"(?<!\w){re.escape(words)}(?!\w)")  # "d1" is not in "d12"
            # Most texts lack the words, and a pattern takes a hundred times as long to find that
            # out.
            self._note_followed(
                what,
                asks=lambda text: words in text and pattern.search(text) and injection_kind(text),
            )

    def note_leak(self) -> None:
        """Note the shown documents that ask for the prompt: a model has answered with it."""
        self._note_followed(
            "printed the prompt", asks=lambda text: injection_kind(text) == "prompt"
        )

    def _note_followed(
        self,
        what: str,
        doc_ids: Iterable[str] | None = None,
        asks: Callable[[str], object] = injection_kind,
    ) -> None:
        """For each document, by default of all shown, whose text `asks` for the action `what`,
        note that the model did it.
        """
        with self._lock:  # other lines of work go on showing
            chosen = sorted(self._shown) if doc_ids is None else doc_ids
        for doc_id in chosen:
            if asks(self._documents[doc_id].text):
                self.trace.followed.setdefault(
                    doc_id, what
                )  # one step of the interpreter: no lock is needed

    def submit(
        self,
        ranking: Sequence[str],
        *,
        scores: Sequence[float] = (),
        why: str = "done",
        answer: str = "",
    ) -> Submission:
        """End the session with `ranking`, best first, and its `scores` if the system has any.

        ValueError when it repeats or invents a document, or when the scores don't fit it. Raises
        `fault` if a provider left a call unanswered: such a ranking says nothing about the program.
        UnusableAnswer if the program went on without the answers of all its calls.
        """
        if self.fault:
            raise self.fault
        if self._unusable and not self._usable:
            raise self._unusable
        if len(set(ranking)) < len(ranking):
            raise ValueError("the ranking names a document twice")
        if not self._surfaced.issuperset(ranking):
            strange = next(doc_id for doc_id in ranking if doc_id not in self._surfaced)
            raise ValueError(
                f"the ranking names {strange!r}, which no search of the query returned: {UNFOUND_ID}"
            )
        rises = any(map(operator.lt, scores, scores[1:]))
        if scores and (len(scores) != len(ranking) or rises):
            raise ValueError("the scores must be one a ranked document, and never rise")
        self.join()
        # A program that goes on after a refused search, and ends by itself, was ended by the limit
        # all the same.
        refused = any(step.refused and step.tool in SURFACING for step in self.trace.steps)
        self._record("stop", "budget" if refused else why)
        self._close()
        if _CURRENT.get() is self:
            set_current(None)  # what is asked of a model from here on is not for this query
        return Submission(
            tuple(ranking),
            self.trace,
            answer,
            self.usage,
            tuple(scores),
        )

    def abandon(self, why: str) -> None:
        """End the session without a ranking, e.g. after an error; the trace stays."""
        self.join()
        self._record("stop", why)
        self._close()

    def _close(self) -> None:
        """Refuse requests of threads that the program has left behind."""
        self._over = self._over or "the query has been answered"
        self.closed = True

    @property
    def is_elsewhere(self) -> bool:
        """Return whether this process is not the process that answers the query."""
        return os.getpid() != self._process

    def _check_process(self) -> None:
        if self.is_elsewhere:
            raise UsageError(_ELSEWHERE)

    def left(self) -> dict[str, int]:
        """Return what each limit leaves, by its noun; limits that are not set are left out."""
        limits = self.limits
        used = {
            "model calls": (limits.calls, self._calls),
            "tokens": (limits.tokens, self.usage.input_tokens + self.usage.output_tokens),
        }
        for tool in _LIMITED:
            name = _LIMITS.get(tool, tool)
            used[name] = (getattr(limits, name), self._used[tool])
        return {
            name: max(0, limit - spent)
            for name, (limit, spent) in used.items()
            if limit is not None
        }

    def _take(self, tool: Tool, argument: str) -> None:
        """Count one use of a tool; LimitReached, which leaves a step, if there is none left."""
        self._check_process()
        most = getattr(self.limits, _LIMITS.get(tool, tool))
        with self._lock:
            granted = most is None or self._used[tool] < most
            self._used[tool] += granted
        if not granted:
            then = "submit now" if tool in _LIMITS else "go on with other tools, or submit"
            refusal = f"all {most} {tool} calls of this session are used; {then}"
            self._record(tool, argument, refused=refusal)
            raise LimitReached(refusal)

    def _show(
        self,
        tool: Tool,
        argument: str,
        doc_ids: Sequence[str],
        texts: list[str],
        shown: list[str],
        spans: tuple[tuple[Span, ...], ...] = (),
    ) -> None:
        """Record that a model is shown the first documents, as many as there are texts in `shown`."""
        shown_ids = tuple(doc_ids)[: len(shown)]
        with self._lock:
            self._shown.update(shown_ids)
        lengths = tuple(map(len, texts))[: len(shown)]
        self._record(
            tool,
            argument,
            shown_ids,
            shown=tuple(map(len, shown)),
            lengths=lengths,
            spans=spans,
        )

    def _record(
        self, tool: Tool, argument: str = "", doc_ids: tuple[str, ...] = (), **details: Any
    ) -> None:
        with self._lock:
            if self._over and tool != "stop":  # another line of work, that does not know it yet
                raise LimitReached(self._over)
            self._add(
                tool,
                argument,
                doc_ids,
                **details,
            )
