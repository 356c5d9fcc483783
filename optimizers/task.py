"""What a teleprompter is given, and what it returns."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import dspy

from optimizers.study import Study
from programs.parts.compiled import Compiled


@dataclass(slots=True)
class Job:
    """All that a teleprompter works with."""

    study: Study
    student: Any  # the program, instrumented
    plain: Callable[[], Any]  # makes a program that is not
    lm: Any  # the student's model
    prompt_lm: Any | None  # that writes instructions, where any are written
    teacher_lm: Any | None  # that makes demonstrations in the student's place
    labelled: Callable[[], list[dspy.Example]]  # the training examples with labels, optimizers/training/labels.py
    options: Mapping[str, Any]
    workers: int
    seed: int
    members: Sequence[Compiled] = ()  # of an ensemble
    ranges: Mapping[str, list[Any]] = field(default_factory=dict)  # of what is tuned
    variant: Callable[[Mapping[str, Any]], Any] = lambda parameters: None  # the program with other parameters

    @property
    def teacher_settings(self) -> dict[str, Any]:
        """DSPy's form of the teacher."""
        return {} if self.teacher_lm is None else {"lm": self.teacher_lm}


@dataclass(frozen=True, slots=True)
class Found:
    """What a teleprompter returns: a program to validate, and what of it is no prompt."""

    program: Any
    form: Mapping[str, Any] = field(default_factory=dict)  # fields of programs.parts.compiled.Compiled
