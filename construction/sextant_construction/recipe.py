"""recipe.toml: everything that determines a benchmark, as dataclasses; a recipe's own sections are
in its file.

`write_toml` spells every default out, with its meaning next to it; `read_recipe` checks the file
that a person made of that. A recipe is a dataclass of settings and, in the same module, a function
`build_benchmark(build)`.
"""

import importlib
import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Self, get_type_hints

from sextant.tools import plugins, schemas
from sextant.tools.errors import DataError, UnknownName, UsageError
from sextant.tools.platform import files
from sextant.tools.platform.terminal import first_sentence
from sextant_construction.ingest import CorpusSettings, CutSettings
from sextant_construction.text_cleaning import CleanSettings
from sextant_construction.types import Benchmark

FILE = "recipe.toml"
# name -> the class of its settings; the user's own recipes come from files and entry points.
RECIPES = {
    "latent": "sextant_construction.recipes.latent:LatentRecipe",
    "recollection": "sextant_construction.recipes.recollection:RecollectionRecipe",
    "external": "sextant_construction.recipes.authorship:AuthorshipRecipe",
    "adapt": "sextant_construction.recipes.adapt:AdaptRecipe",
    "conditions": "sextant_construction.recipes.conditions:ConditionsRecipe",
    "pool": "sextant_construction.recipes.pool:PoolRecipe",
}

# name -> what differs from its paper, as construction/docs/building.md has it at length.
DIFFERS = {
    "latent": "batches are shown the labels in use; labels are collapsed where they share words, "
    "not by embeddings; groups are merged if two readings agree, and a group of which more than "
    "30 % do not belong is dropped; groups with few common words are chosen, not by a model; the judge alone "
    "grades, and documents outside a group may join it; words that give answers away are looked "
    "for by rule as well; a proof's query is its member that is worded least like the others",
    "recollection": "openings alone are written again, a prompt of ours takes out what identifies, "
    "and passages that are like its own are graded",
    "external": "distractors match the lengths of the authors' texts in 20 bins, and no author is "
    "in dev and in test",
    "adapt": "of wikitext's templates infoboxes alone are read",
    "conditions": "a query with k conditions is the first k of the one with all; a judge checks "
    "every condition and every changed sentence; conditions fail from the last to the first",
    "pool": "candidates are those of the recipe's retrievers in place of BM25 and ada-002, 50 "
    "everywhere; queries of which no document meets every facet stay; a judge, not a person, tries "
    "objectives",
}


@dataclass(frozen=True)
class LimitsSettings:
    """How large it becomes."""

    queries: Annotated[int, "queries at most"] = 100
    min_positives: Annotated[int, "relevant documents without which a query is dropped"] = 3
    max_positives: Annotated[int, "members of a group beyond which it is divided again"] = 60


@dataclass(frozen=True)
class ReleaseSettings:
    """The written files, and the text of their card."""

    name: Annotated[str, "tables call the task own/NAME; empty: the folder's name"] = ""
    objective: Annotated[str, "what counts as a find; models read it with every query"] = ""
    document: Annotated[str, "what a document is, in a few words"] = ""
    metric: Annotated[str, "the headline; empty where the recipe has its own"] = "nDCG@10"
    metrics: Annotated[Sequence[str], "what is reported; empty where the recipe has its own"] = (
        "nDCG@10",
        "nDCG@50",
        "R@10",
        "R@50",
        "R@100",
    )
    dev: Annotated[float, "share of the queries that is kept for dev"] = 0.2
    dev_most: Annotated[int, "queries that are kept for dev at most; 0: any number"] = 0
    licence: Annotated[str, "of the texts"] = ""
    source: Annotated[str, "where the texts are from"] = ""


@dataclass(frozen=True)
class Recipe:
    """Common settings of all recipes."""

    corpus: CorpusSettings = CorpusSettings()
    clean: CleanSettings = CleanSettings()
    cut: CutSettings = CutSettings()
    limits: LimitsSettings = LimitsSettings()
    release: ReleaseSettings = ReleaseSettings()

    def preset(self) -> Self:
        """Return the recipe with other defaults, where some of its values ask for them."""
        return self


