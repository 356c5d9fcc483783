"""The tools that a model is given: search, read and select, over the session of its query, with
texts as results.

Text of documents is JSON in these, and cannot open a field of a prompt
(docs/decisions/trust.md). The functions `search`, `read` and `select` use the desk of the
query that is being answered: a user's own program may import them, or ask for them
(programs/custom.py).
"""

import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial, wraps
from threading import Lock
from typing import Any, ClassVar, Literal, NamedTuple

import dspy

from sextant.tools.errors import DocumentNotFound, SessionRefusal, UsageError
from sextant.tools.models.answers.checks import Ids, InvalidAnswer
from sextant.tools.models.answers.fields import convert, fold_name
from sextant.tools.models.dspy_internals import dotdict
from sextant.tools.models.prompting import cut_to_share, escape_markers
from sextant.tools.platform.threads import REMEDY
from sextant.tools.records import Query, Snippet, Submission
from sextant.tools.session import UNFOUND_ID, Excerpts, Session, current
from sextant.tools.text import fold_words

A_READING = 0.25  # of the model's window that one document may take: several are read in one turn


REPEATS = 2  # in a row, after which a model is asked to finish with what it has
_MOST_IDS = 10  # unread documents that a model is reminded of
SHOWN_BEFORE = "(shown before)"


class EarlierSearch(NamedTuple):
    """A search of a model whose results it still has before it."""

    number: int  # among the searches of the query, from 1
    hop: int
    k: int
    snippets: list[Snippet]


class EarlierReading(NamedTuple):
    """A reading of a model that it still has before it."""

    hop: int
    chars: int  # characters that were asked for; 0 is all


class EarlierPage(NamedTuple):
    """How far a search's ranking was shown."""

    text: str  # of the search
    shown: int  # documents


class PassageText(str):
    """The text of a document that dspy.Retrieve found; `doc_id` is its id, for a ranking."""

    doc_id: str


class SearchResultText(str):
    """The text of a search that a model is shown; `snippets` has the hits for a program."""

    snippets: list[Snippet]

    def __new__(cls, shown: str, snippets: Iterable[Snippet] = ()) -> "SearchResultText":
        """Show a text; without snippets it says why the search was refused."""
        text = super().__new__(cls, shown)
        text.snippets = list(snippets)
        return text


