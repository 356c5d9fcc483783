"""What came of a compilation: which candidate is kept, what it gained, and what a person sees of
it.

Kept is the candidate with the highest mean on the validation queries, of those that were evaluated
on all of them; of equal ones the program as it was before, because a longer prompt costs more; then
what the optimizer started from, then what it returned, then the one that used the fewest tokens.
The gain is tested on the same queries, paired, and its p is multiplied by how many candidates were
tried on any of them (Bonferroni): choosing among many is itself a way to gain.
"""

import difflib
import json
import shlex
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from evals.reporting.comparison_tables import HEADS, lay_out_comparison, metric_rows
from evals.scoring.statistics import bootstrap_mean, holm, paired
from evals.text_tables import TextBlock, TextTable, render_terminal
from optimizers.candidate_evaluator import OBJECTIVE, CandidateEvaluator
from optimizers.evaluation_log import Candidate
from optimizers.teleprompters import TELEPROMPTERS
from optimizers.trainset.demonstrations import texts_in
from programs.compiled import Compiled, Prompt
from tools.cli import print_stdout, strip_control_characters
from tools.number_format import number, queries
from tools.records import Usage, usage_json

SIGNIFICANT = 0.05
SHORT = 80  # characters of a demonstration's description and of each of its answers in the diff
ROWS = 12  # candidates in the table; learnt.json has all
MOVED = 5  # queries with the largest gains, and with the largest losses; learnt.json has all


def choose_candidate(study: CandidateEvaluator) -> Candidate | None:
    """Return the candidate to keep; None where not even the program before was evaluated on all validation queries."""

    def rank(candidate: Candidate) -> tuple[float, bool, bool, bool, float, str]:
        digest = candidate.digest
        evaluations = study.of(candidate.digest, "validation")
        tokens = sum(evaluation.tokens for evaluation in evaluations)
        before = digest == study.before
        start = digest == study.start
        returned = digest in study.returned
        return round(study.change(digest), 12), before, start, returned, -tokens, digest

    complete = [
        candidate
        for candidate in list(study.candidates.values())
        if study.is_whole(candidate.digest, "validation")
    ]
    return max(complete, key=rank, default=None)


def measure_gain(study: CandidateEvaluator, candidate: Candidate) -> dict[str, Any]:
    """Return the paired difference of a candidate to the program before, on the validation queries."""
    both = (
        study.values(digest, "validation", candidate.digest)
        for digest in (study.before, candidate.digest)
    )
    test_result = paired(*both)._asdict()
    # The program before is compared with, not chosen. Others count that were given up after a part
    # of the queries.
    chosen_from = sum(bool(study.of(digest, "validation")) for digest in study.candidates) - 1
    corrected = min(1.0, test_result["p"] * max(1, chosen_from))
    significant = test_result["difference"] > 0 and corrected < SIGNIFICANT
    return {
        **test_result,
        "candidates": chosen_from,
        "p_corrected": corrected,
        "significant": significant,
    }


def measure_candidate(
    study: CandidateEvaluator, digest: str, part_name: str, like: str = ""
) -> dict[str, Any]:
    """Return the mean of a candidate's values on a part, with its interval, and how many queries it is over."""
    values = study.values(digest, part_name, like)
    summary = bootstrap_mean(values)._asdict() if values else dict.fromkeys(("mean", "low", "high"))
    return {**summary, "queries": len(values)}


def list_tasks(study: CandidateEvaluator, candidate: Candidate) -> list[dict[str, Any]]:
    """Return a row a task, where there are several, with the gain on its validation queries."""
    rows = []
    for task in dict.fromkeys(study.tasks.values()):
        both = (
            study.of(digest, "validation", candidate.digest)
            for digest in (study.before, candidate.digest)
        )
        old, new = (
            [
                evaluation.value
                for evaluation in evaluations
                if study.tasks[evaluation.query_id] == task
            ]
            for evaluations in both
        )
        if old:  # else all of the task's queries are of the candidate's own fold
            rows.append(
                {
                    "task": task,
                    "baseline_mean": fmean(old),
                    "mean": fmean(new),
                    **paired(old, new)._asdict(),
                }
            )
    return _adjust(rows) if len(rows) > 1 else []


