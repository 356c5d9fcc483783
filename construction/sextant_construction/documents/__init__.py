"""Readers of common files: tables, and files of text, Markdown, HTML, XML, wikitext and PDF, as
rows of Markdown.

Each file is read as its name says. A row of a table has the columns that
the file has; a row of any other file has "id" (its path in the folder), "title" if the file says
one, and "text". Nothing is fetched.
"""

from collections.abc import Sequence
from pathlib import Path

from sextant.environments.readers import files as tables
from sextant.environments.readers import raw_files, table_files
from sextant.environments.readers.raw_files import find_ending
from sextant.tools.errors import DataError, UsageError
from sextant.tools.platform.number_format import plural
from sextant_construction.documents import pages
from sextant_construction.documents.readers import MIB, OVER_LIMIT, Leave, Limits, Readers
from sextant_construction.folders import OUTSIDE, LeftOut, Listing, list_folder

# To add one: a row here, and its reader in a file of this folder, which readers.py names.
FORMS = {
    "table": (".jsonl", ".ndjson", ".csv", ".tsv", ".parquet"),
    "text": (".txt", ".text"),
    "markdown": (".md", ".markdown"),
    "html": (".html", ".htm", ".xhtml"),
    "pdf": (".pdf",),
    "docx": (".docx",),
    "wikitext": (".wiki", ".wikitext", ".mediawiki"),
    "xml": (".xml",),
}
UNREADABLE = "files that cannot be read"
OTHER_FORM = "files of another form, left out"


def list_files(path: Path, *, follow_links: bool = False) -> Listing:
    """Return the files to read: `path`, or those in it and below; and the files left out, with the
    reasons.

    Hidden files are left out without a word. Of a collection (corpus, queries, judgements), only
    the corpus is read. Links out of a folder are left out unless `follow_links`.
    """
    if path.is_file():
        return Listing([path])
    if not path.is_dir():
        raise DataError(f"there is no file or folder {path}")
    inside, left_out = list_folder(path, follow_links=follow_links)
    tables_found = table_files.find_tables(path).of_table.get("documents", ())
    corpus = {file for file in tables_found if _find_form(file) == "table"}
    files = []
    other_files = []
    for file in inside:
        if _find_form(file) and (file in corpus or not corpus):
            files.append(file)
        else:
            other_files.append(LeftOut(file.relative_to(path).as_posix(), OTHER_FORM))
    if not files:
        none = f"{path} holds no file that is read ({', '.join(FORMS)}, by the ends of their names)"
        raise DataError("; ".join(filter(None, [none, say_links(left_out)])))
    return Listing(files, [*left_out, *other_files])


def say_links(left_out: Sequence[LeftOut]) -> str:
    """Return in a line the links out of a folder that are left out, and the remedy; ""
    if none is.
    """
    outside = [f"{file.name} -> {file.evidence}" for file in left_out if file.reason == OUTSIDE]
    if not outside:
        return ""
    links_are = plural(len(outside), "link out of the folder is", "links out of the folder are")
    return f"{links_are} left out, e.g. {outside[0]}; corpus.follow_links takes them"


def read(
    root: Path,
    files: Sequence[Path],
    record: str,
    limits: Limits,
    leave: Leave,
) -> tables.Rows:
    """Yield (place, row) of everything in `files`, in order. DataError, with its place, for a damaged
    table.

    `record` is the element of XML that is a document. Another file that is damaged or over the
    `limits` is left out, of which `leave` is told: its name, the reason, the evidence. Tables and
    plain texts are read line by line, so no file of these stalls.
    """
    with Readers(limits, leave) as readers:
        for path in files:
            doc_id = path.relative_to(root).as_posix() if path != root else path.name
            form = _find_form(path)
            if not form:
                raise UsageError(f"{path}: its name ends as no form does: {', '.join(FORMS)}")
            if form == "table":
                yield from tables.read_table(path)
                continue
            try:
                tables.read_id(doc_id, str(path))
                if form in ("text", "markdown"):
                    yield str(path), {"id": doc_id, **pages.read_text(path, limits.text * MIB)}
                else:
                    yield from readers.read(path, form, doc_id, record)
            except raw_files.TooLarge as error:
                leave(doc_id, OVER_LIMIT, str(error))
            except DataError as error:
                leave(doc_id, UNREADABLE, str(error))


def _find_form(path: Path) -> str:
    """Return the form of a file, by how its name ends; "" for no form."""
    ending = find_ending(path)
    return next((form for form, endings in FORMS.items() if ending in endings), "")
