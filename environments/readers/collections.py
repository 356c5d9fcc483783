"""Collections of a user's own, and ports of the benchmarks' tasks.

A collection is three tables: documents, queries and judgements; table_files.py says which files
they are. Each is JSON Lines, a JSON array, cells under a header, Parquet, or TREC's: tags, four
columns of judgements, two columns of an id and a text. Other names are asked of the package
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
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import NamedTuple, TypeVar
from urllib.parse import quote

from sextant.environments.base import COLUMNS, LEFT_OUT, Grades, Judgements, Qrels
from sextant.environments.folders import leads_outside
from sextant.environments.readers import (
    document_ids,
    obliq_layout,
    raw_files,
    table_files,
    trec_tags,
)
from sextant.environments.readers import files as tables
from sextant.environments.readers.files import has_content, normalise_column
from sextant.environments.readers.obliq_layout import Collection, Contradiction, Placed
from sextant.environments.readers.raw_files import find_ending
from sextant.tools.corpus import Corpus
from sextant.tools.errors import DataError, SextantError, UnknownName, UsageError
from sextant.tools.platform import files as disk
from sextant.tools.platform.installation import explain_missing
from sextant.tools.platform.number_format import choose_verb, plural
from sextant.tools.records import Document, JsonObject
from sextant.tools.text import has_unspaced_words, is_blank

_Value = TypeVar("_Value")
_DOCUMENT_IDS = ("_id", "id", "doc_id", "docid", "document_id", "docno", "pid")
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
        "query_id": (*_QUERY_IDS, "_id", "id"),
        "query": ("query", "text", "question", "contents", "content"),
        "doc_id": ("gold_ids",),  # BRIGHT's lists of relevant documents, if there are no judgements
        "excluded_ids": ("excluded_ids",),  # BRIGHT's, of documents that a query must not see
        "instruction": ("instruction",),  # what is relevant, as FollowIR and InstructIR have it
    },
    "judgements": {
        "query_id": _QUERY_IDS,
        "doc_id": ("corpus_id", *_DOCUMENT_IDS[2:]),
        "grade": ("score", "relevance", "label", "grade", "rel"),
    },
    "pools": {"query_id": _QUERY_IDS, "doc_ids": ("corpus_ids", "doc_ids", "corpus_id", "doc_id")},
}
# What each row has to have, and each file in some row.
_REQUIRED = {
    "documents": {"id"},
    "queries": {"query_id", "query"},
    "judgements": {"query_id", "doc_id", "grade"},
    "pools": {"query_id", "doc_ids"},
}
# Columns of a table in TREC's tags that are joined where --column names no other.
_OF_TAGS: dict[str, dict[str, tuple[str, ...]]] = {
    "documents": {"id": ("docno",), "title": trec_tags.TITLES, "text": trec_tags.TEXTS},
    "queries": {"query": trec_tags.QUERIES},
}
_WITHOUT_HEADER = {
    "documents": ("id", "text"),
    "queries": ("query_id", "query"),
    "judgements": (
        "query_id",
        "",
        "doc_id",
        "grade",
    ),  # nobody reads TREC's second column, the iteration
}
_NONE = "N/A"  # BRIGHT's id in a list without documents
_NAMED = 5  # columns or files in a message


class _Queries(NamedTuple):
    """What the table of queries has, by query."""

    texts: dict[str, str]
    splits: dict[str, str]
    judged: dict[str, Grades]  # by split, of lists of relevant documents
    excluded: dict[str, frozenset[str]]
    instructions: dict[str, str]


class _Judgements(NamedTuple):
    """The judgements of all queries that are known."""

    qrels: Grades
    splits: dict[str, tuple[str, ...]]  # "dev" and "test"
    unknown: dict[str, int]  # judgements of each query that is judged, and not there


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
    folder = place if place.is_dir() else _keep_package(str(place), home)
    opened = _open_tables(folder, columns, files, split)
    counts = Counter[str]()
    try:
        corpus = opened.documents.open(home, counts)
        asked = _read_queries(opened.queries, counts)
    except Contradiction as error:
        raise DataError(f"{error}; {_settle(error, opened)}") from None
    judged = _read_judgements(opened.judgements, counts) or asked.judged
    if not judged:
        raise _refuse_unjudged(opened)
    pools = _read_pools(opened.pools)
    opened.check_columns(columns)
    note = ""
    if opened.queries.has_tags:
        asked, note = _match_numbers(asked, {*chain(*judged.values())})
    judgements = _join_splits(judged, asked, counts)
    qrels = judgements.qrels
    origin = f"Read from {place}: {', '.join(str(table) for table in opened.list_tables())}."
    if not qrels:
        mismatch = document_ids.compare(judgements.unknown, "judgements", asked.texts, "queries")
        raise DataError(f"{place}: no query has a judgement: {mismatch} {origin}")
    texts = _select(asked.texts, qrels)
    missing = list_missing(qrels, corpus, separator)
    judged_from = Judgements(qrels, relevant_from=relevant_from)
    warnings = check_judged(str(place), judged_from, corpus, missing, f" {origin}")
    unjudged = asked.texts.keys() - qrels.keys()
    if alike := document_ids.find_alike(judgements.unknown, unjudged):
        count = plural(len(judgements.unknown), "judged query is", "judged queries are")
        spelled = alike.describe("judgements", "queries")
        warnings.append(f"{count} unknown, and left out: {spelled}.")
    excluded = _select(asked.excluded, qrels)
    instructions = _select(asked.instructions, qrels)
    counts["queries without a judgement, left out"] = len(unjudged)
    counts["queries that excluded_ids keeps documents from"] = len(excluded)
    counts["queries whose objective is their column instruction"] = len(instructions)
    counts["queries that rank the pools of top_ranked alone"] = len(_select(pools, qrels))
    apart = "Each split searches its own documents." if opened.is_apart else ""
    notes = [note, _describe_left_out(opened, other_files), apart, _describe_links(opened)]
    return Collection(
        corpus,
        texts,
        qrels,
        excluded=excluded,
        splits=judgements.splits if all(judgements.splits.values()) or apart else {},
        unjudged=frozenset(unjudged),
        instructions=instructions,
        pools=pools,
        said=(
            origin,
            *filter(None, notes),
            *describe_data_issues(texts, qrels, corpus, counts, missing),
        ),
        warnings=tuple(warnings),
    )


def _select(table: Mapping[str, _Value], query_ids: Iterable[str]) -> dict[str, _Value]:
    return {query_id: table[query_id] for query_id in query_ids if query_id in table}


def _read_queries(table: "_Table", counts: Counter[str]) -> _Queries:
    queries = _Queries({}, {}, {}, {}, {})
    locations = dict[str, str]()
    for path, location, row in table.read():
        query_id = tables.read_id(row["query_id"], location)
        text = tables.check_text(row["query"], location, "query")
        counts["queries that are there again, counted once"] += query_id in locations
        before = locations.setdefault(query_id, location)
        if queries.texts.setdefault(query_id, text) != text:
            raise Contradiction(
                f"{location}: the query {query_id!r} has another text in {before}",
                location,
                before,
            )
        split = table_files.find_split(path, table.folder)
        queries.splits.setdefault(query_id, split)
        if instruction := row.get("instruction"):
            queries.instructions[query_id] = tables.check_text(instruction, location, "instruction")
        if excluded := table.read_ids(row, "excluded_ids", location):
            before_ids = queries.excluded.get(query_id, frozenset())
            queries.excluded[query_id] = before_ids | {*excluded}
        for doc_id in table.read_ids(row, "doc_id", location):
            queries.judged.setdefault(split, {}).setdefault(query_id, {})[doc_id] = 1.0
    return queries


def _read_judgements(table: "_Table", counts: Counter[str]) -> dict[str, Grades]:
    """Return the judgements of each split."""
    judged = dict[str, Grades]()
    for path, location, row in table.read():
        split = table_files.find_split(path, table.folder)
        query_id = tables.read_id(row["query_id"], location)
        doc_id = tables.read_id(row["doc_id"], location)
        grade = tables.check_grade(row["grade"], location)
        grades = judged.setdefault(split, {}).setdefault(query_id, {})
        counts["judgements that are there again, counted once"] += doc_id in grades
        if (before := grades.setdefault(doc_id, grade)) != grade:
            raise DataError(
                f"{location}: {query_id!r} and {doc_id!r} are judged twice, with {before:g} and "
                f"{grade:g}"
            )
    return judged


def _read_pools(table: "_Table") -> dict[str, frozenset[str]]:
    pools = dict[str, frozenset[str]]()
    for _, location, row in table.read():
        query_id = tables.read_id(row["query_id"], location)
        listed = table.read_ids(row, "doc_ids", location)
        pools[query_id] = pools.get(query_id, frozenset()) | {*listed}
    return pools


def _match_numbers(asked: _Queries, judged: Container[str]) -> tuple[_Queries, str]:
    """Return topics by the numbers that their judgements have for them, and a sentence on those
    that differ.

    TREC's topics 051 to 099 are judged as 51 to 99.
    """
    renamed = {}
    for query_id in asked.texts:
        plain = query_id.lstrip("0")
        if query_id not in judged and plain in judged and plain not in asked.texts:
            renamed[query_id] = plain
    if not renamed:
        return asked, ""
    topic, number = next(iter(renamed.items()))
    texts = {renamed.get(query_id, query_id): text for query_id, text in asked.texts.items()}
    splits = {renamed.get(query_id, query_id): split for query_id, split in asked.splits.items()}
    return asked._replace(texts=texts, splits=splits), (
        f"Topics are known by the numbers that their judgements have: e.g. topic {topic} is query "
        f"{number} ({len(renamed):,} of them)."
    )


def _join_splits(
    judged: Mapping[str, Grades], asked: _Queries, counts: Counter[str]
) -> _Judgements:
    """Return all judgements, those of a query by one split alone.

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
    unknown = {query_id: len(qrels[query_id]) for query_id in qrels if query_id not in asked.texts}
    counts["judgements of unknown queries, left out"] = sum(unknown.values())
    in_order = _select(qrels, asked.texts)
    splits = {
        "dev": tuple(query_id for query_id in in_order if query_id in dev),
        "test": tuple(query_id for query_id in in_order if query_id not in dev),
    }
    return _Judgements(in_order, splits, unknown)