def list_held_out(
    compared: Sequence[Mapping[str, Any]], study: CandidateEvaluator
) -> list[dict[str, Any]]:
    """Return a row a task with the gain on its test queries."""
    rows = [comparison["comparisons"][-1] | {"task": comparison["task"]} for comparison in compared]
    return _adjust([row | {"compiled_on": row["task"] in study.tasks.values()} for row in rows])


def _adjust(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:  # p, for all these tasks
    adjusted = iter(holm([row["p"] for row in rows if row["p"] is not None]))
    return [{**row, "p_holm": None if row["p"] is None else next(adjusted)} for row in rows]


def _tasks(title: str, rows: Sequence[Mapping[str, Any]]) -> list[TextBlock]:
    names = [
        row["task"] + ("" if row.get("compiled_on", True) else ", not compiled on") for row in rows
    ]
    named = [{**row, "metric": name} for row, name in zip(rows, names, strict=True)]
    return [TextTable(title, ["task", *HEADS], metric_rows(named))] if rows else []


def list_candidates(study: CandidateEvaluator) -> list[dict[str, Any]]:
    """Return every candidate with its scores and what its evaluations used, the best on validation first."""
    rows: list[dict[str, Any]] = []
    for digest, candidate in study.candidates.items():
        evaluations = study.of(digest, "train") + study.of(digest, "validation")
        if not evaluations:
            continue  # a teacher's, or a sampled one's
        prices = [evaluation.list_usd for evaluation in evaluations]
        row = {
            "candidate": digest,
            "before": digest == study.before,
            "start": digest == study.start,
            "returned": digest in study.returned,
            **{part_name: measure_candidate(study, digest, part_name) for part_name in study.parts},
            "whole": study.is_whole(digest, "validation"),
            "demos": sum(len(prompt.demos) for prompt in candidate.prompts.values()),
            "parameters": dict(candidate.parameters),
            **{
                resource: sum(getattr(evaluation, resource) for evaluation in evaluations)
                for resource in ("calls", "tokens")
            },
            "list_usd": None
            if None in prices
            else sum(price for price in prices if price is not None),
            "failed": sum(evaluation.error is not None for evaluation in evaluations),
        }
        rows.append(
            row | ({"change": study.change(digest)} if study.fold_of and row["whole"] else {})
        )
    # What was evaluated on all validation queries first: a mean over three queries is no rival of
    # one over fifty. Of equal ones by the digest: the order in which they came may depend on which
    # thread was first.
    means = {
        row["candidate"]: [
            -(row[part_name]["mean"] or 0.0) for part_name in ("validation", "train")
        ]
        for row in rows
    }
    means = {row["candidate"]: [-row.get("change", 0.0), *means[row["candidate"]]] for row in rows}
    return sorted(
        rows, key=lambda row: (not row["whole"], means[row["candidate"]], row["candidate"])
    )


def _lines(prompt: Prompt) -> list[str]:
    outputs = [field.split()[1].rstrip(":") for field in prompt.fields if field.startswith("out ")]
    lines = prompt.instructions.splitlines()
    lines += [f"{name}: {_short(text)}" for name, text in prompt.descriptions.items()]
    for demo in prompt.demos:
        answers = ", ".join(f"{name} = {_short(demo[name])}" for name in outputs if name in demo)
        lines.append(f"demonstration: {_short(demo.get('description', ''))} -> {answers}")
    return lines


def _short(value: Any) -> str:
    text = " ".join(
        (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)).split()
    )
    return text if len(text) <= SHORT else f"{text[:SHORT]}..."


def _moved(study: CandidateEvaluator, candidate: Candidate) -> list[dict[str, Any]]:
    before = study.of(study.before, "validation", candidate.digest)
    pairs = zip(before, study.of(candidate.digest, "validation"), strict=True)
    rows: list[dict[str, Any]] = [
        {
            "query_id": old.query_id,
            "before": old.value,
            "after": new.value,
            "difference": new.value - old.value,
        }
        for old, new in pairs
        if abs(new.value - old.value) > 1e-12
    ]
    return sorted(rows, key=lambda row: (-row["difference"], row["query_id"]))


