"""Collections of a user's own, and ports of the benchmarks' tasks.

A collection is three tables: documents, queries and judgements; table_files.py says which files
they are. Each is in a form of files.py or trec_tags.py. Other names are asked of the package
ir_datasets.

Nothing is guessed: a column that is used has one of the names below, or is named by the user; if
two could be meant, it is an error. Columns with something in any row are used or counted as left
out. Dropped and odd rows are counted and reported, and contradictions are refused.
"""

import os
import re
from collections import Counter
from collections.abc import Collection as Container
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

from sextant.environments.base import COLUMNS, LEFT_OUT, Grades, Judgements, Qrels
from sextant.environments.readers import corpora, document_ids, table_files, trec_tags
from sextant.environments.readers import files as tables
from sextant.environments.readers.corpora import Collection, Placed
from sextant.environments.readers.files import has_content, normalise_column
from sextant.tools import schemas
from sextant.tools.corpus import Corpus
from sextant.tools.errors import DataError, SextantError, UnknownName, UsageError
from sextant.tools.platform import files as disk
from sextant.tools.platform.installation import explain_missing
from sextant.tools.platform.number_format import plural
from sextant.tools.records import Document, JsonObject
from sextant.tools.text import has_unspaced_words, is_blank

_Value = TypeVar("_Value")
_DOCUMENT_IDS = (
    "_id",
    "id",
    "doc_id",
    "docid",
    "document_id",
    "docno",
    "pid",
)
_QUERY_IDS = ("query_id", "qid")
IDS = (*_DOCUMENT_IDS, *_QUERY_IDS)
TEXTS = (
    *("text", "contents", "content", "body", "passage", "document"),
    *("question", "answer", "context", "query", "segment", "abstract"),
    "page_content",  # of LangChain's documents
)
# The columns of each table, and the names that files have for them, whatever their capitals, blanks
# and hyphens; --column names another.
_COLUMNS: dict[str, dict[str, tuple[str, ...]]] = {
    "documents": {
        "id": _DOCUMENT_IDS,
        "text": TEXTS,
        "title": ("title",),
    },
    "queries": {
        "query_id": (*_QUERY_IDS, "_id", "id", "number", "num", "topic_id"),  # the last are TREC's
        "query": ("query", "text", "question", "contents", "content"),
        "doc_id": ("gold_ids",),  # BRIGHT's lists of relevant documents, if there are no judgements
        "excluded_ids": ("excluded_ids",),  # BRIGHT's, of documents that a query must not see
        "instruction": ("instruction",),  # what is relevant, as FollowIR and InstructIR have it
    },
    "judgements": {
        "query_id": _QUERY_IDS,
        "doc_id": ("corpus_id", *_DOCUMENT_IDS[2:]),
        "grade": (
            "score",
            "relevance",
            "label",
            "grade",
            "rel",
        ),
    },
    "pools": {"query_id": _QUERY_IDS, "doc_ids": ("corpus_ids", "doc_ids", "corpus_id", "doc_id")},
}
# What each row has to have.
_REQUIRED = {
    "documents": ("id", "text"),
    "queries": ("query_id", "query"),
    "judgements": ("query_id", "doc_id", "grade"),
    "pools": ("query_id", "doc_ids"),
}
_NONE = "N/A"  # BRIGHT's id in a list without documents
_NAMED = 10  # columns or files in a message


class _Row(NamedTuple):
    split: str
    location: str
    cells: JsonObject  # by our columns


@dataclass(frozen=True, slots=True)
class Queries:
    """What the table of queries has, by query."""

    texts: dict[str, str] = field(default_factory=dict)
    splits: dict[str, str] = field(default_factory=dict)
    # By split, of lists of relevant documents.
    judged: dict[str, Grades] = field(default_factory=dict)
    excluded: dict[str, frozenset[str]] = field(default_factory=dict)
    instructions: dict[str, str] = field(default_factory=dict)


