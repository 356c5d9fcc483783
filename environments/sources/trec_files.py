"""TREC's forms: a topics file (SGML or XML), a qrels file of four columns, and the documents as JSON Lines.

A folder has topics.txt or topics.xml, qrels.txt, and corpus.jsonl with {"id" or "_id" or "docno", "title", "text"}.
Topics are <top><num>...<title>...<desc>...</top>, closed or not, or <topic number="1">...</topic>; a query's text is
the title, with the description and the narrative after it where there are any.
"""

import html
import re
from collections.abc import Iterator
from pathlib import Path

from environments.sources import checks, tables
from environments.sources.collection import Collection, Placed, keep_judged, open_corpus
from tools.errors import DataError
from tools.records import Document

_START = re.compile(r"(?=<top>|<topic\b)", re.I)
_TOPIC = re.compile(r"<(top)>(.*?)</top>(.*)|<topic\b([^<>]*)>(.*?)</topic>(.*)", re.DOTALL | re.I)
_NUMBER = re.compile(r"\bnumber\s*=\s*[\"']?([^\"'>\s]+)", re.I)
# A field ends where the next tag begins; "p < 0.05" is no tag.
_TAG = re.compile(r"(</?[a-z][\w-]*(?:\s[^<>]*)?>)", re.I)
_FIELDS = ("num", "title", "desc", "narr", "question", "description", "narrative")
_LABEL = re.compile(r"^\s*(number|topic|title|description|narrative)\s*:\s*", re.I)
# What may stand between topics: the declaration, comments, and the tags of a root element.
_BETWEEN = re.compile(r"<(?!/top(?:ic)?\s*>)[^<>]*>|\s+", re.I)


def is_one(folder: Path) -> bool:
    """Whether `folder` looks like this layout."""
    return any((folder / name).is_file() for name in ("topics.txt", "topics.xml"))


def read(folder: Path, home: Path) -> Collection:
    """The data set in `folder`. DataError for anything missing or damaged."""
    topics = next(path for name in ("topics.txt", "topics.xml") if (path := folder / name).is_file())
    corpus_files = tables.find(folder, "corpus")
    documents = open_corpus(home, corpus_files, lambda: _documents(corpus_files))
    qrels_file = tables.find_file(folder, "qrels.txt")
    qrels: dict[str, dict[str, float]] = {}
    for where, (topic, _, doc_id, score) in tables.read_cells(qrels_file, 4, None, ": topic, 0, document, grade"):
        checks.add_judgement(qrels, topic, doc_id, score, where)
    return Collection(documents, keep_judged(_topics(topics), qrels, qrels_file, str(topics)), qrels)


def _documents(files: list[Path]) -> Iterator[Placed]:
    for where, row in tables.read_rows(files):
        doc_id = checks.check_id(tables.pick_column(where, row, "id", "_id", "docno", "docid", "doc_id"), where)
        text = checks.check_text(tables.pick_column(where, row, "text", "contents", "body"), where)
        yield where, Document(doc_id, text, checks.check_optional_text(row.get("title"), where, "title"))


def _topics(path: Path) -> dict[str, str]:
    before, *pieces = _START.split("\n".join(line for _, line in tables.read_lines(path)))
    topics: dict[str, str] = {}
    between = [before]
    for count, piece in enumerate(pieces, start=1):
        where = f"{path}, topic {count}"
        match = _TOPIC.fullmatch(piece)
        if not match:
            raise DataError(f"{where} has no end; was the file broken off?")
        top, inside, after, attributes, content, behind = match.groups()
        between.append(after if top else behind)
        number, text = _topic(attributes or "", inside if top else content, where, of_xml=not top)
        if number in topics:
            raise DataError(f"{path}: topic {number!r} is there twice")
        topics[number] = text
    if not topics:
        raise DataError(f"{path} has no <top> or <topic> in it")
    if rest := _BETWEEN.sub("", "".join(between)):
        raise DataError(f"{path}: {checks.brief(rest)} stands outside of any topic")
    return topics


def _topic(attributes: str, inside: str, where: str, *, of_xml: bool) -> tuple[str, str]:
    """(number, text) of one topic."""
    before, *rest = _TAG.split(inside)
    tagged = [
        (tag.strip("</>").split()[0].lower(), tag, value) for tag, value in zip(rest[::2], rest[1::2], strict=True)
    ]
    fields = [(name, _LABEL.sub("", html.unescape(value))) for name, tag, value in tagged if not tag.startswith("</")]
    outside = "".join([before, *(value for _, tag, value in tagged if tag.startswith("</"))]).strip()
    if of_xml and not tagged:  # the query stands in the element itself
        fields, outside = [("title", html.unescape(before))], ""
    if outside:
        raise DataError(f"{where}: {checks.brief(outside)} stands outside of any field")
    numbers = _NUMBER.findall(attributes) or [value for name, value in fields if name == "num"]
    if len(numbers) != 1:
        raise DataError(f"{where} has {len(numbers)} numbers where one is expected")
    parts = [value for name, value in fields if name in _FIELDS and name != "num"]
    text = checks.check_text(" ".join(" ".join(parts).split()), where)
    if not text:
        raise DataError(f"{where} has neither a title nor a description")
    return checks.check_id(numbers[0].strip(), where), text
