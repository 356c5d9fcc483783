"""Collections of a user's own, and ports of the benchmarks' tasks, in the forms that collections
come in.

A collection is three tables: documents, queries and judgements. The files of a table are those in
the folder whose names begin with one of its words (`corpus.jsonl.gz`, `queries.dev.tsv`), end with
it (`robust.qrels`), or stand in a folder of that name (`qrels/test.tsv`, `corpus/0000.parquet`).
Each is JSON Lines, cells under a header or not, TREC's tags, Parquet, or Arrow as
`datasets.save_to_disk` writes it. Other names are asked of the package ir_datasets.

Dropped and odd rows are counted and reported, and contradictions are refused. The rest of a task
(objective, metrics) is not read here.
"""

import os
import re
from collections import Counter
from collections.abc import Collection as Container
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from itertools import chain, islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

from environments.base import Grades, Qrels
from environments.folders import leads_outside
from environments.readers import document_ids, obliq_layout, raw_files
from environments.readers import files as tables
from environments.readers.obliq_layout import Collection, Contradiction, Placed, TopicFields
from environments.readers.raw_files import find_ending
from tools import files as disk
from tools.corpus import Corpus
from tools.errors import DataError, UnknownName, UsageError
from tools.installation import explain_missing
from tools.number_format import choose_verb, plural
from tools.records import Document, JsonMapping
from tools.text import has_unspaced_words

_WORDS = {
    "documents": ("corpus", "documents", "docs", "collection", "passages"),
    "queries": ("queries", "topics", "query", "examples"),  # the last is BRIGHT's
    "judgements": ("qrels", "default", "judgements", "judgments"),  # "default" is MTEB's
}
IDS = ("_id", "id", "doc_id", "docid", "document_id", "query_id", "qid", "docno", "pid")
TEXTS = (
    "text",
    "contents",
    "content",
    "body",
    "passage",
    "document",
    "question",
    "query",
    "segment",
    "abstract",
    "page_content",  # of LangChain's documents
)
# The columns of each table, and the names that files have for them; --column puts another before
# these.
_COLUMNS: dict[str, dict[str, tuple[str, ...]]] = {
    "documents": {
        "id": IDS,
        "text": TEXTS,
        "title": ("title",),
    },
    "queries": {"query_id": ("query-id", *IDS), "query": ("query", *TEXTS, "title")},
    "judgements": {
        "query_id": obliq_layout.QUERY,
        "doc_id": (*obliq_layout.DOCUMENT, "docno", "pid"),
        "grade": (*obliq_layout.SCORE, "grade", "rel"),
    },
}
# Columns of queries with lists of documents, as BRIGHT has them: those that are relevant, and those
# that a query must not see.
_RELEVANT = "gold_ids"
_EXCLUDED = "excluded_ids"
_NONE = "N/A"  # BRIGHT's id in a list without documents
ITERATION = "iteration"  # TREC's second column of judgements, which nobody reads
# If there are several, the first is read; "" is any.
_ENDINGS = (
    ".parquet",
    ".arrow",
    ".jsonl",
    ".tsv",
    ".csv",
    "",
)
# Files and folders beside the tables: hidden ones, copies that editors and systems leave, notes,
# marks of a download.
_ASIDE = re.compile(
    r"^\.|^__MACOSX$|^cache-|readme|^_(success|started|committed|metadata|common_metadata)|^(state|dataset_\w+)\.json$"
    r"|\.(md|toml|py|dvc|lock|log|bak|orig|swp|tmp|part|incomplete|crc|md5|sha\d+)$|~$",
    re.I,
)
# Parts in the folder data/ are the default subset of a data set, as the hub's push_to_hub writes
# them; MTEB's are its judgements.
_DEFAULT_SUBSET = re.compile(r"-\d{5}-of-\d{5}\.")
_FORMS = {
    ".parquet": "a Hugging Face folder",
    ".arrow": "a Hugging Face folder",
    ".tsv": "CSV",
    ".csv": "CSV",
}
_DIGITS = re.compile(r"[0-9]{1,18}")
_LOOKED_AT = 1000  # rows of a table, for another column with the ids that are wanted
_DEV = {"train", "training", "dev", "development", "validation", "valid", "val"}


