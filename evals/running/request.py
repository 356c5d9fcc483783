"""A run request: every option of `sextant run` as a frozen value, with the -P parameters.

    Request(program="multihop", task="congress", split="dev", parameters={"hops": 2})

A field that is None leaves the choice to the task, the model or the program. Values are checked
when a request is made (UsageError); names are looked up in evals/running/resolve.py. `-P
name=value` sets a keyword parameter of a program's constructor, or a limit of each query, from
`LIMITS`.
"""

import difflib
import os
import shlex
from argparse import ArgumentTypeError
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from itertools import count
from pathlib import Path
from typing import Annotated, Any

from sextant import environments
from sextant.agents import AGENTS
from sextant.environments.base import COLUMNS, INSTRUCTIONS, SPLITS
from sextant.evals.run_descriptions import UNNAMED
from sextant.evals.scoring.metrics import LANGUAGE, canonicalize_metric, check_metric
from sextant.programs import PROGRAMS, SCHEMES
from sextant.tools import plugins as names
from sextant.tools import retrievers
from sextant.tools.errors import DataError, UnknownName, UsageError
from sextant.tools.models.model_spec import ModelSettings, add_scheme
from sextant.tools.models.model_spec import parse as parse_model
from sextant.tools.platform import cli_options, files
from sextant.tools.platform.cli import clock, dollars, grade, positive
from sextant.tools.platform.cli_options import (
    RELEVANT_FROM,
    Option,
    list_parameters,
    parse_name_value,
)
from sextant.tools.platform.files import InputFilePath
from sextant.tools.platform.installation import find_page
from sextant.tools.platform.system_calls import available_cores
from sextant.tools.records import JsonMapping, JsonObject, Query
from sextant.tools.retrievers import RETRIEVERS
from sextant.tools.retrievers.expressions import Expression, Expressions

SYSTEMS = PROGRAMS | AGENTS
MANY = 64  # queries at a time, of which one process would be too slow to make use
# Queries at a time of a process on a cluster, which take a fraction of a core unless the model is
# offline
EACH = 8
# Queries at a time with a real model; the offline engine is bound by this process, and gets 1
WORKERS = 8
# What one query may use -> the name of that in sextant.tools.session.Limits.
LIMITS = {
    "max_calls": "calls",
    "max_searches": "searches",
    "max_tokens": "tokens",
    "max_reads": "reads",
    "max_more": "more",
    "max_grep": "grep",
    "max_phrase": "phrase",
    "max_count": "count",
}
# Options that hold as the runs have them, where a model is asked about runs.
SETTLED = (
    "data",
    "columns",
    "qrels",
    "relevant_from",
    "instruction",
    "limit",
    "retriever",
    "k",
    "runs",
)
# The code that runs a program that is an object of this process.
OBJECTS = "sextant.programs.custom:CustomProgram"
POOL_OPTION = Option(
    "rank pools: union:300 of the retriever's first, oracle:300 and all gold, or hidden:300", "POOL"
)
PAYING = find_page("docs/guide/cost.md")
CLUSTER = find_page("docs/guide/scale.md")
_BOOLEANS = {
    "true": True,
    "yes": True,
    "1": True,
    "false": False,
    "no": False,
    "0": False,
}


def _processes(text: str) -> int | str:
    return text if text == "ray" or text.startswith("ray://") else positive(text)


# What lets the agents of a program in, by the scheme of its name: a table, as it is above this
# module.
SERVERS: dict[str, str] = {"command": "sextant.evals.serving.mcp:open_clients"}


