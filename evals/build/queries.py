"""Queries of a build: written, freed of what gives their answers away, and told apart from each
other.

OBLIQ-Bench, D.1.3, D.2.2 and D.2.3. The rules for what gives an answer away are ours: the paper
asks its models alone.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

from evals.build.pipeline import BuildPipeline, nearest_texts, overlapping_slices
from evals.build.types import StageInput
from evals.running.model_stage import digest
from tools.records import Query
from tools.text import content_words, index_ngrams, longest_shared_ngrams, tokens

RUN = 4  # words in a row that a query and its answer may not share
RARE = 0.01  # share of the documents under which a word of both gives the answer away
SHARE = 0.35  # of the weight of a query's words, that one answer may have
REPAIRS = 2  # times that a query is said in other words
WAVE = 8  # queries that are written at a time; each sees those of earlier waves
NEAREST = 20  # existing queries that a new one is compared with
NEIGHBOURS = 3  # groups that a query is to shut out by name
SHOWN = 20  # documents that the writer of a query is shown


@dataclass(frozen=True)
class WriteSettings:
    """How queries are made."""

    of: Annotated[
        str, "group: one is written for what all share; member: the query is itself a document"
    ] = "group"
    show: Annotated[str, "what its writer is shown of documents: documents, or descriptions"] = (
        "documents"
    )
    style: Annotated[str, "how queries are worded, with examples of beginnings"] = (
        "a researcher's plain request"
    )
    words: Annotated[list[int], "content_words of a query, at least and at most"] = field(
        default_factory=lambda: [10, 60]
    )
    leaks: Annotated[
        bool,
        "drop queries that share rare content_words, names, numbers or runs of content_words with an answer",
    ] = True
    distinct: Annotated[bool, "drop queries that ask for what an earlier one asks for"] = True


class QueryDraft(NamedTuple):
    """A group that is to get a query."""

    label: str
    members: Sequence[str]
    descriptions: Sequence[str]  # of the members

    def describe(self) -> str:
        """Return what is known of the group, as a text to search by."""
        return " ".join([self.label, *self.descriptions[:SHOWN]])


def write(
    build: BuildPipeline, section: WriteSettings, drafts: Sequence[QueryDraft]
) -> list[tuple[Query, QueryDraft]]:
    """Return a query for each group, without those that had to be dropped. DataError where none is left."""
    if section.of == "member":
        written = [_choose_member(build, draft) for draft in drafts]
        build.count("write", len(drafts), len(written))
        return written
    texts = _write(build, section, drafts)
    known = {draft.label: draft for draft in drafts}
    answers = {draft.label: draft.members for draft in drafts}
    if section.leaks:
        texts = mend(build, texts, answers)
    if section.distinct and texts:
        texts = deduplicate_queries(build, texts, answers)
    build.demand(texts)
    return [(make_query(build, text), known[label]) for label, text in texts.items()]


def make_query(build: BuildPipeline, text: str, excluded: Sequence[str] = ()) -> Query:
    """Return a query, named by its text."""
    return Query(
        f"q-{digest(text)[:10]}", text, build.recipe.release.objective, excluded=frozenset(excluded)
    )


def _choose_member(build: BuildPipeline, draft: QueryDraft) -> tuple[Query, QueryDraft]:
    """Return the member as query whose text is least like the others', which it is to find."""
    texts = {member: {*content_words(build.text(member))} for member in draft.members}

    def nearest(one: str) -> float:
        return max(
            (jaccard(texts[one], text) for two, text in texts.items() if two != one), default=0.0
        )

    chosen = min(draft.members, key=lambda one: (nearest(one), one))
    return make_query(build, build.text(chosen), [chosen]), draft


def jaccard(one: set[str], other: set[str]) -> float:
    """Return Jaccard's share of two sets of words."""
    return len(one & other) / max(1, len(one | other))


