"""Collect and hash the source files that a program, a retriever or a task depends on.

These are its module and all modules of Sextant that it imports, directly or not, with the data files
next to Sextant's modules that these name. Imports inside functions count; imports under
TYPE_CHECKING and tables of names ("module:attribute") do not. For a user's own program, imports from
its own folder or package count as well.
"""

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import distributions
from pathlib import Path
from typing import NamedTuple

from sextant.tools.plugins import find_folder

_ROOT = Path(__file__).parents[2]  # has the folder `sextant`
_FOR_TYPES = re.compile(
    r"^([ \t]*)if (?:typing\.)?TYPE_CHECKING:\n(?:\1[ \t]+.*\n|[ \t]*\n)+", re.MULTILINE
)
_IMPORT = re.compile(
    r"(?:^|[;:])[ \t]*(?:from[ \t]+(\.*)[ \t]*([\w.]*)[ \t]+import\b[ \t]*(\([^)]*\)|[^;\n]+)"
    r"|import[ \t]+([^;\n]+))",
    re.MULTILINE,
)
_COMMENT = re.compile(r"#.*")
_DATA_FILE = re.compile(r"""["']([\w-]+\.(?!py\b)\w+)["']""")


class SourceFiles(NamedTuple):
    """Source files with all that they depend on, and the libraries that these import."""

    # By module, those of data by module and name
    files: Mapping[str, Path]
    # Names as they are imported, without submodules
    libraries: frozenset[str]

    def digest(self) -> str:
        """Return eight hex digits over all files, with the names of their modules."""
        digest = hashlib.sha256()
        for name, path in sorted(self.files.items()):
            content = hashlib.sha256(path.read_bytes())
            digest.update(f"{name}\0".encode() + content.digest())
        return digest.hexdigest()[:8]


def collect_sources(
    modules: Iterable[str], *, without: Collection[str] = (), root: Path = _ROOT
) -> SourceFiles:
    """Return the sources of `modules` and of their imports, except packages in `without`.

    A name that ends with ".py" is a file. Sextant's packages are in `root`. A module that a
    distribution has installed is a library, unless it is among the `modules`.
    """
    files = {}
    libraries = set()
    # Modules, each with the folder that has those of a user; None for Sextant's
    pending = list[tuple[str, Path | None]]()
    for name in modules:
        folder = None if _is_ours(name) else find_folder(name)
        pending.append((Path(name).stem if name.endswith(".py") else name, folder))
    named = {name.partition(".")[0] for name, _ in pending}
    while pending:
        name, folder = pending.pop()
        if name in files or any(f"{name}.".startswith(f"{package}.") for package in without):
            continue
        top = name.partition(".")[0]
        if folder and top not in named and not _is_ours(name) and top in _list_installed(folder):
            path = None
        else:
            path = _find_module(name, root if _is_ours(name) else folder)
        if path is None:
            libraries.add(top)
            continue
        files[name] = path
        text = path.read_text(encoding="utf-8", errors="replace")
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        for module, imported in _list_imports(text, package):
            inner = f"{module}.{imported}"
            place = root if _is_ours(module) else folder
            is_module = imported and _find_module(inner, place)
            pending.append((inner if is_module else module, folder))
        if _is_ours(name):
            for file_name in _DATA_FILE.findall(text):
                data_path = path.parent / file_name
                if data_path.is_file():
                    files[f"{name}/{file_name}"] = data_path
        elif "." in name:
            # A user's own package may run code when it is imported.
            pending.append((name.rpartition(".")[0], folder))
    return SourceFiles(files, frozenset(libraries))


def _is_ours(name: str) -> bool:
    return name.partition(".")[0] == "sextant"


@cache
def _list_installed(folder: Path) -> frozenset[str]:
    """Return the modules at the top of a folder that distributions have installed, by their RECORD."""
    names = set()
    for distribution in distributions(path=[str(folder)]):
        record = distribution.read_text("RECORD") or ""
        for line in record.splitlines():
            names.add(line.partition(",")[0].partition("/")[0].partition(".")[0])
    return frozenset(names)


def _find_module(name: str, folder: Path | None) -> Path | None:
    """Return the file of a module below a folder, None if there is none."""
    if folder is None:
        return None
    base = f"{folder}/{name.replace('.', '/')}"
    paths = (Path(f"{base}.py"), Path(f"{base}/__init__.py"))
    return next((path for path in paths if path.is_file()), None)


def _list_imports(text: str, package: str) -> Iterator[tuple[str, str]]:
    """Yield each import of a source: the module, and the name that is taken from it, or ""."""
    text = _COMMENT.sub("", _FOR_TYPES.sub("", text)).replace("\\\n", " ")
    for dots, module, names, modules in _IMPORT.findall(text):
        if modules:
            for alias in modules.split(","):
                yield alias.split()[0], ""
            continue
        parents = package.split(".")
        base = parents[: len(parents) - len(dots) + 1] if dots else []
        source = ".".join(filter(None, [*base, module]))
        for alias in names.strip("() \t\r").split(","):
            if alias.strip():
                yield source, alias.split()[0]
