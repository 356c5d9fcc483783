"""Whose fault it is that a call was not answered, and whether asking again may help.

DSPy's types of error are the common language: what the lean client meets is told in them (programs/protocol.py), what
LiteLLM's providers raise arrives in them.
"""

import os
from typing import Literal

import dspy

from programs.rate import retry_after
from tools.errors import BudgetReached, ProviderRefused, RunIncomplete, UsageError

Fault = Literal["refused", "provider", "system"]

# The provider's words, as types, HTTP statuses and OpenAI's codes, for what would be so for every query of the run.
_REFUSALS = (
    dspy.LMAuthError,
    dspy.LMBillingError,
    dspy.LMConfigurationError,
    dspy.LMNotConfiguredError,
    dspy.LMUnsupportedModelError,
)
_REFUSAL_STATUSES = (401, 402, 403, 404, 405)
_REFUSAL_CODES = ("unsupported_parameter", "unsupported_value")

_OVERLOAD = (429, 503, 529)  # statuses that say: too much at once


def fault(error: BaseException) -> Fault:
    """Whose fault an exception of a program is.

    "refused": nobody will answer this run at all (key, quota, model, settings). "provider": a call was not
    answered this time (timeout, 429, 5xx, connection, a gateway's page), or the run itself stopped it (budget,
    full disk); the query stays owed. "system": everything else, an outcome.
    """
    if isinstance(error, BudgetReached | RunIncomplete):
        return "provider"
    if isinstance(error, (ProviderRefused, UsageError, *_REFUSALS)):
        return "refused"
    if getattr(error, "status", None) in _REFUSAL_STATUSES or getattr(error, "provider_code", None) in _REFUSAL_CODES:
        return "refused"
    # What the program sent is at fault: too long, or not acceptable as content.
    if isinstance(error, dspy.LMInvalidRequestError | dspy.LMUnsupportedFeatureError):
        return "system"
    return "provider" if isinstance(error, dspy.LMError) else "system"


def kind(error: BaseException) -> str:
    """What went wrong with a request, in a word or a status, as the ledger has it."""
    if status := getattr(error, "status", None):
        return str(status)
    if isinstance(error, dspy.LMTimeoutError):
        return "timeout"
    name = type(error).__name__.removeprefix("LM").removesuffix("Error").lower()
    return getattr(error, "kind", None) or name or "unknown"  # never "", which is answered


def overload(error: BaseException) -> bool:
    """Whether a failure says that less should be sent at once."""
    return isinstance(error, dspy.LMRateLimitError | dspy.LMTimeoutError) or getattr(error, "status", 0) in _OVERLOAD


def cleaned(text: str, least: int = 8) -> str:
    """`text` without keys: what the environment has under a name that ends like that of a secret.

    Values of fewer than `least` letters are words like others.
    """
    for name, value in os.environ.items():
        if name.endswith(("_KEY", "_TOKEN", "_SECRET")) and len(value) >= least:
            text = text.replace(value, "***")
    return text


def blacken(error: BaseException) -> None:
    """Take keys out of a provider's words. The errors that it came from, which have them too, are left behind."""
    if (clean := cleaned(str(error))) != str(error):
        error.args = (clean,)
    error.__cause__ = error.__context__ = None


def from_litellm(error: Exception) -> None:
    """Make an error of LiteLLM's path like our own client's: with what the provider asks for, and without keys."""
    cause: BaseException | None = error
    while cause is not None and getattr(error, "retry_after", None) is None:
        headers = getattr(getattr(cause, "response", None), "headers", None)
        if headers is not None:
            error.retry_after = retry_after(headers)  # type: ignore[attr-defined]
        cause = cause.__cause__ or cause.__context__
    blacken(error)


def refusal(error: BaseException, spec: str) -> ProviderRefused:
    """One line out of a provider's refusal."""
    first = str(error).strip().partition("\n")[0]
    return ProviderRefused(
        f"{spec}: the provider refuses: {first}; check the key, the quota, the name and the settings"
    )
