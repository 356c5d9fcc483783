"""Lenses: ways in which a document can be relevant although its words do not say so."""

import json
from typing import NamedTuple

from sextant.tools.errors import UnknownName, UsageError


class Lens(NamedTuple):
    """One way in which a document can be relevant although its words do not say so.

    The paper's prompts differ by task (OBLIQ-Bench, appendix D). These are the same five readings in
    other words, which are added to the instructions of a signature.
    """

    search: str  # advice for writing a search text
    recognise: str  # advice for reading and ranking
    annotate: str  # the attribute that an index notes (tools/retrievers/lens/lens_index.py)
    solved: str = ""  # in place of `recognise`, if solutions are given with the texts
    select: str = ""  # in place of `recognise`, for selecting what a search of several returned
    rewrite: str = ""  # in place of `search`, where there is one search


LENSES = {
    "recollection": Lens(
        search=(
            "The description is somebody's hazy memory of one moment. Write what the record of "
            "that moment would say: names and titles of the people who would speak, the formal "
            "turns of phrase of such an occasion, the terms of the subject, a phrase that may "
            "have been said. Leave out how it felt to remember it and how sure they are; what "
            "they state as a detail may be wrong."
        ),
        recognise=(
            "Ask of each passage whether this could be the remembered moment: who speaks to "
            "whom, what happens, and what the exchange turns on. Single details of a memory are "
            "often wrong; the scene as a whole is not."
        ),
        annotate=(
            "What somebody would remember of this passage weeks later: who does what to whom, "
            "the odd detail, the mood, what it is about in everyday words, without names and "
            "numbers."
        ),
    ),
    "stance": Lens(
        search=(
            "What is wanted takes the described stance without stating it. Write a query of one "
            "to three sentences about the same stance, nearer to how it would be implied: by "
            "irony, a hedge, a euphemism, a rhetorical question, a telling choice of what to "
            "mention. It stays a query, in plain words, and is no post."
        ),
        recognise=(
            "Ask what the writer must believe to have written this. Keep what implies the "
            "stance; pass over what states it openly, argues the opposite, or only reports."
        ),
        annotate=(
            "The position that the writer takes without stating it, as a plain sentence: towards "
            "whom, for or against what, and by which means (irony, framing, understatement, a "
            "question). Say so when there is none."
        ),
    ),
    "failure": Lens(
        search=(
            "The description names a way in which an assistant goes wrong. Write what would "
            "stand in a conversation where that happens: the kind of request that provokes it, "
            "the answer that shows it, what the user says next. The subject of the conversation "
            "is open, so vary it from search to search."
        ),
        recognise=(
            "Follow the conversation turn by turn and ask whether the described failure happens "
            "in it, whether or not anybody in it notices. What the conversation is about does "
            "not matter."
        ),
        annotate=(
            "What goes wrong between user and assistant in this conversation: what was asked, "
            "what was given instead, at which turn, and whether anybody notices. Say so when "
            "nothing goes wrong."
        ),
    ),
    "proof": Lens(
        search=(
            "What is wanted is solved by the same idea of proof, in whatever field. Work out the "
            "idea that solves the given problem, then write the statement of another problem "
            "that gives way to it: other objects, other notation, the same step that unlocks it."
        ),
        recognise=(
            "Work out a solution for each problem, any natural one, and compare the step that "
            "unlocks it with that of the given problem. The same field, objects or notation are "
            "no evidence."
        ),
        annotate=(
            "The idea that solves this problem, apart from its subject: the step that unlocks "
            "it, the principle behind it, and the outline of the proof in a sentence or two."
        ),
        solved=(
            "Take the step that unlocks each problem from its solution, which stands below it, "
            "and compare it with that of the given problem. A solution is one of several: where "
            "another natural one shares the step, that counts as well. The same field, objects "
            "or notation are no evidence."
        ),
    ),
    "authorship": Lens(
        search=(
            "What is wanted was written by the same hand. Write a query that describes this "
            "hand: the features of style that are most its own, its vocabulary, the build of its "
            "sentences, its tone, the themes it prefers. Later searches follow other features."
        ),
        recognise=(
            "Compare ways of writing and nothing else: length and rhythm of sentences, hedges, "
            "connectives, punctuation, vocabulary, tone, habits of argument. What a passage is "
            "about is no evidence."
        ),
        annotate=(
            "How this is written, not what it is about: length and rhythm of sentences, "
            "connectives, hedges, punctuation, person and tense, register, habits of argument, "
            "words that are typical of the writer."
        ),
        select=(
            "Ask of each passage whether the same hand wrote it. Signs are vocabulary, the build "
            "of sentences, punctuation, tone, rhetorical devices, and the themes it prefers."
        ),
        rewrite=(
            "What is wanted was written by the same hand. Write a query that describes this hand: "
            "its vocabulary, the build of its sentences, its tone, and whatever else of its style "
            "gives it away."
        ),
    ),
}


def get_lens(name: str) -> Lens:
    """Return the lens called `name`; for "" an empty lens.

    `name` may be a lens in words: its fields as JSON, {"search": ..., ...}. UnknownName, with the
    nearest names, for another name.
    """
    if name.startswith("{"):
        try:
            return Lens(**{"search": "", "recognise": "", "annotate": ""} | json.loads(name))
        except (ValueError, TypeError):
            raise UsageError(
                f"the lens {name[:60]!r} is no JSON of {', '.join(Lens._fields)}"
            ) from None
    if name and name not in LENSES:
        raise UnknownName("lens", name, LENSES)
    return LENSES[name] if name else Lens(search="", recognise="", annotate="")
