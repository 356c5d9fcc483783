"""Compare runs with a baseline, query by query.

Each other system is compared with the first in every metric (statistics.py has the tests,
docs/decisions/comparing.md their reasons), and in the fates of relevant documents, from run folders
alone. Runs that were not asked the same are refused. Tests of the headline metric are a family, as
they are in a study; those of all other metrics are another.

Runs whose configurations differ in the seed at most are repeats of a system. A query's mean over
its repeats is paired. The change of a fate's share of recall (traces.py) has no test, because a
fate that is looked at after the fact is no hypothesis.
"""

import dataclasses
import json
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

from sextant.environments.base import Environment
from sextant.evals import run_folder
from sextant.evals.run_folder import load_environment
from sextant.evals.run_schemas import FATE_LABELS, Fate
from sextant.evals.scoring import harness_card
from sextant.evals.scoring.attribution import choose_cutoffs, fate_at
from sextant.evals.scoring.metrics import (
    add_metrics,
    compute,
    digest_metric_code,
    is_custom,
    is_lower_better,
    is_pairwise,
    is_weighted,
    metric_from_attribution,
    orient,
    ranking_of,
    require_metrics,
)
from sextant.evals.scoring.score_run import describe_cuts, query_weights, summarise_columns
from sextant.evals.scoring.scored_run import (
    ABOUT,
    CONTRACT,
    NAMED,
    USED,
    Column,
    ScoredRun,
    align_columns,
    contract_differences,
    describe_differences,
    list_deviations,
    read_scored_run,
)
from sextant.evals.scoring.statistics import (
    OTHERS,
    TIE,
    PairedTest,
    estimate_difference,
    run_tests,
    subtract_columns,
)
from sextant.evals.scoring.system_names import name_systems
from sextant.evals.scoring.system_ranking import rank_systems
from sextant.tools.errors import DataError, SextantError, UnknownName, UsageError
from sextant.tools.platform.number_format import plural
from sextant.tools.records import JsonObject

Result = JsonObject  # what `compare` returns and --json prints
MOVED = 5  # queries shown that moved most, up and down each
SEEDS = (
    "lm",
    "parameters",
)  # where a configuration has a seed: of the model's sampling, and of a program's shuffles
_FIRST = (
    "program",
    "compiled",
    "parameters",
    "retriever",
    "lm",
)  # in a table; the rest follows by name
# query_id -> relevant unit -> its fate; queries without a relevant unit are left out
Fates = dict[str, dict[str, Fate]]
EXAMPLES = 3  # queries named of a flow
_ORDER = {fate: position for position, fate in enumerate(FATE_LABELS)}


@dataclass(frozen=True)
class ComparedSystem:
    """A system with its runs, in the order in which they were named."""

    runs: tuple[ScoredRun, ...]  # the first stands for all where they do not differ

    @property
    def name(self) -> str:
        """The path of its first run as given."""
        return self.runs[0].name

    @property
    def metrics(self) -> list[str]:
        """The metrics that all its runs have, in the order of the first run's table."""
        return [
            name for name in self.runs[0].columns if all(name in run.columns for run in self.runs)
        ]

    def values(self, metric: str) -> dict[str, float]:
        """Return query -> its mean over the repeats, for queries in which all of them have
        the metric.
        """
        rows = align_columns(*(run.columns[metric] for run in self.runs))
        return {query_id: math.fsum(row) / len(row) for query_id, row in rows.items()}

    def describe(self, name: str, metrics: Sequence[str]) -> Result:
        """Describe the system, its runs, and how far apart these are in each metric; spread is None
        for a run.
        """
        first = self.runs[0]
        spread = None
        if len(self.runs) > 1:
            spread = {
                metric: _measure_spread(self.runs, metric, self.values(metric))
                for metric in metrics
            }
        return {
            "name": name,
            "run": self.name,
            **{key: first.scores[key] for key in NAMED},
            "compiled": first.scores.get("compiled"),
            "parameters": first.config["parameters"],
            "repeats": [run.name for run in self.runs],
            "spread": spread,
        }

    def cost(self) -> Result:
        """Return the average cost of a query, a key for each of `USED`; None for values that a run
        lacks.
        """
        scores = [run.scores for run in self.runs]
        row: Result = {
            "run": self.name,
            **{key: sum(of_run[key] for of_run in scores) for key in ("queries", "failed")},
            "repeats": len(scores),
        }
        is_known = all(run.usage_known for run in self.runs)
        for key in USED:
            usages = [of_run["usage"].get(key, 0) for of_run in scores]
            per_query = is_known and None not in usages
            row[f"{key}_per_query"] = sum(usages) / row["queries"] if per_query else None
        return row


