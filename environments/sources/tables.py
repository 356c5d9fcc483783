"""Rows of a table, whichever of the public forms it has: JSON Lines (plain or gzipped) or Parquet."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from environments.sources import checks, jsonl
from tools.errors import DataError


def find(folder: Path, *stems: str) -> list[Path]:
    """The files of the first of `stems` that is there: `stem.jsonl`, `.jsonl.gz`, `.parquet`, or parts in `stem/`.

    DataError that lists what was looked for when none is, and for parts of which one is missing.
    """
    if found := seek(folder, *stems):
        return _of_test(found)
    raise DataError(
        f"{folder} holds no {' or '.join(f'{stem}.jsonl' for stem in stems)} (nor the same as .jsonl.gz or .parquet)"
    )


def seek(folder: Path, *stems: str) -> list[Path]:
    """Return the files of the first of `stems` that is there, complete or not; none when there is none."""
    for stem in stems:
        for ending in (".jsonl", ".jsonl.gz", ".parquet"):
            path = folder / f"{stem}{ending}"
            if path.is_file():
                return [path]
        for ending in (".parquet", ".jsonl", ".jsonl.gz"):
            if parts := sorted((folder / stem).glob(f"*{ending}")):
                return parts
    return []


def _of_test(parts: list[Path]) -> list[Path]:
    """All of `parts`, or those of the test split where that is told apart; DataError when one of a row is missing."""
    chosen = [path for path in parts if re.match(r"test\b", path.name)] or parts
    for path in chosen:
        if of := re.search(r"-(\d+)-of-(\d+)\.", path.name):
            stem = path.name[: of.start()]
            there = sum(other.name.startswith(f"{stem}-") for other in chosen)
            if there != int(of[2]):
                raise DataError(f"{path.parent} holds {there} of the {int(of[2])} parts of {stem}; fetch it again")
    numbers = [int(path.name.partition(".")[0]) for path in chosen if re.fullmatch(r"\d{4,9}\.\w+(\.gz)?", path.name)]
    if numbers and (gap := next((n for n, number in enumerate(numbers) if n != number), None)) is not None:
        raise DataError(f"{chosen[0].parent} has no part {gap:04}, but later ones; fetch it again")
    return chosen


def read_rows(paths: Sequence[Path], columns: Sequence[str] | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (where it stands, row) of each row of the files, in order; `columns` are all that a caller needs."""
    for path in paths:
        if path.suffix == ".parquet":
            yield from _parquet(path, columns)
        else:
            for number, row in jsonl.read_rows(path):
                yield f"{path}, line {number}", row


def _parquet(path: Path, columns: Sequence[str] | None) -> Iterator[tuple[str, dict[str, Any]]]:
    import pyarrow  # here, because most data is JSON Lines
    import pyarrow.parquet

    number = 0
    try:
        with pyarrow.parquet.ParquetFile(path, page_checksum_verification=True) as file:
            groups = range(file.metadata.num_row_groups)
            if sum(file.metadata.row_group(n).total_byte_size for n in groups) > jsonl.most_unpacked(path):
                raise jsonl.unpacks_too_far(str(path))
            there = set(file.schema_arrow.names)
            wanted = None if columns is None else [name for name in columns if name in there]
            for batch in file.iter_batches(batch_size=1024, columns=wanted):
                for row in batch.to_pylist():
                    number += 1
                    yield f"{path}, row {number}", row
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        reason = "".join(character if character.isprintable() else "?" for character in str(error).partition("\n")[0])
        raise DataError(
            f"{path} cannot be read as Parquet after row {number} ({reason:.200}); fetch it again"
        ) from None


def pick_column(where: str, row: dict[str, Any], *names: str) -> Any:
    """The value of the first of `names` that the row has; DataError lists the row's columns when it has none."""
    for name in names:
        if name in row:
            return row[name]
    has = ", ".join(checks.brief(name) for name in row) or "none"
    raise DataError(f"{where}: none of the columns {', '.join(names)}; it has {has:.300}")
