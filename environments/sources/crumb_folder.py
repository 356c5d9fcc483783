"""CRUMB's layout: a corpus of passages, one of whole documents, and labelled queries, raw or as the hub's Parquet.

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

from environments.sources import tables
from environments.sources.layouts import Placed, open_corpus
from tools.corpus import Corpus
from tools.errors import DataError
from tools.records import Document

Grades = dict[str, float]

_QRELS = ("passage_qrels", "passage_binary_qrels", "full_document_qrels")


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
    """Read the corpus `config` ("passage_corpus" or "full_document_corpus") of the task called one of `names`."""
    files = _find(folder, names, config, config)

    def read() -> Iterator[Placed]:
        for where, row in tables.read_rows(files, ("document_id", "document_content", "parent_id")):
            doc_id = tables.check_id(tables.pick_column(where, row, "document_id"), where)
            text = tables.check_text(tables.pick_column(where, row, "document_content"), where, "document_content")
            parent = row.get("parent_id")
            yield where, Document(doc_id, text, parent="" if parent is None else tables.check_id(parent, where))

    return open_corpus(home, files, read)


def read_queries(folder: Path, names: Sequence[str], config: str) -> list[LabelledQuery]:
    """Read the queries of `config` ("evaluation_queries" or "validation_queries"), in the release's order."""
    part = {"evaluation_queries": "eval", "validation_queries": "val"}[config]
    files = _find(folder, names, config, f"{part}/query_labels")
    found: dict[str, LabelledQuery] = {}
    for where, row in tables.read_rows(files, ("query_id", "query_content", "instruction", *_QRELS)):
        query_id = tables.check_id(tables.pick_column(where, row, "query_id"), where)
        if query_id in found:
            raise DataError(f"{where}: the id {query_id!r} was there before")
        text = tables.check_text(tables.pick_column(where, row, "query_content"), where, "query_content")
        instruction = tables.check_text(row.get("instruction"), where, "instruction", optional=True).strip()
        row.setdefault("passage_binary_qrels")  # few tasks have it
        grades = (_read_grades(tables.pick_column(where, row, name), f"{where}, {name}") for name in _QRELS)
        found[query_id] = LabelledQuery(query_id, text, instruction, *grades)
    if not found:
        raise DataError(f"{files[0]} has no queries in it")
    return list(found.values())


def _find(folder: Path, names: Sequence[str], config: str, raw: str) -> list[Path]:
    """Find a table, in the release, in its Parquet form, or in the task's own folder."""
    return tables.find_tables(folder, *(f"{n}/{raw}" for n in names), *(f"{config}/{n}" for n in names), raw)


def _read_grades(cell: Any, where: str) -> Grades:
    if cell is None or cell == "":
        return {}
    try:
        entries = json.loads(cell) if isinstance(cell, str) else cell
        pairs = [] if entries is None else [(entry["id"], entry["label"]) for entry in entries]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise DataError(f'{where}: not a list of {{"id", "label"}}') from None
    grades: Grades = {}
    for identifier, label in pairs:
        doc_id, grade = tables.check_id(identifier, where), tables.check_grade(label, where)
        if grades.setdefault(doc_id, grade) != grade:
            raise DataError(f"{where}: {doc_id!r} is judged twice, {grades[doc_id]} and {grade}")
    return grades
