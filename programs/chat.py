"""Tool calls in the protocol's own form: one request through the openai client, one message of the assistant.

For agents whose model has OpenAI's tool interface. It is the transport alone: budget, journal, retries and books are
those of every other call (programs/lm.py), so the client's errors become DSPy's types here. No streaming.
"""

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import dspy

TIMEOUT = 600.0  # seconds, as for DSPy's own calls

Message = dict[str, Any]  # of the chat protocol: "role", "content", "tool_calls", ...


class Reply(NamedTuple):
    """What came back."""

    message: (
        Message  # {"content": text, "tool_calls": [{"id", "name", "arguments"}]}, the arguments as they were written
    )
    finish: str
    usage: dict[str, Any]  # as the server reports it


@dataclass(frozen=True)
class Endpoint:
    """One model behind the openai client. Threads share it."""

    model: str
    url: str = ""  # empty: OpenAI's, or $OPENAI_BASE_URL
    key: str = field(default="", repr=False)  # empty: $OPENAI_API_KEY

    @cached_property
    def _client(self) -> Any:
        import openai

        try:
            return openai.OpenAI(base_url=self.url or None, api_key=self.key or None, max_retries=0, timeout=TIMEOUT)
        except openai.OpenAIError as error:  # no key
            raise dspy.LMNotConfiguredError(str(error), model=self.model) from None

    def complete(self, messages: Sequence[Message], tools: Sequence[Message], settings: dict[str, Any]) -> Reply:
        """One answer of the model, which may call `tools`; both in the protocol's form.

        Raises DSPy's LM errors; LMUnsupportedFeatureError when the server says that it takes no tools.
        """
        import openai

        try:
            answer = self._client.chat.completions.create(
                model=self.model, messages=list(messages), tools=list(tools), **settings
            )
            choice = answer.choices[0]
            calls = [_call(call) for call in choice.message.tool_calls or ()]
            content = choice.message.content
            usage = answer.usage.model_dump() if answer.usage else {}
        except openai.APITimeoutError as error:
            raise dspy.LMTimeoutError(str(error), model=self.model) from error
        except openai.APIStatusError as error:
            raise _translated(error, self.model) from error
        except (openai.OpenAIError, ValueError, TypeError, IndexError, AttributeError) as error:
            # No connection, or a page of a gateway instead of an answer.
            raise dspy.LMTransportError(f"no answer that can be read: {error}", model=self.model) from error
        finish = "refusal" if getattr(choice.message, "refusal", None) else str(choice.finish_reason or "stop")
        return Reply({"content": content if isinstance(content, str) else "", "tool_calls": calls}, finish, usage)


def _call(call: Any) -> dict[str, str]:
    """One call of a message, whatever a server makes of the protocol: text in every field, unusable where it is not."""
    function = getattr(call, "function", None)
    name, arguments = getattr(function, "name", None), getattr(function, "arguments", None)
    if not isinstance(arguments, str):
        arguments = "" if arguments is None else json.dumps(arguments, default=str)
    return {"id": str(getattr(call, "id", None) or ""), "name": str(name or ""), "arguments": arguments}


_TOO_LONG = re.compile(r"context.(?:length|window|size|limit)|maximum context", re.IGNORECASE)
_NO_TOOLS = re.compile(r"\b(?:tools?|tool_choice|function(?:s| call\w*))\b", re.IGNORECASE)


def _translated(error: Any, model: str) -> dspy.LMError:
    """The client's error for an HTTP status as DSPy's."""
    status, words = error.status_code, str(getattr(error, "message", error))
    about = {"model": model, "status": status, "provider_code": getattr(error, "code", None)}
    if status in (401, 403):
        return dspy.LMAuthError(words, **about)
    if status == 402 or about["provider_code"] == "insufficient_quota":
        return dspy.LMBillingError(words, **about)
    if status in (408, 409, 425, 429):
        return dspy.LMRateLimitError(words, retry_after=_seconds(error), **about)
    if status >= 500 and status != 501:
        return dspy.LMServerError(words, retry_after=_seconds(error), **about)
    # Before what is said of tools: OpenAI counts the tokens "in the functions" when a conversation is too long.
    if _TOO_LONG.search(f"{about['provider_code']} {words}"):
        return dspy.ContextWindowExceededError(message=words, **about)
    if _NO_TOOLS.search(words):
        return dspy.LMUnsupportedFeatureError(words, feature="tools", model=model)
    return dspy.LMInvalidRequestError(words, **about)


def _seconds(error: Any) -> float | None:
    try:
        return float(error.response.headers.get("retry-after"))
    except (TypeError, ValueError, AttributeError):
        return None


def endpoint(name: str, url: str) -> Endpoint | None:
    """Where a model has OpenAI's tool interface: at a server of the user's own, or at OpenAI. None elsewhere."""
    model = name.partition("/")[2]
    if url:
        return Endpoint(model, url, os.environ.get("SEXTANT_API_KEY") or "none")
    return Endpoint(model) if name.startswith("openai/") else None
