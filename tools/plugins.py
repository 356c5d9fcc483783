"""Resolve a name to an object: from a table, an installed package, or a user's own file.

    multihop              in a table of "module:attribute"
    their_agent           an entry point of an installed package, in a group such as "sextant.programs"
    my_agent.py:answer    in a file, whose folder comes first on sys.path, as of a script
    package.module:NAME   in a module that can be imported from here

Only pickers that give a `group` take more than their table.
"""

import importlib
import os
import re
import sys
import traceback
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from importlib.metadata import EntryPoint, entry_points
from importlib.util import cache_from_source, find_spec
from pathlib import Path
from typing import Any, NoReturn

from sextant.tools import user_files
from sextant.tools.errors import OwnCodeFailed, SextantError, UnknownName, UsageError
from sextant.tools.platform.files import expand_user_path
from sextant.tools.platform.installation import CONSTRUCTION, explain_missing
from sextant.tools.platform.interrupts import is_own_interrupt
from sextant.tools.user_files import is_own

PROGRAMS = "sextant.programs"  # groups of entry points
TOOLS = "sextant.tools"
RETRIEVERS = "sextant.retrievers"
TASKS = "sextant.tasks"
TELEPROMPTERS = "sextant.teleprompters"
METRICS = "sextant.metrics"
RECIPES = "sextant.recipes"
FORMATS = "sextant.formats"
PANELS = "sextant.panels"
COMMANDS = "sextant.commands"

_REFERENCE = re.compile(r"(?:.+\.py|[^\W\d]\w*(?:\.\w+)*):[^\W\d]\w*")


def is_reference(name: str) -> bool:
    """Return whether `name` is FILE.py:NAME or package.module:NAME."""
    return bool(_REFERENCE.fullmatch(name))


def display_name(name: str) -> str:
    """Return the name for outputs: a file without its folder."""
    return os.path.basename(name) if is_reference(name) else name  # noqa: PTH119  # as it was written


def list_names(table: Collection[str], group: str) -> dict[str, str]:
    """Return every name of a table, with "", and of entry points, with the package that each
    is from.
    """
    names = {}
    for name, entry_point in list_entry_points(group).items():
        if package := entry_point.dist:
            names[name] = f"from package {package.name} {package.version}"
    return names | dict.fromkeys(table, "")


def resolve(
    kind: str,
    name: str,
    table: Mapping[str, str],
    group: str = "",
) -> str:
    """Return the reference of `name`, "module:attribute" or FILE.py:NAME, without importing it.

    UnknownName for none, UsageError for a file that is not there.
    """
    if name in table:
        return table[name]
    if group and is_reference(name):
        source = name.rpartition(":")[0]
        if source.endswith(".py"):
            resolve_file(source)
        return name
    if group and name.endswith(".py"):
        raise UsageError(f"{name} is a file; say which name in it is the {kind}, as {name}:NAME")
    if entry_point := list_entry_points(group).get(name):
        return f"{entry_point.module}:{entry_point.attr}"
    raise UnknownName(kind, name, list_names(table, group))


def load_object(
    kind: str,
    name: str,
    table: Mapping[str, str],
    group: str = "",
) -> Any:
    """Import and return the object that `name` stands for.

    UsageError, with the line of a user's code, if that fails.
    """
    source, _, attribute = resolve(kind, name, table, group).rpartition(":")
    if name in table:
        return getattr(importlib.import_module(source), attribute)
    folder = str(Path.cwd())
    if not {"", folder} & {*sys.path}:  # the installed command does not add it
        sys.path.append(folder)
    _forget_edited_modules()
    module = _enter(resolve_file(source)) if source.endswith(".py") else source
    user_files.watch(find_folder(source))
    try:
        with contained():
            imported = importlib.import_module(module)
        user_files.note_sources(_list_watched_modules().values())
    except Exception as error:  # a user's module may raise anything
        reason = describe_exception(error)
        if isinstance(error, ImportError) and "relative import" in reason:
            reason += "; name it as package.module:NAME, from the folder that has the package"
        raise UsageError(f"{source} cannot be imported: {reason}") from error
    try:
        return reduce(getattr, attribute.split("."), imported)
    except AttributeError:
        raise UnknownName(
            f"{kind} in {source}",
            attribute,
            [member for member in vars(imported) if not member.startswith("_")],
        ) from None


def _forget_edited_modules() -> None:
    """Let users' modules be imported again if one was edited, or a file that they opened, as between
    two runs in a notebook.
    """
    if user_files.forget_changed():
        for name, file in _list_watched_modules().items():
            del sys.modules[name]
            # Bytecode is told from its source by seconds and size, which an edit can leave as they are.
            Path(cache_from_source(file)).unlink(missing_ok=True)
        importlib.invalidate_caches()


def _list_watched_modules() -> dict[str, str]:
    """Return the files of the modules that were imported from folders with code of users."""
    found = {}
    for name, module in list(sys.modules.items()):
        file = str(getattr(module, "__file__", None) or "")
        if name != "__main__" and user_files.is_watched(file):
            found[name] = file
    return found