def load_recipe_class(name: str) -> type[Recipe]:
    """Return the settings class of a recipe of the table, FILE.py:NAME, package.module:NAME or an
    entry point.

    UnknownName for a name that there is not, UsageError for an object that is no recipe.
    """
    recipe_class = plugins.load_object("recipe", name, RECIPES, plugins.RECIPES)
    if isinstance(recipe_class, type) and issubclass(recipe_class, Recipe):
        return recipe_class
    raise UsageError(
        f"{name} is no recipe: it takes a dataclass of settings that inherits "
        "sextant_construction.recipe.Recipe"
    )


def load_builder(recipe: Recipe) -> Callable[[Any], Benchmark]:
    """Return the function `build_benchmark` of the module of a recipe. UsageError if it has none."""
    module = importlib.import_module(type(recipe).__module__)
    builder: Callable[[Any], Benchmark] | None = getattr(
        module,
        "build_benchmark",
        None,
    )
    if callable(builder):
        return builder
    raise UsageError(f"{module.__file__} has no function build_benchmark(build)")


def describe_differences(name: str) -> str:
    """Say in a line how a recipe differs from its paper; "" if it does not, or is of the user's own."""
    if name not in DIFFERS:
        return ""
    return f"{name} differs from the paper: {DIFFERS[name]} (construction/docs/building.md)"


def portable_name(name: str) -> str:
    """Return the name of a recipe as recipe.toml has it: a file with its whole path."""
    source, _, attribute = name.rpartition(":")
    if source.endswith(".py"):
        return f"{plugins.resolve_file(source)}:{attribute}"
    return name


def read_recipe(folder: Path) -> tuple[str, Recipe]:
    """Return the name and the settings of the recipe in a folder.

    UsageError if there is none, DataError if it cannot be used.
    """
    path = folder / FILE
    if not path.exists():
        remedy = f"sextant build new {folder} --recipe NAME writes one"
        raise UsageError(f"{folder} has no {FILE}; {remedy}")
    content = files.load_toml(path)
    name = str(content.pop("recipe", ""))
    recipe_class = load_recipe_class(name)
    try:
        return name, _make(recipe_class, content)
    except (ValueError, UnknownName) as error:
        raise DataError(f"{path}: {error}") from None


def change(recipe: Recipe, values: Sequence[tuple[str, str]]) -> Recipe:
    """Return the recipe with other values: ("section.key", text as TOML has it).

    A text that is no TOML stands for itself. UsageError for a value that a section cannot have.
    """
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


def _make(recipe_class: type[Recipe], content: Mapping[str, Any]) -> Recipe:
    """Make a recipe.

    UnknownName for a section or a key that there is not, ValueError for a wrong value.
    """
    sections = get_type_hints(recipe_class)
    for name, values in content.items():
        keys = get_type_hints(plugins.resolve("section", name, sections))
        for key in values if isinstance(values, dict) else ():
            plugins.resolve(f"key of [{name}]", key, keys)
    return schemas.build_dataclass(recipe_class, content)


def write_toml(name: str, recipe: Recipe) -> str:
    """Return a recipe as TOML, with the meaning of each value behind it."""
    lines = [f"recipe = {json.dumps(name)}"]
    for section in fields(recipe):
        settings = getattr(recipe, section.name)
        heading = first_sentence(type(settings).__doc__)
        hints = get_type_hints(type(settings), include_extras=True)
        lines += ["", f"[{section.name}]  # {heading}"]
        for key in (setting.name for setting in fields(settings)):
            value = schemas.to_toml(getattr(settings, key))
            meaning = getattr(
                hints[key],
                "__metadata__",
                [""],
            )[0]
            lines.append(f"{key} = {value}  # {meaning}".removesuffix("  # "))
    return "\n".join(lines) + "\n"
