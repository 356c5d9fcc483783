"""Describe searchers from the traces of runs alone: how new searches are, what hops add, and at
which step documents are lost.

A word or a result of a search is new if no earlier search of its query had it. A note leads to the
searches between it and the next note after them. Each figure has the steps that are furthest on its
weak side.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from sextant.evals.run_descriptions import describe_system, describe_task
from sextant.evals.run_schemas import FATE_LABELS, Fate
from sextant.evals.scoring import scored_run
from sextant.evals.scoring.attribution import fate_at
from sextant.evals.scoring.budget_curves import query_trajectory
from sextant.evals.scoring.metrics import check_metric, is_pairwise
from sextant.evals.scoring.reach import PARTS, read_reach
from sextant.evals.scoring.system_names import name_systems
from sextant.tools import schemas
from sextant.tools.platform.number_format import number as format_number
from sextant.tools.platform.result_table import (
    ResultTable,
    TextBlock,
    figure_cell,
    tabulate,
    value_cell,
)
from sextant.tools.records import SURFACING, JsonMapping, JsonObject
from sextant.tools.text import content_words

Result = JsonObject  # what `compare_behaviour` returns and --json prints
# So begins the folder of causes that a model named (evals/running/loss_causes.py)
NAMED = f"{scored_run.JUDGED}causes"
EXAMPLES = 3  # of a figure, or of a kind of failure
FIGURES = {
    "searches": "searches of a query",
    "new_words": "share of a search's words that are new",
    "new_results": "share of a search's results that are new",
    "relevant": "relevant documents that a search surfaces first",
    "credited": "share of searches that return a relevant document, also one that was known",
    "selected": "share of selected documents that are relevant",
    "notes": "share of notes that lead to a search which surfaces something relevant",
    "decided": "searches after which the headline metric stays as it is",
    "repeats": "searches, readings and notes of a query that repeat an earlier one",
    "forgotten": "documents of a query that left the prompt before they were selected",
    "forgotten_tokens": "tokens of theirs that had been shown, at four characters each",
}
_HIGH_IS_WEAK = ("searches", "decided", "repeats", "forgotten", "forgotten_tokens")
# Kinds of failure, by the first rule that fits; {k} is the cutoff.
KINDS = {
    "nowhere": "surfaced by no search of these runs",
    "elsewhere": "surfaced by another of these runs, not by this one",
    "misled": "shown and not selected, after a note that led to nothing relevant",
} | {
    fate.value: label
    for fate, label in FATE_LABELS.items()
    if fate not in (Fate.FOUND, Fate.NEVER_SURFACED)
}
COSTS = (
    "steps",
    "searches",
    "relevant",
    "calls",
    "tokens",
    "seconds",
)


class QueryBehaviour(NamedTuple):
    """The behaviour of a run in a query; steps are numbers from 0."""

    # figure -> its values, each with its step
    figures: Mapping[str, list[tuple[float, int]]]
    # "hop N", "call N" (calls so far, rounded up to a power of two) or kind of step -> cost
    costs: Mapping[str, Counter[str]]
    # The first note of those in a row, and the searches to which they lead.
    notes: Sequence[tuple[int, list[int]]]
    # relevant unit -> number of the search that first brought it, from 1
    surfaced: dict[str, int]
    # All relevant documents, in the format of attribution.jsonl.
    lost: Sequence[JsonMapping]


def compare_behaviour(paths: Sequence[Path]) -> Result:
    """Describe the behaviour of runs, and how far pairs of them complement each other.

    UsageError for runs that were not asked the same.
    """
    runs = read_same_queries(paths)
    observed = [observe_run(run) for run in runs]
    summaries = []
    for number, (run, name) in enumerate(zip(runs, name_systems(runs), strict=True)):
        others = observed[:number] + observed[number + 1 :]
        summaries.append(summarize(run, observed[number], others) | {"system": name})
    pairs = []
    for first, second in combinations(range(len(runs)), 2):
        pairs.append(
            {
                "runs": [first, second],
                **_complement(observed[first], observed[second]),
            }
        )
    return {
        **{key: (runs[0].config | runs[0].scores)[key] for key in scored_run.ABOUT},
        "kinds": KINDS,
        "runs": summaries,
        "pairs": pairs,
    }


def read_same_queries(paths: Sequence[Path]) -> list[scored_run.ScoredRun]:
    """Read runs. UsageError if they were not asked the same."""
    runs = [scored_run.read_scored_run(path) for path in scored_run.find_folders(paths)]
    scored_run.require_same_contract(runs)
    return runs


def observe_run(
    run: scored_run.ScoredRun, query_ids: Sequence[str] = ()
) -> dict[str, QueryBehaviour]:
    """Return the behaviour of a run for its queries, or for `query_ids`.

    DataError if an earlier version scored it.
    """
    # It comes from a file, which may be damaged, or name code to import.
    check_metric(run.metric, custom=False)
    asked = query_ids or run.query_ids
    # In one reading of each file.
    rows = zip(
        asked,
        run.outcomes.rows(asked),
        run.judged.rows(asked),
        strict=True,
    )
    observed = dict[str, QueryBehaviour]()
    for query_id, outcome, row in rows:
        behaviour = _observe(outcome, row, run.metric, run.config["depth"])
        costs = _cost_steps(outcome["trace"]["steps"], behaviour.figures["relevant"])
        observed[query_id] = behaviour._replace(costs=costs)
    return observed


def _count_forgotten(steps: Sequence[JsonMapping]) -> dict[str, list[tuple[float, int]]]:
    """Return how many documents were forgotten, and about how many tokens had been shown of them."""
    shown = Counter[str]()  # document -> characters of it that are in the prompt
    documents = 0
    characters = 0
    first = 0
    for number, step in enumerate(steps):
        if step["tool"] == "forget":
            first = first or number
            documents += len(step["doc_ids"])
            characters += sum(shown.pop(doc_id, 0) for doc_id in step["doc_ids"])
        for doc_id, length in zip(step["doc_ids"], step.get("shown", ()), strict=False):
            shown[doc_id] += length
    return {"forgotten": [(documents, first)], "forgotten_tokens": [(characters / 4, first)]}


def _observe(outcome: JsonMapping, row: JsonMapping, metric: str, depth: int) -> QueryBehaviour:
    """Return the behaviour in a query without costs, from its steps in their order.

    `row` is the query's line of attribution.jsonl, `metric` the headline metric.
    """
    units = row.get("units", {})
    relevant = {history["unit"]: history.get("search") for history in row["relevant"]}
    # number of a step -> relevant documents that it surfaced first
    first_found = Counter(history.get("search") for history in row["relevant"])
    figures = defaultdict[str, list[tuple[float, int]]](list)
    searches = dict[int, int]()  # number of a step -> its number among searches, from 1
    notes = list[tuple[int, list[int]]]()
    repeats = list[int]()
    before = {"new_words": set[str](), "new_results": set[str]()}
    for number, step in enumerate(outcome["trace"]["steps"]):
        tool = step["tool"]
        if is_surfacing(step):
            items_of_search = (set(content_words(step["argument"])), set(step["doc_ids"]))
            for (name, earlier), items in zip(before.items(), items_of_search, strict=True):
                # The first search is new by itself, which says nothing.
                if items and searches:
                    figures[name].append((len(items - earlier) / len(items), number))
                earlier |= items
            figures["relevant"].append((first_found[number], number))
            searches[number] = len(searches) + 1
            if notes:
                notes[-1][1].append(number)
        elif tool == "note" and (not notes or notes[-1][1]):
            notes.append((number, []))
        elif tool == "repeat":
            repeats.append(number)
        elif tool == "select":
            for doc_id in step["doc_ids"]:
                figures["selected"].append((int(units.get(doc_id, doc_id) in relevant), number))
    for note, led_to in notes:
        if led_to:
            figures["notes"].append((int(any(first_found[search] for search in led_to)), note))
    figures["credited"] = _list_credited(outcome, units, relevant)
    figures["searches"] = [(len(searches), max(searches, default=0))]
    figures["repeats"] = [(len(repeats), max(repeats, default=0))]
    figures |= _count_forgotten(outcome["trace"]["steps"])
    if not is_pairwise(metric):
        courses = query_trajectory(outcome, row, metric, ["searches"], depth)
        for course in courses.values():
            last = _find_last_change(course.values)
            figures["decided"] = [(last, [0, *searches][last] if last <= len(searches) else 0)]
    surfaced = {unit: searches[search] for unit, search in relevant.items() if search in searches}
    return QueryBehaviour(figures, {}, notes, surfaced, row["relevant"])


def _list_credited(
    outcome: JsonMapping, units: Mapping[str, str], relevant: Collection[str]
) -> list[tuple[float, int]]:
    """Return for each search 1 if it returned a relevant document, 0 if not, with its step."""
    credited = list[tuple[float, int]]()
    for number, step in enumerate(outcome["trace"]["steps"]):
        if is_surfacing(step):
            returned = {units.get(doc_id, doc_id) for doc_id in step["doc_ids"]}
            credited.append((int(not returned.isdisjoint(relevant)), number))
    return credited


def _find_last_change(values: Sequence[float]) -> int:
    """Return the number of searches after which the value is still another than the final value."""
    changes = [count for count, value in enumerate(values, 1) if value != values[-1]]
    return max(changes, default=0)


class FigureMeans:
    """Takes the queries of a run, and keeps the values of their figures for the means."""

    def __init__(self, metric: str, depth: int) -> None:
        """`metric` is the headline metric, `depth` that of the run's rankings."""
        self._metric = metric
        self._depth = depth
        self._values = dict[str, list[float]]({name: [] for name in FIGURES})

    def add(self, outcome: JsonMapping, row: JsonMapping) -> None:
        """Take a query by its `outcome` and its `row` of attribution.jsonl."""
        figures = _observe(outcome, row, self._metric, self._depth).figures
        for name, values in figures.items():
            self._values[name] += [value for value, _ in values]

    def json(self) -> dict[str, float | None]:
        """Return the mean of each figure; None if it has no value."""
        return {name: fmean(values) if values else None for name, values in self._values.items()}


