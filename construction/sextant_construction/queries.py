"""Queries of a build: written, freed of words that give their answers away, and told apart from
each other.

OBLIQ-Bench, D.1.3, D.2.2 and D.2.3. The rules that find such words are Sextant's: the paper asks
its models alone.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Annotated, NamedTuple

from sextant.evals.running.model_stage import digest
from sextant.evals.scoring.text_similarity import jaccard
from sextant.tools.records import Query
from sextant.tools.text import content_words, index_ngrams, longest_shared_ngrams, tokens
from sextant_construction.pipeline import BuildPipeline, nearest_texts, overlapping_slices
from sextant_construction.types import StageInput

RUN = 4  # words in a row that a query and its answer may not share
RARE = 0.01  # share of the documents under which a word of both gives the answer away
SHARE = 0.35  # of the weight of a query's words, that a single answer may have
REPAIRS = 2  # times that a query is said in other words
WAVE = 8  # queries that are written at a time; each sees those of earlier waves
NEAREST = 20  # existing queries that a new query is compared with
NEIGHBOURS = 3  # groups that a query is to shut out by name
SHOWN = 20  # documents that the writer of a query is shown
# Names, which begin with a capital inside a sentence, and numbers.
_NAME_OR_NUMBER = re.compile(r"(?<=[a-z,;] )[A-Z]\w+|\d[\d.,:]*")


@dataclass(frozen=True)
class WriteSettings:
    """How queries are made."""

    of: Annotated[
        str, "group: one is written for what all share; member: the query is itself a document"
    ] = "group"
    style: Annotated[str, "how queries are worded, with examples of beginnings"] = (
        "a researcher's plain request"
    )
    words: Annotated[Sequence[int], "words of a query, at least and at most"] = (10, 60)


class QueryDraft(NamedTuple):
    """A group that is to get a query."""

    label: str
    members: Sequence[str]
    descriptions: Sequence[str]  # of the members

    def describe(self) -> str:
        """Return the label and the first descriptions of the group, as a text to search by."""
        return " ".join([self.label, *self.descriptions[:SHOWN]])


def write(
    build: BuildPipeline, section: WriteSettings, drafts: Sequence[QueryDraft]
) -> list[tuple[Query, QueryDraft]]:
    """Return a query for each group, without queries that had to be dropped.

    DataError if none is left.
    """
    if section.of == "member":
        written = [_choose_member(build, draft) for draft in drafts]
        build.count("write", len(drafts), len(written))
        return written
    texts = _write(build, section, drafts)
    draft_of = {draft.label: draft for draft in drafts}
    answers = {draft.label: draft.members for draft in drafts}
    texts = fix_leaks(build, texts, answers)
    build.demand(texts)
    texts = deduplicate_queries(build, texts, answers)
    return [(make_query(build, text), draft_of[label]) for label, text in texts.items()]


def make_query(build: BuildPipeline, text: str, excluded: Sequence[str] = ()) -> Query:
    """Return a query, named by its text."""
    return Query(
        f"q-{digest(text)[:10]}",
        text,
        build.recipe.release.objective,
        excluded=frozenset(excluded),
    )


def _choose_member(build: BuildPipeline, draft: QueryDraft) -> tuple[Query, QueryDraft]:
    """Return as a query the member whose text is least like the texts that it is to find."""
    words = {member: {*content_words(build.text(member))} for member in draft.members}
    highest = dict.fromkeys(draft.members, 0.0)
    for first, second in permutations(draft.members, 2):
        highest[first] = max(highest[first], jaccard(words[first], words[second]))
    chosen = min(draft.members, key=lambda member: (highest[member], member))
    return make_query(
        build,
        build.text(chosen),
        [chosen],
    ), draft


def _write(
    build: BuildPipeline, section: WriteSettings, drafts: Sequence[QueryDraft]
) -> dict[str, str]:
    """Return the text of a query by label."""
    texts = dict[str, str]()
    find_nearest = nearest_texts({draft.label: draft.label for draft in drafts})
    for wave in overlapping_slices(list(drafts), WAVE):
        units = []
        for draft in wave:
            nearest = find_nearest(draft.label, NEIGHBOURS + 1)
            inputs = {
                "label": draft.label,
                "neighbours": [label for label in nearest if label != draft.label][:NEIGHBOURS],
                "existing": list(texts.values())[-NEAREST:],
                "style": section.style,
                "least_words": section.words[0],
                "most_words": section.words[1],
            }
            units.append(StageInput(draft.label, inputs, build.passages(draft.members[:SHOWN])))
        for unit, answer in build.ask("write", units, most=build.most_queries):
            text = " ".join(answer.get("query", "").split())
            if text and text not in texts.values():
                texts[unit.key] = text
            elif answer:
                build.drop("write", unit.key, "an earlier query covers it")
    build.count("write", len(drafts), len(texts))
    return texts


def find_leaks(build: BuildPipeline, text: str, answers: Sequence[str]) -> list[str]:
    """Return the wording of a query that gives answers away, each piece once.

    That is the wording that a query and an answer share: runs of words, rare words, names and numbers, and
    their heaviest words if shared words have more than `SHARE` of the query's weight.
    """
    statistics = build.statistics
    query_runs = index_ngrams({"": tokens(text)}, RUN)
    query_words = {*content_words(text)}
    names = {match.lower() for match in _NAME_OR_NUMBER.findall(text)}
    weight = sum(map(statistics.weight, query_words)) or 1.0
    rare = RARE * statistics.documents
    leaks = dict[str, None]()
    for doc_id in answers:
        answer = build.text(doc_id)
        answer_tokens = tokens(answer)
        shared = query_words & {*content_words(answer)}
        for run in longest_shared_ngrams(answer_tokens, query_runs, RUN).values():
            leaks[" ".join(run)] = None
        for word in sorted(shared):
            if statistics.frequency.get(word, 0) < rare:
                leaks[word] = None
        leaks |= dict.fromkeys(sorted(names & {*answer_tokens}))
        if sum(map(statistics.weight, shared)) > SHARE * weight:
            heaviest = sorted(shared, key=lambda word: (-statistics.weight(word), word))
            leaks |= dict.fromkeys(heaviest[:NEIGHBOURS])
    return list(leaks)


def fix_leaks(
    build: BuildPipeline,
    texts: Mapping[str, str],
    answers: Mapping[str, Sequence[str]],
) -> dict[str, str]:
    """Return the queries, by handle, said in other words if they give answers away.

    A query that still does after `REPAIRS` is dropped.
    """
    fixed = dict(texts)
    for turn in range(REPAIRS + 1):
        leaks = {
            handle: find_leaks(
                build,
                text,
                answers[handle],
            )
            for handle, text in fixed.items()
        }
        # A dry run has no texts yet, and any of them may give its answers away.
        if build.certain or turn:
            leaks = {handle: wording for handle, wording in leaks.items() if wording}
        if turn == REPAIRS or not leaks:
            break
        units = [
            StageInput(handle, {"text": fixed[handle], "forbidden": wording})
            for handle, wording in leaks.items()
        ]
        for unit, answer in build.ask(
            "rephrase",
            units,
            most=REPAIRS * build.most_queries,
        ):
            text = " ".join(answer.get("query", "").split())
            fixed[unit.key] = text or fixed[unit.key]
    if not build.ahead:
        for handle, wording in leaks.items():
            evidence = f"{fixed.pop(handle)}: {', '.join(wording)}"
            build.drop("rephrase", handle, "gives its answers away", evidence)
    build.count("rephrase", len(texts), len(fixed))
    return fixed


def deduplicate_queries(
    build: BuildPipeline,
    texts: Mapping[str, str],
    answers: Mapping[str, Sequence[str]],
) -> dict[str, str]:
    """Return the queries without queries that ask for what an earlier query asks for."""
    units = []
    find_nearest = nearest_texts(texts)
    earlier: dict[str, str] = {}
    for handle, text in texts.items():
        near = [other for other in find_nearest(text, len(texts)) if other in earlier][:NEAREST]
        earlier[handle] = text
        if near:
            existing = {str(number): texts[other] for number, other in enumerate(near, start=1)}
            inputs = {"text": text, "existing": existing}
            units.append(StageInput((handle, near), inputs, build.passages(answers[handle][:3])))
    distinct = dict(texts)
    for unit, answer in build.ask("distinct", units, most=build.most_queries):
        handle, near = unit.key
        number = answer.get("same", "").strip()
        same = near[int(number) - 1] if number else None
        if same in distinct:
            build.drop(
                "distinct",
                distinct.pop(handle),
                "asks for what another one asks for",
                texts[same],
            )
    build.count("distinct", len(texts), len(distinct))
    return distinct
