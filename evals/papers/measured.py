"""Figures of BIRCO's tables that `sextant build` measures: facets of queries (Table 4), and queries that
a model answers by heart (Table 3).

    sextant build contamination --task ir_datasets:beir/nq --kind answer --sample 100 --json > nq.json
    sextant reproduce birco/table3 --contamination beir/nq=nq.json
    sextant build run FOLDER      # the recipe `pool` with facets.kind, of task:birco/relic
    sextant reproduce birco/table4 --facets birco/relic=FOLDER
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from sextant.tools.errors import DataError
from sextant.tools.platform import files

# The folder of a build's finished benchmark (construction/sextant_construction/release.py).
RELEASE = "release"
# A category of Table 3 -> its name in the output of `build contamination`.
CATEGORIES = {
    "C0": "same",
    "C1": "other",
    "C2": "worse",
}
# Statistics of Table 4 over the numbers of facets.
FACETS: Mapping[str, Callable[[Sequence[int]], float]] = {
    "facets, mean": fmean,
    "facets, most": max,
    "facets, least": min,
}
# Of a file of JSON
_LARGEST = 1 << 28


def read_category(file: Path, metric: str) -> float:
    """Return the share of queries in a category, from what `build contamination --json` printed.

    Guesses that no one has labelled are left out. DataError for another file, or without labels.
    """
    try:
        result = files.read_object(files.read_input(file, _LARGEST).decode(errors="replace")) or {}
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror or error}") from None
    counts: Mapping[str, Any] = result.get("categories", {})
    labelled = [counts.get(name) for name in CATEGORIES.values()]
    total = sum(count for count in labelled if isinstance(count, int))
    if not total or None in labelled:
        raise DataError(
            f"{file} has no labelled guess of `build contamination --json`; give it --judge SPEC, "
            "or have people review them"
        )
    return float(counts[CATEGORIES[metric]] / total)


def read_facets(folder: Path) -> dict[str, int]:
    """Return the number of facets by query, from the release of a build with the recipe `pool`.

    DataError for a build that has listed none.
    """
    file = folder / RELEASE / "provenance.jsonl"
    counts = {}
    try:
        for line in files.iter_lines(file):
            row = files.read_object(line.decode(errors="replace")) or {}
            if facets := row.get("facets"):
                counts[str(row["query_id"])] = len(facets)
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror or error}") from None
    if not counts:
        raise DataError(
            f"{file} has no facets; set facets.kind in recipe.toml, and run the build again"
        )
    return counts


def summarise_facets(counts: Mapping[str, int], query_ids: Collection[str], metric: str) -> float:
    """Return a statistic of FACETS over the queries whose facets were counted.

    DataError if these are other queries.
    """
    counted = [counts[query_id] for query_id in query_ids if query_id in counts]
    if not counted:
        raise DataError("the build has facets of other queries; build it of the same task")
    return float(FACETS[metric](counted))
