"""The candidate that a compilation keeps, and how it differs from the program as it was.

The candidate that is kept has the highest mean on the validation queries, of the candidates that
were evaluated on all of them. Of equal candidates the program before is kept, because a longer
prompt costs more; then the start of the optimizer, then its own candidate. Left out: a test of the
gain, which is that of the runs that follow (comparison_runs.py).
"""

from collections.abc import Iterator
from dataclasses import asdict

from sextant.optimizers.candidate_evaluator import OBJECTIVE, Candidate, CandidateEvaluator
from sextant.tools.records import JsonObject


def choose_candidate(study: CandidateEvaluator) -> Candidate | None:
    """Return the candidate to keep; None if no candidate was evaluated on all validation queries."""

    def rank(candidate: Candidate) -> tuple[float, bool, bool, bool, str]:
        digest = candidate.digest
        return (
            round(study.change(digest), 12),
            digest == study.before,
            digest == study.start,
            digest in study.returned,
            digest,
        )

    complete = [
        candidate
        for candidate in study.candidates.values()
        if study.is_whole(candidate.digest, "validation")
    ]
    return max(complete, key=rank, default=None)


def summarise(study: CandidateEvaluator, candidate: Candidate) -> JsonObject:
    """Return the part of learnt.json that the evaluations tell of the `candidate` that is kept.

    The means are of the objective, over the candidate's validation queries.
    """
    digest = candidate.digest
    before = study.candidates[study.before]
    old_values = {OBJECTIVE: study.training.train[0].objective, **before.parameters}
    # Candidates that were given up after a part of the queries count, too: choosing among many is
    # itself a way to gain.
    tried = [each for each in study.candidates if study.values(each, "validation")]
    return {
        "kept": {study.start: "start", study.before: "before"}.get(digest, "compiled"),
        "candidate": digest,
        "candidates": len(tried) - 1,
        "before": _measure(study, study.before, digest),
        "after": _measure(study, digest, digest),
        "changes": {
            name: {
                "instructions": prompt.instructions,
                "descriptions": prompt.descriptions,
                "demos": len(prompt.demos),
            }
            for name, prompt in candidate.prompts.items()
            if prompt != before.prompts.get(name)
        },
        "parameters": {
            name: [old_values[name], value]
            for name, value in candidate.parameters.items()
            if old_values.get(name, value) != value
        },
    }


def list_candidates(study: CandidateEvaluator) -> Iterator[JsonObject]:
    """Yield a row of candidates.jsonl for each state that was evaluated, with its means so far."""
    for digest, candidate in study.candidates.items():
        means = {
            part_name: _measure(study, digest, digest, part_name)
            for part_name in study.parts
            if study.values(digest, part_name)
        }
        yield {**asdict(candidate), **means}


def _measure(
    study: CandidateEvaluator, digest: str, like: str, part_name: str = "validation"
) -> JsonObject:
    return {
        "mean": study.mean(digest, part_name, like),
        "queries": len(study.values(digest, part_name, like)),
    }
