"""Classify provider errors: who is responsible, the subject of the error, and whether a retry may
help.

Errors have DSPy's types, raised by Sextant's client (tools/models/transport/openai_client.py) or
LiteLLM's providers. A query is scored 0 for an error only if the provider states that it will not
take this text, by a table of known errors of each provider. An error that is not in the table is "unknown",
and says nothing about the text: a gateway, a firewall or a proxy may have written it. To add a
provider: rows in `_TABLE`, and where they are documented.
"""

import json
import re
import ssl
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Literal, NamedTuple, cast

import dspy

from sextant.tools.errors import BudgetReached, ProviderRefused, RunIncomplete, UsageError
from sextant.tools.models.call_limits import retry_after
from sextant.tools.models.secrets import redact

Subject = Literal["content", "length", "account", "unknown"]
"""What an error is about: what the text says; its length; the key, quota, model or settings, and so every request."""

# What an error is about, its codes and types in lower case, and a regular expression of words that
# have no code.
_TABLE: tuple[tuple[Subject, str, str], ...] = (
    # OpenAI, platform.openai.com/docs/guides/error-codes; Azure, DeepSeek, Groq, xAI, vLLM and most
    # gateways follow it
    ("length", "context_length_exceeded", r"maximum context|context.(?:length|window|size|limit)"),
    ("length", "", r"(?:messages|input)\S*: (?:string too long|maximum input length)"),
    (
        "content",
        "content_filter content_policy_violation moderation_blocked",
        "of (?:our|the) safety system",
    ),
    ("content", "invalid_prompt", "violating our usage policy"),
    (
        "account",
        "insufficient_quota billing_hard_limit_reached invalid_api_key account_deactivated",
        "",
    ),
    ("account", "model_not_found unsupported_parameter unsupported_value unknown_parameter", ""),
    # Azure OpenAI: the inner code of a filtered prompt; a model that is not deployed
    ("content", "responsibleaipolicyviolation", "content management policy"),
    ("account", "deploymentnotfound", ""),
    # Anthropic, docs.claude.com/en/api/errors
    ("length", "request_too_large", "prompt is too long"),
    ("content", "", "content filtering policy"),
    ("account", "authentication_error permission_error billing_error", "credit balance is too low"),
    ("account", "", "reached your specified api usage limits|organization has been disabled"),
    # Gemini, ai.google.dev/gemini-api/docs/troubleshooting
    ("length", "", "token count .{0,40}exceeds the maximum number of tokens"),
    ("account", "", "api key not valid|user location is not supported"),
    # LiteLLM's proxy, litellm/proxy/_types.py, ProxyErrorTypes: 422, 400 or 429
    ("account", "budget_exceeded expired_key auth_error", "budget has been exceeded"),
    ("account", "key_model_access_denied team_model_access_denied", ""),
    ("content", "", "contentpolicyviolationerror"),  # of whichever provider
    # OpenRouter, openrouter.ai/docs/api/reference/errors-and-debugging; DeepSeek,
    # api-docs.deepseek.com
    ("content", "", "your input was flagged|content exists risk"),
    ("account", "", "insufficient (?:balance|credits)|model not exist|not a valid model id"),
    # xAI: the first with 403
    ("content", "", "content violates usage guidelines"),
    ("length", "", "maximum prompt length"),
    # DashScope, help.aliyun.com/zh/model-studio/error-code; Moonshot,
    # platform.moonshot.ai/docs/api/errors
    ("content", "data_inspection_failed datainspectionfailed", "may contain inappropriate content"),
    ("account", "arrearage exceeded_current_quota_error invalid_authentication_error", ""),
    # Groq; Cerebras; Cohere; Bedrock
    (
        "length",
        "",
        r"reduce the length of the messages|current length is \d+ while limit|too many tokens:",
    ),
    ("length", "", "too many input tokens|input is too long"),
    # GitHub Models; GitHub Copilot
    ("length", "tokens_limit_reached", r"request body too large for \S+ model"),
    ("length", "model_max_prompt_tokens_exceeded", r"prompt token count of \d+ exceeds"),
    # DashScope; Moonshot; Zhipu, docs.z.ai/api-reference/api-code
    ("length", "", "range of input length should be"),
    ("length", "", "exceeded model token limit|model max length exceeded"),
    ("length", "1261", "prompt exceeds max length"),
    # SGLang; watsonx; TabbyAPI
    ("length", "", r"input length .{0,40}exceeds the maximum allowed length"),
    ("length", "", r"number of input tokens .{0,60}exceed|greater than max_seq_len"),
    # llama.cpp, tools/server; vLLM; Hugging Face's TGI and TEI
    ("length", "exceed_context_size_error", "too large to process"),
    (
        "length",
        "",
        "longer than the maximum model length|max_model_len|`inputs` (?:tokens|must have less)",
    ),
)
_CODES: dict[str, Subject] = {
    code: subject for subject, codes, _ in _TABLE for code in codes.split()
}
_ORDER: tuple[Subject, ...] = ("account", "length", "content")
_WORDS = {
    subject: re.compile(
        "|".join(words for topic, _, words in _TABLE if topic == subject and words), re.IGNORECASE
    )
    for subject in _ORDER
}
_SPEAK = (200, 400, 403, 413, 422, 500)  # statuses whose words are read; others mean what HTTP says
_ACCOUNT = (401, 402, 403, 404, 405, 407)
_READ = 2000  # characters of the words: some servers repeat the request behind them
_PAGE = re.compile(r"<!doctype|<html|<head|<body|<h1", re.IGNORECASE)


