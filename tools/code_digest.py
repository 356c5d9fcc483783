"""Collect and hash the sources that a program, a retriever or a task depends on.

These are its module and all modules of Sextant that it imports, directly or not. Imports inside
functions count; imports under TYPE_CHECKING and tables of names ("module:attribute") do not. For a
user's own program, imports from its own folder or package count as well. Comments, formatting and
docstrings do not count, except docstrings that a model is shown: of signatures, of the types of
their fields, and of functions in a module that makes tools of them. A data file counts if its name
is in the source.

Names and folders of Sextant's files do not count either, so that a module that is moved or renamed
makes no new run: an import counts by the content of the module that it names.

The parts of a file that count are kept in __pycache__ next to it, as Python keeps bytecode: to parse
a hundred files takes longer than all searches of a small run.
"""

import ast
import hashlib
import os
import re
import sys
import sysconfig
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tools import files
from tools.plugins import PACKAGES, resolve_file

T = TypeVar("T")

_COLLECTED = frozenset(
    {
        ast.AsyncFunctionDef,
        ast.Call,
        ast.ClassDef,
        ast.Constant,
        ast.FunctionDef,
        ast.Import,
        ast.ImportFrom,
        ast.Module,
    }
)

_ROOT = Path(__file__).parents[1]
# Classes derived from these have docstrings that go into prompts.
_SHOWN = frozenset({"Signature", "BaseModel"})
# These show a model the docstrings of functions.
_TOOLS = frozenset({"Tool", "ReAct", "CodeAct"})
_REFERENCE = re.compile(r"[\w.]+:\w+")  # "module:attribute"
_FILE = re.compile(r"[\w-]+\.(?!py$)\w+")
# A text such as "tools.text:content_words".
_MODULE_IN_DUMP = re.compile(rf"'(?:{'|'.join(PACKAGES)})(?:[./]\w+)+(:\w+)?'")
_INSTALLED = {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib", "stdlib")}


class _ClassInfo(NamedTuple):
    name: str
    bases: frozenset[str]
    types: frozenset[str]  # words in the types of its fields
    docstring: str


class _Import(NamedTuple):
    module: str
    dots: int  # before the module: 0 for an absolute import
    names: tuple[str, ...]  # empty for `import module`


class _OwnImport(NamedTuple):
    module: str  # of Sextant's packages
    name: str  # in that module, or of a module in that package
    local: str  # its name in the importing module


class _Link(NamedTuple):
    target: str  # the module that an import leads to
    name: str  # the name that is imported from it; "" for the module itself
    local: str


class ParsedModule(NamedTuple):
    """The parts of a file that count."""

    # The code without comments, formatting, docstrings, and imports and names of Sextant's modules
    body: str
    own_imports: tuple[_OwnImport, ...]  # imports of Sextant's modules
    imports: tuple[_Import, ...]  # all imports
    classes: tuple[_ClassInfo, ...]
    tools: str  # docstrings of functions, if they may be shown to a model
    strings: frozenset[str]  # constants that could name a file


class SourceClosure(NamedTuple):
    """Modules with all modules that they depend on, and the libraries that these import."""

    modules: Mapping[str, ParsedModule]
    data: Mapping[str, Path]  # by module and name
    libraries: frozenset[str]  # names as they are imported, without submodules
    links: Mapping[str, tuple[_Link, ...]]  # targets of imports of Sextant's modules, by module

    def digest(self) -> str:
        """Return eight hex digits over all sources that shape an answer, whatever their files' names are.

        A module is identified by its content, and an import by the content of the imported module.
        Hence there are two rounds: the first leaves the targets of imports out.
        """
        classes = list[_ClassInfo]()
        for module in self.modules.values():
            classes += module.classes
        shown = _shown(classes)
        alone = {name: _hash(self._describe(name, shown, {})) for name in self.modules}
        contents = {self._describe(name, shown, alone) for name in self.modules}
        contents |= {path.read_bytes() for path in self.data.values()}
        digest = hashlib.sha256()
        for content in sorted(map(_hash, contents)):
            digest.update(content.encode())
        return digest.hexdigest()[:8]

    def _describe(
        self,
        name: str,
        shown: Collection[str],
        marks: Mapping[str, str],
    ) -> bytes:
        """Return the content of a module, with the docstrings of classes that are `shown` to a
        model.

        Modules that it imports stand there by their `marks`.
        """
        module = self.modules[name]
        local_marks = {}
        imports = []
        for link in self.links.get(name, ()):
            mark = marks.get(link.target, "")
            if link.name:
                imports.append(f"{mark} {link.name} {link.local}")
            else:
                local_marks[link.local] = mark
                imports.append(mark)

        def mark_module(match: re.Match[str]) -> str:
            return f"Name('={local_marks[match[1]]}', "

        body = module.body
        if local_marks:
            names = "|".join(local_marks)
            body = re.sub(rf"Name\('({names})', ", mark_module, body)
        prompts = [class_.docstring for class_ in module.classes if class_.name in shown]
        contents = [body, *sorted(set(imports)), module.tools, *prompts]
        return "\0".join(contents).encode("utf-8", "surrogatepass")


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def collect_sources(
    modules: Iterable[str], *, without: Collection[str] = (), root: Path = _ROOT
) -> SourceClosure:
    """Return the sources of `modules` and of their imports, except packages in `without`.

    A name that ends with ".py" is a file. Sextant's packages are in `root`. A module from a folder
    of installed packages is a library.
    """
    parsed = {}
    data = {}
    libraries = set()
    links = {}
    finder = _Finder(root)
    pending = [_home(name, root) for name in modules]
    packages = {*PACKAGES, *(name.partition(".")[0] for name, _ in pending)}
    while pending:
        name, folder = pending.pop()
        if name in parsed or _is_in(name, without):
            continue
        installed = folder in _INSTALLED and name.partition(".")[0] not in packages
        if installed or (path := finder.find(name, folder)) is None:
            libraries.add(name.partition(".")[0])
            continue
        module = parsed[name] = parse_module(path)
        for file_name in module.strings:
            data_path = path.parent / file_name
            if data_path.is_file():
                data[f"{name}/{file_name}"] = data_path
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        pending += [(imported, folder) for imported in _imported(module, package, folder, finder)]
        links[name] = tuple(
            _follow(own_import, folder, finder) for own_import in module.own_imports
        )
        if name.partition(".")[0] not in PACKAGES and "." in name:
            # A user's own package may run code when it is imported.
            pending.append((name.rpartition(".")[0], folder))
    return SourceClosure(parsed, data, frozenset(libraries), links)


def _is_in(name: str, packages: Collection[str]) -> bool:
    """Return whether a module is among the packages, or inside a package."""
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def _home(name: str, root: Path) -> tuple[str, Path]:
    """Return the name of a module, and the folder in which its top level lies."""
    if name.endswith(".py"):
        return Path(name).stem, resolve_file(name).parent
    top = name.partition(".")[0]
    spec = None if top in PACKAGES else find_spec(top)
    places = list(spec.submodule_search_locations or [spec.origin or ""]) if spec else [""]
    return name, Path(places[0]).parent if places[0] else root


class _Finder:
    """Finds the files of modules, each once: a name is imported in many places."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._found: dict[tuple[str, Path], Path | None] = {}

    def find(self, name: str, folder: Path) -> Path | None:
        """Return the file of a module: a module of Sextant under the root, another module in the
        `folder` of its importer; None if there is none.
        """
        top = self._root if name.partition(".")[0] in PACKAGES else folder
        if (name, top) not in self._found:
            base = f"{top}/{name.replace('.', '/')}"
            paths = (Path(f"{base}.py"), Path(f"{base}/__init__.py"))
            self._found[name, top] = next((path for path in paths if path.is_file()), None)
        return self._found[name, top]

    def is_module(
        self,
        package: str,
        name: str,
        folder: Path,
    ) -> bool:
        """Return whether a name in a package, or in a module, is a module itself."""
        file = self.find(package, folder)
        if file and file.name != "__init__.py":
            return False
        return self.find(f"{package}.{name}", folder) is not None


def _imported(
    module: ParsedModule,
    package: str,
    folder: Path,
    finder: _Finder,
) -> Iterator[str]:
    for name, dots, names in module.imports:
        parents = package.split(".")
        source = ".".join([*parents[: len(parents) - dots + 1], name]).rstrip(".") if dots else name
        if not names:
            yield source
        for imported in names:  # a submodule, or a name in the module
            is_module = finder.is_module(source, imported, folder)
            yield f"{source}.{imported}" if is_module else source


def _follow(
    imported: _OwnImport,
    folder: Path,
    finder: _Finder,
) -> _Link:
    if finder.is_module(imported.module, imported.name, folder):
        return _Link(f"{imported.module}.{imported.name}", "", imported.local)
    return _Link(imported.module, imported.name, imported.local)


def _shown(classes: list[_ClassInfo]) -> frozenset[str]:
    """Return the names of classes whose docstrings go into prompts: by their base classes, or as
    types of fields.
    """
    derived = set(_SHOWN)
    named = set[str]()
    before = -1
    while before < len(derived) + len(named):
        before = len(derived) + len(named)
        for class_ in classes:
            if derived & class_.bases:
                derived.add(class_.name)
            if class_.name in derived | named:
                named |= class_.types
    return frozenset(derived | named)


def parse_module(path: Path) -> ParsedModule:
    """Return the parts of a file that count; it is read again only if it has changed."""
    state = path.stat()
    return _read(path, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=1024)
def _read(
    path: Path,
    modified: int,
    size: int,
) -> ParsedModule:
    source = path.read_bytes()
    # With this file and Python, all that the parts depend on
    key = hashlib.sha256(source + _own_source()).hexdigest().encode()
    place = path.parent / "__pycache__" / f"{path.stem}.{sys.implementation.cache_tag}.parts"
    parts = _load_parts(place, key)
    if parts is None:
        parts = _parse(source)
        if not sys.dont_write_bytecode:
            _keep_parts(place, key, parts)
    return parts


@cache
def _own_source() -> bytes:
    return Path(__file__).read_bytes() + sys.version.encode()


def _load_parts(place: Path, key: bytes) -> ParsedModule | None:
    """Return the parts of a file that were kept by `_keep_parts`; None unless they are whole and of
    the same source.
    """
    with suppress(OSError, ValueError):
        kept_key, checksum, content = place.read_bytes().split(b"\n", 2)
        if kept_key == key and checksum == _checksum(content):
            return _parts_from_json(files.loads(content))
    return None


def _keep_parts(
    place: Path,
    key: bytes,
    parts: ParsedModule,
) -> None:
    """Write the parts of a file, if its folder can be written."""
    content = files.encode_row(_parts_as_json(parts))
    # No fsync: a file that is not whole is made again.
    draft = place.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
    with suppress(OSError):
        place.parent.mkdir(exist_ok=True)
        draft.write_bytes(b"\n".join((key, _checksum(content), content)))
        draft.replace(place)


def _checksum(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


def _parts_as_json(parts: ParsedModule) -> list[Any]:
    classes = [
        (class_.name, sorted(class_.bases), sorted(class_.types), class_.docstring)
        for class_ in parts.classes
    ]
    own_imports = list(map(tuple, parts.own_imports))
    imports = list(map(tuple, parts.imports))
    return [parts.body, own_imports, imports, classes, parts.tools, sorted(parts.strings)]


def _parts_from_json(fields: list[Any]) -> ParsedModule:
    body, own_imports, imports, classes, tools, strings = fields
    return ParsedModule(
        body,
        tuple(_OwnImport(*names) for names in own_imports),
        tuple(_Import(module, dots, tuple(names)) for module, dots, names in imports),
        tuple(
            _ClassInfo(name, frozenset(bases), frozenset(types), docstring)
            for name, bases, types, docstring in classes
        ),
        tools,
        frozenset(strings),
    )


def _parse(source: bytes) -> ParsedModule:
    tree = ast.parse(source)
    tree.body = [node for node in tree.body if not _is_left_out(node)]
    reader = _SourceReader()
    body = _MODULE_IN_DUMP.sub(r"'=\1'", reader.dump(tree, 0))
    functions = _by_depth(reader.functions)
    return ParsedModule(
        body,
        tuple(reader.own_imports),
        tuple(_by_depth(reader.imports)),
        tuple(_by_depth(reader.classes)),
        "\n".join(functions) if reader.makes_tools else "",
        frozenset(reader.strings),
    )


def _by_depth(entries: Iterable[tuple[int, T]]) -> list[T]:
    """Return the values of (depth in the tree, value) in the order of `ast.walk`."""
    return [value for _, value in sorted(entries, key=lambda entry: entry[0])]


class _SourceReader:
    """Dumps a tree, and collects on the way the parts of it that count by themselves.

    `ast.walk`, a NodeTransformer and `ast.dump` would do the same in three passes, which is half of
    the start of a small run. Imports from our packages are left out, which may leave a function or
    a block empty.
    """

    def __init__(self) -> None:
        self.imports = list[tuple[int, _Import]]()
        self.own_imports = list[_OwnImport]()
        self.classes = list[tuple[int, _ClassInfo]]()
        self.functions = list[tuple[int, str]]()
        self.strings = set[str]()
        self.makes_tools = False

    def dump(self, node: Any, depth: int) -> str:
        """Return what `ast.dump(node, annotate_fields=False)` of Python 3.11 does."""
        if isinstance(node, list):
            kept = [self.dump(child, depth) for child in node if not self._cut(child, depth)]
            return f"[{', '.join(kept)}]"
        if not isinstance(node, ast.AST):
            return repr(node)
        node_class = node.__class__
        names = node_class._fields
        if not names:
            return f"{node_class.__name__}()"
        if node_class in _COLLECTED:
            self._collect(node, depth)
        parts = []
        is_named = False  # fields after a field that is left out have their names
        for name in names:
            value = getattr(node, name, None)
            if value is None and getattr(node_class, name, ...) is None:
                is_named = True
            elif is_named:
                parts.append(f"{name}={self.dump(value, depth + 1)}")
            else:
                parts.append(self.dump(value, depth + 1))
        return f"{node_class.__name__}({', '.join(parts)})"

    def _cut(self, node: Any, depth: int) -> bool:
        """Return whether a node is an import from our packages, which is then collected."""
        if not isinstance(node, ast.ImportFrom) or node.level:
            return False
        module = node.module or ""
        if module.partition(".")[0] not in PACKAGES:
            return False
        self._collect(node, depth)
        for alias in node.names:
            self.own_imports.append(_OwnImport(module, alias.name, alias.asname or alias.name))
        return True

    def _collect(self, node: ast.AST, depth: int) -> None:
        match node:
            case ast.Constant(value=str(text)):
                if _FILE.fullmatch(text):
                    self.strings.add(text)
            case ast.Call():
                called = getattr(node.func, "attr", getattr(node.func, "id", ""))
                self.makes_tools |= called in _TOOLS
            case ast.Import():
                for alias in node.names:
                    self.imports.append((depth, _Import(alias.name, 0, ())))
            case ast.ImportFrom():
                names = tuple(alias.name for alias in node.names)
                self.imports.append((depth, _Import(node.module or "", node.level, names)))
            case ast.ClassDef():
                self._collect_docstring(node)
                info = _describe_class(node)
                self.makes_tools |= bool(info.bases & _TOOLS)
                self.classes.append((depth, info))
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._collect_docstring(node)
                self.functions.append((depth, f"{node.name}: {_cut_docstring(node)}"))
            case ast.Module():
                self._collect_docstring(node)
                _cut_docstring(node)

    def _collect_docstring(self, node: Any) -> None:
        """Collect a docstring as other texts; it is about to be cut."""
        first = node.body[0] if node.body else None
        if isinstance(first, ast.Expr):
            self._collect(first.value, 0)


def _describe_class(node: ast.ClassDef) -> _ClassInfo:
    """Return the description of a class, and cut its docstring from the tree."""
    bases = frozenset(ast.unparse(base).rpartition(".")[2] for base in node.bases)
    types = set()
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign):
            types.update(re.findall(r"\w+", ast.unparse(statement.annotation)))
    return _ClassInfo(node.name, bases, frozenset(types), _cut_docstring(node))


def _is_left_out(node: ast.stmt) -> bool:  # what is for type checkers alone, and a table of names
    if isinstance(node, ast.If):
        return ast.unparse(node.test).rpartition(".")[2] == "TYPE_CHECKING"
    table = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
    return (
        isinstance(table, ast.Dict) and bool(table.values) and all(map(_is_reference, table.values))
    )


def _is_reference(node: ast.expr) -> bool:
    if isinstance(node, ast.Tuple):  # the reference, and names of what is there
        return bool(node.elts) and _is_reference(node.elts[0])
    return (
        isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and bool(_REFERENCE.fullmatch(node.value))
    )


def _cut_docstring(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    text = ast.get_docstring(node)
    if text is not None:
        node.body = node.body[1:] or [ast.Pass()]
    return text or ""
