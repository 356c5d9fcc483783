"""Carry statements of a task about its documents over to the documents that a build made of them.

A build cuts documents, gives them other ids (clean.hash_ids) and leaves some out. So whatever names
a document of the task goes through here: judgements, masks, pools and comparisons.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from sextant.environments.base import Comparison, Environment
from sextant.evals.scoring.metrics import is_pairwise
from sextant.tools.records import Query
from sextant_construction.ingest import digest_id, origin_of
from sextant_construction.pipeline import BuildPipeline

Carry = Callable[
    [str], Collection[str]
]  # a document of the task -> the documents of the build that were made of it
Comparisons = Mapping[str, Sequence[Comparison]]  # by query id


class Unit(NamedTuple):
    """A judged document, as the build has it."""

    name: str  # of the document, or of the parent of `pieces`
    pieces: Sequence[str]  # documents of the build; none where it was left out


class Pieces:
    """The documents of a build, by the documents of the task that they were made of."""

    def __init__(self, build: BuildPipeline) -> None:
        self._hashed = build.recipe.clean.hash_ids
        self._pieces = defaultdict[str, list[str]](list)  # of a document, or of a parent
        self._parents = dict[str, str]()
        for document in build.source.documents.stream():
            doc_id = document.doc_id
            origin = origin_of(doc_id, build.recipe.cut, build.source.separator)
            if self._hashed:
                origin = origin.rpartition(":")[2]  # of a passage, without the parent
            if document.parent:
                self._parents[doc_id] = document.parent
            for name in {origin, document.parent or origin}:
                self._pieces[name].append(doc_id)

    @property
    def have_parents(self) -> bool:
        """Whether documents of the build are passages of others."""
        return bool(self._parents)

    def find(self, doc_id: str) -> Sequence[str]:
        """Return the documents made of a document of the task; none if it was left out."""
        return self.find_unit(doc_id).pieces

    def find_unit(self, judged: str) -> Unit:
        """Return the build's unit for a judged document, or for the parent of passages."""
        name = digest_id(judged) if self._hashed else judged
        pieces = self._pieces.get(name, ())
        if pieces:
            name = self._parents.get(pieces[0], pieces[0])
        return Unit(name, pieces)


def carry_queries(queries: Sequence[Query], hidden: Carry, ranked: Carry) -> list[Query]:
    """Return queries with their masks and pools in the documents of a build.

    `hidden` gives the documents that stand for a masked document, and `ranked` those for a document
    of a pool.
    """

    def carry(doc_ids: Iterable[str], names: Carry) -> frozenset[str]:
        return frozenset(chain.from_iterable(map(names, doc_ids)))

    return [
        replace(
            query,
            excluded=carry(query.excluded, hidden),
            candidates=None if query.candidates is None else carry(query.candidates, ranked),
        )
        for query in queries
    ]


def carry_comparisons(
    build: BuildPipeline, stage: str, comparisons: Comparisons, carry: Carry
) -> dict[str, list[Comparison]]:
    """Return the comparisons whose two documents are a single document each in the build; the
    others are counted.
    """
    carried = dict[str, list[Comparison]]()
    for query_id, pairs in comparisons.items():
        for pair in pairs:
            better = carry(pair.better)
            worse = carry(pair.worse)
            if len(better) == len(worse) == 1 and {*better} != {*worse}:
                carried.setdefault(query_id, []).append(Comparison(pair.label, *better, *worse))
            else:
                name = f"{query_id} {pair.better} {pair.worse}"
                build.drop(stage, name, "comparisons of documents that were cut or left out")
    return carried


def keep_twins(twins: Mapping[str, str], comparisons: Comparisons) -> dict[str, str]:
    """Return the pairs of queries that still have the same comparisons, in sequence."""
    labels = {query_id: [pair.label for pair in pairs] for query_id, pairs in comparisons.items()}
    return {
        query_id: twin
        for query_id, twin in twins.items()
        if query_id in labels and labels[query_id] == labels.get(twin)
    }


def list_metrics(
    environment: Environment,
    comparisons: Comparisons,
    twins: Mapping[str, str],
) -> list[str]:
    """Return the metrics of a task without metrics of comparisons that it has no longer."""
    labels = {pair.label for pairs in comparisons.values() for pair in pairs}
    present = [*labels, *["Win"] * bool(labels), *["Flip"] * bool(twins)]
    return [name for name in environment.metrics if name in present or not is_pairwise(name)]
