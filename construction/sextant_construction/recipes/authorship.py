"""The recipe `external`: who wrote a text is known beforehand, and each text asks for the others of
its author.

OBLIQ-Bench's Writing-Style (section 4, appendix D.4): texts are scrubbed of words that name their
authors, texts of the same post are masked, and distractors are as long as the texts are. Nothing
is judged: the label is the truth.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
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

    authors: AuthorsSettings = AuthorsSettings()
    distractors: CorpusSettings = CorpusSettings()
    limits: LimitsSettings = LimitsSettings(queries=1000, min_positives=1)
    release: ReleaseSettings = ReleaseSettings(objective=WANTED)


def build_benchmark(build: BuildPipeline) -> Benchmark:
    """Go through the stages. DataError if nothing is left."""
    author_of = _read_authors(build)
    documents = Corpus([*build.source.documents.stream(), *_distract(build, author_of)])
    texts = _scrub(build, author_of, documents)
    twins = {
        doc_id: first
        for doc_id, first in build.source.twins.items()
        if doc_id in texts and first in texts
    }
    source = build.source = build.source._replace(documents=texts, twins=twins)
    texts_by = defaultdict(list)
    post_of = {}
    queries = []
    for doc_id, author in author_of.items():
        if doc_id not in texts:
            continue
        texts_by[author].append(doc_id)
        # If the group is the author, a post is the text that a piece was cut from.
        post = texts[doc_id].parent
        if build.recipe.authors.field:
            post = source.group.get(doc_id, "")
        post_of[doc_id] = post or doc_id
        queries.append(
            Query(
                doc_id,
                texts[doc_id].text,
                build.recipe.release.objective,
            )
        )
    queries = list(release.mask_own_document(queries, post_of, twins))
    others = {
        query.query_id: [
            doc_id for doc_id in texts_by[author_of[query.query_id]] if doc_id not in query.excluded
        ]
        for query in queries
    }
    gold = _choose_queries(build, others)
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
    if column:
        author_of = {doc_id: texts.get(column, "") for doc_id, texts in source.private.items()}
    else:
        # Pieces of a text without an author have that text as their group.
        author_of = {
            doc_id: group
            for doc_id, group in source.group.items()
            if group != source.documents[doc_id].parent
        }
    author_of = {doc_id: author for doc_id, author in author_of.items() if author}
    if not author_of:
        raise DataError(
            "no text has an author; [corpus] names the column as its group, or as private and in "
            "[authors]"
        )
    return author_of


def _choose_queries(build: BuildPipeline, others: Mapping[str, Sequence[str]]) -> Grades:
    """Return the other texts of its author for up to `limits.queries` queries with enough of them."""
    limits = build.recipe.limits
    enough = stable_order(
        query_id for query_id, doc_ids in others.items() if len(doc_ids) >= limits.min_positives
    )
    gold = {query_id: dict.fromkeys(others[query_id], 1.0) for query_id in enough[: limits.queries]}
    too_few = stable_order(others.keys() - {*enough})
    build.drop_all("authors", too_few, "too few other texts of the author")
    build.drop_all("authors", enough[limits.queries :], "more than queries are wanted")
    build.count("authors", len(others), len(gold))
    build.demand(gold, remedy="each needs another text of its author")
    return gold


def _distract(build: BuildPipeline, author_of: Mapping[str, str]) -> list[Document]:
    """Return texts of the second corpus that are as long as the texts of authors."""
    recipe: AuthorshipRecipe = build.recipe
    if not recipe.distractors.path:
        return []
    source = ingest(recipe.distractors, recipe.clean, recipe.cut, build.folder / "distractors")
    for warning in source.warnings:
        print_stderr(f"distractors: {warning}")
    for left_out in read_dropped(source):
        build.drop("distractors", *left_out)
    lengths = {document.doc_id: len(document.text) for document in source.documents.stream()}
    documents = build.source.documents
    chosen = match_lengths([len(documents[doc_id].text) for doc_id in author_of], lengths)
    build.drop_all(
        "distractors",
        sorted(lengths.keys() - set(chosen)),
        "not needed, or not as long as the others",
    )
    build.count(
        "distractors",
        len(lengths) + sum(source.counts.values()),
        len(chosen),
    )
    return [source.documents[doc_id] for doc_id in chosen]


def match_lengths(wanted: Sequence[int], lengths: Mapping[str, int]) -> list[str]:
    """Return as many ids as can be with the histogram of the `wanted` lengths, over twentieths.

    `lengths` is id -> length. DataError if it has none for a bin.
    """
    ends = np.unique(np.quantile(wanted, np.arange(1, BINS) / BINS))
    shares = np.bincount(np.digitize(wanted, ends))
    bins: list[list[str]] = [[] for _ in shares]
    for doc_id in stable_order(lengths):
        if min(wanted) <= lengths[doc_id] <= max(wanted):
            bins[np.digitize(lengths[doc_id], ends)].append(doc_id)
    unmatched = [length for length in sorted(wanted) if not bins[np.digitize(length, ends)]]
    if unmatched:
        raise DataError(
            f"too few distractors have {unmatched[0]} to {plural(unmatched[-1], 'character')}, as "
            f"{plural(len(unmatched), 'text')} of authors have; take more of them, or leave such texts out "
            f"by min_chars and max_chars"
        )
    # Texts for each text that is wanted in a bin
    least = min(len(ids) / share for ids, share in zip(bins, shares, strict=True) if share)
    taken = (ids[: round(least * share)] for ids, share in zip(bins, shares, strict=True))
    return sorted(chain.from_iterable(taken))


def _scrub(
    build: BuildPipeline,
    author_of: Mapping[str, str],
    texts: Corpus,
) -> Corpus:
    """Return the texts with their authors' names, and other words that say who wrote them, replaced
    by the types of these.

    Texts without a usable answer are left out.
    """
    units = (
        StageInput(
            doc_id, {"text": [indexed_text(texts[doc_id])], "known": [author_of.get(doc_id, "")]}
        )
        for doc_id in texts
    )

    def scrub(text: str, spans: Mapping[str, str], author: str) -> str:
        types = {span: span_type for span, span_type in spans.items() if span in text}
        names = re.findall(rf"\b{re.escape(author)}\b", text, re.IGNORECASE) if author else ()
        return replace_spans(text, types | dict.fromkeys(names, "name"))

    documents = []
    for unit, answer in build.ask("scrub", units):
        if answer:
            document = texts[unit.key]
            author = author_of.get(unit.key, "")
            title = scrub(document.title, answer["spans"], author)
            text = scrub(document.text, answer["spans"], author)
            documents.append(replace(document, title=title, text=text))
    build.count("scrub", len(texts), len(documents))
    return Corpus(documents)
