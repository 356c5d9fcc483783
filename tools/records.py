"""The nouns that every package shares.

A run's `outcomes.jsonl` is made of these: this is its reference, too.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple, cast

JsonObject = dict[str, Any]  # an object as JSON has it
JsonMapping = Mapping[str, Any]  # the same, if it is only read


@dataclass(frozen=True, slots=True)
class Document:
    """A retrievable unit. `text` is the whole of it; `title` is empty if the release has none."""

    doc_id: str
    text: str
    title: str = ""
    parent: str = ""  # the document that a passage was cut from; empty for a whole document


@dataclass(frozen=True, slots=True)
class Query:
    """An information need. A query is also all that a searcher learns about its task."""

    query_id: str
    text: str
    objective: str = (
        ""  # what counts as a find in this task, in words; programs show it to the model
    )
    excluded: frozenset[str] = (
        frozenset()
    )  # must not be shown: Writing-Style masks snippets of the same post
    candidates: frozenset[str] | None = (
        None  # the pool, where the task ranks one (BIRCO); None is the whole corpus
    )


class Hit(NamedTuple):
    """A retrieved document."""

    doc_id: str
    score: float  # larger is better; comparable only inside one result list


@dataclass(frozen=True, slots=True, eq=False)
class Hits(Sequence[Hit]):
    """The hits of a search, best first, in columns: to make a thousand records takes a fifth of a search."""

    doc_ids: list[str]
    scores: list[float]

    @classmethod
    def of(cls, hits: Iterable[Hit]) -> "Hits":
        """Return hits in columns."""
        if isinstance(hits, Hits):
            return hits
        pairs = list(hits)
        return cls([doc_id for doc_id, _ in pairs], [score for _, score in pairs])

    def __len__(self) -> int:
        return len(self.doc_ids)

    def __getitem__(self, position: Any) -> Any:  # a hit, or those of a slice
        if isinstance(position, slice):
            return Hits(self.doc_ids[position], self.scores[position])
        return Hit(self.doc_ids[position], self.scores[position])

    def __iter__(self) -> Iterator[Hit]:
        return map(Hit, self.doc_ids, self.scores)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # as of a list

    def __add__(self, other: Iterable[Hit]) -> list[Hit]:
        return [*self, *other]

    def __radd__(self, other: Iterable[Hit]) -> list[Hit]:
        return [*other, *self]


class Snippet(NamedTuple):
    """The part of a hit that a search system sees first."""

    doc_id: str
    title: str
    text: str
    score: float = 0.0  # the hit's


@dataclass(frozen=True, slots=True)
class Usage:
    """The usage of model calls. None as a price means that it is unknown; it never means free."""

    calls: int = 0  # that were answered
    repairs: int = 0  # those of the calls that asked again because an answer could not be used
    input_tokens: int = 0
    output_tokens: int = 0
    paid_usd: float | None = 0.0  # what this work cost now
    list_usd: float | None = 0.0  # what it costs at list price, cached or not
    cached_calls: int = (
        0  # those of the calls whose answer had been paid for before, by another query or run
    )
    cached_tokens: int = 0  # those of the input tokens that the provider had in its own cache
    reasoning_tokens: int = 0  # those of the output tokens that the model spent on thinking
    unmetered: int = (
        0  # those of the calls for which the provider reported no usage, or none that can be
    )

    def __add__(self, other: "Usage") -> "Usage":
        # Field by field: a query adds some usages for each of its calls
        return Usage(
            self.calls + other.calls,
            self.repairs + other.repairs,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            _sum_prices(self.paid_usd, other.paid_usd),
            _sum_prices(self.list_usd, other.list_usd),
            self.cached_calls + other.cached_calls,
            self.cached_tokens + other.cached_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
            self.unmetered + other.unmetered,
        )


NO_USAGE = Usage()


def _sum_prices(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else first + second


def check_usage(usage: Usage) -> None:
    """Raise ValueError for a number below 0, or a value that is no number: usage never decreases."""
    for name in Usage.__slots__:
        amount = getattr(usage, name)
        if amount is not None and not 0 <= amount < float("inf"):
            raise ValueError(f"a usage has {name} = {amount}; write a number of at least 0")


def total(usages: Iterable[Usage]) -> Usage:
    """Return the sum of usages; without any, no calls and no cost."""
    return sum(usages, NO_USAGE)


Tool = Literal[
    "search",
    "more",
    "grep",
    "phrase",
    "count",
    "read",
    "judge",
    "select",
    "drop",
    "note",
    "notes",
    "rank",
    "shorten",
    "forget",
    "repeat",
    "salvage",
    "files",
    "stop",
]
# The steps whose documents came out of the corpus; all others name documents that had surfaced.
SURFACING: tuple[Tool, ...] = ("search", "more", "grep", "phrase")
Span = tuple[int, int]  # characters of a text, from the first to before the last


@dataclass(frozen=True, slots=True)
class Step:
    """An event of a session, with its documents.

    search   `argument` is the text; `doc_ids` came back, best first; `shown` if a model saw snippets
    more     the next documents of an earlier search, which is `argument`, after its `first`
    grep     documents with lines that match the regular expression `argument`; `spans` were shown
    phrase   documents with the words of `argument` in this order; `spans` were shown
    count    document frequencies of the words in `argument`; it names no documents
    read     a single document; `shown` of its `lengths` characters
    judge    documents shown together to a model; `shown` and `lengths` for each
    select   ids that were kept
    drop     ids that were shown and passed over
    note     `argument` is the text
    notes    the notes so far, which were shown again
    rank     `doc_ids` are in the order that was made
    shorten  `argument` names the part left out of a prompt, so that the prompt fits the model
    forget   documents of which all text left the prompt before they were selected
    repeat   a search, a reading or a note that was made before, so nothing was done; `argument` is
             its text, or the id of the document, and `repeated` its kind
    salvage  `argument` says which part of an unusable answer is used, or what is used for want of one
    files    an agent has the documents as files, and may read them without a step; `doc_ids` are
             such as it named and no step had shown
    stop     `argument` is the reason
    """

    tool: Tool
    argument: str = ""
    doc_ids: tuple[str, ...] = ()
    hop: int = 0  # from 1; 0 is outside any hop
    started: float = 0.0  # seconds since the session was opened: the end of the step before
    seconds: float = 0.0  # until this step was done, model calls included
    usage: Usage = field(default_factory=Usage)  # of the model calls since the step before
    calls: tuple[str, ...] = ()  # keys of those of them whose answers are kept, in order
    retriever: str = ""
    k: int = 0
    instruction: str = ""  # what the search was told instead of the query's objective
    cut: int = 0  # tokens at the end of the text that the retriever's model did not take
    among: bool = False  # a search that ordered what had surfaced, and could surface nothing
    shown: tuple[int, ...] = ()  # characters shown of each document
    lengths: tuple[int, ...] = ()  # characters that each document has
    # Which characters of each document were shown; without it, they are those at its beginning
    spans: tuple[tuple[Span, ...], ...] = ()
    first: int = 0  # documents of the ranking before those of a `more`
    partial: str = ""  # why a scan of the corpus ended before its end
    refused: str = ""  # why the call was refused; it then has no documents
    repeated: Literal["", "search", "read", "note"] = ""  # the kind of step that a repeat repeats


@dataclass(slots=True)
class Trace:
    """The events of a query's session, in order."""

    query_id: str
    steps: list[Step] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    invented_ids: int = 0  # ids that a model named without having been shown them; dropped
    unusable: dict[str, int] = field(
        default_factory=dict
    )  # answers of which no part was used, by kind
    used_in_part: dict[str, int] = field(default_factory=dict)  # other faulty answers, by kind
    fallbacks: int = 0  # calls after whose answers the program went on without any
    followed: dict[str, str] = field(
        default_factory=dict
    )  # documents that speak to the model -> what it then did
    calls: list[str] = field(default_factory=list)  # keys of model calls after the last step


