"""How a program asks its model: a predictor, its inputs, and what makes an answer usable.

    read = ask(self.read_passages, known_ids("selected", unread), **about, passages=passages)

An answer that cannot be used is asked for once more, with what was wrong with it; that happens in the adapter
(tools/models/prompting/adapter.py), inside one call of the predictor, so that DSPy's own trace has the answer that was
used. A second one raises UnusableAnswer, which is a fault of the system. Every one is counted by kind in the session's
trace.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal

import dspy

from tools import session
from tools.errors import UnknownName

Kind = Literal["unparsable", "wrong type", "unknown ids", "unknown tool", "empty", "cut off", "refused"]
Outputs = Mapping[str, Any]


class Fault(Exception):
    """Why one answer cannot be used as it is."""

    def __init__(self, kind: Kind, reason: str, *, tolerable: bool = False) -> None:
        """`reason` is told to the model. A `tolerable` answer is used when the second one is no better."""
        super().__init__(reason)
        self.kind: Kind = kind
        self.reason = reason
        self.tolerable = tolerable


class UnusableAnswer(Exception):
    """A model gave two answers in a row that could not be used."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(f"{fault.kind}: {fault.reason}")
        self.kind = fault.kind


Check = Callable[[Outputs], None]
"""Raises a Fault for outputs that cannot be used."""

_CHECKS: ContextVar[tuple[Check, ...]] = ContextVar("checks", default=())


def ask(predictor: dspy.Module, *checks: Check, **inputs: Any) -> Any:
    """The prediction for `inputs`, which passes all `checks`."""
    with checking(*checks):
        return predictor(**inputs)


@contextmanager
def checking(*checks: Check) -> Iterator[None]:
    """Answers that are given inside have to pass `checks`."""
    token = _CHECKS.set(checks)
    try:
        yield
    finally:
        _CHECKS.reset(token)


def check(outputs: Outputs) -> None:
    """Raise the first Fault that a check of this context finds."""
    for one in _CHECKS.get():
        one(outputs)


def known_ids(field: str, among: Collection[str], *, needed: bool = False) -> Check:
    """The ids in the list `field` are of documents in `among`; with `needed`, there is one at least.

    An answer with some unknown ids among known ones is tolerable: who uses it drops them (Session.select counts them).
    """

    def known(outputs: Outputs) -> None:
        named = [str(doc_id) for doc_id in outputs[field]]
        strange = [doc_id for doc_id in named if doc_id not in among]
        if strange:
            if payer := session.current():
                for doc_id in strange:
                    payer.blame(doc_id, "named an id that it gives")
            raise Fault(
                "unknown ids",
                f"{field} names {strange[0]!r}, the id of none of the passages shown; use ids as they are given",
                tolerable=len(strange) < len(named),
            )
        if needed and not named:
            raise Fault("empty", f"{field} is empty; it has to name passages")

    return known


def filled(*fields: str) -> Check:
    """None of the text or list `fields` is empty; a list of blank texts is."""

    def not_empty(outputs: Outputs) -> None:
        for field in fields:
            value = outputs[field]
            if not any(str(one).strip() for one in ([value] if isinstance(value, str) else value)):
                raise Fault("empty", f"{field} is empty; it is needed")

    return not_empty


def within(field: str, low: float, high: float) -> Check:
    """The number `field` is from `low` to `high`."""

    def in_range(outputs: Outputs) -> None:
        if not low <= outputs[field] <= high:
            raise Fault("wrong type", f"{field} is {outputs[field]}; it is a number from {low:g} to {high:g}")

    return in_range


# What makes a document relevant, for each of OBLIQ-Bench's mechanisms. The paper's prompts differ by task (appendix D);
# these are the same five readings in our own words, added to the instructions of a signature. A program takes one as
# its parameter `lens`; a task has its own, and the run fills it in.


@dataclass(frozen=True, slots=True)
class Lens:
    """One way in which a document can be what is wanted without its words saying so."""

    search: str  # what to put into a search text
    recognise: str  # what to look for when reading
    annotate: str  # what to write down of a document, for an index (tools/retrievers/lens/index.py)
    solved: str = ""  # in place of `recognise`, where solutions are given beside the texts


