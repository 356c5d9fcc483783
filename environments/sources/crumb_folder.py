"""CRUMB's file layout: a corpus of passages, one of whole documents, and labelled queries, raw or as the hub's Parquet.

Raw: <task>/passage_corpus.jsonl, <task>/full_document_corpus.jsonl, <task>/eval/query_labels.jsonl and
<task>/val/query_labels.jsonl. Parquet, as the hub converts it: <config>/<task>/*.parquet with the configs
passage_corpus, full_document_corpus, evaluation_queries and validation_queries. A corpus row is {"document_id",
"document_content", "parent_id"}; a query row {"query_id", "query_content", "instruction", "passage_qrels",
"passage_binary_qrels", "full_document_qrels"}, where a cell of judgements is a list of {"id", "label"}, the same in a
JSON string, or null.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from environments.sources import checks, tables
from environments.sources.collection import Placed, open_corpus
from tools.corpus import Corpus
from tools.errors import DataError
from tools.records import Document

Grades = dict[str, float]

_QRELS = ("passage_qrels", "passage_binary_qrels", "full_document_qrels")
_QUERY_COLUMNS = ("query_id", "query_content", "instruction", *_QRELS)


@dataclass(frozen=True, slots=True)
class LabelledQuery:
    """A row of query_labels."""

    query_id: str
    text: str
    instruction: str  # empty where the row has none
    passage: Grades
    passage_binary: Grades
    full_document: Grades


def read_corpus(folder: Path, names: Sequence[str], config: str, home: Path) -> Corpus:
    """The corpus `config` ("passage_corpus" or "full_document_corpus") of the task that is called one of `names`."""
    files = tables.find(folder, *_stems(folder, names, config, config))
    return open_corpus(home, files, lambda: _documents(files))


def read_queries(folder: Path, names: Sequence[str], config: str) -> list[LabelledQuery]:
    """The queries of `config` ("evaluation_queries" or "validation_queries"), in the release's order."""
    part = {"evaluation_queries": "eval", "validation_queries": "val"}[config]
    files = tables.find(folder, *_stems(folder, names, config, f"{part}/query_labels"))
    found: dict[str, LabelledQuery] = {}
    for where, row in tables.read_rows(files, _QUERY_COLUMNS):
        query = _query(where, row)
        if query.query_id in found:
            raise DataError(f"{where}: the id {query.query_id!r} was there before")
        found[query.query_id] = query
    if not found:
        raise DataError(f"{files[0]} has no queries in it")
    return list(found.values())


def _stems(folder: Path, names: Sequence[str], config: str, raw: str) -> list[str]:
    """Where a table may be, most particular first: in the release, in its Parquet form, in the task's own folder."""
    return [*(f"{name}/{raw}" for name in names), *(f"{config}/{name}" for name in names), raw]


def _documents(files: Sequence[Path]) -> Iterator[Placed]:
    for where, row in tables.read_rows(files, ("document_id", "document_content", "parent_id")):
        doc_id = checks.check_id(tables.pick_column(where, row, "document_id"), where)
        text = checks.check_text(tables.pick_column(where, row, "document_content"), where, "document_content")
        parent = row.get("parent_id")
        yield where, Document(doc_id, text, parent="" if parent is None else checks.check_id(parent, where))


def _query(where: str, row: dict[str, Any]) -> LabelledQuery:
    return LabelledQuery(
        query_id=checks.check_id(tables.pick_column(where, row, "query_id"), where),
        text=checks.check_text(tables.pick_column(where, row, "query_content"), where, "query_content"),
        instruction=checks.check_optional_text(row.get("instruction"), where, "instruction").strip(),
        passage=_grades(tables.pick_column(where, row, "passage_qrels"), where, "passage_qrels"),
        passage_binary=_grades(row.get("passage_binary_qrels"), where, "passage_binary_qrels"),
        full_document=_grades(tables.pick_column(where, row, "full_document_qrels"), where, "full_document_qrels"),
    )


def _grades(cell: Any, where: str, name: str) -> Grades:
    if cell is None or cell == "":
        return {}
    try:
        entries = json.loads(cell) if isinstance(cell, str) else cell
        pairs = [] if entries is None else [(entry["id"], entry["label"]) for entry in entries]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise DataError(f'{where}: field {name!r} is not a list of {{"id", "label"}}') from None
    grades: Grades = {}
    for identifier, label in pairs:
        doc_id, grade = checks.check_id(identifier, f"{where}, {name}"), checks.check_grade(label, f"{where}, {name}")
        if grades.setdefault(doc_id, grade) != grade:
            raise DataError(f"{where}, {name}: {doc_id!r} is judged twice, {grades[doc_id]} and {grade}")
    return grades