def _describe_left_out(opened: "_Tables", other_files: Iterable[Path]) -> str:
    """Return a sentence on the columns and files that are not read; "" for none."""
    columns = [
        f"{column} in {plural(count, table.unit, table.units)}"
        for table in opened.list_tables()
        for column, count in table.tally.columns.most_common()
        if column not in table.tally.used
    ]
    read = [path for table in opened.list_tables() for path in table.files]
    used = {path.resolve() for path in chain(read, opened.apart, other_files)}
    listed = chain.from_iterable(opened.found.of_table.values())
    unread = [path for path in listed if path.resolve() not in used]
    others = [name for name in opened.found.others if (opened.folder / name).resolve() not in used]
    files = [*(os.path.relpath(path, opened.folder) for path in unread), *others]
    parts = [
        f"{plural(len(names), unit)} ({_list_some(names)})"
        for names, unit in ((columns, "column"), (files, "file"))
        if names
    ]
    return f"{LEFT_OUT}{'; '.join(parts)}." if parts else ""


def _list_some(names: Sequence[str]) -> str:
    more = f", and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return f"{', '.join(f'{name:.80}' for name in names[:_NAMED])}{more}"


def _describe_links(opened: "_Tables") -> str:
    """Return a sentence on the files of the tables that are outside of the folder; "" for none."""
    linked = [
        str(path)
        for table in opened.list_tables()
        for path in table.files
        if leads_outside(path, opened.folder)
    ]
    if not linked:
        return ""
    files_are = plural(len(linked), "file is", "files are")
    return f"{files_are} outside of the folder, by a link or by name: {', '.join(linked[:3])}."