def read_collection(
    place: Path,
    home: Path,
    columns: Mapping[str, str] = {},
    files: Mapping[str, Sequence[Path]] = {},
    separator: str = "",
    split: str = "all",
    other_files: Iterable[Path] = (),
    relevant_from: float = 0.0,
) -> Collection:
    """Read the collection in the folder `place`, or the one that ir_datasets has by that id.

    `columns` are the files' names for id, text, title, query_id, query, doc_id and grade, if
    they are unusual; "a+b" joins two. `files` are the files or folders of "documents", "queries"
    and "judgements", if there are several; `separator` ends the parent's name in a document's id,
    if parents are judged. Documents that are kept apart by split are those of `split`.
    `other_files` are read elsewhere, so they are not left out. `relevant_from` is the lowest grade
    of a relevant document, 0 for all above 0. UsageError for a wrong argument,
    DataError for data that cannot be right.
    """
    if unknown := columns.keys() - {*COLUMNS}:
        raise UnknownName("--column", min(unknown), COLUMNS)
    folder = place if place.is_dir() else _keep_package(str(place), home)
    opened = _open_tables(folder, columns, files, split)
    counts = Counter[str]()
    corpus = opened.documents.open(home, counts)
    asked = _read_queries(opened.queries, counts)
    judged = _read_judgements(opened.judgements, counts) or asked.judged
    if not judged:
        absence = table_files.explain_absence(folder, "judgements", opened.found)
        raise DataError(f"{absence}; --column doc_id=NAME takes a list of each query")
    pools = _read_pools(opened.pools)
    opened.check_columns(columns)
    origin = f"Read from {place}: {', '.join(map(str, opened.tables))}."
    read = match_judgements(str(place), corpus, asked, judged, counts, separator, relevant_from)
    apart = "Each split searches its own documents." * opened.is_apart
    notes = [opened.describe_left_out(other_files), apart, opened.describe_links()]
    return read._replace(
        splits=read.splits if all(read.splits.values()) or apart else {},
        pools=pools,
        said=(origin, *filter(None, notes), *read.said, *list_counts(counts)),
    )


def match_judgements(
    source: str,
    corpus: Corpus,
    asked: Queries,
    judged: Mapping[str, Grades],
    counts: Counter[str],
    separator: str = "",
    relevant_from: float = 0.0,
) -> Collection:
    """Return the collection of the queries with judgements, which are by split.

    What is dropped is added to `counts`. DataError if no query has a judgement, or no judged
    document is there.
    """
    every, dev = _join_splits(judged, asked, counts)
    qrels = _select(every, asked.texts)
    unknown = every.keys() - qrels.keys()
    unjudged = asked.texts.keys() - qrels.keys()
    counts["judgements of unknown queries, left out"] = sum(len(every[each]) for each in unknown)
    warnings = []
    if unknown:
        mismatch = document_ids.compare(sorted(unknown), "judgements", unjudged, "queries")
        if not qrels:
            raise DataError(f"{source}: no query has a judgement: {mismatch}")
        if mismatch.is_spelling:
            warnings.append(f"{source}: judged queries left out, as unknown: {mismatch}.")
    counts["queries without a judgement, left out"] = len(unjudged)
    mismatched = _check_documents(source, qrels, corpus, counts, separator, relevant_from)
    texts = _select(asked.texts, qrels)
    return Collection(
        corpus,
        texts,
        qrels,
        excluded=_select(asked.excluded, qrels),
        splits={
            "dev": tuple(query_id for query_id in qrels if query_id in dev),
            "test": tuple(query_id for query_id in qrels if query_id not in dev),
        },
        unjudged=frozenset(unjudged),
        instructions=_select(asked.instructions, qrels),
        said=(_count_data(corpus, texts.values(), qrels, counts),),
        warnings=(*mismatched, *warnings),
    )


def _select(table: Mapping[str, _Value], query_ids: Iterable[str]) -> dict[str, _Value]:
    return {query_id: table[query_id] for query_id in query_ids if query_id in table}


def _read_queries(table: "_Table", counts: Counter[str]) -> Queries:
    queries = Queries()
    locations = dict[str, str]()
    for split, location, row in table.read():
        query_id = tables.read_id(row["query_id"], location)
        text = tables.check_text(row["query"], location, "query")
        counts["queries that are there again, counted once"] += query_id in locations
        before = locations.setdefault(query_id, location)
        if queries.texts.setdefault(query_id, text) != text:
            raise DataError(
                f"{location}: the query {query_id!r} has another text in {before}; "
                f"{table_files.CHOICE}"
            )
        queries.splits.setdefault(query_id, split)
        if instruction := row.get("instruction"):
            queries.instructions[query_id] = tables.check_text(instruction, location, "instruction")
        if excluded := _read_ids(row.get("excluded_ids"), location):
            queries.excluded[query_id] = queries.excluded.get(query_id, frozenset()) | {*excluded}
        for doc_id in _read_ids(row.get("doc_id"), location):
            queries.judged.setdefault(split, {}).setdefault(query_id, {})[doc_id] = 1.0
    return queries


