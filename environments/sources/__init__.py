"""Readers of what people have: tables, and files of text, Markdown, HTML, XML, wikitext and PDF, as rows of Markdown.

Each file is read as its name says, or all as one named form. A row of a table has the columns that the file has; a row
of any other file has "id" (its path in the folder), "title" where the file says one, and "text". Nothing is fetched.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from environments import tables
from environments.collections import find_files
from environments.raw import find_ending
from environments.sources import markup, pages
from environments.sources.markup import Record
from tools.errors import DataError, UnknownName, UsageError

# To add one: a row here and below, and its reader in a file of this folder.
FORMS = {
    "table": (".jsonl", ".ndjson", ".csv", ".tsv", ".parquet", ".arrow"),
    "text": (".txt", ".text"),
    "markdown": (".md", ".markdown"),
    "html": (".html", ".htm", ".xhtml"),
    "pdf": (".pdf",),
    "wikitext": (".wiki", ".wikitext", ".mediawiki"),
    "xml": (".xml",),
}
# Of forms whose files are a document each: what gives the "text" of one, and its "title" where it says one.
_READERS: Mapping[str, Callable[[Path], Mapping[str, str]]] = {
    "text": pages.read_text,
    "markdown": pages.read_text,
    "html": pages.read_html,
    "pdf": pages.read_pdf,
    "wikitext": markup.read_wikitext,
}


def list_files(path: Path, form: str, counts: Counter[str]) -> list[Path]:
    """Return the files to read: `path`, or those in it and below; `counts` says how many of another form are left out.

    Hidden files are left out without a word. Of a collection (corpus, queries, judgements), only the corpus is read.
    """
    if form and form not in FORMS:
        raise UnknownName("form", form, FORMS)
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise DataError(f"there is no file or folder {path}")
    wanted = FORMS[form] if form else sum(FORMS.values(), ())
    inside = [one for one in sorted(path.rglob("*")) if one.is_file() and "/." not in f"/{one.relative_to(path)}"]
    corpus = {one for one in find_files(path, "documents") if find_ending(one) in FORMS["table"]}
    files = [one for one in inside if find_ending(one) in wanted and (one in corpus or not corpus)]
    counts["files of another form, left out"] = len(inside) - len(files)
    if not files:
        raise DataError(f"{path} holds no file that is read (their names end in {', '.join(wanted)})")
    return files


def read(root: Path, files: Sequence[Path], form: str, record: Record) -> tables.Rows:
    """Yield (place, row) of everything in `files`, in order. DataError, with its place, for what is damaged."""
    for path in files:
        name = form or next((name for name, endings in FORMS.items() if find_ending(path) in endings), "")
        doc_id = path.relative_to(root).as_posix() if path != root else path.name
        if not name:
            raise UsageError(f"{path}: its name does not say what it is; give its form: {', '.join(FORMS)}")
        if name == "table":
            yield from _read_table(path)
        elif name == "xml":
            yield from markup.read_xml(path, doc_id, record)
        else:
            yield str(path), {"id": doc_id, **_READERS[name](path)}


def _read_table(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    if (ending := find_ending(path)) not in (".csv", ".tsv"):
        return tables.read_rows([path])
    return tables.read_headed(path, (), "\t" if ending == ".tsv" else tables.find_separator(path))
