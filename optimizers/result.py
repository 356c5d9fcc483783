"""What came of a compilation: which candidate is kept, what it gained, and the file that a run takes up.

Kept is the candidate with the highest mean on the validation queries, of those that were evaluated on all of them, by
whatever optimizer they came; of equal ones the program as it was before, because a longer prompt costs more; then what
the optimizer returned, then the one that used the fewest tokens. The gain is tested on the same queries, paired, and
its p is multiplied by how many candidates were tried on any of them (Bonferroni): choosing among many is itself a way
to gain on few queries. What a compiled program is worth is said by queries that it was not chosen by, which is what
--held-out is for.
"""

import difflib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from evals.measuring.stats import bootstrap_mean, paired
from optimizers.books import Candidate, mean_value
from optimizers.study import Study
from programs.compiled import Compiled, Prompt
from tools.records import Usage, usage_json

SIGNIFICANT = 0.05
SHORT = 80  # characters of a demonstration's description and of each of its answers in the diff


def choose(study: Study) -> Candidate | None:
    """Return the candidate to keep; None where not even the program before was evaluated on all validation queries."""

    def rank(candidate: Candidate) -> tuple[float, bool, bool, float, str]:
        digest, found = candidate.digest, study.of(candidate.digest, "validation")
        tokens = sum(evaluation.tokens for evaluation in found)
        return round(mean_value(found), 12), digest == study.before, digest == study.returned, -tokens, digest

    whole = [one for one in list(study.candidates.values()) if study.is_whole(one.digest, "validation")]
    return max(whole, key=rank, default=None)


def measure_gain(study: Study, candidate: Candidate) -> dict[str, Any]:
    """Return the paired difference of a candidate to the program before, on the validation queries."""
    before, after = (
        [evaluation.value for evaluation in study.of(digest, "validation")]
        for digest in (study.before, candidate.digest)
    )
    found = paired(before, after)._asdict()
    # The program before is compared with, not chosen. Others count that were given up after a part of the queries.
    chosen_from = sum(bool(study.of(digest, "validation")) for digest in study.candidates) - 1
    corrected = min(1.0, found["p"] * max(1, chosen_from))
    significant = found["difference"] > 0 and corrected < SIGNIFICANT
    return {**found, "candidates": chosen_from, "p_corrected": corrected, "significant": significant}


def measure(study: Study, digest: str, part: str) -> dict[str, Any]:
    """Return the mean of a candidate's values on a part, with its interval, and how many queries it is over."""
    values = [evaluation.value for evaluation in study.of(digest, part)]
    if not values:
        return {"mean": None, "low": None, "high": None, "queries": 0}
    return {**bootstrap_mean(values)._asdict(), "queries": len(values)}


def list_candidates(study: Study) -> list[dict[str, Any]]:
    """Return every candidate with its scores and what its evaluations used, the best on validation first."""
    rows: list[dict[str, Any]] = []
    for digest, candidate in study.candidates.items():
        evaluations = study.of(digest, "train") + study.of(digest, "validation")
        if not evaluations:
            continue  # a teacher's, or a sampled one's
        prices = [evaluation.list_usd for evaluation in evaluations]
        rows.append(
            {
                "candidate": digest,
                "before": digest == study.before,
                "returned": digest == study.returned,
                "train": measure(study, digest, "train"),
                "validation": measure(study, digest, "validation"),
                "whole": study.is_whole(digest, "validation"),
                "demos": sum(len(prompt.demos) for prompt in candidate.prompts.values()),
                "parameters": dict(candidate.parameters),
                "calls": sum(evaluation.calls for evaluation in evaluations),
                "tokens": sum(evaluation.tokens for evaluation in evaluations),
                "list_usd": None if None in prices else sum(price for price in prices if price is not None),
                "failed": sum(evaluation.error is not None for evaluation in evaluations),
            }
        )

    def best_first(row: Mapping[str, Any]) -> tuple[bool, float, float, str]:
        # What was evaluated on all validation queries first: a mean over three queries is no rival of one over fifty.
        # Of equal ones by the digest: the order in which they came may depend on which thread was first.
        train, validation = (row[part]["mean"] or 0.0 for part in ("train", "validation"))
        return not row["whole"], -validation, -train, row["candidate"]

    return sorted(rows, key=best_first)


