"""The recipe `external`: who wrote a text is known beforehand, and each text asks for the others of its author.

OBLIQ-Bench's Writing-Style (section 4, appendix D.4): texts are scrubbed of what names their authors, what is of the
same post is masked, and distractors are as long as the texts are. Nothing is judged: the label is the truth.
"""

import re
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

from evals.building import release
from evals.building.clean import replace_spans
from evals.building.engine import Build, order
from evals.building.ingest import CorpusSection, ingest
from evals.building.recipe import Limits, Recipe, Release
from evals.building.units import Benchmark, Unit
from tools.console import say
from tools.corpus import Corpus, indexed_text
from tools.errors import DataError
from tools.records import Document, Query

BINS = 20  # of lengths: in each, distractors have the share that the authors' texts have
WANTED = (
    "The query is a text. Wanted are other texts by the same author, recognised by the way of writing; what a text is "
    "about is no evidence."
)


@dataclass(frozen=True)
class Authors:
    """Whose a text is, and what does not say so."""

    field: Annotated[str, "private column with the author; empty: the corpus' group is the author"] = ""
    scrub: Annotated[bool, "ask a model what in a text says who wrote it, and take that out"] = True
    distractors: Annotated[int, "texts of the second corpus at most; 0: as many as can be as long as the others"] = 0


@dataclass(frozen=True)
class External(Recipe):
    """The sections of the recipe."""

    authors: Authors = field(default_factory=Authors)
    distractors: CorpusSection = field(default_factory=CorpusSection)
    limits: Limits = field(default_factory=lambda: Limits(queries=1000, min_positives=1))
    release: Release = field(default_factory=lambda: Release(objective=WANTED))


def make(build: Build) -> Benchmark:
    """Go through the stages. DataError where nothing is left."""
    source, column, limits = build.source, build.recipe.authors.field, build.recipe.limits
    author = {one: of[column] for one, of in source.private.items() if of.get(column)} if column else dict(source.group)
    if not column:  # pieces of a text without an author have that text as their group
        author = {one: of for one, of in author.items() if of != source.documents[one].parent}
    if not author:
        raise DataError("no text has an author; [corpus] names the column as its group, or as private and in [authors]")
    texts = _scrub(build, author, {one.doc_id: one for one in (*source.documents.stream(), *_distract(build, author))})
    twins = {one: first for one, first in source.twins.items() if one in texts and first in texts}
    author = {one: name for one, name in author.items() if one in texts}
    build.source = source._replace(documents=texts, twins=twins)
    # Where the group is the author, a post is what a text was cut from.
    post = {one: source.group.get(one, one) if column else texts[one].parent or one for one in author}
    works = defaultdict[str, list[str]](list)
    for one, name in author.items():
        works[name].append(one)
    asked = [Query(one, texts[one].text, build.recipe.release.objective) for one in author]
    asked = release.mask(asked, {one: one for one in author}, post, twins)
    gold = {of.query_id: [one for one in works[author[of.query_id]] if one not in of.excluded] for of in asked}
    enough = order(one for one in gold if len(gold[one]) >= limits.min_positives)
    kept = {*enough[: limits.queries]}
    build.leave("authors", "too few other texts of the author", len(gold) - len(enough))
    build.leave("authors", "more than queries are wanted", len(enough) - len(kept))
    build.count("authors", len(gold), len(kept))
    if not kept:
        raise DataError(f"no query is left after {build.describe()}; each needs another text of its author")
    queries = [one for one in asked if one.query_id in kept]
    judgements = {"gold": {one: dict.fromkeys(gold[one], 1.0) for one in gold if one in kept}}
    return build.finish(queries, judgements, (), author, lens="authorship")


def _distract(build: Build, author: Mapping[str, str]) -> list[Document]:
    """Return texts of the second corpus that are as long as those of the authors."""
    recipe: External = build.recipe
    if not recipe.distractors.path:
        return []
    found = ingest(recipe.distractors, recipe.clean, recipe.cut, build.folder / "distractors")
    others = found.documents
    for warning in found.warnings:
        say(f"distractors: {warning}")
    if both := next((one for one in others if one in build.source.documents), None):
        raise DataError(f"both corpora have a document {both!r}; give the documents of one of them other ids")
    wanted = [len(build.source.documents[one].text) for one in author]
    chosen = match_lengths(wanted, {one.doc_id: len(one.text) for one in others.stream()}, recipe.authors.distractors)
    build.leave("distractors", "not needed, or not as long as the others", len(others) - len(chosen))
    build.count("distractors", len(others), len(chosen))
    return [others[one] for one in chosen]


def match_lengths(wanted: Sequence[int], there: Mapping[str, int], most: int = 0) -> list[str]:
    """Return ids, as many as can be up to `most` (0: any number), so that lengths have the histogram of those `wanted`.

    `there` is id -> length. 18 bins are equally wide, the first and the last have a twentieth of `wanted` each.
    DataError where a bin stays empty.
    """
    lengths, bins = sorted(wanted), defaultdict[int, list[str]](list)
    low, high = lengths[len(lengths) // BINS], lengths[-1 - len(lengths) // BINS]
    ends = [low + (high - low) * number / (BINS - 2) for number in range(BINS - 1)]
    shares = Counter(bisect(ends, length) for length in lengths)
    for one in order(there):
        if lengths[0] <= there[one] <= lengths[-1]:
            bins[bisect(ends, there[one])].append(one)
    many = min(most or len(there), *(len(bins[bin]) * len(lengths) // share for bin, share in shares.items()))
    if empty := [length for length in lengths if many * shares[bisect(ends, length)] < len(lengths)]:
        about = f"too few distractors have {empty[0]} to {empty[-1]} characters, as {len(empty)} texts of authors have"
        raise DataError(f"{about}; take more of them, or leave such texts out by min_chars and max_chars")
    return sorted(one for bin, share in shares.items() for one in bins[bin][: many * share // len(lengths)])


def _scrub(build: Build, author: Mapping[str, str], texts: Mapping[str, Document]) -> Corpus:
    """Return the texts without what says who wrote them; those of which no usable answer tells are left out."""
    units = [Unit(one, {"text": [indexed_text(texts[one])], "known": [author.get(one, "")]}) for one in texts]
    answers = build.ask("scrub", units) if build.recipe.authors.scrub else ((one, {"spans": []}) for one in units)
    found = ((unit.key, answer["spans"]) for unit, answer in answers if answer)
    scrubbed = Corpus(
        _without(texts[one], {of["text"]: of["what"] for of in spans}, author.get(one, "")) for one, spans in found
    )
    build.count("scrub", len(texts), len(scrubbed))
    return scrubbed


def _without(document: Document, spans: Mapping[str, str], author: str) -> Document:
    """Return a document with its author's name, and the spans, replaced by what they are."""

    def scrub(text: str) -> str:
        found = {span: what for span, what in spans.items() if span in text}
        names = re.findall(rf"\b{re.escape(author)}\b", text, re.IGNORECASE) if author else []
        return replace_spans(text, found | dict.fromkeys(names, "name"))

    return replace(document, title=scrub(document.title), text=scrub(document.text))
