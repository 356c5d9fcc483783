"""Wikitext and XML as Markdown: pages of a MediaWiki, alone or in a dump, and records of any
schema.

Of templates only infoboxes are kept, as lists: what the others would say, only their wiki knows.
Entities that an XML file defines itself are refused by the parser where they grow, and external
ones are not followed.
"""

import lzma
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

from environments.readers import raw_files
from environments.readers.documents.pages import NEEDED, need, read_text
from tools.errors import DataError

_NO_TEXT = re.compile(
    r"(file|image|category):", re.IGNORECASE
)  # links that show no words, or leave the page
_LEFT_OUT = ("ref", "gallery", "references", "timeline")
_PAGE = ("id", "title", "revision/{*}text")  # of a dump
_FEW_UNCLOSED = 100  # marks; a page that shows one in <nowiki> is left to the parser
# A character of nobody's -> a mark that opens something, and how it and its end are found
_PAIRS = {
    "\ue000": ("{{", re.compile(r"(?P<open>\{\{)|\}\}")),
    "\ue001": ("[[", re.compile(r"(?P<open>\[\[)|\]\]")),
    "\ue002": ("{|", re.compile(r"^[ \t:*#;]*(?P<open>\{\|)|\|\}", re.MULTILINE)),
}
_LIST = re.compile(r"^((?:- )*)- +", re.MULTILINE)


class XmlPaths(NamedTuple):
    """Where the documents are in XML files. A path is as ElementTree has it: "eligibility/criteria", ".//title"."""

    element: str = ""  # the name of a record; "": the whole file is one
    sections: Mapping[
        str, str
    ] = {}  # heading -> path of what stands under it; without any, all text of the record
    fields: tuple[str, ...] = ()  # further paths to take: of an id, a title, a group


class Unwritten(NamedTuple):
    """A document of a file, before what takes time is done."""

    where: str  # its place, for messages
    write: Callable[[], dict[str, Any]]  # makes the row; before the next document is asked for


def read_xml(path: Path, doc_id: str, record: XmlPaths) -> Iterator[Unwritten]:
    """Yield each record of a file, or each page of a MediaWiki's dump that is an article."""
    count = 0
    root = None
    wanted = record.element
    try:
        with raw_files.BoundedFile(path, html=True) as file:
            for event, element in ElementTree.iterparse(file, ("start", "end")):
                if root is None:
                    root = element
                    dump = not wanted and _local(element) == "mediawiki"
                    wanted = wanted or ("page" if dump else _local(root))
                if event == "start" or _local(element) != wanted:
                    continue
                count += 1
                location = f"{path}, {wanted} {count}"
                if not dump:
                    own_id = doc_id if element is root else f"{doc_id}:{count}"
                    yield Unwritten(location, partial(_write_record, element, own_id, record))
                elif element.findtext("{*}ns") == "0" and element.find("{*}redirect") is None:
                    yield Unwritten(location, partial(_write_page, element))
                element.clear()
                root.clear()  # else it holds every record that it has had, empty
        if not count:
            raise DataError(f"{path} has no element <{wanted}>")
    except (
        ElementTree.ParseError,
        LookupError,
        ValueError,
    ) as error:  # the latter of an encoding that is none
        raise DataError(f"{path} is not whole XML: {error}") from None
    except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None


def _write_record(element: ElementTree.Element, doc_id: str, record: XmlPaths) -> dict[str, Any]:
    row = {"id": doc_id, "text": _write_sections(element, record.sections)}
    for name in record.fields:
        row[name] = " ".join(_texts(element, name))
    return row


def _write_page(element: ElementTree.Element) -> dict[str, Any]:
    number, title, text = (element.findtext(f"{{*}}{path}") or "" for path in _PAGE)
    return {"id": number or title, "title": title, "text": write_markdown(text)}


def _local(element: ElementTree.Element) -> str:
    return str(element.tag).rpartition("}")[2]


def _texts(element: ElementTree.Element, path: str) -> list[str]:
    texts = (" ".join("".join(child.itertext()).split()) for child in element.findall(path))
    return [text for text in texts if text]


