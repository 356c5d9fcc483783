"""Compiling the objective, the sentence by which queries describe their task: a model writes drafts,
and the best draft on validation is kept.

After BIRCO, which tried two descriptions of a task on a few judgements and kept the better
(appendix B). No prompt of the program changes: the objective goes into instruction.toml, for
`sextant run --instruction`.
"""

import random
from contextlib import suppress

import dspy

from sextant.optimizers.candidate_evaluator import (
    OBJECTIVE,
    TeleprompterContext,
    TeleprompterResult,
)
from sextant.programs.llm_tasks.objective_writer import WriteObjective, write_objective
from sextant.tools.lenses import get_lens
from sextant.tools.models.answers.checks import UnusableAnswer
from sextant.tools.models.prompting import predict

QUERY = 1200  # characters of a query that are shown

Case = tuple[str, str, str]


def search(job: TeleprompterContext, draft_count: int, case_count: int) -> TeleprompterResult:
    """Have drafts written, each from a few training queries and the drafts before; return the best."""
    study = job.study
    task_objective = study.parts["train"][0].objective
    drafts = [task_objective] if task_objective else []
    programs = [job.student]
    relevance = get_lens(study.training.environment.hints.get("lens", "")).recognise
    predictor = predict(WriteObjective, tokens=600)
    for number in range(draft_count):
        cases = _draw_cases(job, number, case_count)
        with dspy.context(lm=job.inputs.prompter.lm), suppress(UnusableAnswer):
            draft = write_objective(predictor, cases, relevance, drafts)
            drafts.append(draft)
            parameters = {} if draft == task_objective else {OBJECTIVE: draft}
            programs.append(study.instrument(job.inputs.program_to_start(), parameters))
    by_digest = {study.evaluate(program, "validation"): program for program in programs}
    # Of equal drafts the first.
    best = max(by_digest, key=lambda digest: study.mean(digest, "validation"))
    return TeleprompterResult(by_digest[best])


def _draw_cases(job: TeleprompterContext, number: int, most: int) -> list[Case]:
    """Draw training queries; a case is a query, the text of a wanted document, and that of another."""
    queries = job.study.parts["train"]
    generator = random.Random(f"{job.request.seed} {number}")
    cases = []
    for labelled in job.inputs.label(generator.sample(queries, min(len(queries), most))):
        texts = {passage["id"]: passage["text"] for passage in labelled.passages}
        others = [text for doc_id, text in texts.items() if doc_id not in labelled.selected]
        if labelled.selected and others:
            cases.append((labelled.description[:QUERY], texts[labelled.selected[0]], others[0]))
    return cases