@dataclass(frozen=True, kw_only=True)
class SharedRequest(ModelSettings):
    """Options that a run and a compilation share."""

    program: Annotated[
        str,
        Option(
            f"one of {', '.join(sorted(SYSTEMS))}; or your own: FILE.py:NAME or "
            f"package.module:NAME; or command:LINE; "
            "sextant run --program list says what each does",
            "NAME",
            missing="sextant run --program list has them",
        ),
    ]
    task: Annotated[
        str,
        Option(
            "a task, e.g. congress or obliq/congress, or a folder with data of your own; "
            + find_page("docs/guide/task.md"),
            "TASK",
            missing="sextant tasks list has the tasks",
        ),
    ]
    data: Annotated[
        str | None,
        Option("mini, full or a folder; without it full where that is fetched, else mini", "WHAT"),
    ] = None
    columns: Annotated[
        Mapping[str, str],
        Option(
            f"what your own data calls a column: {', '.join(COLUMNS)}",
            "NAME=COLUMN",
            parse_name_value,
            flag="--column",
        ),
    ] = field(default_factory=dict)
    qrels: Annotated[
        str, Option("which judgements lead, e.g. gold or pooled; all are reported", "NAME")
    ] = ""
    relevant_from: Annotated[float | None, Option(RELEVANT_FROM, "N", grade)] = None
    instruction: Annotated[
        str,
        Option(
            f"what a query says of its task: {', '.join(INSTRUCTIONS)}, a text, or a TOML file "
            f"with one for each task",
            "TEXT",
        ),
    ] = "ours"
    limit: Annotated[int | None, Option("ask only the first N queries", "N", positive)] = None
    retriever: Annotated[
        str | None,
        Option(
            f"bm25 where none is named; one of {', '.join(RETRIEVERS)}, your own as "
            f"FILE.py:CLASS, or made of them, "
            "e.g. fusion(bm25,dense); sextant retrievers",
            "SPEC",
        ),
    ] = None
    parameters: Annotated[
        JsonMapping,
        Option(
            f"a parameter of the program, or a limit of each query: {', '.join(LIMITS)}",
            "NAME=VALUE",
            parse_name_value,
            flag="-P",
        ),
    ] = field(default_factory=dict)
    k: Annotated[
        int | None,
        Option(
            "documents in a ranking; without it the task's own number, mostly 1000", "N", positive
        ),
    ] = None
    lm: Annotated[
        str,
        Option(
            "the model: offline, provider/model or MODEL@http://host:port/v1; also $SEXTANT_LM",
            "SPEC",
            add_scheme,
        ),
    ] = field(default_factory=lambda: os.environ.get("SEXTANT_LM") or "offline")
    env: Annotated[
        tuple[str, ...],
        Option(
            "hand a variable of the environment to the agent of command:LINE; repeatable", "NAME"
        ),
    ] = ()
    prices: Annotated[Path | None, Option(f"prices of your own, in TOML; {PAYING}", "FILE")] = None
    max_concurrent: Annotated[
        int | None, Option(f"queries at a time; {WORKERS}, or 1 offline", "N", positive)
    ] = None
    budget_usd: Annotated[
        float | None, Option("stop before the call after X dollars are spent", "X", dollars)
    ] = None
    budget_tokens: Annotated[
        int | None, Option("stop before the call after N tokens are spent", "N", positive)
    ] = None
    budget_calls: Annotated[int | None, Option("stop before model call N+1", "N", positive)] = None
    time_limit: Annotated[
        float | None, Option("send nothing after it: 90s, 30m, 2h", "TIME", clock)
    ] = None
    query_timeout: Annotated[
        float | None, Option("after it a query is left pending; 1h", "TIME", clock)
    ] = None
    call_timeout: Annotated[
        float | None, Option("cut a model call off after it; 10m", "TIME", clock)
    ] = None
    patience: Annotated[
        float | None, Option("how long a call that fails is tried again; 30s", "TIME", clock)
    ] = None
    no_prompts: Annotated[
        bool, Option(f"keep answers without what was sent for them; {PAYING}")
    ] = False
    runs: Annotated[Path, Option("where run folders go", "DIR")] = Path("runs")

    def __post_init__(self) -> None:
        if isinstance(self.task, Path):
            object.__setattr__(self, "task", str(self.task))
        cli_options.validate_request(self)
        resolve_program(self.program)
        if self.env and not self.program.startswith("command:"):
            raise UsageError("--env is for --program command:LINE alone; leave it out")
        if self.instruction not in INSTRUCTIONS:
            tasks = environments.expand_tasks(self.task)
            instructions = []
            for task in tasks:
                data = environments.choose_data(task, self.data, tasks)
                name, _ = environments.locate_task(task, data)
                instructions.append(environments.read_instruction(self.instruction, name))
            if len(instructions) == 1:  # else each task reads its own, where it is loaded
                object.__setattr__(self, "instruction", instructions[0])

    def check_names(self, *, task_is_loaded: bool = False) -> None:
        """Raise UsageError, or DataError for a file, where a name is in no table, before libraries are imported.

        What only an import tells is looked up in resolve.py: parameters, a user's own program, options of a retriever.
        """
        tasks = [] if task_is_loaded else self.tasks
        for task in tasks:
            environments.locate_task(task, environments.choose_data(task, self.data, tasks))
        if self.retriever is not None and "{" not in self.retriever:  # --range fills it in
            retrievers.check_kinds(self.retriever)
        parse_model(self.lm)
        for name in ("compiled", "prompts", "start"):
            file = getattr(self, name, None)
            if file is not None and not file.exists():
                raise DataError(f"--{name} {file}: there is no such file")
        for metric in getattr(self, "metrics", ()):
            check_metric(metric)

    @property
    def tasks(self) -> list[str]:
        """The tasks that are asked."""
        return [self.task]

    @property
    def program_label(self) -> str:
        """The program as outputs call it."""
        return names.display_name(label_program(self.program))

    @property
    def at_once(self) -> int:
        """Queries at a time."""
        return self.max_concurrent or (1 if self.lm == "offline" else WORKERS)


