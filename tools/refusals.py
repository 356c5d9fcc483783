"""What a provider's error is about, by a table of what is known of each provider.

A query is scored 0 for an error only where the provider says that this text is what it will not take. Everything that
is not in the table is "unknown", and says nothing about the text: a gateway, a firewall or a proxy may have written it.
Left out: whether asking again may help, which each client decides.

To add a provider: its code or type in `_CODES`, its words in `_WORDS`, and where they are documented.
"""

import re
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

Subject = Literal["content", "length", "account", "unknown"]
"""What an error is about: what this text says; how long it is; the key, quota, model or settings, so that every request
would meet it; or nobody knows."""

# Codes and types, in lower case.
_CODES: dict[str, Subject] = {
    # OpenAI, platform.openai.com/docs/guides/error-codes; Azure, Groq, Cerebras, xAI and most gateways use them as well
    "context_length_exceeded": "length",
    "content_filter": "content",
    "content_policy_violation": "content",
    "invalid_prompt": "content",  # "flagged as potentially violating our usage policy"
    "moderation_blocked": "content",
    "insufficient_quota": "account",
    "billing_hard_limit_reached": "account",
    "invalid_api_key": "account",
    "account_deactivated": "account",
    "model_not_found": "account",
    "unsupported_parameter": "account",
    "unsupported_value": "account",
    "unknown_parameter": "account",
    # Azure OpenAI: the inner code of a filtered prompt; a model that is not deployed
    "responsibleaipolicyviolation": "content",
    "deploymentnotfound": "account",
    # Anthropic, docs.claude.com/en/api/errors
    "request_too_large": "length",
    "authentication_error": "account",
    "permission_error": "account",
    "billing_error": "account",
    # LiteLLM's proxy, litellm/proxy/_types.py, ProxyErrorTypes: 422, 400 or 429
    "budget_exceeded": "account",
    "expired_key": "account",
    "auth_error": "account",
    "key_model_access_denied": "account",
    "team_model_access_denied": "account",
    # DashScope (Qwen), help.aliyun.com/zh/model-studio/error-code
    "data_inspection_failed": "content",
    "datainspectionfailed": "content",
    "arrearage": "account",
    # Moonshot (Kimi), platform.moonshot.ai/docs/api/errors
    "exceeded_current_quota_error": "account",
    "invalid_authentication_error": "account",
    # llama.cpp, tools/server: ERROR_TYPE_EXCEED_CONTEXT_SIZE
    "exceed_context_size_error": "length",
}

# Words, where a provider has no code of its own for it.
_WORDS: dict[Subject, tuple[str, ...]] = {
    "account": (
        # Anthropic
        r"credit balance is too low|reached your specified api usage limits|organization has been disabled",
        r"budget has been exceeded",  # LiteLLM
        r"insufficient (?:balance|credits)|model not exist|not a valid model id",  # DeepSeek, OpenRouter
        r"api key not valid|user location is not supported",  # Gemini
    ),
    "length": (
        # OpenAI, Azure, DeepSeek, Mistral, OpenRouter, vLLM, SGLang, llama.cpp, Ollama
        r"maximum context|context.(?:length|window|size|limit)",
        r"(?:messages|input)\S*: (?:string too long|maximum input length)",  # OpenAI
        r"prompt is too long|input is too long",  # Anthropic, Bedrock
        r"token count .{0,40}exceeds the maximum number of tokens",  # Gemini
        r"maximum prompt length|longer than the maximum model length|max_model_len",  # xAI, vLLM
        r"reduce the length of the messages",  # Groq
        r"too many input tokens|too many tokens:|current length is \d+ while limit",  # Cohere, Bedrock, Cerebras
        r"`inputs` (?:tokens|must have less)",  # Hugging Face's TGI and TEI
        r"too large to process",  # llama.cpp, embeddings
    ),
    "content": (
        r"content filtering policy",  # Anthropic
        r"content management policy|responsibleaipolicy",  # Azure
        r"content exists risk",  # DeepSeek
        r"your input was flagged",  # OpenRouter, with 403
        r"content violates usage guidelines",  # xAI, with 403
        r"violating our usage policy|rejected as a result of (?:our|the) safety system",  # OpenAI
        r"may contain inappropriate content",  # DashScope
        r"contentpolicyviolationerror",  # LiteLLM, of whichever provider
    ),
}
_PATTERNS = [(subject, re.compile("|".join(words), re.IGNORECASE)) for subject, words in _WORDS.items()]
_SPEAK = (200, 400, 403, 413, 422, 500)  # statuses whose words are looked at; others mean what HTTP says
_ACCOUNT = (401, 402, 403, 404, 405, 407)
_READ = 2000  # characters of the words: some servers repeat the request behind them
_PAGE = re.compile(r"<!doctype|<html|<head|<body|<h1", re.IGNORECASE)


class Said(NamedTuple):
    """An error in a provider's words."""

    words: str  # "" where it has none
    codes: tuple[str, ...]  # its codes and types, the most specific first


def said(body: Any) -> Said:
    """What the parsed body of an answer says of an error, in any provider's form."""
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


def subject(status: int | None, codes: Iterable[str | None], words: str) -> Subject:
    """What an error with this HTTP `status` is about; `codes` and `words` as `said` has them, None for no status.

    A page in HTML is not the provider's words, so only its status counts; 403 is then no word about the account.
    """
    for code in codes:
        if known := _CODES.get((code or "").lower()):
            return known
    if _PAGE.search(words):
        return "account" if status in _ACCOUNT and status != 403 else "unknown"
    if status is None or status in _SPEAK:
        for about, pattern in _PATTERNS:
            if pattern.search(words[:_READ]):
                return about
    return "account" if status in _ACCOUNT else "unknown"
