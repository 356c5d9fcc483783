"""The sources that a program, a retriever or a task depends on: its module, and all that this imports of ours.

Imports inside functions count, those under TYPE_CHECKING and tables of names ("module:attribute") do not. Of a user's
own program, a module or a file, what it imports from its own folder or package counts as well. Comments, formatting and
docstrings do not count, but for docstrings that a model is shown: of signatures, of the types of their fields, and of
functions in a module that makes tools of them. A data file counts where its name stands in the source.
"""

import ast
import hashlib
import re
import sysconfig
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from tools.names import PACKAGES, file_of

_ROOT = Path(__file__).parents[1]
_SHOWN = frozenset({"Signature", "BaseModel"})  # what is derived from these has a docstring that goes into prompts
_TOOLS = frozenset({"Tool", "ReAct", "CodeAct"})  # these show a model the docstrings of functions
_REFERENCE = re.compile(r"[\w.]+:\w+")  # "module:attribute"
_FILE = re.compile(r"[\w-]+\.(?!py$)\w+")
_INSTALLED = {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib", "stdlib")}


class _Class(NamedTuple):
    name: str
    bases: frozenset[str]
    types: frozenset[str]  # words in the types of its fields
    docstring: str


class Module(NamedTuple):
    """What one file contributes."""

    code: str  # without comments, formatting and docstrings
    imports: tuple[tuple[str, int, tuple[str, ...]], ...]  # module, dots before it, names; no names: `import module`
    classes: tuple[_Class, ...]
    tools: str  # the docstrings of functions, where they may be shown to a model
    strings: frozenset[str]  # constants that could name a file


class Sources(NamedTuple):
    """The modules that some modules depend on, with themselves, and the libraries that all of these import."""

    modules: Mapping[str, Module]
    data: Mapping[str, Path]  # by module and name
    libraries: frozenset[str]  # names as they are imported, without submodules

    def digest(self) -> str:
        """Return eight hex digits over all that shapes an answer, whatever folder it lies in."""
        shown = _shown([one for module in self.modules.values() for one in module.classes])
        contents = {name: path.read_bytes() for name, path in self.data.items()}
        for name, module in self.modules.items():
            prompts = [one.docstring for one in module.classes if one.name in shown]
            contents[name] = "\0".join([module.code, module.tools, *prompts]).encode("utf-8", "surrogatepass")
        digest = hashlib.sha256()
        for name, content in sorted(contents.items()):
            digest.update(name.encode() + b"\0" + content + b"\0")
        return digest.hexdigest()[:8]


def reach(modules: Iterable[str], *, without: Collection[str] = (), root: Path = _ROOT) -> Sources:
    """Return the sources of `modules` and of what they import, but for packages in `without`; ours are in `root`.

    One that ends with ".py" is a file. What is imported from where libraries are installed is a library.
    """
    found, data, libraries = dict[str, Module](), dict[str, Path](), set[str]()
    pending = [_home(name, root) for name in modules]
    own = {*PACKAGES, *(name.partition(".")[0] for name, _ in pending)}
    while pending:
        name, folder = pending.pop()
        if name in found or any(name == one or name.startswith(f"{one}.") for one in without):
            continue
        installed = folder in _INSTALLED and name.partition(".")[0] not in own
        if installed or (path := _file(name, folder, root)) is None:
            libraries.add(name.partition(".")[0])
            continue
        module = found[name] = read(path)
        data |= {f"{name}/{file}": path.parent / file for file in module.strings if (path.parent / file).is_file()}
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        pending += [(imported, folder) for imported in _imported(module, package, folder, root)]
        if name.partition(".")[0] not in PACKAGES and "." in name:
            pending.append((name.rpartition(".")[0], folder))  # a user's own package may do something when imported
    return Sources(found, data, frozenset(libraries))


def _home(name: str, root: Path) -> tuple[str, Path]:
    """Return the name of a module, and the folder in which its top level lies."""
    if name.endswith(".py"):
        return Path(name).stem, file_of(name).parent
    top = name.partition(".")[0]
    spec = None if top in PACKAGES else find_spec(top)
    places = list(spec.submodule_search_locations or [spec.origin or ""]) if spec else [""]
    return name, Path(places[0]).parent if places[0] else root


def _file(name: str, folder: Path, root: Path) -> Path | None:
    """Return the file of a module: ours under `root`, others in the `folder` of their importer; else None."""
    place = (root if name.partition(".")[0] in PACKAGES else folder).joinpath(*name.split("."))
    return next((path for path in (place.with_name(f"{place.name}.py"), place / "__init__.py") if path.is_file()), None)


def _imported(module: Module, package: str, folder: Path, root: Path) -> Iterator[str]:
    for name, dots, names in module.imports:
        parents = package.split(".")
        source = ".".join([*parents[: len(parents) - dots + 1], name]).rstrip(".") if dots else name
        for full in [f"{source}.{imported}" for imported in names] or [source]:
            yield full if names and _file(full, folder, root) else source  # a submodule, or a name in the module


def _shown(classes: list[_Class]) -> frozenset[str]:
    """Return the names of classes whose docstrings go into prompts: by what they derive from, or as types of fields."""
    derived, named, before = set(_SHOWN), set[str](), -1
    while before < len(derived) + len(named):
        before = len(derived) + len(named)
        for one in classes:
            if derived & one.bases:
                derived.add(one.name)
            if one.name in derived | named:
                named |= one.types
    return frozenset(derived | named)


def read(path: Path) -> Module:
    """Return what the file contributes; it is read again only when it has changed."""
    state = path.stat()
    return _read(path, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=1024)
def _read(path: Path, modified: int, size: int) -> Module:
    tree = ast.parse(path.read_bytes())
    tree.body = [node for node in tree.body if not _is_left_out(node)]
    imports, classes = list[tuple[str, int, tuple[str, ...]]](), list[_Class]()
    functions, strings, makes_tools = list[str](), set[str](), False
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                imports += [(alias.name, 0, ()) for alias in node.names]
            case ast.ImportFrom():
                imports.append((node.module or "", node.level, tuple(alias.name for alias in node.names)))
            case ast.ClassDef():
                fields = " ".join(ast.unparse(one.annotation) for one in node.body if isinstance(one, ast.AnnAssign))
                bases = frozenset(ast.unparse(base).rpartition(".")[2] for base in node.bases)
                types = frozenset(re.findall(r"\w+", fields))
                makes_tools |= bool(bases & _TOOLS)
                classes.append(_Class(node.name, bases, types, _cut_docstring(node)))
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                functions.append(f"{node.name}: {_cut_docstring(node)}")
            case ast.Call():
                makes_tools |= getattr(node.func, "attr", getattr(node.func, "id", "")) in _TOOLS
            case ast.Constant(value=str(text)) if _FILE.fullmatch(text):
                strings.add(text)
    _cut_docstring(tree)
    code, tools = ast.dump(tree, annotate_fields=False), "\n".join(functions) if makes_tools else ""
    return Module(code, tuple(imports), tuple(classes), tools, frozenset(strings))


def _is_left_out(node: ast.stmt) -> bool:  # what is for type checkers alone, and a table of names
    if isinstance(node, ast.If):
        return ast.unparse(node.test).rpartition(".")[2] == "TYPE_CHECKING"
    table = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
    return isinstance(table, ast.Dict) and bool(table.values) and all(map(_is_reference, table.values))


def _is_reference(node: ast.expr) -> bool:
    if isinstance(node, ast.Tuple):  # the reference, and names of what is there
        return bool(node.elts) and _is_reference(node.elts[0])
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and bool(_REFERENCE.fullmatch(node.value))


def _cut_docstring(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    text = ast.get_docstring(node)
    if text is not None:
        node.body = node.body[1:] or [ast.Pass()]
    return text or ""
