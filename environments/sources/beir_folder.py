"""BEIR's file layout, as BEIR itself, MTEB and many ports have it.

corpus.jsonl, queries.jsonl and qrels/<split>.tsv (or qrels.tsv), or the same tables as Parquet or JSON Lines in folders
of those names, where MTEB calls the judgements "default". Rows are {"_id" or "id", "title", "text"} and
{"query-id", "corpus-id", "score"}.
"""

from collections.abc import Iterator
from pathlib import Path

from environments.sources import checks, jsonl, kept, tables
from environments.sources.collection import Collection
from environments.sources.kept import Placed
from tools.errors import DataError
from tools.records import Document

_ID, _TEXT = ("_id", "id", "doc_id", "docid", "document_id", "query_id", "qid"), ("text", "contents", "content")
_QUERY, _DOCUMENT = ("query-id", "query_id", "qid"), ("corpus-id", "corpus_id", "doc_id", "docid", "document_id")
_SCORE = ("score", "relevance", "label")


def is_one(folder: Path) -> bool:
    """Whether `folder` looks like this layout."""
    place = _inside(folder)
    return bool(tables.seek(place, "corpus")) and not (place / "queries+qrels").exists()


def read(folder: Path, home: Path) -> Collection:
    """The data set in `folder`. DataError for anything missing or damaged."""
    place = _inside(folder)
    corpus_files = tables.find(place, "corpus")
    documents = kept.corpus(home, corpus_files, lambda: _documents(corpus_files))
    queries: dict[str, str] = {}
    for where, row in tables.rows(tables.find(place, "queries")):
        query_id = checks.identifier(tables.pick_column(where, row, *_ID), where)
        if query_id in queries:
            raise DataError(f"{where}: the id {query_id!r} was there before")
        queries[query_id] = checks.text(tables.pick_column(where, row, *_TEXT), where)
    qrels = _qrels(place)
    # A BEIR split is the queries that its qrels judge; queries.jsonl often has those of other splits, too.
    if strangers := qrels.keys() - queries.keys():
        raise DataError(f"{place}: the judgements name the query {min(strangers)!r}, which the queries have not")
    return Collection(documents, {query_id: queries[query_id] for query_id in queries if query_id in qrels}, qrels)


def _inside(folder: Path) -> Path:
    return folder / "data" if (folder / "data" / "corpus").is_dir() else folder


def _documents(files: list[Path]) -> Iterator[Placed]:
    for where, row in tables.rows(files):
        doc_id = checks.identifier(tables.pick_column(where, row, *_ID), where)
        text = checks.text(tables.pick_column(where, row, *_TEXT), where)
        yield where, Document(doc_id, text, checks.optional_text(row.get("title"), where, "title"))


def _qrels(place: Path) -> dict[str, dict[str, float]]:
    named = [path for path in (place / "qrels" / "test.tsv", place / "qrels.tsv") if path.is_file()]
    found = next(iter(named or sorted((place / "qrels").glob("*.tsv"))), None)
    if not named and found and len(list(found.parent.glob("*.tsv"))) > 1:
        raise DataError(f"{found.parent} holds several splits and no test.tsv; leave only the one that is meant")
    rows = _tsv(found) if found else tables.rows(tables.find(place, "qrels", "default"))
    qrels: dict[str, dict[str, float]] = {}
    for where, row in rows:
        query_id, doc_id, score = (tables.pick_column(where, row, *names) for names in (_QUERY, _DOCUMENT, _SCORE))
        checks.judge(qrels, query_id, doc_id, score, where)
    if not qrels:
        raise DataError(f"{found or place} has no judgements in it")
    return qrels


def _tsv(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    header: list[str] = []
    for number, text in jsonl.lines(path):
        cells = text.split("\t")
        if not header:
            header = cells
        elif len(cells) != len(header):
            raise DataError(f"{path}, line {number}: {len(cells)} columns where {len(header)} are expected")
        else:
            yield f"{path}, line {number}", dict(zip(header, cells, strict=True))