def read_collection(
    place: Path,
    home: Path,
    columns: Mapping[str, str] = {},
    files: Mapping[str, Path] = {},
    separator: str = "",
) -> Collection:
    """Read the collection in the folder `place`, or the one that ir_datasets has by that id.

    `columns` are the files' names for id, text, title, query_id, query, doc_id and grade, if
    they are unusual; `files` are the file or folder of "documents", "queries" and "judgements",
    if there are several; `separator` ends the parent's name in a document's id, if parents
    are judged. UsageError for a wrong argument, DataError for data that cannot be right.
    """
    folder = place if place.is_dir() else _keep_package(str(place), home)
    documents, queries, judgements = opened = _open_tables(folder, columns, files)
    form = (
        "TREC"
        if ITERATION in judgements.there
        else _FORMS.get(find_ending(documents.files[0]), "BEIR")
    )
    form = form if folder == place else "ir_datasets"
    counts = Counter[str]()
    try:
        corpus = documents.open(home, counts)
    except Contradiction as error:
        raise DataError(f"{error}; {documents.settle(error, opened)}") from None
    try:
        texts = _read_queries(queries, counts)
    except Contradiction as error:
        raise DataError(f"{error}; {queries.settle(error, opened)}") from None
    notes = []
    if queries.topic_fields.taken:
        texts, note = _match_numbers(texts, judgements)
        notes.append(note)
    qrels, splits, unknown = _read_judgements(judgements, texts, counts)
    excluded, note = _read_excluded(queries, qrels)
    notes.append(note)
    origin = f"{place} is read as {form}: {', '.join(map(str, opened))}."
    if not qrels:
        reason = _describe_unknown_queries(unknown, texts, corpus, queries, judgements)
        raise DataError(f"{place}: no query has a judgement: {reason} {origin}")
    judged = {query_id: texts[query_id] for query_id in qrels}
    if not any(map(str.strip, judged.values())):
        raise DataError(
            f"{place}: no query has a text; --column query=NAME says which column has it. {origin}"
        )
    counts["queries without a judgement, left out"] = len(texts) - len(judged)
    missing = list_missing(qrels, corpus, separator)
    column = ""
    if missing:
        column = documents.find_column("id", set(missing)) or judgements.find_column(
            "doc_id", corpus
        )
    warnings = check_judged(str(place), qrels, corpus, missing, f"{column} {origin}")
    if unknown and (alike := document_ids.find_alike(unknown, texts.keys() - judged.keys())):
        left_out = (
            f"{plural(len(unknown), 'judged query is', 'judged queries are')} unknown, and left out"
        )
        warnings.append(f"{left_out}: {alike.describe('judgements', 'queries')}.")
    notes.append(_describe_links(opened, folder))
    oddities = describe_data_issues(judged, qrels, corpus, counts, missing)
    return Collection(
        corpus,
        judged,
        qrels,
        excluded=excluded,
        form=form,
        splits=splits,
        unjudged=frozenset(texts.keys() - judged.keys()),
        said=(origin, *filter(None, notes), *oddities),
        warnings=tuple(warnings),
    )


def _read_excluded(
    queries: "_CollectionTable", judged: Container[str]
) -> tuple[dict[str, frozenset[str]], str]:
    """Return the documents that `judged` queries must not see, and a sentence on them."""
    excluded = {
        query_id: frozenset(doc_ids)
        for _, query_id, doc_ids in queries.read_lists(_EXCLUDED)
        if doc_ids and query_id in judged
    }
    if not excluded:
        return {}, ""
    number = plural(len(excluded), "query", "queries")
    return excluded, f"Documents in {_EXCLUDED} are kept from {number}."


def _describe_links(opened: Sequence["_CollectionTable"], folder: Path) -> str:
    """Return a sentence on the files of the tables that are outside of the folder; "" for none."""
    linked = [str(path) for table in opened for path in table.files if leads_outside(path, folder)]
    if not linked:
        return ""
    files_are = plural(len(linked), "file is", "files are")
    return f"{files_are} outside of the folder, by a link or by name: {', '.join(linked[:3])}."


