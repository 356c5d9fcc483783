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
        found = study.of(candidate.digest, "validation")
        tokens = sum(evaluation.tokens for evaluation in found)
        before = digest == study.before
        start = digest == study.start
        returned = digest in study.returned
        return round(study.change(digest), 12), before, start, returned, -tokens, digest

    whole = [
        one for one in list(study.candidates.values()) if study.is_whole(one.digest, "validation")
    ]
    return max(whole, key=rank, default=None)


def measure_gain(study: CandidateEvaluator, candidate: Candidate) -> dict[str, Any]:
    """Return the paired difference of a candidate to the program before, on the validation queries."""
    both = (
        study.values(digest, "validation", candidate.digest)
        for digest in (study.before, candidate.digest)
    )
    found = paired(*both)._asdict()
    # The program before is compared with, not chosen. Others count that were given up after a part
    # of the queries.
    chosen_from = sum(bool(study.of(digest, "validation")) for digest in study.candidates) - 1
    corrected = min(1.0, found["p"] * max(1, chosen_from))
    significant = found["difference"] > 0 and corrected < SIGNIFICANT
    return {
        **found,
        "candidates": chosen_from,
        "p_corrected": corrected,
        "significant": significant,
    }


def measure_candidate(
    study: CandidateEvaluator, digest: str, part: str, like: str = ""
) -> dict[str, Any]:
    """Return the mean of a candidate's values on a part, with its interval, and how many queries it is over."""
    values = study.values(digest, part, like)
    summary = bootstrap_mean(values)._asdict() if values else dict.fromkeys(("mean", "low", "high"))
    return {**summary, "queries": len(values)}


