"""A request's fields as the options of a command line, and back; and the checks of their values.

A request is a frozen dataclass whose fields are annotated with an `Option`. It states once the
meaning of the option, its unit, the meaning of None and the reader of its text: help, command line,
Python and the printed command use it. Other parts of a command line are in cli.py.
"""

import argparse
import inspect
import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast, get_args, get_origin, get_type_hints

from sextant.tools.errors import UnknownName, UsageError
from sextant.tools.platform.files import read_object

T = TypeVar("T")
RELEVANT_FROM = (
    "the lowest grade of a relevant document, e.g. 2; without it the task's, or every grade above 0"
)


@dataclass(frozen=True, slots=True)
class Option:
    """The meaning of a field, and the reader of its text."""

    about: str  # meaning and unit, and what None means where that is not plain
    metavar: str = ""
    read: Callable[[str], Any] | None = (
        None  # makes the value of its text, and refuses what cannot be one
    )
    choices: tuple[str, ...] = ()
    flag: str = ""  # --name-of-the-field where it is not given
    missing: str = ""  # where a user finds values of a field that has no default
    alone: str = ""  # the value that the option has where it is given without one
    whole: bool = False  # whether one text is all of a mapping
    group: str = ""  # of options that --help shows together
    # What follows is the field's own.
    name: str = ""
    kind: Any = None  # its type, without the option
    default: Any = None  # MISSING where it has to be given
    fixed: bool = True  # whether the default is the same in all surroundings

    @property
    def collects(self) -> Any:
        """`tuple` or `Mapping`, if the option may be given several times; else None."""
        origin = get_origin(self.kind)
        return origin if origin in (tuple, Mapping) and not self.whole else None

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


def _fields(request_type: Any) -> dict[str, Option]:
    options = {}
    hints = get_type_hints(request_type, include_extras=True)

    def is_grouped(request_field: Any) -> bool:
        return bool(get_args(hints[request_field.name])[1].group)

    for request_field in sorted(fields(request_type), key=is_grouped):
        name = request_field.name
        value_type, option = get_args(hints[name])
        fixed = request_field.default_factory is MISSING
        make_default: Any = request_field.default_factory
        default = request_field.default if fixed else make_default()
        options[name] = replace(
            option,
            flag=option.flag or f"--{name.replace('_', '-')}",
            name=name,
            kind=value_type,
            default=default,
            fixed=fixed,
        )
    return options


def add_options(
    parser: argparse.ArgumentParser, request_type: type, *, without: Collection[str] = ()
) -> None:
    """Add an option for every field of a request to a command line, except the fields `without`."""
    groups = {}
    for option in [option for name, option in _fields(request_type).items() if name not in without]:
        if option.group and option.group not in groups:
            groups[option.group] = parser.add_argument_group(option.group)
        settings: dict[str, Any] = {"dest": option.name, "help": option.about}
        if option.kind is bool:
            settings["action"] = "store_true"
        else:
            path = Path if Path in (option.kind, *get_args(option.kind)) else None
            settings |= {
                "metavar": option.metavar,
                "type": option.read or path,
                "choices": option.choices or None,
            }
            settings |= {"action": "append", "default": []} if option.collects else {}
            settings |= {"nargs": "?", "const": option.alone} if option.alone else {}
            if not option.collects and option.default is not MISSING:
                settings["default"] = option.default
        groups.get(option.group, parser).add_argument(option.flag, **settings)


def add_tools_option(parser: argparse.ArgumentParser) -> None:
    """Add `--tools NAMES`, which is `-P tools=NAMES`."""
    parser.add_argument(
        "--tools",
        dest="parameters",
        action="append",
        default=[],
        type=lambda names: ("tools", names),
        metavar="NAMES",
        help="-P tools=NAMES: what an agent may call, as search,more,read,grep",
    )


