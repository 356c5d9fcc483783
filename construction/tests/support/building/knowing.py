"""A model that knows the groups behind a miniature, which the build does not: what stages of a build ask, answered.

It recognises documents by their texts alone, as they are shown. `noise` has it word labels anew, merge groups wrongly
and grade wrongly, each with a probability, and the same answer to the same question.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from openai_server import asked, given

from sextant import environments

NOISE = {"reworded": 0.3, "merged": 0.05, "graded": 0.1}


class Knowing:
    """Answers for OpenAIServer, by the gold judgements of a task's miniature."""

    def __init__(self, task: str, noise: Mapping[str, float] = {}, seed: int = 0) -> None:
        self.environment = environments.load(task, "mini", "all")
        self.noise, self.seed = noise, seed
        documents = self.environment.documents
        self.groups = {
            f"shared point {_letters(number)}": {
                doc_id for doc_id, grade in self.gold(query.query_id).items() if grade > 0
            }
            | {doc_id for doc_id in query.excluded if documents[doc_id].text == query.text}
            for number, query in enumerate(self.environment.queries)
        }
        self.texts = {_plain(documents[one].text): one for one in documents}
        self.of_group = {
            name: {_plain(documents[one].text) for one in some}
            for name, some in self.groups.items()
        }
        self.queries = dict[str, str]()  # text of a query that it wrote -> group

    def gold(self, query_id: str) -> Mapping[str, float]:
        return self.environment.judgements["gold"].qrels[query_id]

    def of(self, text: str) -> list[str]:
        """The groups of the document that stands in a text; of a description or a label, those that it names."""
        named = [name for name in self.groups if re.search(rf"\b{name}\b", text)]
        if named:
            return named
        plain = _plain(text)
        known = (
            plain
            if plain in self.texts
            else next((text for text in self.texts if text in plain), "")
        )
        return [name for name, texts in self.of_group.items() if known in texts]

    def chance(self, kind: str, *about: str) -> bool:
        return int(_digest(str(self.seed), kind, *about)[:8], 16) / 2**32 < self.noise.get(
            kind, 0.0
        )

    def __call__(self, prompt: str) -> dict[str, Any]:
        fields: dict[str, Any] = getattr(self, f"_{asked(prompt)}")(prompt)
        return {
            name: value if isinstance(value, str) else json.dumps(value)
            for name, value in fields.items()
        }

    def _sorted(self, prompt: str) -> dict[str, Any]:
        kinds = list(json.loads(given(prompt, "kinds")))
        return {
            "sorted": [
                {"id": one, "kind": kinds[not self.of(text)], "why": ""}
                for one, text in passages(prompt)
            ]
        }

    def _found(self, prompt: str) -> dict[str, Any]:
        rows = []
        for one, text in passages(prompt):
            groups = self.of(text)
            label = self._label(groups[0], text) if groups else ""
            note = f"{', '.join(groups)}, told of {_digest(text)[:6]}" if groups else ""
            rows.append({"id": one, "attribute": note, "label": label, "more": []})
        return {"found": rows}

    def _label(self, group: str, text: str) -> str:
        if self.chance("merged", text):
            names = list(self.groups)
            group = names[(names.index(group) + 1) % len(names)]
        return f"said otherwise: {group}" if self.chance("reworded", text) else group

    def _labels(self, prompt: str) -> dict[str, Any]:
        return {
            "labels": [
                {"id": one, "label": self._label(self.of(text)[0], text)}
                for one, text in passages(prompt)
            ]
        }

    def _collapsed(self, prompt: str) -> dict[str, Any]:
        labels = list(json.loads(given(prompt, "labels")))
        first: dict[str, str] = {}
        return {
            "collapsed": [
                {"label": one, "canonical": first.setdefault(self.of(one)[0], one)}
                for one in labels
            ]
        }

    def _merged(self, prompt: str) -> dict[str, Any]:
        by: dict[str, list[str]] = {}
        for one, text in passages(prompt):
            by.setdefault(self.of(text.partition("\n")[0])[0], []).append(one)
        return {
            "merged": [
                {"ids": ids, "label": name, "why": ""} for name, ids in by.items() if len(ids) > 1
            ]
        }

    def _members(self, prompt: str) -> dict[str, Any]:
        named = self.of(given(prompt, "label"))
        rows = [
            {"id": one, "belongs": named[0] in self.of(text), "why": ""}
            for one, text in passages(prompt)
        ]
        return {"members": rows, "better": given(prompt, "label")}

    def _query(self, prompt: str) -> dict[str, Any]:
        if "forbidden" in prompt.partition("All interactions")[0]:
            return {"query": given(prompt, "text")}
        group = self.of(given(prompt, "label"))[0]
        text = f"xyzzy plugh {_spelt(group)} frobozz blorb quux zork grue vorpal"
        self.queries[text] = group
        return {"query": text}

    def _same(self, prompt: str) -> dict[str, Any]:
        return {"same": ""}

    def _verdicts(self, prompt: str) -> dict[str, Any]:
        described = given(prompt, "description")
        wanted = self.queries.get(described) or next(iter(self.of(described)), "")
        rows = []
        for one, text in passages(prompt):
            grade = 2 if wanted in self.of(text) else 0
            grade = 2 - grade if self.chance("graded", described, text, prompt) else grade
            rows.append({"id": one, "grade": grade, "reason": ""})
        return {"verdicts": rows}


def passages(prompt: str) -> list[tuple[str, str]]:
    return [(row["id"], row["text"]) for row in json.loads(given(prompt, "passages"))]


def _digest(*parts: str) -> str:
    return hashlib.sha256("|".join(parts).encode()).hexdigest()


def _letters(number: int) -> str:
    return (
        "abcdefghijklmnopqrstuvwxyz"[number // 26] * (number // 26 + 1)
        + "abcdefghijklmnopqrstuvwxyz"[number % 26] * 3
    )


def _spelt(group: str) -> str:
    return group.rpartition(" ")[2]


def _plain(text: str) -> str:
    return " ".join(text.split())