@dataclass
class SearchTools:
    """The tools of a query, and the documents that they gathered.

    A model that repeats a search or a reading is told where its results stand, and is not shown
    them again.
    """

    # Whether texts are left out of a search that brings only documents that were shown before.
    hides_shown: ClassVar[bool] = True

    session: Session
    per_search: int = 10
    read_chars: int = 0
    selected: list[str] = field(default_factory=list)
    best_rank: dict[str, int] = field(default_factory=dict)
    hops: int | None = None  # searches so far, where each is a hop of its own
    ending: str = "finish"  # the word for ending the search
    repeats: int = 0  # in a row
    searches: dict[str, EarlierSearch] = field(default_factory=dict)  # by their words
    readings: dict[str, EarlierReading] = field(default_factory=dict)  # by document
    # Documents of searches that the model still has before it -> the latest hop that showed them
    visible: dict[str, int] = field(default_factory=dict)
    # The same of all tools: documents of which some text is before the model
    in_prompt: dict[str, int] = field(default_factory=dict)
    # Words of searches -> their texts, and how far their rankings were shown
    pages: dict[str, EarlierPage] = field(default_factory=dict)
    board: list[str] = field(default_factory=list)  # the model's notes
    files: Any = None  # the DocumentFiles of an agent that has them
    lock: Lock = field(default_factory=Lock, repr=False)  # threads of one query share the desk

    def find(self, text: str, k: int, seen: Iterable[str] = ()) -> list[Snippet]:
        """Search, and remember the best rank of each document. Nothing is shown if all documents were `seen`."""
        hop = None
        if self.hops is not None:
            with self.lock:
                self.hops += 1
                self.session.hop = hop = self.hops
        snippets = self.session.search(
            text,
            k,
            shown=True,
            hop=hop,
            seen=set(seen),
        )
        for rank, snippet in enumerate(snippets, start=1):
            self.best_rank[snippet.doc_id] = min(rank, self.best_rank.get(snippet.doc_id, rank))
        return snippets

    def search(self, query: str) -> str:
        """Search the collection; gives the best matches with their doc_id and the beginning of their text."""
        return self.search_once(query, self.per_search)

    def search_once(self, text: str, k: int) -> SearchResultText:
        """Search, and return the results as JSON.

        A search that was made before is not made again, and texts are left out if all documents
        were shown before (`hides_shown`).
        """
        words = fold_words(text)
        earlier = self.searches.get(words)
        if earlier and k <= earlier.k:
            self._count_repeat("search", text)
            return SearchResultText(self.answer_repeated_search(earlier), earlier.snippets[:k])
        seen = set(self.visible) if self.hides_shown else set[str]()
        snippets = self.find(text, k, seen)
        nothing_new = seen >= {snippet.doc_id for snippet in snippets}
        rows = []
        for snippet in snippets:
            row = {
                "doc_id": snippet.doc_id,
                "title": "" if nothing_new else snippet.title,
                "text": SHOWN_BEFORE if nothing_new else snippet.text,
            }
            rows.append(row)
        hop = self.session.hop
        with self.lock:
            self.repeats = 0
            number = len(self.searches) + 1
            self.searches[words] = EarlierSearch(number, hop, k, snippets)
            self.pages[words] = EarlierPage(text, len(snippets))
            if not nothing_new:
                self.visible.update(dict.fromkeys((row["doc_id"] for row in rows), hop))
                self._show(row["doc_id"] for row in rows)
        return SearchResultText(as_json(rows), snippets)

    def page(self, search: str, first: int) -> SearchResultText:
        """Go on in the ranking of an earlier search, from a rank, or after its last document that was shown."""
        words = fold_words(search)
        earlier = self.pages.get(words)
        if earlier is None:
            raise InvalidAnswer("wrong type", f"nothing was searched by {search[:60]!r} so far")
        start = first if first > 0 else earlier.shown + 1
        snippets = self.session.more(earlier.text, start, self.per_search)
        with self.lock:
            self.repeats = 0
            self.pages[words] = EarlierPage(earlier.text, start - 1 + len(snippets))
            for rank, snippet in enumerate(snippets, start):
                self.best_rank[snippet.doc_id] = min(rank, self.best_rank.get(snippet.doc_id, rank))
            self._show(snippet.doc_id for snippet in snippets)
        rows = [
            {"rank": rank, "doc_id": snippet.doc_id, "title": snippet.title, "text": snippet.text}
            for rank, snippet in enumerate(snippets, start)
        ]
        return SearchResultText(as_json(rows), snippets)

    def scan(self, tool: Literal["grep", "phrase"], words: str, k: int) -> Excerpts:
        """Return lines that match; their documents rank after those of searches, in the order of the corpus."""
        excerpts = self.session.scan(tool, words, k)
        with self.lock:
            self.repeats = 0
            for row in excerpts.rows:
                self.best_rank.setdefault(row.doc_id, self.session.limits.depth)
            self._show(row.doc_id for row in excerpts.rows)
        return excerpts

    def read_window(self, doc_id: str, first: int, chars: int) -> str:
        """Return `chars` characters of a document from `first` on, 0 all, as JSON with the length of its text."""
        doc_id = Ids(self.best_rank).find(doc_id) or doc_id
        first = max(0, first)
        chars = max(0, chars)
        fit = partial(cut_to_share, share=A_READING)
        try:
            text = self.session.read(doc_id, chars or None, first=first, fit=fit)
        except DocumentNotFound:
            self._blame(doc_id)
            raise
        self.repeats = 0
        self._show([doc_id])
        self.readings[doc_id] = EarlierReading(self.session.hop, chars)
        length = len(self.session.read_whole(doc_id))
        return as_json({"doc_id": doc_id, "from": first, "of": length, "text": text})

    def _show(self, doc_ids: Iterable[str]) -> None:
        self.in_prompt.update(dict.fromkeys(doc_ids, self.session.hop))

    def read(self, doc_id: str) -> str:
        """Read one document that a search returned, by its doc_id."""
        fit = partial(cut_to_share, share=A_READING)
        doc_id = Ids(self.best_rank).find(doc_id) or doc_id
        try:
            return self.read_once(doc_id, self.read_chars, fit=fit)
        except DocumentNotFound:
            self._blame(doc_id)
            raise

    def _blame(self, doc_id: str) -> None:
        self.session.count_invented([doc_id])
        self.session.blame(doc_id, "named an id that it gives")

    def read_once(
        self,
        doc_id: str,
        chars: int,
        *,
        fit: Callable[[str], str] = str,
    ) -> str:
        """Read `chars` characters of a document, 0 all, and return them as JSON; not if it was read that far before."""
        earlier = self.readings.get(doc_id)
        if earlier and (not earlier.chars or 0 < chars <= earlier.chars):
            self._count_repeat("read", doc_id)
            return self.answer_repeated_reading(doc_id, chars)
        text = self.session.read(doc_id, chars or None, fit=fit)
        self.readings[doc_id] = EarlierReading(self.session.hop, chars)
        self.repeats = 0
        self._show([doc_id])
        return as_json({"doc_id": doc_id, "text": text})

    def forget(self, hop: int, *, wholly: bool = True) -> None:
        """Show results of the hops up to `hop` again if they are asked for: the model no longer has them before it.

        Not `wholly` if a part of each text is left.
        """
        self.searches = {
            words: earlier for words, earlier in self.searches.items() if earlier.hop > hop
        }
        self.readings = {
            doc_id: earlier for doc_id, earlier in self.readings.items() if earlier.hop > hop
        }
        self.visible = {doc_id: shown for doc_id, shown in self.visible.items() if shown > hop}
        if wholly:
            gone = [doc_id for doc_id, shown in self.in_prompt.items() if shown <= hop]
            self.session.forget(gone)
            for doc_id in gone:
                del self.in_prompt[doc_id]

    def answer_repeated_search(self, earlier: EarlierSearch) -> str:
        """Return what the model is told of a search that was made before."""
        doc_ids = [snippet.doc_id for snippet in earlier.snippets]
        selected = sum(doc_id in self.selected for doc_id in doc_ids)
        unread = [doc_id for doc_id in doc_ids if self.is_untried(doc_id)]
        read = len(doc_ids) - selected - len(unread)
        return self._answer_repeat(
            f"This search was made before, as search {earlier.number}. Of its {len(doc_ids)} "
            f"documents, {selected} are selected, {read} were read and not selected, "
            f"{len(unread)} were only seen.",
            unread,
        )

    def answer_repeated_reading(self, doc_id: str, chars: int) -> str:
        """Return what the model is told of a document that it read before, `chars` of it or more, 0 all."""
        state = "selected" if doc_id in self.selected else "not selected"
        return self._answer_repeat(f"This document was read before, and is {state}.")

    def _answer_repeat(self, state: str, unread: Sequence[str] = ()) -> str:
        if not unread:
            by_rank = sorted(self.best_rank, key=self.best_rank.__getitem__)
            unread = [doc_id for doc_id in by_rank if self.is_untried(doc_id)]
        advice = "Search in other words"
        if unread:
            advice += ", or read a document that was only seen"
        if self.goes_in_circles:
            advice = f"Select the documents that fit, and {self.ending} with what you have"
        return as_json(
            {"repeated": state, "only_seen": list(unread[:_MOST_IDS]), "next": f"{advice}."}
        )

    @property
    def goes_in_circles(self) -> bool:
        """Whether the latest searches and readings were all made before."""
        return self.repeats >= REPEATS

    def _count_repeat(self, action: Literal["search", "read"], argument: str) -> None:
        self.session.repeat(action, argument)
        with self.lock:
            self.repeats += 1

    def is_untried(self, doc_id: str) -> bool:
        """Return whether a document was neither selected nor read."""
        return doc_id not in self.selected and doc_id not in self.readings

    def keep(self, doc_ids: Iterable[str]) -> list[str]:
        """Select those of the documents that were shown, and return them."""
        named = self.find_ids(doc_ids)
        accepted = self.session.select(named, among=named)
        new = [doc_id for doc_id in accepted if doc_id not in self.selected]
        self.selected += new
        if new:
            self.repeats = 0
        return accepted

    def select(self, doc_ids: list[str]) -> str:
        """Keep documents that fit, likeliest first; give the doc_ids of documents that you have seen."""
        named = self.find_ids(doc_ids)
        accepted = self.keep(named)
        unknown = [doc_id for doc_id in named if doc_id not in accepted]
        for doc_id in unknown:
            self.session.blame(doc_id, "named an id that it gives")
        if unknown and not accepted:
            raise InvalidAnswer("unknown ids", f"no document shown so far is called {unknown[0]!r}")
        result = {"selected": accepted}
        if unknown:
            result["unknown"] = unknown
        return as_json(result)

    def find_ids(self, doc_ids: Iterable[str]) -> list[str]:
        """Return the meant ids without repeats: "doc 101" is "101" if a search brought that."""
        return list(dict.fromkeys(Ids(self.best_rank).read(doc_ids)))

    def known(self, doc_ids: Iterable[str], query: Query) -> list[str]:
        """Return the submitted ids that a search brought; InvalidAnswer if there are only others."""
        pool = query.candidates or frozenset()
        findable = self.best_rank.keys() | (pool - query.excluded)
        named = list(dict.fromkeys(Ids(findable).read(doc_ids)))
        found_ids = [doc_id for doc_id in named if doc_id in findable]
        unseen = [doc_id for doc_id in named if doc_id not in findable]
        if unseen:
            self.session.count_invented(unseen)
            problem = (
                f"no search of the query brought {len(unseen)} of the {len(named)} ids that it "
                f"returned, e.g. {unseen[0][:60]!r}: {UNFOUND_ID}"
            )
            if not found_ids:
                raise InvalidAnswer("unknown ids", problem)
            self.session.note(f"{problem}; left out")
        return found_ids

    def hand_in(
        self,
        doc_ids: Sequence[str],
        depth: int,
        *,
        why: str = "done",
        answer: str = "",
    ) -> Submission:
        """End the session with a ranking of `depth` documents at most."""
        ranking = doc_ids[:depth]
        session = self.session
        shown = [doc_id for doc_id in ranking if doc_id in self.best_rank]
        # If all shown documents are ranked, the program selects nothing.
        if not self.selected and len(shown) < len(self.best_rank):
            session.select(shown, among=self.best_rank.keys())
        session.rank(ranking)
        return session.submit(
            ranking,
            why=why,
            answer=answer,
        )

    def rank_all(self) -> list[str]:
        """Return the selected documents, then the others by their best rank."""
        by_rank = sorted(self.best_rank, key=self.best_rank.__getitem__)
        return list(dict.fromkeys(self.selected + by_rank))