def summarise(
    study: CandidateEvaluator, candidate: Candidate, usage: Usage, stopped: str
) -> dict[str, Any]:
    """Return what is shown, and kept as learnt.json; `stopped` is why it ended early, if it did.

    The texts of judged documents and queries that prompts repeat, "leaks", are looked for afterwards.
    """
    first = study.candidates[study.before]
    same_predictors = candidate.prompts.keys() == first.prompts.keys()
    lines = {
        name: (_lines(first.prompts[name]), _lines(prompt))
        for name, prompt in candidate.prompts.items()
        if same_predictors
    }
    diffs = {
        name: difflib.unified_diff(*two, "before", "after", lineterm="", n=1)
        for name, two in lines.items()
    }
    before_values = {OBJECTIVE: study.training.train[0].objective, **first.parameters}
    values = {
        name: [before_values[name], value]
        for name, value in candidate.parameters.items()
        if name in before_values
    }
    return {
        "kept": {study.start: "start", study.before: "before"}.get(candidate.digest, "compiled"),
        "candidate": candidate.digest,
        "before": measure_candidate(study, study.before, "validation", candidate.digest),
        "after": measure_candidate(study, candidate.digest, "validation"),
        "gain": measure_gain(study, candidate),
        **({"tasks": rows} if (rows := list_tasks(study, candidate)) else {}),
        # Stable, so the one that is kept is the first also of those that are as good.
        "candidates": sorted(
            list_candidates(study), key=lambda row: bool(row["candidate"] != candidate.digest)
        ),
        "changes": {name: text for name, diff in diffs.items() if (text := "\n".join(diff))},
        "parameters": {name: pair for name, pair in values.items() if pair[0] != pair[1]},
        "moved": _moved(study, candidate),
        "leaks": [],
        "usage": usage_json(usage),
        "stopped": stopped,
    }


def list_texts(compiled: Compiled) -> dict[str, str]:
    """Return the texts of a compiled program by name, for the search for what leaked."""
    texts: dict[str, str] = {}
    shown: dict[str, Sequence[Any]] = {}
    for name, prompt in compiled.prompts.items():
        texts[f"{name} instructions"] = "\n".join(
            [prompt.instructions, *prompt.descriptions.values()]
        )
        shown[f"{name} demo"] = prompt.demos
    for neighbour in compiled.neighbours:
        shown |= {
            f"{name} of {neighbour.query_id}, demo": demos
            for name, demos in neighbour.demos.items()
        }
    for piece, demos in shown.items():
        for demo_number, demo in enumerate(demos, start=1):
            texts[f"{piece} {demo_number}"] = "\n".join(texts_in(dict(demo) | {"objective": ""}))
    for member_number, member in enumerate(compiled.members, start=1):
        texts |= {
            f"member {member_number}, {name}": text for name, text in list_texts(member).items()
        }
    return texts


def print_result(learnt: Mapping[str, Any], *, as_json: bool = False) -> None:
    """Print what was learnt, on stdout."""
    if as_json:
        print_stdout(json.dumps(learnt) + "\n", kept="in learnt.json")
        return
    sections = (_notes, _gain, _changes, _queries_moved, _leaks_found, _footings)
    lines = [line for section in sections for line in section(learnt)]
    tables = _tasks("validation by task", learnt.get("tasks", ()))
    held_out = learnt.get("held_out", {"tasks": ()})
    test = (
        _tasks("test by task", held_out["tasks"])
        if "tasks" in held_out
        else lay_out_comparison(held_out)
    )
    print_stdout(
        render_terminal([*_headings(learnt), _candidates(learnt), *tables, *lines, *test]),
        kept="in learnt.json",
    )