def _shard(text: str) -> str:
    number, _, count = text.partition("/")
    if number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count):
        return f"{int(number)}/{int(count)}"
    raise ArgumentTypeError("a shard is K/N, from 1/N to N/N")


@dataclass(frozen=True, kw_only=True)
class Request(SharedRequest):
    """The request of a run."""

    split: Annotated[str, Option(f"which queries: {', '.join(SPLITS)}", "SPLIT")] = "test"
    query_ids: Annotated[
        tuple[str, ...], Option("ask only this query; repeatable", "ID", flag="--query-id")
    ] = ()
    name: Annotated[
        str,
        Option(
            "what you call this version of the program, where its files cannot be seen (command:, "
            "served:, objects of Python): another name is another run",
            "NAME",
        ),
    ] = ""
    pool: Annotated[str | None, POOL_OPTION] = None
    compiled: Annotated[Path | None, Option("a program compiled by sextant compile", "FILE")] = None
    prompts: Annotated[
        Path | None,
        Option(
            "prompts of your own, in TOML; sextant prompts show NAME prints those there are",
            "FILE",
        ),
    ] = None
    cassette: Annotated[
        Path | None,
        Option(
            "answer every model call from FILE, without a key; where there is none, record it",
            "FILE",
        ),
    ] = None
    again: Annotated[
        str | None,
        Option(
            "failed: ask the queries again whose outcome is a failure", "WHICH", choices=("failed",)
        ),
    ] = None
    metrics: Annotated[
        tuple[str, ...],
        Option(f"one more than the task's own; repeatable: {LANGUAGE}", "NAME", flag="--metric"),
    ] = ()
    workers: Annotated[
        int | str | None,
        Option(
            f"processes that answer queries; 1, or from {MANY} queries at a time one a core; or "
            f"those of a Ray "
            f"cluster: ray, or ray://HOST:PORT; {CLUSTER}",
            "N",
            _processes,
        ),
    ] = None
    shard: Annotated[
        str | None,
        Option(
            f"ask every Nth query, from the Kth; budgets are each shard's own; {CLUSTER}",
            "K/N",
            _shard,
        ),
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "metrics", tuple(map(canonicalize_metric, self.metrics)))
        if self.shard and self.runs.name != (
            folder_name := f"shard-{self.shard.replace('/', '-of-')}"
        ):
            object.__setattr__(
                self, "runs", self.runs / folder_name
            )  # as SQLite shares no file among machines

    def share(self, queries: Sequence[Query]) -> Sequence[Query]:
        """Return those of a run's `queries` that this shard of it asks; all of them if
        there are no shards.
        """
        number, count = map(int, (self.shard or "1/1").split("/"))
        if count > max(1, len(queries)):
            raise UsageError(
                f"--shard {self.shard} of a run that asks {len(queries)}: make no more shards "
                f"than that"
            )
        return queries[number - 1 :: count]

    @property
    def at_once(self) -> int:
        """Queries at a time."""
        return self.max_concurrent or max(super().at_once, WORKERS if self.on_ray else self._asked)

    @property
    def on_ray(self) -> bool:
        """Whether queries are answered by the actors of a Ray cluster."""
        return str(self.workers).startswith("ray") and not self.has_own_processes

    @property
    def _asked(self) -> int:
        return int(str(self.workers)) if str(self.workers).isdigit() else 1

    @property
    def has_own_processes(self) -> bool:
        """Whether the program brings processes, so that workers would have nothing to do."""
        return self.program.partition(":")[0] in SCHEMES

    @property
    def forks(self) -> bool:
        """Whether other processes of this machine answer queries."""
        return self.processes > 1 and not self.on_ray

    @property
    def processes(self) -> int:
        """Processes that answer queries; 1 is this process alone."""
        if self.on_ray:
            return -(-self.at_once // (1 if self.lm == "offline" else EACH))
        if self.has_own_processes:
            return 1
        most = self._asked if self.workers else available_cores() if self.at_once >= MANY else 1
        return min(most, self.at_once)


# Programs that are objects of this process, as a function in a notebook: `evaluate(program=answer)`.
# What an object answers with, such as lists that it reads and settings of its parts, cannot be read
# for certain. So each `evaluate` of an object is a new run, unless the object says who it is.
_objects = dict[str, Any]()
_numbers = count(1)


@contextmanager
def registered_object(user_object: Any) -> Iterator[str]:
    """Yield a name, under which requests find the object meanwhile, as `answer@1`."""
    label = getattr(user_object, "__name__", type(user_object).__name__)
    name = f"{label}@{next(_numbers)}"
    _objects[name] = user_object
    try:
        yield name
    finally:
        del _objects[name]


def read_object_version(user_object: Any) -> str:
    """Return the `fingerprint` of an object, a text or a method that returns one; without one, a
    version that no other call has.
    """
    fingerprint = getattr(user_object, "fingerprint", None)
    if fingerprint is None:
        return f"{UNNAMED}{datetime.now():%-d %b %H:%M:%S.%f}"
    text = fingerprint() if callable(fingerprint) else fingerprint
    if not isinstance(text, str) or not text:
        raise UsageError(
            f"the fingerprint of {type(user_object).__name__} is {text!r}; it has to be a text, or "
            f"a method that returns one"
        )
    return text


def is_registered(name: str) -> bool:
    """Return whether a program's name is that of an object."""
    return name in _objects


def label_program(name: str) -> str:
    """Return a program's name for outputs; an object's name loses its number."""
    return name.rpartition("@")[0] if is_registered(name) else name


def find_object(name: str) -> Any:
    """Return the object of a name. KeyError if there is none."""
    return _objects[name]


def resolve_program(name: str) -> str:
    """Return the reference that a program's name stands for, without importing it.

    UnknownName for none.
    """
    if is_registered(name):
        return OBJECTS
    scheme, _, location = name.partition(":")
    return (
        SCHEMES[scheme]
        if scheme in SCHEMES and location
        else names.resolve("program", name, SYSTEMS, names.PROGRAMS)
    )


def find_program(name: str, env: Sequence[str] = ()) -> Any:
    """Return the constructor of a program: a class of ours, or made from a user's own object.

    `env` are the variables that an agent outside gets in addition to the usual ones.
    """
    user_object = _objects.get(name)
    if user_object is None:
        reference = name if name in SYSTEMS else resolve_program(name)
        user_object = names.load_object("program", reference, SYSTEMS, names.PROGRAMS)
        scheme, _, called = name.partition(":")
        if scheme in SCHEMES:
            attributes = {"__doc__": user_object.__doc__, "called": called, "env": env}
            if scheme in SERVERS:
                attributes["open_clients"] = staticmethod(partial(_open_clients, scheme))
            return type(user_object.__name__, (user_object,), attributes)
        if name in SYSTEMS:
            return user_object
    from sextant.programs.custom import make_program_class  # takes time to import

    return make_program_class(user_object, label_program(name))


def _open_clients(scheme: str) -> Any:
    return names.load_object("scheme", scheme, SERVERS)()


def parse_parameters(
    program: str,
    constructor: Any,
    assignments: JsonMapping,
    defaults: JsonMapping | None = None,
) -> JsonObject:
    """Return every parameter of the program: as `given`, or as `kept` in a compiled program, or
    with its default.

    UnknownName for another name, UsageError for a value of another type. `LIMITS` are ignored, but
    with a limit, lines of work that could be `parallel` go one after another: which of them it ends
    must not depend on their threads.
    """
    parameters = list_parameters(constructor)
    limited = query_limits(assignments)
    values = {
        name: _checked(parameter.default, parameter.annotation)
        for name, parameter in parameters.items()
    }
    for name, value in (defaults or {}).items():
        annotation: Any = parameters[name].annotation if name in parameters else None
        # As JSON has a value of the type.
        written = {float: int | float, bool: bool, int: int}.get(annotation, str)
        if not annotation or not isinstance(value, written):
            raise UsageError(
                f"the compiled program has {name}={value!r}, which {program} does not take; "
                f"compile again"
            )
        values[name] = _checked(annotation(value), annotation)
    for name, text in assignments.items():
        if name in limited:
            continue
        if name not in parameters:
            near = LIMITS if parameters else difflib.get_close_matches(name, LIMITS)
            raise UnknownName(f"parameter of {program}", name, [*parameters, *near])
        values[name] = read_value(name, str(text), parameters[name].annotation)
        if name == "parallel" and limited and values[name] > 1:
            raise UsageError(
                f"-P {name}={text} does not go with -P {next(iter(limited))}: leave it out"
            )
    if limited and "parallel" in values:
        values["parallel"] = 1
    return values


def query_limits(assignments: JsonMapping) -> dict[str, int]:
    """Return those of `LIMITS` that are `given`, in their order.

    UsageError for anything but a number from 1.
    """
    limits = {}
    for name in LIMITS:
        if name in assignments:
            limits[name] = read_value(name, str(assignments[name]), int)
            if limits[name] < 1:
                raise UsageError(f"-P '{name}={limits[name]}': a limit is at least 1")
    return limits


def apply_hints(
    values: JsonMapping, fixed: Collection[str], hints: Mapping[str, str]
) -> JsonObject:
    """Return `values` with the task's hints, for parameters that the program has and that are
    not `fixed`.
    """
    return {
        name: value if name in fixed else hints.get(name, value) for name, value in values.items()
    }


def find_retrievers(values: JsonMapping) -> list[str]:
    """Return the retrievers that the values name, each once, as canonical expressions."""
    return list(
        dict.fromkeys(
            text
            for value in values.values()
            if isinstance(value, Expression | Expressions)
            for text in Expressions(value).each()
        )
    )


def hash_input_files(values: JsonMapping) -> dict[str, str]:
    """Return the SHA-256 of every file that the values name, by parameter.

    DataError for a missing file.
    """
    digests = {}
    for name, value in values.items():
        if isinstance(value, InputFilePath) and value:
            try:
                digests[name] = files.sha256(Path(value))
            except OSError as error:
                raise DataError(
                    f"-P {name}={value} cannot be read: {error.strerror or error}"
                ) from None
    return digests


def hash_command_files(program: str) -> dict[str, str]:
    """Return the SHA-256 of every file that a `command:` line names, by its word; also after "=", and
    of the module of `-m MODULE`.
    """
    scheme, _, line = program.partition(":")
    words = shlex.split(line) if scheme == "command" else []
    digests = {}
    for before, word in zip(["", *words], words, strict=False):
        module = f"{word.replace('.', '/')}.py" if before == "-m" else ""
        for name in (word, word.partition("=")[2], module):
            # os.path.isfile takes a text of any length.
            if os.path.isfile(name):  # noqa: PTH113
                digests[name] = files.sha256(Path(name))
    return digests


def read_value(
    name: str,
    text: str,
    value_type: type,
    option: str = "-P",
) -> Any:
    """Return the value of NAME=VALUE.

    UsageError, with the option, for a value of another type.
    """
    try:
        return (
            _BOOLEANS[text.lower()]
            if value_type is bool
            else _checked(value_type(text), value_type)
        )
    except (ValueError, KeyError):
        words = {int: "a whole number", float: "a number", bool: "true or false"}[value_type]
        raise UsageError(f"{option} '{name}={text}': the value has to be {words}") from None


def _checked(value: Any, value_type: type) -> Any:
    """Return `value`; of a retriever its canonical expression, after the checks that need no
    data.
    """
    if value_type is Expression and value:
        return Expression(_canonical(value))
    if value_type is Expressions:
        return Expressions(",".join(_canonical(text) for text in Expressions(value).each()))
    return value


def _canonical(text: str) -> str:
    retrievers.validate(spec := retrievers.canonicalize(text))
    return str(spec)
