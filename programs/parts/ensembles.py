"""Two forms of compiled programs that are more than one set of prompts: an ensemble, and nearest neighbours.

`Ensemble` runs every member on the query, each in a session of its own, and fuses the rankings by reciprocal ranks:
k = 60, as in Cormack, Clarke and Buettcher (SIGIR 2009). `Neighbours` is DSPy's KNNFewShot with two differences: the
demonstrations are made once, when compiling, and not again for every query; and what is near is found by a search
over the training queries with BM25, like any other search here.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import dspy

from programs.parts.compiled import Compiled, Neighbour, apply
from tools.corpus import Corpus
from tools.records import Document, Query, Step, Submission, Trace, total
from tools.retrievers.bm25 import BM25

CONSTANT = 60


def fuse(submissions: Sequence[Submission]) -> Submission:
    """One submission out of several for the same query: the ranking by reciprocal ranks, the traces one after another.

    Equal sums keep the order of the first submission that has the document.
    """
    points: dict[str, float] = defaultdict(float)
    for submission in submissions:
        for rank, doc_id in enumerate(submission.ranking, start=1):
            points[doc_id] += 1 / (CONSTANT + rank)
    first = submissions[0]
    order = sorted(points, key=lambda doc_id: -points[doc_id])  # stable
    trace = Trace(first.trace.query_id)
    for submission in submissions:
        _append(trace, submission.trace)
    ranking = tuple(order[: max(len(submission.ranking) for submission in submissions)])
    usage = total(submission.usage for submission in submissions)
    scores = tuple(points[doc_id] for doc_id in ranking) if any(one.scores for one in submissions) else ()
    return Submission(ranking, trace, first.answer, usage, scores)


def _append(trace: Trace, other: Trace) -> None:
    """Add what happened in another session of the same query; its hops and times go on where these end."""
    last = max((step.hop for step in trace.steps), default=0)
    end = max((step.started + step.seconds for step in trace.steps), default=0.0)
    for step in other.steps:
        row = {name: getattr(step, name) for name in Step.__slots__}
        hop = step.hop + last if step.hop else 0
        trace.steps.append(Step(**row | {"hop": hop, "started": step.started + end}))
    trace.notes += other.notes
    trace.invented_ids += other.invented_ids
    for kind, count in other.unusable.items():
        trace.unusable[kind] = trace.unusable.get(kind, 0) + count
    for doc_id, what in other.followed.items():
        trace.followed.setdefault(doc_id, what)


class Neighbours(dspy.Module):
    """A program whose demonstrations are those of the training queries nearest to the query."""

    def __init__(self, program: Any, neighbours: Sequence[Neighbour], nearest: int) -> None:
        super().__init__()
        self.program = program
        self._neighbours = {neighbour.query_id: neighbour for neighbour in neighbours}
        self._nearest = nearest
        self._index = BM25(Corpus(Document(one.query_id, one.text) for one in neighbours))

    def forward(self, query: Query) -> Submission:
        """The submission of a copy of the program with the query's own demonstrations."""
        program = self.program.deepcopy()
        own = frozenset({query.query_id})  # a training query is not shown its own answer
        near = [self._neighbours[hit.doc_id] for hit in self._index.search(query.text, self._nearest, excluded=own)]
        for name, predictor in program.named_predictors():
            # The nearest last: models give most weight to what stands next to the question.
            predictor.demos = [dict(demo) for one in reversed(near) for demo in one.demos.get(name, ())]
        submission: Submission = program(query=query)
        return submission

    def __deepcopy__(self, memo: Mapping[int, Any]) -> "Neighbours":
        return self


def assemble(compiled: Compiled, program: Any) -> Any:
    """The system that `compiled` describes, made of a fresh `program`."""
    if compiled.members:
        members = [assemble(member, program.deepcopy()) for member in compiled.members]
        return dspy.Ensemble(reduce_fn=fuse).compile(members)
    apply(compiled, program)
    if compiled.neighbours:
        return Neighbours(program, compiled.neighbours, compiled.nearest)
    return program
