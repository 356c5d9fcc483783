"""What searchers do, from the traces of runs alone: how new searches are, what hops add, where
documents are lost.

A word or a result of a search is new where no earlier search of its query had it. A note leads to
the searches between it and the next note after them. Each figure has the steps that are furthest on
its weak side.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from evals.run_schemas import FATE_LABELS, Fate
from evals.scoring import scored_run
from evals.scoring.attribution import fate_at
from evals.scoring.budget_curves import query_trajectory
from evals.scoring.metrics import check_metric, is_pairwise
from evals.text_tables import TextBlock, TextTable, describe_system, describe_task, render_terminal
from tools import schemas
from tools.errors import UsageError
from tools.number_format import number
from tools.text import content_words

Result = dict[str, Any]  # what `compare_behaviour` returns and --json prints
# So begins the folder of causes that a model named (evals/judging/loss_causes.py)
NAMED = f"{scored_run.JUDGED}causes"
EXAMPLES = 3  # of a figure, or of a kind of failure
FIGURES = {
    "searches": "searches of a query",
    "new_words": "share of a search's words that are new",
    "new_results": "share of a search's results that are new",
    "relevant": "relevant documents that a search surfaces first",
    "selected": "share of selected documents that are relevant",
    "notes": "share of notes that lead to a search which surfaces something relevant",
    "decided": "searches after which the headline metric stays as it is",
}
# Kinds of failure, by the first rule that fits; {k} is the cutoff.
KINDS = {
    "nowhere": "surfaced by no search of these runs",
    "elsewhere": "surfaced by another of these runs, not by this one",
    "misled": "shown and not selected, after a note that led to nothing relevant",
} | {
    fate.value: said
    for fate, said in FATE_LABELS.items()
    if fate not in (Fate.FOUND, Fate.NEVER_SURFACED)
}
COSTS = ("steps", "searches", "relevant", "calls", "tokens", "seconds")


class QueryBehaviour(NamedTuple):
    """What a run did for one query; steps are numbers."""

    figures: Mapping[str, list[tuple[float, int]]]  # each value with its step
    costs: Mapping[str, Counter[str]]  # of each hop, number of calls so far, and kind of step
    notes: Sequence[
        tuple[int, list[int]]
    ]  # the first of those in a row, and the searches to which they lead
    surfaced: dict[str, int]  # relevant unit -> number of the search that first brought it, from 1
    lost: Sequence[Mapping[str, Any]]  # the relevant documents, as attribution.jsonl has them


def compare_behaviour(paths: Sequence[Path]) -> Result:
    """Describe what the runs do and how they go together.

    UsageError for runs that were not asked the same.
    """
    runs = read_same_queries(paths)
    seen = list(map(observe_run, runs))
    return {
        **{key: (runs[0].config | runs[0].scores)[key] for key in scored_run.ABOUT},
        "kinds": KINDS,
        "runs": [
            summarize(run, one, [of for of in seen if of is not one])
            for run, one in zip(runs, seen, strict=True)
        ],
        "pairs": [
            {"runs": [a, b], **_complement(seen[a], seen[b])}
            for a, b in combinations(range(len(runs)), 2)
        ],
    }


def read_same_queries(paths: Sequence[Path]) -> list[scored_run.ScoredRun]:
    """Read the runs. UsageError where they were not asked the same."""
    runs = [scored_run.read_scored_run(path) for path in scored_run.find_folders(paths)]
    for run in runs[1:]:
        if differ := scored_run.contract_differences(runs[0], run):
            raise UsageError(
                f"{runs[0].name} and {run.name} were not asked the same: {', '.join(differ)} differ"
            )
    return runs


def observe_run(
    run: scored_run.ScoredRun, query_ids: Sequence[str] = ()
) -> dict[str, QueryBehaviour]:
    """Return what a run did for its queries, or some of them.

    DataError where an earlier version scored it.
    """
    # It comes from a file, which may be damaged, or name code to import.
    check_metric(run.metric, custom=False)
    return {query_id: _observe(run, query_id) for query_id in query_ids or run.query_ids}


def _observe(run: scored_run.ScoredRun, query_id: str) -> QueryBehaviour:
    outcome = run.outcomes[query_id]
    row = run.judged[query_id]
    units = row.get("units", {})
    relevant = {one["unit"]: one for one in row["relevant"]}
    first = Counter(one.get("search") for one in relevant.values())
    figures = defaultdict[str, list[tuple[float, int]]](list)
    costs = defaultdict[str, Counter[str]](Counter)
    order = list[int]()
    notes = list[tuple[int, list[int]]]()
    said = set[str]()
    seen = set[str]()
    asked = 0
    for place, step in enumerate(outcome["trace"]["steps"]):
        usage = Counter(step.get("usage") or {})
        tool = step["tool"]
        cost = {"steps": 1, "seconds": step.get("seconds", 0), "calls": usage["calls"]}
        cost["tokens"] = usage["input_tokens"] + usage["output_tokens"]
        if tool == "search" and not step.get("refused") and not step.get("among"):
            text = set(content_words(step["argument"]))
            brought = set(step["doc_ids"])
            for name, new, of in (
                ("new_words", text - said, text),
                ("new_results", brought - seen, brought),
            ):
                if order and of:
                    figures[name].append((len(new) / len(of), place))
            figures["relevant"].append((first[place], place))
            order.append(place)
            said = said | text
            seen = seen | brought
            cost = cost | {"searches": 1, "relevant": first[place]}
            if notes:
                notes[-1][1].append(place)
        elif tool == "note" and (not notes or notes[-1][1]):
            notes.append((place, []))
        elif tool == "select":
            figures["selected"] += [
                (int(units.get(doc_id, doc_id) in relevant), place) for doc_id in step["doc_ids"]
            ]
        asked += usage["calls"]
        calls = 1 << max(0, asked - 1).bit_length()  # 1, 2, 4, 8 ...: up to so many
        for key in (f"hop {step.get('hop', 0)}", f"call {calls}", tool):
            costs[key].update(cost)
    figures["notes"] = [(int(any(first[one] for one in led)), place) for place, led in notes if led]
    figures["searches"] = [(len(order), max(order, default=0))]
    if not is_pairwise(run.metric):
        for course in query_trajectory(
            outcome, row, run.metric, ["searches"], run.config["depth"]
        ).values():
            last = max(
                (
                    place
                    for place, value in enumerate(course.values, 1)
                    if value != course.values[-1]
                ),
                default=0,
            )
            figures["decided"] = [(last, order[last - 1] if 0 < last <= len(order) else 0)]
    surfaced = {
        unit: order.index(one["search"]) + 1
        for unit, one in relevant.items()
        if one.get("search") in order
    }
    return QueryBehaviour(figures, costs, notes, surfaced, row["relevant"])


def read_causes(run: scored_run.ScoredRun) -> Result | None:
    """Return the causes that a model named of a run's failures, the latest, if any were.

    DataError if damaged.
    """
    place = run.path.resolve()
    mend = "remove it, and have the failures named again"
    files = sorted(
        place.parent.glob(f"{NAMED}-*/{place.name}.json"), key=lambda file: file.stat().st_mtime
    )
    return schemas.read_file(dict[str, Any], files[-1], mend) if files else None


def summarize(
    run: scored_run.ScoredRun,
    seen: Mapping[str, QueryBehaviour],
    others: Sequence[Mapping[str, QueryBehaviour]] = (),
) -> Result:
    """Add up what a run did over its queries; `others` are what other runs did for the same
    ones.
    """
    costs = defaultdict[str, Counter[str]](
        Counter
    )  # hops and numbers of calls in their order, then kinds of steps
    for key, cost in (pair for query in seen.values() for pair in query.costs.items()):
        costs[key].update(cost)
    figures = dict[str, Result]()
    failures = defaultdict[str, list[Result]](list)
    for name in FIGURES:
        rows = sorted(
            (value, one, step)
            for one, query in seen.items()
            for value, step in query.figures.get(name, ())
        )
        weak = rows[::-1] if name in ("searches", "decided") else rows
        places = list(dict.fromkeys((one, step) for _, one, step in weak))[:EXAMPLES]
        shown = [{"query_id": one, "step": step} for one, step in places]
        figures[name] = {"mean": fmean(row[0] for row in rows) if rows else None, "examples": shown}
    for kind, failure in list_failures(run, seen, others):
        failures[kind].append(failure)
    lost = {kind: count_with_examples(failures[kind]) for kind in KINDS}
    about = {key: run.scores.get(key) for key in (*scored_run.NAMED, "compiled")}
    order = sorted(costs, key=lambda key: (" " not in key, key[0] != "h", len(key), key))
    measured = {"figures": figures, "costs": {key: costs[key] for key in order}, "failures": lost}
    return {"run": run.name, **about, "cutoff": fate_cutoff(run), **measured}


def count_with_examples(failures: Sequence[Result]) -> Result:
    """Return how many failures of a kind there are, and some of them."""
    return {"documents": len(failures), "examples": list(failures[:EXAMPLES])}


def list_failures(
    run: scored_run.ScoredRun,
    seen: Mapping[str, QueryBehaviour],
    others: Sequence[Mapping[str, QueryBehaviour]],
) -> Iterator[tuple[str, Result]]:
    """Yield the kind of each relevant document that is not found, with what is known of it."""
    for query_id, query in seen.items():
        for one in query.lost:
            if kind := _kind(
                one, fate_at(one, fate_cutoff(run)), query, [other[query_id] for other in others]
            ):
                steps = [one.get(key) for key in ("decision_step", "shown_step", "search")]
                step = next((step for step in steps if step is not None), 0)
                yield kind, {"query_id": query_id, "unit": one["unit"], "step": step}


def fate_cutoff(run: scored_run.ScoredRun) -> int:
    """Return the place up to which a document counts as found."""
    return int((run.scores.get("losses") or {}).get("cutoff", 10))


def _kind(
    one: Mapping[str, Any], fate: Fate, query: QueryBehaviour, others: Sequence[QueryBehaviour]
) -> str:
    if fate is Fate.NEVER_SURFACED:
        return "elsewhere" if any(one["unit"] in other.surfaced for other in others) else "nowhere"
    if (
        fate in (Fate.SHOWN_IN_PART, Fate.NOT_SELECTED)
        and (decided := one.get("decision_step")) is not None
    ):
        led = [led for _, led in query.notes if led and led[0] < decided]
        if led and not set(led[-1]) & {step for value, step in query.figures["relevant"] if value}:
            return "misled"
    return "" if fate is Fate.FOUND else fate.value


def _complement(one: Mapping[str, QueryBehaviour], other: Mapping[str, QueryBehaviour]) -> Result:
    """Say what of the relevant documents surfaced in two runs, and in their union with half
    of each one's searches.
    """
    counts = Counter[str]()
    shares = defaultdict[str, list[list[float]]](list)
    for query_id, query in one.items():
        a = query.surfaced
        b = other[query_id].surfaced
        many = len(query.lost)
        counts.update(
            {"both": len(a.keys() & b), "first": len(a.keys() - b), "second": len(b.keys() - a)}
        )
        counts["neither"] += many - len(a | b)
        if many:
            n = min(query.figures["searches"][0][0], other[query_id].figures["searches"][0][0])
            half = {unit for unit in a if a[unit] <= (n + 1) // 2} | {
                unit for unit in b if b[unit] <= n // 2
            }
            shares["all"].append([len(of) / many for of in (a, b, a | b)])
            within = [sum(place <= n for place in of.values()) for of in (a, b)]
            shares["equal"].append([count / many for count in (*within, len(half))])
    return {
        "documents": counts,
        **{key: list(map(fmean, zip(*rows, strict=True))) for key, rows in shares.items()},
    }


def render_behaviour(found: Result) -> str:
    """Return what the runs do as a person reads it."""
    runs = found["runs"]
    labels = [f"run {place}" for place, _ in enumerate(found["runs"], 1)]
    named = list(zip(labels, runs, strict=True))
    k = runs[0]["cutoff"]
    rows = [
        [said, *(number(run["figures"][key]["mean"], unknown="-") for run in runs)]
        for key, said in FIGURES.items()
    ]
    parts: list[TextBlock] = [
        describe_task(found),
        *(f"{label}: {run['run']}  {describe_system(run)}" for label, run in named),
        "",
    ]
    parts += [TextTable("", ["mean", *labels], rows)]
    counts = {
        said: [run["failures"][kind]["documents"] for run in runs] for kind, said in KINDS.items()
    }
    rows = [[said.format(k=k), *map(str, row)] for said, row in counts.items() if any(row)]
    parts += [
        TextTable(
            f"relevant documents not among the first {k}",
            ["by the first that is so", *labels],
            rows,
        )
    ]
    for label, run in named:
        costs = run["costs"].items()
        rows = [
            [key, *(f"{of.get(one, 0):,.{int(one == 'seconds')}f}" for one in COSTS)]
            for key, of in costs
        ]
        parts += [
            TextTable(
                f"{label}: by hop, by model calls so far, and by kind of step", ["", *COSTS], rows
            )
        ]
    for pair in found["pairs"]:
        (a, b) = (labels[place] for place in pair["runs"])
        of = pair["documents"]
        title = (
            f"relevant documents that surfaced: {of['both']} in both, {of['first']} in {a} alone, "
        )
        title += f"{of['second']} in {b} alone, {of['neither']} in none"
        shares = {
            "all": "recall of what surfaced",
            "equal": "at equal searches, half of them in each for both",
        }
        rows = [
            [share, *(f"{value:.4f}" for value in pair[key])]
            for key, share in shares.items()
            if key in pair
        ]
        parts += [TextTable(title, ["", a, b, "both together"], rows)]
    return render_terminal(parts)