def show_table(*, as_json: bool) -> None:
    """Print the teleprompters that there are."""
    if as_json:
        rows = {
            name: {"what": row.what, "options": dict(row.options)}
            for name, row in TELEPROMPTERS.items()
        }
        print_stdout(json.dumps(rows) + "\n")
        return
    width = max(map(len, TELEPROMPTERS))
    lines = []
    for name, row in TELEPROMPTERS.items():
        lines.append(f"{name:<{width}}  {row.what}")
        takes = [
            text
            for text, is_accepted in (("--teacher", row.teacher), ("--prompt-lm", row.proposes))
            if is_accepted
        ]
        for option, values in row.options.items():
            # Quoted where a shell would take it for something else.
            levels = (
                "|".join(map(str, values)) if len(set(values)) > 1 else shlex.quote(str(values[0]))
            )
            takes.append(f"-O {option}={levels}")
        lines += [f"{'':<{width}}  {' '.join(takes)}"] if takes else []
    lines += [
        "",
        "values at --budget light|medium|heavy; one that stands alone is for all three",
        "",
    ]
    print_stdout("\n".join(lines))


def _headings(learnt: Mapping[str, Any]) -> list[str]:
    note = "mini: bundled, invented" if learnt["data"] == "mini" else learnt["data"]
    model = "offline, no language model" if learnt["lm"] == "offline" else learnt["lm"]
    for name, spec in (("teacher", learnt["teacher"]), ("prompts by", learnt["prompt_lm"])):
        model += f", {name}: {spec}" if spec and spec != learnt["lm"] else ""
    counts = learnt["queries"]
    folds = f", in each of {counts['folds']} folds" if "folds" in counts else ""
    return [
        f"{learnt['task']}  dev split: {counts['train']} train, {counts['validation']} "
        f"validation{folds}  ({note})",
        f"{learnt['program']} over {learnt['pool'] or learnt['retriever']}, model: {model}",
        f"{learnt['optimizer']}, by {learnt['objective']}"
        + (f", from {learnt['start']}" if learnt["start"] else ""),
    ]


def _candidates(learnt: Mapping[str, Any]) -> TextTable:
    tuned = any(row["parameters"] for row in learnt["candidates"])
    folded = ["change"] if any("change" in row for row in learnt["candidates"]) else []
    heads = [
        "candidate",
        "validation",
        "95 % interval",
        *folded,
        "train",
        "parameters" if tuned else "demos",
    ]
    rows = []
    for row in learnt["candidates"][:ROWS]:
        before = " (before)" if row["before"] else " (start)" if row["start"] else ""
        kept_mark = " (kept)" if row["candidate"] == learnt["candidate"] else ""
        low = row["validation"]["low"]
        high = row["validation"]["high"]
        parameters = " ".join(
            f"{name}={_short(str(value))}" for name, value in row["parameters"].items()
        )
        scores = [
            _mean(row["validation"], is_complete=row["whole"]),
            "" if low is None else f"{low:.4f} to {high:.4f}",
            *(number(row.get("change"), "{:+.4f}", "") for _ in folded),
            _mean(row["train"], is_complete=row["train"]["queries"] >= learnt["queries"]["train"]),
        ]
        cost_cells = [str(row["calls"]), str(row["tokens"]), number(row["list_usd"], "${:.4f}")]
        rows.append(
            [
                f"{row['candidate']}{before}{kept_mark}",
                *scores,
                parameters if tuned else str(row["demos"]),
                *cost_cells,
            ]
        )
    return TextTable(
        "", [*heads, "calls", "tokens", "price"], rows, names=(0, 4) if tuned else (0,)
    )


def _mean(measured: Mapping[str, Any], *, is_complete: bool) -> str:
    if measured["mean"] is None:
        return ""
    return f"{measured['mean']:.4f}" + ("" if is_complete else f" ({measured['queries']})")


def _notes(learnt: Mapping[str, Any]) -> list[str]:
    hidden_count = len(learnt["candidates"]) - ROWS
    rows = learnt["candidates"][:ROWS]
    lines = [f"{hidden_count} more candidates are in learnt.json"] if hidden_count > 0 else []
    sizes = learnt["queries"]
    if any(
        0 < row[part_name]["queries"] < sizes[part_name]
        for row in rows
        for part_name in ("train", "validation")
    ):
        lines.append("(n): evaluated on n of the queries")
    return lines


