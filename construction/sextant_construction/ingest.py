"""From files of people to documents: read, cleaned, and cut into pieces. Nothing is sent
anywhere.

A document is in memory at a time; of all of them, ids, groups and private texts. The result is kept in a folder,
and opens at once while the files, the sections of the recipe and this code are the same.
"""

import heapq
import json
import math
import re
import shutil
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, TextIO

from pydantic import PositiveInt

from sextant import environments
from sextant.environments.base import Environment
from sextant.environments.chunking import LIMIT, bert_tokens, blocks, chunks
from sextant.environments.readers import collections, corpora
from sextant.environments.readers import files as tables
from sextant.tools.code_digest import collect_sources
from sextant.tools.corpus import Corpus, StoredCorpus, digest_text, store
from sextant.tools.errors import DataError, UsageError
from sextant.tools.platform import files as disk
from sextant.tools.platform.interrupts import check_interrupts
from sextant.tools.platform.number_format import plural
from sextant.tools.records import Document
from sextant.tools.text import message_text
from sextant_construction import documents as sources
from sextant_construction import text_cleaning as cleaning
from sextant_construction.documents.pages import need
from sextant_construction.documents.readers import Limits
from sextant_construction.folders import Listing
from sextant_construction.row_joining import JoinColumns, join_rows
from sextant_construction.text_cleaning import CleanSettings, clean_text, compile_pattern
from sextant_construction.types import BuildSource

Cut = Literal["", "turns", "chunks", "sections"]
TASK = "task:"
DROPPED = (
    "dropped.jsonl"  # beside the documents: a line [id, reason, evidence] for each that is left out
)
_CONVERSATIONS = (
    "conversation",
    "conversations",
    "messages",
)  # columns that hold lists of messages
_SPEAKER = (
    r"^(?:\[\w+\]:|(?:Mr|Ms|Mrs|Miss|Dr|Senator|Representative|(?:The )?Chair(?:man|woman)?)\b\.? "
    r"?[^.:\n]{0,40}[.:])"
)


@dataclass(frozen=True)
class CorpusSettings:
    """Where the documents are, and which of them are taken."""

    path: Annotated[str, "file, folder of files, or task (task:obliq/twitter)"] = ""
    data: Annotated[str, "of a task: mini, full or a folder; empty: full where that is fetched"] = (
        ""
    )
    id: Annotated[str, "column of the id; empty: a usual one, or else a digest of the text"] = ""
    text: Annotated[
        str, "column of the text, or of a list of {role, content}; empty: a usual one"
    ] = ""
    title: Annotated[str, "column of the title, where there is one"] = "title"
    group: Annotated[
        str, "column of what a document is part of: its post, debate, record or author"
    ] = ""
    join: Annotated[
        str, "column whose rows of one value become a document; empty: a row is a document"
    ] = ""
    headings: Annotated[
        Sequence[str], "join: columns of the headings above a row's text, from the top"
    ] = ()
    heading_mark: Annotated[
        str, "join: what stands between headings in a column; empty: a column has one"
    ] = ""
    private: Annotated[
        Sequence[str], "columns that are kept beside the build, and never released"
    ] = ()
    record: Annotated[
        str, "of XML: element that is a document; empty: a file is one (of a wiki's dump, a page)"
    ] = ""
    language: Annotated[str, "language of the documents to take, by ISO 639-1 (en); empty: any"] = (
        ""
    )
    sample: Annotated[int, "documents to take, by a hash of their ids; 0: all"] = 0
    file_seconds: Annotated[
        PositiveInt,
        "of HTML, XML, wikitext, PDF: seconds of a core that a document may take to read",
    ] = 60
    file_memory: Annotated[
        PositiveInt, "MiB of memory that it may take; over a limit, it is left out and named"
    ] = 2048
    file_text: Annotated[PositiveInt, "MiB of text that it may have"] = 64
    follow_links: Annotated[
        bool, "whether links out of the folder are read, and what they lead to is released"
    ] = False


@dataclass(frozen=True)
class CutSettings:
    """How documents are cut into the pieces that are searched; a document's pieces have it as their parent."""

    by: Annotated[
        Cut, "turns (of speakers), chunks, sections (of Markdown); empty: they stay whole"
    ] = ""
    speaker: Annotated[str, "turns: regular expression of what begins one"] = _SPEAKER
    tokens: Annotated[
        int, "chunks: BERT tokens, headings included, of one that is not a single block"
    ] = LIMIT
    min_chars: Annotated[
        int, "characters that a piece, or a whole document, has at least; others are left out"
    ] = 1
    max_chars: Annotated[int, "characters that it has at most; 0: any number"] = 0


