"""What every program has, and what it says of itself; agents are programs, too."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, dataclass_transform

import dspy

from tools.errors import LimitReached, UsageError
from tools.models import call_context
from tools.models.passages import DESCRIPTION
from tools.records import Query, Submission
from tools.session import Toolbox


class QuerySignature(dspy.Signature):
    """What a call is told of its query; signatures of programs begin with it."""

    objective: str = dspy.InputField(desc="what the collection is, and what counts as a find")
    description: str = dspy.InputField(desc=DESCRIPTION)


@dataclass_transform(kw_only_default=True)
@dataclass(
    eq=False,
    repr=False,
    kw_only=True,
)
class Program(dspy.Module):
    """A search program: `forward` takes a Query and returns a Submission.

    Its parameters are annotated in the class as in a dataclass, each with a default; `__post_init__` uses them.
    """

    toolbox: Toolbox = field(kw_only=False)
    depth: int = 1000  # documents of a ranking

    offline: ClassVar[
        Mapping[str, Any]
    ] = {}  # output field -> what the engine without a model writes into it
    pooled: ClassVar[bool] = False  # whether the calls of a query grow with its pool
    cumulative: ClassVar[bool] = (
        False  # whether each prompt has all before it, so that tokens grow as calls squared
    )
    least_calls: ClassVar[float] = (
        1.0  # the fewest, as a share of those with the engine without a model
    )
    compiled_with: ClassVar[
        Mapping[str, Any]
    ] = {}  # parameters that compiling sets where none is given

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        dataclass(
            eq=False,
            repr=False,
            kw_only=True,
        )(cls)  # which leaves an __init__ of its own as it is

    def __call__(self, *args: Any, **named: Any) -> Submission:
        """Search for one query."""
        try:
            with call_context.using_rules(self.offline):
                return super().__call__(*args, **named)  # type: ignore[no-any-return]
        except ExceptionGroup as group:  # of a TaskGroup of asyncio's
            if group.subgroup(LimitReached):
                raise LimitReached(str(group)) from group
            raise

    async def acall(self, *args: Any, **named: Any) -> Submission:
        """Search for one query, in a thread."""
        return await dspy.asyncify(self)(*args, **named)  # type: ignore[no-any-return]

    aforward = acall

    def dump_state(self, json_mode: bool = True) -> dict[str, Any]:
        """Return what `save` writes: a labelled demonstration has its Query, which DSPy cannot write."""
        state = super().dump_state(json_mode)
        return json.loads(json.dumps(state, default=str)) if json_mode else state  # type: ignore[no-any-return]

    @property
    def unanswerable(self) -> list[str]:
        """The output fields of its signatures for which it has no answer without a model."""
        fields = (
            name for predictor in self.predictors() for name in predictor.signature.output_fields
        )
        return [name for name in dict.fromkeys(fields) if name not in self.offline]

    def forward(self, query: Query) -> Submission:
        """Search for one query, in a session of its own."""
        raise NotImplementedError

    def most_calls(self, pool: int) -> int | None:
        """Return the most calls for a query with so large a pool; None where they follow from parameters and pool."""
        return None


def check_offline(name: str, program: Any) -> None:
    """UsageError for a program that cannot be run without a model."""
    if fields := getattr(program, "unanswerable", []):
        raise UsageError(
            f"{name} needs a model: offline does not know what to answer for {', '.join(fields)}; "
            "name a model with --lm, or give the program a rule for each field (programs/base.py: "
            "offline)"
        )
