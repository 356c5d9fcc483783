"""The result of a compilation as data: the candidate that is kept, and its gain.

The candidate that is kept has the highest mean on the validation queries, of the candidates that
were evaluated on all of them. Of equal candidates the program before is kept, because a longer
prompt costs more; then the start of the optimizer, then its own candidate, then the candidate that
used the fewest tokens. The gain is tested on the same queries, paired, and its p is multiplied by
the number of candidates that were tried on any of them (Bonferroni): choosing among many candidates
is itself a way to gain. result_report.py prints it.
"""

import difflib
import json
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

from sextant.evals.scoring.statistics import ALPHA, estimate_mean, holm, run_tests, subtract_columns
from sextant.optimizers.candidate_evaluator import OBJECTIVE, CandidateEvaluator
from sextant.optimizers.evaluation_log import Candidate, Evaluation
from sextant.optimizers.trainset.demonstrations import texts_in
from sextant.programs.compiled import Compiled, Prompt
from sextant.tools.records import JsonMapping, JsonObject, Usage, usage_json

SHORT = 80  # characters of a demonstration's description and of each of its answers in the diff


def choose_candidate(study: CandidateEvaluator) -> Candidate | None:
    """Return the candidate to keep; None if no candidate was evaluated on all validation queries."""

    def rank(candidate: Candidate) -> tuple[float, bool, bool, bool, float, str]:
        digest = candidate.digest
        evaluations = study.evaluations_of(digest, "validation")
        tokens = sum(evaluation.tokens for evaluation in evaluations)
        return (
            round(study.change(digest), 12),
            digest == study.before,
            digest == study.start,
            digest in study.returned,
            -tokens,
            digest,
        )

    complete = []
    for candidate in list(study.candidates.values()):
        if study.is_whole(candidate.digest, "validation"):
            complete.append(candidate)
    return max(
        complete,
        key=rank,
        default=None,
    )


def measure_gain(study: CandidateEvaluator, candidate: Candidate) -> JsonObject:
    """Return the paired difference to the program before, on the candidate's validation queries."""
    before = study.values(study.before, "validation", candidate.digest)
    after = study.values(candidate.digest, "validation", candidate.digest)
    # The program before is compared with, not chosen. Candidates that were given up after a part of
    # the queries count, too.
    tried = [digest for digest in study.candidates if study.evaluations_of(digest, "validation")]
    chosen_from = len(tried) - 1
    [result] = run_tests([[subtract_columns(before, after)]], max(1, chosen_from))
    return {
        **result._asdict(),
        "candidates": chosen_from,
        "p_corrected": result.p_holm,
        "significant": result.difference > 0 and result.p_holm < ALPHA,
    }


def measure_candidate(
    study: CandidateEvaluator,
    digest: str,
    part_name: str,
    like: str = "",
) -> JsonObject:
    """Return the mean of a candidate's values, its 95 % interval, and the number of queries.

    `like` is another candidate, on whose queries of the part the values are taken.
    """
    values = study.values(digest, part_name, like)
    summary: JsonObject = dict.fromkeys(("mean", "low", "high"))
    if values:
        summary = estimate_mean([values])._asdict()
    return {**summary, "queries": len(values)}


def list_tasks(study: CandidateEvaluator, candidate: Candidate) -> list[JsonObject]:
    """Return a row for each task with the gain on its validation queries; none for a single task."""
    before = study.evaluations_of(study.before, "validation", candidate.digest)
    after = study.evaluations_of(candidate.digest, "validation", candidate.digest)
    rows = []
    contrasts = []
    for task in dict.fromkeys(study.tasks.values()):
        old = _values_of_task(study, before, task)
        new = _values_of_task(study, after, task)
        # Without values, all queries of the task are in the candidate's own fold.
        if old:
            rows.append({"task": task, "baseline_mean": fmean(old), "mean": fmean(new)})
            contrasts.append([subtract_columns(old, new)])
    if len(rows) < 2:
        return []
    results = run_tests(contrasts)
    return [row | result._asdict() for row, result in zip(rows, results, strict=True)]