def as_json(content: Any) -> str:
    """Return `content` as a model is shown it."""
    return escape_markers(json.dumps(content, ensure_ascii=False))


def convert_arguments(
    tool: str, arguments: Mapping[str, Any], kinds: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a tool's arguments under its own parameter names, converted to its parameter types where possible.

    Models write docIds for doc_ids, and add arguments of their own, which are left out if all others are there.
    """
    own_names = {fold_name(name): name for name in kinds}
    named = {own_names.get(fold_name(name), name): value for name, value in arguments.items()}
    if len(named) == len(kinds) == 1:
        named = dict(zip(kinds, named.values(), strict=True))
    if named.keys() > kinds.keys():
        if payer := current():
            unknown = [name for name in named if name not in kinds]
            payer.note(f"{tool} has no {', '.join(unknown)}: left out")
        named = {name: named[name] for name in kinds}
    for name in named.keys() & kinds.keys():
        with suppress(ValueError, TypeError):  # the tool says what it takes
            named[name] = convert(kinds[name], named[name])
    return named


def _kinds(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the types of the parameters of a tool."""
    parameters = inspect.signature(function).parameters.values()
    return {parameter.name: parameter.annotation for parameter in parameters}


def public_name(parameter: str) -> str:
    """Return the name of a parameter as a model knows it: `from` for `from_`."""
    return parameter.rstrip("_")


def describe_tool(tool: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """Return what a tool's docstring says of it, and of each of its parameters."""
    summary, _, listed = (inspect.getdoc(tool) or "").partition("\n\nArgs:\n")
    lines = (line.strip().partition(": ") for line in listed.splitlines())
    return summary, {name: text for name, _, text in lines}


# The tools of the query that is being answered.
DESK: ContextVar[SearchTools | None] = ContextVar("desk", default=None)


def retrieve(query: str, k: int = 3) -> list[Any]:
    """Search for dspy.Retrieve, which takes the texts out of the results."""
    if (desk := DESK.get()) is None:
        raise UsageError(f"dspy.Retrieve is called where no query is answered: {REMEDY}")
    passages = []
    for snippet in desk.find(query, k):
        text = PassageText(f"{snippet.title}\n{snippet.text}".lstrip("\n"))
        text.doc_id = snippet.doc_id
        passages.append(dotdict(long_text=text, pid=snippet.doc_id, score=snippet.score))
    return passages


def _of_present(tool: Callable[..., str]) -> Callable[..., str]:
    """Return a tool of the present desk as a function; a refusal is its result, for the model to read."""
    kinds = _kinds(partial(tool, None))

    @wraps(tool)
    def function(*arguments: Any, **named: Any) -> str:
        if (desk := DESK.get()) is None:
            raise UsageError(f"{tool.__name__} is called where no query is answered: {REMEDY}")
        if len(arguments) <= len(kinds):
            by_name = {**dict(zip(kinds, arguments, strict=False)), **named}
            arguments = ()
            named = convert_arguments(tool.__name__, by_name, kinds)
        try:
            return tool(desk, *arguments, **named)
        except (SessionRefusal, InvalidAnswer) as refusal:
            return SearchResultText(str(refusal))

    del function.__wrapped__  # whose first parameter is the desk
    function.__qualname__ = tool.__name__  # by which it is pickled
    function.__signature__ = inspect.signature(partial(tool, None))  # type: ignore[attr-defined]
    return function


search = _of_present(SearchTools.search)
read = _of_present(SearchTools.read)
select = _of_present(SearchTools.select)


class Tool(dspy.Tool):
    """A tool of DSPy's that takes its arguments by position, too, and in the forms in which models write them."""

    def __init__(self, function: Callable[..., Any], **named: Any) -> None:
        summary, descriptions = describe_tool(function)
        super().__init__(function, desc=summary, arg_desc=descriptions, **named)
        schemas: dict[str, Any] = vars(self)["args"]
        self.args = {public_name(name): schema for name, schema in schemas.items()}

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call its function."""
        by_position = dict(zip(self.args or (), arguments, strict=False))
        return super().__call__(**by_position, **named)

    def _validate_and_parse_args(self, **arguments: Any) -> dict[str, Any]:
        kinds = _kinds(self.func)
        converted = convert_arguments(str(self.name), arguments, kinds)
        public = {public_name(name): value for name, value in converted.items()}
        parsed = super()._validate_and_parse_args(**public)
        return {name: parsed.get(public_name(name)) for name in converted}


def make_tools(
    tool_type: Callable[..., Any] = Tool, functions: Sequence[Callable[..., str]] = ()
) -> dict[str, Any]:
    """Return tools by name: the `functions` of programs/corpus_tools.py, by default search, read and select."""
    present = [_of_present(function) for function in functions] or [search, read, select]
    return {function.__name__: tool_type(function) for function in present}
