"""`files`: the documents as files for an agent that is a process, and rg, sed and cat of them.

    root = give_files(desk, toolbox.documents, query, folder)
    desk.files.run_read(f"{root}/d1.txt", "1", "20")

This is Direct Corpus Interaction (arXiv 2605.05242). A file has the text of its document exactly,
without its title; its name is the id, percent-encoded. The commands (programs/file_commands, in
bash) have the run's own process search and read, over the session of the query: exclusions, pools
and limits hold, and the trace has the texts that were shown. Left out: readings by other commands,
which leave no step.
"""

import logging
import re
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote, unquote
from zlib import crc32

from sextant.programs.search_tools import SearchTools, as_json
from sextant.tools.corpus import Corpus
from sextant.tools.platform import files as disk
from sextant.tools.records import Query

COMMANDS = Path(__file__).with_name("file_commands")  # to be the first of an agent's PATH
MOST = 10_000  # lines, or files, that rg shows
_A_FOLDER = 1_000  # files, about
_LOG = logging.getLogger("sextant")


def files(desk: SearchTools) -> str:
    """Tell the folder in which each document is a file, for rg, sed -n and cat in a shell."""
    return as_json({"folder": str(desk.files.root)})


def locate(doc_id: str, documents: Corpus) -> str:
    """Return the path of a document's file; the files are spread over folders if they are many."""
    name = f"{quote(doc_id, '', errors='surrogatepass')}.txt"
    folders = len(documents) // _A_FOLDER
    return f"{crc32(name.encode()) % folders:04}/{name}" if folders > 1 else name


def name_document(path: str) -> str:
    """Return the id of the document in a file."""
    name = path.rpartition("/")[2].removesuffix(".txt")
    return unquote(name, errors="surrogatepass")


def write_files(documents: Corpus, root: Path) -> None:
    """Write each document to a file below a new folder, for reading only."""
    with disk.temporary_sibling(root, disk.SHARED, folder=True) as draft:
        for document in documents.stream():
            path = draft / locate(document.doc_id, documents)
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(document.text.encode("utf-8", "surrogatepass"))
            path.chmod(0o444)
        draft.rename(root)
    for folder in (root, *root.glob("*/")):
        folder.chmod(0o555)


def open_files(documents: Corpus) -> Path:
    """Return the folder with the files of all documents, below $SEXTANT_HOME; it is made once."""
    root = disk.sextant_home().resolve() / "files" / documents.fingerprint
    root.parent.mkdir(parents=True, exist_ok=True)
    with disk.lock_file(root.with_suffix(".lock"), lambda: None):
        if not root.is_dir():
            _LOG.info(f"writing {len(documents):,} documents as files to {root}; this is done once")
            write_files(documents, root)
    return root


def give_files(desk: SearchTools, documents: Corpus, query: Query, folder: Path) -> Path:
    """Give a query's agent the files: all, or those of its pool alone, written into `folder`. Return their root."""
    if query.candidates is None:
        root = open_files(documents)
    else:
        root = folder.resolve() / "documents"
        documents = Corpus(map(documents.__getitem__, query.candidates - query.excluded))
        write_files(documents, root)
    desk.session.open_files()
    desk.files = DocumentFiles(desk, documents, root)
    return root


class DocumentFiles:
    """The files of a query, and the work of its agent's commands."""

    def __init__(self, desk: SearchTools, documents: Corpus, root: Path) -> None:
        self.root = root
        self._documents = documents
        self._desk = desk
        self._session = desk.session

    def read_names(self, names: Iterable[str]) -> list[str]:
        """Return the ids that are meant by ids and files; the trace notes those that were never shown."""
        doc_ids = [name if name in self._documents else name_document(name) for name in names]
        self._remember(self._session.record_unshown(doc_ids))
        return doc_ids

    def run_read(self, path: str, first: str = "1", last: str = "") -> str:
        """Return lines of a file, by default all, behind the line that tells a command its exit code."""
        doc_id = name_document(path)
        lines = re.findall(r"[^\n]*\n|[^\n]+", self._session.read_whole(doc_id))
        start = int(first) - 1
        wanted = "".join(lines[start : int(last) if last else None])
        before = len("".join(lines[:start]))
        text = self._session.read(doc_id, len(wanted), first=before)
        self._remember([doc_id])
        return f"0 \n{text}"

    def run_search(
        self,
        pattern: str,
        columns: str,
        before: str,
        after: str,
        most: str,
        folder: str,
        *paths: str,
    ) -> str:
        """Return the lines of files that match, by default of all files, `most` of each, as `run_read`.

        `columns` are those of path, line and text that are given of each; paths begin with
        `folder`. Of matches that share their lines around, the first is marked by colons.
        """
        excerpts = self._session.scan(
            "grep",
            pattern,
            MOST,
            shown="text" in columns,
            among=list(map(name_document, paths)) if paths else None,
            around=(int(before), int(after)),
            most=int(most),
        )
        lines = []
        for excerpt in excerpts.rows:
            path = f"{folder}{locate(excerpt.doc_id, self._documents)}"
            for number, text in enumerate(excerpt.text.split("\n"), excerpt.first):
                cells = {"path": path, "line": str(number), "text": text}
                mark = ":" if number == excerpt.line else "-"
                lines.append(mark.join(map(cells.__getitem__, columns.split())))
            self._remember([excerpt.doc_id])
        note = excerpts.partial
        if len(excerpts.rows) == MOST:
            note = f"there may be more than these {MOST:,}"
        return "\n".join([f"{int(not lines)} {note}", *lines, ""])

    def _remember(self, doc_ids: Iterable[str]) -> None:
        """Let documents be selected; they rank after those of searches."""
        for doc_id in doc_ids:
            self._desk.best_rank.setdefault(doc_id, self._session.limits.depth)
