"""The recipe `adapt`: a task's documents cut into passages, and its labels carried over to them, as CRUMB was made.

Section 3 of CRUMB's paper: where documents are judged, passages are searched and a document counts by its best (MaxP),
or each of its passages inherits the label; where passages are judged, the label goes to the new passage that contains
the old one, and a query stays only if all that is relevant to it is contained. No model is asked.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

import environments
from environments.base import Environment, Qrels
from evals.building import release
from evals.building.engine import Build
from evals.building.ingest import TASK, CutSection, digest_id
from evals.building.recipe import Recipe
from evals.building.review import Item
from evals.building.units import Benchmark
from tools.console import plural
from tools.corpus import Corpus
from tools.errors import DataError
from tools.text import all_words, index_runs, longest_runs

_RUN = 5  # words in a row from which on texts are compared; an old passage of fewer is contained nowhere


@dataclass(frozen=True)
class AdaptSection:
    """Whose labels are carried over, and how."""

    task: Annotated[str, "task or folder with the queries and judgements; empty: that of corpus.path"] = ""
    labels: Annotated[Literal["documents", "passages"], "what is judged: documents, or (old) passages"] = "documents"
    max_p: Annotated[bool, "documents: the best passage stands for each; else all passages inherit its label"] = True
    coverage: Annotated[float, "passages: share of an old one, in a row, that a new one has to have"] = 0.9
    review: Annotated[float, "passages: share from which on, up to `coverage`, a person is asked"] = 0.6
    positive: Annotated[float, "grades from this on become 1, others 0; 0: grades stay as they are"] = 0.0


@dataclass(frozen=True)
class Adapt(Recipe):
    """The sections of the recipe."""

    cut: CutSection = field(default_factory=lambda: CutSection(by="chunks"))
    adapt: AdaptSection = field(default_factory=AdaptSection)


def make(build: Build) -> Benchmark:
    """Return the task with the build's documents, and the judgements and queries that could be carried over.

    The task's own queries for dev stay those for dev.
    """
    recipe: Adapt = build.recipe
    section, corpus, said = recipe.adapt, recipe.corpus, recipe.release
    task = section.task or corpus.path.removeprefix(TASK)
    given = environments.load(task, corpus.data or None, "all")
    grade = (lambda value: float(value >= section.positive)) if section.positive else float
    graded = {one: {doc_id: grade(value) for doc_id, value in row.items()} for one, row in given.qrels.items()}
    of_documents = section.labels == "documents"
    gold = inherit(build, graded, spread=not section.max_p) if of_documents else _contain(build, given, graded)
    build.count("transfer", len(given.queries), len(gold))
    if not gold:
        raise DataError(f"transfer: none of {plural(len(graded), 'query', 'queries')} keeps all that is relevant to it")
    settings = {name: getattr(given, name) for name in ("metrics", "metric", "depth")} | dict(given.hints)
    settings["objective"] = said.objective or given.queries[0].objective
    settings["document"] = said.document or given.hints.get("document")
    settings["max_p"] = of_documents and section.max_p and next(build.source.documents.stream()).parent and ":"
    queries = [one for one in given.queries if one.query_id in gold]
    made = ({"query_id": one, "from": graded[one], "gold": gold[one]} for one in gold)
    benchmark = build.finish(queries, {"gold": gold}, made, **settings)
    dev = release.find_dev(task, corpus.data or None)
    return benchmark._replace(dev=dev & gold.keys()) if dev else benchmark


def inherit(build: Build, graded: Qrels, *, spread: bool) -> dict[str, dict[str, float]]:
    """Return the grades of documents under the build's ids, or `spread` over all their passages.

    A query that keeps nothing that is relevant is dropped.
    """
    locate, gold = locator(build), dict[str, dict[str, float]]()
    for query_id, grades in graded.items():
        row = gold[query_id] = {}
        for judged, value in grades.items():
            doc_id, passages = locate(judged)
            if not passages and value > 0:
                build.drop("transfer", f"{query_id} {judged}", "the relevant document is not in the corpus")
            row |= dict.fromkeys(passages if spread else [doc_id] * bool(passages), value)
        if max(row.values(), default=0) <= 0:
            build.drop("transfer", query_id, "nothing that is relevant is left")
            del gold[query_id]
    return gold


def locator(build: Build) -> Callable[[str], tuple[str, list[str]]]:
    """Return what gives (the build's id, its passages) of a document of the task; none where it was left out."""
    passages = defaultdict[str, list[str]](list)
    for one in build.source.documents.stream():
        passages[one.parent or one.doc_id].append(one.doc_id)

    def locate(given: str) -> tuple[str, list[str]]:
        doc_id = digest_id(given) if build.recipe.clean.hash_ids else given
        return doc_id, passages.get(doc_id, [])

    return locate


def _contain(build: Build, given: Environment, graded: Qrels) -> dict[str, dict[str, float]]:
    """Return the grades of the new passages that contain judged old ones, of queries that keep all that is relevant."""
    section, gold = build.recipe.adapt, dict[str, dict[str, float]]()
    judged = sorted({doc_id for row in graded.values() for doc_id in row if doc_id in given.documents})
    words = {doc_id: all_words(given.documents[doc_id].text) for doc_id in judged}
    found = {(old, new): share for old, new, share in find_contained(words, build.source.documents)}
    sure = {pair: "yes" for pair, share in found.items() if share >= section.coverage}
    doubtful = {pair: "no" for pair, share in found.items() if section.review <= share < section.coverage}

    def show(pair: tuple[str, str]) -> Item:
        old, new = given.documents[pair[0]], build.source.documents[pair[1]]
        return Item((("the old passage", old.text), ("the new passage", new.text)))

    build.review("transfer", doubtful, show)  # puts what people say in place of "no"
    inside = defaultdict[str, list[str]](list)
    for old, new in [pair for pair, said in (sure | doubtful).items() if said == "yes"]:
        inside[old].append(new)
    for query_id, grades in graded.items():
        if lost := [old for old, value in grades.items() if value > 0 and old not in inside]:
            build.drop("transfer", query_id, "no new passage contains what is relevant", lost[0])
            continue
        row = gold[query_id] = {}
        for old, value in grades.items():
            row |= {new: max(value, row.get(new, value)) for new in inside.get(old, ())}
    return gold


def find_contained(old: Mapping[str, list[str]], new: Corpus) -> Iterator[tuple[str, str, float]]:
    """Yield (old id, new id, coverage) of old passages, given as words, and new ones that share a run of words.

    The coverage is the share of the old one's characters, without punctuation, that is their longest common run.
    """
    places = index_runs(old, _RUN)
    for document in new.stream():
        for doc_id, run in longest_runs(all_words(document.text), places, _RUN).items():
            yield doc_id, document.doc_id, len(" ".join(run)) / len(" ".join(old[doc_id]))
