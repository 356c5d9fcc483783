"""What a provider's error is about, by a table of what is known of each provider.

A query is scored 0 for an error only where the provider says that this text is what it will not take. Everything that
is not in the table is "unknown", and says nothing about the text: a gateway, a firewall or a proxy may have written it.
Left out: whether asking again may help, which each client decides.

To add a provider: rows in `_TABLE`, and where they are documented.
"""

import re
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

Subject = Literal["content", "length", "account", "unknown"]
"""What an error is about: what this text says; how long it is; the key, quota, model or settings, so that every request
would meet it; or nobody knows."""


class _Row(NamedTuple):
    """Words and codes of one provider, and what they are about."""

    about: Subject
    codes: str  # codes and types, in lower case
    words: str = ""  # a regular expression, where it has no code of its own for it


_TABLE = (
    # OpenAI, platform.openai.com/docs/guides/error-codes; Azure, DeepSeek, Groq, xAI, vLLM and most gateways follow it
    _Row("length", "context_length_exceeded", r"maximum context|context.(?:length|window|size|limit)"),
    _Row("length", "", r"(?:messages|input)\S*: (?:string too long|maximum input length)"),
    _Row("content", "content_filter content_policy_violation moderation_blocked", "of (?:our|the) safety system"),
    _Row("content", "invalid_prompt", "violating our usage policy"),
    _Row(
        "account", "insufficient_quota billing_hard_limit_reached invalid_api_key account_deactivated model_not_found"
    ),
    _Row("account", "unsupported_parameter unsupported_value unknown_parameter"),
    # Azure OpenAI: the inner code of a filtered prompt; a model that is not deployed
    _Row("content", "responsibleaipolicyviolation", "content management policy"),
    _Row("account", "deploymentnotfound"),
    # Anthropic, docs.claude.com/en/api/errors
    _Row("length", "request_too_large", "prompt is too long"),
    _Row("content", "", "content filtering policy"),
    _Row("account", "authentication_error permission_error billing_error", "credit balance is too low"),
    _Row("account", "", "reached your specified api usage limits|organization has been disabled"),
    # Gemini, ai.google.dev/gemini-api/docs/troubleshooting
    _Row("length", "", "token count .{0,40}exceeds the maximum number of tokens"),
    _Row("account", "", "api key not valid|user location is not supported"),
    # LiteLLM's proxy, litellm/proxy/_types.py, ProxyErrorTypes: 422, 400 or 429
    _Row("account", "budget_exceeded expired_key auth_error", "budget has been exceeded"),
    _Row("account", "key_model_access_denied team_model_access_denied"),
    _Row("content", "", "contentpolicyviolationerror"),  # of whichever provider
    # OpenRouter, openrouter.ai/docs/api/reference/errors-and-debugging; DeepSeek, api-docs.deepseek.com
    _Row("content", "", "your input was flagged|content exists risk"),
    _Row("account", "", "insufficient (?:balance|credits)|model not exist|not a valid model id"),
    # xAI: the first with 403
    _Row("content", "", "content violates usage guidelines"),
    _Row("length", "", "maximum prompt length"),
    # DashScope, help.aliyun.com/zh/model-studio/error-code; Moonshot, platform.moonshot.ai/docs/api/errors
    _Row("content", "data_inspection_failed datainspectionfailed", "may contain inappropriate content"),
    _Row("account", "arrearage exceeded_current_quota_error invalid_authentication_error"),
    # Groq; Cerebras; Cohere; Bedrock
    _Row("length", "", r"reduce the length of the messages|current length is \d+ while limit|too many tokens:"),
    _Row("length", "", "too many input tokens|input is too long"),
    # llama.cpp, tools/server; vLLM; Hugging Face's TGI and TEI
    _Row("length", "exceed_context_size_error", "too large to process"),
    _Row("length", "", "longer than the maximum model length|max_model_len|`inputs` (?:tokens|must have less)"),
)
_CODES: dict[str, Subject] = {code: row.about for row in _TABLE for code in row.codes.split()}
_ORDER: tuple[Subject, ...] = ("account", "length", "content")
_WORDS = {
    about: re.compile("|".join(row.words for row in _TABLE if row.about == about and row.words), re.IGNORECASE)
    for about in _ORDER
}
_SPEAK = (200, 400, 403, 413, 422, 500)  # statuses whose words are looked at; others mean what HTTP says
_ACCOUNT = (401, 402, 403, 404, 405, 407)
_READ = 2000  # characters of the words: some servers repeat the request behind them
_PAGE = re.compile(r"<!doctype|<html|<head|<body|<h1", re.IGNORECASE)


class Said(NamedTuple):
    """An error in a provider's words."""

    words: str  # "" where it has none
    codes: tuple[str, ...]  # its codes and types, the most specific first


def read_error(body: Any) -> Said:
    """Read an error out of the parsed body of an answer, in any provider's form."""
    body = body[0] if isinstance(body, list) and body else body  # Gemini's, in OpenAI's protocol
    if not isinstance(body, dict):
        return Said(body if isinstance(body, str) else "", ())
    error = body.get("error") or body
    if isinstance(error, str):
        return Said(error, _codes(body.get("error_type"), body.get("code")))
    if not isinstance(error, dict):
        return Said(str(error), ())
    inner = error.get("innererror")  # Azure
    words = error.get("message") or error.get("detail") or ""
    if isinstance(words, list):  # FastAPI's, which has the request in it as well
        words = "; ".join(str(one.get("msg")) for one in words if isinstance(one, dict))
    metadata = error.get("metadata")  # OpenRouter: what the provider behind it said
    if isinstance(metadata, dict) and isinstance(raw := metadata.get("raw"), str):
        words = f"{words}: {raw}"
    codes = (inner.get("code") if isinstance(inner, dict) else None, *map(error.get, ("code", "type", "status")))
    return Said(str(words), _codes(*codes))


def _codes(*values: Any) -> tuple[str, ...]:
    return tuple(str(value) for value in values if isinstance(value, str | int) and value)


def classify(status: int | None, codes: Iterable[str | None], words: str) -> Subject:
    """Say what an error is about; `codes` and `words` are those of `read_error`, `status` is None without an answer.

    A page in HTML is not the provider's words, so only its status counts; 403 is then no word about the account.
    """
    for code in codes:
        if known := _CODES.get((code or "").lower()):
            return known
    if _PAGE.search(words):
        return "account" if status in _ACCOUNT and status != 403 else "unknown"
    if status is None or status in _SPEAK:
        for about, pattern in _WORDS.items():
            if pattern.search(words[:_READ]):
                return about
    return "account" if status in _ACCOUNT else "unknown"
