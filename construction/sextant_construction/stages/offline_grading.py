"""Grading of documents by a query, as a stage of a build; the signature is that of sextant_construction.judge."""

from typing import Any

from sextant.programs.llm_tasks.relevance_judge import HIGHEST, GradePassages
from sextant.tools.text import TermStatistics, content_words
from sextant_construction.stages.stage_program import Inputs, StageQuestion

LEAST = 0.2  # share of a query's words with which a passage has the highest grade, without a model


def grade(inputs: Inputs, statistics: TermStatistics) -> list[dict[str, Any]]:
    """Grade by the share of the query's words that a passage has."""
    query_words = {*content_words(inputs["description"])}
    rows = []
    for passage in inputs["passages"]:
        shared = len(query_words & {*content_words(passage.text)}) / max(1, len(query_words))
        grade = HIGHEST if shared >= LEAST else int(shared > 0)
        rows.append({"id": passage.id, "grade": grade, "reason": "words"})
    return rows


GRADE = StageQuestion(
    GradePassages,
    {"verdicts": grade},
    role="judge",
    rows="verdicts",
)
