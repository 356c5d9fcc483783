"""Settings for reading collections: OBLIQ-Bench's layout, TREC's tags, and corpora that are kept
once read.

OBLIQ-Bench: corpus/corpus.jsonl and queries+qrels/queries.jsonl with rows {"_id", "text"}, and
queries+qrels/qrels.tsv with a header line (`query-id corpus-id score`, with hyphens or
underscores). Some tasks have pooled judgements next to gold judgements (qrels_pool.tsv), some a list
of documents that must not be shown (per_query_excluded_ids.json).

TREC: documents are <DOC><DOCNO>...<TEXT>...</DOC>, topics <top><num>...<title>...<desc>...</top>,
closed or not, or <topic number="1">...</topic>; a query's text is the title or query, with
question, description and narrative after it if there are any. Other forms are in
environments/readers/collections.py.

Large corpora are stored under the home, in the form of tools/corpus.py, and open at once. A stored
corpus is named by the content of its source files and by the code that read them. Small corpora are
read again every time.
"""

import hashlib
import html
import inspect
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from environments.base import Grades, Qrels
from environments.readers import document_ids, raw_files
from environments.readers import files as tables
from tools import files as disk
from tools.corpus import FORMAT, Corpus, open_or_store
from tools.errors import DataError, UnknownName
from tools.interrupts import check_interrupts
from tools.number_format import plural
from tools.records import Document

# Characters of documents from which on a corpus is stored: about a quarter of a second of reading
LARGE = 8_000_000
# Nanoseconds after which another change of a file has another time, on every file system
_SETTLED = 2_000_000_000
_DIGESTS = ".digests.json"  # beside the stored corpora

# The document's place, for messages ("FILE, line 7"), and the document.
Placed = tuple[str, Document]
Reader = Callable[[], Iterator[Placed]]


class Contradiction(DataError):
    """An id that comes with two texts; the message lacks advice."""

    def __init__(
        self,
        message: str,
        again: str,
        before: str,
    ) -> None:
        super().__init__(message)
        # The files that have the two texts.
        self.files = (
            again.rpartition(", ")[0],
            before.rpartition(", ")[0],
        )


class Collection(NamedTuple):
    """A collection, read whole."""

    documents: Corpus
    queries: Mapping[str, str]  # query_id -> text, of those with judgements, in the files' order
    qrels: Qrels
    pooled: Qrels | None = None
    excluded: Mapping[str, frozenset[str]] = {}  # query_id -> doc_ids not to be shown
    form: str = (
        ""  # of a user's own: "BEIR", "TREC", "CSV", "a Hugging Face folder" or "ir_datasets"
    )
    splits: Mapping[str, tuple[str, ...]] = {}  # "dev" and "test", where both are judged
    unjudged: frozenset[str] = frozenset()  # queries without a judgement, which are not asked
    said: tuple[str, ...] = ()  # what was recognised, counted and dropped, a sentence each
    warnings: tuple[str, ...] = ()  # what is probably wrong, a sentence each


def open_corpus(
    home: Path,
    files: Sequence[Path],
    read: Reader,
    counts: Counter[str] | None = None,
    how_read: str = "",
) -> Corpus:
    """Open the corpus of the documents that `read()` yields from `files`, in that order, and for
    `how`.

    A document may come again as it was, and is left out; `counts` says how many did, and how many
    have no text. DataError when an id comes with two texts, or when there is no word in all of
    them.
    """
    counts = Counter() if counts is None else counts
    # A folder holds the corpus of the files' newest state alone. Each version of this program has
    # its own folder, so that two of them don't undo each other's work.
    sources = sorted(
        {__file__, str(raw_files.__file__), str(tables.__file__), inspect.getfile(read)}
    )
    code = [how_read, *(disk.sha256(Path(source)) for source in sources)]
    folder = home / "corpora" / _digest([*code, *(str(path.resolve()) for path in files)])
    if not folder.is_dir():
        documents = []
        size = 0
        for document in _check_documents(read, files, counts):
            documents.append(document)
            # Text is counted, because files may be compressed.
            if (size := size + len(document.title) + len(document.text)) >= LARGE:
                break
        else:
            return Corpus(documents)
    stored_folder = folder / _digest(
        {
            "format": FORMAT,
            "code": code,
            "files": hash_files(folder / _DIGESTS, files),
        }
    )
    # The counts of a corpus that is stored.
    noted = stored_folder.with_name(f".{stored_folder.name}.json")

    def check_and_note() -> Iterator[Document]:
        yield from _check_documents(read, files, counts)
        # A home that cannot be written: they are read and counted again next time.
        with suppress(OSError):
            disk.replace(noted, json.dumps(counts), disk.SHARED)

    corpus = open_or_store(stored_folder, check_and_note)
    if not counts:  # it was stored before
        with suppress(OSError, ValueError):
            counts.update(json.loads(noted.read_bytes()))
    return corpus