# A baseline, another system, and the metric in which they are compared.
Contrast = tuple[ComparedSystem, ComparedSystem, str]


def compare(
    paths: Sequence[Path], metrics: Sequence[str] = (), *, force: bool = False, fewest: int = 1
) -> Result:
    """Compare the system of the first run folder with each of the others, in all common metrics if
    none is named.

    `fewest` is the least number of tests of the headline metric to correct for, if there are others
    elsewhere. A metric that a run's scores lack is computed from its outcomes. UnknownName for no metric,
    UsageError for runs that were not asked the same, unless `force`; DataError or RunIncomplete for
    a run without scores.
    """
    if len(paths) < 2:
        raise UsageError("one run has nothing to be compared with; name two or more run folders")
    metrics = require_metrics(metrics)
    runs, problems = fill_metrics([read_scored_run(path) for path in paths], metrics)
    if problems:
        raise problems[0]
    baseline, *systems_compared = systems = _group(runs, paths)
    forced, notes = _check_contracts(runs, force=force)
    chosen = [_choose_metrics(baseline, system, metrics) for system in systems_compared]
    check_metric_code(runs, dict.fromkeys(name for names in chosen for name in names))
    pairs = list(zip(systems_compared, chosen, strict=True))
    contrasts = [(baseline, system, name) for system, names in pairs for name in names]
    headline = chosen[0][0]
    comparisons = _test_contrasts(contrasts, headline, fewest)
    untested = [row["metric"] for row in comparisons if row["p"] is None]
    shared = [name for name in chosen[0] if all(name in names for names in chosen)]
    columns = [{name: Column(system.values(name)) for name in shared} for system in systems]
    losses, without_losses = _compare_losses(baseline, systems_compared)
    names = name_systems([system.runs[0] for system in systems])
    described = zip(systems, names, [chosen[0], *chosen], strict=True)
    cards = {system.name: _compare_cards(baseline, system) for system in systems_compared}
    # the first in a run's table
    first = runs[0]
    return {
        "baseline": baseline.name,
        "runs": [system.name for system in systems_compared],
        **{key: (first.config | first.scores)[key] for key in ABOUT},
        "metric": headline,
        "forced": forced,
        "notes": [
            *notes,
            *([] if metrics else _note_left_out(baseline, pairs)),
            *note_exhausted(
                runs, [row["metric"] for row in comparisons if row["queries"] and row["p"] is None]
            ),
            *_note_metrics(comparisons),
            *without_losses,
            *_note_repeats(systems, runs, headline),
            *harness_card.describe_differences(cards),
            *(f"{run.name}: {line}" for run in runs for line in describe_cuts(run.scores)),
        ],
        "deviations": list_deviations(runs),
        "systems": [system.describe(name, own) for system, name, own in described],
        "differences": [
            {"run": name, "keys": _changed_keys(baseline, system), "harness": cards[name]}
            for name, system in zip(cards, systems_compared, strict=True)
        ],
        "comparisons": comparisons,
        "by_metric": rank_systems(columns, shared, untested, headline),
        "losses": losses,
        "cost": [system.cost() for system in systems],
        "moved": [
            row for system, of_pair in pairs for row in _find_moved(baseline, system, of_pair[0])
        ],
        "worse": [_find_worse(baseline, system, of_pair[0]) for system, of_pair in pairs],
    }


