"""What a study is: its TOML file, and the cells (a row, a task and the request of a run) that the file makes.

    name = "multihop-or-not"                 # its results go to RUNS/studies/multihop-or-not/
    tasks = ["obliq/*", "crumb/legal_qa"]    # columns; suite/* is every task of a suite
    [fixed]                                  # fields of a request that all rows share
    seed = [1, 2, 3]                         # runs of one row, which are averaged query by query
    [rows]                                   # fields of a request; lists multiply, here and in [fixed]
    program = ["retrieve", "multihop"]
    [[row]]                                  # a single row, beside those of [rows]
    program = "multihop"
    parameters = { hops = 2 }
    tasks = ["obliq/congress"]               # the only columns of a row that is not for all

A row that has no name gets one of the fields in which the unnamed rows differ. Paths are as on a command line: from the
folder in which the command is given. Whether a row fits a task is known only when the task's data is there (work.py).
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import product
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

from pydantic import ConfigDict, Field

import environments
from evals.running.request import Request
from tools import forms, options
from tools.errors import DataError, UnknownName, UsageError

# Fields whose value is itself a list: only a list of lists multiplies.
_LISTS = {one.name for one in fields(Request) if one.default == ()} | {"tasks"}
_ELSEWHERE = {"task": "tasks", "runs": "--runs", **{f"budget_{of}": "[budget]" for of in ("usd", "calls", "tokens")}}
_FORM = ConfigDict(extra="forbid")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What all cells together may use, in all sittings; None is no limit."""

    __pydantic_config__: ClassVar = _FORM
    usd: Annotated[float, Field(gt=0)] | None = None
    calls: Annotated[int, Field(gt=0)] | None = None
    tokens: Annotated[int, Field(gt=0)] | None = None


@dataclass(frozen=True, kw_only=True)
class Compare:
    """What is compared with what."""

    __pydantic_config__: ClassVar = _FORM
    baseline: str = ""  # a row's name; the first row where there is none
    metric: str = ""  # each task's own where there is none


@dataclass(frozen=True, kw_only=True)
class Study:
    """A study, as its file has it."""

    __pydantic_config__: ClassVar = _FORM
    name: Annotated[str, Field(pattern=r"^\w[\w.+-]*$")]
    tasks: Annotated[list[str], Field(min_length=1)]
    question: str = ""
    fixed: dict[str, Any] = field(default_factory=dict)
    budget: Limits = Limits()
    compare: Compare = Compare()
    rows: dict[str, Any] = field(default_factory=dict)
    row: list[dict[str, Any]] = field(default_factory=list)


class Cell(NamedTuple):
    """One run of a study; those of one row and task differ in their seeds alone."""

    row: str
    task: str
    request: Request


def read(file: Path) -> Study:
    """Return the study of a TOML file. DataError for no TOML, UsageError for another form."""
    try:
        return forms.make(Study, tomllib.loads(file.read_bytes().decode("utf-8-sig")))
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeError) as error:
        raise DataError(f"{file} is not TOML: {error}; docs/guide/study.md has an example") from None
    except ValueError as error:
        raise UsageError(f"{file}: {error}; docs/guide/study.md has the form") from None


def cells(study: Study, runs: Path = Path("runs")) -> list[Cell]:
    """Return the cells of a study, row by row. UsageError or UnknownName for what no run can be asked for."""
    rows = _name_rows(study)
    made = []
    for (row, given), task in product(rows, _list_tasks(study)):
        if task not in given.get("tasks", [task]):
            continue
        given = {key: value for key, value in given.items() if key != "tasks"}
        budget = {f"budget_{name}": value for name, value in vars(study.budget).items()}
        try:
            made.append(Cell(row, task, options.make(Request, given | budget | {"task": task, "runs": runs})))
        except UsageError as error:
            raise error.saying(f"row {row!r}: {error}") from None
    if twice := [one for number, one in enumerate(made) if one in made[:number]]:
        raise UsageError(f"two rows are called {twice[0].row!r} or are the same; give each a name of its own")
    known = list(dict.fromkeys(row for row, _ in rows))
    if study.compare.baseline and study.compare.baseline not in known:
        raise UnknownName("row of the study", study.compare.baseline, known)
    return made


def _list_tasks(study: Study) -> list[str]:
    """Return the full names of the columns, each once."""
    found = []
    for name in study.tasks:
        plain, _, variant = name.partition(":")
        if plain.endswith("/*"):
            every = environments.suite(plain.removesuffix("/*")).tasks
            found += [f"{plain[:-1]}{task}{variant and ':'}{variant}" for task in every]
        else:
            found.append(name)
    data = study.fixed.get("data")
    located = [(name, *environments.locate(name, data)) for name in found]
    return list(dict.fromkeys(full if place == data else name for name, full, place in located))  # else it is a place


def _name_rows(study: Study) -> list[tuple[str, dict[str, Any]]]:
    """Return (name, fields) of every row and seed."""
    given = [study.rows] if study.rows or not study.row else []
    made = list[tuple[str, dict[str, Any]]]()
    for one in [*given, *study.row]:
        named = str(one.get("name", ""))
        whole = study.fixed | {key: value for key, value in one.items() if key != "name"}
        for key, place in _ELSEWHERE.items():
            if key in whole:
                raise UsageError(f"{key} is no field of a row of a study; it is set by {place}")
        made += [(named, asked) for asked in _multiply(whole)]
    unnamed = [_flatten(asked) for name, asked in made if not name]
    keys = dict.fromkeys(key for one in unnamed for key in one)
    differ = [key for key in keys if len({str(one.get(key)) for one in unnamed}) > 1] or ["program"]
    rows = [(name or _describe(_flatten(asked), differ), asked) for name, asked in made]
    plain: dict[str, list[dict[str, Any]]] = {}
    for name, asked in rows:
        same = plain.setdefault(name, [])
        if same and _flatten(asked) != _flatten(same[0]):
            raise UsageError(f"two rows are called {name!r}; give each a name of its own")
        same.append(asked)
    return rows


def _multiply(given: Mapping[str, Any]) -> list[dict[str, Any]]:
    choices = [[(key, one) for one in _choose(key, value)] for key, value in given.items()]
    return [dict(chosen) for chosen in product(*choices)]


def _choose(key: str, value: Any) -> Sequence[Any]:
    if key == "parameters" and isinstance(value, dict):
        return _multiply(value)
    if isinstance(value, list) and (key not in _LISTS or any(isinstance(one, list) for one in value)):
        return [made for one in value for made in _choose(key, one)] if key not in _LISTS else value
    return [value]


def _flatten(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return what tells rows apart, with the parameters one by one and without seeds."""
    inner = asked.get("parameters") or {}
    flat = {key: value for key, value in asked.items() if key != "parameters"}
    flat |= {f"parameters.{key}": value for key, value in inner.items()}
    return {key: value for key, value in flat.items() if key not in ("seed", "parameters.seed")}


def _describe(flat: Mapping[str, Any], differ: Sequence[str]) -> str:
    plain = {"program", "retriever", "lm", "pool"}
    said = [
        str(flat[key]) if key in plain else f"{key.rpartition('.')[2]}={flat[key]}" for key in differ if key in flat
    ]
    return " ".join(said) or str(flat.get("program", ""))
