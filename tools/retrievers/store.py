"""Built indexes on disk, each in a folder named by what determines it. Knows no kind of index.

A folder is complete or absent: it is written beside its place and moved there in one step, so a crash
leaves a stray temporary folder and never half an index. One that cannot be read is built again.
"""

import hashlib
import json
import shutil
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def load_or_build(
    home: Path | None,
    key: Mapping[str, object],
    *,
    build: Callable[[], T],
    save: Callable[[T, Path], None],
    load: Callable[[Path], T],
) -> T:
    """The index for `key`: loaded from under `home` when it is there, else built, saved and loaded.

    `key` must hold what shapes the index (kind, parameters, corpus fingerprint, library version); the code that
    builds it is added here, so that an edited tokenizer never meets an index that it did not make. With no
    home, or one that cannot be written, the index is built in memory.
    """
    if home is None:
        return build()
    text = json.dumps({**key, "code": _code()}, sort_keys=True)
    digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    place = home / "indexes" / f"{key.get('kind', 'index')}-{digest}"
    index = _try_load(place, load)
    if index is not None:
        return index
    index = build()
    with suppress(OSError):  # a read-only or full home costs time, not results
        _put(place, text, lambda folder: save(index, folder))
        loaded = _try_load(place, load)
        return index if loaded is None else loaded
    return index


@cache
def _code() -> str:
    """A digest over the sources that decide what an index holds: the retrievers, and what a word is."""
    here = Path(__file__).parent
    sources = [*sorted(here.glob("*.py")), here.parent / "text.py"]
    return hashlib.blake2b(b"\0".join(path.read_bytes() for path in sources), digest_size=8).hexdigest()


def _put(place: Path, key: str, save: Callable[[Path], None]) -> None:
    beside = place.with_name(f".{place.name}-{uuid.uuid4().hex}")
    beside.mkdir(parents=True)
    try:
        save(beside)
        (beside / "key.json").write_text(key + "\n", encoding="utf-8")
        try:
            beside.rename(place)
        except OSError:  # something is there: a damaged index, or that of another process, no worse than ours
            shutil.rmtree(place, ignore_errors=True)
            beside.rename(place)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _try_load(place: Path, load: Callable[[Path], T]) -> T | None:
    if not (place / "key.json").exists():
        return None
    try:
        return load(place)
    except (OSError, ValueError, KeyError, EOFError, TypeError, AttributeError):
        return None