def fill_metrics(
    runs: Sequence[ScoredRun], names: Iterable[str]
) -> tuple[list[ScoredRun], list[SextantError]]:
    """Return the runs, with a column for each metric that they lacked and can have, and an
    error for each other.
    """
    loaded = dict[str, Environment]()
    names = [name for name in names if "[" not in name]
    problems = []
    filled_runs = []
    for run in runs:
        columns = dict(run.columns)
        metrics = dict(run.scores["metrics"])
        metric_code = dict(run.scores.get("metric_code", {}))
        resampled = any("resampled" in metric for metric in metrics.values())
        for name in names:
            if name in columns:
                continue
            try:
                columns[name], weights = _compute_column(run, name, loaded)
                metrics |= summarise_columns(
                    {name: columns[name]}, {name: weights}, resampled=resampled
                )
                if is_custom(name):
                    metric_code[name] = digest_metric_code(name)
            except SextantError as problem:
                problems.append(
                    problem.saying(f"{name} of {run.name} cannot be computed: {problem}")
                )
        scores = run.scores | {"metrics": metrics, "metric_code": metric_code}
        filled_runs.append(dataclasses.replace(run, scores=scores, columns=columns))
    return filled_runs, problems


def check_metric_code(runs: Sequence[ScoredRun], names: Iterable[str]) -> None:
    """Raise UsageError if a user's metric was computed by different code for two of the runs."""
    for name in names:
        codes = [run.scores.get("metric_code", {}).get(name, "") for run in runs]
        for run, code in zip(runs, codes, strict=True):
            if code != codes[0]:
                raise UsageError(
                    f"{name} was computed by different code for {runs[0].name} and {run.name}; "
                    f"score both again: sextant score RUN --metric {name}"
                )


def _compute_column(
    run: ScoredRun, name: str, loaded: dict[str, Environment]
) -> tuple[Column, dict[str, int]]:
    if not is_pairwise(name) and not name.startswith("Judged"):
        outcomes = run.outcomes
        judged = run.judged
        return {
            query_id: metric_from_attribution(name, outcomes[query_id]["ranking"], judged[query_id])
            for query_id in run.query_ids
        }, {}
    # No corpus is loaded to find this out.
    if is_pairwise(name) and not any(map(is_pairwise, run.columns)):
        raise UsageError(f"{run.config['task']} has no such comparisons")
    key = json.dumps(
        [run.contract, run.config[run_folder.PROVENANCE]["folder"]],
        sort_keys=True,
    )
    if key not in loaded:
        try:
            loaded[key] = load_environment(
                run.config, run.scores["judgements"], run.scores["relevant_from"]
            )
        except SextantError as problem:
            raise DataError(f"its data is not here any more ({problem})") from None
    environment = add_metrics(loaded[key], [name])
    rankings = {query_id: ranking_of(run.outcomes[query_id]) for query_id in run.query_ids}
    column = {
        query_id: compute(name, query_id, rankings, environment) for query_id in run.query_ids
    }
    return column, query_weights(name, environment)


def _group(runs: list[ScoredRun], paths: Sequence[Path]) -> list[ComparedSystem]:
    grouped = _group_repeats(runs)
    # A run may be compared with itself, but it is not two repeats, nor two of the others.
    seen = set[Path]()
    for path in paths if len(grouped) > 1 else paths[1:]:
        if path.resolve() in seen:
            raise UsageError(f"{path} is named twice; name each run once")
        seen.add(path.resolve())
    return grouped if len(grouped) > 1 else [ComparedSystem((run,)) for run in runs]


def _group_repeats(runs: Sequence[ScoredRun]) -> list[ComparedSystem]:
    grouped: dict[str, list[ScoredRun]] = {}
    for run in runs:
        config = run_folder.Config(run.config)
        del config[run_folder.PROVENANCE]
        for key in SEEDS:
            config[key] = {name: value for name, value in config[key].items() if name != "seed"}
        key = json.dumps([config, run.scores["judgements"]], sort_keys=True)
        grouped.setdefault(key, []).append(run)
    return [ComparedSystem(tuple(repeats)) for repeats in grouped.values()]


def _measure_spread(
    runs: Sequence[ScoredRun], metric: str, query_ids: Collection[str]
) -> float | None:
    if len(runs) < 2 or not query_ids:
        return None
    return stdev(
        fmean(run.columns[metric][query_id] or 0.0 for query_id in query_ids) for run in runs
    )


def _check_contracts(runs: list[ScoredRun], *, force: bool) -> tuple[list[str], list[str]]:
    baseline = runs[0]
    forced = []
    notes = []
    for run in runs[1:]:
        differ = contract_differences(baseline, run)
        if "data_fingerprint" in differ:
            differ["data_fingerprint"] += "; of texts, queries, judgements, exclusions and pools"
        problem = describe_differences(baseline, run, differ)
        if not set(baseline.query_ids) & set(run.query_ids):
            raise UsageError(f"{problem}; without a common query there is nothing to pair")
        if differ and not force:
            raise UsageError(f"{problem}; compare runs that agree in these, or give --force")
        forced += [key for key in differ if key not in forced]
        notes += [f"forced: {problem}"] if differ else []
    return forced, notes