def _gain(learnt: Mapping[str, Any]) -> list[str]:
    gain = learnt["gain"]
    if learnt["kept"] == "before":
        better = "no candidate is better on the validation queries"
        reason = better if gain["candidates"] else "no other candidate came to validation"
        so_far = " so far" if learnt["stopped"] else ""
        return [
            f"no gain{so_far}: {reason}, so the program is kept as it was; there is nothing to ask "
            f"test about"
        ]
    interval = "" if gain["low"] is None else f" ({gain['low']:+.4f} to {gain['high']:+.4f})"
    verdict = "significant" if gain["significant"] else "not significant"
    correction = (
        f", times {gain['candidates']} candidates {gain['p_corrected']:.3g}"
        if gain["candidates"] > 1
        else ""
    )
    if gain["detectable"] is not None and not gain["significant"]:
        verdict += f", so many queries show {gain['detectable']:.4f}"
    start = "nothing is better than the start, which is kept; " if learnt["kept"] == "start" else ""
    means = f"{learnt['before']['mean']:.4f} to {learnt['after']['mean']:.4f}"
    change = (
        f"{start}validation {means}: {gain['difference']:+.4f}{interval}, p {gain['p']:.3g}{correction}: "
        f"{verdict}"
    )
    return [f"{change}; {gain['wins']} won, {gain['ties']} tied, {gain['losses']} lost"]


def _changes(learnt: Mapping[str, Any]) -> list[str]:
    lines = []
    for name, values in learnt["parameters"].items():
        old, new = (strip_control_characters(str(value)) or '""' for value in values)
        between = " to " if len(old + new) < SHORT else "\nto "
        lines += f"{name}: {old}{between}{new}".splitlines()
    for name, difference in learnt["changes"].items():
        lines += ["", f"prompt of {name}", *difference.splitlines()[2:]]
    return [*lines, ""] if lines else []


def _queries_moved(learnt: Mapping[str, Any]) -> list[str]:
    gains = [row for row in learnt["moved"] if row["difference"] > 0][:MOVED]
    losses = [row for row in learnt["moved"] if row["difference"] < 0][-MOVED:]
    rows = [
        f"  {row['query_id']}  {row['before']:.4f} to {row['after']:.4f}"
        for row in [*gains, *losses]
    ]
    return ["queries that moved most", *rows] if rows else []


def _leaks_found(learnt: Mapping[str, Any]) -> list[str]:
    leaks = sorted(learnt["leaks"], key=lambda leak: leak["split"] != "test")
    lines = [
        f"  {leak['piece']} has {leak['length']} words in a row of the {leak['split']} "
        f"{leak['kind']} {leak['owner']}: "
        f'"{leak["text"][:80]}"'
        for leak in leaks[:ROWS]
    ]
    test = sum(leak["split"] == "test" for leak in leaks)
    heading = f"prompts that repeat judged texts: {len(leaks)}, {test} of them of the test split"
    return [heading, *lines] if lines else []


def _footings(learnt: Mapping[str, Any]) -> list[str]:
    usage = learnt["usage"]
    left_out = learnt["queries"]["left_out"]
    cost = f"{usage['calls']} calls"
    if learnt["lm"] != "offline":
        price = number(usage["list_usd"], "${:.4f}", "price unknown")
        cost += f", {usage['input_tokens']} tokens in, {usage['output_tokens']} out, {price}"
    lines = (
        [f"dev {queries(len(left_out))} left out as near repeats of test queries"]
        if left_out
        else []
    )
    if learnt["looks"]:
        lines.append(
            f"looks at the test queries with {learnt['program']} so far: {learnt['looks']}"
        )
    lines += [f"{cost}, {learnt['seconds']:.1f} s", f"compiled: {learnt['compiled']}"]
    if learnt["instruction"]:
        lines.append(f"what queries say of the task: {learnt['instruction']}")
    if learnt["kept"] != "before" and not learnt.get("held_out"):
        lines.append(f"take it up with: {learnt['take_up']}")
    return lines
