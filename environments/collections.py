"""A user's own collection: three tables (documents, queries, judgements) in the forms that collections come in.

A table is the files in the folder whose names begin with one of its words (`corpus.jsonl`, `queries.dev.tsv`,
`qrels.txt`, `robust.qrels`), and those in a folder of that name (`qrels/test.tsv`, `corpus/0000.parquet`). Each is JSON
Lines, cells with or without a header, TREC's tags, Parquet, or Arrow as `datasets.save_to_disk` writes it; text may be
packed with gzip or zstd. What is not a folder is looked up in the package ir_datasets, where that is installed.

Nothing is dropped in silence: `Read.said` counts it. Contradictions are refused, with both places. What a task is
besides its data (objective, metrics) is not read here.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from environments import layouts, tables
from environments.base import Qrels
from environments.layouts import Grades, Placed
from tools.console import plural
from tools.corpus import Corpus
from tools.errors import DataError, UnknownName, UsageError
from tools.records import Document

_PACKAGE = "ir_datasets:"  # before an id that is meant whatever folders there are


@dataclass(frozen=True, slots=True)
class Read:
    """A collection as it was read."""

    form: str  # "BEIR", "TREC", "CSV", "a Hugging Face folder" or "ir_datasets"
    documents: Corpus
    queries: Mapping[str, str]  # query_id -> text, of those with judgements, in the files' order
    qrels: Qrels  # of those queries
    splits: Mapping[str, tuple[str, ...]]  # query ids of "dev" and of "test", where the judgements' files tell both
    files: tuple[Path, ...]
    said: tuple[str, ...]  # what was recognised, counted and dropped, a sentence each


@dataclass(frozen=True, slots=True)
class _Source:
    """Where the three tables come from; ids, texts and grades as they stand there."""

    form: str
    files: tuple[Path, ...]
    documents: Callable[[], Iterator[Placed]]
    queries: Iterator[tuple[str, Any, Any]]  # place, id, text
    judgements: Iterator[tuple[str, str, Any, Any, Any]]  # place, split or "", query, document, grade
    said: str
    how: str  # what the documents depend on besides the files


def read_collection(
    place: Path, home: Path, columns: Mapping[str, str] | None = None, judged_in: Path | None = None
) -> Read:
    """Read the collection in the folder `place`, or the one that ir_datasets knows by that id.

    `columns` has the files' names of columns (id, text, title, query_id, query, doc_id, grade) where they are not known
    ones; `judged_in` is the file of the judgements, where a folder has several. UsageError for a wrong argument,
    DataError for what is missing, damaged or contradictory.
    """
    source = _open_folder(place, columns or {}, judged_in) if place.is_dir() else _open_package(str(place))
    counts = Counter[str]()
    documents = layouts.open_corpus(home, source.files, source.documents, counts, source.how)
    queries = _read_queries(source.queries, counts)
    qrels, splits = _read_judgements(source.judgements, queries, counts)
    asked = {query_id: text for query_id, text in queries.items() if query_id in qrels}
    if not asked:
        raise DataError(f"{place}: no query has a judgement; do both have the same ids? {source.said}")
    counts["dropped queries"] = len(queries) - len(asked)
    qrels = {query_id: qrels[query_id] for query_id in asked}
    said = (source.said, *_say(counts, asked, qrels, documents))
    return Read(source.form, documents, asked, qrels, splits, source.files, said)


# --- What is read ----------------------------------------------------------------------------------------------------


def _check_id(value: Any, where: str) -> str:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return tables.check_id(str(value) if whole else value, where)


def _read_queries(rows: Iterator[tuple[str, Any, Any]], counts: Counter[str]) -> dict[str, str]:
    queries, places = dict[str, str](), dict[str, str]()
    for where, name, content in rows:
        query_id, text = _check_id(name, where), tables.check_text(content, where, "query")
        if queries.setdefault(query_id, text) != text:
            raise DataError(f"{where}: the query {query_id!r} has another text in {places[query_id]}; mend one of them")
        counts["repeated queries"] += query_id in places
        places.setdefault(query_id, where)
    return queries


def _read_judgements(
    rows: Iterator[tuple[str, str, Any, Any, Any]], queries: Mapping[str, str], counts: Counter[str]
) -> tuple[Grades, dict[str, tuple[str, ...]]]:
    """Return the judgements of `queries`, and the queries of each split where there are a "dev" and a "test"."""
    qrels: Grades = {}
    chosen: dict[str, dict[str, None]] = {"dev": {}, "test": {}}
    for where, split, asked, judged, score in rows:
        query_id, doc_id, grade = _check_id(asked, where), _check_id(judged, where), tables.check_grade(score, where)
        if query_id not in queries:
            counts["of unknown queries"] += 1
            continue
        grades = qrels.setdefault(query_id, {})
        if grades.setdefault(doc_id, grade) != grade:
            before = f"{grades[doc_id]:g} before and {grade:g} now"
            raise DataError(f"{where}: {query_id!r} and {doc_id!r} are judged twice, {before}; remove one of them")
        if split:
            chosen[split][query_id] = None
        counts["judgements"] += 1
    counts["repeated judgements"] = counts.pop("judgements", 0) - sum(map(len, qrels.values()))
    splits = {split: tuple(one for one in queries if one in ids) for split, ids in chosen.items()}
    splits["dev"] = tuple(one for one in splits["dev"] if one not in chosen["test"])
    return qrels, splits if all(splits.values()) else {}


def _say(counts: Counter[str], queries: Mapping[str, str], qrels: Qrels, documents: Corpus) -> Iterator[str]:
    """Yield a sentence for everything that was counted."""
    grades = [grade for judged in qrels.values() for grade in judged.values()]
    levels = ", ".join(f"{grade:g}" for grade in sorted(set(grades))[:12]) + ("" if len(set(grades)) <= 12 else ", ...")
    yield (
        f"{plural(len(documents), 'document')}, {plural(len(queries), 'query', 'queries')}, "
        f"{plural(len(grades), 'judgement')} with the grades {levels}."
    )
    judged = {doc_id for one in qrels.values() for doc_id in one}
    missing = {doc_id for doc_id in judged if doc_id not in documents}
    lost = sum(grade > 0 for one in qrels.values() for doc_id, grade in one.items() if doc_id in missing)
    blank = sum(not text.strip() for text in queries.values())
    vain = sum(max(one.values()) <= 0 for one in qrels.values())
    for count, one, more, what in (
        (counts["dropped queries"], "query has", "queries have", "no judgement, and left out"),
        (counts["of unknown queries"], "judgement is", "judgements are", "of unknown queries, and left out"),
        (counts["repeated"], "document is", "documents are", "there again with the same id and text, and left out"),
        (counts["repeated queries"], "query is", "queries are", "there again with the same text, and left out"),
        (
            counts["repeated judgements"],
            "judgement is",
            "judgements are",
            "there again with the same grade, counted once",
        ),
        (counts["empty"], "document has", "documents have", "no text, and stay in the corpus"),
        (blank, "query has", "queries have", "no text"),
        (
            len(missing),
            "judged document is",
            "judged documents are",
            f"not in the corpus ({lost} of the judgements above 0)",
        ),
        (vain, "query has", "queries have", "no judgement above 0, so nothing can be found for them"),
        (
            sum(grade != int(grade) for grade in grades),
            "grade is",
            "grades are",
            "fractions, which trec_eval cannot read",
        ),
        (sum(grade < 0 for grade in grades), "grade is", "grades are", "negative, which counts as not relevant"),
    ):
        if count:
            yield f"{plural(count, one, more)} {what}."


# --- Folders ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Kind:
    """What one of the three tables is called, and its columns: our name for each, and the names that files have."""

    name: str
    words: tuple[str, ...]
    columns: Mapping[str, tuple[str, ...]]
    bare: tuple[str, ...]  # the columns of a file without a header


_DOCUMENTS = _Kind(
    "documents",
    ("corpus", "documents", "docs", "collection", "passages"),
    {"id": (*layouts.ID, "pid"), "text": (*layouts.TEXT, "passage", "document"), "title": ("title",)},
    ("id", "text"),
)
_QUERIES = _Kind(
    "queries",
    ("queries", "topics", "query"),
    {"query_id": (*layouts.QUERY, *layouts.ID), "query": ("query", *layouts.TEXT, "question", "title")},
    ("query_id", "query"),
)
_JUDGEMENTS = _Kind(
    "judgements",
    ("qrels", "default", "judgements", "judgments"),
    {
        "query_id": layouts.QUERY,
        "doc_id": (*layouts.DOCUMENT, "docno", "pid"),
        "grade": (*layouts.SCORE, "grade", "rel"),
    },
    ("query_id", "iteration", "doc_id", "grade"),
)
_ENDINGS = (".parquet", ".arrow", ".jsonl", ".tsv", ".csv")  # the first that there is of a table is read, before others
_SPLITS = {"test": "test"} | dict.fromkeys(
    ("train", "training", "dev", "development", "validation", "valid", "val"), "dev"
)


class _Table:
    """One table of a folder: its files, and the columns that are taken from them."""

    def __init__(self, folder: Path, kind: _Kind, columns: Mapping[str, str], files: list[Path] | None) -> None:
        """Find the files and look at the first row. DataError when there is none, or it has not the columns."""
        self.kind, self.files = kind, files or _find_files(folder, kind)
        if not self.files:
            raise DataError(
                f"{folder} has no {kind.name}: a file that is called {' or '.join(kind.words)} (.jsonl, .csv, .tsv, "
                ".txt, .parquet; also .gz or .zst), or a folder of that name"
            )
        own = {name: (columns[name],) if name in columns else () for name in kind.columns}
        self._names = {name: (*own[name], *known, name) for name, known in kind.columns.items()}
        self._known = {name for names in self._names.values() for name in names}
        where, first = next(self.read(self.files[0]), ("", {}))
        if not where:
            raise DataError(f"{self.files[0]} has nothing in it")
        self.there = set(first)
        self.taken = {name: one for name, names in self._names.items() for one in names if one in first}
        for name, names in self._names.items():
            self.taken[name] = next((one for one in names if one in first), "")
            if name != "title" and not self.taken[name]:
                has = ", ".join(map(tables.brief, first))
                raise DataError(
                    f"{where}: no column is known to be the {name}; say which: --column {name}=NAME (it has {has:.300})"
                )

    def shape(self, path: Path) -> str:
        """Return how rows are written in a file: "packed", "objects", "tags", "header" or "bare"."""
        if path.suffix in _ENDINGS[:2]:
            return "packed"
        _, first = next(tables.read_lines(path), (0, ""))
        if (start := first.lstrip()[:1]) and start in "{<":
            return "objects" if start == "{" else "tags"
        named = sum(cell.strip().lower() in self._known for cell in first.split("\t"))
        return "header" if _ending(path) == ".csv" or named > 1 else "bare"

    def read(self, path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield (place, row) of each row of one of the files."""
        shape = self.shape(path)
        if shape in ("packed", "objects"):
            yield from tables.read_rows([path])
        elif shape == "tags":
            yield from _read_tags(path, self.kind)
        else:
            yield from self._read_cells(path, shape == "bare")

    def _read_cells(self, path: Path, bare: bool) -> Iterator[tuple[str, dict[str, Any]]]:
        _, first = next(tables.read_lines(path), (0, ""))
        separator = "\t" if "\t" in first or self.kind is not _JUDGEMENTS else None
        if _ending(path) == ".csv":
            separator = ";" if first.count(";") > first.count(",") else ","
        header, form = list(self.kind.bare), f" ({', '.join(self.kind.bare)}; or a first line that names the columns)"
        rows = tables.read_cells(path, len(header) if bare else 0, separator, form if bare else "")
        if not bare:
            where, cells = next(rows, ("", []))
            header = [cell if cell in self._known else cell.strip().lower() for cell in cells]
            if twice := [name for name, count in Counter(header).items() if count > 1 and name in self._known]:
                raise DataError(f"{where}: the column {twice[0]!r} is there twice")
        for where, cells in rows:
            yield where, dict(zip(header, cells, strict=True))

    def pick(self, where: str, row: dict[str, Any], name: str) -> Any:
        """Return the value of a column, by our name for it; None for a title that is not there."""
        if name == "title":
            return next((row[one] for one in self._names[name] if one in row), None)
        return tables.pick_column(where, row, *self._names[name])

    def __str__(self) -> str:
        files = self.files[0].name if len(self.files) == 1 else f"{len(self.files)} files such as {self.files[0].name}"
        return f"{self.kind.name} from {files} ({', '.join(filter(None, self.taken.values()))})"


