"""Which files of a folder are the documents, the queries, the judgements and the pools of a
collection, and of which split each is.

The files of a table are those whose names begin with one of its words (`corpus.jsonl.gz`,
`queries.dev.tsv`), have it behind a point (`robust.qrels`), or stand in a folder of that name
(`qrels/test.tsv`). All that can be read are read; every other file is named as left out.
"""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from sextant.environments.folders import list_folder
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
_ENDINGS = (
    *(".parquet", ".jsonl", ".ndjson", ".json", ".tsv", ".csv"),
    *(".txt", ".xml", ".trec", ".sgml", ".qrels"),
)
# Files of other endings, or none, are read if they begin so.
_TREC = re.compile(r"\s*<(doc|top|topics?)>", re.I)
_TREC_QRELS = re.compile(r"\S+\s+\S+\s+\S+\s+-?\d+\s*")
# Parts in the folder data/ are the default subset of a data set, as the hub's push_to_hub writes
# them; MTEB's are its judgements.
_DEFAULT_SUBSET = re.compile(r"-\d{5}-of-\d{5}\.")
# Nobody takes these for data, so they are not counted.
_ABOUT = re.compile(r"(readme|licen[cs]e|copying|notice|citation|changelog)\b", re.I)
_SPLITS = {
    "test": {"test"},
    "dev": {"dev", "development", "validation", "valid", "val"},
    "train": {"train", "training"},
}


class TableFiles(NamedTuple):
    """The files of a folder by table, and those of no table, by their paths in the folder."""

    of_table: dict[str, list[Path]]
    others: list[str]


def find_tables(folder: Path) -> TableFiles:
    """Return the files of each table in a folder and below. Hidden files are not looked at."""
    listing = list_folder(folder, follow_links=True)
    of_table = dict[str, list[Path]]()
    others = [f"{file.name}, of the {file.reason}" for file in listing.left_out]
    for path in listing.files:
        inside = path.relative_to(folder)
        name = _find_table(inside.parts)
        if name and _can_be_read(path, name):
            of_table.setdefault(name, []).append(path)
        elif str(inside) != SETTINGS and not _ABOUT.match(path.name):
            others.append(inside.as_posix())
    for paths in of_table.values():
        tables.check_parts(paths)
    return TableFiles(of_table, others)


def _find_table(parts: Sequence[str]) -> str:
    """Return the table of a file by the parts of its path; "" for none."""
    if parts[0] == "data" and len(parts) > 1:  # where the hub has them
        if table := _find_table(parts[1:]):
            return table
        is_judged = len(parts) == 2 and _DEFAULT_SUBSET.search(parts[1])
        return "judgements" if is_judged else ""
    name = parts[0].lower()
    behind_a_point = ""
    for table, words in WORDS.items():
        if len(parts) > 1:
            if name in words:
                return table
            continue
        if name.startswith(words):
            return table
        for word in words:
            if f".{word}" in name:
                behind_a_point = behind_a_point or table
    return behind_a_point


def _can_be_read(path: Path, name: str) -> bool:
    if raw_files.find_ending(path) in _ENDINGS:
        return True
    start = _TREC_QRELS if name == "judgements" else _TREC
    try:
        _, first = next(raw_files.read_lines(path), (0, ""))
    except DataError:
        return False
    return bool(start.match(first))


def list_inside(path: Path) -> list[Path]:
    """Return the files in a folder and below, or the file itself; not hidden files, or notes."""
    if not path.is_dir():
        return [path]
    listed = list_folder(path, follow_links=True).files
    return [inside for inside in listed if not _ABOUT.match(inside.name)]


@cache
def find_split(path: Path, folder: Path) -> str:
    """Return "test", "dev", "train" or "", by the path of a file in the folder."""
    words = _split_words(path, folder)
    for split, names in _SPLITS.items():
        if words & names:
            return split
    return ""


def _split_words(path: Path, folder: Path) -> set[str]:
    inside = os.path.relpath(path, folder)
    return {*re.split(r"[^a-z]+", inside.lower())}


def _list_splits(paths: Iterable[Path], folder: Path) -> list[str]:
    """Return the splits that files are of, each once."""
    return sorted({find_split(path, folder) for path in paths})


def choose_split(
    of_table: Mapping[str, Sequence[Path]], folder: Path, split: str
) -> tuple[dict[str, list[Path]], bool]:
    """Return the files of each table, of dev without those of train, and whether documents are
    kept apart by split, when only those of `split` are returned.

    DataError for splits that could be meant both.
    """
    chosen = {}
    for name, paths in of_table.items():
        splits = _list_splits(paths, folder)
        _check_splits(name, splits, paths, folder)
        chosen[name] = [*paths]
        if "dev" in splits:
            chosen[name] = [path for path in paths if find_split(path, folder) != "train"]
    of_documents = _list_splits(chosen["documents"], folder)
    of_documents = [*filter(None, of_documents)]
    if len(of_documents) < 2:
        return chosen, False
    asked = _list_splits([*chosen["queries"], *chosen["judgements"]], folder)
    if not any(asked):
        raise _refuse("documents", of_documents, chosen["documents"], folder)
    if split == "all":
        return chosen, True
    # Where no query is of the split, those of test are returned, which are then none of it.
    kept = split if split in asked else "test"
    for name, paths in chosen.items():
        chosen[name] = [path for path in paths if find_split(path, folder) in ("", kept)]
    return chosen, True


def _check_splits(
    name: str,
    splits: Sequence[str],
    paths: Sequence[Path],
    folder: Path,
) -> None:
    """Raise DataError for two splits of a table that could be meant both."""
    dev = set[str]()
    for path in paths:
        dev |= _split_words(path, folder) & _SPLITS["dev"]
    if len(dev) > 1:
        raise _refuse(name, sorted(dev), paths, folder)
    if name == "judgements" and "" in splits and len(splits) > 1:
        raise _refuse(name, ["no split", *splits[1:]], paths, folder)


def _refuse(
    name: str,
    splits: Iterable[str],
    paths: Sequence[Path],
    folder: Path,
) -> DataError:
    files = ", ".join(os.path.relpath(path, folder) for path in paths)
    several = f"{' and '.join(splits)}: {files:.300}"
    return DataError(
        f"{folder} has {name} of several splits ({several}), and it is not known which is meant; "
        f"{describe_choice(name, os.path.relpath(paths[0], folder))}"
    )


def describe_choice(name: str, file: str) -> str:
    """Return how to say which file is meant for a table."""
    key = "judgements = { gold" if name == "judgements" else f"files = {{ {name}"
    line = f'{key} = "{file}" }}'
    return f"a line `{line}` in its benchmark.toml says which"


def explain_absence(folder: Path, name: str, files: TableFiles) -> str:
    """Return the message that a folder has no file of a table."""
    for other in files.others:
        path = folder / other
        if path.is_file() and _find_table(Path(other).parts) == name:
            raw_files.check_data(path)  # which says what it is, of some
    present = [*files.others]
    for paths in files.of_table.values():
        present += [path.name for path in paths]
    has = ", ".join(map(tables.abbreviate, sorted(present))) or "no file"
    words = " or ".join(WORDS[name])
    forms = ".jsonl, .csv, .tsv, .parquet or in TREC's form"
    choice = describe_choice(name, "NAME")
    return (
        f"{folder} has no {name}: no file that can be read is called {words} ({forms}); {choice}: "
        f"it has {has:.300}"
    )
