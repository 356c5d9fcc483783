"""Collections of a user's own, and ports of the benchmarks' tasks, in the forms that collections come in.

A collection is three tables: documents, queries and judgements. The files of a table are those in the folder whose
names begin with one of its words (`corpus.jsonl.gz`, `queries.dev.tsv`), end with it (`robust.qrels`), or stand in a
folder of that name (`qrels/test.tsv`, `corpus/0000.parquet`). Each is JSON Lines, cells under a header or not, TREC's
tags, Parquet, or Arrow as `datasets.save_to_disk` writes it. What is no folder is asked of the package ir_datasets.

What is dropped or odd is counted and said, and contradictions are refused. What a task is besides its data (objective,
metrics) is not read here.
"""

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import quote

from environments import layouts, tables
from environments.base import Qrels
from environments.layouts import Collection, Grades, Placed
from tools import disk
from tools.console import plural
from tools.corpus import Corpus
from tools.errors import DataError, UnknownName, UsageError
from tools.installation import explain_missing
from tools.records import Document

_WORDS = {
    "documents": ("corpus", "documents", "docs", "collection", "passages"),
    "queries": ("queries", "topics", "query"),
    "judgements": ("qrels", "default", "judgements", "judgments"),  # "default" is MTEB's
}
IDS = ("_id", "id", "doc_id", "docid", "document_id", "query_id", "qid", "docno", "pid")
TEXTS = ("text", "contents", "content", "body", "passage", "document", "question", "query")
# The columns of each table, and the names that files have for them; --column puts another before these.
_COLUMNS: dict[str, dict[str, tuple[str, ...]]] = {
    "documents": {"id": IDS, "text": TEXTS, "title": ("title",)},
    "queries": {"query_id": ("query-id", *IDS), "query": ("query", *TEXTS, "title")},
    "judgements": {
        "query_id": layouts.QUERY,
        "doc_id": (*layouts.DOCUMENT, "docno", "pid"),
        "grade": (*layouts.SCORE, "grade", "rel"),
    },
}
_ENDINGS = (".parquet", ".arrow", ".jsonl", ".tsv", ".csv", "")  # of several, the first is read; "" is any
_ASIDE = re.compile(r"^\.|^cache-|readme|^(state|dataset_\w+)\.json$|\.(md|toml|py)$", re.I)  # beside the tables
_FORMS = {".parquet": "a Hugging Face folder", ".arrow": "a Hugging Face folder", ".tsv": "CSV", ".csv": "CSV"}
_DEV = {"train", "training", "dev", "development", "validation", "valid", "val"}


def read_collection(
    place: Path, home: Path, columns: Mapping[str, str] = {}, judged_in: Path | None = None, separator: str = ""
) -> Collection:
    """Read the collection in the folder `place`, or the one that ir_datasets has by that id.

    `columns` are the files' names for id, text, title, query_id, query, doc_id and grade, where they are unusual;
    `judged_in` is the judgements' file or folder, where there are several; `separator` ends the parent's name in a
    document's id, where parents are judged. UsageError for a wrong argument, DataError for data that cannot be right.
    """
    folder = place if place.is_dir() else _keep_package(str(place), home)
    documents, queries, judgements = found = _open_tables(folder, columns, judged_in)
    form = "TREC" if "iteration" in judgements.there else _FORMS.get(ending_of(documents.files[0]), "BEIR")
    form = form if folder == place else "ir_datasets"
    counts = Counter[str]()
    corpus, asked = documents.open(home, counts), _read_queries(queries, counts)
    qrels, splits = _read_judgements(judgements, asked, counts)
    said = [f"{place} is read as {form}: {', '.join(map(str, found))}."]
    if not qrels:
        raise DataError(f"{place}: no query has a judgement; do both have the same ids? {said[0]}")
    judged = {query_id: asked[query_id] for query_id in qrels}
    counts["queries without a judgement, left out"] = len(asked) - len(judged)
    said += say_oddities(judged, qrels, corpus, counts, separator)
    return Collection(corpus, judged, qrels, form=form, splits=splits, said=tuple(said))