def load_source(task: str, data: str, split: str = "all") -> Environment:
    """Return a task that a build is made of, in ids of its release, which files and patterns name.

    `data` as in the recipe. Its `opaque_ids` say whether programs see others.
    """
    environment = environments.load(task, data or None, split)
    released = environment.released
    return replace(released, opaque_ids=True) if released else environment


def ingest(
    corpus: CorpusSettings, clean: CleanSettings, cut: CutSettings, home: Path
) -> BuildSource:
    """Return the documents that `corpus` names, cleaned and cut.

    They are kept in `home`, a folder for this corpus of this build alone: outdated results there are removed.
    UsageError for a value that no section can have, DataError for data that is missing or damaged.
    """
    home.mkdir(parents=True, exist_ok=True)
    job = _Ingestion(corpus, clean, cut)
    made_of = [
        asdict(corpus),
        asdict(clean),
        asdict(cut),
        job.identify(home),
        collect_sources([__name__]).digest(),
    ]
    path = home / digest_id(disk.dumps(made_of))
    if not path.is_dir():
        with disk.temporary_sibling(path, disk.PRIVATE, folder=True) as draft:
            job.write(draft)
            draft.rename(path)
        for outdated in home.glob("[!.]*"):
            if outdated != path:
                shutil.rmtree(outdated, ignore_errors=True)
    documents = StoredCorpus(path / "documents")
    known = disk.loads((path / "known.json").read_bytes())
    texts = known.pop("private")
    private = {}
    for document in documents.stream() if texts else ():
        private[document.doc_id] = texts[document.parent or document.doc_id]
    return BuildSource(documents, private=private, dropped=path / DROPPED, **known)


def digest_id(doc_id: str) -> str:
    """Return the id that a document, or a group, has if `hash_ids` is set: 16 hex digits."""
    return digest_text(doc_id).hex()[:16]


def name_piece(document: Document, number: int, separator: str) -> str:
    """Return the id of a piece of a document: "ID:0"; of a passage, whose parent the id has to go on naming, "ID.0"."""
    return f"{document.doc_id}{_joint(separator) if document.parent else separator}{number}"


def origin_of(doc_id: str, cut: CutSettings, separator: str) -> str:
    """Return the id of the document, or passage, that a document of a build was cut from; its own if it was not cut."""
    if not cut.by:
        return doc_id
    ends = rf"(?:{re.escape(separator)}|{re.escape(_joint(separator))})\d+"
    return re.sub(rf"(?s)(?<=.){ends}\Z", "", doc_id)


def _joint(separator: str) -> str:
    return "." if "." not in separator else "/"


# A document as it was read: its location, for messages; the document, whose id is "" if none is
# given; its group; its private texts, by column
CorpusRow = tuple[str, Document, str, dict[str, str]]


