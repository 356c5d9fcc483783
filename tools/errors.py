"""Everything Sextant raises on purpose, with the exit code that each means.

A message states the problem, shows the value, and names the next step. The command line prints the
message alone, on a line; any other exception is a bug and keeps its traceback.
"""

import difflib
import sys
from collections.abc import Iterable
from typing import Self

INTERRUPTED = 130  # the shell's convention for Ctrl-C: 128 + SIGINT


class SextantError(Exception):
    """Base class: the caller can do something about it."""

    exit_code = 2

    def saying(self, message: str) -> Self:
        """Return the same error with another message; its cause is the original error."""
        copy = type(self).__new__(type(self))
        copy.__dict__ |= self.__dict__
        copy.args = (message,)
        copy.__cause__ = self
        return copy


class UsageError(SextantError):
    """An argument that cannot be used as given."""


class UnknownName(UsageError):
    """A name that is not in its table; the message offers the nearest names."""

    def __init__(
        self,
        kind: str,
        name: str,
        known: Iterable[str],
        besides: str = "",
    ) -> None:
        """`besides` follows the name in the message: what else the name is not."""
        names = sorted(known)
        close = difflib.get_close_matches(
            name.lower(),
            names,
            n=3,
            cutoff=0.5,
        )
        close = close or [candidate for candidate in names if name and name.lower() in candidate]
        listed = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
        hint = f"known: {listed}" if names else "there are none"
        hint = f"did you mean {' or '.join(map(repr, close))}?" if close else hint
        super().__init__(f"no {kind} is called {name!r}{besides}; {hint}")


class NotApplicable(UsageError):
    """The request does not go with this task, and may go with another. In a study, only this error
    is no failure.
    """


class UnknownForTask(UnknownName, NotApplicable):
    """A name that the task does not have, although another task may."""


class OwnCodeFailed(UsageError):
    """A program, retriever or task of the user's own cannot be made, whatever it is used with."""


class UnknownPrice(UsageError):
    """A budget in dollars for something whose price is not known; nothing was sent."""


class RunConflict(UsageError):
    """A run folder that belongs to another configuration, or that another process is writing."""


class RunBusy(RunConflict):
    """A run folder that another process is writing; it will be free when that ends."""


class DataError(SextantError):
    """Data that is missing or damaged."""

    exit_code = 3


class ProviderRefused(SextantError):
    """A provider refuses, however often it is asked: key, permission, quota, unknown model."""

    exit_code = 4

    def __init__(self, message: str, *, source: str = "") -> None:
        """`source` is the name of the refused service: a model as in --lm, or a retriever as `api:MODEL`
        or `http:URL`.
        """
        super().__init__(message)
        self.source = source


class RunIncomplete(SextantError):
    """Queries are still pending (outage, full disk, failed queries); the same command resumes the run."""

    exit_code = 7


class Interrupted(RunIncomplete):
    """The first Ctrl-C: calls in flight are waited for, and nothing more is sent."""

    def __init__(self) -> None:
        super().__init__("interrupted")


class BudgetReached(SextantError):
    """The budget of the run is used up; the same command resumes it, with a `larger` budget if
    that would help.
    """

    exit_code = 8

    def __init__(self, message: str, *, larger: bool = True) -> None:
        super().__init__(message)
        self.larger = larger


class GateFailed(SextantError):
    """A metric is worse than a gate of `sextant compare` allows."""

    exit_code = 1


FAULTS = (
    BudgetReached,
    DataError,
    ProviderRefused,
    RunIncomplete,
)  # which say nothing about the program


class SessionRefusal(SextantError):
    """A searcher asked for something that its session does not allow; it may continue without it."""


class DocumentNotFound(SessionRefusal):
    """A doc_id that this session has not surfaced. An excluded document does not exist either."""


class LimitReached(SessionRefusal):
    """All searches or reads of this session are used."""


class ScanRefused(SessionRefusal):
    """A pattern, a phrase or words that texts cannot be searched for."""


class AbortCompilation(BaseException):
    """Stops work that swallows every Exception, as DSPy's optimizers do, by not being an
    Exception; `reason` tells the cause.
    """

    def __init__(self, reason: Exception) -> None:
        super().__init__(str(reason))
        self.reason = reason


def check_docstrings() -> None:
    """Raise UsageError if Python drops docstrings: they are instructions of prompts and
    descriptions of tools.
    """
    if sys.flags.optimize > 1:
        raise UsageError(
            "python -OO and PYTHONOPTIMIZE=2 take the instructions out of all prompts; leave them "
            "out"
        )


def require_at_least(least: int, who: str, **values: int) -> None:
    """Raise UsageError for the first of the parameters `values` of `who` that is below `least`."""
    for name, value in values.items():
        if value < least:
            raise UsageError(f"{who} needs {name} of at least {least}, not {value}")
