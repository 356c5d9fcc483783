"""A study: its TOML file (docs/guide/study.md has the form), and the cells that the file makes.

A cell is a row, a task, and the request of a run. A row without a name is named by the fields in
which the unnamed rows differ; rows of the same name are a row, on other tasks or with other seeds.
Whether a row fits a task is known only when the task's data is there (work.py).
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from itertools import product
from pathlib import Path
from typing import Annotated, ClassVar, Literal, NamedTuple

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
_ELSEWHERE = {
    "task": "tasks",
    "runs": "--runs",
    "shard": "sextant run --shard",
}
_ELSEWHERE |= {f"budget_{unit}": "[budget]" for unit in ("usd", "calls", "tokens")}
# Fields whose values need no field name in the name of a row.
_PLAIN = ("program", "retriever", "lm", "pool")
# Fields that no row is named by; parameters are named one by one.
_UNNAMED = ("seed", "tasks", "parameters")


@dataclass(frozen=True, kw_only=True)
class StudyFile:
    """A study, as its file has it."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")
    name: Annotated[str, Field(pattern=r"^\w[\w.+-]*$")]
    tasks: Annotated[list[str], Field(min_length=1)]
    question: str = ""
    fixed: JsonObject = field(default_factory=dict)
    budget: dict[Literal["usd", "calls", "tokens"], Annotated[float, Field(gt=0)]] = field(
        default_factory=dict
    )
    compare: dict[Literal["baseline", "metric"], str] = field(default_factory=dict)
    rows: JsonObject = field(default_factory=dict)
    row: list[JsonObject] = field(default_factory=list)


class StudyCell(NamedTuple):
    """A run of a study; the runs of a row and task differ in their seeds alone."""

    row: str
    task: str
    request: Request


def read_study(file: Path) -> StudyFile:
    """Return the study of a TOML file. DataError for no TOML, UsageError for another form."""
    content = files.load_toml(
        file,
        f"; {find_page('docs/guide/study.md')} has an example",
    )
    try:
        return schemas.build_dataclass(StudyFile, content)
    except ValueError as error:
        raise UsageError(
            f"{file}: {error}; {find_page('docs/guide/study.md')} has the form"
        ) from None


def expand_cells(study: StudyFile, runs: Path = Path("runs")) -> list[StudyCell]:
    """Return the cells of a study, row by row.

    UsageError or UnknownName for a row that no run can be asked for.
    """
    if metric := study.compare.get("metric"):
        check_metric(canonicalize_metric(metric))
    rows = _name_rows(study)
    tasks = _list_tasks(study, study.tasks)
    shared: JsonObject = {f"budget_{name}": limit for name, limit in study.budget.items()}
    shared["runs"] = runs
    cells = []
    first = dict[tuple[str, str], Request]()
    for row, row_fields in rows:
        try:
            row_cells = _make_cells(
                study,
                row,
                row_fields,
                shared,
                tasks,
            )
        except UsageError as error:
            raise error.saying(f"row {row!r}: {error}") from None
        for cell in row_cells:
            plain = _without_seed(cell.request)
            if cell in cells or plain != first.setdefault((row, cell.task), plain):
                raise UsageError(
                    f"two rows are called {row!r} on {cell.task}; give each a name of its own"
                )
        cells += row_cells
    row_names = list(dict.fromkeys(row for row, _ in rows))
    baseline = study.compare.get("baseline", row_names[0])
    if baseline not in row_names:
        raise UnknownName("row of the study", baseline, row_names)
    return cells


def _make_cells(
    study: StudyFile,
    row: str,
    row_fields: JsonMapping,
    shared: JsonMapping,
    tasks: Sequence[str],
) -> list[StudyCell]:
    own_tasks = _list_tasks(study, row_fields["tasks"]) if "tasks" in row_fields else tasks
    settings = {key: value for key, value in row_fields.items() if key not in ("name", "tasks")}
    settings |= shared
    cells = []
    for task in own_tasks:
        if task not in tasks:
            raise UnknownName("task of the study", task, tasks)
        # `data` is for the other tasks
        without = {"data"} if environments.is_place(task) else set()
        of_task = {key: value for key, value in settings.items() if key not in without}
        request = cli_options.make_request(Request, of_task | {"task": task})
        with suppress(*FAULTS):  # a file that is not there is no reason to refuse the other rows
            request.check_names()
        cells.append(StudyCell(row, task, request))
    return cells


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


def _expand_rows(study: StudyFile) -> list[JsonObject]:
    """Return the fields of every row and seed."""
    listed = list(study.row)
    if study.rows or not study.row:
        listed.insert(0, study.rows)
    expanded = []
    for row in listed:
        row_fields = study.fixed | row
        for key in row_fields:
            if key in _ELSEWHERE:
                raise UsageError(
                    f"{key} is no field of a row of a study; it is set by {_ELSEWHERE[key]}"
                )
        for settings in _multiply(row_fields):
            for parameters in _multiply(settings.get("parameters", {})):
                expanded.append(settings | {"parameters": parameters})
    return expanded


def _name_rows(study: StudyFile) -> list[tuple[str, JsonObject]]:
    """Return the name and the fields of every row and seed."""
    expanded = _expand_rows(study)
    flat_rows = [_flatten(settings) for settings in expanded]
    unnamed = [
        flat for flat, settings in zip(flat_rows, expanded, strict=True) if "name" not in settings
    ]
    keys = dict.fromkeys(key for flat in unnamed for key in flat)
    differ = [key for key in keys if len({str(flat.get(key)) for flat in unnamed}) > 1]
    named = []
    for flat, settings in zip(flat_rows, expanded, strict=True):
        words = []
        for key in differ or ["program"]:
            if key in flat:
                label = "" if key in _PLAIN else f"{key.removesuffix('=')}="
                words.append(f"{label}{flat[key]}")
        described = files.hide_folders(" ".join(words) or str(flat.get("program", "")))
        named.append((str(settings.get("name") or described), settings))
    return named


def _multiply(row_fields: JsonMapping) -> list[JsonObject]:
    """Return the fields with each combination of the values that are listed for them."""
    choices = []
    for key, value in row_fields.items():
        is_listed = isinstance(value, list) and (
            key not in _LISTS or any(isinstance(element, list) for element in value)
        )
        choices.append([(key, choice) for choice in (value if is_listed else [value])])
    return [dict(chosen) for chosen in product(*choices)]


def _flatten(settings: JsonMapping) -> JsonObject:
    """Return the settings that a row can be named by: its options but the seed, and its parameters as `NAME=`.

    A parameter may have the name of an option: `-P pool=20` and `--pool union:300`.
    """
    options = {key: value for key, value in settings.items() if key not in _UNNAMED}
    parameters = {
        f"{key}=": value for key, value in settings["parameters"].items() if key != "seed"
    }
    return options | parameters
