"""How much two texts have in common in the same words: of queries, near repetitions. From 0 to 1,
the larger of

- runs     the share of the lighter text's runs of three words that are in the other text: finds a text that was cut
           or lengthened at an end, and a long text with some words changed
- words    the share of the heavier text's words that are in the other text: finds a text put in another order, and a
           short text with a word or two changed

Words are those of sextant.tools.text. A word or run weighs its idf over all the texts, so a beginning that
all queries of a task share counts for next to nothing. Unrelated queries stay far below a half: of
427 real questions from hearings none comes over 0.20. Paraphrases that share no words are not
found.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

import numpy as np
from numpy.typing import NDArray

from sextant.tools.text import TermStatistics, content_words, word_runs

RUN = 3  # words in a run
# Fewer texts than this are weighed as if there were this many: a word in two queries of three is a
# repeat, and only among many queries boilerplate.
FEW = 100


def jaccard(first: AbstractSet[str], second: AbstractSet[str]) -> float:
    """Return the share of two sets that both have, from 0 to 1 (Jaccard 1912); 0 if both are empty."""
    return len(first & second) / max(1, len(first | second))


def weighted_jaccard(first: Mapping[str, float], second: Mapping[str, float]) -> float:
    """Return the sum of each word's smaller weight over the sum of its larger weight.

    Ioffe 2010. From 0 to 1. ZeroDivisionError if neither has a weight.
    """
    words = first.keys() | second.keys()
    pairs = [(first.get(word, 0.0), second.get(word, 0.0)) for word in words]
    return sum(min(pair) for pair in pairs) / sum(max(pair) for pair in pairs)


def similarities(texts: Sequence[str], candidates: Sequence[str]) -> list[float]:
    """Return for each of `texts` its similarity to the nearest candidate; 0 without candidates."""
    return [float(row.max(initial=0.0)) for row in compare(texts, candidates)]


def compare(
    texts: Sequence[str], candidates: Sequence[str] | None = None
) -> Iterator[NDArray[np.float64]]:
    """Yield for each text its similarity to each candidate, shape (candidates,).

    Without candidates each text is compared with all of `texts`, itself included.
    """
    run_shares = _shares(texts, candidates, _runs, np.minimum)
    word_shares = _shares(
        texts,
        candidates,
        _words,
        np.maximum,
    )
    for runs, words in zip(run_shares, word_shares, strict=True):
        # Sums in another order may leave equal texts a little over 1.
        yield np.minimum(np.maximum(runs, words), 1.0)


def _shares(
    texts: Sequence[str],
    candidates: Sequence[str] | None,
    extract: Callable[[str], list[str]],
    whole_of: np.ufunc,
) -> Iterator[NDArray[np.float64]]:
    """Yield for each text the weight of the features that it shares with each candidate.

    The weight is a share of the weight that `whole_of` takes of the two texts' weights.
    """
    features_of_texts = [extract(text) for text in texts]
    features_of_candidates = features_of_texts
    compared = features_of_texts
    if candidates is not None:
        features_of_candidates = [extract(text) for text in candidates]
        compared = features_of_texts + features_of_candidates
    counts = Counter(feature for features in compared for feature in features)
    rarity = TermStatistics(
        max(len(compared), FEW),
        0.0,
        counts,
    )
    # feature -> numbers of the candidates that have it
    candidates_with: dict[str, list[int]] = defaultdict(list)
    for number, features in enumerate(features_of_candidates):
        for feature in features:
            candidates_with[feature].append(number)
    weights = np.array([_weigh(features, rarity) for features in features_of_candidates])
    for features in features_of_texts:
        shared = np.zeros(len(features_of_candidates))
        for feature in features:
            if feature in candidates_with:
                shared[candidates_with[feature]] += rarity.weight(feature)
        yield shared / whole_of(weights, _weigh(features, rarity))


def _weigh(features: list[str], rarity: TermStatistics) -> float:
    return sum(map(rarity.weight, features))


def _words(text: str) -> list[str]:
    """Return the words of a text in order, each once.

    A text without words, such as "x = y", has its characters as a single word.
    """
    return sorted(set(content_words(text))) or [_characters(text)]


def _runs(text: str) -> list[str]:
    """Return the different runs of `RUN` words; a text of up to `RUN` words is a single run."""
    return sorted(
        word_runs(
            content_words(text),
            RUN,
        )
    ) or [_characters(text)]


def _characters(text: str) -> str:
    return "".join(text.lower().split())