class _Ingestion:
    """A reading of a corpus: its rows, and the facts about them so far."""

    def __init__(self, corpus: CorpusSettings, clean: CleanSettings, cut: CutSettings) -> None:
        self.corpus = corpus
        self.clean = clean
        self.cut = cut
        self.counts = Counter[str]()
        self.groups = dict[str, str]()
        self.private = dict[str, dict[str, str]]()  # by the ids of whole documents
        self.findings = cleaning.TextWarnings()
        self._dropped: TextIO | None = None  # once the folder is there
        self.classify = need("py3langid", "languages").classify if corpus.language else None
        self.task: Environment | None = None
        self.root = Path()
        self.files = Listing([])
        self.separator = ":"
        if corpus.path.startswith(TASK):
            self.task = load_source(corpus.path.removeprefix(TASK), corpus.data)
            # Where a task judges parents of passages, ids go on naming these in the task's own way.
            if self.task.max_p and not clean.hash_ids:
                self.separator = self.task.separator
        else:
            self.root = disk.expand_user_path(corpus.path)
            self.files = sources.list_files(self.root, follow_links=corpus.follow_links)

    def identify(self, home: Path) -> list[str]:
        """Return the contents of the corpus, as digests."""
        if self.task:
            return [self.task.documents.fingerprint]
        return [
            *(path.relative_to(self.root).as_posix() for path in self.files.files),
            *map(disk.dumps, self.files.left_out),
            *corpora.hash_files(home / ".digests.json", self.files.files),
        ]

    def write(self, folder: Path) -> None:
        """Write the folder `documents`, known.json, and dropped.jsonl."""
        raw = folder / "raw"
        with (folder / DROPPED).open("w", encoding="utf-8") as self._dropped:
            for entry in self.files.left_out:
                self._leave(*entry)
            store(self._read(), raw)
            read = StoredCorpus(raw)
            chosen = heapq.nsmallest(
                self.corpus.sample or len(read),
                read,
                key=lambda doc_id: (digest_id(doc_id), doc_id),
            )
            store(self._cut(read, {*chosen}), folder / "documents")
            shutil.rmtree(raw)
        documents = StoredCorpus(folder / "documents")
        links = sources.say_links(self.files.left_out)
        warnings = list(filter(None, [links, *self.findings.say()]))
        if not documents:
            reason = f"no document of {self.corpus.path} is left: {json.dumps(self.counts)}"
            raise DataError("; ".join([reason, *warnings]))
        groups = {doc_id: group for doc_id, group in self.groups.items() if doc_id in documents}
        facts = {
            "group": groups,
            "private": self.private,
            "counts": self.counts,
            "twins": cleaning.find_duplicates(documents, self.clean.near),
            "warnings": warnings,
            "separator": self.separator,
            "opaque_ids": bool(self.task and self.task.opaque_ids),
        }
        (folder / "known.json").write_text(disk.dumps(facts), encoding="utf-8")

    def _leave(self, name: str, reason: str, evidence: str = "") -> None:
        """Note an item that is left out: a line of dropped.jsonl."""
        self.counts[reason] += 1
        assert self._dropped
        self._dropped.write(disk.dumps([name, reason, evidence]) + "\n")

    def _leave_file(self, name: str, reason: str, evidence: str) -> None:
        """Note a file that could not be read, which a person is told as well."""
        self._leave(name, reason, evidence)
        self.findings.add(reason, 1, f"{name} ({evidence})")

    def _read(self) -> Iterator[Document]:
        """Yield the documents that the filters let through."""
        ids = Counter[str]()
        digests = dict[str, bytes]()  # of the texts that came with ids
        rows = self._task_rows(self.task) if self.task else self._file_rows()
        for location, document, group, private in rows:
            check_interrupts()
            released_text = f"{document.title}\n{document.text}"
            doc_id = document.doc_id or digest_id(document.text)
            ids[doc_id] += 1
            reason = self._refuse(document.text)
            if not document.doc_id and ids[doc_id] > 1:
                doc_id = f"{doc_id}-{ids[doc_id]}"
            elif document.doc_id:
                digest = digest_text(released_text)
                if digests.setdefault(doc_id, digest) != digest:
                    raise DataError(
                        f"{location}: the id {doc_id!r} was there before, with another text; mend one "
                        f"of them, or name another column of ids as corpus.id"
                    )
                reason = "documents that are there again" if ids[doc_id] > 1 else reason
            parent = document.parent
            if self.clean.hash_ids:
                doc_id = digest_id(doc_id)
                group = group and digest_id(group)
            if reason:
                self._leave(doc_id, reason)
                continue
            if self.clean.hash_ids and parent:
                parent = digest_id(parent)
                doc_id = f"{parent}:{doc_id}"
            if group:
                self.groups[doc_id] = group
            if private:
                self.private[doc_id] = private
                repeated = sum(len(text) > 3 and text in released_text for text in private.values())
                self.findings.add("private texts that also stand in the text", repeated, doc_id)
            yield replace(document, doc_id=doc_id, parent=parent)

    def _task_rows(self, task: Environment) -> Iterator[CorpusRow]:
        judgements = task.judgements[task.headline]
        # Passages that are judged themselves are documents like others: their pieces have them
        # as parents.
        unit_of = judgements.unit_of if task.max_p and judgements.unit_of else str
        for original in task.documents.stream():
            parent = unit_of(original.doc_id)
            document = replace(original, parent="" if parent == original.doc_id else parent)
            yield f"{self.corpus.path}, {original.doc_id}", document, "", {}

    def _file_rows(self) -> Iterator[CorpusRow]:
        names = self.corpus
        if released := {names.text, names.title} & {*names.private} - {""}:
            raise UsageError(
                f"private: {min(released)!r} is the text or the title, which are released"
            )
        limits = Limits(names.file_seconds, names.file_memory, names.file_text)
        rows = sources.read(
            self.root,
            self.files.files,
            names.record,
            limits,
            self._leave_file,
        )
        if names.join:
            columns = JoinColumns(
                names.id or collections.IDS[0],
                names.join,
                names.text or collections.TEXTS[0],
                names.title or "title",
                names.headings,
                names.heading_mark,
            )
            rows = join_rows(rows, columns)
        for location, row in rows:
            yield self._parse(location, row)

    def _parse(self, location: str, row: dict[str, Any]) -> CorpusRow:
        """Return a row of a file by the columns that the recipe names, or the usual columns."""
        names = self.corpus

        def read_text(*columns: str) -> str:
            return _write_text(tables.pick_column(location, row, *columns), location)

        usual = [column for column in collections.IDS if column in row]
        id_columns = [names.id] if names.id else usual
        doc_id = ""
        if id_columns:
            doc_id = tables.read_id(tables.pick_column(location, row, *id_columns), location)
        text_columns = (names.text,) if names.text else (*collections.TEXTS, *_CONVERSATIONS)
        text = read_text(*text_columns)
        title = tables.check_text(
            row.get(names.title),
            location,
            names.title,
            optional=True,
        )
        group = read_text(names.group) if names.group else ""
        private = {column: read_text(column) for column in names.private}
        return location, Document(doc_id, text, title), group, private

    def _refuse(self, text: str) -> str:
        """Return the reason to leave a document out; "" if it stays."""
        if not text.strip():
            return "documents without a text"
        if self.classify and self.classify(text[:2000])[0] != self.corpus.language:
            return f"documents in another language than {self.corpus.language}"
        return ""

    def _cut(self, read: Corpus, chosen: Collection[str]) -> Iterator[Document]:
        """Yield the chosen documents, cleaned, or the pieces that they are cut into."""
        most = self.cut.max_chars or math.inf
        for document in read.stream():
            check_interrupts()
            doc_id = document.doc_id
            if doc_id not in chosen:
                self._leave(doc_id, "documents outside the sample")
                continue
            text = clean_text(document.text, self.clean)
            title = clean_text(document.title, self.clean)
            pieces = [replace(document, text=text, title=title)]
            if self.cut.by and text:
                parent = document.parent or doc_id
                pieces = [
                    Document(name_piece(document, number, self.separator), piece, title, parent)
                    for number, piece in enumerate(cut_text(text, self.cut))
                ]
                group = self.groups.pop(doc_id, parent)
                self.groups |= dict.fromkeys((piece.doc_id for piece in pieces), group)
            for piece in pieces:
                if max(1, self.cut.min_chars) <= len(piece.text) <= most:
                    self.findings.look_at(piece)
                    yield piece
                else:
                    self._leave(
                        piece.doc_id,
                        "texts that are too short or too long",
                        plural(len(piece.text), "character"),
                    )


