"""The answer of a provider to a request, before it is booked.

Booked answers are in storage/response_cache.py, errors in provider_errors.py.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from sextant.tools.models.answers.thoughts import part_thoughts
from sextant.tools.models.context_window import Message
from sextant.tools.models.storage.request_store import Packed


class ProviderResponse(NamedTuple):
    """The answer to a request, before it is booked."""

    outputs: list[Any]
    finish: str
    usage: Any  # as reported
    headers: Any
    reasoning: str = ""
    first: float | None = None  # seconds to its first token, where it was streamed
    packed: Packed | None = None  # the request in parts, where that is for who sends it
    timings: Any = None  # the server's own measure of its speed

    def without_thoughts(self, instruction: str) -> "ProviderResponse":
        """Return the answer with the thoughts in its text as reasoning.

        `instruction` is the system message: a tag that it asks for marks no thoughts.
        """
        thoughts = [self.reasoning]
        outputs = list[Any]()
        for output in self.outputs:
            thought, remainder = part_output(output, instruction)
            thoughts.append(thought)
            outputs.append(remainder)
        return self._replace(outputs=outputs, reasoning="\n".join(filter(None, thoughts)))


Send = Callable[[float], ProviderResponse]
"""Sends one request; the answer is there by the deadline, or a DSPy LM error is raised."""


def find_instruction(messages: Sequence[Message]) -> str:
    """Return the system message of a model."""
    content = (
        messages[0].get("content")
        if messages and messages[0].get("role") in ("system", "developer")
        else ""
    )
    return content if isinstance(content, str) else ""


def part_output(output: Any, instruction: str) -> tuple[str, Any]:
    """Return the thoughts in the text of an output, and the output without them."""
    if isinstance(output, str):
        return part_thoughts(output, instruction)
    text_field = (
        "content"
        if isinstance(output, dict) and "tool_calls" in output and "text" not in output
        else "text"
    )
    text = output.get(text_field) if isinstance(output, dict) else None
    if not isinstance(text, str):
        return "", output
    thoughts, answer = part_thoughts(text, instruction)
    if answer == text:
        return "", output
    original = (
        {"said": text} if text_field == "content" and thoughts else {}
    )  # it may have to go back as it came
    return thoughts, {**output, text_field: answer, **original}
