"""The recipe `external`: who wrote a text is known beforehand, and each text asks for the others of
its author.

OBLIQ-Bench's Writing-Style (section 4, appendix D.4): texts are scrubbed of words that name their
authors, texts of the same post are masked, and distractors are as long as the texts are. Nothing
is judged: the label is the truth.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

import numpy as np

from sextant.environments.base import Grades
from sextant.tools.corpus import Corpus, indexed_text
from sextant.tools.errors import DataError
from sextant.tools.platform.cli import print_stderr
from sextant.tools.platform.number_format import plural
from sextant.tools.records import Document, Query
from sextant_construction import release
from sextant_construction.ingest import CorpusSettings, ingest
from sextant_construction.pipeline import BuildPipeline, stable_order
from sextant_construction.recipe import LimitsSettings, Recipe, ReleaseSettings
from sextant_construction.text_cleaning import replace_spans
from sextant_construction.types import Benchmark, StageInput, read_dropped

# Bins of lengths, with the same number of the authors' texts each: distractors have the same share
# in each.
BINS = 20
WANTED = (
    "The query is a text. Wanted are other texts by the same author, recognised by the way of "
    "writing; what a text is about is no evidence."
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
    """Go through the stages. DataError if nothing is left."""
    author_of = _read_authors(build)
    documents = Corpus(
        [
            *build.source.documents.stream(),
            *_distract(build, author_of),
        ]
    )
    texts = _scrub(build, author_of, documents)
    source = build.source
    twins = {
        doc_id: first
        for doc_id, first in source.twins.items()
        if doc_id in texts and first in texts
    }
    build.source = source._replace(documents=texts, twins=twins)
    author_of = {doc_id: author for doc_id, author in author_of.items() if doc_id in texts}
    queries = _make_queries(build, author_of)
    gold = _find_other_texts(build, author_of, queries)
    return build.finish(
        [query for query in queries if query.query_id in gold],
        {"gold": gold},
        (),
        author_of,
        lens="authorship",
    )


def _read_authors(build: BuildPipeline) -> dict[str, str]:
    """Return doc_id -> author. DataError if no text has an author."""
    source = build.source
    column = build.recipe.authors.field
    author_of = {}
    if column:
        for doc_id, texts in source.private.items():
            if texts.get(column):
                author_of[doc_id] = texts[column]
    else:
        # Pieces of a text without an author have that text as their group.
        for doc_id, group in source.group.items():
            if group != source.documents[doc_id].parent:
                author_of[doc_id] = group
    if not author_of:
        raise DataError(
            "no text has an author; [corpus] names the column as its group, or as private and in "
            "[authors]"
        )
    return author_of


def _make_queries(build: BuildPipeline, author_of: Mapping[str, str]) -> list[Query]:
    """Return each text with an author as a query that must not see texts of the same post."""
    source = build.source
    post_of = {}
    queries = []
    for doc_id in author_of:
        # If the group is the author, a post is the text that a piece was cut from.
        if build.recipe.authors.field:
            post_of[doc_id] = source.group.get(doc_id, doc_id)
        else:
            post_of[doc_id] = source.documents[doc_id].parent or doc_id
        text = source.documents[doc_id].text
        queries.append(Query(doc_id, text, build.recipe.release.objective))
    return list(release.mask_own_document(queries, post_of, source.twins))


def _find_other_texts(
    build: BuildPipeline,
    author_of: Mapping[str, str],
    queries: Sequence[Query],
) -> Grades:
    """Return for each query the other texts of its author, up to `limits.queries` queries."""
    limits = build.recipe.limits
    texts_by = defaultdict(list)
    for doc_id, author in author_of.items():
        texts_by[author].append(doc_id)
    other_texts = {}
    for query in queries:
        doc_ids = texts_by[author_of[query.query_id]]
        other_texts[query.query_id] = [doc_id for doc_id in doc_ids if doc_id not in query.excluded]
    enough = stable_order(
        query_id
        for query_id, doc_ids in other_texts.items()
        if len(doc_ids) >= limits.min_positives
    )
    chosen = enough[: limits.queries]
    gold = {query_id: dict.fromkeys(other_texts[query_id], 1.0) for query_id in chosen}
    too_few = stable_order(other_texts.keys() - {*enough})
    build.drop_all("authors", too_few, "too few other texts of the author")
    build.drop_all("authors", enough[limits.queries :], "more than queries are wanted")
    build.count("authors", len(other_texts), len(gold))
    build.demand(gold, remedy="each needs another text of its author")
    return gold


def _distract(build: BuildPipeline, author_of: Mapping[str, str]) -> list[Document]:
    """Return texts of the second corpus that are as long as the texts of authors."""
    recipe: AuthorshipRecipe = build.recipe
    if not recipe.distractors.path:
        return []
    home = build.folder / "distractors"
    source = ingest(recipe.distractors, recipe.clean, recipe.cut, home)
    for warning in source.warnings:
        print_stderr(f"distractors: {warning}")
    for left_out in read_dropped(source):
        build.drop("distractors", *left_out)
    lengths = {document.doc_id: len(document.text) for document in source.documents.stream()}
    documents = build.source.documents
    chosen = match_lengths([len(documents[doc_id].text) for doc_id in author_of], lengths)
    reason = "not needed, or not as long as the others"
    build.drop_all("distractors", sorted(lengths.keys() - set(chosen)), reason)
    build.count("distractors", len(lengths) + sum(source.counts.values()), len(chosen))
    return [source.documents[doc_id] for doc_id in chosen]


def match_lengths(wanted: Sequence[int], lengths: Mapping[str, int]) -> list[str]:
    """Return as many ids as can be with the histogram of the `wanted` lengths, over twentieths.

    `lengths` is id -> length. DataError if it has none for a bin.
    """
    ends = np.unique(np.quantile(wanted, np.arange(1, BINS) / BINS))
    shares = np.bincount(np.digitize(wanted, ends))
    shortest = min(wanted)
    longest = max(wanted)
    bins = defaultdict(list)
    for doc_id in stable_order(lengths):
        if shortest <= lengths[doc_id] <= longest:
            bins[int(np.digitize(lengths[doc_id], ends))].append(doc_id)
    # Texts of a bin for each text that is wanted in it.
    supply = {number: len(bins[number]) / share for number, share in enumerate(shares) if share}
    unmatched = [length for length in sorted(wanted) if not supply[int(np.digitize(length, ends))]]
    if unmatched:
        raise DataError(
            f"too few distractors have {unmatched[0]} to {plural(unmatched[-1], 'character')}, as "
            f"{plural(len(unmatched), 'text')} of authors have; take more of them, or leave such texts out "
            f"by min_chars and max_chars"
        )
    least = min(supply.values())
    chosen = []
    for number in supply:
        chosen += bins[number][: round(least * shares[number])]
    return sorted(chosen)


def _scrub(
    build: BuildPipeline,
    author_of: Mapping[str, str],
    texts: Corpus,
) -> Corpus:
    """Return the texts without the words that say who wrote them.

    Texts without a usable answer are left out.
    """
    units = (
        StageInput(
            doc_id, {"text": [indexed_text(texts[doc_id])], "known": [author_of.get(doc_id, "")]}
        )
        for doc_id in texts
    )
    scrubbed = Corpus(
        _remove_identity(texts[unit.key], answer["spans"], author_of.get(unit.key, ""))
        for unit, answer in build.ask("scrub", units)
        if answer
    )
    build.count("scrub", len(texts), len(scrubbed))
    return scrubbed


def _remove_identity(
    document: Document,
    spans: Mapping[str, str],
    author: str,
) -> Document:
    """Return a document with its author's name, and the spans, replaced by their types."""

    def scrub(text: str) -> str:
        types = {span: span_type for span, span_type in spans.items() if span in text}
        if author:
            names = re.findall(rf"\b{re.escape(author)}\b", text, re.IGNORECASE)
            types |= dict.fromkeys(names, "name")
        return replace_spans(text, types)

    return replace(
        document,
        title=scrub(document.title),
        text=scrub(document.text),
    )
