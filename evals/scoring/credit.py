"""Which searches of a run earned its score: the credit and the cost of each search.

The credit is the Shapley value (Shapley 1953) of the game whose players are a query's searches. For
the share of relevant documents that surfaced it has a closed form: each relevant document is worth
one divided by their number, in equal parts to all searches that returned it. For a metric of the
ranking by now (anytime_ranking.py) it is exact for up to 12 searches, and a mean over random orders
above. The ordered credit of a search is the value that it added to those before it.

Credit is accounting: a search that was written after another one might not have been written without
it (docs/decisions/comparing.md). Left out: runs of pairwise metrics.
"""

import math
import random
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from sextant.evals.run_descriptions import describe_system, describe_task
from sextant.evals.scoring import scored_run
from sextant.evals.scoring.behaviour import is_surfacing, read_same_queries
from sextant.evals.scoring.budget_curves import SEEN, RankedValue
from sextant.evals.scoring.metrics import canonicalize_metric, check_metric, is_pairwise
from sextant.evals.scoring.metrics import metric_from_attribution as score_ranking
from sextant.evals.scoring.system_names import name_systems
from sextant.tools.errors import UsageError
from sextant.tools.platform.result_table import TextBlock, figure_cell, tabulate
from sextant.tools.records import JsonMapping, JsonObject
from sextant.tools.text import content_words

SURFACED = SEEN[0]
EXACT = 12  # searches of a query whose 4,096 subsets are all valued
ORDERS = 200  # random orders of more searches
GROUPS = {"hop": "hop", "tool": "tool", "kind": "kind of search"}
KINDS = {
    "first": "the first search of a query",
    "again": "a search that goes on in a ranking, or whose words are all old",
    "old words": "at most half of its words are new",
    "new words": "more than half of its words are new",
}


class SearchCredit(NamedTuple):
    """The credit of a search, in the unit of the metric, and its cost until the next search."""

    step: int  # its number among the steps of its query, from 0
    hop: int
    tool: str
    kind: str  # of KINDS
    credit: float
    ordered: float
    calls: int
    tokens: int
    usd: float | None  # list price; None if it is unknown


class QueryCredit(NamedTuple):
    """The credits of a query's searches; with `base` and `rest` they sum to its `score`."""

    searches: Sequence[SearchCredit]
    score: float
    base: float  # without any search: of candidates that were given
    rest: float  # of the submission, beyond the ranking that the steps lead to
    error: float  # standard error of a credit, the largest of the query; 0 if they are exact
    surfaced: int  # relevant documents that a search brought
    shown: int  # relevant documents that a model was shown


def compare_credit(paths: Sequence[Path], metric: str = SURFACED, seed: int = 0) -> JsonObject:
    """Return the credit of searches of runs, by hop, tool and kind of search.

    `metric` is `surfaced`, or a metric of rankings. UsageError for runs that were not asked the
    same, and for a metric of pairs.
    """
    if metric != SURFACED:
        metric = canonicalize_metric(metric)
        check_metric(metric, custom=False)
        if is_pairwise(metric):
            raise UsageError(
                f"{metric} compares pairs, in which no search has a share; use {SURFACED}"
            )
    runs = read_same_queries(paths)
    rows = []
    for run, name in zip(runs, name_systems(runs), strict=True):
        about = {key: run.scores.get(key) for key in (*scored_run.NAMED, "compiled")}
        summed = add_up(credit_queries(run, metric, seed))
        known = {"usage_known": run.usage_known}
        rows.append({"run": run.name, "system": name, **about, **known, **summed})
    described = {key: (runs[0].config | runs[0].scores)[key] for key in scored_run.ABOUT}
    return {**described, "metric": metric, "kinds": KINDS, "runs": rows}


def credit_queries(run: scored_run.ScoredRun, metric: str, seed: int) -> dict[str, QueryCredit]:
    """Return the credit of each query of a run for which the metric is defined."""
    credits = {}
    ids = run.query_ids
    for outcome, row in zip(run.outcomes.rows(ids), run.judged.rows(ids), strict=True):
        if row["relevant"]:
            query_id = outcome["query_id"]
            generator = random.Random(f"{seed} {query_id}")
            credits[query_id] = credit_query(outcome, row, metric, run.config["depth"], generator)
    return credits


