"""How likely a task's relevant documents are found by searches of a retriever, and a run's lost ones.

The arithmetic is in evals/scoring/reach.py. A vocabulary is the words of a query; for a run also the
words that its searcher wrote, and those of the texts that it was shown. Retrievers that have a model
search for sentences in place of words. No language model is asked.
"""

import math
import random
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sextant import environments
from sextant.environments.base import Environment
from sextant.evals.run_folder import load_environment
from sextant.evals.run_schemas import Fate
from sextant.evals.running.replay import restore_pool
from sextant.evals.running.resolve import RunRetrievers
from sextant.evals.scoring import scored_run
from sextant.evals.scoring.attribution import fate_at
from sextant.evals.scoring.behaviour import is_surfacing
from sextant.evals.scoring.reach import (
    LIKELY,
    NULL,
    PARTS,
    REACH_FILE,
    SIZES,
    TRIES,
    Reached,
    reach,
    within,
)
from sextant.evals.scoring.statistics import estimate_mean
from sextant.tools import retrievers
from sextant.tools.models.call_limits import Budget
from sextant.tools.models.run_resources import RunResources
from sextant.tools.platform import files
from sextant.tools.records import Hits, JsonMapping, JsonObject, Query
from sextant.tools.retrievers.base import Retriever, Search
from sextant.tools.retrievers.vectors.exact_search import VectorRetriever
from sextant.tools.text import content_words, sentences

KS = (10, 100)  # the first documents that count
PAIR = 2  # words of the searches by which a run's lost documents are told apart
WRITTEN = "query and written"
SHOWN = "query and shown"


class _Document(NamedTuple):
    """A relevant document of a query, or a random one."""

    query_id: str
    unit: str
    is_relevant: bool
    chance: float  # of a search for two words of the largest vocabulary, with its 95 % interval
    low: float
    high: float
    best: str  # the search of that vocabulary that ranks it highest
    rank: int  # in that search; 0 is below 100
    of: int  # relevant documents of its query
    is_lost: bool  # whether it is relevant, and never surfaced in the run
    searches: int  # that the run made
    within: float  # the chance of so many searches


def measure_task(
    task: str,
    data: str | None,
    split: str,
    retriever: str,
    *,
    limit: int | None = None,
    seed: int = 0,
) -> JsonObject:
    """Return the chances of a task's relevant documents, from the words of its queries."""
    environment = environments.load(task, data, split)
    if limit is not None:
        environment = environment.asking(limit=limit)
    return _Measurement(environment, retriever, seed).summary()


def measure_run(path: Path, retriever: str = "", seed: int = 0) -> JsonObject:
    """Return the chances in a run's task, and tell its documents that never surfaced apart by them.

    It is kept in the run folder, unless `retriever` stands for the run's own.
    """
    run = scored_run.read_scored_run(path)
    own = run.config["retriever"]
    retrievers.refuse_user_code(f"{own} {run.config.get('pool')}", "the run")
    environment = load_environment(run.config)
    measured = _Measurement(environment, retriever or own["name"], seed, run).summary()
    if not retriever:
        files.replace(path / REACH_FILE, files.dumps(measured).encode())
    return measured