def _read_judgements(table: "_Table", counts: Counter[str]) -> dict[str, Grades]:
    """Return the judgements of each split."""
    judged = dict[str, Grades]()
    for split, location, row in table.read():
        query_id = tables.read_id(row["query_id"], location)
        doc_id = tables.read_id(row["doc_id"], location)
        grade = tables.check_grade(row["grade"], location)
        grades = judged.setdefault(split, {}).setdefault(query_id, {})
        counts["judgements that are there again, counted once"] += doc_id in grades
        if (before := grades.setdefault(doc_id, grade)) != grade:
            raise DataError(
                f"{location}: {query_id!r} and {doc_id!r} are judged twice, with {before:g} and "
                f"{grade:g}; {table_files.CHOICE}"
            )
    return judged


def _read_pools(table: "_Table") -> dict[str, frozenset[str]]:
    pools = dict[str, frozenset[str]]()
    for _, location, row in table.read():
        query_id = tables.read_id(row["query_id"], location)
        listed = _read_ids(row["doc_ids"], location)
        pools[query_id] = pools.get(query_id, frozenset()) | {*listed}
    return pools


def _join_splits(
    judged: Mapping[str, Grades], asked: Queries, counts: Counter[str]
) -> tuple[Grades, set[str]]:
    """Return the judgements of each query, by one split alone, and the queries of dev.

    Queries are split as their judgements are, or else as their own files.
    """
    qrels: Grades = {}
    dev = set()
    for split in ("test", "", "dev", "train"):
        for query_id, grades in judged.get(split, {}).items():
            if query_id in qrels:
                counts["judgements of dev for queries of test, left out"] += len(grades)
                continue
            qrels[query_id] = grades
            if (split or asked.splits.get(query_id)) in ("dev", "train"):
                dev.add(query_id)
    return qrels, dev


def _check_documents(
    source: str,
    qrels: Qrels,
    corpus: Corpus,
    counts: Counter[str],
    separator: str,
    relevant_from: float,
) -> list[str]:
    """Return a warning of judged documents that the corpus lacks, if it lacks most, or if some are
    only spelled differently; with a `separator`, the parents of its documents are judged.

    DataError if it lacks all that are relevant: every score would be 0.
    """
    units: Container[str] = corpus
    if separator:
        units = {doc_id.rpartition(separator)[0] or doc_id for doc_id in corpus}
    judged = dict.fromkeys(chain(*qrels.values()))
    missing = [doc_id for doc_id in judged if doc_id not in units]
    counts["judged documents that are not in the corpus"] = len(missing)
    if not missing:
        return []
    judgements = Judgements(qrels, relevant_from=relevant_from)
    relevant = set(chain(*map(judgements.relevant, qrels)))
    mismatch = document_ids.compare(missing, "judgements", corpus, "corpus")
    if relevant and relevant <= {*missing}:
        raise DataError(
            f"{source}: none of the relevant documents ({len(relevant):,}) is in the corpus: "
            f"{mismatch} (`max_p` in benchmark.toml judges passages by their documents)"
        )
    if len(missing) * 2 <= len(judged) and not mismatch.is_spelling:
        return []
    share = f"{len(missing):,} of {plural(len(judged), 'judged document')}"
    return [f"{source}: not in the corpus, and never found: {share}: {mismatch}"]


def _count_data(corpus: Corpus, texts: Container[str], qrels: Qrels, counts: Counter[str]) -> str:
    """Return a sentence for the sizes of a collection, and add each oddity in it to `counts`."""
    grades = [grade for judged in qrels.values() for grade in judged.values()]
    counts["grades below 0, which count as not relevant"] = sum(grade < 0 for grade in grades)
    counts["queries with no judgement above 0, for which nothing can be found"] = sum(
        all(grade <= 0 for grade in judged.values()) for judged in qrels.values()
    )
    counts["queries without a text"] = sum(map(is_blank, texts))
    counts["queries without blanks between words, which bm25(analyzer=bigrams) finds"] = sum(
        map(has_unspaced_words, texts)
    )
    return (
        f"{plural(len(corpus), 'document')}, {plural(len(texts), 'query', 'queries')}, "
        f"{plural(len(grades), 'judgement')} with grades from {min(grades, default=0):g} to "
        f"{max(grades, default=0):g}."
    )


