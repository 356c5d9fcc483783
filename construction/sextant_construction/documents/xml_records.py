"""Records of XML files of any schema, as rows.

Files are read element by element. The parser refuses entities that a file defines itself if they
grow, and follows no external entities.
"""

import lzma
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from sextant.environments.readers import raw_files
from sextant.tools.errors import DataError
from sextant.tools.records import JsonObject


class XmlPaths(NamedTuple):
    """The paths of documents in XML files, in the syntax of ElementTree: "eligibility/criteria", ".//title"."""

    element: str = ""  # the name of a record; "": the whole file is one
    # Heading -> path of the text under it; if it is empty, all text of the record.
    sections: Mapping[str, str] = {}
    fields: tuple[str, ...] = ()  # further paths to take: of an id, a title, a group


def read_xml(path: Path, doc_id: str, record: XmlPaths) -> Iterator[tuple[str, JsonObject]]:
    """Yield (location, row) of each record of a file. DataError if it is damaged."""
    count = 0
    root = None
    wanted = record.element
    try:
        with raw_files.BoundedFile(path, html=True) as file:
            for event, element in ElementTree.iterparse(file, ("start", "end")):
                if root is None:
                    root = element
                    wanted = wanted or _local(root)
                if event == "start" or _local(element) != wanted:
                    continue
                count += 1
                own_id = doc_id if element is root else f"{doc_id}:{count}"
                yield f"{path}, {wanted} {count}", _make_row(element, own_id, record)
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


def _make_row(element: ElementTree.Element, doc_id: str, record: XmlPaths) -> JsonObject:
    row = {"id": doc_id, "text": _write_sections(element, record.sections)}
    for name in record.fields:
        row[name] = " ".join(_texts(element, name))
    return row


def _local(element: ElementTree.Element) -> str:
    return str(element.tag).rpartition("}")[2]


def _texts(element: ElementTree.Element, path: str) -> list[str]:
    texts = []
    for child in element.findall(path):
        words = "".join(child.itertext()).split()
        if words:
            texts.append(" ".join(words))
    return texts


def _write_sections(element: ElementTree.Element, sections: Mapping[str, str]) -> str:
    if not sections:
        lines = (" ".join(text.split()) for text in element.itertext())
        return "\n\n".join(filter(None, lines))
    written = []
    for heading, path in sections.items():
        if texts := _texts(element, path):
            written += [f"## {heading}", *texts]
    return "\n\n".join(written)
