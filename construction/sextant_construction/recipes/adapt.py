"""The recipe `adapt`: a task's documents cut into passages, and its labels carried over to them, as
CRUMB was made.

Section 3 of CRUMB's paper: if documents are judged, passages are searched and a document counts by
its best (MaxP), or each of its passages inherits the label; if passages are judged, the label goes
to the new passage that contains the old passage, and a query stays only if all that is relevant to
it is contained. No model is asked.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Annotated, Any, Literal, NamedTuple

from sextant.environments.base import EmptySplit, Environment, Grades, Qrels
from sextant.tools.corpus import Corpus
from sextant.tools.platform.files import expand_user_path
from sextant.tools.records import Query
from sextant.tools.text import index_ngrams, longest_shared_ngrams, tokens
from sextant_construction import release, transfer
from sextant_construction.human_review import Item
from sextant_construction.ingest import TASK, CutSettings, load_source
from sextant_construction.pipeline import BuildPipeline
from sextant_construction.query_ratings import read_ratings
from sextant_construction.recipe import Recipe, ReleaseSettings
from sextant_construction.types import Benchmark

# Words in a row from which on texts are compared; an old passage of fewer is contained nowhere
_RUN = 5


@dataclass(frozen=True)
class AdaptSettings:
    """Whose labels are carried over, and how."""

    task: Annotated[
        str, "task or folder with the queries and judgements; empty: that of corpus.path"
    ] = ""
    labels: Annotated[
        Literal["documents", "passages"], "what is judged: documents, or (old) passages"
    ] = "documents"
    max_p: Annotated[
        bool,
        "documents: the best passage stands for each; else all passages inherit its label",
    ] = True
    coverage: Annotated[
        float, "passages: share of an old one, in a row, that a new one has to have"
    ] = 0.9
    review: Annotated[
        float, "passages: share from which on, up to `coverage`, a person is asked"
    ] = 0.6
    ratings: Annotated[
        str, "JSON Lines of people's ratings of queries; empty: none, and all queries stay"
    ] = ""
    least: Annotated[
        dict[str, float],
        "ratings: the least mean of each, by its key there, e.g. {naturalness = 0.66}",
    ] = field(default_factory=dict)


@dataclass(frozen=True)
class AdaptRecipe(Recipe):
    """The sections of the recipe."""

    cut: CutSettings = CutSettings(by="chunks")
    # Section 3.3 of CRUMB's paper
    release: ReleaseSettings = ReleaseSettings(dev=0.1, dev_most=100)
    adapt: AdaptSettings = AdaptSettings()


def build_benchmark(build: BuildPipeline) -> Benchmark:
    """Return the task with the build's documents, and the judgements, queries, masks and pools carried over.

    The task's own queries for dev stay those for dev.
    """
    recipe: AdaptRecipe = build.recipe
    section = recipe.adapt
    wanted = recipe.release
    task = section.task or recipe.corpus.path.removeprefix(TASK)
    environment = _drop_badly_rated(build, _load(task, recipe.corpus.data))
    graded = environment.qrels
    pieces = transfer.Pieces(build)
    of_documents = section.labels == "documents"
    hidden: transfer.Carry
    ranked: transfer.Carry
    if of_documents:
        gold = inherit_labels(build, pieces, graded, spread=not section.max_p)
        hidden = ranked = pieces.find
    else:
        contained = _find_contained(build, environment)
        gold = _contain(build, contained, graded)
        hidden = contained.hide
        ranked = contained.find
    judged = [query for query in environment.queries if query.query_id in gold]
    queries = _drop_masked(build, transfer.carry_queries(judged, hidden, ranked), gold)
    gold = {query.query_id: gold[query.query_id] for query in queries}
    build.count("transfer", len(environment.queries), len(gold))
    build.demand(gold)
    comparisons_left = {
        query_id: pairs for query_id, pairs in environment.comparisons.items() if query_id in gold
    }
    comparisons = transfer.carry_comparisons(build, "transfer", comparisons_left, ranked)
    twins = transfer.keep_twins(environment.twins, comparisons)
    metrics = transfer.list_metrics(environment, comparisons, twins) or wanted.metrics
    settings = {
        "metrics": metrics,
        "metric": environment.metric if environment.metric in metrics else metrics[0],
        "depth": environment.depth,
        **keep_settings(build, environment),
    }
    if of_documents and section.max_p and pieces.have_parents:
        settings["max_p"] = build.source.separator
    provenance = [
        {"query_id": query_id, "from": graded[query_id], "gold": grades}
        for query_id, grades in gold.items()
    ]
    # A query and its twin are both for dev, or both for test.
    together = {**twins, **{twin: query_id for query_id, twin in twins.items()}}
    benchmark = build.finish(queries, {"gold": gold}, provenance, together, **settings)
    benchmark = release.judge_within_pools(benchmark._replace(comparisons=comparisons, twins=twins))
    dev = [query_id for query_id in environment.splits["dev"] if query_id in gold]
    return benchmark._replace(dev=dev) if dev else benchmark


def keep_settings(build: BuildPipeline, task: Environment) -> dict[str, Any]:
    """Return the settings of a task that a benchmark made of it keeps, for `build.finish`."""
    wanted: ReleaseSettings = build.recipe.release
    return {
        **task.hints,
        **release.keep_level(task),
        "opaque_ids": task.opaque_ids,
        "objective": wanted.objective or task.queries[0].objective,
        "document": wanted.document or task.hints.get("document"),
    }


def _load(task: str, data: str) -> Environment:
    """Return all queries of a task, with its own split; comparisons may be of its dev queries alone (BIRCO)."""
    environment = load_source(task, data)
    try:
        dev = load_source(task, data, "dev")
    except EmptySplit:
        return replace(environment, splits={"dev": ()})
    return replace(
        environment,
        metrics=tuple(dict.fromkeys([*environment.metrics, *dev.metrics])),
        comparisons={**environment.comparisons, **dev.comparisons},
        splits={"dev": [query.query_id for query in dev.queries]},
    )


def _drop_badly_rated(build: BuildPipeline, environment: Environment) -> Environment:
    """Return the task without queries that people did not rate high enough.

    CRUMB drops those of QUEST that are not judged as natural and fluent.
    """
    section = build.recipe.adapt
    if not section.ratings:
        return environment
    ratings = read_ratings(expand_user_path(section.ratings), section.least)
    staying = []
    for query in environment.queries:
        fault = "" if query.query_id in ratings else "nobody has rated it"
        for name, mean in ratings.get(query.query_id, {}).items():
            if mean < section.least[name]:
                fault = f"{name} is {mean:.2f}, under {section.least[name]:g}"
        if fault:
            build.drop("ratings", query.query_id, fault, query.text)
        else:
            staying.append(query.query_id)
    build.count("ratings", len(environment.queries), len(staying))
    build.demand(staying)
    return replace(environment.asking(query_ids=staying), splits=environment.splits)


def _drop_masked(build: BuildPipeline, queries: Sequence[Query], gold: Qrels) -> list[Query]:
    """Return the queries without queries that must not see any of their relevant documents."""
    visible = []
    for query in queries:
        grades = gold[query.query_id]
        if any(grade > 0 and doc_id not in query.excluded for doc_id, grade in grades.items()):
            visible.append(query)
        else:
            reason = "what is relevant stands in documents that it must not see"
            build.drop("transfer", query.query_id, reason)
    return visible


def inherit_labels(
    build: BuildPipeline, pieces: transfer.Pieces, graded: Qrels, *, spread: bool
) -> Grades:
    """Return the grades of documents under the build's ids, or `spread` over all their passages.

    A query that keeps nothing that is relevant is dropped.
    """
    gold = {}
    for query_id, grades in graded.items():
        row = dict[str, float]()
        for judged, grade in grades.items():
            unit = pieces.find_unit(judged)
            if not unit.pieces and grade > 0:
                build.drop(
                    "transfer", f"{query_id} {judged}", "the relevant document is not in the corpus"
                )
            for doc_id in unit.pieces if spread else [unit.name] * bool(unit.pieces):
                row[doc_id] = max(grade, row.get(doc_id, grade))
        if max(row.values(), default=0) > 0:
            gold[query_id] = row
        else:
            build.drop("transfer", query_id, "nothing that is relevant is left")
    return gold


class _Contained(NamedTuple):
    """Which new passages contain an old passage: surely, or as people say, and perhaps."""

    surely: Mapping[str, Sequence[str]]
    perhaps: Mapping[str, Sequence[str]]

    def find(self, old: str) -> Sequence[str]:
        """Return the new passages that contain an old passage."""
        return self.surely.get(old, ())

    def hide(self, old: str) -> Sequence[str]:
        """Return the new passages that repeat so much of an old passage that a query that must not
        see it must not see them.
        """
        return [
            *self.find(old),
            *self.perhaps.get(old, ()),
        ]


def _find_contained(build: BuildPipeline, environment: Environment) -> _Contained:
    """Return the new places of the old passages that judgements, masks, pools and comparisons name."""
    section = build.recipe.adapt
    old_texts = environment.documents
    new_texts = build.source.documents
    named = {doc_id for row in environment.qrels.values() for doc_id in row}
    for query in environment.queries:
        named |= query.excluded | (query.candidates or frozenset())
    for pair in chain.from_iterable(environment.comparisons.values()):
        named |= {pair.better, pair.worse}
    old_words = {
        doc_id: tokens(old_texts[doc_id].text) for doc_id in sorted(named) if doc_id in old_texts
    }
    certain = {}
    doubtful = {}
    for old, new, share in find_contained(old_words, new_texts):
        if share >= section.coverage:
            certain[old, new] = "yes"
        elif share >= section.review:
            doubtful[old, new] = "no"
    build.review(  # puts what people say in place of "no"
        "transfer",
        doubtful,
        lambda pair: Item(
            [
                ("the old passage", old_texts[pair[0]].text),
                ("the new passage", new_texts[pair[1]].text),
            ]
        ),
    )
    surely = defaultdict[str, list[str]](list)
    perhaps = defaultdict[str, list[str]](list)
    for (old, new), answer in (certain | doubtful).items():
        (surely if answer == "yes" else perhaps)[old].append(new)
    return _Contained(surely, perhaps)


def _contain(build: BuildPipeline, contained: _Contained, graded: Qrels) -> Grades:
    """Return the grades of the new passages that contain judged old passages, of queries that keep
    all that is relevant.
    """
    gold = Grades()
    for query_id, grades in graded.items():
        lost = [old for old, grade in grades.items() if grade > 0 and not contained.find(old)]
        if lost:
            build.drop("transfer", query_id, "no new passage contains what is relevant", lost[0])
            continue
        row = gold[query_id] = {}
        for old, grade in grades.items():
            for new in contained.find(old):
                row[new] = max(grade, row.get(new, grade))
    return gold


def find_contained(old: Mapping[str, list[str]], new: Corpus) -> Iterator[tuple[str, str, float]]:
    """Yield (old id, new id, coverage) of old passages, given as words, and new passages that share
    a run of words.

    The coverage is the share of the old passage's characters, without punctuation, that is their
    longest common run.
    """
    places = index_ngrams(old, _RUN)
    for document in new.stream():
        for doc_id, run in longest_shared_ngrams(tokens(document.text), places, _RUN).items():
            yield doc_id, document.doc_id, len(" ".join(run)) / len(" ".join(old[doc_id]))