def _ending(path: Path) -> str:
    return Path(path.name.removesuffix(".gz").removesuffix(".zst")).suffix.lower()


def _find_files(folder: Path, kind: _Kind) -> list[Path]:
    """Return the files of a table, all with one ending; of a file that is there packed and plain, the plain one."""
    for word in kind.words:
        named = (
            path
            for path in sorted(folder.iterdir())
            if path.name.lower().startswith(word) or _ending(path) == f".{word}"
        )
        found: dict[int, list[Path]] = {}
        for path in (*named, *sorted((folder / word).rglob("*"))):
            ending = _ending(path)
            aside = path.name.startswith((".", "cache-")) or "readme" in path.name.lower() or ending in (".json", ".md")
            if path.is_file() and not aside:
                found.setdefault(_ENDINGS.index(ending) if ending in _ENDINGS else len(_ENDINGS), []).append(path)
        if found:
            chosen = found[min(found)]
            return tables.check_parts(
                [path for path in chosen if path.suffix not in (".gz", ".zst") or path.with_suffix("") not in chosen]
            )
    return []


def _read_tags(path: Path, kind: _Kind) -> Iterator[tuple[str, dict[str, Any]]]:
    if kind is _DOCUMENTS:
        yield from layouts.read_trec_documents(path)
    elif kind is _QUERIES:
        yield from (
            (str(path), {"query_id": number, "query": text}) for number, text in layouts.read_topics(path).items()
        )
    else:
        raise DataError(f"{path}: judgements are lines of {', '.join(kind.bare)}, not tags")


