"""Names and values of metrics: of rankings (environments/ranking_metrics.py), of pairwise comparisons,
and a user's own. Reads no files.

Win(x)   the share of a query's comparisons of that label that are won: strictly higher score, ties lose
Win      of all its comparisons; Triplets is the label of BIRCO's dev triplets (appendix D), averaged over triplets
Flip     the share of comparisons that come out otherwise for the query's twin. Less is better, so a comparison counts
         as flipped if either wording ranks neither of its documents: a failure would otherwise have the best value

k is any whole number above 0; without @k the whole ranking counts. An undefined metric is None, and
its query is left out of the mean: recall if nothing is relevant, Win(3) if no comparison has that
label. A metric of the user's own is FILE.py:NAME, package.module:NAME or an entry point, each with a
depth or without (docs/guide/extend.md). Intervals and tests of means are in statistics.py.
"""

import dataclasses
import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from sextant.environments.judged_ranking import JudgedRanking, RankingMetric
from sextant.environments.ranking_metrics import (
    METRIC_NAME,
    PAIRWISE,
    RANKING,
    judged_share,
    translate_metric,
)
from sextant.tools import code_digest, plugins, user_files
from sextant.tools.errors import NotApplicable, OwnCodeFailed, UnknownName, UsageError
from sextant.tools.records import JsonMapping

if TYPE_CHECKING:
    from sextant.environments.base import Comparison, Environment, Judgements

# metric -> query_id -> value, in [0, 1] but for a user's own metric; None if it is undefined
Values = dict[str, dict[str, float | None]]


@dataclass(frozen=True)
class Ranking:
    """The ranking that a system submitted for a query."""

    doc_ids: Sequence[str]  # best first, each at most once
    scores: Sequence[float] = ()  # one a document, where the system gave any

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {doc_id: position for position, doc_id in enumerate(self.doc_ids)}

    def wins(self, comparison: "Comparison") -> bool:
        """Return whether the better document is strictly above the worse document.

        Documents that are not ranked are below all that are.
        """
        better = self._positions.get(comparison.better)
        worse = self._positions.get(comparison.worse)
        if better is None or worse is None:
            return better is not None
        if self.scores:
            return self.scores[better] > self.scores[worse]
        return better < worse

    def ranks_either(self, comparison: "Comparison") -> bool:
        """Return whether the ranking has either of the two documents."""
        return comparison.better in self._positions or comparison.worse in self._positions


def ranking_of(outcome: JsonMapping) -> Ranking:
    """Return the ranking in an outcome (evals/run_folder.py); a failed query has an empty ranking."""
    return Ranking(outcome["ranking"], outcome.get("scores") or ())


LANGUAGE = (
    f"metrics are {', '.join(RANKING)}, each at any depth (nDCG@10), {', '.join(PAIRWISE)}, "
    f"Win(LABEL) and your own as FILE.py:NAME; RR(rel=2)@10 counts documents from grade 2 on"
)
WHOLE_RANKING = 1_000_000_000  # the depth of a metric without one
_RANKING_NAME = re.compile(r"(.*?)(?:\(rel=(\d+)\))?(?:@([1-9]\d{0,8}))?", re.DOTALL)
_LARGEST_VALUE = 2**53  # of a user's metric, so that scores.csv holds it exactly


class MetricName(NamedTuple):
    """A metric of rankings, parsed."""

    function: str  # key of RANKING, FILE.py:NAME, package.module:NAME or entry point
    depth: int | None  # None: the whole ranking counts
    level: int | None = None  # the lowest grade of a relevant document; None: the judgements'


@cache
def parse_metric(name: str) -> MetricName:
    """Split the name of a metric of rankings into its function, its depth and its level."""
    match = _RANKING_NAME.fullmatch(name)
    if match is None:
        return MetricName(name, None)
    function, level, depth = match.groups()
    return MetricName(function, int(depth) if depth else None, int(level) if level else None)


def canonicalize_metric(name: str) -> str:
    """Return a metric's name as tables have it, where another tool's is given: RR@10 for mrr_at_10.

    What follows " [", the judgements by which it is computed, stays.
    """
    metric, bracket, judgements = name.partition(" [")
    return name if is_custom(metric) else translate_metric(metric) + bracket + judgements