def _describe_unknown_queries(
    unknown: Sequence[str],
    texts: Mapping[str, str],
    corpus: Corpus,
    queries: "_CollectionTable",
    judgements: "_CollectionTable",
) -> str:
    """Return how the ids of judged queries differ from the `texts`, and a column that may fit."""
    mismatch = document_ids.compare(unknown, "judgements", texts, "queries")
    column = queries.find_column("query_id", set(unknown))
    column = column or judgements.find_column("query_id", texts)
    if not column and unknown[0] in corpus:
        column = (
            f" {unknown[0]!r} is a document: are the columns of the judgements in another order?"
        )
    return f"{mismatch}{column}"


def _read_queries(table: "_CollectionTable", counts: Counter[str]) -> dict[str, str]:
    queries = dict[str, tuple[str, str]]()  # query_id -> text and place
    quoted = Counter[str]()
    for _, location, (name, content) in table.read(quoted):
        query_id = tables.read_id(name, location)
        text = tables.check_text(content, location, "query")
        counts["queries that are there again, counted once"] += query_id in queries
        before, first_location = queries.setdefault(query_id, (text, location))
        if before != text:
            raise Contradiction(
                f"{location}: the query {query_id!r} has another text in {first_location}",
                location,
                first_location,
            )
    table.note_quoted(quoted, counts)
    return {query_id: text for query_id, (text, _) in queries.items()}


def _match_numbers(
    queries: dict[str, str], judgements: "_CollectionTable"
) -> tuple[dict[str, str], str]:
    """Return topics by the numbers that their judgements have for them, and a sentence on those
    that differ.

    TREC's topics 051 to 099 are judged as 51 to 99.
    """
    judged = {
        tables.read_id(query_id, location) for _, location, (query_id, _, _) in judgements.read()
    }
    names = dict[int, list[str]]()  # of judged queries that no topic has as it stands
    for name in judged - queries.keys():
        if _DIGITS.fullmatch(name):
            names.setdefault(int(name), []).append(name)
    topics = Counter(
        int(name) for name in queries if _DIGITS.fullmatch(name) and name not in judged
    )
    renamed = {}
    for query_id in queries:
        if _DIGITS.fullmatch(query_id) and query_id not in judged:
            matches = names.get(int(query_id), [])
            if len(matches) == topics[int(query_id)] == 1:
                renamed[query_id] = matches[0]
    if not renamed:
        return queries, ""
    topic = next(iter(renamed))
    example = f"e.g. topic {topic} is query {renamed[topic]}"
    note = (
        f"Topics are known by the numbers that their judgements have: {example} ({len(renamed):,} "
        f"of them)."
    )
    return {renamed.get(query_id, query_id): text for query_id, text in queries.items()}, note


def _read_judgements(
    table: "_CollectionTable", queries: Mapping[str, str], counts: Counter[str]
) -> tuple[Grades, dict[str, tuple[str, ...]], list[str]]:
    """Return the judgements of `queries`, the queries of each split if there are a "dev" and a
    "test", and others.

    The others are queries that are judged, and not among `queries`.
    """
    qrels: Grades = {}
    chosen: dict[str, set[str]] = {
        "dev": set(),
        "test": set(),
        "": set(),
    }
    unknown = dict[str, None]()
    quoted = Counter[str]()
    for split, location, (asked, judged, score) in table.read(quoted):
        query_id = tables.read_id(asked, location)
        doc_id = tables.read_id(judged, location)
        grade = tables.check_grade(score, location)
        if query_id not in queries:
            counts["judgements of unknown queries, left out"] += 1
            unknown[query_id] = None
            continue
        grades = qrels.setdefault(query_id, {})
        counts["judgements that are there again, counted once"] += doc_id in grades
        if (before := grades.setdefault(doc_id, grade)) != grade:
            raise DataError(
                f"{location}: {query_id!r} and {doc_id!r} are judged twice, with {before:g} and "
                f"{grade:g}"
            )
        chosen[split].add(query_id)
    table.note_quoted(quoted, counts)
    test = tuple(query_id for query_id in queries if query_id in chosen["test"])
    dev = tuple(
        query_id
        for query_id in queries
        if query_id in chosen["dev"] and query_id not in chosen["test"]
    )
    in_order = {query_id: qrels[query_id] for query_id in queries if query_id in qrels}
    return in_order, {"dev": dev, "test": test} if dev and test else {}, list(unknown)


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
    qrels: Qrels,
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
    judged = set(chain(*qrels.values()))
    relevant = {
        doc_id for grades in qrels.values() for doc_id, grade in grades.items() if grade > 0
    }
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
    counts["queries without a text"] = sum(not text.strip() for text in queries.values())
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


