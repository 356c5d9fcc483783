"""Built indexes on disk, each in a folder named by what determines it. Knows no kind of index.

A folder is complete or absent: it is written beside its place and moved there in one step, so a crash
leaves a stray temporary folder and never half an index. One that cannot be read is built again.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def kept(
    home: Path | None,
    key: Mapping[str, object],
    *,
    build: Callable[[], T],
    save: Callable[[T, Path], None],
    load: Callable[[Path], T],
) -> T:
    """The index for `key`: loaded from under `home` when it is there, else built, saved and loaded.

    `key` must hold everything that shapes the index (kind, parameters, corpus fingerprint, library
    version). With no home, or one that cannot be written, the index is built in memory.
    """
    if home is None:
        return build()
    text = json.dumps(key, sort_keys=True)
    digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    place = home / "indexes" / f"{key.get('kind', 'index')}-{digest}"
    loaded = _try_load(place, load)
    if loaded is not None:
        return loaded
    index = build()
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        beside = place.with_name(f".{place.name}-{os.getpid()}")
        beside.mkdir(exist_ok=True)
        try:
            save(index, beside)
            (beside / "key.json").write_text(text + "\n", encoding="utf-8")
            shutil.rmtree(place, ignore_errors=True)  # only ever a damaged one
            beside.rename(place)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
    except OSError:
        return index  # a read-only or full home costs time, not results
    return _try_load(place, load) or index


def _try_load(place: Path, load: Callable[[Path], T]) -> T | None:
    if not (place / "key.json").exists():
        return None
    try:
        return load(place)
    except (OSError, ValueError, KeyError, EOFError):
        return None
