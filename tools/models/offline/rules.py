"""Rules for output fields without a model: each makes a field of a call's inputs and of the corpus' statistics.

A program names the rules of its signatures (programs/base.py). Rules are deterministic. The query is the input
`description` in every signature, what is read is `passages`. tools/models/offline/engine.py says what the engine is.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import dspy

from tools.text import TermStatistics, sentences, words

# How these were chosen, and on which queries, is in docs/decisions/offline.md.
SEARCH_WORDS = 20  # words in each search after the first
NOTES_SHARE = 0.3  # of a word's weight that comes from the notes; the rest from the description
DECAY = 0.5  # what a word keeps of its weight for each earlier search that used it
KEEP = 6  # passages kept of each batch
SET_WORDS = 40  # words up to which a single sentence is read as a combination of sets
NOTE_SENTENCES = 1  # taken from each kept passage
CLAUSES = 5  # of a description, as criteria
INSIGHT_WORDS = 8  # in place of what a text comes down to
GRADES = (0.1, 0.2, 0.35)  # least shares of the description's weight for the grades 1, 2 and 3
COMMON_WORDS = 12  # that verified passages share, in place of what they have in common
# What a long description asks stands mostly at its end, what a passage is about mostly at its beginning.
EDGE = 2  # sentences at that end and at that beginning
ENDING = 2  # times more that the words at the end of a description count; of those of up to EDGE sentences, none more
OPENING = 2  # times more that the words at the beginning of a passage count
# Okapi's usual constants, for weighing a passage: how soon repeats stop counting, and how much length costs.
K1, B = 1.5, 0.75


def rewrite(inputs: Mapping[str, Any], statistics: TermStatistics) -> str:
    """The heavier half of the description's words, heaviest first."""
    heaviest = _heaviest(_weigh(inputs["description"], statistics))
    # A description without a word that the corpus has stays as it is.
    return " ".join(heaviest[: max(1, len(heaviest) // 2)]) or inputs["description"].strip()


def analyse(inputs: Mapping[str, Any], statistics: TermStatistics) -> str:
    """The sentence of the description that weighs most: what is asked, as far as counting tells."""
    return _rank_by_weight(inputs["description"], statistics)[0]


def write_document(inputs: Mapping[str, Any], statistics: TermStatistics) -> str:
    """The description's words, and the heavier half of them once more."""
    return f"{inputs['description'].strip()} {rewrite(inputs, statistics)}"


def guess(inputs: Mapping[str, Any], statistics: TermStatistics) -> list[str]:
    """The description's sentences, heaviest first: words alone know nothing by heart."""
    return _rank_by_weight(inputs["description"], statistics)[: inputs["most"]]


def split(inputs: Mapping[str, Any], statistics: TermStatistics) -> list[dict[str, Any]]:
    """The description as a whole; then, of one short sentence, the pieces between words of sets, else its sentences."""
    text, most = inputs["description"].strip(), inputs["most"]
    whole = {"search": text, "reading": "the whole description", "role": "may", "weight": 1.0}
    if len(sentences(text)) > 1 or len(text.split()) > SET_WORDS:
        pieces = [("may", sentence) for sentence in _rank_by_weight(text, statistics)]
    else:
        pieces = _cut_clauses(text, statistics)
    if len(pieces) < 2:
        return [whole]
    total = sum(_weigh(text, statistics).values()) or 1.0
    return [whole] + [
        {
            "search": piece,
            "reading": _READINGS[role],
            "role": role,
            "weight": round(min(1.0, sum(_weigh(piece, statistics).values()) / total), 3),
        }
        for role, piece in pieces[: most - 1]
    ]


def write_search(inputs: Mapping[str, Any], statistics: TermStatistics) -> str:
    """First the description's own words; then the heaviest of description and notes, used ones decayed."""
    earlier = inputs["earlier_searches"]
    if not earlier:
        return " ".join(words(inputs["description"]))
    described = _scale(_weigh(inputs["description"], statistics))
    noted_raw: Counter[str] = Counter()
    for note in inputs["notes"]:
        for sentence in sentences(note):
            noted_raw.update({word: statistics.weight(word) for word in set(words(sentence))})
    noted = _scale(noted_raw)
    used = Counter(word for text in earlier for word in set(words(text)))
    weight = {
        word: DECAY ** used[word] * (NOTES_SHARE * noted.get(word, 0.0) + (1 - NOTES_SHARE) * described.get(word, 0.0))
        for word in described.keys() | noted.keys()
    }
    return " ".join(_heaviest(weight)[:SEARCH_WORDS])


def select(inputs: Mapping[str, Any], statistics: TermStatistics) -> list[str]:
    """The passages that share the most weight with the description, by BM25's saturation; best first."""
    weight = _weigh_description(inputs["description"], statistics)
    scored = [(_overlap(weight, passage.text, statistics), passage.id) for passage in inputs["passages"]]
    best = sorted(scored, key=lambda pair: (-pair[0], pair[1]))
    return [passage_id for score, passage_id in best[:KEEP] if score > 0]


def observe(inputs: Mapping[str, Any], statistics: TermStatistics) -> str:
    """The best sentences of the passages that `select` keeps, one a line."""
    weight = _weigh(inputs["description"], statistics)
    text = {passage.id: passage.text for passage in inputs["passages"]}
    best: list[str] = []
    for passage_id in select(inputs, statistics):
        best += _rank_sentences(weight, text[passage_id])[:NOTE_SENTENCES]
    return "\n".join(best)


def rank(inputs: Mapping[str, Any], statistics: TermStatistics) -> list[str]:
    """All passages by the weight that they share with the description, as `select`; equal ones as they were shown."""
    weight = _weigh_description(inputs["description"], statistics)
    best = sorted(inputs["passages"], key=lambda passage: -_overlap(weight, passage.text, statistics))
    return [passage.id for passage in best]


def score(inputs: Mapping[str, Any], statistics: TermStatistics) -> float:
    """0 to 10: the share of the weight that the passages have; of the requirement, the criteria or the description."""
    wanted = inputs.get("criteria") or [inputs.get("requirement") or inputs["description"]]
    text = "\n".join(passage.text for passage in inputs["passages"])
    return round(10 * sum(_share(one, text, statistics) for one in wanted) / len(wanted), 4)


def list_criteria(inputs: Mapping[str, Any], statistics: TermStatistics) -> list[str]:
    """The heaviest clauses of the description."""
    return _rank_clauses(inputs["description"], statistics)[:CLAUSES]


def list_requirements(inputs: Mapping[str, Any], statistics: TermStatistics) -> list[str]:
    """The same, as many as are asked for; as many as criteria where that is left open."""
    return _rank_clauses(inputs["description"], statistics)[: inputs["most"] or CLAUSES]


def assess(inputs: Mapping[str, Any], statistics: TermStatistics) -> str:
    """How much of the weight of each criterion, or of the description, the passages have, one a line."""
    text = "\n".join(passage.text for passage in inputs["passages"])
    wanted = inputs.get("criteria") or [inputs["description"]]
    return "\n".join(f"{_share(one, text, statistics):.0%} of: {one}" for one in wanted)


def quote(inputs: Mapping[str, Any], statistics: TermStatistics) -> list[str]:
    """The sentence of each passage that has most of the description's weight."""
    weight = _weigh(inputs["description"], statistics)
    return [quote for passage in inputs["passages"] for quote in _rank_sentences(weight, passage.text)[:1]]


def describe(inputs: Mapping[str, Any], statistics: TermStatistics) -> dict[str, str]:
    """The description's heaviest sentence, and its heaviest words."""
    weight = _weigh(inputs["description"], statistics)
    pattern = " ".join(_heaviest(weight)[:INSIGHT_WORDS])
    return {"insight": "".join(_rank_sentences(weight, inputs["description"])[:1]), "pattern": pattern}


def describe_passages(inputs: Mapping[str, Any], statistics: TermStatistics) -> list[dict[str, str]]:
    """Of each passage, the sentence with most of the description's weight, and the heaviest words that they share."""
    weight = _weigh(inputs["description"], statistics)
    found = []
    for passage in inputs["passages"]:
        shared = {word: weight[word] for word in set(words(passage.text)) & weight.keys()}
        insight = "".join(_rank_sentences(weight, passage.text)[:1])
        pattern = " ".join(_heaviest(shared)[:INSIGHT_WORDS])
        found.append({"id": passage.id, "insight": insight, "pattern": pattern})
    return found


def plan(inputs: Mapping[str, Any], statistics: TermStatistics) -> list[dict[str, str]]:
    """The description as a whole, then its clauses, heaviest first."""
    text = inputs["description"].strip()
    clauses = [text, *(clause for clause in _rank_clauses(text, statistics) if clause != text)]
    return [{"question": clause, "search": clause} for clause in clauses[: inputs["most"]]]


def find_missing(inputs: Mapping[str, Any], statistics: TermStatistics) -> str:
    """The words of the description that no note has, heaviest first."""
    weight = _weigh(inputs["description"], statistics)
    noted = {word for note in inputs["notes"] for word in words(note)}
    return " ".join(_heaviest({word: weight[word] for word in weight.keys() - noted}))


def plan_further(inputs: Mapping[str, Any], statistics: TermStatistics) -> list[dict[str, str]]:
    """What is missing, then searches as `write_search` has them, each with the words of those before it decayed."""
    texts = [text] if (text := find_missing(inputs, statistics)) else []
    texts += _write_on(inputs, inputs["notes"], inputs["most"] - len(texts), statistics)
    return [{"question": text, "search": text} for text in texts[: inputs["most"]]]


def write_searches(inputs: Mapping[str, Any], statistics: TermStatistics) -> list[str]:
    """As many as `write_search` has one after another, with what was learned for notes."""
    return _write_on(inputs, inputs["learned"], inputs["most"], statistics)


def judge(inputs: Mapping[str, Any], statistics: TermStatistics) -> list[dict[str, Any]]:
    """A grade for the share of the description's weight that a passage has, and its best sentence as evidence."""
    weight = _weigh(inputs["description"], statistics)
    found = []
    for passage in inputs["passages"]:
        share = _share(inputs["description"], passage.text, statistics)
        if grade := sum(share >= least for least in GRADES):
            evidence = "".join(_rank_sentences(weight, passage.text)[:1])
            found.append({"id": passage.id, "grade": grade, "evidence": evidence})
    return found


def find_common(inputs: Mapping[str, Any], statistics: TermStatistics) -> str:
    """Words that half of the passages have, two at least, and the description has not; by number times idf."""
    count = Counter(word for passage in inputs["passages"] for word in dict.fromkeys(words(passage.text)))
    least = max(2, len(inputs["passages"]) / 2)
    said = set(words(inputs["description"]))
    weight = {word: n * statistics.weight(word) for word, n in count.items() if n >= least and word not in said}
    return " ".join(_heaviest(weight)[:COMMON_WORDS])


def think(inputs: Mapping[str, Any], statistics: TermStatistics) -> str:
    """Nothing: counting words is no thinking."""
    return "counted words"


def call_tools(inputs: Mapping[str, Any], statistics: TermStatistics) -> dspy.ToolCalls:
    """Select the best of what the last search brought, then search again with its words; finish with the last step."""
    made = [one for turn in inputs["history"] for one in turn.calls]
    earlier = [one["args"]["query"] for one in made if one["name"] == "search"]
    shown = [passages for turn in inputs["history"] if (passages := _read_results(turn))]
    notes = [observe({"description": inputs["description"], "passages": passages}, statistics) for passages in shown]
    chosen: list[dict[str, Any]] = []
    if shown and (best := select({**inputs, "passages": shown[-1]}, statistics)):
        chosen.append({"name": "select", "args": {"doc_ids": best}})
    if inputs["steps_left"] < 1:
        chosen.append({"name": "finish", "args": {"doc_ids": []}})
    else:
        text = write_search({**inputs, "earlier_searches": earlier, "notes": notes}, statistics)
        chosen.append({"name": "search", "args": {"query": text}})
    return dspy.ToolCalls.from_dict_list(chosen)


class _Shown(NamedTuple):
    id: str
    text: str


def _read_results(turn: Any) -> list[_Shown]:
    """The snippets that a turn's search brought."""
    found: list[_Shown] = []
    for one, result in zip(turn.calls, turn.results, strict=True):
        if one["name"] == "search" and result.startswith("["):
            found += [_Shown(row["doc_id"], row["text"]) for row in json.loads(result)]
    return found


# Words that combine sets, between clauses; not inside a word with hyphens, such as black-and-white.
_SHUTS_OUT = r"not|nor|without|except(?:ing)?(?: for)?|excluding|leaving out|leaves out|other than|apart from|minus"
_COMBINES = rf"(?<![\w-])(?:{_SHUTS_OUT}|or else|either|or|and|also|as well as|but|that|which|who|whose)(?![\w-])|[,;?]"
_READINGS = {
    "must": "a condition beside others",
    "may": "one of several alternatives, or a part of the description",
    "not": "what the description shuts out",
}


def _cut_clauses(text: str, statistics: TermStatistics) -> list[tuple[str, str]]:
    """(role, piece) of `text`, cut at the words that combine sets; pieces without a word of the corpus are left out."""
    cut = re.split(f"({_COMBINES})", text, flags=re.IGNORECASE)
    pieces: list[tuple[str, str]] = []
    role = "must"
    for link, piece in zip(["", *cut[1::2]], cut[0::2], strict=True):
        link = link.lower()
        if re.fullmatch(_SHUTS_OUT, link):
            role = "not"
        elif link in ("or", "or else") and role != "not":  # "not A or B" shuts out both
            role = "may"
            if pieces and pieces[-1][0] == "must":
                pieces[-1] = ("may", pieces[-1][1])
        elif link not in ("or", "or else", "either") and piece.strip():
            role = "must"
        if _weigh(piece, statistics):
            pieces.append((role, piece.strip()))
    return pieces


def _rank_by_weight(text: str, statistics: TermStatistics) -> list[str]:
    """The sentences of `text` by the weight of their words, heaviest first; of a blank text, the text."""
    weight = {sentence: sum(_weigh(sentence, statistics).values()) for sentence in sentences(text)}
    return sorted(weight, key=lambda sentence: -weight[sentence]) or [text]


_CLAUSE_END = re.compile(r"(?<=[,;:.!?])\s+|\n+|\s+(?:and|but|or|which|who|where|when)\s+")


def _rank_clauses(text: str, statistics: TermStatistics) -> list[str]:
    """The clauses of `text`, heaviest first; `text` itself where none has a word that the corpus knows."""
    clauses = list(dict.fromkeys(part.strip(" ,;:.") for part in _CLAUSE_END.split(text)))
    weight = {clause: sum(_weigh(clause, statistics).values(), 0.0) for clause in clauses}
    return sorted((clause for clause in clauses if weight[clause] > 0), key=lambda clause: -weight[clause]) or [text]


def _write_on(inputs: Mapping[str, Any], notes: list[str], most: int, statistics: TermStatistics) -> list[str]:
    """What `write_search` has when it is asked `most` times."""
    earlier = list(inputs["earlier_searches"])
    for _ in range(most):
        earlier.append(write_search({**inputs, "notes": notes, "earlier_searches": earlier}, statistics))
    return earlier[len(inputs["earlier_searches"]) :]


def _overlap(weight: Mapping[str, float], text: str, statistics: TermStatistics) -> float:
    """The weight of the words that `text` has, by BM25's saturation; those it begins with count more often."""
    count = Counter(words(text))
    norm = K1 * (1 - B + B * count.total() / statistics.average_length)
    count.update(words("\n".join(sentences(text)[:EDGE] * OPENING)))
    saturated = {word: n / (n + norm) for word, n in count.items() if word in weight}
    return sum((weight[word] * share for word, share in saturated.items()), 0.0)


def _share(wanted: str, text: str, statistics: TermStatistics) -> float:
    """The same of the words of `wanted`, as a share of all of their weight: from 0 to 1."""
    weight = _weigh(wanted, statistics)
    return _overlap(weight, text, statistics) / sum(weight.values()) if weight else 0.0


def _rank_sentences(weight: Mapping[str, float], text: str) -> list[str]:
    """The sentences of `text` by weight over the root of length, best first."""

    def density(sentence: str) -> float:
        found = dict.fromkeys(words(sentence))  # no set: its order, and so the sum's last digit, would vary
        # The root of the length, so that neither the shortest nor the longest sentence always wins.
        return sum((weight.get(word, 0.0) for word in found), 0.0) / math.sqrt(10 + len(found))

    return sorted(sentences(text), key=density, reverse=True)


def _weigh(text: str, statistics: TermStatistics) -> dict[str, float]:
    """Idf x square root of its count, for each word of `text` that the corpus has."""
    count = Counter(words(text))
    weight = {word: statistics.weight(word) * math.sqrt(n) for word, n in count.items()}
    return {word: w for word, w in weight.items() if w > 0}


def _weigh_description(description: str, statistics: TermStatistics) -> dict[str, float]:
    """The same for a description, whose words at its end count more often."""
    said = sentences(description)
    return _weigh("\n".join([description, *(said[-EDGE:] * ENDING if len(said) > EDGE else [])]), statistics)


def _heaviest(weight: Mapping[str, float]) -> list[str]:
    """The words by weight, heaviest first; of equal ones by the alphabet."""
    return sorted(weight, key=lambda word: (-weight[word], word))


def _scale(weight: Mapping[str, float]) -> dict[str, float]:
    """The same weights with the largest at 1."""
    largest = max(weight.values(), default=1.0) or 1.0
    return {word: w / largest for word, w in weight.items()}