def require_metrics(names: Iterable[str]) -> list[str]:
    """Return names of metrics as tables have them, each perhaps followed by " [" and its judgements.

    UnknownName and UsageError as `check_metric` raises them.
    """
    canonical = [canonicalize_metric(name) for name in names]
    for name in canonical:
        check_metric(name.partition(" [")[0])
    return canonical


def check_metric(name: str, *, custom: bool = True) -> None:
    """Check that a metric exists, by its name as tables have it.

    With `custom` a user's own metric is taken too, and imported. UnknownName for a metric that does
    not exist; UsageError for P without a depth, and if a user's code cannot be imported.
    """
    if custom and is_custom(name):
        _load_custom.cache_clear()  # the file may have changed since the last run of this process
        _load_custom(parse_metric(name).function)
        return
    if re.fullmatch(METRIC_NAME, name):
        return
    if name in RANKING:
        raise UsageError(
            f"{name!r} is a share of a number of places, so it needs a depth, e.g. {name}@10"
        )
    known = plugins.list_names(RANKING, plugins.METRICS) if custom else RANKING
    raise UnknownName("metric", name, known).saying(f"no metric is called {name!r}; {LANGUAGE}")


def is_custom(name: str) -> bool:
    """Return whether a metric is the user's own, without importing it."""
    function = parse_metric(name).function
    if function in RANKING or re.fullmatch(METRIC_NAME, name):
        return False
    return plugins.is_reference(function) or function in plugins.list_names((), plugins.METRICS)


def digest_metric_code(name: str) -> str:
    """Return eight hex digits over the sources of a user's own metric, and what it has opened."""
    source = find_metric_source(name)
    digests = [code_digest.collect_sources([source]).digest()]
    if source.endswith(".py"):
        opened = user_files.list_opened([str(plugins.resolve_file(source))])
        digests += sorted(opened.values())
    return hashlib.sha256("".join(digests).encode()).hexdigest()[:8]


def find_metric_source(name: str) -> str:
    """Return the file or module of a user's own metric, without importing it."""
    reference = plugins.resolve("metric", parse_metric(name).function, {}, plugins.METRICS)
    return reference.rpartition(":")[0]


@cache
def _load_custom(function_name: str) -> RankingMetric:
    if re.search(r"[@( \[]", function_name):
        raise UsageError(
            f"a metric cannot be called {function_name!r}: tables of results separate names by "
            f"blanks, brackets and @; rename the file or its folder"
        )
    function: RankingMetric = plugins.load_object("metric", function_name, {}, plugins.METRICS)
    if not callable(function):
        raise UsageError(
            f"{function_name} is a {type(function).__name__}; a metric is a function of a judged "
            f"ranking and a depth"
        )
    return function


def _apply_custom(metric: MetricName, judged: JudgedRanking) -> float | None:
    """Return the value of a user's metric. OwnCodeFailed if it raises or returns no number."""
    function = _load_custom(metric.function)
    try:
        with plugins.contained():
            value = function(judged, metric.depth or WHOLE_RANKING)
            number = None if value is None else float(value)
    except Exception as error:  # a user's metric may raise anything
        raise OwnCodeFailed(
            f"the metric {metric.function} failed: {plugins.describe_exception(error)}"
        ) from error
    if number is not None and not abs(number) <= _LARGEST_VALUE:  # NaN is neither
        raise OwnCodeFailed(f"the metric {metric.function} returned {number}, which is no value")
    return number


def add_metrics(environment: "Environment", names: Sequence[str]) -> "Environment":
    """Return the environment with the metrics in `names` added.

    NotApplicable for a metric that the task cannot have.
    """
    labels = set[str]()
    for comparisons in environment.comparisons.values():
        labels.update(comparison.label for comparison in comparisons)
    for name in names:
        check_metric(name)
        if not is_pairwise(name):
            continue
        lacking = ""
        if name == "Flip":
            lacking = "" if environment.twins else "queries told in two ways"
        elif not labels or name not in ("Win", *labels):
            lacking = "comparisons of that kind"
        if lacking:
            raise NotApplicable(
                f"{environment.task} has no {lacking}, so {name!r} cannot be computed for it; "
                f"{LANGUAGE}"
            )
    metrics = tuple(dict.fromkeys([*environment.metrics, *names]))
    return dataclasses.replace(environment, metrics=metrics)