def figure_means(run: scored_run.ScoredRun) -> dict[str, float | None]:
    """Return the mean of each figure of a run, from its scores if they have it.

    DataError if an earlier version scored it.
    """
    if (kept := run.scores.get("searchers")) is not None:
        return dict(kept)
    figures = summarize(run, observe_run(run))["figures"]
    return {name: figure["mean"] for name, figure in figures.items()}


def _cost_steps(
    steps: Sequence[JsonMapping], surfaced: Sequence[tuple[float, int]]
) -> dict[str, Counter[str]]:
    """Return the costs of a query's steps by hop, by model calls so far, and by kind.

    `surfaced` has the relevant documents that each search surfaced first.
    """
    costs = defaultdict[str, Counter[str]](Counter)
    calls_so_far = 0
    relevant_of = {number: relevant for relevant, number in surfaced}
    for number, step in enumerate(steps):
        usage = Counter(step.get("usage") or {})
        cost = {
            "steps": 1,
            "seconds": step.get("seconds", 0),
            "calls": usage["calls"],
            "tokens": usage["input_tokens"] + usage["output_tokens"],
        }
        if number in relevant_of:
            cost |= {"searches": 1, "relevant": relevant_of[number]}
        calls_so_far += usage["calls"]
        # Rounded up to 1, 2, 4, 8 ...
        calls = 1 << max(0, calls_so_far - 1).bit_length()
        for key in (f"hop {step.get('hop', 0)}", f"call {calls}", step["tool"]):
            costs[key].update(cost)
    return costs