def _settle(contradiction: Contradiction, opened: "_Tables") -> str:
    """Return advice about two rows with the same id.

    A file of that name is meant in every table that has several: BRIGHT's are domains.
    """
    if len({*contradiction.files}) == 1:
        return "mend one of them"
    name = Path(min(contradiction.files, key=len)).name
    items = [
        f'{table.name} = "{os.path.relpath(path, opened.folder)}"'
        for table in opened.list_tables()
        for path in table.files
        if len(table.files) > 1 and path.name == name
    ]
    files_are = choose_verb(len(items), "file is", "files are")
    return (
        f"mend one of them, or say which {files_are} meant: a line "
        f"`files = {{ {', '.join(items)} }}` in its benchmark.toml"
    )


def _refuse_unjudged(opened: "_Tables") -> DataError:
    message = table_files.explain_absence(opened.folder, "judgements", opened.found)
    if opened.judgements.files:
        message = f"{opened.judgements.files[0]} has no rows, so there are no judgements"
    lists = ", ".join(opened.queries.lists)
    taken = f"; --column doc_id=NAME takes a list of each query: {lists}" if lists else ""
    return DataError(f"{message}{taken}")


def list_missing(qrels: Qrels, documents: Container[str], separator: str = "") -> list[str]:
    """Return the judged documents that are not in the corpus, each once; with a `separator`,
    their parents.
    """
    units = _list_units(documents, separator)
    return [doc_id for doc_id in dict.fromkeys(chain(*qrels.values())) if doc_id not in units]