def _choose_metrics(
    baseline: ComparedSystem, system: ComparedSystem, metrics: Sequence[str]
) -> list[str]:
    common = [name for name in baseline.metrics if name in system.metrics]
    if strange := [name for name in metrics if name not in common]:
        raise UnknownName("metric of both runs", strange[0], common)
    if not common:
        raise UsageError(f"{baseline.name} and {system.name} have no metric in common")
    return [name for name in common if not metrics or name in metrics]


def _note_left_out(
    baseline: ComparedSystem, pairs: Sequence[tuple[ComparedSystem, Sequence[str]]]
) -> list[str]:
    """Name the metrics that are not compared because a run lacks them, in a note; none if all runs
    have all.
    """
    left_out = dict.fromkeys(
        metric
        for system, compared in pairs
        for run in (*baseline.runs, *system.runs)
        for metric in run.columns
        if metric not in compared
    )
    return [f"left out, as not all runs have them: {', '.join(left_out)}"] if left_out else []


def note_exhausted(runs: Iterable[ScoredRun], metrics: Iterable[str]) -> list[str]:
    """Say in a line why `metrics` are not tested: they are as deep as all that was searched;
    none for no metric.
    """
    names = ", ".join(dict.fromkeys(metrics))
    searched = [run.searched for run in runs if run.searched]
    if not names or not searched:
        return []
    largest = max(searched, key=lambda part: part.documents)
    size = f"{largest.name} of {plural(largest.documents, 'document')}"
    return [f"not tested, as a ranking may have all of the {size}: {names}"]


def _test_contrasts(contrasts: Sequence[Contrast], headline: str, fewest: int = 1) -> list[Result]:
    """Return a row for each contrast; those of the headline metric are a family of tests, and those
    of all others another. A metric that is not tested is in none.
    """
    # family -> its rows, each with its differences
    families: dict[str, list[tuple[Result, list[np.ndarray]]]] = {}
    rows = list[Result]()
    for baseline, system, metric in contrasts:
        row: Result = {"run": system.name, "metric": metric}
        row |= dict.fromkeys(("baseline_mean", "mean", *PairedTest._fields, "family"))
        row |= dict.fromkeys(("wins", "ties", "losses", "queries"), 0)
        rows.append(row)
        aligned = align_columns(baseline.values(metric), system.values(metric)).values()
        if not aligned:
            continue
        before, after = zip(*aligned, strict=True)
        row["baseline_mean"] = math.fsum(before) / len(before)
        row["mean"] = math.fsum(after) / len(after)
        differences = [subtract_columns(before, after)]
        # If the metric counts all documents of each run, there is nothing to test.
        if all(run.is_exhausted_by(metric) for run in (*baseline.runs, *system.runs)):
            row |= run_tests([differences])[0]._asdict()
            row |= dict.fromkeys(("p", "p_holm", "detectable", "tests"))
        else:
            row["family"] = headline if metric == headline else OTHERS
            families.setdefault(row["family"], []).append((row, differences))
    for family, tested in families.items():
        of_family = [differences for _, differences in tested]
        results = run_tests(of_family, fewest if family == headline else 1)
        for (row, _), result in zip(tested, results, strict=True):
            row |= result._asdict()
    return rows


def _note_metrics(comparisons: list[Result]) -> list[str]:
    notes = []
    compared = [row["metric"] for row in comparisons]
    if any(map(is_weighted, compared)):
        notes.append(
            "Triplets: each query counts once here, and as often as it has triplets in a run's "
            "own table"
        )
    if lower := next(filter(is_lower_better, compared), ""):
        notes.append(
            f"{lower}: lower is better, so a query that is won here is one with more of it"
        )
    return notes