class _CollectionTable:
    """A table of a collection: its files, and the columns that are taken from them."""

    def __init__(
        self,
        folder: Path,
        name: str,
        files: list[Path],
        columns: Mapping[str, str],
    ) -> None:
        self._folder = folder
        self.name = name
        self.files = files
        if not files:
            raise DataError(f"{folder} has no {name}: {_say_absence(folder, name)}")
        ours = _COLUMNS[name].items()
        self._names = {our: (*filter(None, [columns.get(our)]), *names, our) for our, names in ours}
        self._named = {columns[our] for our in self._names if our in columns}  # by the user
        self.topic_fields = TopicFields(columns.get("query", ""))
        self._is_one_object = False
        # Spark writes parts without rows, often the first.
        rows = ((path, row) for path in files for _, row in self._rows(path, Counter()))
        first_file, first = next(rows, (files[0], {}))
        if not first:
            raise DataError(f"{first_file} has no rows, so there are no {name}")
        self.there = set(first)
        self._taken = {our: self._take(our, first) for our in self._names}
        if lacking := next(
            (our for our, column in self._taken.items() if not column and our != "title"), None
        ):
            has = ", ".join(map(tables.abbreviate, first))
            if self._is_one_object:
                form = f"one JSON object with the keys {has:.200}, and no table of {name}"
                raise DataError(
                    f"{first_file} is {form}; write one object a line, or --column {lacking}=NAME"
                )
            headed = (
                " (the first line of a .csv file names its columns)"
                if find_ending(first_file) == ".csv"
                else ""
            )
            remedy = f"--column {lacking}=NAME says which it is"
            raise DataError(f"{first_file} has no known {lacking}{headed}; {remedy}: {has:.300}")

    def _take(self, our: str, first: JsonMapping) -> str:
        """Return the file's name for a column of ours; the name is added to those that are known,
        if need be.
        """
        if taken := next((name for name in self._names[our] if name in first), ""):
            return taken
        for name in self._names[our]:
            for column in first:
                if tables.match_column(column, (name,)):
                    self._names[our] = (column, *self._names[our])
                    return column
        return ""

    def __str__(self) -> str:
        more_files = f" and {len(self.files) - 1} more" if len(self.files) > 1 else ""
        shown_path = os.path.relpath(self.files[0], self._folder)
        columns = ", ".join(filter(None, self._taken.values()))
        if self.topic_fields.taken:
            columns = str(self.topic_fields)
        return f"{self.name} from {shown_path}{more_files} ({columns})"

    def split(self, path: Path) -> str:
        """Return "dev", "test" or "", by the name of one of the files."""
        words = {*re.split(r"[^a-z]+", os.path.relpath(path, self._folder).lower())}
        return "test" if "test" in words else "dev" if words & _DEV else ""

    def read(self, counts: Counter[str] | None = None) -> Iterator[tuple[str, str, list[Any]]]:
        """Yield (split, place, the values of our columns) of each row; a title that is not there is
        None.

        `counts` says how many cells were unquoted.
        """
        for path in self.files:
            split = self.split(path)
            for location, row in self._rows(path, Counter() if counts is None else counts):
                if self.name == "documents":
                    row.setdefault("title", None)
                yield (
                    split,
                    location,
                    [tables.pick_column(location, row, *names) for names in self._names.values()],
                )

    def read_lists(self, column: str) -> Iterator[tuple[str, str, list[str]]]:
        """Yield (place, query, documents) of the lists in a column of queries; nothing without it."""
        for path in self.files if column in self.there else ():
            for location, row in self._rows(path, Counter()):
                query_id = tables.pick_column(location, row, *self._names["query_id"])
                doc_ids = row.get(column) or []
                if not isinstance(doc_ids, list):
                    raise DataError(
                        f"{location}: {column} is {tables.abbreviate(doc_ids)}, and no list of ids"
                    )
                listed = [tables.read_id(doc_id, location) for doc_id in doc_ids if doc_id != _NONE]
                yield location, tables.read_id(query_id, location), listed

    def find_column(self, our: str, wanted: Container[str]) -> str:
        """Return the end of a message: another column than is taken has one of the `wanted`
        ids; "" for none.
        """
        rows = chain.from_iterable(self._rows(path, Counter()) for path in self.files)
        for _, row in islice(rows, _LOOKED_AT):
            for column, value in row.items():
                if (
                    column in self._taken.values()
                    or column == ITERATION
                    or not isinstance(value, str | int)
                ):
                    continue
                if str(value) in wanted:
                    return (
                        f" The column {column!r} of the {self.name} has {str(value)!r}: --column "
                        f"{our}={column}."
                    )
        return ""

    def open(self, home: Path, counts: Counter[str]) -> Corpus:
        """Open the corpus of a table of documents."""
        has_title = self._taken["title"] != self._taken["text"]

        def read() -> Iterator[Placed]:
            quoted = Counter[str]()
            for _, location, (doc_id, text, title) in self.read(quoted):
                text = tables.check_text(text, location, optional=True)
                title = (
                    tables.check_text(title, location, "title", optional=True) if has_title else ""
                )
                yield location, Document(tables.read_id(doc_id, location), text, title)
            self.note_quoted(quoted, counts)

        return obliq_layout.open_corpus(home, self.files, read, counts, repr(self._names))

    def note_quoted(self, quoted: Counter[str], counts: Counter[str]) -> None:
        """Note in `counts` how many cells of the table were unquoted."""
        if quoted[tables.QUOTED]:
            label = f"cells of {self.name} without the quotation marks that csv has put around them"
            counts[label] = quoted[tables.QUOTED]

    def settle(self, contradiction: Contradiction, opened: Sequence["_CollectionTable"]) -> str:
        """Return advice about two rows with the same id in a collection of the tables `opened`.

        A file of that name is meant in every table that has several: BRIGHT's are domains.
        """
        second_file, before = contradiction.files
        if second_file != before:
            file = Path(min(second_file, before, key=len))
            meant = {self.name: file}
            for table in opened:
                same_domain = [path for path in table.files if path.name == file.name]
                if len(table.files) > len(same_domain) == 1 and table.files != self.files:
                    meant[table.name] = same_domain[0]
            items = [
                f'{name} = "{os.path.relpath(path, self._folder)}"' for name, path in meant.items()
            ]
            files_are = choose_verb(len(items), "file is", "files are")
            return (
                f"mend one of them, or say which {files_are} meant: a line "
                f"`files = {{ {', '.join(items)} }}` in its benchmark.toml"
            )
        our = "id" if self.name == "documents" else "query_id"
        alternatives = [
            name for name in self._names[our] if name in self.there and name != self._taken[our]
        ]
        if alternatives:
            return f"mend one of them, or take another column for the id: --column {our}={alternatives[0]}"
        return "mend one of them"

    def _rows(self, path: Path, counts: Counter[str]) -> tables.Rows:
        if find_ending(path) in tables.PACKED:
            return tables.read_rows([path])
        first = next(raw_files.read_lines(path), (0, ""))[1].strip()
        if first.startswith(("{", "[")):
            return self._json_rows(path)
        if first.startswith("<") and self.name == "queries":
            return obliq_layout.read_topics(path, self.topic_fields)
        if first.startswith("<") and self.name == "documents":
            return obliq_layout.read_trec_documents(path)
        return self._cells(path, first, counts)

    def _json_rows(self, path: Path) -> tables.Rows:
        """Yield (place, row) of each object of a file, or of each entry if it is one
        object with entries by id.
        """
        rows = tables.read_records(path)
        first_two = list(islice(rows, 2))
        column_names = {name for names in self._names.values() for name in names}
        if len(first_two) == 1 and not column_names & first_two[0][1].keys():
            self._is_one_object = True
            entries = list(self._list_entries(path, first_two[0][1]))
            if entries:
                return iter(entries)
        return chain(first_two, rows)

    def _list_entries(self, path: Path, table: JsonMapping) -> tables.Rows:
        """Yield (place, row) of each entry of a whole table that is one object by id; nothing if it
        is none.
        """
        if self.name == "judgements":
            if not all(isinstance(entry, dict | list) for entry in table.values()):
                return
            for query_id, entry in table.items():
                location = f"{path}, entry {tables.abbreviate(query_id)}"
                graded = (
                    entry.items() if isinstance(entry, dict) else ((doc_id, 1) for doc_id in entry)
                )
                for doc_id, grade in graded:
                    yield (
                        location,
                        {
                            "query_id": query_id,
                            "doc_id": doc_id,
                            "grade": grade,
                        },
                    )
            return
        name, text = ("id", "text") if self.name == "documents" else ("query_id", "query")
        # In a file of one object a line, a text is that of a column.
        is_lines = find_ending(path) in (".jsonl", ".ndjson")
        if not all(isinstance(entry, dict if is_lines else dict | str) for entry in table.values()):
            return
        for key, entry in table.items():
            row = entry if isinstance(entry, dict) else {text: entry}
            has_id = any(column in row for column in self._names[name])
            yield f"{path}, entry {tables.abbreviate(key)}", row if has_id else {name: key, **row}

    def _cells(
        self,
        path: Path,
        first: str,
        counts: Counter[str],
    ) -> tables.Rows:
        """Yield (place, row) of each line of cells; the first line names the columns, or is a row
        of the usual names.
        """
        column_names = {name for names in self._names.values() for name in names}
        separator = self._choose_separator(path, first, column_names)
        is_csv = find_ending(path) == ".csv"
        if is_csv or self._is_header(_split(first, separator), column_names):
            yield from tables.read_headed(path, column_names, separator, counts)
            return
        header = [our for our in self._names if our != "title"]
        header[1:1] = [ITERATION] * (self.name == "judgements")
        form = (
            f" ({', '.join(header)}), or a first line that names the columns; --column says how "
            f"they are called"
        )
        for location, cells in tables.read_cells(path, len(header), separator, form, counts):
            yield location, dict(zip(header, cells, strict=True))

    def _is_header(self, cells: Sequence[str], column_names: Container[str]) -> bool:
        columns = [column for cell in cells if (column := tables.match_column(cell, column_names))]
        return len(columns) > 1 or bool(self._named & set(columns))

    def _choose_separator(
        self,
        path: Path,
        first: str,
        column_names: Container[str],
    ) -> str | None:
        """Return the separator of cells: None is any run of blanks."""
        if find_ending(path) == ".csv":
            return tables.find_separator(path)
        if "\t" in first:
            return "\t"
        if (separator := tables.find_separator(path)) in first and self._is_header(
            _split(first, separator), column_names
        ):
            return separator
        return None if self.name == "judgements" else "\t"


