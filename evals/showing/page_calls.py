"""Where words are in a run: in prompts and answers, searches, notes, and the documents that were shown.

A text counts once a query, at the first step that has it. A prompt is looked at in the parts it is kept in, which are
messages and passages. Left out: an index; every search reads the run anew.
"""

import json
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import zstandard

from evals.folder import Outcome, Rows
from tools import disk
from tools.models.kept import readable
from tools.records import Document

MOST = 200  # places that a search returns
AROUND = 90  # characters before and after a word

_GIVEN = "IN (SELECT value FROM json_each(?))"
_CALLS = f"SELECT key, request, outputs, reasoning FROM calls WHERE key {_GIVEN} AND fault = ''"
_PARTS = f"SELECT id, text FROM parts WHERE id {_GIVEN}"

_FRAME = re.compile(r'\{?"(messages|role|content)":("(system|developer|user|assistant|tool)",?)?')  # of a message

_Excerpt = Callable[[str], str]  # what is around the words of a search; "" where not all are there
_Found = list[tuple[str, str]]  # kind of text, excerpt


def find_words(outcomes: Rows, words: str, documents: Mapping[str, Document], answers: Path) -> dict[str, Any]:
    """Return the first places of a run whose text has all of the words, in whatever case."""
    around = partial(excerpt, words=words.lower().split())

    @cache
    def in_document(doc_id: str) -> str:
        document = documents.get(doc_id)
        return around(f"{document.title}\n{document.text}") if document else ""

    def places(in_calls: Callable[[Sequence[str]], dict[str, _Found]]) -> Iterator[dict[str, Any]]:
        for query_id, outcome in replace(outcomes, read=disk.loads).items():
            seen = set[tuple[str, str]]()
            for step, where, text, key in _texts(outcome, around, in_document, in_calls):
                if text and (where, text) not in seen:
                    seen.add((where, text))
                    yield {"query_id": query_id, "step": step, "where": where, "text": text, "call": key}

    with readable(answers), _opened(answers) as reader:
        found = list(islice(places(partial(_in_calls, reader, around, {})), MOST + 1)) if words.strip() else []
    return {"hits": found[:MOST], "more": len(found) > MOST}


def _texts(
    outcome: Outcome,
    around: _Excerpt,
    in_document: _Excerpt,
    in_calls: Callable[[Sequence[str]], dict[str, _Found]],
) -> Iterator[tuple[int | None, str, str, str]]:
    """Yield step, kind, excerpt and key of the call for each text of an outcome, in order."""
    steps = outcome["trace"]["steps"]
    calls = in_calls([key for step in steps for key in step.get("calls", ())])
    for number, step in enumerate(steps):
        for key in step.get("calls", ()):
            yield from ((number, kind, text, key) for kind, text in calls.get(key, ()))
        yield number, step["tool"], around(step["argument"]), ""
        for doc_id, characters in zip(step["doc_ids"], step.get("shown", ()), strict=False):
            if characters and (text := in_document(doc_id)):
                yield number, f"document {doc_id}", text, ""
    for note in outcome["trace"].get("notes", ()):
        yield None, "note", around(note), ""
    yield None, "answer", around(outcome.get("answer") or ""), ""


def _in_calls(
    reader: sqlite3.Connection | None, around: _Excerpt, parts: dict[int, str], keys: Sequence[str]
) -> dict[str, _Found]:
    """Return what is found in calls, by key. `parts` has what was found in parts of prompts so far, by id."""
    if reader is None or not keys:
        return {}
    decompress = zstandard.ZstdDecompressor().decompress
    calls = reader.execute(_CALLS, [json.dumps(keys)]).fetchall()
    sent = {key: disk.loads(request or "[]") for key, request, _, _ in calls}
    unread = [part for ids in sent.values() for part in ids if part not in parts]
    for part, text in reader.execute(_PARTS, [json.dumps(unread)]):
        written = decompress(text).decode("utf-8", "replace").replace("\\n", "\n").replace('\\"', '"')
        parts[part] = around(written) and around(_FRAME.sub("", written))
    return {
        key: [("prompt", parts.get(part, "")) for part in sent[key]]
        + [("answer of the model", around(_text(outputs))), ("reasoning", around(reasoning or ""))]
        for key, _, outputs, reasoning in calls
    }


def _text(outputs: str | None) -> str:
    said = disk.loads(outputs or "[]")
    return "\n".join(one if isinstance(one, str) else json.dumps(one, ensure_ascii=False) for one in said)


def _opened(answers: Path) -> Any:
    if not answers.is_file():
        return nullcontext()
    return closing(sqlite3.connect(f"{answers.as_uri()}?mode=ro", uri=True))


def excerpt(text: str, words: Sequence[str]) -> str:
    """Return what is around the word that appears last in `text`; nothing where one of them is missing."""
    lowered = text.lower()
    if not all(word in lowered for word in words):
        return ""
    place = max(map(lowered.index, words))
    start, end = max(0, place - AROUND), place + AROUND
    return f"{'…' * (start > 0)}{text[start:end]}{'…' * (end < len(text))}"
