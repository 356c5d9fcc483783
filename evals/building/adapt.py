"""The recipe `adapt`: a task's documents cut into passages, and its labels carried over to them, as CRUMB was made.

Section 3 of CRUMB's paper: where documents are judged, passages are searched and a document counts by its best (MaxP),
or each of its passages inherits the label; where passages are judged, the label goes to the new passage that contains
the old one, and a query stays only if all that is relevant to it is contained. No model is asked.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import environments
from environments import tables
from environments.base import DevSplit, EmptySplit, Environment, Qrels
from environments.chunking import LIMIT, bert_tokens, chunks
from evals.building.engine import Build
from evals.building.ingest import TASK, CutSection, digest_id
from evals.building.recipe import Recipe
from evals.building.review import Item
from evals.building.units import Benchmark
from tools.console import plural
from tools.corpus import Corpus
from tools.errors import DataError, UsageError
from tools.records import Query
from tools.text import all_words, index_runs, longest_runs

_RUN = 5  # words in a row from which on texts are compared; an old passage of fewer is contained nowhere
_DEV = (0.1, 100)  # of CRUMB: a share of the queries, and no more than so many
_SEED = "sextant-adapt-1"


@dataclass(frozen=True)
class AdaptSection:
    """Whose labels are carried over, and how."""

    task: Annotated[str, "task or folder with the queries and judgements; empty: that of corpus.path"] = ""
    labels: Annotated[Literal["documents", "passages"], "what is judged: documents, or (old) passages"] = "documents"
    max_p: Annotated[bool, "documents: the best passage stands for each; else all passages inherit its label"] = True
    coverage: Annotated[float, "passages: share of an old one, in a row, that a new one has to have"] = 0.9
    review: Annotated[float, "passages: share from which on, up to `coverage`, a person is asked"] = 0.6
    positive: Annotated[float, "grades from this on become 1, others 0; 0: grades stay as they are"] = 0.0
    phrase: Annotated[str, "text of a query: {text} is what it was, other names are columns of `fields`"] = "{text}"
    fields: Annotated[str, "JSON Lines with columns of queries by _id, e.g. the state of a legal question"] = ""


@dataclass(frozen=True)
class Adapt(Recipe):
    """The sections of the recipe."""

    cut: CutSection = field(default_factory=lambda: CutSection(by="chunks"))
    adapt: AdaptSection = field(default_factory=AdaptSection)


def make(build: Build) -> Benchmark:
    """Return the task with the build's documents, and the judgements and queries that could be carried over."""
    recipe: Adapt = build.recipe
    section, corpus, said, documents = recipe.adapt, recipe.corpus, recipe.release, build.source.documents
    task = section.task or corpus.path.removeprefix(TASK)
    given = environments.load(task, corpus.data or None, "all")
    grade = (lambda value: float(value >= section.positive)) if section.positive else float
    graded = {one: {doc_id: grade(value) for doc_id, value in row.items()} for one, row in given.qrels.items()}
    of_documents = section.labels == "documents"
    gold = (_inherit if of_documents else _contain)(build, given, graded)
    build.count("transfer", len(given.queries), len(gold))
    if not gold:
        raise DataError(f"transfer: none of {plural(len(graded), 'query', 'queries')} keeps all that is relevant to it")
    settings = {
        **{name: given.hints[name] for name in ("document", "lens") if name in given.hints},
        **({"document": said.document} if said.document else {}),
        **({"max_p": ":"} if of_documents and section.max_p and next(documents.stream()).parent else {}),
        "name": said.name or build.folder.resolve().name,
        "objective": said.objective or given.queries[0].objective,
        "metrics": list(given.metrics),
        "metric": given.metric,
        "depth": given.depth,
    }
    queries = [replace(one, text=text) for one, text in _phrase(given.queries, section) if one.query_id in gold]
    dev = [one for one in _dev(task, corpus.data, list(gold)) if one in gold]
    made = ({"query_id": one, "from": graded[one], "gold": gold[one]} for one in gold)
    private = build.source.private
    return Benchmark(documents, queries, {"gold": gold}, settings, dev=dev, provenance=made, private=private)


