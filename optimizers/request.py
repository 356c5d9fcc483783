"""The request of a compilation: everything that `sextant compile` can be asked for, as a
frozen value.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

from sextant.environments import choose_data, expand_tasks
from sextant.evals.running.request import POOL_OPTION, Request, SharedRequest
from sextant.tools.platform.cli import positive
from sextant.tools.platform.cli_options import Option, parse_name_value
from sextant.tools.plugins import TELEPROMPTERS, display_name, resolve

EFFORT = ("light", "medium", "heavy")
# The names in optimizers/teleprompters.py, which takes seconds to import.
OPTIMIZERS = (
    "labeled",
    "bootstrap",
    "bootstrap_rs",
    "knn",
    "mipro",
    "copro",
    "simba",
    "gepa",
    "infer_rules",
    "better_together",
    "ensemble",
    "tune",
    "objective",
)
# The value of --held-out without a value: the test queries of the tasks that are compiled on.
SAME = "same"
# Optimizers that write no prompts from training queries.
UNTRAINED = ("ensemble", "tune")
_LIST = "sextant compile --optimizer list"


@dataclass(frozen=True, kw_only=True)
class CompileRequest(SharedRequest):
    """The request of a compilation. `lm` is the student, `limit` the number of dev queries."""

    optimizer: Annotated[
        str,
        Option(
            f"list, or one of {', '.join(OPTIMIZERS)}; your own: FILE.py:NAME or package.module:NAME",
            "NAME",
            missing=f"{_LIST} has them",
        ),
    ]
    budget: Annotated[
        str,
        Option(
            "how much an optimizer tries: light, medium or heavy; -O sets each number",
            "HOW",
            choices=EFFORT,
        ),
    ] = "light"
    options: Annotated[
        Mapping[str, Any],
        Option("an option of the optimizer", "NAME=VALUE", parse_name_value, flag="-O"),
    ] = field(default_factory=dict)
    teacher: Annotated[
        str | None, Option("a model that makes demonstrations in the student's place", "SPEC")
    ] = None
    prompt_lm: Annotated[
        str | None,
        Option("a model that writes instructions; the student where none is named", "SPEC"),
    ] = None
    pool: Annotated[str | None, POOL_OPTION] = None
    metric: Annotated[
        str, Option("a metric of the task; nDCG@10 where the task has it, else its own", "NAME")
    ] = ""
    price: Annotated[
        float, Option("what a thousand tokens of a query take off its metric", "X", float)
    ] = 0.0
    train_share: Annotated[
        float, Option("share of the dev queries to train on; the others validate", "X", float)
    ] = 0.5
    folds: Annotated[
        int | None,
        Option(
            "train on each of N folds of dev, validate on the others; 1, or 4 of a small dev",
            "N",
            positive,
        ),
    ] = None
    split_seed: Annotated[int, Option("which queries train and which validate", "N", int)] = 0
    seed: Annotated[int, Option("random seed of the optimizer", "N", int)] = 0
    start: Annotated[
        Path | None,
        Option(
            "prompts to start from, and to beat: TOML as for --prompts, or a compiled.json", "FILE"
        ),
    ] = None
    of: Annotated[
        tuple[Path, ...], Option("a compiled program, for ensemble; repeatable", "FILE")
    ] = ()
    ranges: Annotated[
        Mapping[str, str],
        Option("for tune: 1..6 or a|b|c", "NAME=VALUES", parse_name_value, flag="--range"),
    ] = field(default_factory=dict)
    held_out: Annotated[
        str,
        Option(
            "then run the program on test, as it was and compiled, and compare; TASKS: on others, "
            "does it carry over",
            "TASKS",
            alone=SAME,
        ),
    ] = ""

    def check_names(self, *, task_is_loaded: bool = False) -> None:
        """Raise UsageError or DataError where a name is in no table, before libraries are imported."""
        super().check_names(task_is_loaded=task_is_loaded)
        resolve("optimizer", self.optimizer, dict.fromkeys(OPTIMIZERS, ""), TELEPROMPTERS)

    @property
    def optimizer_label(self) -> str:
        """The name of the optimizer in outputs: a file without its folder."""
        return display_name(self.optimizer)

    @property
    def tasks(self) -> list[str]:
        """The tasks that are compiled on."""
        return expand_tasks(self.task)

    @property
    def held_out_tasks(self) -> list[str]:
        """The tasks whose test queries are asked at the end."""
        if self.held_out == SAME:
            return self.tasks
        return expand_tasks(self.held_out) if self.held_out else []

    def run(self, **changes: Any) -> Request:
        """Return the request of a run with the same program, task (the first), model and limits, but for `others`."""
        shared = {
            shared_field.name: getattr(self, shared_field.name)
            for shared_field in fields(SharedRequest)
            # Here it is the optimizer's; the model is asked without one, as while compiling.
            if shared_field.name != "seed"
        }
        values = shared | {"task": self.tasks[0], "pool": self.pool} | changes
        return Request(**values | {"data": self.data_of(values["task"])})

    def data_of(self, task: str) -> str | None:
        """Return the data of a task that is compiled on, or that is held out."""
        return choose_data(task, self.data, {*self.tasks, *self.held_out_tasks})