def _list_units(documents: Container[str], separator: str) -> Container[str]:
    if not separator:
        return documents
    return {doc_id.rpartition(separator)[0] or doc_id for doc_id in documents}


def check_judged(
    source: str,
    judgements: Judgements,
    documents: Container[str],
    missing: Sequence[str],
    hint: str = "",
) -> list[str]:
    """Return warnings of judged documents that are `missing`: of most, and of those that are only
    spelled differently.

    DataError if all are missing, or all that are relevant: every score would be 0. `hint` ends
    its message.
    """
    lost = set(missing)
    judged = set(chain(*judgements.qrels.values()))
    relevant = set(chain(*map(judgements.relevant, judgements.qrels)))
    if not lost:
        return []
    mismatch = document_ids.compare(missing, "judgements", documents, "corpus")
    if separator := document_ids.find_separator(missing, documents):
        line = f'`max_p = "{separator}"` in benchmark.toml judges passages by them'
        mismatch += (
            f" If judgements name documents, and the corpus has passages "
            f"PARENT{separator}PASSAGE: {line}."
        )
    for documents_of, name in ((judged, "judged"), (relevant, "relevant")):
        if documents_of and documents_of <= lost:
            none_there = f"none of the {name} documents ({len(documents_of):,}) is in the corpus"
            raise DataError(f"{source}: {none_there}: {mismatch}{hint}")
    if len(lost) * 2 > len(judged) or document_ids.find_alike(missing, documents):
        share = f"{len(lost):,} of {plural(len(judged), 'judged document')}"
        absent = f"{share} {choose_verb(len(lost))} not in the corpus"
        count = choose_verb(len(lost), "counts", "count")
        return [f"{source}: {absent}, and {count} as never found: {mismatch}"]
    return []


