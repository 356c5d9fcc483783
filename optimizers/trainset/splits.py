"""Divides the dev split of a task for compiling, and makes the handle that an optimizer gets of it.

The queries are put in the order of SHA-256 over "<seed>:<query_id>", as sextant.environments.base.DevSplit
does; the first round(share x queries) are to train on, the rest to choose by; queries that want the
same documents stay together. A dev query is left out when its similarity to some test query
(evals/scoring/text_similarity.py) is `NEAR` or more; no dev query of a bundled miniature comes over
0.22. Code that is given a handle can still call environments.load by itself; the handle only prevents
doing it by mistake.
"""

import bisect
import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sextant.environments import load
from sextant.environments.base import EmptySplit, Environment
from sextant.evals.scoring.statistics import fewest_moved
from sextant.evals.scoring.text_similarity import similarities
from sextant.tools.errors import UsageError
from sextant.tools.platform.number_format import plural
from sextant.tools.records import Query
from sextant.tools.session import SharedOnDeepcopy

NEAR = 0.5  # from this similarity on, a dev query nearly repeats a test query
FOLDS = 4  # if a single division would leave too few queries to choose by

_REMEDY = "use another task, or --data with more queries (another seed divides the same ones)"


@dataclass(frozen=True, slots=True)
class Trainset(SharedOnDeepcopy):
    """The data of a task for an optimizer: the whole corpus, and no test query or judgement."""

    task: str  # the full name; of several, with commas between
    train: tuple[Query, ...]  # to learn from: demos, feedback
    validation: tuple[Query, ...]  # to choose between candidates by
    # Dev of each task, with these queries' judgements alone.
    environments: tuple[Environment, ...] = field(repr=False)
    # Dev queries that are not compiled on, with their similarity to the test query that each repeats.
    left_out: Mapping[str, float]
    digest: str  # eight hex digits: two equal ones are the same division of the same data
    # By query id. With folds, `train` and `validation` have all queries.
    fold_of: Mapping[str, int] = field(default_factory=dict)
    one_need: bool = False  # all queries want the same documents, so that validation says little

    def replacing(self, environments: Sequence[Environment], prefix: str = "") -> "Trainset":
        """Return the training with the queries as these environments have them, after a `prefix`."""
        new = {
            query.query_id: query for environment in environments for query in environment.queries
        }
        return replace(
            self,
            environments=tuple(environments),
            train=tuple(new[prefix + query.query_id] for query in self.train),
            validation=tuple(new[prefix + query.query_id] for query in self.validation),
        )

    @property
    def environment(self) -> Environment:
        """The task's environment; the first task's when there are several."""
        return self.environments[0]


def split_dev(
    task: str,
    data: str | None,
    *,
    limit: int | None = None,
    seed: int = 0,
    share: float = 0.5,
    **load_options: Any,
) -> Trainset:
    """Divide the dev split of `task`, loaded as `how` says; `limit` takes the first two or more by the hash."""
    if not 0 < share < 1:
        raise UsageError(
            f"--train-share {share!r} is not between 0 and 1; 0.5 trains on half of the dev queries"
        )
    try:
        dev = load(task, data, "dev", **load_options)
    except EmptySplit as error:
        remedy = error.remedy or _REMEDY
        raise UsageError(
            f"{error.source} has no dev queries (of {error.queries} in all); {remedy}"
        ) from None
    # Of the test split only the texts outlive this line.
    test = [query.text for query in load(task, data, "test", **load_options).queries]
    alike = similarities([query.text for query in dev.queries], test)
    left_out = {
        query.query_id: round(similarity, 4)
        for query, similarity in zip(dev.queries, alike, strict=True)
        if similarity >= NEAR
    }
    usable = sorted(
        (query for query in dev.queries if query.query_id not in left_out),
        key=lambda query: hashlib.sha256(_encode(f"{seed}:{query.query_id}")).digest(),
    )
    chosen = usable[:limit]
    if len(chosen) < 2:
        raise UsageError(
            f"{dev.task} ({dev.data}) has {plural(len(dev.queries), 'dev query', 'dev queries')}, "
            f"{len(left_out)} of them near repeats of a test query, and {len(chosen)} of the others "
            f"chosen; compiling needs at least 2, one to train on and one to choose by; {_REMEDY}"
        )
    train, validation = _cut(_pieces(chosen, dev), share)
    query_ids = [query.query_id for query in train + validation]
    judged = dev.judgements[dev.headline]
    content = json.dumps([dev.task, dev.fingerprint, seed, share, limit, len(train), query_ids])
    return Trainset(
        task=dev.task,
        train=train,
        validation=validation,
        environments=(dev.asking(query_ids=query_ids),),
        left_out=left_out,
        digest=hashlib.blake2b(_encode(content), digest_size=4).hexdigest(),
        one_need=len({frozenset(judged.relevant(query_id)) for query_id in query_ids}) == 1,
    )


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def merge_trainsets(trainings: Sequence[Trainset]) -> Trainset:
    """Return the trainsets of several tasks as one. A query's id then begins with its task."""
    if len(trainings) == 1:
        return trainings[0]
    named = [
        training.replacing([_with_names(training.environment)], prefix=f"{training.task} ")
        for training in trainings
    ]
    return Trainset(
        task=",".join(training.task for training in trainings),
        train=_take_turns([training.train for training in named]),
        validation=_take_turns([training.validation for training in named]),
        environments=tuple(training.environment for training in named),
        left_out={
            f"{training.task} {query_id}": similarity
            for training in trainings
            for query_id, similarity in training.left_out.items()
        },
        digest="+".join(training.digest for training in trainings),
    )


