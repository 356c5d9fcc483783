"""A task from documents in any form that a build reads, with queries and judgements of one's own:
`sextant tasks make FOLDER --corpus FILES --queries FILE --qrels FILE`.

Nothing is cut or cleaned. What is left out is named, and the folder is there once it is whole.
"""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from sextant.environments import custom
from sextant.environments.readers.raw_files import find_ending
from sextant.tools.errors import DataError, UsageError
from sextant.tools.platform import files
from sextant.tools.records import Document
from sextant_construction.ingest import CorpusSettings, CutSettings, ingest
from sextant_construction.text_cleaning import CleanSettings
from sextant_construction.types import read_dropped


def make_task(
    folder: Path,
    corpus: Sequence[Path],
    queries: Path,
    qrels: Path,
) -> list[str]:
    """Write the task into a new `folder`; return what was left out and what was found in the data.

    UsageError for a folder that is there, DataError for data that is missing or damaged.
    """
    if folder.exists():
        raise UsageError(f"{folder} is there already; name a folder that is not")
    for file in (queries, qrels):
        if not file.is_file():
            raise DataError(f"there is no file {file}")
    said: list[str] = []
    with files.temporary_sibling(folder, files.SHARED, folder=True) as draft:
        with (draft / "corpus.jsonl").open("w", encoding="utf-8") as lines:
            for document in _read_documents(corpus, said):
                row = {
                    "_id": document.doc_id,
                    "title": document.title,
                    "text": document.text,
                }
                lines.write(files.dumps(row) + "\n")
        for name, file in {"queries": queries, "qrels": qrels}.items():
            shutil.copyfile(file, draft / f"{name}{find_ending(file)}")
        settings, findings = custom.draft_benchmark_toml(draft, {}, folder.name)
        settings = settings.replace(str(draft), folder.name)
        (draft / custom.FILE).write_text(settings, encoding="utf-8")
        draft.rename(folder)
    return [line.replace(str(draft), folder.name) for line in (*said, *findings)]


def _read_documents(corpus: Sequence[Path], said: list[str]) -> Iterator[Document]:
    """Yield the documents of files and folders; `said` takes a line for each that is left out."""
    whole = CleanSettings(near=0.0)
    for path in corpus:
        with TemporaryDirectory() as kept:
            source = ingest(
                CorpusSettings(path=str(path)),
                whole,
                CutSettings(),
                Path(kept, "x"),
            )
            yield from source.documents.stream()
            for name, reason, evidence in read_dropped(source):
                said.append(f"left out: {name}: {reason}{evidence and f' ({evidence})'}")