def _write(
    build: BuildPipeline, section: WriteSettings, drafts: Sequence[QueryDraft]
) -> dict[str, str]:
    """Return the text of a query by label."""
    found = dict[str, str]()
    find = nearest_texts({draft.label: draft.label for draft in drafts})
    for wave in overlapping_slices(list(drafts), WAVE):
        units = []
        for draft in wave:
            near = [label for label in find(draft.label, NEIGHBOURS + 1) if label != draft.label]
            texts = (
                [build.text(member) for member in draft.members]
                if section.show == "documents"
                else draft.descriptions
            )
            beside = {"neighbours": near[:NEIGHBOURS], "existing": list(found.values())[-NEAREST:]}
            wanted = {
                "style": section.style,
                "least_words": section.words[0],
                "most_words": section.words[1],
            }
            told = {"label": draft.label, **beside, **wanted}
            units.append(
                StageInput(draft.label, told, list(zip(draft.members, texts, strict=True))[:SHOWN])
            )
        for unit, answer in build.ask("write", units, most=build.most_queries):
            text = " ".join(answer.get("query", "").split())
            if text and text not in found.values():
                found[unit.key] = text
            elif answer:
                build.drop("write", unit.key, "an earlier query covers it")
    build.count("write", len(drafts), len(found))
    return found


def find_leaks(build: BuildPipeline, text: str, answers: Sequence[str]) -> list[str]:
    """Return what of a query gives answers away: runs of words, rare words, names and numbers that both have."""
    asked = tokens(text)
    statistics = build.statistics
    own = {*content_words(text)}
    names = {match.lower() for match in re.findall(r"(?<=[a-z,;] )[A-Z]\w+|\d[\d.,:]*", text)}
    weight = sum(statistics.weight(one) for one in own) or 1.0
    found = dict[str, None]()
    for one in answers:
        have = tokens(answer := build.text(one))
        there = {*content_words(answer)}
        found |= {
            " ".join(run): None
            for run in longest_shared_ngrams(have, index_ngrams({"": asked}, RUN), RUN).values()
        }
        rare = RARE * statistics.documents
        found |= {
            word: None for word in sorted(own & there) if statistics.frequency.get(word, 0) < rare
        }
        found |= dict.fromkeys(sorted(names & {*have}))
        if sum(statistics.weight(word) for word in own & there) > SHARE * weight:
            found |= dict.fromkeys(
                sorted(own & there, key=lambda word: (-statistics.weight(word), word))[:NEIGHBOURS]
            )
    return list(found)


def mend(
    build: BuildPipeline, texts: Mapping[str, str], answers: Mapping[str, Sequence[str]]
) -> dict[str, str]:
    """Return the queries, by handle, said in other words where they give answers away; dropped where that fails."""
    kept = dict(texts)
    for turn in range(REPAIRS + 1):
        leaking = {one: find_leaks(build, text, answers[one]) for one, text in kept.items()}
        if (
            build.certain or turn
        ):  # else a dry run has no texts yet, and any of them may give its answers away
            leaking = {one: found for one, found in leaking.items() if found}
        if turn == REPAIRS or not leaking:
            break
        units = [
            StageInput(one, {"text": kept[one], "forbidden": found})
            for one, found in leaking.items()
        ]
        for unit, answer in build.ask("rephrase", units, most=REPAIRS * build.most_queries):
            kept[unit.key] = " ".join(answer.get("query", "").split()) or kept[unit.key]
    for one, found in leaking.items() if not build.ahead else ():
        build.drop(
            "rephrase", one, "gives its answers away", f"{kept.pop(one)}: {', '.join(found)}"
        )
    build.count("rephrase", len(texts), len(kept))
    return kept


def deduplicate_queries(
    build: BuildPipeline, texts: Mapping[str, str], answers: Mapping[str, Sequence[str]]
) -> dict[str, str]:
    """Return the queries without those that ask for what an earlier one asks for."""
    handles = list(texts)
    units = list[StageInput]()
    find = nearest_texts(texts)
    for place, one in enumerate(handles):
        if near := [other for other in find(texts[one], len(handles)) if other in handles[:place]][
            :NEAREST
        ]:
            numbered = {str(number): texts[other] for number, other in enumerate(near, start=1)}
            told = {"text": texts[one], "existing": numbered}
            units.append(StageInput((one, near), told, build.passages(answers[one][:3])))
    gone = set[str]()
    for unit, answer in build.ask("distinct", units, most=build.most_queries):
        one, near = unit.key
        same = answer.get("same", "").strip()
        if same and near[int(same) - 1] not in gone:
            gone.add(one)
            build.drop(
                "distinct",
                texts[one],
                "asks for what another one asks for",
                texts[near[int(same) - 1]],
            )
    build.count("distinct", len(texts), len(texts) - len(gone))
    return {one: text for one, text in texts.items() if one not in gone}