def list_parameters(constructor: Any) -> dict[str, inspect.Parameter]:
    """Return the parameters of a program that `-P` may set, by name: with a plain default, and a
    type that a text can have.
    """
    documented = constructor if hasattr(constructor, "__signature__") else constructor.__init__
    parameters = {}
    for name, parameter in inspect.signature(documented).parameters.items():
        types = [
            parameter.annotation,
            *get_args(parameter.annotation),
            type(parameter.default),
            str,
        ]
        if name != "depth" and isinstance(parameter.default, str | int | float | None):
            value_type = next(
                candidate
                for candidate in types
                if isinstance(candidate, type) and issubclass(candidate, int | float | str)
            )
            parameters[name] = parameter.replace(annotation=value_type)
    return parameters


def make_request(request_type: type[T], field_values: Mapping[str, Any]) -> T:
    """Make a request of the fields that are `given`; None stands for the default.

    UsageError for a field that does not exist or lacks a value.
    """
    options = _fields(request_type)
    values = {name: value for name, value in field_values.items() if value is not None}
    for name in values:
        if name not in options:
            raise UnknownName("field of a request", name, options)
    for option in options.values():
        if option.name not in values and option.default is MISSING:
            raise UsageError(
                f"{option.flag} is missing" + (f"; {option.missing}" if option.missing else "")
            )
    return request_type(**values)


def from_options(request_type: type[T], arguments: Mapping[str, Any]) -> T:
    """Return the request that a parsed command line makes; other options of the command are
    ignored.
    """
    field_values = {}
    for option in [option for name, option in _fields(request_type).items() if name in arguments]:
        field_values[option.name] = value = arguments[option.name]
        if option.collects is Mapping:
            field_values[option.name] = dict(value)  # the parser refuses a name with two values
    return make_request(request_type, field_values)


def validate_request(request: object) -> None:
    """Replace the values of a new request by checked values.

    UsageError, with the option, for a wrong value.
    """
    request_type: Any = type(request)
    options = _fields(request_type)
    try:
        checked = _model(request_type)(**{name: getattr(request, name) for name in options})
    except ValueError as error:
        first = cast(Any, error).errors()[0]
        raise UsageError(
            f"{options[first['loc'][0]].flag} {first['input']!r:.200}: "
            f"{first['msg'].removeprefix('Value error, ')}"
        ) from None
    for name, value in checked:
        object.__setattr__(request, name, value)


@lru_cache
def _model(request_type: Any) -> Any:
    from pydantic import WrapValidator, create_model  # takes longer to import than --help may

    types: Any = {
        option.name: (Annotated[option.kind, WrapValidator(option.check)], ...)
        for option in _fields(request_type).values()
    }
    return create_model(request_type.__name__, **types)


def to_command_line(request: object, leave_out: Iterable[str] = ()) -> list[str]:
    """Return the command line that makes a request, without defaults and the fields `leave_out`."""
    words = []
    for name, option in _fields(type(request)).items():
        value = getattr(request, name)
        implied = value == option.default and (option.fixed or not os.environ.get("SEXTANT_LM"))
        if name in leave_out or implied:
            continue
        if option.kind is bool:
            words.append(option.flag)
        elif option.collects is Mapping:
            words += [
                word for key, text in value.items() for word in (option.flag, f"{key}={text}")
            ]
        elif option.whole:
            words += [option.flag, json.dumps(value)]
        else:
            words += [
                word
                for item in (value if option.collects else (value,))
                for word in (option.flag, str(item))
            ]
    return words


def parse_name_value(text: str) -> tuple[str, str]:
    """An argument type: NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text!r} has no value; write name=value")
    return name, value


def json_object(text: str) -> dict[str, Any]:
    """An argument type: a JSON object."""
    if (value := read_object(text)) is None:
        raise argparse.ArgumentTypeError(
            f"{text!r:.200} is no JSON object; write it as '{{\"name\": 1}}'"
        )
    return value