class ProviderErrorBody(NamedTuple):
    """An error in a provider's words."""

    words: str  # "" where it has none
    codes: tuple[str, ...] = ()  # its codes and types, the most specific first
    wait: float | None = None  # seconds that it asks to wait


def read_error(body: Any) -> ProviderErrorBody:
    """Read an error out of the parsed body of an answer, in any provider's form."""
    body = body[0] if isinstance(body, list) and body else body  # Gemini's, in OpenAI's protocol
    if not isinstance(body, dict):
        return ProviderErrorBody(body if isinstance(body, str) else "", ())
    error = body.get("error") or body
    if isinstance(error, str):
        return ProviderErrorBody(error, _codes(body.get("error_type"), body.get("code")))
    if not isinstance(error, dict):
        return ProviderErrorBody(str(error), ())
    inner = error.get("innererror")  # Azure
    words = error.get("message") or error.get("detail") or ""
    if isinstance(words, list):  # FastAPI's, which has the request in it as well
        words = "; ".join(str(word.get("msg")) for word in words if isinstance(word, dict))
    counts = [
        f"{name} {error[name]}" for name in ("n_prompt_tokens", "n_ctx") if name in error
    ]  # llama.cpp
    words = " ".join([str(words), *counts])
    metadata = error.get("metadata")  # OpenRouter: what the provider behind it said
    if isinstance(metadata, dict) and isinstance(raw := metadata.get("raw"), str):
        words = f"{words}: {raw}"
    codes = (
        inner.get("code") if isinstance(inner, dict) else None,
        *map(error.get, ("code", "type", "status")),
    )
    return ProviderErrorBody(words, _codes(*codes), _read_wait(error.get("details")))


def _read_wait(details: Any) -> float | None:
    """Return the seconds to wait that the details of an error of Google's name; None without them."""
    for detail in details if isinstance(details, list) else ():
        delay = detail.get("retryDelay") if isinstance(detail, dict) else None
        if isinstance(delay, str) and re.fullmatch(r"\d{1,9}(?:\.\d{1,9})?s", delay):
            return float(delay[:-1])
    return None


def _codes(*values: Any) -> tuple[str, ...]:
    return tuple(str(value) for value in values if isinstance(value, str | int) and value)


def classify_topic(
    status: int | None,
    codes: Iterable[str | None],
    words: str,
) -> Subject:
    """Return the subject of an error, by `codes` and `words` of `read_error`; `status` is None without an answer."""
    for code in codes:
        if subject := _CODES.get((code or "").lower()):
            return subject
    if _PAGE.search(words):  # it is not the provider's, and its 403 says nothing about the account
        return "account" if status in _ACCOUNT and status != 403 else "unknown"
    if status is None or status in _SPEAK:
        for about, pattern in _WORDS.items():
            if pattern.search(words[:_READ]):
                return about
    return "account" if status in _ACCOUNT else "unknown"


