"""BEIR's file layout, as BEIR itself, MTEB and many ports have it.

corpus.jsonl, queries.jsonl and qrels/<split>.tsv (or qrels.tsv), or the same tables as Parquet or JSON Lines in folders
of those names, where MTEB calls the judgements "default". Rows are {"_id" or "id", "title", "text"} and
{"query-id", "corpus-id", "score"}.
"""

from collections.abc import Iterator
from pathlib import Path

from environments.sources import checks, tables
from environments.sources.collection import Collection, Placed, keep_judged, open_corpus
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
    documents = open_corpus(home, corpus_files, lambda: _documents(corpus_files))
    queries: dict[str, str] = {}
    for where, row in tables.read_rows(tables.find(place, "queries")):
        checks.add_query(queries, tables.pick_column(where, row, *_ID), tables.pick_column(where, row, *_TEXT), where)
    qrels, judged_in = _qrels(place)
    return Collection(documents, keep_judged(queries, qrels, judged_in, "queries.jsonl"), qrels)


def _inside(folder: Path) -> Path:
    return folder / "data" if (folder / "data" / "corpus").is_dir() else folder


def _documents(files: list[Path]) -> Iterator[Placed]:
    for where, row in tables.read_rows(files):
        doc_id = checks.check_id(tables.pick_column(where, row, *_ID), where)
        text = checks.check_text(tables.pick_column(where, row, *_TEXT), where)
        yield where, Document(doc_id, text, checks.check_optional_text(row.get("title"), where, "title"))


def _qrels(place: Path) -> tuple[dict[str, dict[str, float]], Path]:
    """(the judgements, where they stand): qrels/test.tsv, qrels.tsv, the only table in qrels/, or MTEB's "default"."""
    named = [path for path in (place / "qrels" / "test.tsv", place / "qrels.tsv") if path.is_file()]
    others = sorted((place / "qrels").glob("*.tsv"))
    if not named and len(others) > 1:
        raise DataError(f"{place / 'qrels'} holds several splits and no test.tsv; leave only the one that is meant")
    found = next(iter(named or others), None)
    qrels: dict[str, dict[str, float]] = {}
    for where, row in _tsv(found) if found else tables.read_rows(tables.find(place, "qrels", "default")):
        query_id, doc_id, score = (tables.pick_column(where, row, *names) for names in (_QUERY, _DOCUMENT, _SCORE))
        checks.add_judgement(qrels, query_id, doc_id, score, where)
    return qrels, found or place


def _tsv(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    rows = tables.read_cells(path)
    _, header = next(rows, ("", []))
    for where, row in rows:
        yield where, dict(zip(header, row, strict=True))