class _Measurement:
    """The chances in the queries of a task, and of a run if there is one."""

    def __init__(
        self,
        environment: Environment,
        spec: str,
        seed: int,
        run: scored_run.ScoredRun | None = None,
    ) -> None:
        # A retriever that needs a model is refused.
        run_retrievers = RunRetrievers(environment, RunResources(budget=Budget(calls=0)))
        self._retriever: Retriever = run_retrievers.build(retrievers.canonicalize(spec))
        if run and run.config.get("pool"):
            environment = restore_pool(run.config, environment, run_retrievers)
        self._environment = environment
        self._doc_ids = list(environment.documents)
        self._run = run
        self._seed = seed
        judgements = environment.judgements[environment.headline]
        unit_of = judgements.unit_of
        self._units = {
            query.query_id: list(judgements.recalled(query.query_id))
            for query in environment.queries
        }
        self._documents = defaultdict[str, set[str]](set)
        if unit_of:
            for doc_id in self._doc_ids:
                self._documents[unit_of(doc_id)].add(doc_id)
        # By vocabulary and query: the values of relevant and of random documents.
        self._rows = defaultdict[str, list[tuple[Reached, int]]](list)
        self._whole = {k: [list[float](), list[float]()] for k in KS}
        self._feedback = {k: [list[float](), list[float]()] for k in KS}
        self._seen = list[_Document]()
        parts = [self._retriever, *self._retriever.parts]
        has_model = any(part.loads_weights or part.sends for part in parts)
        self._pieces = "sentences" if has_model else "words"
        for query in environment.queries:
            if self._units[query.query_id]:
                self._take(query)

    def _take(self, query: Query) -> None:
        generator = random.Random(f"{self._seed} {query.query_id}")
        outcome = self._run.outcomes[query.query_id] if self._run else None
        steps = outcome["trace"]["steps"] if outcome else []
        searched = [step for step in steps if is_surfacing(step)]
        units = self._units[query.query_id]
        drawn = self._draw(query, units, generator)
        targets = [
            *(self._documents.get(unit) or {unit} for unit in units),
            *({doc_id} for doc_id in drawn),
        ]

        def find(texts: Sequence[str], k: int) -> list[Hits]:
            searches = [
                Search(text, query.objective, query.excluded, query.candidates) for text in texts
            ]
            return self._retriever.search_many(searches, k)

        self._count(self._whole, find([query.text], max(KS))[0], targets, len(units))
        depth = min(max((len(step["doc_ids"]) for step in searched), default=1), max(KS))
        for name, texts in self._list_vocabularies(query, steps):
            reached = reach(
                self._split(texts),
                targets,
                find,
                len(self._doc_ids),
                generator,
                may_add_up=self._pieces == "words",
            )
            self._rows[name].append((reached, len(units)))
        self._list_documents(query, reached, [*units, *drawn], len(searched), depth)
        if self._run:
            shown = list(_list_shown(steps))
            if shown and isinstance(self._retriever, VectorRetriever):
                search = Search(query.text, query.objective, query.excluded, query.candidates)
                [hits] = self._retriever.search_with(
                    self._retriever.add_feedback(search, shown), [search], max(KS)
                )
                self._count(self._feedback, hits, targets, len(units))

    def _split(self, texts: Sequence[str]) -> list[str]:
        cut = content_words if self._pieces == "words" else sentences
        return list(dict.fromkeys(piece for text in texts for piece in cut(text)))

    def _draw(self, query: Query, units: Collection[str], generator: random.Random) -> list[str]:
        """Return as many random documents as there are relevant ones, none of which is judged relevant."""
        pool = self._doc_ids if query.candidates is None else sorted(query.candidates)
        unit_of = self._environment.judgements[self._environment.headline].unit_of or str
        wanted = {
            place
            for place in generator.sample(range(len(pool)), min(len(pool), 3 * len(units) + 20))
            if pool[place] not in query.excluded and unit_of(pool[place]) not in units
        }
        return [pool[place] for place in sorted(wanted)][: len(units)]

    def _list_vocabularies(
        self, query: Query, steps: Sequence[JsonMapping]
    ) -> Iterator[tuple[str, list[str]]]:
        """Yield the names and texts of vocabularies, from the smallest to the largest."""
        yield "query", [query.text]
        if self._run:
            written = [
                step["argument"] for step in steps if is_surfacing(step) or step["tool"] == "note"
            ]
            yield WRITTEN, [query.text, *written]
            texts = [
                self._environment.documents[doc_id].text[:shown]
                for doc_id, shown in _list_shown(steps).items()
            ]
            yield SHOWN, [query.text, *written, *texts]

    def _count(
        self,
        counts: Mapping[int, Sequence[list[float]]],
        hits: Hits,
        targets: Sequence[Collection[str]],
        relevant: int,
    ) -> None:
        for k, (of_relevant, of_random) in counts.items():
            first = set(hits.doc_ids[:k])
            found = [not first.isdisjoint(target) for target in targets]
            of_relevant.append(sum(found[:relevant]) / relevant)
            if found[relevant:]:
                of_random.append(sum(found[relevant:]) / len(found[relevant:]))

    def _list_documents(
        self, query: Query, reached: Reached, units: Sequence[str], searches: int, depth: int
    ) -> None:
        relevant = len(self._units[query.query_id])
        lost = set[str]()
        if self._run:
            histories = self._run.judged[query.query_id]["relevant"]
            cutoff = self._run.scores["losses"]["cutoff"]
            lost = {row["unit"] for row in histories if fate_at(row, cutoff) is Fate.NEVER_SURFACED}
        k = depth if self._run else KS[0]
        rows = zip(units, reached.chances, reached.best, strict=True)
        for number, (unit, chance, (best, rank)) in enumerate(rows):
            share = chance.share(PAIR, k)
            self._seen.append(
                _Document(
                    query.query_id,
                    unit,
                    number < relevant,
                    share,
                    *chance.interval(PAIR, k),
                    best,
                    rank,
                    relevant,
                    number < relevant and unit in lost,
                    searches,
                    within(share, searches),
                )
            )

    def summary(self) -> JsonObject:
        """Return what was measured: means over queries, relevant documents and random ones."""
        environment = self._environment
        described: JsonObject = {
            "task": environment.task,
            "data": environment.data,
            "split": environment.split,
            "retriever": self._retriever.name,
            "queries": len(self._whole[KS[0]][0]),
            "pieces": self._pieces,
            "whole": _describe_counts(self._whole),
            "vocabularies": [_describe_vocabulary(name, rows) for name, rows in self._rows.items()],
        }
        if self._feedback[KS[0]][0]:
            described["feedback"] = _describe_counts(self._feedback)
        described["documents"] = [document._asdict() for document in self._seen]
        if self._run:
            described |= {
                "run": self._run.name,
                "scores": self._run.scores["digest"],
                **self._split_lost(),
            }
        return described

    def _split_lost(self) -> JsonObject:
        null = [document.within for document in self._seen if not document.is_relevant]
        threshold = float(np.quantile(null, NULL)) if null else 0.0
        queries = sum(map(bool, self._units.values()))
        shares = dict.fromkeys(PARTS, Fraction(0))
        lost: list[JsonObject] = []
        for document in self._seen:
            if document.is_lost:
                part = "not_from_these_words"
                if document.within > threshold:
                    part = "likely" if document.within >= LIKELY else "by_luck"
                shares[part] += Fraction(1, document.of * queries)
                lost.append({**document._asdict(), "part": part})
        return {
            "threshold": threshold,
            "never_surfaced": {name: float(share) for name, share in shares.items()},
            "lost": lost,
        }


