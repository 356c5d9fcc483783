"""A request's fields as the options of a command line, and back; and the checks of their values.

A request is a frozen dataclass whose fields are annotated with an `Option`. What an option means, its unit, what None
means and how its text is read stand there once: help, command line, Python and the printed command are made from it.
"""

import argparse
import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

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

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        from pydantic_core import core_schema  # pydantic takes longer to import than --help may

        return core_schema.no_info_wrap_validator_function(self._checked, handler(source))

    def _checked(self, value: Any, check: Callable[[Any], Any]) -> Any:
        """Return the value by its type; by `read` as well, which is given texts and numbers alike."""
        try:
            if isinstance(value, str) and self.read:
                return check(self.read(value))
            checked = check(value)
            if isinstance(checked, int | float) and self.read:
                self.read(str(checked))
        except argparse.ArgumentTypeError as error:
            raise ValueError(str(error)) from None
        if self.choices and checked is not None and checked not in self.choices:
            raise ValueError(f"it is one of {', '.join(self.choices)}")
        return checked


class _Field(NamedTuple):
    """A field of a request, with what its annotation says."""

    name: str
    option: Option
    kind: Any  # the type, without the option
    make_default: Callable[[], Any] | None  # None where it has to be given
    fixed: bool  # whether the default is the same in all surroundings

    @property
    def flag(self) -> str:
        return self.option.flag or f"--{self.name.replace('_', '-')}"

    @property
    def collects(self) -> Any:
        """A tuple or a Mapping where the option may be given several times; else None."""
        origin = get_origin(self.kind)
        return origin if origin in (tuple, Mapping) else None


def _fields(kind: Any) -> tuple[_Field, ...]:
    found, hints = [], get_type_hints(kind, include_extras=True)
    for one in dataclasses.fields(kind):
        own, option = get_args(hints[one.name])
        default = None if one.default_factory is MISSING else one.default_factory
        if one.default is not MISSING:
            default = partial(getattr, one, "default")
        found.append(_Field(one.name, option, own, default, one.default is not MISSING))
    return tuple(found)


def add_options(parser: argparse.ArgumentParser, kind: type) -> None:
    """Add an option for every field of a request to a command line."""
    for field in _fields(kind):
        option, default = field.option, field.make_default and field.make_default()
        more: dict[str, Any] = {"dest": field.name, "help": option.about}
        if field.kind is bool:
            more["action"] = "store_true"
        else:
            path = Path if Path in (field.kind, *get_args(field.kind)) else None
            more |= {"metavar": option.metavar, "type": option.read or path, "choices": option.choices or None}
            more |= {"action": "append"} if field.collects else {}
            more["default"] = [] if field.collects else default
        parser.add_argument(field.flag, **more)


def make(kind: type[T], given: Mapping[str, Any]) -> T:
    """A request with the fields that are `given`; None stands for the default. UsageError for what cannot be."""
    fields = {field.name: field for field in _fields(kind)}
    values = {name: value for name, value in given.items() if value is not None}
    for name in values:
        if name not in fields:
            raise UnknownName("field of a request", name, fields)
    for field in fields.values():
        if field.name not in values and not field.make_default:
            where = f"; {field.option.missing}" if field.option.missing else ""
            raise UsageError(f"{field.flag} is missing{where}")
    return kind(**values)


def from_options(kind: type[T], arguments: Mapping[str, Any]) -> T:
    """Return the request that a parsed command line makes; options of the command that are no field are passed over."""
    given = {field.name: arguments[field.name] for field in _fields(kind)}
    for field in _fields(kind):
        if field.collects is Mapping:
            names = [name for name, _ in given[field.name]]
            if field.option.once and len(names) > len(set(names)):
                twice = max(names, key=names.count)
                raise UsageError(f"{field.flag} {twice} is there twice; write all of its values in one")
            given[field.name] = dict(given[field.name])
    return make(kind, given)


def check(request: object) -> None:
    """Replace the values of a new request by checked ones. UsageError, which names the option, for a wrong one."""
    from pydantic import ValidationError  # takes longer to import than --help may

    kind: Any = type(request)
    try:
        checked = _model(kind)(**{field.name: getattr(request, field.name) for field in _fields(kind)})
    except ValidationError as error:
        first = error.errors()[0]
        flag = next(field.flag for field in _fields(kind) if field.name == first["loc"][0])
        raise UsageError(f"{flag} {first['input']!r}: {first['msg'].removeprefix('Value error, ')}") from None
    for name, value in checked:
        object.__setattr__(request, name, value)


@lru_cache
def _model(kind: Any) -> Any:
    """Return the pydantic model that checks the values of a request."""
    from pydantic import ConfigDict, create_model  # takes longer to import than --help may

    fields: dict[str, Any] = {name: (hint, ...) for name, hint in get_type_hints(kind, include_extras=True).items()}
    return create_model(kind.__name__, __config__=ConfigDict(extra="forbid"), **fields)


def words(request: object, leave_out: Iterable[str] = ()) -> list[str]:
    """Return the command line that makes a request, defaults left out, and so are the fields `leave_out`."""
    found = list[str]()
    for field in _fields(type(request)):
        value = getattr(request, field.name)
        implied = (
            field.make_default and value == field.make_default() and (field.fixed or not os.environ.get("SEXTANT_LM"))
        )
        if field.name in leave_out or implied:
            continue
        if field.kind is bool:
            found.append(field.flag)
        elif field.collects is Mapping:
            found += [word for name, text in value.items() for word in (field.flag, f"{name}={text}")]
        else:
            each: Sequence[Any] = value if field.collects else (value,)
            found += [word for one in each for word in (field.flag, str(one))]
    return found


def pair(text: str) -> tuple[str, str]:
    """An argument type: NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text!r} has no value; write name=value")
    return name, value
