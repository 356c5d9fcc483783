"""The result of a compilation as data: the candidate that is kept, and its gain.

The candidate that is kept has the highest mean on the validation queries, of the candidates that
were evaluated on all of them. Of equal candidates the program before is kept, because a longer
prompt costs more; then the start of the optimizer, then its own candidate, then the candidate that
used the fewest tokens. The gain is tested on the same queries, paired, and its p is multiplied by
the number of candidates that were tried on any of them (Bonferroni): choosing among many candidates
is itself a way to gain. The runs that follow are compared in comparison_runs.py.
"""

import difflib
import json
from collections.abc import Sequence
from typing import Any

from sextant.evals.scoring.statistics import ALPHA, estimate_mean, run_tests, subtract_columns
from sextant.optimizers.candidate_evaluator import OBJECTIVE, Candidate, CandidateEvaluator
from sextant.optimizers.trainset.demonstrations import texts_in
from sextant.programs.compiled import Compiled, Prompt
from sextant.tools.records import JsonMapping, JsonObject

SHORT = 160  # characters of a field's description and of a demonstration in the diff


def choose_candidate(study: CandidateEvaluator) -> Candidate | None:
    """Return the candidate to keep; None if no candidate was evaluated on all validation queries."""

    def rank(candidate: Candidate) -> tuple[float, bool, bool, bool, float, str]:
        digest = candidate.digest
        scores = study.scores(digest, "validation").values()
        return (
            round(study.change(digest), 12),
            digest == study.before,
            digest == study.start,
            digest in study.returned,
            -sum(score.tokens for score in scores),
            digest,
        )

    complete = [
        candidate
        for candidate in study.candidates.values()
        if study.is_whole(candidate.digest, "validation")
    ]
    return max(complete, key=rank, default=None)


def measure_gain(study: CandidateEvaluator, digest: str) -> JsonObject:
    """Return the paired difference to the program before, on the candidate's validation queries."""
    before = study.values(study.before, "validation", digest)
    after = study.values(digest, "validation")
    # The program before is compared with, not chosen. Candidates that were given up after a part of
    # the queries count, too.
    tried = [tried for tried in study.candidates if study.scores(tried, "validation")]
    chosen_from = len(tried) - 1
    [result] = run_tests([[subtract_columns(before, after)]], max(1, chosen_from))
    return {
        **result._asdict(),
        "candidates": chosen_from,
        "p_corrected": result.p_holm,
        "significant": result.difference > 0 and result.p_holm < ALPHA,
    }


def measure_candidate(
    study: CandidateEvaluator, digest: str, part_name: str, like: str = ""
) -> JsonObject:
    """Return the mean of a candidate's values, its 95 % interval, and the number of queries.

    `like` is another candidate, on whose queries of the part the values are taken.
    """
    values = study.values(digest, part_name, like)
    summary: JsonObject = dict.fromkeys(("mean", "low", "high"))
    if values:
        summary = estimate_mean([values])._asdict()
    return {**summary, "queries": len(values)}


def list_candidates(study: CandidateEvaluator, kept: str) -> list[JsonObject]:
    """Return a row for each candidate with evaluations: the kept one, then the best on validation first.

    A candidate without is a teacher's or a sampled state.
    """
    rows: list[JsonObject] = []
    for digest, candidate in study.candidates.items():
        is_whole = study.is_whole(digest, "validation")
        row: JsonObject = {
            "candidate": digest,
            "before": digest == study.before,
            "start": digest == study.start,
            "returned": digest in study.returned,
            "whole": is_whole,
            "change": study.change(digest) if is_whole else None,
            "validation": measure_candidate(study, digest, "validation"),
            "train": measure_candidate(study, digest, "train"),
            "demos": sum(len(prompt.demos) for prompt in candidate.prompts.values()),
            "parameters": dict(candidate.parameters),
        }
        if row["validation"]["queries"] or row["train"]["queries"]:
            rows.append(row)

    def place(row: JsonMapping) -> tuple[Any, ...]:
        # Candidates with all validation queries come first: a mean over three queries is no rival of
        # a mean over fifty. The order in which equal ones came may depend on which thread was first.
        return (
            row["candidate"] != kept,
            not row["whole"],
            -(row["change"] or 0.0),
            -(row["validation"]["mean"] or 0.0),
            -(row["train"]["mean"] or 0.0),
            row["candidate"],
        )

    return sorted(rows, key=place)


def summarise(study: CandidateEvaluator, candidate: Candidate) -> JsonObject:
    """Return the part of learnt.json that the evaluations tell."""
    digest = candidate.digest
    before = study.candidates[study.before]
    old_values = {OBJECTIVE: study.training.train[0].objective, **before.parameters}
    return {
        "kept": {study.start: "start", study.before: "before"}.get(digest, "compiled"),
        "candidate": digest,
        "before": measure_candidate(study, study.before, "validation", digest),
        "after": measure_candidate(study, digest, "validation"),
        "gain": measure_gain(study, digest),
        "candidates": list_candidates(study, digest),
        "changes": _changed_prompts(before, candidate),
        "parameters": {
            name: [old_values[name], value]
            for name, value in candidate.parameters.items()
            if old_values.get(name, value) != value
        },
    }


def _changed_prompts(before: Candidate, after: Candidate) -> dict[str, str]:
    """Return the differences of prompts as text, by predictor; none if the predictors differ."""
    if before.prompts.keys() != after.prompts.keys():
        return {}
    changes = {}
    for name, prompt in after.prompts.items():
        difference = list(
            difflib.unified_diff(_lines(before.prompts[name]), _lines(prompt), lineterm="", n=1)
        )
        if difference:
            # Without the two lines that name the sides.
            changes[name] = "\n".join(difference[2:])
    return changes


def _lines(prompt: Prompt) -> list[str]:
    lines = prompt.instructions.splitlines()
    for name, text in prompt.descriptions.items():
        lines.append(f"{name}: {shorten(text)}")
    for demo in prompt.demos:
        told = {name: value for name, value in demo.items() if name != "objective"}
        lines.append(f"demonstration: {shorten(told)}")
    return lines


def shorten(value: Any) -> str:
    """Return a value on a line, with `SHORT` characters at most before an ellipsis."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    line = " ".join(text.split())
    return line if len(line) <= SHORT else f"{line[:SHORT]}..."


def list_texts(compiled: Compiled) -> dict[str, str]:
    """Return the texts of a compiled program by name, for the search for leaks."""
    texts: dict[str, str] = {}

    def add(piece: str, demos: Sequence[JsonMapping]) -> None:
        for number, demo in enumerate(demos, start=1):
            texts[f"{piece} {number}"] = "\n".join(texts_in({**demo, "objective": ""}))

    for name, prompt in compiled.prompts.items():
        texts[f"{name} instructions"] = "\n".join(
            [prompt.instructions, *prompt.descriptions.values()]
        )
        add(f"{name} demo", prompt.demos)
    for neighbour in compiled.neighbours:
        for name, demos in neighbour.demos.items():
            add(f"{name} of {neighbour.query_id}, demo", demos)
    for number, member in enumerate(compiled.members, start=1):
        for name, text in list_texts(member).items():
            texts[f"member {number}, {name}"] = text
    return texts
