"""Records of documents that meet ever fewer conditions, MultiConIR's or the user's: their defects.

Sentences are told apart by `sextant.tools.text.sentences`; a sentence with an abbreviation in it may count
as two. The recipe that makes them is in recipes/conditions.py.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sextant.environments.base import Environment
from sextant.tools.text import sentences

_LEADING = re.compile(r"(?<!\S)\(?\d{1,2}[.):](?=\s)")  # what numbers the conditions of a list


class LadderDefects(NamedTuple):
    """The defects of a record: a document that meets all conditions, and documents compared with it."""

    doc_id: str
    steps: Sequence[int]  # of each comparison: sentences in which its documents differ
    foreign: Sequence[str]  # numbers that a query asks for, and the document does not have
    # Sentences that it has twice, and no other record has: those are padding.
    repeated: Sequence[str]


def check_ladders(environment: Environment) -> list[LadderDefects]:
    """Look at every record of a task that compares documents, lengthened or not.

    A number that the document has anywhere, or in a larger number (11 in 11,500), is fine: a
    contradiction of its sentence is counted from below.
    """
    steps = defaultdict[str, dict[tuple[str, str], int]](dict)
    missing_numbers = defaultdict[str, dict[str, None]](dict)
    texts = environment.documents
    for query in environment.queries:
        comparisons = environment.comparisons.get(query.query_id, ())
        pairs = [pair for label, *pair in comparisons if label.startswith("Win")]
        for first, other in pairs:
            steps[pairs[0][0]][first, other] = count_different_sentences(
                texts[first].text, texts[other].text
            )
        if pairs:
            text = texts[pairs[0][0]].text
            numbers = _numbers(text).keys() | re.findall(r"\d+", text)
            asked = _numbers(_LEADING.sub(" ", query.text))
            missing_numbers[pairs[0][0]] |= {
                number: None for number in asked if number not in numbers
            }
    records = Counter(sentence for first in steps for sentence in {*sentences(texts[first].text)})
    return [
        LadderDefects(
            first,
            [*differences.values()],
            [*missing_numbers[first]],
            [text for text in repeated_sentences(texts[first].text) if records[text] == 1],
        )
        for first, differences in steps.items()
    ]


def find_broken(environment: Environment) -> Iterator[str]:
    """Yield the records of a built benchmark that are no ladders."""
    for row in check_ladders(environment):
        if {*row.steps} != {1}:
            yield f"the documents compared with {row.doc_id!r} do not differ by one sentence at a time"


def _numbers(text: str) -> dict[str, None]:
    numbers = re.findall(r"\d+(?:[.,]\d+)*", text)
    return dict.fromkeys(number.replace(",", "") for number in numbers)


def count_different_sentences(first: str, second: str) -> int:
    """Return in how many sentences two texts differ; a replaced sentence counts once."""
    mine = {*sentences(first)}
    theirs = {*sentences(second)}
    return max(len(mine - theirs), len(theirs - mine))


def repeated_sentences(text: str) -> list[str]:
    """Return the sentences that stand in a text more than once."""
    times = Counter(sentences(text))
    return [sentence for sentence in times if times[sentence] > 1]
