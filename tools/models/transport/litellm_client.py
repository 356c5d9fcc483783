"""Providers that DSPy and LiteLLM reach, and not our own client: additions to dspy.LM for their
calls.

Calls of tools go to LiteLLM itself, whose answer is read as our own client's are, because DSPy
drops the signatures of thoughts. Left out: streams.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from dspy.clients.lm import litellm_completion

from sextant.tools.models.context_window import Message, mark_cacheable_prefix
from sextant.tools.models.model_spec import unsupported_reasoning_limit
from sextant.tools.models.transport.openai_client import Completion, read_completion

_THINKING = (
    "anthropic/",
    "bedrock/",
    "gemini/",
    "vertex_ai/",
)  # those that LiteLLM gives a limit of reasoning


def converse(
    model: str, messages: Sequence[Message], tools: Sequence[Message], settings: Mapping[str, Any]
) -> Completion:
    """Return the answer to a conversation with tools. Raises LiteLLM's errors."""
    # LiteLLM writes words of its own into a text that is empty, and leaves one alone that is
    # missing.
    conversation = [
        message if message["content"] else message | {"content": None} for message in messages
    ]
    request = {
        "model": model,
        "messages": mark_cacheable_prefix(model, conversation, grows=True),
        "tools": [*tools],
        **settings,
    }
    # Looking for tools of its MCP gateway, it imports a package that it comes without.
    answered = litellm_completion(request | {"_skip_mcp_handler": True}, num_retries=0)
    return read_completion("chat", answered.model_dump_json().encode(), model)


def limit_reasoning(model: str, tokens: int) -> dict[str, Any]:
    """Return the option for --reasoning-tokens; UsageError if LiteLLM has none that is a limit."""
    if not model.startswith(_THINKING):
        raise unsupported_reasoning_limit(f"{model}, by way of LiteLLM,")
    return {"thinking": {"type": "enabled", "budget_tokens": tokens}}
