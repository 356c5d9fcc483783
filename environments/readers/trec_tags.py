"""TREC's tags: documents as <DOC><DOCNO>...<TEXT>...</DOC>, and topics as <top><num>...<title>...,
closed or not, or as XML: <topic number="1">...</topic>.

A row has the text of each tag under the tag's name, in small letters, so that what is not used can
be counted. Which tags make a text is in collections.py.
"""

import html
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

from sextant.environments.readers import files as tables
from sextant.environments.readers import raw_files
from sextant.tools.errors import DataError

# Tags of newswire that hold a headline or a text, as Anserini (TrecCollection) and Terrier index
# them on TREC's disks 1 to 5. FBIS has <TI> in <H3>.
TITLES = ("title", "headline", "head", "hl", "ttl", "h3", "ti")
TEXTS = ("lp", "leadpara", "summary", "text")
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
NUMBERS = ("number", "num", "id", "qid", "topic_id", "query_id")
OUTSIDE = "text outside of tags"

_DOC = re.compile(r"\s*<doc>(.*)</doc>\s*", re.DOTALL | re.I)
_DOC_END = re.compile(r"</doc\s*>", re.I)
# "p < 0.05" is no tag.
_TAG = re.compile(r"<(/?)([a-z][\w.-]*)(?:\s[^<>]*)?/?>", re.I)
_TOP = re.compile(r"<top>", re.I)
_TOP_END = re.compile(r"</top\s*>", re.I)
_XML_TOPIC = re.compile(r"<(?:[\w.-]+:)?topic[\s>]", re.I)
_LABEL = re.compile(r"^\s*(number|topic|title|description|narrative)\s*:\s*", re.I)


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
    if "".join(held).strip():
        raise DataError(f"{path}: its last document has no </DOC>; was the file broken off?")


def _parse_document(text: str, location: str) -> dict[str, str]:
    match = _DOC.fullmatch(text)
    row: dict[str, list[str]] = {}
    for name, value in _split_fields(match[1]) if match else ():
        if words := html.unescape(_TAG.sub(" ", value)).strip():
            row.setdefault(name, []).append(words)
    if len(row.get("docno", ())) != 1:
        form = "<DOC><DOCNO>ID</DOCNO><TEXT>...</TEXT></DOC>"
        raise DataError(
            f"{location}: it is not one <DOC> with one <DOCNO>, or something stands before it; write "
            f"{form}"
        )
    if not row.keys() & TEXTS:
        whole = list[str]()
        for name in [*row]:
            if name not in ("docno", *TITLES):
                whole += row.pop(name)
        row["text"] = whole
    return {name: "\n".join(texts) for name, texts in row.items()}


def _split_fields(text: str) -> Iterator[tuple[str, str]]:
    """Yield (name, content) of each outermost closed tag, and of what stands outside of them."""
    tags = list(_TAG.finditer(text))
    last_end = {tag[2].lower(): tag.start() for tag in tags if tag[1]}
    field = ""  # the tag that is open
    start = 0
    for tag in tags:
        name = tag[2].lower()
        if field:
            if not tag[1] or name != field:
                continue
            yield field, text[start : tag.start()]
            field = ""
        elif tag[1] or last_end.get(name, 0) < tag.start():
            continue
        else:
            yield OUTSIDE, text[start : tag.start()]
            field = name
        start = tag.end()
    yield OUTSIDE, text[start:]


def read_topics(path: Path) -> tables.Rows:
    """Yield (place, text by tag or attribute) of each <top> or <topic> of a file."""
    text = "\n".join(line for _, line in raw_files.read_lines(path))
    rows = _parse_xml(text, path) if _XML_TOPIC.search(text) else _parse_topics(text, path)
    count = 0
    for count, row in enumerate(rows, start=1):
        location = f"{path}, topic {count}"
        joined = {name: " ".join(words) for name, words in row.items() if words}
        for name in NUMBERS:
            if len(row.get(name, ())) > 1:
                raise DataError(f"{location}: <{name}> has several words: {joined[name]!r:.80}")
        yield location, joined
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
            own_text = element.text or ""
            for child in element:
                own_text += f" {child.tail or ''}"
            row["text"] = own_text.split()
            for child in element:
                words = " ".join(child.itertext()).split()
                row.setdefault(_local_name(child), []).extend(words)
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
    stray = text[: starts[0]] if starts else text
    for start, end in pairwise([*starts, len(text)]):
        inside, *behind = _TOP_END.split(text[start:end])
        if is_closed and not behind:
            raise DataError(f"{path}: a <top> has no end; was the file broken off?")
        stray += "".join(behind)
        row: dict[str, list[str]] = {}
        field = "text"
        at = 0
        for tag in [*_TAG.finditer(inside), None]:
            end_of_field = tag.start() if tag else None
            words = html.unescape(inside[at:end_of_field])
            words = _LABEL.sub("", words)
            row.setdefault(field, []).extend(words.split())
            if tag:
                at = tag.end()
                name = tag[2].lower()
                field = "text" if tag[1] or name == "top" else name
        yield row
    _check_stray(stray if starts else "", path)