def list_tasks(study: CandidateEvaluator, candidate: Candidate) -> list[dict[str, Any]]:
    """Return a row a task, where there are several, with the gain on its validation queries."""
    rows = []
    for task in dict.fromkeys(study.tasks.values()):
        found = (
            study.of(digest, "validation", candidate.digest)
            for digest in (study.before, candidate.digest)
        )
        old, new = (
            [one.value for one in part if study.tasks[one.query_id] == task] for part in found
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
    rows = [one["comparisons"][-1] | {"task": one["task"]} for one in compared]
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
            **{part: measure_candidate(study, digest, part) for part in study.parts},
            "whole": study.is_whole(digest, "validation"),
            "demos": sum(len(prompt.demos) for prompt in candidate.prompts.values()),
            "parameters": dict(candidate.parameters),
            **{
                used: sum(getattr(one, used) for one in evaluations) for used in ("calls", "tokens")
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
        row["candidate"]: [-(row[part]["mean"] or 0.0) for part in ("validation", "train")]
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
    same = candidate.prompts.keys() == first.prompts.keys()
    lines = {
        name: (_lines(first.prompts[name]), _lines(prompt))
        for name, prompt in candidate.prompts.items()
        if same
    }
    diffs = {
        name: difflib.unified_diff(*two, "before", "after", lineterm="", n=1)
        for name, two in lines.items()
    }
    own = {OBJECTIVE: study.training.train[0].objective, **first.parameters}
    values = {
        name: [own[name], value] for name, value in candidate.parameters.items() if name in own
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


def list_texts(found: Compiled) -> dict[str, str]:
    """Return the texts of a compiled program by name, for the search for what leaked."""
    texts: dict[str, str] = {}
    shown: dict[str, Sequence[Any]] = {}
    for name, prompt in found.prompts.items():
        texts[f"{name} instructions"] = "\n".join(
            [prompt.instructions, *prompt.descriptions.values()]
        )
        shown[f"{name} demo"] = prompt.demos
    for neighbour in found.neighbours:
        shown |= {
            f"{name} of {neighbour.query_id}, demo": demos
            for name, demos in neighbour.demos.items()
        }
    for piece, demos in shown.items():
        for place, demo in enumerate(demos, start=1):
            texts[f"{piece} {place}"] = "\n".join(texts_in(dict(demo) | {"objective": ""}))
    for place, member in enumerate(found.members, start=1):
        texts |= {f"member {place}, {name}": text for name, text in list_texts(member).items()}
    return texts


def print_result(found: Mapping[str, Any], *, as_json: bool = False) -> None:
    """Print what was learnt, on stdout."""
    if as_json:
        print_stdout(json.dumps(found) + "\n", kept="in learnt.json")
        return
    parts = (_notes, _gain, _changes, _queries_moved, _leaks_found, _footings)
    lines = [line for part in parts for line in part(found)]
    tables = _tasks("validation by task", found.get("tasks", ()))
    held_out = found.get("held_out", {"tasks": ()})
    test = (
        _tasks("test by task", held_out["tasks"])
        if "tasks" in held_out
        else lay_out_comparison(held_out)
    )
    print_stdout(
        render_terminal([*_headings(found), _candidates(found), *tables, *lines, *test]),
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
            text for text, has in (("--teacher", row.teacher), ("--prompt-lm", row.proposes)) if has
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


def _headings(found: Mapping[str, Any]) -> list[str]:
    note = "mini: bundled, invented" if found["data"] == "mini" else found["data"]
    model = "offline, no language model" if found["lm"] == "offline" else found["lm"]
    for name, spec in (("teacher", found["teacher"]), ("prompts by", found["prompt_lm"])):
        model += f", {name}: {spec}" if spec and spec != found["lm"] else ""
    counts = found["queries"]
    folds = f", in each of {counts['folds']} folds" if "folds" in counts else ""
    return [
        f"{found['task']}  dev split: {counts['train']} train, {counts['validation']} "
        f"validation{folds}  ({note})",
        f"{found['program']} over {found['pool'] or found['retriever']}, model: {model}",
        f"{found['optimizer']}, by {found['objective']}"
        + (f", from {found['start']}" if found["start"] else ""),
    ]


def _candidates(found: Mapping[str, Any]) -> TextTable:
    tuned = any(row["parameters"] for row in found["candidates"])
    folded = ["change"] if any("change" in row for row in found["candidates"]) else []
    heads = [
        "candidate",
        "validation",
        "95 % interval",
        *folded,
        "train",
        "parameters" if tuned else "demos",
    ]
    rows = []
    for row in found["candidates"][:ROWS]:
        before = " (before)" if row["before"] else " (start)" if row["start"] else ""
        kept = " (kept)" if row["candidate"] == found["candidate"] else ""
        low = row["validation"]["low"]
        high = row["validation"]["high"]
        parameters = " ".join(
            f"{name}={_short(str(value))}" for name, value in row["parameters"].items()
        )
        scores = [
            _mean(row["validation"], whole=row["whole"]),
            "" if low is None else f"{low:.4f} to {high:.4f}",
            *(number(row.get("change"), "{:+.4f}", "") for _ in folded),
            _mean(row["train"], whole=row["train"]["queries"] >= found["queries"]["train"]),
        ]
        used = [str(row["calls"]), str(row["tokens"]), number(row["list_usd"], "${:.4f}")]
        rows.append(
            [
                f"{row['candidate']}{before}{kept}",
                *scores,
                parameters if tuned else str(row["demos"]),
                *used,
            ]
        )
    return TextTable(
        "", [*heads, "calls", "tokens", "price"], rows, names=(0, 4) if tuned else (0,)
    )


def _mean(measured: Mapping[str, Any], *, whole: bool) -> str:
    if measured["mean"] is None:
        return ""
    return f"{measured['mean']:.4f}" + ("" if whole else f" ({measured['queries']})")


def _notes(found: Mapping[str, Any]) -> list[str]:
    more = len(found["candidates"]) - ROWS
    rows = found["candidates"][:ROWS]
    lines = [f"{more} more candidates are in learnt.json"] if more > 0 else []
    of = found["queries"]
    if any(0 < row[part]["queries"] < of[part] for row in rows for part in ("train", "validation")):
        lines.append("(n): evaluated on n of the queries")
    return lines


def _gain(found: Mapping[str, Any]) -> list[str]:
    gain = found["gain"]
    if found["kept"] == "before":
        better = "no candidate is better on the validation queries"
        why = better if gain["candidates"] else "no other candidate came to validation"
        so_far = " so far" if found["stopped"] else ""
        return [
            f"no gain{so_far}: {why}, so the program is kept as it was; there is nothing to ask "
            f"test about"
        ]
    interval = "" if gain["low"] is None else f" ({gain['low']:+.4f} to {gain['high']:+.4f})"
    verdict = "significant" if gain["significant"] else "not significant"
    of = (
        f", times {gain['candidates']} candidates {gain['p_corrected']:.3g}"
        if gain["candidates"] > 1
        else ""
    )
    if gain["detectable"] is not None and not gain["significant"]:
        verdict += f", so many queries show {gain['detectable']:.4f}"
    start = "nothing is better than the start, which is kept; " if found["kept"] == "start" else ""
    means = f"{found['before']['mean']:.4f} to {found['after']['mean']:.4f}"
    change = (
        f"{start}validation {means}: {gain['difference']:+.4f}{interval}, p {gain['p']:.3g}{of}: "
        f"{verdict}"
    )
    return [f"{change}; {gain['wins']} won, {gain['ties']} tied, {gain['losses']} lost"]


def _changes(found: Mapping[str, Any]) -> list[str]:
    lines = []
    for name, values in found["parameters"].items():
        old, new = (strip_control_characters(str(value)) or '""' for value in values)
        between = " to " if len(old + new) < SHORT else "\nto "
        lines += f"{name}: {old}{between}{new}".splitlines()
    for name, difference in found["changes"].items():
        lines += ["", f"prompt of {name}", *difference.splitlines()[2:]]
    return [*lines, ""] if lines else []


def _queries_moved(found: Mapping[str, Any]) -> list[str]:
    gains = [row for row in found["moved"] if row["difference"] > 0][:MOVED]
    losses = [row for row in found["moved"] if row["difference"] < 0][-MOVED:]
    rows = [
        f"  {row['query_id']}  {row['before']:.4f} to {row['after']:.4f}"
        for row in [*gains, *losses]
    ]
    return ["queries that moved most", *rows] if rows else []


def _leaks_found(found: Mapping[str, Any]) -> list[str]:
    leaks = sorted(found["leaks"], key=lambda leak: leak["split"] != "test")
    lines = [
        f"  {leak['piece']} has {leak['length']} words in a row of the {leak['split']} "
        f"{leak['kind']} {leak['owner']}: "
        f'"{leak["text"][:80]}"'
        for leak in leaks[:ROWS]
    ]
    test = sum(leak["split"] == "test" for leak in leaks)
    heading = f"prompts that repeat judged texts: {len(leaks)}, {test} of them of the test split"
    return [heading, *lines] if lines else []


def _footings(found: Mapping[str, Any]) -> list[str]:
    usage = found["usage"]
    left_out = found["queries"]["left_out"]
    used = f"{usage['calls']} calls"
    if found["lm"] != "offline":
        price = number(usage["list_usd"], "${:.4f}", "price unknown")
        used += f", {usage['input_tokens']} tokens in, {usage['output_tokens']} out, {price}"
    lines = (
        [f"dev {queries(len(left_out))} left out as near repeats of test queries"]
        if left_out
        else []
    )
    if found["looks"]:
        lines.append(f"looks at the test queries with {found['program']} so far: {found['looks']}")
    lines += [f"{used}, {found['seconds']:.1f} s", f"compiled: {found['compiled']}"]
    if found["instruction"]:
        lines.append(f"what queries say of the task: {found['instruction']}")
    if found["kept"] != "before" and not found.get("held_out"):
        lines.append(f"take it up with: {found['take_up']}")
    return lines
