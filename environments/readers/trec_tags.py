"""TREC's forms: documents as <DOC><DOCNO>...<TEXT>...</DOC>, topics as <top><num>...<title>...,
closed or not, or as XML: <topic number="1">...</topic>, and judgements in four columns.

A row has the text of each tag under the tag's name, in small letters, so that what is not used can
be counted. COLUMNS has the tags that make a column of ours.
"""

import html
import re
from collections.abc import Callable, Iterator
from itertools import chain, pairwise
from pathlib import Path
from xml.etree import ElementTree

from sextant.environments.readers import files as tables
from sextant.environments.readers import raw_files
from sextant.tools.errors import DataError

# Tags of newswire that hold a headline or a text, as Anserini (TrecCollection) and Terrier index
# them on TREC's disks 1 to 5. FBIS has <TI> in <H3>.
TITLES = (
    "title",
    "headline",
    "head",
    "hl",
    "ttl",
    "h3",
    "ti",
)
TEXTS = (
    "lp",
    "leadpara",
    "summary",
    "text",
)
# The query is made of these, in this order; "text" is what stands in no tag.
QUERIES = (
    "title",
    "query",
    "text",
    "question",
    "desc",
    "description",
    "narr",
    "narrative",
)
# The tags of a column of ours, which are joined.
COLUMNS: dict[str, dict[str, tuple[str, ...]]] = {
    "documents": {"title": TITLES, "text": TEXTS},
    "queries": {"query": QUERIES},
}
OUTSIDE = "text outside of tags"

_DOC = re.compile(r"\s*<doc>(.*)</doc>\s*", re.DOTALL | re.I)
_DOC_END = re.compile(r"</doc\s*>", re.I)
# "p < 0.05" is no tag.
_TAG = re.compile(r"<(/?)([a-z][\w.-]*)(?:\s[^<>]*)?/?>", re.I)
_TOP = re.compile(r"<top>", re.I)
_TOP_END = re.compile(r"</top\s*>", re.I)
_XML_TOPIC = re.compile(r"<(?:[\w.-]+:)?topic[\s>]", re.I)
_LABEL = re.compile(r"^\s*(number|topic|title|description|narrative)\s*:\s*", re.I)
# Nobody reads the second column, the iteration.
_QREL = re.compile(r"\s*(?P<query_id>\S+)\s+\S+\s+(?P<doc_id>\S+)\s+(?P<grade>-?[\d.]+)\s*")


def find_reader(path: Path, table: str) -> Callable[[Path], tables.Rows] | None:
    """Return the reader of a file that begins as TREC's `table` does; None if it does not."""
    if raw_files.find_ending(path) == tables.PARQUET:
        return None
    first = next(raw_files.read_lines(path), (0, ""))[1]
    if table == "judgements":
        return read_qrels if _QREL.fullmatch(first) else None
    readers = {"documents": read_documents, "queries": read_topics}
    return readers.get(table) if first.lstrip().startswith("<") else None


def read_qrels(path: Path) -> tables.Rows:
    """Yield (place, judgement) of each line of four columns."""
    for number, text in raw_files.read_lines(path):
        location = f"{path}, line {number}"
        match = _QREL.fullmatch(text)
        if not match:
            raise DataError(f"{location}: not four columns (query, iteration, document, grade)")
        yield location, match.groupdict()