def _values_of_task(
    study: CandidateEvaluator, evaluations: Iterable[Evaluation], task: str
) -> list[float]:
    return [
        evaluation.value for evaluation in evaluations if study.tasks[evaluation.query_id] == task
    ]


def list_held_out(compared: Sequence[JsonMapping], study: CandidateEvaluator) -> list[JsonObject]:
    """Return a row for each task with the gain on its test queries, its p corrected by Holm for all
    these tasks.
    """
    rows = []
    for comparison in compared:
        task = comparison["task"]
        row = {**comparison["comparisons"][-1], "task": task}
        rows.append({**row, "compiled_on": task in study.tasks.values()})
    tested = [row for row in rows if row["wins"] or row["losses"]]
    for row, p in zip(tested, holm([row["p"] for row in tested]), strict=True):
        row["p_holm"] = p
    return rows


def list_candidates(study: CandidateEvaluator) -> list[JsonObject]:
    """Return a row for each candidate: its scores and its cost, the best on validation first."""
    rows = []
    for candidate in study.candidates.values():
        evaluations = study.evaluations_of(candidate.digest, "train")
        evaluations += study.evaluations_of(candidate.digest, "validation")
        # A candidate without evaluations is a teacher's or a sampled state.
        if evaluations:
            rows.append(_candidate_row(study, candidate, evaluations))
    return sorted(rows, key=_order_of_candidates)


def _candidate_row(
    study: CandidateEvaluator, candidate: Candidate, evaluations: Sequence[Evaluation]
) -> JsonObject:
    digest = candidate.digest
    is_whole = study.is_whole(digest, "validation")
    prices = [evaluation.list_usd for evaluation in evaluations]
    known_prices = [price for price in prices if price is not None]
    row: JsonObject = {
        "candidate": digest,
        "before": digest == study.before,
        "start": digest == study.start,
        "returned": digest in study.returned,
    }
    for part_name in study.parts:
        row[part_name] = measure_candidate(study, digest, part_name)
    row |= {
        "whole": is_whole,
        "demos": sum(len(prompt.demos) for prompt in candidate.prompts.values()),
        "parameters": dict(candidate.parameters),
        "calls": sum(evaluation.calls for evaluation in evaluations),
        "tokens": sum(evaluation.tokens for evaluation in evaluations),
        "list_usd": sum(known_prices) if len(known_prices) == len(prices) else None,
        "failed": sum(evaluation.error is not None for evaluation in evaluations),
    }
    if study.fold_of and is_whole:
        row["change"] = study.change(digest)
    return row


def _order_of_candidates(row: JsonMapping) -> tuple[Any, ...]:
    # Candidates with all validation queries come first: a mean over three queries is no rival of a
    # mean over fifty. Equal ones are in the order of their digests, because the order in which they
    # came may depend on which thread was first.
    return (
        not row["whole"],
        -row.get("change", 0.0),
        -(row["validation"]["mean"] or 0.0),
        -(row["train"]["mean"] or 0.0),
        row["candidate"],
    )


def summarise(
    study: CandidateEvaluator,
    candidate: Candidate,
    usage: Usage,
    stopped: str,
) -> JsonObject:
    """Return the content of learnt.json; `stopped` is the reason for an early end.

    "leaks", the texts of judged documents and queries that prompts repeat, are added afterwards.
    """
    digest = candidate.digest
    summary: JsonObject = {
        "kept": {study.start: "start", study.before: "before"}.get(digest, "compiled"),
        "candidate": digest,
        "before": measure_candidate(study, study.before, "validation", digest),
        "after": measure_candidate(study, digest, "validation"),
        "gain": measure_gain(study, candidate),
    }
    if task_rows := list_tasks(study, candidate):
        summary["tasks"] = task_rows
    candidates = list_candidates(study)
    # The sort is stable, so the kept candidate is the first also of equally good ones.
    candidates.sort(key=lambda row: bool(row["candidate"] != digest))
    return summary | {
        "candidates": candidates,
        "changes": _changed_prompts(study.candidates[study.before], candidate),
        "parameters": _changed_parameters(study, candidate),
        "moved": _moved(study, candidate),
        "leaks": [],
        "usage": usage_json(usage),
        "stopped": stopped,
    }