def _write_sections(element: ElementTree.Element, sections: Mapping[str, str]) -> str:
    if not sections:
        return "\n\n".join(text for node in element.itertext() if (text := " ".join(node.split())))
    written = ((heading, "\n\n".join(_texts(element, path))) for heading, path in sections.items())
    return "\n\n".join(f"## {heading}\n\n{text}" for heading, text in written if text)


def read_wikitext(path: Path) -> Mapping[str, str]:
    """Return what a file of wikitext says, as Markdown; its name is the title."""
    return {"title": path.stem.replace("_", " "), "text": write_markdown(read_text(path)["text"])}


def write_markdown(wikitext: str) -> str:
    """Return wikitext as Markdown: headings, lists, tables, infoboxes as lists; without
    references and categories.
    """
    hidden = _hide_unclosed(wikitext)
    code = need(*NEEDED["wikitext"]).parse(hidden.text)
    written = _LIST.sub(
        lambda match: " " * len(match[1]) + "- ",
        "".join(_write(type(code)([node])) for node in code.nodes),
    )
    for stand_in, mark in hidden.marks.items():
        written = written.replace(stand_in, mark)
    return re.sub(r"\n\s*\n", "\n\n", written).strip()


class _Hidden(NamedTuple):
    text: str
    marks: Mapping[str, str]  # what stands in for a mark -> the mark


def _hide_unclosed(wikitext: str) -> _Hidden:
    """Return wikitext with a character in place of each mark that nothing closes, where these are
    many.

    They are text, which the parser finds out by reading the rest of the page for each of them.
    """
    marks = dict[str, str]()
    for stand_in, (mark, pattern) in _PAIRS.items():
        if wikitext.count(mark) <= _FEW_UNCLOSED:
            continue
        unclosed = list[re.Match[str]]()
        for match in pattern.finditer(wikitext):
            if match["open"]:
                unclosed.append(match)
            elif unclosed:
                unclosed.pop()
        if len(unclosed) <= _FEW_UNCLOSED or stand_in in wikitext:
            continue
        pieces = list[str]()
        end = 0
        for match in unclosed:
            pieces += [wikitext[end : match.start("open")], stand_in]
            end = match.end("open")
        wikitext = "".join(pieces) + wikitext[end:]
        marks[stand_in] = mark
    return _Hidden(wikitext, marks)


def _write(code: Any) -> str:
    """Return a single node as Markdown."""
    node = code.get(0)
    node_type = type(node).__name__
    name = str(getattr(node, "tag", getattr(node, "name", ""))).strip().lower()
    if node_type == "Heading":
        return f"\n{'#' * node.level} {node.title.strip_code().strip()}\n\n"
    if node_type == "Template" and "infobox" in name:
        lines = ((str(param.name).strip(), _say(param.value)) for param in node.params)
        return "\n" + "".join(f"- {name}: {value}\n" for name, value in lines if value) + "\n"
    if name == "table":
        # The cells of the first row may stand in the table itself.
        renderings = (
            [_say(cell.contents) for cell in _inside(row, "td", "th")]
            for row in [node, *_inside(node, "tr")]
        )
        rows = [f"| {' | '.join(cells)} |" for cells in renderings if cells]
        rows[1:1] = [re.sub(r"[^|]+", "---", rows[0])] if rows else []
        return "\n\n" + "\n".join(rows) + "\n\n"
    if name == "li":
        return "- "
    if name in _LEFT_OUT or (node_type == "Wikilink" and _NO_TEXT.match(str(node.title))):
        return ""
    return "\n" if name == "br" else str(code.strip_code(collapse=False))


def _inside(node: Any, *names: str) -> Any:
    return node.contents.filter_tags(
        recursive=False, matches=lambda tag: str(tag.tag).strip().lower() in names
    )


def _say(code: Any) -> str:
    """Return a cell's or a parameter's text on one line; of templates in it, what they are
    given without a name.
    """
    for template in code.filter_templates(recursive=False):
        code.replace(
            template, " ".join(str(param.value) for param in template.params if not param.showkey)
        )
    return " ".join(code.strip_code().split()).replace("|", "/")
