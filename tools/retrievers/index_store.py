"""Built indexes on disk, each in a folder named by its key. Knows no kind of index.

A folder is complete or absent: an index is written into a draft next to its folder, under a lock,
and moved there in a single step with the sizes and checksums of its files. So two processes that
need the same index build it once, and altered bytes are noticed. A draft outlives its process, for
the next build to go on from. Several people may write the same home.
"""

import hashlib
import json
import logging
import math
import mmap
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, TypeVar

from sextant.tools.errors import DataError, UnknownName, UsageError
from sextant.tools.platform import files as disk
from sextant.tools.platform.system_calls import reserve_space
from sextant.tools.records import JsonMapping, JsonObject
from sextant.tools.retrievers.devices import device

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

T = TypeVar("T")
IndexKey = Mapping[str, object]  # all that shapes an index

_LOG = logging.getLogger("sextant")
_MANIFEST = "index.json"
_ROWS = 8192  # that are read at a time
_ROOT = Path(__file__).parents[3]  # has the folder `sextant`


_MODELS = "sextant.tools.retrievers.neural."  # its modules load models with PyTorch


def index_code_digest(*modules: str) -> str:
    """Return a digest of the code that decides the content of an index.

    `modules` are dotted names. Only their content counts, not their names. If a module loads models
    with PyTorch, the kind of accelerator counts as well: vectors differ on it.
    """
    bodies = [
        _ROOT.joinpath(*module.split(".")).with_suffix(".py").read_text(encoding="utf-8")
        for module in modules
    ]
    texts = "\0".join(sorted(bodies))
    if any(module.startswith(_MODELS) for module in modules):
        texts += accelerator()
    return hashlib.blake2b(texts.encode(), digest_size=8).hexdigest()


def accelerator() -> str:
    """Return the kind of device that models run on, such as "cuda"; "" for the CPU."""
    if version("torch").endswith("+cpu") and "SEXTANT_DEVICE" not in os.environ:
        return ""  # without seconds of importing it
    return device().partition(":")[0].replace("cpu", "")


def open_index(
    home: Path | None,
    key: IndexKey,
    *,
    build: Callable[[Path], None],
    load: Callable[[Path], T],
    salvage: bool = False,
) -> T:
    """Load the index for `key` from under `home`; it is built first if it is not there.

    `key` must hold all that shapes the index: its kind, its parameters, the corpus fingerprint, the
    versions of the libraries, and the `index_code_digest` that makes it. `build` fills a folder, in
    which it finds the draft of a killed call, or, with `salvage`, a damaged index. Without a home,
    or with a home that cannot be written, the folder is temporary, removed when it is loaded: the
    result of `load` may keep its files open or mapped.
    """
    place = home and home / "indexes" / index_name(key)
    if place and _writable(place.parent):
        with _locked(place):
            if not _sound(place):
                if salvage and place.is_dir() and not _draft(place).exists():
                    place.rename(_draft(place))
                _build(place, key, build)
            return load(place)  # before somebody can delete it
    if place and _sound(place):  # in a home that others keep, and that may only be read
        return load(place)
    with disk.temporary_folder() as folder, _naming_room(folder):
        build(folder)
        return load(folder)


def create_memmap(path: Path, shape: tuple[int, ...], dtype: Any) -> "np.memmap[Any, Any]":
    """Make a file of zeros for an array that is filled in place. OSError if there is no room for
    all of it.

    Without room set aside, a disk that fills up later ends the process with SIGBUS.
    """
    import numpy as np  # not for --help

    try:
        array = np.lib.format.open_memmap(path, "w+", dtype, shape)
        with path.open("r+b") as file:
            reserve_space(file, array.offset, path.stat().st_size)
    except OSError as error:
        needed = math.prod(shape) * np.dtype(dtype).itemsize / 1e6
        raise OSError(
            error.errno, f"{error.strerror or error}; it needs {needed:,.1f} MB", str(path)
        ) from None
    return array


def iter_blocks(array: "NDArray[Any]") -> "Iterator[tuple[slice, NDArray[Any]]]":
    """Yield an array's rows, some thousands at a time, with their place; of a file, only
    those stay in memory.
    """
    for start in range(0, len(array), _ROWS):
        span = slice(start, start + _ROWS)
        yield span, array[span]
        drop_page_cache(array)


def drop_page_cache(array: "NDArray[Any]") -> None:
    """Give back the memory of a mapped file, which grows with all that is read or written;
    nothing is lost.
    """
    if isinstance(array.base, mmap.mmap):
        array.base.madvise(mmap.MADV_DONTNEED)


def index_name(key: IndexKey) -> str:
    """Return the name of the folder of the index for `key`."""
    digest = hashlib.blake2b(json.dumps(key, sort_keys=True).encode(), digest_size=8).hexdigest()
    return f"{key.get('kind', 'index')}-{digest}"


