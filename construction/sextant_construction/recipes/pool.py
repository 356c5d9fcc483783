"""The recipe `pool`: a task's queries with a small pool of candidates each, as BIRCO was made.

Section 3 and appendices B to F of BIRCO's paper: long queries, a sample of them, the first
documents of several retrievers in turn with relevant documents put in, other documents for dev than
for test, hard negatives, facets, and an objective that was tried on triplets. Decontamination (3.3)
is a command of its own, whose result is a task.
"""

import math
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from sextant.environments.base import Comparison, Environment, Grades, Qrels
from sextant.environments.birco import TRIPLETS, doris_mae_pairs, label_pairs
from sextant.environments.chunking import bert_tokens
from sextant.evals.running.candidate_pools import round_robin
from sextant.programs.llm_tasks.relevance_judge import RULES
from sextant.tools.corpus import Corpus, digest_text
from sextant.tools.lenses import get_lens
from sextant.tools.models.prompting import escape_markers
from sextant.tools.records import Query
from sextant.tools.retrievers.base import Retriever, Search
from sextant_construction import pool_judging, release, transfer
from sextant_construction.ingest import TASK, load_source
from sextant_construction.pipeline import BuildPipeline, stable_order
from sextant_construction.recipe import LimitsSettings, Recipe, ReleaseSettings
from sextant_construction.recipes.adapt import inherit_labels, keep_settings
from sextant_construction.stages.pools import copied
from sextant_construction.text_cleaning import CleanSettings
from sextant_construction.types import Benchmark, StageInput


@dataclass(frozen=True)
class CandidatesSettings:
    """The pool of each query, and the queries."""

    task: Annotated[
        str, "task or folder with the queries and judgements; empty: that of corpus.path"
    ] = ""
    retrievers: Annotated[Sequence[str], "whose first documents are taken in turn"] = (
        "bm25",
        "dense",
    )
    size: Annotated[int, "documents of a pool; more where more are relevant"] = 50
    tokens: Annotated[int, "BERT tokens under which a query is dropped"] = 50


@dataclass(frozen=True)
class FacetsSettings:
    """The facets of a query."""

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

    clean: CleanSettings = CleanSettings(near=0.0)
    limits: LimitsSettings = LimitsSettings(min_positives=1)
    release: ReleaseSettings = ReleaseSettings(metrics=["nDCG@10", "R@5", "R@20"])
    candidates: CandidatesSettings = CandidatesSettings()
    facets: FacetsSettings = FacetsSettings()
    objective: ObjectiveSettings = ObjectiveSettings()
    judge: pool_judging.GradingSettings = pool_judging.GradingSettings()
    pool: pool_judging.PoolingSettings = pool_judging.PoolingSettings()


def build_benchmark(build: BuildPipeline) -> Benchmark:
    """Go through the stages. DataError, with the stage, if nothing is left."""
    recipe: PoolRecipe = build.recipe
    corpus = recipe.corpus
    task = load_source(recipe.candidates.task or corpus.path.removeprefix(TASK), corpus.data)
    pieces = transfer.Pieces(build)
    queries, gold = _choose(build, task, pieces)
    candidates = recipe.candidates
    pools = make_pools(
        queries,
        gold,
        list(map(build.retriever, candidates.retrievers)),
        dict.fromkeys(gold, candidates.size),
    )
    queries = [
        replace(query, candidates=pools[query.query_id] - query.excluded) for query in queries
    ]
    facets = _list_facets(build, queries)
    judgements = {"gold": gold}
    if recipe.facets.judge:
        judgements |= _judge_facets(build, queries, facets)
    judgements |= pool_judging.pool(build, "", queries, gold)
    benchmark = build.finish(queries, judgements, (), **keep_settings(build, task))
    benchmark = _write_objective(build, _split(build, benchmark))
    provenance = [
        {"query_id": query.query_id, "facets": facets.get(query.query_id, [])}
        for query in benchmark.queries
    ]
    return benchmark._replace(provenance=provenance)


def _choose(
    build: BuildPipeline, task: Environment, pieces: transfer.Pieces
) -> tuple[list[Query], Grades]:
    """Return a sample of the queries that are long enough, with their masks, and their judgements."""
    settings: CandidatesSettings = build.recipe.candidates
    count_tokens = bert_tokens()
    carried = inherit_labels(build, pieces, task.qrels, spread=True)
    gold = release.copy_labels_to_duplicates(carried, build.source.twins)
    own_documents = find_own(task.queries, build.source.documents)
    suitable = {}
    for query in task.queries:
        query_id = query.query_id
        if query_id not in gold:
            continue
        hidden = own_documents[query_id].union(*map(pieces.find, query.excluded))
        if count_tokens(query.text) < settings.tokens:
            build.drop(
                "choose",
                query_id,
                f"under {settings.tokens} tokens",
                query.text,
            )
        elif not relevant_ids(gold[query_id]) - hidden:
            build.drop("choose", query_id, "nothing is relevant but its own text")
        else:
            suitable[query_id] = replace(query, excluded=hidden)
    sample = {*stable_order(suitable)[: build.recipe.limits.queries]}
    unsampled = [query_id for query_id in suitable if query_id not in sample]
    build.drop_all("choose", unsampled, "outside the sample")
    build.count(
        "choose",
        len(task.queries),
        len(sample),
    )
    build.demand(sample)
    queries = [query for query_id, query in suitable.items() if query_id in sample]
    visible = {
        query.query_id: {
            doc_id: grade
            for doc_id, grade in gold[query.query_id].items()
            if doc_id not in query.excluded
        }
        for query in queries
    }
    return queries, visible


