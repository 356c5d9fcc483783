"""Compiling what queries say of their task, their objective: drafts, of which the best on
validation is kept.

After BIRCO, which tried two descriptions of a task on a few judgements and kept the better one
(appendix B). No prompt of the program changes: what is kept goes into instruction.toml, for
`evals.run --instruction`.
"""

import random
from contextlib import suppress

import dspy

from optimizers.candidate_evaluator import OBJECTIVE, TeleprompterContext, TeleprompterResult
from programs.llm_tasks.objective_writer import WriteObjective, write_objective
from tools.lenses import get_lens
from tools.models.answer_checks import UnusableAnswer

QUERY = 1200  # characters of a query that are shown


def search(job: TeleprompterContext) -> TeleprompterResult:
    """Have drafts written, each from a few training queries and beside those before; return the best."""
    study = job.study
    queries = job.study.parts["train"]
    task_objective = queries[0].objective
    relevance = get_lens(study.training.environment.hints.get("lens", "")).recognise
    drafts = [task_objective] if task_objective else []
    programs = [job.student]
    for number in range(job.options["drafts"]):
        drawn = random.Random(f"{job.request.seed} {number}").sample(
            queries, min(len(queries), job.options["cases"])
        )
        cases = [case for example in job.inputs.label(drawn) if (case := _case(example))]
        with dspy.context(lm=job.inputs.prompter.lm), suppress(UnusableAnswer):
            drafts.append(write_objective(dspy.Predict(WriteObjective), cases, relevance, drafts))
            parameters = {OBJECTIVE: drafts[-1]} if drafts[-1] != task_objective else {}
            programs.append(study.instrument(job.inputs.program_to_start(), parameters))
    digests = {study.evaluate(program, "validation")[0].candidate: program for program in programs}
    return TeleprompterResult(
        digests[max(digests, key=lambda digest: study.mean(digest, "validation"))]
    )  # of equal ones the first


def _case(labelled: dspy.Example) -> tuple[str, str, str] | None:
    texts = {passage["id"]: passage["text"] for passage in labelled.passages}
    wrong = [doc_id for doc_id in labelled.ranked if doc_id not in labelled.selected]
    if not (labelled.selected and wrong):
        return None
    return labelled.description[:QUERY], texts[labelled.selected[0]], texts[wrong[0]]
