"""The recipe `external`: who wrote a text is known beforehand, and each text asks for the others of
its author.

OBLIQ-Bench's Writing-Style (section 4, appendix D.4): texts are scrubbed of what names their
authors, what is of the same post is masked, and distractors are as long as the texts are. Nothing
is judged: the label is the truth.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

import numpy as np

from evals.build import release
from evals.build.ingest import CorpusSettings, ingest
from evals.build.pipeline import BuildPipeline, stable_order
from evals.build.recipe import LimitsSettings, Recipe, ReleaseSettings
from evals.build.text_cleaning import replace_spans
from evals.build.types import Benchmark, StageInput, read_dropped
from tools.cli import print_stderr
from tools.corpus import Corpus, indexed_text
from tools.errors import DataError
from tools.records import Document, Query

# Of lengths, with as many of the authors' texts each: distractors have the same share in each
BINS = 20
WANTED = (
    "The query is a text. Wanted are other texts by the same author, recognised by the way of "
    "writing; what a text is "
    "about is no evidence."
)


@dataclass(frozen=True)
class AuthorsSettings:
    """Whose a text is."""

    field: Annotated[
        str, "private column with the author; empty: the corpus' group is the author"
    ] = ""


@dataclass(frozen=True)
class AuthorshipRecipe(Recipe):
    """The sections of the recipe."""

    authors: AuthorsSettings = field(default_factory=AuthorsSettings)
    distractors: CorpusSettings = field(default_factory=CorpusSettings)
    limits: LimitsSettings = field(
        default_factory=lambda: LimitsSettings(queries=1000, min_positives=1)
    )
    release: ReleaseSettings = field(default_factory=lambda: ReleaseSettings(objective=WANTED))


def build_benchmark(build: BuildPipeline) -> Benchmark:
    """Go through the stages. DataError where nothing is left."""
    source = build.source
    column = build.recipe.authors.field
    limits = build.recipe.limits
    author = (
        {one: of[column] for one, of in source.private.items() if of.get(column)}
        if column
        else dict(source.group)
    )
    if not column:  # pieces of a text without an author have that text as their group
        author = {one: of for one, of in author.items() if of != source.documents[one].parent}
    if not author:
        raise DataError(
            "no text has an author; [corpus] names the column as its group, or as private and in "
            "[authors]"
        )
    texts = _scrub(build, author, Corpus([*source.documents.stream(), *_distract(build, author)]))
    twins = {one: first for one, first in source.twins.items() if one in texts and first in texts}
    build.source = source._replace(documents=texts, twins=twins)
    author = {one: name for one, name in author.items() if one in texts}
    # Where the group is the author, a post is what a text was cut from.
    post = {
        one: source.group.get(one, one) if column else texts[one].parent or one for one in author
    }
    works = defaultdict[str, list[str]](list)
    for one, name in author.items():
        works[name].append(one)
    own = (Query(one, texts[one].text, build.recipe.release.objective) for one in author)
    asked = list(release.mask_own_document(own, post, twins))
    others = {
        of.query_id: [one for one in works[author[of.query_id]] if one not in of.excluded]
        for of in asked
    }
    enough = stable_order(one for one in others if len(others[one]) >= limits.min_positives)
    gold = {one: dict.fromkeys(others[one], 1.0) for one in enough[: limits.queries]}
    build.drop_all(
        "authors", stable_order(others.keys() - {*enough}), "too few other texts of the author"
    )
    build.drop_all("authors", enough[limits.queries :], "more than queries are wanted")
    build.count("authors", len(others), len(gold))
    build.demand(gold, remedy="each needs another text of its author")
    return build.finish(
        [one for one in asked if one.query_id in gold],
        {"gold": gold},
        (),
        author,
        lens="authorship",
    )


def _distract(build: BuildPipeline, author: Mapping[str, str]) -> list[Document]:
    """Return texts of the second corpus that are as long as those of the authors."""
    recipe: AuthorshipRecipe = build.recipe
    if not recipe.distractors.path:
        return []
    found = ingest(recipe.distractors, recipe.clean, recipe.cut, build.folder / "distractors")
    for warning in found.warnings:
        print_stderr(f"distractors: {warning}")
    for left_out in read_dropped(found):
        build.drop("distractors", *left_out)
    lengths = {one.doc_id: len(one.text) for one in found.documents.stream()}
    chosen = match_lengths([len(build.source.documents[one].text) for one in author], lengths)
    build.drop_all(
        "distractors",
        sorted(lengths.keys() - set(chosen)),
        "not needed, or not as long as the others",
    )
    build.count("distractors", len(lengths) + sum(found.counts.values()), len(chosen))
    return [found.documents[one] for one in chosen]


def match_lengths(wanted: Sequence[int], there: Mapping[str, int]) -> list[str]:
    """Return as many ids as can be, so that lengths have the histogram of those `wanted`, over twentieths of these.

    `there` is id -> length. DataError where it has none for a bin.
    """
    ends = np.unique(np.quantile(wanted, np.arange(1, BINS) / BINS))
    shares = np.bincount(np.digitize(wanted, ends))
    bins = defaultdict[int, list[str]](list)
    for one in stable_order(
        one for one, length in there.items() if min(wanted) <= length <= max(wanted)
    ):
        bins[int(np.digitize(there[one], ends))].append(one)
    each = {place: len(bins[place]) / share for place, share in enumerate(shares) if share}
    if empty := [length for length in sorted(wanted) if not each[int(np.digitize(length, ends))]]:
        about = (
            f"too few distractors have {empty[0]} to {empty[-1]} characters, as {len(empty)} "
            f"texts of authors have"
        )
        raise DataError(
            f"{about}; take more of them, or leave such texts out by min_chars and max_chars"
        )
    return sorted(
        one for place in each for one in bins[place][: round(min(each.values()) * shares[place])]
    )


def _scrub(build: BuildPipeline, author: Mapping[str, str], texts: Corpus) -> Corpus:
    """Return the texts without what says who wrote them; those of which no usable answer tells are left out."""
    units = (
        StageInput(one, {"text": [indexed_text(texts[one])], "known": [author.get(one, "")]})
        for one in texts
    )
    answers = (
        (texts[unit.key], answer["spans"]) for unit, answer in build.ask("scrub", units) if answer
    )
    scrubbed = Corpus(_without(text, spans, author.get(text.doc_id, "")) for text, spans in answers)
    build.count("scrub", len(texts), len(scrubbed))
    return scrubbed


def _without(document: Document, spans: Mapping[str, str], author: str) -> Document:
    """Return a document with its author's name, and the spans, replaced by what they are."""

    def scrub(text: str) -> str:
        names = re.findall(rf"\b{re.escape(author)}\b", text, re.IGNORECASE) if author else []
        found = {span: what for span, what in spans.items() if span in text} | dict.fromkeys(
            names, "name"
        )
        return replace_spans(text, found)

    return replace(document, title=scrub(document.title), text=scrub(document.text))