def find_own(queries: Iterable[Query], documents: Corpus) -> dict[str, frozenset[str]]:
    """Return the documents that have the very text of a query, by query."""
    digests = {query.query_id: _digest_words(query.text) for query in queries}
    doc_ids_of = {digest: set[str]() for digest in digests.values()}
    for document in documents.stream():
        digest = _digest_words(document.text)
        if digest in doc_ids_of:
            doc_ids_of[digest].add(document.doc_id)
    return {query_id: frozenset(doc_ids_of[digest]) for query_id, digest in digests.items()}


def _digest_words(text: str) -> bytes:
    """Return a digest of a text that does not depend on its white space."""
    return digest_text(" ".join(unicodedata.normalize("NFC", text).split()))


def make_pools(
    queries: Sequence[Query],
    gold: Qrels,
    retrievers: Sequence[Retriever],
    sizes: Mapping[str, int],
) -> dict[str, frozenset[str]]:
    """Return the first documents of the retrievers in turn, and relevant documents, by query.

    `sizes` is by query, too; a pool has more documents only if more are relevant.
    """
    searches = [Search(query.text, query.objective, query.excluded) for query in queries]
    depth = max(sizes.values())
    results = [retriever.search_many(searches, depth) for retriever in retrievers]
    pools = {}
    for query, *hits in zip(queries, *results, strict=True):
        relevant = relevant_ids(gold[query.query_id]) - query.excluded
        further = [doc_id for doc_id in round_robin(hits) if doc_id not in relevant]
        missing = max(0, sizes[query.query_id] - len(relevant))
        pools[query.query_id] = relevant.union(further[:missing])
    return pools


def relevant_ids(grades: Mapping[str, float]) -> frozenset[str]:
    """Return the documents with a grade above 0."""
    return frozenset(doc_id for doc_id, grade in grades.items() if grade > 0)


def _list_facets(build: BuildPipeline, queries: Sequence[Query]) -> dict[str, list[str]]:
    """Return the facets by query, each in the query's own words."""
    facets_of = dict[str, list[str]]()
    facet_type = build.recipe.facets.kind
    if not facet_type:
        return facets_of
    units = [StageInput(query, {"kind": facet_type, "text": query.text}) for query in queries]
    for unit, answer in build.ask("facets", units):
        facets = copied(answer.get("facets", ()), escape_markers(unit.key.text))
        if facets:
            facets_of[unit.key.query_id] = facets
    build.count("facets", len(queries), len(facets_of))
    return facets_of


def _judge_facets(
    build: BuildPipeline,
    queries: Sequence[Query],
    facets: Mapping[str, list[str]],
) -> dict[str, Grades]:
    """Return judgements made of the grades of each facet, by DORIS-MAE's rule.

    `aspects` has the sum of the grades, and `every` a 1 if each grade is 1 or more.
    """
    requests = []
    facets_of = defaultdict[str, list[str]](list)  # names of the facets, by query
    for query in queries:
        for number, text in enumerate(facets.get(query.query_id, ())):
            name = f"{query.query_id}/{number}"
            facets_of[query.query_id].append(name)
            facet = replace(query, query_id=name, text=text)
            requests.append(pool_judging.GradingRequest(facet, sorted(query.candidates or ())))
    most = sum(len(query.text.split()) for query in queries)
    batch = 2 * build.recipe.judge.batch
    graded = pool_judging.grade(build, "aspects", "", requests, batch, most)
    sums: Grades = {}
    meets_every: Grades = {}
    for query in queries:
        rows = [graded.get(name, {}) for name in facets_of[query.query_id]] or [{}]
        sums[query.query_id] = {}
        meets_every[query.query_id] = {}
        for doc_id in sorted(query.candidates or ()):
            grades = [row.get(doc_id, 0.0) for row in rows]
            sums[query.query_id][doc_id] = sum(grades)
            meets_every[query.query_id][doc_id] = float(min(grades) >= 1)
    unmet = [query_id for query_id, grades in meets_every.items() if not any(grades.values())]
    build.drop_all("aspects", unmet, "no candidate meets every facet")
    build.count("aspects", len(queries), len(queries) - len(unmet))
    return {"aspects": sums, "every": meets_every}