def credit_query(
    outcome: JsonMapping, row: JsonMapping, metric: str, depth: int, generator: random.Random
) -> QueryCredit:
    """Return the credit of the searches of a query, by its lines of outcomes.jsonl and attribution.jsonl."""
    steps = outcome["trace"]["steps"]
    units = row.get("units", {})
    relevant = {history["unit"] for history in row["relevant"]}
    numbers = [number for number, step in enumerate(steps) if is_surfacing(step)]
    brought = [
        {units.get(doc_id, doc_id) for doc_id in steps[number]["doc_ids"]} for number in numbers
    ]
    found = [unit & relevant for unit in brought]
    surfaced = set[str]().union(*found)
    error = base = rest = 0.0
    if metric == SURFACED:
        credits = share_equally(found, len(relevant))
        ordered = _share_first(found, len(relevant))
        score = len(surfaced) / len(relevant)
    else:
        value = _value_of_searches(steps, numbers, row, metric, depth)
        base = value(frozenset())
        everything = value(frozenset(range(len(numbers))))
        score = score_ranking(metric, outcome["ranking"], row) or 0.0
        rest = score - everything
        ordered = _add_in_order(range(len(numbers)), value)
        if len(numbers) <= EXACT:
            credits = shapley(len(numbers), value)
        else:
            credits, error = sample_shapley(len(numbers), value, generator)
    kinds = _name_kinds([steps[number] for number in numbers])
    ends = [*numbers[1:], len(steps)]
    searches = []
    for place, (number, end) in enumerate(zip(numbers, ends, strict=True)):
        step = steps[number]
        usages = [step["usage"] for step in steps[number:end] if step.get("usage")]
        prices = [usage["list_usd"] for usage in usages]
        searches.append(
            SearchCredit(
                number,
                step.get("hop", 0),
                step["tool"],
                kinds[place],
                credits[place],
                ordered[place],
                sum(usage["calls"] for usage in usages),
                sum(usage["input_tokens"] + usage["output_tokens"] for usage in usages),
                None if None in prices else math.fsum(prices),
            )
        )
    shown = sum(history["chars"] > 0 for history in row["relevant"])
    return QueryCredit(searches, score, base, rest, error, len(surfaced), shown)


def share_equally(found: Sequence[Collection[str]], relevant: int) -> list[float]:
    """Return the Shapley value of each search for the share of `relevant` documents that surfaced.

    `found` has the relevant documents that each search returned. A document's 1 / `relevant` is
    divided among the searches that returned it.
    """
    returned = defaultdict[str, int](int)
    for units in found:
        for unit in units:
            returned[unit] += 1
    return [math.fsum(1 / (relevant * returned[unit]) for unit in units) for units in found]


def _share_first(found: Sequence[Collection[str]], relevant: int) -> list[float]:
    seen = set[str]()
    shares = []
    for units in found:
        shares.append(len(set(units) - seen) / relevant)
        seen |= set(units)
    return shares


def shapley(players: int, value: Callable[[frozenset[int]], float]) -> list[float]:
    """Return the Shapley value of each of `players`, by the values of all their subsets.

    The sum is the value of all less that of none.
    """
    values = [
        value(frozenset(player for player in range(players) if subset >> player & 1))
        for subset in range(1 << players)
    ]
    weights = [1 / (players * math.comb(players - 1, size)) for size in range(players)]
    credits = []
    for player in range(players):
        added = (
            weights[subset.bit_count()] * (values[subset | 1 << player] - before)
            for subset, before in enumerate(values)
            if not subset >> player & 1
        )
        credits.append(math.fsum(added))
    return credits