def _inherit(build: Build, given: Environment, graded: Qrels) -> dict[str, dict[str, float]]:
    """Return the grades of documents, or with `max_p` off those of their passages."""
    source, gold = build.source, dict[str, dict[str, float]]()
    passages = _by_parent(source.documents)
    inherit = not build.recipe.adapt.max_p
    for query_id, grades in graded.items():
        row = gold[query_id] = {}
        for judged, value in grades.items():
            doc_id = digest_id(judged) if build.recipe.clean.hash_ids else judged
            doc_id = doc_id if doc_id in passages else source.twins.get(doc_id, doc_id)
            if doc_id not in passages and value > 0:
                build.drop("transfer", f"{query_id} {judged}", "the relevant document is not in the corpus")
            row |= dict.fromkeys(passages.get(doc_id, ()) if inherit else [doc_id] * (doc_id in passages), value)
        if max(row.values(), default=0) <= 0:
            build.drop("transfer", query_id, "nothing that is relevant is left")
            del gold[query_id]
    return gold


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


def _phrase(queries: Iterable[Query], section: AdaptSection) -> Iterator[tuple[Query, str]]:
    rows = tables.read_objects(Path(section.fields), "_id") if section.fields else ()
    fields = {row["_id"]: row for _, row in rows}
    for query in queries:
        try:
            yield query, section.phrase.format_map({**fields.get(query.query_id, {}), "text": query.text})
        except (AttributeError, IndexError, KeyError, ValueError) as error:
            where = f"query {query.query_id!r}: {error}"
            raise UsageError(f"phrase {section.phrase!r} cannot be filled for {where}") from None


def _dev(task: str, data: str, query_ids: list[str]) -> list[str]:
    """Return the dev queries that the task has, or else CRUMB's share of all."""
    with suppress(EmptySplit):
        return [query.query_id for query in environments.load(task, data or None, "dev").queries]
    with suppress(EmptySplit):
        return DevSplit(_SEED, min(_DEV[0], _DEV[1] / len(query_ids))).choose(query_ids, "dev")
    return []


def _by_parent(passages: Corpus) -> dict[str, list[str]]:
    """Return parent -> its passages, in order; a whole document is a passage of itself."""
    found: dict[str, list[str]] = {}
    for passage in passages.stream():
        found.setdefault(passage.parent or passage.doc_id, []).append(passage.doc_id)
    return found


def compare_passages(documents: Corpus, passages: Corpus, limit: int = LIMIT) -> list[dict[str, Any]]:
    """Cut whole documents as CRUMB's paper says, and compare with its passages: a row for each way in which they agree.

    A row is {"what", "passages", "share", "example"}: passages that were released, their share of all, a document.
    """
    released, found, examples = _by_parent(passages), Counter[str](), dict[str, str]()
    for document in documents.stream():
        there = [passages[doc_id].text for doc_id in released.get(document.doc_id, ())]
        made = chunks(document.text, bert_tokens(), limit)
        what = _compare(made, there)
        found[what] += len(there) or len(made)
        examples.setdefault(what, document.doc_id)
    rows = ((what, many, many / found.total(), examples[what]) for what, many in found.most_common())
    return [dict(zip(("what", "passages", "share", "example"), row, strict=True)) for row in rows]


def _compare(made: list[str], there: list[str]) -> str:
    if not there:
        return "no passages in the release"
    if made == there:
        return "equal"
    if [one.split() for one in made] == [one.split() for one in there]:
        return "equal but for white space"
    # Headings are said again in each passage.
    bodies = [re.sub(r"(?m)^#.*$", "", "\n".join(texts)).split() for texts in (made, there)]
    return "same text, cut elsewhere" if bodies[0] == bodies[1] else "other text"


def compare_labels(environment: Environment) -> tuple[int, int]:
    """Return how many judgements of passages are those that their documents hand down, and how many there are in all.

    `environment` is a task of CRUMB that judges both, "document" and "passage".
    """
    passages = _by_parent(environment.documents)
    equal = every = 0
    for query_id, grades in environment.judgements["document"].qrels.items():
        made = {(one, grade) for doc_id, grade in grades.items() for one in passages.get(doc_id, ())}
        there = set(environment.judgements["passage"].qrels[query_id].items())
        equal, every = equal + len(made & there), every + len(made | there)
    return equal, every
