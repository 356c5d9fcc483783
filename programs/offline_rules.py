"""What the engine without a model puts into each output field: one function a field, by the field's name.

A rule gets the inputs of the call and what the corpus knows about its words; it is deterministic. The query is the
input `description` in every signature, what is read is `passages`. programs/offline.py says what the engine is.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from tools.text import TermStatistics, sentences, words

# How these were chosen, and on which queries, is in docs/offline.md.
SEARCH_WORDS = 20  # words in each search after the first
NOTES_SHARE = 0.3  # of a word's weight that comes from the notes; the rest from the description
DECAY = 0.5  # what a word keeps of its weight for each earlier search that used it
KEEP = 6  # passages kept of each batch
NOTE_SENTENCES = 1  # taken from each kept passage
# Okapi's usual constants, for weighing a passage: how soon repeats stop counting, and how much length costs.
K1, B = 1.5, 0.75


def rewritten(inputs: Mapping[str, Any], statistics: TermStatistics) -> str:
    """The heavier half of the description's words, heaviest first."""
    weight = _weights(inputs["description"], statistics)
    heaviest = sorted(weight, key=lambda word: (-weight[word], word))
    return " ".join(heaviest[: max(1, len(heaviest) // 2)])


def search(inputs: Mapping[str, Any], statistics: TermStatistics) -> str:
    """First the description's own words; then the heaviest of description and notes, used ones decayed."""
    earlier = inputs["earlier_searches"]
    if not earlier:
        return " ".join(words(inputs["description"]))
    described = _scaled(_weights(inputs["description"], statistics))
    noted_raw: Counter[str] = Counter()
    for note in inputs["notes"]:
        for sentence in sentences(note):
            noted_raw.update({word: statistics.weight(word) for word in set(words(sentence))})
    noted = _scaled(noted_raw)
    used = Counter(word for text in earlier for word in set(words(text)))
    weight = {
        word: DECAY ** used[word] * (NOTES_SHARE * noted.get(word, 0.0) + (1 - NOTES_SHARE) * described.get(word, 0.0))
        for word in described.keys() | noted.keys()
    }
    return " ".join(sorted(weight, key=lambda word: (-weight[word], word))[:SEARCH_WORDS])


def selected(inputs: Mapping[str, Any], statistics: TermStatistics) -> list[str]:
    """The passages that share the most weight with the description, by BM25's saturation; best first."""
    weight = _weights(inputs["description"], statistics)

    def shared(text: str) -> float:
        count = Counter(words(text))
        norm = K1 * (1 - B + B * count.total() / statistics.average_length)
        saturated = {word: n / (n + norm) for word, n in count.items() if word in weight}
        return sum((weight[word] * share for word, share in saturated.items()), 0.0)

    scored = [(shared(passage.text), passage.id) for passage in inputs["passages"]]
    best = sorted(scored, key=lambda pair: (-pair[0], pair[1]))
    return [passage_id for score, passage_id in best[:KEEP] if score > 0]


def observations(inputs: Mapping[str, Any], statistics: TermStatistics) -> str:
    """The best sentences of the passages that `selected` keeps, one a line."""
    weight = _weights(inputs["description"], statistics)

    def density(sentence: str) -> float:
        found = dict.fromkeys(words(sentence))  # no set: its order, and so the sum's last digit, would vary
        # The root of the length, so that neither the shortest nor the longest sentence always wins.
        return sum((weight.get(word, 0.0) for word in found), 0.0) / math.sqrt(10 + len(found))

    text = {passage.id: passage.text for passage in inputs["passages"]}
    best: list[str] = []
    for passage_id in selected(inputs, statistics):
        best += sorted(sentences(text[passage_id]), key=density, reverse=True)[:NOTE_SENTENCES]
    return "\n".join(best)


# Output field -> rule. A field that is not here cannot be filled without a model.
RULES: dict[str, Callable[[Mapping[str, Any], TermStatistics], Any]] = {
    "rewritten": rewritten,
    "search": search,
    "selected": selected,
    "observations": observations,
}


def _weights(text: str, statistics: TermStatistics) -> dict[str, float]:
    """Idf x square root of its count, for each word of `text` that the corpus has."""
    count = Counter(words(text))
    weight = {word: statistics.weight(word) * math.sqrt(n) for word, n in count.items()}
    return {word: w for word, w in weight.items() if w > 0}


def _scaled(weight: Mapping[str, float]) -> dict[str, float]:
    """The same weights with the largest at 1."""
    largest = max(weight.values(), default=1.0) or 1.0
    return {word: w / largest for word, w in weight.items()}