def hash_files(digests: Path, files: Sequence[Path]) -> list[str]:
    """Return the SHA-256 of each file.

    The file `digests` has those of files with unchanged inode, size and times.
    """
    digest_of = {}
    with suppress(OSError, ValueError, TypeError):
        digest_of = dict(json.loads(digests.read_bytes()))
    hashes = []
    settled = {}
    for path in files:
        s = path.stat()
        name = f"{s.st_dev} {s.st_ino} {s.st_size} {s.st_mtime_ns} {s.st_ctime_ns}"
        hashes.append(digest_of.get(name) or disk.sha256(path))
        # A younger file may still change within the same tick of the clock.
        if time.time_ns() - s.st_ctime_ns > _SETTLED:
            settled[name] = hashes[-1]
    if settled != digest_of:
        with suppress(OSError):  # a home that cannot be written: they are read again next time
            digests.parent.mkdir(parents=True, exist_ok=True)
            disk.replace(digests, json.dumps(settled), disk.SHARED)
    return hashes


def _digest(key: object) -> str:
    return hashlib.blake2b(
        json.dumps(key).encode("utf-8", "surrogatepass"), digest_size=8
    ).hexdigest()


def _check_documents(
    read: Reader, files: Sequence[Path], counts: Counter[str]
) -> Iterator[Document]:
    doc_ids = set()
    has_words = False
    budget = raw_files.max_unpacked_bytes(*files)
    # Id -> locations of its repetitions, with the hashes of their documents.
    repeats = dict[str, list[tuple[str, int]]]()
    counts.clear()  # of an earlier attempt
    for location, document in read():
        check_interrupts()
        if document.doc_id in doc_ids:
            repeats.setdefault(document.doc_id, []).append((location, hash(document)))
            counts["documents that are there again, counted once"] += 1
            continue
        doc_ids.add(document.doc_id)
        if (budget := budget - len(document.title) - len(document.text)) < 0:
            raise raw_files.unpack_limit_error(location)
        has_words = has_words or any(map(str.isalnum, document.title + document.text))
        counts["documents without a text"] += not (document.title.strip() or document.text.strip())
        yield document
    if not has_words:
        raise DataError(f"{files[0]} has no words in it; nothing can be searched")
    for location, document in read() if repeats else ():
        # This is the first document of the id.
        for repeat_location, digest in repeats.pop(document.doc_id, ()):
            if digest != hash(document):
                message = (
                    f"{repeat_location}: the id {document.doc_id!r} was there before with another text, in "
                    f"{location}"
                )
                raise Contradiction(message, repeat_location, location)