def _take_turns(queries_of_tasks: Sequence[Sequence[Query]]) -> tuple[Query, ...]:
    # A teleprompter may look at the first few queries alone.
    turns = itertools.zip_longest(*queries_of_tasks)
    return tuple(filter(None, itertools.chain.from_iterable(turns)))


def _with_names(environment: Environment) -> Environment:
    def named(table: Mapping[str, Any]) -> dict[str, Any]:
        return {f"{environment.task} {query_id}": value for query_id, value in table.items()}

    return replace(
        environment,
        queries=tuple(
            replace(query, query_id=f"{environment.task} {query.query_id}")
            for query in environment.queries
        ),
        judgements={name: judged.changed(named) for name, judged in environment.judgements.items()},
        comparisons=named(environment.comparisons),
    )


def make_folds(training: Trainset, folds: int | None) -> Trainset:
    """Return the trainset in `folds`: each is trained on in turn, the others choose. None: by the size of dev."""
    pieces = [
        piece
        for environment in training.environments
        for piece in _pieces(environment.queries, environment)
    ]
    if folds is None:
        few = len(training.validation) < fewest_moved(tests=1) and len(pieces) > 2
        folds = min(FOLDS, len(pieces)) if few else 1
    if folds > len(pieces):
        raise UsageError(
            f"--folds {folds}: {training.task} has {plural(len(pieces), 'dev query', 'dev queries')}, or groups of such"
        )
    if folds == 1:
        return training
    fold_of = {
        query.query_id: number % folds for number, piece in enumerate(pieces) for query in piece
    }
    dev = training.train + training.validation
    return replace(
        training, train=dev, validation=dev, digest=f"{training.digest}/{folds}", fold_of=fold_of
    )


def _pieces(queries: Sequence[Query], environment: Environment) -> list[list[Query]]:
    """Group queries that want the same documents; a piece for each query if all of them do."""
    judgements = environment.judgements[environment.headline]
    # The ten queries of a MultiConIR record have the same relevant documents, or twins.
    wanting: dict[object, list[Query]] = {}
    for query in queries:
        relevant = frozenset(judgements.relevant(query.query_id)) or query.query_id
        wanting.setdefault(relevant, []).append(query)
    return list(wanting.values()) if len(wanting) > 1 else [[query] for query in queries]


def _cut(pieces: list[list[Query]], share: float) -> tuple[tuple[Query, ...], tuple[Query, ...]]:
    sizes = list(itertools.accumulate(map(len, pieces)))
    # At least one piece is on each side.
    cut = min(bisect.bisect_right(sizes, round(share * sizes[-1])) or 1, len(pieces) - 1)
    return tuple(itertools.chain(*pieces[:cut])), tuple(itertools.chain(*pieces[cut:]))