def resolve_file(source: str) -> Path:
    """Return the whole path of a file as a user typed it. UsageError if there is none."""
    path = expand_user_path(source).resolve()
    if not path.is_file():
        raise UsageError(f"there is no file {source}; a name in a file of yours is FILE.py:NAME")
    return path


def find_folder(source: str) -> Path:
    """Return the folder from which FILE.py or a module is imported."""
    if source.endswith(".py"):
        return resolve_file(source).parent
    spec = find_spec(source.partition(".")[0])
    if spec is None:
        return Path.cwd()
    places = list(spec.submodule_search_locations or [spec.origin or ""])
    return Path(places[0]).parent


def describe_exception(error: BaseException) -> str:
    """Return an exception's type, message and the line of a user's own code."""
    raised = error.__cause__ if isinstance(error, WouldEndProcess) else error
    words = f"{type(raised).__name__}: {show(raised)}"
    if isinstance(error, BaseExceptionGroup):
        error = next(
            cause for cause in list_causes(error) if not isinstance(cause, BaseExceptionGroup)
        )
        words += f", first {type(error).__name__}: {show(error)}"
    return f"{words}{user_code_line(error)}"


def list_causes(error: BaseException) -> list[BaseException]:
    """Return an error, its members if it is a group, and the causes and contexts of all of them."""
    causes = dict[int, BaseException]()
    todo = deque([error])
    while todo:
        cause = todo.popleft()
        if id(cause) in causes:
            continue
        causes[id(cause)] = cause
        if isinstance(cause, BaseExceptionGroup):
            todo += cause.exceptions
        todo += [before for before in (cause.__cause__, cause.__context__) if before is not None]
    return [*causes.values()]


def release_frames(error: BaseException) -> None:
    """Have the traceback of an error, and of its causes, hold no values of the code that ended with it."""
    for cause in list_causes(error):
        traceback.clear_frames(cause.__traceback__)


# What would end the process, and the whole command, if a user's code raised it.
ENDS_PROCESS = (KeyboardInterrupt, SystemExit, GeneratorExit)


class WouldEndProcess(Exception):
    """A user's code raised its cause, such as SystemExit, which is no error elsewhere."""


@contextmanager
def contained() -> Iterator[None]:
    """Turn exceptions of a user's code that would end the process, and the whole command, into
    WouldEndProcess.
    """
    try:
        yield
    except ENDS_PROCESS as error:
        refuse_end(error)


def refuse_end(error: BaseException) -> NoReturn:
    """Raise WouldEndProcess for an exception of ENDS_PROCESS, or the exception if it is an interrupt of ours."""
    if isinstance(error, KeyboardInterrupt) and is_own_interrupt():
        raise error
    raise WouldEndProcess(f"{type(error).__name__} was raised").with_traceback(
        error.__traceback__
    ) from error


@contextmanager
def naming_failures(subject: str) -> Iterator[None]:
    """Raise OwnCodeFailed, which begins with `subject`, for an exception from a user's own code."""
    try:
        with contained():
            yield
    except Exception as error:
        if isinstance(error, SextantError) or not user_code_line(error):
            raise
        raise OwnCodeFailed(f"{subject}: {describe_exception(error)}") from error


def show(value: object) -> str:
    """Return str(value), also for a value of a user's class whose text cannot be had."""
    try:
        with contained():
            return str(value)
    except Exception as error:  # noqa: BLE001  # a user's own class may raise anything
        return f"(a {type(value).__name__} whose text cannot be shown: {type(error).__name__})"


def user_code_line(error: BaseException) -> str:
    """Return the innermost line of a user's own code that led to an error: " (my_agent.py,
    line 3)"; "" for none.
    """
    if hasattr(error, "user_line"):  # of another process
        return str(error.user_line)
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if is_own(frame.filename)]
    said = isinstance(error, SyntaxError) and str(error.filename).endswith(".py")  # in its message
    return f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own and not said else ""


def load_command(name: str, typed: str) -> Any:
    """Return the module that sextant-construction registers as a command.

    UsageError for the command as it was `typed`, and how to install it, if it is not installed.
    """
    if entry_point := list_entry_points(COMMANDS).get(name):
        return entry_point.load()
    raise UsageError(f"{typed} needs {explain_missing(CONSTRUCTION, '', CONSTRUCTION)}")


def list_entry_points(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of installed packages in a group, by name; {} for no group."""
    if not group:
        return {}
    return {entry_point.name: entry_point for entry_point in entry_points(group=group)}


def _enter(path: Path) -> str:
    """Put a file's folder first on sys.path; return the name of its module.

    UsageError if the name is taken.
    """
    name = path.stem
    there = sys.modules.get(path.stem)
    file = getattr(there, "__file__", None)
    if "." in name or (there and (file is None or Path(file).resolve() != path)):
        where = f" ({file})" if file else ""
        raise UsageError(
            f"{path.name} cannot be imported as {name!r}, which is another module{where}; rename "
            f"the file"
        )
    if sys.path[0] != str(path.parent):
        sys.path.insert(0, str(path.parent))
    return name
