"""What a reader returns: documents, queries and judgements, before a task makes an environment of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from environments.base import Qrels
from tools.corpus import Corpus
from tools.errors import DataError


@dataclass(frozen=True, slots=True)
class Collection:
    """One collection, read whole."""

    documents: Corpus
    queries: Mapping[str, str]  # query_id -> text
    gold: Qrels
    pooled: Qrels | None = None
    excluded: Mapping[str, frozenset[str]] = field(default_factory=dict)  # query_id -> doc_ids not to be shown


def keep_judged(queries: Mapping[str, str], qrels: Qrels, judged_in: Path, asked_in: str) -> dict[str, str]:
    """The queries that are judged: files often have those of other splits, too. DataError for an unknown one."""
    if not qrels:
        raise DataError(f"{judged_in} has no judgements in it")
    if strangers := qrels.keys() - queries.keys():
        raise DataError(f"{judged_in} judges the query {min(strangers)!r}, which {asked_in} has not")
    return {query_id: text for query_id, text in queries.items() if query_id in qrels}