Fault = Literal["refused", "provider", "system"]

# DSPy's types of errors that every query of the run would meet.
_REFUSALS = (
    dspy.LMAuthError,
    dspy.LMBillingError,
    dspy.LMConfigurationError,
    dspy.LMUnsupportedModelError,
)


# Where a refusal for length has the tokens of the window, and those of the prompt, in the words of
# the servers above.
_WINDOW = re.compile(
    r"(?:maximum (?:context|model|prompt|allowed) length(?: is| of)?|context (?:window|size)(?: "
    r"of)?|context length(?: is| of)? only|n_ctx|tokens allowed"
    r"|while limit is|must be <=|cannot exceed(?: the total tokens limit)?|tokens >|max size"
    r"|exceeds the limit of|token limit|max length|length should be \[1,)[ :]*+\(?([\d,]{1,20})"
    r"|model with ([\d,]{1,20}) maximum context length",
    re.IGNORECASE,
)
_PROMPT = re.compile(
    r"(?<![\d,])([\d,]{1,20}) (?:in (?:the|your) (?:messages|prompt)|input tokens|`inputs` tokens)|(?:resulted "
    r"in|requested tokens"
    r"|request|input length|prompt \(length|current length is|(?:request|prompt) contains|received|token "
    r"count(?: of)?|is too long|\(requested|number of input tokens"
    r"|n_prompt_tokens)[ :]*+\(?([\d,]{1,20})",
    re.IGNORECASE,
)


def read_window(error: BaseException) -> tuple[int | None, int | None]:
    """Return the tokens of the window and of the prompt that a refusal for length states; None for
    a number that it lacks.
    """
    matches = [pattern.search(str(error)) for pattern in (_WINDOW, _PROMPT)]
    window, prompt = (
        int("0" + str(match[match.lastindex or 0]).replace(",", "")) if match else 0
        for match in matches
    )
    return window or None, prompt or None


class QueryTimeout(dspy.LMTimeoutError):
    """The time of a query is up, by no fault of a provider; the query stays pending."""


def responsible_party(error: BaseException) -> Fault:
    """Return whose fault an exception of a program is.

    "refused": no call of this run will be answered (key, quota, model, settings). "provider": this call was not
    (timeout, 429, 5xx, connection, anything unknown), or the run itself stopped it (budget, full disk); the query stays
    pending. "system": the provider will not take this text, or the exception is no provider's; that is an outcome.
    """
    if getattr(
        error, "learnt", False
    ):  # its query is answered again, with the window that it has told
        return "system"
    if isinstance(error, BudgetReached | RunIncomplete):
        return "provider"
    if isinstance(error, ProviderRefused | UsageError):
        return "refused"
    if not isinstance(error, dspy.LMError):
        return "system"
    if isinstance(
        error, dspy.LMUnsupportedFeatureError
    ):  # settings, or what is asked for in another way now
        return (
            "system"
            if {"tools", "response_format", CALL_ID_FEATURE}.intersection(error.features)
            else "refused"
        )
    subject = error_topic(error)
    if subject in ("content", "length") and not dspy.is_retryable_lm_error(error):
        return "system"
    return "refused" if subject == "account" or isinstance(error, _REFUSALS) else "provider"


def error_topic(error: dspy.LMError) -> Subject:
    """Return the subject of a provider's error: as Sextant's client has noted, or by its type,
    code and words.
    """
    if isinstance(error, dspy.ContextWindowExceededError):
        return "length"
    if subject := getattr(error, "about", None):
        return cast(Subject, subject)
    words = str(error)
    codes = (error.provider_code,)
    with suppress(ValueError, RecursionError):  # LiteLLM puts the body behind words of its own
        codes += read_error(json.JSONDecoder().raw_decode(words, words.index("{"))[0]).codes
    return classify_topic(error.status, codes, words)