def describe_data_issues(
    queries: Mapping[str, str],
    qrels: Qrels,
    documents: Corpus,
    counts: Counter[str],
    missing: Sequence[str],
) -> list[str]:
    """Return a sentence for the sizes of a collection, for each of `counts`, and for each oddity in
    it.

    The judged documents `missing` are not in the corpus.
    """
    lost = set(missing)
    every = [(doc_id, grade) for judged in qrels.values() for doc_id, grade in judged.items()]
    grades = [grade for _, grade in every]
    vain = sum(max(judged.values(), default=0) <= 0 for judged in qrels.values())
    counts["judged documents that are not in the corpus"] = len(missing)
    counts["judgements above 0 of those"] = sum(
        grade > 0 and doc_id in lost for doc_id, grade in every
    )
    counts["grades that are fractions, which trec_eval cannot read"] = sum(
        grade % 1 > 0 for grade in grades
    )
    counts["grades below 0, which count as not relevant"] = sum(grade < 0 for grade in grades)
    counts["queries with no judgement above 0, for which nothing can be found"] = vain
    counts["queries without a text"] = sum(map(is_blank, queries.values()))
    counts["queries without blanks between words, which bm25(analyzer=bigrams) finds"] = sum(
        map(has_unspaced_words, queries.values())
    )
    sizes = f"{plural(len(documents), 'document')}, {plural(len(queries), 'query', 'queries')}"
    span = f"with grades from {min(grades, default=0):g} to {max(grades, default=0):g}"
    sentences = [f"{sizes}, {plural(len(grades), 'judgement')} {span}."]
    return sentences + [
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
        # "documents", "document"; what a row is called where it is counted
        self.units = name
        self.unit = {"queries": "query"}.get(name, name[:-1])
        self.tally = obliq_layout.Tally()
        self.lists = dict[str, None]()  # the columns that have lists
        self.has_tags = False
        self._known = dict(_COLUMNS[name])
        # Of a column of ours, those that --column names, or TREC's tags, which are joined.
        self._joined = {
            our: tuple(map(normalise_column, re.split("[+,]", columns[our])))
            for our in self._known
            if our in columns
        }
        self._named = columns
        self._normalised = _NormalisedNames()
        self._seen = set[str]()  # our columns that the present file has
        self._chosen = dict[str, str]()  # and what it calls those that have something in them

    def __str__(self) -> str:
        more_files = f" and {len(self.files) - 1} more" if len(self.files) > 1 else ""
        shown_path = os.path.relpath(self.files[0], self.folder)
        return f"{self.name} from {shown_path}{more_files} ({', '.join(self.tally.used)})"

    def read(self) -> Iterator[tuple[Path, str, JsonObject]]:
        """Yield (file, place, values by our columns) of each row, and count the columns that have
        something in it.
        """
        columns = self.tally.columns
        columns.clear()
        self.tally.used.clear()
        path = None
        for path in self.files:
            self._seen.clear()
            self._chosen.clear()
            location = ""
            for location, row in self._rows(path):
                flat = _flatten(row)
                columns.update(name for name, value in flat.items() if has_content(value))
                if self.name == "queries":
                    self.lists |= {name: None for name, value in flat.items() if _is_list(value)}
                yield path, location, self._choose(flat, location)
            if location and self.name == "documents" and "text" not in self._seen:
                raise self._refuse_row("text", flat, str(path))
        if path and not columns:
            raise DataError(f"{path} has no rows, so there are no {self.name}")

    def _choose(self, row: JsonObject, location: str) -> JsonObject:
        """Return the values of our columns in a row. DataError if two could be one of them."""
        names = {self._normalised[name]: name for name in row}
        values = {}
        for our, known in self._known.items():
            wanted = self._joined.get(our, ())
            if self.has_tags and not wanted:
                wanted = _OF_TAGS.get(self.name, {}).get(our, ())
            if wanted and (our != "query_id" or names.keys() & {*wanted}):
                there = [names[name] for name in wanted if name in names]
                present = [name for name in there if has_content(row[name])]
            else:
                there = [names[name] for name in known if name in names]
                present = [name for name in there if has_content(row[name])]
                if present and {self._chosen.get(our, present[0]), *present} != {present[0]}:
                    raise _refuse_two(our, [self._chosen.get(our, ""), *present], location)
            if there:
                self._seen.add(our)
                if present:
                    self._chosen[our] = present[0]
                self.tally.used.update(present)
                values[our] = row[(present or there)[0]]
                if len(present) > 1:
                    texts = [tables.check_text(row[name], location, name) for name in present]
                    values[our] = ("\n" if our == "text" else " ").join(texts)
            elif our in _REQUIRED[self.name]:
                raise self._refuse_row(our, row, location)
        return values

    def _refuse_row(self, our: str, row: JsonObject, location: str) -> SextantError:
        if our in self._joined:
            return UnknownName(f"column of {location} for {our}", self._named[our], row)
        has = ", ".join(map(tables.abbreviate, row))
        return DataError(
            f"{location}: no column is known as the {our} of {self.name}; --column {our}=NAME says "
            f"which it is: {has:.300}. A row is a JSON object a line, or cells below a first line "
            f"that names the columns"
        )

    def read_ids(self, row: JsonObject, our: str, location: str) -> list[str]:
        """Return the ids in a cell: a list of ids, or of objects that have an id."""
        doc_ids = []
        column = self._chosen.get(our, our)
        others = set()
        value = row.get(our)
        for entry in value if isinstance(value, list) else [value]:
            if isinstance(entry, dict):
                names = [name for name in entry if normalise_column(name) in _DOCUMENT_IDS]
                if len(names) != 1:
                    has = ", ".join(map(tables.abbreviate, entry))
                    raise DataError(
                        f"{location}: {column} is a list of objects, of which one field should be "
                        f"the id ({', '.join(_DOCUMENT_IDS)}): {has:.300}"
                    )
                others |= {name for name in entry if name != names[0] and has_content(entry[name])}
                entry = entry[names[0]]
            if entry not in (None, "", _NONE):
                doc_ids.append(tables.read_id(entry, location))
        self.tally.columns.update(f"{column}.{name}" for name in others)
        return doc_ids

    def ignore(self, our: str) -> None:
        """Leave a column of ours out."""
        self._known.pop(our)

    def open(self, home: Path, counts: Counter[str]) -> Corpus:
        """Open the corpus of a table of documents."""

        def read() -> Iterator[Placed]:
            for _, location, row in self.read():
                text = tables.check_text(row.get("text"), location, optional=True)
                title = tables.check_text(row.get("title"), location, "title", optional=True)
                yield location, Document(tables.read_id(row["id"], location), text, title)

        if "title" not in self._joined and "title" in self._joined.get("text", ()):
            self.ignore("title")
        corpus = obliq_layout.open_corpus(home, self.files, read, self.tally, repr(self._joined))
        counts.update(self.tally.counts)
        return corpus

    def _rows(self, path: Path) -> tables.Rows:
        self.has_tags = False
        if find_ending(path) == tables.PARQUET:
            return tables.read_rows([path])
        first = next(raw_files.read_lines(path), (0, ""))[1].strip()
        if first.startswith(("{", "[")):
            return tables.read_records(path)
        if first.startswith("<") and self.name in _OF_TAGS:
            self.has_tags = True
            is_queries = self.name == "queries"
            self._known |= {"query_id": trec_tags.NUMBERS} if is_queries else {}
            return (trec_tags.read_topics if is_queries else trec_tags.read_documents)(path)
        return self._read_cells(path, first)

    def _read_cells(self, path: Path, first: str) -> tables.Rows:
        """Yield (place, row) of each line of cells; the first line names the columns, or is a row
        of the usual names.
        """
        is_csv = find_ending(path) == ".csv"
        separator: str | None = "\t"
        if is_csv:
            separator = tables.find_separator(path)
        elif self.name == "judgements" and "\t" not in first:
            separator = None  # any run of blanks
        header = {
            normalise_column(cell.strip('"')) for cell in (first.split(separator) if first else ())
        }
        given = {*chain(*self._joined.values())}
        if is_csv or header & given or len(header & {*chain(*self._known.values())}) > 1:
            yield from tables.read_headed(path, (), separator)
            return
        names = _WITHOUT_HEADER.get(self.name, ())
        named = ", ".join(name or "iteration" for name in names)
        form = (
            f" ({named}), or a first line that names the columns; --column says how they are called"
        )
        for location, cells in tables.read_cells(path, len(names), separator, form):
            yield location, {name: cell for name, cell in zip(names, cells, strict=True) if name}


class _NormalisedNames(dict[str, str]):
    """The names of columns as they are compared; each is worked out once."""

    def __missing__(self, name: str) -> str:
        self[name] = normalise_column(name)
        return self[name]


def _is_list(value: object) -> bool:
    return isinstance(value, list) and bool(value)


def _flatten(row: JsonObject) -> JsonObject:
    """Return a row with the keys of objects among its columns, as metadata.url."""
    if not any(isinstance(value, dict) for value in row.values()):
        return row
    flat: JsonObject = {}
    for name, value in row.items():
        inside = value.items() if isinstance(value, dict) else ()
        flat |= {f"{name}.{key}": cell for key, cell in inside} or {name: value}
    return flat


def _refuse_two(our: str, columns: Sequence[str], location: str) -> DataError:
    names = [*dict.fromkeys(filter(None, columns))]
    joined = (
        f", and {our}={'+'.join(names)} joins them" if our in ("text", "query", "title") else ""
    )
    return DataError(
        f"{location}: {' and '.join(names)} could both be the {our}; --column {our}={names[0]} says "
        f"which it is{joined}"
    )


class _Tables(NamedTuple):
    """The tables of a collection."""

    folder: Path
    found: table_files.TableFiles
    documents: _Table
    queries: _Table
    judgements: _Table  # without files if they are lists in the queries
    pools: _Table  # the same if there are none
    is_apart: bool  # documents are kept apart by split
    apart: Sequence[Path]  # the files of the other splits

    def list_tables(self) -> list[_Table]:
        """Return the tables that have files."""
        every = (self.documents, self.queries, self.judgements, self.pools)
        return [table for table in every if table.files]

    def check_columns(self, columns: Mapping[str, str]) -> None:
        """Raise UnknownName for a column of ours or of the files that is in no row."""
        for our, joined in columns.items():
            read = [table for table in self.list_tables() if our in _COLUMNS[table.name]]
            if not read or our not in COLUMNS:
                raise UnknownName("--column", our, COLUMNS)
            present = [name for table in read for name in table.tally.columns]
            known = {*map(normalise_column, present)}
            for column in re.split("[+,]", joined):
                if normalise_column(column) not in known:
                    raise UnknownName(f"column of {self.folder} for {our}", column, present)


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
    chosen, is_apart = table_files.choose_split(of_table, folder, split)
    opened = {name: _Table(folder, name, chosen[name], columns) for name in _COLUMNS}
    if chosen["judgements"]:
        opened["queries"].ignore("doc_id")
    apart = [*chain(*of_table.values())] if is_apart else []
    return _Tables(folder, found, **opened, is_apart=is_apart, apart=apart)


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
        rows = {
            "corpus": (
                {"_id": document.doc_id, "text": document.default_text()}
                for document in data.docs_iter()
            ),
            "queries": (
                {"_id": query.query_id, "text": query.default_text()}
                for query in data.queries_iter()
            ),
            "qrels": (
                {
                    "qid": judgement.query_id,
                    "doc_id": judgement.doc_id,
                    "score": judgement.relevance,
                }
                for judgement in data.qrels_iter()
            ),
        }
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
    except (
        AttributeError,
        OSError,
        RuntimeError,
        ValueError,
    ) as error:
        # No judgements; not to be downloaded; damaged.
        raise DataError(f"ir_datasets does not give {dataset_id}: {str(error)[:200]!r}") from None
    return folder


def read_port(folder: Path, home: Path, lacks: str = "") -> Collection:
    """Read a copy of a benchmark's task, of splits the test one.

    DataError, which says `lacks` if there is none.
    """
    has_corpus = table_files.find_tables(folder).of_table.get("documents")
    if lacks and (not has_corpus or (folder / "queries+qrels").exists()):
        raise DataError(lacks)
    opened = _open_tables(folder, {}, {}, "test")
    counts = Counter[str]()
    corpus = opened.documents.open(home, counts)
    texts = _read_queries(opened.queries, counts).texts
    judged = _read_judgements(opened.judgements, counts)
    if judged and not judged.keys() & {"test", ""}:
        raise DataError(f"{folder} has judgements of the split {min(judged)}, and none of test")
    qrels = judged.get("test") or judged.get("", {})
    strange = sum(len(grades) for query_id, grades in qrels.items() if query_id not in texts)
    if not qrels or strange:
        raise DataError(
            f"{folder}: {strange if qrels else 'all'} of the {opened.judgements} are not of the "
            f"{opened.queries}"
        )
    in_order = {query_id: qrels[query_id] for query_id in texts if query_id in qrels}
    return Collection(corpus, {query_id: texts[query_id] for query_id in in_order}, in_order)
