"""The rules of the engine without a model: they fill the signatures of programs by counting words.

The engine is a named baseline, pseudo-relevance feedback (Rocchio 1971; Lavrenko and Croft 2001), in
the shape of a model: it weighs the words of description and notes by how rare they are in the corpus,
less the words that earlier searches used, keeps the passages that share the most weight, and takes
their best sentences as notes. Equal inputs have equal answers (docs/decisions/offline.md).

A program names a rule for each output field of its signatures. A rule makes the field from the
call's inputs and the statistics of the corpus. In every signature the query is the input
`description`, and the passages that are read are the input `passages`.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

from sextant.tools.models.answers.fields import Inputs, ToolCalls
from sextant.tools.text import TermStatistics, content_words, sentences

# docs/decisions/offline.md tells how these were chosen, and on which queries.
SEARCH_WORDS = 20  # words in each search after the first
NOTES_SHARE = 0.3  # share of a word's weight that comes from the notes, not from the description
DECAY = 0.5  # factor of a word's weight for each earlier search that used the word
KEEP = 6  # passages kept of each batch
SET_WORDS = 40  # words up to which a single sentence is read as a combination of sets
CLAUSES = 5  # clauses of a description that become criteria
INSIGHT_WORDS = 8  # words in place of the gist of a text
GRADES = (0.1, 0.2, 0.35)  # least shares of the description's weight for the grades 1, 2 and 3
COMMON_WORDS = 12  # words of verified passages, in place of their common idea
# A long description mostly asks its question at its end; a passage mostly names its subject at its
# beginning.
EDGE = 2  # sentences of that end and of that beginning
ENDING = 2  # further times that words at the end of a description of more than EDGE sentences count
OPENING = 2  # further times that words at the beginning of a passage count
# Okapi's usual constants, for weighing a passage: how soon repeats stop counting, and how much
# length costs.
K1 = 1.5
B = 0.75


def rewrite_query(
    inputs: Inputs,
    statistics: TermStatistics,
) -> str:
    """Return the heavier half of the description's words, heaviest first; all of it if the corpus has none of them."""
    description = inputs["description"]
    heaviest = _heaviest(_weigh(description, statistics))
    half = heaviest[: max(1, len(heaviest) // 2)]
    return " ".join(half) or description.strip()


def heaviest_sentence(
    inputs: Inputs,
    statistics: TermStatistics,
) -> str:
    """Return the heaviest sentence of the description."""
    return _rank_by_weight(inputs["description"], statistics)[0]


def write_document(
    inputs: Inputs,
    statistics: TermStatistics,
) -> str:
    """Return the description's words, and the heavier half of them once more."""
    return f"{inputs['description'].strip()} {rewrite_query(inputs, statistics)}"


def guess(
    inputs: Inputs,
    statistics: TermStatistics,
) -> list[str]:
    """Return the description's sentences, heaviest first: counting knows nothing by heart."""
    return _rank_by_weight(inputs["description"], statistics)[: inputs["most"]]


def split_clauses(
    inputs: Inputs,
    statistics: TermStatistics,
) -> list[dict[str, Any]]:
    """Return the description, then its sentences; of a single short sentence, the pieces between
    words that combine sets.
    """
    text = inputs["description"].strip()
    total = sum(_weigh(text, statistics).values()) or 1.0
    if len(sentences(text)) > 1 or len(text.split()) > SET_WORDS:
        pieces = [_Piece("may", sentence) for sentence in _rank_by_weight(text, statistics)]
    else:
        pieces = _cut_clauses(text, statistics)
    parts = [{"search": text, "reading": "the whole description", "role": "may", "weight": 1.0}]
    if len(pieces) < 2:
        return parts
    for piece in pieces[: inputs["most"] - 1]:
        share = sum(_weigh(piece.text, statistics).values()) / total
        parts.append(
            {
                "search": piece.text,
                "reading": _READINGS[piece.role],
                "role": piece.role,
                "weight": round(min(1.0, share), 3),
            }
        )
    return parts


def write_search(
    inputs: Inputs,
    statistics: TermStatistics,
) -> str:
    """Return the description's words; after a search, the heaviest words of description and notes.

    Words that earlier searches used weigh less.
    """
    description = inputs["description"]
    earlier = inputs["earlier_searches"]
    if not earlier:
        return " ".join(content_words(description))
    described = _scale(_weigh(description, statistics))
    noted = _scale(_weigh_notes(inputs["notes"], statistics))
    uses = Counter(word for text in earlier for word in set(content_words(text)))
    weight = {}
    for word in described.keys() | noted.keys():
        from_notes = NOTES_SHARE * noted.get(word, 0.0)
        from_description = (1 - NOTES_SHARE) * described.get(word, 0.0)
        weight[word] = DECAY ** uses[word] * (from_notes + from_description)
    return " ".join(_heaviest(weight)[:SEARCH_WORDS])


def _weigh_notes(notes: Iterable[str], statistics: TermStatistics) -> Mapping[str, float]:
    """Return idf x the number of sentences of the notes that have the word, for each word."""
    weight = Counter[str]()
    for note in notes:
        for sentence in sentences(note):
            words = set(content_words(sentence))
            weight.update({word: statistics.weight(word) for word in words})
    return weight


def write_searches(
    inputs: Inputs,
    statistics: TermStatistics,
) -> list[str]:
    """Return `most` searches, each written by `write_search` after the earlier ones."""
    texts = list[str]()
    notes = inputs.get("learned", inputs.get("notes"))
    for _ in range(inputs["most"]):
        earlier = inputs["earlier_searches"] + texts
        search_inputs = {**inputs, "notes": notes, "earlier_searches": earlier}
        texts.append(write_search(search_inputs, statistics))
    return texts


def write_search_of_hop(
    inputs: Inputs,
    statistics: TermStatistics,
) -> str:
    """Return the last of as many searches of `write_searches` as there are hops, the present hop included."""
    hop = int(inputs["hop"].partition(" ")[0])
    return write_searches({**inputs, "earlier_searches": [], "most": hop}, statistics)[-1]


def leave_empty(
    inputs: Inputs,
    statistics: TermStatistics,
) -> str:
    """Return nothing, for a field that tells people the model's reasons: the engine has none."""
    return ""


def select_ids(
    inputs: Inputs,
    statistics: TermStatistics,
) -> list[str]:
    """Return the ids of the passages that share the most weight with the description, best first."""
    weight = _weigh_description(inputs["description"], statistics)
    scores = {}
    for passage in inputs["passages"]:
        scores[passage.id] = _overlap(weight, passage.text, statistics)
    best = sorted(scores, key=lambda passage_id: (-scores[passage_id], passage_id))
    return [passage_id for passage_id in best[:KEEP] if scores[passage_id] > 0]


def observe(
    inputs: Inputs,
    statistics: TermStatistics,
) -> str:
    """Return the best sentence of each passage that `select_ids` keeps, each on its own line."""
    passages = {passage.id: passage for passage in inputs["passages"]}
    selected = [passages[passage_id] for passage_id in select_ids(inputs, statistics)]
    return "\n".join(quote_best_sentence({**inputs, "passages": selected}, statistics))


def rank_ids(
    inputs: Inputs,
    statistics: TermStatistics,
) -> list[str]:
    """Return all passages by the weight that they share with the description; ties stay as they were shown."""
    weight = _weigh_description(inputs["description"], statistics)

    def score(passage: Any) -> float:
        return -_overlap(weight, passage.text, statistics)

    return [passage.id for passage in sorted(inputs["passages"], key=score)]


def rank_passages(
    inputs: Inputs,
    statistics: TermStatistics,
) -> list[dict[str, str]]:
    """Return the order of `rank_ids` as rows without a reason."""
    return [{"id": passage_id, "reason": ""} for passage_id in rank_ids(inputs, statistics)]


def score_overlap(
    inputs: Inputs,
    statistics: TermStatistics,
) -> float:
    """Return, from 0 to 10, the passages' share of the weight of the criteria, the requirement or the description."""
    criteria = inputs.get("criteria") or [inputs.get("requirement") or inputs["description"]]
    text = "\n".join(passage.text for passage in inputs["passages"])
    total = sum(_share(criterion, text, statistics) for criterion in criteria)
    return round(10 * total / len(criteria), 4)


def list_criteria(
    inputs: Inputs,
    statistics: TermStatistics,
) -> list[str]:
    """Return the heaviest clauses of the description, at most `most` if that is given."""
    return _rank_clauses(inputs["description"], statistics)[: inputs.get("most") or CLAUSES]


def assess_criteria(
    inputs: Inputs,
    statistics: TermStatistics,
) -> str:
    """Return the share of each criterion's weight, or the description's, in the passages, each on
    its own line.
    """
    text = "\n".join(passage.text for passage in inputs["passages"])
    criteria = inputs.get("criteria") or [inputs["description"]]
    lines = [f"{_share(criterion, text, statistics):.0%} of: {criterion}" for criterion in criteria]
    return "\n".join(lines)


def quote_best_sentence(
    inputs: Inputs,
    statistics: TermStatistics,
) -> list[str]:
    """Return the sentence of each passage that has most of the description's weight."""
    weight = _weigh(inputs["description"], statistics)
    quotes = (_best_sentence(weight, passage.text) for passage in inputs["passages"])
    return list(filter(None, quotes))


def describe(
    inputs: Inputs,
    statistics: TermStatistics,
) -> dict[str, str]:
    """Return the description's heaviest sentence and words."""
    description = inputs["description"]
    return _describe(description, _weigh(description, statistics))


def describe_passages(
    inputs: Inputs,
    statistics: TermStatistics,
) -> list[dict[str, str]]:
    """Return, for each passage, the sentence with most of the description's weight and the heaviest shared words."""
    weight = _weigh(inputs["description"], statistics)
    return [{"id": passage.id, **_describe(passage.text, weight)} for passage in inputs["passages"]]


def plan_clauses(
    inputs: Inputs,
    statistics: TermStatistics,
) -> list[dict[str, str]]:
    """Return the description as a whole, then its clauses, heaviest first."""
    text = inputs["description"].strip()
    clauses = list(dict.fromkeys([text, *_rank_clauses(text, statistics)]))
    return [{"question": clause, "search": clause} for clause in clauses[: inputs["most"]]]


def find_missing(
    inputs: Inputs,
    statistics: TermStatistics,
) -> str:
    """Return the words of the description that no note has, heaviest first."""
    weight = _weigh(inputs["description"], statistics)
    noted = {word for note in inputs["notes"] for word in content_words(note)}
    return " ".join(word for word in _heaviest(weight) if word not in noted)


def plan_further(
    inputs: Inputs,
    statistics: TermStatistics,
) -> list[dict[str, str]]:
    """Return the missing words as a search, then the searches of `write_searches`."""
    missing = find_missing(inputs, statistics)
    texts = [missing] if missing else []
    texts += write_searches({**inputs, "most": inputs["most"] - len(texts)}, statistics)
    return [{"question": text, "search": text} for text in texts[: inputs["most"]]]


def grade_overlap(
    inputs: Inputs,
    statistics: TermStatistics,
) -> list[dict[str, Any]]:
    """Return a grade for the share of the description's weight that a passage has, with its best sentence."""
    description = inputs["description"]
    weight = _weigh(description, statistics)
    rows = []
    for passage in inputs["passages"]:
        share = _share(description, passage.text, statistics)
        if grade := sum(share >= least for least in GRADES):
            evidence = _best_sentence(weight, passage.text)
            rows.append({"id": passage.id, "grade": grade, "evidence": evidence})
    return rows


def find_common(
    inputs: Inputs,
    statistics: TermStatistics,
) -> str:
    """Return words of half of the passages, but at least two, that the description lacks; by number times idf."""
    passages = inputs["passages"]
    passage_count = Counter(
        word for passage in passages for word in dict.fromkeys(content_words(passage.text))
    )
    least = max(2, len(passages) / 2)
    described = set(content_words(inputs["description"]))
    weight = {}
    for word, count in passage_count.items():
        if count >= least and word not in described:
            weight[word] = count * statistics.weight(word)
    return " ".join(_heaviest(weight)[:COMMON_WORDS])


def call_tools(
    inputs: Inputs,
    statistics: TermStatistics,
) -> ToolCalls:
    """Select the best results of the last search, then search again with its words; finish in the last step.

    Where there are other tools, every second step goes on in the last search, and each one greps
    for the next rarest word of the description.
    """
    history = _read_history(inputs["history"])
    tools = {tool.name for tool in inputs["tools"]}
    calls = []
    if history.passages:
        best = select_ids({**inputs, "passages": history.passages[-1]}, statistics)
        if best:
            calls.append({"name": "select", "args": {"doc_ids": best}})
    if inputs["steps_left"] < 1:
        calls.append({"name": "finish", "args": {"doc_ids": []}})
        return ToolCalls.from_dict_list(calls)  # type: ignore[no-any-return]
    turn = len(inputs["history"])
    if turn % 2 and "more" in tools and history.searches:
        calls.append({"name": "more", "args": {"search": history.searches[-1]}})
    elif "search" in tools:
        notes = [observe({**inputs, "passages": shown}, statistics) for shown in history.passages]
        search_inputs = {**inputs, "earlier_searches": history.searches, "notes": notes}
        calls.append({"name": "search", "args": {"query": write_search(search_inputs, statistics)}})
    rarest = _heaviest(_weigh(inputs["description"], statistics))
    if "grep" in tools and rarest:
        pattern = rf"(?i)\b{re.escape(rarest[turn % len(rarest)])}\b"
        calls.append({"name": "grep", "args": {"pattern": pattern}})
    return ToolCalls.from_dict_list(calls)  # type: ignore[no-any-return]


def sum_up(
    inputs: Inputs,
    statistics: TermStatistics,
) -> str:
    """Return the heaviest sentence of the steps, for the description."""
    sentences_of_steps = SimpleNamespace(id="steps", text=f"{inputs['earlier']}\n{inputs['steps']}")
    return observe({**inputs, "passages": [sentences_of_steps]}, statistics)


class _History(NamedTuple):
    searches: list[str]
    passages: list[list[SimpleNamespace]]  # the results of each search that found any


def _read_history(turns: Iterable[Any]) -> _History:
    history = _History([], [])
    texts = dict[str, str]()  # as first shown: a document that is brought again may have none
    for turn in turns:
        for call, result in zip(turn.calls, turn.results, strict=True):
            if call["name"] not in ("search", "more", "grep", "phrase"):
                continue
            if call["name"] == "search":
                history.searches.append(call["args"]["query"])
            rows = json.loads(result) if result.startswith("[") else []
            if result.startswith('{"lines"'):
                rows = json.loads(result)["lines"]
            passages = []
            for row in rows:
                text = texts.setdefault(row["doc_id"], row["text"])
                passages.append(SimpleNamespace(id=row["doc_id"], text=text))
            if passages:
                history.passages.append(passages)
    return history


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


class _Piece(NamedTuple):
    role: str  # a key of _READINGS
    text: str


def _cut_clauses(text: str, statistics: TermStatistics) -> list[_Piece]:
    """Cut a text at the words that combine sets; pieces without a word of the corpus are left out."""
    cut = re.split(f"({_COMBINES})", text, flags=re.IGNORECASE)
    pieces = list[_Piece]()
    role = "must"
    for link, piece in zip(["", *cut[1::2]], cut[0::2], strict=True):
        link = link.lower()
        if re.fullmatch(_SHUTS_OUT, link):
            role = "not"
        elif link in ("or", "or else") and role != "not":  # "not A or B" shuts out both
            role = "may"
            if pieces and pieces[-1].role == "must":
                pieces[-1] = pieces[-1]._replace(role="may")
        elif link not in ("or", "or else", "either") and piece.strip():
            role = "must"
        if _weigh(piece, statistics):
            pieces.append(_Piece(role, piece.strip()))
    return pieces


def _rank_by_weight(text: str, statistics: TermStatistics) -> list[str]:
    weight = {each: sum(_weigh(each, statistics).values()) for each in sentences(text)}
    return sorted(weight, key=lambda sentence: -weight[sentence]) or [text]


# The blanks before a conjunction have a bound, without which a long run of blanks takes quadratic time.
_CLAUSE_END = re.compile(r"(?<=[,;:.!?])\s+|\n+|\s{1,50}(?:and|but|or|which|who|where|when)\s+")


def _rank_clauses(text: str, statistics: TermStatistics) -> list[str]:
    """Return the clauses of `text`, heaviest first; `text` itself if none has a word of the corpus."""
    weight = {}
    for part in _CLAUSE_END.split(text):
        clause = part.strip(" ,;:.")
        if words := _weigh(clause, statistics):  # each weighs something
            weight[clause] = sum(words.values())
    return sorted(weight, key=lambda clause: -weight[clause]) or [text]


def _overlap(
    weight: Mapping[str, float],
    text: str,
    statistics: TermStatistics,
) -> float:
    """Return the weight of the words of `text`, by BM25's saturation; words at its beginning count more often."""
    count = Counter(content_words(text))
    norm = K1 * (1 - B + B * count.total() / statistics.average_length)
    count.update(content_words("\n".join(sentences(text)[:EDGE] * OPENING)))
    parts = [weight[word] * (n / (n + norm)) for word, n in count.items() if word in weight]
    return sum(parts, 0.0)


def _share(
    wanted: str,
    text: str,
    statistics: TermStatistics,
) -> float:
    weight = _weigh(wanted, statistics)
    return _overlap(weight, text, statistics) / sum(weight.values()) if weight else 0.0


def _best_sentence(weight: Mapping[str, float], text: str) -> str:
    """Return the sentence of `text` with the most weight for its length; empty for a blank text."""

    def density(sentence: str) -> float:
        # No set: its order would vary, and with it the last digit of the sum.
        unique = dict.fromkeys(content_words(sentence))
        total = sum((weight.get(word, 0.0) for word in unique), 0.0)
        # The root of the length, so that neither the shortest nor the longest sentence always wins.
        return total / math.sqrt(10 + len(unique))

    return max(sentences(text), key=density, default="")


def _describe(text: str, weight: Mapping[str, float]) -> dict[str, str]:
    shared = set(content_words(text))
    heaviest = [word for word in _heaviest(weight) if word in shared]
    return {"insight": _best_sentence(weight, text), "pattern": " ".join(heaviest[:INSIGHT_WORDS])}


def _weigh(text: str, statistics: TermStatistics) -> dict[str, float]:
    """Return idf x square root of the count, for each word of `text` that the corpus has."""
    weights = {}
    for word, count in Counter(content_words(text)).items():
        weight = statistics.weight(word) * math.sqrt(count)
        if weight > 0:
            weights[word] = weight
    return weights


def _weigh_description(description: str, statistics: TermStatistics) -> dict[str, float]:
    parts = sentences(description)
    ending = parts[-EDGE:] * ENDING if len(parts) > EDGE else []
    return _weigh("\n".join([description, *ending]), statistics)


def _heaviest(weight: Mapping[str, float]) -> list[str]:
    return sorted(weight, key=lambda word: (-weight[word], word))


def _scale(weight: Mapping[str, float]) -> dict[str, float]:
    largest = max(weight.values(), default=1.0) or 1.0
    return {word: value / largest for word, value in weight.items()}