def _list_shown(steps: Sequence[JsonMapping]) -> dict[str, int]:
    """Return the documents that a model was shown, with the most characters of each."""
    shown: dict[str, int] = {}
    for step in steps:
        for doc_id, characters in zip(step["doc_ids"], step.get("shown", ()), strict=False):
            if characters:
                shown[doc_id] = max(characters, shown.get(doc_id, 0))
    return shown


def _describe_counts(counts: Mapping[int, Sequence[list[float]]]) -> JsonObject:
    return {
        str(k): {"relevant": _describe(of_relevant), "random": _describe(of_random)}
        for k, (of_relevant, of_random) in counts.items()
    }


def _describe(values: Sequence[float]) -> JsonObject:
    return dict(estimate_mean([list(values)])._asdict()) if values else {}


def _describe_vocabulary(name: str, rows: Sequence[tuple[Reached, int]]) -> JsonObject:
    sizes = {}
    for size in SIZES:
        sizes[str(size)] = {
            "searches": sum(len(reached.chances[0].ranks[size]) for reached, _ in rows),
            "exact": all(reached.chances[0].is_exact[size] for reached, _ in rows),
            **{str(k): _compare(rows, partial(_chance_of_search, size=size, k=k)) for k in KS},
        }
    curve = {}
    for tries in TRIES:
        curve[str(tries)] = {
            str(k): _compare(rows, partial(_chance_of_tries, tries=tries, k=k)) for k in KS
        }
    best = {str(k): _compare(rows, partial(_is_best_among, k=k)) for k in KS}
    return {
        "name": name,
        "adds_up": sum(reached.adds_up for reached, _ in rows),
        "sizes": sizes,
        "curve": curve,
        "best": best,
    }


def _chance_of_search(reached: Reached, place: int, *, size: int, k: int) -> float:
    return reached.chances[place].share(size, k)


def _chance_of_tries(reached: Reached, place: int, *, tries: int, k: int) -> float:
    return within(reached.chances[place].share(PAIR, k), tries)


def _is_best_among(reached: Reached, place: int, *, k: int) -> float:
    return float(0 < reached.best[place][1] <= k)


def _compare(
    rows: Sequence[tuple[Reached, int]], value: Callable[[Reached, int], float]
) -> JsonObject:
    """Return the means of a value of relevant and of random documents, over queries."""
    means: dict[str, list[float]] = {"relevant": [], "random": []}
    for reached, relevant in rows:
        values = [value(reached, place) for place in range(len(reached.chances))]
        for name, part in (("relevant", values[:relevant]), ("random", values[relevant:])):
            if part:
                means[name].append(math.fsum(part) / len(part))
    return {name: _describe(part) for name, part in means.items()}
