"""What one session may use, and what it has used so far."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tools.errors import UsageError
from tools.records import Usage


@dataclass(frozen=True, slots=True)
class Limits:
    """What one session may use; None is no limit. Counts are calls, lengths are characters."""

    searches: int | None = None
    reads: int | None = None
    snippet_chars: int = 300
    calls: int | None = None  # of a model, including those whose answers were kept
    tokens: int | None = None  # of prompts and answers together; a call that begins below may end above
    depth: int = 1000  # documents in the ranking that is made where a limit ends a session


class Meter:
    """Counts what a session uses against its limits. Its session holds a lock around every call."""

    def __init__(self, limits: Limits, snapshot: Mapping[str, Any]) -> None:
        self._limits = limits
        self.over = ""  # why no model may be called any more, once that is so
        self._calls = snapshot["usage"]["calls"] if snapshot else 0  # that were allowed
        self._used = Counter[str](snapshot.get("used", {}))  # searches and reads
        self._requests = Counter[str](snapshot.get("asked", {}))

    def snapshot(self) -> dict[str, Any]:
        """Return the counts as plain data."""
        return {"used": dict(self._used), "asked": dict(self._requests)}

    def take(self, tool: Literal["search", "read"]) -> str:
        """Count one use of `tool`; return why it is refused, or "" where it is granted."""
        most = self._limits.searches if tool == "search" else self._limits.reads
        if most is not None and self._used[tool] >= most:
            return f"all {most} {tool} calls of this session are used; submit now"
        self._used[tool] += 1
        return ""

    def take_call(self, spent: Usage) -> bool:
        """Count one model call; False, with the reason in `over`, where none is left after `spent`.

        UsageError when tokens are limited and a call did not report how many it used.
        """
        limits, tokens = self._limits, spent.input_tokens + spent.output_tokens
        if limits.tokens is not None and spent.unmetered:
            raise UsageError(
                "-P max_tokens cannot be kept: the provider did not report what a call used; use -P max_calls"
            )
        if not self.over and limits.calls is not None and self._calls >= limits.calls:
            self.over = f"all {limits.calls} model calls of this session are used"
        if not self.over and limits.tokens is not None and tokens >= limits.tokens:
            self.over = f"all {limits.tokens} tokens of this session are used ({tokens} so far)"
        self._calls += not self.over
        return not self.over

    def count_request(self, request: str) -> int:
        """Count a model request by its digest; return how often the same one was made before."""
        self._requests[request] += 1
        return self._requests[request] - 1
