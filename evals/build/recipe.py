"""recipe.toml: all that determines a benchmark, as dataclasses; a recipe's own sections are in its
file.

`write_toml` spells every default out, with what it means beside it; `read_recipe` checks what a
person made of that.
"""

import json
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

from evals.build.ingest import CorpusSettings, CutSettings
from evals.build.text_cleaning import CleanSettings
from tools import files, schemas
from tools.errors import DataError, UnknownName, UsageError
from tools.plugins import load_object, resolve

FILE = "recipe.toml"
RECIPES = {  # name -> the class of its parameters, in whose file `make` is
    "latent": "evals.build.recipes.latent:LatentRecipe",
    "recollection": "evals.build.recipes.recollection:RecollectionRecipe",
    "external": "evals.build.recipes.authorship:AuthorshipRecipe",
    "adapt": "evals.build.recipes.adapt:AdaptRecipe",
    "conditions": "evals.build.recipes.conditions:ConditionsRecipe",
    "pool": "evals.build.recipes.pool:PoolRecipe",
}


@dataclass(frozen=True)
class ModelsSettings:
    """Which model is asked; the one of --lm where a name is empty."""

    sweep: Annotated[str, "reads the whole corpus: a cheap one"] = ""
    write: Annotated[str, "writes queries, and labels and merges groups: a strong one"] = ""
    judge: Annotated[str, "judges: best of another family than the one that writes"] = ""
    stages: Annotated[dict[str, str], "another model for single stages, by name"] = field(
        default_factory=dict
    )


@dataclass(frozen=True)
class LimitsSettings:
    """How large it becomes."""

    queries: Annotated[int, "queries at most"] = 100
    min_positives: Annotated[int, "relevant documents without which a query is dropped"] = 3
    max_positives: Annotated[int, "members of a group beyond which it is divided again"] = 60


@dataclass(frozen=True)
class ReleaseSettings:
    """What is written, and what its card says."""

    name: Annotated[str, "tables call the task own/NAME; empty: the folder's name"] = ""
    objective: Annotated[str, "what counts as a find; models read it with every query"] = ""
    document: Annotated[str, "what a document is, in a few words"] = ""
    metric: Annotated[str, "the headline; empty where the recipe has its own"] = "nDCG@10"
    metrics: Annotated[list[str], "what is reported; empty where the recipe has its own"] = field(
        default_factory=lambda: ["nDCG@10", "nDCG@50", "R@10", "R@50", "R@100"]
    )
    dev: Annotated[float, "share of the queries that is kept for dev"] = 0.2
    licence: Annotated[str, "of the texts"] = ""
    source: Annotated[str, "where the texts are from"] = ""


@dataclass(frozen=True)
class Recipe:
    """What all recipes have."""

    corpus: CorpusSettings = field(default_factory=CorpusSettings)
    clean: CleanSettings = field(default_factory=CleanSettings)
    cut: CutSettings = field(default_factory=CutSettings)
    models: ModelsSettings = field(default_factory=ModelsSettings)
    limits: LimitsSettings = field(default_factory=LimitsSettings)
    release: ReleaseSettings = field(default_factory=ReleaseSettings)


def read_recipe(folder: Path) -> tuple[str, Recipe]:
    """Return the name and the parameters of the recipe in a folder. DataError where they cannot be used."""
    path = folder / FILE
    try:
        content = files.read_toml(path)
    except (FileNotFoundError, NotADirectoryError):
        mend = f"python -m evals.build new {folder} --recipe NAME writes one"
        raise UsageError(f"{folder} has no {FILE}; {mend}") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise DataError(f"{path} cannot be read as TOML: {error}") from None
    kind: type[Recipe] = load_object("recipe", name := str(content.pop("recipe", "")), RECIPES)
    try:
        return name, _make(kind, content)
    except (ValueError, UnknownName) as error:
        raise DataError(f"{path}: {error}") from None


def change(recipe: Recipe, values: Sequence[tuple[str, str]]) -> Recipe:
    """Return the recipe with other values: ("section.key", text as TOML has it; one that is none stands for itself)."""
    content = asdict(recipe)
    for name, text in values:
        section, _, key = name.partition(".")
        content.setdefault(section, {})[key] = text
        with suppress(tomllib.TOMLDecodeError):
            content[section] |= tomllib.loads(f"{json.dumps(key)} = {text}")
    try:
        return _make(type(recipe), content)
    except ValueError as error:
        raise UsageError(f"--set: {error}") from None


def _make(kind: type[Recipe], content: Mapping[str, Any]) -> Recipe:
    """Make a recipe. UnknownName for a section or a key that there is not, ValueError for a wrong value."""
    sections = get_type_hints(kind)
    for name, values in content.items():
        known = get_type_hints(resolve("section", name, sections))
        for key in values if isinstance(values, dict) else ():
            resolve(f"key of [{name}]", key, known)
    return schemas.build_dataclass(kind, content)


def write_toml(name: str, recipe: Recipe) -> str:
    """Return a recipe as TOML, with what each value means behind it."""
    lines = [f"recipe = {json.dumps(name)}"]
    for section in fields(recipe):
        value = getattr(recipe, section.name)
        hints = get_type_hints(type(value), include_extras=True)
        lines += ["", f"[{section.name}]  # {(type(value).__doc__ or '').partition(chr(10))[0]}"]
        for one in fields(value):
            lines.append(
                f"{one.name} = {schemas.to_toml(getattr(value, one.name))}  # "
                f"{get_args(hints[one.name])[1]}"
            )
    return "\n".join(lines) + "\n"