class StoredIndex(NamedTuple):
    """An index on disk, or its draft."""

    name: str
    key: JsonMapping  # empty for a draft that says nothing yet
    bytes: int
    finished: bool
    in_use: bool  # somebody is building it
    built: float  # seconds since 1970, of its newest file


def list_stored_indexes(home: Path) -> list[StoredIndex]:
    """Return every index and draft under `home`, by name."""
    indexes = []
    for folder in sorted((home / "indexes").glob("*")):
        finished = not folder.name.startswith(".")
        if folder.is_dir() and (finished or folder.name.endswith(".draft")):
            name = folder.name if finished else folder.name.removeprefix(".").removesuffix(".draft")
            with suppress(FileNotFoundError):
                files = list(_files(folder))
                newest = max((file.st_mtime for file in files), default=folder.stat().st_mtime)
                key = _manifest(folder).get("key")
                size = sum(file.st_size for file in files)
                in_use = _is_held(folder.with_name(name))
                indexes.append(
                    StoredIndex(
                        name, key if isinstance(key, dict) else {}, size, finished, in_use, newest
                    )
                )
    return indexes


def _files(folder: Path) -> Iterator[os.stat_result]:
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                yield (Path(parent) / name).lstat()


def delete(home: Path, name: str) -> None:
    """Remove the index called `name`, and its draft.

    UsageError if there is none, or a process uses it.
    """
    folder = home / "indexes" / name
    names = [index.name for index in list_stored_indexes(home)]
    if name not in names:
        raise UnknownName("kept index", name, names)
    with _locked(folder, wait=False):
        disk.remove(folder)
        disk.remove(_draft(folder))
        _lock(folder).unlink(missing_ok=True)  # who waits for it takes another


def _build(folder: Path, key: IndexKey, build: Callable[[Path], None]) -> None:
    draft = _draft(folder)
    started = time.monotonic()
    with _naming_room(draft):
        draft.mkdir(parents=True, exist_ok=True)
        # It has the key of the draft.
        disk.replace(draft / _MANIFEST, json.dumps({"key": key}), disk.SHARED)
        build(draft)
    files = {}
    for path in sorted(
        path for path in draft.rglob("*") if path.is_file() and path.name != _MANIFEST
    ):
        disk.sync(path)
        files[str(path.relative_to(draft))] = disk.fingerprint(path)
    manifest = {
        "key": key,
        "seconds": round(time.monotonic() - started, 3),
        "files": files,
    }
    disk.replace(draft / _MANIFEST, json.dumps(manifest, indent=1) + "\n", disk.SHARED)
    shutil.rmtree(folder, ignore_errors=True)  # a damaged one
    draft.rename(folder)
    disk.sync(folder.parent)


@contextmanager
def _naming_room(folder: Path) -> Iterator[None]:
    """Turn an OSError of the disk into a DataError with the room that is left."""
    try:
        yield
    except (ConnectionError, TimeoutError):
        raise  # of whoever fills it, not of the disk
    except OSError as error:  # NumPy's has no number for a full disk
        raise DataError(
            f"the index cannot be built in {folder}, where "
            f"{shutil.disk_usage(folder.parent).free / 1e6:,.1f} MB are free: {error}; make room "
            "there, or let $SEXTANT_HOME name another place"
        ) from error


def _sound(folder: Path) -> bool:  # every file as it was written, see `disk.check_seals`
    manifest = _manifest(folder)
    files = manifest.get("files")
    if not isinstance(files, dict):
        return False
    try:
        current = disk.check_fingerprints(folder, files)
    except ValueError as error:
        _LOG.info(f"{error}; the index is built again")
        return False
    if current != files:
        with suppress(OSError):  # a home that may only be read
            disk.replace(
                folder / _MANIFEST,
                json.dumps(manifest | {"files": current}, indent=1) + "\n",
                disk.SHARED,
            )
    return True


def _manifest(folder: Path) -> JsonObject:
    with suppress(OSError, ValueError):
        manifest = disk.loads(disk.read_input(folder / _MANIFEST))
        if isinstance(manifest, dict) and isinstance(manifest.get("key", {}), dict):
            return manifest
    return {}


def _draft(folder: Path) -> Path:  # one's own where another person's is at the common place
    draft = folder.with_name(f".{folder.name}.draft")
    if draft.exists() and not os.access(draft, os.W_OK):
        return folder.with_name(f".{folder.name}-{os.geteuid()}.draft")
    return draft


def _lock(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.lock")


def _locked(folder: Path, *, wait: bool = True) -> IO[bytes]:
    def busy() -> None:
        if not wait:
            raise UsageError(f"{folder.name} is in use by another process; wait for it or stop it")
        _LOG.info(f"another process is building {folder.name}; waiting for it")

    return disk.lock_file(_lock(folder), busy)


def _is_held(folder: Path) -> bool:
    with suppress(OSError), _lock(folder).open("rb") as file:
        return not disk.lock(file.fileno())
    return False


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError as error:
        _LOG.info(f"{folder} cannot be written ({error.strerror or error}); the index is not kept")
        return False