def _changed_prompts(before: Candidate, after: Candidate) -> dict[str, str]:
    """Return the differences of prompts as text, by predictor; none if the predictors differ."""
    if before.prompts.keys() != after.prompts.keys():
        return {}
    changes = {}
    for name, prompt in after.prompts.items():
        old = _lines(before.prompts[name])
        new = _lines(prompt)
        diff = difflib.unified_diff(
            old,
            new,
            "before",
            "after",
            lineterm="",
            n=1,
        )
        if difference := "\n".join(diff):
            changes[name] = difference
    return changes


def _changed_parameters(study: CandidateEvaluator, candidate: Candidate) -> dict[str, list[Any]]:
    """Return [old, new] of each parameter that the candidate changes."""
    objective = study.training.train[0].objective
    before_values = {OBJECTIVE: objective, **study.candidates[study.before].parameters}
    changes = {}
    for name, value in candidate.parameters.items():
        if name in before_values and before_values[name] != value:
            changes[name] = [before_values[name], value]
    return changes


def _lines(prompt: Prompt) -> list[str]:
    outputs = []
    for field in prompt.fields:
        if field.startswith("out "):
            name = field.split()[1]
            outputs.append(name.rstrip(":"))
    lines = prompt.instructions.splitlines()
    for name, text in prompt.descriptions.items():
        lines.append(f"{name}: {shorten(text)}")
    for demo in prompt.demos:
        description = shorten(demo.get("description", ""))
        answers = []
        for name in outputs:
            if name in demo:
                answers.append(f"{name} = {shorten(demo[name])}")
        joined = ", ".join(answers)
        lines.append(f"demonstration: {description} -> {joined}")
    return lines


def shorten(value: Any) -> str:
    """Return a value on a line, with `SHORT` characters at most before an ellipsis."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    line = " ".join(text.split())
    return line if len(line) <= SHORT else f"{line[:SHORT]}..."


def _moved(study: CandidateEvaluator, candidate: Candidate) -> list[JsonObject]:
    """Return the queries whose value changed, the largest gain first."""
    before = study.evaluations_of(study.before, "validation", candidate.digest)
    after = study.evaluations_of(candidate.digest, "validation")
    rows = []
    for old, new in zip(before, after, strict=True):
        difference = new.value - old.value
        if abs(difference) > 1e-12:
            row = {
                "query_id": old.query_id,
                "before": old.value,
                "after": new.value,
            }
            rows.append({**row, "difference": difference})
    return sorted(rows, key=lambda row: (-row["difference"], row["query_id"]))


def list_texts(compiled: Compiled) -> dict[str, str]:
    """Return the texts of a compiled program by name, for the search for leaks."""
    texts: dict[str, str] = {}
    demonstrations: dict[str, Sequence[Any]] = {}
    for name, prompt in compiled.prompts.items():
        descriptions = prompt.descriptions.values()
        instructions = [prompt.instructions, *descriptions]
        texts[f"{name} instructions"] = "\n".join(instructions)
        demonstrations[f"{name} demo"] = prompt.demos
    for neighbour in compiled.neighbours:
        query_id = neighbour.query_id
        for name, demos in neighbour.demos.items():
            demonstrations[f"{name} of {query_id}, demo"] = demos
    for piece, demos in demonstrations.items():
        for demo_number, demo in enumerate(demos, start=1):
            without_objective = {**demo, "objective": ""}
            demo_texts = texts_in(without_objective)
            texts[f"{piece} {demo_number}"] = "\n".join(demo_texts)
    for member_number, member in enumerate(compiled.members, start=1):
        member_texts = list_texts(member)
        for name, text in member_texts.items():
            texts[f"member {member_number}, {name}"] = text
    return texts