def list_counts(counts: Counter[str]) -> list[str]:
    """Return a sentence for each count above 0."""
    return [
        f"{subject[0].upper()}{subject[1:]}: {count:,}."
        for subject, count in counts.items()
        if count
    ]


class _Table:
    """A table of a collection: its files, and the columns that are taken from them."""

    def __init__(
        self,
        folder: Path,
        name: str,
        files: Sequence[Path],
        columns: Mapping[str, str],
    ) -> None:
        self.folder = folder
        self.name = name
        self.files = files
        self.columns = columns
        self.tally = corpora.Tally()
        self.known = dict(_COLUMNS[name])
        # Of a column of ours, those that --column names, which are joined.
        self.named = {
            our: [normalise_column(name) for name in re.split("[+,]", columns[our])]
            for our in self.known
            if our in columns
        }
        if "title" in self.named.get("text", ()) and "title" not in self.named:
            self.known.pop("title")

    def __str__(self) -> str:
        more_files = f" and {len(self.files) - 1} more" if len(self.files) > 1 else ""
        shown_path = os.path.relpath(self.files[0], self.folder)
        return f"{self.name} from {shown_path}{more_files} ({', '.join(self.tally.used)})"

    def read(self) -> Iterator[_Row]:
        """Yield each row, and count the columns that have something in it."""
        columns = self.tally.columns
        columns.clear()
        self.tally.used.clear()
        for path in self.files:
            split = table_files.find_split(path, self.folder)
            read_tags = trec_tags.find_reader(path, self.name)
            tags = trec_tags.COLUMNS.get(self.name, {}) if read_tags else {}
            # Of each set of columns that rows have, those that make each of ours.
            plans = dict[tuple[str, ...], dict[str, list[str]]]()
            for location, row in (read_tags or tables.read_table)(path):
                names = tuple(row)
                if names not in plans:
                    plans[names] = self._plan(names, tags, location)
                columns.update(name for name, cell in row.items() if has_content(cell))
                cells = {
                    our: _join(row, our, chosen, location) for our, chosen in plans[names].items()
                }
                yield _Row(split, location, cells)
        if self.files and not columns:
            raise DataError(
                f"{self.files[-1]} has no rows, so there are no {self.name}; {tables.FORMS}"
            )

    def _plan(
        self,
        names: Sequence[str],
        tags: Mapping[str, Sequence[str]],
        location: str,
    ) -> dict[str, list[str]]:
        """Return the columns of a row that make each of ours. DataError if two could be one of them."""
        there = {normalise_column(name): name for name in names}
        plan = {}
        for our, known in self.known.items():
            joined = self.named.get(our) or tags.get(our, ())
            chosen = [there[name] for name in joined if name in there]
            # Queries and judgements may call their common column by two names.
            if not joined or (not chosen and our == "query_id"):
                chosen = [there[name] for name in known if name in there]
                if len(chosen) > 1:
                    raise DataError(
                        f"{location}: {' and '.join(chosen)} could both be the {our}; --column "
                        f"{our}={chosen[0]} says which it is, and A+B joins two"
                    )
            if chosen:
                plan[our] = chosen
                self.tally.used.update(dict.fromkeys(chosen))
            elif our in _REQUIRED[self.name]:
                raise self._refuse(our, names, location)
        return plan

    def _refuse(self, our: str, names: Sequence[str], location: str) -> SextantError:
        """Return the error for a row without a column of ours."""
        if our in self.named and not self.tally.columns:  # in the first row
            return UnknownName(f"column of {location} for {our}", self.columns[our], names)
        has = ", ".join(map(tables.abbreviate, names))
        return DataError(
            f"{location}: no column is known as the {our} of {self.name}; --column {our}=NAME "
            f"says which it is: {has:.300}; {tables.FORMS}"
        )

    def list_unused(self) -> list[str]:
        """Return the columns that have something in any row, and are not taken."""
        return [column for column in self.tally.columns if column not in self.tally.used]

    def open(self, home: Path, counts: Counter[str]) -> Corpus:
        """Open the corpus of a table of documents."""

        def read() -> Iterator[Placed]:
            for _, location, row in self.read():
                text = tables.check_text(row["text"], location, optional=True)
                title = tables.check_text(row.get("title"), location, "title", optional=True)
                yield location, Document(tables.read_id(row["id"], location), text, title)

        corpus = corpora.open_corpus(home, self.files, read, self.tally, repr(self.named))
        counts.update(self.tally.counts)
        return corpus


