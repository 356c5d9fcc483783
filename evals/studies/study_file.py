"""A study: its TOML file (docs/guide/study.md has the form), and the cells that the file makes.

A cell is a row, a task, and the request of a run. A row without a name is named by the fields in
which the unnamed rows differ; rows of the same name are a row, on other tasks or with other seeds.
Whether a row fits a task is known only when the task's data is there (run_cells.py).
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import ConfigDict, Field

from sextant import environments
from sextant.evals.running.request import Request
from sextant.evals.scoring.metrics import canonicalize_metric, check_metric
from sextant.tools import schemas
from sextant.tools.errors import FAULTS, UnknownName, UsageError
from sextant.tools.platform import cli_options, files
from sextant.tools.platform.installation import find_page
from sextant.tools.records import JsonMapping, JsonObject

# Fields whose value is itself a list: only a list of lists multiplies.
_LISTS = {option.name for option in fields(Request) if option.default == ()} | {"tasks"}
# Fields of a run that a row cannot have, and what sets them.
_ELSEWHERE = {
    "task": "tasks",
    "runs": "--runs",
    "shard": "sextant run --shard",
    "budget_usd": "[budget]",
    "budget_calls": "[budget]",
    "budget_tokens": "[budget]",
}
# Fields whose values need no field name in the name of a row.
_PLAIN = ("program", "retriever", "lm", "pool")
# Keys of a row that are no factor; parameters are factors one by one.
_NO_FACTORS = ("name", "seed", "tasks", "parameters")


@dataclass(frozen=True, kw_only=True)
class StudyFile:
    """A study, as its file has it."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")
    name: Annotated[str, Field(pattern=r"^\w[\w.+-]*$")]
    tasks: Annotated[list[str], Field(min_length=1)]
    question: str = ""
    repeats: Annotated[int, Field(ge=1)] = 1  # of each cell, with the seeds from 0 on
    fixed: JsonObject = field(default_factory=dict)
    budget: dict[Literal["usd", "calls", "tokens"], Annotated[float, Field(gt=0)]] = field(
        default_factory=dict
    )
    compare: dict[Literal["baseline", "metric"], str] = field(default_factory=dict)
    rows: JsonObject = field(default_factory=dict)
    row: list[JsonObject] = field(default_factory=list)

    @property
    def metric(self) -> str:
        """The metric of all tasks; "" for each task's own."""
        return canonicalize_metric(self.compare.get("metric", ""))


class StudyCell(NamedTuple):
    """A run of a study; the runs of a row and task differ in their seeds alone."""

    row: str
    task: str
    request: Request
    # The settings of its row in which the rows of the study differ, parameters as `NAME=`.
    factors: JsonMapping


class StudyRow(NamedTuple):
    """A row and seed of a study: what is set for a run, by the names of a request's fields."""

    name: str
    settings: JsonObject
    factors: JsonMapping


def read_study(file: Path) -> StudyFile:
    """Return the study of a TOML file. DataError for no TOML, UsageError for another form."""
    guide = find_page("docs/guide/study.md")
    try:
        return schemas.build_dataclass(
            StudyFile, files.load_toml(file, f"; {guide} has an example")
        )
    except ValueError as error:
        raise UsageError(f"{file}: {error}; {guide} has the form") from None


def expand_cells(study: StudyFile, runs: Path = Path("runs")) -> list[StudyCell]:
    """Return the cells of a study, row by row.

    UsageError or UnknownName for a row that no run can be asked for.
    """
    if study.metric:
        check_metric(study.metric)
    rows = _name_rows(study)
    row_names = list(dict.fromkeys(row.name for row in rows))
    if (baseline := study.compare.get("baseline", row_names[0])) not in row_names:
        raise UnknownName("row of the study", baseline, row_names)
    tasks = _list_tasks(study, study.tasks)
    shared: JsonObject = {
        "runs": runs,
        **{f"budget_{unit}": most for unit, most in study.budget.items()},
    }
    cells: list[StudyCell] = []
    first = dict[tuple[str, str], Request]()
    for row in rows:
        for task in _list_tasks(study, row.settings.get("tasks", ())) or tasks:
            if task not in tasks:
                raise UnknownName("task of the study", task, tasks)
            try:
                request = _make_request(task, row.settings | shared)
            except UsageError as error:
                raise error.saying(f"row {row.name!r}: {error}") from None
            cell = StudyCell(row.name, task, request, row.factors)
            plain = _without_seed(request)
            if cell in cells or plain != first.setdefault((row.name, task), plain):
                raise UsageError(
                    f"two rows are called {row.name!r} on {task}; give each a name of its own"
                )
            cells.append(cell)
    return cells