class _ListedJudgements(_CollectionTable):
    """Judgements that are lists of relevant documents in a column of the queries."""

    def __init__(self, folder: Path, queries: _CollectionTable, column: str) -> None:
        self._folder = folder
        self._queries = queries
        self._taken = {"doc_id": column}
        self.name = "judgements"
        self.files = queries.files
        self.there = queries.there
        self.topic_fields = TopicFields("")

    def read(self, counts: Counter[str] | None = None) -> Iterator[tuple[str, str, list[Any]]]:
        """Yield (split, place, the query, a document and the grade 1) of each document of a list."""
        for location, query_id, doc_ids in self._queries.read_lists(self._taken["doc_id"]):
            split = self.split(Path(location.rpartition(", ")[0]))
            for doc_id in doc_ids:
                yield split, location, [query_id, doc_id, 1]

    def find_column(self, our: str, wanted: Container[str]) -> str:
        """Return "": other columns have no lists."""
        return ""


def _split(line: str, separator: str | None) -> list[str]:
    if separator == "\t":
        return tables.split_tabs(line).cells
    return [cell.strip().strip('"') for cell in line.split(separator)]


def _open_tables(
    place: Path, columns: Mapping[str, str], files: Mapping[str, Path]
) -> list[_CollectionTable]:
    folder = place if find_files(place, "documents") else place / "data"  # where the hub has them
    opened = list[_CollectionTable]()
    for name in _COLUMNS:
        paths = list_inside(files[name]) if name in files else find_files(folder, name)
        listed = columns.get("doc_id", _RELEVANT)
        if name == "judgements" and not paths and listed in opened[-1].there:
            opened.append(_ListedJudgements(place, opened[-1], listed))
        else:
            opened.append(_CollectionTable(place, name, paths, columns))
    for our, column in columns.items():
        tables_of_column = [table for table in opened if our in _COLUMNS[table.name]]
        if not tables_of_column:
            raise UnknownName(
                "--column", our, {name for names in _COLUMNS.values() for name in names}
            )
        present = set[str]().union(*(table.there for table in tables_of_column))
        if not tables.match_column(column, present):
            raise UnknownName(
                f"column of {place} for {our}", column, {name[:60] for name in present}
            )
    return opened


