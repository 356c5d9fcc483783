"""What a provider's error is about: this text, the account, or nobody knows. Bodies as the providers send them."""

import json

import pytest

from sextant.tools.models.provider_errors import classify_topic, read_error


def openai(message, code=None, kind="invalid_request_error"):
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def anthropic(message, kind="invalid_request_error"):
    return {"type": "error", "error": {"type": kind, "message": message}}


FIREWALL = "<!DOCTYPE html><html><h1>Blocked</h1>The content policy of your organization forbids this input.</html>"
KNOWN = [
    ("content", 400, openai("The response was filtered", "content_filter")),
    ("content", 400, openai("Content Exists Risk")),  # DeepSeek
    ("content", 400, {"error": {"code": "x", "message": "no", "innererror": {"code": "ResponsibleAIPolicyViolation"}}}),
    ("content", 403, {"error": {"message": 'It requires moderation. Your input was flagged for "x".', "code": 403}}),
    ("content", 403, {"code": "The caller does not have permission", "error": "Content violates usage guidelines."}),
    ("length", 400, openai("This model's maximum context length is 8192 tokens. However, you requested 9001 tokens")),
    ("length", 400, anthropic("prompt is too long: 2 > 1")),
    ("length", 413, anthropic("Request exceeds the maximum", "request_too_large")),
    ("length", 400, [{"error": {"code": 400, "status": "INVALID_ARGUMENT", "message":
                      "The input token count (9) exceeds the maximum number of tokens allowed (8)."}}]),
    ("length", 413, {"error": "`inputs` must have less than 512 tokens.", "error_type": "Validation"}),
    ("length", 400, {"error": "the input length exceeds the context length"}),  # Ollama
    ("length", 400, openai("<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 30720]")),
    ("length", 413, {"error": {"code": "tokens_limit_reached", "message": "Request body too large for gpt-4o model."}}),
    ("length", 400, {"error": {"code": "1261", "message": "Prompt exceeds max length"}}),  # Zhipu
    ("length", 400, openai("Invalid request: Your request exceeded model token limit: 8192")),  # Moonshot
    ("length", 400, openai("prompt token count of 80000 exceeds the limit of 64000")),  # GitHub Copilot
    ("length", 400, openai("Input length (900 tokens) exceeds the maximum allowed length (600 tokens).")),  # SGLang
    ("account", 422, openai("Budget has been exceeded! Current cost: 2", "422", "budget_exceeded")),  # LiteLLM
    ("account", 400, openai("litellm.BadRequestError: OpenAIException - Budget has been exceeded!", "400")),
    ("account", 400, anthropic("Your credit balance is too low to access the Anthropic API.")),
    ("account", 429, openai("You exceeded your current quota", "insufficient_quota")),
    ("account", 401, openai("maximum context length")),
    ("account", 402, {"detail": "pay"}),
    ("unknown", 400, openai("The `reasoning_content` in the thinking mode must be passed back to the API.",
                            "invalid_request_error")),
    ("unknown", 403, FIREWALL),
    ("unknown", 413, "<html><head><title>413 Request Entity Too Large</title></head></html>"),
    ("unknown", 422, {"detail": [{"type": "extra_forbidden", "msg": "no", "input": "a context window"}]}),
    ("unknown", 429, openai("Request too large for the context window per minute", "rate_limit_exceeded")),
    ("unknown", 503, openai("Content Exists Risk")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("about", "status", "body"), KNOWN, ids=[json.dumps(body)[:70] for *_, body in KNOWN]
)
def test_only_what_a_provider_says_of_the_text_is_about_the_text(about, status, body):
    error = read_error(body)
    assert classify_topic(status, error.codes, error.words) == about


@pytest.mark.parametrize(
    ("delay", "seconds"), [("3.934310785s", 3.934310785), ("58s", 58.0), ("soon", None), (58, None)]
)
def test_the_wait_that_google_s_error_asks_for_is_read(delay, seconds):
    details = [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay}]
    assert read_error([{"error": {"code": 429, "details": [{}, *details]}}]).wait == seconds


@pytest.mark.parametrize(
    "body", [None, [], {}, 3, [[]], {"error": 3}, {"error": {"message": 3, "code": [1]}}, "x", ""]
)
def test_any_body_says_something(body):
    error = read_error(body)
    assert isinstance(error.words, str) and all(isinstance(code, str) for code in error.codes)
    assert classify_topic(400, error.codes, error.words) == "unknown"
