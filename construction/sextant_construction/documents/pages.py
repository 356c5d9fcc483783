"""Files that are one document each: plain text and Markdown as they stand, the main text of a web
page, a PDF's text.

A page of a scanned PDF has no text; nothing is recognised from images.
"""

import logging
import re
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from sextant.environments.readers import raw_files
from sextant.tools.errors import UsageError
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
    try:
        return import_module(package)
    except ImportError as error:
        missing = explain_missing(error.name, "sources", CONSTRUCTION)
        raise UsageError(f"{purpose} need {missing}") from None


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
    with pypdf.PdfReader(path) as file:
        return {"text": "\n\n".join(page.extract_text() for page in file.pages)}


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
