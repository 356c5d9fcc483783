"""People's ratings of queries, from JSON Lines: a row for each query, with its id and ratings.

    {"query_id": "q1", "naturalness": [true, true, false], "metadata": {"fluency": [1, 1, 0.5]}}

A rating is a number or a truth value, or a list of those by several people, whose mean counts. The
key of a nested rating is "metadata.fluency"; QUEST has its ratings so. Sheets for people to fill in
are in human_review.py.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from sextant.environments.readers import collections
from sextant.environments.readers import files as tables
from sextant.tools import schemas
from sextant.tools.errors import DataError


def read_ratings(file: Path, names: Iterable[str]) -> dict[str, dict[str, float]]:
    """Return the mean of each named rating, by query.

    DataError for a row that lacks one, or a rating that is no number.
    """
    names = list(names)
    ratings = {}
    for location, row in tables.read_table(file):
        present = [column for column in collections.IDS if column in row]
        cell = tables.pick_column(location, row, *(present or collections.IDS))
        query_id = tables.read_id(cell, location)
        ratings[query_id] = {name: _read_mean(row, name, location) for name in names}
    return ratings


def _read_mean(row: Mapping[str, Any], name: str, location: str) -> float:
    value: Any = row
    for key in name.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    try:
        return fmean(
            schemas.validate(list[float | bool], value if isinstance(value, list) else [value])
        )
    except ValueError:
        raise DataError(
            f"{location}: no rating {name!r} in {tables.abbreviate(value)}; it is a number, true or "
            f"false, or a list of such"
        ) from None