LENSES = {
    "recollection": Lens(
        search=(
            "The description is somebody's hazy memory of one moment. Write what the record of that moment "
            "would say: names and titles of the people who would speak, the formal turns of phrase of such an "
            "occasion, the terms of the subject, a phrase that may have been said. Leave out how it felt to "
            "remember it and how sure they are; what they state as a detail may be wrong."
        ),
        recognise=(
            "Ask of each passage whether this could be the remembered moment: who speaks to whom, what happens, "
            "and what the exchange turns on. Single details of a memory are often wrong; the scene as a whole "
            "is not."
        ),
        annotate=(
            "What somebody would remember of this passage weeks later: who does what to whom, the odd detail, "
            "the mood, what it is about in everyday words, without names and numbers."
        ),
    ),
    "stance": Lens(
        search=(
            "What is wanted takes the described stance without stating it. Write as somebody who holds it would "
            "write in passing: with irony, a rhetorical question, a euphemism, a telling choice of what to "
            "mention. Do not name the stance."
        ),
        recognise=(
            "Ask what the writer must believe to have written this. Keep what implies the stance; pass over "
            "what states it openly, argues the opposite, or only reports."
        ),
        annotate=(
            "The position that the writer takes without stating it, as a plain sentence: towards whom, for or "
            "against what, and by which means (irony, framing, understatement, a question). Say so when there "
            "is none."
        ),
    ),
    "failure": Lens(
        search=(
            "The description names a way in which an assistant goes wrong. Write what would stand in a "
            "conversation where that happens: the kind of request that provokes it, the answer that shows it, "
            "what the user says next. The subject of the conversation is open, so vary it from search to "
            "search."
        ),
        recognise=(
            "Follow the conversation turn by turn and ask whether the described failure happens in it, whether "
            "or not anybody in it notices. What the conversation is about does not matter."
        ),
        annotate=(
            "What goes wrong between user and assistant in this conversation: what was asked, what was given "
            "instead, at which turn, and whether anybody notices. Say so when nothing goes wrong."
        ),
    ),
    "proof": Lens(
        search=(
            "What is wanted is solved by the same idea of proof, in whatever field. Work out the idea that "
            "solves the given problem, then write the statement of another problem that gives way to it: other "
            "objects, other notation, the same step that unlocks it."
        ),
        recognise=(
            "Work out a solution for each problem, any natural one, and compare the step that unlocks it with that "
            "of the given problem. The same field, objects or notation are no evidence."
        ),
        annotate=(
            "The idea that solves this problem, apart from its subject: the step that unlocks it, the principle "
            "behind it, and the outline of the proof in a sentence or two."
        ),
        solved=(
            "Take the step that unlocks each problem from its solution, which stands below it, and compare it with "
            "that of the given problem. A solution is one of several: where another natural one shares the step, that "
            "counts as well. The same field, objects or notation are no evidence."
        ),
    ),
    "authorship": Lens(
        search=(
            "What is wanted was written by the same hand, about anything. Write a few sentences in that hand: "
            "its rhythm, its connectives and hedges, its punctuation, its favourite words. Keep the manner and "
            "change the subject."
        ),
        recognise=(
            "Compare ways of writing and nothing else: length and rhythm of sentences, hedges, connectives, "
            "punctuation, vocabulary, tone, habits of argument. What a passage is about is no evidence."
        ),
        annotate=(
            "How this is written, not what it is about: length and rhythm of sentences, connectives, hedges, "
            "punctuation, person and tense, register, habits of argument, words that are typical of the writer."
        ),
    ),
}


def lens(name: str) -> Lens:
    """Return the lens called `name`, an empty one for ""; UnknownName, with the nearest names, for another one."""
    if name and name not in LENSES:
        raise UnknownName("lens", name, LENSES)
    return LENSES[name] if name else Lens(search="", recognise="", annotate="")


def through(signature: Any, advice: str) -> Any:
    """`signature` with `advice` at the end of its instructions; itself when there is none."""
    return instructed(signature, f"{signature.instructions}\n\n{advice}") if advice else signature


def instructed(signature: Any, instructions: str) -> Any:
    """`signature` with other instructions, under its own name: DSPy's copies are called StringSignature."""
    made = signature.with_instructions(instructions)
    made.__name__ = signature.__name__
    return made
