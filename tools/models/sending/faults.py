"""Whose fault it is that a call was not answered, and whether asking again may help.

DSPy's types of error are the common language: what the lean client meets is told in them
(tools/models/sending/protocol.py), what LiteLLM's providers raise arrives in them. Whether an error is about the text
that was sent is in tools/models/sending/refusals.py.
"""

import json
import ssl
from contextlib import suppress
from typing import Any, Literal, cast

import dspy

from tools.errors import BudgetReached, ProviderRefused, RunIncomplete, UsageError
from tools.models.sending import post, refusals
from tools.models.sending.gate import retry_after
from tools.models.sending.servers import hide_keys

Fault = Literal["refused", "provider", "system"]

# DSPy's types for what would be so for every query of the run.
_REFUSALS = (dspy.LMAuthError, dspy.LMBillingError, dspy.LMConfigurationError, dspy.LMUnsupportedModelError)

_OVERLOAD = (429, 503, 529)  # statuses that say: too much at once


def fault(error: BaseException) -> Fault:
    """Return whose fault an exception of a program is.

    "refused": nobody will answer this run at all (key, quota, model, settings). "provider": a call was not
    answered this time (timeout, 429, 5xx, connection, whatever nobody knows), or the run itself stopped it (budget,
    full disk); the query stays pending. "system": what the provider says it will not take of this text, and every
    exception that is no provider's, an outcome.
    """
    if isinstance(error, BudgetReached | RunIncomplete):
        return "provider"
    if isinstance(error, ProviderRefused | UsageError):
        return "refused"
    if not isinstance(error, dspy.LMError):
        return "system"
    if isinstance(error, dspy.LMUnsupportedFeatureError):  # an agent asked for tools; other features are settings
        return "system" if "tools" in error.features else "refused"
    subject = about(error)
    if subject in ("content", "length") and not dspy.is_retryable_lm_error(error):
        return "system"
    return "refused" if subject == "account" or isinstance(error, _REFUSALS) else "provider"


def about(error: dspy.LMError) -> refusals.Subject:
    """Return what a provider's error is about, by its type, its code and its words; our own client has noted it."""
    if isinstance(error, dspy.ContextWindowExceededError):
        return "length"
    if known := getattr(error, "about", None):
        return cast(refusals.Subject, known)
    words, codes = str(error), (error.provider_code,)
    with suppress(ValueError, RecursionError):  # LiteLLM puts the body behind words of its own
        codes += refusals.read_error(json.JSONDecoder().raw_decode(words, words.index("{"))[0]).codes
    return refusals.classify(error.status, codes, words)


def kind(error: BaseException) -> str:
    """Name what went wrong with a request, in a word or a status, as the ledger has it."""
    if known := getattr(error, "kind", None) or getattr(error, "status", None):
        return str(known)
    if isinstance(error, dspy.LMTimeoutError):
        return "timeout"
    return type(error).__name__.removeprefix("LM").removesuffix("Error").lower() or "unknown"  # "" is answered


def overload(error: BaseException) -> bool:
    """Whether a failure says that less should be sent at once."""
    return isinstance(error, dspy.LMRateLimitError | dspy.LMTimeoutError) or getattr(error, "status", 0) in _OVERLOAD


def blacken(error: BaseException) -> None:
    """Take keys out of a provider's words. The errors that it came from, which have them too, are left behind."""
    if (clean := hide_keys(str(error))) != str(error):
        error.args = (clean,)
    error.__cause__ = error.__context__ = None


def from_litellm(error: Exception) -> Exception:
    """An error of LiteLLM's path like our own client's: with what the provider asks for, and without keys.

    LMConfigurationError for a redirect, which was not followed (tools/models/sending/redirects.py), and where TLS
    fails.
    """
    cause: BaseException | None = error
    while cause is not None:
        if is_untrusted(cause):
            told: Exception = tls_error(hide_keys(str(error)), "")
            return told
        response: Any = getattr(cause, "response", None)
        if getattr(response, "has_redirect_location", False):
            told = dspy.LMConfigurationError(
                hide_keys(post.explain_redirect(response.status_code, response.headers)), status=response.status_code
            )
            return told
        if response is not None and getattr(error, "retry_after", None) is None:
            error.retry_after = retry_after(response.headers)  # type: ignore[attr-defined]
        cause = cause.__cause__ or cause.__context__
    blacken(error)
    return error


def is_untrusted(error: BaseException | None) -> bool:
    """Whether a connection failed by TLS, and would fail again."""
    return isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError)


def tls_error(words: str, model: str) -> dspy.LMConfigurationError:
    """Make the error for a failure of TLS, which says what to do."""
    return dspy.LMConfigurationError(post.explain_tls(words), model=model)


def refusal(error: BaseException, spec: str) -> ProviderRefused:
    """Make one line of a provider's refusal."""
    first = str(error).strip().partition("\n")[0]
    return ProviderRefused(
        f"{spec}: the provider refuses: {first}; check the key, the quota, the name and the settings"
    )