def list_inside(path: Path) -> list[Path]:
    """Return the files in a folder and below, or the file itself; not files that are hidden or not
    data.
    """
    if not path.is_dir():
        return [path]
    return [
        inside
        for inside in sorted(disk.walk(path))
        if inside.is_file() and not any(map(_ASIDE.search, inside.relative_to(path).parts))
    ]


def find_files(folder: Path, name: str) -> list[Path]:
    """Return the files of the table `name` ("documents", "queries" or "judgements") in a
    folder; [] without any.
    """
    entries = sorted(folder.iterdir()) if folder.is_dir() else []
    for word in _WORDS[name]:
        paths = []
        for entry in entries:
            low = entry.name.lower()
            if _ASIDE.search(entry.name):
                continue
            if entry.is_file() and (low.startswith(word) or f".{word}" in low):
                paths.append(entry)
            elif entry.is_dir() and low in (
                word,
                *(f"{word}{ending}" for ending in (*_ENDINGS, ".json")),
            ):
                paths += list_inside(entry)
        for ending in _ENDINGS if paths else ():
            if chosen := [path for path in paths if find_ending(path) == ending or not ending]:
                return tables.check_parts(sorted(chosen))
    if name == "judgements" and (folder / "data").is_dir():
        inside = list_inside(folder / "data")
        return tables.check_parts(list(filter(_is_default_subset, inside)))
    return []