def _join(row: JsonObject, our: str, names: Sequence[str], location: str) -> Any:
    """Return the cell that columns of a row make: the texts of several, joined."""
    if len(names) == 1:
        return row[names[0]]
    texts = [
        tables.check_text(row[name], location, name) for name in names if has_content(row[name])
    ]
    return ("\n" if our == "text" else " ").join(texts)


def _read_ids(cell: Any, location: str) -> list[str]:
    """Return the ids in a cell: a list of ids, or of objects that have one."""
    doc_ids = []
    for entry in cell if isinstance(cell, list) else [cell]:
        if isinstance(entry, dict):
            ids = [entry[name] for name in entry if normalise_column(name) in _DOCUMENT_IDS]
            entry = ids[0] if len(ids) == 1 else entry  # which is refused
        if entry not in (None, "", _NONE):
            doc_ids.append(tables.read_id(entry, location))
    return doc_ids


class _Tables(NamedTuple):
    """The tables of a collection; those without files are empty."""

    folder: Path
    found: table_files.TableFiles
    is_apart: bool  # documents are kept apart by split
    documents: _Table
    queries: _Table
    judgements: _Table
    pools: _Table

    @property
    def tables(self) -> list[_Table]:
        """The tables that have files."""
        return [table for table in self if isinstance(table, _Table) and table.files]

    def list_files(self) -> list[Path]:
        """Return the files that are read."""
        return [path for table in self.tables for path in table.files]

    def check_columns(self, columns: Mapping[str, str]) -> None:
        """Raise UnknownName for a column of the files that is in no row."""
        for our, joined in columns.items():
            read = [table for table in self.tables if our in _COLUMNS[table.name]]
            present = [name for table in read for name in table.tally.columns]
            known = {*map(normalise_column, present)}
            for column in re.split("[+,]", joined):
                if normalise_column(column) not in known:
                    raise UnknownName(f"column of {self.folder} for {our}", column, present)

    def describe_left_out(self, other_files: Iterable[Path]) -> str:
        """Return a sentence on the columns and files that are not read; "" for none."""
        columns = [
            f"{column} in {table.tally.columns[column]:,} of the {table.name}"
            for table in self.tables
            for column in table.list_unused()
        ]
        used = {path.resolve() for path in (*self.list_files(), *other_files)}
        listed = () if self.is_apart else self.found.of_table.values()
        paths = chain(self.found.others, *listed)
        files = [path for path in paths if path.resolve() not in used]
        return _list_some(LEFT_OUT, [*columns, *self._name(files)])

    def describe_links(self) -> str:
        """Return a sentence on the files that are outside of the folder; "" for none."""
        folder = self.folder.resolve()
        linked = [path for path in self.list_files() if not path.resolve().is_relative_to(folder)]
        return _list_some("Files outside of the folder, by a link or by name: ", self._name(linked))

    def _name(self, paths: Iterable[Path]) -> list[str]:
        return [f"the file {os.path.relpath(path, self.folder)}" for path in paths]


def _list_some(start: str, names: Sequence[str]) -> str:
    more = f", and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return f"{start}{', '.join(f'{name:.80}' for name in names[:_NAMED])}{more}." * bool(names)


def _open_tables(
    folder: Path,
    columns: Mapping[str, str],
    files: Mapping[str, Sequence[Path]],
    split: str,
) -> _Tables:
    found = table_files.find_tables(folder)
    named = {name: [*chain(*map(table_files.list_inside, paths))] for name, paths in files.items()}
    of_table = {name: found.of_table.get(name, []) for name in _COLUMNS} | named
    for name in ("documents", "queries"):
        if not of_table[name]:
            raise DataError(table_files.explain_absence(folder, name, found))
    chosen, is_apart = table_files.choose_files(of_table, folder, split)
    opened = {name: _Table(folder, name, chosen[name], columns) for name in _COLUMNS}
    if chosen["judgements"]:
        opened["queries"].known.pop("doc_id")
    return _Tables(folder, found, is_apart, **opened)


