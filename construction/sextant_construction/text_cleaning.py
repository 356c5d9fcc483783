"""Take shortcuts out of texts, find documents that repeat others, and warn of risky texts."""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from rensa import RMinHash, RMinHashLSH

from sextant.tools.corpus import Corpus
from sextant.tools.errors import UsageError
from sextant.tools.platform.interrupts import check_interrupts
from sextant.tools.platform.number_format import plural
from sextant.tools.records import Document
from sextant.tools.text import injection_kind, tokens, word_runs

_RUN = 5  # words
# Bands of a signature, and hashes of a band: of pairs alike by 0.9, one in 5,000 is missed; by 0.8,
# one in 70.
_BANDS = 8
_ROWS = 4
_LINK = re.compile(r"\[([^\]\n]*)\]\(\s*https?://[^)\n]*\)")  # of Markdown
_URL = re.compile(r"(?:https?://|\bwww\.)[^\s<>\"')\]]+(?<![.,;:!?])")
_PERSONAL = {
    "e-mail addresses": re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+"),
    "handles": re.compile(r"(?<![\w@./+-])@\w{2,}"),
    # With a +, or of nine digits and more in groups: dates and years have fewer.
    "telephone numbers": re.compile(
        r"(?<![\w.,/+-])(?:\+[\d ()-]{7,17}\d|(?=(?:\D?\d){9,15}(?!\d))\(?\d{2,5}(?:\)? ?[ /-] "
        r"?\d{2,5}){2,4})(?![\w-])"
    ),
}


@dataclass(frozen=True)
class CleanSettings:
    """The text removed from documents, and the duplicates; a judged document stands for all of its
    duplicates.
    """

    urls: Annotated[bool, "whether addresses of web pages stay"] = True
    bylines: Annotated[
        Sequence[str], "regular expressions, ^ and $ at line ends: what they find is cut"
    ] = ()
    near: Annotated[
        float, "Jaccard similarity of five-word runs that makes texts the same; 0: only equal ones"
    ] = 0.9
    hash_ids: Annotated[
        bool, "digests for ids and groups, where these give something away (dates, names)"
    ] = False


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Return a regular expression of a recipe, with ^ and $ at line ends. UsageError if it is none."""
    try:
        return re.compile(pattern, re.MULTILINE)
    except re.error as error:
        raise UsageError(f"{pattern!r} is no regular expression: {error}") from None


def clean_text(text: str, clean: CleanSettings) -> str:
    """Return `text` without the parts that the section names."""
    before = text = unicodedata.normalize("NFC", re.sub(r"\r\n?", "\n", text))
    for byline in clean.bylines:
        text = compile_pattern(byline).sub("", text)
    if not clean.urls:
        text = _URL.sub("", _LINK.sub(r"\1", text))
    return text if text == before else re.sub(r"\n\s*\n", "\n\n", text).strip()


def replace_spans(text: str, spans: Mapping[str, str]) -> str:
    """Return `text` with each of `spans` replaced by its type, in brackets: "[name]"; the longest first."""
    if not spans:
        return text
    longest = "|".join(map(re.escape, sorted(spans, key=len, reverse=True)))
    return re.sub(longest, lambda match: f"[{spans[match[0]]}]", text)


def find_duplicates(documents: Corpus, near: float) -> dict[str, str]:
    """Map each document to the first document with its title and text, or whose runs of words are
    alike by `near`.

    Candidates are found by MinHash in bands (Broder 1997; Leskovec et al., Mining of Massive Datasets, 3.4), and then
    compared. A near twin is of a document that is no twin itself. `near` is from 0, equal texts alone, to 1.
    """
    twins = documents.repeats()
    index = RMinHashLSH(threshold=near, num_perm=_BANDS * _ROWS, num_bands=_BANDS)
    firsts = list[str]()
    for document in documents.stream() if near else ():
        check_interrupts()
        if document.doc_id in twins or not (runs := word_runs(tokens(document.text), _RUN)):
            continue
        signature = RMinHash(num_perm=_BANDS * _ROWS, seed=1)
        signature.update(sorted(runs))
        candidates = (documents[firsts[n]] for n in sorted(index.query(signature)))
        for candidate in candidates:
            other_runs = word_runs(tokens(candidate.text), _RUN)
            if len(runs & other_runs) >= near * len(runs | other_runs):
                twins[document.doc_id] = candidate.doc_id
                break
        else:
            index.insert(len(firsts), signature)
            firsts.append(document.doc_id)
    return twins


class TextWarnings:
    """Warnings about the texts for a person before anything is sent."""

    def __init__(self) -> None:
        self._found = dict[str, tuple[int, int, str]]()  # by topic: things, documents, an example

    def add(self, topic: str, count: int, example: str) -> None:
        """Count things of a kind in a document; the first example of each kind is kept."""
        if count:
            before, documents, first = self._found.get(topic, (0, 0, example))
            self._found[topic] = (before + count, documents + 1, first)

    def look_at(self, document: Document) -> None:
        """Count the personal data of a document, of which an example is masked, and whether it speaks to a model."""
        for topic, pattern in _PERSONAL.items():
            matches = pattern.findall(f"{document.title}\n{document.text}")
            self.add(
                topic,
                len(matches),
                re.sub(r"(?<=\w)\w", "*", matches[0]) if matches else "",
            )
        self.add(
            "texts that speak to a model", bool(injection_kind(document.text)), document.doc_id
        )

    def say(self) -> list[str]:
        """Return a sentence for each kind of finding."""
        return [
            f"{count:,} {topic} in {plural(documents, 'document')}, e.g. {example}"
            for topic, (count, documents, example) in self._found.items()
        ]
