"""A request's fields as the options of a command line, and back; and the checks of their values.

A request is a frozen dataclass whose fields are annotated with an `Option`. What an option means, its unit, what None
means and how its text is read stand there once: help, command line, Python and the printed command are made from it.
"""

import argparse
import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar, cast, get_args, get_origin, get_type_hints

from tools.errors import UnknownName, UsageError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Option:
    """What a field means, and how its text is read."""

    about: str  # meaning and unit, and what None means where that is not plain
    metavar: str = ""
    read: Callable[[str], Any] | None = None  # makes the value of its text, and refuses what cannot be one
    choices: tuple[str, ...] = ()
    flag: str = ""  # --name-of-the-field where it is not given
    missing: str = ""  # where a user finds values of a field that has no default
    once: bool = False  # whether a name may be given only once, where the field is a mapping

    def check(self, value: Any, by_type: Callable[[Any], Any]) -> Any:
        """Check a value by its type, and by `read`, which is given texts and numbers alike."""
        try:
            if isinstance(value, str) and self.read:
                return by_type(self.read(value))
            checked = by_type(value)
            if isinstance(checked, int | float) and self.read:
                self.read(str(checked))
        except argparse.ArgumentTypeError as error:
            raise ValueError(str(error)) from None
        if self.choices and checked is not None and checked not in self.choices:
            raise ValueError(f"it is one of {', '.join(self.choices)}")
        return checked


class _Field(NamedTuple):
    name: str
    option: Option
    kind: Any  # the type, without the option
    default: Any  # MISSING where it has to be given
    fixed: bool  # whether the default is the same in all surroundings

    @property
    def flag(self) -> str:
        return self.option.flag or f"--{self.name.replace('_', '-')}"

    @property
    def collects(self) -> Any:  # tuple or Mapping, where the option may be given several times
        origin = get_origin(self.kind)
        return origin if origin in (tuple, Mapping) else None


def _fields(kind: Any) -> dict[str, _Field]:
    known, hints = {}, get_type_hints(kind, include_extras=True)
    for one in fields(kind):
        own, option = get_args(hints[one.name])
        made = one.default_factory is not MISSING
        default = cast(Any, one.default_factory)() if made else one.default
        known[one.name] = _Field(one.name, option, own, default, fixed=not made)
    return known


def add_options(parser: argparse.ArgumentParser, kind: type) -> None:
    """Add an option for every field of a request to a command line."""
    for field in _fields(kind).values():
        option = field.option
        more: dict[str, Any] = {"dest": field.name, "help": option.about}
        if field.kind is bool:
            more["action"] = "store_true"
        else:
            path = Path if Path in (field.kind, *get_args(field.kind)) else None
            more |= {"metavar": option.metavar, "type": option.read or path, "choices": option.choices or None}
            more |= {"action": "append", "default": []} if field.collects else {}
            if not field.collects and field.default is not MISSING:
                more["default"] = field.default
        parser.add_argument(field.flag, **more)


def list_parameters(constructor: Any) -> dict[str, inspect.Parameter]:
    """Return what `-P` may set of a program, by name: what has a plain default, with a type that a text can be."""
    documented = constructor if hasattr(constructor, "__signature__") else constructor.__init__
    found = {}
    for name, one in inspect.signature(documented).parameters.items():
        types = [one.annotation, *get_args(one.annotation), type(one.default), str]
        if name != "depth" and isinstance(one.default, str | int | float | None):
            kind = next(kind for kind in types if isinstance(kind, type) and issubclass(kind, int | float | str))
            found[name] = one.replace(annotation=kind)
    return found


def make(kind: type[T], given: Mapping[str, Any]) -> T:
    """Make a request of the fields that are `given`; None stands for the default. UsageError for what cannot be."""
    known = _fields(kind)
    values = {name: value for name, value in given.items() if value is not None}
    for name in values:
        if name not in known:
            raise UnknownName("field of a request", name, known)
    for field in known.values():
        if field.name not in values and field.default is MISSING:
            where = f"; {field.option.missing}" if field.option.missing else ""
            raise UsageError(f"{field.flag} is missing{where}")
    return kind(**values)


def from_options(kind: type[T], arguments: Mapping[str, Any]) -> T:
    """Return the request that a parsed command line makes; other options of the command are ignored."""
    given = {}
    for field in _fields(kind).values():
        given[field.name] = value = arguments[field.name]
        if field.collects is Mapping:
            names = [name for name, _ in value]
            if field.option.once and len(names) > len(set(names)):
                twice = max(names, key=names.count)
                raise UsageError(f"{field.flag} {twice} is there twice; write all of its values in one")
            given[field.name] = dict(value)
    return make(kind, given)


def check(request: object) -> None:
    """Replace the values of a new request by checked ones. UsageError, with the option, for a wrong one."""
    kind: Any = type(request)
    known = _fields(kind)
    try:
        checked = _model(kind)(**{name: getattr(request, name) for name in known})
    except ValueError as error:
        first = cast(Any, error).errors()[0]
        flag = known[first["loc"][0]].flag
        raise UsageError(f"{flag} {first['input']!r:.200}: {first['msg'].removeprefix('Value error, ')}") from None
    for name, value in checked:
        object.__setattr__(request, name, value)


@lru_cache
def _model(kind: Any) -> Any:
    from pydantic import WrapValidator, create_model  # takes longer to import than --help may

    def typed(field: _Field) -> Any:
        return Annotated[field.kind, WrapValidator(field.option.check)], ...

    return create_model(kind.__name__, **{name: typed(field) for name, field in _fields(kind).items()})


def words(request: object, leave_out: Iterable[str] = ()) -> list[str]:
    """Return the command line that makes a request, without defaults and the fields `leave_out`."""
    found = list[str]()
    for name, field in _fields(type(request)).items():
        value = getattr(request, name)
        implied = value == field.default and (field.fixed or not os.environ.get("SEXTANT_LM"))
        if name in leave_out or implied:
            continue
        if field.kind is bool:
            found.append(field.flag)
        elif field.collects is Mapping:
            found += [word for one, text in value.items() for word in (field.flag, f"{one}={text}")]
        else:
            found += [word for one in (value if field.collects else (value,)) for word in (field.flag, str(one))]
    return found


def pair(text: str) -> tuple[str, str]:
    """An argument type: NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text!r} has no value; write name=value")
    return name, value
