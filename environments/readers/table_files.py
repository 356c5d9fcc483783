"""Which files of a folder are the documents, the queries, the judgements and the pools of a
collection, and of which split each is.

The files of a table are those whose names begin with one of its words (`corpus.jsonl.gz`,
`queries.dev.tsv`), have it behind a point (`robust.qrels`), or stand in a folder of that name
(`qrels/test.tsv`). All that can be read are read; every other file is named as left out.
"""

import os
import re
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from sextant.environments.readers import files as tables
from sextant.environments.readers import raw_files
from sextant.tools.errors import DataError

WORDS = {
    "documents": ("corpus", "documents", "docs", "collection", "passages"),
    "queries": ("queries", "topics", "query", "examples"),  # the last is BRIGHT's
    "judgements": ("qrels", "default", "judgements", "judgments"),  # "default" is MTEB's
    "pools": ("top_ranked",),  # MTEB's
}
SETTINGS = "benchmark.toml"
CHOICE = (
    'mend it, or name the files that are meant in its benchmark.toml: `files = { documents = "NAME", queries = '
    '"NAME" }`, `judgements = { gold = "NAME" }`'
)
_ENDINGS = (
    *(".parquet", ".jsonl", ".ndjson", ".json", ".tsv", ".csv"),
    *(".txt", ".xml", ".trec", ".sgml", ".qrels"),
)
# Files of other endings, or none, are read if they begin so.
_TREC = re.compile(r"\s*<(doc|top|topics?)>|\S+\s+\S+\s+\S+\s+-?\d+\s*$", re.I)
# Parts in the folder data/ are the default subset of a data set, as the hub's push_to_hub writes
# them; MTEB's are its judgements.
_DEFAULT_SUBSET = re.compile(r"data/[^/]*-\d{5}-of-\d{5}\.[^/]*")
# Nobody takes these for data, so they are not counted.
_ABOUT = re.compile(r"(readme|licen[cs]e|copying|notice|citation|changelog)\b", re.I)
# A word in a file's path -> its split; the first of them that it has counts.
SPLITS = {
    "test": "test",
    **dict.fromkeys(("dev", "development", "validation", "valid", "val"), "dev"),
    **dict.fromkeys(("train", "training"), "train"),
}


class TableFiles(NamedTuple):
    """The files of a folder by table, and those of no table."""

    of_table: dict[str, list[Path]]
    others: list[Path]


def find_tables(folder: Path) -> TableFiles:
    """Return the files of each table in a folder and below."""
    of_table = dict[str, list[Path]]()
    others = []
    for path in list_inside(folder):
        inside = path.relative_to(folder).as_posix()
        name = _find_table(inside)
        if name and _can_be_read(path):
            of_table.setdefault(name, []).append(path)
        elif inside != SETTINGS:
            others.append(path)
    for paths in of_table.values():
        tables.check_parts(paths)
    return TableFiles(of_table, others)


def _find_table(inside: str) -> str:
    """Return the table of a file by its path in the folder; "" for none."""
    name = inside.removeprefix("data/").lower()  # where the hub has them
    for form in ("({})[^/]*", "({})/.*", r"[^/]*\.({})[^/]*"):
        for table, words in WORDS.items():
            if re.fullmatch(form.format("|".join(words)), name):
                return table
    return "judgements" if _DEFAULT_SUBSET.fullmatch(inside) else ""


def _can_be_read(path: Path) -> bool:
    if raw_files.find_ending(path) in _ENDINGS:
        return True
    try:
        return bool(_TREC.match(next(raw_files.read_lines(path), (0, ""))[1]))
    except DataError:
        return False


def list_inside(path: Path) -> list[Path]:
    """Return the files in a folder and below in the order of their names, or the file itself.

    Links are followed, into each folder once. Hidden files and notes are left out.
    """
    if not path.is_dir():
        return [path]
    files = []
    visited = set()
    for parent, folders, names in os.walk(path, followlinks=True, onerror=_refuse_folder):
        status = Path(parent).stat()
        if (status.st_dev, status.st_ino) in visited:
            folders.clear()
            continue
        visited.add((status.st_dev, status.st_ino))
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        files += [
            Path(parent, name)
            for name in names
            if not name.startswith(".") and not _ABOUT.match(name)
        ]
    return sorted(files)


def _refuse_folder(error: OSError) -> None:
    raise DataError(f"{str(error.filename)[:200]} cannot be read: {error.strerror or error}")


def find_split(path: Path, folder: Path) -> str:
    """Return "test", "dev", "train" or "", by the path of a file in the folder."""
    return SPLITS.get(_find_split_word(path, folder), "")


def _find_split_word(path: Path, folder: Path) -> str:
    words = re.split(r"[^a-z]+", os.path.relpath(path, folder).lower())
    return next((word for word in SPLITS if word in words), "")


class ChosenFiles(NamedTuple):
    """The files of each table that are read."""

    of_table: Mapping[str, Sequence[Path]]
    is_apart: bool  # documents are kept apart by split


def choose_files(of_table: Mapping[str, Sequence[Path]], folder: Path, split: str) -> ChosenFiles:
    """Return the files of each table, of dev without those of train; if documents are kept apart
    by split, only the files of `split`.

    DataError for splits that could be meant both.
    """
    chosen = {}
    words_of = {}
    for name, paths in of_table.items():
        words = words_of[name] = {_find_split_word(path, folder) for path in paths}
        dev = [word for word in words if SPLITS.get(word) == "dev"]
        if len(dev) > 1 or (name == "judgements" and "" in words and len(words) > 1):
            raise _refuse(name, paths, folder)
        chosen[name] = [path for path in paths if not dev or find_split(path, folder) != "train"]
    of_documents = {find_split(path, folder) for path in chosen["documents"]} - {""}
    if len(of_documents) < 2:
        return ChosenFiles(chosen, False)
    asked = {SPLITS.get(word, "") for name in ("queries", "judgements") for word in words_of[name]}
    if asked <= {""}:
        raise _refuse("documents", chosen["documents"], folder)
    if split != "all":
        # Where no query is of the split, those of test are returned, which are then none of it.
        kept = ("", split if split in asked else "test")
        for name, paths in chosen.items():
            chosen[name] = [path for path in paths if find_split(path, folder) in kept]
    return ChosenFiles(chosen, True)


def _refuse(name: str, paths: Sequence[Path], folder: Path) -> DataError:
    files = ", ".join(os.path.relpath(path, folder) for path in paths)
    return DataError(
        f"{folder} has {name} of several splits, and it is not known which is meant "
        f"({files:.300}); {CHOICE}"
    )


def explain_absence(folder: Path, name: str, files: TableFiles) -> str:
    """Return the message that a folder has no file of a table."""
    listed = sorted(chain(files.others, *files.of_table.values()))
    names = (path.relative_to(folder).as_posix() for path in listed)
    has = ", ".join(map(tables.abbreviate, names)) or "no file"
    return (
        f"{folder} has no {name}: no file that can be read is called {' or '.join(WORDS[name])} "
        f"(.jsonl, .csv, .tsv, .parquet or in TREC's form); {CHOICE}: it has {has:.300}"
    )
