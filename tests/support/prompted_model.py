"""A simulated model whose skill depends on its prompt, and a task on which that skill is all that counts.

Every query of the task describes its wanted document in words that the document does not have. The model knows the
document's own words (a model's knowledge of the world), and makes use of that only when its prompt tells it to. It has
three skills, each off unless the instructions or demonstrations that were sent tell of it:

1. transcript language: a search has the words of the document; without it, those of the description;
2. another angle: a later search takes the second of two phrases; without it, the first search is made again;
3. strict selection: only what has the phrase is kept; without it, everything in the order in which it was shown.

On some queries, and at temperature 1 in some calls, it does all three by itself, as models do: that is what
demonstrations are bootstrapped from. Asked for an instruction by one of DSPy's optimizers, it adds a tip to the
instruction it is shown; which one, it takes from what it is shown beside it. Every choice is a hash of what was sent.
"""

import hashlib
import json
import random
import re
import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conftest import lines
from openai_server import OpenAIServer, _reply

TRANSCRIPT = (
    "Search in the language of the transcript: say it as a speaker in the room would have said it."
)
ANGLE = "Never repeat a search: take another angle in every hop."
STRICT = "Select strictly: keep a passage only when it matches, and leave out everything else."
USELESS = "Take a deep breath and work with care."

FIRST, SECOND = (
    8,
    3,
)  # documents that are nearly right, by each of a query's two phrases; they outrank the right one
DECOYS = 2  # documents in the words of a description
TOPICS = (
    "roads",
    "ports",
    "schools",
    "pensions",
    "forests",
)  # of the queries: what makes some of them alike
LUCKY = 0.3  # queries on which the plain model does well by itself
SAMPLED = 0.5  # calls at temperature 1 in which it does


# What a model knows of the document that a query wants, by the query's text: two phrases, of which it says one.
Known = dict[str, tuple[str, str]]


def write_task(folder: Path, queries: int, seed: int = 0) -> Known:
    """A data folder in OBLIQ-Bench's layout; what a model may know of it, by the text of a query.

    Of every second query the document says the second phrase, and so comes back from no search with the first.
    """
    drawn = random.Random(seed)
    fresh = _words(drawn)
    known, documents, asked, judged = {}, [], [], []
    for number in range(queries):
        described = [next(fresh) for _ in range(6)]
        first, second = ([next(fresh) for _ in range(4)] for _ in range(2))
        said = second if number % 2 else first
        texts = [" ".join([*said, *(next(fresh) for _ in range(8))])]
        texts += [" ".join([*reversed(first), *first[::2], *first[1::2]])] * FIRST
        texts += [" ".join([*reversed(second), *second[::2], *second[1::2]])] * SECOND
        texts += [" ".join(described * 2)] * DECOYS
        gold = len(documents)
        documents += texts
        text = "In the matter of {} somebody spoke of {} {} {} and then of {} {} {}.".format(
            drawn.choice(TOPICS), *described
        )
        known[text] = " ".join(first), " ".join(second)
        asked.append({"_id": f"Q{number}", "text": text})
        judged.append((f"Q{number}", gold))
    # Ids say nothing: they are drawn, so that no order of documents gives the right one away.
    ids = [f"D{place:05}" for place in drawn.sample(range(100_000), len(documents))]
    place = folder / "tip-of-tongue" / "congress"
    (place / "corpus").mkdir(parents=True)
    (place / "queries+qrels").mkdir()
    rows = [{"_id": one, "text": text} for one, text in zip(ids, documents, strict=True)]
    lines(place / "corpus/corpus.jsonl", map(json.dumps, rows))
    lines(place / "queries+qrels/queries.jsonl", map(json.dumps, asked))
    rows = [f"{query_id}\t{ids[gold]}\t1" for query_id, gold in judged]
    lines(place / "queries+qrels/qrels.tsv", ["query-id\tcorpus-id\tscore", *rows])
    return known


def _words(drawn: random.Random):
    """Words that there are not, each once."""
    seen = set()
    while True:
        word = "".join(drawn.choice("bdfgklmnprstvz") + drawn.choice("aeiou") for _ in range(3))
        if word not in seen:
            seen.add(word)
            yield word


