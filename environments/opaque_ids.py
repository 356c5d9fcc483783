"""Ids that tell nothing: some releases name a document after what it is, or after its query.

MultiConIR's documents are called 1-Positive and 1-HN3, and the two sides of a pair in ArguAna share
a name, so that a program which reads neither query nor text could rank them. Such a task is loaded
with other ids, drawn by a hash, and with its documents in the order of these. Everything that a
program or a model may see has them; run files and exports have those of the release (`reveal`).

Ids of queries stay as they are: nothing that is left refers to them.
"""

import dataclasses
import hashlib
import math
import random
import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import chain
from statistics import fmean, variance
from typing import Any, NamedTuple

from sextant.environments.base import Comparison, Environment, Judgements
from sextant.tools.corpus import Corpus
from sextant.tools.platform import files
from sextant.tools.platform.number_format import plural
from sextant.tools.records import JsonObject, Query

NOTE = (
    "programs see ids of ours, since those of the release tell which documents are relevant; "
    "run.trec and exports have the release's"
)
# Irrelevant documents that are compared with the relevant ones of a query, where it has no pool
_SAMPLE = 500
# A ranker tells something if its mean lies so many standard errors above chance, and so far.
_ERRORS = 4.0
_LEAST = 0.6
_TOKEN = re.compile(r"\d+|[^\W\d_]+")
# Without vowels, so that no word comes of them; 30 ** 6 ids are 7 * 10 ** 8
_LETTERS = "0123456789bcdfghjkmnpqrstvwxyz"
_LENGTH = 6
_OPAQUE_ID = re.compile(rf"\bd[{_LETTERS}]{{{_LENGTH},}}\b")


def hide_ids(environment: Environment) -> Environment:
    """Return the environment with other ids of documents, in an order that tells nothing."""
    documents = environment.documents
    ids = set(documents.doc_ids)
    for judgements in environment.judgements.values():
        ids.update(*judgements.qrels.values(), *(judgements.binary or {}).values())
        if judgements.unit_of:
            ids.update(map(judgements.unit_of, documents))
    own_ids = _draw_ids(ids, environment.task)
    release_ids = {own_id: doc_id for doc_id, own_id in own_ids.items()}

    def rename(judgements: Judgements) -> Judgements:
        unit_of = judgements.unit_of
        renamed = judgements.changed(
            lambda qrels: {
                query_id: {own_ids[doc_id]: grade for doc_id, grade in grades.items()}
                for query_id, grades in qrels.items()
            }
        )
        if unit_of is None:
            return renamed
        return renamed._replace(unit_of=lambda doc_id: own_ids[unit_of(release_ids[doc_id])])

    def rename_query(query: Query) -> Query:
        pool = query.candidates
        return dataclasses.replace(
            query,
            excluded=frozenset(own_ids[doc_id] for doc_id in query.excluded & own_ids.keys()),
            candidates=None if pool is None else frozenset(map(own_ids.__getitem__, pool)),
        )

    return dataclasses.replace(
        environment,
        documents=Corpus(
            sorted(
                (
                    dataclasses.replace(
                        document,
                        doc_id=own_ids[document.doc_id],
                        parent=own_ids.get(document.parent, ""),
                    )
                    for document in documents.stream()
                ),
                key=lambda document: document.doc_id,
            )
        ),
        queries=tuple(map(rename_query, environment.queries)),
        judgements={name: rename(each) for name, each in environment.judgements.items()},
        comparisons={
            query_id: tuple(
                Comparison(pair.label, own_ids[pair.better], own_ids[pair.worse]) for pair in pairs
            )
            for query_id, pairs in environment.comparisons.items()
        },
        release_ids=release_ids,
        released=environment,
        notes=(*environment.notes, NOTE),
    )


def _draw_ids(doc_ids: Collection[str], seed: str) -> dict[str, str]:
    """Return another id for each id, from a hash: the same on every machine, and another in the
    corpus of another split.
    """
    letters = {}
    for doc_id in doc_ids:
        digest = hashlib.sha256(f"{seed} {doc_id}".encode("utf-8", "surrogatepass")).digest()
        letters[doc_id] = "d" + "".join(_LETTERS[byte % len(_LETTERS)] for byte in digest)
    length = 1 + _LENGTH
    while len({text[:length] for text in letters.values()}) < len(letters):
        length += 1
    return {doc_id: text[:length] for doc_id, text in letters.items()}


def reveal(row: Any, release_ids: Mapping[str, str]) -> Any:
    """Return JSON with the ids of the release in place of ours, in texts, too."""
    if not release_ids:
        return row

    def name(match: re.Match[str]) -> str:
        release_id = release_ids.get(match[0])
        return match[0] if release_id is None else files.dumps(release_id)[1:-1]

    return files.loads(_OPAQUE_ID.sub(name, files.dumps(row)))


def conceal(outcome: JsonObject, own_ids: Mapping[str, str]) -> JsonObject:
    """Return an outcome with our ids in place of the release's; `own_ids` maps release ids to ours."""
    if not own_ids:
        return outcome

    def rename(step: JsonObject) -> JsonObject:
        renamed = step | {"doc_ids": [own_ids[doc_id] for doc_id in step["doc_ids"]]}
        if step["tool"] in ("read", "repeat"):
            renamed["argument"] = own_ids.get(step["argument"], step["argument"])
        return renamed

    trace = outcome["trace"]
    return outcome | {
        "ranking": [own_ids[doc_id] for doc_id in outcome["ranking"]],
        "trace": trace | {"steps": list(map(rename, trace["steps"]))},
    }


