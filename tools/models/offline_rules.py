"""The engine without a model: it fills the signatures of programs by counting words.

It is a named baseline, pseudo-relevance feedback (Rocchio 1971; Lavrenko and Croft 2001), in the
shape of a model: it weighs the words of description and notes by how rare they are in the corpus,
less those that earlier searches used, keeps the passages that share the most weight, and takes
their best sentences as notes. Equal inputs have equal answers (docs/decisions/offline.md).

DSPy hands an engine the rendered prompt only; `tools/models/adapter.py` publishes the structured
call beside it. A program names a rule for each output field of its signatures, which makes the
field from the call's inputs and the corpus' statistics. In every signature the query is the input
`description`, and `passages` are read.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import dspy

from tools.models.call_context import Inputs
from tools.text import TermStatistics, content_words, sentences

# How these were chosen, and on which queries, is in docs/decisions/offline.md.
SEARCH_WORDS = 20  # words in each search after the first
NOTES_SHARE = 0.3  # of a word's weight that comes from the notes; the rest from the description
DECAY = 0.5  # what a word keeps of its weight for each earlier search that used it
KEEP = 6  # passages kept of each batch
SET_WORDS = 40  # words up to which a single sentence is read as a combination of sets
CLAUSES = 5  # of a description, as criteria
INSIGHT_WORDS = 8  # in place of the gist of a text
GRADES = (0.1, 0.2, 0.35)  # least shares of the description's weight for the grades 1, 2 and 3
COMMON_WORDS = 12  # of verified passages, in place of what they have in common
# A long description mostly asks its question at its end; a passage mostly says at its beginning
# what it is about.
EDGE = 2  # sentences at that end and at that beginning
ENDING = 2  # further times that words at the end of a description of more than EDGE sentences count
OPENING = 2  # further times that words at the beginning of a passage count
# Okapi's usual constants, for weighing a passage: how soon repeats stop counting, and how much
# length costs.
K1 = 1.5
B = 0.75


def rewrite_query(inputs: Inputs, statistics: TermStatistics) -> str:
    """Return the heavier half of the description's words, heaviest first; all of it if the corpus has none of them."""
    heaviest = _heaviest(_weigh(inputs["description"], statistics))
    return " ".join(heaviest[: max(1, len(heaviest) // 2)]) or inputs["description"].strip()


def heaviest_sentence(inputs: Inputs, statistics: TermStatistics) -> str:
    """Return the heaviest sentence of the description."""
    return _rank_by_weight(inputs["description"], statistics)[0]


def write_document(inputs: Inputs, statistics: TermStatistics) -> str:
    """Return the description's words, and the heavier half of them once more."""
    return f"{inputs['description'].strip()} {rewrite_query(inputs, statistics)}"


def guess(inputs: Inputs, statistics: TermStatistics) -> list[str]:
    """Return the description's sentences, heaviest first: counting knows nothing by heart."""
    return _rank_by_weight(inputs["description"], statistics)[: inputs["most"]]


def split_clauses(inputs: Inputs, statistics: TermStatistics) -> list[dict[str, Any]]:
    """Return the description, then its sentences; of one short sentence, the pieces between words that combine sets."""
    text = inputs["description"].strip()
    total = sum(_weigh(text, statistics).values()) or 1.0
    if len(sentences(text)) > 1 or len(text.split()) > SET_WORDS:
        pieces = [("may", sentence) for sentence in _rank_by_weight(text, statistics)]
    else:
        pieces = _cut_clauses(text, statistics)
    parts = [{"search": text, "reading": "the whole description", "role": "may", "weight": 1.0}]
    for role, piece in pieces[: inputs["most"] - 1] if len(pieces) > 1 else ():
        weight = round(min(1.0, sum(_weigh(piece, statistics).values()) / total), 3)
        parts.append({"search": piece, "reading": _READINGS[role], "role": role, "weight": weight})
    return parts


def write_search(inputs: Inputs, statistics: TermStatistics) -> str:
    """Return the description's words; after a search, the heaviest of description and notes, with used ones decayed."""
    earlier = inputs["earlier_searches"]
    if not earlier:
        return " ".join(content_words(inputs["description"]))
    described = _scale(_weigh(inputs["description"], statistics))
    in_notes: Counter[str] = Counter()
    for sentence in (one for note in inputs["notes"] for one in sentences(note)):
        in_notes.update({word: statistics.weight(word) for word in set(content_words(sentence))})
    noted = _scale(in_notes)
    used = Counter(word for text in earlier for word in set(content_words(text)))
    weight = {
        word: DECAY ** used[word]
        * (NOTES_SHARE * noted.get(word, 0.0) + (1 - NOTES_SHARE) * described.get(word, 0.0))
        for word in described.keys() | noted.keys()
    }
    return " ".join(_heaviest(weight)[:SEARCH_WORDS])


def write_searches(inputs: Inputs, statistics: TermStatistics) -> list[str]:
    """Return `most` searches, each as `write_search` has it after the earlier ones."""
    texts = list[str]()
    notes = inputs.get("learned", inputs.get("notes"))
    for _ in range(inputs["most"]):
        earlier = inputs["earlier_searches"] + texts
        texts.append(
            write_search({**inputs, "notes": notes, "earlier_searches": earlier}, statistics)
        )
    return texts


def select_ids(inputs: Inputs, statistics: TermStatistics) -> list[str]:
    """Return the ids of the passages that share the most weight with the description, best first."""
    weight = _weigh_description(inputs["description"], statistics)
    scored = [
        (_overlap(weight, passage.text, statistics), passage.id) for passage in inputs["passages"]
    ]
    best = sorted(scored, key=lambda pair: (-pair[0], pair[1]))
    return [passage_id for score, passage_id in best[:KEEP] if score > 0]


def observe(inputs: Inputs, statistics: TermStatistics) -> str:
    """Return the best sentence of each passage that `select_ids` keeps, one a line."""
    passages = {passage.id: passage for passage in inputs["passages"]}
    kept = [passages[passage_id] for passage_id in select_ids(inputs, statistics)]
    return "\n".join(quote_best_sentence({**inputs, "passages": kept}, statistics))


def rank_ids(inputs: Inputs, statistics: TermStatistics) -> list[str]:
    """Return all passages by the weight that they share with the description; equal ones as they were shown."""
    weight = _weigh_description(inputs["description"], statistics)
    best = sorted(
        inputs["passages"], key=lambda passage: -_overlap(weight, passage.text, statistics)
    )
    return [passage.id for passage in best]


def score_overlap(inputs: Inputs, statistics: TermStatistics) -> float:
    """Return, from 0 to 10, the passages' share of the weight of the criteria, the requirement or the description."""
    criteria = inputs.get("criteria") or [inputs.get("requirement") or inputs["description"]]
    text = "\n".join(passage.text for passage in inputs["passages"])
    return round(10 * sum(_share(one, text, statistics) for one in criteria) / len(criteria), 4)


def list_criteria(inputs: Inputs, statistics: TermStatistics) -> list[str]:
    """Return the heaviest clauses of the description, `most` of them where that is given."""
    return _rank_clauses(inputs["description"], statistics)[: inputs.get("most") or CLAUSES]


def assess_criteria(inputs: Inputs, statistics: TermStatistics) -> str:
    """Return how much of the weight of each criterion, or of the description, the passages have, one a line."""
    text = "\n".join(passage.text for passage in inputs["passages"])
    criteria = inputs.get("criteria") or [inputs["description"]]
    return "\n".join(f"{_share(one, text, statistics):.0%} of: {one}" for one in criteria)


def quote_best_sentence(inputs: Inputs, statistics: TermStatistics) -> list[str]:
    """Return the sentence of each passage that has most of the description's weight."""
    weight = _weigh(inputs["description"], statistics)
    return [
        best for passage in inputs["passages"] if (best := _best_sentence(weight, passage.text))
    ]


def describe(inputs: Inputs, statistics: TermStatistics) -> dict[str, str]:
    """Return the description's heaviest sentence and words."""
    return _describe(inputs["description"], _weigh(inputs["description"], statistics))


def describe_passages(inputs: Inputs, statistics: TermStatistics) -> list[dict[str, str]]:
    """Return, for each passage, the sentence with most of the description's weight and the heaviest shared words."""
    weight = _weigh(inputs["description"], statistics)
    return [{"id": passage.id, **_describe(passage.text, weight)} for passage in inputs["passages"]]


def plan_clauses(inputs: Inputs, statistics: TermStatistics) -> list[dict[str, str]]:
    """Return the description as a whole, then its clauses, heaviest first."""
    text = inputs["description"].strip()
    clauses = [text, *(clause for clause in _rank_clauses(text, statistics) if clause != text)]
    return [{"question": clause, "search": clause} for clause in clauses[: inputs["most"]]]


def find_missing(inputs: Inputs, statistics: TermStatistics) -> str:
    """Return the words of the description that no note has, heaviest first."""
    weight = _weigh(inputs["description"], statistics)
    noted = {word for note in inputs["notes"] for word in content_words(note)}
    return " ".join(_heaviest({word: weight[word] for word in weight.keys() - noted}))


def plan_further(inputs: Inputs, statistics: TermStatistics) -> list[dict[str, str]]:
    """Return what is missing, then searches as `write_search` has them."""
    texts = [text] if (text := find_missing(inputs, statistics)) else []
    texts += write_searches({**inputs, "most": inputs["most"] - len(texts)}, statistics)
    return [{"question": text, "search": text} for text in texts[: inputs["most"]]]


def grade_overlap(inputs: Inputs, statistics: TermStatistics) -> list[dict[str, Any]]:
    """Return a grade for the share of the description's weight that a passage has, with its best sentence."""
    weight = _weigh(inputs["description"], statistics)
    judged = []
    for passage in inputs["passages"]:
        share = _share(inputs["description"], passage.text, statistics)
        if grade := sum(share >= least for least in GRADES):
            judged.append(
                {"id": passage.id, "grade": grade, "evidence": _best_sentence(weight, passage.text)}
            )
    return judged


def find_common(inputs: Inputs, statistics: TermStatistics) -> str:
    """Return words of half of the passages, but at least two, that the description has not; by number times idf."""
    count = Counter(
        word
        for passage in inputs["passages"]
        for word in dict.fromkeys(content_words(passage.text))
    )
    least = max(2, len(inputs["passages"]) / 2)
    said = set(content_words(inputs["description"]))
    weight = {
        word: n * statistics.weight(word)
        for word, n in count.items()
        if n >= least and word not in said
    }
    return " ".join(_heaviest(weight)[:COMMON_WORDS])


def call_tools(inputs: Inputs, statistics: TermStatistics) -> dspy.ToolCalls:
    """Select the best results of the last search, then search again with its words; finish in the last step."""
    searches = []
    shown = []
    for turn in inputs["history"]:
        for call, result in zip(turn.calls, turn.results, strict=True):
            if call["name"] == "search":
                searches.append(call["args"]["query"])
                rows = json.loads(result) if result.startswith("[") else []
                shown += (
                    [[SimpleNamespace(id=row["doc_id"], text=row["text"]) for row in rows]]
                    if rows
                    else []
                )
    notes = [observe({**inputs, "passages": passages}, statistics) for passages in shown]
    best = select_ids({**inputs, "passages": shown[-1]}, statistics) if shown else []
    calls: list[dict[str, Any]] = [{"name": "select", "args": {"doc_ids": best}}] if best else []
    if inputs["steps_left"] < 1:
        calls.append({"name": "finish", "args": {"doc_ids": []}})
    else:
        text = write_search({**inputs, "earlier_searches": searches, "notes": notes}, statistics)
        calls.append({"name": "search", "args": {"query": text}})
    return dspy.ToolCalls.from_dict_list(calls)


# Words that combine sets, between clauses; not inside a word with hyphens, such as black-and-white.
_SHUTS_OUT = (
    r"not|nor|without|except(?:ing)?(?: for)?|excluding|leaving out|leaves out|other than|apart "
    r"from|minus"
)
_COMBINES = (
    rf"(?<![\w-])(?:{_SHUTS_OUT}|or else|either|or|and|also|as well "
    rf"as|but|that|which|who|whose)(?![\w-])|[,;?]"
)
_READINGS = {
    "must": "a condition beside others",
    "may": "one of several alternatives, or a part of the description",
    "not": "what the description shuts out",
}


def _cut_clauses(text: str, statistics: TermStatistics) -> list[tuple[str, str]]:
    """Return (role, piece), cut at the words that combine sets; pieces without a word of the corpus are left out."""
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
    weight = {sentence: sum(_weigh(sentence, statistics).values()) for sentence in sentences(text)}
    return sorted(weight, key=lambda sentence: -weight[sentence]) or [text]


_CLAUSE_END = re.compile(r"(?<=[,;:.!?])\s+|\n+|\s+(?:and|but|or|which|who|where|when)\s+")


def _rank_clauses(text: str, statistics: TermStatistics) -> list[str]:
    """Return the clauses of `text`, heaviest first; `text` itself where none has a word that the corpus knows."""
    clauses = list(dict.fromkeys(part.strip(" ,;:.") for part in _CLAUSE_END.split(text)))
    weight = {clause: sum(_weigh(clause, statistics).values(), 0.0) for clause in clauses}
    return sorted(
        (clause for clause in clauses if weight[clause] > 0), key=lambda clause: -weight[clause]
    ) or [text]


def _overlap(weight: Mapping[str, float], text: str, statistics: TermStatistics) -> float:
    """Return the weight of the words of `text`, by BM25's saturation; those at its beginning count more often."""
    count = Counter(content_words(text))
    norm = K1 * (1 - B + B * count.total() / statistics.average_length)
    count.update(content_words("\n".join(sentences(text)[:EDGE] * OPENING)))
    saturated = {word: n / (n + norm) for word, n in count.items() if word in weight}
    return sum((weight[word] * share for word, share in saturated.items()), 0.0)


def _share(wanted: str, text: str, statistics: TermStatistics) -> float:
    weight = _weigh(wanted, statistics)
    return _overlap(weight, text, statistics) / sum(weight.values()) if weight else 0.0


def _best_sentence(weight: Mapping[str, float], text: str) -> str:
    """Return the sentence of `text` with the most weight for its length; empty for a blank text."""

    def density(sentence: str) -> float:
        unique = dict.fromkeys(
            content_words(sentence)
        )  # no set: its order, and so the sum's last digit, would vary
        # The root of the length, so that neither the shortest nor the longest sentence always wins.
        return sum((weight.get(word, 0.0) for word in unique), 0.0) / math.sqrt(10 + len(unique))

    return max(sentences(text), key=density, default="")


def _describe(text: str, weight: Mapping[str, float]) -> dict[str, str]:
    shared = _heaviest({word: weight[word] for word in set(content_words(text)) & weight.keys()})
    return {"insight": _best_sentence(weight, text), "pattern": " ".join(shared[:INSIGHT_WORDS])}


def _weigh(text: str, statistics: TermStatistics) -> dict[str, float]:
    """Return idf x square root of the count, for each word of `text` that the corpus has."""
    weight = {
        word: statistics.weight(word) * math.sqrt(n)
        for word, n in Counter(content_words(text)).items()
    }
    return {word: w for word, w in weight.items() if w > 0}


def _weigh_description(description: str, statistics: TermStatistics) -> dict[str, float]:
    said = sentences(description)
    return _weigh(
        "\n".join([description, *(said[-EDGE:] * ENDING if len(said) > EDGE else [])]), statistics
    )


def _heaviest(weight: Mapping[str, float]) -> list[str]:
    return sorted(weight, key=lambda word: (-weight[word], word))


def _scale(weight: Mapping[str, float]) -> dict[str, float]:
    largest = max(weight.values(), default=1.0) or 1.0
    return {word: w / largest for word, w in weight.items()}
