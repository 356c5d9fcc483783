"""MultiConIR's lengthened documents: the same sentences, with filler between them, up to a number of words.

Section 5.2 of the paper pads documents to 512 and 1,024 words with short sentences that mean nothing, after Wang et al.
2023. The release has the padded texts ready; this makes more of the same kind, and made the miniature's.
"""

import re

# Twelve short sentences of our own that say nothing; repeated as often as it takes.
FILLER = (
    "The clock on the wall is round.",
    "Some days are longer than others.",
    "A cup stands next to the lamp.",
    "There is a road and it goes on.",
    "Grey is a colour between two others.",
    "The door was open and then it was not.",
    "Water runs downhill.",
    "One chair is as good as the next.",
    "It is neither early nor late.",
    "Somewhere a window is being closed.",
    "The grass by the fence is short.",
    "And so it goes from here to there.",
)
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")


def pad(text: str, words: int) -> str:
    """`text` with filler spread evenly between its sentences, to at least `words` words; never shortened.

    Every sentence of `text` stays whole, and in order. The filler is taken in turn, so the same text gets the
    same padding, and two texts with as many sentences of the same lengths differ only where they did before.
    """
    sentences = [sentence for sentence in _SENTENCE_END.split(text.strip()) if sentence]
    missing = words - len(text.split())
    filler: list[str] = []
    while missing > 0:
        filler.append(FILLER[len(filler) % len(FILLER)])
        missing -= len(filler[-1].split())
    padded, used = [], 0
    for place, sentence in enumerate(sentences, start=1):
        padded.append(sentence)
        until = len(filler) * place // len(sentences)
        padded += filler[used:until]
        used = until
    return " ".join(padded)
