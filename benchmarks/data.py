"""Corpora and queries of any size for speed measurements, made by recombining sentences of real
ones.

A recombined text has no meaning, so its rankings are not results. Words are as frequent, and
posting lists as long, as in real text, which is what times and sizes depend on. Invented words make
the vocabulary grow with the corpus, as it does in real text. Everything is drawn from a seed and
streamed.
"""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from sextant import environments
from sextant.tools.corpus import Corpus, StoredCorpus, store
from sextant.tools.records import Document
from sextant.tools.text import sentences

LENGTH = 2_545  # mean characters of a document: that of OBLIQ-Bench's Congress corpus
PASSAGE = 500  # mean characters of a passage
# characters: about those of Congress's queries, and of a web search
LONG_QUERY = 800
SHORT_QUERY = 51

# The share of made-up words, and how steeply they grow rare: about as many new words a document as
# the hearings have.
_MADE_UP = 0.03
_EXPONENT = 1.3
_WORD = 6  # mean characters of an English word in running text, with its blank
_BLOCK = 10_000  # passages that are drawn at a time
_MINIATURES = ("obliq/congress", "obliq/writing", "crumb/clinical_trial", "crumb/theorem_retrieval")


def corpus(documents: int, folder: Path, source: Path | None = None, seed: int = 0) -> Corpus:
    """`documents` recombined documents, kept in the new folder `folder` and read from there one at
    a time.

    The sentences are those of the bundled miniatures, or of `source`: a data folder in
    OBLIQ-Bench's layout with its congress task.
    """
    texts = _texts(_sentences(source), LENGTH, np.random.default_rng([seed, 0]))
    store((Document(f"d{row:07}", next(texts)) for row in range(documents)), folder)
    return StoredCorpus(folder)


def generate_passages(count: int, source: Path | None = None, seed: int = 0) -> Iterator[Document]:
    """Yield `count` recombined passages of about PASSAGE characters: a million in twenty seconds.

    The first ones are the same whatever the count, so that a corpus can be compared with a larger
    one.
    """
    pool = _sentences(source)
    generator = np.random.default_rng([seed, 1])
    mean = (
        (1 - _MADE_UP) * PASSAGE / (sum(map(len, pool)) / len(pool) + 1)
    )  # sentences of a passage
    invented = _MADE_UP * PASSAGE / _WORD
    for start in range(0, count, _BLOCK):
        # Lengths vary as those of `_texts` do. The words that are made up come last, as no
        # retriever minds.
        numbers = np.maximum(1, np.rint(mean * generator.lognormal(-0.125, 0.5, _BLOCK))).astype(
            int
        )
        ends = np.cumsum(numbers).tolist()
        chosen = generator.integers(len(pool), size=ends[-1]).tolist()
        word_ends = np.cumsum(generator.poisson(invented, _BLOCK)).tolist()
        words = [_spelled(number) for number in generator.zipf(_EXPONENT, word_ends[-1]).tolist()]
        spans = zip([0, *ends], ends, [0, *word_ends], word_ends, strict=False)
        for row, (begin, end, first, last) in enumerate(islice(spans, count - start), start):
            text = " ".join([*map(pool.__getitem__, chosen[begin:end]), *words[first:last]])
            yield Document(f"p{row:08}", text)


def queries(number: int, length: int, source: Path | None = None, seed: int = 0) -> list[str]:
    """`number` recombined texts of at most `length` characters, cut between words."""
    texts = _texts(_sentences(source), 4 * length, np.random.default_rng([seed, length]))
    return [next(texts)[: length + 1].rpartition(" ")[0] for _ in range(number)]


def _sentences(source: Path | None) -> list[str]:
    loaded = (
        [environments.load("congress", str(source))]
        if source
        else [environments.load(task, "mini") for task in _MINIATURES]
    )
    return [
        sentence
        for each in loaded
        for text in each.documents.texts()
        for sentence in sentences(text)
    ]


def _texts(pool: list[str], length: int, generator: np.random.Generator) -> Iterator[str]:
    """Endless texts of about `length` characters; lengths vary as those of real documents do,
    by about half.
    """
    mean = sum(map(len, pool)) / len(pool) + 1
    while True:
        wanted = length * generator.lognormal(-0.125, 0.5)  # mean 1
        made_up = generator.zipf(_EXPONENT, size=round(_MADE_UP * wanted / _WORD))
        chosen = generator.integers(len(pool), size=max(1, round((1 - _MADE_UP) * wanted / mean)))
        parts = [*(pool[n] for n in chosen.tolist()), *map(_spelled, made_up.tolist())]
        yield " ".join(parts[n] for n in generator.permutation(len(parts)).tolist())


def _spelled(number: int) -> str:
    """A word that English does not have, one for each number; of two syllables or more."""
    word = "q"
    while number:
        number, syllable = divmod(number, 100)
        word += "bdfghklmnprstvwxyzcj"[syllable // 5] + "aeiou"[syllable % 5]
    return word