def _note_repeats(systems: list[ComparedSystem], runs: list[ScoredRun], metric: str) -> list[str]:
    if len(_group_repeats(runs)) == 1 and len({run.path.resolve() for run in runs}) > 1:
        columns = [run.columns.get(metric, {}) for run in runs]
        deviation = _measure_spread(runs, metric, align_columns(*columns))
        by = f" ({deviation:.4f} in {metric}, standard deviation)" if deviation is not None else ""
        return [
            f"all of these are one configuration repeated, so they differ by chance{by}; "
            "name another system's runs beside them"
        ]
    if all(len(system.runs) == 1 for system in systems):
        return []
    return [
        "repeats: a query counts once, by its mean over them; the interval is of queries with all "
        "their repeats"
    ]


def _changed_keys(baseline: ComparedSystem, system: ComparedSystem) -> dict[str, list[Any]]:
    old_config = baseline.runs[0].config
    new_config = system.runs[0].config
    before = _flatten(old_config)
    after = _flatten(new_config)
    keys = dict.fromkeys([*before, *after])
    changed = {key for key in keys if _identity(before.get(key)) != _identity(after.get(key))}
    # A parameter that only one of two programs has is no choice between the two.
    if "program" in changed:
        changed -= {key for key in before.keys() ^ after.keys() if key.startswith("parameters.")}
    # These have modules or libraries of their own, so that a difference in "code" tells nothing.
    own_modules = [
        section
        for section in ("compiled", "pool", "limits")
        if bool(old_config.get(section)) is not bool(new_config.get(section))
    ]
    if own_modules or changed & {"program", "retriever.name", "lm.name"}:
        changed = {key for key in changed if key.partition(".")[0] not in ("code", "versions")}
    # Repeats differ in the seed, the systems do not.
    if len(baseline.runs) > 1 or len(system.runs) > 1:
        changed -= {f"{section}.seed" for section in SEEDS}
    return {key: [before.get(key), after.get(key)] for key in keys if key in changed}


def _flatten(config: run_folder.Config) -> JsonObject:  # without contract and provenance
    flat = dict[str, Any]()
    first = [key for key in _FIRST if key in config]
    for key in dict.fromkeys([*first, *sorted(config)]):
        value = config[key]
        if key in CONTRACT or key == run_folder.PROVENANCE:
            continue
        if isinstance(value, dict) and key != "compiled":
            flat |= {f"{key}.{name}": value[name] for name in sorted(value)}
        else:
            flat[key] = value
    return flat


def _identity(value: Any) -> Any:
    return value["digest"] if isinstance(value, dict) and "digest" in value else value


def _compare_cards(baseline: ComparedSystem, system: ComparedSystem) -> JsonObject:
    """Return the parts of the harness in which two systems differ, each with both values."""
    before, after = baseline.runs[0], system.runs[0]
    parts = harness_card.list_differences(before.config, after.config)
    if before.query_ids != after.query_ids:  # the card counts queries there, so it tells nothing
        parts.pop("withheld", None)
    return parts


def _find_worse(baseline: ComparedSystem, system: ComparedSystem, metric: str) -> Result:
    """Return the queries in which a system is worse than the baseline, worst first."""
    gains = dict[str, float]()
    aligned = align_columns(baseline.values(metric), system.values(metric))
    for query_id, (before, after) in aligned.items():
        # Rounded, as equal differences may be summed differently.
        gain = round(orient(metric, after - before), 12)
        if gain < 0:
            gains[query_id] = gain
    query_ids = sorted(gains, key=gains.__getitem__)
    return {"run": system.name, "metric": metric, "query_ids": query_ids}


def _find_moved(baseline: ComparedSystem, system: ComparedSystem, metric: str) -> list[Result]:
    rows = list[Result]()
    aligned = align_columns(baseline.values(metric), system.values(metric))
    for query_id, (before, after) in aligned.items():
        difference = after - before
        if abs(difference) >= TIE:
            row: Result = {"run": system.name, "metric": metric, "query_id": query_id}
            rows.append(
                row
                | {
                    "baseline": before,
                    "value": after,
                    "difference": difference,
                }
            )
    rows.sort(key=lambda row: (-abs(row["difference"]), row["query_id"]))
    gained = [row for row in rows if row["difference"] > 0]
    lost = [row for row in rows if row["difference"] < 0]
    return gained[:MOVED] + lost[:MOVED]


