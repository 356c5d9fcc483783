"""The recipe `pool`: a task's queries with a small pool of candidates each, as BIRCO was made.

Section 3 and appendices B to F of BIRCO's paper: long queries, a sample of them, the first
documents of several retrievers in turn with what is relevant put in, other documents for dev than
for test, hard negatives, facets, and an objective that was tried on triplets. Decontamination (3.3)
is a command of its own, whose result is a task.
"""

import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Annotated

import environments
from environments.base import Comparison, Environment, Qrels
from environments.birco import TRIPLETS, doris_mae_pairs, label_pairs
from environments.chunking import bert_tokens
from evals.build import pool_judging, release, transfer
from evals.build.ingest import TASK
from evals.build.pipeline import BuildPipeline, stable_order
from evals.build.recipe import LimitsSettings, Recipe, ReleaseSettings
from evals.build.recipes.adapt import inherit_labels
from evals.build.text_cleaning import CleanSettings, compile_pattern
from evals.build.types import Benchmark, StageInput
from evals.papers.dataset_statistics import negatives_in_same_group
from evals.running.candidate_pools import round_robin
from programs.build_stages.pools import copied
from programs.llm_tasks.relevance_judge import RULES
from tools.corpus import Corpus, digest_text
from tools.errors import DataError, UsageError
from tools.lenses import get_lens
from tools.models.passages import escape_markers
from tools.records import Query
from tools.retrievers.base import Retriever, Search


@dataclass(frozen=True)
class CandidatesSettings:
    """What each query ranks, and which queries there are."""

    task: Annotated[
        str, "task or folder with the queries and judgements; empty: that of corpus.path"
    ] = ""
    retrievers: Annotated[list[str], "whose first documents are taken in turn"] = field(
        default_factory=lambda: ["bm25", "dense"]
    )
    size: Annotated[int, "documents of a pool; more where more are relevant"] = 50
    given: Annotated[bool, "keep the pools that the task has"] = False
    tokens: Annotated[int, "BERT tokens under which a query is dropped"] = 50
    group: Annotated[
        str,
        "regular expression whose first bracket is, in a document's id, the debate or disease "
        "that it is of; "
        "empty: corpus.group. Others of a relevant document's group are hard negatives",
    ] = ""


@dataclass(frozen=True)
class FacetsSettings:
    """What a query asks for, piece by piece."""

    kind: Annotated[
        str, "what counts as one, e.g. an argument or its evidence; empty: none are listed"
    ] = ""
    judge: Annotated[
        bool, "grade every candidate by every facet: judgements aspects (sums) and every (all met)"
    ] = False


@dataclass(frozen=True)
class ObjectiveSettings:
    """Having the task described to models."""

    drafts: Annotated[
        int, "drafts, of which the one is kept by which most triplets are ordered; 0: none"
    ] = 0
    cases: Annotated[int, "dev queries that are shown to who writes them"] = 5
    triplets: Annotated[
        int, "triplets of other dev queries, at most, on which drafts are tried"
    ] = 99


@dataclass(frozen=True)
class PoolRecipe(Recipe):
    """The sections of the recipe."""

    clean: CleanSettings = field(default_factory=lambda: CleanSettings(boilerplate=0.0, near=0.0))
    limits: LimitsSettings = field(default_factory=lambda: LimitsSettings(min_positives=1))
    release: ReleaseSettings = field(
        default_factory=lambda: ReleaseSettings(metrics=["nDCG@10", "R@5", "R@20"])
    )
    candidates: CandidatesSettings = field(default_factory=CandidatesSettings)
    facets: FacetsSettings = field(default_factory=FacetsSettings)
    objective: ObjectiveSettings = field(default_factory=ObjectiveSettings)
    judge: pool_judging.GradingSettings = field(default_factory=pool_judging.GradingSettings)
    pool: pool_judging.PoolingSettings = field(default_factory=pool_judging.PoolingSettings)