class IdLeak(NamedTuple):
    """The best ranker that sees only the ids of a query and of documents."""

    ranker: str
    # Mean over the queries of the chance that a relevant document is before an irrelevant one
    # (the area under the ROC curve): .5 tells nothing, 1 tells all
    area: float
    queries: int  # with answers of their own
    tells: bool

    def __str__(self) -> str:
        answers = plural(self.queries, "answer")
        return f"most is told by {self.ranker}: area {self.area:.2f} over {answers}, chance 0.50"


class _JudgedQuery(NamedTuple):
    query_id: str
    relevant: list[str]
    irrelevant: list[str]
    words: Counter[str]  # words in ids of relevant documents, less those of irrelevant ones


def measure_leak(environment: Environment) -> IdLeak:
    """Return what ids alone tell about relevance, by the best of five rankers.

    They go by parts that the ids of a query and a document share, by the order of ids, by the order
    of the corpus, by places in it that are like the place of the query's id among such ids, and by
    words that are in ids of relevant documents of the other queries.
    """
    ids = environment.documents.doc_ids
    in_corpus = {doc_id: -place for place, doc_id in enumerate(ids)}
    in_order = {doc_id: -place for place, doc_id in enumerate(sorted(ids))}
    query_ids = sorted(environment.queries_by_id, key=_order_naturally)
    asked = {
        query_id: place * len(ids) // len(query_ids) for place, query_id in enumerate(query_ids)
    }
    judged = list(_sample_queries(environment))
    words = sum((query.words for query in judged), Counter[str]())

    rankers: dict[str, Callable[[_JudgedQuery, str], float]] = {
        "parts of ids that queries and documents share": lambda query, doc_id: len(
            _split(query.query_id) & _split(doc_id)
        ),
        "places of ids in their order": lambda _, doc_id: in_order[doc_id],
        "places of documents in the corpus": lambda _, doc_id: in_corpus[doc_id],
        "places of documents like their query's": lambda query, doc_id: (
            -abs(asked[query.query_id] + in_corpus[doc_id])
        ),
        "words in ids": lambda query, doc_id: sum(
            words[word] - query.words[word] for word in _split(doc_id) if word.isalpha()
        ),
    }
    leaks = []
    for name, ranker in rankers.items():
        # Queries with the same answers say the same about them, once.
        areas = defaultdict[frozenset[str], list[float]](list)
        for query in judged:
            areas[frozenset(query.relevant)].append(_measure_area(query, ranker))
        leaks.append(_test(name, list(map(fmean, areas.values()))))
    return max(leaks, key=lambda leak: (leak.tells, leak.area))


def _sample_queries(environment: Environment) -> Iterable[_JudgedQuery]:
    generator = random.Random(0)
    ids = environment.documents.doc_ids
    documents_of = environment.list_documents(chain(*environment.qrels.values()))
    for query in environment.queries:
        grades = environment.qrels.get(query.query_id, {})
        best = max(grades.values(), default=0.0)
        units = [unit for unit, grade in grades.items() if grade == best > 0]
        relevant = list(chain(*(documents_of.get(unit, ()) for unit in units)))
        rows = generator.sample(range(len(ids)), min(_SAMPLE, len(ids)))
        pool = query.candidates
        others = [ids[row] for row in rows] if pool is None else sorted(pool)
        known = {*relevant, *query.excluded}
        irrelevant = [doc_id for doc_id in others if doc_id not in known]
        if relevant and irrelevant:
            words = Counter[str]()
            for doc_ids, share in (
                (relevant, 1 / len(relevant)),
                (irrelevant, -1 / len(irrelevant)),
            ):
                for word in chain(*map(_split, doc_ids)):
                    words[word] += share  # type: ignore[assignment]
            yield _JudgedQuery(query.query_id, relevant, irrelevant, words)


def _order_naturally(identifier: str) -> list[tuple[str, int]]:
    """Return a key that puts q2 before q10."""
    return [
        (part, 0) if not part.isdigit() else ("", int(part)) for part in _TOKEN.findall(identifier)
    ]


def _split(doc_id: str) -> set[str]:
    return set(_TOKEN.findall(doc_id.lower()))


def _measure_area(query: _JudgedQuery, ranker: Callable[[_JudgedQuery, str], float]) -> float:
    below = sorted(ranker(query, doc_id) for doc_id in query.irrelevant)
    wins = 0.0
    for doc_id in query.relevant:
        score = ranker(query, doc_id)
        wins += (bisect_left(below, score) + bisect_right(below, score)) / 2
    return wins / (len(query.relevant) * len(below))


def _test(ranker: str, areas: list[float]) -> IdLeak:
    """Test whether the mean is above chance; a ranker may also be turned round."""
    answers = len(areas)
    if answers < 2:
        return IdLeak(ranker, 0.5, answers, tells=False)
    mean = fmean(areas)
    area = max(mean, 1 - mean) if "places" in ranker else mean
    error = math.sqrt(max(variance(areas), 0.25 / answers) / answers)
    return IdLeak(ranker, area, answers, tells=area >= _LEAST and area - 0.5 > _ERRORS * error)