def read_obliq(folder: Path, home: Path) -> Collection:
    """Read the task in `folder`. DataError for anything missing or damaged."""
    inside = folder / "queries+qrels"
    corpus_file = tables.find_file(folder / "corpus", "corpus.jsonl")

    def read_documents() -> Iterator[Placed]:
        for location, row in tables.read_objects(corpus_file, "_id", "text"):
            yield (
                location,
                Document(
                    tables.check_id(row["_id"], location), tables.check_text(row["text"], location)
                ),
            )

    documents = open_corpus(home, [corpus_file], read_documents)
    queries_file, qrels_file = (
        tables.find_file(inside, name) for name in ("queries.jsonl", "qrels.tsv")
    )
    queries = {}
    for location, row in tables.read_objects(queries_file, "_id", "text"):
        if (query_id := tables.check_id(row["_id"], location)) in queries:
            raise DataError(f"{location}: the id {query_id!r} was there before")
        queries[query_id] = tables.check_text(row["text"], location)
    if not queries:
        raise DataError(f"{queries_file} has no queries in it")
    gold = _read_qrels(qrels_file, queries)
    pool, masks = (
        tables.find_optional_file(inside, name)
        for name in ("qrels_pool.tsv", "per_query_excluded_ids.json")
    )
    # `environments.validate_environment` sees the headline judgements alone, so the documents of pooled ones are
    # checked here.
    pooled = _read_qrels(pool, queries, documents) if pool else None
    excluded = (
        read_id_lists(masks, queries, "a search would show what it must not") if masks else {}
    )
    if strangers := excluded.keys() - queries.keys():
        raise DataError(
            f"{masks} has an entry for the query {min(strangers)!r}, which queries.jsonl has not"
        )
    return Collection(documents, queries, gold, pooled, excluded)


def read_id_lists(
    path: Path,
    queries: Mapping[str, str],
    lest: str,
    read_id: Callable[[Any, str], str] = tables.check_id,
) -> dict[str, frozenset[str]]:
    """Read an object of lists of document ids.

    DataError if one of `queries` has none, `lest` something happens.
    """
    lists = tables.read_json(path)
    if not isinstance(lists, dict):
        raise DataError(f"{path} is not an object of lists of ids, one a query; fetch it again")
    listed = {}
    for query_id, doc_ids in lists.items():
        location = f"{path}, query {tables.abbreviate(query_id)}"
        if not isinstance(doc_ids, list):
            raise DataError(
                f"{location}: {tables.abbreviate(doc_ids)} where a list of ids is expected; fetch it again"
            )
        listed[query_id] = frozenset(read_id(doc_id, location) for doc_id in doc_ids)
    if unlisted := queries.keys() - listed.keys():
        alike = document_ids.suggest(min(unlisted), listed)
        raise DataError(f"{path} has no entry for query {min(unlisted)!r}; {lest}{alike}")
    return listed


QUERY = ("query-id", "query_id", "qid")
DOCUMENT = ("corpus-id", "corpus_id", "doc_id", "docid", "document_id")
SCORE = ("score", "relevance", "label")


def _read_qrels(path: Path, queries: Container[str], documents: Container[str] = ()) -> Grades:
    qrels: Grades = {}
    for location, row in tables.read_headed(path, (*QUERY, *DOCUMENT, *SCORE)):
        query_id, doc_id, score = (
            tables.pick_column(location, row, *names) for names in (QUERY, DOCUMENT, SCORE)
        )
        grades = qrels.setdefault(tables.check_id(query_id, location), {})
        if tables.check_id(doc_id, location) in grades:
            raise DataError(f"{location}: {query_id!r} and {doc_id!r} are judged twice")
        grades[doc_id] = tables.check_grade(score, location)
        if query_id not in queries:
            raise DataError(f"{location}: the query {query_id!r} is not in queries.jsonl")
        if documents and doc_id not in documents:
            raise DataError(f"{location}: the document {doc_id!r} is not in the corpus")
    if not qrels:
        raise DataError(f"{path} has no judgements in it")
    return qrels