def is_surfacing(step: JsonMapping) -> bool:
    """Return whether a step is a search that can surface documents."""
    return step["tool"] in SURFACING and not step.get("refused") and not step.get("among")


def read_causes(run: scored_run.ScoredRun) -> Result | None:
    """Return the latest causes that a model named for a run's failures, if there are any.

    DataError if they are damaged.
    """
    run_path = run.path.resolve()
    found = run_path.parent.glob(f"{NAMED}-*/{run_path.name}.json")
    file = max(found, key=lambda file: file.stat().st_mtime, default=None)
    if file is None:
        return None
    causes: Result = schemas.read_file(
        JsonObject, file, "remove it, and have the failures named again"
    )
    return causes


def _add_up_costs(queries: Iterable[QueryBehaviour]) -> dict[str, Counter[str]]:
    """Return the costs of queries: of hops and numbers of calls in their order, then of kinds of steps."""
    costs = defaultdict[str, Counter[str]](Counter)
    for query in queries:
        for key, cost in query.costs.items():
            costs[key].update(cost)
    order = sorted(
        costs,
        key=lambda key: (
            " " not in key,
            key[0] != "h",
            len(key),
            key,
        ),
    )
    return {key: costs[key] for key in order}


def summarize(
    run: scored_run.ScoredRun,
    behaviour: Mapping[str, QueryBehaviour],
    other_runs: Sequence[Mapping[str, QueryBehaviour]] = (),
) -> Result:
    """Add up the behaviour of a run over its queries.

    `other_runs` are the behaviours of other runs for the same queries.
    """
    failures = defaultdict(list)
    for kind_of_failure, failure in list_failures(run, behaviour, other_runs):
        failures[kind_of_failure].append(failure)
    return {
        "run": run.name,
        **{key: run.scores.get(key) for key in (*scored_run.NAMED, "compiled")},
        "cutoff": fate_cutoff(run),
        "reach": (read_reach(run) or {}).get("never_surfaced"),
        "figures": {name: _summarize_figure(name, behaviour) for name in FIGURES},
        "costs": _add_up_costs(behaviour.values()),
        "failures": {key: count_with_examples(failures[key]) for key in KINDS},
    }


