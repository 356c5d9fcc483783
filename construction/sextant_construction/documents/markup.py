"""Wikitext and XML as Markdown: pages of a MediaWiki, alone or in a dump, and records of any
schema.

Of templates only infoboxes are kept, as lists: only their wiki has the texts of the others.
The parser refuses entities that an XML file defines itself if they grow, and follows no external
entities.
"""

import lzma
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

from sextant.environments.readers import raw_files
from sextant.tools.errors import DataError
from sextant.tools.records import JsonObject
from sextant_construction.documents.pages import NEEDED, need, read_text

# Links that show no words, or leave the page.
_NO_TEXT = re.compile(r"(file|image|category):", re.IGNORECASE)
_LEFT_OUT = ("ref", "gallery", "references", "timeline")
_PAGE = ("id", "title", "revision/{*}text")  # of a dump
_LIST = re.compile(r"^((?:- )*)- +", re.MULTILINE)


class Unwritten(NamedTuple):
    """A document of a file, before it is parsed, which takes time."""

    where: str  # its location, for messages
    write: Callable[[], JsonObject]  # makes the row; to be called before the next document


def read_xml(path: Path, doc_id: str, record: str) -> Iterator[Unwritten]:
    """Yield each element `record` of a file, or all of it; of a MediaWiki's dump, each page that is
    an article.
    """
    count = 0
    root = None
    wanted = record
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
                    yield Unwritten(location, partial(_write_record, element, own_id))
                elif element.findtext("{*}ns") == "0" and element.find("{*}redirect") is None:
                    yield Unwritten(location, partial(_write_page, element))
                element.clear()
                # Otherwise it holds every earlier record, empty.
                root.clear()
        if not count:
            raise DataError(f"{path} has no element <{wanted}>")
    # LookupError and ValueError are of an unknown encoding.
    except (ElementTree.ParseError, LookupError, ValueError) as error:
        raise DataError(f"{path} is not whole XML: {error}") from None
    except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None


def _write_record(element: ElementTree.Element, doc_id: str) -> JsonObject:
    lines = (" ".join(text.split()) for text in element.itertext())
    return {"id": doc_id, "text": "\n\n".join(filter(None, lines))}


def _write_page(element: ElementTree.Element) -> JsonObject:
    number, title, wikitext = (element.findtext(f"{{*}}{path}") or "" for path in _PAGE)
    return {
        "id": number or title,
        "title": title,
        "text": write_markdown(wikitext),
    }


def _local(element: ElementTree.Element) -> str:
    return str(element.tag).rpartition("}")[2]


def read_wikitext(path: Path) -> Mapping[str, str]:
    """Return a file of wikitext as Markdown; its name is the title."""
    return {"title": path.stem.replace("_", " "), "text": write_markdown(read_text(path)["text"])}


def write_markdown(wikitext: str) -> str:
    """Return wikitext as Markdown, without references and categories.

    It has headings, lists, tables, and infoboxes as lists.
    """
    code = need(*NEEDED["wikitext"]).parse(wikitext)
    wikicode_type = type(code)
    written = "".join(_write(wikicode_type([node])) for node in code.nodes)
    written = _LIST.sub(lambda match: " " * len(match[1]) + "- ", written)
    return re.sub(r"\n\s*\n", "\n\n", written).strip()


def _write(code: Any) -> str:
    """Return a single node as Markdown."""
    node = code.get(0)
    node_type = type(node).__name__
    name = str(getattr(node, "tag", getattr(node, "name", ""))).strip().lower()
    if node_type == "Heading":
        title = node.title.strip_code().strip()
        return f"\n{'#' * node.level} {title}\n\n"
    if node_type == "Template" and "infobox" in name:
        return f"\n{_write_infobox(node)}\n"
    if name == "li":
        return "- "
    if name == "br":
        return "\n"
    if name in _LEFT_OUT:
        return ""
    if node_type == "Wikilink" and _NO_TEXT.match(str(node.title)):
        return ""
    return str(code.strip_code(collapse=False))


def _write_infobox(node: Any) -> str:
    lines = []
    for parameter in node.params:
        if value := _write_line(parameter.value):
            lines.append(f"- {str(parameter.name).strip()}: {value}\n")
    return "".join(lines)


def _write_line(code: Any) -> str:
    """Return the text of a cell or a parameter on a line.

    A template in it becomes its arguments without a name.
    """
    for template in code.filter_templates(recursive=False):
        values = [str(parameter.value) for parameter in template.params if not parameter.showkey]
        code.replace(template, " ".join(values))
    return " ".join(code.strip_code().split()).replace("|", "/")