_START = re.compile(r"<top(?:ic)?(?=[\s>])", re.I)
_TOPIC = re.compile(r"<(top(?:ic)?)\b([^<>]*)>(.*?)</\1\s*>(.*)", re.DOTALL | re.I)
_OPEN_TOPIC = re.compile(r"<(top(?:ic)?)\b([^<>]*)>(.*)()", re.DOTALL | re.I)
_END = re.compile(r"</top(?:ic)?\s*>", re.I)
# The names of attributes and of tags that hold a topic's number, the usual one first.
_NUMBERS = ("number", "num", "id", "qid", "topic_id", "topic-id", "query_id", "query-id")
_NUMBER_NAMES = frozenset(_NUMBERS)
_ATTRIBUTE = re.compile(r"(?<![\w-])([\w-]+)\s*=\s*(?:\"([^\"]*)\"|'([^']*)'|([^\"'>\s]+))")
# A field ends where the next tag begins; "p < 0.05" is no tag.
_TAG = re.compile(r"(</?[a-z][\w-]*(?:\s[^<>]*)?/?>)", re.I)
_LEADING = ("title", "query")  # the query begins with these
_FIELDS = (*_LEADING, "desc", "narr", "question", "description", "narrative")
_LABEL = re.compile(r"^\s*(number|topic|title|description|narrative)\s*:\s*", re.I)
_PREFIX = re.compile(r"(</?)[a-z][\w.-]*:(?=top(?:ic)?[\s>])", re.I)
_ENTITY = re.compile(r"<!ENTITY\s+([\w.-]+)\s+(?:\"([^\"]*)\"|'([^']*)')\s*>", re.I)
_REFERENCE = re.compile(r"&[\w.-]+;")
_SECTION = re.compile(r"<!--|<!\[CDATA\[|(?i:<!DOCTYPE)[^<>\[]*[>\[]")
_CDATA = "<![CDATA["
_SECTION_ENDS = {"<!--": re.compile("-->"), _CDATA: re.compile(r"\]\]>")}
_SUBSET_END = re.compile(r"\]\s*>")  # of the declarations in a DOCTYPE
# What may stand between topics: the declaration, and the tags of a root element.
_BETWEEN = re.compile(r"<(?!/top(?:ic)?\s*>)[^<>]*>|\s+", re.I)

_DOC = re.compile(r"\s*<doc>(.*)</doc>\s*", re.DOTALL | re.I)
_DOC_END = re.compile(r"</doc\s*>", re.I)
_DOC_FIELD = re.compile(r"<((?ai:docno|title|headline|text))\b[^<>]*>")
_DOC_FIELD_ENDS = {
    name: re.compile(rf"</(?ai:{name})\s*>") for name in ("docno", "title", "headline", "text")
}


def read_trec_documents(path: Path) -> tables.Rows:
    """Yield (place, row) of each <DOC> of a file: "id", "title", and its <TEXT>, or all of it
    if it has none.
    """
    held = list[str]()
    for number, line in raw_files.read_lines(path, whole=True):
        *ended, remainder = _DOC_END.split(line.rstrip("\r\n"))
        for document_text in ended:
            location = f"{path}, the document to line {number}"
            yield location, _parse_document("\n".join([*held, f"{document_text}</DOC>"]), location)
            held.clear()
        if held or remainder.strip():
            held.append(remainder)
    if "".join(held).strip():
        raise DataError(f"{path}: its last document has no </DOC>; was the file broken off?")


def _parse_document(text: str, location: str) -> dict[str, str]:
    match = _DOC.fullmatch(text)
    fields = {
        "docno": [""],
        "title": list[str](),
        "text": list[str](),
    }
    for field in _find_fields(text):
        name = field.name.replace("headline", "title")
        fields[name].append(html.unescape(_TAG.sub(" ", field.value)).strip())
    if not match or len(fields["docno"]) != 2:
        form = "<DOC><DOCNO>ID</DOCNO><TEXT>...</TEXT></DOC>"
        raise DataError(
            f"{location}: it is not one <DOC> with one <DOCNO>, or something stands before it; write "
            f"{form}"
        )
    texts = fields["text"]
    if not texts:
        outside = []
        end = 0
        for field in _find_fields(match[1]):
            outside.append(match[1][end : field.start])
            end = field.end
        outside.append(match[1][end:])
        texts = [html.unescape(_TAG.sub(" ", "".join(outside))).strip()]
    return {
        "id": fields["docno"][1],
        "title": " ".join(fields["title"]),
        "text": "\n".join(texts),
    }


