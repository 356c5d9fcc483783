"""A program's prompts as a TOML file: `python -m programs show multihop` prints one, `--prompts FILE` takes it up.

    ["reader.next_search"]
    instructions = "Write the next search."

    ["reader.next_search".fields]
    notes = "what was found so far"

A table is a predictor, by its name in the program. What a file does not name stays as the program has it. Names and
types of fields belong to the program's code, and how DSPy puts all this into a message to DSPy; no file changes them.
"""

import inspect
import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from typing_extensions import TypedDict

from programs.compiled import BY_HAND, Compiled, Prompt, description
from tools import forms
from tools.console import plural
from tools.errors import DataError, UnknownName, UsageError


class Table(TypedDict, total=False):
    """The part of a file that is for one predictor."""

    instructions: str
    fields: dict[str, str]


def read(file: Path, program: str) -> Compiled:
    """Return the prompts of a file, for the program of that name. DataError for no TOML, UsageError for other keys."""
    show = f"python -m programs show {program} prints one"
    try:
        document = tomllib.loads(file.read_bytes().decode("utf-8-sig"))
        prompts = {name: _prompt(name, table) for name, table in _tables(document)}
    except (FileNotFoundError, IsADirectoryError):
        raise DataError(f"there is no file of prompts {file}; {show}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise DataError(f"{file} is not TOML: {error}; {show}") from None
    except (UnknownName, ValueError) as error:
        raise UsageError(f"{file}: {error}; {show}") from None
    origin = {"optimizer": BY_HAND, "edited": plural(len(prompts), "predictor"), "differs": list(prompts)}
    return Compiled(program, {}, "bm25", prompts, origin=origin)


def _tables(document: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Give the tables with their names; TOML makes tables in tables of a name with a dot that is not in quotes."""
    for name, value in document.items():
        if (
            isinstance(value, dict)
            and value
            and all(isinstance(one, dict) and key != "fields" for key, one in value.items())
        ):
            yield from _tables(value, f"{above}{name}.")
        else:
            yield above + name, value


def _prompt(name: str, table: Any) -> Prompt:
    if not isinstance(table, dict):
        raise ValueError(f"{name} stands outside of a predictor's table")
    for key in table:
        if key not in Table.__annotations__:
            raise UnknownName(f"part of a prompt ({name})", key, Table.__annotations__)
    try:
        forms.check(Table, table)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    instructions = inspect.cleandoc(table.get("instructions", ""))  # as DSPy has them
    if "instructions" in table and not instructions:
        raise ValueError(f"the instructions of {name} are empty; leave them out to keep the program's own")
    return Prompt(instructions, descriptions=table.get("fields", {}))


def describe(program: Any) -> dict[str, Table]:
    """Return the prompts of a program as a file has them, with every default."""
    return {
        name: {
            "instructions": predictor.signature.instructions,
            "fields": {key: description(key, field) for key, field in predictor.signature.fields.items()},
        }
        for name, predictor in program.named_predictors()
    }


def write_toml(name: str, program: Any) -> str:
    """Return the prompts of the program called `name` as a file to edit."""
    lines = [
        f"# The prompts of {name}, to edit; what is left out stays as it is. `evals.run --prompts FILE` takes them up,",
        "# `optimizers.compile --start FILE` starts from them. A model is shown names and types of the fields, too.",
    ]
    signatures = {name: predictor.signature for name, predictor in program.named_predictors()}
    for predictor, table in describe(program).items():
        quoted = _quote(predictor)
        lines += ["", f"[{quoted}]  # what the model is told to do", f"instructions = {_block(table['instructions'])}"]
        lines += ["", f"[{quoted}.fields]  # what it is told of each field"]
        for key, text in table["fields"].items():
            side = "shown" if key in signatures[predictor].input_fields else "asked for"
            lines.append(f"{key} = {_quote(text)}  # {side}")
    return "\n".join(lines) + "\n"


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _block(text: str) -> str:
    """Return a text on lines of its own, as it is, where TOML can have it so; else in quotes, on one line."""
    plain = "'''" not in text and all(one.isprintable() or one in "\n\t" for one in text)
    return f"'''\n{text}\n'''" if plain else _quote(text)