def build_benchmark(build: BuildPipeline) -> Benchmark:
    """Go through the stages. DataError, with the stage, where nothing is left."""
    recipe: PoolRecipe = build.recipe
    corpus = recipe.corpus
    said = recipe.release
    group = group_by_pattern(recipe.candidates.group, build.source.group)
    given = environments.load(
        recipe.candidates.task or corpus.path.removeprefix(TASK), corpus.data or None, "all"
    )
    pieces = transfer.Pieces(build)
    queries, gold = _choose(build, given, pieces)
    queries = _gather(build, given, pieces, queries, gold)
    facets = _list_facets(build, queries)
    judgements = {"gold": gold} | (
        _judge_facets(build, queries, facets) if recipe.facets.judge else {}
    )
    judgements |= pool_judging.pool(build, "", queries, gold)
    settings = dict(given.hints) | {"objective": said.objective or given.queries[0].objective}
    settings |= {"document": said.document} if said.document else {}
    made = build.finish(queries, judgements, (), {}, **settings)
    made = _write_objective(build, _split(build, made))
    hard = {
        query.query_id: negatives_in_same_group(
            query.candidates or (), relevant_ids(gold[query.query_id]), group
        )
        for query in made.queries
    }
    rows = [
        {"query_id": one, "hard": sorted(of), "facets": facets.get(one, [])}
        for one, of in hard.items()
    ]
    pooled_in_all = sum(len(one.candidates or ()) for one in made.queries)
    counts = {"documents of a pool, mean": pooled_in_all / len(rows)}
    for part in (
        ("test", "dev") if made.dev else ()
    ):  # pools of dev queries have nothing of those of test queries
        sizes_of_part = [
            len(one.candidates or ())
            for one in made.queries
            if (one.query_id in made.dev) == (part == "dev")
        ]
        counts[f"documents of a {part} pool, mean"] = fmean(sizes_of_part)
    if many := sum(map(len, hard.values())):
        counts["hard negatives, share of pools"] = many / pooled_in_all
    if sizes := [len(facets[one]) for one in hard if one in facets]:
        counts |= {
            "facets of a query, mean": fmean(sizes),
            "facets, least": min(sizes),
            "facets, most": max(sizes),
        }
    return made._replace(provenance=rows, counts=counts)


def _choose(
    build: BuildPipeline, given: Environment, pieces: transfer.Pieces
) -> tuple[list[Query], pool_judging.Grades]:
    """Return a sample of the queries that are long enough, without what they must not see, and their judgements."""
    section = build.recipe.candidates
    count = bert_tokens()
    gold = release.copy_labels_to_duplicates(
        inherit_labels(build, pieces, given.qrels, spread=True), build.source.twins
    )
    own = find_own(given.queries, build.source.documents)
    kept = dict[str, Query]()
    for query in given.queries:
        hidden = own[query.query_id].union(*map(pieces.find, query.excluded))
        if query.query_id in gold and count(query.text) < section.tokens:
            build.drop("choose", query.query_id, f"under {section.tokens} tokens", query.text)
        elif query.query_id in gold and not relevant_ids(gold[query.query_id]) - hidden:
            build.drop("choose", query.query_id, "nothing is relevant but its own text")
        elif query.query_id in gold:
            kept[query.query_id] = replace(query, excluded=hidden)
    sample = {*stable_order(kept)[: build.recipe.limits.queries]}
    build.drop_all("choose", [one for one in kept if one not in sample], "outside the sample")
    build.count("choose", len(given.queries), len(sample))
    build.demand(sample)
    queries = [query for one, query in kept.items() if one in sample]
    seen = pool_judging.Grades()
    for query in queries:
        seen[query.query_id] = {
            key: of for key, of in gold[query.query_id].items() if key not in query.excluded
        }
    return queries, seen


def find_own(queries: Iterable[Query], documents: Corpus) -> dict[str, frozenset[str]]:
    """Return the documents that have the very text of a query, by query."""
    asked = {query.query_id: _identify(query.text) for query in queries}
    places = {digest: set[str]() for digest in asked.values()}
    for document in documents.stream():
        if (digest := _identify(document.text)) in places:
            places[digest].add(document.doc_id)
    return {query_id: frozenset(places[digest]) for query_id, digest in asked.items()}


def _identify(text: str) -> bytes:  # whatever its white space is
    return digest_text(" ".join(unicodedata.normalize("NFC", text).split()))


