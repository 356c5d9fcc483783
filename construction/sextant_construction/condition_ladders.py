"""Records of documents that meet ever fewer conditions, MultiConIR's or the user's: their
steps.

Sentences are told apart by `sextant.tools.text.sentences`; a sentence with an abbreviation in it may count
as two. The recipe that makes them is in recipes/conditions.py.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator

from sextant.environments.base import Environment
from sextant.tools.text import sentences


def count_steps(environment: Environment) -> dict[str, list[int]]:
    """Return for each record, by its document that meets all conditions, the number of sentences in
    which the documents of each comparison differ.
    """
    steps = defaultdict[str, dict[tuple[str, str], int]](dict)
    for comparisons in environment.comparisons.values():
        wins = []
        for comparison in comparisons:
            if comparison.label.startswith("Win"):
                wins.append(comparison)
        for comparison in wins:
            steps[wins[0].better][comparison[1:]] = count_different_sentences(
                environment.documents[comparison.better].text,
                environment.documents[comparison.worse].text,
            )
    return {doc_id: list(counts.values()) for doc_id, counts in steps.items()}


def find_broken(environment: Environment) -> Iterator[str]:
    """Yield the records of a built benchmark that are no ladders."""
    for doc_id, steps in count_steps(environment).items():
        if {*steps} != {1}:
            yield f"the documents compared with {doc_id!r} do not differ by one sentence at a time"


def count_different_sentences(first: str, second: str) -> int:
    """Return in how many sentences two texts differ; a replaced sentence counts once."""
    mine = {*sentences(first)}
    theirs = {*sentences(second)}
    removed = mine - theirs
    added = theirs - mine
    return max(len(removed), len(added))


def repeated_sentences(text: str) -> list[str]:
    """Return the sentences that stand in a text more than once."""
    counts = Counter(sentences(text))
    repeated = []
    for sentence, times in counts.items():
        if times > 1:
            repeated.append(sentence)
    return repeated
