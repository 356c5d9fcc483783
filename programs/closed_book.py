"""What does the model know by heart? It guesses the wanted documents without the corpus; each guess
is looked up.

BIRCO's test for contamination (section 3.3, appendix I). The `target` of a guess is the task's, as
in the paper's prompts (appendix L.5): five titles, one whole text, or five quotations of a named
work. A guess names a document by its title, or by five words in a row that both share. The
ranking is the documents that the guesses name, so recall and reciprocal rank say how often a gold
document was known by heart: a lower bound, because a paraphrase from memory has neither sign.

A shared run is weak evidence if texts share phrases (forms, licences, eligibility criteria of
trials): there a guess names the document with the longest piece of the phrase, which in a small
pool can hit by chance. The trace has the why.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import dspy

from sextant.programs.base import Program
from sextant.programs.query_rewriting import LIKE, search_instruction
from sextant.programs.texts_by_id import read_texts
from sextant.tools.errors import LimitReached, UnknownName, require_at_least
from sextant.tools.models import offline_rules as rules
from sextant.tools.models.answers.checks import filled, state_most_items
from sextant.tools.models.prompting import ask, predict
from sextant.tools.platform.files import InputFilePath
from sextant.tools.records import Query, Submission
from sextant.tools.session import Session
from sextant.tools.text import index_ngrams, longest_shared_ngrams, tokens

RUN = 5  # words one after another that guess and document share: appendix I's measure for RELIC
TITLE = 1_000_000  # the sign of a title, above that of any run


KIND = "what a document of the collection is; empty when it has to be inferred"
MOST = "how many guesses there may be"


class MemorySignature(dspy.Signature):
    """What a call is told of its query."""

    objective: str = dspy.InputField(
        desc="what the collection is, and what counts as a find; may be empty"
    )
    kind: str = dspy.InputField(desc=KIND)
    description: str = dspy.InputField(desc="the request")


class GuessDocuments(MemorySignature):
    """Name or quote, from memory, the documents that would satisfy a request. There is nothing to look at.

    Give each guess as one text: the title and nothing else, where documents of this kind have one that you
    recall, otherwise the words of the document itself, as closely as you can recall them. Guess different
    documents, the likeliest first. Guess even when you are not sure, and do not repeat the request.
    """

    most: int = dspy.InputField(desc=MOST)
    guesses: list[str] = dspy.OutputField(desc="titles or texts, the likeliest first")


class GuessTitles(MemorySignature):
    """Name, from memory, the documents that a request may be after, by title. There is nothing to look at.

    Give titles and nothing else, each of another document. Guess even when you are not sure.
    """

    most: int = dspy.InputField(desc=MOST)
    guesses: list[str] = dspy.OutputField(desc="titles, the likeliest first")


class GuessTitle(MemorySignature):
    """Say, from memory, the title of the document that a text describes. There is nothing to look at."""

    guess: str = dspy.OutputField(desc="the title and nothing else")


class WriteFromMemory(MemorySignature):
    """Write one document that would satisfy a request, from memory. There is nothing to look at."""

    guess: str = dspy.OutputField(desc="the text of the document and nothing else")


class GuessQuotations(MemorySignature):
    """Guess, from memory, the sentences behind the mask in a text. There is nothing to look at.

    They come from the work that is named, or else from the work that the text is about. Guess even when
    you are not sure.
    """

    work: str = dspy.InputField(desc="the work; empty when it has to be inferred")
    most: int = dspy.InputField(desc=MOST)
    guesses: list[str] = dspy.OutputField(desc="sentences of the work, the likeliest first")


class Target(NamedTuple):
    """What is guessed."""

    signature: Any
    tokens: int  # of a guess


TARGETS = {
    "": Target(GuessDocuments, 200),
    "titles": Target(GuessTitles, 50),
    "title": Target(GuessTitle, 50),
    "text": Target(WriteFromMemory, 1000),
    "quotations": Target(GuessQuotations, 200),
}


class ClosedBook(Program):
    """Guess documents without the corpus, look the guesses up: the knowledge that a model has by
    heart (BIRCO).
    """

    offline: ClassVar = {
        "guesses": rules.guess,
        "guess": lambda inputs, statistics: rules.guess({**inputs, "most": 1}, statistics)[0],
    }

    target: str = ""  # a key of TARGETS; "" is a title or a text, as the model recalls it
    guesses: int = 5  # of titles and quotations; of a whole text or the title of one there is one
    lookup: int = 10  # how many documents a guess is compared with
    document: str = ""  # what a document of the task is, in words
    works: InputFilePath = InputFilePath("")  # JSON Lines {"_id": query, "work": title}

    def __post_init__(self) -> None:
        require_at_least(
            1,
            "closed_book",
            guesses=self.guesses,
            lookup=self.lookup,
        )
        if self.target not in TARGETS:
            raise UnknownName("target of closed_book", self.target, filter(None, TARGETS))
        target = TARGETS[self.target]
        self.one = "guess" in target.signature.output_fields
        self.work_of = read_texts(self.works, "work") if self.works else {}
        most = 1 if self.one else self.guesses
        self.guess = predict(target.signature, tokens=target.tokens * most)

    def forward(self, query: Query) -> Submission:
        """Return the documents that the guesses name, in their order; maybe none. The answer is the guesses."""
        session = self.toolbox.open(query)
        if self.works and query.query_id not in self.work_of:
            session.note(f"{self.works} names no work for this query")
        lines = (" ".join(text.split()) for text in self._ask(query))
        guesses = list(filter(None, lines))[: self.guesses]
        named = []
        stop_reason = "done"
        for hop, guess in enumerate(guesses, start=1):
            session.hop = hop
            try:
                named += self._look_up(session, query, guess)
            except LimitReached:
                stop_reason = "budget"  # what the earlier guesses named still counts
                break
        ranking = list(dict.fromkeys(named))[: self.depth]
        session.rank(ranking)
        return session.submit(
            ranking,
            why=stop_reason,
            answer="\n".join(guesses),
        )

    def _ask(self, query: Query) -> list[str]:
        """Return the model's guesses."""
        inputs: dict[str, Any] = {
            "objective": query.objective,
            "kind": self.document,
            "description": query.text,
            "work": self.work_of.get(query.query_id, ""),
            "most": self.guesses,
        }
        wanted = {name: inputs[name] for name in self.guess.signature.input_fields}
        if self.one:
            return [ask(self.guess, filled("guess"), **wanted).guess]
        most_guesses = state_most_items("guesses", self.guesses)
        return list(ask(self.guess, filled("guesses"), most_guesses, **wanted).guesses)

    def _look_up(
        self,
        session: Session,
        query: Query,
        guess: str,
    ) -> list[str]:
        hits = session.search(guess, self.lookup, instruction=search_instruction(query, LIKE))
        signs = {
            hit.doc_id: search_words_of_guess(
                guess, hit.title, session.read_whole(hit.doc_id), query.text
            )
            for hit in hits
        }
        # Of equal signs the document that the search ranked first.
        doc_id = max(signs, key=signs.__getitem__, default="")
        if not signs.get(doc_id):
            session.note(f"names no document: {guess}")
            return []
        evidence = "its title" if signs[doc_id] == TITLE else f"a run of {signs[doc_id]} words"
        session.note(f"names {doc_id} by {evidence}: {guess}")
        return [doc_id]


def search_words_of_guess(
    guess: str,
    title: str,
    text: str,
    query: str,
) -> int:
    """Return TITLE if `guess` is the title or first line, else the words of the longest run; less the query's words."""
    guessed = tokens(guess)
    request = tokens(query)
    heading = tokens(title or next(iter(text.strip().splitlines()), ""))
    starts = range(len(request))
    copied = any(request[start : start + len(guessed)] == guessed for start in starts)
    if guessed and guessed == heading and not copied:
        return TITLE
    return longest_run(guessed, tokens(text), request)


def longest_run(guess: Sequence[str], text: Sequence[str], query: Sequence[str]) -> int:
    """Return the length of the longest shared run of which no five words in a row are in `query`; 0 if under five."""
    places = index_ngrams({"": text}, RUN)
    for copied in index_ngrams({"": query}, RUN):
        places.pop(copied, None)
    return len(longest_shared_ngrams(guess, places, RUN).get("", ()))