def compute_metrics(
    query_id: str, rankings: Mapping[str, Ranking], environment: "Environment"
) -> dict[str, float | None]:
    """Compute every metric of `environment` for a query.

    By judgements that do not lead, a metric is called "<metric> [<judgements>]".
    """
    values = {}
    ranked = rankings.get(query_id, Ranking(())).doc_ids
    for judgements in sorted(environment.judgements, key=lambda name: name != environment.headline):
        judged = judge_ranking(ranked, environment.judgements[judgements], query_id)
        leads = judgements == environment.headline
        for name in environment.metrics:
            if not is_pairwise(name):
                label = name if leads else f"{name} [{judgements}]"
                values[label] = apply_metric(name, judged)
            elif leads:
                values[name] = _compare(name, query_id, rankings, environment)
    return values


def compute(
    name: str,
    query_id: str,
    rankings: Mapping[str, Ranking],
    environment: "Environment",
) -> float | None:
    """Compute one metric for a query, by the headline judgements.

    None if it is undefined, or as long as the query's twin has no ranking.
    """
    if is_pairwise(name):
        if environment.twins.get(query_id, query_id) not in rankings:
            return None
        return _compare(name, query_id, rankings, environment)
    return apply_metric(
        name,
        judge_ranking(
            rankings[query_id].doc_ids, environment.judgements[environment.headline], query_id
        ),
    )


def is_pairwise(name: str) -> bool:
    """Return whether a metric is counted over comparisons, without judgements."""
    return name.partition("(")[0] in PAIRWISE


def metric_family(name: str) -> str:
    """Return a metric's name without depth, label and judgements: `nDCG` of `nDCG@10 [pooled]`.

    Only values of the same family have a mean over tasks.
    """
    return re.split(r"[@( ]", name, maxsplit=1)[0]


def is_lower_better(name: str) -> bool:
    """Return whether less of a metric is better."""
    family = metric_family(name)
    return family in PAIRWISE and PAIRWISE[family].is_lower_better


def orient(name: str, value: float) -> float:
    """Return a value of a metric so that more is better: with the other sign where less of it is."""
    return -value if is_lower_better(name) else value


def is_weighted(name: str) -> bool:
    """Return whether a run's own mean of the metric counts comparisons and not queries."""
    family = metric_family(name)
    return family in PAIRWISE and PAIRWISE[family].is_weighted


def unordered_depth(name: str) -> int | None:
    """Return the depth of a metric that ignores the order within it; None for other metrics."""
    family = metric_family(name)
    if family not in RANKING or RANKING[family].is_ordered:
        return None
    return parse_metric(name.partition(" ")[0]).depth or WHOLE_RANKING


def apply_metric(name: str, judged: JudgedRanking) -> float | None:
    """Compute one metric of a ranking, its name as `check_metric` takes it."""
    metric = parse_metric(name)
    if metric.function not in RANKING:
        return _apply_custom(metric, judged)
    if metric.level:
        judged = dataclasses.replace(
            judged,
            hits=[gain >= metric.level for gain in judged.gains],
            relevant=sum(grade >= metric.level for grade in judged.ideal),
        )
    return RANKING[metric.function].compute(judged, metric.depth or WHOLE_RANKING)


def metric_from_attribution(name: str, ranking: Sequence[str], row: JsonMapping) -> float | None:
    """Compute a metric of a document ranking; `row` is the query's line of attribution.jsonl.

    That line does not have which documents are judged, so Judged@k cannot be computed from it.
    """
    if units := row.get("units"):
        ranking = list(dict.fromkeys(units.get(doc_id, doc_id) for doc_id in ranking))
    metric = parse_metric(name)
    if metric.function in RANKING:
        ranking = ranking[: metric.depth]  # it depends on no document further down
    relevant = {history["unit"] for history in row["relevant"]}
    judged = judge_units(ranking, row["grades"], relevant)
    if "nothing" in row:
        judged = dataclasses.replace(judged, nothing=row["nothing"])
    return apply_metric(name, judged)


def judge_ranking(ranking: Sequence[str], judgements: "Judgements", query_id: str) -> JudgedRanking:
    """Judge a ranking; unjudged documents count as grade 0, and so do negative grades."""
    judged = judge_units(
        collapse_to_units(ranking, judgements),
        judgements.gains(query_id),
        judgements.recalled(query_id),
        judgements.by_unit(judgements.qrels.get(query_id, {})),
    )
    if judgements.zero:
        return dataclasses.replace(judged, nothing=0.0)
    return judged