def _summarize_figure(name: str, behaviour: Mapping[str, QueryBehaviour]) -> Result:
    rows = []
    for query_id, query in behaviour.items():
        rows += [(value, query_id, step) for value, step in query.figures.get(name, ())]
    rows.sort(reverse=name in _HIGH_IS_WEAK)
    weakest = list(dict.fromkeys((query_id, step) for _, query_id, step in rows))[:EXAMPLES]
    return {
        "mean": fmean(value for value, _, _ in rows) if rows else None,
        "examples": [{"query_id": query_id, "step": step} for query_id, step in weakest],
    }


def count_with_examples(failures: Sequence[Result]) -> Result:
    """Return the number of failures of a kind, with the first as an example."""
    return {
        "documents": len(failures),
        "examples": list(failures[:EXAMPLES]),
    }


def list_failures(
    run: scored_run.ScoredRun,
    behaviour: Mapping[str, QueryBehaviour],
    other_runs: Sequence[Mapping[str, QueryBehaviour]],
) -> Iterator[tuple[str, Result]]:
    """Yield each relevant document that is not found, with its kind of failure and step."""
    cutoff = fate_cutoff(run)
    for query_id, query in behaviour.items():
        counterparts = [other_run[query_id] for other_run in other_runs]
        for history in query.lost:
            kind_of_failure = _classify(
                history,
                fate_at(history, cutoff),
                query,
                counterparts,
            )
            if kind_of_failure:
                # The step that decided about a document, else showed it, else surfaced it.
                steps = [history.get(key) for key in ("decision_step", "shown_step", "search")]
                step = next((step for step in steps if step is not None), 0)
                yield kind_of_failure, {"query_id": query_id, "unit": history["unit"], "step": step}


def fate_cutoff(run: scored_run.ScoredRun) -> int:
    """Return the rank up to which a document counts as found."""
    return int((run.scores.get("losses") or {}).get("cutoff", 10))


def _classify(
    history: JsonMapping,
    fate: Fate,
    query: QueryBehaviour,
    counterparts: Sequence[QueryBehaviour],
) -> str:
    """Return the key in `KINDS` of a relevant document; "" if it is found."""
    if fate is Fate.FOUND:
        return ""
    if fate is Fate.NEVER_SURFACED:
        surfaced = any(history["unit"] in counterpart.surfaced for counterpart in counterparts)
        return "elsewhere" if surfaced else "nowhere"
    decision_step = history.get("decision_step")
    if fate in (Fate.SHOWN_IN_PART, Fate.NOT_SELECTED) and decision_step is not None:
        searches_of_notes = [
            searches for _, searches in query.notes if searches and searches[0] < decision_step
        ]
        fruitful = {step for value, step in query.figures["relevant"] if value}
        if searches_of_notes and fruitful.isdisjoint(searches_of_notes[-1]):
            return "misled"
    return fate.value


