"""What makes a query hard, after BIRCO's appendix H.2: linear regressions of a query's nDCG@10, as
the mean of three systems, on a feature of the query.

The paper names the features, and gives signs and bounds of p. Overlaps are those of its Table 1: the
share of a query's distinct words, without stop words, that a document has.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean

from scipy.stats import linregress

from sextant.environments.base import Environment
from sextant.evals.papers.dataset_statistics import relevant_documents, word_overlaps
from sextant.tools.records import Query

FACET_COUNT = "facets"
# What a regression gives.
FIGURES = (
    "slope",
    "p",
    "R2",
)

Feature = Callable[[Environment, Query], float]


def overlap(environment: Environment, query: Query, doc_ids: Iterable[str]) -> float:
    """Return the mean share of a query's words that a document has; 0 without words or documents."""
    shares = word_overlaps(environment, query, doc_ids)
    return fmean(shares) if shares else 0.0


# Feature -> its value for a query; FACET_COUNT comes from a build.
FEATURES: Mapping[str, Feature] = {
    "query words": lambda _, query: len(query.text.split()),
    "overlap with relevant": lambda environment, query: overlap(
        environment, query, relevant_documents(environment, query)
    ),
    "overlap with pool": lambda environment, query: overlap(
        environment, query, query.candidates or ()
    ),
    "pool size": lambda _, query: len(query.candidates or ()),
}


def split_metric(metric: str) -> tuple[str, str]:
    """Return (figure, feature) of a metric such as "p: query words"; ("", "") for another metric."""
    figure, _, feature = metric.partition(": ")
    known = figure in FIGURES and feature in (*FEATURES, FACET_COUNT)
    return (figure, feature) if known else ("", "")


def measure_feature(environment: Environment, feature: str) -> dict[str, float]:
    """Return a feature of FEATURES for each query."""
    function = FEATURES[feature]
    return {query.query_id: function(environment, query) for query in environment.queries}


def regress(
    values: Mapping[str, float],
    columns: Sequence[Mapping[str, float | None]],
) -> dict[str, float] | None:
    """Return slope, p and R2 of the line through the queries: x a feature, y the mean of the columns.

    None if the feature is the same for all, or fewer than three queries have all values.
    """
    x = []
    y = []
    for query_id, value in values.items():
        scores = [column.get(query_id) for column in columns]
        defined = [score for score in scores if score is not None]
        if len(defined) == len(columns):
            x.append(value)
            y.append(fmean(defined))
    if len(x) < 3 or len(set(x)) < 2:
        return None
    line = linregress(x, y)
    return {
        "slope": float(line.slope),
        "p": float(line.pvalue),
        "R2": float(line.rvalue**2),
    }