class _Field(NamedTuple):
    """A field of a document in TREC's tags."""

    name: str
    value: str
    start: int  # of its first tag
    end: int  # behind its last tag


def _find_fields(text: str) -> Iterator[_Field]:
    """Yield the closed fields of a document, in one pass: the end of an open field is looked
    for once.
    """
    at = 0
    unclosed = set()
    while first := _DOC_FIELD.search(text, at):
        name = first[1].lower()
        at = first.end()
        if name in unclosed:
            continue
        last = _DOC_FIELD_ENDS[name].search(text, at)
        if last:
            yield _Field(name, text[at : last.start()], first.start(), last.end())
            at = last.end()
        else:
            unclosed.add(name)  # no later field of that name is closed either


class TopicFields:
    """The tags of topics whose texts make the query, and those that are left out."""

    def __init__(self, wanted: str = "") -> None:
        self.wanted = wanted.lower()  # the tag whose text alone is the query; "": all of _FIELDS
        self.taken = dict[str, None]()
        self.left_out = dict[str, None]()

    def __str__(self) -> str:
        left_out = f"; left out: {', '.join(self.left_out)}" if self.left_out else ""
        return f"the query is {', '.join(self.taken)}{left_out}"

    def join(self, fields: Sequence[tuple[str, str]], location: str) -> str:
        """Return the text of the query that is made of (tag, text) pairs.

        DataError if none is of the query.
        """
        wanted = (self.wanted,) if self.wanted else _FIELDS
        chosen = []
        for field in fields:
            if field[0] in wanted:
                chosen.append(field)
            else:
                self.left_out[field[0]] = None
        if len(chosen) > 1:
            chosen.sort(key=lambda field: field[0] not in _LEADING)
        for tag, _ in chosen:
            self.taken[tag] = None
        if text := " ".join(" ".join(text for _, text in chosen).split()):
            return tables.check_text(text, location)
        if chosen:
            raise DataError(f"{location}: <{chosen[0][0]}> has no text in it")
        if self.wanted and not self.taken:
            raise UnknownName(f"tag of {location}", self.wanted, {tag for tag, _ in fields})
        tags = ", ".join(f"<{tag}>" for tag, _ in fields) or "none"
        lacks = f"{location} has no text in <{'>, <'.join(wanted)}>"
        raise DataError(
            f"{lacks}; its tags are {tags:.200}; --column query=TAG says which is the query"
        )


def read_topics(path: Path, of_query: TopicFields | None = None) -> tables.Rows:
    """Yield (place, row) of each <top> or <topic> of a file: "query_id", "query", and the
    text of each tag.
    """
    of_query = of_query or TopicFields()
    text = "\n".join(line for _, line in raw_files.read_lines(path))
    entities = {}
    if "<!" in text:
        entities = {f"&{name};": first or second for name, first, second in _ENTITY.findall(text)}
        text = _resolve_sections(text)
    text = _strip_prefixes(text)
    if entities:
        text = _replace_entities(text, entities, path)
    starts = [start.start() for start in _START.finditer(text)]
    before = text[: starts[0]] if starts else text
    pieces = [text[start:end] for start, end in pairwise([*starts, len(text)])]
    form = _TOPIC if _END.search(text) else _OPEN_TOPIC  # a topic may end where the next begins
    between = [before]
    for count, piece in enumerate(pieces, start=1):
        location = f"{path}, topic {count}"
        if not (match := form.fullmatch(piece)):
            raise DataError(f"{location} has no end; was the file broken off?")
        tag, attributes, inside, behind = match.groups()
        between.append(behind)
        yield (
            location,
            _parse_topic(attributes, inside, location, of_query, of_xml=tag.lower() == "topic"),
        )
    if not pieces:
        raise DataError(
            f"{path} has no <top> or <topic> in it; write each query as <topic "
            f"number=NUMBER>...</topic>"
        )
    if stray_text := _BETWEEN.sub("", "".join(between)):
        raise DataError(f"{path}: {tables.abbreviate(stray_text)} stands outside of any topic")


