"""What BIRCO's Score, Reason and Subtask share: every document of a pool is judged alone, from 0 to 10.

Equal scores are ordered by the retriever `ties` (programs/parts/pool.py). `--instruction none` leaves the objective
empty: the paper's variants without the O.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import dspy

from programs.base import Program
from programs.parts.pool import find_candidates, hand_in
from programs.parts.reading import show_all
from tools.errors import at_least
from tools.models.prompting import ask, within
from tools.records import Query, Submission
from tools.retrievers import Expression
from tools.session import Session

OBJECTIVE = "what the collection is, and what counts as a find; where it is empty, likeness in meaning counts"
QUOTES = "what in the passage shows that it is wanted, word for word; few or none where little does"

Score = Callable[[str], float]


class Pointwise(Program):
    """A program that scores each document of a pool by itself."""

    pooled: ClassVar[bool] = True

    pool: int = 100  # documents of the first search, where a query has no candidates
    read_chars: int = 0  # characters of each document, 0 all
    ties: Expression = Expression("dense")  # the retriever that orders equal scores; "" leaves it to the run's own

    def __post_init__(self) -> None:
        name = type(self).__name__.lower()
        at_least(1, name, pool=self.pool)
        at_least(0, name, read_chars=self.read_chars)

    def forward(self, query: Query) -> Submission:
        """The pool by its scores."""
        session = self.toolbox.open(query)
        pool = find_candidates(session, query, self.pool)
        session.hop = 2
        score = self.scorer(session, {"objective": query.objective, "description": query.text})
        scores = {hit.doc_id: score(hit.doc_id) for hit in pool}
        return hand_in(session, query, pool, scores, self.ties, self.depth)

    def scorer(self, session: Session, asked: dict[str, Any]) -> Score:
        """What gives a document its score; `asked` are the inputs that are the same for all."""
        raise NotImplementedError

    def judge(self, session: Session, predictor: dspy.Predict, doc_id: str, why: str = "", **asked: object) -> float:
        """The score, from 0 to 10, that `predictor` gives one document, shown to it alone.

        It is written down in the trace, with what stands in the answer's field `why`, where one is named.
        """
        passages = show_all(session, predictor, [doc_id], self.read_chars, **asked)
        answer = ask(predictor, within("score", 0, 10), **asked, passages=passages)
        reason = f": {answer[why].strip()}" if why else ""
        session.note(f"{doc_id} {answer.score:g}{reason}")
        score: float = answer.score
        return score