def _open_folder(place: Path, columns: Mapping[str, str], judged_in: Path | None) -> _Source:
    kinds = (_DOCUMENTS, _QUERIES, _JUDGEMENTS)
    ours = {name for kind in kinds for name in kind.columns}
    for name in columns:
        if name not in ours:
            raise UnknownName("--column", name, ours)
    inside = place / "data"  # where the hub's repositories have their tables
    folder = inside if inside.is_dir() and not _find_files(place, _DOCUMENTS) else place
    documents, queries, judgements = found = tuple(
        _Table(folder, kind, columns, [judged_in] if judged_in and kind is _JUDGEMENTS else None) for kind in kinds
    )
    for name, column in columns.items():
        if column not in (there := set().union(*(table.there for table in found if name in table.kind.columns))):
            raise UnknownName(f"column for {name}", column, there)
    shapes = {table.kind.name: table.shape(table.files[0]) for table in found}
    form = (
        "TREC" if {"tags", "bare"} & set(shapes.values())
        else "a Hugging Face folder" if "packed" in shapes.values()
        else "CSV" if shapes["documents"] == "header"
        else "BEIR"
    )  # fmt: skip

    def read_documents() -> Iterator[Placed]:
        for path in documents.files:
            for where, row in documents.read(path):
                doc_id, text, title = (documents.pick(where, row, name) for name in ("id", "text", "title"))
                yield (
                    where,
                    Document(
                        _check_id(doc_id, where),
                        tables.check_text(text, where, optional=True),
                        tables.check_text(title, where, "title", optional=True),
                    ),
                )

    def read(table: _Table) -> Iterator[tuple[Any, ...]]:
        for path in table.files:
            words = re.split(r"[^a-z]+", str(path.relative_to(place)).lower())
            split = next((_SPLITS[word] for word in words if word in _SPLITS), "")
            for where, row in table.read(path):
                values = [table.pick(where, row, name) for name in table.kind.columns]
                yield (where, split, *values) if table is judgements else (where, *values)

    files = tuple(path for table in found for path in table.files)
    said = f"{folder} is read as {form}: {documents}, {queries}, {judgements}."
    return _Source(form, files, read_documents, read(queries), read(judgements), said, repr(sorted(columns.items())))


# --- ir_datasets -----------------------------------------------------------------------------------------------------


def _open_package(name: str) -> _Source:
    raise UsageError(f"{name!r} is not a folder")