def judge_units(
    units: Sequence[str],
    grades: Mapping[str, float],
    relevant: Collection[str],
    judged: Collection[str] = (),
) -> JudgedRanking:
    """Judge units: `grades` above 0 are for nDCG, `relevant` for recall, `judged` for Judged@k."""
    named = {*grades, *relevant, *judged}
    gains = [0.0] * len(units)
    hits = [False] * len(units)
    have_judgement = [False] * len(units)
    for unit, position in find_positions(named, units).items():
        gains[position] = grades.get(unit, 0.0)
        hits[position] = unit in relevant
        have_judgement[position] = unit in judged
    return JudgedRanking(
        gains=gains,
        ideal=sorted(grades.values(), reverse=True),
        hits=hits,
        relevant=len(relevant),
        judged=have_judgement,
    )


def find_positions(wanted: set[str], units: Sequence[str]) -> dict[str, int]:
    """Return where the `wanted` units stand that are among `units`, each of which is there once."""
    return {unit: position for position, unit in enumerate(units) if unit in wanted}


def measure_unjudged(
    names: Iterable[str], judgements: "Judgements", rankings: Mapping[str, Sequence[str]]
) -> dict[str, dict[str, float]]:
    """Measure how far unjudged documents could change each metric; comparisons are left out.

    "mean" is the metric's mean, "judged" the share of its depth that is judged, and "right" the
    mean if all other documents were relevant.
    """
    measured = {}
    for name in names:
        if is_pairwise(name):
            continue
        depth = parse_metric(name).depth or WHOLE_RANKING
        columns: dict[str, list[float]] = {"mean": [], "judged": [], "right": []}
        for query_id, ranking in rankings.items():
            judged = judge_ranking(ranking, judgements, query_id)
            row = {
                "mean": apply_metric(name, judged),
                "judged": judged_share(judged, depth),
                "right": apply_metric(name, _suppose_relevant(judged, depth)),
            }
            for key, value in row.items():
                if value is not None:
                    columns[key].append(value)
        measured[name] = {key: fmean(column or [0]) for key, column in columns.items()}
    return measured


def _suppose_relevant(judged: JudgedRanking, depth: int) -> JudgedRanking:
    """Return the ranking as if each unjudged document up to `depth` had the highest grade."""
    top = max(judged.ideal, default=0.0) or 1.0
    gains = list(judged.gains[:depth])
    hits = list(judged.hits[:depth])
    unjudged = 0
    for position, has_judgement in enumerate(judged.judged[:depth]):
        if not has_judgement:
            gains[position] = top
            hits[position] = True
            unjudged += 1
    return dataclasses.replace(
        judged,
        gains=gains,
        ideal=[top] * unjudged + list(judged.ideal),
        hits=hits,
        relevant=judged.relevant + unjudged,
    )


def collapse_to_units(ranking: Sequence[str], judgements: "Judgements") -> Sequence[str]:
    """Return the ranking of scored units.

    Each unit stands at the rank of its first document (MaxP, Dai and Callan 2019).
    """
    if judgements.unit_of is None:
        return ranking
    return list(dict.fromkeys(map(judgements.unit_of, ranking)))


def _compare(
    name: str,
    query_id: str,
    rankings: Mapping[str, Ranking],
    environment: "Environment",
) -> float | None:
    comparisons = environment.comparisons.get(query_id, ())
    unranked = Ranking(())
    ranking = rankings.get(query_id, unranked)
    if name != "Flip":
        labelled = [comparison for comparison in comparisons if name in ("Win", comparison.label)]
        return fraction_true(comparisons_won(labelled, ranking))
    twin = environment.twins.get(query_id)
    if twin is None or not comparisons:
        return None
    twin_ranking = rankings.get(twin, unranked)
    flipped = []
    for first, second in zip(comparisons, environment.comparisons[twin], strict=True):
        if ranking.ranks_either(first) and twin_ranking.ranks_either(second):
            flipped.append(ranking.wins(first) != twin_ranking.wins(second))
        else:
            flipped.append(True)
    return fraction_true(flipped)


def comparisons_won(comparisons: Iterable["Comparison"], ranking: Ranking) -> list[bool]:
    """Return for each comparison whether the ranking wins it."""
    return [ranking.wins(comparison) for comparison in comparisons]


def fraction_true(outcomes: Sequence[bool]) -> float | None:
    """Return the share of true values; None if there are no values."""
    return sum(outcomes) / len(outcomes) if outcomes else None