@dataclass(frozen=True, slots=True)
class Asked:
    """A prompt as a model reads it."""

    instructions: str
    outputs: tuple[str, ...]  # the fields that are asked for
    demos: tuple[dict[str, str], ...]  # fields that were shown with an answer
    fields: dict[str, str]  # of the question
    temperature: float

    @property
    def all_text(self) -> str:
        return "\n".join(self.fields.values())


def read(body: dict[str, Any]) -> Asked:
    """The prompt of a request, in the form in which DSPy's chat adapter writes them."""
    system, *turns = [message["content"] for message in body["messages"]]
    head, _, instructions = system.partition("your objective is:")
    listed = head.partition("Your output fields are:")[2].partition("All interactions")[0]
    pairs = list(zip(turns[:-1:2], turns[1::2], strict=True))
    return Asked(
        " ".join(instructions.split()),
        tuple(re.findall(r"^\d+\. `(\w+)`", listed, re.MULTILINE)),
        tuple(_fields(question) | _fields(answer) for question, answer in pairs),
        _fields(turns[-1]),
        float(body.get("temperature") or 0.0),
    )


def _fields(text: str) -> dict[str, str]:
    text = text.partition("\n\nRespond with the corresponding output fields")[0]
    parts = re.split(r"\[\[ ## (\w+) ## \]\]\n?", text)
    return {
        name: value.strip()
        for name, value in zip(parts[1::2], parts[2::2], strict=True)
        if name != "completed"
    }


class Model:
    """Answers requests. `able` has all skills; `ignores` none that its prompt teaches; `noisy` a draw for a request."""

    def __init__(
        self, known: Known, *, lucky=LUCKY, able=False, ignores=False, noisy=False
    ) -> None:
        self.known = known
        self.lucky, self.able, self.ignores, self.noisy = lucky, able, ignores, noisy
        self._vocabulary = {
            word for phrases in known.values() for phrase in phrases for word in phrase.split()
        }
        self._came: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.proposals = 0  # requests for a text that is not about a query

    def forget(self) -> None:
        """Begin anew: how often a request came is what tells samples of one prompt apart."""
        self._came.clear()
        self.proposals = 0

    def __call__(self, body: dict[str, Any]) -> dict[str, Any]:
        """The fields of the answer."""
        asked = read(body)
        text = json.dumps(body["messages"])
        with self._lock:
            before = self._came[text]
            self._came[text] += asked.temperature > 0
        draw = _draw(text, before)
        if "search" in asked.outputs:
            return {"search": self._search(asked, self._skills(asked, draw))}
        if "selected" in asked.outputs:
            return {
                "selected": json.dumps(self._select(asked, self._skills(asked, draw))),
                "observations": "Seen.",
            }
        self.proposals += 1
        return proposed(asked, draw)

    def _skills(self, asked: Asked, draw: float) -> set[str]:
        description = asked.fields["description"]
        if self.noisy:
            return {
                tip
                for place, tip in enumerate((TRANSCRIPT, ANGLE, STRICT))
                if int(draw * 8) >> place & 1
            }
        by_itself = (
            self.able
            or _draw(description) < self.lucky
            or (asked.temperature >= 1 and draw < SAMPLED)
        )
        if by_itself:
            return {TRANSCRIPT, ANGLE, STRICT}
        return set() if self.ignores else self.taught(asked)

    def taught(self, asked: Asked) -> set[str]:
        """The skills that a prompt tells of."""
        told = asked.instructions
        skills = {tip for tip in (TRANSCRIPT, ANGLE, STRICT) if tip in told}
        for demo in asked.demos:
            if words := demo.get("search", "").split():
                if sum(word in self._vocabulary for word in words) > len(words) / 4:
                    skills.add(TRANSCRIPT)
                is_later = not demo.get("hop", "1 ").startswith("1 ")
                if is_later and demo["search"] == self._angles(demo)[1]:
                    skills.add(ANGLE)
            if "selected" in demo and "passages" in demo:
                kept, shown = _ids(demo["selected"]), json.loads(demo["passages"])
                if len(shown) > 1 and len(kept) <= len(shown) / 2:
                    skills.add(STRICT)
        return skills

    def _search(self, asked: Asked, skills: set[str]) -> str:
        angles = _described(asked.fields["description"])
        if TRANSCRIPT in skills:
            angles = self.known[asked.fields["description"]]
        is_later = not asked.fields["hop"].startswith("1 ")
        return angles[1] if is_later and ANGLE in skills else angles[0]

    def _angles(self, demo: dict[str, str]) -> tuple[str, str]:
        """The two searches of a demonstration's query, in the words of which its search is."""
        said = self.known.get(demo["description"], ("", ""))
        return said if demo["search"] in said else _described(demo["description"])

    def _select(self, asked: Asked, skills: set[str]) -> list[str]:
        shown = json.loads(asked.fields["passages"])
        if STRICT not in skills:
            return [one["id"] for one in shown]
        phrases = self.known[asked.fields["description"]]
        return [one["id"] for one in shown if any(phrase in one["text"] for phrase in phrases)]