# Mistral's templates take ids of tool calls of nine letters and digits alone; llama.cpp and others
# give longer ones.
CALL_IDS = re.compile(
    r"\A(?=.*\btool[\s_-]?call)(?=.*\bids?\b)(?=.*(?:alphanumeric|a-z, ?A-Z|length(?: of)? 9\b|9 "
    r"char))",
    re.IGNORECASE | re.DOTALL,
)
CALL_ID_FEATURE = "tool_call_ids"


def refuses_call_ids(error: BaseException) -> bool:
    """Return whether a server refuses the ids of tool calls, which may be its own."""
    return isinstance(error, dspy.LMError) and bool(CALL_IDS.search(str(error)))


_NO_SCHEMA = re.compile(r"response_?format|schema|structured|guided|grammar", re.IGNORECASE)


def refuses_schema(error: BaseException) -> bool:
    """Return whether a server refused a request because of its JSON schema."""
    if not isinstance(error, dspy.LMInvalidRequestError | dspy.LMUnsupportedFeatureError):
        return False
    return error_topic(error) in ("unknown", "account") and bool(_NO_SCHEMA.search(str(error)))


def error_label(error: BaseException) -> str:
    """Name the failure of a request by a word or a status, as in the ledger."""
    if label := getattr(error, "kind", None) or getattr(error, "status", None):
        return str(label)
    return (
        type(error).__name__.removeprefix("LM").removesuffix("Error").lower() or "unknown"
    )  # "" is answered


def is_overload(error: BaseException) -> bool:
    """Whether a failure says that less should be sent at once."""
    busy = getattr(error, "status", 0) in (429, 503, 529)
    return busy or isinstance(error, dspy.LMRateLimitError | dspy.LMTimeoutError)


def from_litellm(error: Exception) -> Exception:
    """Return an error of LiteLLM's like our own client's: with `retry_after`, without keys or causes that have them."""
    clean = redact(str(error))
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError) and not isinstance(
            cause, ssl.SSLEOFError | ssl.SSLZeroReturnError
        ):
            return tls_error(clean, "")
        if (
            getattr(cause, "kind", "") == "too large"
        ):  # as tools/models/transport/http_client.py raises it
            too_large: Exception = dspy.LMTransportError(redact(str(cause)))
            too_large.kind = "too large"  # type: ignore[attr-defined]
            return too_large
        response: Any = getattr(cause, "response", None)
        if getattr(response, "has_redirect_location", False):
            return redirect_error(response.status_code, response.headers, "", redact)
        if response is not None and getattr(error, "retry_after", None) is None:
            error.retry_after = retry_after(response.headers)  # type: ignore[attr-defined]
        cause = cause.__cause__ or cause.__context__
    if clean != str(error):
        error.args = (clean,)
    error.__cause__ = error.__context__ = None
    return error


def tls_error(words: str, model: str) -> Exception:
    """Return the error for a failure of TLS that would come again."""
    hint = (
        "the certificates of an authority of one's own go into the file that $SSL_CERT_FILE names"
    )
    return cast(Exception, dspy.LMConfigurationError(f"{words}; {hint}", model=model))


def redirect_error(
    status: int, headers: Mapping[str, str], model: str, clean: Callable[[str], str]
) -> Exception:
    """Return the error for an answer that redirects, which is not followed."""
    target = headers.get("location", "nowhere").partition("?")[0]
    words = (
        f"the server redirects to {target} (status {status}), where nothing is sent; if that is "
        f"the right place"
    )
    words = clean(f"{words}, name it as the server")
    return cast(Exception, dspy.LMConfigurationError(words, model=model, status=status))


def format_refusal(error: BaseException, spec: str) -> ProviderRefused:
    """Return a provider's refusal in a single line, with what to do about it."""
    line = str(error).strip().partition("\n")[0]
    remedy = "check the key, the quota, the name and the settings"
    if "temperature" in line.lower():  # reasoning models of OpenAI's, and Claude from Opus 4.7 on
        remedy = (
            "try --temperature 1, or --extra-body '{\"temperature\": null}', which leaves it out"
        )
    elif getattr(error, "status", None) == 404:
        remedy = "check the name of the model and the address, which ends in /v1 with most servers"
    return ProviderRefused(f"{spec}: the provider refuses: {line}; {remedy}", source=spec)