def read_documents(path: Path) -> tables.Rows:
    """Yield (place, text by tag) of each <DOC> of a file; all of it is "text" if it has no tag of
    TEXTS.
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
    if held:
        raise DataError(f"{path}: its last document has no </DOC>; was the file broken off?")


def _parse_document(text: str, location: str) -> dict[str, str]:
    match = _DOC.fullmatch(text)
    row: dict[str, list[str]] = {}
    for name, value in _split_fields(match[1]) if match else ():
        words = html.unescape(_TAG.sub(" ", value)).strip()
        if words:
            row.setdefault(name, []).append(words)
    if len(row.get("docno", ())) != 1:
        raise DataError(
            f"{location}: it is not one <DOC> with one <DOCNO>, or something stands before it; write "
            f"<DOC><DOCNO>ID</DOCNO><TEXT>...</TEXT></DOC>"
        )
    if not row.keys() & TEXTS:
        others = [name for name in row if name not in ("docno", *TITLES)]
        row["text"] = list(chain.from_iterable(map(row.pop, others)))
    return {name: "\n".join(texts) for name, texts in row.items()}


def _split_fields(text: str) -> Iterator[tuple[str, str]]:
    """Yield (name, content) of each outermost closed tag, and of what stands outside of them."""
    tags = list(_TAG.finditer(text))
    last_end = {tag[2].lower(): tag.start() for tag in tags if tag[1]}
    field = ""  # the tag that is open
    start = 0
    for tag in tags:
        name = tag[2].lower()
        is_end = bool(tag[1])
        if field == name and is_end:
            yield field, text[start : tag.start()]
            field = ""
        elif not field and not is_end and last_end.get(name, 0) > tag.start():
            yield OUTSIDE, text[start : tag.start()]
            field = name
        else:
            continue
        start = tag.end()
    yield OUTSIDE, text[start:]


def read_topics(path: Path) -> tables.Rows:
    """Yield (place, text by tag or attribute) of each <top> or <topic> of a file."""
    text = "\n".join(line for _, line in raw_files.read_lines(path))
    rows = _parse_xml(text, path) if _XML_TOPIC.search(text) else _parse_topics(text, path)
    count = 0
    for count, row in enumerate(rows, start=1):
        texts = {name: " ".join(words) for name, words in row.items() if words}
        yield f"{path}, topic {count}", texts
    if not count:
        raise DataError(
            f"{path} has no <top> or <topic> in it; write each query as <topic "
            f"number=NUMBER>...</topic>"
        )


def _parse_xml(text: str, path: Path) -> Iterator[dict[str, list[str]]]:
    if _XML_TOPIC.match(text.lstrip()):  # topics without an element around them
        text = f"<topics>{text}</topics>"
    try:  # the parser refuses entities that grow, and follows none out of the file
        root = ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError) as error:
        raise DataError(f"{path} is not whole XML: {error}; & is written &amp;") from None
    for element in root.iter():
        if _local_name(element) == "topic":
            row = {name.lower(): [value] for name, value in element.attrib.items()}
            row["text"] = (element.text or "").split()
            for child in element:
                words = " ".join(child.itertext()).split()
                row.setdefault(_local_name(child), []).extend(words)
                row["text"] += (child.tail or "").split()
            tail = element.tail
            element.clear()
            element.tail = tail
            yield row
    _check_stray("".join(root.itertext()), path)


def _check_stray(text: str, path: Path) -> None:
    if text.strip():
        raise DataError(f"{path}: {tables.abbreviate(text.strip())} stands outside of any topic")


def _local_name(element: ElementTree.Element) -> str:
    return str(element.tag).rpartition("}")[2].lower()


def _parse_topics(text: str, path: Path) -> Iterator[dict[str, list[str]]]:
    starts = [start.start() for start in _TOP.finditer(text)]
    is_closed = _TOP_END.search(text)  # else a topic ends where the next begins
    stray = text[: starts[0]] if starts else ""
    for start, end in pairwise([*starts, len(text)]):
        inside, *behind = _TOP_END.split(text[start:end])
        if is_closed and not behind:
            raise DataError(f"{path}: a <top> has no end; was the file broken off?")
        stray += "".join(behind)
        yield _parse_topic(inside)
    _check_stray(stray, path)


def _parse_topic(text: str) -> dict[str, list[str]]:
    """Return the words of each tag, which ends where the next one begins."""
    row: dict[str, list[str]] = {}
    field = "text"
    at = 0
    for tag in [*_TAG.finditer(text), None]:
        end = tag.start() if tag else None
        words = _LABEL.sub("", html.unescape(text[at:end]))
        row.setdefault(field, []).extend(words.split())
        if tag:
            at = tag.end()
            name = tag[2].lower()
            field = "text" if tag[1] or name == "top" else name
    return row