def _described(description: str) -> tuple[str, str]:
    """The two halves of what a description says."""
    words = re.findall(r"\w{6}", description.partition("spoke of")[2])
    return " ".join(words[:3]), " ".join(words[3:])


def _ids(value: str) -> list[str]:
    """A list in an answer or a prompt."""
    return [str(one) for one in json.loads(value)] if value.startswith("[") else []


def _draw(*parts: Any) -> float:
    """A number from 0 up to 1 that depends on nothing else."""
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(digest[:6]) / 2**48


def proposed(asked: Asked, draw: float) -> dict[str, Any]:
    """What a prompt model writes, for each of the forms in which DSPy's optimizers ask."""
    outputs, fields = asked.outputs, asked.fields
    if "new_instruction" in outputs:  # GEPA
        return {"new_instruction": _improved(fields["current_instruction"], asked.all_text, draw)}
    if "module_advice" in outputs:  # SIMBA
        advice = {
            "reader.next_search": _tip("Write the next search", asked.all_text, draw),
            "reader.read_passages": _tip("Read passages", asked.all_text, draw),
        }
        return {"discussion": "One was better.", "module_advice": json.dumps(advice)}
    if "natural_language_rules" in outputs:  # InferRules
        shown = "Read passages" if "selected:" in asked.all_text else "Write the next search"
        rules = {"natural_language_rules": f"1. {_tip(shown, asked.all_text, draw)}"}
        return (
            {"reasoning": "They have that in common.", **rules} if "reasoning" in outputs else rules
        )
    if "proposed_instruction" in outputs:  # COPRO and MIPROv2
        fresh = {"proposed_instruction": _improved(_best(fields), "", draw)}
        return fresh | {"proposed_prefix_for_output_field": "It is:"} if len(outputs) > 1 else fresh
    return dict.fromkeys(
        outputs, "Queries about documents."
    )  # what MIPROv2 asks about data and program


def _best(fields: dict[str, str]) -> str:
    """The instruction to be improved; of several attempts the last, which scored best."""
    if "attempted_instructions" not in fields:
        return fields["basic_instruction"]
    listed = re.findall(
        r"Instruction #\d+: ((?:(?!(?:Prefix|Resulting Score) #).)*)",
        fields["attempted_instructions"],
    )
    return str(json.loads(f'"{listed[-1].rpartition(chr(34))[0]}"')) if listed else ""


def _improved(instruction: str, material: str, draw: float) -> str:
    tip = _tip(instruction, material, draw)
    return instruction if tip in instruction else f"{instruction}\n{tip}"


def _tip(instruction: str, material: str, draw: float) -> str:
    """The tip for a module with this instruction. What was lost, if that is said, tells which; else it is a guess."""
    if "Read passages" in instruction:
        return STRICT if "ranked below" in material or draw < 0.6 else USELESS
    if "repeats an earlier search" in material and TRANSCRIPT in instruction:
        return ANGLE
    if "never surfaced" in material and TRANSCRIPT not in instruction:
        return TRANSCRIPT
    return (
        USELESS
        if draw < 0.2
        else TRANSCRIPT
        if draw < 0.5
        else ANGLE
        if draw < 0.7
        else f"{TRANSCRIPT} {ANGLE}"
    )


class Server(OpenAIServer):
    """Serves a `Model` over the OpenAI protocol."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def reply(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        text = "\n\n".join(message["content"] for message in body["messages"])
        return _reply(body["model"], self.model(body), text)

    @property
    def prompts(self) -> list[str]:
        """The messages of all requests so far, sorted: threads send them in any order."""
        return sorted(json.dumps(body["messages"]) for body in self.requests)