def _gather(
    build: BuildPipeline,
    given: Environment,
    pieces: transfer.Pieces,
    queries: Sequence[Query],
    gold: Qrels,
) -> list[Query]:
    """Return the queries with their pools."""
    section = build.recipe.candidates
    if section.given:
        there = {one.query_id: one.candidates or () for one in given.queries}
        pools = {one: relevant_ids(gold[one]).union(*map(pieces.find, there[one])) for one in gold}
    else:
        recipe = build.recipe
        matters = (
            recipe.facets.judge
            or recipe.pool.retrievers
            or recipe.objective.drafts
            or not build.ahead
        )
        built = [build.retriever(spec) for spec in (section.retrievers if matters else ["bm25"])]
        pools = make_pools(queries, gold, built, dict.fromkeys(gold, section.size))
    return [replace(query, candidates=pools[query.query_id] - query.excluded) for query in queries]


def make_pools(
    queries: Sequence[Query], gold: Qrels, retrievers: Sequence[Retriever], sizes: Mapping[str, int]
) -> dict[str, frozenset[str]]:
    """Return the first documents of the retrievers in turn, and what is relevant among them, by query.

    `sizes` is by query, too; a pool has more documents only where more are relevant.
    """
    searches = [Search(one.text, one.objective, one.excluded) for one in queries]
    found = [retriever.search_many(searches, max(sizes.values())) for retriever in retrievers]
    pools = dict[str, frozenset[str]]()
    for query, *hits in zip(queries, *found, strict=True):
        right = relevant_ids(gold[query.query_id]) - query.excluded
        others = [one for one in round_robin(hits) if one not in right]
        pools[query.query_id] = right.union(others[: max(0, sizes[query.query_id] - len(right))])
    return pools


def relevant_ids(grades: Mapping[str, float]) -> frozenset[str]:
    """Return the documents with a grade above 0."""
    return frozenset(one for one, grade in grades.items() if grade > 0)


def _list_facets(build: BuildPipeline, queries: Sequence[Query]) -> dict[str, list[str]]:
    """Return the facets by query, each in the query's own words."""
    found = dict[str, list[str]]()
    if not (kind := build.recipe.facets.kind):
        return found
    for unit, answer in build.ask(
        "facets", [StageInput(query, {"kind": kind, "text": query.text}) for query in queries]
    ):
        if facets := copied(answer.get("facets", ()), escape_markers(unit.key.text)):
            found[unit.key.query_id] = facets
    build.count("facets", len(queries), len(found))
    return found


def _judge_facets(
    build: BuildPipeline, queries: Sequence[Query], facets: Mapping[str, list[str]]
) -> dict[str, pool_judging.Grades]:
    """Return judgements made of the grades of each facet, by DORIS-MAE's rule.

    `aspects` has the sum of the grades, and `every` a 1 where each is 1 or more.
    """
    judge = build.recipe.judge
    most = sum(len(one.text.split()) for one in queries)
    made: dict[str, pool_judging.Grades] = {"aspects": {}, "every": {}}
    parts = defaultdict[str, list[Query]](list)
    for one in queries:
        for n, text in enumerate(facets.get(one.query_id, ())):
            parts[one.query_id].append(replace(one, query_id=f"{one.query_id}/{n}", text=text))
    asked = [
        pool_judging.GradingRequest(part, sorted(part.candidates or ()))
        for of in parts.values()
        for part in of
    ]
    grades = pool_judging.grade(build, "aspects", "", asked, 2 * judge.batch, most)
    for query in queries:
        rows = [grades.get(part.query_id, {}) for part in parts[query.query_id]]
        sums = {
            candidate: [row.get(candidate, 0.0) for row in rows] or [0.0]
            for candidate in sorted(query.candidates or ())
        }
        made["aspects"][query.query_id] = {one: sum(of) for one, of in sums.items()}
        made["every"][query.query_id] = {one: float(min(of) >= 1) for one, of in sums.items()}
    unmet = [query_id for query_id, of in made["every"].items() if not any(of.values())]
    build.drop_all("aspects", unmet, "no candidate meets every facet")
    build.count("aspects", len(queries), len(queries) - len(unmet))
    return made


