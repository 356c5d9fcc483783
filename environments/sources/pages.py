"""Files that are one document each: plain text and Markdown as they stand, the main text of a web page, a PDF's text.

A page of a scanned PDF has no text; nothing is recognised from images.
"""

import logging
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from environments import raw
from tools.errors import DataError, UsageError
from tools.installation import explain_missing


def need(package: str, what: str) -> Any:
    """Return a module of the extra `sources`. UsageError, with the command that installs it, where it is missing."""
    logging.getLogger(package).setLevel(logging.CRITICAL)  # what it has to say comes as an error, with its place
    try:
        return import_module(package)
    except ImportError as error:
        raise UsageError(f"{what} need {explain_missing(error.name, 'sources')}") from None


def read_text(path: Path) -> Mapping[str, str]:
    """Return the text of a file in UTF-8."""
    return {"text": "".join(text for _, text in raw.read_lines(path, whole=True, html=True))}


def read_html(path: Path) -> Mapping[str, str]:
    """Return the title and the main text of a web page as Markdown: without menus, notices, scripts and links.

    Of a page in which no main text is found, because it is very short, all text is returned.
    """
    trafilatura = need("trafilatura", "web pages")
    with raw.open_unpacked(path, html=True) as file:  # it may be a part of a page, in an encoding that it names or not
        tree = trafilatura.load_html(b"<html><body>%b</body></html>" % file.read())
    options = {"output_format": "markdown", "include_formatting": True, "include_comments": False}
    text = trafilatura.extract(tree, **options, favor_recall=True) or trafilatura.html2txt(tree)
    return {"title": " ".join((tree.findtext(".//title") or "").split()), "text": text or ""}


def read_pdf(path: Path) -> Mapping[str, str]:
    """Return the text of a PDF, a blank line after each page."""
    pypdf = need("pypdf", "PDFs")
    try:
        with pypdf.PdfReader(path) as file:
            return {"text": "\n\n".join(page.extract_text() for page in file.pages)}
    except Exception as error:  # noqa: BLE001 - of a damaged file, the reader fails in many ways
        raise DataError(f"{path} cannot be read as PDF ({str(error) or type(error).__name__:.100})") from None
