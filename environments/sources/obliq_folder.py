"""OBLIQ-Bench's file layout: corpus/corpus.jsonl, and queries.jsonl, qrels.tsv and more in queries+qrels/.

Rows of the first two are {"_id", "text"}; the third has a header line (`query-id corpus-id score`, with hyphens or
underscores). Some tasks have pooled judgements beside the gold ones (qrels_pool.tsv), some a list of documents that
must not be shown for a query (per_query_excluded_ids.json). Each file may be gzipped.
"""

from collections.abc import Container, Iterator, Mapping
from pathlib import Path

from environments.sources import checks, tables
from environments.sources.collection import Collection, Placed, open_corpus
from tools.errors import DataError
from tools.records import Document


def read(folder: Path, home: Path) -> Collection:
    """The task in `folder`. DataError for anything missing or damaged."""
    if not (folder / "corpus").is_dir():
        raise DataError(
            f"{folder} holds no corpus/corpus.jsonl; "
            "a data folder has the release's layout, e.g. tip-of-tongue/congress/corpus/corpus.jsonl"
        )
    corpus_file = tables.find_file(folder / "corpus", "corpus.jsonl")
    documents = open_corpus(home, [corpus_file], lambda: _documents(corpus_file))
    inside = folder / "queries+qrels"
    queries_file = tables.find_file(inside, "queries.jsonl")
    queries: dict[str, str] = {}
    for number, row in tables.read_objects(queries_file, "_id", "text"):
        checks.add_query(queries, row["_id"], row["text"], f"{queries_file}, line {number}")
    if not queries:
        raise DataError(f"{queries_file} has no queries in it")
    qrels_file = tables.find_file(inside, "qrels.tsv")
    gold = _qrels(qrels_file, queries)
    if unjudged := queries.keys() - gold.keys():
        raise DataError(f"{queries_file}: query {min(unjudged)!r} has no judgement in {qrels_file}")
    pool_file = tables.seek_file(inside, "qrels_pool.tsv")
    pooled = None if pool_file is None else _qrels(pool_file, queries, documents)
    masks = tables.seek_file(inside, "per_query_excluded_ids.json")
    return Collection(documents, queries, gold, pooled, {} if masks is None else _excluded(masks, queries))


def _documents(path: Path) -> Iterator[Placed]:
    for number, row in tables.read_objects(path, "_id", "text"):
        where = f"{path}, line {number}"
        yield where, Document(checks.check_id(row["_id"], where), checks.check_text(row["text"], where))


def _qrels(path: Path, queries: Mapping[str, str], documents: Container[str] = ()) -> dict[str, dict[str, float]]:
    """The judgements in `path`; `documents` are checked here where no environment will be led by these judgements."""
    qrels: dict[str, dict[str, float]] = {}
    for count, (where, (query_id, doc_id, score)) in enumerate(tables.read_cells(path, 3, form=", tab separated")):
        if count == 0 and query_id.replace("_", "-") == "query-id":
            continue
        checks.add_judgement(qrels, query_id, doc_id, score, where)
        if documents and doc_id not in documents:
            raise DataError(f"{where}: the document {doc_id!r} is not in the corpus")
    if strangers := qrels.keys() - queries.keys():
        raise DataError(f"{path} judges the query {min(strangers)!r}, which queries.jsonl has not")
    return qrels


def _excluded(path: Path, queries: Mapping[str, str]) -> dict[str, frozenset[str]]:
    masks = tables.read_json(path)
    if not isinstance(masks, dict):
        raise DataError(f"{path} is not an object of lists of ids, one a query; fetch it again")
    listed: dict[str, frozenset[str]] = {}
    for query_id, doc_ids in masks.items():
        where = f"{path}, query {checks.brief(query_id)}"
        if not isinstance(doc_ids, list):
            raise DataError(f"{where}: {checks.brief(doc_ids)} where a list of ids is expected; fetch it again")
        listed[query_id] = frozenset(checks.check_id(doc_id, where) for doc_id in doc_ids)
    if unlisted := queries.keys() - listed.keys():
        raise DataError(f"{path} has no entry for query {min(unlisted)!r}; a search would show what it must not")
    if strangers := listed.keys() - queries.keys():
        raise DataError(f"{path} has an entry for the query {min(strangers)!r}, which queries.jsonl has not")
    return listed
