"""A program's prompts as a TOML file: `sextant prompts show multihop` prints one, `--prompts
FILE` takes it up.

A table is a predictor, by its name in the program. Prompts that a file leaves out stay as the program has
it. Names and types of fields belong to the program's code, and how all this becomes a message to
DSPy: no file changes them.
"""

from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

from sextant.programs.compiled import BY_HAND, Compiled, Prompt, description
from sextant.tools import schemas
from sextant.tools.errors import UsageError
from sextant.tools.platform import files


class Table(TypedDict, total=False):
    """The part of a file that is for a predictor."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]  # as pydantic wants it

    instructions: Annotated[str, Field(pattern=r"\S")]
    fields: dict[str, str]


def read(file: Path, program: str) -> Compiled:
    """Return the prompts of a file, for the program of that name. DataError for no TOML, UsageError for other keys."""
    document = files.load_toml(file, "; `sextant prompts show` prints such a file")
    try:
        schemas.validate(dict[str, Table], document)
    except ValueError as error:
        raise UsageError(
            f"{file}: {error}; "
            'a ["predictor"] has instructions, and ["predictor".fields] a text for each'
        ) from None
    prompts = {}
    for name, table in document.items():
        prompts[name] = Prompt(table.get("instructions", ""), descriptions=table.get("fields", {}))
    return Compiled(
        program, {}, "bm25", prompts, origin={"optimizer": BY_HAND, "edited": ", ".join(prompts)}
    )


def describe(program: Any) -> dict[str, Table]:
    """Return the prompts of a program as a file has them, with every default."""
    prompts: dict[str, Table] = {}
    for name, predictor in program.named_predictors():
        prompts[name] = {
            "instructions": predictor.signature.instructions,
            "fields": {
                key: description(key, field) for key, field in predictor.signature.fields.items()
            },
        }
    return prompts


def write_toml(program: Any) -> str:
    """Return the prompts of a program as a file to edit."""
    lines = [
        "# What is left out stays as it is. A model is shown the fields' names and types, too."
    ]
    for name, predictor in program.named_predictors():
        table = describe(program)[name]
        inputs = predictor.signature.input_fields
        instructions = table["instructions"]
        # A literal string of TOML has no control characters.
        is_printable = all(
            character.isprintable() or character in "\n\t" for character in instructions
        )
        plain = "'''" not in instructions and is_printable
        block = f"'''\n{instructions}\n'''" if plain else schemas.to_toml(instructions)
        lines += [
            "",
            f"[{schemas.to_toml(name)}]  # what the model is told to do",
            f"instructions = {block}",
            "",
        ]
        lines.append(f"[{schemas.to_toml(name)}.fields]  # what it is told of each field")
        for key, text in table["fields"].items():
            lines.append(
                f"{key} = {schemas.to_toml(text)}  # {'shown' if key in inputs else 'asked for'}"
            )
    return "\n".join(lines) + "\n"