def _read_queries(table: "_Table", counts: Counter[str]) -> dict[str, str]:
    queries = dict[str, tuple[str, str]]()  # query_id -> text and place
    for _, where, (name, content) in table.read():
        query_id, text = _check_id(name, where), tables.check_text(content, where, "query")
        counts["queries that are there again, counted once"] += query_id in queries
        before, place = queries.setdefault(query_id, (text, where))
        if before != text:
            raise DataError(f"{where}: the query {query_id!r} has another text in {place}; mend one of them")
    return {query_id: text for query_id, (text, _) in queries.items()}


def _read_judgements(
    table: "_Table", queries: Mapping[str, str], counts: Counter[str]
) -> tuple[Grades, dict[str, tuple[str, ...]]]:
    """Return the judgements of `queries`, and the queries of each split where there are a "dev" and a "test"."""
    qrels: Grades = {}
    chosen: dict[str, set[str]] = {"dev": set(), "test": set(), "": set()}
    for split, where, (asked, judged, score) in table.read():
        query_id, doc_id, grade = _check_id(asked, where), _check_id(judged, where), tables.check_grade(score, where)
        if query_id not in queries:
            counts["judgements of unknown queries, left out"] += 1
            continue
        grades = qrels.setdefault(query_id, {})
        counts["judgements that are there again, counted once"] += doc_id in grades
        if (before := grades.setdefault(doc_id, grade)) != grade:
            raise DataError(f"{where}: {query_id!r} and {doc_id!r} are judged twice, with {before:g} and {grade:g}")
        chosen[split].add(query_id)
    test = tuple(one for one in queries if one in chosen["test"])
    dev = tuple(one for one in queries if one in chosen["dev"] and one not in chosen["test"])
    in_order = {query_id: qrels[query_id] for query_id in queries if query_id in qrels}
    return in_order, {"dev": dev, "test": test} if dev and test else {}


def say_oddities(
    queries: Mapping[str, str], qrels: Qrels, documents: Corpus, counts: Counter[str], separator: str = ""
) -> list[str]:
    """Return a sentence for the sizes of a collection, and for each of `counts` and what else is odd in it."""
    known = {one.rpartition(separator)[0] or one for one in documents} if separator else documents
    every = [(doc_id, grade) for judged in qrels.values() for doc_id, grade in judged.items()]
    missing, grades = {doc_id for doc_id, _ in every if doc_id not in known}, [grade for _, grade in every]
    vain = sum(max(judged.values(), default=0) <= 0 for judged in qrels.values())
    counts["judged documents that are not in the corpus"] = len(missing)
    counts["judgements above 0 of those"] = sum(grade > 0 and doc_id in missing for doc_id, grade in every)
    counts["grades that are fractions, which trec_eval cannot read"] = sum(grade % 1 > 0 for grade in grades)
    counts["grades below 0, which count as not relevant"] = sum(grade < 0 for grade in grades)
    counts["queries with no judgement above 0, for which nothing can be found"] = vain
    counts["queries without a text"] = sum(not text.strip() for text in queries.values())
    sizes = f"{plural(len(documents), 'document')}, {plural(len(queries), 'query', 'queries')}"
    span = f"with grades from {min(grades, default=0):g} to {max(grades, default=0):g}"
    said = [f"{sizes}, {plural(len(grades), 'judgement')} {span}."]
    return said + [f"{what[0].upper()}{what[1:]}: {count:,}." for what, count in counts.items() if count]


def _check_id(value: Any, where: str) -> str:
    return tables.check_id(str(value) if type(value) is int else value, where)