def _split(build: BuildPipeline, benchmark: Benchmark) -> Benchmark:
    """Return the benchmark judged within pools, with a dev split that has triplets (appendix D).

    Pools of dev queries have no documents of pools of test queries.
    """
    benchmark = release.judge_within_pools(benchmark)
    if not benchmark.dev:
        return benchmark
    apart = release.split_dev(benchmark, build.recipe.release.dev, disjoint=True)
    lost = sorted({*benchmark.dev} - {*apart.dev})
    build.drop_all("split", lost, "what is relevant is in the pools of test queries")
    build.count(
        "split",
        len(benchmark.dev),
        len(apart.dev),
    )
    triplets = {
        query.query_id: pairs
        for query in apart.queries
        if query.query_id in apart.dev
        and (pairs := list_triplets(query, benchmark.judgements["gold"]))
    }
    metrics = [*benchmark.settings["metrics"], *[TRIPLETS] * bool(triplets)]
    settings = {**benchmark.settings, "metrics": metrics}
    return apart._replace(comparisons=triplets, settings=settings)


def list_triplets(query: Query, gold: Qrels) -> list[Comparison]:
    """Return pairs of candidates by their grades.

    Fractions, as DORIS-MAE's grades, are compared by its rule; else all grades that differ.
    """
    pool = query.candidates or frozenset()
    grades = {doc_id: gold[query.query_id].get(doc_id, 0.0) for doc_id in sorted(pool)}
    has_fractions = any(grade % 1 for grade in grades.values())
    list_pairs = doris_mae_pairs if has_fractions else label_pairs
    return [Comparison(TRIPLETS, *pair) for pair in list_pairs(grades)]


def _write_objective(build: BuildPipeline, benchmark: Benchmark) -> Benchmark:
    """Return the benchmark with the draft of an objective by which a judge orders most triplets."""
    settings: ObjectiveSettings = build.recipe.objective
    if not settings.drafts:
        return benchmark
    dev = stable_order(benchmark.comparisons)
    build.demand(dev, "triplet of dev")
    shown = dev[: min(settings.cases, math.ceil(len(dev) / 2))]
    drafts = _draft_objectives(build, benchmark, shown)
    # Drafts are tried on queries that their writer has not read, if there are such.
    wins = _count_wins(build, benchmark, drafts, dev[len(shown) :] or dev)
    if not drafts:
        return benchmark
    best = max(drafts, key=wins.__getitem__)
    drafts.remove(best)
    build.drop_all("try", drafts, "another is better")
    build.count("try", 1 + len(drafts), 1)
    return benchmark._replace(settings={**benchmark.settings, "objective": best})


def _draft_objectives(
    build: BuildPipeline, benchmark: Benchmark, query_ids: Sequence[str]
) -> list[str]:
    """Return drafts of an objective; each is written in sight of those before it."""
    text_of = {query.query_id: query.text for query in benchmark.queries}
    cases = []
    for query_id in query_ids:
        _, right, tempting = benchmark.comparisons[query_id][0]
        case = {"query": text_of[query_id], "right": build.text(right)}
        cases.append(case | {"tempting": build.text(tempting)})
    relevance = get_lens(benchmark.settings.get("lens", "")).recognise
    drafts: list[str] = []
    for number in range(build.recipe.objective.drafts):
        inputs = {"cases": cases, "relevance": relevance, "drafts": [*drafts]}
        for _, answer in build.ask("objective", [StageInput(number, inputs)]):
            if answer:
                drafts.append(answer["objective"])
    return drafts


def _count_wins(
    build: BuildPipeline,
    benchmark: Benchmark,
    drafts: Sequence[str],
    query_ids: Sequence[str],
) -> Counter[str]:
    """Return for each draft the number of triplets that a judge orders rightly by it."""
    settings: ObjectiveSettings = build.recipe.objective
    text_of = {query.query_id: query.text for query in benchmark.queries}
    triplets = {
        f"{query_id} {pair}": (text_of[query_id], pair.better, pair.worse)
        for query_id in query_ids
        for pair in benchmark.comparisons[query_id]
    }
    units = []
    for draft in dict.fromkeys(drafts):
        for key in stable_order(triplets)[: settings.triplets]:
            text, better, worse = triplets[key]
            inputs = {
                "objective": draft,
                "description": text,
                "grades": RULES[""],
                "examples": [],
            }
            units.append(
                StageInput(
                    (draft, better, worse),
                    inputs,
                    build.passages(stable_order([better, worse])),
                )
            )
    wins = Counter[str]()
    for unit, answer in build.ask(
        "try",
        units,
        most=settings.drafts * settings.triplets,
    ):
        draft, better, worse = unit.key
        verdicts = answer.get("verdicts", {})
        if len(verdicts) == 2:
            wins[draft] += verdicts[better]["grade"] > verdicts[worse]["grade"]
    return wins
