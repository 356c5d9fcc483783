"""The recipe `recollection`: a half-remembered moment each, and the single passage in which it
happens.

OBLIQ-Bench's Congress Hearings (section 4, appendix D.5): passages are rated, the memorable
passages recollected with a particular or two gone wrong, openings varied, identifying words taken
out. The paper takes for granted that no other passage fits; here the nearest passages are judged as
well, and the passage itself has to be recognised.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, cycle, product, zip_longest
from typing import Annotated, Any, Literal

from sextant.environments.base import Grades
from sextant.tools.records import Query
from sextant_construction import pool_judging, queries
from sextant_construction.pipeline import BuildPipeline, stable_order
from sextant_construction.recipe import LimitsSettings, Recipe, ReleaseSettings
from sextant_construction.stages.recollection import OPENINGS
from sextant_construction.text_cleaning import compile_pattern
from sextant_construction.types import Benchmark, StageInput

LENS = "recollection"
SHOWN = 6  # passages, its own and the nearest, of which people say which could be meant
WANTED = (
    "Somebody remembers one moment, imperfectly and without names, and a detail or two may be "
    "wrong. The one passage in which that moment happens is wanted."
)
Posts = dict[str, str]  # doc_id -> a recollection of the passage
Notes = Mapping[
    str, Mapping[str, Any]
]  # doc_id -> fields of its recollection: rating, written, changed


@dataclass(frozen=True)
class RecollectSettings:
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
    retrievers: Annotated[Sequence[str], "whose nearest passages are judged"] = ("bm25",)
    many: Annotated[
        Literal["add", "drop"], "others that could be meant are relevant, too, or cost the query"
    ] = "add"


@dataclass(frozen=True)
class RecollectionRecipe(Recipe):
    """The sections of the recipe."""

    recollect: RecollectSettings = RecollectSettings()
    judge: pool_judging.GradingSettings = pool_judging.GradingSettings(near=20)
    limits: LimitsSettings = LimitsSettings(min_positives=1)
    release: ReleaseSettings = ReleaseSettings(objective=WANTED)


def build_benchmark(build: BuildPipeline) -> Benchmark:
    """Go through the stages. DataError, with the stage, if nothing is left."""
    notes = _recollect(build)
    openings = dict(zip(stable_order(notes), cycle(OPENINGS)))
    posts = {doc_id: note["written"] for doc_id, note in notes.items()}
    posts = _vary_openings(build, posts, openings)
    posts = _harden(build, posts)
    posts = queries.fix_leaks(
        build,
        posts,
        {doc_id: [doc_id] for doc_id in posts},
    )
    first_of: dict[str, str] = {}
    for doc_id, post in posts.items():
        if first_of.setdefault(post, doc_id) != doc_id:
            build.drop("unique", doc_id, "in the very words of another")
    passage_of = {queries.make_query(build, post): doc_id for post, doc_id in first_of.items()}
    gold = _judge(build, passage_of, notes)
    build.demand(gold)
    accepted = {query: doc_id for query, doc_id in passage_of.items() if query.query_id in gold}
    provenance = [
        {
            "query_id": query.query_id,
            "doc_id": doc_id,
            "opening": openings[doc_id],
            **notes[doc_id],
        }
        for query, doc_id in accepted.items()
    ]
    return build.finish(
        [*accepted],
        {"gold": gold},
        provenance,
        lens=LENS,
    )


def _recollect(build: BuildPipeline) -> Notes:
    """Return the recollections of passages: of a passage of each group, then of a second passage,
    and so on.
    """
    settings: RecollectSettings = build.recipe.recollect
    pattern = compile_pattern(settings.group)
    groups = defaultdict(list)
    for doc_id in build.distinct_documents():
        group = build.source.group.get(doc_id) or (pattern.search(doc_id) or [""])[0]
        groups[group].append(doc_id)
    turns = zip_longest(*(groups[name] for name in stable_order(groups)))
    sample = list(filter(None, chain.from_iterable(turns)))[: settings.sample or None]
    inputs = {"least": settings.rating, "words": settings.words}
    units = (StageInput(doc_id, inputs, build.passages([doc_id])) for doc_id in sample)
    notes: dict[str, Mapping[str, Any]] = {}
    for unit, answer in build.ask("recollect", units):
        if not answer:
            continue
        if answer["rating"] < settings.rating:
            build.drop("recollect", unit.key, "less memorable")
        elif len(notes) >= build.recipe.limits.queries:
            build.drop("recollect", unit.key, "more than queries are wanted")
        else:
            notes[unit.key] = answer | {"written": " ".join(answer["written"].split())}
    build.count("recollect", len(sample), len(notes))
    return notes


def split_opening(post: str) -> tuple[str, str]:
    """Return the opening of a post, and everything after it to the letter.

    The opening is the first two sentences; of a post of three sentences or fewer, the first one.
    """
    ends = [match.end() for match in re.finditer(r"[.!?][\"')\]]* ", post)]
    if not ends:
        return post.rstrip(), ""
    end = ends[1] if len(ends) > 2 else ends[0]
    return post[:end].rstrip(), post[end:]


def _vary_openings(
    build: BuildPipeline,
    posts: Posts,
    openings: Mapping[str, str],
) -> Posts:
    """Return the posts with their openings said in the given ways; a post that is all opening stays."""
    units = []
    endings = {}
    for doc_id, post in posts.items():
        opening, ending = split_opening(post)
        inputs = {
            "opening": opening,
            "rest": ending,
            "way": openings[doc_id],
            "words": len(opening.split()) + 10,
        }
        if ending:
            endings[doc_id] = ending
            units.append(StageInput(doc_id, inputs))
    return _rewrite(build, "open", posts, units, endings)


def _harden(build: BuildPipeline, posts: Posts) -> Posts:
    """Return the posts without the words by which a search would find their passages."""
    units = []
    for doc_id, post in posts.items():
        inputs = {
            "text": post,
            "forbidden": queries.find_leaks(build, post, [doc_id]),
            "words": len(post.split()),
        }
        units.append(
            StageInput(
                doc_id,
                inputs,
                build.passages([doc_id]),
            )
        )
    return _rewrite(build, "harden", posts, units)


def _rewrite(
    build: BuildPipeline,
    stage: str,
    posts: Posts,
    units: Iterable[StageInput],
    endings: Mapping[str, str] = {},
) -> Posts:
    """Return the posts as a stage writes them, before their `endings` to the letter.

    A post without a usable answer stays as it was.
    """
    rewritten = dict(posts)
    for unit, answer in build.ask(stage, units, most=build.most_queries):
        if answer:
            words = [*answer["written"].split(), endings.get(unit.key, "")]
            rewritten[unit.key] = " ".join(words).rstrip()
    build.count(stage, len(posts), len(posts))
    return rewritten


def _judge(build: BuildPipeline, passage_of: Mapping[Query, str], notes: Notes) -> Grades:
    """Return which passages each query could mean; it is dropped if its own is not recognised."""
    recipe: RecollectionRecipe = build.recipe
    judge = recipe.judge
    retrievers = recipe.recollect.retrievers
    near = {}
    requests = []
    for query, passage in passage_of.items():
        # The passage, and those that retrievers find by its text or the query's
        found = {passage: None}
        for spec, text in product(retrievers, (query.text, build.text(passage))):
            hits = build.retriever(spec).search(text, judge.near // 2 + 1)
            found |= dict.fromkeys(hits.doc_ids)
        near[query] = [doc_id for doc_id in found if doc_id not in build.source.twins]
        mistakes = [f"Misremembered: {mistake}" for mistake in notes[passage]["changed"]]
        described = replace(query, text="\n".join([query.text, *mistakes]))
        requests.append(pool_judging.GradingRequest(described, near[query], members=[passage]))
    calls = math.ceil((judge.near + 3) * len(retrievers) / judge.batch)
    most = build.most_queries * calls if passage_of else 0
    graded = pool_judging.grade(build, "unique", LENS, requests, judge.batch, most)
    meant = {}
    for query in passage_of:
        grades = graded[query.query_id]
        meant[query] = [doc_id for doc_id, grade in grades.items() if grade >= judge.keep]
    build.review(
        "ambiguity",
        meant,
        lambda query: build.choice("remembered", query.text, near[query][:SHOWN]),
    )
    gold: Grades = {}
    for query, doc_ids in meant.items():
        passage = passage_of[query]
        if passage not in doc_ids and not build.ahead:
            build.drop("unique", passage, "its own passage is not recognised in it", query.text)
        elif len(doc_ids) > 1 and recipe.recollect.many == "drop":
            others = ", ".join(doc_ids)
            build.drop("unique", passage, "other passages could be meant as well", others)
        else:
            judged = sorted({*graded[query.query_id], *doc_ids})
            gold[query.query_id] = {doc_id: float(doc_id in doc_ids) for doc_id in judged}
    build.count("unique", len(passage_of), len(gold))
    return gold