@dataclass(frozen=True)
class Submission:
    """The submission of a search system for a query: a dspy.Prediction with these fields."""

    ranking: tuple[str, ...]  # doc ids, best first, each at most once
    trace: Trace
    answer: str = ""  # empty when the task asks only for documents
    usage: Usage = field(default_factory=Usage)  # of all model calls of the session
    # One per ranked document, never rising, where the system gives any; in a comparison of pairs, a
    # tie is a loss.
    scores: tuple[float, ...] = ()

    def __new__(cls, *_: Any, **__: Any) -> "Submission":
        """Make a dspy.Prediction."""
        import dspy  # takes long, and --help of commands reads this file

        submission_class = globals().get("_made") or type(
            "Submission", (Submission, dspy.Prediction), {}
        )
        return cast(
            Submission, object.__new__(globals().setdefault("_made", submission_class))
        )  # one class for all threads

    def __post_init__(self) -> None:
        super().__init__(**vars(self))  # of dspy.Prediction, for which fields are keys as well

    def __reduce__(self) -> tuple[Any, ...]:
        return Submission, tuple(getattr(self, field.name) for field in fields(self))


def step_json(step: Step) -> JsonObject:
    """Write a step as JSON: tool, argument and doc_ids always, other fields if they are not empty.

    `sextant.tools.schemas.build_dataclass` reads it, and a trace; keys that a later version added are ignored.
    """
    row: JsonObject = {
        "tool": step.tool,
        "argument": step.argument,
        "doc_ids": list(step.doc_ids),
    }
    row |= {"hop": step.hop, "started": round(step.started, 4), "seconds": round(step.seconds, 4)}
    if step.usage != NO_USAGE:
        row["usage"] = usage_json(step.usage)
    if step.tool in ("search", "more"):
        row |= {"retriever": step.retriever, "k": step.k}
    row |= {
        name: value
        for name in ("instruction", "cut", "among", "refused", "repeated", "first", "partial")
        if (value := getattr(step, name))
    }
    if step.spans:
        row["spans"] = [[list(span) for span in spans] for spans in step.spans]
    return row | {
        name: list(value)
        for name in ("calls", "shown", "lengths")
        if (value := getattr(step, name))
    }


