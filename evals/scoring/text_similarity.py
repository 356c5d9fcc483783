"""How much two texts say in the same words: of queries, whether one nearly repeats another. From 0
to 1, the larger of

- runs     how much of the runs of three words of the lighter text the other one has: finds a text that was cut or
           lengthened at an end, and a long one with some words changed
- words    how much of the words of the heavier text the other one has: finds a text put in another order, and a
           short one with a word or two changed

Words are those of tools.text. A word or run weighs its idf over all the texts, so what all queries
of a task begin with counts for next to nothing. Unrelated queries stay far below a half: of 427
real questions from hearings none comes over 0.20. Paraphrases that share no words are not found.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from tools.text import TermStatistics, content_words

RUN = 3  # words in a run
# Fewer texts than this are weighed as if there were so many: a word in two queries of three is a
# repeat, and only among many queries boilerplate.
FEW = 100


def similarities(texts: Sequence[str], others: Sequence[str]) -> list[float]:
    """Return for each of `texts` its similarity to the nearest of `others`; 0 where there are
    none.
    """
    return [float(row.max(initial=0.0)) for row in compare(texts, others)]


def compare(
    texts: Sequence[str], others: Sequence[str] | None = None
) -> Iterator[NDArray[np.float64]]:
    """Yield for each of `texts` its similarity to each of `others`, or without these to each
    of `texts`, itself too.
    """
    kinds = ((_runs, np.minimum), (_words, np.maximum))
    own = [[features(text) for text in texts] for features, _ in kinds]
    foreign = (
        own if others is None else [[features(text) for text in others] for features, _ in kinds]
    )
    found = (
        _shares(a, b, whole_of) for a, b, (_, whole_of) in zip(own, foreign, kinds, strict=True)
    )
    for runs, shared in zip(*found, strict=True):
        yield np.minimum(
            np.maximum(runs, shared), 1.0
        )  # sums in another order may leave equal texts a hair over 1


def _shares(
    own: list[list[str]], foreign: list[list[str]], whole_of: np.ufunc
) -> Iterator[NDArray[np.float64]]:
    """Yield for each of `own` its share with each of `foreign`, of the weight that `whole_of`
    takes.
    """
    every = own if foreign is own else own + foreign
    counts = Counter(feature for features in every for feature in features)
    rarity = TermStatistics(max(len(every), FEW), 0.0, counts)
    places: dict[str, list[int]] = defaultdict(list)  # feature -> the foreign texts that have it
    for place, features in enumerate(foreign):
        for feature in features:
            places[feature].append(place)
    weights = np.array([sum(map(rarity.weight, features)) for features in foreign])
    for features in own:
        shared = np.zeros(len(foreign))
        for feature in features:
            if feature in places:
                shared[places[feature]] += rarity.weight(feature)
        yield shared / whole_of(weights, sum(map(rarity.weight, features)))


def _words(
    text: str,
) -> list[str]:  # in order, each once; of a text that has none, such as "x = y", its characters
    return sorted(set(content_words(text))) or ["".join(text.lower().split())]


def _runs(
    text: str,
) -> list[str]:  # the different runs of `RUN` words of a text; a text that is no longer is one run
    found = content_words(text)
    if len(found) <= RUN:
        return [" ".join(found) or "".join(text.lower().split())]
    return sorted({" ".join(found[start : start + RUN]) for start in range(len(found) - RUN + 1)})
