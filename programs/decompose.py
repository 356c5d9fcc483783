"""Split a request into sub-queries, search for each, fuse the lists; made for requests that combine
sets.

OBLIQ-Bench (related work) points to ReDI (Zhong et al. 2026, arXiv:2509.06544): sub-queries, each
with a reading of its meaning, searched in turn and fused. CRUMB (section 5.2.4) finds that
retrievers don't grasp "and", "or" and "not"; so each sub-query has a role, and the fusion does the
set operation, on passages if a corpus has them. Left out: ReDI's trained models and its
readings in the searches; here a reading goes into the trace.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import dspy
import pydantic

from sextant.programs.base import Program
from sextant.programs.passage_reading import search
from sextant.programs.query_rewriting import InformationRequest
from sextant.tools.errors import require_at_least
from sextant.tools.models import offline_rules as rules
from sextant.tools.models.answers.checks import (
    AnswerCheck,
    InvalidAnswer,
    Outputs,
    state_most_items,
)
from sextant.tools.models.prompting import ask, predict
from sextant.tools.records import Query, Submission
from sextant.tools.retrievers.fusion import reciprocal_rank_fusion

Role = Literal["must", "may", "not"]


class SubQuery(pydantic.BaseModel):
    """One condition of a request, to be searched for by itself."""

    search: str = pydantic.Field(description="a search text for this condition alone")
    reading: str = pydantic.Field(
        description="what kind of condition it is, and how it is to be understood"
    )
    role: Role = pydantic.Field(
        description="must: every find meets it; may: it speaks for a find; not: no find meets it",
    )
    weight: float = pydantic.Field(
        default=1.0, description="how much it counts beside the others, from 0 to 1"
    )

    @pydantic.model_validator(mode="before")
    @classmethod
    def fill_in(cls, value: Any) -> Any:
        """Take a condition without a role for one that may be met; the schema asks for a role."""
        return {"reading": "", "role": "may", **value} if isinstance(value, dict) else value


class SplitRequest(InformationRequest):
    """Split a request for documents into the conditions that it sets, each with a search of its own.

    A condition is something that a document can meet or fail by itself. Conditions that all have to hold
    have the role must; alternatives, of which one is enough, and hints have the role may; what is shut out
    has the role not. The search of a condition that is shut out says what is unwanted, without any "not":
    whatever it finds is put last. Repeat in each search what it needs to be understood alone, such as the
    kind of thing that is looked for. Read ambiguous words by the whole request, and say how you read them. A
    request with a single condition stays in one piece.
    """

    most: int = dspy.InputField(
        desc="how many conditions there may be; join the least important ones"
    )
    subqueries: list[SubQuery] = dspy.OutputField(desc="the conditions, the most telling first")


class Decompose(Program):
    """Split the query into conditions, search for each, fuse by their roles: must, may, not."""

    offline: ClassVar = {"subqueries": rules.split_clauses}

    parts: int = 5  # the most sub-queries
    per_search: int = 1000  # documents of each
    # How many of the first documents for a condition that is shut out are put last.
    exclude_depth: int = 10

    def __post_init__(self) -> None:
        require_at_least(
            1,
            "decompose",
            parts=self.parts,
            per_search=self.per_search,
        )
        require_at_least(0, "decompose", exclude_depth=self.exclude_depth)
        self.split = predict(SplitRequest, tokens=150 * self.parts)

    def forward(self, query: Query) -> Submission:
        """Return the fused documents of all sub-queries."""
        session = self.toolbox.open(query)
        inputs: dict[str, Any] = {
            "objective": query.objective,
            "description": query.text,
            "most": self.parts,
        }
        whole = SubQuery(search=query.text, reading="", role="must")
        answer = ask(
            self.split,
            _check_searchable,
            state_most_items("subqueries", self.parts),
            fallback={"subqueries": [whole]},
            **inputs,
        )
        subqueries = drop_faults(answer.subqueries, whole)[: self.parts]
        results = []
        stop_reason = "done"
        for hop, subquery in enumerate(subqueries, start=1):
            session.hop = hop
            if (doc_ids := search(session, subquery.search.strip(), self.per_search)) is None:
                stop_reason = (
                    "budget"  # what the other sub-queries found is still a legal submission
                )
                break
            session.note(f"{subquery.role}, weight {subquery.weight:g}: {subquery.reading.strip()}")
            results.append(SubQueryResult(subquery.role, subquery.weight, doc_ids))
        if stop_reason == "done" and not any(result.doc_ids for result in results):
            # No condition has a word of the collection.
            doc_ids = search(session, query.text, self.per_search) or []
            results.append(SubQueryResult("must", 1.0, doc_ids))
        return session.submit(fuse(results, self.exclude_depth)[: self.depth], why=stop_reason)


class SubQueryResult(NamedTuple):
    """The documents of a sub-query's search."""

    role: Role
    weight: float
    doc_ids: Sequence[str]  # best first, none twice


def fuse(results: Sequence[SubQueryResult], exclude_depth: int) -> list[str]:
    """Return the documents of the must and may parts, best first; documents that only a not part found are left out.

    Documents among the first `exclude_depth` of a not part come last; before that, those in more must parts first, then
    by the sum of weight / (60 + rank) over must and may alike, then by doc_id.
    """
    unwanted = {
        doc_id
        for result in results
        if result.role == "not"
        for doc_id in result.doc_ids[:exclude_depth]
    }
    wanted = [result for result in results if result.role != "not"]
    met: Counter[str] = Counter()
    for result in wanted:
        for doc_id in result.doc_ids:
            met[doc_id] += result.role == "must"
    score = reciprocal_rank_fusion(
        [result.doc_ids for result in wanted], [result.weight for result in wanted]
    )
    return sorted(
        score, key=lambda doc_id: (doc_id in unwanted, -met[doc_id], -score[doc_id], doc_id)
    )


def drop_faults(subqueries: Sequence[SubQuery], whole: SubQuery) -> list[SubQuery]:
    """Return the conditions with different search texts, their weights from 0 to 1.

    If they only shut out, `whole` comes before them.
    """
    by_search = dict[str, SubQuery]()
    for subquery in subqueries:
        if search := subquery.search.strip():
            bounded = subquery.model_copy(update={"weight": max(0.0, min(1.0, subquery.weight))})
            by_search.setdefault(search, bounded)
    usable = list(by_search.values())
    if all(subquery.role == "not" for subquery in usable):
        return [whole, *usable]
    return usable


def _require_search(outputs: Outputs) -> None:
    subqueries: list[SubQuery] = outputs["subqueries"]
    if not any(subquery.search.strip() for subquery in subqueries):
        raise InvalidAnswer(
            "empty", "subqueries has no condition with a search text; it needs one at least"
        )


# Checks that a condition has a search text.
_check_searchable = AnswerCheck(
    _require_search,
    {
        "subqueries": {"minItems": 1},
        "search": {"minLength": 1},
        "weight": {"minimum": 0, "maximum": 1},
    },
)