def sample_shapley(
    players: int, value: Callable[[frozenset[int]], float], generator: random.Random
) -> tuple[list[float], float]:
    """Estimate Shapley values by random orders and their reverses; return them, and the largest standard error.

    The sum is exact: each order's is. Castro, Gomez and Tejada 2009; reverses after Mitchell et al. 2022.
    """
    means = []
    for _ in range(ORDERS // 2):
        order = generator.sample(range(players), players)
        pair = (_add_in_order(order, value), _add_in_order(order[::-1], value))
        means.append([math.fsum(both) / 2 for both in zip(*pair, strict=True)])
    credits = []
    errors = []
    for samples in zip(*means, strict=True):
        mean = math.fsum(samples) / len(samples)
        variance = math.fsum((sample - mean) ** 2 for sample in samples) / (len(samples) - 1)
        credits.append(mean)
        errors.append(math.sqrt(variance / len(samples)))
    return credits, max(errors)


def _add_in_order(order: Sequence[int], value: Callable[[frozenset[int]], float]) -> list[float]:
    """Return the value that each player adds to those before it in an order, by player."""
    before = value(frozenset())
    added = [0.0] * len(order)
    for place, player in enumerate(order):
        after = value(frozenset(order[: place + 1]))
        added[player] = after - before
        before = after
    return added


def _value_of_searches(
    steps: Sequence[JsonMapping],
    numbers: Sequence[int],
    row: JsonMapping,
    metric: str,
    depth: int,
) -> Callable[[frozenset[int]], float]:
    """Return the metric of the ranking by now, if only some searches had been made.

    Selections, orders and drops stay, without documents that only other searches brought.
    """
    searched = {number: place for place, number in enumerate(numbers)}
    bringing = defaultdict[str, set[int]](set)
    for number, place in searched.items():
        for doc_id in steps[number]["doc_ids"]:
            bringing[doc_id].add(place)
    kept = dict[frozenset[int], float]()

    def value(made: frozenset[int]) -> float:
        if made not in kept:
            ranked = RankedValue(row, metric, depth)
            for number, step in enumerate(steps):
                if number not in searched:
                    doc_ids = [
                        doc_id
                        for doc_id in step["doc_ids"]
                        if doc_id not in bringing or not made.isdisjoint(bringing[doc_id])
                    ]
                    ranked.add({**step, "doc_ids": doc_ids})
                elif searched[number] in made:
                    ranked.add(step)
            kept[made] = ranked.value() or 0.0
        return kept[made]

    return value


def _name_kinds(searches: Sequence[JsonMapping]) -> list[str]:
    seen = set[str]()
    kinds = list[str]()
    for step in searches:
        words = set(content_words(step["argument"]))
        new = len(words - seen)
        if not kinds:
            kinds.append("first")
        elif step["tool"] == "more" or not new:
            kinds.append("again")
        else:
            kinds.append("new words" if 2 * new > len(words) else "old words")
        seen |= words
    return kinds


def add_up(queries: Mapping[str, QueryCredit]) -> JsonObject:
    """Return the sums of a run: means over queries of score and credit, and the cost of searches.

    `idle` counts searches without credit, and their calls, tokens and dollars.
    """
    groups = {name: defaultdict[str, list[SearchCredit]](list) for name in GROUPS}
    for query in queries.values():
        for search in query.searches:
            for name, members in groups.items():
                members[str(getattr(search, name))].append(search)
    count = max(len(queries), 1)
    searches = [search for query in queries.values() for search in query.searches]
    return {
        "queries": len(queries),
        **{
            name: math.fsum(getattr(query, name) for query in queries.values()) / count
            for name in ("score", "base", "rest")
        },
        "error": max((query.error for query in queries.values()), default=0.0),
        "surfaced": sum(query.surfaced for query in queries.values()),
        "shown": sum(query.shown for query in queries.values()),
        "all": _describe_group(searches, count),
        "groups": {
            name: {
                key: _describe_group(members[key], count)
                for key in sorted(members, key=lambda key: (len(key) if name == "hop" else 0, key))
            }
            for name, members in groups.items()
        },
        "by_query": {
            query_id: [search._asdict() for search in query.searches]
            for query_id, query in queries.items()
        },
    }


def _describe_group(searches: Sequence[SearchCredit], queries: int) -> JsonObject:
    idle = [search for search in searches if not search.credit]
    described: JsonObject = {
        "searches": len(searches),
        "credit": math.fsum(search.credit for search in searches) / queries,
        "ordered": math.fsum(search.ordered for search in searches) / queries,
    }
    for name, members in (("", searches), ("idle_", idle)):
        prices = [search.usd for search in members]
        described |= {
            f"{name}calls": sum(search.calls for search in members),
            f"{name}tokens": sum(search.tokens for search in members),
            f"{name}usd": None if None in prices else math.fsum(filter(None, prices)),
        }
    return described | {"idle": len(idle)}


def lay_out_credit(result: JsonObject) -> list[TextBlock]:
    """Lay out the result of `compare_credit` as lines and tables."""
    blocks: list[TextBlock] = [describe_task(result)]
    for run in result["runs"]:
        blocks += ["", f"{run['system']}: {run['run']}  {describe_system(run)}"]
        rows = [_row("all", run["all"])]
        for group, members in run["groups"].items():
            rows += [
                _row(f"{GROUPS[group]} {name}", described) for name, described in members.items()
            ]
        parts = [f"{result['metric']} {run['score']:.4f} over {run['queries']} queries"]
        for key, words in (
            ("base", "without any search"),
            ("rest", "of the submission beyond its steps"),
        ):
            if run[key]:
                parts.append(f"{run[key]:+.4f} {words}")
        if run["error"]:
            parts.append(f"credits of over {EXACT} searches are estimated, to {run['error']:.4f}")
        blocks.append(tabulate("; ".join(parts), rows))
        if not run["usage_known"]:
            blocks.append("what it used is not known: its calls and prices say nothing")
        for seen in ("surfaced", "shown"):
            if run[seen] and run["usage_known"]:
                blocks.append(_say_cost(run["all"], run[seen], seen))
    blocks += [
        "",
        "credit is accounting: without an earlier search, a later one might not have been written",
    ]
    return blocks


def _row(name: str, described: JsonMapping) -> JsonObject:
    return {
        "": name,
        "searches": described["searches"],
        "credit": figure_cell(described["credit"]),
        "in order": figure_cell(described["ordered"]),
        "calls": described["calls"],
        "list price": _dollars(described["usd"]),
        "without credit": described["idle"],
        "their calls": described["idle_calls"],
        "their price": _dollars(described["idle_usd"]),
    }


def _dollars(usd: float | None) -> str:
    return "unknown" if usd is None else f"${usd:,.4f}"


def _say_cost(described: JsonMapping, documents: int, seen: str) -> str:
    price = "" if described["usd"] is None else f", {_dollars(described['usd'] / documents)}"
    calls = described["calls"] / documents
    tokens = described["tokens"] / documents
    return f"a relevant document that was {seen}: {calls:,.1f} calls, {tokens:,.0f} tokens{price}"
