"""Readers of common files: tables, and files of text, Markdown, HTML, XML, wikitext and PDF, as
rows of Markdown.

Each file is read as its name says, or all as one named form. A row of a table has the columns that
the file has; a row of any other file has "id" (its path in the folder), "title" if the file says
one, and "text". Nothing is fetched.
"""

from collections.abc import Sequence
from pathlib import Path

from sextant.environments.readers import files as tables
from sextant.environments.readers import raw_files, table_files
from sextant.environments.readers.raw_files import find_ending
from sextant.tools.errors import DataError, UnknownName, UsageError
from sextant.tools.platform.number_format import plural
from sextant_construction.documents import pages
from sextant_construction.documents.markup import XmlPaths
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


def list_files(path: Path, form: str, *, follow_links: bool = False) -> Listing:
    """Return the files to read: `path`, or those in it and below; and the files left out, with the
    reasons.

    Hidden files are left out without a word. Of a collection (corpus, queries, judgements), only
    the corpus is read. Links out of a folder are left out unless `follow_links`.
    """
    if form and form not in FORMS:
        raise UnknownName("form", form, FORMS)
    if path.is_file():
        return Listing([path])
    if not path.is_dir():
        raise DataError(f"there is no file or folder {path}")
    wanted = FORMS[form] if form else sum(FORMS.values(), ())
    inside, left_out = list_folder(path, follow_links=follow_links)
    tables_found = table_files.find_tables(path).of_table.get("documents", ())
    corpus = {file for file in tables_found if find_ending(file) in FORMS["table"]}
    files = []
    other_files = []
    for file in inside:
        if find_ending(file) in wanted and (file in corpus or not corpus):
            files.append(file)
        else:
            other_files.append(LeftOut(file.relative_to(path).as_posix(), OTHER_FORM))
    if not files:
        endings = f"{path} holds no file that is read (their names end in {', '.join(wanted)})"
        raise DataError("; ".join(filter(None, [endings, say_links(left_out)])))
    return Listing(files, [*left_out, *other_files])


def say_links(left_out: Sequence[LeftOut]) -> str:
    """Return in a line the links out of a folder that are left out, and the remedy; ""
    if none is.
    """
    outside = [f"{file.name} -> {file.evidence}" for file in left_out if file.reason == OUTSIDE]
    if not outside:
        return ""
    links_are = plural(len(outside), "link out of the folder is", "links out of the folder are")
    return f"{links_are} left out, e.g. {outside[0]}; --follow-links takes them"


def read(
    root: Path,
    files: Sequence[Path],
    form: str,
    record: XmlPaths,
    limits: Limits,
    leave: Leave,
) -> tables.Rows:
    """Yield (place, row) of everything in `files`, in order. DataError, with its place, for a damaged
    table.

    Another file that is damaged or over the `limits` is left out, of which `leave` is told: its
    name, the reason, the evidence. Tables and plain texts are read line by line, so no file of these
    stalls.
    """
    with Readers(limits, leave) as readers:
        for path in files:
            doc_id = path.relative_to(root).as_posix() if path != root else path.name
            file_form = _find_form(path, form)
            if file_form == "table":
                yield from tables.read_table(path)
                continue
            try:
                tables.read_id(doc_id, str(path))
                if file_form in ("text", "markdown"):
                    yield str(path), {"id": doc_id, **pages.read_text(path, limits.text * MIB)}
                else:
                    yield from readers.read(path, file_form, doc_id, record)
            except raw_files.TooLarge as error:
                leave(doc_id, OVER_LIMIT, str(error))
            except DataError as error:
                leave(doc_id, UNREADABLE, str(error))


def _find_form(path: Path, form: str) -> str:
    ending = find_ending(path)
    forms = [form] if form else [name for name, endings in FORMS.items() if ending in endings]
    if not forms:
        raise UsageError(
            f"{path}: its name does not say what it is; give its form, as corpus.form: {', '.join(FORMS)}"
        )
    return forms[0]
