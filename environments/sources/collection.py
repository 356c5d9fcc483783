"""What a reader hands over: documents, queries and judgements, before a task makes an environment of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from environments.base import Qrels
from tools.corpus import Corpus


@dataclass(frozen=True, slots=True)
class Collection:
    """One collection, read whole."""

    documents: Corpus
    queries: Mapping[str, str]  # query_id -> text
    gold: Qrels
    pooled: Qrels | None = None
    excluded: Mapping[str, frozenset[str]] = field(default_factory=dict)  # query_id -> doc_ids not to be shown