def _is_default_subset(path: Path) -> bool:
    return bool(_DEFAULT_SUBSET.search(path.name))


def _say_absence(folder: Path, name: str) -> str:
    """Return why a folder has no file of a table, and how to say which it is."""
    inside = chain.from_iterable(folder.glob(f"{word}/*") for word in _WORDS[name])
    named = (path for path in folder.iterdir() if path.name.lower().startswith(_WORDS[name]))
    for path in chain(named, inside):
        if path.is_symlink() and not path.exists():
            return (
                f"{path.relative_to(folder)} is a link to a file that is not there "
                f"({path.readlink()}); fetch that"
            )
    words = f"{' or '.join(_WORDS[name])} (.jsonl, .csv, .parquet, ...)"
    absent = f"no file or folder is called {words}"
    # An archive has a folder of its name, and the hub's cache has snapshots/REVISION.
    for inner in (*sorted(folder.glob("*/")), *sorted(folder.glob("*/*/"))):
        if find_files(inner, name) and not _ASIDE.search(inner.name):
            return f"{absent}; {inner.relative_to(folder)} in it has them: give {inner}"
    entries = [path.name for path in sorted(folder.iterdir()) if not _ASIDE.search(path.name)]
    if not entries:
        return absent
    key = "judgements = { gold" if name == "judgements" else f"files = {{ {name}"
    line = f'{key} = "NAME" }}'
    has = ", ".join(map(tables.abbreviate, entries))
    return f"{absent}; a line `{line}` in its benchmark.toml says which it is: {has:.300}"


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
    has_corpus = any(find_files(path, "documents") for path in (folder, folder / "data"))
    if lacks and (not has_corpus or (folder / "queries+qrels").exists()):
        raise DataError(lacks)
    documents, queries, judgements = _open_tables(folder, {}, {})
    splits = {path: judgements.split(path) for path in judgements.files}
    if test := [path for path, split in splits.items() if split == "test"]:
        judgements.files = test
    elif len(splits) > 1 and "dev" in splits.values():
        raise DataError(
            f"{folder} has judgements of several splits and no test split; leave one of them"
        )
    counts = Counter[str]()
    corpus = documents.open(home, counts)
    texts = _read_queries(queries, counts)
    qrels, _, _ = _read_judgements(judgements, texts, counts)
    if not qrels or (strange := counts["judgements of unknown queries, left out"]):
        raise DataError(
            f"{folder}: {strange if qrels else 'all'} of the {judgements} are not of the {queries}"
        )
    return Collection(corpus, {query_id: texts[query_id] for query_id in qrels}, qrels)
