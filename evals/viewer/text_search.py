"""Search for words in a run: in prompts and answers, searches, notes, and the documents that were
shown.

A text counts once a query, at the first step that has it. A prompt is looked at in the parts it is
kept in, which are messages and passages. Left out: an index; every search reads the whole run.
"""

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import islice
from pathlib import Path

from sextant.evals.run_folder import Outcome
from sextant.tools.models.storage.request_store import CallTexts, open_call_texts
from sextant.tools.records import Document, JsonObject

# Places that a search returns.
MOST = 200
# Characters before and after a word.
AROUND = 90

# The frame of a message.
_FRAME = re.compile(r'\{?"(messages|role|content)":("(system|developer|user|assistant|tool)",?)?')


def find_words(
    outcomes: Mapping[str, Outcome], words: str, documents: Mapping[str, Document], answers: Path
) -> JsonObject:
    """Return the first places in a run whose text has all the words, ignoring case."""
    with open_call_texts(answers) as calls:
        search = _Search(words.lower().split(), documents, calls)
        passages = list(islice(search.places(outcomes), MOST + 1)) if words.strip() else []
    return {
        "hits": passages[:MOST],
        "more": len(passages) > MOST,
    }


# And what it has found in documents and in parts of prompts, which come again and again
class _Search:
    def __init__(
        self, words: list[str], documents: Mapping[str, Document], calls: CallTexts | None
    ) -> None:
        self._words = words
        self._documents = documents
        self._calls = calls
        self._in_document = cache(self._read_document)
        self._in_parts = dict[int, str]()

    def places(self, outcomes: Mapping[str, Outcome]) -> Iterator[JsonObject]:
        for query_id, outcome in outcomes.items():
            reported = set()
            for step, location, text, key in self._texts(outcome):
                if text and (location, text) not in reported:
                    reported.add((location, text))
                    yield {
                        "query_id": query_id,
                        "step": step,
                        "where": location,
                        "text": text,
                        "call": key,
                    }

    def _texts(self, outcome: Outcome) -> Iterator[tuple[int | None, str, str, str]]:
        trace = outcome["trace"]
        for number, caller in [
            *enumerate(trace["steps"]),
            (None, trace),
        ]:  # a trace has the calls after its last step
            for key in caller.get("calls", ()):
                yield from ((number, source, text, key) for source, text in self._in_call(key))
        for number, step in enumerate(trace["steps"]):
            yield number, step["tool"], self._around(step["argument"]), ""
            for doc_id, characters in zip(step["doc_ids"], step.get("shown", ()), strict=False):
                if characters and (text := self._in_document(doc_id)):
                    yield number, f"document {doc_id}", text, ""
        for note in trace.get("notes", ()):
            yield None, "note", self._around(note), ""
        yield None, "answer", self._around(outcome.get("answer") or ""), ""

    def _read_document(self, doc_id: str) -> str:
        document = self._documents.get(doc_id)
        return self._around(f"{document.title}\n{document.text}") if document else ""

    def _in_call(self, key: str) -> Iterator[tuple[str, str]]:
        if self._calls is None:
            return
        for part_ids, outputs, reasoning in self._calls.calls(key):
            for part_id, text in self._calls.parts(
                [part_id for part_id in part_ids if part_id not in self._in_parts]
            ):
                self._in_parts[part_id] = self._around(text) and self._around(_FRAME.sub("", text))
            for part_id in part_ids:
                yield "prompt", self._in_parts.get(part_id, "")
            for output in outputs:
                text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
                yield "answer of the model", self._around(text)
            yield "reasoning", self._around(reasoning)

    def _around(
        self, text: str
    ) -> str:  # what is around the word that appears last; "" where one is missing
        lowered = text.lower()
        if not all(word in lowered for word in self._words):
            return ""
        position = max(map(lowered.index, self._words))
        start = max(0, position - AROUND)
        end = position + AROUND
        return f"{'…' * (start > 0)}{text[start:end]}{'…' * (end < len(text))}"
