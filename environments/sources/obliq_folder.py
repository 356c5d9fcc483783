"""OBLIQ-Bench's file layout: corpus/corpus.jsonl, queries+qrels/queries.jsonl and queries+qrels/qrels.tsv.

Rows of the first two are {"_id", "text"}; the third has a header line (`query-id corpus-id score`, with hyphens or
underscores) and integer scores. Each file may be gzipped. Pooled judgements and exclusion lists, which
other tasks of the release have, are not read yet.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from environments.base import Qrels
from environments.sources import jsonl
from tools.corpus import Corpus
from tools.errors import DataError
from tools.records import Document, Query

LARGEST_GRADE = 10_000  # trec_eval counts gains in 32 bits

# A lone surrogate is half a character, as a cut-off emoji leaves it in JSON; no provider takes a text with one.
_HALF = re.compile("[\ud800-\udfff]")
# Control characters, line ends of every kind, and half characters: they would break run files and terminals.
_UNFIT = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Release:
    """One task's files, read whole."""

    documents: Corpus
    queries: tuple[Query, ...]
    qrels: Qrels


def read(folder: Path, *, objective: str) -> Release:
    """The task in `folder`; every query carries `objective`. DataError for anything missing or damaged."""
    if not (folder / "corpus").is_dir():
        raise DataError(
            f"{folder} holds no corpus/corpus.jsonl; "
            "a data folder has the release's layout, e.g. tip-of-tongue/congress/corpus/corpus.jsonl"
        )
    corpus_file = jsonl.find(folder / "corpus", "corpus.jsonl")
    texts = _texts(corpus_file)
    if not any(character.isalnum() for text in texts.values() for character in text):
        raise DataError(f"{corpus_file} has no words in it; nothing can be searched")
    queries_file = jsonl.find(folder / "queries+qrels", "queries.jsonl")
    query_texts = _texts(queries_file)
    if not query_texts:
        raise DataError(f"{queries_file} has no queries in it")
    qrels_file = jsonl.find(folder / "queries+qrels", "qrels.tsv")
    qrels = _qrels(qrels_file)
    if strangers := qrels.keys() - query_texts.keys():
        raise DataError(f"{qrels_file} judges the query {min(strangers)!r}, which {queries_file} has not")
    if unjudged := query_texts.keys() - qrels.keys():
        raise DataError(f"{queries_file}: query {min(unjudged)!r} has no judgement in {qrels_file}")
    return Release(
        documents=Corpus(Document(doc_id, text) for doc_id, text in texts.items()),
        queries=tuple(Query(query_id, text, objective) for query_id, text in query_texts.items()),
        qrels=qrels,
    )


def _texts(path: Path) -> dict[str, str]:
    texts: dict[str, str] = {}
    for number, row in jsonl.rows(path, "_id", "text"):
        if row["_id"] in texts:
            raise DataError(f"{path}, line {number}: the id {row['_id']!r} was there before")
        if not row["_id"] or _UNFIT.search(row["_id"]):
            raise DataError(
                f"{path}, line {number}: the id {row['_id']!r} is empty or has a character that no id may have"
            )
        texts[row["_id"]] = _HALF.sub("\N{REPLACEMENT CHARACTER}", row["text"])
    return texts


def _qrels(path: Path) -> dict[str, dict[str, int]]:
    qrels: dict[str, dict[str, int]] = {}
    for count, (number, text) in enumerate(jsonl.lines(path)):
        cells = text.split("\t")
        if len(cells) != 3:
            raise DataError(f"{path}, line {number}: {len(cells)} columns where 3 are expected, tab separated")
        query_id, doc_id, score = cells
        if count == 0 and query_id.replace("_", "-") == "query-id":
            continue
        try:
            grade = int(score)
        except ValueError:
            grade = LARGEST_GRADE + 1
        if abs(grade) > LARGEST_GRADE:
            raise DataError(
                f"{path}, line {number}: the score {score[:20]!r} is not a whole number up to {LARGEST_GRADE}"
            )
        if doc_id in qrels.setdefault(query_id, {}):
            raise DataError(f"{path}, line {number}: {query_id!r} and {doc_id!r} are judged twice")
        qrels[query_id][doc_id] = grade
    return qrels