def _make_request(task: str, settings: JsonMapping) -> Request:
    # Of a task that is a place of data, `data` is for the other tasks.
    left_out = {"name", "tasks", "data" if environments.is_place(task) else ""}
    of_task = {key: value for key, value in settings.items() if key not in left_out}
    request = cli_options.make_request(Request, of_task | {"task": task})
    with suppress(*FAULTS):  # a file that is not there is no reason to refuse the other rows
        request.check_names()
    return request


def _without_seed(request: Request) -> Request:
    parameters = {key: value for key, value in request.parameters.items() if key != "seed"}
    return replace(request, seed=None, parameters=parameters)


def _list_tasks(study: StudyFile, names: Sequence[str]) -> list[str]:
    """Return the full names of tasks, or the places of data of the user's own, each once."""
    full_names = dict[str, None]()
    for name in files.hide_folders(names):
        for task in list_tasks(name):
            if not environments.is_place(task):
                task, _ = environments.locate_task(task, study.fixed.get("data"))
            full_names[task] = None
    return list(full_names)


def list_tasks(name: str) -> list[str]:
    """Return the tasks that a name with a * stands for; a place of data, or another task, alone."""
    return [name] if environments.is_place(name) else environments.expand_tasks(name)


def _expand_rows(study: StudyFile) -> Iterable[JsonObject]:
    """Yield the settings of every row and seed."""
    listed = [study.rows] if study.rows or not study.row else []
    for row in [*listed, *study.row]:
        for key in study.fixed | row:
            if key in _ELSEWHERE:
                raise UsageError(
                    f"{key} is no field of a row of a study; it is set by {_ELSEWHERE[key]}"
                )
        seeds: JsonObject = {"seed": list(range(study.repeats))} if study.repeats > 1 else {}
        for settings in _multiply(seeds | study.fixed | row):
            for parameters in _multiply(settings.get("parameters", {})):
                yield settings | {"parameters": parameters}


def _name_rows(study: StudyFile) -> list[StudyRow]:
    """Return every row and seed of a study."""
    expanded = list(_expand_rows(study))
    factors = [_list_factors(settings) for settings in expanded]
    unnamed = [
        flat for flat, settings in zip(factors, expanded, strict=True) if "name" not in settings
    ]
    named_by = _list_varied(unnamed) or ["program"]
    varied = _list_varied(factors)
    rows = []
    for flat, settings in zip(factors, expanded, strict=True):
        words = []
        for key in named_by:
            if key in flat:
                words.append(
                    f"{flat[key]}" if key in _PLAIN else f"{key.removesuffix('=')}={flat[key]}"
                )
        described = files.hide_folders(" ".join(words) or str(flat.get("program", "")))
        rows.append(
            StudyRow(
                str(settings.get("name") or described),
                settings,
                {key: flat.get(key) for key in varied},
            )
        )
    return rows


def _list_varied(rows: Sequence[JsonMapping]) -> list[str]:
    """Return the keys in whose values rows differ."""
    keys = dict.fromkeys(key for row in rows for key in row)
    return [key for key in keys if len({str(row.get(key)) for row in rows}) > 1]


def _multiply(row_fields: JsonMapping) -> list[JsonObject]:
    """Return the fields with each combination of the values that are listed for them."""
    choices: list[list[Any]] = []
    for key, value in row_fields.items():
        is_listed = isinstance(value, list) and (
            key not in _LISTS or any(isinstance(element, list) for element in value)
        )
        choices.append(value if is_listed else [value])
    return [dict(zip(row_fields, chosen, strict=True)) for chosen in product(*choices)]


def _list_factors(settings: JsonMapping) -> JsonObject:
    """Return what tells a row from others: its options but the seed, and its parameters as `NAME=`.

    A parameter may have the name of an option: `-P pool=20` and `--pool union:300`.
    """
    options = {key: value for key, value in settings.items() if key not in _NO_FACTORS}
    parameters = settings["parameters"].items()
    return options | {f"{key}=": value for key, value in parameters if key != "seed"}