def _complement(
    first_run: Mapping[str, QueryBehaviour], second_run: Mapping[str, QueryBehaviour]
) -> Result:
    """Count the relevant documents that surfaced in two runs, and the recall of their union.

    "equal" compares them at equal searches: the union has half of each run's.
    """
    counts = Counter[str]()
    shares = defaultdict(list)
    for query_id, query in first_run.items():
        counterpart = second_run[query_id]
        first = query.surfaced
        second = counterpart.surfaced
        either = first.keys() | second.keys()
        relevant_count = len(query.lost)
        counts["both"] += len(first.keys() & second.keys())
        counts["first"] += len(first.keys() - second.keys())
        counts["second"] += len(second.keys() - first.keys())
        counts["neither"] += relevant_count - len(either)
        if not relevant_count:
            continue
        searches = min(
            query.figures["searches"][0][0],
            counterpart.figures["searches"][0][0],
        )
        half_of_each = _surfaced_by(first, (searches + 1) // 2)
        half_of_each |= _surfaced_by(second, searches // 2)
        at_equal = (_surfaced_by(first, searches), _surfaced_by(second, searches), half_of_each)
        for key, found in (("all", (first, second, either)), ("equal", at_equal)):
            shares[key].append([len(units) / relevant_count for units in found])
    means = {
        key: [fmean(column) for column in zip(*rows, strict=True)] for key, rows in shares.items()
    }
    return {"documents": counts, **means}


def _surfaced_by(surfaced: Mapping[str, int], searches: float) -> set[str]:
    """Return the units that the first `searches` searches surfaced."""
    return {unit for unit, number in surfaced.items() if number <= searches}


def lay_out_behaviour(result: Result) -> list[TextBlock]:
    """Lay out the result of `compare_behaviour` as lines and tables."""
    runs = result["runs"]
    labels = [run["system"] for run in runs]
    blocks: list[TextBlock] = [describe_task(result)]
    for label, run in zip(labels, runs, strict=True):
        blocks.append(f"{label}: {run['run']}  {describe_system(run)}")
    figures = []
    for key, words in FIGURES.items():
        row: JsonObject = {"mean": words}
        for label, run in zip(labels, runs, strict=True):
            mean = run["figures"][key]["mean"]
            row[label] = value_cell(mean, format_number(mean, unknown="-"))
        figures.append(row)
    failures = []
    cutoff = runs[0]["cutoff"]
    for key, words in KINDS.items():
        counts = [run["failures"][key]["documents"] for run in runs]
        if any(counts):
            row = {"by the first kind that applies": words.format(k=cutoff)}
            failures.append(row | dict(zip(labels, counts, strict=True)))
    for part, words in PARTS.items():
        shares = [(run["reach"] or {}).get(part) for run in runs]
        if any(share is not None for share in shares):
            row = {"mean": f"never surfaced, {part.replace('_', ' ')}: {words}"}
            figures.append(row | dict(zip(labels, map(figure_cell, shares), strict=True)))
    blocks += ["", tabulate("", figures)]
    title = f"relevant documents not among the first {cutoff}"
    blocks.append(tabulate(title, failures) if failures else f"{title}: none")
    for label, run in zip(labels, runs, strict=True):
        costs = []
        for key, cost in run["costs"].items():
            row = {
                "": key,
                **{name: cost.get(name, 0) for name in COSTS},
            }
            costs.append(row | {"seconds": figure_cell(row["seconds"], "{:,.1f}")})
        title = f"{label}: by hop, by model calls so far, and by kind of step"
        blocks.append(tabulate(title, costs))
    blocks += [_pair_table(pair, labels) for pair in result["pairs"]]
    return blocks


def _pair_table(pair: Result, labels: Sequence[str]) -> ResultTable:
    first, second = (labels[number] for number in pair["runs"])
    documents = pair["documents"]
    title = (
        f"relevant documents that surfaced: {documents['both']} in both, {documents['first']} in "
        f"{first} alone, {documents['second']} in {second} alone, {documents['neither']} in none"
    )
    shares = {
        "all": "recall of what surfaced",
        "equal": "at equal searches, half of them in each for both",
    }
    heads = (first, second, "both together")
    rows = []
    for key, label in shares.items():
        if key in pair:
            rows.append({"": label, **dict(zip(heads, map(figure_cell, pair[key]), strict=True))})
    return tabulate(title, rows)