class _Table:
    """One table of a collection: its files, and the columns that are taken from them."""

    def __init__(self, folder: Path, name: str, files: list[Path], columns: Mapping[str, str]) -> None:
        self._folder, self.name, self.files = folder, name, files
        if not files:
            words = f"{' or '.join(_WORDS[name])} (.jsonl, .csv, .parquet, ...)"
            raise DataError(f"{folder} has no {name}: no file or folder is called {words}")
        ours = _COLUMNS[name].items()
        self._names = {our: (*filter(None, [columns.get(our)]), *names, our) for our, names in ours}
        where, first = next(self._rows(self.files[0]), (str(self.files[0]), {}))
        if not first:
            raise DataError(f"{where} has no rows, so there are no {name}")
        self.there = set(first)
        self._taken = {our: next((one for one in names if one in first), "") for our, names in self._names.items()}
        if lacking := next((our for our, one in self._taken.items() if not one and our != "title"), None):
            has = ", ".join(map(tables.brief, first))
            raise DataError(f"{files[0]} has no known {lacking}; --column {lacking}=NAME says which it is: {has:.300}")

    def __str__(self) -> str:
        more = f" and {len(self.files) - 1} more" if len(self.files) > 1 else ""
        place = os.path.relpath(self.files[0], self._folder)
        return f"{self.name} from {place}{more} ({', '.join(filter(None, self._taken.values()))})"

    def split(self, path: Path) -> str:
        """Return "dev", "test" or "", by the name of one of the files."""
        words = {*re.split(r"[^a-z]+", os.path.relpath(path, self._folder).lower())}
        return "test" if "test" in words else "dev" if words & _DEV else ""

    def read(self) -> Iterator[tuple[str, str, list[Any]]]:
        """Yield (split, place, the values of our columns) of each row; a title that is not there is None."""
        for path in self.files:
            split = self.split(path)
            for where, row in self._rows(path):
                row.setdefault("title", None)
                yield split, where, [tables.pick_column(where, row, *names) for names in self._names.values()]

    def open(self, home: Path, counts: Counter[str]) -> Corpus:
        def read() -> Iterator[Placed]:
            for _, where, (doc_id, text, title) in self.read():
                text = tables.check_text(text, where, optional=True)
                title = tables.check_text(title, where, "title", optional=True)
                yield where, Document(_check_id(doc_id, where), text, title)

        return layouts.open_corpus(home, self.files, read, counts, repr(self._names))

    def _rows(self, path: Path) -> tables.Rows:
        first = "{" if path.suffix in _ENDINGS[:2] else next(tables.read_lines(path), (0, ""))[1].strip()
        if first.startswith(("{", "[")):
            return tables.read_rows([path])
        if first.startswith("<") and self.name != "judgements":
            return layouts.read_topics(path) if self.name == "queries" else layouts.read_trec_documents(path)
        return self._cells(path, first)

    def _cells(self, path: Path, first: str) -> tables.Rows:
        """Yield (place, row) of each line of cells; the first line names the columns, or is a row of the usual ones."""
        known = {one for names in self._names.values() for one in names}
        separator = "\t" if "\t" in first or self.name != "judgements" else None
        if is_csv := ending_of(path) == ".csv":
            separator = ";" if first.count(";") > first.count(",") else ","
        if is_csv or sum(cell.strip().lower() in known for cell in first.split("\t")) > 1:
            yield from tables.read_headed(path, known, separator)
            return
        header = [our for our in self._names if our != "title"]
        header[1:1] = ["iteration"] * (self.name == "judgements")
        form = f" ({', '.join(header)}), or a first line that names the columns"
        for where, cells in tables.read_cells(path, len(header), separator, form):
            yield where, dict(zip(header, cells, strict=True))


def _open_tables(place: Path, columns: Mapping[str, str], judged_in: Path | None) -> list[_Table]:
    folder = place if find_files(place, "documents") else place / "data"  # where the hub has them
    files = {name: find_files(folder, name) for name in _COLUMNS}
    if judged_in:
        inside = sorted(path for path in judged_in.rglob("*") if path.is_file()) if judged_in.is_dir() else [judged_in]
        files["judgements"] = inside
    found = [_Table(place, name, files[name], columns) for name in _COLUMNS]
    for our, column in columns.items():
        if not (own := [table for table in found if our in _COLUMNS[table.name]]):
            raise UnknownName("--column", our, {our for ours in _COLUMNS.values() for our in ours})
        if column not in (there := set[str]().union(*(table.there for table in own))):
            raise UnknownName(f"column of {place} for {our}", column, {one[:60] for one in there})
    return found