def usage_json(usage: Usage) -> JsonObject:
    """Write usage as JSON, as in files and --json; the last four fields only if they are not 0."""
    names = Usage.__slots__
    return {
        name: value for name in names if (value := getattr(usage, name)) != 0 or name in names[:6]
    }


def requests_json(usage: Usage) -> JsonObject:
    """Write the usage of requests as JSON: without repairs, which the program of a query counts."""
    row = usage_json(usage)
    del row["repairs"]
    return row


def usage_from_json(row: JsonObject) -> Usage:
    """Read the output of `usage_json`; keys that a later version added are ignored."""
    return Usage(**{name: row[name] for name in Usage.__slots__ if name in row})


def trace_json(trace: Trace) -> JsonObject:
    """Write a trace as JSON.

    Counts are sorted: parallel lines of work count in the order of their threads.
    """
    return {
        "steps": [step_json(step) for step in trace.steps],
        "notes": list(trace.notes),
        "invented_ids": trace.invented_ids,
        "unusable": dict(sorted(trace.unusable.items())),
        **(
            {"used_in_part": dict(sorted(trace.used_in_part.items()))} if trace.used_in_part else {}
        ),
        **({"fallbacks": trace.fallbacks} if trace.fallbacks else {}),
        "followed": dict(sorted(trace.followed.items())),
        **({"calls": list(trace.calls)} if trace.calls else {}),
    }