def _write_text(value: Any, location: str) -> str:
    """Return a cell as text; of a list of messages, a line "[Role]: text" each."""
    if isinstance(value, list) and value and all(isinstance(message, dict) for message in value):
        lines = []
        try:
            for message in value:
                lines.append(f"[{message['role'].title()}]: {message_text(message)}")
        except (AttributeError, KeyError, TypeError):
            raise DataError(
                f"{location}: not every message of the conversation is {{role, content}}"
            ) from None
        value = "\n".join(lines)
    elif value is not None and not isinstance(value, str):
        value = disk.dumps(value)
    return tables.check_text(value, location, optional=True)


def sections(markdown: str, levels: int = 3) -> list[str]:
    """Return the parts of `markdown` between changes of its first `levels` heading levels.

    Each is under its headings.
    """
    texts_of_sections = list[list[str]]()
    last_headings = None
    for block in blocks(markdown):
        headings = [heading for heading in block.path if _level(heading) <= levels]
        if texts_of_sections and headings == last_headings:
            texts_of_sections[-1] += [*block.fresh, block.text]
        else:
            texts_of_sections.append([*block.path, block.text])
        last_headings = headings
    return ["\n\n".join(texts) for texts in texts_of_sections]


def _level(heading: str) -> int:
    return len(heading) - len(heading.lstrip("#"))


def cut_text(text: str, cut: CutSettings) -> list[str]:
    """Return the pieces of a document, in order; none is empty."""
    if cut.by == "chunks":
        return chunks(text, bert_tokens(), cut.tokens)
    if cut.by == "sections":
        return sections(text)
    matches = compile_pattern(cut.speaker).finditer(text)
    starts = [0, *(match.start() for match in matches), len(text)]
    pieces = [text[start:end].strip() for start, end in pairwise(starts)]
    return list(filter(None, pieces))
