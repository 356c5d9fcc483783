"""Prompt injection: which texts speak to the model that reads them, by a list of phrases and forms.

It misses an appeal in other words, and finds texts that only quote one. tools/session.py notes what a model followed: a
document that has an appeal and is selected counts, even where it was selected on its merits.
"""

import re
from functools import lru_cache
from typing import Literal

Appeal = Literal["", "task", "rank", "tool", "prompt", "form"]

# What is asked -> how texts ask for it. The first that matches names the appeal.
_THIS = r"\bthis (?:document|passage|text|page|candidate)\b"
_PHRASES: dict[Appeal, str] = {
    "prompt": r"\b(?:print|repeat|reveal|output|show|recite|copy)\b[^.!?\n]{0,40}"
    r"\b(?:(?:system|your) prompt|(?:your|the above|the system) instructions)\b",
    "task": r"\b(?:ignore|disregard|forget|override|stop following)\b[^.!?\n]{0,60}"
    r"\b(?:instructions?|tasks?|rules|prompt|objective|guidelines|everything above)\b",
    "rank": rf"\b(?:rank|place|put|select|choose|score|rate|return)\b[^.!?\n]{{0,30}}{_THIS}"
    rf"|{_THIS}[^.!?\n]{{0,40}}\b(?:ranked? (?:first|highest|top)|most relevant|score of)\b",
    "tool": r"\b(?:call|invoke|use) (?:the|your) [\w ]{0,20}\btool\b",
    "form": r"\[\[ ?#{1,3} |<\|[a-z_]+\|>|</?(?:tool_call|function_call|invoke|system)\b|\"tool_calls\"|\[/?INST\]",
}
_PATTERNS = {what: re.compile(pattern, re.IGNORECASE) for what, pattern in _PHRASES.items()}


@lru_cache(maxsize=2048)  # the same documents come back hop after hop
def appeal(text: str) -> Appeal:
    """Return what `text` asks of a model that reads it; "" where it asks nothing that the phrases know."""
    return next((what for what, pattern in _PATTERNS.items() if pattern.search(text)), "")