def _resolve_sections(text: str) -> str:
    """Return XML without its comments and DOCTYPE, and with the text of CDATA sections escaped.

    A section without an end stays as it is. The end of each kind is looked for once behind a given
    place, so that the time grows with the length of the text alone.
    """
    lines = []
    unclosed = set()
    written = at = 0
    while first := _SECTION.search(text, at):
        at = first.end()
        end_mark = _SECTION_ENDS.get(first[0], _SUBSET_END)
        if end_mark in unclosed:
            continue
        last = first if first[0].endswith(">") else end_mark.search(text, at)
        if last is None:
            unclosed.add(end_mark)
            continue
        lines.append(text[written : first.start()])
        lines.append(html.escape(text[at : last.start()]) if first[0] == _CDATA else " ")
        written = at = last.end()
    return "".join([*lines, text[written:]])


def _replace_entities(text: str, entities: Mapping[str, str], path: Path) -> str:
    """Return the text with each entity replaced once; the text of an entity is not looked at again.

    DataError if the text grows as it does in no topics: a long entity that is referred to again
    and again.
    """
    values = []
    written = 0
    budget = raw_files.max_unpacked_bytes(path)
    for reference in _REFERENCE.finditer(text):
        if (value := entities.get(reference[0])) is None:
            continue
        if (budget := budget - len(value)) < 0:
            raise raw_files.unpack_limit_error(f"{path}, {tables.abbreviate(reference[0])}")
        values.append(text[written : reference.start()])
        values.append(value)
        written = reference.end()
    return "".join([*values, text[written:]])


def _strip_prefixes(text: str) -> str:
    """Return XML without the prefixes of namespaces in its tags, if its topics have one."""
    if ":top" not in text.lower() or not _PREFIX.search(text):
        return text
    return re.sub(r"(</?)[A-Za-z][\w.-]*:(?=[A-Za-z])", r"\1", text)


def _parse_topic(
    attributes: str,
    inside: str,
    location: str,
    of_query: TopicFields,
    *,
    of_xml: bool,
) -> dict[str, str]:
    outside, *tagged = _TAG.split(inside)
    fields = []
    if of_xml and not tagged:  # the query stands in the element itself
        fields = [("title", html.unescape(outside))]
        outside = ""
    for tag, value in zip(tagged[::2], tagged[1::2], strict=True):
        if tag.startswith("</") or tag.endswith("/>"):
            outside += value
        else:
            fields.append(
                (tag.strip("<>").split()[0].lower(), _LABEL.sub("", html.unescape(value)).strip())
            )
    if outside.strip():
        raise DataError(
            f"{location}: {tables.abbreviate(outside.strip())} stands outside of any field"
        )
    numbers = _find_numbers(attributes, fields)
    if len(numbers) != 1:
        raise DataError(f"{location} has {plural(len(numbers), 'number')} where one is expected")
    texts = [(name, text) for name, text in fields if name not in _NUMBER_NAMES]
    return {
        **dict(texts),
        "query_id": numbers[0].strip(),
        "query": of_query.join(texts, location),
    }


def _find_numbers(attributes: str, fields: Sequence[tuple[str, str]]) -> list[str]:
    """Return the number of a topic from its attributes, or else from its tags, by the usual name."""
    of_attributes = [
        (name.lower(), html.unescape(a or b or c))
        for name, a, b, c in (_ATTRIBUTE.findall(attributes) if attributes else ())
    ]
    for pairs in (of_attributes, fields):
        names = _NUMBER_NAMES.intersection([name for name, _ in pairs])
        if names:
            usual = min(names, key=_NUMBERS.index)
            return [value for name, value in pairs if name == usual]
    return []
