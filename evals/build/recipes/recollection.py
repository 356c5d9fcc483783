"""The recipe `recollection`: one moment each, as somebody half remembers it, and the one passage in
which it happens.

OBLIQ-Bench's Congress Hearings (section 4, appendix D.5): passages are rated, the memorable ones
recollected with a particular or two gone wrong, openings varied, what identifies taken out. The
paper takes for granted that no other passage fits; here the nearest ones are judged as well, and
the passage itself has to be recognised.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import cycle, zip_longest
from typing import Annotated, Any, Literal

from evals.build import pool_judging, queries
from evals.build.pipeline import BuildPipeline, stable_order
from evals.build.recipe import Limits, Recipe, Release
from evals.build.text_cleaning import compile_pattern
from evals.build.types import Benchmark, StageInput
from programs.build_stages.recollection import OPENINGS
from tools.records import Query

LENS = "recollection"
SHOWN = 6  # passages, its own and the nearest, of which people say which could be meant
WANTED = (
    "Somebody remembers one moment, imperfectly and without names, and a detail or two may be "
    "wrong. The one passage "
    "in which that moment happens is wanted."
)
Posts = dict[str, str]  # doc_id -> what somebody remembers of it
Notes = Mapping[
    str, Mapping[str, Any]
]  # doc_id -> what came of recollecting it: rating, written, changed


@dataclass(frozen=True)
class Recollect:
    """Which passages are recollected, and how."""

    sample: Annotated[int, "passages that are rated, in turn of every group; 0: all"] = 500
    group: Annotated[
        str, "regular expression that finds a passage's group in its id, where the corpus has none"
    ] = ""
    rating: Annotated[
        int,
        "how memorable a passage is at least: 1 procedure, 3 has a detail, 5 everybody knows it",
    ] = 3
    words: Annotated[int, "of a recollection, about"] = 200
    retrievers: Annotated[list[str], "whose nearest passages are judged"] = field(
        default_factory=lambda: ["bm25"]
    )
    many: Annotated[
        Literal["add", "drop"], "others that could be meant are relevant, too, or cost the query"
    ] = "add"


@dataclass(frozen=True)
class RecollectionRecipe(Recipe):
    """The sections of the recipe."""

    recollect: Recollect = field(default_factory=Recollect)
    judge: pool_judging.GradingSettings = field(
        default_factory=lambda: pool_judging.GradingSettings(near=20)
    )
    limits: Limits = field(default_factory=lambda: Limits(min_positives=1))
    release: Release = field(default_factory=lambda: Release(objective=WANTED))


def build_benchmark(build: BuildPipeline) -> Benchmark:
    """Go through the stages. DataError, with the stage, where nothing is left."""
    notes = _recollect(build)
    posts = {one: note["written"] for one, note in notes.items()}
    ways = dict(zip(stable_order(notes), cycle(OPENINGS)))
    units = list[StageInput]()
    ends = dict[str, str]()
    for one, post in posts.items():
        first, ends[one] = split_opening(post)
        told = {
            "opening": first,
            "rest": ends[one],
            "way": ways[one],
            "words": len(first.split()) + 10,
        }
        units += [StageInput(one, told)] if ends[one] else []
    posts = _rewrite(build, "open", posts, units, ends)
    units = []
    for one, post in posts.items():
        told = {
            "text": post,
            "forbidden": queries.find_leaks(build, post, [one]),
            "words": len(post.split()),
        }
        units.append(StageInput(one, told, build.passages([one])))
    posts = queries.mend(
        build, _rewrite(build, "harden", posts, units), {one: [one] for one in posts}
    )
    own = {queries.make_query(build, post): one for one, post in posts.items()}
    said_first = set(own.values())
    build.drop_all(
        "unique", [one for one in posts if one not in said_first], "in the very words of another"
    )
    gold = _judge(build, own, notes)
    of = {query.query_id: one for query, one in own.items()}
    build.demand(gold)
    made_of = [
        {"query_id": one, "doc_id": of[one], "opening": ways[of[one]], **notes[of[one]]}
        for one in gold
    ]
    return build.finish(
        [one for one in own if one.query_id in gold], {"gold": gold}, made_of, lens=LENS
    )


def _recollect(build: BuildPipeline) -> Notes:
    """Return what is remembered of passages: of one of each group, then of a second one, and so on."""
    section = build.recipe.recollect
    named = compile_pattern(build.recipe.recollect.group)
    groups = defaultdict[str, list[str]](list)
    for one in stable_order(
        document for document in build.source.documents if document not in build.source.twins
    ):
        groups[build.source.group.get(one) or (named.search(one) or [""])[0]].append(one)
    turns = zip_longest(*(groups[name] for name in stable_order(groups)))
    some = [one for turn in turns for one in turn if one][: section.sample or None]
    told = {"least": section.rating, "words": section.words}
    answers = build.ask("recollect", (StageInput(one, told, build.passages([one])) for one in some))
    rated = {unit.key: answer for unit, answer in answers if answer}
    memorable = {one: answer for one, answer in rated.items() if answer["rating"] >= section.rating}
    kept = list(memorable)[: build.recipe.limits.queries]
    build.drop_all("recollect", [one for one in rated if one not in memorable], "less memorable")
    build.drop_all("recollect", list(memorable)[len(kept) :], "more than queries are wanted")
    build.count("recollect", len(some), len(kept))
    return {
        one: memorable[one] | {"written": " ".join(memorable[one]["written"].split())}
        for one in kept
    }


def split_opening(post: str) -> tuple[str, str]:
    """Return the first two sentences of a post, of three and fewer the first one, and the rest to the letter."""
    ends = [match.end() for match in re.finditer(r"[.!?][\"')\]]* ", post)]
    end = ends[1 if len(ends) > 2 else 0] if ends else len(post)
    return post[:end].rstrip(), post[end:]


def _rewrite(
    build: BuildPipeline,
    stage: str,
    posts: Posts,
    units: Iterable[StageInput],
    ends: Mapping[str, str] = {},
) -> Posts:
    """Return the posts as a stage writes them, before their `ends` to the letter; without a usable answer as before."""
    answers = build.ask(stage, units, most=build.most_queries)
    new = {
        one.key: [*answer["written"].split(), ends.get(one.key, "")]
        for one, answer in answers
        if answer
    }
    build.count(stage, len(posts), len(posts))
    return posts | {one: " ".join(parts).rstrip() for one, parts in new.items()}


def _judge(build: BuildPipeline, own: Mapping[Query, str], notes: Notes) -> pool_judging.Grades:
    """Return which passages could be meant by each query; it is dropped where its `own` one is not recognised."""
    recipe: RecollectionRecipe = build.recipe
    judge = recipe.judge
    engines = [build.retriever(spec) for spec in recipe.recollect.retrievers if own]
    near = dict[str, list[str]]()
    pairs = list[pool_judging.GradingRequest]()
    gold = pool_judging.Grades()
    for query, one in own.items():
        texts = (query.text, build.text(one))
        found = [
            hit.doc_id
            for of in engines
            for text in texts
            for hit in of.search(text, judge.near // 2 + 1)
        ]
        near[query.query_id] = [
            hit for hit in dict.fromkeys([one, *found]) if hit not in build.source.twins
        ]
        told = "\n".join(
            [query.text, *(f"Misremembered: {what}" for what in notes[one]["changed"])]
        )
        pairs.append(
            pool_judging.GradingRequest(
                replace(query, text=told), near[query.query_id], members=[one]
            )
        )
    most = build.most_queries * -(-(judge.near + 3) * len(engines) // judge.batch)
    graded = pool_judging.grade(build, "unique", LENS, pairs, judge.batch, most)
    meant = {
        query: [one for one, of in graded[query.query_id].items() if of >= judge.keep]
        for query in own
    }
    build.review(
        "ambiguity",
        meant,
        lambda one: build.choice("remembered", one.text, near[one.query_id][:SHOWN]),
    )
    for query, ids in meant.items():
        if own[query] not in ids and not build.ahead:
            build.drop("unique", own[query], "its own passage is not recognised in it", query.text)
        elif len(ids) > 1 and recipe.recollect.many == "drop":
            build.drop(
                "unique", own[query], "other passages could be meant as well", ", ".join(ids)
            )
        else:
            gold[query.query_id] = {
                one: float(one in ids) for one in sorted({*graded[query.query_id], *ids})
            }
    build.count("unique", len(own), len(gold))
    return gold