def _compare_losses(
    baseline: ComparedSystem, systems: list[ComparedSystem]
) -> tuple[list[Result], list[str]]:
    """Return a row a system on the fates of relevant documents (means over repeats), and
    notes on missing data.
    """
    rows = []
    notes = dict[str, None]()
    k = choose_cutoffs(
        baseline.runs[0].metric,
        baseline.runs[0].columns,
    )[0]
    for system in systems:
        try:
            before = [_read_fates(run, k) for run in baseline.runs]
            after = [_read_fates(run, k) for run in system.runs]
        except DataError as problem:
            notes[f"no losses compared: {problem}"] = None
            continue
        shared = set[str].intersection(*map(set[str], (*before, *after)))
        query_ids = [query_id for query_id in before[0] if query_id in shared]
        if query_ids:
            row = {"run": system.name, "cutoff": k, "queries": len(query_ids)}
            row["changes"] = _change_shares(before, after, query_ids)
            rows.append(row | _count_flows(before, after, query_ids))
    return rows, list(notes)


# no more of each line: there may be a million documents
def _read_fates(run: ScoredRun, k: int) -> Fates:
    fates = Fates()
    for query_id, row in zip(
        run.query_ids,
        run.judged.rows(run.query_ids),
        strict=True,
    ):
        if row["relevant"]:
            fates[query_id] = {one["unit"]: fate_at(one, k) for one in row["relevant"]}
    return fates


def _share_fates(repeats: list[Fates], query_ids: list[str]) -> np.ndarray:
    """Return the shares of fates of each query, a row for each fate."""
    shares = np.zeros((len(_ORDER), len(query_ids)))
    for fates in repeats:
        for place, query_id in enumerate(query_ids):
            for fate in fates[query_id].values():
                shares[_ORDER[fate], place] += 1 / len(fates[query_id])
    return shares / len(repeats)


def _change_shares(before: list[Fates], after: list[Fates], query_ids: list[str]) -> list[Result]:
    changes = []
    shares = zip(
        _ORDER, _share_fates(before, query_ids), _share_fates(after, query_ids), strict=True
    )
    for fate, old, new in shares:
        if old.any() or new.any():
            mean, low, high = estimate_difference([new - old])
            changes.append(
                {
                    "fate": fate.value,
                    "baseline": float(old.mean()),
                    "share": float(new.mean()),
                    "difference": mean,
                    "low": low,
                    "high": high,
                }
            )
    return changes


def _count_flows(before: list[Fates], after: list[Fates], query_ids: list[str]) -> Result:
    moved: dict[tuple[Fate, Fate], list[str]] = {}  # the query of each document
    for query_id, fates_before, fates_after in product(query_ids, before, after):
        old_fates = fates_before[query_id]
        new_fates = fates_after[query_id]
        # All units are in both, unless other judgements were forced.
        for unit in old_fates.keys() & new_fates.keys():
            moved.setdefault((old_fates[unit], new_fates[unit]), []).append(query_id)
    pairs = len(before) * len(after)

    def mean(count: int) -> float:  # a whole number of documents where there is one pair
        return count if pairs == 1 else count / pairs

    same = sum(len(found) for (start, end), found in moved.items() if start is end)
    order = sorted(
        moved.items(), key=lambda flow: (-len(flow[1]), *map(_ORDER.__getitem__, flow[0]))
    )
    return {
        "same": mean(same),
        "flows": [
            {
                "from": start.value,
                "to": end.value,
                "documents": mean(len(found)),
                "queries": len(set(found)),
                "examples": list(dict.fromkeys(found))[:EXAMPLES],
            }
            for (start, end), found in order
            if start is not end
        ],
    }


def compare_pairs(paths: Sequence[Path], metric: str) -> list[Result]:
    """Compare each pair of the systems of run folders in a metric.

    A row is as in `compare`, with "baseline" for the earlier system; all pairs are a family. Runs
    may differ in their questions; UsageError for runs without a common query.
    """
    runs, problems = fill_metrics([read_scored_run(path) for path in paths], [metric])
    if problems:
        raise problems[0]
    systems = _group(runs, paths)
    _check_contracts(runs, force=True)
    pairs = list(combinations(systems, 2))
    rows = _test_contrasts([(*pair, metric) for pair in pairs], metric)
    for (baseline, _), row in zip(pairs, rows, strict=True):
        row["baseline"] = baseline.name
    return rows
