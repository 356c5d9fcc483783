"""Files that are one document each: plain text and Markdown as they stand, the main text of a web
page, a PDF's text.

A page of a scanned PDF has no text; nothing is recognised from images.
"""

import logging
import re
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sextant.environments.readers import raw_files
from sextant.tools.errors import DataError, UsageError
from sextant.tools.platform.installation import CONSTRUCTION, explain_missing

NEEDED = {  # form -> the package that reads it, and what needs it
    "html": ("trafilatura", "web pages"),
    "pdf": ("pypdf", "PDFs"),
    "docx": ("docx", "Word documents"),
    "wikitext": ("mwparserfromhell", "wikitext and dumps of wikis"),
}


def need(package: str, purpose: str) -> Any:
    """Return a module of the extra `sources`.

    UsageError, with the command that installs it, if it is missing.
    """
    # Its messages come as an error, with the location.
    logging.getLogger(package).setLevel(logging.CRITICAL)
    check_installed(package, purpose)
    try:
        return import_module(package)
    except ImportError as error:
        raise _missing(error.name, purpose) from None


def check_installed(package: str, purpose: str) -> None:
    """Raise UsageError, with the command that installs it, if a package is missing.

    It is not imported.
    """
    if find_spec(package) is None:
        raise _missing(package, purpose)


def _missing(package: str | None, purpose: str) -> UsageError:
    return UsageError(f"{purpose} need {explain_missing(package, 'sources', CONSTRUCTION)}")


def read_text(path: Path, most: int = sys.maxsize) -> Mapping[str, str]:
    """Return the text of a file in UTF-8. TooLarge if it has more than `most` characters."""
    lines = []
    budget = most
    for _, text in raw_files.read_lines(
        path,
        whole=True,
        html=True,
    ):
        lines.append(text)
        budget -= len(text)
        if budget < 0:
            raise raw_files.TooLarge(f"more than {most:,} characters")
    return {"text": "".join(lines)}


def read_html(path: Path) -> Mapping[str, str]:
    """Return the title and the main text of a web page as Markdown: without menus, notices, scripts
    and links.

    Of a page in which no main text is found, because it is very short, all text is returned.
    """
    trafilatura = need(*NEEDED["html"])
    # It may be a part of a page, in an encoding that it names or not.
    with raw_files.BoundedFile(path, html=True) as file:
        tree = trafilatura.load_html(b"<html><body>%b</body></html>" % file.read())
    text = trafilatura.extract(
        tree,
        output_format="markdown",
        include_formatting=True,
        include_comments=False,
        favor_recall=True,
    )
    title = " ".join((tree.findtext(".//title") or "").split())
    return {"title": title, "text": text or trafilatura.html2txt(tree) or ""}


def read_pdf(path: Path) -> Mapping[str, str]:
    """Return the text of a PDF, a blank line after each page."""
    pypdf = need(*NEEDED["pdf"])
    try:
        with pypdf.PdfReader(path) as file:
            return {"text": "\n\n".join(page.extract_text() for page in _list_pages(file))}
    except (MemoryError, RecursionError):
        raise
    except Exception as error:  # noqa: BLE001 - of a damaged file, the reader fails in many ways
        raise DataError(
            f"{path} cannot be read as PDF ({str(error) or type(error).__name__:.100})"
        ) from None


def read_docx(path: Path) -> Mapping[str, str]:
    """Return the title and the text of a Word document: headings as Markdown's, a table row by row."""
    document = need(*NEEDED["docx"]).Document(str(path))
    blocks = []
    for block in document.iter_inner_content():
        if hasattr(block, "rows"):
            blocks += [" | ".join(cell.text for cell in row.cells) for row in block.rows]
            continue
        level = re.fullmatch(r"Heading (\d)", block.style.name)
        blocks.append(f"{'#' * int(level[1])} {block.text}" if level else block.text)
    return {"title": document.core_properties.title, "text": "\n\n".join(blocks)}


def _list_pages(file: Any) -> Iterator[Any]:
    """Yield each page once: a tree that names a page many times may make a small file endless."""
    visited = {None}
    for page in file.pages:
        number = page.indirect_reference and page.indirect_reference.idnum
        if number is None or number not in visited:
            yield page
        visited.add(number)