def _keep_package(name: str, home: Path) -> Path:
    """Return a folder with the collection of ir_datasets of that name, which is written in BEIR's
    form the first time.
    """
    dataset_id = name.removeprefix("ir_datasets:")
    folder = home / "ir_datasets" / quote(dataset_id, safe="")
    if folder.is_dir():
        return folder
    try:
        ir_datasets = import_module("ir_datasets")  # which is optional
        data = ir_datasets.load(dataset_id)
        rows: dict[str, Iterator[JsonObject]] = {
            name: ({"_id": each[0], "text": each.default_text()} for each in read())
            for name, read in (("corpus", data.docs_iter), ("queries", data.queries_iter))
        }
        rows["qrels"] = (
            {"qid": each.query_id, "doc_id": each.doc_id, "score": each.relevance}
            for each in data.qrels_iter()
        )
        folder.parent.mkdir(parents=True, exist_ok=True)
        with disk.temporary_sibling(folder, disk.SHARED, folder=True) as draft:
            for table, lines in rows.items():
                with (draft / f"{table}.jsonl").open("w", encoding="utf-8") as file:
                    file.writelines(f"{disk.dumps(line)}\n" for line in lines)
            if not folder.is_dir():  # else another process was faster
                draft.rename(folder)
    except ImportError:
        needed = explain_missing("ir_datasets", "ir-datasets")
        raise UsageError(f"{name!r} is no folder; an id of ir_datasets needs {needed}") from None
    except KeyError:
        raise UnknownName("folder or id of ir_datasets", dataset_id, ir_datasets.registry) from None
    except (AttributeError, OSError, RuntimeError, ValueError) as error:
        # No judgements; not to be downloaded; damaged.
        raise DataError(f"ir_datasets does not give {dataset_id}: {str(error)[:200]!r}") from None
    return folder


def read_port(
    folder: Path,
    home: Path,
    files: Mapping[str, Sequence[Path]] = {},
) -> Collection:
    """Read a copy of a benchmark's task, of splits the test one; `files` as in `read_collection`.

    DataError if there is none, or if it has a judgement of a query that it lacks.
    """
    found = table_files.find_tables(folder).of_table
    if lacking := {"documents", "queries", "judgements"} - files.keys() - found.keys():
        raise DataError(
            f"{folder} has neither the layout of the release nor a copy in BEIR's or TREC's form, "
            f"of which the {min(lacking)} are missing"
        )
    opened = _open_tables(folder, {}, files, "test")
    counts = Counter[str]()
    corpus = opened.documents.open(home, counts)
    asked = _read_queries(opened.queries, counts)
    judged = _read_judgements(opened.judgements, counts)
    qrels = judged.get("test") or judged.get("")
    if not qrels:
        raise DataError(f"{folder} has judgements of the split {min(judged)}, and none of test")
    if strangers := qrels.keys() - asked.texts.keys():
        raise DataError(
            f"{opened.judgements.files[0]} judges {min(strangers)!r}, which is no query of "
            f"{opened.queries.files[0]}"
        )
    return match_judgements(str(folder), corpus, asked, {"": qrels}, counts)


def read_qrels(path: Path, queries: Mapping[str, str], corpus: Corpus) -> Grades:
    """Read judgements of a file alone. DataError for a query or a document that is not known."""
    table = _Table(path.parent, "judgements", [path], {})
    [qrels] = _read_judgements(table, Counter()).values()
    unknown = qrels.keys() - queries.keys() or set(chain(*qrels.values())) - corpus.keys()
    if unknown:
        raise DataError(f"{path}: {min(unknown)!r} is no query or document of the task")
    return qrels


def read_id_lists(path: Path, queries: Iterable[str], lest: str) -> dict[str, frozenset[str]]:
    """Read an object of lists of document ids by query.

    DataError if one of `queries` has none, `lest` something happens.
    """
    try:
        lists = schemas.validate(dict[str, list[str | int]], tables.read_json(path))
    except ValueError as error:
        raise DataError(f"{path} is not an object of lists of ids, one a query: {error}") from None
    listed = {
        query_id: frozenset(
            tables.read_id(doc_id, f"{path}, query {query_id!r}") for doc_id in doc_ids
        )
        for query_id, doc_ids in lists.items()
    }
    if unlisted := {*queries} - listed.keys():
        alike = document_ids.suggest(min(unlisted), listed)
        raise DataError(f"{path} has no entry for query {min(unlisted)!r}; {lest}{alike}")
    return listed