def find_files(folder: Path, name: str) -> list[Path]:
    """Return the files of the table `name` ("documents", "queries" or "judgements") in a folder; [] without any."""
    for word in _WORDS[name]:
        places = (*folder.glob(f"{word}*"), *folder.glob(f"*.{word}*"), *(folder / word).rglob("*"))
        found = sorted(path for path in set(places) if path.is_file() and not _ASIDE.search(path.name))
        for ending in _ENDINGS if found else ():
            if chosen := [path for path in found if ending_of(path) == ending or not ending]:
                return tables.check_parts(chosen)
    return []


def ending_of(path: Path) -> str:
    """Return how the name of a file ends, in small letters, without what says that it is packed."""
    return Path(re.sub(r"\.(gz|bz2|zst)$", "", path.name)).suffix.lower()


def _keep_package(name: str, home: Path) -> Path:
    """Return a folder with what ir_datasets has by that name, which is written in BEIR's form the first time."""
    asked = name.removeprefix("ir_datasets:")
    folder = home / "ir_datasets" / quote(asked, safe="")
    if folder.is_dir():
        return folder
    try:
        ir_datasets = import_module("ir_datasets")  # which is optional
        data = ir_datasets.load(asked)
        rows = {
            "corpus": ({"_id": one.doc_id, "text": one.default_text()} for one in data.docs_iter()),
            "queries": ({"_id": one.query_id, "text": one.default_text()} for one in data.queries_iter()),
            "qrels": ({"qid": one.query_id, "doc_id": one.doc_id, "score": one.relevance} for one in data.qrels_iter()),
        }
        folder.parent.mkdir(parents=True, exist_ok=True)
        with disk.drafting(folder, disk.SHARED, folder=True) as draft:
            for table, lines in rows.items():
                with (draft / f"{table}.jsonl").open("w", encoding="utf-8") as file:
                    file.writelines(f"{disk.dumps(line)}\n" for line in lines)
            if not folder.is_dir():  # else another process was faster
                draft.rename(folder)
    except ImportError:
        needed = explain_missing("ir_datasets", "ir-datasets")
        raise UsageError(f"{name!r} is no folder; an id of ir_datasets needs {needed}") from None
    except KeyError:
        raise UnknownName("folder or id of ir_datasets", asked, ir_datasets.registry) from None
    except (AttributeError, OSError, RuntimeError, ValueError) as error:  # no judgements; not to be downloaded; damaged
        raise DataError(f"ir_datasets does not give {asked}: {str(error)[:200]!r}") from None
    return folder


def read_port(folder: Path, home: Path, lacks: str = "") -> Collection:
    """Read a copy of a benchmark's task, of splits the test one. DataError, which says `lacks` where there is none."""
    here = any(find_files(place, "documents") for place in (folder, folder / "data"))
    if lacks and (not here or (folder / "queries+qrels").exists()):
        raise DataError(lacks)
    documents, queries, judgements = _open_tables(folder, {}, None)
    splits = {path: judgements.split(path) for path in judgements.files}
    if test := [path for path, split in splits.items() if split == "test"]:
        judgements.files = test
    elif len(splits) > 1 and "dev" in splits.values():
        raise DataError(f"{folder} has judgements of several splits and no test split; leave one of them")
    counts = Counter[str]()
    corpus, asked = documents.open(home, counts), _read_queries(queries, counts)
    qrels, _ = _read_judgements(judgements, asked, counts)
    if not qrels or (strange := counts["judgements of unknown queries, left out"]):
        raise DataError(f"{folder}: {strange if qrels else 'all'} of the {judgements} are not of the {queries}")
    return Collection(corpus, {query_id: asked[query_id] for query_id in qrels}, qrels)
