"""Annotate a pool's documents, and rank them by their annotations alone: how a lens's prompt is
compiled.

The prompt is that of the lens retriever (tools/retrievers/lens/annotators.py), which takes the
compiled file up as `get_lens(bm25,prompts=FILE)`. It is no search program, and not in the table of
them.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from sextant.programs.base import Program
from sextant.programs.passage_reading import complete_ranking, find_candidates
from sextant.tools.corpus import Corpus
from sextant.tools.errors import UsageError, require_at_least
from sextant.tools.lenses import LENSES, get_lens
from sextant.tools.records import Document, Query, Submission
from sextant.tools.retrievers.lens import surface_cues
from sextant.tools.retrievers.lens.annotators import (
    BATCH,
    AnnotateDocuments,
    annotate,
    annotate_text,
    predict_annotations,
)
from sextant.tools.retrievers.lexical.bm25 import BM25
from sextant.tools.text import content_words


def annotate_by_signs(inputs: Mapping[str, Any], statistics: Any) -> list[dict[str, str]]:
    """Annotate by counting for the lens that is asked for, without a model; the rarest words for another attribute."""
    name = next(
        (name for name, lens in LENSES.items() if lens.annotate == inputs["attribute"]),
        "recollection",
    )
    return [
        {
            "id": passage.id,
            "text": surface_cues.surface_cues(name, passage.text, lambda: statistics),
        }
        for passage in inputs["passages"]
    ]


class Annotator(Program):
    """A query's candidates in the order in which BM25 finds their annotations."""

    offline: ClassVar = {"annotations": annotate_by_signs}
    pooled: ClassVar[bool] = True

    pool: int = 100  # documents of the first search, where a query has no candidates
    lens: str = ""
    attribute: str = ""  # in words, in place of the lens
    read_chars: int = 2500  # characters of each document
    query: bool = False  # whether the query is itself such a document, and annotated, too

    def __post_init__(self) -> None:
        require_at_least(
            1,
            "annotator",
            read_chars=self.read_chars,
            pool=self.pool,
        )
        self.wording = self.attribute or get_lens(self.lens).annotate
        self.annotate_documents = predict_annotations(AnnotateDocuments)

    def forward(self, query: Query) -> Submission:
        """Annotate the candidates, a few at a time, and search in the annotations."""
        if not self.wording:
            raise UsageError(
                "annotator: the task has no lens; say what to write down with -P attribute=TEXT"
            )
        session = self.toolbox.open(query)
        pool = sorted(find_candidates(session, query, self.pool).doc_ids)
        session.hop = 2
        notes = dict[str, str]()
        predictor = (self.annotate_documents, self.wording)
        for first in range(0, len(pool), BATCH):
            annotate(
                session,
                *predictor,
                pool[first : first + BATCH],
                self.read_chars,
                notes,
            )
        text = (
            annotate_text(*predictor, query.text[: self.read_chars]) if self.query else query.text
        )
        ranked_ids: list[str] = []
        if any(map(content_words, notes.values())):
            ranked_ids = (
                BM25(Corpus(Document(doc_id, notes[doc_id]) for doc_id in pool))
                .search(text, len(pool))
                .doc_ids
            )
        ranked = complete_ranking(ranked_ids, pool)
        session.rank(ranked)
        return session.submit(ranked[: self.depth])
