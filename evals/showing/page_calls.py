"""Where words are in a run: in prompts and answers, searches, notes, and the documents that were shown.

A text counts once a query, at the first step that has it. Left out: an index; every search reads the run anew.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import islice
from typing import Any

from evals.folder import Outcome, Rows
from tools import disk
from tools.records import Document

MOST = 200  # places that a search returns
AROUND = 90  # characters before and after the first word

Found = Mapping[str, Sequence[tuple[str, str]]]  # key of a model call -> what kind of text has the words, an excerpt


def find_words(outcomes: Rows, words: str, documents: Mapping[str, Document], calls: Found) -> dict[str, Any]:
    """Return the first places of a run whose text has all of the words, in whatever case."""
    around = partial(excerpt, words=words.lower().split())

    @lru_cache(None)
    def in_document(doc_id: str) -> str:
        document = documents.get(doc_id)
        return around(f"{document.title}\n{document.text}") if document else ""

    def places() -> Iterator[dict[str, Any]]:
        for query_id, outcome in replace(outcomes, read=disk.loads).items():
            seen = {""}
            for step, where, text, key in _texts(outcome, around, in_document, calls):
                if text not in seen:
                    seen.add(text)
                    yield {"query_id": query_id, "step": step, "where": where, "text": text, "call": key}

    found = list(islice(places(), MOST + 1)) if words.strip() else []
    return {"hits": found[:MOST], "more": len(found) > MOST}


def _texts(
    outcome: Outcome, around: Callable[[str], str], in_document: Callable[[str], str], calls: Found
) -> Iterator[tuple[int | None, str, str, str]]:
    """Yield step, kind of text, excerpt and key of the call for each text of an outcome, in order."""
    for number, step in enumerate(outcome["trace"]["steps"]):
        yield number, step["tool"], around(step["argument"]), ""
        for key in step.get("calls", ()):
            yield from ((number, where, text, key) for where, text in calls.get(key, ()))
        for doc_id, characters in zip(step["doc_ids"], step.get("shown", ()), strict=False):
            yield number, "document", in_document(doc_id) if characters else "", ""
    for note in outcome["trace"].get("notes", ()):
        yield None, "note", around(note), ""
    yield None, "answer", around(outcome.get("answer") or ""), ""


def excerpt(text: str, words: Sequence[str]) -> str:
    """Return what is around the first of `words` in `text`; nothing where one of them is missing."""
    lowered = text.lower()
    if not all(word in lowered for word in words):
        return ""
    first = min(map(lowered.index, words))
    start, end = max(0, first - AROUND), first + AROUND
    return f"{'…' * (start > 0)}{text[start:end]}{'…' * (end < len(text))}"