def _diff(before: Prompt, after: Prompt) -> str:
    """Compare two prompts: a unified diff, demonstrations in a line each; "" where they are the same."""
    return "\n".join(difflib.unified_diff(_lines(before), _lines(after), "before", "after", lineterm="", n=1))


def _lines(prompt: Prompt) -> list[str]:
    outputs = [field.split()[1].rstrip(":") for field in prompt.fields if field.startswith("out ")]
    lines = prompt.instructions.splitlines()
    for demo in prompt.demos:
        answers = ", ".join(f"{name} = {_short(demo[name])}" for name in outputs if name in demo)
        lines.append(f"demonstration: {_short(demo.get('description', ''))} -> {answers}")
    return lines


def _short(value: Any) -> str:
    text = " ".join((value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)).split())
    return text if len(text) <= SHORT else f"{text[:SHORT]}..."


def _moved(study: Study, candidate: Candidate) -> list[dict[str, Any]]:
    pairs = zip(study.of(study.before, "validation"), study.of(candidate.digest, "validation"), strict=True)
    rows: list[dict[str, Any]] = [
        {"query_id": old.query_id, "before": old.value, "after": new.value, "difference": new.value - old.value}
        for old, new in pairs
        if abs(new.value - old.value) > 1e-12
    ]
    return sorted(rows, key=lambda row: (-row["difference"], row["query_id"]))


def summarise(
    study: Study, candidate: Candidate, leaks: Sequence[Mapping[str, Any]], usage: Usage, stopped: str
) -> dict[str, Any]:
    """Return what is shown, and kept as learnt.json; `stopped` is why it ended early, if it did."""
    first = study.candidates[study.before]
    same = candidate.prompts.keys() == first.prompts.keys()
    diffs = {name: _diff(first.prompts[name], prompt) for name, prompt in candidate.prompts.items() if same}
    values = {name: [value, candidate.parameters.get(name, value)] for name, value in first.parameters.items()}
    return {
        "kept": "before" if candidate.digest == study.before else "compiled",
        "candidate": candidate.digest,
        "before": measure(study, study.before, "validation"),
        "after": measure(study, candidate.digest, "validation"),
        "gain": measure_gain(study, candidate),
        # Stable, so the one that is kept is the first also of those that are as good.
        "candidates": sorted(list_candidates(study), key=lambda row: bool(row["candidate"] != candidate.digest)),
        "changes": {name: diff for name, diff in diffs.items() if diff},
        "parameters": {name: pair for name, pair in values.items() if pair[0] != pair[1]},
        "moved": _moved(study, candidate),
        "leaks": list(leaks),
        "usage": usage_json(usage),
        "stopped": stopped,
    }


def list_texts(found: Compiled) -> dict[str, str]:
    """Return the texts of a compiled program by name, for the search for what leaked."""
    texts = {}
    for name, prompt in found.prompts.items():
        texts[f"{name} instructions"] = prompt.instructions
        for number, demo in enumerate(prompt.demos, start=1):
            texts[f"{name} demo {number}"] = _text(demo)
    for neighbour in found.neighbours:
        for name, demos in neighbour.demos.items():
            for number, demo in enumerate(demos, start=1):
                texts[f"{name} of {neighbour.query_id}, demo {number}"] = _text(demo)
    for place, member in enumerate(found.members, start=1):
        texts |= {f"member {place}, {name}": text for name, text in list_texts(member).items()}
    return texts


def _text(demo: Any) -> str:
    if isinstance(demo, Mapping):
        return "\n".join(_text(value) for name, value in demo.items() if name != "objective")
    if isinstance(demo, list | tuple):
        return "\n".join(map(_text, demo))
    return str(demo)