def _split(build: BuildPipeline, made: Benchmark) -> Benchmark:
    """Return the benchmark judged within pools, with other documents for dev, and triplets of these (appendix D)."""
    made = release.judge_within_pools(made)
    if not made.dev:
        return made
    apart = release.split_dev(made, build.recipe.release.dev, disjoint=True)
    for one in sorted({*made.dev} - {*apart.dev}):
        build.drop("split", one, "what is relevant is in the pools of test queries")
    build.count("split", len(made.dev), len(apart.dev))
    dev = [query for query in apart.queries if query.query_id in apart.dev]
    triplets = {
        one.query_id: pairs for one in dev if (pairs := list_triplets(one, made.judgements["gold"]))
    }
    metrics = [*made.settings["metrics"], *[TRIPLETS] * bool(triplets)]
    return apart._replace(comparisons=triplets, settings={**made.settings, "metrics": metrics})


def list_triplets(query: Query, gold: Qrels) -> list[Comparison]:
    """Return pairs of candidates by their grades: of graded ones in fractions as DORIS-MAE's, else all that differ."""
    pool = query.candidates or frozenset()
    grades = {one: gold[query.query_id].get(one, 0.0) for one in sorted(pool)}
    pairs = doris_mae_pairs if any(grade % 1 for grade in grades.values()) else label_pairs
    return [Comparison(TRIPLETS, *pair) for pair in pairs(grades)]


def group_by_pattern(pattern: str, known: Mapping[str, str] = {}) -> Callable[[str], str]:
    """Return what gives a document's group: what the pattern's first bracket finds in its id, or else what is known."""
    found = compile_pattern(pattern)
    if pattern and not found.groups:
        raise UsageError(
            f"group: {pattern!r} has no bracket; write one around what an id says of the group"
        )

    def group_of(doc_id: str) -> str:
        match = found.search(doc_id) if pattern else None
        return (match and match[1]) or known.get(doc_id, "")

    return group_of


def _write_objective(build: BuildPipeline, made: Benchmark) -> Benchmark:
    """Return the benchmark with the draft of an objective by which a judge orders most triplets of dev."""
    section = build.recipe.objective
    known = {query.query_id: query for query in made.queries}
    if not section.drafts:
        return made
    if not (dev := stable_order(made.comparisons)):
        raise DataError(
            f"no triplet of dev is there to try an objective on, after {build.describe()}"
        )
    shown = dev[: min(section.cases, -(-len(dev) // 2))]
    cases = list[dict[str, str]]()
    for one in shown:
        _, right, tempting = made.comparisons[one][0]
        cases.append(
            {"query": known[one].text, "right": build.text(right), "tempting": build.text(tempting)}
        )
    others = {
        f"{one} {pair}": (one, *pair[1:])
        for one in dev[len(shown) :] or dev
        for pair in made.comparisons[one]
    }
    drafts = list[str]()
    wins = Counter[str]()
    units = list[StageInput]()
    for number in range(section.drafts):
        told = {
            "cases": cases,
            "relevance": get_lens(made.settings.get("lens", "")).recognise,
            "drafts": [*drafts],
        }
        drafts += [
            answer["objective"]
            for _, answer in build.ask("objective", [StageInput(number, told)])
            if answer
        ]
    for draft in dict.fromkeys(drafts):
        for one, *pair in (others[key] for key in stable_order(others)[: section.triplets]):
            told = {
                "objective": draft,
                "description": known[one].text,
                "grades": RULES[""],
                "examples": [],
            }
            units.append(StageInput((draft, *pair), told, build.passages(stable_order(pair))))
    for unit, answer in build.ask("try", units, most=section.drafts * section.triplets):
        draft, better, worse = unit.key
        grades = {one: row["grade"] for one, row in answer.get("verdicts", {}).items()}
        wins[draft] += len(grades) == 2 and grades[better] > grades[worse]
    best = max(drafts, key=wins.__getitem__, default=made.settings["objective"])
    rejected = drafts.copy()
    if rejected:
        rejected.remove(best)
    build.drop_all("try", rejected, "another is better")
    build.count("try", len(drafts), len(drafts[:1]))
    return made._replace(settings={**made.settings, "objective": best})
