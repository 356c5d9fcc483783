"""The base class of all programs, and their properties; agents are programs, too."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, dataclass_transform

import dspy

from sextant.tools.errors import LimitReached, UsageError
from sextant.tools.models.answers.checks import changed_call
from sextant.tools.models.prompting import DESCRIPTION
from sextant.tools.records import Query, Submission
from sextant.tools.session import Toolbox


# Prompts have the fields of a signature in its order, and servers keep the equal beginning of two
# prompts. So inputs that stay the same in a query come first, then those that only grow, then the
# others.
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

    # Output field -> the offline engine's rule for it.
    offline: ClassVar[Mapping[str, Any]] = {}
    # Whether the number of calls of a query grows with its pool.
    pooled: ClassVar[bool] = False
    # Whether the run's retriever is opened for it.
    needs_index: ClassVar[bool] = True
    # Parameters that compiling sets unless the request sets them.
    compiled_with: ClassVar[Mapping[str, Any]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # It leaves an __init__ of the class's own as it is.
        dataclass(eq=False, repr=False, kw_only=True)(cls)

    def __call__(self, *args: Any, **named: Any) -> Submission:
        """Search for a query."""
        try:
            with changed_call(rules=self.offline):
                return super().__call__(*args, **named)  # type: ignore[no-any-return]
        except ExceptionGroup as group:  # of a TaskGroup of asyncio's
            if group.subgroup(LimitReached):
                raise LimitReached(str(group)) from group
            raise

    async def acall(self, *args: Any, **named: Any) -> Submission:
        """Search for a query, in a thread."""
        return await dspy.asyncify(self)(*args, **named)  # type: ignore[no-any-return]

    aforward = acall

    def dump_state(self, json_mode: bool = True) -> dict[str, Any]:
        """Return the state that `save` writes, as JSON values: a labelled demonstration has its Query."""
        state = super().dump_state(json_mode)
        return json.loads(json.dumps(state, default=str)) if json_mode else state  # type: ignore[no-any-return]

    @property
    def unanswerable(self) -> list[str]:
        """The output fields of its signatures for which it has no rule without a model."""
        fields = (
            name for predictor in self.predictors() for name in predictor.signature.output_fields
        )
        return [name for name in dict.fromkeys(fields) if name not in self.offline]

    def forward(self, query: Query) -> Submission:
        """Search for a query, in a session of its own."""
        raise NotImplementedError

    def most_calls(self, pool: int) -> int | None:
        """Return the most calls for a query with a pool of that size; None if parameters and pool determine them."""
        return None


def check_offline(name: str, program: Any) -> None:
    """Raise UsageError for a program that cannot run without a model."""
    if fields := getattr(program, "unanswerable", []):
        raise UsageError(
            f"{name} needs a model: offline does not know what to answer for {', '.join(fields)}; "
            "name a model with --lm, or give the program a rule for each field (programs/base.py: "
            "offline)"
        )
