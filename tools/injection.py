"""Prompt injection: which texts speak to the model that reads them, and which documents a model followed.

Texts are recognised by a list of phrases and forms. It misses an appeal in other words, and it finds texts that only
quote one: a document that has an appeal and is selected counts, even where it was selected on its merits.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Literal

from tools.records import Document, Trace

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


class Followed:
    """Notes in a trace which documents a model followed, with the first thing that it did for each."""

    def __init__(self, trace: Trace, documents: Mapping[str, Document]) -> None:
        self._trace, self._documents = trace, documents

    def note(self, doc_ids: Iterable[str], what: str, asks: Callable[[str], object] = appeal) -> None:
        """Note that `what` happened, for those of the documents shown to a model whose text `asks` for it."""
        for doc_id in doc_ids:
            if asks(self._documents[doc_id].text):
                self._trace.followed.setdefault(doc_id, what)  # one step of the interpreter: no lock is needed

    def blame(self, shown: Iterable[str], words: str, what: str) -> None:
        """Note the documents that have `words`, which a model can only have from one, and an appeal."""
        if words := words.strip():
            whole = re.compile(rf"(?<!\w){re.escape(words)}(?!\w)")  # "d1" is not in "d12"
            # Most texts lack the words, and a pattern takes a hundred times as long to find that out.
            self.note(shown, what, lambda text: words in text and whole.search(text) and appeal(text))

    def note_leak(self, shown: Iterable[str]) -> None:
        """Note the documents that ask for the prompt, with which a model has answered."""
        self.note(shown, "printed the prompt", lambda text: appeal(text) == "prompt")
